"""Losses whose negatives are the labels of the batch, alone or with draws beside (mixed).

Without draws nothing is random, so single values are compared. With some, the batch is always the
same, and its labels are classes that are certain; `proposal` is that of the labels, and draws are
uniform, log-uniform or by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.faults import METHODS, RIGHT
from samplesoft.checking.hypotheses import Hypothesis, means_of
from samplesoft.checking.observe import Means, Observer
from samplesoft.checking.problem import NAMED, Problem
from samplesoft.checking.recipe import SUM, Recipe, make_recipe
from samplesoft.checking.spread import spread

_BATCHES = 12


@dataclass(frozen=True)
class _Way:
    """A scheme and the mistake in it: what is taken off logits, and what is masked."""

    scheme: str
    fault: str | None
    off_draws: float = 1.0  # times log(m q)
    off_label: float = 0.0
    count: Callable[[int, int], int] = lambda others, m: others  # the m of the correction
    masked: bool = True


def _one(others: int, m: int) -> int:
    return 1


_WAYS = (
    _Way("in_batch", None),
    _Way("in_batch_candidate", None, off_label=1.0),
    _Way("in_batch", "uncorrected", off_draws=0.0),
    _Way("in_batch", "log_q_added", off_draws=-1.0),
    _Way("in_batch_candidate", "log_q_added", off_draws=-1.0, off_label=-1.0),
    _Way("in_batch", "log_q_added", off_draws=-1.0, count=_one),
    _Way("in_batch", "log_m_left_out", count=_one),
    _Way("in_batch", "in_batch_count", count=lambda others, m: others + 1),
    _Way("in_batch", "in_batch_count", count=lambda others, m: m),
    _Way("in_batch", "hits_kept", masked=False),
    _Way("in_batch_candidate", "hits_kept", off_label=1.0, masked=False),
    _Way("in_batch", "uncorrected", off_draws=0.0, masked=False),
    _Way("in_batch_candidate", "log_q_added", off_draws=-1.0, off_label=-1.0, masked=False),
)


def in_batch_hypotheses(
    observer: Observer, with_gradient: bool
) -> tuple[Means, list[tuple[Hypothesis, str]]]:
    """Return the losses of some batches of random labels, and what each way makes of them.

    Gradients come with them, if asked for, and with each way the number of negatives in words.
    """
    rng, problem = np.random.default_rng(0), observer.problem
    found: list[FloatArray] = []
    others = observer.batch - 1
    ways: dict[tuple[Any, ...], tuple[_Way, int]] = {}  # each once, if m is one of the other counts
    for way in _WAYS:
        count = way.count(others, observer.num_sampled)
        what = way.scheme, way.off_draws, way.off_label, count, way.masked
        ways.setdefault(what, (way, count))
    made: list[list[FloatArray]] = [[] for _ in ways]
    for _ in range(_BATCHES):
        # labels of all classes, so that batches hold hits; losses are compared one by one
        rows = rng.integers(0, len(problem.labels), observer.batch)
        labels = rng.integers(0, problem.num_classes, observer.batch)  # each of them often
        parts = observer.results_of(problem.h[rows], labels)
        found += [part.ravel() for part in parts[: 2 if with_gradient else 1]]
        for (way, count), values in zip(ways.values(), made, strict=True):
            losses, slopes = _results(way, count, problem, rows, labels)
            values += [losses, slopes.ravel()] if with_gradient else [losses]
    results = np.concatenate(found)
    rounding = observer.rounding_of(np.abs(problem.logits).max() + np.abs(results).max())
    nothing = np.zeros_like(results)  # values, not means: no errors but those of rounding
    observed = Means(results, nothing, nothing + rounding, _BATCHES, nothing)
    return observed, [
        (
            Hypothesis(way.scheme, way.fault, _recipe(way, observer), np.concatenate(values)),
            _words(way, count, others),
        )
        for (way, count), values in zip(ways.values(), made, strict=True)
    ]


def _recipe(way: _Way, observer: Observer) -> Recipe | None:
    """Return what a way without a mistake is in the mean over batches."""
    method = METHODS["candidate_masked" if way.off_label else "masked"]
    given = observer.problem, method, RIGHT, observer.batch - 1, observer.batch
    return None if way.fault else make_recipe(*given)


def _words(way: _Way, count: int, others: int) -> str:
    """Return in words how many negatives there are, where it matters."""
    if way.fault is None:
        return f"m is B - 1 = {others} in a batch of {others + 1}, whatever `num_sampled` says"
    if way.fault == "in_batch_count":
        return f"corrected for m = {count}, where B - 1 = {others} others are in the batch"
    return ""


def _results(
    way: _Way, count: int, problem: Problem, examples: IntArray, labels: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the losses (B,) and gradients (B, d) of one batch."""
    logits, c = problem.logits[examples], problem.class_embeddings
    rows, log_q = np.arange(len(labels)), np.log(problem.q[0])
    log_count = log_q + np.log(count)
    own = logits[rows, labels] - way.off_label * log_count[labels]
    x = logits[:, labels] - way.off_draws * log_count[labels]
    # without a mask an example still leaves itself out, but not others with its label
    gone = labels[:, None] == labels if way.masked else np.eye(len(labels), dtype=bool)
    x = np.where(gone, -np.inf, x)
    total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
    slopes: FloatArray = np.exp(x - total[:, None]) @ c[labels]
    slopes += (np.exp(own - total) - 1.0)[:, None] * c[labels]
    return total - own, problem.tau * slopes


_MIXED_FAULTS = (None, "uncorrected", "corrected_apart")


def mixed_hypotheses(
    problem: Problem, m: int, batch: int, with_gradient: bool
) -> Iterator[tuple[Hypothesis, str]]:
    """Yield mixed negatives with m draws by each proposal, and that proposal in words."""
    laws = {"`proposal` too": problem.q}
    for name, named in NAMED.items():
        q = np.broadcast_to(named(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in laws.values()):
            laws[f"{name!r}"] = q
    for (words, law), scheme, fault in product(
        laws.items(), ("mixed", "mixed_candidate"), _MIXED_FAULTS
    ):
        recipe = _mixed_recipe(problem, m, batch, law, scheme == "mixed_candidate", fault)
        means = means_of(recipe, problem, with_gradient)
        width = spread(recipe, means[: len(problem.labels)], problem, with_gradient)
        yield Hypothesis(scheme, fault, recipe, means, width), f"draws are by {words}"


def _mixed_recipe(
    problem: Problem, m: int, batch: int, law: FloatArray, corrects_label: bool, fault: str | None
) -> Recipe:
    """Return the recipe of m draws by a law (E, n) beside the labels of a batch."""
    rows, labels, o = np.arange(len(problem.labels)), problem.labels, problem.logits
    of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * law)
    both = np.logaddexp(of_labels, of_draws)  # log((B - 1) q + m u): a class may come either way
    if fault == "uncorrected":
        both = np.zeros_like(both)
    if fault != "corrected_apart":
        of_labels = of_draws = both
    # how often each label is in the batch, in which every example stands as often
    times = np.bincount(labels, minlength=problem.num_classes) * (batch // len(labels))
    with np.errstate(divide="ignore"):
        certain = o - of_labels + np.log(times)
    draws = o - of_draws
    draws[rows, labels] = certain[rows, labels] = -np.inf
    own = o[rows, labels] - (of_labels[rows, labels] if corrects_label else 0.0)
    return Recipe(SUM, labels, law, draws, own, own, m, certain=certain)
