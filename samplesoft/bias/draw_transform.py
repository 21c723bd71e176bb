"""The Laplace transform of the ratio of one draw, with bounds on its errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import make_atoms, make_classes
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.transform import evaluate_nodes

_STEP = 0.2  # of log v
_LEFT = -14.0  # of log (m v mean)
_GONE = 745.0
_ROUNDING = 1e-12  # of the transform; panels hold each exp(-v r) to some 2e-15 of 1
_LOST = 1e8  # nodes where that leaves few digits of the transform are not used


class Transform(NamedTuple):
    """Bounds on the transform of the ratio of one draw at nodes v, all (K,)."""

    v: FloatArray
    excess_low: FloatArray  # of log E[exp(-v (r - mean))]
    excess_high: FloatArray
    log_low: FloatArray  # of log E[exp(-v r)]
    log_high: FloatArray
    mean: float
    step: float  # of log v


def make_transform(law: DrawLaw, rounding: float) -> Transform | None:
    """Compute the transform of one draw where a bound may need it, None if it has no digits."""
    log_mean = math.log(law.mean)
    with np.errstate(all="ignore"):
        classes = make_classes(law)
        # until the least sum has decayed
        slowest = math.log(law.num_draws) + float(np.logaddexp(law.log_base, classes.log_least))
        last = min(math.log(_GONE) - slowest, LARGEST_EXPONENT - math.log(law.num_draws))
        x = np.arange(_LEFT - math.log(law.num_draws) - log_mean, last, _STEP)
        nodes = evaluate_nodes(law, classes, make_atoms(law, classes), x, np.zeros_like(x))
        lost = np.exp(-nodes.log_transform_least)
    good = np.isfinite(nodes.excess) & (lost < _LOST)
    if not good.any():
        return None
    v, excess = nodes.v[good], nodes.excess[good]
    relative = 4.0 * rounding + _ROUNDING
    moved = v * law.mean
    error = relative * (excess + 2.0 * moved + lost[good] - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.expm1(excess)  # of second order in v, and so is its error
        root = np.sqrt(2.0 * p * np.exp(moved))
        near = _ROUNDING * p + 2.0 * rounding * ((2.0 + moved) * p + 2.0 * moved * root)
    error = np.fmin(error, near)
    # an error in all ratios moves the log by v times the tilted mean, which is less than its size
    log = nodes.log_transform[good]
    off = 2.0 * rounding * np.abs(log) + _ROUNDING * lost[good]
    ends = log - off, np.minimum(log + off, 0.0)
    excesses = np.maximum(excess - error, 0.0), excess + error
    return Transform(v, *excesses, *ends, law.mean, _STEP)
