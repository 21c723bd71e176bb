"""What one draw is: the law of each scheme, and the ratios of the classes that are drawn.

`DrawLaw` puts every scheme with replacement into one form, a base mass and independent draws with
ratios r, eq. (B1). `Classes` measures the ratios from three centres. Below them are the kernels
that tell two ratios apart where these nearly agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels import panels
from samplesoft.schemes import Scheme

CLASS_CHUNK = 1 << 16
_DIGITS_OF_KAPPA = 0.3  # of kappa: below it, it has more digits than a difference of logs
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
# 1/4!, 1/3!, 1/2, 1 and 1, each with what it is off by
_QUARTIC, _CUBIC = (0.041666666666666664, 2.3129646346357427e-18), (1.0 / 6.0, 9.25185853854297e-18)
_EXP_TERMS = _QUARTIC, _CUBIC, (0.5, 0.0), (1.0, 0.0), (1.0, 0.0)


@dataclass
class DrawLaw:
    """S = base + (1/m) * (sum of m iid ratios r), in units where Z = 1; eq. (B1) of README.md here.

    Where a scheme divides by the K draws that are kept, 1/K takes the place of 1/m.
    """

    scheme: Scheme
    num_draws: int  # m
    logits: FloatArray  # (n,) as given
    q: FloatArray  # (n,) as given
    log_probs: FloatArray  # (n,) log e_j for Z = 1, the full softmax
    probs: FloatArray  # (n,)
    drawn: FloatArray  # (n,) probability in a draw that has a ratio; 0 where it is never drawn
    weightless: float  # probability of a draw that adds nothing to S (the masked label)
    log_base: float  # of the base mass; -inf for none
    mean: float  # of r over a draw
    other_mass: float  # softmax mass of the classes other than the label, without cancellation
    label: int
    label_draw: float  # probability that one draw from q is the label
    other_draw: float  # and that it is not

    @property
    def expected_sum(self) -> float:
        """E[S]."""
        return float(np.exp(self.log_base)) + self.mean

    @property
    def base_logs(self) -> FloatArray:
        """The logs that the base mass is made of, (k,); none where there is no base mass."""
        logs = [self.log_probs[self.label]] if self.scheme.label_in_sum else []
        if self.scheme.corrects_label:
            logs += [np.log(self.num_draws), np.log(self.label_draw)]
        return np.array(logs)


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the log-softmax of `logits` (n,)."""
    with np.errstate(over="ignore"):
        shifted: FloatArray = np.maximum(logits - logits.max(), -1e300)
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
    log_probs, probs, other_mass = softmax_apart(logits, label)
    drawn = q.copy()
    drawn[label] = 0.0
    others = float(drawn.sum())
    label_draw = float(q[label]) / (others + float(q[label]))
    weightless, mean = 0.0, other_mass
    if scheme.excludes_label or scheme.divides_by_kept:
        drawn /= others if others > 0.0 else 1.0
    else:
        drawn /= others + q[label]
        if scheme.draws_label:
            drawn[label], mean = label_draw, 1.0
        else:
            weightless = label_draw
    log_base = float(log_probs[label]) if scheme.label_in_sum else -np.inf
    if scheme.corrects_label:
        log_base = log_base - np.log(m) - np.log(label_draw)
    columns = logits, q, log_probs, probs, drawn
    other_draw = others / (others + float(q[label]))
    facts = weightless, log_base, mean, other_mass
    return DrawLaw(scheme, m, *columns, *facts, label, label_draw, other_draw)


@dataclass
class Classes:
    """The ratios r of the classes, (n,), and their three centres: R, the mean of r, and r0."""

    log_r: FloatArray
    contrast: FloatArray  # kappa = (r - R) / (r + R)
    reference: int  # the class whose ratio is R
    log_ref: float  # log R
    mean_deviation: float  # mean / R - 1
    log_mean: float  # of the mean of r over a draw
    log_least: float  # log r0, which no ratio lies below

    @property
    def kappa_mean(self) -> float:
        """(mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @cached_property
    def log_distances(self) -> FloatArray:
        """Log (r / R), (n,); where all ratios are near R, with the digits of kappa."""
        if np.abs(self.contrast).max() < _DIGITS_OF_KAPPA:
            return 2.0 * np.arctanh(self.contrast)
        return self.log_r - self.log_ref

    @property
    def log_mean_distance(self) -> float:
        """Log (mean / R)."""
        if abs(self.mean_deviation) < _DIGITS_OF_KAPPA:
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


def make_classes(law: DrawLaw) -> Classes:
    """Find the ratios and the reference class, the softmax-weighted median of the ratios.

    Measured from the median, the sizes of the flows (B6) add up to no more than the L1 norm of the
    bias in case (B9), so nothing cancels there.
    """
    active = law.drawn > 0.0
    with np.errstate(divide="ignore"):
        log_r = law.log_probs - np.log(law.drawn)
    masses = np.where(active, law.probs, 0.0)
    if not masses.any():  # every drawn class underflows: rank them by their logs
        shift = law.log_probs[active].max()
        masses[active] = np.exp(law.log_probs[active] - shift)
    reference = weighted_median(log_r, masses)
    contrast = np.zeros(len(log_r))

    def work(part: slice) -> float:
        return relative_ratios(
            law.logits, log_r, law.q, law.drawn, reference, contrast, part.start, part.stop
        )

    parts = thread_map(work, chunks(len(log_r), CLASS_CHUNK))
    # a draw without weight has r = 0, and so r / R - 1 = -1
    mean_deviation, log_ref = sum(parts) - law.weightless, float(log_r[reference])
    if mean_deviation > -0.5:
        log_mean = log_ref + math.log1p(mean_deviation)
    else:  # far below R the sum has cancelled, while the mean itself is known
        log_mean = float(np.log(law.mean))
    classes = Classes(log_r, contrast, reference, log_ref, mean_deviation, log_mean, -np.inf)
    if law.weightless:
        return classes
    # r0 is a panel's edge: no Chebyshev atom lies below it, nor any class by its distance
    steps = math.floor(float(classes.log_distances[active].min()) / panels.WIDTH)
    classes.log_least = log_ref + panels.WIDTH * steps
    return classes


@njit
def relative_ratios(
    logits: FloatArray,
    log_r: FloatArray,
    q: FloatArray,
    drawn: FloatArray,
    reference: int,
    contrast: FloatArray,
    start: int,
    stop: int,
) -> float:
    """Write (r_j - R) / (r_j + R) into `contrast` (n,) and return sum_j drawn_j (r_j / R - 1).

    R is r of the class `reference`; of the classes from `start` to `stop`, those with
    ``drawn == 0`` are passed over.
    """
    o_ref = logits[reference]
    q_ref = q[reference]
    log_ref = log_r[reference]
    mean = 0.0
    for j in range(start, stop):
        if drawn[j] == 0.0:
            continue
        t = log_r[j] - log_ref
        d = deviation(t, logits[j], o_ref, q[j], q_ref)
        contrast[j] = d / (2.0 + d) if t < LARGEST_EXPONENT else 1.0
        mean += (
            drawn[j] * d if t < LARGEST_EXPONENT else math.exp(min(math.log(drawn[j]) + t, 709.0))
        )
    return mean


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


@njit
def _histogram(
    values: FloatArray, weights: FloatArray, low: float, high: float
) -> tuple[NDArray[np.int16], FloatArray]:
    """Return the bin of each value from `low` to `high`, and what those of each bin weigh."""
    places, masses = np.empty(len(values), np.int16), np.zeros(_BINS)
    for j in range(len(values)):
        b = int((values[j] - low) / (high - low) * (_BINS - 1))
        places[j] = b
        masses[b] += weights[j]
    return places, masses


def weighted_median(values: FloatArray, weights: FloatArray) -> int:
    """Return the index of a weighted median of `values`, entries of weight 0 left out.

    Of equal values the heaviest wins. Of many a histogram leaves few to be sorted.
    """
    ids = (weights > 0.0).nonzero()[0]
    if len(ids) < len(weights):
        values, weights = values[ids], weights[ids]
    half, below = 0.5 * float(weights.sum()), 0.0
    if len(ids) > _BINS and (low := values.min()) < (high := values.max()):
        places, masses = _histogram(values, weights, low, high)
        masses = masses.cumsum()
        chosen = min(int(masses.searchsorted(half)), _BINS - 1)
        below = float(masses[chosen - 1]) if chosen > 0 else 0.0
        inside = (places == chosen).nonzero()[0]
        ids, values, weights = ids[inside], values[inside], weights[inside]
    order = values.argsort(kind="stable")
    place = (below + weights[order].cumsum()).searchsorted(half)
    equal = (values == values[order[min(int(place), len(order) - 1)]]).nonzero()[0]
    return int(ids[equal[weights[equal].argmax()]])
