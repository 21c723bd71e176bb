"""Searches of device arrays for what a function must refuse.

Each writes the place of the first offender to ``found[0]``, which holds a greater number before.
"""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    cuda,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_max,
    warp_sum,
)


@kernel
def find_outside(values: Any, least: Any, most: Any, found: Any) -> None:
    """Look for numbers (N,) that are not in [least, most], such as NaN, a thread for each."""
    i = thread_index()
    if i < values.shape[0] and not least <= values[i] <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def find_norm_outside(rows: Any, least: float, most: float, found: Any) -> None:
    """Look for rows (N, d) whose norm is not in [least, most], a warp for each row."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    square = 0.0
    for k in range(lane(), rows.shape[1], WARP_SIZE):
        square += float(rows[i, k]) * float(rows[i, k])
    square = warp_sum(square)
    if lane() == 0 and not least <= math.sqrt(square) <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def find_greatest_outside(rows: Any, least: float, most: float, found: Any) -> None:
    """Look for rows (N, d) whose greatest number is not between both, a warp for each row."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    largest = rows[i, 0]
    for k in range(lane(), rows.shape[1], WARP_SIZE):
        if not rows[i, k] < most:  # here, for `max` drops NaN
            cuda.atomic.min(found, 0, i)
        largest = max(largest, rows[i, k])
    largest = warp_max(largest)
    if lane() == 0 and not least < largest:
        cuda.atomic.min(found, 0, i)
