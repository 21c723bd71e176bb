r"""The exact mean of a loss and of its slopes under a recipe; its moments, and how it spreads.

All come of one transform, L(u) = E exp(-u S). With B the mass that is in S for certain and draws
that weigh w_j it is a product of as many factors as there are draws,

    L(u) = exp(-u B) (sum_j q_j exp(-u w_j))^m,

or a mixture of such products, such as over the number of draws that are kept. Then (Frullani)

    E log S = int (exp(-u) - L(u)) du / u,
    E (w_j N_j / S) = -int dL / d log w_j du / u,

where class j is drawn N_j times: the share of S that it has, and the slope of log S in its logit.
In x = log u all integrands are smooth and fall off exponentially, or faster, to both sides, so that
sums over equal steps have all digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import toeplitz
from scipy.stats import binom

from samplesoft._jit import thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.without_replacement.sets import Sets
from samplesoft.checking.observe import Problem
from samplesoft.checking.recipe import Recipe

# of log u: a step, whose error is some exp(-2 pi 1.4 / step), and how far the sum goes to the left,
# where exp(-left) is left out: both below 1e-19 for all digits, 1e-12 for most, 1e-7 for sets
_ALL_DIGITS, _MOST_DIGITS = (0.2, 45.0), (0.3, 30.0)
_OF_SETS, _OF_MOMENTS = (0.5, 18.0), (0.4, 36.0)
_RIGHT = 4.5  # where what is left is below 1e-19
_BLOCK = 1 << 16  # numbers in an array of some u and all classes, which a cache holds
_FEW_CLASSES = 64  # whose means have all digits, for little time; of others they have 12
_MOST_LOGIT = 600.0  # of classes that are hardly ever drawn: u w is finite
_NO_CHANCE = 1e-19
_LEAST = np.nextafter(-1.0, 0.0)  # of exp(-u w) - 1, where no digit of exp(-u w) is left
_LOWEST = -1e300


class Weighting(NamedTuple):
    """By whose weights losses and gradients are multiplied: ``own``, ``first`` or ``none``.

    `share_of_labels` is how much of the label's part reaches the gradient in the class vectors.
    """

    losses: str = "own"
    in_h: str = "own"
    in_classes: str = "own"
    share_of_labels: float = 1.0


OWN = Weighting()


class Means(NamedTuple):
    """Means over the draws: of the losses (E,), and of their slopes in the logits (E, n)."""

    losses: FloatArray
    slopes: FloatArray

    def observed(self, problem: Problem, gradients: int, way: Weighting = OWN) -> FloatArray:
        """Return the means (K,) of the losses, and of those gradients that an `Observer` sees.

        Losses and gradients in h are divided by the weights of their examples.
        """
        own = problem.weights
        known = {"own": own, "first": np.full_like(own, own[0]), "none": np.ones_like(own)}
        of_loss, of_h, of_classes = (known[name] for name in way[:3])
        slopes = self.slopes * (of_h / own)[:, None]
        dh = problem.tau * slopes @ problem.class_embeddings
        slopes = self.slopes * of_classes[:, None]
        rows = np.arange(len(slopes))
        slopes[rows, problem.labels] += (1.0 - way.share_of_labels) * of_classes
        of_rows = problem.tau * slopes.T @ problem.h
        if problem.unit:  # what is along a vector that is divided by its norm changes nothing
            dh = dh - (dh * problem.h).sum(axis=1, keepdims=True) * problem.h
            rows_of = problem.class_embeddings
            of_rows = of_rows - (of_rows * rows_of).sum(axis=1, keepdims=True) * rows_of
        views = problem.views / len(slopes)
        parts = [self.losses * of_loss / own, dh, views.T @ of_rows, (slopes @ views).sum(axis=0)]
        return np.concatenate([part.ravel() for part in parts[: 1 + gradients]])


def expectation(recipes: Sequence[Recipe]) -> Means:
    """Return the exact means of a loss that follows one of some recipes."""
    found = [_expectation(recipe) for recipe in recipes]
    losses = np.sum([one.chance * x.losses for one, x in zip(recipes, found, strict=True)], axis=0)
    chances = [np.reshape(one.chance, (-1, 1)) for one in recipes]
    slopes = np.sum([p * x.slopes for p, x in zip(chances, found, strict=True)], axis=0)
    return Means(losses, slopes)


def _expectation(recipe: Recipe) -> Means:
    rows, labels = np.arange(len(recipe.labels)), recipe.labels
    if recipe.kind == "logistic":
        # each draw adds log(1 + exp(x)), the label log(1 + exp(-x)): the mean is a plain sum
        x, law = recipe.draws, recipe.num_draws * recipe.law
        losses = (np.logaddexp(0.0, x) * law).sum(axis=1) + np.logaddexp(0.0, -recipe.own)
        slopes = law * np.exp(-np.logaddexp(0.0, -x))
        slopes[rows, labels] -= np.exp(-np.logaddexp(0.0, recipe.own))
        return Means(recipe.loss_scale * losses, recipe.slope_scale * slopes)
    mass = recipe.certain_mass
    losses, rest, slopes = mass - recipe.own, np.ones(len(rows)), np.zeros_like(recipe.draws)
    if recipe.num_draws:
        few = slopes.shape[1] <= _FEW_CLASSES  # for which threads are not worth their start
        digits = _OF_SETS if recipe.sets else _ALL_DIGITS if few else _MOST_DIGITS
        over: Any = map if few else thread_map
        found = over(lambda e: _transform(recipe, int(e), 0.0, digits), rows)
        for e, (_, fall, of_base, of_draws) in enumerate(found):
            losses[e], rest[e], slopes[e] = fall.sum(), of_base, of_draws
    if recipe.detached:
        slopes[:] = 0.0
    # d(log S - own) / do: shares in S, less 1 at the label
    if recipe.hits_fixed:  # a constant has no slope, however much of S it is
        slopes[rows, labels] = 0.0
    if recipe.certain is not None:
        slopes += rest[:, None] * np.exp(recipe.certain - mass[:, None])
    slopes[rows, labels] += rest * np.exp(recipe.base - np.maximum(mass, _LOWEST)) - 1.0
    return Means(recipe.loss_scale * losses, recipe.slope_scale * slopes)


def smoothing_of(recipe: Recipe, times: FloatArray, x: FloatArray, follow: bool) -> Means:
    """Return what label smoothing adds when all of the target is spread over label and draws.

    `x` (E, n) are logits of classes that are there so many `times` (E, n) beside the label; those
    of draws of the label `follow` the label's, or are constants.
    """
    rows, num = np.arange(len(x)), 1.0 + times.sum(axis=1)
    # the smoothed target puts the same share on each candidate
    candidates = (recipe.own + (times * x).sum(axis=1)) / num
    slopes = -times / num[:, None]
    if not follow:
        slopes[rows, recipe.labels] = 0.0
    slopes[rows, recipe.labels] += 1.0 - 1.0 / num
    return Means(recipe.own - candidates, slopes)


# the transform -----------------------------------------------------------------------------------


def _mixture(
    recipe: Recipe, e: int, weights: FloatArray
) -> list[tuple[float, list[tuple[FloatArray, FloatArray, int]]]]:
    """Return the products of which the transform of example e is made, each with its chance.

    A factor is that of so many draws by a law (n,), of which those of a class weigh `weights` (n,).
    """
    law, m, label = recipe.law[e], recipe.num_draws, recipe.labels[e]
    if recipe.kind == "twice":
        return [(1.0, [(law, 2.0 * weights, 1), (law, weights, m - 1)])]
    if recipe.kind == "jackknife":  # m losses of all draws, less m - 1 of all but one
        less = (law, weights * m / (m - 1), m - 1)
        return [(m, [(law, weights, m)]), (1.0 - m, [less])]
    if recipe.kind == "kept":  # over the number of draws with weight, by which they are divided
        chance = law[weights > 0.0].sum()
        law = np.where(weights > 0.0, law, 0.0) / chance
        return [(p, [(law, weights / (k or 1), k)]) for k, p in _successes(m, chance)]
    if recipe.kind == "one hit less":  # over the number of hits, all but one of which count
        one = np.zeros_like(law)
        one[label] = 1.0
        others = law * (1.0 - one) / (1.0 - law[label])
        return [
            (p, [(others, weights, m - k), (one, abs(k - 1) * weights, min(k, 1))])
            for k, p in _successes(m, law[label])
        ]
    return [(1.0, [(law, weights, m)])]


def _successes(m: int, chance: float) -> list[tuple[int, float]]:
    """Return numbers of successes in m trials that are not too rare, each with its chance."""
    chances = binom.pmf(np.arange(m + 1), m, chance)
    return [(k, p) for k, p in enumerate(chances) if p > _NO_CHANCE]


def _transform(
    recipe: Recipe, e: int, centre: float, digits: tuple[float, float]
) -> tuple[FloatArray, FloatArray, float, FloatArray]:
    """Return log u, exp(-u) - L(u) there, and the mean shares in S of the base and of draws (n,).

    S is divided by exp(own + centre), and exp(-u) - L(u) is multiplied by the step of log u, as the
    integral needs it. With all `digits`, L(u) - 1 has them where u is small too.
    """
    sets = None if recipe.sets is None else recipe.sets[e]
    step, left = digits
    shift = recipe.own[e] + centre
    weights = np.exp(np.minimum(recipe.draws[e] - shift, _MOST_LOGIT))
    base = np.exp(recipe.certain_mass[e] - shift)
    most = base + recipe.num_draws * weights.max()
    if sets is not None:
        most = base + weights.sum()
    least = base if base > 0.0 else weights[(recipe.law[e] > 0.0) & (weights > 0.0)].min()
    # the fall of the transform lies between the largest and the least S that can come
    x = np.arange(-np.log(max(most, 1.0)) - left, -np.log(min(least, 1.0)) + _RIGHT, step)
    if sets is not None:
        u = np.exp(x)
        mean, parts = sets.means(np.exp(np.outer(-u, weights)))
        remaining = np.exp(-u * base)
        fall = step * (np.exp(-u) - remaining * mean.real)
        measure = step * u * remaining
        return x, fall, float(measure @ mean.real) * base, weights * (measure @ parts.real)
    products, falls, rest = _mixture(recipe, e, weights), [], 0.0
    shares = np.zeros_like(weights)
    for u in np.array_split(np.exp(x), 1 + len(x) * len(weights) // _BLOCK):
        change = np.zeros_like(u)  # L(u) - 1, with all digits for small u
        for chance, factors in products:
            logs, slopes = -u * base, []
            for law, weight, times in factors:
                less = np.outer(-u, weight)
                less = np.expm1(less) if digits is _ALL_DIGITS else np.exp(less) - 1.0
                of_draw = np.maximum(less @ law, _LEAST)
                logs = logs + times * np.log1p(of_draw)
                slopes.append((times * law * weight, u / (1.0 + of_draw), 1.0 + less))
            change += chance * np.expm1(logs)
            product = chance * step * np.exp(logs)
            rest += float(product @ u) * base
            for counts, scale, remaining in slopes:
                shares += counts * ((product * scale) @ remaining)
        falls.append(step * (np.expm1(-u) - change))
    return x, np.concatenate(falls), rest, shares


# the spread of single losses ---------------------------------------------------------------------


class Spread(NamedTuple):
    """Standard deviation and skewness (K,) of the results for one set of draws."""

    deviations: FloatArray
    skewness: FloatArray


_LEAST_REST = 1e-3  # of the sum
_NEARLY_ONE = 1.0 - 2.0**-53


def spread(
    recipes: Sequence[Recipe], losses: FloatArray, problem: Problem, gradients: int
) -> Spread:
    """Return the spread of losses and gradients; `losses` (E,) are the mean losses.

    It is linearised in what single draws add; of losses without a mistake `squares` is exact.
    """
    recipe = max(recipes, key=lambda one: float(np.mean(one.chance)))
    law, x, m = recipe.law, recipe.draws, recipe.num_draws * np.ones((len(recipe.law), 1))
    if recipe.kind == "kept":  # draws without weight are as if they had not been made
        law = np.where(x > -np.inf, law, 0.0)
        kept = law.sum(axis=1, keepdims=True)
        law, m = law / kept, m * kept
        x = x - np.log(m)
    if recipe.kind == "one hit less":  # of k draws of the label, k - 1 have weight
        rows, hits = np.arange(len(x)), law[np.arange(len(x)), recipe.labels]
        law = law.copy()
        law[rows, recipe.labels] = hits + np.expm1(m[:, 0] * np.log1p(-hits)) / m[:, 0]
    log_rest = np.zeros(len(x))  # of logistic losses log(1 + exp(x)): the rest of each sum is 1
    if recipe.kind != "logistic":
        log_sum = losses / recipe.loss_scale + recipe.own
        with np.errstate(divide="ignore", invalid="ignore"):
            # of one draw: probabilities of sets sum to the size of the set
            log_size = np.log(law.sum(axis=1))
            log_all = np.logaddexp.reduce(np.log(law) + x, axis=1)
            log_drawn = np.where(log_size > -np.inf, log_all - log_size, -np.inf)
        rest = 1.0 - np.exp(np.minimum(log_drawn - log_sum, 0.0))
        log_rest = log_sum + np.log(np.maximum(rest, _LEAST_REST))
        log_rest = np.maximum(log_rest, recipe.certain_mass)
    # what one draw adds to log S beside the rest of the sum, to first order in the draws
    parts = [recipe.loss_scale * np.logaddexp(0.0, x - log_rest[:, None])[:, :, None]]
    if gradients:
        shares = np.exp(-np.logaddexp(0.0, log_rest[:, None] - x))[:, :, None]
        factor = problem.tau * recipe.slope_scale
        of_classes = (problem.class_embeddings, problem.views)[:gradients]
        parts += [factor * shares * (c - c[recipe.labels][:, None]) for c in of_classes]
    law = law[:, None]
    of_squares = of_cubes = m[:, None] * law
    middle, times, rest_of_squares = law, np.ones_like(law), np.zeros(len(x))
    if recipe.sets is not None:  # each class is there or not
        of_squares = law * (1.0 - law)
        of_cubes = of_squares * (1.0 - 2.0 * law)
        total = np.maximum(of_squares.sum(axis=2, keepdims=True), _LEAST_REST)
        middle = of_squares / total  # of so many as if independent (Hajek)
        if recipe.sets[0].is_independent:
            middle = np.zeros_like(law)
        elif not recipe.sets[0].has_last:
            middle, times, rest_of_squares = _of_counts(law)
    spreads = []
    for part in parts:
        mean = middle @ part
        away = part - np.swapaxes(times, 1, 2) * mean
        square = away * away
        variance = (of_squares @ square)[:, 0] + rest_of_squares[:, None] * mean[:, 0] ** 2
        spreads.append((variance, np.abs(of_cubes @ (square * away))[:, 0]))
    if gradients > 1:  # means over examples, which are taken for independent
        variance, third = spreads.pop()
        for times in (problem.h, np.ones((len(x), 1)) / problem.tau)[: gradients - 1]:
            scale = (problem.weights[:, None] * np.abs(times) / len(x))[:, None]
            powers = (v[:, :, None] * scale**k for v, k in ((variance, 2), (third, 3)))
            spreads.append(tuple(power.sum(axis=0) for power in powers))
    variances, thirds = (
        np.concatenate([v.ravel() for v in vs]) for vs in zip(*spreads, strict=True)
    )
    return Spread(np.sqrt(variances), thirds / np.where(variances > 0.0, variances, 1.0) ** 1.5)


def _of_counts(law: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how the presence of classes follows from counts of draws whose total is fixed.

    `law` (E, 1, n) are the probabilities p that a class was drawn at least once. If counts N of
    draws were Poisson, of the rates -log(1 - p), presence I would have the covariance
    rate (1 - p) with them. A fixed total takes from sum a I its regression b on sum N, with
    ``b = middle @ a``, and leaves of each class a - b times, and b^2 times the rest of its count.
    """
    rates = -np.log1p(-np.minimum(law, _NEARLY_ONE))
    covariance, variance = rates * (1.0 - law), law * (1.0 - law)
    middle = covariance / rates.sum(axis=2, keepdims=True)
    times = np.divide(covariance, variance, out=np.ones_like(law), where=variance > 0.0)
    return middle, times, (rates - times * covariance).sum(axis=2)[:, 0]


_MOST = 1 << 14  # of terms of a transform at one u
_DIGITS = 1e-6  # relative, of what is left where fourth moments cancel
_LEAST_VARIANCE, _LEAST_OF_SETS = 3e-4, 3e-3  # below, the sixth moment has no digits
_CIRCLE = np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)
_FACTORIALS = np.array([factorial(k) for k in range(7)], float)
# 1 / Gamma(1 + s) as a series in s: Abramowitz and Stegun, 6.1.34
_INVERSE_GAMMA = np.array(
    [
        1.0,
        0.5772156649015329,
        -0.6558780715202538,
        -0.0420026350340952,
        0.1665386113822915,
        -0.0421977345555443,
    ]
)


def squares(recipes: Sequence[Recipe], centre: FloatArray) -> tuple[FloatArray, Spread] | None:
    """Return the means of squares of losses less `centre` (E,), and their spread; None if unknown.

    The spread is that of one set of draws.
    """
    powers = _powers(recipes, centre)
    if powers is None:
        return None
    first = recipes[0]
    second, fourth, sixth = powers[:, [2, 4, 6]].T
    if second.min() < (_LEAST_VARIANCE if first.sets is None else _LEAST_OF_SETS):
        return None
    # of the square X^2: its variance and third central moment from E X^4 and E X^6
    variance = np.maximum(fourth - second**2, 0.0)
    third = np.abs(sixth - 3.0 * fourth * second + 2.0 * second**3)
    skewness = third / np.maximum(variance, _DIGITS * second**2) ** 1.5
    return second, Spread(np.sqrt(variance), skewness)


def with_rare_sets(
    width: Spread | None, recipes: Sequence[Recipe], centre: FloatArray
) -> Spread | None:
    """Return a spread, if there is one, whose part of the losses is exact where it can be.

    A label far behind has another loss where all draws are hits: draws one by one do not show that.
    """
    powers = None if width is None else _powers(recipes, centre)
    if width is None or powers is None:
        return width
    mean, second, third = powers[:, 1:4].T
    variance = second - mean**2
    has_digits = variance > _LEAST_VARIANCE * np.maximum(second, 1.0)
    variance = np.where(has_digits, variance, 1.0)
    skewness = np.abs(third - 3.0 * mean * second + 2.0 * mean**3) / variance**1.5
    deviations, skewnesses = width.deviations.copy(), width.skewness.copy()
    for whole, exact in ((deviations, np.sqrt(variance)), (skewnesses, skewness)):
        part = whole[: len(centre)]
        np.maximum(part, exact, out=part, where=has_digits)
    return Spread(deviations, skewnesses)


def _powers(recipes: Sequence[Recipe], centre: FloatArray) -> FloatArray | None:
    """Return `moments` (E, 7) of a loss that follows one of some recipes; None if unknown."""
    first = recipes[0]
    terms = first.law.size * (first.num_draws if first.kind == "kept" else 1)
    known = first.kind in ("sum", "kept", "logistic") and first.loss_scale == 1.0
    if not known or terms > _MOST:
        return None
    rows = []
    for e, c in enumerate(centre):
        powers = [moments(one, e, float(c)) for one in recipes]
        chances = [np.broadcast_to(one.chance, len(centre))[e] for one in recipes]
        rows.append(np.dot(chances, powers))
    return np.array(rows)


def moments(recipe: Recipe, e: int, centre: float) -> FloatArray:
    """Return E (loss - centre)^k for k from 0 to 6, of a recipe without a mistake."""
    if recipe.kind == "logistic":
        # E exp(t loss) as a series in t: that of one draw to the power m, times that of the label
        one = np.logaddexp(0.0, recipe.draws[e])
        if recipe.sets is not None:
            return _of_sums(recipe.sets[e], one, np.logaddexp(0.0, -recipe.own[e]) - centre)
        mean = recipe.law[e] @ one
        away = [recipe.law[e] @ (one - mean) ** k for k in range(7)]
        shift = recipe.num_draws * mean + np.logaddexp(0.0, -recipe.own[e]) - centre
        # products of series, cut off after t^6, are those of triangular matrices
        draw, label = (
            toeplitz(s / _FACTORIALS, np.zeros(7)) for s in (away, shift ** np.arange(7))
        )
        whole = np.linalg.matrix_power(draw, recipe.num_draws) @ label
        powers: FloatArray = whole[:, 0] * _FACTORIALS
        return powers
    # E S^-s has the Mellin integral of u^(s-1) E exp(-u S); its powers of s are moments of log S
    digits = _ALL_DIGITS if recipe.sets is None else _OF_MOMENTS
    x, fall, *_ = _transform(recipe, e, centre, digits)
    inner = [(fall * x**k).sum() / _FACTORIALS[k] for k in range(6)]
    series = toeplitz(_INVERSE_GAMMA, np.zeros(6)) @ inner
    signs = (-1.0) ** np.arange(6)
    return np.append(1.0, signs * _FACTORIALS[1:] * series)


def _of_sums(sets: Sets, terms: FloatArray, constant: float) -> FloatArray:
    """Return E (constant + a sum of terms over the set)^k for k from 0 to 6."""
    chances = sets.inclusion
    mean = constant + chances @ terms
    size = np.sqrt(mean**2 + chances @ terms**2)
    # E exp(t X) on a circle about 0, of which the powers' means are coefficients
    t = _CIRCLE / size
    half = sets.means(np.exp(np.outer(t, terms)))[0] * np.exp(t * constant)
    values = 0.5 * (half + half[::-1].conj())  # t comes with its conjugate
    powers: FloatArray = np.array([(values * t**-k).mean().real for k in range(7)]) * _FACTORIALS
    return powers
