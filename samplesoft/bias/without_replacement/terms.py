"""The sum S of the weights of a set of draws: its terms, and the nodes in log u of (B2).

Terms may lie any number of nats apart. They are given by logs relative to one of them. Between the
scales of two distant terms the integrand is constant, and one node represents the whole stretch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.summation import LARGEST_FLOAT, softmax_apart
from samplesoft.schemes import Scheme

_LOG_U_STEP = 0.2  # the error falls as exp(-pi**2 / step)
_FIRST_Z = -3.6  # log u = z - exp(-z) has fallen by 40 here
_FIRST_EVEN_LOG_U = -44.0  # log u of the first node at equal distances
_LOG_U_TO_LARGEST_TERM = 1.5  # from z = 0 to where the largest sums begin to count
_LOG_DECAY_OF_ONE = -42.0  # log of u w, below which exp(-u w) is 1
_LOG_DECAY_OF_ZERO = 6.7  # log of u w, above which exp(-u w) is 0
_EVEN_FROM_LOG_U = 40.0  # from there nodes stand at equal distances, and have the same weights
_APART_NATS = 60.0  # beyond which of two terms one does not matter
_MAX_COUNTED_NATS = 1e14  # of a longer stretch nodes are not counted
_RARE_COUNT = 1e-22  # mean count of a term in the sum, below which it moves no digit of p'


class Terms(NamedTuple):
    """The terms exp(logit) / divisor of a sum: near each other, or apart by any number of nats."""

    logits: FloatArray  # (k,)
    log_divisors: FloatArray  # (k,) infinite where there is no term
    counts: FloatArray  # (k,) expected number of times that each is in the sum

    def above(self, origin: int) -> FloatArray:
        """Return log(term / term at index `origin`), (k,).

        A difference of logs relative to the largest term loses digits where both terms are far
        below it. So the original logits are subtracted.
        """
        divisors = self.log_divisors
        # nothing to draw there: the infinity may be in both
        apart = np.where(divisors < np.inf, divisors - divisors[origin], np.inf)
        with np.errstate(over="ignore"):
            away = np.clip(self.logits - self.logits[origin], -LARGEST_FLOAT, LARGEST_FLOAT)
        logs: FloatArray = away - apart
        return logs

    @property
    def top(self) -> int:
        """Index of the reference term: the largest logit of the terms that are not rare.

        Relative to a very rare, very large term, the differences of all others could be rounded
        away.
        """
        there = self.log_divisors < np.inf
        seen = there & (self.counts > _RARE_COUNT)
        return int(np.where(seen if seen.any() else there, self.logits, -np.inf).argmax())

    @property
    def logs(self) -> FloatArray:
        """The logs of the terms over exp of the logit on top, (k,); -inf where there is none."""
        with np.errstate(over="ignore"):
            away = np.clip(self.logits - self.logits[self.top], -LARGEST_FLOAT, LARGEST_FLOAT)
        logs: FloatArray = away - self.log_divisors
        return logs

    @property
    def largest_log(self) -> float:
        """The largest magnitude of the summands of a log, within groups of neighbouring terms.

        For terms that are far apart, an error of their distance does not affect any sum.
        """
        kept = np.flatnonzero(self.log_divisors < np.inf)
        logits, divisors = self.logits[kept], np.abs(self.log_divisors[kept])
        order = np.argsort(self.logs[kept])
        logits, logs = logits[order], self.logs[kept][order]
        starts = np.flatnonzero(np.append(True, np.diff(logs) > _APART_NATS))
        with np.errstate(over="ignore"):
            spans = np.maximum.reduceat(logits, starts) - np.minimum.reduceat(logits, starts)
        return float(spans.max() + divisors.max())


class Weights(NamedTuple):
    """The weights in S of the draws of each class, and of the label."""

    log_probs: FloatArray  # (n,)
    probs: FloatArray  # (n,)
    logits: FloatArray  # (n,) as given
    log_divisors: FloatArray  # (n,) of a draw, infinite where it has no weight
    label: int
    shift: float  # log of what the label is divided by, drawn or not; infinite where it is not in S

    def terms(self, which: IntArray, counts: FloatArray) -> Terms:
        """Return the terms of the classes `which` (k,), and then the term that the label has in S.

        `counts` (k,) are the expected numbers of draws of these classes.
        """
        every, divisors = np.append(which, self.label), self.log_divisors[which]
        return Terms(self.logits[every], np.append(divisors, self.shift), np.append(counts, 1.0))


def weigh(logits: FloatArray, label: int, scheme: Scheme, divisors: FloatArray) -> Weights:
    """Return the weights of draws of each class, divided by `divisors` (n,), and of the label."""
    log_probs, probs, _ = softmax_apart(logits, label)
    with np.errstate(divide="ignore"):
        log_divisors = np.log(divisors)
    shift = float(log_divisors[label]) if scheme.corrects_label else 0.0
    if not scheme.label_in_sum:
        shift = np.inf
    if not scheme.draws_label:
        log_divisors[label] = np.inf
    return Weights(log_probs, probs, logits, log_divisors, label, shift)


# --- nodes in log u ------------------------------------------------------------------------------


def scales_of_sum(terms: Terms) -> tuple[float, float]:
    """Return log E[S], and the log of the scale of the nodes: log u of a node is x minus it."""
    logs = terms.logs
    some = (terms.counts > _RARE_COUNT) & (logs > -np.inf)
    top = float(logs[some].max())
    reference = top + math.log(float((terms.counts[some] * np.exp(logs[some] - top)).sum()))
    return reference, max(top, reference) + _LOG_U_TO_LARGEST_TERM


class Node(NamedTuple):
    """A node in log u, or a stretch of nodes on which the integrand is constant."""

    log_decay: FloatArray  # (k,) log of u times each term
    log_mean: float  # and of u times the mean of S
    weights: FloatArray  # (3,) of all nodes, of half of them, and of all


Rule = Callable[[int], tuple[float, FloatArray]]


def steps(number: int) -> tuple[float, FloatArray]:
    """Return log u of a node (B24) of that number, less where they begin, and weights (3,)."""
    z = _FIRST_Z + number * _LOG_U_STEP
    early = math.exp(-z)
    weight = _LOG_U_STEP * (1.0 + early)
    even = 2.0 * weight if number % 2 == 0 else 0.0
    return z - early, np.array([weight, even, weight])


def even_steps(number: int) -> tuple[float, FloatArray]:
    """Return the same at equal distances, whose error (B79) is proved."""
    return number * _LOG_U_STEP + _FIRST_EVEN_LOG_U, np.array([_LOG_U_STEP, 0.0, _LOG_U_STEP])


def nodes_of(terms: Terms, reference: float, log_scale: float, rule: Rule) -> Iterator[Node]:
    """Yield nodes in log u without end, for a sum of `terms` and a mean of log `reference`.

    Terms of scales that are far apart change exp(-u S) one after the other. Between them it is
    constant, and all nodes there are one of their weights added up: time does not grow with the
    distance. Behind them distances are measured from the next term, for log u has no digits left.
    """
    logs = terms.logs
    near_mean = int(np.abs(logs - reference).argmin())
    above_that = reference - float(logs[near_mean])
    logs, start, number = logs - log_scale, 0.0, 0
    while True:
        x, weights = rule(number)
        log_decay = logs + (x - start)
        log_mean = float(log_decay[near_mean]) + above_that
        yield Node(log_decay, log_mean, weights)
        number += 1
        ahead, mean_is_ahead = log_decay <= _LOG_DECAY_OF_ONE, log_mean <= _LOG_DECAY_OF_ONE
        ahead &= log_decay > -np.inf
        if x < _EVEN_FROM_LOG_U or changes(np.append(log_decay, log_mean)) or not ahead.any():
            continue
        next_log = max(float(log_decay[ahead].max()), log_mean if mean_is_ahead else -np.inf)
        distance = min(_LOG_DECAY_OF_ONE - next_log, LARGEST_FLOAT)
        if distance <= 2.0 * _LOG_U_STEP:
            continue
        skipped = distance
        if distance < _MAX_COUNTED_NATS:  # as many pairs of nodes as there are
            skipped = 2.0 * _LOG_U_STEP * math.floor(0.5 * distance / _LOG_U_STEP)
        both = weights + rule(number)[1]
        yield Node(log_decay, log_mean, both * (0.5 / _LOG_U_STEP) * skipped)
        logs, start = _from_next(terms, log_decay, ahead), x
        next_log = float(logs[ahead].max())
        if mean_is_ahead:
            next_log = max(next_log, float(logs[near_mean]) + above_that)
        logs += _LOG_DECAY_OF_ONE - (distance - skipped) - next_log


def _from_next(terms: Terms, log_decay: FloatArray, ahead: NDArray[np.bool_]) -> FloatArray:
    """Return the logs of all terms over the largest of those `ahead`."""
    origin = int(np.where(ahead, log_decay, -np.inf).argmax())
    logs = terms.above(origin)
    # of logits so far away that their distances are the same number there may be a larger one
    better = int(np.where(ahead, logs, -np.inf).argmax())
    return logs if better == origin else terms.above(better)


def changes(log_decay: FloatArray) -> bool:
    """Whether exp(-u S) changes with u; between scales of S that are far apart it does not."""
    return bool(((log_decay > _LOG_DECAY_OF_ONE) & (log_decay < _LOG_DECAY_OF_ZERO)).any())
