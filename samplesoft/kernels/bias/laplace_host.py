"""The sums of `laplace` for the processor, which goes through fewer atoms, several at a time."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray
from samplesoft.kernels.bias.laplace import CENTRED_LIMIT, second_order, tangent, third_order
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
from samplesoft.kernels.bias.laplace_integrals import atom_integrals
from samplesoft.kernels.exponential import decay_ratio_series, exp64, third_order_series

__all__ = ["atom_integrals", "node_sums"]


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
    room = np.empty((11, BLOCK))
    plain_d, plain_sum, plain_sum_mean = plain(log_d), plain(log_sum), plain(log_sum_mean)
    out[:] = 0.0
    for k in range(len(x)):
        at = x[k]
        d_ref, d_mean = scaled(at, reference[0]), scaled(at, reference[1])
        decay_ref = math.exp(-d_ref)
        is_centred = at + reference[1] < math.log(CENTRED_LIMIT)
        flat, gone = edges(at, log_d, reference)
        s = out[k]
        if flat > 0:
            last = flat - 1
            d = scaled(at, log_d[last])
            s[0] += early[flat]
            s[1] -= d * first[flat]
            s[2] += d * first[flat]
            s[3] += d * d * square[flat]
            s[4] += d * d * d * cube[flat]
            if at + reference[0] < FLAT:
                s[5] -= scaled(at, log_sum[last]) * from_ref[flat]
            else:
                s[5] -= math.expm1(-d_ref) * early_by_ref[flat]
            if is_centred and at + reference[1] < FLAT:
                total = scaled(at, log_sum_mean[last])
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
        for start in range(flat, gone, BLOCK):
            part = slice(start, min(start + BLOCK, gone))
            times(at, log_d, plain_d, part, room[0])
            times(at, log_sum, plain_sum, part, room[2])
            decays(room, part.stop - start)
            contrasts(decay_ref, kappa[part], room)
            _add_decays(weights[0][part], weights[1][part], room, s)
            if is_centred:
                times(at, log_sum_mean, plain_sum_mean, part, room[10])
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
