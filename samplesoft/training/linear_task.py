"""The training task of a linear softmax model: order of examples, seeds, steps, sampler updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._random import RowKey
from samplesoft._validation import FloatArray, IntArray, as_csr, require_finite
from samplesoft.models.linear import Gradient
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers.base import Optimizer
from samplesoft.training.fused import (
    draw_steps,
    steps_per_call,
    take_steps,
    why_step_by_step,
)
from samplesoft.training.task import Task, sub_seed

_MODEL, _ORDER, _STEP, _SPLIT, _LABELS, _DROPOUT = range(6)  # streams of the seed
_CHUNK_ENTRIES = 1 << 17  # input entries that are prepared at a time, about 60 bytes each
_MAX_COPIED_VALUES = 1 << 18  # input values up to which examples are always copied
DENSE = "inputs are dense, whose products are quicker so"
_FIRST_REFRESH_STEPS = 64  # the sampler is rebuilt after so many steps, and each time they double


class Examples(NamedTuple):
    """Inputs, their labels and their weights."""

    X: Any  # (N, v)
    labels: Any  # class numbers (N,), or a CSR matrix (N, n)
    weights: FloatArray  # (N,)

    def select(self, rows: IntArray) -> Examples:
        """Return the given rows; not copied if these are all examples in order, and many."""
        # last bits of small products may depend on the alignment of an array: a copy is aligned
        size = self.X.size if isinstance(self.X, np.ndarray) else self.X.nnz
        is_all = size > _MAX_COPIED_VALUES and np.array_equal(rows, np.arange(len(self.weights)))
        return self if is_all else self.rows(rows)

    def rows(self, rows: IntArray) -> Examples:
        """Return the given rows, copied."""
        return Examples(self.X[rows], self.labels[rows], self.weights[rows])


class LinearTask(Task):
    """A linear softmax model and examples in memory.

    All randomness follows from one seed below ``2**64``: parameters, order, dropout, draws and
    held-out examples.

    Parameters
    ----------
    num_inputs, num_classes : int
        Columns v of an input, and classes n.
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
        Indices of the examples that an epoch uses once each.
    steps_taken, epochs_begun : int
        Counts since the model was made; they determine the randomness of a step.
    """

    data: Examples
    rows: IntArray
    batch_size: int

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        counts: NDArray[Any],
        seed: int | np.uint64,
        dtype: Any = np.float32,
    ) -> None:
        self._seed, self.counts = seed, counts
        self.model = LinearSoftmax(
            num_inputs,
            num_classes,
            settings,
            counts=counts,
            dtype=dtype,
            rng=sub_seed(seed, _MODEL),
        )
        self.parameters = self.model.parameters
        self.steps_taken = self.epochs_begun = 0
        self._epoch: int | None = None  # epoch of `_batches`
        self._batches: list[IntArray] = []
        self._draws_like_fused = False
        self._reason_optimizer: Any = None  # optimizer of the reason below
        self._step_by_step: str | None = None

    def use(self, data: Examples, rows: IntArray, batch_size: int) -> None:
        """Set the examples of the next epochs."""
        self.model.copy_read_only_parameters()
        self.parameters = self.model.parameters
        self.data, self.rows, self.batch_size = data, rows, batch_size
        self._reason_optimizer = None

    @contextmanager
    def using(self, data: Examples, rows: IntArray, batch_size: int) -> Iterator[None]:
        """Set the examples within the context; a task is stored without them."""
        self.use(data, rows, batch_size)
        try:
            yield
        finally:
            del self.data, self.rows
            self._reason_optimizer = None
            self._epoch, self._batches = None, []

    @property
    def num_steps(self) -> int:  # type: ignore[override]
        """Steps in an epoch."""
        return -(-len(self.rows) // self.batch_size)

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        """Examples in a step; the last step of an epoch may have fewer."""
        return self.batch_size

    def begin_epoch(self, epoch: int, index: int) -> None:
        """Shuffle the rows."""
        # counted at its beginning: after an interrupted epoch the next has another order
        self.epochs_begun += 1
        self._epoch = epoch
        self._batches = self.batches(self.rows, self.epochs_begun - 1, self.batch_size)

    def num_examples_in(self, index: int) -> int:
        """Return the number of examples in a step of the current epoch."""
        return len(self._batches[index])

    def fused_block_end(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return the end (exclusive) of the fused block with `index`; None if not fused."""
        if self._reason_optimizer is not optimizer:  # computed once in a fit
            self._step_by_step = self.why_step_by_step(optimizer)
            self._reason_optimizer = optimizer
            # dense inputs get the same draws as sparse inputs in fused steps
            self._draws_like_fused = self._step_by_step == DENSE
        if self._step_by_step is not None:
            return None
        steps_each = steps_per_call(self.model, self._batch_size())
        return min((index // steps_each + 1) * steps_each, len(self._batches))

    def why_step_by_step(self, optimizer: Any) -> str | None:
        """Return the reason why training is not fused, or None if it is."""
        reason = why_step_by_step(self.model, optimizer)
        if reason is None and isinstance(self.data.X, np.ndarray):
            return DENSE
        return reason

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a batch, and its gradients."""
        if self._epoch != epoch:
            self.begin_epoch(epoch, index)
        draws = self._draw_seed(index) if self._draws_like_fused else None
        return self.gradients(*self._rows(self._batches[index]), draws)

    def learn(self, optimizer: Optimizer, x: Any, labels: Any, weights: FloatArray) -> float:
        """Take a step on a given batch; return its mean loss."""
        loss, gradients = self.gradients(x, labels, weights)
        optimizer.step(self.model.parameters, gradients)
        self.after_step(gradients)
        return loss

    def run_fused_steps(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) of an epoch in one call; return their mean losses.

        `first` steps of the epoch have been taken; `last` is at most `fused_block_end`.
        """
        before = self.steps_taken
        try:
            losses = self._run_fused_steps(optimizer, first, last)
        except BaseException:
            self.steps_taken = before
            raise
        self.steps_taken = before + last - first
        return losses

    def _run_fused_steps(self, optimizer: Any, first: int, last: int) -> list[float]:
        # prepare the whole block; a run that resumes within it takes the remaining steps
        size, batches = self._batch_size(), self._batches
        steps_each = steps_per_call(self.model, size)
        block_begin = first // steps_each * steps_each
        block = batches[block_begin : block_begin + steps_each]
        self.steps_taken -= first - block_begin
        seeds = [sub_seed(self._seed, stream, self.steps_taken) for stream in (_STEP, _DROPOUT)]
        draws = draw_steps(self.model, len(block), seeds[0], size)
        losses: list[float] = []
        # entries of earlier steps before and after `prepared`; dropout has one stream for the block
        num_given = num_prepared = 0
        for steps in _step_chunks(self.data.X, block, first - block_begin, last - block_begin):
            x, labels, weights = self._rows(np.concatenate(block[steps]))
            num = x.nnz
            x, labels = self.prepared(x, labels, num_given)
            if steps.start >= first - block_begin:
                self.count(x, labels)
                losses += take_steps(
                    self.model,
                    optimizer,
                    x,
                    labels,
                    weights,
                    size,
                    seeds,
                    draws=draws.at_steps(steps),
                    first_entry=num_prepared,
                ).tolist()
            num_given, num_prepared = num_given + num, num_prepared + x.nnz
        return losses

    def _batch_size(self) -> int:
        """Return the number of examples in each step of the epoch except the last."""
        return len(self._batches[0])

    def _rows(self, rows: IntArray) -> Examples:
        """Return the given examples, with inputs in the dtype of the model."""
        examples = self.data.rows(rows)
        return examples._replace(X=examples.X.astype(self.model.dtype, copy=False))

    def _draw_seed(self, step: int) -> int:
        """Return the seed of the draws of fused training for the next step."""
        row = step % steps_per_call(self.model, self._batch_size())
        return RowKey(sub_seed(self._seed, _STEP, self.steps_taken - row), row)

    def prepared(self, x: Any, labels: Any, first: int = 0) -> tuple[Any, Any]:
        """Return examples as training uses them, for example with hidden items.

        `first` is the number of entries of earlier examples in the same fused block.
        """
        return x, labels

    def count(self, x: Any, labels: Any) -> None:
        """Record examples that are trained on; subclasses may count them."""

    def batches(self, rows: IntArray, epoch: int, batch_size: int) -> list[IntArray]:
        """Return the indices of the examples of each step of an epoch."""
        order = np.random.default_rng(sub_seed(self._seed, _ORDER, epoch)).permutation(rows)
        return [order[part] for part in chunks(len(order), batch_size)]

    def gradients(
        self, x: Any, labels: Any, weights: ArrayLike | None = None, draws: int | None = None
    ) -> tuple[float, dict[str, Gradient]]:
        """Return mean loss and gradients of a batch, with the seed of the next step."""
        x, labels = self.prepared(x, labels)
        self.count(x, labels)
        seed = sub_seed(self._seed, _STEP, self.steps_taken)
        return self.model.step(x, labels, weights=weights, rng=seed, draws=draws)

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Count a step, and update the sampler for the class vectors that it has changed.

        The sampler is also rebuilt from time to time, because vectors leave their initial cells.
        """
        self.model.after_step(gradients)
        # random initial vectors move most in the first steps: rebuild after 64, 128, 256, ...
        done = self.steps_taken + 1
        if done >= _FIRST_REFRESH_STEPS and done & (done - 1) == 0:
            self.model.softmax.refresh()
        self.steps_taken = done

    def refresh(self) -> None:
        """Rebuild the sampler from the class vectors."""
        self.model.softmax.refresh()

    def tune_inputs(self, x: Any, labels: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for inputs (N, v) and their labels.

        Labels are (N,), or a CSR matrix (N, n) without empty rows if examples have several; one of
        them is then drawn uniformly.
        """
        model = self.model
        if not isinstance(labels, np.ndarray):
            uniforms = np.random.default_rng(sub_seed(self._seed, _LABELS)).random(labels.nnz)
            # sorted by random numbers within each example, the first label is drawn uniformly
            order = np.lexsort((uniforms, np.repeat(np.arange(x.shape[0]), np.diff(labels.indptr))))
            labels = labels.indices[order[labels.indptr[:-1]]]
        return {
            "class_embeddings": model.class_vectors(),
            "h": model.embed(x),
            "labels": labels,
            "counts": self.counts,
            "tau": model.settings.tau,
        }


def _step_chunks(x: Any, batches: list[IntArray], first: int, last: int) -> list[slice]:
    """Return slices of the steps [0, last) with limited input entries; one begins at `first`."""
    sizes, parts, begin, num = np.diff(x.indptr), [], 0, 0
    for step in range(last):
        of_step = int(sizes[batches[step]].sum())
        if step > begin and (num + of_step > _CHUNK_ENTRIES or step == first):
            parts.append(slice(begin, step))
            begin, num = step, 0
        num += of_step
    return [*parts, slice(begin, last)]


@contextmanager
def divergence_as_value_error() -> Iterator[None]:
    """Convert FloatingPointError of diverged training to a ValueError with a remedy."""
    try:
        yield
    except FloatingPointError as error:
        raise ValueError(
            f"training has diverged: {error}; lower `learning_rate`, or bring inputs to another "
            "scale."
        ) from error


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return a random permutation of `rows` (N,), the first of which are to be held out."""
    # a separate stream: held-out examples do not depend on the number of epochs before
    return np.random.default_rng(sub_seed(seed, _SPLIT)).permutation(rows)


def as_weights(name: str, value: Any) -> sparse.csr_array:
    """Return weights of labels or interactions, at least 0, as a CSR copy without zeros."""
    matrix: sparse.csr_array = as_csr(name, value)
    require_finite(name, matrix.data)
    matrix.eliminate_zeros()
    if matrix.nnz and matrix.data.min() < 0.0:
        raise ValueError(f"`{name}` must hold weights of at least 0, got {matrix.data.min()}.")
    return matrix


def unit_norm(matrix: Any) -> sparse.csr_array:
    """Return a CSR matrix (N, v) with rows divided by their norms, as float32."""
    unit_values = np.empty(len(matrix.data), np.float32)
    for part in entry_chunks(matrix):
        example_ids, entries = example_ids_of(matrix, part)
        values = matrix.data[entries].astype(np.float64)
        max_abs = np.zeros(part.stop - part.start)
        np.maximum.at(max_abs, example_ids, np.abs(values))
        # scale by the maximum first: squares of very large or small values leave float64
        values /= np.where(max_abs > 0.0, max_abs, 1.0)[example_ids]
        norms = np.sqrt(np.bincount(example_ids, values**2, minlength=len(max_abs)))
        values /= np.where(norms > 0.0, norms, 1.0)[example_ids]
        unit_values[entries] = values
    return sparse.csr_array((unit_values, matrix.indices, matrix.indptr), matrix.shape)


def entry_chunks(matrix: Any) -> list[slice]:
    """Split the rows of a CSR matrix into slices of limited entries, or of one row."""
    starts = np.unique(matrix.indptr[:-1] // _CHUNK_ENTRIES, return_index=True)[1].tolist()
    return [slice(*ends) for ends in zip(starts, [*starts[1:], matrix.shape[0]], strict=True)]


def example_ids_of(matrix: Any, rows: slice) -> tuple[IntArray, slice]:
    """Return, for a slice of rows, the row of each entry relative to the first, and their slice."""
    ends = matrix.indptr[rows.start : rows.stop + 1]
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), slice(int(ends[0]), int(ends[-1]))
