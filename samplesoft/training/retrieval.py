"""Sparse inputs and very many classes: extreme classification, and items for users."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._random import as_key
from samplesoft._validation import (
    IntArray,
    as_count,
    as_csr,
    as_flag,
    as_nonnegative,
    require_finite,
    require_instance,
    without_repeats,
)
from samplesoft.distributed.linear_softmax import require_shardable, shard
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.registry import LOSSES
from samplesoft.metrics.ranking import MIN_EXAMPLES, propensities, ranking_scores
from samplesoft.models.linear import Gradient
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, some_entries
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.static import UniformSampler
from samplesoft.training.checkpoint import Arrays, plain
from samplesoft.training.linear_task import (
    Examples,
    LinearTask,
    as_weights,
    held_out_order,
    unit_norm,
)
from samplesoft.training.resolved import FitSettings, Resolved, resolve
from samplesoft.training.settings import Settings
from samplesoft.training.task import NUM_EXAMPLES, sub_seed
from samplesoft.training.trained import linear_softmax_config, one_label_each

CUTS = (1, 3, 5, 20)  # lengths of the lists that are scored
_VALIDATED = 2000  # examples of a validation
_EACH = 256  # of them at a time
_HIDDEN = 3, 1  # the stream of the seed by which items of held-out users are hidden
_CHOSEN = 3, 2  # that by which examples in a checkpoint get one label

Matrix = sparse.csr_array


@dataclass(frozen=True)
class RetrievalSettings(LinearSoftmaxSettings):
    """A linear embedding under a softmax layer, for examples with several labels.

    Parameters
    ----------
    loss : str
        Loss that is minimised, for several labels of an example; see `samplesoft.losses.LOSSES`.
    tau : float, optional
        Inverse temperature; by default 10, and 1 without `normalize`.
    normalize : bool, optional
        Divide contexts and class vectors by their norms; the default but for full-logistic.
    sampler : str or None
        What draws classes; see `samplesoft.samplers.SAMPLERS`. None for a loss that draws nothing.
    num_sampled : int or None
        Draws for each example, or for the batch if `shared`.
    num_certain : int
        So many of the most frequent classes take part for certain, beside the draws of the others.
    shared : bool, optional
        Draw one set of classes for all examples of a batch; the default with a sampler such as
        unigram and a loss such as sampled-masked.
    nu : float
        Sharpness of the Gaussian kernel of the rff samplers.
    num_features : int
        Random frequencies of the rff samplers, features of positive.
    update_every : int
        Steps between two updates of a sampler that follows the class vectors.
    embedding_dim : int or None
        Length of embedded inputs and of class vectors; None for class vectors on the inputs.
    alpha : float, optional
        L2 penalty without an embedding; by default 0.003 divided by the number of classes.
    dropout : float
        Probability with which an entry of an input is dropped in a step.
    label_reduction : {"pal-n", "pal", "ova"}
        Loss of an example with several labels: pal-n, the mean of theirs; pal, their sum; ova,
        one versus all, with nce or negative-sampling-masked.
    mask_other_labels : bool
        Leave the other labels of an example out of the negatives of a label; the default.
    negative_weight : float, optional
        Weight of the log-sum-exp of the draws in the bilateral loss.
    batch_size : int
        Examples in a batch.
    validation : float
        Share of the examples that are held out; after each epoch at most 2,000 of them are
        evaluated, or with a share of 0 as many of the training data.
    seed : int
        Seed of everything random.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss excludes the label of an example, which has several.
    """

    dropout: float = 0.3
    batch_size: int = 64
    validation: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("batch_size", self.batch_size)
        as_count("seed", self.seed, 0)
        as_nonnegative("validation", self.validation, below=1.0)


class RetrievalTask(LinearTask):
    """Rank classes for sparse inputs.

    Parameters
    ----------
    inputs : scipy.sparse matrix, shape (N, v)
        Divided by the norms of its rows.
    labels : scipy.sparse matrix, shape (N, n)
        Ones, or weights of the labels; examples without any are left out of training.
    settings : RetrievalSettings
        The model.
    leave_out : bool
        Whether inputs are items that a user has taken and labels the same items: in validation a
        fifth of them is to be found from the other items, which are left out of the lists.
    workers : optional
        That keep the class vectors in training, as for a
        `samplesoft.distributed.ShardedSoftmaxLayer`.

    Attributes
    ----------
    num_unlabeled : int
        Examples without a label.
    test : tuple of matrix, or None
        Arguments of `evaluate` for the end, if somebody sets them.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or nothing is left to train on.
    MemoryError
        If the parameters would not fit.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> X = csr_array(np.eye(4, dtype=np.float32))
    >>> settings = RetrievalSettings(num_sampled=2, num_features=8, validation=0.0, batch_size=2)
    >>> task = RetrievalTask(X, X, settings)
    >>> loss, gradients = task.step(0, 0)
    >>> task.num_steps, sorted(task.validate())[:2]
    (2, ['loss', 'ndcg_at_1'])
    """

    def __init__(
        self,
        inputs: Any,
        labels: Any,
        settings: RetrievalSettings,
        *,
        leave_out: bool = False,
        workers: Any = None,
    ) -> None:
        require_instance("settings", settings, RetrievalSettings)
        settings = settings.resolved()
        self._workers, made = workers, settings
        if workers is not None:
            require_shardable(settings)
            # the workers make the sampler; until they have the vectors a cheap one stands for it
            made = replace(settings, sampler=lambda given: UniformSampler(len(given.counts)))
        self.settings, self.leave_out = settings, as_flag("leave_out", leave_out)
        inputs, labels = _examples(inputs, labels)
        if self.leave_out:
            _require_same_items(inputs, labels)
        self.test: Any = None
        self._key = as_key(settings.seed)
        self._given, self._labels = inputs, labels
        self.num_unlabeled = int(np.sum(np.diff(labels.indptr) == 0))
        rows, held_out = self._split()
        self._validation = self._held_out(held_out[:_VALIDATED])
        # their contexts go into checkpoints, for `verify --checkpoint`
        self._shown = held_out[:NUM_EXAMPLES]
        sizes = inputs.shape[1], labels.shape[1]
        settings.require_memory(*sizes, np.dtype(np.float32))
        # held-out examples count too: a class that occurs in these alone must be drawn as well
        counts = np.bincount(labels.indices, minlength=sizes[1]).astype(np.float64)
        super().__init__(*sizes, made, counts, self._key)
        every = np.ones(inputs.shape[0])
        self.use(Examples(unit_norm(inputs), labels, every), rows, settings.batch_size)

    def config(self) -> dict[str, Any]:
        """Return the settings, the sizes, and a fingerprint of the data."""
        data = hashlib.sha256()
        for matrix in (self._given, self._labels):
            # in float64, whatever type the matrix has: the fingerprint is that of the numbers
            for part in (matrix.indptr, matrix.indices, matrix.data):
                data.update(part.astype(np.float64).tobytes())
        return {
            "model": "retrieval",
            "data": data.hexdigest()[:16],
            "num_labeled": self._labels.shape[0] - self.num_unlabeled,
            **plain(self.settings.config()),
            "linear_softmax": linear_softmax_config(
                self.model, unit_inputs=True, leave_out=self.leave_out
            ),
        }

    def resolved(self, settings: Settings) -> Resolved:
        """Return what is done where this task is trained with some settings."""
        options = settings.optimizer_options
        optimizer = make_optimizer(settings.optimizer, settings.learning_rate, **options)
        reason: str | None = "class vectors lie on workers"
        if self._workers is None:
            reason = self.why_step_by_step(optimizer)
        asked = FitSettings(
            model=self.settings,
            batch_size=self.batch_size,
            epochs=settings.epochs,
            optimizer=settings.optimizer,
            learning_rate=settings.learning_rate,
            schedule=settings.schedule,
            warmup_steps=settings.warmup_steps,
        )
        return resolve(asked, self.model.num_classes, len(self.rows), step_by_step=reason)

    def start(self, optimizer: Optimizer) -> Any:
        """Give the workers, if there are some, their classes."""
        if self._workers is None:
            return optimizer
        sharded = shard(
            self.model,
            self.settings,
            counts=self.counts,
            workers=self._workers,
            optimizer=optimizer,
        )
        self.parameters = self.model.parameters
        return sharded

    def begin_epoch(self, epoch: int, index: int) -> None:
        """Shuffle the rows; all follows from the epoch and the step, for a run may be resumed."""
        self.epochs_begun, self.steps_taken = epoch, epoch * self.num_steps + index
        super().begin_epoch(epoch, index)

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch."""
        self.steps_taken = epoch * self.num_steps + index
        return super().step(epoch, index)

    def examples(self) -> Arrays:
        """Return contexts of held-out examples with one label of each, and counts of the classes.

        Of several labels one is drawn; with `leave_out` it is left out of the items of its user.
        """
        given, labels = self._given[self._shown], self._labels[self._shown]
        seed = sub_seed(self._key, *_CHOSEN)
        inputs, drawn = one_label_each(given, labels, self.leave_out, seed)
        return {"h": self.model.embed(unit_norm(inputs)), "labels": drawn, "counts": self.counts}

    def state(self) -> Arrays:
        """Return what the sampler has learned."""
        return self.model.state()

    def load_state(self, state: Arrays) -> None:
        """Load what a sampler has learned."""
        self.model.load_state(state)

    def validate(self) -> dict[str, float]:
        """Return loss of the full softmax in nats, and scores of lists, on what is held out."""
        return self.evaluate(*self._validation)

    def evaluate(self, inputs: Any, labels: Any) -> dict[str, float]:
        """Return loss of all classes, and scores of lists of the best ones.

        Parameters
        ----------
        inputs : scipy.sparse matrix, shape (N, v)
            Not yet divided by norms; with `leave_out` what is left out of the lists.
        labels : scipy.sparse matrix, shape (N, n)
            Examples without any are left out.

        Returns
        -------
        dict
            ``loss``, the mean in nats, and what `ranking_scores` returns; ``psp_at_k`` where inputs
            are not items.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        inputs, labels = _examples(inputs, labels)
        rows = np.flatnonzero(np.diff(labels.indptr))
        kept, wanted = inputs[rows], labels[rows]
        x, k = unit_norm(kept), [k for k in CUTS if k <= labels.shape[1]]
        ids, _ = self.model.top_k(x, k[-1], leave_out=kept if self.leave_out else None)
        size = self._labels.shape[0] - self.num_unlabeled
        # users' lists of items are not scored by propensities
        weigh = not self.leave_out and size >= MIN_EXAMPLES
        each = propensities(self.counts, size) if weigh else None
        scores = ranking_scores(ids, wanted, k, propensities=each)
        return {"loss": self._loss(x, wanted), **scores}

    def _loss(self, x: Any, labels: Any) -> float:
        if LOSSES[self.settings.loss].on_tree:  # which has no softmax of class vectors
            return float(self.model.softmax.evaluate(self.model.embed(x), labels).loss)
        # the same loss for all models, so that runs of different losses can be compared
        tau, normalize = self.settings.tau, bool(self.settings.normalize)
        full = FullSoftmaxLoss(tau=tau, normalize=normalize, reduction="sum")
        rows = self.model.softmax.class_embeddings
        # scores of all classes for 256 examples at a time
        losses = (
            full.forward(self.model.embed(x[part]), rows, labels[part])[0]
            for part in chunks(x.shape[0], _EACH)
        )
        return sum(map(float, losses)) / float(x.shape[0])

    def _split(self) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and those held out."""
        rows = np.flatnonzero(np.diff(self._labels.indptr))
        order = held_out_order(rows, self._key)
        held = int(self.settings.validation * len(rows))
        # nothing is held out: some of the training data stand in for the validation
        if held == 0:
            return rows, order
        return np.sort(order[held:]), order[:held]

    def _held_out(self, rows: IntArray) -> tuple[Matrix, Matrix]:
        """Return inputs and labels of a validation."""
        inputs, labels = self._given[rows], self._labels[rows]
        if not self.leave_out:
            return inputs, labels
        generator = np.random.default_rng(sub_seed(self._key, *_HIDDEN))
        hidden = generator.random(labels.nnz) < 0.2
        # of users with two items or more, one is hidden and the next one known, whatever was drawn
        first = labels.indptr[:-1][np.diff(labels.indptr) > 1]
        hidden[first] = True  # something is to be found, and something known
        hidden[first + 1] = False
        return some_entries(inputs, ~hidden), some_entries(labels, hidden)


def _examples(inputs: Any, labels: Any) -> tuple[Matrix, Matrix]:
    """Return copies of inputs and labels, without labels of weight 0, once they are sound."""
    inputs = without_repeats(as_csr("inputs", inputs))
    labels = without_repeats(as_weights("labels", labels))
    if inputs.shape[0] != labels.shape[0]:
        raise ValueError(
            f"`labels` must have a row for each of the {inputs.shape[0]} inputs, got "
            f"{labels.shape[0]}."
        )
    require_finite("inputs", inputs.data)
    if not labels.nnz:
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )
    return inputs, labels


def _require_same_items(inputs: Matrix, labels: Matrix) -> None:
    """Raise ValueError unless the entries of both are in the same places, each once."""
    for matrix in (inputs, labels):
        # it also sorts them, so that places can be compared
        matrix.sum_duplicates()
    same = all(
        np.array_equal(getattr(inputs, part), getattr(labels, part))
        for part in ("indptr", "indices")
    )
    if inputs.shape != labels.shape or not same:
        raise ValueError(
            "`labels` must be the items of `inputs` where `leave_out` is True, got shapes "
            f"{inputs.shape} and {labels.shape}, or other places; give one matrix for both."
        )
