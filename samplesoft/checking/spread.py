"""How widely the results of one call spread under a hypothesis, seldom draws included.

A class that is drawn once in a thousand calls, with a weight of a thousand, is missing from most
samples, and their standard errors know nothing of it. So what one draw changes is computed for all
classes: log S by log(1 + w / R) where R is the rest of the sum, and its slopes by w / (R + w). With
m draws variances add up. That is a linearisation, good enough for a lower limit of the spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.problem import Problem
from samplesoft.checking.recipe import FULL, INDEPENDENT, LOGISTIC, Recipe

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
        if recipe.kind == LOGISTIC:
            log_rest = 0.0
        else:
            log_sum = losses[e] / recipe.loss_scale + recipe.own[e]
            with np.errstate(divide="ignore"):
                log_drawn = np.logaddexp.reduce(np.log(law) + x, initial=-np.inf)
            rest = 1.0 - np.exp(min(log_drawn - log_sum, 0.0))
            log_rest = max(log_sum + np.log(max(rest, _LEAST_REST)), recipe.certain_mass(e))
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
