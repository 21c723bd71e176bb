"""Trials of sampled softmax: each draws classes, forms p' on them, and adds to moments."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._random import mix64, uniform
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.alias import alias_draw


class Plan(NamedTuple):
    """One example and scheme, ready for trials; logits are shifted so that ``sum(exp) = 1``."""

    label: int
    num_draws: int
    stride: int  # words of the random stream per trial
    draws_cdf: FloatArray  # distribution of the number of draws from `num_draws` on, or empty
    thresholds: np.ndarray  # alias table (n,)
    alias: np.ndarray
    fixed: IntArray  # classes included in every trial
    log_weights: FloatArray  # weight of one draw (n,)
    weights: FloatArray  # its exponential, where `linear`
    log_base: float
    offset: float  # added to log S, gives the loss minus the full softmax loss
    linear: bool  # weights neither overflow nor vanish beside each other
    once: bool  # a class counts once however often it is drawn
    kept_only: bool  # draws of the label are dropped, and the weights divided by the number kept
    jackknife: bool


@njit
def _count_below(cdf: FloatArray, u: float) -> int:
    """Return how many of the rising numbers are at most `u`."""
    low, high = 0, len(cdf)
    while low < high:
        middle = (low + high) // 2
        if cdf[middle] <= u:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _count(seen: np.ndarray, c: int | np.int64) -> int:
    """Count a class in `seen` (n,); return how often it had been counted."""
    times: int = seen[c]
    seen[c] = times + 1
    return times


@njit
def _forget(seen: np.ndarray, c: int | np.int64) -> int:
    """Return how often a class has been counted, and set that to 0."""
    times: int = seen[c]
    seen[c] = 0
    return times


@njit
def draw_trial(
    plan: Plan, key: np.uint64, trial: int, seen: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> int:
    """Fill `ids` with the label and the distinct classes drawn, `counts` with how often each.

    `seen` is where `_count` counts; all is zero before and after.
    """
    ids[0] = plan.label
    size = 1
    for j in plan.fixed:
        ids[size] = j
        size += 1
    for k in range(size):
        _count(seen, ids[k])
    place = np.uint64(trial) * np.uint64(plan.stride)
    num_draws = plan.num_draws
    if len(plan.draws_cdf) > 0:
        num_draws += min(_count_below(plan.draws_cdf, uniform(key, place)), len(plan.draws_cdf) - 1)
    for i in range(num_draws):
        word = mix64(key, place + np.uint64(i + 1))
        j = alias_draw(word, plan.thresholds, plan.alias)
        # no branch on whether j is new, which would often be predicted wrongly
        ids[size] = j
        size += _count(seen, j) == 0
    for k in range(size):
        times = _forget(seen, ids[k])
        counts[k] = min(times, 1) if plan.once else times
    counts[0] -= 1
    return size


@njit
def plain_trial(
    plan: Plan, size: int, ids: np.ndarray, counts: np.ndarray, values: FloatArray
) -> float:
    """Fill `values` with p' on the listed classes; return log S."""
    top = 0.0
    total = 0.0
    if plan.linear:
        for k in range(size):
            values[k] = counts[k] * plan.weights[ids[k]]
            total += values[k]
    else:
        top = plan.log_base
        for k in range(size):
            if counts[k] > 0:
                top = max(top, plan.log_weights[ids[k]])
        for k in range(size):
            values[k] = 0.0
            if counts[k] > 0:
                values[k] = counts[k] * math.exp(plan.log_weights[ids[k]] - top)
                total += values[k]
    base = math.exp(plan.log_base - top)
    scale = 1.0
    if plan.kept_only:
        scale = 1.0 / max(plan.num_draws - counts[0], 1)
    total = base + scale * total
    scale /= total
    for k in range(size):
        values[k] *= scale
    values[0] += base / total
    return math.log(total) + top


@njit
def jackknife_trial(
    plan: Plan, size: int, ids: np.ndarray, counts: np.ndarray, values: FloatArray, rest: FloatArray
) -> float:
    """Fill `values` with the delete-one jackknife of p'; return that of log S.

    With S_k the sum without one draw of class k, the others rescaled by m / (m - 1), class j
    gets ``N_j w_j (sum_k N_k (1/S - 1/S_k) + 1/S_j)``, eq. (B30). Sums without a draw come from
    prefix and suffix sums, never from a subtraction. Draws of the label, if there are any, have no
    weight.
    """
    m = plan.num_draws
    ratio = m / (m - 1)
    if size == 1:  # the label alone
        values[0] = 1.0
        return plan.log_base
    heaviest = 1
    for k in range(2, size):
        if plan.log_weights[ids[k]] > plan.log_weights[ids[heaviest]]:
            heaviest = k
    top = max(plan.log_base, plan.log_weights[ids[heaviest]])
    base = math.exp(plan.log_base - top)
    drawn = 0.0
    for k in range(1, size):
        values[k] = math.exp(plan.log_weights[ids[k]] - top)  # weights for now
        rest[k] = drawn
        drawn += counts[k] * values[k]
    total = base + drawn
    suffix = 0.0
    for k in range(size - 1, 0, -1):
        rest[k] += suffix + (counts[k] - 1) * values[k]
        suffix += counts[k] * values[k]
    # a class drawn once may outweigh all others beyond the range of float64: leaving it out
    # needs its own scale
    lone = counts[heaviest] == 1
    without = base + ratio * drawn  # of a draw of the label
    gap = drawn / (m - 1)
    delta = counts[0] * gap / (total * without)
    inverse = counts[0] / without
    logs = -counts[0] * math.log1p(gap / total)
    for k in range(1, size):
        if lone and k == heaviest:
            continue
        without = base + ratio * rest[k]
        gap = (drawn - m * values[k]) / (m - 1)  # S_k - S
        delta += counts[k] * gap / (total * without)
        inverse += counts[k] / without
        logs -= counts[k] * math.log1p(gap / total)
        rest[k] = 1.0 / without
    common = delta
    label_value = base * (delta + inverse / m)
    if lone:
        second = plan.log_base
        for k in range(1, size):
            if k != heaviest:
                second = max(second, plan.log_weights[ids[k]])
        without = 0.0
        for k in range(1, size):
            if k != heaviest:
                without += counts[k] * math.exp(plan.log_weights[ids[k]] - second)
        without = math.exp(plan.log_base - second) + ratio * without
        common += 1.0 / total
        label_value += base / total
        label_value -= math.exp(plan.log_base - second) / (without * ratio)
        logs += math.log(total / without) + (top - second)
        rest[heaviest] = 0.0
        for k in range(1, size):
            values[k] *= counts[k] * (common + rest[k])
            if k != heaviest:
                values[k] -= counts[k] * math.exp(plan.log_weights[ids[k]] - second) / without
    else:
        for k in range(1, size):
            values[k] *= counts[k] * (common + rest[k])
    values[0] = label_value
    log_s: float = math.log(total) + top + logs / ratio
    return log_s


@njit
def merge_bins(
    size: int, ids: np.ndarray, values: FloatArray, bins: IntArray, bin_slot: np.ndarray
) -> int:
    """Replace classes by their bins in place, adding up the values within a bin."""
    merged = 0
    for k in range(size):
        b = bins[ids[k]]
        place = bin_slot[b]
        if place < 0:
            bin_slot[b] = merged
            ids[merged] = b
            values[merged] = values[k]
            merged += 1
        else:
            values[place] += values[k]
    for k in range(merged):
        bin_slot[ids[k]] = -1
    return merged


@njit
def run_block(
    plan: Plan,
    key: np.uint64,
    start: int,
    stop: int,
    bins: IntArray,
    center: FloatArray,
    projection: FloatArray,
    projection_center: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Run trials `start` to `stop`; the result does not depend on who runs the others.

    p' is compared with `center` (num_bins,), in `bins` (n,), of which there are none where each
    class is its own; its projection on `projection` (n, P) with `projection_center` (P,). Returns
    sums (num_bins, 4): the center, then over the trials that touch a bin sum of d = p' - center,
    sum of d**2, and their number; and moments (2, 1 + P): mean, and sum of squared deviations from
    it, of the loss difference and the projection.
    """
    n = len(plan.log_weights)
    num_projections = projection.shape[1]
    capacity = min(n, 1 + len(plan.fixed) + plan.stride) + 1
    seen = np.zeros(n, np.int32)
    bin_slot = np.full(len(center) if len(bins) > 0 else 0, -1, np.int32)
    ids = np.empty(capacity, np.int32)
    counts = np.empty(capacity, np.int32)
    values = np.empty(capacity)
    rest = np.empty(capacity if plan.jackknife else 0)
    sums = np.zeros((len(center), 4))  # the center beside its sums: one cache line
    sums[:, 0] = center
    moments = np.zeros((2, 1 + num_projections))
    x = np.empty(1 + num_projections)
    for trial in range(start, stop):
        size = draw_trial(plan, key, trial, seen, ids, counts)
        if plan.jackknife:
            log_s = jackknife_trial(plan, size, ids, counts, values, rest)
        else:
            log_s = plain_trial(plan, size, ids, counts, values)
        x[0] = log_s + plan.offset
        x[1:] = 0.0
        if num_projections > 0:
            for k in range(size):
                for i in range(num_projections):
                    x[1 + i] += values[k] * (projection[ids[k], i] - projection_center[i])
        for i in range(1 + num_projections):
            change = x[i] - moments[0, i]
            moments[0, i] += change / (trial - start + 1)
            moments[1, i] += change * (x[i] - moments[0, i])
        if len(bins) > 0:
            size = merge_bins(size, ids, values, bins, bin_slot)
        for k in range(size):
            b = ids[k]
            d = values[k] - sums[b, 0]
            sums[b, 1] += d
            sums[b, 2] += d * d
            sums[b, 3] += 1.0
    return sums, moments
