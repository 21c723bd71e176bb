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

BATCHES = 12


@dataclass(frozen=True)
class _Way:
    """A scheme and the mistake in it: what is taken off logits, and what is masked."""

    scheme: str
    fault: str | None
    off_draws: float = 1.0  # times log(m q)
    off_label: float = 0.0
    counted: bool = True  # whether m is in the correction
    masked: bool = True


WAYS = (
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


def in_batch_hypotheses(observer: Observer, seed: int) -> tuple[Means, list[Hypothesis]]:
    """Return the losses of some batches of random labels, and what each way makes of them."""
    rng, problem = np.random.default_rng(seed), observer.problem
    found: list[FloatArray] = []
    made: list[list[FloatArray]] = [[] for _ in WAYS]
    for _ in range(BATCHES):
        rows = rng.integers(0, len(problem.labels), observer.batch)
        labels = rng.choice(problem.num_classes, observer.batch, p=problem.q[0])
        found.append(observer.losses_of(problem.h[rows], labels))
        for way, values in zip(WAYS, made, strict=True):
            values.append(_losses(way, problem, problem.logits[rows], labels))
    losses = np.concatenate(found)
    rounding = observer.rounding_of(np.abs(problem.logits).max() + np.abs(losses).max())
    nothing = np.zeros_like(losses)
    observed = Means(nothing + losses, nothing, nothing + rounding, BATCHES, nothing)
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
        for way, values in zip(WAYS, made, strict=True)
    ]


def _losses(way: _Way, problem: Problem, logits: FloatArray, labels: IntArray) -> FloatArray:
    """Return the losses (B,) of one batch."""
    rows, log_q = np.arange(len(labels)), np.log(problem.q[0])
    log_count = log_q + (np.log(len(labels) - 1.0) if way.counted else 0.0)
    own = logits[rows, labels] - way.off_label * log_count[labels]
    x = logits[:, labels] - way.off_draws * log_count[labels]
    gone = labels[:, None] == labels if way.masked else np.eye(len(labels), dtype=bool)
    x = np.where(gone, -np.inf, x)
    losses: FloatArray = np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own
    return losses
