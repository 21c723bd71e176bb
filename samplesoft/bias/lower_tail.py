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
_LEFT, _RIGHT = -2.0, 24.0  # of log (m v mean) and of log (v mean)
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
    mean: float
    rounding: float  # relative, of the mean


def make_transform(law: DrawLaw, rounding: float) -> Transform:
    """Compute the transform of one draw where Chernoff's bound may need it."""
    log_mean = math.log(law.mean)
    x = np.arange(_LEFT - math.log(law.num_draws), _RIGHT, _STEP) - log_mean
    with np.errstate(all="ignore"):
        classes = make_classes(law)
        nodes = evaluate_nodes(classes, make_atoms(law, classes), x, np.zeros_like(x))
        lost = np.exp(-nodes.log_transform)
    good = np.isfinite(nodes.excess) & (lost < _LOST)
    v, excess = nodes.v[good], nodes.excess[good]
    relative = 4.0 * rounding + _ROUNDING
    excess += relative * (excess + 2.0 * v * law.mean + lost[good] - 1.0)
    return Transform(v, excess, law.mean, relative)


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
