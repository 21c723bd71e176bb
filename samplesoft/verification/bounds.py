"""The bias of each example beside its bounds: in the logits, in h, and in the class vectors.

What is computed of P coordinates of a gradient has the shape (B, P); figures that sum them up are
arrays (B,) under the names of the fields of `VerificationRow`, which are their means or totals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.theorems import Theorem1Bounds, Theorem1Terms, theorem1_terms_of, widened

BLOCKS = ("logits", "h", "class_embeddings")
# A coordinate counts as outside a bound if it is so by more than rounding explains, and by more
# than this fraction of M / m, far below violations that matter.
_ABSOLUTE = 1e-14
# how figures of some coordinates become those of all, where they are not added up
_JOINED = {
    **dict.fromkeys(("max_bias", "finite_min_max", "finite_max_max"), np.maximum),
    **dict.fromkeys(("resolved", "printed_max", "corrected_max"), np.maximum),
    "sign_condition": np.minimum,
}

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


def theory_of(inputs: Inputs) -> Theory:
    """Return the theory of a batch with regard to its logits, for any number of draws."""
    terms = theorem1_terms_of(inputs)
    return Theory(terms, terms.negative_probs, asymptotic_bias_of(inputs))


def figures_of(
    bias: FloatArray,
    error: FloatArray,
    theory: Theory | None,
    ends: Ends | None,
    m: int,
    scale: float | FloatArray,
) -> Figures:
    """Put the bias (B, P) beside its bounds in the same P parameters, and sum up each example.

    `error` (B,) is the numerical error of the bias in the logits, in the L1 norm; `scale`, for all
    or (B,), is M, the largest derivative of a logit. Figures that the scheme does not have are
    left out.
    """
    # the bias in a parameter is off by at most M times that in the logits, in the L1 norm
    allowed = (error + (0.0 if ends is None else _ABSOLUTE / m)) * scale
    slack = allowed[:, None]
    size = np.abs(bias)
    l1 = size.sum(axis=1)
    figures: Figures = {
        "num_coordinates": np.full(len(size), size.shape[1]),
        "max_bias": size.max(axis=1),
        "l1_bias": l1,
        "resolved": l1 > allowed,
    }

    def num_outside(lower: FloatArray, upper: FloatArray) -> Any:
        return ((bias < lower - slack) | (bias > upper + slack)).sum(axis=1)

    if ends is not None:
        lower, upper = ends
        largest = np.maximum(-lower, upper)
        figures |= {
            "finite_outside": num_outside(lower, upper),
            "finite_tightness": (upper - lower).sum(axis=1),
            # an interval that holds 0 says nothing of how large its bias is at least
            "finite_min_max": np.maximum(np.maximum(lower.max(axis=1), -upper.min(axis=1)), 0.0),
            "finite_max_max": largest.max(axis=1),
            "finite_max_l1": largest.sum(axis=1),
        }
    if theory is not None:
        # eqs. 10 and 11 of Rawat et al. (2019), without their terms o(1/m)
        terms = theory.terms
        g = theory.g
        printed = Theorem1Bounds(*terms.bounds(g, scale, m), g, scale, terms)
        low, high = widened(printed, slack)
        outside = (bias < low) | (bias > high)
        limit = theory.limit / m
        figures |= {
            "printed_max": np.maximum(np.abs(printed.lower), np.abs(printed.upper)).max(axis=1),
            "outside_printed": outside.sum(axis=1),
            "outside_printed_limit": ((limit < low) | (limit > high)).sum(axis=1),
            "outside_with_sign": (outside & printed.sign_holds).sum(axis=1),
            "sign_condition": printed.sign_condition,
            "corrected_max": np.asarray(terms.reaches(scale, m)[0]),
            "corrected_outside": num_outside(*terms.corrected_bounds(g, scale, m)),
        }
    return figures


def class_vector_figures(
    bias: FloatArray,
    error: FloatArray,
    theory: Theory | None,
    ends: Ends | None,
    m: int,
    scaled_h: FloatArray,
) -> Figures:
    """Return the figures of all class vectors, without their n * d coordinates at once.

    Coordinate k of class vector i has the bias ``bias_i * scaled_h_k``, where `scaled_h`, (B, d),
    is ``tau * h``, the derivatives of a logit in its class vector. All else is as for the logits in
    `figures_of`.
    """
    largest = np.abs(scaled_h).max(axis=1)
    figures: Figures = {}

    def of_coordinate(coordinate: FloatArray) -> Figures:
        """Return the figures of n coordinates, as many as there are logits, for a column (B, 1)."""
        between = ends and (ends[0] * coordinate, ends[1] * coordinate)
        if between:  # a factor below 0 makes the lower end the upper one
            between = np.minimum(*between), np.maximum(*between)
        here = theory and theory._replace(g=theory.g * coordinate, limit=theory.limit * coordinate)
        return figures_of(bias * coordinate, error, here, between, m, largest)

    # the same numbers for any number of threads: they are joined in order
    for some in thread_map(of_coordinate, scaled_h.T[:, :, None]):
        figures = {
            name: _JOINED.get(name, np.add)(figures[name], value) if name in figures else value
            for name, value in some.items()
        }
    return figures
