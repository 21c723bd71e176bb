"""The bias of each example beside its bounds: in the logits, in h, and in the class vectors.

What is computed of P coordinates of a gradient has the shape (B, P); figures that sum them up are
arrays (B,) under the names of the fields of `VerificationRow`, which are their means or totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.theorems import Theorem1Bounds, Theorem1Terms, theorem1_terms_of

BLOCKS = ("logits", "h", "class_embeddings")
# A coordinate counts as outside a bound if it is so by more than rounding explains, and by more
# than these fractions of a printed bound and of M / m, far below violations that matter.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-14

Ends = tuple[FloatArray, FloatArray]  # lower and upper bounds
Figures = dict[str, Any]  # of arrays (B,)


class Theory(NamedTuple):
    """What Theorem 1 says of a batch, as printed and corrected, and the limit for many draws."""

    terms: Theorem1Terms
    g: FloatArray  # (B, P): sum_j p_j d o_j over the negatives
    limit: FloatArray  # (B, P): of m times the bias

    def of_h(self, jacobian: FloatArray) -> Theory:
        """Go from the logits to P parameters, with the Jacobian (n, P)."""
        return self._replace(g=self.g @ jacobian, limit=self.limit @ jacobian)

    def of_example(self, b: int) -> Theory:
        """Return one example, without its axis."""
        terms = Theorem1Terms(*(column[b] for column in self.terms))
        return Theory(terms, self.g[b], self.limit[b])


def theory_of(inputs: Inputs) -> Theory:
    """Return the theory of a batch with regard to its logits, for any number of draws."""
    terms = theorem1_terms_of(inputs)
    return Theory(terms, terms.negative_probs, asymptotic_bias_of(inputs))


@dataclass(frozen=True)
class Block:
    """P coordinates of the gradient of B examples; bounds are None for schemes without them."""

    bias: FloatArray  # (B, P)
    slack: FloatArray  # (B, 1): how far the bias may be off, or from a bound, by rounding
    ends: Ends | None = None  # bounds (B, P) that hold for every m
    printed: Theorem1Bounds | None = None
    limit: FloatArray | None = None  # (B, P): of m times the bias, divided by m
    corrected: Ends | None = None  # bounds (B, P) of the corrected theorem
    corrected_max: FloatArray | None = None  # (B,): the same for all coordinates, without g


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
    # the bias in a parameter is off by at most M times that in the logits, in the L1 norm
    slack = (error + (0.0 if ends is None else _ABSOLUTE / m))[:, None] * scale
    if theory is None:
        return Block(bias, slack, ends)
    # eqs. 10 and 11 of Rawat et al. (2019), without their terms o(1/m)
    terms, g = theory.terms, theory.g
    printed = Theorem1Bounds(*terms.bounds(g, scale, m), g, scale, terms)
    corrected = terms.corrected_bounds(g, scale, m)
    corrected_max = np.asarray(terms.reaches(scale, m)[0])
    return Block(bias, slack, ends, printed, theory.limit / m, corrected, corrected_max)


def figures_of(block: Block) -> Figures:
    """Sum up the coordinates of each example; without the figures that the scheme does not have."""
    bias, slack = block.bias, block.slack
    size = np.abs(bias)
    l1 = size.sum(axis=1)
    figures: Figures = {
        "num_coordinates": np.full(len(size), size.shape[1]),
        "max_bias": size.max(axis=1),
        "l1_bias": l1,
        "resolved": l1 > slack[:, 0],
    }

    def num_outside(ends: Ends) -> Any:
        return ((bias < ends[0] - slack) | (bias > ends[1] + slack)).sum(axis=1)

    if block.ends is not None:
        lower, upper = block.ends
        figures |= {
            "finite_outside": num_outside(block.ends),
            "finite_tightness": (upper - lower).sum(axis=1),
            # an interval that holds 0 says nothing of how large its bias is at least
            "finite_min_max": np.maximum(np.maximum(lower, -upper), 0.0).max(axis=1),
            "finite_max_max": np.maximum(-lower, upper).max(axis=1),
            "finite_max_l1": np.maximum(-lower, upper).sum(axis=1),
        }
    printed = block.printed
    if printed is not None and block.limit is not None and block.corrected is not None:
        outside = printed.outside(bias, slack)
        figures |= {
            "printed_max": np.maximum(np.abs(printed.lower), np.abs(printed.upper)).max(axis=1),
            "outside_printed": outside.sum(axis=1),
            "outside_printed_limit": printed.outside(block.limit, slack).sum(axis=1),
            "outside_with_sign": (outside & printed.sign_holds).sum(axis=1),
            "sign_condition": printed.sign_condition,
            "corrected_max": block.corrected_max,
            "corrected_outside": num_outside(block.corrected),
        }
    return figures


def class_vector_figures(
    block: Block, theory: Theory | None, m: int, slopes: FloatArray
) -> Figures:
    """Return the figures of all class vectors, without their n * d coordinates for each example.

    Coordinate k of class vector i has the bias ``bias_i * slopes_k``, so the norms factor, the
    intervals for every m scale, and the printed bounds are a threshold on each slope.
    `block` and `theory` are those of the logits; `slopes`, (B, d), are ``tau * h``, the derivatives
    of a logit in its class vector.
    """
    of_logits = figures_of(block)
    size = np.abs(slopes)
    largest, total = size.max(axis=1), size.sum(axis=1)
    # the bias is an outer product, so each norm is a product of two
    factors = {
        "num_coordinates": np.full(len(slopes), slopes.shape[1]),
        **dict.fromkeys(("max_bias", "finite_min_max", "finite_max_max"), largest),
        **dict.fromkeys(("l1_bias", "finite_tightness", "finite_max_l1"), total),
        "resolved": np.full(len(slopes), True),
        "finite_outside": np.count_nonzero(slopes, axis=1),
    }
    figures: Figures = {
        name: of_logits[name] * factor for name, factor in factors.items() if name in of_logits
    }
    if theory is not None:
        each = [
            _printed_figures(block.bias[b], block.slack[b, 0], theory.of_example(b), m, slopes[b])
            for b in range(len(slopes))
        ]
        figures |= {name: np.array([one[name] for one in each]) for name in each[0]}
    return figures


def _printed_figures(
    bias: FloatArray, slack: float, theory: Theory, m: int, slopes: FloatArray
) -> dict[str, float]:
    """Return the figures of one example's class vectors that are about Theorem 1."""
    weights, size = theory.g, np.abs(slopes)
    largest = float(size.max())
    # UB rises with g = weights_i * slopes_k, whose ends are at the ends of the weights
    ends = np.concatenate([weights.min() * slopes, weights.max() * slopes, [0.0]])
    low, high = theory.terms.bounds(ends, largest, m)
    slack = slack * largest
    # LB is one number, and UB one plus a part that is a product as the bias is
    floor, ceiling = slack - float(low[0]), slack + float(high[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        signed = np.where(weights == 0.0, 0.0, float(theory.terms.ub1) / m * weights)

    def num_outside(values: FloatArray, among: FloatArray, classes: Any = slice(None)) -> int:
        # within 1e-9 of a bound is not outside
        near = values[classes] * (1.0 - _RELATIVE)
        above = _count_above(near - signed[classes], among, ceiling)
        return _count_above(-near, among, floor) + above

    # g >= 0 where the slope is, and as of the label where the weight is 0
    with_sign = num_outside(bias, slopes[slopes > 0.0])
    with_sign += num_outside(bias, slopes[slopes < 0.0], weights == 0.0)
    # eqs. (B51) and (B52) of samplesoft/bias/README.md: |b s| <= free or |b s -+ V g| <= reach,
    # so for each class the largest |s| that is inside is one number
    reaches = np.array(theory.terms.reaches(largest, m))[:, None] + slack
    with np.errstate(all="ignore"):
        rise = theory.terms.variance * theory.terms.negative_probs / m
        shares = np.nanmax(np.abs([bias, bias - rise, bias + rise]) / reaches, axis=0)
    return {
        "printed_max": max(np.abs(low).max(), np.abs(high).max()),
        "outside_printed": num_outside(bias, slopes),
        "outside_printed_limit": num_outside(theory.limit / m, slopes),
        "outside_with_sign": with_sign,
        "sign_condition": bool((slopes >= 0.0).all() or not weights.any()),
        "corrected_max": theory.terms.reaches(largest, m)[0],
        "corrected_outside": _count_above(shares, size, 1.0),
    }


def _count_above(factors: FloatArray, slopes: FloatArray, limit: float) -> int:
    """Count (i, k) with ``factors_i * slopes_k`` above a limit of at least 0."""
    count = 0
    for sign in (1.0, -1.0):  # a product is above 0 where both have one sign
        steep, large = np.sort(sign * slopes), sign * factors
        steep, large = steep[steep > 0.0], large[large > 0.0]
        with np.errstate(over="ignore"):
            # sorted slopes are few; a class adds those beyond its own threshold
            inside = np.searchsorted(steep, limit / large, "right")
        count += len(steep) * len(large) - int(inside.sum())
    return count
