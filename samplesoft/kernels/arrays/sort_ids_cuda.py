"""Equal ids brought together on the device: a stable sort by digits, and the runs it leaves."""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_sum,
    warp_sum_before,
)

DIGITS = 16
IDS_EACH = 32  # ids that a thread brings into order one after another
PART = 32 * WARP_SIZE  # numbers that a warp sums


@kernel
def count_digits(ids: Any, divisor: int, counts: Any) -> None:
    """Write how often each digit occurs among the ids (k,) of each thread, (DIGITS, threads)."""
    t = thread_index()
    if t >= counts.shape[1]:
        return
    for digit in range(DIGITS):
        counts[digit, t] = 0
    for i in range(t * IDS_EACH, min((t + 1) * IDS_EACH, ids.shape[0])):
        counts[ids[i] // divisor % DIGITS, t] += 1


@kernel
def sum_before(values: Any, totals: Any) -> None:
    """Replace each of `values` (N,) by the sum of those before it in its part, of `PART` numbers.

    `totals` gets the sum of each part; a warp for each.
    """
    part = warp_index()
    if part >= totals.shape[0]:
        return
    total = 0
    for start in range(part * PART, min((part + 1) * PART, values.shape[0]), WARP_SIZE):
        i = start + lane()
        value = values[i] if i < values.shape[0] else 0
        before = warp_sum_before(value)
        if i < values.shape[0]:
            values[i] = total + before
        total += warp_sum(value)
    if lane() == 0:
        totals[part] = total


@kernel
def add_parts(before: Any, values: Any) -> None:
    """Add to each of `values` (N,) what comes before its part, a thread for each."""
    i = thread_index()
    if i < values.shape[0]:
        values[i] += before[i // PART]


@kernel
def move_by_digit(
    ids: Any, order: Any, divisor: int, places: Any, new_ids: Any, new_order: Any
) -> None:
    """Move ids, and what goes with them, to the places from which their digits begin."""
    t = thread_index()
    if t >= places.shape[1]:
        return
    for i in range(t * IDS_EACH, min((t + 1) * IDS_EACH, ids.shape[0])):
        digit = ids[i] // divisor % DIGITS
        place = places[digit, t]
        places[digit, t] = place + 1
        new_ids[place], new_order[place] = ids[i], order[i]


@kernel
def count_up(order: Any) -> None:
    """Write 0, 1, 2 ... into `order` (k,)."""
    i = thread_index()
    if i < order.shape[0]:
        order[i] = i


@kernel
def mark_firsts(ids: Any, divisor: int, firsts: Any) -> None:
    """Write 1 where the quotient of a sorted id differs from that before it, else 0."""
    i = thread_index()
    if i < ids.shape[0]:
        firsts[i] = 1 if i == 0 or ids[i - 1] // divisor != ids[i] // divisor else 0


@kernel
def write_runs(ids: Any, divisor: int, places: Any, values: Any, starts: Any) -> None:
    """Write the quotient (U,) and the start (U,) of each run of sorted ids (k,).

    `places` holds how many runs begin before each of the ids.
    """
    i = thread_index()
    if i < ids.shape[0] and (i == 0 or ids[i - 1] // divisor != ids[i] // divisor):
        values[places[i]], starts[places[i]] = ids[i] // divisor, i


@kernel
def last_of_runs(starts: Any, values: Any, out: Any) -> None:
    """Write into `out` (U,) the last of each run of `values` (k,), which begin at `starts`."""
    i = thread_index()
    if i < starts.shape[0]:
        stop = starts[i + 1] if i + 1 < starts.shape[0] else values.shape[0]
        out[i] = values[stop - 1]


@kernel
def write_inverse(ids: Any, order: Any, places: Any, inverse: Any) -> None:
    """Write for each place in what was sorted the number of its run, as `write_runs` has it."""
    i = thread_index()
    if i < ids.shape[0]:
        is_first = i == 0 or ids[i - 1] != ids[i]
        inverse[order[i]] = places[i] if is_first else places[i] - 1
