"""One sampler at one number of draws: exact bias, theory and Monte Carlo of each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from samplesoft._random import mix64
from samplesoft._validation import FloatArray
from samplesoft.bias.bounds import FiniteSampleBounds, finite_sample_bounds
from samplesoft.bias.exact import ExactBias, exact_bias
from samplesoft.bias.self_normalized import SelfNormalizedTerms, self_normalized_terms
from samplesoft.verification.agreement import Comparison, Scores, compare, merge
from samplesoft.verification.blocks import (
    Coordinates,
    Ends,
    Theory,
    compare_with_bounds,
    compute_theory,
    transform_theory,
)
from samplesoft.verification.problem import Problem


@dataclass(frozen=True)
class Cell:
    """One sampler at one m: of each example the bounds, the coordinates, and Monte Carlo.

    `blocks` has the keys ``logits`` and ``h``; `theory` is None for all schemes but ``negatives``,
    and `classical` for those whose sum is not ``e_t`` plus a mean, which have no bounds either.
    """

    exact: ExactBias
    theory: list[Theory] | None
    classical: SelfNormalizedTerms | None
    blocks: dict[str, list[Coordinates]]
    comparisons: list[Comparison]

    def scores(self) -> list[Scores]:
        """Return all z-scores."""
        return [
            merge([getattr(c, part) for c in self.comparisons]) for part in ("logits", "h", "loss")
        ]


def compute_cell(problem: Problem, q: FloatArray, m: int, key: np.uint64, bar: Any) -> Cell:
    """Compute what is known of one sampler at one m; `bar` counts the examples."""
    scheme = problem.scheme
    if scheme.independent:
        q = -np.expm1(m * np.log1p(-np.minimum(q, 1.0)))
    exact = exact_bias(problem.logits, problem.labels, q, m, scheme=scheme)
    theory: list[Theory] | None = None
    if scheme.has_bounds:
        theory = compute_theory(problem.logits, problem.labels, q)
    classical: SelfNormalizedTerms | None = None
    finite: FiniteSampleBounds | None = None
    if scheme.adds_mean and not scheme.jackknife:
        classical = self_normalized_terms(problem.logits, problem.labels, q, m, scheme=scheme)
        finite = finite_sample_bounds(problem.logits, problem.labels, q, m, scheme=scheme)
    jacobian = problem.jacobian if "h" in problem.wrt else None
    ends = None if finite is None else (finite.lower, finite.upper)
    blocks = {"logits": _block(exact.bias, exact, theory, ends, m, 1.0)}
    if jacobian is not None:
        theory_of_h = None if theory is None else transform_theory(theory, jacobian)
        ends_of_h = None if finite is None else finite.gradient(jacobian)
        scale = float(np.abs(jacobian).max())
        blocks["h"] = _block(exact.bias @ jacobian, exact, theory_of_h, ends_of_h, m, scale)
    comparisons = []
    for b, label in enumerate(problem.labels):
        one = (exact.bias[b], float(exact.loss_bias[b]), float(exact.error[b]))
        comparisons.append(
            compare(
                problem.logits[b],
                int(label),
                q[b if len(q) > 1 else 0],
                m,
                scheme,
                exact.probs[b],
                one,
                jacobian,
                problem.num_trials,
                np.uint64(mix64(key, np.uint64(b))),
            )
        )
        bar.update()
    return Cell(exact, theory, classical, blocks, comparisons)


def _block(
    bias: FloatArray,
    exact: ExactBias,
    theory: list[Theory] | None,
    ends: Ends | None,
    m: int,
    scale: float,
) -> list[Coordinates]:
    return [
        compare_with_bounds(
            bias[b],
            float(exact.error[b]),
            None if theory is None else theory[b],
            None if ends is None else (ends[0][b], ends[1][b]),
            m,
            scale,
        )
        for b in range(len(bias))
    ]
