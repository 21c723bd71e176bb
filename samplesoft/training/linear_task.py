"""A linear softmax model and its examples: order, seeds, steps, and the sampler that follows."""

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
    draws_of_steps,
    steps_at_once,
    take_steps,
    why_step_by_step,
)
from samplesoft.training.task import Task, sub_seed

_MODEL, _ORDER, _STEP, _SPLIT, _LABELS, _DROPOUT = range(6)  # streams of the seed
_ENTRIES = 1 << 17  # of inputs that are made ready at a time, some 60 bytes each
_COPIED = 1 << 18  # numbers of inputs, which cost little
DENSE = "inputs are dense, whose products are quicker so"
_FIRST_REFRESH = 64  # steps after which, and whenever they have doubled, the sampler is rebuilt


class Examples(NamedTuple):
    """Inputs, their labels and their weights."""

    X: Any  # (N, v)
    labels: Any  # class numbers (N,), or a CSR matrix (N, n)
    weights: FloatArray  # (N,)

    def all_or(self, rows: IntArray) -> Examples:
        """Return some of them, not copied where they are many, and all in their order."""
        # small products may have other last bits where an array begins elsewhere: a copy begins
        # where arrays do
        size = self.X.size if isinstance(self.X, np.ndarray) else self.X.nnz
        every = size > _COPIED and np.array_equal(rows, np.arange(len(self.weights)))
        return self if every else self.rows(rows)

    def rows(self, rows: IntArray) -> Examples:
        """Return some of them."""
        return Examples(self.X[rows], self.labels[rows], self.weights[rows])


class LinearTask(Task):
    """A linear softmax model and examples in memory.

    All that is random in a step follows from one seed, below ``2**64``: parameters, order, dropout,
    draws and held-out examples.

    Parameters
    ----------
    num_inputs, num_classes : int
        Columns v of an input, and classes n.
    settings : LinearSoftmaxSettings
        The model.
    counts : ndarray, shape (n,)
        How often each class occurs, for samplers that draw by that.
    seed : int
        The seed.
    dtype : dtype
        Of the parameters.

    Attributes
    ----------
    data : Examples
        What is trained on, as `use` has set it.
    rows : ndarray of int, shape (k,)
        Which of these examples; an epoch goes over them once.
    steps_taken, epochs_begun : int
        Since the model was made; the randomness of a step follows from these.
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
        self._epoch: int | None = None  # the one that `_batches` are of
        self._batches: list[IntArray] = []
        self._draws_by_row = False
        self._asked_for: Any = None  # the optimizer that the reason below is for
        self._step_by_step: str | None = None

    def use(self, data: Examples, rows: IntArray, batch_size: int) -> None:
        """Set the examples of the next epochs."""
        self.model.own_parameters()
        self.parameters = self.model.parameters
        self.data, self.rows, self.batch_size = data, rows, batch_size
        self._asked_for = None

    @contextmanager
    def using(self, data: Examples, rows: IntArray, batch_size: int) -> Iterator[None]:
        """Set the examples for a while: a model is kept, and stored, without them."""
        self.use(data, rows, batch_size)
        try:
            yield
        finally:
            del self.data, self.rows
            self._asked_for = None
            self._epoch, self._batches = None, []

    @property
    def num_steps(self) -> int:  # type: ignore[override]
        """Steps in an epoch."""
        return -(-len(self.rows) // self.batch_size)

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        """Examples in a step, of which the last of an epoch may have fewer."""
        return self.batch_size

    def begin_epoch(self, epoch: int, index: int) -> None:
        """Shuffle the rows."""
        # counted when it begins: an epoch that is interrupted is not shuffled the same way again
        self.epochs_begun += 1
        self._epoch = epoch
        self._batches = self.batches(self.rows, self.epochs_begun - 1, self.batch_size)

    def examples_of(self, index: int) -> int:
        """Return the number of examples of a step of the epoch that has begun."""
        return len(self._batches[index])

    def end_of_call(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return the step before which a call of `take` ends; None where steps go one by one."""
        if self._asked_for is not optimizer:  # once for a fit
            self._step_by_step = self.why_step_by_step(optimizer)
            self._asked_for = optimizer
            # dense inputs get the draws that the same inputs get as a sparse matrix, in one call
            self._draws_by_row = self._step_by_step == DENSE
        if self._step_by_step is not None:
            return None
        each = steps_at_once(self.model, self._size())
        return min((index // each + 1) * each, len(self._batches))

    def why_step_by_step(self, optimizer: Any) -> str | None:
        """Return why steps are taken one by one, None where `take` takes many."""
        reason = why_step_by_step(self.model, optimizer)
        if reason is None and isinstance(self.data.X, np.ndarray):
            return DENSE
        return reason

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a batch, and its gradients."""
        if self._epoch != epoch:
            self.begin_epoch(epoch, index)
        draws = self._seed_of_draws(index) if self._draws_by_row else None
        return self.gradients(*self._rows(self._batches[index]), draws)

    def learn(self, optimizer: Optimizer, x: Any, labels: Any, weights: FloatArray) -> float:
        """Take a step on a batch from elsewhere; return its mean loss."""
        loss, gradients = self.gradients(x, labels, weights)
        optimizer.step(self.model.parameters, gradients)
        self.after_step(gradients)
        return loss

    def take(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) of an epoch in one call; return their mean losses.

        `first` steps of the epoch have been taken, and `last` is at most `end_of_call`.
        """
        before = self.steps_taken
        try:
            losses = self._take(optimizer, first, last)
        except BaseException:
            self.steps_taken = before
            raise
        self.steps_taken = before + last - first
        return losses

    def _take(self, optimizer: Any, first: int, last: int) -> list[float]:
        # whole calls are made ready, of which a run that goes on in the midst takes the rest
        size, batches = self._size(), self._batches
        each = steps_at_once(self.model, size)
        begin = first // each * each
        whole = batches[begin : begin + each]
        self.steps_taken -= first - begin
        seeds = [sub_seed(self._seed, stream, self.steps_taken) for stream in (_STEP, _DROPOUT)]
        draws = draws_of_steps(self.model, len(whole), seeds[0], size)
        losses: list[float] = []
        # entries before, given and prepared, which are left out by a stream for the whole call
        given = made = 0
        for part in _parts(self.data.X, whole, first - begin, last - begin):
            x, labels, weights = self._rows(np.concatenate(whole[part]))
            num = x.nnz
            x, labels = self.prepared(x, labels, given)
            if part.start >= first - begin:
                self.count(x, labels)
                losses += take_steps(
                    self.model,
                    optimizer,
                    x,
                    labels,
                    weights,
                    size,
                    seeds,
                    draws=draws.of(part),
                    first_entry=made,
                ).tolist()
            given, made = given + num, made + x.nnz
        return losses

    def _size(self) -> int:
        """Return the number of examples of each step of the epoch but its last."""
        return len(self._batches[0])

    def _rows(self, rows: IntArray) -> Examples:
        """Return some examples, with inputs of the type of the model."""
        some = self.data.rows(rows)
        return some._replace(X=some.X.astype(self.model.dtype, copy=False))

    def _seed_of_draws(self, step: int) -> int:
        """Return the seed of what `take` would draw for the next step."""
        row = step % steps_at_once(self.model, self._size())
        return RowKey(sub_seed(self._seed, _STEP, self.steps_taken - row), row)

    def prepared(self, x: Any, labels: Any, first: int = 0) -> tuple[Any, Any]:
        """Return the examples of the next steps as they are to be learned.

        Before those of `x` stand `first` entries of other examples, of steps of the same call.
        """
        return x, labels

    def count(self, x: Any, labels: Any) -> None:
        """Count examples that are learned, where somebody asks for their number."""

    def batches(self, rows: IntArray, epoch: int, batch_size: int) -> list[IntArray]:
        """Return the examples of each step of an epoch."""
        order = np.random.default_rng(sub_seed(self._seed, _ORDER, epoch)).permutation(rows)
        return [order[part] for part in chunks(len(order), batch_size)]

    def gradients(
        self, x: Any, labels: Any, weights: ArrayLike | None = None, draws: int | None = None
    ) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch, as `LinearSoftmax.step`, with the next step's seed."""
        x, labels = self.prepared(x, labels)
        self.count(x, labels)
        seed = sub_seed(self._seed, _STEP, self.steps_taken)
        return self.model.step(x, labels, weights=weights, rng=seed, draws=draws)

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Count a step, and let the sampler follow the class vectors that it has changed.

        It is rebuilt at times, for vectors that began at random leave the cells they were in.
        """
        self.model.after_step(gradients)
        # vectors that began at random move most in the first steps: after 64, 128, 256... of them
        done = self.steps_taken + 1
        if done >= _FIRST_REFRESH and done & (done - 1) == 0:
            self.model.softmax.refresh()
        self.steps_taken = done

    def refresh(self) -> None:
        """Rebuild the sampler from the class vectors."""
        self.model.softmax.refresh()

    def tune_inputs(self, x: Any, labels: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for inputs (N, v) and their labels.

        Labels are (N,) or, where examples have several, a CSR matrix (N, n) without empty rows; of
        each the first is taken of a random order of the classes.
        """
        model = self.model
        if not isinstance(labels, np.ndarray):
            places = np.random.default_rng(sub_seed(self._seed, _LABELS)).random(labels.nnz)
            # sorted by random numbers within each example, the first label is drawn uniformly
            order = np.lexsort((places, np.repeat(np.arange(x.shape[0]), np.diff(labels.indptr))))
            labels = labels.indices[order[labels.indptr[:-1]]]
        return {
            "class_embeddings": model.class_vectors(),
            "h": model.embed(x),
            "labels": labels,
            "counts": self.counts,
            "tau": model.settings.tau,
        }


def _parts(x: Any, batches: list[IntArray], first: int, last: int) -> list[slice]:
    """Return slices of steps [0, last) of few entries of the inputs; one begins at `first`."""
    sizes, parts, begin, num = np.diff(x.indptr), [], 0, 0
    for step in range(last):
        of_step = int(sizes[batches[step]].sum())
        if step > begin and (num + of_step > _ENTRIES or step == first):
            parts.append(slice(begin, step))
            begin, num = step, 0
        num += of_step
    return [*parts, slice(begin, last)]


@contextmanager
def divergence_told() -> Iterator[None]:
    """Make a ValueError of training that has diverged, which says what to do."""
    try:
        yield
    except FloatingPointError as error:
        raise ValueError(
            f"training has diverged: {error}; lower `learning_rate`, or bring inputs to another "
            "scale."
        ) from error


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return examples (N,) in the order in which they are held out, for the seed of the steps."""
    # a stream of its own: which examples are held out does not depend on the epochs before
    return np.random.default_rng(sub_seed(seed, _SPLIT)).permutation(rows)


def as_weights(name: str, value: Any) -> sparse.csr_array:
    """Return weights of labels or interactions, at least 0, as a new CSR matrix without zeros."""
    matrix: sparse.csr_array = as_csr(name, value)
    require_finite(name, matrix.data)
    matrix.eliminate_zeros()
    if matrix.nnz and matrix.data.min() < 0.0:
        raise ValueError(f"`{name}` must hold weights of at least 0, got {matrix.data.min()}.")
    return matrix


def unit_norm(matrix: Any) -> sparse.csr_array:
    """Divide the rows of a CSR matrix (N, v) by their norms, as float32; empty ones stay empty."""
    found = np.empty(len(matrix.data), np.float32)
    for part in entry_chunks(matrix):
        example_ids, some = example_ids_of(matrix, part)
        values = matrix.data[some].astype(np.float64)
        largest = np.zeros(part.stop - part.start)
        np.maximum.at(largest, example_ids, np.abs(values))
        # by the largest first: squares of large or tiny numbers would leave float64
        values /= np.where(largest > 0.0, largest, 1.0)[example_ids]
        norms = np.sqrt(np.bincount(example_ids, values**2, minlength=len(largest)))
        values /= np.where(norms > 0.0, norms, 1.0)[example_ids]
        found[some] = values
    return sparse.csr_array((found, matrix.indices, matrix.indptr), matrix.shape)


def entry_chunks(matrix: Any) -> list[slice]:
    """Split the rows of a CSR matrix into slices of few entries, or of one row."""
    starts = np.unique(matrix.indptr[:-1] // _ENTRIES, return_index=True)[1].tolist()
    return [slice(*ends) for ends in zip(starts, [*starts[1:], matrix.shape[0]], strict=True)]


def example_ids_of(matrix: Any, rows: slice) -> tuple[IntArray, slice]:
    """Return the row of each entry of some rows, counted from the first, and which entries."""
    ends = matrix.indptr[rows.start : rows.stop + 1]
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), slice(int(ends[0]), int(ends[-1]))
