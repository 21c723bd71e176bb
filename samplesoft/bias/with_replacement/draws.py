"""The distribution of one draw, for each scheme.

`Draws` writes every scheme with replacement in one form: a base mass and independent draws with
ratios r, eq. (B1). `Totals` are the sums over classes that this needs.
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
_MIN_LOG_MASS = -1e300  # differences of smaller logs could overflow
Result = TypeVar("Result")


class Totals:
    """The sums of the first pass: the normalisers of the softmax and of q, and the reference.

    `add` adds a chunk of classes, and `merge` the sums over other chunks.
    """

    def __init__(self, scheme: Scheme, num_draws: int, label: int) -> None:
        self.scheme, self.num_draws, self.label = scheme, num_draws, label
        self.num = 0  # number of classes
        self.label_logit, self.label_q = math.nan, math.nan  # until the label has been added
        # over all classes except the label: sums of exp(o) and of q, and the smallest logit
        self.other_exps, self.q_others, self.min_logit = LogSum(), Sum(), math.inf
        self.min_log_product = math.inf  # smallest o + log q of a drawn class
        # (k, 3) for each slice: log of its mass, and o and q of its weighted median ratio
        self.medians = np.empty((0, 3))

    @property
    def top(self) -> float:
        """The largest logit of all classes except the label."""
        return self.other_exps.top

    @property
    def exps(self) -> float:
        """The sum of exp(o - `top`)."""
        return float(self.other_exps.exps.value)

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> Totals:
        """Add the k classes from index `start` on."""

        def work(part: slice) -> Totals:
            o, proposal, index = logits[part], q[part], self.label - start - part.start
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
        """Add the sums of `other`, over other classes."""
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
            self.label_logit, self.label_q = other.label_logit, other.label_q
        return self

    def empty(self) -> Totals:
        """Return the same sums without any classes."""
        return Totals(self.scheme, self.num_draws, self.label)

    def add_others(self, logits: FloatArray, q: FloatArray) -> None:
        """Write the sums over a slice of classes without the label; self must be empty."""
        top, drawn = float(logits.max(initial=-np.inf)), q > 0.0
        with np.errstate(over="ignore", divide="ignore"):
            exps, log_q = np.exp(logits - top), np.log(q)
        if drawn.all() and len(drawn):  # a faster form of the next case
            highest, drawn_exps = top, exps
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
    """Return `work(slice)` for slices of all classes, on all threads if there are several."""
    if 0 < num_classes <= CLASS_CHUNK:
        return (work(slice(0, num_classes)),)
    return thread_map(work, chunks(num_classes, CLASS_CHUNK))


@dataclass
class Draws:
    """S = base + (1/m) * (sum of m iid ratios r), in units where Z = 1; eq. (B1).

    If the scheme divides by the number K of accepted draws, 1/K replaces 1/m. The arrays are of all
    n classes, or of a chunk of them.
    """

    totals: Totals
    logits: FloatArray  # (n,) argument of the caller
    q: FloatArray  # (n,) argument of the caller
    log_probs: FloatArray  # (n,) log e_j for Z = 1: the log-softmax
    probs: FloatArray  # (n,)
    drawn: FloatArray  # (n,) probability that a draw is this class and has weight
    label: int | None  # its index in the arrays; None if it is in another chunk
    q_total: float  # the divisor of q
    weightless: float  # probability of a draw that adds nothing to S (a masked accidental hit)
    log_base: float  # log of the base mass; -inf for none
    mean: float  # E[r] of one draw
    other_mass: float  # softmax mass of all classes except the label, without cancellation
    log_label: float  # log of the label's softmax probability
    label_draw: float  # probability that one draw from q is the label
    other_draw: float  # probability that it is not
    top: float  # the largest of all logits
    log_total: float  # log of the sum over all classes of exp(o - `top`)

    @property
    def scheme(self) -> Scheme:
        """The scheme."""
        return self.totals.scheme

    @property
    def num_draws(self) -> int:
        """The number of draws m."""
        return self.totals.num_draws

    @property
    def expected_sum(self) -> float:
        """E[S]."""
        return float(np.exp(self.log_base)) + self.mean

    @property
    def log_r_label(self) -> float:
        """Log r of the label, if it is drawn."""
        return self.log_label - math.log(self.label_draw)

    @property
    def max_log_prob(self) -> float:
        """The largest |log p| of all classes."""
        return max(-self.log_of(self.totals.min_logit), -self.log_label)

    @property
    def max_log_product(self) -> float:
        """The largest |log(e q)| of the drawn classes."""
        largest = math.log(self.q_total) - self.log_of(self.totals.min_log_product)
        return max(float(largest), 0.0)

    @property
    def draws_any(self) -> bool:
        """Whether any class has a ratio."""
        return len(self.totals.medians) > 0

    @property
    def max_base_log(self) -> float:
        """The largest magnitude of the logs in the base mass; 0 without a base mass."""
        logs = [self.log_label] if self.scheme.label_in_sum else []
        if self.scheme.corrects_label:
            logs += [float(np.log(self.num_draws)), float(np.log(self.label_draw))]
        return max(map(abs, logs), default=0.0)

    def log_of(self, logit: float) -> float:
        """Return the log-softmax of a class that is not the label."""
        return max(logit - self.top, _MIN_LOG_MASS) - self.log_total


def _masses(totals: Totals) -> tuple[float, float, float]:
    """Return the largest logit, and exp(o - it) summed over the other classes, and of the label."""
    top = max(totals.top, totals.label_logit)
    others = totals.exps * math.exp(totals.top - top)
    return top, others, math.exp(totals.label_logit - top)


def make_draws(logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Draws:
    """Return the draws of `scheme` for one example; `q` (n,) need not sum to exactly 1."""
    return draws_of_chunk(Totals(scheme, m, label).add(0, logits, q), 0, logits, q)


def draws_of_chunk(totals: Totals, start: int, logits: FloatArray, q: FloatArray) -> Draws:
    """Return the draws with the arrays of the k classes from index `start` on."""
    scheme, m, label = totals.scheme, totals.num_draws, totals.label - start
    top, exps, of_label = _masses(totals)
    log_total = math.log(exps + of_label)
    other_mass = exps / (exps + of_label)
    log_label = max(totals.label_logit - top, _MIN_LOG_MASS) - log_total
    # log p_t from a rounded logit loses the digits of 1 - p_t where p_t is near 1: for p_t > 1/2
    # take log1p(-other_mass), where other_mass is summed without the label
    if log_label > -math.log(2.0):
        log_label = math.log1p(-other_mass)
    others, q_label = float(totals.q_others.value), totals.label_q
    label_draw, other_draw = q_label / (others + q_label), others / (others + q_label)
    with np.errstate(over="ignore"):
        log_probs: FloatArray = np.maximum(logits - top, _MIN_LOG_MASS)
    log_probs -= log_total
    probs = np.exp(log_probs)
    weightless, mean, q_total = 0.0, other_mass, others + q_label
    if scheme.excludes_label or scheme.divides_by_kept:
        q_total = others if others > 0.0 else 1.0
    elif scheme.draws_label:
        mean = 1.0
    else:
        weightless = label_draw
    drawn = q / q_total
    has_label = 0 <= label < len(q)
    if has_label:
        log_probs[label], probs[label] = log_label, math.exp(log_label)
        drawn[label] = label_draw if scheme.draws_label else 0.0
    log_base = log_label if scheme.label_in_sum else -np.inf
    if scheme.corrects_label:
        log_base = log_base - np.log(m) - np.log(label_draw)
    return Draws(
        totals=totals,
        logits=logits,
        q=q,
        log_probs=log_probs,
        probs=probs,
        drawn=drawn,
        label=label if has_label else None,
        q_total=q_total,
        weightless=weightless,
        log_base=log_base,
        mean=mean,
        other_mass=other_mass,
        log_label=log_label,
        label_draw=label_draw,
        other_draw=other_draw,
        top=top,
        log_total=log_total,
    )
