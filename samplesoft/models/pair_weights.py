"""Weights of pairs of an input feature and a class, which a model adds to its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft._jit import chunks, njit, thread_for_each
from samplesoft._limits import ignore_overflow
from samplesoft._validation import FloatArray, IntArray, scale_by_power_of_two
from samplesoft.kernels.exponential import replace_by_exp
from samplesoft.kernels.rows import add_row, copy_row
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.base import checked_targets
from samplesoft.samplers.base import Rows

# Step size for an input of norm 1 and a derivative of 1, as long as the features are new. It suits
# 3 to 5 passes; see docs/benchmarks.md, section "Pair weights of the classifier".
_RATE = 10.0
# Derivatives up to this are taken as 0. This makes training faster, and leaves most weights at 0.
_MIN_DERIVATIVE = 1e-3
_MIN_SUM = 1e-30  # of exponentials by which one divides
_MAX_INPUT = 1e6  # larger inputs, in units of the scale, are clipped, so that scores are finite
_CHUNK_EXAMPLES = 1024  # examples that are copied or scored at a time


@dataclass(frozen=True, eq=False)
class PairWeights:
    """Weights of pairs of an input feature and a class; most of them are 0.

    The score of class j for an input x is ``biases[j] + sum(x[f] * W[f, j])`` over the features f
    of x divided by `scale`. Weights that are not 0 are stored by feature, as in a CSR matrix.

    Attributes
    ----------
    biases : ndarray of float32, shape (n,)
        Biases of the classes.
    starts : ndarray of int64, shape (v + 1,)
        The weights of feature f are at the positions from ``starts[f]`` to ``starts[f + 1] - 1``.
    classes : ndarray of int32, shape (K,)
        Class of each weight.
    values : ndarray of float32, shape (K,)
        The weights.
    scale : float
        Divisor of the inputs, above 0.
    """

    biases: NDArray[np.float32]
    starts: IntArray
    classes: NDArray[np.int32]
    values: NDArray[np.float32]
    scale: float

    def add_to(self, scores: Rows, x: Any) -> None:
        """Add the scores of the inputs `x` (B, v), an array or a CSR matrix, to `scores` (B, n).

        Each row is computed by one thread, in the order of its entries.
        """
        inputs = sparse.csr_array(x)

        def add_chunk(chunk: slice) -> None:
            starts, features, values = _entries(inputs[chunk], self.scale)
            _add_scores(
                starts,
                features,
                values,
                self.biases,
                self.starts,
                self.classes,
                self.values,
                scores[chunk],
            )

        thread_for_each(add_chunk, chunks(len(scores), _CHUNK_EXAMPLES // 8))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, with the scale as an array without dimensions."""
        names = ("biases", "starts", "classes", "values")
        return {name: getattr(self, name) for name in names} | {"scale": np.array(self.scale)}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], num_inputs: int, num_classes: int
    ) -> PairWeights:
        """Return the weights of a model from the result of the method `arrays`.

        Raises ValueError if the arrays are malformed, which compiled kernels would not notice.
        """
        starts, classes, values = arrays["starts"], arrays["classes"], arrays["values"]
        biases, scale = arrays["biases"], float(arrays["scale"])
        kinds = [array.dtype for array in (biases, starts, classes, values)]
        is_valid = (
            kinds == [np.float32, np.int64, np.int32, np.float32]
            and starts.shape == (num_inputs + 1,)
            and biases.shape == (num_classes,)
            and starts[0] == 0
            and (np.diff(starts) >= 0).all()
            and classes.shape == values.shape == (starts[-1],)
            and ((classes >= 0) & (classes < num_classes)).all()
            and np.isfinite(biases).all()
            and np.isfinite(values).all()
            and 0.0 < scale < np.inf
        )
        if not is_valid:
            raise ValueError("its pair weights do not fit the model")
        return cls(biases, starts, classes, values, scale)


class PairWeightsTrainer:
    """Training of `PairWeights` by passes over examples, one example after the other.

    The loss is the full softmax; of several labels of an example it is the mean, and the negatives
    of a label exclude the other labels. All weights of a feature have one learning rate, which
    falls with the squares of their derivatives, as in Adagrad. A step changes only the weights of
    classes whose score has a derivative above 0.001. It runs on one thread, so that the result does
    not depend on the number of threads.

    Training needs memory for all v n weights in float32, and for one more value for each feature.
    `result` copies the weights that are not 0.

    Parameters
    ----------
    X : sparse matrix, shape (N, v)
        Inputs, as CSR.
    labels : ndarray of int, shape (N,), or sparse matrix, shape (N, n)
        Labels. The biases are the logarithms of their frequencies, and are not trained.
    weights : ndarray, shape (N,)
        Weights of the losses of the examples, not all 0; they are divided by the mean of those
        above 0.
    num_classes : int
        Number n of classes.
    scale : float
        Divisor of the inputs, above 0, such as their mean norm.
    """

    def __init__(
        self, X: Any, labels: Any, weights: FloatArray, num_classes: int, scale: float
    ) -> None:
        self._X = X
        self._labels = labels
        self._scale = scale
        scaled = scale_by_power_of_two(weights)
        self._example_weights = scaled / scaled[scaled > 0.0].mean()

        example_ids, class_ids = np.arange(len(weights)), labels
        if not isinstance(labels, np.ndarray):
            example_ids, class_ids = labels.nonzero()
        counts = np.bincount(class_ids, self._example_weights[example_ids], num_classes) + 1.0
        self._biases = np.log(counts / counts.sum()).astype(np.float32)

        self._weights = np.zeros((X.shape[1], num_classes), np.float32)
        # sums of the squared derivatives by the weights of each feature, plus 1
        self._squares = np.ones(X.shape[1], np.float32)

    def run(self, order: IntArray) -> None:
        """Take one step for each of the examples `order` (k,), in this order."""
        for chunk in chunks(len(order), _CHUNK_EXAMPLES):
            rows = order[chunk]
            targets = checked_targets(self._labels[rows], len(rows), len(self._biases))
            _take_steps(
                *_entries(self._X[rows], self._scale),
                np.append(targets.offsets(), len(targets.labels)),
                targets.labels,
                self._example_weights[rows].astype(np.float32),
                self._biases,
                self._weights,
                self._squares,
            )

    def result(self) -> PairWeights:
        """Return a copy of the weights that are not 0."""
        starts = np.append(0, np.cumsum(np.count_nonzero(self._weights, axis=1)))
        classes = np.empty(starts[-1], np.int32)
        values = np.empty(starts[-1], np.float32)
        _copy_nonzero(self._weights, classes, values)
        return PairWeights(self._biases, starts, classes, values, self._scale)


def _entries(x: Any, scale: float) -> tuple[IntArray, IntArray, NDArray[np.float32]]:
    """Return the row offsets, columns and values of a CSR matrix; values are divided by `scale`.

    The dtypes do not depend on those of `x`, so that kernels are compiled once.
    """
    with ignore_overflow():
        values = np.clip(x.data / scale, -_MAX_INPUT, _MAX_INPUT).astype(np.float32)
    return x.indptr.astype(np.int64), x.indices.astype(np.int64), values


@njit
def _take_steps(
    starts: IntArray,
    features: IntArray,
    values: NDArray[np.float32],
    label_starts: IntArray,
    labels: IntArray,
    example_weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    weights: NDArray[np.float32],
    squares: NDArray[np.float32],
) -> None:
    """Take a step for each example, in order, which changes `weights` (v, n) and `squares` (v,).

    Example i has the input entries from ``starts[i]`` on, and the labels from ``label_starts[i]``.
    """
    n = len(biases)
    derivatives = np.empty(n, np.float32)  # of the loss, by the scores
    changed = np.empty(n + 1, np.int64)  # classes whose weights change
    rate = np.float32(_RATE)

    for i in range(len(example_weights)):
        copy_row(derivatives, biases)
        for e in range(starts[i], starts[i + 1]):
            add_row(derivatives, values[e], weights[features[e]])
        _replace_by_derivatives(
            derivatives, labels[label_starts[i] : label_starts[i + 1]], example_weights[i]
        )

        num_changed = 0
        sum_of_squares = np.float32(0.0)
        for j in range(n):
            changed[num_changed] = j  # overwritten unless the count increases
            num_changed += abs(derivatives[j]) > _MIN_DERIVATIVE
        for k in range(num_changed):
            sum_of_squares += derivatives[changed[k]] ** 2

        for e in range(starts[i], starts[i + 1]):
            f = features[e]
            squares[f] += values[e] * values[e] * sum_of_squares
            step = rate * values[e] / np.sqrt(squares[f])
            for k in range(num_changed):
                weights[f, changed[k]] -= step * derivatives[changed[k]]


@njit
def _replace_by_derivatives(
    scores: NDArray[np.float32], labels: IntArray, weight: np.float32
) -> None:
    """Replace the scores (n,) of an example by the derivatives of its loss, times `weight`.

    The loss is the mean over the labels of ``log(1 + s / exp(score))``, where s is the sum of the
    exponentials of the scores of the other classes without labels.
    """
    n = len(scores)
    largest = np.float32(row_max(scores))
    for j in range(n):
        scores[j] -= largest
    replace_by_exp(scores, n)

    exponentials = scores[labels].copy()
    for label in labels:
        scores[label] = 0.0
    negatives = np.float32(max(total(scores), _MIN_SUM))

    share = weight / np.float32(len(labels))
    factor = np.float32(0.0)
    for exponential in exponentials:
        factor += share / (negatives + exponential)
    for j in range(n):
        scores[j] *= factor
    for k in range(len(labels)):
        scores[labels[k]] = -share * negatives / (negatives + exponentials[k])


@njit
def _copy_nonzero(
    weights: NDArray[np.float32], classes: NDArray[np.int32], values: NDArray[np.float32]
) -> None:
    """Copy the columns and values of the nonzero entries of `weights` (v, n), row by row."""
    k = 0
    for f in range(len(weights)):
        row = weights[f]
        for j in range(len(row)):
            if row[j] != 0.0:
                classes[k] = j
                values[k] = row[j]
                k += 1


@njit
def _add_scores(
    starts: IntArray,
    features: IntArray,
    values: NDArray[np.float32],
    biases: NDArray[np.float32],
    weight_starts: IntArray,
    classes: NDArray[np.int32],
    weights: NDArray[np.float32],
    scores: Rows,
) -> None:
    """Add the scores of inputs, given by their entries, to `scores` (B, n)."""
    for i in range(len(scores)):
        row = scores[i]
        for j in range(len(row)):
            row[j] += biases[j]
        for e in range(starts[i], starts[i + 1]):
            f = features[e]
            for k in range(weight_starts[f], weight_starts[f + 1]):
                row[classes[k]] += values[e] * weights[k]
