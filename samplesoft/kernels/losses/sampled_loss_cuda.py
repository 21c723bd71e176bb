"""Sampled softmax on the device: scores of labels and drawn classes, losses, and gradients.

Twins of `kernels.losses.candidate_scores`, `candidate_logits`, `softmax_terms` and `unit_rows`.
"""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_max,
    warp_sum,
)
from samplesoft.kernels.lanes_cuda import warp_dot
from samplesoft.kernels.losses.candidate_logits import gain_of_kept
from samplesoft.kernels.losses.softmax_terms import log_ratio


@kernel
def join(labels: Any, ids: Any, shared: bool, out: Any) -> None:
    """Write labels (B,) and drawn classes into `out`: (B, 1 + m) numbers, or (B + m) if shared."""
    place, num = thread_index(), ids.shape[1]
    if place >= out.shape[0]:
        return
    if shared:
        batch = labels.shape[0]
        out[place] = labels[place] if place < batch else ids[0, place - batch]
    else:
        b, k = place // (1 + num), place % (1 + num)
        out[place] = labels[b] if k == 0 else ids[b, k - 1]


@kernel
def divide_by_norms(rows: Any, norms: Any) -> None:
    """Divide each of `rows` (N, d) by its norm, unless that is 0 or not finite."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    greatest = 0.0
    for f in range(lane(), rows.shape[1], WARP_SIZE):
        size = abs(float(rows[i, f]))
        greatest = size if not size <= greatest else greatest
    greatest = warp_max(greatest)
    square = 0.0
    if 0.0 < greatest < math.inf:  # so that no square leaves the range
        for f in range(lane(), rows.shape[1], WARP_SIZE):
            part = float(rows[i, f]) / greatest
            square += part * part
        square = warp_sum(square)
        for f in range(lane(), rows.shape[1], WARP_SIZE):
            rows[i, f] = float(rows[i, f]) / greatest / math.sqrt(square)
    if lane() == 0:
        norms[i] = greatest * math.sqrt(square) if greatest < math.inf else greatest


@kernel
def unit_gradient(d_unit: Any, unit: Any, norms: Any) -> None:
    """Turn `d_unit` (N, d), the derivative in ``x / |x|``, into that in x, a warp for each row."""
    i = warp_index()
    if i >= unit.shape[0]:
        return
    along = 0.0
    for f in range(lane(), unit.shape[1], WARP_SIZE):
        along += float(unit[i, f]) * float(d_unit[i, f])
    along = warp_sum(along)
    for f in range(lane(), unit.shape[1], WARP_SIZE):
        d_unit[i, f] = (float(d_unit[i, f]) - along * float(unit[i, f])) / norms[i]


@device_function
def entry(b: int, k: int, shape: tuple[int, int], shared: bool) -> int:
    """Return where `join` wrote the class of score (b, k) of a matrix of `shape`."""
    if not shared:
        return b * shape[1] + k
    return b if k == 0 else shape[0] + k - 1


@kernel
def score(z: Any, block: Any, biases: Any, places: Any, shared: bool, scores: Any) -> None:
    """Write scores (B, 1 + m) of the classes whose rows stand at `places`, a warp for each.

    `places` are one after another as `join` wrote their classes; `biases` may be empty.
    """
    num = scores.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= scores.shape[0]:
        return
    place = places[entry(b, k, scores.shape, shared)]
    product = warp_dot(z[b], block[place])
    if lane() == 0:
        scores[b, k] = product + biases[place] if biases.shape[0] else product


@device_function
def sign(x: float) -> float:
    """Return 1, -1, or 0 for 0."""
    return 1.0 if x > 0.0 else -1.0 if x < 0.0 else 0.0


@kernel
def softmax_rows(
    scores: Any,
    ids: Any,
    log_q: Any,
    log_m: float,
    labels: Any,
    label_counts: Any,
    adjusts: bool,
    counted: bool,
    kept: bool,
    absolute: bool,
    losses: Any,
    hits: Any,
) -> None:
    """Write the loss (B,) of each example and how many draws are of its label; a warp for each.

    Scores (B, 1 + m) become derivatives. `adjusts`, `counted` and `kept` say how draws of the
    label are treated, as `losses.sampled.Scheme` does; `label_counts` (B,) may be empty.
    """
    b, m = warp_index(), ids.shape[1]
    if b >= scores.shape[0]:
        return
    row = b if ids.shape[0] > 1 else 0
    found, unsound = 0, 0 if abs(scores[b, 0]) < math.inf else 1
    for k in range(lane(), m, WARP_SIZE):
        found += 1 if ids[row, k] == labels[b] else 0
        unsound += 0 if abs(scores[b, 1 + k]) < math.inf else 1
    found, unsound = warp_sum(found), warp_sum(unsound)
    shift = log_m
    if counted:
        shift -= gain_of_kept(m, found, label_counts[b])
    own = abs(float(scores[b, 0])) if absolute else float(scores[b, 0])
    if adjusts:
        own -= label_counts[b]
    greatest = own
    for k in range(lane(), m, WARP_SIZE):
        if kept or ids[row, k] != labels[b]:
            value = abs(float(scores[b, 1 + k])) if absolute else float(scores[b, 1 + k])
            greatest = max(greatest, value - log_q[row, k] - shift)
    greatest = warp_max(greatest)
    drawn = 0.0
    for k in range(lane(), m, WARP_SIZE):
        if kept or ids[row, k] != labels[b]:
            value = abs(float(scores[b, 1 + k])) if absolute else float(scores[b, 1 + k])
            drawn += math.exp(value - log_q[row, k] - shift - greatest)
    drawn = warp_sum(drawn)
    weight = math.exp(own - greatest)
    total = weight + drawn
    for k in range(lane(), m, WARP_SIZE):
        given = float(scores[b, 1 + k])
        slope = 0.0
        if kept or ids[row, k] != labels[b]:
            value = abs(given) if absolute else given
            slope = math.exp(value - log_q[row, k] - shift - greatest) / total
        scores[b, 1 + k] = slope * sign(given) if absolute else slope
    if lane() == 0:
        slope = -drawn / total
        scores[b, 0] = slope * sign(float(scores[b, 0])) if absolute else slope
        losses[b] = log_ratio(weight, drawn, greatest - own) if unsound == 0 else math.nan
        hits[b] = found


@kernel
def weighted_sum(values: Any, weights: Any, out: Any) -> None:
    """Write the sum of ``values * weights`` (N,) to ``out[0]`` and that of weights to ``out[1]``.

    For one warp.
    """
    if warp_index() > 0:
        return
    total, weight = 0.0, 0.0
    for i in range(lane(), values.shape[0], WARP_SIZE):
        total += values[i] * weights[i]
        weight += weights[i]
    total, weight = warp_sum(total), warp_sum(weight)
    if lane() == 0:
        out[0], out[1] = total, weight


@kernel
def multiply(values: Any, factors: Any) -> None:
    """Multiply `values` (N,) by `factors` (N,), a thread for each."""
    i = thread_index()
    if i < values.shape[0]:
        values[i] *= factors[i]


@kernel
def context_sums(
    d_scores: Any, block: Any, places: Any, shared: bool, weights: Any, dz: Any
) -> None:
    """Write the gradient (B, d) in the contexts, a warp for each."""
    b, (batch, num) = warp_index(), d_scores.shape
    if b >= batch:
        return
    for f in range(lane(), dz.shape[1], WARP_SIZE):
        total = dz.dtype.type(0)
        for k in range(num):
            place = places[entry(b, k, d_scores.shape, shared)]
            total += d_scores[b, k] * block[place, f]
        dz[b, f] = total * weights[b]


@kernel
def class_sums(
    d_scores: Any,
    z: Any,
    order: Any,
    starts: Any,
    shared: bool,
    weights: Any,
    d_block: Any,
    d_biases: Any,
) -> None:
    """Write the gradient (k, d) in the rows of the block, and in biases (k,), if there are any.

    ``order[starts[i]:starts[i + 1]]`` are the places of class i as `join` wrote them; a warp for
    each class, which adds in the order of the examples.
    """
    i, (batch, num) = warp_index(), d_scores.shape
    if i >= starts.shape[0]:
        return
    stop = starts[i + 1] if i + 1 < starts.shape[0] else order.shape[0]
    for f in range(lane(), d_block.shape[1], WARP_SIZE):
        total = d_block.dtype.type(0)
        for at in range(starts[i], stop):
            place = order[at]
            if not shared:
                b, k = place // num, place % num
                total += d_scores[b, k] * weights[b] * z[b, f]
            elif place < batch:
                total += d_scores[place, 0] * weights[place] * z[place, f]
            else:
                for b in range(batch):
                    total += d_scores[b, place - batch + 1] * weights[b] * z[b, f]
        d_block[i, f] = total
    if d_biases.shape[0] and lane() == 0:
        total = 0.0
        for at in range(starts[i], stop):
            place = order[at]
            if not shared:
                b, k = place // num, place % num
                total += d_scores[b, k] * weights[b]
            elif place < batch:
                total += d_scores[place, 0] * weights[place]
            else:
                for b in range(batch):
                    total += d_scores[b, place - batch + 1] * weights[b]
        d_biases[i] = total
