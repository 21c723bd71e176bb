"""Compensated sums, the log-softmax, and a weighted median."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)  # the relative spacing of float64
_HISTOGRAM_BINS = 4096
LARGEST_FLOAT = float(np.finfo(np.float64).max)


class Sum:
    """A compensated sum of floats or arrays, almost independent of the order of its terms.

    A plain sum loses the low bits of each term. So `_low` adds up the exact rounding errors of all
    additions (Knuth's two-sum).
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._high: Any = np.zeros(shape) if shape else 0.0
        self._low: Any = np.zeros(shape) if shape else 0.0

    def add(self, value: Any, low: Any = 0.0) -> None:
        """Add `value` + `low`, where `low` is the rounding error of `value`.

        Their shapes must broadcast to the shape of the sum, or, for an empty sum, define it.
        """
        high = self._high + value
        increment = high - self._high
        self._low = self._low + ((self._high - (high - increment)) + (value - increment)) + low
        self._high = high

    def merge(self, other: Sum) -> None:
        """Add the sum `other`."""
        self.add(other._high, other._low)

    @classmethod
    def of(cls, value: Any) -> Sum:
        """Return a sum with the single term `value`, a float or an array."""
        total = cls(np.shape(value))
        total._high = value
        return total

    def to_rows(self, indices: IntArray, length: int) -> Sum:
        """Return a `Sum` with `length` rows: this sum's rows at `indices` (k,), zeros elsewhere."""
        if len(indices) == length:
            return self
        wide = Sum((length, *self._high.shape[1:]))
        wide._high[indices] = self._high
        wide._low[indices] = self._low
        return wide

    def times(self, factor: float) -> Sum:
        """Return a sum whose value is the value of this sum times `factor`."""
        total = Sum.of(self._high * factor)
        total._low = self._low * factor
        return total

    @property
    def value(self) -> Any:
        """The value of the sum, rounded to float64 once."""
        return self._high + self._low


class LogSum:
    """A compensated sum of exponentials, each of which may overflow or underflow."""

    def __init__(self) -> None:
        self.top = -math.inf  # the largest log so far
        self.scaled_sum = Sum()  # sum of exp(log - top) over all logs

    @classmethod
    def of(cls, top: float, exps: Any) -> LogSum:
        """Return a sum with the value exp(`top`) times `exps`."""
        total = cls()
        total.top = top
        total.scaled_sum = Sum.of(exps)
        return total

    def add_exps(self, logs: FloatArray) -> None:
        """Add the exponentials of `logs` (k,)."""
        if len(logs):
            top = float(logs.max())
            exps = np.exp(logs - top).sum() if math.isfinite(top) else 0.0
            self.add(top, Sum.of(exps))

    def add(self, top: float, exps: Sum) -> None:
        """Add exp(`top`) times the sum `exps`."""
        largest = max(self.top, top)
        if self.top < largest:
            self.scaled_sum = self.scaled_sum.times(math.exp(self.top - largest))
        self.scaled_sum.merge(exps.times(math.exp(top - largest)) if top < largest else exps)
        self.top = largest

    def merge(self, other: LogSum) -> None:
        """Add the sum `other`."""
        self.add(other.top, other.scaled_sum)

    @property
    def log(self) -> float:
        """The log of the sum; -inf for an empty sum."""
        total = float(self.scaled_sum.value)
        return self.top + math.log(total) if total > 0.0 else -math.inf


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the log-softmax of `logits` (n,)."""
    with np.errstate(over="ignore"):
        shifted: FloatArray = np.maximum(logits - logits.max(), -LARGEST_FLOAT)
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def softmax_and_other_mass(logits: FloatArray, label: int) -> tuple[FloatArray, FloatArray, float]:
    """Return the log-softmax (n,), the softmax (n,), and the mass of all classes but the label.

    1 - p_t and log p_t lose digits if p_t is near 1, with t the label. So the mass of the other
    classes is summed directly, and for p_t > 1/2 log p_t is log1p(-mass).
    """
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)

    label_prob = probs[label]
    probs[label] = 0.0
    other_mass = float(probs.sum())
    probs[label] = label_prob

    if label_prob > 0.5:
        log_probs[label] = np.log1p(-other_mass)
    return log_probs, probs, other_mass


def weighted_median(values: FloatArray, weights: FloatArray) -> int:
    """Return the index of a weighted median of `values`; entries of weight 0 are ignored.

    Among equal values, the index with the largest weight is returned. For many values, a histogram
    selects the bin that contains the median, and only this bin is sorted.
    """
    ids = (weights > 0.0).nonzero()[0]
    if len(ids) < len(weights):
        values = values[ids]
        weights = weights[ids]

    half_weight = 0.5 * float(weights.sum())
    weight_below = 0.0
    if len(ids) > _HISTOGRAM_BINS and (low := values.min()) < (high := values.max()):
        bins = ((values - low) / (high - low) * (_HISTOGRAM_BINS - 1)).astype(np.int16)
        masses = np.bincount(bins, weights, _HISTOGRAM_BINS).cumsum()
        median_bin = min(int(masses.searchsorted(half_weight)), _HISTOGRAM_BINS - 1)
        weight_below = float(masses[median_bin - 1]) if median_bin > 0 else 0.0

        ids_in_bin = (bins == median_bin).nonzero()[0]
        ids = ids[ids_in_bin]
        values = values[ids_in_bin]
        weights = weights[ids_in_bin]

    order = values.argsort(kind="stable")
    position = (weight_below + weights[order].cumsum()).searchsorted(half_weight)
    equal = (values == values[order[min(int(position), len(order) - 1)]]).nonzero()[0]
    return int(ids[equal[weights[equal].argmax()]])
