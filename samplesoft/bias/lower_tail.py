"""Chernoff's bound on how likely a mean of draws is to be small."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import make_atoms, make_classes
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.transform import evaluate_nodes

_STEP = 0.2  # of log v; the best v lies within half a step of a node
_LEFT, _RIGHT = -14.0, 24.0  # of log (m v mean) and of log (v mean)
_GONE = 745.0
_ROUNDING = 1e-12  # of the transform; panels hold each exp(-v r) to some 2e-15 of 1
_LOST = 1e8  # nodes where that leaves few digits of the transform are not used
# thresholds as parts of the mean; the end of the range comes last
_PARTS = np.concatenate([np.linspace(0.9, 0.05, 35), np.geomspace(0.04, 1e-8, 20)])


class LowerTail(NamedTuple):
    """Bounds on P(X <= x) for ``X = (sum of r over M draws) / m`` at falling x, all (L,)."""

    x: FloatArray  # less their rounding; the last is the least value of X
    below: FloatArray  # E[X] - x
    chance: FloatArray  # 0 for the last


class Transform(NamedTuple):
    """Of the ratio of one draw: ``log E[exp(-v (r - mean))]`` at nodes v, all (K,)."""

    v: FloatArray
    excess: FloatArray  # not less than it is
    low: FloatArray  # not more
    log_low: FloatArray  # bounds on ``log E[exp(-v r)]``
    log_high: FloatArray
    mean: float
    rounding: float  # relative, of the mean
    step: float  # of log v


def make_transform(law: DrawLaw, rounding: float) -> Transform | None:
    """Compute the transform of one draw where a bound may need it, None if it has no digits."""
    log_mean = math.log(law.mean)
    with np.errstate(all="ignore"):
        classes = make_classes(law)
        # until the least sum has decayed
        slowest = math.log(law.num_draws) + float(np.logaddexp(law.log_base, classes.log_least))
        last = max(_RIGHT - log_mean, math.log(_GONE) - slowest)
        last = min(last, LARGEST_EXPONENT - math.log(law.num_draws))
        x = np.arange(_LEFT - math.log(law.num_draws) - log_mean, last, _STEP)
        nodes = evaluate_nodes(classes, make_atoms(law, classes), x, np.zeros_like(x))
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
    low = np.maximum(excess - error, 0.0)
    # an error in all ratios moves the log by v times the tilted mean, which is less than its size
    log = nodes.log_transform[good]
    off = 2.0 * rounding * np.abs(log) + _ROUNDING * lost[good]
    ends = log - off, np.minimum(log + off, 0.0)
    return Transform(v, excess + error, low, *ends, law.mean, relative, _STEP)


def chernoff(transform: Transform, draws: int, m: int, log_least: float) -> LowerTail:
    """Bound the lower tail by ``min over v of exp(v m (x - E[X])) (E exp(-v (r - mean)))^M``.

    `log_least` is the log of the least ratio, less its error.
    """
    mean = transform.mean * draws / m
    least = math.exp(log_least) * draws / m
    x = mean * _PARTS
    x = np.append(x[x > least * (1.0 + 1e-9)], least)
    below = mean - x
    moved = transform.rounding * mean
    below[-1] += moved
    levels = draws * transform.excess - m * np.outer(below, transform.v)
    chance = np.exp(np.maximum(np.min(levels, axis=1, initial=0.0), -LARGEST_EXPONENT))
    chance[-1] = 0.0
    return LowerTail(np.maximum(x - moved, least), below, chance)
