"""A scheme, with a mistake or without: the law of the draws, and the logits that are summed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.faults import Counts, Method, Variant
from samplesoft.checking.problem import Problem

# what becomes of S, the sum of the label's and the draws' masses; see `Recipe`
SUM, KEPT, JACKKNIFE, INDEPENDENT, LOGISTIC, FULL = (
    "sum",
    "kept",
    "jackknife",
    "independent",
    "logistic",
    "full",
)


@dataclass(frozen=True)
class Recipe:
    """How the loss of each of E examples follows from its draws.

    With S = exp(base) + the sum of exp(draws[i]) over drawn classes i the loss is log S - own.

    Attributes
    ----------
    kind : str
        Plain ``sum``; ``kept``, divided by the number of draws with weight; ``jackknife`` of the
        sum; ``independent`` inclusion of the classes; ``logistic`` for a sum of logistic losses in
        place of the logarithm; ``full`` for no draws at all.
    labels : ndarray of int, shape (E,)
        The labels.
    law : ndarray, shape (E, n)
        Probabilities of one draw; of inclusion if independent.
    draws : ndarray, shape (E, n)
        Corrected logits of draws; at the label that of a hit; -inf without weight.
    base, own : ndarray, shape (E,)
        Log of the label's own mass in S, and what the loss is less by.
    num_draws : int
        Number of draws.
    twice : bool
        Whether the first draw is in the sum twice.
    certain : ndarray, shape (E, n), or None
        Logits of classes that are in S for certain beside the label, -inf for others.
    hits_fixed : bool
        Whether the logit of hits is a constant, and does not follow the label's.
    one_hit_less : bool
        Whether one of the draws of the label has no weight, where there are any.
    loss_scale, slope_scale : float
        What loss and gradient are multiplied by.
    smoothing : float
        Share of the target that label smoothing spreads over the label and the draws.
    hit_logit : ndarray, shape (E,), or None
        Logits of draws of the label in that smoothing.
    hits_follow : bool
        Whether these follow the label's logit, and are not constants.
    """

    kind: str
    labels: IntArray
    law: FloatArray
    draws: FloatArray
    base: FloatArray
    own: FloatArray
    num_draws: int
    twice: bool = False
    loss_scale: float = 1.0
    slope_scale: float = 1.0
    smoothing: float = 0.0
    hit_logit: FloatArray | None = None
    hits_follow: bool = False
    one_hit_less: bool = False
    hits_fixed: bool = False
    certain: FloatArray | None = None

    def certain_mass(self, e: int) -> float:
        """Return the log of what is in the S of example e for certain."""
        if self.certain is None:
            return float(self.base[e])
        return float(np.logaddexp(self.base[e], np.logaddexp.reduce(self.certain[e])))


def full_of(problem: Problem) -> Recipe:
    """Return the full softmax."""
    own = problem.logits[np.arange(len(problem.labels)), problem.labels]
    nothing = np.full(problem.logits.shape, -np.inf)
    return Recipe(FULL, problem.labels, problem.q, nothing, own, own, 0)


def make_recipe(
    problem: Problem, method: Method, variant: Variant, m: int, batch: int
) -> Recipe | None:
    """Return what a method makes of m draws; None where the mistake cannot be made."""
    scheme, rows = method.scheme, np.arange(len(problem.labels))
    o, labels = problem.logits, problem.labels
    own = o[rows, labels]
    loss_scale = 1.0 / batch if variant.loss_share else 1.0
    slope_scale = 1.0 / batch if variant.slope_share else 1.0
    if scheme is None:
        return replace(full_of(problem), loss_scale=loss_scale, slope_scale=slope_scale)
    num_draws = m + variant.more_draws
    if num_draws < scheme.least_draws:
        return None
    log_q = np.log(problem.q)
    law, hit_law = log_q, log_q[rows, labels]
    if scheme.independent:  # the chance that m draws with replacement hold a class
        law = np.log(-np.expm1(m * np.log1p(-problem.q)))
    elif scheme.excludes_label or scheme.divides_by_kept:  # given "not the label"
        law = log_q - np.log(-np.expm1(hit_law))[:, None]
    kind = SUM
    if method.logistic:
        kind = LOGISTIC
    elif scheme.jackknife:
        kind = JACKKNIFE
    elif scheme.independent:
        kind = INDEPENDENT
    elif scheme.divides_by_kept and not variant.drops_count and variant.hits is None:
        kind = KEPT
    # kept draws are divided by their own number, and inclusion has none to divide by
    counted = 0.0 if kind in (KEPT, INDEPENDENT) else float(np.log(m))
    correction = np.zeros_like(o)
    if scheme.corrects_draws:
        correction = variant.correction(Counts(law, law if scheme.independent else log_q, counted))
    if not np.isfinite(correction).all():  # such as an m that is one too few
        return None
    draws, base = o - correction, own  # eq. 5 of Rawat et al.: o - log(m q)
    if scheme.corrects_label:
        base = own = own - variant.label_times * correction[rows, labels]
    elif not scheme.label_in_sum:  # the label has no mass but by draws of it
        base = np.full_like(own, -np.inf)
    draws[rows, labels] = _hits(scheme.hits, variant, draws[rows, labels])
    if variant.hits in ("next", "previous"):
        # of a batch in which neighbouring rows are different examples; see `Observer`
        other = np.roll(labels, -1 if variant.hits == "next" else 1)
        draws[rows, other] = -np.inf
    # what the draws follow, which is q where hits are thrown away after they were drawn
    chances = np.exp(law if scheme.excludes_label or scheme.independent else log_q)
    if scheme.excludes_label:
        chances[rows, labels] = 0.0
    return Recipe(
        kind,
        labels,
        chances,
        draws,
        base,
        own,
        num_draws,
        variant.twice,
        loss_scale,
        slope_scale,
        one_hit_less=variant.hits == "once",
    )


def _hits(hits: str, variant: Variant, logits: FloatArray) -> FloatArray:
    """Return the logits of draws of the label, -inf where they have no weight."""
    return logits if hits == "kept" or variant.hits else np.full_like(logits, -np.inf)


def with_hits(recipe: Recipe, logits: FloatArray) -> Recipe:
    """Return the same with other logits (E,) of draws of the label."""
    draws = recipe.draws.copy()
    draws[np.arange(len(draws)), recipe.labels] = logits
    return replace(recipe, draws=draws)
