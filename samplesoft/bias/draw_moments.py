"""Moments of the ratio of one draw and of a mean of draws, with bounds on their errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft.bias.gauss_rule import JacobiMatrix, jacobi_matrix, sum_of_draws
from samplesoft.bias.negatives import Negatives

# Beyond these the moments have too few digits, or the bounds of order 2 lose nothing: they remain.
_LARGEST_UNIT = 1e40
_LEAST_LOG_MEAN = -90.0
_LEAST_SECOND = 1e-150
_FEW_DIGITS = 1e-3
_SIZE = 6  # nodes of Gauss's rule
_KNOWN = 1e-9  # relative error of the first coefficients, with which the later ones
_LATER = 1e-5  # are taken to have this one


class Interval(NamedTuple):
    """A number that lies between two others."""

    low: float
    high: float


class DrawMoments(NamedTuple):
    """Moments of ``y = (r - mean) / largest |r - mean|`` under one draw, and their errors.

    With ``g = third / second`` the polynomial ``pi(y) = y^2 - g y - second`` is orthogonal to 1 and
    y. `fourth` is E[pi^2], `fifth` is E[y pi^2].
    """

    second: float
    third: float
    fourth: float
    fifth: float
    log_unit: float  # of the largest |r - mean|
    second_error: float  # relative; the others are absolute
    slope_error: float  # of g
    root_error: float  # of the root of `fourth`
    fifth_error: float
    rounding: float  # relative, of all that is made of these
    matrix: JacobiMatrix  # of y, computed without such bounds


class SumMoments(NamedTuple):
    """Jacobi coefficients of the law of ``Y = sum of (r - mean) / m`` over M draws.

    E[1 / (mu + Y)] begins as the continued fraction
    ``1 / (mu - b1 / (mu + g1 - b2 / (mu + g2 - ...)))``, b being the norms and g the slopes.
    """

    norms: list[Interval]
    slopes: list[Interval]


def draw_moments(negatives: Negatives) -> DrawMoments | None:
    """Return the moments of one draw, or None where they would have no digits.

    Each computed deviation is off by at most ``2 rounding (|y| + 2 / largest |r / mean - 1|)``,
    in units of the largest; by the triangle inequality in L2 of the draw so are the roots.
    """
    eta = negatives.rounding
    log_largest = float(negatives.log_deviation.max())
    log_unit = log_largest + negatives.log_zt
    if negatives.log_zt < _LEAST_LOG_MEAN or not log_largest > math.log(eta):
        return None
    weight = np.exp(negatives.log_qn)
    size = np.exp(negatives.log_deviation - log_largest)
    y = np.copysign(size, negatives.log_ratio)
    rest = 2.0 * math.exp(-log_largest)
    second = float(weight @ y**2)
    third = float(weight @ y**3)
    if not second > _LEAST_SECOND:
        return None
    root, slope = math.sqrt(second), third / second
    off = size + rest
    second_error = 8.0 * eta * math.sqrt(float(weight @ off**2)) / root
    if not second_error < _FEW_DIGITS:
        return None
    slope_error = 10.0 * eta * (1.0 + rest) + second_error * abs(slope)
    pi = y**2 - slope * y - second
    fourth = float(weight @ pi**2)
    off *= 2.0 * size + (abs(slope) + 2.0 * eta * (1.0 + rest))
    root_error = 4.0 * eta * math.sqrt(float(weight @ off**2) + fourth)
    root_error += slope_error * root + second_error * second
    largest_root = math.sqrt(fourth) + root_error
    fifth_error = 4.0 * eta * (1.0 + rest) * largest_root**2 + 2.0 * largest_root * root_error
    fifth = float(weight @ (y * pi**2))
    return DrawMoments(
        second,
        third,
        fourth,
        fifth,
        log_unit,
        second_error,
        slope_error,
        root_error,
        fifth_error,
        16.0 * eta,
        jacobi_matrix(y, weight, _SIZE, second_error),
    )


def sum_moments(one: DrawMoments, draws: int, m: int) -> SumMoments | None:
    """Return those of the sum of `draws` draws over `m`, None out of the range of float64."""
    log_unit = one.log_unit - math.log(m)
    if not abs(log_unit) < math.log(_LARGEST_UNIT):
        return None
    unit, more = math.exp(log_unit), draws - 1
    second, slope = one.second, one.third / one.second
    root = math.sqrt(one.fourth)
    wide = one.second_error + one.rounding

    def around(value: float, relative: float) -> Interval:
        return Interval(max(1.0 - relative, 0.0) * value, (1.0 + relative) * value)

    ends = max(root - one.root_error, 0.0) ** 2, (root + one.root_error) ** 2
    b2 = [
        (end / second + 2.0 * more * second) * factor * unit**2
        for end, factor in zip(ends, around(1.0, 2.0 * wide), strict=True)
    ]
    slope_error = one.slope_error + one.rounding * abs(slope)
    # E[Y p2^2] and E[p2^2] of the sum, p2 = Y^2 - g1 Y - b1, over their number of draws
    top = one.fifth + 4.0 * more * second * one.third
    top_error = one.fifth_error + 4.0 * more * second**2 * (slope_error + abs(slope) * 2.0 * wide)
    bottom = [
        (end + 2.0 * more * second**2) * factor
        for end, factor in zip(ends, around(1.0, 2.0 * wide), strict=True)
    ]
    if not bottom[0] > 0.0:
        g2 = Interval(-math.inf, math.inf)
    else:
        quotients = [
            (top + sign * top_error) / divisor * unit * (1.0 + push * one.rounding)
            for sign in (-1.0, 1.0)
            for divisor in bottom
            for push in (-1.0, 1.0)
        ]
        g2 = Interval(min(quotients), max(quotients))
    norms = [around(draws * second * unit**2, wide), Interval(*b2)]
    slopes = [Interval((slope - slope_error) * unit, (slope + slope_error) * unit), g2]
    return _with_later(SumMoments(norms, slopes), sum_of_draws(one.matrix, draws), unit)


def _with_later(first: SumMoments, matrix: JacobiMatrix, unit: float) -> SumMoments:
    """Add the coefficients of `matrix` after the first two, which must be the same in both."""
    norms, slopes = matrix.norms[1:] * unit**2, matrix.slopes[1:] * unit
    if len(norms) < 3 or not matrix.error < 0.01 * _LATER:
        return first
    scales = np.sqrt(norms)
    for k in range(2):
        for ends, value, size in (
            (first.norms[k], norms[k], norms[k]),
            (first.slopes[k], slopes[k], scales[k]),
        ):
            if not max(ends.high - value, value - ends.low) <= _KNOWN * size:
                return first
    errors = _LATER * norms, _LATER * (np.abs(slopes) + scales)
    later = [
        [Interval(float(x - e), float(x + e)) for x, e in zip(values, error, strict=True)][2:]
        for values, error in zip((norms, slopes), errors, strict=True)
    ]
    return SumMoments(first.norms + later[0], first.slopes + later[1])
