"""Every scheme with every mistake, and the exact means that a loss would have under each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import minimize_scalar

from samplesoft._validation import FloatArray
from samplesoft.checking.expectation import expectation
from samplesoft.checking.faults import FAULTS, METHODS, RIGHT
from samplesoft.checking.observe import Means, Observer
from samplesoft.checking.problem import NAMED, Problem
from samplesoft.checking.recipe import SUM, Recipe, make_recipe, with_hits
from samplesoft.checking.spread import Spread, spread

_MOST_CLASSES_TWICE = 64  # for which all first draws are gone through
_SAME = 1e-9  # relative distance of means that no experiment can tell apart
_MOST_KEPT = 8  # problems whose hypotheses are kept, for the next loss
_KEPT: dict[tuple[object, ...], list[Hypothesis]] = {}


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A scheme, the mistake in it or None, and what a loss has then.

    `means` (K,) are the exact means over the draws of what an `Observer` looks at, and `spread` is
    that of one call, where it is known. `same` are
    other hypotheses with the same means.
    """

    scheme: str
    fault: str | None
    recipe: Recipe | None  # None without a closed form
    means: FloatArray
    spread: Spread | None = None
    same: tuple[Hypothesis, ...] = ()

    @property
    def title(self) -> str:
        """The scheme and the mistake, in words."""
        if self.fault is None:
            return f"`{self.scheme}`"
        return f"`{self.scheme}`, but {FAULTS[self.fault].words}"

    def of_first(self, size: int) -> Hypothesis:
        """Return the same of the first means alone, such as those of the losses."""
        return replace(self, means=self.means[:size], spread=None)


def means_of(recipe: Recipe, problem: Problem, with_gradient: bool) -> FloatArray:
    """Return the exact means (K,) of the losses, and with a gradient of those in h."""
    found = expectation(recipe, problem.logits)
    if not with_gradient:
        return found.losses
    gradients = problem.tau * found.slopes @ problem.class_embeddings
    return np.concatenate([found.losses, gradients.ravel()])


def all_hypotheses(problem: Problem, m: int, batch: int, with_gradient: bool) -> list[Hypothesis]:
    """Return all hypotheses with different means, those without a mistake first.

    They take most of a second, so those of the last problems are kept.
    """
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q
    key = (*(array.tobytes() for array in arrays), problem.tau, m, batch, with_gradient)
    found = _KEPT.get(key)
    if found is None:
        found = _compute_all(problem, m, batch, with_gradient)
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = found
    return found


def _compute_all(problem: Problem, m: int, batch: int, with_gradient: bool) -> list[Hypothesis]:
    found: list[Hypothesis] = []
    methods = [method for method in METHODS.values() if method.closed]
    right = [(method, None, RIGHT) for method in methods]
    wrong = [
        (method, name, variant)
        for name, fault in FAULTS.items()
        for method in methods
        if fault.applies(method)
        for variant in fault.variants
    ]
    for method, fault_name, variant in [*right, *wrong]:
        if m < (method.scheme.least_draws if method.scheme else 0):
            continue
        # this mistake goes through all first draws, n exact biases an example
        if variant.twice and problem.num_classes > _MOST_CLASSES_TWICE:
            continue
        recipe = make_recipe(problem, method, variant, m, batch)
        if recipe is not None:
            means = means_of(recipe, problem, with_gradient)
            width = spread(recipe, means[: len(problem.labels)], problem, with_gradient)
            found.append(Hypothesis(method.name, fault_name, recipe, means, width))
    return _merged(found)


def _merged(found: list[Hypothesis]) -> list[Hypothesis]:
    """Return one hypothesis for all that have the same means, and the others with it."""
    groups: list[list[Hypothesis]] = []  # the first of a group stands for it
    for one in found:
        size = 1.0 + np.abs(one.means).max()
        for group in groups:
            if np.abs(one.means - group[0].means).max() <= _SAME * size:
                if all((one.scheme, one.fault) != (h.scheme, h.fault) for h in group):
                    group.append(one)
                break
        else:
            groups.append([one])
    return [replace(first, same=tuple(rest)) for first, *rest in groups]


_LESS = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))  # off the logits of hits
_LOGITS = np.linspace(-30.0, 6.0, 19)  # of hits
_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_MOST_SMOOTHING = 0.9


Fitted = tuple[Hypothesis, Means, str]  # with the number in words


def fitted(observer: Observer, observed: Means) -> Iterator[Fitted]:
    """Yield the best of each family of hypotheses, for what was observed."""
    problem = observer.problem
    for method in METHODS.values():
        recipe = make_recipe(problem, method, RIGHT, observer.num_sampled, observer.batch)
        if not method.closed or method.scheme is None or recipe is None or recipe.kind != SUM:
            continue

        def means(recipe: Recipe) -> FloatArray:
            return means_of(recipe, problem, observer.with_gradient)

        if method.scheme.hits == "masked":
            yield from _masked(method.name, _with_all_hits(problem, recipe), means, observed)
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
            ways = {  # the sampler differs, or loss and sampler both do
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


def _masked(
    scheme: str, kept: Recipe, means: Callable[[Recipe], FloatArray], observed: Means
) -> Iterator[Fitted]:
    """Yield masking of hits by a finite number: taken off their logits, or in the place of them.

    `kept` is the recipe without a mask.
    """
    hits = kept.draws[np.arange(len(kept.labels)), kept.labels]
    fixed = replace(kept, hits_fixed=True)  # logits that have no slope

    def nearest(words: str, grid: FloatArray, masked: Callable[[float], Recipe]) -> Fitted:
        def distance(number: float) -> float:
            away = (means(masked(float(number))) - observed.means) / _unit(observed)
            return float((away**2).sum())

        at = int(np.argmin([distance(number) for number in grid]))
        ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
        number = float(minimize_scalar(distance, bounds=ends, method="bounded").x)
        recipe = masked(number)
        hypothesis = Hypothesis(scheme, "finite_mask", recipe, means(recipe))
        return hypothesis, observed, words.format(number)

    yield nearest("their logits less {:.2g}", _LESS, lambda c: with_hits(kept, hits - c))
    yield nearest("the logit {:.2g}", _LOGITS, lambda c: with_hits(fixed, np.full_like(hits, c)))


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
        # least squares for the share, in units of the standard errors
        share = float(((observed.means - plain) / unit * slope).sum() / (slope**2).sum())
        share = min(max(share, 0.0), _MOST_SMOOTHING)
        smooth = replace(whole, smoothing=share)
        fault = "smoothed_hits" if masked else "label_smoothing"
        words = f"smoothing {share:.3g}" + (f", hits at {mask:.3g}" if masked else "")
        yield Hypothesis(scheme, fault, smooth, means(smooth)), observed, words


def _unit(observed: Means) -> FloatArray:
    """Return what differences are measured in."""
    return observed.stderrs + observed.rounding + np.finfo(np.float64).tiny
