"""How a recommender is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samplesoft._progress import progress_bar, progress_phase
from samplesoft._random import as_key
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.models.optimizers import make_optimizer
from samplesoft.recommend.denoising import DenoisingEpochs
from samplesoft.recommend.held_out import HeldOut
from samplesoft.recommend.interactions import Matrix, normalized
from samplesoft.recommend.parameters import AUTO, check_parameters
from samplesoft.recommend.spectral import item_directions
from samplesoft.recommend.vectors import propagated, user_vectors
from samplesoft.samplers.base import Rows
from samplesoft.training.average import Average, Best
from samplesoft.training.checkpoint import Arrays
from samplesoft.training.linear_epochs import unit_norm
from samplesoft.training.task import sub_seed

_WEIGHTS = (0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # of the propagation, to choose from
_EPOCH_WEIGHT = 0.05  # with which it chooses the epoch
_SMALL = 0.1  # what is random at the beginning, in relation to what is not
_TRAINING, _START, _HELD_OUT = range(3)  # streams of the seed


@dataclass
class Trained:
    """What training has found: how histories are embedded, class vectors, and how it went."""

    embedding: Linear
    scores: list[float]
    propagation: float
    losses: list[float] = field(default_factory=list)
    class_vectors: Rows = field(init=False)


def trained(recommender: Any, user_items: Matrix) -> Trained:
    """Train a model as the parameters of a recommender say."""
    settings = check_parameters(recommender, user_items.shape[1])
    key = as_key(recommender.random_state, "random_state")
    held_out, seen = None, user_items
    if recommender.early_stopping:
        held_out = HeldOut(user_items, recommender.validation_fraction, sub_seed(key, _HELD_OUT))
        seen = held_out.left
    sizes = np.diff(seen.indptr)
    num_items = seen.shape[1]
    settings.require_room(num_items, num_items, np.dtype(np.float32))
    epochs = DenoisingEpochs(
        settings,
        recommender.dropout,
        np.bincount(seen.indices, minlength=num_items),
        sub_seed(key, _TRAINING),
        make_optimizer("adagrad", 0.0),
    )
    model, graph = epochs.model, normalized(seen)
    with progress_phase(recommender.verbose, "singular vectors"):
        _begin(model, seen, graph, sub_seed(key, _START))
    rows = np.flatnonzero(sizes)
    inputs, weights = unit_norm(seen), sizes / sizes[rows].mean()
    weight = recommender.propagation
    average = Average(model.parameters)
    best, total = Best(average.parameters), recommender.max_iter
    embedding = _embedding(average.parameters)
    found = Trained(embedding, best.scores, 0.0 if weight == AUTO else weight)

    def score(weight: float) -> float:
        assert held_out is not None
        users = user_vectors(embedding, seen)
        return held_out.score(users, propagated(class_vectors(), users, graph, weight))

    def class_vectors() -> Rows:
        vectors = average.parameters["softmax.class_embeddings"]
        return unit_rows("class_embeddings", vectors.copy())[0]

    with progress_bar(recommender.verbose, each=True, total=total, unit="round", desc="fit") as bar:
        for _ in range(total):
            loss = epochs.epoch(
                inputs, seen, weights, rows, recommender.batch_size, recommender.learning_rate
            )
            average.add(model.parameters)
            found.losses.append(loss)
            figures = {"loss": f"{loss:.4f}"}
            if held_out:
                best.add(score(_EPOCH_WEIGHT if weight == AUTO else weight))
                figures["ndcg_at_20"] = f"{best.scores[-1]:.4f}"
            bar.set_postfix(refresh=False, **figures)
            bar.update()
            if best.since >= recommender.n_iter_no_change:
                break
    best.restore()
    if weight == AUTO:
        with progress_phase(recommender.verbose, "weight of the propagation"):
            found.propagation = max(_WEIGHTS, key=score)
    found.class_vectors = class_vectors()
    return found


def _embedding(parameters: Arrays) -> Linear:
    """Return an embedding of histories of these parameters of a model, and share its arrays."""
    embedding = Linear(*parameters["embedding.weights"].shape)
    for name, array in embedding.parameters.items():
        array[...] = parameters[f"embedding.{name}"]
        parameters[f"embedding.{name}"] = array
    return embedding


def _begin(model: LinearSoftmax, seen: Matrix, graph: Matrix, seed: int) -> None:
    """Begin with singular vectors of the graph, of norm 1, for items that somebody has taken."""
    directions = item_directions(graph, model.class_vectors().shape[1], seed)
    norms = np.sqrt(np.einsum("ij,ij->i", directions, directions, dtype=np.float64))
    known = np.flatnonzero(norms > np.finfo(np.float32).tiny)
    start = unit_rows("user_items", directions[known])[0]
    for name in ("embedding.weights", "softmax.class_embeddings"):
        model.parameters[name][known, : start.shape[1]] = start
        model.parameters[name][known, start.shape[1] :] *= np.float32(_SMALL)
    model.parameters["embedding.intercept"] *= np.float32(_SMALL)
    model.softmax.refresh()
