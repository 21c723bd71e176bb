"""What one draw is: the law of each scheme, and the ratios of the classes that are drawn.

`DrawLaw` puts every scheme with replacement into one form, a base mass and independent draws with
ratios r, eq. (B1). `Classes` measures the ratios from three centres. Below them are the kernels
that tell two ratios apart where these nearly agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from samplesoft._cached import cached_property
from samplesoft._jit import chunks, njit, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import panels
from samplesoft.schemes import Scheme

CLASS_CHUNK = 1 << 16
DIGITS_OF_KAPPA = 0.3  # of kappa: below it, it has more digits than a difference of logs
# ln 2 in three parts, the first two short enough that a product with |k| < 2**11 is exact
_LN2_1 = 0.6931471803691238
_LN2_2 = 1.9082149288430703e-10
_LN2_3 = 4.275175589747649e-20
_SPLIT = 134217729.0
_REFINE_BELOW = 2.0**-6
# Where ratios nearly agree, each is known to this before R is subtracted from it (twice the largest
# error of 6,000 at random): in the rounding of a softmax, 1e-16, that leaves some eleven digits.
DEVIATION_ERROR = 1e-27
NEAR_REFERENCE = 0.5 * _REFINE_BELOW  # of kappa
_BINS = 4096
_NO_ENDS = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])  # of no ratios
LARGEST_FLOAT = float(np.finfo(np.float64).max)
_LEAST_LOG = -1e300  # of a mass: below it differences would overflow
# 1/4!, 1/3!, 1/2, 1 and 1, each with what it is off by
_QUARTIC, _CUBIC = (0.041666666666666664, 2.3129646346357427e-18), (1.0 / 6.0, 9.25185853854297e-18)
Floats = tuple[float, float, float]
Result = TypeVar("Result")
_EXP_TERMS = _QUARTIC, _CUBIC, (0.5, 0.0), (1.0, 0.0), (1.0, 0.0)


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


class Totals:
    """The first sums over classes: what makes the softmax, the proposal and the reference of them.

    Classes come in chunks; `add` takes some, and `merge` what another has of others.
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

        def work(part: slice) -> tuple[Any, ...]:
            o, proposal, place = logits[part], q[part], self.label - start - part.start
            if 0 <= place < len(o):
                o = np.concatenate((o[:place], o[place + 1 :]))
                proposal = np.concatenate((proposal[:place], proposal[place + 1 :]))
            return len(q[part]), *_totals_of_slice(o, proposal)

        for found in map_classes(work, len(logits)):
            self._take(*found)
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
        extremes = other.num, other.masses.top, other.least, other.least_product
        self._take(*extremes, other.masses.exps, other.q_others, other.medians)
        if not math.isnan(other.label_logit):
            self.label_logit, self.label_q = other.label_logit, other.label_q
        return self

    def _take(
        self,
        num: int,
        top: float,
        least: float,
        least_product: float,
        exps: Sum,
        q_others: Sum,
        medians: FloatArray,
    ) -> None:
        self.num += num
        self.masses.add(top, exps)
        self.q_others.merge(q_others)
        self.least = min(least, self.least)
        self.least_product = min(self.least_product, least_product)
        self.medians = np.concatenate([self.medians, medians]) if len(self.medians) else medians


def map_classes(work: Callable[[slice], Result], num_classes: int) -> Iterable[Result]:
    """Return what `work` returns of each slice of the classes; of one slice without a thread."""
    if 0 < num_classes <= CLASS_CHUNK:
        return (work(slice(0, num_classes)),)
    return thread_map(work, chunks(num_classes, CLASS_CHUNK))


def _totals_of_slice(logits: FloatArray, q: FloatArray) -> tuple[Any, ...]:
    """Return what `Totals` knows of some classes, from the largest logit on."""
    top, drawn = float(logits.max(initial=-np.inf)), q > 0.0
    with np.errstate(over="ignore", divide="ignore"):
        exps, log_q = np.exp(logits - top), np.log(q)
    medians, least_product = np.empty((0, 3)), math.inf
    if drawn.all() and len(drawn):  # of the next case, what costs less
        highest, masses = top, exps
        least_product = float((logits + log_q).min())
    elif drawn.any():
        least_product = float((logits + log_q).min(where=drawn, initial=np.inf))
        highest = float(logits.max(where=drawn, initial=-np.inf))
        with np.errstate(over="ignore"):
            masses = exps if highest == top else np.exp(logits - highest)
        masses = np.where(drawn, masses, 0.0)
    if least_product < math.inf:
        middle = weighted_median(logits - log_q, masses)
        weight = highest + math.log(float(masses.sum()))
        medians = np.array([[weight, logits[middle], q[middle]]])
    least = float(logits.min(initial=np.inf))
    return top, least, least_product, Sum.of(exps.sum()), Sum.of(q.sum()), medians


@dataclass
class DrawLaw:
    """S = base + (1/m) * (sum of m iid ratios r), in units where Z = 1; eq. (B1) of README.md here.

    Where a scheme divides by the K draws that are kept, 1/K takes the place of 1/m. The arrays are
    of all n classes, or of a chunk of them.
    """

    totals: Totals
    logits: FloatArray  # (n,) as given
    q: FloatArray  # (n,) as given
    log_probs: FloatArray  # (n,) log e_j for Z = 1, the full softmax
    probs: FloatArray  # (n,)
    drawn: FloatArray  # (n,) probability in a draw that has a ratio; 0 where it is never drawn
    label: int | None  # its place in the arrays; None where it is in another chunk
    q_total: float  # what q was divided by
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
        """The facts of the scheme."""
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


def make_draw_law(logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> DrawLaw:
    """Describe the draws of `scheme` for one example; `q` (n,) need not sum to exactly 1."""
    return law_of(Totals(scheme, m, label).add(0, logits, q), 0, logits, q)


def law_of(totals: Totals, start: int, logits: FloatArray, q: FloatArray) -> DrawLaw:
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
    columns = logits, q, log_probs, probs, drawn, label if has_label else None
    facts = q_total, weightless, log_base, mean, other_mass, log_label, label_draw, other_draw
    return DrawLaw(totals, *columns, *facts, top, log_total)


@dataclass
class Centres:
    """The three centres of the ratios r, R, their mean and the least, and what lies around them."""

    reference: Floats  # o and q of the class whose ratio is R, and log R
    mean_deviation: float  # mean / R - 1
    log_mean: float  # of the mean of r over a draw
    log_least: float  # log r0, which no ratio lies below
    near: bool  # whether all ratios are near R
    span: tuple[float, float]  # the least and the greatest of log (r / R)
    least_drawn: float  # probability of the class of the least ratio
    errors: FloatArray  # (5,) sums of `relative_ratios`

    @property
    def log_ref(self) -> float:
        """The log of R."""
        return self.reference[2]

    @property
    def kappa_mean(self) -> float:
        """(mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @property
    def log_mean_distance(self) -> float:
        """Log (mean / R)."""
        if abs(self.mean_deviation) < DIGITS_OF_KAPPA:
            return float(np.log1p(self.mean_deviation))
        return self.log_mean - self.log_ref

    @cached_property
    def log_above_least(self) -> FloatArray:
        """Log (R - r0) and log (mean - r0)."""
        upper = np.array([self.log_ref, self.log_mean])
        with np.errstate(divide="ignore"):
            parts = -np.expm1(np.minimum(self.log_least - upper, 0.0))  # 1 - r0 / upper
            above: FloatArray = upper + np.log(parts)
            if self.mean_deviation > -0.5:  # mean - r0 keeps what the mean has above R
                above[1] = self.log_ref + np.log(max(parts[0] + self.mean_deviation, 0.0))
        return above


@dataclass
class Classes(Centres):
    """The ratios r of the classes, (n,), and their centres."""

    log_r: FloatArray
    contrast: FloatArray  # kappa = (r - R) / (r + R)

    @cached_property
    def log_distances(self) -> FloatArray:
        """Log (r / R), (n,); where all ratios are near R, with the digits of kappa."""
        if self.near:
            return 2.0 * np.arctanh(self.contrast)
        return self.log_r - self.log_ref


class Deviations:
    """The second sums over classes: how far the ratios lie from that of the reference.

    It is the softmax-weighted median of the ratios, or of the medians of chunks: measured from
    there, the sizes of the flows (B6) add up to little more than the L1 norm of the bias in case
    (B9), so nothing cancels there.
    """

    def __init__(self, law: DrawLaw) -> None:
        weights, logits, q = law.totals.medians.T
        middle = 0
        if len(weights) > 1:
            with np.errstate(under="ignore", over="ignore"):
                middle = weighted_median(logits - np.log(q), np.exp(weights - weights.max()))
        o_ref, q_ref = float(logits[middle]), float(q[middle])
        of_label = law.scheme.draws_label and o_ref == law.totals.label_logit
        log_p = law.log_label if of_label and q_ref == law.totals.label_q else law.log_of(o_ref)
        drawn = q_ref / law.q_total
        self.reference = o_ref, q_ref, float(log_p - math.log(drawn))
        self.weightless, self.log_law_mean = law.weightless, float(np.log(law.mean))
        self.sums = Sum((6,))
        # the least and the greatest of log r and of kappa, and the chance of the least class
        self.ends = _NO_ENDS

    def add(self, law: DrawLaw) -> tuple[FloatArray, FloatArray]:
        """Add the classes of a chunk, and return their log r and kappa."""
        log_r, contrast, found = _ratios(law, self.reference)
        for sums, ends in found:
            self.sums.add(sums)
            self._take(ends)
        return log_r, contrast

    def merge(self, other: Deviations) -> Deviations:
        """Add what another has summed."""
        self.sums.merge(other.sums)
        self._take(other.ends)
        return self

    def _take(self, ends: FloatArray) -> None:
        if self.ends is _NO_ENDS:
            self.ends = ends.copy()
            return
        if ends[0] < self.ends[0]:
            self.ends[4] = ends[4]
        self.ends[[0, 2]] = np.minimum(self.ends[[0, 2]], ends[[0, 2]])
        self.ends[[1, 3]] = np.maximum(self.ends[[1, 3]], ends[[1, 3]])

    def finish(self) -> Centres:
        """Return the centres."""
        sums: FloatArray = self.sums.value
        log_ref = self.reference[2]
        # a draw without weight has r = 0, and so r / R - 1 = -1
        mean_deviation = float(sums[0]) - self.weightless
        if mean_deviation > -0.5:
            log_mean = log_ref + math.log1p(mean_deviation)
        else:  # far below R the sum has cancelled, while the mean itself is known
            log_mean = self.log_law_mean
        low, high, *kappas, least_drawn = self.ends.tolist()
        near = max(abs(kappa) for kappa in kappas) < DIGITS_OF_KAPPA
        span = low - log_ref, high - log_ref
        if near:
            span = 2.0 * math.atanh(kappas[0]), 2.0 * math.atanh(kappas[1])
        log_least = -math.inf
        if not self.weightless:
            # r0 is a panel's edge: no Chebyshev atom lies below it, nor any class by its distance
            log_least = log_ref + panels.WIDTH * math.floor(span[0] / panels.WIDTH)
        facts = mean_deviation, log_mean, log_least, near, span, least_drawn
        return Centres(self.reference, *facts, sums[1:])


def _ratios(
    law: DrawLaw, reference: Floats
) -> tuple[FloatArray, FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Return log r and kappa of classes, (n,), and what `relative_ratios` returns of slices."""
    with np.errstate(divide="ignore"):
        log_r = law.log_probs - np.log(law.drawn)
    contrast = np.zeros(len(log_r))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        columns = law.logits[part], log_r[part], law.q[part], law.drawn[part], law.probs[part]
        return relative_ratios(*columns, reference, contrast[part])

    return log_r, contrast, list(map_classes(work, len(log_r)))


def classes_of(law: DrawLaw, centres: Centres) -> Classes:
    """Find the ratios of the classes of a chunk around centres that are known."""
    log_r, contrast, _ = _ratios(law, centres.reference)
    return _with_ratios(centres, log_r, contrast)


def make_classes(law: DrawLaw) -> Classes:
    """Find the ratios of all classes and their centres."""
    deviations = Deviations(law)
    columns = deviations.add(law)
    return _with_ratios(deviations.finish(), *columns)


def _with_ratios(centres: Centres, log_r: FloatArray, contrast: FloatArray) -> Classes:
    of_law = centres.reference, centres.mean_deviation, centres.log_mean, centres.log_least
    of_ends = centres.near, centres.span, centres.least_drawn, centres.errors
    return Classes(*of_law, *of_ends, log_r, contrast)


@njit
def relative_ratios(
    logits: FloatArray,
    log_r: FloatArray,
    q: FloatArray,
    drawn: FloatArray,
    probs: FloatArray,
    reference: Floats,
    contrast: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Write kappa_j = (r_j - R) / (r_j + R) into `contrast` (n,), and return sums and extremes.

    `reference` are o, q and log r of the class whose ratio is R; classes with ``drawn == 0`` are
    passed over. The sums (6,) are sum_j drawn_j (r_j / R - 1), and for the errors of kappa: those
    of p and of 1 - kappa**2 times p, of classes near R and of others; the same of `drawn` with
    squares; and of kappa's size times p. The extremes (5,) are those of log r and of kappa, and
    what the class of the least ratio is drawn with.
    """
    o_ref, q_ref, log_ref = reference
    sums = np.zeros(6)
    ends = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])
    for j in range(len(logits)):
        if drawn[j] == 0.0:
            continue
        t = log_r[j] - log_ref
        d = deviation(t, logits[j], o_ref, q[j], q_ref)
        far = t >= LARGEST_EXPONENT
        kappa = 1.0 if far else d / (2.0 + d)
        contrast[j] = kappa
        sums[0] += math.exp(min(math.log(drawn[j]) + t, 709.0)) if far else drawn[j] * d
        # ratios near R that are not R itself are known by `DEVIATION_ERROR`, all others by their
        # logs, of which kappa has a part of (1 - kappa**2) / 2 from each
        size = abs(kappa)
        if size >= NEAR_REFERENCE:
            part = 1.0 - kappa * kappa
            sums[2] += part * probs[j]
            sums[4] += part * part * drawn[j]
        elif size > 0.0:
            sums[1] += probs[j]
            sums[3] += drawn[j]
        sums[5] += size * probs[j]
        if log_r[j] < ends[0]:
            ends[0], ends[4] = log_r[j], drawn[j]
        ends[1] = max(ends[1], log_r[j])
        ends[2], ends[3] = min(ends[2], kappa), max(ends[3], kappa)
    return sums, ends


@njit
def deviation(log_ratio: float, o: float, o_ref: float, q: float, q_ref: float) -> float:
    """Return r_j / r_ref - 1, given log(r_j / r_ref) to working precision.

    Where the two nearly agree, log r carries an absolute error of many ulps of the logits;
    there the deviation is computed again in double-double.
    """
    if abs(log_ratio) < _REFINE_BELOW:  # else the deviation has most of the digits of log r
        return _accurate_deviation(o, o_ref, q, q_ref)
    return math.expm1(min(log_ratio, 709.0))


@njit
def _two_sum(a: float, b: float) -> tuple[float, float]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit
def _two_product(a: float, b: float) -> tuple[float, float]:
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit
def _multiply(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    p, e = _two_product(a, b)
    e += a * b_low + a_low * b
    s = p + e
    return s, e - (s - p)


@njit
def _add(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    s, e = _two_sum(a, b)
    e += a_low + b_low
    t = s + e
    return t, e - (t - s)


@njit
def _exp(x: float, x_low: float) -> tuple[float, float, int]:
    """Return exp(x + x_low) = (high + low) * 2**k in double-double, |x| < 1400."""
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r, e = _two_sum(x, -k * _LN2_1)
    r, e2 = _two_sum(r, -k * _LN2_2)
    r, low = _two_sum(r, e + e2 - k * _LN2_3 + x_low)
    # exp of a 16th by its series, of which only the first terms need two numbers; then squared
    r *= 0.0625
    low *= 0.0625
    tail = 1.0 / 39916800.0 + r / 479001600.0
    for c in (1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0):
        tail = c + r * tail
    s, s_low = _two_sum(0.008333333333333333, r * tail)
    s_low += 1.1564823173178714e-19
    for c, c_low in _EXP_TERMS:
        s, s_low = _multiply(s, s_low, r, low)
        s, s_low = _add(s, s_low, c, c_low)
    for _ in range(4):
        s, s_low = _multiply(s, s_low, s, s_low)
    return s, s_low, k


@njit
def _accurate_deviation(o: float, o_ref: float, q: float, q_ref: float) -> float:
    """Return exp(o - o_ref) * q_ref / q - 1 to about 28 digits before the final subtraction."""
    x, x_low = _two_sum(o, -o_ref)
    high, low, k = _exp(x, x_low)
    f_ref, k_ref = math.frexp(q_ref)
    f, k_q = math.frexp(q)
    ratio = f_ref / f
    p, e = _two_product(ratio, f)
    ratio_low = ((f_ref - p) - e) / f
    high, low = _multiply(high, low, ratio, ratio_low)
    shift = int(k) + k_ref - k_q
    return (math.ldexp(high, shift) - 1.0) + math.ldexp(low, shift)


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
