"""Losses with the labels of the batch and draws beside as negatives (mixed negatives).

The batch is always the same, so its labels are classes that are certain; the draws alone are
random. `proposal` is that of the labels, and draws are uniform, log-uniform or by the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.hypotheses import Hypothesis, means_of
from samplesoft.checking.problem import NAMED, Problem
from samplesoft.checking.recipe import SUM, Recipe
from samplesoft.checking.spread import spread

_FAULTS = (None, "uncorrected", "corrected_apart")


def mixed_hypotheses(
    problem: Problem, m: int, batch: int, with_gradient: bool
) -> Iterator[tuple[Hypothesis, str]]:
    """Yield mixed negatives with m draws by each proposal, and that proposal in words."""
    laws = {"`proposal` too": problem.q}
    for name, named in NAMED.items():
        q = np.broadcast_to(named(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in laws.values()):
            laws[f"{name!r}"] = q
    for (words, law), scheme, fault in product(laws.items(), ("mixed", "mixed_candidate"), _FAULTS):
        recipe = _recipe(problem, m, batch, law, scheme == "mixed_candidate", fault)
        means = means_of(recipe, problem, with_gradient)
        width = spread(recipe, means[: len(problem.labels)], problem, with_gradient)
        yield Hypothesis(scheme, fault, recipe, means, width), f"draws are by {words}"


def _recipe(
    problem: Problem, m: int, batch: int, law: FloatArray, corrects_label: bool, fault: str | None
) -> Recipe:
    """Return the recipe of m draws by a law (E, n) beside the labels of a batch."""
    rows, labels, o = np.arange(len(problem.labels)), problem.labels, problem.logits
    of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * law)
    both = np.logaddexp(of_labels, of_draws)
    if fault == "uncorrected":
        both = np.zeros_like(both)
    if fault != "corrected_apart":
        of_labels = of_draws = both
    times = np.bincount(labels, minlength=problem.num_classes) * (batch // len(labels))
    with np.errstate(divide="ignore"):
        certain = o - of_labels + np.log(times)
    draws = o - of_draws
    draws[rows, labels] = certain[rows, labels] = -np.inf
    own = o[rows, labels] - (of_labels[rows, labels] if corrects_label else 0.0)
    return Recipe(SUM, labels, law, draws, own, own, m, certain=certain)
