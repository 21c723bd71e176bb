"""The distribution of one draw, for each scheme.

`Draws` describes every scheme with replacement in one form, eq. (B1): S is a base mass, which is
present without any draw, plus the mean ratio r = e / q of independent draws. `Totals` has the sums
over classes from which `Draws` is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import LogSum, Sum, weighted_median
from samplesoft.schemes import Scheme

CLASS_CHUNK = 1 << 16
_MIN_LOG_MASS = -1e300  # smaller logs are replaced by it, so that their differences do not overflow
Result = TypeVar("Result")


class Totals:
    """Sums over classes in the first pass over them: the normalisers of the softmax and of q.

    Also contains medians of ratios, from which the reference ratio R is chosen. `add` adds a chunk
    of classes, and `merge` adds the sums over other chunks.
    """

    def __init__(self, scheme: Scheme, num_draws: int, label: int) -> None:
        self.scheme = scheme
        self.num_draws = num_draws
        self.label = label
        self.num = 0  # number of classes added

        # NaN until the label has been added
        self.label_logit = math.nan
        self.label_q = math.nan

        # over all classes except the label: the sums of exp(o) and of q, and the smallest logit
        self.other_exps = LogSum()
        self.q_others = Sum()
        self.min_logit = math.inf
        # smallest o + log q, o being the logit, of all classes that can be drawn, also the label
        self.min_log_product = math.inf

        # (k, 3), a row for each slice of classes, and for a label that can be drawn: the log of its
        # mass, the sum of exp(o), and the logit o and q of the class at the weighted median ratio
        self.medians = np.empty((0, 3))

    @property
    def top(self) -> float:
        """The largest logit of all classes except the label."""
        return self.other_exps.top

    @property
    def exp_sum(self) -> float:
        """The sum of exp(o - `top`)."""
        return float(self.other_exps.scaled_sum.value)

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> Totals:
        """Add the classes with the indices `start`, `start` + 1, ...; return self."""

        def work(part: slice) -> Totals:
            o = logits[part]
            proposal = q[part]
            index = self.label - start - part.start
            if 0 <= index < len(o):
                o = np.concatenate((o[:index], o[index + 1 :]))
                proposal = np.concatenate((proposal[:index], proposal[index + 1 :]))
            slice_totals = self.empty()
            slice_totals.num = len(q[part])
            slice_totals.add_others(o, proposal)
            return slice_totals

        for slice_totals in map_classes(work, len(logits)):
            self.merge(slice_totals)
        if start <= self.label < start + len(logits):
            self.label_logit = float(logits[self.label - start])
            self.label_q = float(q[self.label - start])
            if self.scheme.draws_label and self.label_q > 0.0:
                of_label = [[self.label_logit, self.label_logit, self.label_q]]
                self.medians = np.concatenate([self.medians, of_label])
                product = self.label_logit + math.log(self.label_q)
                self.min_log_product = min(self.min_log_product, product)

        return self

    def merge(self, other: Totals) -> Totals:
        """Add the sums of `other`, which are over other classes; return self."""
        self.num += other.num
        self.other_exps.merge(other.other_exps)
        self.q_others.merge(other.q_others)
        self.min_logit = min(other.min_logit, self.min_logit)
        self.min_log_product = min(self.min_log_product, other.min_log_product)
        if len(self.medians):
            self.medians = np.concatenate([self.medians, other.medians])
        else:
            self.medians = other.medians
        if not math.isnan(other.label_logit):
            self.label_logit = other.label_logit
            self.label_q = other.label_q
        return self

    def empty(self) -> Totals:
        """Return `Totals` of the same example, to which no class has been added."""
        return Totals(self.scheme, self.num_draws, self.label)

    def add_others(self, logits: FloatArray, q: FloatArray) -> None:
        """Add a slice of classes without the label; no class may have been added before."""
        top = float(logits.max(initial=-np.inf))
        drawn = q > 0.0
        with np.errstate(over="ignore", divide="ignore"):
            exps = np.exp(logits - top)
            log_q = np.log(q)

        if drawn.all() and len(drawn):  # the next branch would give the same result, but slower
            highest = top
            drawn_exps = exps
            self.min_log_product = float((logits + log_q).min())
        elif drawn.any():
            self.min_log_product = float((logits + log_q).min(where=drawn, initial=np.inf))
            highest = float(logits.max(where=drawn, initial=-np.inf))
            with np.errstate(over="ignore"):
                drawn_exps = exps if highest == top else np.exp(logits - highest)
            drawn_exps = np.where(drawn, drawn_exps, 0.0)
        if self.min_log_product < math.inf:
            middle = weighted_median(logits - log_q, drawn_exps)
            weight = highest + math.log(float(drawn_exps.sum()))
            self.medians = np.array([[weight, logits[middle], q[middle]]])
        self.min_logit = float(logits.min(initial=np.inf))
        self.other_exps = LogSum.of(top, exps.sum())
        self.q_others = Sum.of(q.sum())


def map_classes(work: Callable[[slice], Result], num_classes: int) -> Iterable[Result]:
    """Return `work(slice)` for each slice of the classes; several slices run on all threads."""
    if 0 < num_classes <= CLASS_CHUNK:
        return (work(slice(0, num_classes)),)
    return thread_map(work, chunks(num_classes, CLASS_CHUNK))


@dataclass
class Draws:
    """The distribution of S of one example, as base mass + (sum of m iid ratios r) / m; eq. (B1).

    The scale is such that Z = 1: the masses e are softmax probabilities. If the scheme divides by
    the number K of accepted draws, 1/K replaces 1/m. The arrays contain all n classes of the
    example, or a chunk of them.
    """

    totals: Totals
    logits: FloatArray  # (n,) as the caller passed them
    q: FloatArray  # (n,) the proposal, as the caller passed it
    log_probs: FloatArray  # (n,) the log-softmax, which is log e_j because Z = 1
    probs: FloatArray  # (n,) the softmax
    # (n,) q_j of (B1): the probability that a draw is class j and adds to S
    draw_probs: FloatArray
    label: int | None  # index of the label in the arrays; None if it is in another chunk
    q_total: float  # the sum by which q is divided
    # probability that a draw adds nothing to S, because it is the label, which is masked
    weightless: float
    log_base: float  # log of the base mass; -inf without one
    mean_ratio: float  # the expected ratio of one draw; a weightless draw has the ratio 0
    other_mass: float  # softmax mass of all classes except the label, without cancellation
    log_label: float  # log of the label's softmax probability
    label_draw_prob: float  # probability that one draw from q is the label
    other_draw_prob: float  # probability that one draw from q is another class
    top: float  # the largest logit o of all classes
    log_total: float  # log of the sum of exp(o - `top`) over all classes

    @property
    def scheme(self) -> Scheme:
        """The scheme that turns draws into a loss."""
        return self.totals.scheme

    @property
    def num_draws(self) -> int:
        """The number of draws m."""
        return self.totals.num_draws

    @property
    def expected_sum(self) -> float:
        """The expectation of S."""
        return float(np.exp(self.log_base)) + self.mean_ratio

    @property
    def log_r_label(self) -> float:
        """Log of the ratio of the label; only for schemes that draw the label."""
        return self.log_label - math.log(self.label_draw_prob)

    @property
    def max_log_prob(self) -> float:
        """The largest |log p| of all classes."""
        return max(-self.log_softmax_of(self.totals.min_logit), -self.log_label)

    @property
    def max_log_product(self) -> float:
        """The largest |log(e q)| of the classes that can be drawn."""
        largest = math.log(self.q_total) - self.log_softmax_of(self.totals.min_log_product)
        return max(float(largest), 0.0)

    @property
    def draws_any_class(self) -> bool:
        """Whether any class can be drawn, and so has a ratio."""
        return len(self.totals.medians) > 0

    @property
    def max_abs_log_in_base(self) -> float:
        """The largest |log| of a factor of the base mass, for rounding errors; 0 without one."""
        logs = [self.log_label] if self.scheme.label_in_sum else []
        if self.scheme.corrects_label:
            logs += [float(np.log(self.num_draws)), float(np.log(self.label_draw_prob))]
        return max(map(abs, logs), default=0.0)

    def log_softmax_of(self, logit: float) -> float:
        """Return `logit` minus the log-normaliser: the log-softmax of a class other than the label.

        With o + log q as `logit`, it is log(e q).
        """
        return max(logit - self.top, _MIN_LOG_MASS) - self.log_total


def _masses(totals: Totals) -> tuple[float, float, float]:
    """Return the largest logit, the mass of all classes but the label, and the label's mass.

    A mass is a sum of exp(o - largest logit).
    """
    top = max(totals.top, totals.label_logit)
    others = totals.exp_sum * math.exp(totals.top - top)
    return top, others, math.exp(totals.label_logit - top)


def make_draws(logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Draws:
    """Return the `Draws` of one example under `scheme`; the sum of `q` (n,) may differ from 1."""
    return draws_of_chunk(Totals(scheme, m, label).add(0, logits, q), 0, logits, q)


def draws_of_chunk(totals: Totals, start: int, logits: FloatArray, q: FloatArray) -> Draws:
    """Return the `Draws` of an example, with arrays for a chunk of k classes.

    `totals` are over all classes of the example. `logits` and `q` (k,) are those of the classes
    `start` to `start` + k - 1.
    """
    scheme = totals.scheme
    m = totals.num_draws
    label = totals.label - start
    top, exps, of_label = _masses(totals)
    log_total = math.log(exps + of_label)
    other_mass = exps / (exps + of_label)
    log_label = max(totals.label_logit - top, _MIN_LOG_MASS) - log_total

    # log p_t of the label t, from a rounded logit, loses the digits of 1 - p_t where p_t is near 1.
    # So for p_t > 1/2 it is log1p(-other_mass), where other_mass is a sum without the label.
    if log_label > -math.log(2.0):
        log_label = math.log1p(-other_mass)
    others = float(totals.q_others.value)
    q_label = totals.label_q
    label_draw_prob = q_label / (others + q_label)
    other_draw_prob = others / (others + q_label)
    with np.errstate(over="ignore"):
        log_probs: FloatArray = np.maximum(logits - top, _MIN_LOG_MASS)
    log_probs -= log_total
    probs = np.exp(log_probs)
    weightless = 0.0
    mean_ratio = other_mass
    q_total = others + q_label
    if scheme.excludes_label or scheme.divides_by_accepted:
        q_total = others if others > 0.0 else 1.0
    elif scheme.draws_label:
        mean_ratio = 1.0
    else:
        weightless = label_draw_prob
    draw_probs = q / q_total
    has_label = 0 <= label < len(q)
    if has_label:
        log_probs[label] = log_label
        probs[label] = math.exp(log_label)
        draw_probs[label] = label_draw_prob if scheme.draws_label else 0.0
    log_base = log_label if scheme.label_in_sum else -np.inf
    if scheme.corrects_label:
        log_base = log_base - np.log(m) - np.log(label_draw_prob)

    return Draws(
        totals=totals,
        logits=logits,
        q=q,
        log_probs=log_probs,
        probs=probs,
        draw_probs=draw_probs,
        label=label if has_label else None,
        q_total=q_total,
        weightless=weightless,
        log_base=log_base,
        mean_ratio=mean_ratio,
        other_mass=other_mass,
        log_label=log_label,
        label_draw_prob=label_draw_prob,
        other_draw_prob=other_draw_prob,
        top=top,
        log_total=log_total,
    )
