"""How a recommender is trained: interactions, the start, epochs, what is held out, propagation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._progress import progress_phase, report_line
from samplesoft._random import as_key, uniform_block, uniform_run
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_choice,
    as_count,
    as_flag,
    as_nonnegative,
    as_positive,
    short_repr,
)
from samplesoft.losses.registry import LOSSES
from samplesoft.losses.vectors import unit_rows
from samplesoft.metrics.ranking import ranking_scores
from samplesoft.models.linear import Linear, column_counts, sparse_product
from samplesoft.models.linear_softmax import LinearSoftmax, select_entries
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.search import best_classes
from samplesoft.training.callbacks import (
    Average,
    EarlyStop,
    EpochBar,
    KeepBest,
    Refresh,
    Score,
)
from samplesoft.training.linear_task import (
    Examples,
    LinearTask,
    as_weights,
    divergence_as_value_error,
    entry_chunks,
    example_ids_of,
    held_out_order,
    unit_norm,
)
from samplesoft.training.loop import Callback, fit
from samplesoft.training.resolved import FitSettings, Resolved, resolve
from samplesoft.training.schedules import SCHEDULES
from samplesoft.training.task import sub_seed

Matrix = sparse.csr_array

# parameters
_AUTO = "auto"
_FEWEST, _MOST, _SHARE = 1000, 4000, 10  # draws, if the caller gives none: a tenth of the items
_OFFERED = [
    name
    for name, spec in LOSSES.items()
    if spec.several_labels
    and not spec.absolute
    and not spec.on_tree
    and "label_reduction" not in spec.fixed
]  # labels have weights, which one versus all does not take

# epochs
_TRAINING, _START, _HELD_OUT = range(3)  # streams of the seed
_HISTORIES = 100  # a stream beside those of `LinearTask`, for the items that a step leaves out
_KEPT = 0.3  # what an item that is still in the history weighs as a label; one left out: 1
_SMALL = 0.1  # what is random at the beginning, in relation to what is not

# singular vectors: those beyond what is wanted, and products with the graph
_OVERSAMPLING, _PRODUCTS = 16, 3

# what is held out, and how it is scored
_LENGTH = 20  # of the lists
_MOST_USERS = 2000  # at most
_WEIGHTS = (0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # of the propagation, to choose from
_EPOCH_WEIGHT = 0.05  # with which it chooses the epoch
_USUAL_WEIGHT = 0.1  # where nothing is held out to choose by
_USERS_AT_A_TIME = 1024
_ENTRIES = 1 << 18  # at a time


def check_parameters(recommender: Any, num_items: int = 2) -> FitSettings:
    """Return what a recommender's parameters ask of `fit`, or raise TypeError or ValueError."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        as_count(name, getattr(recommender, name))
    for name in ("learning_rate", "negative_weight"):
        as_positive(name, getattr(recommender, name))
    as_nonnegative("dropout", recommender.dropout, below=1.0)
    as_choice("schedule", recommender.schedule, SCHEDULES)
    as_nonnegative("warmup", recommender.warmup, below=1.0)
    for name in ("early_stopping", "verbose"):
        as_flag(name, getattr(recommender, name))
    share = as_nonnegative("validation_fraction", recommender.validation_fraction, below=1.0)
    if share == 0.0:
        raise ValueError(
            "`validation_fraction` must be greater than 0, got 0; or turn `early_stopping` off."
        )
    weight = recommender.propagation
    if not isinstance(weight, str):
        as_nonnegative("propagation", weight)
    elif weight != _AUTO:
        raise ValueError(f"`propagation` must be a number or 'auto', got {short_repr(weight)}.")
    as_choice("loss", recommender.loss, _OFFERED)
    num_sampled = recommender.num_sampled
    if num_sampled is None:
        num_sampled = min(max(num_items // _SHARE, _FEWEST), _MOST)
    model = {
        "loss": recommender.loss,
        "sampler": recommender.sampler,
        "num_sampled": num_sampled,
        "shared": recommender.shared,
        "tau": recommender.tau,
        "embedding_dim": recommender.embedding_dim,
        "negative_weight": recommender.negative_weight,
    }
    return FitSettings(
        model=model,
        batch_size=recommender.batch_size,
        epochs=recommender.max_iter,
        learning_rate=recommender.learning_rate,
        schedule=recommender.schedule,
        warmup=recommender.warmup,
    )


class Trained(NamedTuple):
    """What training comes to."""

    embedding: Linear  # of histories
    items: Rows  # (items, d): vectors, propagated
    users: Rows  # (users, d)
    weight: float  # of the propagation
    losses: list[float]  # of each round
    scores: list[float]  # of each round, where something is held out
    resolved: Resolved


class _Rounds(NamedTuple):
    """A model that has been trained, and its rounds."""

    model: LinearSoftmax
    weight: float  # of the propagation
    losses: list[float]
    scores: list[float]
    resolved: Resolved


def train(recommender: Any, taken: Matrix, further: Sequence[Callback]) -> Trained:
    """Train a model on interactions (users, items), as the parameters of a recommender say.

    `further` callbacks come after those that it has itself.
    """
    asked = check_parameters(recommender, taken.shape[1])
    active, num_users = np.flatnonzero(np.diff(taken.indptr)), taken.shape[0]
    if len(active) < num_users:  # users without items are left out, as if they were not there
        taken = taken[active]
    rounds = _rounds(recommender, taken, asked, further)
    model = rounds.model
    users = user_vectors(model.embedding, taken)  # with what was held out
    items = model.class_vectors()
    if rounds.weight:
        of_users = sparse_product(transposed(normalized(taken)), users)
        items = propagated(items, of_users, rounds.weight)
    if len(active) < num_users:
        of_active = users
        of_none = user_vectors(model.embedding, Matrix((1, taken.shape[1])))
        users = of_none.repeat(num_users, axis=0)
        users[active] = of_active
    return Trained(
        embedding=model.embedding,
        items=items,
        users=users,
        weight=rounds.weight,
        losses=rounds.losses,
        scores=rounds.scores,
        resolved=rounds.resolved,
    )


def _rounds(
    recommender: Any, taken: Matrix, asked: FitSettings, further: Sequence[Callback]
) -> _Rounds:
    """Train a model, and choose the weight of its propagation."""
    key = as_key(recommender.random_state, "random_state")
    held_out, seen = None, taken
    if recommender.early_stopping:
        held_out = HeldOut(taken, recommender.validation_fraction, sub_seed(key, _HELD_OUT))
        seen = held_out.left
    num_items = seen.shape[1]
    sizes = np.diff(seen.indptr)
    rows = np.flatnonzero(sizes)
    resolved = resolve(asked, num_items, len(rows), several_labels=True)
    resolved.model.require_memory(num_items, num_items, np.dtype(np.float32))
    item_counts = column_counts(seen)
    seed = sub_seed(key, _TRAINING)
    task = RecommenderTask(num_items, num_items, resolved.model, item_counts, seed)
    task.dropout = recommender.dropout
    optimizer = make_optimizer(resolved.optimizer, resolved.learning_rate)
    model, graph = task.model, normalized(seen)
    # there are no more directions than users and items that somebody has taken
    rank = min(taken.shape[0], int(np.count_nonzero(column_counts(taken))))
    with progress_phase(recommender.verbose, "singular vectors"):
        _begin(model, graph, rank, sub_seed(key, _START))
    # the loss of a user is a mean over its items: the weights let each item count as much
    examples = Examples(seen, seen, sizes / sizes[rows].mean())
    task.use(examples, rows, resolved.batch_size)
    resolved = replace(resolved, step_by_step=task.why_step_by_step(optimizer))
    weight = recommender.propagation
    if weight == _AUTO and held_out is None:
        weight = _USUAL_WEIGHT

    def ndcg(weights: Sequence[float]) -> list[float]:
        """Return nDCG at 20 of what is held out, for weights of the propagation."""
        assert held_out is not None
        users, items = user_vectors(model.embedding, seen), model.class_vectors()
        of_users = np.zeros_like(items)
        if any(weights):  # the transpose, as large as the graph, is not kept
            of_users = sparse_product(transposed(graph), users)
        return [held_out.score(users, propagated(items, of_users, weight)) for weight in weights]

    average = Average(task.parameters)
    score = None
    callbacks: list[Callback] = [Refresh(), average]
    if held_out is not None:
        score_weight = _EPOCH_WEIGHT if weight == _AUTO else weight
        score = Score(lambda: ndcg([score_weight])[0], average=average)
        callbacks += [
            score,
            KeepBest(average),
            EarlyStop(recommender.n_iter_no_change),
        ]
    if recommender.verbose:
        callbacks.append(EpochBar(resolved.epochs, "ndcg_at_20", score))
    report_line(recommender.verbose, f"fit: {resolved}")
    progress = fit(
        task,
        optimizer,
        epochs=resolved.epochs,
        schedule=resolved.make_schedule(),
        callbacks=[*callbacks, *further],
        guard=divergence_as_value_error,
    )
    losses = [epoch["train_loss"] for epoch in progress.history]
    scores = [] if score is None else score.scores
    if weight == _AUTO:
        with progress_phase(recommender.verbose, "weight of the propagation"):
            weight = _WEIGHTS[int(np.argmax(ndcg(_WEIGHTS)))]
    return _Rounds(model=model, weight=weight, losses=losses, scores=scores, resolved=resolved)


def _begin(model: LinearSoftmax, graph: Matrix, rank: int, seed: int) -> None:
    """Begin with singular vectors of the graph, of norm 1, for items that somebody has taken."""
    directions = item_directions(graph, model.class_vectors().shape[1], seed, rank)
    norms = np.sqrt(np.einsum("ij,ij->i", directions, directions, dtype=np.float64))
    known = np.flatnonzero(norms > np.finfo(np.float32).tiny)
    start = unit_rows("user_items", directions[known])[0]
    for name in ("embedding.weights", "softmax.class_embeddings"):
        model.parameters[name][known, : start.shape[1]] = start
        model.parameters[name][known, start.shape[1] :] *= np.float32(_SMALL)
    model.parameters["embedding.intercept"] *= np.float32(_SMALL)
    model.softmax.refresh()


class RecommenderTask(LinearTask):
    """Users whose items are predicted from some of them.

    Of the entries of an input, which is a history, a share `dropout` is left out in each step. Its
    items are labels all the same, and those that are left in are labels of less weight: that
    an item follows from itself is nothing to learn.

    References
    ----------
    P. Vincent et al., "Stacked denoising autoencoders", JMLR 2010, section 3.4: more weight for
    what was left out.
    """

    dropout = 0.0

    def _rows(self, rows: IntArray) -> Examples:
        """Return some users, whose histories are divided by their norms only here."""
        some = self.data.rows(rows)
        return some._replace(X=unit_norm(some.X))

    def prepared(self, x: Any, labels: Any, first: int = 0) -> tuple[Any, Any]:
        """Return histories without some of their items, and all items as labels."""
        seed = sub_seed(self._seed, _HISTORIES, self.steps_taken)
        return thinned(x, labels, self.dropout, seed, first)


def thinned(
    histories: Matrix, labels: Matrix, dropout: float, seed: int | np.uint64, first: int = 0
) -> tuple[Matrix, Matrix]:
    """Return histories (B, items) without some entries, and the labels with their weights.

    Both have entries at the same places. Histories that are left are scaled up for their mean. They
    may be a part of some whose entries, `first` of them, stand before theirs.
    """
    left = uniform_run(np.uint64(seed), first, histories.nnz) >= dropout
    x = select_entries(histories, left)
    x.data /= x.data.dtype.type(1.0 - dropout)
    values = np.where(left, _KEPT, 1.0) * labels.data
    return x, sparse.csr_array((values, labels.indices, labels.indptr), labels.shape)


def as_interactions(name: str, value: Any, num_items: int | None = None) -> Matrix:
    """Return weights of interactions (users, items) in order, none of them 0, as a new array."""
    matrix = as_weights(name, value)
    if num_items is not None and matrix.shape[1] != num_items:
        raise ValueError(
            f"`{name}` must have a column for each of the {num_items} items, got {matrix.shape[1]}."
        )
    matrix.sum_duplicates()
    # in half of the memory, where that changes no weight; all that is computed is float64
    if all(np.array_equal(some, some.astype(np.float32)) for some in _parts(matrix.data)):
        matrix.data = matrix.data.astype(np.float32)
    return matrix


def _parts(array: Any) -> list[Any]:
    """Return an array (E,) in parts."""
    return [array[part] for part in chunks(len(array), _ENTRIES)]


def hide(user_items: Matrix, share: float, seed: int) -> tuple[Matrix, IntArray, Matrix]:
    """Hide a fifth of the items of a share of the users, at least one of each.

    Return what is left (users, items), the users (k,) who had at least two items and were chosen,
    and their hidden items (k, items).
    """
    able = np.flatnonzero(np.diff(user_items.indptr) > 1)
    users = np.sort(held_out_order(able, seed)[: int(np.ceil(share * len(able)))])
    chosen = np.zeros(user_items.shape[0], bool)
    chosen[users] = True
    hidden, random = np.empty(user_items.nnz, bool), np.random.default_rng(seed)
    for part in entry_chunks(user_items):
        example_ids, some = example_ids_of(user_items, part)
        places = random.random(len(example_ids))
        first = np.lexsort((places, example_ids))  # of each user, the items in a random order
        sizes = np.diff(user_items.indptr[part.start : part.stop + 1])
        rank = np.empty(len(example_ids), np.int64)
        rank[first] = np.arange(len(example_ids)) - (np.cumsum(sizes) - sizes)[example_ids]
        hidden[some] = chosen[part][example_ids] & (rank < np.maximum(1, sizes // 5)[example_ids])
    return select_entries(user_items, ~hidden), users, select_entries(user_items, hidden)[users]


def normalized(user_items: Matrix) -> Matrix:
    """Return the interactions divided by the roots of both degrees, sums of weights, as float32."""
    unit, parts = max(1.0, float(user_items.data.max(initial=0.0))), entry_chunks(user_items)
    of_users, of_items = map(np.zeros, user_items.shape)
    values = np.empty(user_items.nnz, np.float32)

    def weights(some: slice) -> FloatArray:
        found: FloatArray = user_items.data[some].astype(np.float64) / unit
        return np.maximum(found, np.finfo(np.float64).tiny)  # of which a degree is not 0

    for part in parts:
        example_ids, some = example_ids_of(user_items, part)
        of_users[part] = np.bincount(example_ids, weights(some), part.stop - part.start)
        # one after another, as if all were added up at once
        np.add.at(of_items, user_items.indices[some], weights(some))
    for part in parts:
        example_ids, some = example_ids_of(user_items, part)
        of_examples, items = np.sqrt(of_users[part][example_ids]), user_items.indices[some]
        values[some] = weights(some) / of_examples / np.sqrt(of_items[items])
    return sparse.csr_array((values, user_items.indices, user_items.indptr), user_items.shape)


def item_directions(graph: sparse.csr_array, dim: int, seed: int, rank: int | None = None) -> Rows:
    """Return the right singular vectors (items, r) of the r <= dim largest singular values.

    No more than `rank` of these are not 0, by default the users or the items, if those are fewer.

    The randomized range finder of Halko, Martinsson and Tropp (2011), "Finding structure with
    randomness", algorithm 4.4: `graph` (users, items) is met in sparse products only.
    """
    rank = min(graph.shape) if rank is None else rank
    wanted = min(dim, rank)
    width = min(wanted + _OVERSAMPLING, rank)
    back = transposed(graph)
    basis = 2.0 * uniform_block(np.uint64(seed), graph.shape[1], width) - 1.0
    basis = basis.astype(np.float32)
    for _ in range(_PRODUCTS):
        basis, _ = np.linalg.qr(sparse_product(back, sparse_product(graph, basis)))
    small = sparse_product(graph, basis)
    _, vectors = np.linalg.eigh(small.T @ small)  # rising; (width, width), so that squares do
    directions: Rows = basis @ vectors[:, ::-1][:, :wanted]
    return directions


class HeldOut:
    """A fifth of the items of some users, which a model is not trained on.

    Attributes
    ----------
    left : csr_array, shape (users, items)
        The interactions to train on.
    """

    def __init__(self, user_items: Matrix, share: float, seed: int) -> None:
        able = int(np.sum(np.diff(user_items.indptr) > 1))
        if not able:
            raise ValueError(
                "`early_stopping` needs users with at least two items, to hide some of them, got "
                "none; turn it off."
            )
        self.left, self._users, self._hidden = hide(
            user_items, min(share, _MOST_USERS / able), seed
        )
        self._given = self.left[self._users]
        free = user_items.shape[1] - int(np.diff(self._given.indptr).max())
        self._length = min(_LENGTH, free)

    def score(self, users: Rows, items: Rows) -> float:
        """Return nDCG at 20 of the hidden items, for vectors of all users and items."""
        ids, _ = best_classes(users[self._users], items, self._length, leave_out=self._given)
        return ranking_scores(ids, self._hidden, self._length)[f"ndcg_at_{self._length}"]


def user_vectors(embedding: Linear, histories: Any) -> Rows:
    """Return vectors of norm 1 (B, d) of users with `histories`, a CSR matrix (B, items).

    A history is divided by its norm, then multiplied by the embedding of its items; that of no
    items is the intercept.
    """
    users: Rows = np.empty((histories.shape[0], embedding.parameters["intercept"].size), np.float32)
    for part in chunks(len(users), _USERS_AT_A_TIME):
        inputs = unit_norm(histories[part])
        users[part] = unit_rows("user_items", embedding.forward(inputs)[0])[0]
    return users


def transposed(graph: Matrix) -> Matrix:
    """Return N' (items, users) in rows, for `sparse_product` with the vectors of users."""
    return sparse.csr_array(graph.T)


def propagated(items: Rows, of_users: Rows, weight: float) -> Rows:
    """Return item vectors C + weight N'H: each has the vectors of its users added.

    For `items` C (items, d), and `of_users` N'H (items, d): for each item the sum of the vectors H
    of its users, weighted by the normalised graph N (users, items).
    """
    if weight == 0.0:
        return items
    vectors: Rows = items + np.float32(weight) * of_users
    return vectors
