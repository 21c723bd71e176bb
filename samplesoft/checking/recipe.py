"""A scheme, with a mistake or without: the law of the draws, and the logits that are summed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.faults import Counts, Method, Variant
from samplesoft.checking.observe import Problem
from samplesoft.schemes import Scheme


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the loss of each of E examples follows from its draws.

    With S = exp(base) + the sum of exp(draws[i]) over drawn classes i the loss is log S - own.

    Attributes
    ----------
    kind : str
        Plain ``sum``; ``kept``, divided by the number of draws with weight; ``jackknife`` of the
        sum; ``independent`` inclusion of the classes; ``logistic`` for a sum of logistic losses in
        place of the logarithm; ``twice`` for a sum that has the first draw twice; ``one hit less``
        for one in which one of the draws of the label has no weight, where there are any.
    labels : ndarray of int, shape (E,)
        The labels.
    law : ndarray, shape (E, n)
        Probabilities of one draw; of inclusion if independent.
    draws : ndarray, shape (E, n)
        Corrected logits of draws; at the label that of a hit; -inf without weight.
    base, own : ndarray, shape (E,)
        Log of the label's own mass in S, and what the loss is less by.
    num_draws : int
        Number of draws; 0 where S has the label and `certain` classes alone.
    loss_scale, slope_scale : float
        What loss and gradient are multiplied by.
    certain : ndarray, shape (E, n), or None
        Logits of classes that are in S for certain beside the label, -inf for others.
    hits_fixed : bool
        Whether the logit of hits is a constant, and does not follow the label's.
    """

    kind: str
    labels: IntArray
    law: FloatArray
    draws: FloatArray
    base: FloatArray
    own: FloatArray
    num_draws: int
    loss_scale: float = 1.0
    slope_scale: float = 1.0
    certain: FloatArray | None = None
    hits_fixed: bool = False

    @property
    def certain_mass(self) -> FloatArray:
        """Log of what is in S for certain (E,)."""
        if self.certain is None:
            return self.base
        return np.logaddexp(self.base, np.logaddexp.reduce(self.certain, axis=1))

    def with_hits(self, logits: FloatArray) -> Recipe:
        """Return the same with other logits (E,) of draws of the label."""
        draws = self.draws.copy()
        draws[np.arange(len(draws)), self.labels] = logits
        return replace(self, draws=draws)


def without_draws(
    labels: IntArray, own: FloatArray, base: FloatArray, certain: FloatArray
) -> Recipe:
    """Return the recipe of an S in which all classes are certain."""
    law, draws = (np.broadcast_to(value, certain.shape) for value in (0.0, -np.inf))
    return Recipe("sum", labels, law, draws, base, own, 0, certain=certain)


def full_of(problem: Problem) -> Recipe:
    """Return the full softmax."""
    rows, others = np.arange(len(problem.labels)), problem.logits.copy()
    own = others[rows, problem.labels]
    others[rows, problem.labels] = -np.inf
    return without_draws(problem.labels, own, own, others)


def corrected(
    scheme: Scheme, variant: Variant, o: FloatArray, labels: IntArray, counts: Counts
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what a loss is less by (E,), the label's own mass (E,), and logits of draws (E, n)."""
    rows = np.arange(len(labels))
    own = base = o[rows, labels]
    correction = variant.correction(counts) if scheme.corrects_draws else np.zeros_like(o)
    draws: FloatArray = o - correction  # eq. 5 of Rawat et al.: o - log(m q)
    if scheme.corrects_label:
        base = own = own - variant.label_times * correction[rows, labels]
    elif not scheme.label_in_sum:  # the label has no mass but by draws of it
        base = np.full_like(own, -np.inf)
    if scheme.hits != "kept" and variant.hits is None:
        draws[rows, labels] = -np.inf
    elif variant.hits in ("next", "previous"):
        # of a batch in which neighbouring rows are different examples; see `Observer`
        other = np.roll(labels, -1 if variant.hits == "next" else 1)
        draws[rows, other] = -np.inf
    return own, base, draws


def make_recipe(
    problem: Problem, method: Method, variant: Variant, m: int, batch: int
) -> Recipe | None:
    """Return what a method makes of m draws; None where the mistake cannot be made."""
    scheme, labels = method.scheme, problem.labels
    loss_scale = 1.0 / batch if variant.loss_share else 1.0
    slope_scale = 1.0 / batch if variant.slope_share else 1.0
    if scheme is None:
        return replace(full_of(problem), loss_scale=loss_scale, slope_scale=slope_scale)
    if min(m, m + variant.more_draws) < scheme.least_draws:
        return None
    rows, log_q = np.arange(len(labels)), np.log(problem.q)
    law = log_q
    if scheme.independent:  # the chance that m draws with replacement hold a class
        law = np.log(-np.expm1(m * np.log1p(-problem.q)))
    elif scheme.excludes_label or scheme.divides_by_kept:  # given "not the label"
        law = log_q - np.log(-np.expm1(log_q[rows, labels]))[:, None]
    kinds = {
        "logistic": method.logistic,
        "jackknife": scheme.jackknife,
        "independent": scheme.independent,
        "kept": scheme.divides_by_kept and not variant.drops_count and variant.hits is None,
    }
    kind = next((kind for kind, holds in kinds.items() if holds), variant.kind or "sum")
    # kept draws are divided by their own number, and inclusion has none to divide by
    counted = 0.0 if kind in ("kept", "independent") else float(np.log(m))
    counts = Counts(law, law if scheme.independent else log_q, counted)
    own, base, draws = corrected(scheme, variant, problem.logits, labels, counts)
    if np.isnan(draws).any():  # such as of an m that is one too few
        return None
    # what the draws follow, which is q where hits are thrown away after they were drawn
    chances = np.exp(law if scheme.excludes_label or scheme.independent else log_q)
    if scheme.excludes_label:
        chances[rows, labels] = 0.0
    num_draws = m + variant.more_draws
    return Recipe(kind, labels, chances, draws, base, own, num_draws, loss_scale, slope_scale)
