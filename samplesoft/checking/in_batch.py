"""Losses whose negatives are the labels of the batch: nothing is drawn, so values are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.faults import RIGHT
from samplesoft.checking.hypotheses import Hypothesis
from samplesoft.checking.methods import METHODS
from samplesoft.checking.observe import Means, Observer
from samplesoft.checking.problem import Problem
from samplesoft.checking.recipe import make_recipe

_BATCHES = 12


@dataclass(frozen=True)
class _Way:
    """A scheme and the mistake in it: what is taken off logits, and what is masked."""

    scheme: str
    fault: str | None
    off_draws: float = 1.0  # times log(m q)
    off_label: float = 0.0
    counted: bool = True  # whether m is in the correction
    masked: bool = True


_WAYS = (
    _Way("in_batch", None),
    _Way("in_batch_candidate", None, off_label=1.0),
    _Way("in_batch", "uncorrected", off_draws=0.0),
    _Way("in_batch", "log_q_added", off_draws=-1.0),
    _Way("in_batch_candidate", "log_q_added", off_draws=-1.0, off_label=-1.0),
    _Way("in_batch", "log_q_added", off_draws=-1.0, counted=False),
    _Way("in_batch", "log_m_left_out", counted=False),
    _Way("in_batch", "hits_kept", masked=False),
    _Way("in_batch_candidate", "hits_kept", off_label=1.0, masked=False),
    _Way("in_batch", "uncorrected", off_draws=0.0, masked=False),
    _Way("in_batch_candidate", "log_q_added", off_draws=-1.0, off_label=-1.0, masked=False),
)


def in_batch_hypotheses(observer: Observer, with_gradient: bool) -> tuple[Means, list[Hypothesis]]:
    """Return the losses of some batches of random labels, and what each way makes of them.

    Gradients come with them, if asked for.
    """
    rng, problem = np.random.default_rng(0), observer.problem
    found: list[FloatArray] = []
    made: list[list[FloatArray]] = [[] for _ in _WAYS]
    for _ in range(_BATCHES):
        rows = rng.integers(0, len(problem.labels), observer.batch)
        labels = rng.integers(0, problem.num_classes, observer.batch)  # each of them often
        parts = observer.results_of(problem.h[rows], labels)
        found += [part.ravel() for part in parts[: 2 if with_gradient else 1]]
        for way, values in zip(_WAYS, made, strict=True):
            losses, slopes = _results(way, problem, rows, labels)
            values += [losses, slopes.ravel()] if with_gradient else [losses]
    results = np.concatenate(found)
    rounding = observer.rounding_of(np.abs(problem.logits).max() + np.abs(results).max())
    nothing = np.zeros_like(results)
    observed = Means(results, nothing, nothing + rounding, _BATCHES, nothing)
    return observed, [
        Hypothesis(
            way.scheme,
            way.fault,
            None
            if way.fault
            else make_recipe(
                problem,
                METHODS["candidate_masked" if way.off_label else "masked"],
                RIGHT,
                observer.batch - 1,
                observer.batch,
            ),
            np.concatenate(values),
        )
        for way, values in zip(_WAYS, made, strict=True)
    ]


def _results(
    way: _Way, problem: Problem, examples: IntArray, labels: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the losses (B,) and gradients (B, d) of one batch."""
    logits, c = problem.logits[examples], problem.class_embeddings
    rows, log_q = np.arange(len(labels)), np.log(problem.q[0])
    log_count = log_q + (np.log(len(labels) - 1.0) if way.counted else 0.0)
    own = logits[rows, labels] - way.off_label * log_count[labels]
    x = logits[:, labels] - way.off_draws * log_count[labels]
    gone = labels[:, None] == labels if way.masked else np.eye(len(labels), dtype=bool)
    x = np.where(gone, -np.inf, x)
    total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
    slopes: FloatArray = np.exp(x - total[:, None]) @ c[labels]
    slopes += (np.exp(own - total) - 1.0)[:, None] * c[labels]
    return total - own, problem.tau * slopes
