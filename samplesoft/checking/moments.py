r"""Moments of the loss of one example without a mistake: how widely single losses spread.

With S the sum under the logarithm and L = log S, for every s > -1

    integral over u of (exp(-u) - E exp(-u S)) u^(s - 1) = Gamma(s) (1 - E S^(-s)) ,

and S^(-s) = exp(-s L). So the coefficients of both sides as series in s give the moments of L, one
after the other, from integrals with powers of log u; the draws are in the Laplace transform alone.
The loss of a logistic scheme is a sum over the draws, whose cumulants add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, factorial

import numpy as np
from scipy.special import zeta
from scipy.stats import binom

from samplesoft._validation import FloatArray
from samplesoft.checking.recipe import INDEPENDENT, KEPT, LOGISTIC, SUM, Recipe
from samplesoft.checking.spread import Spread

_STEP = 0.1  # of log u
_LEFT, _RIGHT = 45.0, 4.5  # where what is left is below 1e-19
_MOST = 1 << 14  # of terms of a transform at one u
_DIGITS = 1e-6  # relative, of what is left where fourth moments cancel
_LEAST_VARIANCE = 3e-4  # below, the sixth moment has no digits


@dataclass(frozen=True)
class Squares:
    """Means (E,) of squares of losses less a centre, and their spread in one set of draws."""

    means: FloatArray
    spread: Spread


def squares(recipe: Recipe, centre: FloatArray) -> Squares | None:
    """Return what squares of losses less `centre` (E,) are under a recipe; None if not known."""
    terms = recipe.law.size * (recipe.num_draws if recipe.kind == KEPT else 1)
    if recipe.kind not in (*_CHANGES, LOGISTIC) or terms > _MOST:
        return None
    rows = [moments(recipe, e, float(c)) for e, c in enumerate(centre)]
    second, fourth, sixth = np.array(rows)[:, [2, 4, 6]].T
    if second.min() < _LEAST_VARIANCE:
        return None
    variance = np.maximum(fourth - second**2, 0.0)
    third = np.abs(sixth - 3.0 * fourth * second + 2.0 * second**3)
    skewness = third / np.maximum(variance, _DIGITS * second**2) ** 1.5
    return Squares(second, Spread(np.sqrt(variance), skewness))


def moments(recipe: Recipe, e: int, centre: float) -> FloatArray:
    """Return E (loss - centre)^k for k from 0 to 6, of a recipe without a mistake."""
    if recipe.kind == LOGISTIC:
        return _of_logistic(recipe, e, centre)
    shift = recipe.own[e] + centre
    weights = np.exp(recipe.draws[e] - shift)
    drawn = (recipe.law[e] > 0.0) & (weights > 0.0)
    base = np.exp(recipe.certain_mass(e) - shift)
    most = base + recipe.num_draws * weights.max()
    least = base if base > 0.0 else weights[drawn].min()
    x = np.arange(-np.log(max(most, 1.0)) - _LEFT, -np.log(min(least, 1.0)) + _RIGHT, _STEP)
    u = np.exp(x)
    change = _CHANGES[recipe.kind](recipe.law[e], weights, base, recipe.num_draws, u)
    return _of_log_sum(x, np.expm1(-u) - change)


def _of_log_sum(x: FloatArray, fall: FloatArray) -> FloatArray:
    """Return the moments of log S from exp(-u) - E exp(-u S) at u = exp(x)."""
    inner = _STEP * np.array([(fall * x**k).sum() / factorial(k) for k in range(6)])
    found = [1.0]
    for k in range(6):
        coefficient = inner[: k + 1] @ _INVERSE_GAMMA[k::-1]
        found.append(float((-1.0) ** k * factorial(k + 1) * coefficient))
    return np.array(found)


def _inverse_gamma(size: int) -> FloatArray:
    """Return the coefficients of 1 / Gamma(1 + s) as a series in s."""
    logs = [np.euler_gamma, *(-zeta(k) * (-1.0) ** k / k for k in range(2, size))]
    found = [1.0]
    for n in range(1, size):
        found.append(sum(k * logs[k - 1] * found[n - k] for k in range(1, n + 1)) / n)
    return np.array(found)


_INVERSE_GAMMA = _inverse_gamma(6)


# E exp(-u S) - 1, with all digits for small u ----------------------------------------------------


def _sum(law: FloatArray, weights: FloatArray, base: float, m: int, u: FloatArray) -> FloatArray:
    of_one_draw = np.maximum(np.expm1(-u[:, None] * weights) @ law, -1.0)
    with np.errstate(divide="ignore"):
        found: FloatArray = np.expm1(m * np.log1p(of_one_draw) - u * base)
    return found


def _kept(law: FloatArray, weights: FloatArray, base: float, m: int, u: FloatArray) -> FloatArray:
    """Take the mean over the number k of draws with weight, by which they are divided."""
    weighed = weights > 0.0
    chance = law[weighed].sum()
    total: FloatArray = binom.pmf(0, m, chance) * np.expm1(-u * base)
    for k in range(1, m + 1):
        given = law[weighed] / chance, weights[weighed] / k
        total += binom.pmf(k, m, chance) * _sum(*given, base, k, u)
    return total


def _independent(
    law: FloatArray, weights: FloatArray, base: float, m: int, u: FloatArray
) -> FloatArray:
    with np.errstate(divide="ignore"):
        logs = np.log1p(law * np.expm1(-u[:, None] * weights)).sum(axis=1)
    found: FloatArray = np.expm1(logs - u * base)
    return found


_CHANGES = {SUM: _sum, KEPT: _kept, INDEPENDENT: _independent}


def _of_logistic(recipe: Recipe, e: int, centre: float) -> FloatArray:
    """Return the moments of a sum of logistic losses."""
    law, x = recipe.law[e], recipe.draws[e]
    one = np.logaddexp(0.0, x)
    powers = [float(law @ one**k) for k in range(7)]
    cumulants = [0.0] * 7
    for n in range(1, 7):
        known = sum(comb(n - 1, k - 1) * cumulants[k] * powers[n - k] for k in range(1, n))
        cumulants[n] = powers[n] - known
    total = [recipe.num_draws * c for c in cumulants]
    total[1] += float(np.logaddexp(0.0, -recipe.base[e])) - centre
    found = [1.0]
    for n in range(1, 7):
        found.append(sum(comb(n - 1, k - 1) * total[k] * found[n - k] for k in range(1, n + 1)))
    return np.array(found)
