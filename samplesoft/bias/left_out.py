"""Kernels of sums over draws of which one or two are left out, eqs. (B75) to (B77)."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.bias.laplace import _decay_ratio, tangent

_SERIES = 1.0  # up to here the divided difference is summed as a series of positive terms
_TERMS = 20
_GONE = 745.0
_FLAT = 1e-17  # below it k is its first order in x to the last bit
_FAR = 1e20  # above it k is nothing beside terms with one draw left out, times x too


@njit
def once(x: FloatArray) -> FloatArray:
    """Return (1 - (1 + x) exp(-x)) / x for each x (K, A)."""
    out = np.empty_like(x)
    for k in range(x.shape[0]):
        for i in range(x.shape[1]):
            at = x[k, i]  # whose square may overflow
            out[k, i] = at * tangent(at) if at < 1.0 else (1.0 - (1.0 + at) * math.exp(-at)) / at
    return out


@njit
def twice(x: FloatArray) -> FloatArray:
    """Return (x - 2 + (x + 2) exp(-x)) / x for each x (K, A)."""
    out = np.empty_like(x)
    for k in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[k, i] = _twice(x[k, i])
    return out


@njit
def _twice(x: float) -> float:
    if x >= 1.0:
        return (x - 2.0 + (x + 2.0) * math.exp(-x)) / x
    total, term = 0.0, x * x / 6.0
    for k in range(3, 22):
        total += (k - 2) * term
        term *= x / (k + 1)
    return total * math.exp(-x)


@njit
def pair_sums(
    x: FloatArray, q: FloatArray, linear: FloatArray, gram: FloatArray, factors: FloatArray
) -> FloatArray:
    """Sum over ordered pairs of atoms the kernel k of (B77), at each node (K,).

    k is multiplied by ``f0 q_i q_j + f1 (l_i q_j + l_j q_i) + f2 x_i x_j g_ij``, with `factors`
    (K, 3), `linear` l (K, A), and `gram` g (A, A); `x` (K, A) = v w rises along the atoms.
    """
    num, count = x.shape
    out = np.zeros(num)
    decay, first, second = np.empty(count), np.empty(count), np.empty(count)
    for k in range(num):
        f0, f1, f2 = factors[k, 0], factors[k, 1], factors[k, 2]
        if f0 == 0.0 and f1 == 0.0 and f2 == 0.0:
            continue
        stop = count
        while stop > 0 and x[k, stop - 1] > _FAR:
            stop -= 1
        for i in range(stop):
            decay[i] = math.exp(-x[k, i])
            first[i] = _decay_ratio(x[k, i])
            second[i] = tangent(x[k, i])
        total = flat_q = flat_l = 0.0
        flat = 0
        while flat < stop and x[k, flat] < _FLAT:
            flat_q += x[k, flat] * q[flat]
            flat_l += x[k, flat] * linear[k, flat]
            flat += 1
        total += (f0 * flat_q + 2.0 * f1 * flat_l) * flat_q / 6.0
        for j in range(flat, stop if flat > 0 else 0):
            b = x[k, j]
            first_order = second[j] - 0.5 * decay[j]
            if b < _SERIES:
                first_order = b * decay[j] * _series(0.0, b)
            part = f0 * flat_q * q[j] + f1 * (flat_l * q[j] + flat_q * linear[k, j])
            total += 2.0 * first_order * part
        for i in range(flat, stop):
            a = x[k, i]
            if a > _GONE:
                break
            own, a_q, a_l = 0.0, f0 * q[i] + f1 * linear[k, i], f1 * q[i]
            for j in range(i, stop):
                b = x[k, j]
                if b < _SERIES:
                    value = a * b * decay[i] * decay[j] * _series(a, b)
                else:
                    away = b - a
                    if away < 1.0:
                        both = decay[i] * _decay_ratio(away)
                    else:
                        both = (decay[i] - decay[j]) / away
                    value = a * ((both - decay[j] * first[i]) / b - decay[j] * second[i])
                part = value * (a_q * q[j] + a_l * linear[k, j] + f2 * a * b * gram[i, j])
                own += part if j == i else 2.0 * part
            total += own
        out[k] = total
    return out


@njit
def _series(a: float, b: float) -> float:
    """Return the sum of h_k / (k + 3)!, h_k the sum of a**i b**(k - i), for 0 <= a <= b < 1."""
    h = power = 1.0
    factorial = 1.0 / 6.0
    total = factorial
    for k in range(1, _TERMS):
        power *= a
        h = b * h + power
        factorial /= k + 3.0
        term = h * factorial
        total += term
        if term < 1e-17:
            break
    return total
