"""The Laplace sums for classes that are included independently of each other.

The atoms, classes or Chebyshev nodes that stand for many, are sorted by log w. At a node u those
with u w near 0 are known by their moments, and of those with large u w nothing changes any more:
only the atoms between are gone through, in blocks that the compiler turns into vector code.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import (
    decay_ratio_series,
    exp64,
    log_from_both,
    second_order_series,
)

_FLAT = -38.0  # below this log y, exp(-y) is 1 - y to the last bit
_GONE = 6.7  # above it exp(-y) is 0
_BLOCK = 512
_SERIES = 0.5  # up to this y, 1 - exp(-y) is taken from its series
_CLOSE = 0.1  # and up to this one log f + pi y
_LIKELY = 40.0  # up to it the same sum of a class with pi above 1/2 is taken around exp(-y)


@njit
def _write_factors(
    x: float, log_w: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> None:
    """Write y = u w, f of (B26), and z = f - 1 of a block of atoms."""
    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])
    for i in range(len(log_w)):
        e = exp64(-y[i])
        t = y[i] if y[i] < _SERIES else _SERIES
        series = second_order_series(t) * t * t - t
        z[i] = pi[i] * (series if y[i] < _SERIES else e - 1.0)
        f[i] = (1.0 - pi[i]) + pi[i] * e


@njit
def _log_less_linear(z: float) -> float:
    """Return log(1 + z) - z for z from -1/10 to 1/10, by a series in q = z / (2 + z)."""
    q = z / (2.0 + z)
    s = q * q
    p = 1.0 / 15.0
    p = p * s + 1.0 / 13.0
    p = p * s + 1.0 / 11.0
    p = p * s + 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return 2.0 * q * (s * p) - z * q


@njit
def _excess_of_likely(rest: float, y: float) -> float:
    """Return log f + pi y of a class with pi = 1 - rest near 1.

    f is exp(-y) times 1 + rest (exp(y) - 1), and what it has beyond exp(-y) is small.
    """
    if y < _CLOSE:
        linear = _log_less_linear(rest * math.expm1(y))
        return linear + rest * (second_order_series(-y) * y * y)
    return math.log1p(rest * math.expm1(y)) - rest * y


@njit
def _add_logs(
    counts: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> tuple[float, float]:
    """Return the sums of log f and of log f + pi y over a block, times `counts`."""
    for i in range(len(counts)):
        f[i] = log_from_both(z[i], f[i])
    for i in range(len(counts)):
        t = y[i] if y[i] < _CLOSE else _CLOSE
        close = _log_less_linear(z[i]) + pi[i] * (second_order_series(t) * t * t)
        far = f[i] + pi[i] * y[i]
        z[i] = close if y[i] < _CLOSE else far
    for i in range(len(counts)):
        if pi[i] > 0.5 and y[i] < _LIKELY:
            z[i] = _excess_of_likely(1.0 - pi[i], y[i])
    total = excess = 0.0
    for i in range(len(counts)):
        total += counts[i] * f[i]
        excess += counts[i] * z[i]
    return total, excess


@njit
def log_products(
    x: FloatArray, log_w: FloatArray, pi: FloatArray, counts: FloatArray, out: FloatArray
) -> None:
    """Write the sum of log f and that plus u sum pi w into `out` (K, 2), at each log u, `x` (K,).

    The atoms (A,) are sorted by `log_w`, with `pi` between 0 and 1; `counts` says how many classes
    each stands for.
    """
    size = len(log_w)
    first, second = np.empty(size + 1), np.empty(size + 1)  # moments of all below, over their last
    first[0] = second[0] = 0.0
    for i in range(size):
        down = math.exp(log_w[i - 1] - log_w[i]) if i > 0 else 0.0
        own = counts[i] * pi[i]
        first[i + 1] = first[i] * down + own
        second[i + 1] = second[i] * down * down + own * (1.0 - pi[i])
    left, mass = np.empty(size + 1), np.empty(size + 1)  # of all above
    left[size] = mass[size] = 0.0
    for i in range(size - 1, -1, -1):
        left[i] = left[i + 1] + counts[i] * math.log1p(-pi[i])
        mass[i] = mass[i + 1] + counts[i] * math.exp(log_w[i] + math.log(pi[i]))
    y, f, z = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for k in range(len(x)):
        flat = np.searchsorted(log_w, _FLAT - x[k])
        gone = np.searchsorted(log_w, _GONE - x[k])
        total = left[gone]
        excess = left[gone] + math.exp(min(x[k], LARGEST_EXPONENT)) * mass[gone]
        if flat > 0:
            last = math.exp(x[k] + log_w[flat - 1])
            total -= last * first[flat]
            excess += 0.5 * last * last * second[flat]
        for start in range(flat, gone, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            length = part.stop - part.start
            room = y[:length], f[:length], z[:length]
            _write_factors(x[k], log_w[part], pi[part], *room)
            logs, above = _add_logs(counts[part], pi[part], *room)
            total += logs
            excess += above
        out[k, 0] = total
        out[k, 1] = excess


@njit
def _add_terms(
    x: float,
    scale: float,
    half: float,
    y_ref: float,
    log_w: FloatArray,
    pi: FloatArray,
    kappa: FloatArray,
    deviation: FloatArray,
    room: FloatArray,
    full_a: FloatArray,
    full_b: FloatArray,
    half_a: FloatArray,
    half_b: FloatArray,
) -> None:
    """Add the terms of one node to the integrals of a block; `room` (2, block)."""
    y, e = room[0], room[1]
    e_ref, drop_ref = math.exp(-y_ref), math.expm1(-y_ref)
    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])
        e[i] = exp64(-y[i])
    for i in range(len(log_w)):
        away = y_ref * deviation[i] if abs(deviation[i]) < 1.0 else y[i] - y_ref
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        close = -e_ref * (y[i] + y_ref) * decay_ratio_series(near)
        far = (e[i] - e_ref) / kappa[i]
        over_f = y[i] / ((1.0 - pi[i]) + pi[i] * e[i])
        first = over_f * (close if near == away else far)
        second = over_f * drop_ref * e[i]
        full_a[i] += scale * first
        full_b[i] += scale * second
        half_a[i] += half * first
        half_b[i] += half * second


@njit
def atom_integrals(
    x: FloatArray,
    weights: FloatArray,
    log_w: FloatArray,
    pi: FloatArray,
    kappa: FloatArray,
    deviation: FloatArray,
    log_w_ref: float,
    pi_ref: float,
    out: FloatArray,
) -> None:
    """Integrate A and B of (B43) over the nodes log u, `x` (K,), at each atom, into `out` (4, A).

    The last two rows are the same from every second node. The atoms are sorted by `log_w`; `kappa`
    is (w - W) / (w + W) with W = exp(log_w_ref), and `deviation` w / W - 1, of which only those
    below 1 in size are used. The label as the reference has ``log_w_ref = -inf``.
    """
    num, size = len(x), len(log_w)
    room = np.empty((2, _BLOCK))
    scales, y_refs = np.empty(num), np.empty(num)
    for k in range(num):
        y_refs[k] = math.exp(min(x[k] + log_w_ref, LARGEST_EXPONENT))
        scales[k] = weights[k] / ((1.0 - pi_ref) + pi_ref * math.exp(-y_refs[k]))
    # what nodes from k on bring where exp(-y) is 0, over y, for both of full and half
    late = np.zeros((num + 1, 2))
    for k in range(num - 1, -1, -1):
        up = math.exp(x[k + 1] - x[k]) if k + 1 < num else 0.0
        own = scales[k] * math.exp(-y_refs[k])
        late[k, 0] = late[k + 1, 0] * up + own
        late[k, 1] = late[k + 1, 1] * up + (2.0 * own if k % 2 == 0 else 0.0)
    # what earlier nodes brought where y is nearly 0: in y (y + y_ref), in y / kappa, in y
    early = np.zeros((3, 2))
    flat = gone = size
    out[:] = 0.0
    for k in range(num + 1):
        at = x[min(k, num - 1)]
        y_ref = y_refs[min(k, num - 1)]
        log_y_ref = at + log_w_ref
        ref_is_flat = log_y_ref < _FLAT
        # else y is nothing beside 1 - exp(-y_ref) either
        edge = _FLAT - at + (0.0 if ref_is_flat else min(log_y_ref, 0.0))
        left_flat = np.searchsorted(log_w[:flat], edge) if k < num else 0
        for i in range(left_flat, flat):
            y = math.exp(at + log_w[i])
            for h in range(2):
                out[2 * h, i] -= early[0, h] * y * (y + y_ref)
                if early[1, h] > 0.0:
                    out[2 * h, i] += early[1, h] * y / kappa[i]
                out[2 * h + 1, i] += early[2, h] * y
        flat = left_flat
        if k == num:
            break
        for i in range(max(np.searchsorted(log_w[:gone], _GONE - at), flat), gone):
            y = math.exp(min(at + log_w[i], LARGEST_EXPONENT))
            for h in range(2):
                if late[k, h] > 0.0:
                    out[2 * h, i] -= late[k, h] * y / (kappa[i] * (1.0 - pi[i]))
        gone = np.searchsorted(log_w[:gone], _GONE - at)
        half = 2.0 * scales[k] if k % 2 == 0 else 0.0
        for start in range(flat, gone if scales[k] > 0.0 else flat, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            some = log_w[part], pi[part], kappa[part], deviation[part]
            own = out[0][part], out[1][part], out[2][part], out[3][part]
            _add_terms(at, scales[k], half, y_ref, *some, room, *own)
        down = math.exp(x[k] - x[k + 1]) if k + 1 < num else 1.0
        for h in range(2):
            scale = half if h else scales[k]
            fall = scale * math.expm1(-y_ref)
            early[0, h] = (early[0, h] + (scale if ref_is_flat else 0.0)) * down * down
            early[1, h] = (early[1, h] - (0.0 if ref_is_flat else fall)) * down
            early[2, h] = (early[2, h] + fall) * down
