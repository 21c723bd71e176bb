"""The exact mean of a loss and of its slopes in the logits, under a recipe.

A sum with any weights is that of another problem in which they are right: there a class has the
logit ``draws + log(m law)``, draws without weight are draws of the label, and those of the label
that have weight are one more class. `samplesoft.exact_bias` gives the mean of log S there.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.exact import exact_bias
from samplesoft.checking.recipe import (
    FULL,
    INDEPENDENT,
    JACKKNIFE,
    KEPT,
    LOGISTIC,
    SUM,
    Recipe,
)

_SCHEMES = {SUM: "masked", KEPT: "reject", JACKKNIFE: "jackknife", INDEPENDENT: "poisson"}
_NEXT_TO_NOTHING = 80.0  # below the least logit
_MOST_CLASSES_KEPT = 64  # of the problems whose means are kept


@dataclass(frozen=True)
class Means:
    """Means over the draws: of the losses (E,), and of their slopes in the logits (E, n)."""

    losses: FloatArray
    slopes: FloatArray


class _Shares(NamedTuple):
    """Means over the draws: of log S, and of the shares in S of the base mass and of draws (n,)."""

    log_sum: float
    base: float
    draws: FloatArray


def expectation(recipe: Recipe, logits: FloatArray) -> Means:
    """Return the exact means of a recipe; `logits` (E, n) are those of the problem."""
    losses, slopes = np.empty(len(logits)), np.zeros_like(logits)
    for e, label in enumerate(recipe.labels):
        if recipe.kind == LOGISTIC:
            losses[e], slopes[e] = _logistic(recipe, e)
            continue
        if recipe.kind == FULL:
            log_sum, shares = _softmax(logits[e])
            found = _Shares(log_sum, 0.0, shares)
        elif recipe.twice:
            found = _first_twice(recipe, e)
        elif recipe.one_hit_less:
            found = _one_hit_less(recipe, e)
        else:
            mass = recipe.certain_mass(e)
            found = _mean_shares(recipe, e, mass, recipe.num_draws)
            if recipe.certain is not None:
                # the base mass is shared out among the label and the certain classes
                others = found.base * np.exp(recipe.certain[e] - mass)
                own = found.base * float(np.exp(recipe.base[e] - mass))
                found = _Shares(found.log_sum, own, found.draws + others)
        losses[e] = found.log_sum - recipe.own[e]
        # d(log S - own) / do: shares in S, less 1 at the label
        slopes[e] = found.draws
        if recipe.hits_fixed:  # a constant has no slope, however much of S it is
            slopes[e, label] = 0.0
        slopes[e, label] += found.base - 1.0
    if recipe.smoothing:
        losses, slopes = _smoothed(recipe, losses, slopes)
    return Means(recipe.loss_scale * losses, recipe.slope_scale * slopes)


def _softmax(logits: FloatArray) -> tuple[float, FloatArray]:
    """Return log of the sum of exp(logits), and the shares in it."""
    top = float(logits.max())
    weights = np.exp(logits - top)
    total = float(weights.sum())
    return top + float(np.log(total)), weights / total


def _mean_shares(recipe: Recipe, e: int, base: float, m: int) -> _Shares:
    """Return the means of example e, for a base mass and a number of draws."""
    law, draws = recipe.law[e], recipe.draws[e]
    if len(law) > _MOST_CLASSES_KEPT:
        return _compute_shares(recipe.kind, law, draws, base, m)
    return _kept_shares(recipe.kind, law.tobytes(), draws.tobytes(), float(base), m)


@lru_cache(maxsize=4096)  # at most 10 MB; smoothing, and the next loss, ask for the same again
def _kept_shares(kind: str, law: bytes, draws: bytes, base: float, m: int) -> _Shares:
    """Return the means, for float64 as bytes."""
    return _compute_shares(kind, np.frombuffer(law), np.frombuffer(draws), base, m)


def _compute_shares(kind: str, law: FloatArray, draws: FloatArray, base: float, m: int) -> _Shares:
    """Return the means, for the law (n,) of a draw and corrected logits (n,)."""
    shares = np.zeros(len(law))
    if base == -np.inf:  # no label in S: self-normalised importance sampling
        classes = np.flatnonzero(law > 0.0)
        o = draws[classes] + np.log(m) + np.log(law[classes])
        found = exact_bias(o, 0, law[classes] / law[classes].sum(), m, scheme="importance")
        shares[classes] = found.expected_probs
        return _Shares(_softmax(o)[0] + float(found.loss_bias), 0.0, shares)
    weighed = (law > 0.0) & (draws > -np.inf)
    classes = np.flatnonzero(weighed)
    if m == 0 or not len(classes):
        return _Shares(base, 1.0, shares)
    given = law[classes]
    # the logits of the other problem, in which these weights are right; see the top of the file
    if kind == KEPT:  # o - log(qn), where qn is given "with weight"
        given = given / given.sum()
    o = np.log(given) + draws[classes] + (0.0 if kind in (KEPT, INDEPENDENT) else np.log(m))
    nothing = float(law[~weighed].sum())  # the chance of a draw without weight
    o, q = np.append(base, o), np.append(nothing, law[classes])
    if kind == INDEPENDENT:
        q[0] = 0.5  # of no effect
    elif kind == JACKKNIFE and nothing > 0.0:  # no draw of a label there, so one of next to nothing
        o, q = np.append(o, o.min() - _NEXT_TO_NOTHING), np.append(q, nothing)
        q[0] = 0.0
    if kind != INDEPENDENT:
        q /= q.sum()
    with warnings.catch_warnings():  # of few digits of next to no bias, which is no matter here
        warnings.filterwarnings("ignore", "the bias of scheme", RuntimeWarning)
        found = exact_bias(o, 0, q, m, scheme=_SCHEMES[kind])
    parts = found.expected_probs
    shares[classes] = parts[1 : 1 + len(classes)]
    return _Shares(_softmax(o)[0] + float(found.loss_bias), float(parts[0]), shares)


def _with_more(recipe: Recipe, e: int, j: int, more: float, m: int) -> _Shares:
    """Return the means of example e with exp(more) of class j in S beside the base and m draws."""
    own = recipe.base[e]
    both = float(np.logaddexp(own, more))
    found = _mean_shares(recipe, e, both, m)
    draws = found.draws.copy()
    draws[j] += found.base * np.exp(more - both)
    return _Shares(found.log_sum, found.base * np.exp(own - both), draws)


def _mixture(chances: FloatArray, parts: list[_Shares]) -> _Shares:
    """Return the mean over cases, by their chances."""
    return _Shares(
        float(sum(p * part.log_sum for p, part in zip(chances, parts, strict=True))),
        float(sum(p * part.base for p, part in zip(chances, parts, strict=True))),
        sum(p * part.draws for p, part in zip(chances, parts, strict=True)),
    )


def _first_twice(recipe: Recipe, e: int) -> _Shares:
    """Return the means where the first draw counts twice, as those over all first draws."""
    first = np.flatnonzero(recipe.law[e] > 0.0)
    more = np.log(2.0) + recipe.draws[e]
    parts = [_with_more(recipe, e, int(j), more[j], recipe.num_draws - 1) for j in first]
    return _mixture(recipe.law[e, first], parts)


def _one_hit_less(recipe: Recipe, e: int) -> _Shares:
    """Return the means where one hit has no weight, as those over the numbers of hits."""
    label, m = int(recipe.labels[e]), recipe.num_draws
    hit, chance = recipe.draws[e, label], recipe.law[e, label]
    law = recipe.law.copy()
    law[e, label] = 0.0
    law[e] /= law[e].sum()
    # given k hits the other m - k draws follow q without the label; k is binomial
    others, hits = replace(recipe, law=law), np.arange(m + 1)
    more = [hit + np.log(k - 1.0) if k > 1 else -np.inf for k in hits]
    parts = [_with_more(others, e, label, more[k], m - int(k)) for k in hits]
    chances = [comb(m, int(k)) * chance**k * (1.0 - chance) ** (m - k) for k in hits]
    return _mixture(np.array(chances), parts)


def _logistic(recipe: Recipe, e: int) -> tuple[float, FloatArray]:
    """Return the mean of a sum of logistic losses, and of its slopes."""
    label, law, x = int(recipe.labels[e]), recipe.law[e], recipe.draws[e]
    m = recipe.num_draws
    # each draw adds log(1 + exp(x)), the label log(1 + exp(-x)): the mean is a plain sum
    slopes = m * law * np.exp(-np.logaddexp(0.0, -x))
    slopes[label] -= np.exp(-np.logaddexp(0.0, recipe.base[e]))
    losses = np.logaddexp(0.0, x) * law
    return float(m * losses.sum() + np.logaddexp(0.0, -recipe.base[e])), slopes


def _smoothed(
    recipe: Recipe, losses: FloatArray, slopes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return means with part of the target spread over the label and all draws."""
    rows, m = np.arange(len(losses)), recipe.num_draws
    x = recipe.draws.copy()
    x[rows, recipe.labels] = recipe.hit_logit
    # the smoothed target puts the same share on each candidate: the label and m draws
    candidates = (recipe.own + m * (recipe.law * x).sum(axis=1)) / (m + 1)
    targets = m * recipe.law / (m + 1)
    if not recipe.hits_follow:
        targets[rows, recipe.labels] = 0.0
    targets[rows, recipe.labels] += 1.0 / (m + 1)
    whole = slopes - recipe.smoothing * targets
    whole[rows, recipe.labels] += recipe.smoothing
    return losses + recipe.smoothing * (recipe.own - candidates), whole
