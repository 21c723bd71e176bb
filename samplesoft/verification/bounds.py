"""Compare the bias of each example with its bounds, in the logits, in h and in class vectors.

The coordinates are those of the gradient in a block of P parameters; arrays over them are (B, P).
The functions summarise each example by values (B,), whose names are fields of `VerificationRow`.
A row of the report then holds the means or totals of these values over the examples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.certified.bias import certified_bias
from samplesoft.bias.certified.theorems import certified_theorem1
from samplesoft.bias.exact import ExactBias
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.theorems import Theorem1Bounds, Theorem1Terms, theorem1_terms_of, widen_bounds

PARAMETER_BLOCKS = ("logits", "h", "class_embeddings")
# A coordinate counts as outside a bound only if it exceeds the bound by more than the numerical
# error plus this fraction of M / m (M: largest derivative of a logit in a parameter, m: number of
# draws). Relevant violations are far larger.
_SLACK_FRACTION = 1e-14
# How the values of an example for several groups of coordinates are combined; values that are not
# listed are added.
_REDUCTIONS = {
    **dict.fromkeys(("max_bias", "finite_min_max", "finite_max_max"), np.maximum),
    **dict.fromkeys(("resolved", "printed_max", "corrected_max"), np.maximum),
    "sign_condition": np.minimum,
}

Ends = tuple[FloatArray, FloatArray]  # lower and upper bounds
RowValues = dict[str, Any]  # arrays (B,) by field name of `VerificationRow`


class TheoryTerms(NamedTuple):
    """The terms of Theorem 1 of Rawat et al. (2019), and the bias for many draws, for a batch.

    The P columns of `g` and `limit` belong to parameters of the gradient: at first to the n logits,
    and after `to_parameters` to others.
    """

    terms: Theorem1Terms  # terms of the theorem as printed in the paper, and as corrected
    g: FloatArray  # (B, P): sum over the negatives j of p_j times d logit_j
    limit: FloatArray  # (B, P): limit of m times the bias for many draws m

    def to_parameters(self, jacobian: FloatArray) -> TheoryTerms:
        """Return the terms for P parameters; `jacobian` (n, P): derivatives of logits in them."""
        return self._replace(g=self.g @ jacobian, limit=self.limit @ jacobian)


def theory_terms(inputs: Inputs) -> TheoryTerms:
    """Return the `TheoryTerms` of a batch for its logits; they do not depend on m."""
    terms = theorem1_terms_of(inputs)
    return TheoryTerms(terms, terms.negative_probs, asymptotic_bias_of(inputs))


def row_values(
    bias: FloatArray,
    error: FloatArray,
    theory: TheoryTerms | None,
    ends: Ends | None,
    m: int,
    scale: float | FloatArray,
) -> RowValues:
    """Compare the bias of the gradient in P parameters with its bounds, for each example.

    Parameters
    ----------
    bias : ndarray, shape (B, P)
        Exact bias of the gradient in the parameters.
    error : ndarray, shape (B,)
        Numerical error of the bias in the logits, in the L1 norm.
    theory : TheoryTerms or None
        Terms of Theorem 1 with respect to the same parameters.
    ends : tuple of two ndarrays, shape (B, P), or None
        Lower and upper bounds on the bias that hold for every m.
    m : int
        Number of draws.
    scale : float or ndarray, shape (B,)
        M, the largest absolute derivative of a logit in a parameter.

    Returns
    -------
    dict of str to ndarray, shape (B,)
        One value for each example, by the field names of `VerificationRow`. Values that need
        `theory` or `ends` are left out if the argument is None.
    """
    # the numerical error of the bias in a parameter is at most M times the L1 error in the logits
    allowed = (error + (0.0 if ends is None else _SLACK_FRACTION / m)) * scale
    slack = allowed[:, None]

    abs_bias = np.abs(bias)
    l1_bias = abs_bias.sum(axis=1)
    values: RowValues = {
        "num_coordinates": np.full(len(abs_bias), abs_bias.shape[1]),
        "max_bias": abs_bias.max(axis=1),
        "l1_bias": l1_bias,
        "resolved": l1_bias > allowed,
    }

    def num_outside(lower: FloatArray, upper: FloatArray) -> Any:
        return ((bias < lower - slack) | (bias > upper + slack)).sum(axis=1)

    if ends is not None:
        lower, upper = ends
        max_abs_bias = np.maximum(-lower, upper)
        values |= {
            "finite_outside": num_outside(lower, upper),
            "finite_tightness": (upper - lower).sum(axis=1),
            # an interval that contains 0 gives no lower bound on |bias| except 0
            "finite_min_max": np.maximum(np.maximum(lower.max(axis=1), -upper.min(axis=1)), 0.0),
            "finite_max_max": max_abs_bias.max(axis=1),
            "finite_max_l1": max_abs_bias.sum(axis=1),
        }

    if theory is not None:
        # eqs. 10 and 11 of Rawat et al. (2019), without their terms o(1/m)
        terms = theory.terms
        g = theory.g
        printed = Theorem1Bounds(*terms.bounds(g, scale, m), g, scale, terms)
        low, high = widen_bounds(printed, slack)
        outside = (bias < low) | (bias > high)

        limit = theory.limit / m
        values |= {
            "printed_max": np.maximum(np.abs(printed.lower), np.abs(printed.upper)).max(axis=1),
            "outside_printed": outside.sum(axis=1),
            "outside_printed_limit": ((limit < low) | (limit > high)).sum(axis=1),
            "outside_with_sign": (outside & printed.sign_holds).sum(axis=1),
            "sign_condition": printed.sign_condition,
            "corrected_max": np.asarray(terms.distance_bounds(scale, m)[0]),
            "corrected_outside": num_outside(*terms.corrected_bounds(g, scale, m)),
        }

    return values


def class_vector_row_values(
    bias: FloatArray,
    error: FloatArray,
    theory: TheoryTerms | None,
    ends: Ends | None,
    m: int,
    scaled_h: FloatArray,
) -> RowValues:
    """Compute `row_values` for the gradient in all class vectors, which has n d coordinates.

    The derivative of logit i in its class vector is ``tau * h``, which is `scaled_h` (B, d). So
    coordinate k of class vector i has the bias ``bias[i] * scaled_h[k]``. The coordinates are
    summarised for one k at a time, so that no array (B, n, d) is made. The other arguments are
    those of `row_values` for the logits.
    """
    max_abs_h = np.abs(scaled_h).max(axis=1)
    values: RowValues = {}

    def values_of_coordinate(coordinate: FloatArray) -> RowValues:
        """Return the values for one coordinate k of all n class vectors.

        `coordinate` (B, 1) is column k of `scaled_h`.
        """
        scaled_ends = ends and (ends[0] * coordinate, ends[1] * coordinate)

        # a negative factor swaps the lower and the upper end
        if scaled_ends:
            scaled_ends = np.minimum(*scaled_ends), np.maximum(*scaled_ends)
        scaled_theory = theory and theory._replace(
            g=theory.g * coordinate, limit=theory.limit * coordinate
        )
        return row_values(bias * coordinate, error, scaled_theory, scaled_ends, m, max_abs_h)

    # combine in the order of k, so that rounding does not depend on the number of threads
    for coordinate_values in thread_map(values_of_coordinate, scaled_h.T[:, :, None]):
        values = {
            name: _REDUCTIONS.get(name, np.add)(values[name], value) if name in values else value
            for name, value in coordinate_values.items()
        }

    return values


def certified_values(
    inputs: Inputs, exact: ExactBias, ends: Ends | None, has_theorem: bool
) -> RowValues:
    """Return what balls prove for the logits, (B,) each, by the field names of `VerificationRow`.

    `ends` are the bounds (B, n) for every m, None if the scheme has none. `has_theorem` says
    whether Theorem 1 covers the scheme.
    """
    m = inputs.num_sampled
    names = ["certified_error"]
    if ends is not None:
        names += ["certified_finite_inside", "certified_finite_outside"]
    if has_theorem:
        names += ["certified_printed_inside", "certified_printed_outside"]
    values: dict[str, list[Any]] = {name: [] for name in names}

    for i, (logits, label, q) in enumerate(inputs.rows()):
        proved = certified_bias(logits, label, q, m, scheme=inputs.scheme.name)
        bias = exact.bias[i]
        distances = np.maximum(bias - proved.lower, proved.upper - bias)
        # differences and sum are rounded: n + 1 units are more than what that may lose
        error = distances.sum() * (1.0 + (len(bias) + 1) * 2.0**-52)
        values["certified_error"].append(np.nextafter(error, np.inf))
        if ends is not None:
            lower, upper = ends[0][i], ends[1][i]
            inside = (lower <= proved.lower) & (proved.upper <= upper)
            outside = (proved.upper < lower) | (upper < proved.lower)
            values["certified_finite_inside"].append(inside.sum())
            values["certified_finite_outside"].append(outside.sum())
        if has_theorem:
            holds = certified_theorem1(logits, label, q, m).holds
            values["certified_printed_inside"].append(holds.count(True))
            values["certified_printed_outside"].append(holds.count(False))
    return {name: np.array(of_examples) for name, of_examples in values.items()}
