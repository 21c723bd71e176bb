"""The bias of one example and its bounds, in the logits, in h, and in the class vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.theorems import (
    CorrectedTerms,
    Theorem1Terms,
    corrected_terms_of,
    theorem1_terms_of,
)

WRT = ("logits", "h", "class_embeddings")
# A coordinate counts as outside a printed bound if it is so by more than these fractions of the
# bound and of M / m, which are far above rounding errors and far below violations that matter.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-14


@dataclass(frozen=True)
class Theory:
    """What Theorem 1 says of one example in P parameters, and the limit: for ``negatives``."""

    terms: Theorem1Terms
    corrected: CorrectedTerms
    g: FloatArray  # (P,): sum_j p_j d o_j over the negatives
    limit: FloatArray  # of m times the bias


Ends = tuple[FloatArray, FloatArray]  # bounds on P coordinates that hold for every m


def compute_theory(logits: FloatArray, labels: IntArray, q: FloatArray) -> list[Theory]:
    """Return theorem and limit for each example of a batch, with regard to its logits."""
    inputs = check_inputs(logits, labels, q, 1)
    terms, corrected = theorem1_terms_of(inputs), corrected_terms_of(inputs)
    limit = asymptotic_bias_of(inputs)
    out = []
    for b in range(len(logits)):
        one = Theorem1Terms(*(column[b] for column in terms))
        true = CorrectedTerms(*(column[b] for column in corrected))
        out.append(Theory(one, true, one.negative_probs, limit[b]))
    return out


def transform_theory(examples: list[Theory], jacobian: FloatArray) -> list[Theory]:
    """Go from the logits of a batch to P parameters, with the Jacobian (n, P)."""
    columns = (
        np.stack([one.g for one in examples]) @ jacobian,
        np.stack([one.limit for one in examples]) @ jacobian,
    )
    return [
        Theory(one.terms, one.corrected, *row) for one, *row in zip(examples, *columns, strict=True)
    ]


@dataclass(frozen=True)
class Printed:
    """The printed bounds on P coordinates of a gradient, and which coordinates are outside."""

    lower: FloatArray  # LB and UB at this m
    upper: FloatArray
    outside: NDArray[np.bool_]
    outside_limit: NDArray[
        np.bool_
    ]  # whether the limit of m times the bias is outside m times them
    sign_condition: bool  # whether g >= 0 in every coordinate


@dataclass(frozen=True)
class Corrected:
    """The bounds of the corrected theorem on P coordinates of a gradient."""

    most: float  # the bound on every coordinate
    outside: NDArray[np.bool_]  # by more than the numerical error: none


@dataclass(frozen=True)
class Coordinates:
    """P coordinates of the gradient of one example; bounds are None for schemes without them."""

    bias: FloatArray  # exact
    error: float  # of its computation
    printed: Printed | None
    corrected: Corrected | None
    lower: FloatArray | None  # bounds that hold for every m
    upper: FloatArray | None


def compare_with_bounds(
    bias: FloatArray,
    error: float,
    theory: Theory | None,
    ends: Ends | None,
    m: int,
    scale: float,
) -> Coordinates:
    """Compare the bias (P,) of one example with its bounds in the same P parameters.

    `error` is the numerical error of the bias in the logits, in the L1 norm; `scale` is M, the
    largest derivative of a logit.
    """
    if ends is None:
        return Coordinates(bias, error * scale, None, None, None, None)
    slack = (error + _ABSOLUTE / m) * scale
    if theory is None:
        return Coordinates(bias, slack, None, None, *ends)
    low, high = theory.terms.bounds(theory.g, scale, m)
    printed = Printed(
        low,
        high,
        _outside(bias, low, high, slack),
        _outside(theory.limit / m, low, high, slack),
        bool((theory.g >= 0.0).all()),
    )
    true = theory.corrected.bounds(theory.g, scale, m)
    corrected = Corrected(float(theory.corrected.reaches(scale, m)[0]), _beyond(bias, *true, slack))
    return Coordinates(bias, slack, printed, corrected, *ends)


def _outside(
    values: FloatArray, lower: FloatArray, upper: FloatArray, slack: float
) -> NDArray[np.bool_]:
    wider = lower - _RELATIVE * np.abs(lower), upper + _RELATIVE * np.abs(upper)
    return _beyond(values, *wider, slack)


def _beyond(
    values: FloatArray, lower: FloatArray, upper: FloatArray, slack: float
) -> NDArray[np.bool_]:
    either: NDArray[np.bool_] = (values < lower - slack) | (values > upper + slack)
    return either


@dataclass(frozen=True)
class BlockSummary:
    """The figures of one example in one block; None for those that a scheme does not have."""

    size: int  # number of coordinates P
    max_bias: float
    l1_bias: float
    resolved: bool  # whether l1_bias is greater than its numerical error
    printed_max: Any = None  # largest absolute value that LB and UB allow
    outside: Any = None  # number of coordinates outside LB and UB
    outside_limit: Any = None
    sign_condition: Any = None
    corrected_max: Any = None  # the corrected theorem's bound on every coordinate
    corrected_outside: Any = None  # number of coordinates outside its bounds
    finite_outside: Any = None  # those outside the bounds for every m by more than the error
    finite_width: Any = None  # sum over the coordinates
    finite_min_max: Any = None  # bounds on max_bias
    finite_max_max: Any = None


def summarize(block: Coordinates) -> BlockSummary:
    """Return the figures of one example in one block, from its coordinates."""
    size = np.abs(block.bias)
    values: dict[str, Any] = {
        "size": size.size,
        "max_bias": float(size.max()),
        "l1_bias": float(size.sum()),
    }
    values["resolved"] = values["l1_bias"] > block.error
    printed, corrected = block.printed, block.corrected
    if printed is not None and corrected is not None:
        values |= {
            "printed_max": float(max(np.abs(printed.lower).max(), np.abs(printed.upper).max())),
            "outside": int(printed.outside.sum()),
            "outside_limit": int(printed.outside_limit.sum()),
            "sign_condition": printed.sign_condition,
            "corrected_max": corrected.most,
            "corrected_outside": int(corrected.outside.sum()),
        }
    if block.lower is not None and block.upper is not None:
        outside = _beyond(block.bias, block.lower, block.upper, block.error)
        values |= {
            "finite_outside": int(outside.sum()),
            "finite_width": float((block.upper - block.lower).sum()),
            "finite_min_max": float(np.maximum(np.maximum(block.lower, -block.upper), 0.0).max()),
            "finite_max_max": float(np.maximum(-block.lower, block.upper).max()),
        }
    return BlockSummary(**values)


def summarize_class_vectors(
    block: Coordinates, theory: Theory | None, m: int, slopes: FloatArray
) -> BlockSummary:
    """Return the figures of one example in all class vectors, without their n * d coordinates.

    Coordinate k of class vector i has the bias ``bias_i * slopes_k``, so the norms factor, the
    finite-m intervals scale, and for each k the printed bounds are thresholds on n numbers.
    `block` and `theory` are those of the logits; `slopes`, (d,), are ``tau * h``, the derivatives
    of a logit in its class vector.
    """
    one = summarize(block)
    size = np.abs(slopes)
    largest, total = float(size.max()), float(size.sum())
    values: dict[str, Any] = {
        "size": one.size * slopes.size,
        "max_bias": one.max_bias * largest,
        "l1_bias": one.l1_bias * total,
        "resolved": one.resolved,
    }
    if theory is not None:
        weights = theory.terms.negative_probs
        ends = weights.min() * slopes, weights.max() * slopes
        low, high = theory.terms.bounds(np.concatenate(ends), largest, m)
        none = np.zeros(1)
        _, flat = theory.terms.bounds(none, largest, m)  # the part of UB without g
        limits = float(low[0]), float(flat[0])
        slack = (block.error + _ABSOLUTE / m) * largest
        rise = float(theory.terms.ub1) / m
        values |= {
            "printed_max": float(max(np.abs(low).max(), np.abs(high).max())),
            "outside": _count_outer(block.bias, weights, rise, slopes, limits, slack),
            "outside_limit": _count_outer(theory.limit / m, weights, rise, slopes, limits, slack),
            "sign_condition": bool((slopes >= 0.0).all() or not weights.any()),
            "corrected_max": float(theory.corrected.reaches(largest, m)[0]),
            "corrected_outside": _count_products(block.bias, theory.corrected, m, size, slack),
        }
    if one.finite_outside is not None:
        values |= {
            "finite_outside": one.finite_outside * int(np.count_nonzero(slopes)),
            "finite_width": one.finite_width * total,
            "finite_min_max": one.finite_min_max * largest,
            "finite_max_max": one.finite_max_max * largest,
        }
    return BlockSummary(**values)


def _count_outer(
    bias: FloatArray,
    weights: FloatArray,
    rise: float,
    slopes: FloatArray,
    limits: tuple[float, float],
    slack: float,
) -> int:
    """Count (i, k) with ``bias_i s_k`` below LB or above ``rise * weights_i * s_k + flat``."""
    lower, flat = limits
    with np.errstate(over="ignore", invalid="ignore"):
        signed = np.where(weights == 0.0, 0.0, rise * weights)
        # the tolerance of `_outside`, included in the numbers before they are sorted
        under = np.sort(bias)
        gap = bias - signed
        over_rising = np.sort(gap - _RELATIVE * signed)
        over_falling = np.sort(gap + _RELATIVE * signed)
    floor = lower - _RELATIVE * abs(lower) - slack
    ceiling = flat + _RELATIVE * abs(flat) + slack
    n = len(bias)
    rising, falling = slopes[slopes > 0.0], slopes[slopes < 0.0]
    # s > 0: bias < floor / s, gap > ceiling / s; s < 0 turns both round
    count = np.searchsorted(under, floor / rising, "left").sum()
    count += (n - np.searchsorted(over_rising, ceiling / rising, "right")).sum()
    count += (n - np.searchsorted(under, floor / falling, "right")).sum()
    count += np.searchsorted(over_falling, ceiling / falling, "left").sum()
    return int(count)


def _count_products(
    bias: FloatArray, corrected: CorrectedTerms, m: int, size: FloatArray, slack: float
) -> int:
    """Count (i, k) with ``bias_i s_k`` outside the corrected bounds, `size` being the |s_k|.

    Those are on the distance from 0 and from ``rise_i s_k`` and ``-rise_i s_k``.
    """
    reaches = corrected.reaches(size.max(), m)
    with np.errstate(all="ignore"):
        rise = corrected.variance * corrected.negative_probs / m
        distances = np.abs([bias, bias - rise, bias + rise])
        parts = np.sort(np.nanmax(distances / (np.array(reaches)[:, None] + slack), axis=0))
        return len(bias) * len(size) - int(np.searchsorted(parts, 1.0 / size, "right").sum())
