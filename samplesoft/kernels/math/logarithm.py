"""A ``log1p`` that a loop over an array computes several at a time."""

from __future__ import annotations

from samplesoft._jit import njit
from samplesoft._validation import FloatArray


@njit
def log1p_to(x: FloatArray) -> None:
    """Replace each of `x`, from -1/2 to 1, by ``log(1 + x)``.

    That is ``2 artanh z`` at ``z = x / (2 + x)``, at most 1/3 in size, by its series; small
    results keep their digits.
    """
    for i in range(len(x)):
        z = x[i] / (2.0 + x[i])
        s = z * z
        p = 1.0 / 31.0
        p = p * s + 1.0 / 29.0
        p = p * s + 1.0 / 27.0
        p = p * s + 1.0 / 25.0
        p = p * s + 1.0 / 23.0
        p = p * s + 1.0 / 21.0
        p = p * s + 1.0 / 19.0
        p = p * s + 1.0 / 17.0
        p = p * s + 1.0 / 15.0
        p = p * s + 1.0 / 13.0
        p = p * s + 1.0 / 11.0
        p = p * s + 1.0 / 9.0
        p = p * s + 1.0 / 7.0
        p = p * s + 1.0 / 5.0
        p = p * s + 1.0 / 3.0
        x[i] = 2.0 * z + 2.0 * z * (s * p)
