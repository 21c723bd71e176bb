"""The training task of a linear softmax model, for the classifier, the recommender and retrieval.

It determines the order of the examples and the seed of each step, takes steps one by one or fused
(many steps in one compiled call), and updates the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._random import OffsetSeed
from samplesoft._validation import FloatArray, IntArray, as_csr, require_finite
from samplesoft.losses.log_sums import MovingAverageLoss
from samplesoft.models.linear import Gradient
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers.base import Optimizer
from samplesoft.training.fused import (
    draw_steps,
    steps_per_call,
    take_steps,
    why_step_by_step,
)
from samplesoft.training.task import Task, derive_seed

# first elements of the paths in `derive_seed`: one random stream for each purpose
_MODEL, _ORDER, _STEP, _SPLIT, _LABELS, _DROPOUT, PAIRS = range(7)
# input entries that are prepared at a time; each takes about 60 bytes
_CHUNK_ENTRIES = 1 << 17
# a selection of all examples is copied if it has at most this number of input values
_MAX_COPIED_VALUES = 1 << 18
# reason why dense inputs are trained step by step, in a message to the user
DENSE_INPUTS_REASON = "inputs are dense, whose products are quicker so"
_FIRST_REFRESH_STEPS = 64  # the sampler is rebuilt after 64, 128, 256, ... steps


class Examples(NamedTuple):
    """Examples: inputs, labels, and weights of their losses."""

    X: Any  # (N, v), an array or a CSR matrix
    labels: Any  # class indices (N,), or a CSR matrix (N, n) for several labels of an example
    weights: FloatArray  # (N,)

    def select(self, rows: IntArray) -> Examples:
        """Return the examples `rows`, copied unless they are all examples in order, and large."""
        # small inputs are always copied, because copies are aligned, and the last bits of small
        # products may depend on the alignment
        size = self.X.size if isinstance(self.X, np.ndarray) else self.X.nnz
        is_all = size > _MAX_COPIED_VALUES and np.array_equal(rows, np.arange(len(self.weights)))
        return self if is_all else self.rows(rows)

    def rows(self, rows: IntArray) -> Examples:
        """Return copies of the examples `rows`."""
        return Examples(self.X[rows], self.labels[rows], self.weights[rows])


class LinearTask(Task):
    """A training task of a linear softmax model, for examples in memory.

    One seed below ``2**64`` determines all randomness: the initial parameters, the order of the
    examples, dropout, draws, and which examples are held out.

    Parameters
    ----------
    num_inputs, num_classes : int
        Number of columns v of an input, and of classes n.
    settings : LinearSoftmaxSettings
        Settings of the model.
    counts : ndarray, shape (n,)
        Count of each class, for samplers that use frequencies.
    seed : int
        The seed.
    dtype : dtype
        Dtype of the parameters.

    Attributes
    ----------
    data : Examples
        Training examples, set by `use`.
    rows : ndarray of int, shape (k,)
        Indices of the training examples; an epoch uses each once.
    log_sums : ndarray of float64, shape (N,), or None
        For ``loss="moving-average"``: the number u of each example of `data`, -inf until it is
        first used; None for other losses. A number belongs to an example, whatever the epoch, the
        order and the size of the batches. `use` begins with -inf, because the numbers of other
        data say nothing about these.
    steps_taken, epochs_begun : int
        Number of steps and of begun epochs since the model was made. The seeds of a step and of
        the order in an epoch depend on them.
    """

    data: Examples
    rows: IntArray
    batch_size: int
    log_sums: FloatArray | None = None

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        counts: NDArray[Any],
        seed: int | np.uint64,
        dtype: Any = np.float32,
    ) -> None:
        self._seed = seed
        self.counts = counts
        self.model = LinearSoftmax(
            num_inputs,
            num_classes,
            settings,
            counts=counts,
            dtype=dtype,
            rng=derive_seed(seed, _MODEL),
        )

        self.parameters = self.model.parameters
        self.steps_taken = self.epochs_begun = 0
        self._epoch: int | None = None  # epoch of `_batches`
        self._batches: list[IntArray] = []  # indices of the examples of each step
        # indices of the examples of the last single step, and their new log-sums
        self._moved: tuple[IntArray, FloatArray] | None = None
        self._draws_like_fused = False  # whether single steps use the draws of fused steps
        self._checked_optimizer: Any = None  # optimizer for which the reason below was determined
        self._reason_step_by_step: str | None = None

    def use(self, data: Examples, rows: IntArray, batch_size: int) -> None:
        """Set the training examples for the next epochs: the examples `rows` of `data`.

        The `rows` must be distinct for a loss that keeps a number for each example.
        """
        self.model.copy_read_only_parameters()
        self.parameters = self.model.parameters
        self.data = data
        self.rows = rows
        self.batch_size = batch_size
        self._checked_optimizer = None
        self._moved = None
        self.log_sums = None
        if isinstance(self.model.softmax.loss, MovingAverageLoss):
            # a batch, or a fused block, would move the number of an example twice from one value
            if len(np.unique(rows)) < len(rows):
                raise ValueError(
                    "`rows` must be distinct for a loss that keeps a number for each example, got "
                    "an index twice; remove it, and double the weight of the example."
                )
            self.log_sums = np.full(len(data.weights), -np.inf)

    @contextmanager
    def using(self, data: Examples, rows: IntArray, batch_size: int) -> Iterator[None]:
        """Return a context in which `use` has set the examples; at its end they are removed."""
        self.use(data, rows, batch_size)
        try:
            yield
        finally:
            del self.data, self.rows
            self.log_sums = self._moved = None
            self._checked_optimizer = None
            self._epoch = None
            self._batches = []

    @property
    def num_steps(self) -> int:  # type: ignore[override]
        """Number of steps in an epoch."""
        return -(-len(self.rows) // self.batch_size)

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        """Number of examples in a step; the last step of an epoch may have fewer."""
        return self.batch_size

    def begin_epoch(self, epoch: int, index: int) -> None:
        """Shuffle the training examples, and divide them into the batches of an epoch."""
        # count the epoch when it begins, so that the order after an interrupted epoch is different
        self.epochs_begun += 1
        self._epoch = epoch
        self._batches = self.batches(self.rows, self.epochs_begun - 1, self.batch_size)

    def num_examples_in(self, index: int) -> int:
        """Return the number of examples in step `index` of the current epoch."""
        return len(self._batches[index])

    def fused_block_end(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return the end (exclusive) of the fused block that contains step `index`.

        Returns None if steps are taken one by one.
        """
        if self._checked_optimizer is not optimizer:  # determine the reason once for an optimizer
            self._reason_step_by_step = self.why_step_by_step(optimizer)
            self._checked_optimizer = optimizer
            # models on dense inputs get the draws that fused steps on sparse inputs would have
            self._draws_like_fused = self._reason_step_by_step == DENSE_INPUTS_REASON

        if self._reason_step_by_step is not None:
            return None

        steps_each = steps_per_call(self.model, self._batch_size())
        return min((index // steps_each + 1) * steps_each, len(self._batches))

    def why_step_by_step(self, optimizer: Any) -> str | None:
        """Return the reason why training with `optimizer` is not fused, or None if it is."""
        reason = why_step_by_step(self.model, optimizer)
        if reason is None and isinstance(self.data.X, np.ndarray):
            return DENSE_INPUTS_REASON
        return reason

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a step's batch, and gradients by parameter name."""
        if self._epoch != epoch:
            self.begin_epoch(epoch, index)
        draws = self._draw_seed(index) if self._draws_like_fused else None
        batch = self._batches[index]
        if self.log_sums is None:
            return self.gradients(*self._rows(batch), draws)

        # `after_step` keeps the new numbers, because this method changes no state
        self._moved = batch, self.log_sums[batch]
        return self.gradients(*self._rows(batch), draws, self._moved[1])

    def learn(self, optimizer: Optimizer, x: Any, labels: Any, weights: FloatArray) -> float:
        """Take one step with `optimizer` on the batch `x` (B, v), and return its mean loss."""
        self._moved = None  # of a step that was computed and not taken
        loss, gradients = self.gradients(x, labels, weights)
        optimizer.step(self.model.parameters, gradients)
        self.after_step(gradients)
        return loss

    def run_fused_steps(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) of an epoch in one call; return the mean loss of each.

        The first `first` steps of the epoch must have been taken, and `last` must be at most
        ``fused_block_end(optimizer, epoch, first)``.
        """
        steps_before = self.steps_taken
        try:
            losses = self._run_fused_steps(optimizer, first, last)
        except BaseException:
            self.steps_taken = steps_before
            raise
        self.steps_taken = steps_before + last - first
        return losses

    def _run_fused_steps(self, optimizer: Any, start: int, stop: int) -> list[float]:
        """Take steps [start, stop), and return their losses; the caller must set `steps_taken`."""
        # draw and prepare from the start of the block even if a resumed run begins within it, so
        # that the random streams are the same

        batch_size = self._batch_size()
        steps_each = steps_per_call(self.model, batch_size)
        block_start = start // steps_each * steps_each
        block = self._batches[block_start : block_start + steps_each]
        self.steps_taken -= start - block_start

        seeds = [derive_seed(self._seed, stream, self.steps_taken) for stream in (_STEP, _DROPOUT)]
        draws = draw_steps(self.model, len(block), seeds[0], batch_size)

        # All steps of the block share random streams. A position in a stream is the number of input
        # entries of earlier steps: `num_raw` of the entries before `prepared`, for the stream of
        # `prepared`, and `num_prepared` of those after it, for dropout.
        num_raw = 0
        num_prepared = 0
        losses: list[float] = []

        for steps in _step_chunks(self.data.X, block, start - block_start, stop - block_start):
            rows = np.concatenate(block[steps])
            x, labels, weights = self._rows(rows)
            num_entries = x.nnz
            x, labels = self.prepared(x, labels, num_raw)

            if steps.start >= start - block_start:
                self.count(x, labels)
                log_sums = None if self.log_sums is None else self.log_sums[rows]
                losses += take_steps(
                    self.model,
                    optimizer,
                    x,
                    labels,
                    weights,
                    batch_size,
                    seeds,
                    draws=draws.at_steps(steps),
                    first_entry=num_prepared,
                    log_sums=log_sums,
                ).tolist()
                if self.log_sums is not None:
                    self.log_sums[rows] = log_sums
            num_raw += num_entries
            num_prepared += x.nnz

        return losses

    def _batch_size(self) -> int:
        """Return the number of examples in a step of the current epoch; the last may have fewer."""
        return len(self._batches[0])

    def _rows(self, rows: IntArray) -> Examples:
        """Return copies of the examples `rows`, with inputs in the dtype of the model."""
        examples = self.data.rows(rows)
        return examples._replace(X=examples.X.astype(self.model.dtype, copy=False))

    def _draw_seed(self, step: int) -> int:
        """Return a seed with which step `step` gets the draws that it has in fused training.

        `step` must be the next step of the current epoch.
        """
        index_in_block = step % steps_per_call(self.model, self._batch_size())
        seed = derive_seed(self._seed, _STEP, self.steps_taken - index_in_block)
        return OffsetSeed(seed, index_in_block)

    def prepared(self, x: Any, labels: Any, first: int = 0) -> tuple[Any, Any]:
        """Return the inputs and labels for a training step; a subclass may hide some of the items.

        `first` is the number of input entries of earlier examples in the same fused block.
        """
        return x, labels

    def count(self, x: Any, labels: Any) -> None:
        """Do nothing; a subclass may count the inputs `x` and the labels of each step."""

    def batches(self, rows: IntArray, epoch: int, batch_size: int) -> list[IntArray]:
        """Return the indices of the examples of each step of an epoch, in random order."""
        order = np.random.default_rng(derive_seed(self._seed, _ORDER, epoch)).permutation(rows)
        return [order[chunk] for chunk in chunks(len(order), batch_size)]

    def gradients(
        self,
        x: Any,
        labels: Any,
        weights: ArrayLike | None = None,
        draws: int | None = None,
        log_sums: FloatArray | None = None,
    ) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of the batch `x` (B, v), and gradients by parameter name.

        Dropout and draws use the seed of the next step. If `draws` is given, it is the seed of the
        draws instead. `log_sums` (B,), of the examples, are overwritten by the new ones.
        """
        x, labels = self.prepared(x, labels)
        self.count(x, labels)
        seed = derive_seed(self._seed, _STEP, self.steps_taken)
        return self.model.step(x, labels, log_sums=log_sums, weights=weights, rng=seed, draws=draws)

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Count a step, and update the sampler for the class vectors that the step has changed.

        The sampler is also rebuilt after 64, 128, 256, ... steps: it divides the class vectors into
        cells, and vectors that have moved far are no longer in the right cell.
        """
        self.model.after_step(gradients)
        if self.log_sums is not None and self._moved is not None:
            rows, moved = self._moved
            self.log_sums[rows] = moved
            self._moved = None
        # rebuild more often in early steps, in which the random initial vectors move most
        num_steps_taken = self.steps_taken + 1
        if num_steps_taken >= _FIRST_REFRESH_STEPS and num_steps_taken & (num_steps_taken - 1) == 0:
            self.model.softmax.refresh()
        self.steps_taken = num_steps_taken

    def refresh(self) -> None:
        """Rebuild the sampler from all class vectors."""
        self.model.softmax.refresh()

    def tune_inputs(self, x: Any, labels: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for inputs `x` (N, v) and their labels.

        Labels are (N,), or a CSR matrix (N, n) without empty rows. One of several labels of an
        example is drawn uniformly.
        """
        model = self.model
        if not isinstance(labels, np.ndarray):
            uniforms = np.random.default_rng(derive_seed(self._seed, _LABELS)).random(labels.nnz)
            # sort the labels of each example by random numbers, and take the first
            order = np.lexsort((uniforms, np.repeat(np.arange(x.shape[0]), np.diff(labels.indptr))))
            labels = labels.indices[order[labels.indptr[:-1]]]

        return {
            "class_embeddings": model.class_vectors(),
            "h": model.embed(x),
            "labels": labels,
            "counts": self.counts,
            "tau": model.settings.tau,
        }


def _step_chunks(x: Any, batches: list[IntArray], start: int, stop: int) -> list[slice]:
    """Divide steps [0, stop) into slices that have at most `_CHUNK_ENTRIES` input entries each.

    A step with more entries is a slice by itself. `batches` are the indices of the examples of each
    step. A slice begins at step `start`, so that the caller can skip the steps before it.
    """
    num_entries = np.diff(x.indptr)
    slices = []
    slice_start = 0
    slice_entries = 0

    for step in range(stop):
        step_entries = int(num_entries[batches[step]].sum())
        is_full = slice_entries + step_entries > _CHUNK_ENTRIES
        if step > slice_start and (is_full or step == start):
            slices.append(slice(slice_start, step))
            slice_start = step
            slice_entries = 0
        slice_entries += step_entries

    return [*slices, slice(slice_start, stop)]


@contextmanager
def divergence_as_value_error() -> Iterator[None]:
    """Return a context that converts the FloatingPointError of diverged training to ValueError."""
    try:
        yield
    except FloatingPointError as error:
        raise ValueError(
            f"training has diverged: {error}; lower `learning_rate`, or bring inputs to another "
            "scale."
        ) from error


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return `rows` (N,) in random order; callers hold out the rows that come first."""
    # with a separate stream, the held-out examples do not depend on how long a model was trained
    return np.random.default_rng(derive_seed(seed, _SPLIT)).permutation(rows)


def as_csr_weights(name: str, value: Any) -> sparse.csr_array:
    """Return a matrix of weights as a CSR copy without zeros; raise if a weight is negative.

    `name` is the name of the argument, for errors.
    """
    matrix: sparse.csr_array = as_csr(name, value)
    require_finite(name, matrix.data)
    matrix.eliminate_zeros()
    if matrix.nnz and matrix.data.min() < 0.0:
        raise ValueError(f"`{name}` must hold weights of at least 0, got {matrix.data.min()}.")
    return matrix


def with_unit_rows(matrix: Any) -> sparse.csr_array:
    """Return a CSR matrix (N, v) in float32 with each row divided by its norm."""
    unit_values = np.empty(len(matrix.data), np.float32)
    for rows in entry_chunks(matrix):
        example_ids, entries = row_of_each_entry(matrix, rows)
        values = matrix.data[entries].astype(np.float64)
        max_abs = np.zeros(rows.stop - rows.start)
        np.maximum.at(max_abs, example_ids, np.abs(values))

        # divide by the maximum first, because squares of extreme values are out of range
        values /= np.where(max_abs > 0.0, max_abs, 1.0)[example_ids]
        norms = np.sqrt(np.bincount(example_ids, values**2, minlength=len(max_abs)))
        values /= np.where(norms > 0.0, norms, 1.0)[example_ids]
        unit_values[entries] = values

    return sparse.csr_array((unit_values, matrix.indices, matrix.indptr), matrix.shape)


def entry_chunks(matrix: Any) -> list[slice]:
    """Divide the rows of a CSR matrix into slices with a limited number of entries.

    Without its last row, a slice has at most `_CHUNK_ENTRIES` entries.
    """
    starts = np.unique(matrix.indptr[:-1] // _CHUNK_ENTRIES, return_index=True)[1].tolist()
    return [slice(*ends) for ends in zip(starts, [*starts[1:], matrix.shape[0]], strict=True)]


def row_of_each_entry(matrix: Any, rows: slice) -> tuple[IntArray, slice]:
    """Return the row index of each entry in the rows `rows` of a CSR matrix, and their slice.

    The row indices are counted from ``rows.start``. The slice selects the entries from the arrays
    of the matrix.
    """
    ends = matrix.indptr[rows.start : rows.stop + 1]
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), slice(int(ends[0]), int(ends[-1]))
