"""Mistakes with a number or a proposal that nobody knows, found by what was observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import minimize_scalar

from samplesoft._validation import FloatArray
from samplesoft.checking.faults import RIGHT
from samplesoft.checking.hypotheses import Hypothesis, means_of
from samplesoft.checking.methods import METHODS
from samplesoft.checking.observe import Means, Observer
from samplesoft.checking.problem import NAMED, Problem
from samplesoft.checking.recipe import SUM, Recipe, make_recipe, with_hits

_LESS = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))  # off the logits of hits
_LOGITS = np.linspace(-30.0, 6.0, 19)  # of hits
_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_MOST_SMOOTHING = 0.9


Fitted = tuple[Hypothesis, Means, str]  # with the number in words


def fitted(observer: Observer, observed: Means) -> Iterator[Fitted]:
    """Yield the best of each family of hypotheses, for what was observed."""
    problem = observer.problem
    rows = np.arange(len(problem.labels))
    for method in METHODS.values():
        recipe = make_recipe(problem, method, RIGHT, observer.num_sampled, observer.batch)
        if not method.closed or method.scheme is None or recipe is None or recipe.kind != SUM:
            continue

        def means(recipe: Recipe) -> FloatArray:
            return means_of(recipe, problem, observer.with_gradient)

        if method.scheme.hits == "masked":
            kept = _with_all_hits(problem, recipe)
            own = kept.draws[rows, problem.labels]
            for leak in _leaks(kept, own):
                yield _best_leak(method.name, leak, means, observed)
        yield from _smoothed(method.name, recipe, means, observed)


def of_other_proposals(observer: Observer, observed: Means) -> Iterator[Fitted]:
    """Yield all schemes with draws by a proposal that was not given."""
    given = observer.problem
    for name, law in NAMED.items():
        q = np.broadcast_to(law(given.num_classes), given.q.shape)
        other = replace(given, q=q)
        for method in METHODS.values():
            if np.allclose(q, given.q) or not method.closed or method.scheme is None:
                continue
            sizes = RIGHT, observer.num_sampled, observer.batch
            drawn, meant = (make_recipe(problem, method, *sizes) for problem in (other, given))
            if drawn is None or meant is None:
                continue
            ways = {
                f"draws and correction by {name!r}": drawn,
                f"draws by {name!r}, corrected by what was given": replace(meant, law=drawn.law),
            }
            for words, recipe in ways.items():
                means = means_of(recipe, given, observer.with_gradient)
                yield Hypothesis(method.name, "other_proposal", recipe, means), observed, words


def _with_all_hits(problem: Problem, recipe: Recipe) -> Recipe:
    """Return the recipe with draws of the label that count like any other."""
    rows = np.arange(len(problem.labels))
    log_counts = np.log(recipe.num_draws) + np.log(problem.q[rows, problem.labels])
    return with_hits(recipe, problem.logits[rows, problem.labels] - log_counts)


@dataclass(frozen=True)
class _Leak:
    """A way to mask by a finite number: words, the numbers to try, and the recipe of a number."""

    words: str
    numbers: FloatArray
    recipe_of: Callable[[float], Recipe]


def _leaks(kept: Recipe, own: FloatArray) -> list[_Leak]:
    """Return the ways to mask by a finite number."""
    fixed = replace(kept, hits_fixed=True)
    return [
        _Leak("their logits less {:.2g}", _LESS, lambda c: with_hits(kept, own - c)),
        _Leak("the logit {:.2g}", _LOGITS, lambda c: with_hits(fixed, np.full_like(own, c))),
    ]


def _best_leak(
    scheme: str, leak: _Leak, means: Callable[[Recipe], FloatArray], observed: Means
) -> Fitted:
    """Return masking by the number that comes nearest."""

    def distance(number: float) -> float:
        found = means(leak.recipe_of(float(number)))
        return float((((found - observed.means) / _unit(observed)) ** 2).sum())

    grid = leak.numbers
    at = int(np.argmin([distance(number) for number in grid]))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    number = float(minimize_scalar(distance, bounds=ends, method="bounded").x)
    recipe = leak.recipe_of(number)
    found = Hypothesis(scheme, "finite_mask", recipe, means(recipe))
    return found, observed, leak.words.format(number)


def _smoothed(
    scheme: str, recipe: Recipe, means: Callable[[Recipe], FloatArray], observed: Means
) -> Iterator[Fitted]:
    """Yield label smoothing, in which masked hits have one logit or another."""
    rows = np.arange(len(recipe.labels))
    hits, chances = (array[rows, recipe.labels] for array in (recipe.draws, recipe.law))
    masked = bool(((hits == -np.inf) & (chances > 0.0)).any())
    plain, unit = means(recipe), _unit(observed)
    cases = product(_MASKS, (False, True)) if masked else [(0.0, True)]
    for mask, follow in cases:
        logits = np.full_like(hits, mask) if masked else np.where(chances > 0.0, hits, 0.0)
        whole = replace(recipe, smoothing=1.0, hit_logit=logits, hits_follow=follow)
        slope = (means(whole) - plain) / unit  # smoothing is linear
        share = float(((observed.means - plain) / unit * slope).sum() / (slope**2).sum())
        share = min(max(share, 0.0), _MOST_SMOOTHING)
        smooth = replace(whole, smoothing=share)
        fault = "smoothed_hits" if masked else "label_smoothing"
        words = f"smoothing {share:.3g}" + (f", hits at {mask:.3g}" if masked else "")
        yield Hypothesis(scheme, fault, smooth, means(smooth)), observed, words


def _unit(observed: Means) -> FloatArray:
    """Return what differences are measured in."""
    return observed.stderrs + observed.rounding + np.finfo(np.float64).tiny
