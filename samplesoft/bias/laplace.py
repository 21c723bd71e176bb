"""The Laplace sums of the exact bias: over atoms at each node, and over nodes at each atom.

A draw of class j contributes r_j = e_j / q_j, and T(v) = sum_j q_j exp(-v r_j) is its transform.
All is written around three centres, so that no difference of nearly equal numbers is formed: the
least ratio r0 (keeps T from underflowing), the reference R (differences between classes), and the
mean of r (differences from the limit of many draws); section 4 of README.md here.

The atoms come sorted by r. At a node v, those with v (r - r0) near 0 are "flat", and one atom
stands for all of them; of those with large v (r - r0), which are "gone", nothing changes any more.
Only the atoms between are gone through, in blocks and in loops that the compiler turns into vector
code: those loops have no branches, and no more arrays than it can tell apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit, njit_sum, num_threads, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import (
    decay_ratio_series,
    exp64,
    second_order_series,
    third_order_series,
)

CENTRED_LIMIT = 600.0  # of v (mean - r0): beyond it exp(-y) leaves float64, and is not needed
_ATOM_CHUNK = 1024
_LEAST_NODES = 32
FLAT = -38.0  # below this log of d = v (r - r0), exp(-d) is 1 - d to the last bit
GONE = 7.3  # above it exp(-d) is 0, and so is exp(-y) for y = d - v (mean - r0)
_BLOCK = 256
_LARGEST = 708.0  # exp(-d) beyond it is taken for 0, and never a slow denormal number


class Points(NamedTuple):
    """What the kernels know of the atoms r, all (A,), sorted by r; distances are logs."""

    q: FloatArray
    q_kappa: FloatArray
    q_zeta2: FloatArray  # q zeta**2
    log_r: FloatArray
    log_d: FloatArray  # log (r - r0)
    kappa: FloatArray  # (r - R) / (r + R)
    log_sum: FloatArray  # log (r + R)
    zeta: FloatArray  # (r - mean) / (r + mean)
    log_from_mean: FloatArray  # log |r - mean|
    log_sum_mean: FloatArray  # log (r + mean)

    def part(self, of: slice) -> Points:
        """Return some of the atoms."""
        return Points(*(column[of] for column in self))


class NodeSums(NamedTuple):
    """Sums of q times the functions below over the atoms at each node, all (K,).

    d = v (r - r0) and y = v (r - mean), eqs. (B18) to (B21).
    """

    transform: FloatArray  # exp(-d): T exp(v r0)
    drop: FloatArray  # exp(-d) - 1
    first: FloatArray  # d exp(-d)
    second: FloatArray  # d**2 exp(-d)
    third: FloatArray  # d**3 exp(-d)
    above: FloatArray  # exp(-d) - exp(-v (R - r0))
    excess: FloatArray  # exp(-y) - 1 + y, P of the README
    tangent: FloatArray  # 1 - (1 + y) exp(-y), G of the README
    bend: FloatArray  # (y**2 + 2 y + 2) exp(-y) - 2
    square: FloatArray  # y**2 exp(-y)
    cube: FloatArray  # y**3 exp(-y)


class Integrals(NamedTuple):
    """Integrals over the nodes at each atom, all (A,)."""

    full: FloatArray
    half: FloatArray  # the same from every second node
    size: FloatArray  # of the sizes of what the terms are made of


def node_chunks(num_nodes: int) -> list[slice]:
    """Split nodes into parts for the threads; what is known of all atoms is made for each part."""
    threads = num_threads()
    parts = 4 * threads if threads > 1 else 1
    return chunks(num_nodes, max(_LEAST_NODES, -(-num_nodes // parts)))


def node_sums(x: FloatArray, points: Points, log_above_least: FloatArray) -> NodeSums:
    """Return the sums over atoms at each node log v, `x` (K,), on all threads.

    `log_above_least` (2,) is log (R - r0) and log (mean - r0).
    """
    sums = np.zeros((len(NodeSums._fields), len(x)))

    def work(part: slice) -> None:
        _add_node_sums(x[part], points, log_above_least, sums[:, part], NodeSums(*sums[:, part]))

    thread_each(work, node_chunks(len(x)))
    return NodeSums(*sums)


def atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray,
    points: Points,
    log_d_ref: float,
) -> Integrals:
    """Integrate over the nodes log v, `x` (K,), at each atom, on all threads.

    The integrand is v r T exp(v r0) (c0 D + c1 v D' + c2 v**2 D'') / kappa for D = psi - psi_R,
    eq. (B23). `coefficients` (K, 6) are c0, c1, c2 and their sizes; `tilted` (K, 5) is v (mean -
    r0), v (R - mean) and v**2 variance, of r tilted by exp(-v r), and the sizes of the last two;
    `log_d_ref` is log (R - r0).
    """
    integrals = np.empty((3, len(points.q)))

    def work(part: slice) -> None:
        own = np.zeros((3, part.stop - part.start))
        _add_atom_integrals(x, coefficients, tilted, points.part(part), log_d_ref, own)
        integrals[:, part] = own

    thread_each(work, chunks(len(points.q), _ATOM_CHUNK))
    return Integrals(*integrals)


# --- sums over atoms --------------------------------------------------------------------------


@njit
def _add_node_sums(
    x: FloatArray, points: Points, reference: FloatArray, out: FloatArray, sums: NodeSums
) -> None:
    """Add the sums at each node to `out`, whose rows are `sums` and which is zero."""
    log_d, kappa, log_sum = points.log_d, points.kappa, points.log_sum
    zeta, log_sum_mean = points.zeta, points.log_sum_mean
    # `q_drop` is q where it is multiplied by d; the three are changed below, and changed back
    q, q_kappa, q_zeta2 = points.q.copy(), points.q_kappa.copy(), points.q_zeta2.copy()
    q_drop = q.copy()
    # of flat atoms: sums before each place; that of q d is in units of the last d
    early, early_by_ref, early_by_mean = sums_before(q), sums_before(q_kappa), sums_before(q_zeta2)
    early_d = sums_below(q, log_d)
    # of atoms that are gone: sums from each place on
    by_mean = q_zeta2 / np.where(zeta == 0.0, np.inf, zeta * zeta)
    late_by_ref = sums_after(q_kappa / np.where(kappa == 0.0, np.inf, kappa))
    late, late_by_mean = sums_after(q), sums_after(by_mean)
    late_mean = sums_after(by_mean * np.exp(points.log_from_mean - max(reference[1], -1e300)))
    d, decay = np.empty(_BLOCK), np.empty(_BLOCK)
    contrast, y = np.empty(_BLOCK), np.empty(_BLOCK)
    to_d, to_sum, to_sum_mean = _plain(log_d), _plain(log_sum), _plain(log_sum_mean)
    terms = np.empty((5, _BLOCK))
    for k in range(len(x)):
        at = x[k]
        d_mean = scaled(at, reference[1])
        decay_ref = math.exp(-scaled(at, reference[0]))
        is_centred = at + reference[1] < math.log(CENTRED_LIMIT)
        flat, gone = near_atoms(at, log_d, reference)
        if gone < len(log_d):
            sums.drop[k] -= late[gone]
            sums.above[k] -= decay_ref * late_by_ref[gone]
            if is_centred:
                sums.excess[k] += d_mean * late_mean[gone] - late_by_mean[gone]
                sums.tangent[k] += late_by_mean[gone]
                sums.bend[k] -= 2.0 * late_by_mean[gone]
        merged = max(flat - 1, 0)  # the last flat atom stands for all of them
        q[merged], q_drop[merged] = early[merged + 1], early_d[merged + 1]
        q_kappa[merged], q_zeta2[merged] = early_by_ref[merged + 1], early_by_mean[merged + 1]
        for start in range(merged, gone, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            size = part.stop - start
            _times(at, log_d, to_d, part, d)
            _times(at, log_sum, to_sum, part, contrast)
            _write_decays(d, decay, size)
            _write_contrasts(decay_ref, kappa[part], decay, contrast)
            of_block = _sum_decays(q[part], q_drop[part], q_kappa[part], d, decay, contrast)
            for h in range(6):
                out[h, k] += of_block[h]
            if is_centred:
                _times(at, log_sum_mean, to_sum_mean, part, y)
                _write_centred(q_zeta2[part], zeta[part], y, terms)
                for h in range(5):
                    out[6 + h, k] += _total(terms[h, :size])
        q[merged], q_drop[merged] = points.q[merged], points.q[merged]
        q_kappa[merged], q_zeta2[merged] = points.q_kappa[merged], points.q_zeta2[merged]


@njit_sum
def _total(values: FloatArray) -> float:
    total = 0.0
    for i in range(len(values)):
        total += values[i]
    return total


@njit_sum
def _sum_decays(
    q: FloatArray,
    q_drop: FloatArray,
    q_kappa: FloatArray,
    d: FloatArray,
    decay: FloatArray,
    contrast: FloatArray,
) -> tuple[float, float, float, float, float, float]:
    """Return the first six sums of a block; `q_drop` is q of what vanishes with d."""
    transform = drop = first = second = third = above = 0.0
    for i in range(len(q)):
        transform += q[i] * decay[i]
        moment = q_drop[i] * decay[i]
        first += moment * d[i]
        second += moment * d[i] * d[i]
        third += moment * d[i] * d[i] * d[i]
        above += q_kappa[i] * contrast[i]
        near = d[i] if d[i] < 1.0 else 1.0
        small = -near * decay_ratio_series(near)
        drop += q_drop[i] * (small if d[i] < 1.0 else decay[i] - 1.0)
    return transform, drop, first, second, third, above


@njit
def _write_centred(
    weights: FloatArray, zeta: FloatArray, total: FloatArray, terms: FloatArray
) -> None:
    """Write the terms of the sums around the mean of a block, whose v (r + mean) is `total`.

    They are made of one series, (y**2 / 2 - exp(-y) + 1 - y) / y**3, where y is small.
    """
    p, h, t, y2, y3 = terms[0], terms[1], terms[2], terms[3], terms[4]
    for i in range(len(weights)):
        y = zeta[i] * total[i]
        y3[i] = y  # until its own sum is written there, as exp(-y) in `y2`
        p[i] = weights[i] * total[i] * total[i]  # q y**2, with no difference in it
        y2[i] = exp64(-y)
    for i in range(len(weights)):
        y = y3[i]
        near = -1.0 if y < -1.0 else y
        near = 1.0 if near > 1.0 else near
        series = third_order_series(near)
        half = 0.5 - near * series
        is_near = near == y
        e = y2[i]
        scale = p[i] if is_near else weights[i] / (zeta[i] * zeta[i])
        p[i] = scale * (half if is_near else e - 1.0 + y)
        h[i] = scale * (1.0 - (1.0 + near) * half if is_near else 1.0 - e - e * y)
        bend = near * (0.5 * near - (near * near + 2.0 * near + 2.0) * series)
        t[i] = scale * (bend if is_near else e * y * y + 2.0 * e * y + 2.0 * e - 2.0)
        y2[i] = scale * (e if is_near else e * y * y)
        y3[i] = y2[i] * y


@njit
def sums_below(weights: FloatArray, logs: FloatArray) -> FloatArray:
    """Return sums of weights exp(logs) before each place, (A + 1,), over the last exp(logs)."""
    out = np.empty(len(logs) + 1)
    out[0] = 0.0
    for i in range(len(logs)):
        down = math.exp(logs[i - 1] - logs[i]) if i > 0 and logs[i - 1] > -np.inf else 0.0
        out[i + 1] = out[i] * down + weights[i]
    return out


@njit
def sums_before(weights: FloatArray) -> FloatArray:
    """Return the sums of the weights before each place, (A + 1,)."""
    out = np.empty(len(weights) + 1)
    out[0] = 0.0
    for i in range(len(weights)):
        out[i + 1] = out[i] + weights[i]
    return out


@njit
def sums_after(weights: FloatArray) -> FloatArray:
    """Return the sums of the weights from each place on, (A + 1,)."""
    return sums_before(weights[::-1])[::-1]


# --- integrals over nodes ---------------------------------------------------------------------


@njit
def _add_atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray,
    points: Points,
    log_d_ref: float,
    out: FloatArray,
) -> None:
    """Add the integrals at some atoms to `out` (3, A), which is zero: full, half and size."""
    num = len(x)
    log_r, log_d, kappa, log_sum = points.log_r, points.log_d, points.kappa, points.log_sum
    at_flat, at_gone = _far_terms(x, coefficients, tilted, log_d_ref)
    # what the nodes before each, and from each on, bring to an atom there, over v r / kappa
    early, late = np.empty((3, num + 1)), np.empty((3, num + 1))
    for h in range(3):
        early[h] = sums_below(at_flat[h], x)
        late[h] = sums_below(at_gone[h, ::-1], x[::-1])[::-1]
    d, decay, contrast = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    to_d, to_sum, to_r = _plain(log_d), _plain(log_sum), _plain(log_r)
    reference = np.array([log_d_ref])
    scales = np.empty((3, len(log_r)))
    scales[0] = scales[1] = 1.0 / kappa
    scales[2] = np.abs(scales[0])
    flat, gone = 0, len(log_r)
    for k in range(num):
        at, c = x[k], coefficients[k]
        new_flat, new_gone = near_atoms(at, log_d, reference)
        add_far(x[max(k - 1, 0)], early[:, k], log_r, scales, new_flat, flat, out)
        add_far(at, late[:, k], log_r, scales, new_gone, gone, out)
        flat, gone = new_flat, new_gone
        if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:
            continue
        decay_ref = math.exp(-scaled(at, log_d_ref))
        for start in range(flat, gone, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            _times(at, log_d, to_d, part, d)
            _write_decays(d, decay, part.stop - start)
            if c[1] == 0.0 and c[2] == 0.0:
                _times(at, log_sum, to_sum, part, contrast)
                _write_contrasts(decay_ref, kappa[part], decay, contrast)
                # what has been used makes room: v r stands in `decay`, the size will in `d`
                _times(at, log_r, to_r, part, decay)
                term, size = contrast[: part.stop - start], d[: part.stop - start]
                _write_plain(c[0], decay, term, size)
            else:
                bend = _make_bend(c, tilted[k], decay_ref)
                rows = log_r[part], kappa[part], log_sum[part]
                # d and decay go in by the names of what comes out in their places
                term, size = decay[: part.stop - start], d[: part.stop - start]
                _write_bent(at, bend, decay_ref, *rows, size, term)
            # one loop over all arrays would not be turned into vector code
            _add(term, 1.0, out[0][part])
            if k % 2 == 0:
                _add(term, 2.0, out[1][part])
            _add(size, 1.0, out[2][part])
    add_far(x[num - 1], early[:, num], log_r, scales, 0, flat, out)


@njit
def add_far(
    x: float,
    terms: FloatArray,
    log_r: FloatArray,
    scales: FloatArray,
    start: int,
    stop: int,
    out: FloatArray,
) -> None:
    """Add what far nodes bring, `terms` (k,) times v r `scales` (k, A), to some atoms of `out`."""
    for i in range(start, stop):
        rate = scaled(x, log_r[i])
        for h in range(len(terms)):
            if terms[h] != 0.0:
                out[h, i] += terms[h] * rate * scales[h, i]


@njit
def _far_terms(
    x: FloatArray, coefficients: FloatArray, tilted: FloatArray, log_d_ref: float
) -> tuple[FloatArray, FloatArray]:
    """Return what each node brings to atoms that are flat, and to those that are gone, (3, K).

    They are over v r / kappa, in the order full, half, size. Where c1 = c2 = 0, as of all schemes
    but the jackknife, what is bent below is c0 alone.
    """
    at_flat, at_gone = np.zeros((3, len(x))), np.zeros((3, len(x)))
    for k in range(len(x)):
        c = coefficients[k]
        if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:
            continue
        d_ref = scaled(x[k], log_d_ref)
        decay_ref = math.exp(-d_ref)
        bend = _make_bend(c, tilted[k], decay_ref)
        ref, ref_size = _bend_far(bend, bend.lead, bend.lead_size)
        if decay_ref > 0.0:
            at_gone[0, k], at_gone[2, k] = -decay_ref * ref, decay_ref * ref_size
        if d_ref < 1.0:  # the least ratio is near the reference: (B19) with r = r0, kappa = -1
            value, size = _bend_near(bend, -d_ref, _decay_ratio(-d_ref), math.exp(d_ref))
            value, size = decay_ref * d_ref * value, decay_ref * d_ref * size
        else:
            value, size = _bend_far(bend, -bend.mean, bend.mean)
            value, size = value + at_gone[0, k], size + at_gone[2, k]
        if x[k] + log_d_ref >= FLAT:  # else no atom is taken for flat
            at_flat[0, k], at_flat[2, k] = value, size
        if c[1] == 0.0 and c[2] == 0.0:
            at_flat[2, k], at_gone[2, k] = abs(at_flat[0, k]), abs(at_gone[0, k])
        if k % 2 == 0:
            at_flat[1, k], at_gone[1, k] = 2.0 * at_flat[0, k], 2.0 * at_gone[0, k]
    return at_flat, at_gone


@njit
def _write_plain(c: float, rate: FloatArray, term: FloatArray, size: FloatArray) -> None:
    """Write the terms of one node in a block, from contrasts and v r, and their sizes."""
    for i in range(len(term)):
        term[i] *= c * rate[i]
    for i in range(len(term)):
        size[i] = abs(term[i])


@njit
def _add(terms: FloatArray, scale: float, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] += scale * terms[i]


class _Bend(NamedTuple):
    """What (c0 D + c1 v D' + c2 v**2 D'') depends on at a node, v times differences of ratios."""

    c0: float
    c1: float
    c2: float
    s0: float  # sizes of what the three are made of
    s1: float
    s2: float
    mean: float  # tilted mean - r0
    lead: float  # R - tilted mean; 0 where psi_R has vanished
    lead_size: float
    variance: float
    variance_size: float
    square: float  # lead**2 - variance
    square_size: float


@njit
def _make_bend(c: FloatArray, tilted: FloatArray, decay_ref: float) -> _Bend:
    """Return what is needed at a node, from its rows of `atom_integrals`."""
    lead, lead_size = (tilted[1], tilted[3]) if decay_ref > 0.0 else (0.0, 0.0)
    variance, variance_size = tilted[2], tilted[4]
    square, square_size = lead * lead - variance, abs(lead) * lead_size + variance_size
    return _Bend(
        c[0], c[1], c[2], c[3], c[4], c[5], tilted[0], lead, lead_size, variance, variance_size,
        square, square_size,
    )  # fmt: skip


@njit
def _bend_far(bend: _Bend, ahead: float, ahead_size: float) -> tuple[float, float]:
    """Return c0 psi + c1 v psi' + c2 v**2 psi'' over psi, and its size; above eq. (B16).

    `ahead` is v (r - tilted mean).
    """
    value = bend.c0 - bend.c1 * ahead + bend.c2 * (ahead * ahead - bend.variance)
    size = bend.s0 + bend.s1 * ahead_size
    return value, size + bend.s2 * (abs(ahead) * ahead_size + bend.variance_size)


@njit
def _bend_near(bend: _Bend, away: float, ratio: float, e: float) -> tuple[float, float]:
    """Return the same of D over -psi_R v (r - R), for away = v (r - R) below 1.

    `e` is exp(-away) and `ratio` (1 - e) / away.
    """
    value = bend.c0 * ratio - bend.c1 * (bend.lead * ratio - e)
    value += bend.c2 * (bend.square * ratio - (2.0 * bend.lead + away) * e)
    size = bend.s0 * ratio + bend.s1 * (bend.lead_size * ratio + e)
    size += bend.s2 * (bend.square_size * ratio + (2.0 * bend.lead_size + abs(away)) * e)
    return value, size


@njit
def _write_bent(
    at: float,
    bend: _Bend,
    decay_ref: float,
    log_r: FloatArray,
    kappa: FloatArray,
    log_sum: FloatArray,
    size: FloatArray,
    term: FloatArray,
) -> None:
    """Write the terms of one node in a block, with derivatives of D, over d and exp(-d)."""
    ref, ref_size = _bend_far(bend, bend.lead, bend.lead_size)
    ref, ref_size = decay_ref * ref, decay_ref * ref_size
    for i in range(len(log_r)):
        d, decay = size[i], term[i]  # until their places are written
        total = exp64(at + log_sum[i])
        away = kappa[i] * total
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        ratio = decay_ratio_series(near)
        value, value_size = _bend_near(bend, near, ratio, 1.0 - near * ratio)
        far, far_size = _bend_far(bend, d - bend.mean, d + bend.mean)
        far, far_size = decay * far - ref, decay * far_size + ref_size
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
    """Return v times a distance that is known by its log."""
    return math.exp(min(x + log_distance, LARGEST_EXPONENT))


@njit
def near_atoms(x: float, log_d: FloatArray, reference: FloatArray) -> tuple[int, int]:
    """Return the numbers of the first atom that is not flat, and of the first that is gone.

    Flat atoms are as good as at r0, beside each `reference` too; none are where one of these is.
    """
    edge = FLAT - x
    for log_distance in reference:
        edge = min(edge, FLAT + log_distance) if x + log_distance >= FLAT else -np.inf
    return int(np.searchsorted(log_d, edge)), int(np.searchsorted(log_d, GONE - x))


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
    if abs(x) + plain[1] < _LARGEST:
        v, own = math.exp(x), plain[0][part]
        for i in range(len(own)):
            out[i] = v * own[i]
    else:
        those = logs[part]
        for i in range(len(those)):
            out[i] = exp64(x + those[i])


@njit
def _write_decays(d: FloatArray, decay: FloatArray, size: int) -> None:
    """Write exp(-d) of a block, d = v (r - r0)."""
    for i in range(size):
        e = exp64(-d[i] if d[i] < _LARGEST else -_LARGEST)
        decay[i] = e if d[i] < _LARGEST else 0.0


@njit
def _write_contrasts(
    decay_ref: float, kappa: FloatArray, decay: FloatArray, out: FloatArray
) -> None:
    """Write (exp(-v (r - r0)) - exp(-v (R - r0))) / kappa of a block over v (r + R), eq. (B19)."""
    for i in range(len(kappa)):
        total = out[i]
        away = kappa[i] * total  # v (r - R)
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        close = -decay_ref * total * decay_ratio_series(near)
        far = (decay[i] - decay_ref) / kappa[i]
        out[i] = close if near == away else far


# --- functions of one number -------------------------------------------------------------------


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
