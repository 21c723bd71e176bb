"""The sums of the Laplace transform one atom after another, with a formula for each range.

An oracle of `with_replacement.laplace`, which leaves out atoms far from where they matter and takes
the others in blocks.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

LARGEST_EXPONENT = 700.0
CENTRED_LIMIT = 600.0  # of v (mean - r0): beyond it exp(-y) leaves float64, and is not needed
NUM_SUMS = 11


@njit
def _decay_ratio(x: float) -> float:
    """Return (1 - exp(-x)) / x."""
    return -math.expm1(-x) / x if x != 0.0 else 1.0


@njit
def second_order(x: float) -> float:
    """Return (exp(-x) - 1 + x) / x**2."""
    if abs(x) >= 1.0:
        return (math.exp(-x) - 1.0 + x) / (x * x)
    # the Taylor series, by Horner's rule: 20 terms reach the last bit for |x| < 1
    total = 0.0
    for k in range(20, 1, -1):
        total = (1.0 - total * x) / k if k > 2 else 0.5 * (1.0 - total * x)
    return total


@njit
def tangent(x: float) -> float:
    """Return (1 - (1 + x) exp(-x)) / x**2."""
    if abs(x) >= 1.0:
        return (1.0 - (1.0 + x) * math.exp(-x)) / (x * x)
    total, term = 0.0, 0.5
    for k in range(2, 22):
        total += (k - 1) * term
        term *= -x / (k + 1)
    return total


@njit
def third_order(x: float) -> float:
    """Return ((x**2 + 2 x + 2) exp(-x) - 2) / x**2."""
    if abs(x) >= 1.0:
        return ((x * x + 2.0 * x + 2.0) * math.exp(-x) - 2.0) / (x * x)
    total, term = 0.0, -x / 6.0
    for k in range(3, 22):
        total += (k - 1) * (k - 2) * term
        term *= -x / (k + 1)
    return total


@njit
def _scaled(x: float, log_distance: float) -> float:
    """Return the product of v = exp(x) and a distance, capped at exp(LARGEST_EXPONENT)."""
    return math.exp(min(x + log_distance, LARGEST_EXPONENT))


@njit
def _contrast(
    x: float, decay: float, decay_ref: float, log_sum: float, away: float, kappa: float
) -> float:
    """Return (exp(-v (r - r0)) - exp(-v (R - r0))) / kappa, with away = v (r - R); eq. (B19)."""
    if abs(away) < 1.0:
        return -decay_ref * math.exp(min(x + log_sum, LARGEST_EXPONENT)) * _decay_ratio(away)
    return (decay - decay_ref) / kappa


@njit
def node_sums(
    x: np.ndarray, weights: np.ndarray, atoms: np.ndarray, reference: np.ndarray, out: np.ndarray
) -> None:
    """Sum over the atoms at each node log v, `x` (K,), into `out` (K, NUM_SUMS).

    `weights` (3, A) are q, q kappa and q zeta**2; `atoms` (8, A) are log r; log (r - r0); kappa,
    log |r - R|, log (r + R); zeta, log |r - mean|, log (r + mean); `reference` (2,) is log (R -
    r0) and log (mean - r0). The sums, with d = v (r - r0): q exp(-d), which is T exp(v r0); q
    (exp(-d) - 1); q d**k exp(-d) for k = 1, 2, 3; q (exp(-d) - exp(-v (R - r0))). With y = v (r -
    mean): q (exp(-y) - 1 + y); q (1 - (1 + y) exp(-y)); q ((y**2 + 2 y + 2) exp(-y) - 2), eqs.
    (B20) and (B21); q y**k exp(-y) for k = 2, 3.
    """
    for k in range(len(x)):
        decay_ref = math.exp(-_scaled(x[k], reference[0]))
        is_centred = x[k] + reference[1] < math.log(CENTRED_LIMIT)
        transform = drops = d1 = d2 = d3 = above = p = h = t = y2 = y3 = 0.0
        for i in range(atoms.shape[1]):
            d = _scaled(x[k], atoms[1, i])
            drop = math.expm1(-d)
            decay = 1.0 + drop if drop > -0.5 else math.exp(-d)  # one exponential, not two
            moment = weights[0, i] * decay
            transform += moment
            drops += weights[0, i] * drop
            d1 += moment * d
            d2 += moment * d * d
            d3 += moment * d * d * d
            kappa = atoms[2, i]
            away = math.copysign(_scaled(x[k], atoms[3, i]), kappa)
            above += weights[1, i] * _contrast(x[k], decay, decay_ref, atoms[4, i], away, kappa)
            if not is_centred:
                continue
            zeta = atoms[5, i]
            y = math.copysign(_scaled(x[k], atoms[6, i]), zeta)
            e = math.exp(-y)
            if abs(y) < 1.0:
                # q y**2 from q zeta**2: y / zeta = v (r + mean) has no difference in it
                scale = weights[2, i] * math.exp(2.0 * (x[k] + atoms[7, i]))
                p += scale * second_order(y)
                h += scale * tangent(y)
                t += scale * third_order(y)
                y2 += scale * e
                y3 += scale * e * y
            else:
                scale = weights[2, i] / (zeta * zeta)
                p += scale * (e - 1.0 + y)
                h += scale * (1.0 - e - e * y)
                t += scale * (e * y * y + 2.0 * e * y + 2.0 * e - 2.0)
                y2 += scale * (e * y) * y
                y3 += scale * (e * y) * y * y
        out[k] = (transform, drops, d1, d2, d3, above, p, h, t, y2, y3)


@njit
def _bend(
    x: float,
    d: float,
    decay: float,
    decay_ref: float,
    log_sum: float,
    away: float,
    kappa: float,
    c: np.ndarray,
    tilted: np.ndarray,
) -> tuple[float, float]:
    """Return (c0 D + c1 v D' + c2 v**2 D'') / kappa for D = psi - psi_R, times T exp(v r0).

    Second comes the sum of the sizes of its parts. d = v (r - r0) and away = v (r - R); `c` (6,)
    and `tilted` (5,) are those of `atom_integrals` at this node. Derivatives of psi: above eq.
    (B16).
    """
    c0, c1, c2, s0, s1, s2 = c[0], c[1], c[2], c[3], c[4], c[5]
    ahead, lead, variance = d - tilted[0], tilted[1], tilted[2]  # r and R less the tilted mean
    lead_size, variance_size = tilted[3], tilted[4]
    value = size = 0.0
    if abs(away) < 1.0:
        ratio = _decay_ratio(away)
        e = math.exp(-away)
        value = c0 * ratio - c1 * (lead * ratio - e)
        value += c2 * ((lead * lead - variance) * ratio - (2.0 * lead + away) * e)
        size = s0 * ratio + s1 * (lead_size * ratio + e)
        size += s2 * (abs(lead) * lead_size + variance_size) * ratio
        size += s2 * (2.0 * lead_size + abs(away)) * e
        scale = decay_ref * math.exp(min(x + log_sum, LARGEST_EXPONENT))
        return -scale * value, scale * size
    if decay > 0.0:
        value += decay * (c0 - c1 * ahead + c2 * (ahead * ahead - variance))
        ahead_size = d + tilted[0]
        size += decay * (s0 + s1 * ahead_size + s2 * (abs(ahead) * ahead_size + variance_size))
    if decay_ref > 0.0:
        value -= decay_ref * (c0 - c1 * lead + c2 * (lead * lead - variance))
        size += decay_ref * (s0 + s1 * lead_size + s2 * (abs(lead) * lead_size + variance_size))
    return value / kappa, size / abs(kappa)


@njit
def atom_integrals(
    x: np.ndarray,
    coefficients: np.ndarray,
    tilted: np.ndarray,
    atoms: np.ndarray,
    log_reference: float,
    out: np.ndarray,
) -> None:
    """Integrate over the nodes log v, `x` (K,), at each of the `atoms` (8, A) of `node_sums`.

    `out` (3, A) gets the integral of v r T exp(v r0) (c0 D + c1 v D' + c2 v**2 D'') / kappa for D
    = psi - psi_R, eq. (B23), the same from every second node, and that of the sizes of its parts.
    `coefficients` (K, 6) are c0, c1, c2 and their sizes; `tilted` (K, 5) is v (mean - r0), v (R -
    mean) and v**2 variance, of r tilted by exp(-v r), and the sizes of the last two;
    `log_reference` is log (R - r0).
    """
    for i in range(atoms.shape[1]):
        full = half = size = 0.0
        kappa = atoms[2, i]
        for k in range(len(x)):
            c = coefficients[k]
            if c[0] == 0.0 and c[1] == 0.0 and c[2] == 0.0:  # has underflowed far to the right
                continue
            d = _scaled(x[k], atoms[1, i])
            decay = math.exp(-d)
            decay_ref = math.exp(-_scaled(x[k], log_reference))
            if decay == 0.0 and decay_ref == 0.0:
                continue
            away = math.copysign(_scaled(x[k], atoms[3, i]), kappa)
            if c[1] == 0.0 and c[2] == 0.0:
                term = c[0] * _contrast(x[k], decay, decay_ref, atoms[4, i], away, kappa)
                part = abs(term)
            else:
                term, part = _bend(
                    x[k], d, decay, decay_ref, atoms[4, i], away, kappa, c, tilted[k]
                )
            scale = math.exp(min(x[k] + atoms[0, i], LARGEST_EXPONENT))
            term *= scale
            full += term
            size += part * scale
            if k % 2 == 0:  # the trapezoid rule of twice the step
                half += 2.0 * term
        out[0, i] = full
        out[1, i] = half
        out[2, i] = size


def rows_of(points):
    """Return what the loops know of atoms: (8, A)."""
    with np.errstate(divide="ignore"):
        log_away = points.log_sum + np.log(np.abs(points.kappa))
    return np.stack(
        [
            points.log_r,
            points.log_d,
            points.kappa,
            log_away,
            points.log_sum,
            points.zeta,
            points.log_from_mean,
            points.log_sum_mean,
        ]
    )


def sums_at_nodes(x, points, log_ref_above_r0, log_mean_above_r0):
    """Return what `laplace.node_sums` does, as an array (NUM_SUMS, K)."""
    reference = np.array([log_ref_above_r0, log_mean_above_r0])
    out = np.empty((len(x), NUM_SUMS))
    node_sums(x, np.stack(points[:3]), rows_of(points), reference, out)
    return out.T


def integrals_at_atoms(x, coefficients, tilted, points, log_reference):
    """Return what `laplace.atom_integrals` does, as an array (3, A)."""
    out = np.empty((3, len(points.q)))
    tilted = np.zeros((len(x), 5)) if tilted is None else tilted
    atom_integrals(x, coefficients, tilted, rows_of(points), log_reference, out)
    return out
