"""The integrals of `laplace` over nodes at each atom, for the processor."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.bias.laplace import _bend
from samplesoft.kernels.bias.laplace_blocks import (
    BLOCK,
    FLAT,
    contrasts,
    decays,
    edges,
    plain,
    scaled,
    times,
)
from samplesoft.kernels.exponential import decay_ratio_series, exp64

_DEGREES = (2, 3, 1, 2, 3)  # in v, of what `_flat_powers` writes
_ORDERS = len(_DEGREES)
_NOTHING = 1e-290


@njit
def _far_terms(
    x: FloatArray, coefficients: FloatArray, tilted: FloatArray, log_reference: float
) -> FloatArray:
    """Return what nodes bring to atoms that are gone, and to flat ones, (1 + _ORDERS, K, 3).

    They are multiplied by v r / kappa for an atom that is gone, by the powers of `_flat_powers` for
    one that is flat; in the order full, half, size.
    """
    out = np.zeros((1 + _ORDERS, len(x), 3))
    for k in range(len(x)):
        c = coefficients[k]
        if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:
            continue
        d_ref = scaled(x[k], log_reference)
        decay_ref = math.exp(-d_ref)
        if decay_ref > 0.0:
            out[0, k, 0], out[0, k, 2] = _bend(
                x[k], 0.0, 0.0, decay_ref, 0.0, 2.0, 1.0, c, tilted[k]
            )
        is_flat = x[k] + log_reference < FLAT
        if c[1] == 0.0 and c[2] == 0.0:
            i = 1 if is_flat else 3
            out[i, k, 0] = -c[0] * (1.0 if is_flat else math.expm1(-d_ref))
            out[i, k, 2] = abs(out[i, k, 0])
        elif is_flat:
            _expand_around_ref(c, tilted[k], out[1, k], out[2, k])
        elif d_ref < 1.0:
            term, size = _bend(x[k], 0.0, 1.0, decay_ref, log_reference, -d_ref, 1.0, c, tilted[k])
            out[3, k, 0], out[3, k, 2] = -term, size
        else:
            _expand_around_least(x[k], decay_ref, c, tilted[k], out[3, k], out[4, k], out[5, k])
        for i in range(len(out)):
            out[i, k, 1] = 2.0 * out[i, k, 0] if k % 2 == 0 else 0.0
    return out


@njit
def _expand_around_ref(
    c: FloatArray, tilted: FloatArray, constant: FloatArray, linear: FloatArray
) -> None:
    """Write the first two orders of `_bend` in away = v (r - R), over -v (r + R), and sizes."""
    lead, variance, lead_size, variance_size = tilted[1], tilted[2], tilted[3], tilted[4]
    square = lead * lead - variance
    constant[0] = -(c[0] - c[1] * (lead - 1.0) + c[2] * (square - 2.0 * lead))
    linear[0] = 0.5 * c[0] - c[1] * (0.5 * lead - 1.0) + c[2] * (0.5 * square + 1.0 - 2.0 * lead)
    constant[2] = c[3] + c[4] * (lead_size + 1.0)
    constant[2] += c[5] * (abs(lead) * lead_size + variance_size + 2.0 * lead_size)
    linear[2] = c[5]


@njit
def _expand_around_least(
    x: float,
    decay_ref: float,
    c: FloatArray,
    tilted: FloatArray,
    constant: FloatArray,
    linear: FloatArray,
    square: FloatArray,
) -> None:
    """Write the first three orders of `_bend` in d = v (r - r0), times kappa, and sizes."""
    mean, variance = tilted[0], tilted[2]
    constant[0], constant[2] = _bend(x, 0.0, 1.0, decay_ref, 0.0, 2.0, 1.0, c, tilted)
    # exp(-d) (c0 - c1 (d - mean) + c2 ((d - mean)**2 - variance))
    bend = mean * mean - variance
    linear[0] = -(c[0] + c[1] * (1.0 + mean) + c[2] * (2.0 * mean + bend))
    square[0] = 0.5 * c[0] + c[1] * (1.0 + 0.5 * mean) + c[2] * (1.0 + 2.0 * mean + 0.5 * bend)
    linear[2], square[2] = c[4], c[5]


@njit
def _flat_powers(
    x: float, log_r: float, log_d: float, kappa: float, log_sum: float, out: FloatArray
) -> None:
    """Write v r (v (r + R), v (r + R) v (r - R), 1 / kappa, d / kappa, d**2 / kappa) of an atom."""
    rate, total, d = scaled(x, log_r), scaled(x, log_sum), scaled(x, log_d)
    out[0] = rate * total
    out[1] = rate * total * total * kappa
    out[2] = rate / kappa if kappa != 0.0 else 0.0
    out[3] = out[2] * d
    out[4] = out[3] * d


@njit
def atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray,
    atoms: FloatArray,
    log_reference: float,
    out: FloatArray,
) -> None:
    """Write what `laplace.atom_integrals` does, for contiguous `atoms` (8, A) sorted by r."""
    num = len(x)
    log_r, log_d, kappa, log_sum = atoms[0], atoms[1], atoms[2], atoms[4]
    far = _far_terms(x, coefficients, tilted, log_reference)
    late = np.zeros((num + 1, 3))
    for k in range(num - 1, -1, -1):
        up = math.exp(x[k + 1] - x[k]) if k + 1 < num else 0.0
        for h in range(3):
            late[k, h] = (late[k + 1, h] * up if late[k + 1, h] != 0.0 else 0.0) + far[0, k, h]
    early, powers = np.zeros((_ORDERS, 3)), np.empty(_ORDERS)
    room = np.empty((3, BLOCK))
    plain_d, plain_sum, plain_r = plain(log_d), plain(log_sum), plain(log_r)
    reference = np.array([log_reference])
    flat = gone = len(log_r)
    out[:] = 0.0
    for k in range(num + 1):
        at = x[min(k, num - 1)]
        new_flat, new_gone = edges(at, log_d, reference)
        new_flat = 0 if k == num else min(new_flat, flat)
        for i in range(new_flat, flat):
            _flat_powers(at, log_r[i], log_d[i], kappa[i], log_sum[i], powers)
            for j in range(_ORDERS):
                for h in range(3):
                    if early[j, h] != 0.0:
                        out[h, i] += early[j, h] * (abs(powers[j]) if h == 2 else powers[j])
        flat = new_flat
        if k == num:
            break
        new_gone = min(new_gone, gone)
        for i in range(max(new_gone, flat), gone):
            rate = scaled(at, log_r[i])
            for h in range(3):
                if late[k, h] != 0.0:
                    out[h, i] += late[k, h] * rate / (abs(kappa[i]) if h == 2 else kappa[i])
        gone = new_gone
        c = coefficients[k]
        if c[0] != 0.0 or c[1] != 0.0 or c[2] != 0.0:
            decay_ref = math.exp(-scaled(at, log_reference))
            half = 2.0 if k % 2 == 0 else 0.0
            for first in range(flat, gone, BLOCK):
                part = slice(first, min(first + BLOCK, gone))
                own = out[0][part], out[1][part], out[2][part]
                times(at, log_d, plain_d, part, room[0])
                decays(room, part.stop - first)
                if c[1] == 0.0 and c[2] == 0.0:
                    times(at, log_sum, plain_sum, part, room[2])
                    contrasts(decay_ref, kappa[part], room)
                    times(at, log_r, plain_r, part, room[1])
                    _add_plain(c[0], half, room, *own)
                else:
                    rows = log_r[part], kappa[part], log_sum[part]
                    _add_bent(at, c, tilted[k], half, *rows, decay_ref, room, *own)
        down = math.exp(x[k] - x[k + 1]) if k + 1 < num else 1.0
        for j in range(_ORDERS):
            for h in range(3):
                early[j, h] = (early[j, h] + far[1 + j, k, h]) * down ** _DEGREES[j]
                if abs(early[j, h]) < _NOTHING:  # the least number of all would not fall further
                    early[j, h] = 0.0


@njit
def _add_plain(
    c: float,
    half: float,
    room: FloatArray,
    full_out: FloatArray,
    half_out: FloatArray,
    size_out: FloatArray,
) -> None:
    """Add the terms of one node to a block, where `room` has the contrasts after v r."""
    rate, term = room[1], room[2]
    for i in range(len(full_out)):  # one loop over all arrays would not be turned into vector code
        term[i] *= c * rate[i]
    _add(term, 1.0, full_out)
    if half != 0.0:
        _add(term, half, half_out)
    for i in range(len(size_out)):
        size_out[i] += abs(term[i])


@njit
def _add(terms: FloatArray, scale: float, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] += scale * terms[i]


@njit
def _add_bent(
    at: float,
    c: FloatArray,
    tilted: FloatArray,
    half: float,
    log_r: FloatArray,
    kappa: FloatArray,
    log_sum: FloatArray,
    decay_ref: float,
    room: FloatArray,
    full_out: FloatArray,
    half_out: FloatArray,
    size_out: FloatArray,
) -> None:
    """Add the terms of one node to a block, with derivatives of D: `_bend` without branches."""
    c0, c1, c2, s0, s1, s2 = c[0], c[1], c[2], c[3], c[4], c[5]
    mean, variance, variance_size = tilted[0], tilted[2], tilted[4]
    lead, lead_size = (tilted[1], tilted[3]) if decay_ref > 0.0 else (0.0, 0.0)
    square = lead * lead - variance
    square_size = abs(lead) * lead_size + variance_size
    ref = decay_ref * (c0 - c1 * lead + c2 * square)
    ref_size = decay_ref * (s0 + s1 * lead_size + s2 * square_size)
    size, term = room[0], room[1]  # d and exp(-d) up to now; as few arrays as vector code can have
    for i in range(len(log_r)):
        d, decay = size[i], term[i]
        total = exp64(at + log_sum[i])
        away = kappa[i] * total
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        ratio = decay_ratio_series(near)
        e = 1.0 - near * ratio
        value = c0 * ratio - c1 * (lead * ratio - e)
        value += c2 * (square * ratio - (2.0 * lead + near) * e)
        value_size = s0 * ratio + s1 * (lead_size * ratio + e)
        value_size += s2 * (square_size * ratio + (2.0 * lead_size + abs(near)) * e)
        ahead, ahead_size = d - mean, d + mean
        far = decay * (c0 - c1 * ahead + c2 * (ahead * ahead - variance)) - ref
        far_size = s0 + s1 * ahead_size + s2 * (abs(ahead) * ahead_size + variance_size)
        far_size = decay * far_size + ref_size
        scale = decay_ref * total
        term[i] = -scale * value if near == away else far / kappa[i]
        size[i] = scale * value_size if near == away else far_size / abs(kappa[i])
    for i in range(len(log_r)):
        rate = exp64(at + log_r[i])
        term[i] *= rate
        size[i] *= rate
    _add(term, 1.0, full_out)
    if half != 0.0:
        _add(term, half, half_out)
    _add(size, 1.0, size_out)
