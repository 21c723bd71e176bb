"""How much each scheme weighs the nodes: the law of its number of draws, in v."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import Draws
from samplesoft.bias.quadrature import halving_change
from samplesoft.bias.transform import Classes, Nodes

_STEP_WIDTH = 0.3


@dataclass(frozen=True)
class Times:
    """Node weights for E(v) = m theta**m and its like.

    Attributes
    ----------
    coefficients : ndarray, shape (K, 3)
        Weights of D, v D' and v**2 D'' in `atom_integrals`; only the jackknife has the last two.
    label : ndarray, shape (K,)
        Terms of base * integral of E (1 - psi_R); for ``candidate_masked``, of E psi_R; 0 for
        ``candidate``, which has no use for them.
    base : ndarray, shape (K,)
        Terms of base * integral of E.
    loss : ndarray, shape (K,)
        Terms of E[log S] - log E[S].
    """

    coefficients: FloatArray
    label: FloatArray
    base: FloatArray
    loss: FloatArray


def decay_rates(draws: Draws, classes: Classes, m: int, scheme: str) -> tuple[float, float]:
    """Return the logs of the typical and of the least rate at which E(v) decays."""
    least_count = 1 if scheme == "reject" else max(m - 1, 1)
    base = -np.inf if scheme == "candidate" else draws.log_base
    typical = np.log(m) + np.log(draws.expected_sum)
    return float(typical), float(np.log(least_count) + np.logaddexp(base, classes.log_least))


def make_times(draws: Draws, nodes: Nodes, m: int, scheme: str, log_cut: float = np.inf) -> Times:
    """Weigh the nodes for `scheme` with `m` draws; `log_cut` is for `_jackknife_times`.

    For ``candidate`` theta is phi alone: its base mass e_t / (m q_t) is one more draw of the label,
    which its classes carry in their ratios instead.
    """
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, 700.0))
    log_theta = nodes.log_phi - v_base
    log_free = nodes.log_phi if scheme == "candidate" else log_theta
    log_first = log_free - nodes.log_phi - nodes.v_least  # log of theta exp(-v r0) / phi
    if scheme == "jackknife":
        return _jackknife_times(draws, nodes, m, v_base, log_theta, log_first, log_cut)
    if scheme == "reject":
        log_mix = _log_kept(draws, log_theta)
        weight = m * draws.other_draw * np.exp(log_first + (m - 1) * log_mix)
        limit = _log_kept(draws, -nodes.v)
        growth = np.log(draws.other_draw) - nodes.v - limit
        ratio = np.log1p(np.exp(growth) * np.expm1(np.minimum(nodes.excess, 1.0)))
        close = (nodes.excess < 1.0) & (m * ratio < 1.0)
        loss = _excess(m * log_mix, m * limit, m * ratio, close)
    else:
        weight = m * np.exp(log_first + (m - 1) * log_free)
        loss = _jensen(draws, nodes, m, log_theta)
    coefficients = np.zeros((len(weight), 3))
    coefficients[:, 0] = nodes.step * weight
    terms = v_base * coefficients[:, 0]
    base = terms * np.exp(nodes.log_phi_least)
    if scheme == "candidate":
        label = np.zeros_like(base)
    elif scheme == "candidate_masked":
        label = base * np.exp(nodes.log_psi_ref)
    else:
        label = terms * nodes.above
    return Times(coefficients, label, base, -nodes.step * loss)


def _log_kept(draws: Draws, log_theta: FloatArray) -> FloatArray:
    """Return log E[theta**K] for one draw, K = 1 if it is kept and 0 if it is the label."""
    with np.errstate(divide="ignore"):
        far = np.logaddexp(np.log(draws.label_draw), np.log(draws.other_draw) + log_theta)
        return np.where(log_theta < -0.5, far, np.log1p(draws.other_draw * np.expm1(log_theta)))


def _jensen(draws: Draws, nodes: Nodes, m: int, log_theta: FloatArray) -> FloatArray:
    """Return theta**m - exp(-m v E[S]), at least 0."""
    limit = -m * nodes.v * draws.expected_sum
    return _excess(m * log_theta, limit, m * nodes.excess, m * nodes.excess < 1.0)


def _excess(
    log_value: FloatArray,
    log_limit: FloatArray,
    log_ratio: FloatArray,
    close: NDArray[np.bool_],
) -> FloatArray:
    """Return exp(log_value) - exp(log_limit), from their log ratio where they are close."""
    near = np.exp(log_limit) * np.expm1(np.where(close, log_ratio, 0.0))
    return np.where(close, near, np.exp(log_value) - np.exp(log_limit))


def jackknife_cuts(nodes: Nodes, log_base: float, m: int) -> list[float]:
    """Return three places for `log_cut`: after the law of large numbers, nowhere, everywhere.

    At the first, exp(-m s) m**2 is about exp(-10): the plain difference is harmless beyond it.
    """
    s = np.exp(np.minimum(nodes.x + log_base, 700.0)) - nodes.log_phi
    return [float(np.interp((10.0 + 2.0 * np.log(m)) / m, s, nodes.x)), np.inf, -np.inf]


def _jackknife_times(
    draws: Draws,
    nodes: Nodes,
    m: int,
    v_base: FloatArray,
    log_theta: FloatArray,
    log_first: FloatArray,
    log_cut: float,
) -> Times:
    """Weigh the nodes for m b_m - (m - 1) b_(m-1), of order 1/m**2, without its difference.

    In s = -log theta, b_m is the integral of m exp(-m s) H(s) with H = D dv/ds and H(0) = 0.
    Two integrations by parts turn the combination into that of -exp(-m s) (exp(s) - 1) H''(s).
    H may rise steeply once s stops growing with v, so H is split by a smooth step at v = exp(cut):
    below it by parts, above it as the plain difference.
    """
    s = -log_theta
    survive = nodes.step * np.exp(log_first + (m - 2) * log_theta)
    plain = m * m * np.expm1(log_theta) + (2.0 * m - 1.0)  # m**2 theta - (m - 1)**2
    step, step_1, step_2 = _smooth_step(nodes.x, log_cut)
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        slope = v_base + nodes.mean  # v ds/dv
        c2 = np.expm1(-s) / slope / slope
        c1 = 3.0 * c2 * (nodes.variance / slope)
        c0 = c1 * (nodes.variance / slope) - c2 * (nodes.skew / slope)
        below = np.stack(
            [c0 * step + c1 * step_1 + c2 * step_2, c1 * step + 2.0 * c2 * step_1, c2 * step],
            axis=1,
        )
        tilt = nodes.gap / s
        curve = nodes.balance / slope + (3.0 + tilt) * tilt * (nodes.gap / slope)
        loss = -np.expm1(-s) * np.exp(nodes.log_phi_least) * curve / slope
    below[(step < 1e-290) | (s < np.finfo(np.float64).tiny)] = 0.0
    below[:, 0] += plain * (1.0 - step)
    coefficients = survive[:, None] * below
    psi_ref = np.exp(nodes.log_psi_ref + nodes.log_phi_least)  # exp(-v (R - r0))
    lead = np.where(psi_ref > 0.0, nodes.lead, 0.0)
    with np.errstate(all="ignore"):
        bend = np.stack([nodes.above, psi_ref * lead, psi_ref * (nodes.variance - lead**2)])
        terms = np.where(coefficients == 0.0, 0.0, coefficients * bend.T).sum(axis=1)
        label = np.where(v_base > 0.0, v_base * terms, 0.0)
    plain_loss = (m - 1) * _jensen(draws, nodes, m - 1, log_theta)
    plain_loss -= m * _jensen(draws, nodes, m, log_theta)
    loss = min(survive * loss, nodes.step * plain_loss, key=_doubt)
    return Times(coefficients, label, np.zeros_like(label), loss)


def _doubt(terms: FloatArray) -> float:
    """Return the error to expect in the sum of `terms`: of the trapezoid rule and of rounding."""
    if not np.isfinite(terms).all():
        return np.inf
    coarse = halving_change(terms)
    size = float(np.abs(terms).sum())
    return 1e-15 * size + coarse * min(coarse / max(abs(float(terms.sum())), 1e-300), 1.0)


def _smooth_step(x: FloatArray, cut: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a step from 1 to 0 at `cut`, v times its derivative, and v**2 times its second."""
    if np.isinf(cut):
        return np.full_like(x, float(cut > 0.0)), np.zeros_like(x), np.zeros_like(x)
    t = (x - cut) / _STEP_WIDTH
    step = 0.5 * np.array([math.erfc(value) for value in t])
    first = -np.exp(-(t**2)) / (_STEP_WIDTH * math.sqrt(math.pi))
    return step, first, -first * (2.0 * t / _STEP_WIDTH + 1.0)
