"""How widely single losses spread: linearised for every recipe, exact where it is right."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, factorial

import numpy as np
from scipy.special import zeta
from scipy.stats import binom

from samplesoft._validation import FloatArray
from samplesoft.checking.problem import Problem
from samplesoft.checking.recipe import FULL, INDEPENDENT, KEPT, LOGISTIC, SUM, Recipe

_LEAST_REST = 1e-3  # of the sum


@dataclass(frozen=True)
class Spread:
    """Standard deviation and skewness (K,) of the results for one set of draws."""

    deviations: FloatArray
    skewness: FloatArray


def spread(recipe: Recipe, losses: FloatArray, problem: Problem, with_gradient: bool) -> Spread:
    """Return the spread of losses and gradients in h; `losses` (E,) are the mean losses."""
    columns, gradients = [], []
    for e, label in enumerate(recipe.labels):
        law, x = recipe.law[e], recipe.draws[e]
        if recipe.kind == FULL:
            law = np.zeros_like(law)
        if recipe.kind == LOGISTIC:  # log(1 + exp(x)): the rest of each sum is 1
            log_rest = 0.0
        else:
            log_sum = losses[e] / recipe.loss_scale + recipe.own[e]
            with np.errstate(divide="ignore"):
                log_drawn = np.logaddexp.reduce(np.log(law) + x, initial=-np.inf)
            rest = 1.0 - np.exp(min(log_drawn - log_sum, 0.0))
            log_rest = max(log_sum + np.log(max(rest, _LEAST_REST)), recipe.certain_mass(e))
        # what one draw adds to log S beside the rest of the sum, to first order in the draws
        effects = np.logaddexp(0.0, x - log_rest)
        shares = np.exp(-np.logaddexp(0.0, log_rest - x))
        if recipe.smoothing and recipe.hit_logit is not None:
            shown = np.where(np.isfinite(x), x, 0.0)
            shown[label] = recipe.hit_logit[e]
            effects = effects - recipe.smoothing * shown / (recipe.num_draws + 1)
        columns.append(recipe.loss_scale * effects[:, None])
        away = problem.class_embeddings - problem.class_embeddings[label]
        gradients.append(problem.tau * recipe.slope_scale * shares[:, None] * away)
    parts = [_moments(recipe, e, column) for e, column in enumerate(columns)]
    if with_gradient:
        parts += [_moments(recipe, e, column) for e, column in enumerate(gradients)]
    deviations, skewness = (np.concatenate(kind) for kind in zip(*parts, strict=True))
    return Spread(deviations, skewness)


def _moments(recipe: Recipe, e: int, effects: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return deviation and skewness of the sum over all draws of effects (n, k)."""
    law = np.zeros(len(recipe.law[e])) if recipe.kind == FULL else recipe.law[e]
    law = law[:, None]
    if recipe.kind == INDEPENDENT:  # each class is there or not
        variance = (law * (1.0 - law) * effects**2).sum(axis=0)
        third = (law * (1.0 - law) * (1.0 - 2.0 * law) * effects**3).sum(axis=0)
    else:
        away = effects - (law * effects).sum(axis=0)
        variance = recipe.num_draws * (law * away**2).sum(axis=0)
        third = recipe.num_draws * (law * away**3).sum(axis=0)
    size = np.where(variance > 0.0, variance, 1.0) ** 1.5
    return np.sqrt(variance), np.abs(third) / size


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
    # of the square X^2: its variance and third central moment from E X^4 and E X^6
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
    # the fall of the transform lies between the largest and the least S that can come
    x = np.arange(-np.log(max(most, 1.0)) - _LEFT, -np.log(min(least, 1.0)) + _RIGHT, _STEP)
    u = np.exp(x)
    change = _CHANGES[recipe.kind](recipe.law[e], weights, base, recipe.num_draws, u)
    return _of_log_sum(x, np.expm1(-u) - change)


def _of_log_sum(x: FloatArray, fall: FloatArray) -> FloatArray:
    """Return the moments of log S from exp(-u) - E exp(-u S) at u = exp(x)."""
    # E S^-s has the Mellin integral of u^(s-1) E exp(-u S); its powers of s are moments of log S
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
    # draws are independent: cumulants of one draw times m are those of the sum
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
