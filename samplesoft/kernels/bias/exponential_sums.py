"""Sums of exponentials, two at a time."""

from __future__ import annotations

from samplesoft._jit import njit_sum
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import exp64

_LARGEST = 700.0


@njit_sum
def exponential_sums(
    base: FloatArray, u: FloatArray, low: FloatArray, high: FloatArray, out: FloatArray
) -> None:
    """Write the sums of `low` and of `high` (K,) times exp(-u base) into `out` (2, k).

    Where u times the base, (k,), is above 700 it is taken for 700, and `low` for 0.
    """
    for i in range(len(base)):
        below = above = 0.0
        for k in range(len(u)):
            y = u[k] * base[i]
            e = exp64(-y if y < _LARGEST else -_LARGEST)
            below += low[k] * (e if y < _LARGEST else 0.0)
            above += high[k] * e
        out[0, i] = below
        out[1, i] = above
