"""Sums over classes that keep their digits, and the softmax and a weighted median by them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)  # the relative spacing of float64
_BINS = 4096
LARGEST_FLOAT = float(np.finfo(np.float64).max)


class Sum:
    """A sum of numbers or arrays, with what its roundings lose: the order hardly matters."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._high: Any = np.zeros(shape) if shape else 0.0
        self._low: Any = np.zeros(shape) if shape else 0.0

    def add(self, value: Any, low: Any = 0.0) -> None:
        """Add `value` and `low`, of the shape of the sum or less."""
        high = self._high + value
        added = high - self._high
        self._low = self._low + ((self._high - (high - added)) + (value - added)) + low
        self._high = high

    def merge(self, other: Sum) -> None:
        """Add another sum."""
        self.add(other._high, other._low)

    @classmethod
    def of(cls, value: Any) -> Sum:
        """Return the sum of one number or array."""
        total = cls(np.shape(value))
        total._high = value
        return total

    def spread(self, places: IntArray, length: int) -> Sum:
        """Return the rows of this at some places of a longer one, which is 0 elsewhere."""
        if len(places) == length:
            return self
        wide = Sum((length, *self._high.shape[1:]))
        wide._high[places], wide._low[places] = self._high, self._low
        return wide

    def times(self, factor: float) -> Sum:
        """Return the sum times a number."""
        total = Sum.of(self._high * factor)
        total._low = self._low * factor
        return total

    @property
    def value(self) -> Any:
        """The sum, rounded once."""
        return self._high + self._low


class LogSum:
    """A sum of exponentials, of which only the logs need be in the range of floats."""

    def __init__(self) -> None:
        self.top = -math.inf  # the largest of the logs
        self.exps = Sum()  # of exp(log - top)

    @classmethod
    def of(cls, top: float, exps: Any) -> LogSum:
        """Return exp(`top`) times one number."""
        total = cls()
        total.top, total.exps = top, Sum.of(exps)
        return total

    def add_logs(self, logs: FloatArray) -> None:
        """Add the exponentials of `logs` (k,)."""
        if len(logs):
            top = float(logs.max())
            exps = np.exp(logs - top).sum() if math.isfinite(top) else 0.0
            self.add(top, Sum.of(exps))

    def add(self, top: float, exps: Sum) -> None:
        """Add exp(`top`) times a sum."""
        higher = max(self.top, top)
        if self.top < higher:
            self.exps = self.exps.times(math.exp(self.top - higher))
        self.exps.merge(exps.times(math.exp(top - higher)) if top < higher else exps)
        self.top = higher

    def merge(self, other: LogSum) -> None:
        """Add another sum."""
        self.add(other.top, other.exps)

    @property
    def log(self) -> float:
        """The log of the sum."""
        total = float(self.exps.value)
        return self.top + math.log(total) if total > 0.0 else -math.inf


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the log-softmax of `logits` (n,)."""
    with np.errstate(over="ignore"):
        shifted: FloatArray = np.maximum(logits - logits.max(), -LARGEST_FLOAT)
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def softmax_apart(logits: FloatArray, label: int) -> tuple[FloatArray, FloatArray, float]:
    """Return the log-softmax and the softmax (n,), and the mass of all classes but the label."""
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    p_label = probs[label]
    # summed without the label: 1 - p_t has lost its digits where p_t is near 1
    probs[label] = 0.0
    other_mass = float(probs.sum())
    probs[label] = p_label
    if p_label > 0.5:
        log_probs[label] = np.log1p(-other_mass)
    return log_probs, probs, other_mass


def weighted_median(values: FloatArray, weights: FloatArray) -> int:
    """Return the index of a weighted median of `values`, entries of weight 0 left out.

    Of equal values the heaviest wins. Of many a histogram leaves few to be sorted.
    """
    ids = (weights > 0.0).nonzero()[0]
    if len(ids) < len(weights):
        values, weights = values[ids], weights[ids]
    half, below = 0.5 * float(weights.sum()), 0.0
    if len(ids) > _BINS and (low := values.min()) < (high := values.max()):
        places = ((values - low) / (high - low) * (_BINS - 1)).astype(np.int16)
        masses = np.bincount(places, weights, _BINS).cumsum()
        chosen = min(int(masses.searchsorted(half)), _BINS - 1)
        below = float(masses[chosen - 1]) if chosen > 0 else 0.0
        inside = (places == chosen).nonzero()[0]
        ids, values, weights = ids[inside], values[inside], weights[inside]
    order = values.argsort(kind="stable")
    place = (below + weights[order].cumsum()).searchsorted(half)
    equal = (values == values[order[min(int(place), len(order) - 1)]]).nonzero()[0]
    return int(ids[equal[weights[equal].argmax()]])
