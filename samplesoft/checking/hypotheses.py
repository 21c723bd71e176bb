"""Every scheme with every mistake, and the exact means that a loss would have under each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.expectation import expectation
from samplesoft.checking.faults import FAULTS, RIGHT
from samplesoft.checking.methods import METHODS
from samplesoft.checking.problem import Problem
from samplesoft.checking.recipe import Recipe, make_recipe
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
    groups: list[list[Hypothesis]] = []
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
