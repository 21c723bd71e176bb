"""The sums of `laplace` for the processor, which goes through fewer atoms, several at a time.

The atoms come sorted by r. At a node v, those with v (r - r0) near 0 are known by their moments,
and of those with large v (r - r0) nothing changes any more: only the atoms between are gone
through, in blocks that the compiler turns into vector code.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit, njit_sum
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels.bias.laplace import (
    CENTRED_LIMIT,
    _bend,
    second_order,
    tangent,
    third_order,
)
from samplesoft.kernels.math.exponential import decay_ratio_series, exp64, third_order_series

_FLAT = -38.0  # below this log of d = v (r - r0), exp(-d) is 1 - d to the last bit
_GONE = 7.3  # above it exp(-d) is 0, and so is exp(-y) for y = d - v (mean - r0)
_BLOCK = 256
_DEGREES = (2, 3, 1, 2, 3)  # in v, of what `_flat_powers` writes
_ORDERS = len(_DEGREES)
_NOTHING = 1e-290
_LEAST = 708.0  # exp(-d) beyond it is taken for 0, and never a slow denormal number


@njit
def _below(weights: FloatArray, logs: FloatArray) -> FloatArray:
    """Return sums of weights exp(logs) before each place, (A + 1,), over the last exp(logs)."""
    out = np.empty(len(logs) + 1)
    out[0] = 0.0
    for i in range(len(logs)):
        down = math.exp(logs[i - 1] - logs[i]) if i > 0 and logs[i - 1] > -np.inf else 0.0
        out[i + 1] = out[i] * down + weights[i]
    return out


@njit
def _before(weights: FloatArray) -> FloatArray:
    """Return the sums of the weights before each place, (A + 1,)."""
    out = np.empty(len(weights) + 1)
    out[0] = 0.0
    for i in range(len(weights)):
        out[i + 1] = out[i] + weights[i]
    return out


@njit
def _after(weights: FloatArray) -> FloatArray:
    """Return the sums of the weights from each place on, (A + 1,)."""
    out = np.empty(len(weights) + 1)
    out[-1] = 0.0
    for i in range(len(weights) - 1, -1, -1):
        out[i] = out[i + 1] + weights[i]
    return out


@njit
def _scale(x: float, log_distance: float) -> float:
    return math.exp(min(x + log_distance, LARGEST_EXPONENT))


@njit
def _edges(x: float, log_d: FloatArray, reference: FloatArray) -> tuple[int, int]:
    """Return the numbers of the first atom that is not flat, and of the first that is gone."""
    edge = _FLAT - x
    for log_distance in reference:
        if x + log_distance >= _FLAT:  # else it is flat too
            edge = min(edge, edge if x + log_distance > 0.0 else _FLAT + log_distance)
    return int(np.searchsorted(log_d, edge)), int(np.searchsorted(log_d, _GONE - x))


@njit
def _plain(logs: FloatArray) -> tuple[FloatArray, float]:
    """Return exp(logs) and the largest size of a log, which says where v times them is finite."""
    reach = 0.0
    for value in logs:
        if value > -np.inf:
            reach = max(reach, abs(value))
    return np.exp(np.minimum(logs, LARGEST_EXPONENT)), reach


@njit
def _times(
    x: float, logs: FloatArray, plain: tuple[FloatArray, float], part: slice, out: FloatArray
) -> None:
    """Write v exp(logs) of a block into `out`, as products where none can leave float64."""
    if abs(x) + plain[1] < _LEAST:
        v, own = math.exp(x), plain[0][part]
        for i in range(len(own)):
            out[i] = v * own[i]
    else:
        those = logs[part]
        for i in range(len(those)):
            out[i] = exp64(x + those[i])


@njit
def _decays(room: FloatArray, size: int) -> None:
    """Write exp(-d) of a block, whose d = v (r - r0) are the first row of `room`, as the second."""
    d, decay = room[0], room[1]
    for i in range(size):
        e = exp64(-d[i] if d[i] < _LEAST else -_LEAST)
        decay[i] = e if d[i] < _LEAST else 0.0


@njit
def _contrasts(decay_ref: float, kappa: FloatArray, room: FloatArray) -> None:
    """Write (exp(-v (r - r0)) - exp(-v (R - r0))) / kappa of a block, eq. (B19), as the third.

    It replaces v (r + R).
    """
    decay, out = room[1], room[2]
    for i in range(len(kappa)):
        total = out[i]
        away = kappa[i] * total  # v (r - R)
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        close = -decay_ref * total * decay_ratio_series(near)
        far = (decay[i] - decay_ref) / kappa[i]
        out[i] = close if near == away else far


@njit
def _centred(weights: FloatArray, zeta: FloatArray, room: FloatArray) -> None:
    """Write the terms of the sums around the mean of a block into the last five rows of `room`.

    The last has v (r + mean) before. They are made of one series, (y**2 / 2 - exp(-y) + 1 - y) /
    y**3, where y is small.
    """
    p, h, t, y2, y3 = room[6], room[7], room[8], room[9], room[10]
    for i in range(len(weights)):
        total = y3[i]
        y = zeta[i] * total
        y3[i] = y
        p[i] = weights[i] * total * total  # q y**2, with no difference in it
        y2[i] = exp64(-y)
    for i in range(len(weights)):
        y = y3[i]
        near = -1.0 if y < -1.0 else y
        near = 1.0 if near > 1.0 else near
        third = third_order_series(near)
        second = 0.5 - near * third
        is_near = near == y
        e = y2[i]
        scale = p[i] if is_near else weights[i] / (zeta[i] * zeta[i])
        p[i] = scale * (second if is_near else e - 1.0 + y)
        h[i] = scale * (1.0 - (1.0 + near) * second if is_near else 1.0 - e - e * y)
        bend = near * (0.5 * near - (near * near + 2.0 * near + 2.0) * third)
        t[i] = scale * (bend if is_near else e * y * y + 2.0 * e * y + 2.0 * e - 2.0)
        y2[i] = scale * (e if is_near else e * y * y)
        y3[i] = y2[i] * y


@njit
def node_sums(
    x: FloatArray, weights: FloatArray, atoms: FloatArray, reference: FloatArray, out: FloatArray
) -> None:
    """Write what `laplace.node_sums` does, for `atoms` (8, A) sorted by r."""
    log_d, kappa, log_sum, zeta, log_sum_mean = atoms[1], atoms[2], atoms[4], atoms[5], atoms[7]
    by_ref = weights[1] / np.where(kappa == 0.0, np.inf, kappa)
    by_mean = weights[2] / np.where(zeta == 0.0, np.inf, zeta * zeta)
    early, early_by_ref, early_by_mean = _before(weights[0]), _before(by_ref), _before(by_mean)
    first = _below(weights[0], log_d)
    square, cube = _below(weights[0], 2.0 * log_d), _below(weights[0], 3.0 * log_d)
    from_ref = _below(weights[1], log_sum)
    squares = _below(weights[2], 2.0 * log_sum_mean)
    cubes = _below(weights[2] * zeta, 3.0 * log_sum_mean)
    late, late_by_ref, late_by_mean = _after(weights[0]), _after(by_ref), _after(by_mean)
    late_mean = _after(by_mean * np.exp(atoms[6] - max(reference[1], -1e300)))
    room = np.empty((11, _BLOCK))
    plain_d, plain_sum, plain_sum_mean = _plain(log_d), _plain(log_sum), _plain(log_sum_mean)
    out[:] = 0.0
    for k in range(len(x)):
        at = x[k]
        d_ref, d_mean = _scale(at, reference[0]), _scale(at, reference[1])
        decay_ref = math.exp(-d_ref)
        is_centred = at + reference[1] < math.log(CENTRED_LIMIT)
        flat, gone = _edges(at, log_d, reference)
        s = out[k]
        if flat > 0:
            last = flat - 1
            d = _scale(at, log_d[last])
            s[0] += early[flat]
            s[1] -= d * first[flat]
            s[2] += d * first[flat]
            s[3] += d * d * square[flat]
            s[4] += d * d * d * cube[flat]
            if at + reference[0] < _FLAT:
                s[5] -= _scale(at, log_sum[last]) * from_ref[flat]
            else:
                s[5] -= math.expm1(-d_ref) * early_by_ref[flat]
            if is_centred and at + reference[1] < _FLAT:
                total = _scale(at, log_sum_mean[last])
                second, third = total**2 * squares[flat], total**3 * cubes[flat]
                s[6] += 0.5 * second
                s[7] += 0.5 * second
                s[8] -= third / 3.0
                s[9] += second
                s[10] += third
            elif is_centred:
                y = -d_mean
                scale = y * y * early_by_mean[flat]
                s[6] += scale * second_order(y)
                s[7] += scale * tangent(y)
                s[8] += scale * third_order(y)
                s[9] += scale * math.exp(-y)
                s[10] += scale * math.exp(-y) * y
        if gone < len(log_d):
            s[1] -= late[gone]
            s[5] -= decay_ref * late_by_ref[gone]
            if is_centred:
                s[6] += d_mean * late_mean[gone] - late_by_mean[gone]
                s[7] += late_by_mean[gone]
                s[8] -= 2.0 * late_by_mean[gone]
        for start in range(flat, gone, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            _times(at, log_d, plain_d, part, room[0])
            _times(at, log_sum, plain_sum, part, room[2])
            _decays(room, part.stop - start)
            _contrasts(decay_ref, kappa[part], room)
            _add_decays(weights[0][part], weights[1][part], room, s)
            if is_centred:
                _times(at, log_sum_mean, plain_sum_mean, part, room[10])
                _centred(weights[2][part], zeta[part], room)
                for i in range(6, 11):
                    s[i] += _total(room[i][: part.stop - start])


@njit_sum
def _total(values: FloatArray) -> float:
    total = 0.0
    for i in range(len(values)):
        total += values[i]
    return total


@njit_sum
def _add_decays(q: FloatArray, q_kappa: FloatArray, room: FloatArray, out: FloatArray) -> None:
    """Add the first six sums of a block, whose d, exp(-d) and contrasts are in `room`."""
    transform = drops = d1 = d2 = d3 = above = 0.0
    d, decay, contrast = room[0], room[1], room[2]
    for i in range(len(q)):
        moment = q[i] * decay[i]
        transform += moment
        d1 += moment * d[i]
        d2 += moment * d[i] * d[i]
        d3 += moment * d[i] * d[i] * d[i]
        above += q_kappa[i] * contrast[i]
        near = d[i] if d[i] < 1.0 else 1.0
        small = -near * decay_ratio_series(near)
        drops += q[i] * (small if d[i] < 1.0 else decay[i] - 1.0)
    out[0] += transform
    out[1] += drops
    out[2] += d1
    out[3] += d2
    out[4] += d3
    out[5] += above


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
        d_ref = _scale(x[k], log_reference)
        decay_ref = math.exp(-d_ref)
        if decay_ref > 0.0:
            out[0, k, 0], out[0, k, 2] = _bend(
                x[k], 0.0, 0.0, decay_ref, 0.0, 2.0, 1.0, c, tilted[k]
            )
        is_flat = x[k] + log_reference < _FLAT
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
    rate, total, d = _scale(x, log_r), _scale(x, log_sum), _scale(x, log_d)
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
    room = np.empty((3, _BLOCK))
    plain_d, plain_sum, plain_r = _plain(log_d), _plain(log_sum), _plain(log_r)
    reference = np.array([log_reference])
    flat = gone = len(log_r)
    out[:] = 0.0
    for k in range(num + 1):
        at = x[min(k, num - 1)]
        new_flat, new_gone = _edges(at, log_d, reference)
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
            rate = _scale(at, log_r[i])
            for h in range(3):
                if late[k, h] != 0.0:
                    out[h, i] += late[k, h] * rate / (abs(kappa[i]) if h == 2 else kappa[i])
        gone = new_gone
        c = coefficients[k]
        if c[0] != 0.0 or c[1] != 0.0 or c[2] != 0.0:
            decay_ref = math.exp(-_scale(at, log_reference))
            half = 2.0 if k % 2 == 0 else 0.0
            for first in range(flat, gone, _BLOCK):
                part = slice(first, min(first + _BLOCK, gone))
                own = out[0][part], out[1][part], out[2][part]
                _times(at, log_d, plain_d, part, room[0])
                _decays(room, part.stop - first)
                if c[1] == 0.0 and c[2] == 0.0:
                    _times(at, log_sum, plain_sum, part, room[2])
                    _contrasts(decay_ref, kappa[part], room)
                    _times(at, log_r, plain_r, part, room[1])
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
