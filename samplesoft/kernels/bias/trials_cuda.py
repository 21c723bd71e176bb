"""Trials of sampled softmax on the device: those of `kernels.bias.trials`, a thread for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    for_device,
    kernel,
    lane,
    replaces,
    thread_index,
    warp_index,
    warp_sum,
)
from samplesoft._random import mix64
from samplesoft.kernels.bias import trials

_ONE = np.uint64(1)


@device_function
def _place(seen: Any, c: int) -> Any:
    """Return the place of a class in a hash set (2, places), or the empty one where it belongs.

    The first row holds classes, counted from 1, and the second how often each was counted.
    """
    last = np.int64(seen.shape[1] - 1)
    place = np.int64(np.uint64(mix64(np.uint64(c), _ONE)) & np.uint64(last))
    while seen[0, place] != 0 and seen[0, place] != c + 1:
        place = np.int64(place + 1) & last
    return place


@replaces(trials._count)
@device_function
def _count(seen: Any, c: int) -> int:
    """Count a class, as that of `trials`; there is no room for all n of each of many trials."""
    place = _place(seen, c)
    times: int = seen[1, place]
    seen[0, place], seen[1, place] = c + 1, times + 1
    return times


@replaces(trials._forget)
@device_function
def _forget(seen: Any, c: int) -> int:
    """Return how often a class has been counted; who is done with all empties the set."""
    times: int = seen[1, _place(seen, c)]
    return times


_draw_trial = for_device(trials.draw_trial)
_plain_trial = for_device(trials.plain_trial)
_jackknife_trial = for_device(trials.jackknife_trial)


@kernel
def run_trials(
    plan: Any, key: Any, first: int, center: Any, room: Any, losses: Any, classes: Any
) -> None:
    """Run trials from number `first` on, a thread for each of T, whose arrays lie on the device.

    `center` (n,) is what p' is compared with. `seen` (T, 2, places) holds zeros before and after;
    places are a power of two above the classes of a trial. `room` is that, with `ids`, `counts`,
    `values` and `rest` (T, capacity). Written are the sampled minus the full loss (T,), and for
    each of `classes` (T, capacity), n where there is none, p' minus the center in `values`.
    """
    t, (seen, ids, counts, values, rest) = thread_index(), room
    if t >= losses.shape[0]:
        return
    size = _draw_trial(plan, key, first + t, seen[t], ids[t], counts[t])
    for place in range(seen.shape[2]):
        seen[t, 0, place] = seen[t, 1, place] = 0
    if plan.jackknife:
        log_s = _jackknife_trial(plan, size, ids[t], counts[t], values[t], rest[t])
    else:
        log_s = _plain_trial(plan, size, ids[t], counts[t], values[t])
    losses[t] = log_s + plan.offset
    for k in range(classes.shape[1]):
        classes[t, k] = center.shape[0]
        if k < size:
            classes[t, k] = ids[t, k]
            values[t, k] -= center[ids[t, k]]


@kernel
def add_deviations(unique: Any, starts: Any, order: Any, deviations: Any, sums: Any) -> None:
    """Add to `sums` (n, 3) the sum, the sum of squares and the number of deviations of a class.

    ``order[starts[i]:starts[i + 1]]`` are their places for class ``unique[i]``, n for none; a
    warp for each class.
    """
    i = warp_index()
    if i >= unique.shape[0] or unique[i] >= sums.shape[0]:
        return
    stop = starts[i + 1] if i + 1 < starts.shape[0] else order.shape[0]
    total, square = 0.0, 0.0
    for at in range(starts[i] + lane(), stop, WARP_SIZE):
        d = deviations[order[at]]
        total += d
        square += d * d
    total, square = warp_sum(total), warp_sum(square)
    if lane() == 0:
        c = unique[i]
        sums[c, 0] += total
        sums[c, 1] += square
        sums[c, 2] += stop - starts[i]
