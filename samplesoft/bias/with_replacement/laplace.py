"""Compiled sums of the exact bias: over the atoms at each node, and over the nodes at each atom.

The sums are the Laplace transform T(v) = sum_j q_j exp(-v r_j) of one draw, and functions related
to it; psi = exp(-v r) / T. Ratios are measured from one of three centres, so that nearly equal
numbers are never subtracted: from the lower bound r0, so that T does not underflow; from the
reference R, for differences between classes; and from the mean ratio, for differences from the
limit of many draws. Section 4 of the README of `bias` has the equations.

The atoms are sorted by r. At a node v, atoms whose d = v (r - r0) is near 0 are "flat": exp(-d) is
1 - d, and the last of these atoms stands for all. Atoms with a large d are "gone": exp(-d) is 0.
The other atoms are evaluated in blocks, by loops that the compiler vectorises. Such a loop must not
branch, and must not use more arrays than the compiler can check for overlap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit, njit_bare, njit_sum
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import (
    decay_ratio_series,
    exp64,
    second_order_series,
    third_order_series,
)
from samplesoft.kernels.rows import add_row, copy_row
from samplesoft.kernels.sort_ids import count_below

# largest v (mean - r0) at which sums around the mean are computed; beyond it exp(-y), where
# y = v (r - mean), could overflow
CENTRED_LIMIT = 600.0
FLAT = -38.0  # where log d is below it, d = v (r - r0), exp(-d) is 1 - d to the last bit
GONE = 7.3  # where log d is above it, exp(-d) is 0, and so is exp(-y) with y = v (r - mean)
_ATOMS_PER_BLOCK = 512
_MAX_EXPONENT = 708.0  # exp(-d) is set to 0 beyond this d, because subnormal numbers are slow

Rows = tuple[FloatArray, FloatArray, FloatArray]


class Points(NamedTuple):
    """The A atoms as arrays (A,) for the kernels, sorted by their ratio r."""

    q: FloatArray  # weight: the draw probability that the atom represents
    q_kappa: FloatArray  # weight q kappa of (B22)
    q_zeta2: FloatArray  # weight q zeta**2 of (B22)
    log_r: FloatArray
    log_d: FloatArray  # log (r - r0)
    kappa: FloatArray  # (r - R) / (r + R)
    log_sum: FloatArray  # log (r + R)
    zeta: FloatArray  # (r - mean) / (r + mean)
    log_from_mean: FloatArray  # log |r - mean|
    log_sum_mean: FloatArray  # log (r + mean)


class NodeSums(NamedTuple):
    """Sums over the atoms at each node, all (K,): each field is the sum of q times a function of r.

    With d = v (r - r0) and y = v (r - mean), the functions are those below; eqs. (B18) to (B21).
    Only the jackknife needs `first`, `second`, `third`, `tangent`, `bend`, `square` and `cube`.
    """

    transform: FloatArray  # exp(-d), whose sum is T exp(v r0)
    transform_minus_1: FloatArray  # exp(-d) - 1
    first: FloatArray  # d exp(-d)
    second: FloatArray  # d**2 exp(-d)
    third: FloatArray  # d**3 exp(-d)
    above: FloatArray  # exp(-d) - exp(-v (R - r0))
    centred_transform_minus_1: FloatArray  # exp(-y) - 1 + y, P of (B20)
    tangent: FloatArray  # 1 - (1 + y) exp(-y), G in section 4 of the README
    bend: FloatArray  # (y**2 + 2 y + 2) exp(-y) - 2
    square: FloatArray  # y**2 exp(-y)
    cube: FloatArray  # y**3 exp(-y)


class AtomIntegrals(NamedTuple):
    """Integrals over the nodes at each atom, all (A,)."""

    full: FloatArray  # by all nodes
    half: FloatArray  # by every second node
    size: FloatArray  # of the magnitudes of the integrand's terms, by all nodes


def node_sums(
    x: FloatArray,
    points: Points,
    log_ref_above_r0: float,
    log_mean_above_r0: float,
    with_moments: bool = True,
) -> NodeSums:
    """Return the sums over the atoms at each node `x` = log v (K,).

    The two logs are log(R - r0) and log(mean - r0). Without `with_moments`, the fields that only
    the jackknife needs (`first`, `second`, `third`, `tangent`, `bend`, `square`, `cube`) are 0.
    """
    log_distances = np.array([log_ref_above_r0, log_mean_above_r0])
    plain = np.zeros((4, len(x)))
    moments = np.zeros((7, len(x)))
    workspace = np.empty((24, len(points.q) + 1))
    block = np.empty((9, _ATOMS_PER_BLOCK))
    sums_at_nodes(
        x, points, log_distances, plain, moments if with_moments else None, workspace, block
    )

    return NodeSums(
        transform=plain[0],
        transform_minus_1=plain[1],
        first=moments[0],
        second=moments[1],
        third=moments[2],
        above=plain[2],
        centred_transform_minus_1=plain[3],
        tangent=moments[3],
        bend=moments[4],
        square=moments[5],
        cube=moments[6],
    )


def atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray | None,
    points: Points,
    log_ref_above_r0: float,
) -> AtomIntegrals:
    """Return the integrals over the nodes `x` = log v (K,) at each atom.

    The integrand is v r T exp(v r0) (c0 D + c1 v D' + c2 v**2 D'') / kappa for D = psi - psi_R,
    eq. (B23), with derivatives in v. `coefficients` (K, 6) are c0, c1 and c2, and then, for a
    jackknife, the sums of magnitudes of the terms from which each was computed. For other schemes
    only c0 is not 0. `tilted` (K, 5) is `TiltedNodes.tilted` for a jackknife, and None otherwise.
    `log_ref_above_r0` is log(R - r0).
    """
    num = len(points.q)
    log_distances = np.array([log_ref_above_r0])
    integrals = np.zeros((3, num))
    of_nodes = np.empty((12, len(x) + 1))
    of_atoms = np.empty((6, num))
    block = np.empty((3, _ATOMS_PER_BLOCK))
    _add_atom_integrals(
        x, coefficients, tilted, points, log_distances, integrals, of_nodes, of_atoms, block
    )
    return AtomIntegrals(full=integrals[0], half=integrals[1], size=integrals[2])


# --- sums over atoms --------------------------------------------------------------------------


@njit_bare
def sums_at_nodes(
    x: FloatArray,
    points: Points,
    log_distances: FloatArray,
    out: FloatArray,
    tilted: FloatArray | None,
    workspace: FloatArray,
    block: FloatArray,
) -> None:
    """Write the fields of `NodeSums` to `out` (4, K), those for the jackknife to `tilted` (7, K).

    The rows are ordered as in `node_sums`. `out` and `tilted` must be 0 before. If `tilted` is
    None, the sums for the jackknife are neither computed nor compiled. `log_distances` (2,) is
    log(R - r0) and log(mean - r0). `workspace` (24, A + 1) and `block` (9, atoms of a block) are
    overwritten.
    """
    num = len(points.q)
    log_d = points.log_d
    kappa = points.kappa
    log_sum = points.log_sum
    zeta = points.zeta
    log_sum_mean = points.log_sum_mean

    # The rows of `weights` are q, q kappa, q zeta**2, and again q, for terms proportional to d. At
    # each node, sums over all flat atoms replace the entries of the last flat atom, which are
    # restored afterwards. The rows of `over_contrast` are summed over gone atoms: they are q, which
    # is also (q kappa) / kappa and (q zeta**2) / zeta**2, and q |r - mean| / (mean - r0).
    weights = workspace[:4]
    over_contrast = workspace[4:8]
    early = workspace[8:12]
    early_d = workspace[12:16]
    late = workspace[16:20]
    plain_d = workspace[20]
    plain_sum = workspace[21]
    plain_sum_mean = workspace[22]
    zeros = workspace[23]

    for i in range(num):
        weights[0, i] = weights[3, i] = over_contrast[0, i] = points.q[i]
        weights[1, i], weights[2, i] = points.q_kappa[i], points.q_zeta2[i]
        over_contrast[1, i] = weights[1, i] / kappa[i] if kappa[i] != 0.0 else 0.0
        over_contrast[2, i] = weights[2, i] / (zeta[i] * zeta[i]) if zeta[i] != 0.0 else 0.0
        over_contrast[3, i] = over_contrast[2, i] * math.exp(
            points.log_from_mean[i] - max(log_distances[1], -1e300)
        )
        zeros[i] = 0.0

    write_far_sums(weights, zeros[:num], False, early)
    write_far_sums(weights, log_d, False, early_d)
    write_far_sums(over_contrast, zeros[:num], True, late)
    reach_d = _write_exps(log_d, plain_d)
    reach_sum = _write_exps(log_sum, plain_sum)
    reach_sum_mean = _write_exps(log_sum_mean, plain_sum_mean)
    d = block[0]
    decay = block[1]
    drop = block[2]
    contrast = block[3]
    y = block[4]
    terms = block[5:]

    for k in range(len(x)):
        log_v = x[k]
        d_mean = scaled(log_v, log_distances[1])
        decay_ref = math.exp(-scaled(log_v, log_distances[0]))
        is_centred = log_v + log_distances[1] < math.log(CENTRED_LIMIT)
        flat, gone = near_atoms(log_v, log_d, log_distances)
        if gone < num:
            out[1, k] -= late[0, gone]
            out[2, k] -= decay_ref * late[1, gone]
            if is_centred:
                out[3, k] += d_mean * late[3, gone] - late[2, gone]
                if tilted is not None:
                    tilted[3, k] += late[2, gone]
                    tilted[4, k] -= 2.0 * late[2, gone]
        flat_atom = max(flat - 1, 0)  # the last flat atom represents all of them
        for h in range(4):
            weights[h, flat_atom] = early[h, flat_atom + 1] if h < 3 else early_d[h, flat_atom + 1]
        q = weights[0]
        q_kappa = weights[1]
        q_zeta2 = weights[2]
        q_drop = weights[3]
        for start in range(flat_atom, gone, _ATOMS_PER_BLOCK):
            part = slice(start, min(start + _ATOMS_PER_BLOCK, gone))
            size = part.stop - start
            _write_scaled_exps(log_v, log_d, plain_d, reach_d, part, d)
            _write_scaled_exps(log_v, log_sum, plain_sum, reach_sum, part, contrast)
            _write_decays(d[:size], decay, drop)
            _write_contrasts(decay_ref, kappa[part], decay, y, contrast)
            of_block = _sum_decays((q[part], q_drop[part], q_kappa[part]), decay, drop, contrast)
            for h in range(3):
                out[h, k] += of_block[h]
            if tilted is not None:
                moments = _sum_moments(q_drop[part], d, decay)
                for h in range(3):
                    tilted[h, k] += moments[h]
            if is_centred:
                _write_scaled_exps(log_v, log_sum_mean, plain_sum_mean, reach_sum_mean, part, y)
                of_mean = q_zeta2[part], zeta[part], y
                _write_excess(of_mean, decay, drop, contrast)
                out[3, k] += _sum(contrast[:size])
                if tilted is not None:
                    _write_centred(*of_mean, decay, terms)
                    for h in range(4):
                        tilted[3 + h, k] += _sum(terms[h, :size])
        weights[0, flat_atom] = weights[3, flat_atom] = points.q[flat_atom]
        weights[1, flat_atom], weights[2, flat_atom] = (
            points.q_kappa[flat_atom],
            points.q_zeta2[flat_atom],
        )


@njit_sum
def _sum(values: FloatArray) -> float:
    """Return the sum of `values`."""
    total = 0.0
    for i in range(len(values)):
        total += values[i]
    return total


@njit_sum
def _sum_decays(
    weights: Rows, decay: FloatArray, drop: FloatArray, contrast: FloatArray
) -> tuple[float, float, float]:
    """Return the sums, over a block of atoms, of q exp(-d), q (exp(-d) - 1) and q kappa contrast.

    `contrast` is the result of `_write_contrasts`.
    """
    q, q_drop, q_kappa = weights
    transform = total_drop = above = 0.0
    for i in range(len(q)):
        transform += q[i] * decay[i]
        above += q_kappa[i] * contrast[i]
        total_drop += q_drop[i] * drop[i]
    return transform, total_drop, above


@njit_sum
def _sum_moments(
    q_drop: FloatArray, d: FloatArray, decay: FloatArray
) -> tuple[float, float, float]:
    """Return the sums of q d exp(-d), q d**2 exp(-d) and q d**3 exp(-d) over a block of atoms."""
    first = second = third = 0.0
    for i in range(len(q_drop)):
        moment = q_drop[i] * decay[i]
        first += moment * d[i]
        second += moment * d[i] * d[i]
        third += moment * d[i] * d[i] * d[i]
    return first, second, third


@njit_bare
def _write_excess(of_mean: Rows, e: FloatArray, y: FloatArray, p: FloatArray) -> None:
    """Write q (exp(-y) - 1 + y) to `p`, y to `y` and exp(-y) to `e`, for the atoms of a block.

    `of_mean` is q zeta**2, zeta and v (r + mean). The naive exp(-y) - 1 + y loses digits for small
    y. For |y| < 1 it is computed as y**2 times a series.
    """
    weights, zeta, total = of_mean
    first, last = _write_signed(zeta, total, y)
    w = weights[first:last]
    v = total[first:last]
    u = y[first:last]
    out = p[first:last]
    near = e[first:last]

    for i in range(len(w)):
        half = second_order_series(u[i])
        near[i] = 1.0 - u[i] * (1.0 - u[i] * half)
        out[i] = w[i] * v[i] * v[i] * half  # q y**2 times the series

    for part in (slice(0, first), slice(last, len(weights))):
        w = weights[part]
        v = zeta[part]
        u = y[part]
        out = p[part]
        far = e[part]
        for i in range(len(w)):
            far[i] = exp64(-u[i])
        for i in range(len(w)):
            out[i] = w[i] / (v[i] * v[i]) * (far[i] - 1.0 + u[i])


@njit_bare
def _write_centred(
    weights: FloatArray, zeta: FloatArray, total: FloatArray, e: FloatArray, terms: FloatArray
) -> None:
    """Write the terms of the sums `tangent`, `bend`, `square` and `cube` of a block to `terms`.

    `total` is v (r + mean), and `e` is exp(-y). `tangent` and `bend` are differences that lose
    digits for small y. For |y| <= 1 they are computed from a series.
    """
    h = terms[0]
    t = terms[1]
    y2 = terms[2]
    y3 = terms[3]
    for i in range(len(weights)):
        y3[i] = zeta[i] * total[i]  # this row holds y until the term of `cube` is written to it

    for i in range(len(weights)):
        y = y3[i]
        near = -1.0 if y < -1.0 else y
        near = 1.0 if near > 1.0 else near
        series = third_order_series(near)
        half = 0.5 - near * series
        is_near = near == y
        close = weights[i] * total[i] * total[i]
        scale = close if is_near else weights[i] / (zeta[i] * zeta[i])
        h[i] = scale * (1.0 - (1.0 + near) * half if is_near else 1.0 - e[i] - e[i] * y)
        bend = near * (0.5 * near - (near * near + 2.0 * near + 2.0) * series)
        t[i] = scale * (bend if is_near else e[i] * y * y + 2.0 * e[i] * y + 2.0 * e[i] - 2.0)
        y2[i] = scale * (e[i] if is_near else e[i] * y * y)
        y3[i] = y2[i] * y


@njit
def far_sums(terms: FloatArray, logs: FloatArray, onward: bool) -> FloatArray:
    """Return scaled cumulative sums of ``terms * exp(logs)``, (H, K + 1), for `terms` (H, K).

    Column k is the sum over all indices below k, divided by exp(logs[k - 1]). With `onward`, it is
    the sum over the indices from k on, divided by exp(logs[k]). The division prevents overflow.
    """
    out = np.empty((len(terms), len(logs) + 1))
    write_far_sums(terms, logs, onward, out)
    return out


@njit_bare
def write_far_sums(terms: FloatArray, logs: FloatArray, onward: bool, out: FloatArray) -> None:
    """Write the result of `far_sums` to `out` (H, K + 1), without allocating memory."""
    num = len(logs)
    for h in range(len(terms)):
        out[h, num if onward else 0] = 0.0
    for i in range(num):
        k, last = (num - 1 - i, num - i) if onward else (i, i - 1)
        scale = math.exp(logs[last] - logs[k]) if i > 0 and logs[last] > -np.inf else 0.0
        for h in range(len(terms)):
            if onward:
                out[h, k] = out[h, k + 1] * scale + terms[h, k]
            else:
                out[h, k + 1] = out[h, k] * scale + terms[h, k]


# --- integrals over nodes ---------------------------------------------------------------------


@njit_bare
def _add_atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray | None,
    points: Points,
    log_distances: FloatArray,
    out: FloatArray,
    of_nodes: FloatArray,
    of_atoms: FloatArray,
    block: FloatArray,
) -> None:
    """Add the integrals at the atoms to `out` (3, A): full, half and size of `AtomIntegrals`.

    `log_distances` (1,) is log(R - r0). If `tilted` is None, the code for the derivatives of D
    (c1 and c2) is not compiled. `of_nodes` (12, K + 1), `of_atoms` (6, A) and `block` (3, atoms of
    a block) are overwritten.
    """
    num = len(x)
    log_r = points.log_r
    log_d = points.log_d
    kappa = points.kappa
    log_sum = points.log_sum
    at_flat = of_nodes[:3]
    at_gone = of_nodes[3:6]
    early = of_nodes[6:9]
    late = of_nodes[9:]
    _write_far_terms(x, coefficients, tilted, log_distances[0], at_flat, at_gone)

    # For each node: `early` is the sum of the terms of a flat atom over all nodes before it, and
    # `late` that of a gone atom over it and all later nodes. Times v r / kappa of an atom they are
    # its integrals over these nodes.
    write_far_sums(at_flat, x, False, early)
    write_far_sums(at_gone, x, True, late)
    plain_d = of_atoms[0]
    plain_sum = of_atoms[1]
    plain_r = of_atoms[2]
    scales = of_atoms[3:]
    reach_d = _write_exps(log_d, plain_d)
    reach_sum = _write_exps(log_sum, plain_sum)
    reach_r = _write_exps(log_r, plain_r)

    for i in range(len(log_r)):
        scales[0, i] = scales[1, i] = 1.0 / kappa[i]
        scales[2, i] = abs(scales[0, i])

    d = block[0]
    decay = block[1]
    contrast = block[2]
    flat = 0
    gone = len(log_r)

    for k in range(num):
        log_v = x[k]
        c = coefficients[k]
        new_flat, new_gone = near_atoms(log_v, log_d, log_distances)
        add_far(x[max(k - 1, 0)], early, k, log_r, scales, slice(new_flat, flat), out)
        add_far(log_v, late, k, log_r, scales, slice(new_gone, gone), out)
        flat = new_flat
        gone = new_gone
        if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:
            continue
        decay_ref = math.exp(-scaled(log_v, log_distances[0]))
        for start in range(flat, gone, _ATOMS_PER_BLOCK):
            part = slice(start, min(start + _ATOMS_PER_BLOCK, gone))
            length = part.stop - start
            _write_scaled_exps(log_v, log_d, plain_d, reach_d, part, d)
            _write_decays(d[:length], decay, contrast)
            # the arrays are reused: the terms are written to `contrast`, their magnitudes to `d`
            if c[1] == 0.0 and c[2] == 0.0:
                _write_scaled_exps(log_v, log_sum, plain_sum, reach_sum, part, contrast)
                _write_contrasts(decay_ref, kappa[part], decay, d, contrast)
                _write_scaled_exps(log_v, log_r, plain_r, reach_r, part, decay)
                _write_plain_terms(c[0], decay[:length], contrast, d)
            elif tilted is not None:
                derivative_terms = _make_derivative_terms(c, tilted[k], decay_ref)
                copy_row(contrast, decay[:length])
                rows = log_r[part], kappa[part], log_sum[part]
                _write_with_derivatives(log_v, derivative_terms, decay_ref, rows, d, contrast)
            # three loops, because one loop over all these arrays would not be vectorised
            add_row(out[0][part], 1.0, contrast)
            if k % 2 == 0:
                add_row(out[1][part], 2.0, contrast)
            add_row(out[2][part], 1.0, d)

    add_far(x[num - 1], early, num, log_r, scales, slice(0, flat), out)


@njit_bare
def add_far(
    x: float,
    terms: FloatArray,
    index: int,
    log_r: FloatArray,
    scales: FloatArray,
    atoms: slice,
    out: FloatArray,
) -> None:
    """Add the integrals over far nodes to `out` (k, A), for the slice `atoms`.

    A node is far if the atom is flat or gone there. An integral is ``terms[:, index]``, a column of
    `far_sums`, times ``v * r * scales``, where ``x = log v``.
    """
    for i in range(atoms.start, atoms.stop):
        rate = scaled(x, log_r[i])
        for h in range(len(terms)):
            if terms[h, index] != 0.0:
                out[h, i] += terms[h, index] * rate * scales[h, i]


@njit_bare
def _write_far_terms(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray | None,
    log_ref_above_r0: float,
    at_flat: FloatArray,
    at_gone: FloatArray,
) -> None:
    """Write the term of each node in the integral of a flat atom and of a gone atom, both (3, K).

    The rows belong to `full`, `half` and `size` of `AtomIntegrals`. The terms are divided by
    v r / kappa of the atom, so that they are the same for all flat and for all gone atoms.
    """
    for k in range(len(x)):
        for h in range(3):
            at_flat[h, k] = at_gone[h, k] = 0.0
        c = coefficients[k]
        if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:
            continue
        d_ref = scaled(x[k], log_ref_above_r0)
        decay_ref = math.exp(-d_ref)
        if tilted is None:
            at_gone[0, k] = -decay_ref * c[0]
            value = c[0] + at_gone[0, k]
            size = 0.0
            # c0 (1 - exp(-d_ref)) cancels where r0 is near R: take c0 exp(-d_ref) expm1(d_ref)
            if d_ref < 1.0:
                value = decay_ref * d_ref * (c[0] * _decay_ratio(-d_ref))
        else:
            derivative_terms = _make_derivative_terms(c, tilted[k], decay_ref)
            ref, ref_size = _terms_far(
                derivative_terms, derivative_terms.lead, derivative_terms.lead_size
            )
            if decay_ref > 0.0:
                at_gone[0, k] = -decay_ref * ref
                at_gone[2, k] = decay_ref * ref_size
            if d_ref < 1.0:
                value, size = _terms_near(
                    derivative_terms, -d_ref, _decay_ratio(-d_ref), math.exp(d_ref)
                )
                value = decay_ref * d_ref * value
                size = decay_ref * d_ref * size
            else:
                value, size = _terms_far(
                    derivative_terms, -derivative_terms.mean, derivative_terms.mean
                )
                value = value + at_gone[0, k]
                size = size + at_gone[2, k]
        # where this fails, `near_atoms` counts no atom as flat
        if x[k] + log_ref_above_r0 >= FLAT:
            at_flat[0, k] = value
            at_flat[2, k] = size
        if tilted is None or (c[1] == 0.0 and c[2] == 0.0):
            at_flat[2, k], at_gone[2, k] = abs(at_flat[0, k]), abs(at_gone[0, k])
        if k % 2 == 0:
            at_flat[1, k], at_gone[1, k] = 2.0 * at_flat[0, k], 2.0 * at_gone[0, k]


@njit_bare
def _write_plain_terms(c: float, rate: FloatArray, term: FloatArray, size: FloatArray) -> None:
    """Multiply `term` by c v r for a block of atoms, and write the magnitudes of it to `size`.

    `rate` is v r.
    """
    for i in range(len(rate)):
        term[i] *= c * rate[i]
    for i in range(len(rate)):
        size[i] = abs(term[i])


class _DerivativeTerms(NamedTuple):
    """The values at one node from which c0 D + c1 v D' + c2 v**2 D'' is computed.

    A field such as `lead_size` is the sum of the magnitudes of the terms that `lead` adds up.
    """

    c0: float
    c1: float
    c2: float
    s0: float  # the sums of magnitudes of the terms of c0, c1 and c2
    s1: float
    s2: float
    mean: float  # v (tilted mean - r0)
    lead: float  # v (R - tilted mean); 0 where psi_R is 0
    lead_size: float
    variance: float  # v**2 times the tilted variance
    variance_size: float
    square: float  # lead**2 - variance
    square_size: float


@njit
def _make_derivative_terms(c: FloatArray, tilted: FloatArray, decay_ref: float) -> _DerivativeTerms:
    """Return the values at a node, given its row `c` of `coefficients` and its row of `tilted`.

    `decay_ref` is exp(-v (R - r0)).
    """
    lead, lead_size = (tilted[1], tilted[3]) if decay_ref > 0.0 else (0.0, 0.0)
    variance = tilted[2]
    variance_size = tilted[4]
    square = lead * lead - variance
    square_size = abs(lead) * lead_size + variance_size
    return _DerivativeTerms(
        c[0], c[1], c[2], c[3], c[4], c[5], tilted[0], lead, lead_size, variance, variance_size,
        square, square_size,
    )  # fmt: skip


@njit
def _terms_far(parts: _DerivativeTerms, ahead: float, ahead_size: float) -> tuple[float, float]:
    """Return (c0 psi + c1 v psi' + c2 v**2 psi'') / psi, and the sum of magnitudes of its terms.

    The formulas are those before eq. (B16). `ahead` is v (r - tilted mean), and `ahead_size` the
    sum of the magnitudes of its terms.
    """
    value = parts.c0 - parts.c1 * ahead + parts.c2 * (ahead * ahead - parts.variance)
    size = parts.s0 + parts.s1 * ahead_size
    return value, size + parts.s2 * (abs(ahead) * ahead_size + parts.variance_size)


@njit
def _terms_near(
    parts: _DerivativeTerms, away: float, ratio: float, e: float
) -> tuple[float, float]:
    """Return (c0 D + c1 v D' + c2 v**2 D'') / (-psi_R v (r - R)), and its summed magnitudes.

    This is `_terms_far` for a ratio r near the reference ratio R, where D = psi - psi_R would
    cancel. `away` is v (r - R), at most 1 in magnitude; `e` is exp(-away); `ratio` is
    (1 - e) / away.
    """
    value = parts.c0 * ratio - parts.c1 * (parts.lead * ratio - e)
    value += parts.c2 * (parts.square * ratio - (2.0 * parts.lead + away) * e)
    size = parts.s0 * ratio + parts.s1 * (parts.lead_size * ratio + e)
    size += parts.s2 * (parts.square_size * ratio + (2.0 * parts.lead_size + abs(away)) * e)
    return value, size


@njit_bare
def _write_with_derivatives(
    at: float,
    parts: _DerivativeTerms,
    decay_ref: float,
    rows: Rows,
    size: FloatArray,
    term: FloatArray,
) -> None:
    """Write the terms of one node, with derivatives of D, and their magnitudes, for some atoms.

    On entry `size` is d and `term` is exp(-d); on return they are the magnitudes and the terms.
    `rows` are log r, kappa and log(r + R) of the atoms, which are a block. `at` is log v.
    """
    log_r, kappa, log_sum = rows
    ref, ref_size = _terms_far(parts, parts.lead, parts.lead_size)
    ref = decay_ref * ref
    ref_size = decay_ref * ref_size

    for i in range(len(log_r)):
        d = size[i]
        decay = term[i]
        total = exp64(at + log_sum[i])
        away = kappa[i] * total
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        ratio = decay_ratio_series(near)
        value, value_size = _terms_near(parts, near, ratio, 1.0 - near * ratio)
        far, far_size = _terms_far(parts, d - parts.mean, d + parts.mean)
        far = decay * far - ref
        far_size = decay * far_size + ref_size
        scale = decay_ref * total
        term[i] = -scale * value if near == away else far / kappa[i]
        size[i] = scale * value_size if near == away else far_size / abs(kappa[i])

    for i in range(len(log_r)):
        rate = exp64(at + log_r[i])
        term[i] *= rate
        size[i] *= rate


# --- blocks of atoms at a node -----------------------------------------------------------------


@njit
def scaled(x: float, log_distance: float) -> float:
    """Return v times a distance, given x = log v and the log of the distance.

    Larger results than exp(LARGEST_EXPONENT) are clipped to it.
    """
    return math.exp(min(x + log_distance, LARGEST_EXPONENT))


@njit_bare
def near_atoms(x: float, log_d: FloatArray, log_distances: FloatArray) -> tuple[int, int]:
    """Return the index of the first atom that is not flat, and of the first gone atom.

    An atom is flat if d = v (r - r0) is below exp(`FLAT`), and below exp(`FLAT`) times each of the
    products of v and a distance whose log is in `log_distances`. If one of these products is itself
    below exp(`FLAT`), no atom counts as flat. An atom is gone if d is at least exp(`GONE`).
    """
    edge = FLAT - x
    for log_distance in log_distances:
        edge = min(edge, FLAT + log_distance) if x + log_distance >= FLAT else -np.inf
    return count_below(log_d, edge), count_below(log_d, GONE - x)


@njit_bare
def _write_exps(logs: FloatArray, out: FloatArray) -> float:
    """Write exp(logs) to `out`, and return the largest |log| of those that are not -inf."""
    reach = 0.0
    for i in range(len(logs)):
        out[i] = math.exp(min(logs[i], LARGEST_EXPONENT))
        if logs[i] > -np.inf:
            reach = max(reach, abs(logs[i]))
    return reach


@njit_bare
def _write_scaled_exps(
    x: float, logs: FloatArray, plain: FloatArray, reach: float, part: slice, out: FloatArray
) -> None:
    """Write v exp(logs) to `out` for a block, given `plain` = exp(logs) and `reach` = max |logs|.

    It is computed as v * plain, or as exp(x + logs) if a product could overflow or underflow.
    """
    if abs(x) + reach < _MAX_EXPONENT:
        v = math.exp(x)
        exps = plain[part]
        for i in range(len(exps)):
            out[i] = v * exps[i]
    else:
        block_logs = logs[part]
        for i in range(len(block_logs)):
            out[i] = exp64(x + block_logs[i])


@njit_bare
def _write_decays(d: FloatArray, decay: FloatArray, drop: FloatArray) -> None:
    """Write exp(-d) to `decay` and exp(-d) - 1 to `drop` for a block, with d = v (r - r0).

    The naive exp(-d) - 1 loses digits for small d. For d < 1 it is computed as -d times the series
    of (1 - exp(-d)) / d.
    """
    last = count_below(d, 1.0)
    for i in range(len(d[:last])):
        drop[i] = -d[i] * decay_ratio_series(d[i])
        decay[i] = 1.0 + drop[i]
    far = d[last:]
    of_far = decay[last:]
    far_drop = drop[last:]
    for i in range(len(far)):
        e = exp64(-far[i] if far[i] < _MAX_EXPONENT else -_MAX_EXPONENT)
        of_far[i] = e if far[i] < _MAX_EXPONENT else 0.0
        far_drop[i] = of_far[i] - 1.0


@njit_bare
def _write_signed(signs: FloatArray, total: FloatArray, out: FloatArray) -> tuple[int, int]:
    """Write signs * total of a block of atoms to `out`; the products must increase.

    Returns the number of products below -1, and the number of products below 1.
    """
    for i in range(len(signs)):
        out[i] = signs[i] * total[i]
    rising = out[: len(signs)]
    return count_below(rising, -1.0), count_below(rising, 1.0)


@njit_bare
def _write_contrasts(
    decay_ref: float, kappa: FloatArray, decay: FloatArray, away: FloatArray, out: FloatArray
) -> None:
    """Write (exp(-v (r - r0)) - exp(-v (R - r0))) / kappa to `out` for a block, eq. (B19).

    The naive difference loses digits where r is near R. It equals
    -exp(-v (R - r0)) a (1 - exp(-a)) / a with a = v (r - R) = kappa v (r + R), which is used for
    |a| < 1. `out` holds v (r + R) on entry, and `decay_ref` is exp(-v (R - r0)).
    """
    first, last = _write_signed(kappa, out, away)  # v (r - R)
    near = away[first:last]
    close = out[first:last]
    for i in range(len(near)):
        close[i] *= -decay_ref * decay_ratio_series(near[i])
    for part in (slice(0, first), slice(last, len(kappa))):
        e = decay[part]
        k = kappa[part]
        far = out[part]
        for i in range(len(k)):
            far[i] = (e[i] - decay_ref) / k[i]


# --- scalar functions --------------------------------------------------------------------------


@njit
def _decay_ratio(x: float) -> float:
    """Return (1 - exp(-x)) / x."""
    return -math.expm1(-x) / x if x != 0.0 else 1.0


@njit
def second_order(x: float) -> float:
    """Return (exp(-x) - 1 + x) / x**2."""
    return (math.exp(-x) - 1.0 + x) / (x * x) if abs(x) >= 1.0 else second_order_series(x)


@njit
def excess_decay(x: FloatArray) -> FloatArray:
    """Return exp(-x) - 1 + x for each x (K,)."""
    out = np.empty(len(x))
    for k in range(len(x)):
        out[k] = second_order(x[k]) * x[k] * x[k]
    return out


@njit
def tangent(x: float) -> float:
    """Return (1 - (1 + x) exp(-x)) / x**2."""
    if abs(x) >= 1.0:
        return (1.0 - (1.0 + x) * math.exp(-x)) / (x * x)
    return 1.0 - (1.0 + x) * second_order_series(x)
