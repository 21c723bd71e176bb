"""The loss bias of the jackknife by parts, with no difference of large numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.by_parts import (
    Kernel,
    choose_cuts,
    make_kernel,
    smooth_step,
)
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.node_weights import exponent_sizes
from samplesoft.bias.quadrature import ROUNDING, estimate_error, halving_change
from samplesoft.bias.transform import Nodes

_OF_CUBES = 8.0  # errors of a cube, each of some units
_SURE = 1e-11  # relative error at which no other cut is tried


class LossTerms(NamedTuple):
    """Terms (K,) of the loss bias at the nodes, and the sizes of what they are made of.

    `narrow` says that they are analytic in a narrow strip only; see `estimate_error`.
    """

    terms: FloatArray
    sizes: FloatArray
    narrow: bool


def make_loss_terms(law: DrawLaw, nodes: Nodes, kernel: Kernel, unit: float) -> LossTerms:
    """Weigh the nodes by parts, or plainly, or by parts up to a cut: as loses the fewest digits.

    `unit` is the relative error of a term that is proportional to a ratio.
    """
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        best, least = None, np.inf
        for found in _candidates(law, nodes, kernel, unit):
            doubt = _doubt(found, unit)
            if best is None or doubt < least:
                best, least = found, doubt
            if doubt <= _SURE * abs(float(found.terms.sum())) < np.inf:
                break
    assert best is not None
    return best


def _candidates(law: DrawLaw, nodes: Nodes, kernel: Kernel, unit: float) -> Iterator[LossTerms]:
    """Yield terms of the same sum, those first that most often suffice."""
    below, edge = _weigh_by_parts(law, nodes, kernel)
    yield below
    yield _weigh_frullani(law, nodes, kernel, unit)
    above = _weigh_plainly(law, nodes, kernel, unit)
    for cut in choose_cuts(law, nodes, kernel.s):
        step = smooth_step(nodes.x, cut)
        rest = 1.0 - step.value
        terms = _masked(step.value, below.terms) + _masked(rest, above.terms)
        terms += _masked(step.first, edge)
        sizes = _masked(step.value, below.sizes) + _masked(rest, above.sizes)
        sizes += np.abs(_masked(step.first, edge))
        yield LossTerms(terms, sizes, True)


def _weigh_frullani(law: DrawLaw, nodes: Nodes, kernel: Kernel, unit: float) -> LossTerms:
    """Return the terms of g'(s) - g'(v), the difference of (B7) for the jackknife."""
    s = kernel.s
    less, limit = law.num_draws - 1, make_kernel(law, nodes.v)
    # s = v - excess; where they are close the difference is taken in each factor of g'
    close = less * nodes.excess < 1.0
    excess = np.where(close, nodes.excess, 0.0)
    apart = np.exp(-nodes.v) * np.expm1(excess)  # of x and y
    growth = np.expm1(less * excess)
    near, near_size = growth * kernel.values[1], growth * kernel.sizes[1]
    near -= law.num_draws * apart
    near_size += law.num_draws * apart
    far = kernel.decay * kernel.values[1] - limit.decay * limit.values[1]
    rounded = kernel.decay * kernel.sizes[1] + limit.decay * limit.sizes[1]
    moved = kernel.decay * kernel.sizes[2] * (s + nodes.gap)
    exponents = law.num_draws * s
    far_size = _mixed_size(exponent_sizes(rounded, exponents), moved, unit)
    near_size = exponent_sizes(limit.decay * near_size, exponents)
    terms = np.where(close, limit.decay * near, far)
    return LossTerms(nodes.dx * terms, nodes.dx * np.where(close, near_size, far_size), False)


def _weigh_plainly(law: DrawLaw, nodes: Nodes, kernel: Kernel, unit: float) -> LossTerms:
    """Return the terms of the integral of -g' K, as K ds = (gap / s) dv / v.

    Ratios are known by their logarithms. Where s stalls nothing depends on these, and gap / s is -1
    to the last bit: such terms have rounding errors alone.
    """
    s = kernel.s
    tilt = nodes.gap / s
    slope = s + nodes.gap
    weight = nodes.dx * kernel.decay
    terms = -weight * kernel.values[1] * tilt
    rounded = exponent_sizes(weight * kernel.sizes[1] * np.abs(tilt), law.num_draws * s)
    moved = kernel.sizes[2] * slope * np.abs(tilt)
    moved += kernel.sizes[1] * np.minimum(-tilt, (2.0 * slope + nodes.variance_size) / s)
    return LossTerms(terms, _mixed_size(rounded, weight * moved, unit), True)


def _weigh_by_parts(law: DrawLaw, nodes: Nodes, kernel: Kernel) -> tuple[LossTerms, FloatArray]:
    """Return the terms of the integral of g K', eq. (B70), and v g K beside a step's derivative."""
    slope = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT)) + nodes.mean  # v ds/dv
    s = kernel.s
    tilt = nodes.gap / s
    # slope = s + gap, so that the first two orders in v have dropped out of `curve`
    gap_part = (3.0 + tilt) * tilt * nodes.gap
    curve = nodes.balance + gap_part
    # the balance is of third order, with parts of both signs: at least variance**1.5 in all
    cubes = nodes.skew_size + nodes.variance_size**1.5
    size = _OF_CUBES * cubes + np.abs(curve) + np.abs(gap_part)
    # the same where slope is far below s, and the parts of gap would cancel
    steep = slope * (slope / s) ** 2
    far, far_size = nodes.variance - slope + steep, nodes.variance_size + slope + steep
    curve, size = np.where(far_size < size, far, curve), np.minimum(far_size, size)
    weight = nodes.dx * kernel.decay
    terms = LossTerms(
        -weight * (kernel.values[0] / slope) * (curve / slope),
        exponent_sizes(weight * (kernel.sizes[0] / slope) * (size / slope), law.num_draws * s),
        True,
    )
    return terms, weight * (kernel.values[0] / slope) * tilt


def _mixed_size(rounded: FloatArray, moved: FloatArray, unit: float) -> FloatArray:
    """Return the size (K,) that `unit` makes an error of: that of rounding, and that of ratios.

    Ratios are known by their logarithms; `moved` is by how much they move a term.
    """
    share = min(2.0 * ROUNDING / unit, 1.0)
    return share * rounded + (1.0 - share) * moved


def _masked(weight: FloatArray, values: FloatArray) -> FloatArray:
    """Return the product (K,), 0 where the weight is."""
    return np.where(np.abs(weight) < 1e-290, 0.0, weight * values)


def _doubt(loss: LossTerms, unit: float) -> float:
    """Return the error to expect in the sum of loss terms."""
    if not (np.isfinite(loss.terms).all() and np.isfinite(loss.sizes).all()):
        return np.inf
    return estimate_error(
        halving_change(loss.terms),
        float(loss.sizes.sum()),
        abs(float(loss.terms.sum())),
        unit,
        loss.narrow,
    )
