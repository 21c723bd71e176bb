"""The bias of each example beside its bounds: in the logits, in h, and in the class vectors.

What is computed of P coordinates of a gradient has the shape (B, P); figures that sum them up are
arrays (B,) under the names of the fields of `VerificationRow`, which are their means or totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.theorems import (
    CorrectedTerms,
    Theorem1Terms,
    corrected_terms_of,
    theorem1_terms_of,
)

BLOCKS = ("logits", "h", "class_embeddings")
# A coordinate counts as outside a printed bound if it is so by more than these fractions of the
# bound and of M / m, which are far above rounding errors and far below violations that matter.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-14

BoolArray = NDArray[np.bool_]
Ends = tuple[FloatArray, FloatArray]  # lower and upper bounds
Figures = dict[str, Any]  # of arrays (B,)


class Theory(NamedTuple):
    """What Theorem 1 says of a batch, as printed and corrected, and the limit for many draws."""

    printed: Theorem1Terms
    corrected: CorrectedTerms
    g: FloatArray  # (B, P): sum_j p_j d o_j over the negatives
    limit: FloatArray  # (B, P): of m times the bias

    def of_h(self, jacobian: FloatArray) -> Theory:
        """Go from the logits to P parameters, with the Jacobian (n, P)."""
        return self._replace(g=self.g @ jacobian, limit=self.limit @ jacobian)

    def of_example(self, b: int) -> Theory:
        """Return one example, without its axis."""
        printed = Theorem1Terms(*(column[b] for column in self.printed))
        corrected = CorrectedTerms(*(column[b] for column in self.corrected))
        return Theory(printed, corrected, self.g[b], self.limit[b])


def theory_of(inputs: Inputs) -> Theory:
    """Return the theory of a batch with regard to its logits, for any number of draws."""
    printed = theorem1_terms_of(inputs)
    limit = asymptotic_bias_of(inputs)
    return Theory(printed, corrected_terms_of(inputs), printed.negative_probs, limit)


class Printed(NamedTuple):
    """The printed bounds of Theorem 1, and which coordinates are outside, each (B, P)."""

    lower: FloatArray  # LB and UB at this m
    upper: FloatArray
    outside: BoolArray
    outside_limit: BoolArray  # whether the limit of m times the bias is outside m times them
    g_holds: BoolArray  # whether g >= 0, which UB asks for


@dataclass(frozen=True)
class Block:
    """P coordinates of the gradient of B examples; bounds are None for schemes without them."""

    bias: FloatArray  # (B, P)
    error: FloatArray  # (B,): how far the bias may be off, or from a bound, by rounding
    ends: Ends | None = None  # bounds (B, P) that hold for every m
    printed: Printed | None = None
    corrected_max: FloatArray | None = None  # (B,): the corrected theorem's bound
    corrected_outside: BoolArray | None = None  # (B, P): by more than the error


def compare_with_bounds(
    bias: FloatArray,
    error: FloatArray,
    theory: Theory | None,
    ends: Ends | None,
    m: int,
    scale: float,
) -> Block:
    """Put the bias (B, P) beside its bounds in the same P parameters.

    `error` (B,) is the numerical error of the bias in the logits, in the L1 norm; `scale` is M, the
    largest derivative of a logit.
    """
    if ends is None:
        return Block(bias, error * scale)
    # the bias in a parameter is off by at most M times that in the logits, in the L1 norm
    slack = (error + _ABSOLUTE / m) * scale
    if theory is None:
        return Block(bias, slack, ends)
    # eqs. 10 and 11 of Rawat et al. (2019), without their terms o(1/m)
    lower, upper = theory.printed.bounds(theory.g, scale, m)
    wide = lower - _RELATIVE * np.abs(lower), upper + _RELATIVE * np.abs(upper)
    printed = Printed(
        lower,
        upper,
        _beyond(bias, wide, slack),
        _beyond(theory.limit / m, wide, slack),
        theory.g >= 0.0,
    )
    corrected = theory.corrected.bounds(theory.g, scale, m)
    most = np.asarray(theory.corrected.reaches(scale, m)[0])
    return Block(bias, slack, ends, printed, most, _beyond(bias, corrected, slack))


def _beyond(values: FloatArray, ends: Ends, slack: FloatArray) -> BoolArray:
    lower, upper = ends
    return (values < lower - slack[:, None]) | (values > upper + slack[:, None])


def figures_of(block: Block) -> Figures:
    """Sum up the coordinates of each example; without the figures that the scheme does not have."""
    size = np.abs(block.bias)
    l1 = size.sum(axis=1)
    figures: Figures = {
        "num_coordinates": np.full(len(size), size.shape[1]),
        "max_bias": size.max(axis=1),
        "l1_bias": l1,
        "resolved": l1 > block.error,
    }
    if block.ends is not None:
        lower, upper = block.ends
        figures |= {
            "finite_outside": _beyond(block.bias, block.ends, block.error).sum(axis=1),
            "finite_width": (upper - lower).sum(axis=1),
            # an interval that holds 0 says nothing of how large its bias is at least
            "finite_min_max": np.maximum(np.maximum(lower, -upper), 0.0).max(axis=1),
            "finite_max_max": np.maximum(-lower, upper).max(axis=1),
            "finite_max_l1": np.maximum(-lower, upper).sum(axis=1),
        }
    printed = block.printed
    if printed is not None and block.corrected_outside is not None:
        largest = [np.abs(bound).max(axis=1) for bound in (printed.lower, printed.upper)]
        figures |= {
            "printed_max": np.maximum(*largest),
            "outside_printed": printed.outside.sum(axis=1),
            "outside_printed_limit": printed.outside_limit.sum(axis=1),
            "outside_with_sign": (printed.outside & printed.g_holds).sum(axis=1),
            "sign_condition": printed.g_holds.all(axis=1),
            "corrected_max": np.asarray(block.corrected_max),
            "corrected_outside": block.corrected_outside.sum(axis=1),
        }
    return figures


def class_vector_figures(
    block: Block, theory: Theory | None, m: int, slopes: FloatArray
) -> Figures:
    """Return the figures of all class vectors, without their n * d coordinates for each example.

    Coordinate k of class vector i has the bias ``bias_i * slopes_k``, so the norms factor, the
    intervals for every m scale, and for each k the printed bounds are thresholds on n numbers.
    `block` and `theory` are those of the logits; `slopes`, (B, d), are ``tau * h``, the derivatives
    of a logit in its class vector.
    """
    of_logits = figures_of(block)
    size = np.abs(slopes)
    largest, total = size.max(axis=1), size.sum(axis=1)
    moved = np.count_nonzero(slopes, axis=1)
    # the bias is an outer product, so each norm is a product of two
    factors = {
        "num_coordinates": np.full(len(slopes), slopes.shape[1]),
        "max_bias": largest,
        "l1_bias": total,
        "resolved": np.full(len(slopes), True),
        "finite_outside": moved,
        "finite_width": total,
        "finite_min_max": largest,
        "finite_max_max": largest,
        "finite_max_l1": total,
    }
    figures: Figures = {
        name: of_logits[name] * factor for name, factor in factors.items() if name in of_logits
    }
    if theory is not None:
        each = [
            _printed_figures(block.bias[b], block.error[b], theory.of_example(b), m, slopes[b])
            for b in range(len(slopes))
        ]
        figures |= {name: np.array([one[name] for one in each]) for name in each[0]}
    return figures


def _printed_figures(
    bias: FloatArray, error: float, theory: Theory, m: int, slopes: FloatArray
) -> dict[str, float]:
    """Return the figures of one example's class vectors that are about Theorem 1."""
    weights, size = theory.g, np.abs(slopes)
    largest = float(size.max())
    # UB rises with g = weights_i * slopes_k, whose ends are at the ends of the weights
    ends = np.concatenate([weights.min() * slopes, weights.max() * slopes])
    low, high = theory.printed.bounds(ends, largest, m)
    flat = theory.printed.bounds(np.zeros(1), largest, m)[1]  # the part of UB without g
    slack = (error + _ABSOLUTE / m) * largest
    limits = (
        float(low[0] - _RELATIVE * abs(low[0])) - slack,
        float(flat[0] + _RELATIVE * abs(flat[0])) + slack,
    )
    rise = float(theory.printed.ub1) / m
    outside, with_sign = _count_outer(bias, weights, rise, slopes, limits)
    return {
        "printed_max": max(np.abs(low).max(), np.abs(high).max()),
        "outside_printed": outside,
        "outside_printed_limit": _count_outer(theory.limit / m, weights, rise, slopes, limits)[0],
        "outside_with_sign": with_sign,
        "sign_condition": bool((slopes >= 0.0).all() or not weights.any()),
        "corrected_max": theory.corrected.reaches(largest, m)[0],
        "corrected_outside": _count_products(bias, theory.corrected, m, size, slack),
    }


def _count_outer(
    bias: FloatArray,
    weights: FloatArray,
    rise: float,
    slopes: FloatArray,
    limits: tuple[float, float],
) -> tuple[int, int]:
    """Count (i, k) with ``bias_i s_k`` below a floor or above ``rise * weights_i * s_k`` + ceiling.

    The second number is of those with ``weights_i * s_k >= 0`` alone.
    """
    floor, ceiling = limits
    # a slope of 0 has neither bias nor bounds
    rising, falling = slopes[slopes > 0.0], slopes[slopes < 0.0]

    def count(some: FloatArray, of: FloatArray) -> tuple[int, int]:
        """Count classes `some`, with all slopes above 0, and with all below."""
        with np.errstate(over="ignore", invalid="ignore"):
            signed = np.where(of == 0.0, 0.0, rise * of)
            # the tolerance of a bound that grows with g is in the numbers that are sorted
            under, gap = np.sort(some), some - signed
            over_rising = np.sort(gap - _RELATIVE * signed)
            over_falling = np.sort(gap + _RELATIVE * signed)
        # s > 0: bias < floor / s, gap > ceiling / s; s < 0 turns both round
        up = np.searchsorted(under, floor / rising, "left").sum()
        up += (len(some) - np.searchsorted(over_rising, ceiling / rising, "right")).sum()
        down = (len(some) - np.searchsorted(under, floor / falling, "right")).sum()
        down += np.searchsorted(over_falling, ceiling / falling, "left").sum()
        return int(up), int(down)

    up, down = count(bias, weights)
    flat = weights == 0.0  # as of the label: g is 0 whatever the slope
    return up + down, up + count(bias[flat], weights[flat])[1]


def _count_products(
    bias: FloatArray, corrected: CorrectedTerms, m: int, size: FloatArray, slack: float
) -> int:
    """Count (i, k) with ``bias_i s_k`` outside the corrected bounds, `size` being the |s_k|.

    Those are on the distance from 0 and from ``rise_i s_k`` and ``-rise_i s_k``.
    """
    # eqs. (B51) and (B52) of samplesoft/bias/README.md: |b s| <= free or |b s -+ V g| <= reach,
    # so for each class the largest |s| that is inside is one number, and slopes are sorted into it
    reaches = corrected.reaches(size.max(), m)
    with np.errstate(all="ignore"):
        rise = corrected.variance * corrected.negative_probs / m
        distances = np.abs([bias, bias - rise, bias + rise])
        parts = np.sort(np.nanmax(distances / (np.array(reaches)[:, None] + slack), axis=0))
        return len(bias) * len(size) - int(np.searchsorted(parts, 1.0 / size, "right").sum())
