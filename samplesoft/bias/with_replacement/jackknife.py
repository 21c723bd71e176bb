"""The jackknife, whose bias is of order 1/m**2, by parts: no difference of large numbers.

For m draws the bias is the integral of m exp(-m s) H(s), s = -log theta, and the loss bias that of
exp(-m s) K(s). The jackknife takes g'' and -g' in place of these exponentials, eqs. (B13) and
(B70), and integration by parts moves the derivatives to H and K; section 7 of the README.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import erfc

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import ROUNDING, sum_error
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.node_weights import (
    NodeWeights,
    exponent_sizes,
    log_first_draw,
)
from samplesoft.bias.with_replacement.nodes import TiltedNodes

# of the smooth step, in log v: wide beside the nodes, narrow beside the integrand
_STEP_WIDTH = 0.3
_STEP_END = 6.5  # widths beyond the cut, where the step has fallen to 4e-20, and is taken for 0
_OF_CUBES = 8.0  # errors of a cube, each of some units
_SURE = 1e-11  # relative error at which no other cut is tried
_SIGNS = np.array([[-1.0], [1.0]])  # of what is taken off a number, and added to its size


def jackknife_weights(draws: Draws, nodes: TiltedNodes, unit: float) -> Iterator[NodeWeights]:
    """Yield the node weights to try, first those that mostly suffice.

    `unit` is the relative error of a loss term that is proportional to a ratio.
    """
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    kernel = _make_kernel(draws, v_base - nodes.log_transform)  # s is a sum of numbers above 0
    loss = _make_loss_terms(draws, nodes, kernel, unit)
    for cut in _choose_cuts(draws, nodes, kernel.s):
        yield _make_jackknife_weights(draws, nodes, kernel, cut, loss)


class _Kernel(NamedTuple):
    """A kernel g and its derivatives in s, over exp(-(m - 1) s), all (K,).

    The last three are polynomials in 1 - exp(-s), (2, K): their values, and their sizes, which are
    those of their terms without signs.
    """

    s: FloatArray  # -log theta at the nodes
    decay: FloatArray  # exp(-(m - 1) s)
    g: FloatArray
    derivative: FloatArray  # g'
    bend: FloatArray  # g''


class _LossTerms(NamedTuple):
    """Terms (K,) of the loss bias at the nodes, and the sizes of what they are made of.

    `narrow` says that they are analytic in a narrow strip only; see `estimate_error`.
    """

    terms: FloatArray
    sizes: FloatArray
    narrow: bool


def _make_kernel(draws: Draws, s: FloatArray) -> _Kernel:
    """Return the kernel of the jackknife at numbers s (K,), eq. (B14)."""
    m = float(draws.num_draws)
    x = -np.expm1(-s)
    return _Kernel(
        s=s,
        decay=np.exp(-(m - 1.0) * s),
        g=_SIGNS * x,
        derivative=m * x + _SIGNS,
        bend=2.0 * m - 1.0 + _SIGNS * (m * m * x),
    )


def _make_jackknife_weights(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel, log_cut: float, loss: _LossTerms
) -> NodeWeights:
    """Weigh the nodes by parts below v = exp(log_cut), and as the plain difference above.

    In s = -log theta, b_m is the integral of m exp(-m s) H(s) with H = D dv/ds and H(0) = 0. Two
    integrations by parts turn the kernel of the combination, g'', into g of H'', eq. (B14). H may
    rise steeply once s stops growing with v, so H is split by a smooth step.
    """
    s = kernel.s
    # the kernel's exponential has one draw more than what the psi of a class leaves
    survive = nodes.dx * np.exp(log_first_draw(nodes, -s) - (draws.num_draws - 2) * s)
    step = _smooth_step(nodes.x, log_cut)
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    variance = np.stack([nodes.variance, nodes.variance_size])
    skew = np.stack([-nodes.skew, nodes.skew_size])
    first, second = (np.stack([v, np.abs(v)]) for v in (step.first, step.second))
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        derivative = v_base + nodes.mean  # v ds/dv
        # (B15): H'' in D, v D' and v**2 D'', and the sizes of that, (2, K)
        c2 = kernel.g / derivative / derivative
        c1 = 3.0 * c2 * (variance / derivative)
        c0 = c1 * (nodes.variance / derivative) + c2 * (skew / derivative)
        # the same of D times the step
        whole = c0 * step.value + c1 * first + c2 * second
        below = np.stack([whole, c1 * step.value + 2.0 * c2 * first, c2 * step.value])
    below = below.transpose(2, 1, 0).reshape(-1, 6)
    below[(step.value < 1e-290) | (s < np.finfo(np.float64).tiny)] = 0.0
    below[:, [0, 3]] += (kernel.bend * (1.0 - step.value)).T
    coefficients = survive[:, None] * below
    label_terms, label_sizes = _bend_label(coefficients, nodes, v_base)
    return NodeWeights(
        coefficients=coefficients,
        label_terms=label_terms,
        label_sizes=label_sizes,
        loss_terms=loss.terms,
        loss_sizes=loss.sizes,
        loss_narrow=loss.narrow,
    )


def _bend_label(
    coefficients: FloatArray, nodes: TiltedNodes, v_base: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return `coefficients` (K, 6) applied to D = 1 - psi_R, eq. (B16), and the sizes of that."""
    psi_ref = np.exp(nodes.log_psi_ref + nodes.log_transform_least)  # exp(-v (R - r0))
    lead = np.where(psi_ref > 0.0, nodes.lead, 0.0)
    with np.errstate(all="ignore"):
        bend = np.stack([nodes.above, psi_ref * lead, psi_ref * (nodes.variance - lead**2)])
        square_size = nodes.variance_size + np.abs(lead) * nodes.lead_size
        sizes = [np.abs(nodes.above), psi_ref * nodes.lead_size, psi_ref * square_size]
        parts = np.where(coefficients == 0.0, 0.0, coefficients * np.stack([*bend, *sizes]).T)
        parts = np.where(v_base[:, None] > 0.0, v_base[:, None] * parts, 0.0)
        return parts[:, :3].sum(axis=1), parts[:, 3:].sum(axis=1)


def _make_loss_terms(draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float) -> _LossTerms:
    """Weigh the nodes by parts, or plainly, or by parts up to a cut: as loses the fewest digits.

    `unit` is the relative error of a term that is proportional to a ratio.
    """
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        best, least = None, np.inf
        for loss in _candidates(draws, nodes, kernel, unit):
            doubt = _doubt(loss, unit)
            if best is None or doubt < least:
                best, least = loss, doubt
            if doubt <= _SURE * abs(float(loss.terms.sum())) < np.inf:
                break
    assert best is not None
    return best


def _candidates(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float
) -> Iterator[_LossTerms]:
    """Yield terms of the same sum, first those that mostly suffice."""
    below, edge = _weigh_by_parts(draws, nodes, kernel)
    yield below
    yield _weigh_frullani(draws, nodes, kernel, unit)
    above = _weigh_plainly(draws, nodes, kernel, unit)
    for cut in _choose_cuts(draws, nodes, kernel.s):
        step = _smooth_step(nodes.x, cut)
        rest = 1.0 - step.value
        terms = _masked(step.value, below.terms) + _masked(rest, above.terms)
        terms += _masked(step.first, edge)
        sizes = _masked(step.value, below.sizes) + _masked(rest, above.sizes)
        sizes += np.abs(_masked(step.first, edge))
        yield _LossTerms(terms, sizes, True)


def _weigh_frullani(draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float) -> _LossTerms:
    """Return the terms of g'(s) - g'(v), the difference of (B7) for the jackknife."""
    s = kernel.s
    less, limit = draws.num_draws - 1, _make_kernel(draws, nodes.v)
    # s = v - excess; where they are close the difference is taken in each factor of g'
    close = less * nodes.excess < 1.0
    excess = np.where(close, nodes.excess, 0.0)
    apart = np.exp(-nodes.v) * np.expm1(excess)  # of x and y
    growth = np.expm1(less * excess)
    near, near_size = growth * kernel.derivative + _SIGNS * (draws.num_draws * apart)
    far = kernel.decay * kernel.derivative[0] - limit.decay * limit.derivative[0]
    rounded = kernel.decay * kernel.derivative[1] + limit.decay * limit.derivative[1]
    moved = kernel.decay * kernel.bend[1] * (s + nodes.gap)
    exponents = draws.num_draws * s
    far_size = _mixed_size(exponent_sizes(rounded, exponents), moved, unit)
    near_size = exponent_sizes(limit.decay * near_size, exponents)
    terms = np.where(close, limit.decay * near, far)
    return _LossTerms(nodes.dx * terms, nodes.dx * np.where(close, near_size, far_size), False)


def _weigh_plainly(draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float) -> _LossTerms:
    """Return the terms of the integral of -g' K, as K ds = (gap / s) dv / v.

    Ratios are known by their logarithms. Where s stalls nothing depends on these, and gap / s is -1
    to the last bit: such terms have rounding errors alone.
    """
    s = kernel.s
    tilt = nodes.gap / s
    derivative = s + nodes.gap
    weight = nodes.dx * kernel.decay
    terms = -weight * kernel.derivative[0] * tilt
    rounded = exponent_sizes(weight * kernel.derivative[1] * np.abs(tilt), draws.num_draws * s)
    moved = kernel.bend[1] * derivative * np.abs(tilt)
    moved += kernel.derivative[1] * np.minimum(-tilt, (2.0 * derivative + nodes.variance_size) / s)
    return _LossTerms(terms, _mixed_size(rounded, weight * moved, unit), True)


def _weigh_by_parts(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel
) -> tuple[_LossTerms, FloatArray]:
    """Return the terms of the integral of g K', eq. (B70), and v g K beside a step's derivative."""
    derivative = (
        np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT)) + nodes.mean
    )  # v ds/dv
    s = kernel.s
    tilt = nodes.gap / s
    # derivative = s + gap, so that the first two orders in v have dropped out of `curve`
    gap_part = (3.0 + tilt) * tilt * nodes.gap
    curve = nodes.balance + gap_part
    # the balance is of third order, with parts of both signs: at least variance**1.5 in all
    cubes = nodes.skew_size + nodes.variance_size**1.5
    size = _OF_CUBES * cubes + np.abs(curve) + np.abs(gap_part)
    # the same where derivative is far below s, and the parts of gap would cancel
    steep = derivative * (derivative / s) ** 2
    far, far_size = nodes.variance - derivative + steep, nodes.variance_size + derivative + steep
    curve, size = np.where(far_size < size, far, curve), np.minimum(far_size, size)
    weight = nodes.dx * kernel.decay
    terms = _LossTerms(
        -weight * (kernel.g[0] / derivative) * (curve / derivative),
        exponent_sizes(
            weight * (kernel.g[1] / derivative) * (size / derivative), draws.num_draws * s
        ),
        True,
    )
    return terms, weight * (kernel.g[0] / derivative) * tilt


def _mixed_size(rounded: FloatArray, moved: FloatArray, unit: float) -> FloatArray:
    """Return the size (K,) that `unit` makes an error of: that of rounding, and that of ratios.

    Ratios are known by their logarithms; `moved` is by how much they move a term.
    """
    share = min(2.0 * ROUNDING / unit, 1.0)
    return share * rounded + (1.0 - share) * moved


def _masked(weight: FloatArray, values: FloatArray) -> FloatArray:
    """Return the product (K,), 0 where the weight is."""
    return np.where(np.abs(weight) < 1e-290, 0.0, weight * values)


def _doubt(loss: _LossTerms, unit: float) -> float:
    """Return the error to expect in the sum of loss terms."""
    if not (np.isfinite(loss.terms).all() and np.isfinite(loss.sizes).all()):
        return np.inf
    return sum_error(loss.terms, float(loss.sizes.sum()), unit, loss.narrow)


# --- where one form of the integrand ends and the other begins ----------------------------------


def _choose_cuts(draws: Draws, nodes: TiltedNodes, s: FloatArray) -> list[float]:
    """Return places log v for a cut, first those that mostly suffice.

    They are where s stalls, before everything, where m draws have decayed, and nowhere (inf).
    A stall is a step before v ds/dv has fallen to half of s. With the decay, exp(-m s) m**2 is
    about exp(-10): the plain difference is harmless beyond it.
    """
    m = draws.num_draws
    decayed = float(np.interp((10.0 + 2.0 * np.log(m)) / m, s, nodes.x))
    stalled = nodes.x[-nodes.gap > 0.5 * s][:1] - _STEP_END * _STEP_WIDTH
    if not len(stalled):
        return [np.inf, decayed, -np.inf]
    return [float(stalled[0]), -np.inf, decayed, np.inf]


class _Step(NamedTuple):
    """A smooth step from 1 to 0, (K,), v times its derivative, and v**2 times its second."""

    value: FloatArray
    first: FloatArray
    second: FloatArray


def _smooth_step(x: FloatArray, cut: float) -> _Step:
    """Return a step down at log v = `cut`, at the nodes `x` (K,)."""
    if np.isinf(cut):
        return _Step(np.full_like(x, float(cut > 0.0)), np.zeros_like(x), np.zeros_like(x))
    t = (x - cut) / _STEP_WIDTH
    here = t < _STEP_END
    first = np.where(here, -np.exp(-(t**2)) / (_STEP_WIDTH * math.sqrt(math.pi)), 0.0)
    return _Step(0.5 * erfc(t) * here, first, -first * (2.0 * t / _STEP_WIDTH + 1.0))
