"""Trials of sampled softmax on the device: those of `kernels.trials`, a thread for each."""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import LANES, group_place, group_sum, kernel, lane, thread_place, twin
from samplesoft.kernels import trials
from samplesoft.kernels.static_cuda import alias_draw

_draw_trial = twin(trials.draw_trial, alias_draw=alias_draw, _count_below=twin(trials._count_below))
_plain_trial = twin(trials.plain_trial)
_jackknife_trial = twin(trials.jackknife_trial)


@kernel
def run_trials(
    plan: Any,
    key: Any,
    first: int,
    center: Any,
    seen: Any,
    ids: Any,
    counts: Any,
    values: Any,
    rest: Any,
    losses: Any,
    classes: Any,
) -> None:
    """Run trials from number `first` on, a thread for each.

    Parameters
    ----------
    plan : Plan
        The example, with its arrays on the device.
    key : uint64
        Of the stream.
    first : int
        Number of the first trial.
    center : device array, shape (n,)
        What p' is compared with.
    seen : device array of int32, shape (T, n)
        Zeros, before and after.
    ids, counts, values, rest : device arrays, shape (T, capacity)
        Room to work in; `values` holds p' minus the center afterwards.
    losses : device array, shape (T,)
        Output: sampled minus full softmax loss.
    classes : device array of int64, shape (T, capacity)
        Output: the classes that `values` belong to; n where there is none.
    """
    t = thread_place()
    if t >= losses.shape[0]:
        return
    size = _draw_trial(plan, key, first + t, seen[t], ids[t], counts[t])
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
def add_moments(unique: Any, starts: Any, order: Any, deviations: Any, sums: Any) -> None:
    """Add to `sums` (n, 3) the sum, the sum of squares and the number of deviations of a class.

    ``order[starts[i]:starts[i + 1]]`` are their places for class ``unique[i]``, n for none; a
    group for each class.
    """
    i = group_place()
    if i >= unique.shape[0] or unique[i] >= sums.shape[0]:
        return
    stop = starts[i + 1] if i + 1 < starts.shape[0] else order.shape[0]
    total, square = 0.0, 0.0
    for at in range(starts[i] + lane(), stop, LANES):
        d = deviations[order[at]]
        total += d
        square += d * d
    total, square = group_sum(total), group_sum(square)
    if lane() == 0:
        c = unique[i]
        sums[c, 0] += total
        sums[c, 1] += square
        sums[c, 2] += stop - starts[i]
