"""A scheme, with a mistake or without: the law of the draws, and the logits that are summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.without_replacement.sets import (
    Sets,
    by_tries,
    each_once,
    first_different,
    independent,
)
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
        sum; ``logistic`` for a sum of logistic losses in place of the logarithm; ``twice`` for a
        sum that has the first draw twice; ``one hit less`` for one in which one of the draws of
        the label has no weight, where there are any.
    labels : ndarray of int, shape (E,)
        The labels.
    law : ndarray, shape (E, n)
        Probabilities of one draw; where classes come in sets, that the set holds a class.
    draws : ndarray, shape (E, n)
        Corrected logits of draws; at the label that of a hit; -inf without weight.
    base, own : ndarray, shape (E,)
        Log of the label's own mass in S, and what the loss is less by.
    num_draws : int
        Number of draws; 1 set; 0 where S has the label and `certain` classes alone.
    loss_scale, slope_scale : float
        What loss and gradient are multiplied by.
    certain : ndarray, shape (E, n), or None
        Logits of classes that are in S for certain beside the label, -inf for others.
    hits_fixed : bool
        Whether the logit of hits is a constant, and does not follow the label's.
    detached : bool
        Whether logits of draws are constants.
    sets : tuple of Sets or None
        For each example the law of the set of classes that is drawn; None for repeated draws.
    chance : ndarray, shape (E,), or 1
        Weight of the recipe, where a loss follows one of several.
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
    detached: bool = False
    sets: tuple[Sets, ...] | None = None
    chance: FloatArray | float = 1.0

    @property
    def certain_mass(self) -> FloatArray:
        """Log of what is in S for certain (E,)."""
        if self.certain is None:
            return self.base
        return np.logaddexp(self.base, np.logaddexp.reduce(self.certain, axis=1))

    @property
    def key(self) -> tuple[object, ...]:
        """What two recipes that are the same have in common."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)

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


def full_of(problem: Problem, of_all: bool = False) -> Recipe:
    """Return the full softmax, over the classes that can be drawn or over all."""
    rows, others = np.arange(len(problem.labels)), problem.logits.copy()
    if not of_all:
        others[problem.q <= 0.0] = -np.inf
    own = others[rows, problem.labels]
    others[rows, problem.labels] = -np.inf
    return without_draws(problem.labels, own, own, others)


def corrected(
    scheme: Scheme, variant: Variant, problem: Problem, counts: Counts
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what a loss is less by (E,), the label's own mass (E,), and logits of draws (E, n)."""
    labels, rows, draws = problem.labels, np.arange(len(problem.labels)), problem.logits.copy()
    base = draws[rows, labels]
    own = base + _more_bias(problem, variant)
    if scheme.corrects_draws:  # eq. 5 of Rawat et al.: o - log(m q)
        correction = variant.link(*variant.expected(counts))
        correction = correction * (problem.tau if variant.tempered else 1.0)
        draws -= np.where(np.isinf(correction), 0.0, correction)  # of what is never drawn
        if scheme.corrects_label:
            shift = variant.label_times * correction[rows, labels]
            base, own = base - shift, own - shift
    if scheme.label_in_sum and variant.label_weight:
        base = base + np.log(variant.label_weight)
    else:  # the label has no mass but by draws of it
        base = np.full_like(own, -np.inf)
    others = {"next": np.roll(labels, -1), "previous": np.roll(labels, 1), "first": labels[0]}
    if variant.hits in others:  # rows that are neighbours are different examples; see `Observer`
        draws[rows, others[variant.hits]] = -np.inf
    elif variant.hits == "any":
        draws[:, labels] = -np.inf
    elif scheme.hits != "kept" and variant.hits is None:
        draws[rows, labels] = -np.inf
    return own, base, draws


def _more_bias(problem: Problem, variant: Variant) -> FloatArray | float:
    """Return biases of the labels (E,) beyond one for each."""
    if problem.biases is None:
        return 0.0
    more: FloatArray = (variant.label_biases - 1) * problem.biases[problem.labels]
    return more


def make_recipes(
    problem: Problem,
    method: Method,
    variant: Variant,
    m: int,
    batch: int,
    tries: bool = False,
    of_all: bool = False,
) -> list[Recipe]:
    """Return what a method makes of m draws; none where the mistake cannot be made.

    Draws without replacement that are corrected for the number of `tries` they took follow one of
    several recipes, by that number; those without the label where it was drawn, one of two. The
    full softmax is that `of_all` classes, or of those that can be drawn.
    """
    scheme, labels = method.scheme, problem.labels
    loss_scale = 1.0 / batch if variant.loss_share else 1.0
    slope_scale = 1.0 / batch if variant.slope_share else 1.0
    if variant.label_biases > 1 and problem.biases is None:
        return []
    if scheme is None:
        full = replace(full_of(problem, of_all), loss_scale=loss_scale, slope_scale=slope_scale)
        return [replace(full, own=full.own + _more_bias(problem, variant))]
    num_draws, draws = m + variant.more_draws, "once" if variant.once else method.draws
    if min(m, num_draws) < scheme.least_draws or (variant.tempered and problem.tau == 1.0):
        return []
    rows = np.arange(len(labels))
    with np.errstate(divide="ignore"):  # of classes that are never drawn
        log_q = np.log(problem.q)
    law, is_given = log_q, scheme.excludes_label and draws != "independent"
    if scheme.divides_by_kept or is_given:  # "not the label"
        law = log_q - np.log(-np.expm1(log_q[rows, labels]))[:, None]
        law[rows, labels] = -np.inf
    # what the draws follow, which is q where hits are thrown away after they were drawn
    chances = np.exp(law if is_given else log_q)
    # without replacement the chance to be in the set knows their number
    apart = labels if scheme.divides_by_kept and draws == "distinct" else None
    kept = scheme.divides_by_kept and apart is None
    kept = kept and not variant.drops_count and variant.hits is None
    kinds = {"logistic": method.logistic, "jackknife": scheme.jackknife, "kept": kept}
    kind = next((kind for kind, holds in kinds.items() if holds), variant.kind or "sum")
    recipes = []
    for chance, sets, times in _laws_of(draws, chances, num_draws, tries, apart):
        count, presence = num_draws, chances
        inclusion = -np.expm1((m if times is None else times) * np.log1p(-np.exp(law)))
        if times is not None:  # TensorFlow has the count of repeated draws where none was repeated
            inclusion = np.where(times == m, m * np.exp(law), inclusion)
        if sets is not None:
            count, presence = 1, np.array([one.inclusion for one in sets])
            inclusion = presence if draws == "distinct" and times is None else inclusion
        if draws == "independent":
            presence[rows, labels] = 0.0
        with np.errstate(divide="ignore"):
            logs = law, log_q, np.log(inclusion)
        # kept draws are divided by their own number
        counts = Counts(*logs, 0.0 if kept else np.log(m), labels, method.draws == "repeated")
        own, base, x = corrected(scheme, variant, problem, counts)
        # such as of an m that is one too few, and of a sum that may have nothing in it
        may_be_empty = draws == "independent" or bool((presence[x == -np.inf] > 0.0).any())
        if np.isnan(x).any() or (np.isneginf(base).any() and may_be_empty):
            return []
        one = Recipe(kind, labels, presence, x, base, own, count, loss_scale, slope_scale)
        recipes.append(replace(one, detached=variant.detached, sets=sets, chance=chance))
    return recipes


def _laws_of(
    draws: str, chances: FloatArray, m: int, tries: bool, apart: IntArray | None = None
) -> Sequence[tuple[FloatArray | float, tuple[Sets, ...] | None, FloatArray | None]]:
    """Return laws of the draws, each with its chance, and the numbers of tries (E, 1) if given.

    A law is that of a set of classes for each example, or None for repeated draws by `chances`
    (E, n). Sets that hold a class of `apart` (E,), and sets that do not, have laws of their own.
    """
    if draws == "repeated":
        return [(1.0, None, None)]
    if draws == "distinct" and m >= (chances > 0.0).sum(axis=1).min():
        return []
    keys = [row.tobytes() for row in np.ascontiguousarray(chances)]
    if not tries:
        laws = {"once": each_once, "distinct": first_different, "independent": independent}
        whole = tuple(laws[draws](key, m) for key in keys)
        if apart is None:
            return [(1.0, whole, None)]
        both = []
        for held in (False, True):
            given = [one.given(int(t), held) for one, t in zip(whole, apart, strict=True)]
            weights, sets = zip(*given, strict=True)
            both.append((np.array(weights), sets, None))
        return both
    found = [by_tries(key, m) for key in keys]
    if not all(found):
        return []
    parts = []
    for i in range(max(map(len, found))):  # examples with fewer numbers have chances of 0
        numbers, weights, sets = zip(*(one[min(i, len(one) - 1)] for one in found), strict=True)
        there = np.array([i < len(one) for one in found])
        parts.append((there * np.array(weights), tuple(sets), np.array(numbers)[:, None]))
    return parts
