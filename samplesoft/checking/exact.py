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

from math import factorial
from typing import NamedTuple

import numpy as np
from scipy.linalg import toeplitz
from scipy.stats import binom

from samplesoft._validation import FloatArray
from samplesoft.checking.observe import Problem
from samplesoft.checking.recipe import Recipe

# of log u: a step, whose error is some exp(-2 pi 1.4 / step), and how far the sum goes to the left,
# where exp(-left) is left out: both below 1e-19 for all digits, below 1e-12 for most
_ALL_DIGITS, _MOST_DIGITS = (0.2, 45.0), (0.3, 30.0)
_RIGHT = 4.5  # where what is left is below 1e-19
_BLOCK = 1 << 16  # numbers in an array of some u and all classes, which a cache holds
_FEW_CLASSES = 64  # whose means have all digits, for little time; of others they have 12
_MOST_LOGIT = 600.0  # of classes that are hardly ever drawn: u w is finite
_NO_CHANCE = 1e-19
_LEAST = np.nextafter(-1.0, 0.0)  # of exp(-u w) - 1, where no digit of exp(-u w) is left
_LOWEST = -1e300


class Means(NamedTuple):
    """Means over the draws: of the losses (E,), and of their slopes in the logits (E, n)."""

    losses: FloatArray
    slopes: FloatArray

    def in_h(self, problem: Problem, with_gradient: bool) -> FloatArray:
        """Return the means (K,) of the losses, and with a gradient of those in h."""
        if not with_gradient:
            return self.losses
        gradients = problem.tau * self.slopes @ problem.class_embeddings
        return np.concatenate([self.losses, gradients.ravel()])


def expectation(recipe: Recipe) -> Means:
    """Return the exact means of a recipe."""
    rows, labels = np.arange(len(recipe.labels)), recipe.labels
    if recipe.kind == "logistic":
        # each draw adds log(1 + exp(x)), the label log(1 + exp(-x)): the mean is a plain sum
        x, law = recipe.draws, recipe.num_draws * recipe.law
        losses = (np.logaddexp(0.0, x) * law).sum(axis=1) + np.logaddexp(0.0, -recipe.base)
        slopes = law * np.exp(-np.logaddexp(0.0, -x))
        slopes[rows, labels] -= np.exp(-np.logaddexp(0.0, recipe.base))
        return Means(recipe.loss_scale * losses, recipe.slope_scale * slopes)
    mass = recipe.certain_mass
    losses, rest, slopes = mass - recipe.own, np.ones(len(rows)), np.zeros_like(recipe.draws)
    if recipe.num_draws:
        for e in range(len(rows)):
            all_digits = slopes.shape[1] <= _FEW_CLASSES
            _, fall, rest[e], slopes[e] = _transform(recipe, e, 0.0, all_digits)
            losses[e] = fall.sum()
    # d(log S - own) / do: shares in S, less 1 at the label
    if recipe.hits_fixed:  # a constant has no slope, however much of S it is
        slopes[rows, labels] = 0.0
    if recipe.certain is not None:
        slopes += rest[:, None] * np.exp(recipe.certain - mass[:, None])
    slopes[rows, labels] += rest * np.exp(recipe.base - np.maximum(mass, _LOWEST)) - 1.0
    return Means(recipe.loss_scale * losses, recipe.slope_scale * slopes)


def smoothing_of(recipe: Recipe, hits: FloatArray, follow: bool) -> Means:
    """Return what label smoothing adds when all of the target is spread over label and draws.

    `hits` (E,) are logits of draws of the label, which `follow` the label's, or are constants.
    """
    rows, labels, m = np.arange(len(recipe.labels)), recipe.labels, recipe.num_draws
    x = recipe.with_hits(hits).draws
    # the smoothed target puts the same share on each candidate: the label and m draws
    candidates = (recipe.own + m * (recipe.law * x).sum(axis=1)) / (m + 1)
    slopes = -m * recipe.law / (m + 1)
    if not follow:
        slopes[rows, labels] = 0.0
    slopes[rows, labels] += 1.0 - 1.0 / (m + 1)
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
    return [(1.0, [(law, weights, 1 if recipe.kind == "independent" else m)])]


def _successes(m: int, chance: float) -> list[tuple[int, float]]:
    """Return numbers of successes in m trials that are not too rare, each with its chance."""
    chances = binom.pmf(np.arange(m + 1), m, chance)
    return [(k, p) for k, p in enumerate(chances) if p > _NO_CHANCE]


def _transform(
    recipe: Recipe, e: int, centre: float, all_digits: bool
) -> tuple[FloatArray, FloatArray, float, FloatArray]:
    """Return log u, exp(-u) - L(u) there, and the mean shares in S of the base and of draws (n,).

    S is divided by exp(own + centre), and exp(-u) - L(u) is multiplied by the step of log u, as the
    integral needs it. Where u is small L(u) - 1 has `all_digits`, or 16 of 1.
    """
    step, left = _ALL_DIGITS if all_digits else _MOST_DIGITS
    shift = recipe.own[e] + centre
    weights = np.exp(np.minimum(recipe.draws[e] - shift, _MOST_LOGIT))
    base = np.exp(recipe.certain_mass[e] - shift)
    most = base + recipe.num_draws * weights.max()
    least = base if base > 0.0 else weights[(recipe.law[e] > 0.0) & (weights > 0.0)].min()
    # the fall of the transform lies between the largest and the least S that can come
    x = np.arange(-np.log(max(most, 1.0)) - left, -np.log(min(least, 1.0)) + _RIGHT, step)
    products, falls, rest = _mixture(recipe, e, weights), [], 0.0
    shares = np.zeros_like(weights)
    for u in np.array_split(np.exp(x), 1 + len(x) * len(weights) // _BLOCK):
        change = np.zeros_like(u)  # L(u) - 1, with all digits for small u
        for chance, factors in products:
            logs, slopes = -u * base, []
            for law, weight, times in factors:
                less = np.outer(-u, weight)
                less = np.expm1(less) if all_digits else np.exp(less) - 1.0
                if recipe.kind == "independent":  # each class is a factor: it is there or not
                    of_classes = np.maximum(law * less, _LEAST)
                    logs = logs + np.log1p(of_classes).sum(axis=1)
                    slopes.append((law * weight, u, (1.0 + less) / (1.0 + of_classes)))
                else:
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


def spread(recipe: Recipe, losses: FloatArray, problem: Problem, with_gradient: bool) -> Spread:
    """Return the spread of losses and gradients in h; `losses` (E,) are the mean losses.

    It is linearised in what single draws add; of losses without a mistake `squares` is exact.
    """
    law, x, m = recipe.law, recipe.draws, recipe.num_draws
    log_rest = np.zeros(len(x))  # of logistic losses log(1 + exp(x)): the rest of each sum is 1
    if recipe.kind != "logistic":
        log_sum = losses / recipe.loss_scale + recipe.own
        with np.errstate(divide="ignore"):
            log_drawn = np.logaddexp.reduce(np.log(law) + x, axis=1)
        rest = 1.0 - np.exp(np.minimum(log_drawn - log_sum, 0.0))
        log_rest = log_sum + np.log(np.maximum(rest, _LEAST_REST))
        log_rest = np.maximum(log_rest, recipe.certain_mass)
    # what one draw adds to log S beside the rest of the sum, to first order in the draws
    parts = [recipe.loss_scale * np.logaddexp(0.0, x - log_rest[:, None])[:, :, None]]
    if with_gradient:
        c = problem.class_embeddings
        shares = np.exp(-np.logaddexp(0.0, log_rest[:, None] - x))[:, :, None]
        parts.append(problem.tau * recipe.slope_scale * shares * (c - c[recipe.labels][:, None]))
    law = law[:, None]
    of_squares = of_cubes = m * law
    if recipe.kind == "independent":  # each class is there or not
        of_squares = law * (1.0 - law)
        of_cubes = of_squares * (1.0 - 2.0 * law)
    deviations, skewness = [], []
    for part in parts:
        away = part if recipe.kind == "independent" else part - law @ part
        square = away * away
        variance, third = of_squares @ square, of_cubes @ (square * away)
        deviations.append(np.sqrt(variance).ravel())
        skewness.append((np.abs(third) / np.where(variance > 0.0, variance, 1.0) ** 1.5).ravel())
    return Spread(np.concatenate(deviations), np.concatenate(skewness))


_MOST = 1 << 14  # of terms of a transform at one u
_DIGITS = 1e-6  # relative, of what is left where fourth moments cancel
_LEAST_VARIANCE = 3e-4  # below, the sixth moment has no digits
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


def squares(recipe: Recipe, centre: FloatArray) -> tuple[FloatArray, Spread] | None:
    """Return the means of squares of losses less `centre` (E,), and their spread; None if unknown.

    The spread is that of one set of draws.
    """
    terms = recipe.law.size * (recipe.num_draws if recipe.kind == "kept" else 1)
    if recipe.kind not in ("sum", "kept", "independent", "logistic") or terms > _MOST:
        return None
    rows = [moments(recipe, e, float(c)) for e, c in enumerate(centre)]
    second, fourth, sixth = np.array(rows)[:, [2, 4, 6]].T
    if second.min() < _LEAST_VARIANCE:
        return None
    # of the square X^2: its variance and third central moment from E X^4 and E X^6
    variance = np.maximum(fourth - second**2, 0.0)
    third = np.abs(sixth - 3.0 * fourth * second + 2.0 * second**3)
    skewness = third / np.maximum(variance, _DIGITS * second**2) ** 1.5
    return second, Spread(np.sqrt(variance), skewness)


def moments(recipe: Recipe, e: int, centre: float) -> FloatArray:
    """Return E (loss - centre)^k for k from 0 to 6, of a recipe without a mistake."""
    if recipe.kind == "logistic":
        # E exp(t loss) as a series in t: that of one draw to the power m, times that of the label
        one = np.logaddexp(0.0, recipe.draws[e])
        mean = recipe.law[e] @ one
        away = [recipe.law[e] @ (one - mean) ** k for k in range(7)]
        shift = recipe.num_draws * mean + np.logaddexp(0.0, -recipe.base[e]) - centre
        # products of series, cut off after t^6, are those of triangular matrices
        draw, label = (
            toeplitz(s / _FACTORIALS, np.zeros(7)) for s in (away, shift ** np.arange(7))
        )
        whole = np.linalg.matrix_power(draw, recipe.num_draws) @ label
        powers: FloatArray = whole[:, 0] * _FACTORIALS
        return powers
    # E S^-s has the Mellin integral of u^(s-1) E exp(-u S); its powers of s are moments of log S
    x, fall, *_ = _transform(recipe, e, centre, True)
    inner = [(fall * x**k).sum() / _FACTORIALS[k] for k in range(6)]
    series = toeplitz(_INVERSE_GAMMA, np.zeros(6)) @ inner
    signs = (-1.0) ** np.arange(6)
    return np.append(1.0, signs * _FACTORIALS[1:] * series)
