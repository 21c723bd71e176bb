"""Binary search on the device."""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import device_function


@device_function
def first_above(row: Any, target: Any, or_equal: bool) -> int:
    """Return the first place of rising numbers that is above `target`, or at it."""
    low, high = 0, row.shape[0]
    while low < high:
        middle = (low + high) // 2
        if row[middle] > target or (or_equal and row[middle] == target):
            high = middle
        else:
            low = middle + 1
    return low
