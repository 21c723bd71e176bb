"""The distribution of one draw, for each scheme.

`Draws` puts every scheme with replacement into one form, a base mass and independent draws with
ratios r, eq. (B1). `Totals` are the sums over classes that it is made of.
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
_LEAST_LOG = -1e300  # of a mass: below it differences would overflow
Result = TypeVar("Result")


class Totals:
    """The first sums over classes, for the normalisers of the softmax and of q, and the reference.

    Classes come in chunks: `add` adds some, and `merge` the sums over others.
    """

    def __init__(self, scheme: Scheme, num_draws: int, label: int) -> None:
        self.scheme, self.num_draws, self.label = scheme, num_draws, label
        self.num = 0  # of classes
        self.label_logit, self.label_q = math.nan, math.nan  # until the label has come
        # of all classes but the label: sums of exp(o) and of q, and the least logit
        self.masses, self.q_others, self.least = LogSum(), Sum(), math.inf
        self.least_product = math.inf  # o + log q, of a class that is drawn
        self.medians = np.empty((0, 3))  # of slices: log of its mass, and o and q of the class

    @property
    def top(self) -> float:
        """The largest logit but the label's."""
        return self.masses.top

    @property
    def exps(self) -> float:
        """The sum of exp(o - `top`)."""
        return float(self.masses.exps.value)

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> Totals:
        """Add the classes from number `start` on, of `logits` and `q` (k,)."""

        def work(part: slice) -> Totals:
            o, proposal, index = logits[part], q[part], self.label - start - part.start
            if 0 <= index < len(o):
                o = np.concatenate((o[:index], o[index + 1 :]))
                proposal = np.concatenate((proposal[:index], proposal[index + 1 :]))
            found = self.empty()
            found.num = len(q[part])
            found.add_others(o, proposal)
            return found

        for found in map_classes(work, len(logits)):
            self.merge(found)
        if start <= self.label < start + len(logits):
            self.label_logit = float(logits[self.label - start])
            self.label_q = float(q[self.label - start])
            if self.scheme.draws_label and self.label_q > 0.0:
                of_label = [[self.label_logit, self.label_logit, self.label_q]]
                self.medians = np.concatenate([self.medians, of_label])
                product = self.label_logit + math.log(self.label_q)
                self.least_product = min(self.least_product, product)
        return self

    def merge(self, other: Totals) -> Totals:
        """Add what another has summed, of other classes."""
        self.num += other.num
        self.masses.merge(other.masses)
        self.q_others.merge(other.q_others)
        self.least = min(other.least, self.least)
        self.least_product = min(self.least_product, other.least_product)
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
        """Write the sums over a slice of classes without the label, the first that are added."""
        top, drawn = float(logits.max(initial=-np.inf)), q > 0.0
        with np.errstate(over="ignore", divide="ignore"):
            exps, log_q = np.exp(logits - top), np.log(q)
        if drawn.all() and len(drawn):  # the next case at less cost
            highest, masses = top, exps
            self.least_product = float((logits + log_q).min())
        elif drawn.any():
            self.least_product = float((logits + log_q).min(where=drawn, initial=np.inf))
            highest = float(logits.max(where=drawn, initial=-np.inf))
            with np.errstate(over="ignore"):
                masses = exps if highest == top else np.exp(logits - highest)
            masses = np.where(drawn, masses, 0.0)
        if self.least_product < math.inf:
            middle = weighted_median(logits - log_q, masses)
            weight = highest + math.log(float(masses.sum()))
            self.medians = np.array([[weight, logits[middle], q[middle]]])
        self.least = float(logits.min(initial=np.inf))
        self.masses = LogSum.of(top, exps.sum())
        self.q_others = Sum.of(q.sum())


def map_classes(work: Callable[[slice], Result], num_classes: int) -> Iterable[Result]:
    """Return what `work` returns of each slice of the classes; of one slice without a thread."""
    if 0 < num_classes <= CLASS_CHUNK:
        return (work(slice(0, num_classes)),)
    return thread_map(work, chunks(num_classes, CLASS_CHUNK))


@dataclass
class Draws:
    """S = base + (1/m) * (sum of m iid ratios r), in units where Z = 1; eq. (B1).

    Where a scheme divides by the K draws that are kept, 1/K takes the place of 1/m. The arrays are
    of all n classes, or of a chunk of them.
    """

    totals: Totals
    logits: FloatArray  # (n,) as given
    q: FloatArray  # (n,) as given
    log_probs: FloatArray  # (n,) log e_j for Z = 1, the full softmax
    probs: FloatArray  # (n,)
    drawn: FloatArray  # (n,) probability in a draw that has a ratio; 0 where it is never drawn
    label: int | None  # its index in the arrays; None where it is in another chunk
    q_total: float  # the divisor of q
    weightless: float  # probability of a draw that adds nothing to S (the masked label)
    log_base: float  # of the base mass; -inf for none
    mean: float  # of r over a draw
    other_mass: float  # softmax mass of the classes other than the label, without cancellation
    log_label: float  # log of the label's probability in the softmax
    label_draw: float  # probability that one draw from q is the label
    other_draw: float  # and that it is not
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
        """Log r of the label where it is drawn."""
        return self.log_label - math.log(self.label_draw)

    @property
    def largest_log(self) -> float:
        """The largest size of the log of a class in the softmax."""
        return max(-self.log_of(self.totals.least), -self.log_label)

    @property
    def largest_product(self) -> float:
        """The largest size of the log of e q of a class that is drawn."""
        largest = math.log(self.q_total) - self.log_of(self.totals.least_product)
        return max(float(largest), 0.0)

    @property
    def draws_any(self) -> bool:
        """Whether any class has a ratio."""
        return len(self.totals.medians) > 0

    @property
    def largest_base_log(self) -> float:
        """The largest size of a log that the base mass is made of; 0 without a base mass."""
        logs = [self.log_label] if self.scheme.label_in_sum else []
        if self.scheme.corrects_label:
            logs += [float(np.log(self.num_draws)), float(np.log(self.label_draw))]
        return max(map(abs, logs), default=0.0)

    def log_of(self, logit: float) -> float:
        """Return the log-softmax of a class that is not the label."""
        return max(logit - self.top, _LEAST_LOG) - self.log_total


def _masses(totals: Totals) -> tuple[float, float, float]:
    """Return the largest of all logits, and over exp of it those of other classes and the label."""
    top = max(totals.top, totals.label_logit)
    others = totals.exps * math.exp(totals.top - top)
    return top, others, math.exp(totals.label_logit - top)


def make_draws(logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Draws:
    """Describe the draws of `scheme` for one example; `q` (n,) need not sum to exactly 1."""
    return draws_of_chunk(Totals(scheme, m, label).add(0, logits, q), 0, logits, q)


def draws_of_chunk(totals: Totals, start: int, logits: FloatArray, q: FloatArray) -> Draws:
    """Describe the draws of the classes from number `start` on, of `logits` and `q` (k,)."""
    scheme, m, label = totals.scheme, totals.num_draws, totals.label - start
    top, exps, of_label = _masses(totals)
    log_total = math.log(exps + of_label)
    other_mass = exps / (exps + of_label)
    log_label = max(totals.label_logit - top, _LEAST_LOG) - log_total
    if log_label > -math.log(2.0):  # 1 - p_t has lost its digits where p_t is near 1
        log_label = math.log1p(-other_mass)
    others, q_label = float(totals.q_others.value), totals.label_q
    label_draw, other_draw = q_label / (others + q_label), others / (others + q_label)
    with np.errstate(over="ignore"):
        log_probs: FloatArray = np.maximum(logits - top, _LEAST_LOG)
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
