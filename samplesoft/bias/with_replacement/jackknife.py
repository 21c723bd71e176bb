"""The weights of the nodes for the jackknives, by integration by parts.

The bias of a jackknife is of order 1/m**2. The naive formula m b_m - (m - 1) b_(m - 1) is a
difference of terms of order 1, and loses digits for large m. With s = -log theta, the bias for m
draws is the integral of m exp(-m s) H(s), and the loss bias is the integral of exp(-m s) K(s); H
and K do not depend on m. The jackknife replaces m exp(-m s) by g'' and exp(-m s) by -g', eqs. (B13)
and (B70). Integration by parts moves the derivatives to H and K, where nothing cancels. Section 7
of the README of `bias` derives this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import erfc

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import ROUNDING, estimate_sum_error
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.node_weights import (
    NodeWeights,
    exponent_magnitudes,
    log_first_draw,
)
from samplesoft.bias.with_replacement.nodes import TiltedNodes

# width, in log v, of the smooth step where two forms of the integrand meet: it covers some nodes,
# and is narrow compared with the integrand
_STEP_WIDTH = 0.3
_STEP_WIDTHS_TO_ZERO = 6.5  # this many widths beyond the cut, the step is 4e-20, and is set to 0
_CUBE_ERROR_UNITS = 8.0  # error of a third-order term, relative to that of an ordinary term
# loss terms whose relative error is at most this are taken; otherwise other forms are tried
_RELATIVE_TOLERANCE = 1e-11
# the sign of a term that is subtracted: in the value (row 0), and in the magnitude (row 1)
_SIGNS = np.array([[-1.0], [1.0]])


def jackknife_weights(draws: Draws, nodes: TiltedNodes, unit: float) -> Iterator[NodeWeights]:
    """Yield weights of the nodes that give the same bias, but with different rounding errors.

    Those whose errors are most often small enough come first. `unit` is the relative error of a
    ratio, and so of a loss term proportional to it.
    """
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    # s = v B - log T, with the base mass B: both terms are positive
    kernel = _make_kernel(draws, v_base - nodes.log_transform)
    loss = _best_loss_terms(draws, nodes, kernel, unit)
    for cut in _choose_cuts(draws, nodes, kernel.s):
        yield _make_jackknife_weights(draws, nodes, kernel, cut, loss)


class _Kernel(NamedTuple):
    """The kernel g of the jackknife and its derivatives in s, at the nodes.

    g and its derivatives are exp(-(m - 1) s) times polynomials in 1 - exp(-s). The fields (2, K)
    are the values of these polynomials: row 0 is the value, and row 1 the sum of the magnitudes of
    its terms.
    """

    s: FloatArray  # (K,) -log theta
    decay: FloatArray  # (K,) exp(-(m - 1) s)
    g: FloatArray  # (2, K)
    derivative: FloatArray  # (2, K) for g'
    second_derivative: FloatArray  # (2, K) for g''


class _LossTerms(NamedTuple):
    """Terms (K,) of the loss bias, one for each node, whose sum is the loss bias.

    `sizes` (K,) are magnitudes, to which the errors of the terms are proportional. `narrow` is True
    if the strip in which the integrand is analytic is narrow; see `estimate_error`.
    """

    terms: FloatArray
    sizes: FloatArray
    narrow: bool


def _make_kernel(draws: Draws, s: FloatArray) -> _Kernel:
    """Return the kernel of the jackknife at s (K,), eq. (B14)."""
    m = float(draws.num_draws)
    x = -np.expm1(-s)
    return _Kernel(
        s=s,
        decay=np.exp(-(m - 1.0) * s),
        g=_SIGNS * x,
        derivative=m * x + _SIGNS,
        second_derivative=2.0 * m - 1.0 + _SIGNS * (m * m * x),
    )


def _make_jackknife_weights(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel, log_cut: float, loss: _LossTerms
) -> NodeWeights:
    """Return the node weights of g H'' below v = exp(log_cut), and of g'' H above it.

    The flow for m draws is the integral of m exp(-m s) H(s) with H = D dv/ds, D = psi - psi_R and
    H(0) = 0. For the jackknife it is that of g'' H, which two integrations by parts turn into that
    of g H'', eq. (B14). Where s almost stops growing with v, H rises steeply, and the terms of H''
    cancel. So a smooth step at the cut splits H into two parts, one for each form.
    """
    s = kernel.s
    # the factor `kernel.decay` of m - 1 draws, where psi replaces the factor of one of them
    survive = nodes.dx * np.exp(log_first_draw(nodes, -s) - (draws.num_draws - 2) * s)
    step = _smooth_step(nodes.x, log_cut)
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    variance = np.stack([nodes.variance, nodes.variance_size])
    skew = np.stack([-nodes.skew, nodes.skew_size])
    first, second = (np.stack([v, np.abs(v)]) for v in (step.first, step.second))

    # entries that are not finite are set to 0 further down
    with np.errstate(all="ignore"):
        derivative = v_base + nodes.mean  # v ds/dv
        # (B15): the coefficients of D, v D' and v**2 D'' in H'', and their magnitudes, (2, K)
        c2 = kernel.g / derivative / derivative
        c1 = 3.0 * c2 * (variance / derivative)
        c0 = c1 * (nodes.variance / derivative) + c2 * (skew / derivative)
        # the same coefficients for (D times the step) in place of D, by the product rule
        whole = c0 * step.value + c1 * first + c2 * second
        below = np.stack([whole, c1 * step.value + 2.0 * c2 * first, c2 * step.value])

    below = below.transpose(2, 1, 0).reshape(-1, 6)
    below[(step.value < 1e-290) | (s < np.finfo(np.float64).tiny)] = 0.0
    below[:, [0, 3]] += (kernel.second_derivative * (1.0 - step.value)).T
    coefficients = survive[:, None] * below
    label_terms, label_magnitudes = _apply_to_label(coefficients, nodes, v_base)
    return NodeWeights(
        coefficients=coefficients,
        label_terms=label_terms,
        label_magnitudes=label_magnitudes,
        loss_terms=loss.terms,
        loss_magnitudes=loss.sizes,
        loss_narrow=loss.narrow,
    )


def _apply_to_label(
    coefficients: FloatArray, nodes: TiltedNodes, v_base: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the label's terms at the nodes and their magnitudes, both (K,).

    They are the terms of eq. (B16) with D = 1 - psi_R, times v and the base mass.
    """
    psi_ref = np.exp(nodes.log_psi_ref + nodes.log_scaled_transform)  # exp(-v (R - r0))
    lead = np.where(psi_ref > 0.0, nodes.lead, 0.0)
    with np.errstate(all="ignore"):
        second_derivative = np.stack(
            [nodes.above, psi_ref * lead, psi_ref * (nodes.variance - lead**2)]
        )
        square_size = nodes.variance_size + np.abs(lead) * nodes.lead_size
        sizes = [np.abs(nodes.above), psi_ref * nodes.lead_size, psi_ref * square_size]
        parts = np.where(
            coefficients == 0.0, 0.0, coefficients * np.stack([*second_derivative, *sizes]).T
        )
        parts = np.where(v_base[:, None] > 0.0, v_base[:, None] * parts, 0.0)
        return parts[:, :3].sum(axis=1), parts[:, 3:].sum(axis=1)


def _best_loss_terms(draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float) -> _LossTerms:
    """Return those of `_loss_term_choices` that have the smallest expected error.

    `unit` is the relative error of a term that is proportional to a ratio.
    """
    # choices that are not finite get an infinite expected error
    with np.errstate(all="ignore"):
        best = None
        smallest_error = np.inf
        for loss in _loss_term_choices(draws, nodes, kernel, unit):
            error = _expected_error(loss, unit)
            if best is None or error < smallest_error:
                best = loss
                smallest_error = error
            if error <= _RELATIVE_TOLERANCE * abs(float(loss.terms.sum())) < np.inf:
                break
    assert best is not None
    return best


def _loss_term_choices(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float
) -> Iterator[_LossTerms]:
    """Yield several loss terms with the same sum, but different rounding errors.

    Those that suffice most often come first. For `unit` see `_best_loss_terms`.
    """
    below, edge = _terms_by_parts(draws, nodes, kernel)
    yield below
    yield _terms_by_frullani(draws, nodes, kernel, unit)
    above = _plain_terms(draws, nodes, kernel, unit)
    for cut in _choose_cuts(draws, nodes, kernel.s):
        step = _smooth_step(nodes.x, cut)
        rest = 1.0 - step.value
        terms = _product_or_zero(step.value, below.terms) + _product_or_zero(rest, above.terms)
        terms += _product_or_zero(step.first, edge)
        sizes = _product_or_zero(step.value, below.sizes) + _product_or_zero(rest, above.sizes)
        sizes += np.abs(_product_or_zero(step.first, edge))
        yield _LossTerms(terms, sizes, True)


def _terms_by_frullani(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float
) -> _LossTerms:
    """Return the loss terms g'(s) - g'(v), the first form of (B70).

    The difference cancels where s is near v. So for (m - 1) (v - s) < 1 it is computed from the
    differences of the two factors of g', which are expm1 of multiples of v - s (`nodes.excess`).
    """
    s = kernel.s
    less = draws.num_draws - 1
    limit = _make_kernel(draws, nodes.v)
    close = less * nodes.excess < 1.0
    excess = np.where(close, nodes.excess, 0.0)
    apart = np.exp(-nodes.v) * np.expm1(excess)  # exp(-s) - exp(-v)
    growth = np.expm1(less * excess)
    near, near_size = growth * kernel.derivative + _SIGNS * (draws.num_draws * apart)
    far = kernel.decay * kernel.derivative[0] - limit.decay * limit.derivative[0]
    rounded = kernel.decay * kernel.derivative[1] + limit.decay * limit.derivative[1]
    moved = kernel.decay * kernel.second_derivative[1] * (s + nodes.gap)
    exponents = draws.num_draws * s
    far_size = _error_size(exponent_magnitudes(rounded, exponents), moved, unit)
    near_size = exponent_magnitudes(limit.decay * near_size, exponents)
    terms = np.where(close, limit.decay * near, far)

    return _LossTerms(nodes.dx * terms, nodes.dx * np.where(close, near_size, far_size), False)


def _plain_terms(draws: Draws, nodes: TiltedNodes, kernel: _Kernel, unit: float) -> _LossTerms:
    """Return the loss terms of the integral of -g' K, with K ds = (gap / s) dv / v; (B70).

    Errors of the logs of ratios change s and gap. But where s almost stops growing with v, gap / s
    is -1 to the last bit whatever the ratios are, so such terms have rounding errors only.
    """
    s = kernel.s
    tilt = nodes.gap / s
    derivative = s + nodes.gap
    weight = nodes.dx * kernel.decay
    terms = -weight * kernel.derivative[0] * tilt
    rounded = exponent_magnitudes(weight * kernel.derivative[1] * np.abs(tilt), draws.num_draws * s)
    moved = kernel.second_derivative[1] * derivative * np.abs(tilt)
    moved += kernel.derivative[1] * np.minimum(-tilt, (2.0 * derivative + nodes.variance_size) / s)
    return _LossTerms(terms, _error_size(rounded, weight * moved, unit), True)


def _terms_by_parts(
    draws: Draws, nodes: TiltedNodes, kernel: _Kernel
) -> tuple[_LossTerms, FloatArray]:
    """Return the loss terms of the integral of g K', eq. (B17), and g K dx at each node.

    If a smooth step ends the integration by parts, the terms g K dx times `_Step.first` are added.
    """
    # v ds/dv, with the base mass
    derivative = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT)) + nodes.mean
    s = kernel.s
    tilt = nodes.gap / s

    # with derivative = s + gap, the terms of the first two orders in v are gone from this form
    gap_part = (3.0 + tilt) * tilt * nodes.gap
    curve = nodes.balance + gap_part

    # the balance is of third order in v, like the skew and variance**1.5; so its error is estimated
    # from their sum
    cubes = nodes.skew_size + nodes.variance_size**1.5
    size = _CUBE_ERROR_UNITS * cubes + np.abs(curve) + np.abs(gap_part)

    # where the derivative is far below s, the terms with gap cancel: (B71) is a form without them
    steep = derivative * (derivative / s) ** 2
    far = nodes.variance - derivative + steep
    far_size = nodes.variance_size + derivative + steep
    curve = np.where(far_size < size, far, curve)
    size = np.minimum(far_size, size)
    weight = nodes.dx * kernel.decay
    terms = _LossTerms(
        -weight * (kernel.g[0] / derivative) * (curve / derivative),
        exponent_magnitudes(
            weight * (kernel.g[1] / derivative) * (size / derivative), draws.num_draws * s
        ),
        True,
    )

    return terms, weight * (kernel.g[0] / derivative) * tilt


def _error_size(rounded: FloatArray, moved: FloatArray, unit: float) -> FloatArray:
    """Return the magnitude (K,) of each term that, times `unit`, is the error of the term.

    `rounded` (K,) are magnitudes for the rounding errors alone. `moved` (K,) are derivatives of the
    terms in the logs of the ratios; these logs have the error `unit`.
    """
    rounding_fraction = min(2.0 * ROUNDING / unit, 1.0)
    return rounding_fraction * rounded + (1.0 - rounding_fraction) * moved


def _product_or_zero(weight: FloatArray, values: FloatArray) -> FloatArray:
    """Return weight * values (K,), but 0 where the weight is 0, even if the value is not finite."""
    return np.where(np.abs(weight) < 1e-290, 0.0, weight * values)


def _expected_error(loss: _LossTerms, unit: float) -> float:
    """Return the estimated error of the sum of the loss terms; inf if a term is not finite."""
    if not (np.isfinite(loss.terms).all() and np.isfinite(loss.sizes).all()):
        return np.inf
    return estimate_sum_error(loss.terms, float(loss.sizes.sum()), unit, loss.narrow)


# --- the cut between both forms of the integrand -------------------------------------------------


def _choose_cuts(draws: Draws, nodes: TiltedNodes, s: FloatArray) -> list[float]:
    """Return the values of log v to try as the cut; those that suffice most often come first.

    The form by parts is used below the cut: nowhere if it is -inf, and everywhere if it is inf.
    Two cuts lie between. One is so far below the v at which s almost stops growing (v ds/dv falls
    to s / 2) that the step ends before. At the other, exp(-m s) m**2 is about exp(-10), so that the
    plain form loses nothing beyond it.
    """
    m = draws.num_draws
    decayed = float(np.interp((10.0 + 2.0 * np.log(m)) / m, s, nodes.x))
    stalled = nodes.x[-nodes.gap > 0.5 * s][:1] - _STEP_WIDTHS_TO_ZERO * _STEP_WIDTH
    if not len(stalled):
        return [np.inf, decayed, -np.inf]
    return [float(stalled[0]), -np.inf, decayed, np.inf]


class _Step(NamedTuple):
    """A smooth step from 1 to 0 and its derivatives, at the nodes, all (K,).

    `first` is v times its first derivative in v, and `second` is v**2 times its second.
    """

    value: FloatArray
    first: FloatArray
    second: FloatArray


def _smooth_step(x: FloatArray, cut: float) -> _Step:
    """Return the smooth step at the nodes `x` (K,), which falls from 1 to 0 at log v = `cut`."""
    if np.isinf(cut):
        return _Step(np.full_like(x, float(cut > 0.0)), np.zeros_like(x), np.zeros_like(x))
    t = (x - cut) / _STEP_WIDTH
    nonzero = t < _STEP_WIDTHS_TO_ZERO
    first = np.where(nonzero, -np.exp(-(t**2)) / (_STEP_WIDTH * math.sqrt(math.pi)), 0.0)
    return _Step(0.5 * erfc(t) * nonzero, first, -first * (2.0 * t / _STEP_WIDTH + 1.0))
