"""Draws without replacement, whose means are simulated: no closed form is known for them.

Classes are drawn until m different ones have come, as TensorFlow's samplers do by default. A class
comes first at an exponential time with rate q, so m classes are those of the m earliest times; in
between, classes that have come already come again at the rate of their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.faults import METHODS
from samplesoft.checking.hypotheses import Hypothesis
from samplesoft.checking.observe import Observer
from samplesoft.checking.problem import Problem
from samplesoft.schemes import Scheme

_NUMBERS = 1 << 22  # of classes in all trials
_MOST_TRIALS = 1 << 16
_MOST_LOGIT = 700.0
_NAMES = ("negatives", "masked", "candidate", "candidate_masked")
_FAULTS = (None, "log_q_added", "uncorrected", "log_m_left_out", "distinct_as_repeated")


@dataclass(frozen=True)
class _Trials:
    """Draws (N, m) of one example; and as logarithms (N, n) or (n,) how often each is expected."""

    ids: IntArray
    log_tries: FloatArray  # of 1 - (1 - q)^k, where m classes took k draws
    log_inclusion: FloatArray  # of the mean of their presence


def distinct_hypotheses(observer: Observer) -> list[tuple[Hypothesis, FloatArray]]:
    """Return hypotheses of draws without replacement, with the standard errors (K,) of trials."""
    problem, m = observer.problem, observer.num_sampled
    found: list[tuple[Hypothesis, FloatArray]] = []
    if m >= problem.num_classes - 1:
        return found
    examples = range(len(problem.labels))
    laws, trials = {}, {}
    for excluded in (False, True):
        laws[excluded] = [_law(problem, e, excluded) for e in examples]
        trials[excluded] = [_trials(law, m, e) for e, law in enumerate(laws[excluded])]
    order = _order(len(examples), problem.h.shape[1] if observer.with_gradient else 0)
    for name, fault, counts in product(_NAMES, _FAULTS, ("tries", "inclusion")):
        scheme = METHODS[name].scheme
        assert scheme is not None
        corrected = fault in (None, "log_q_added")
        if counts == "inclusion" and not corrected:
            continue
        if fault == "log_m_left_out" and scheme.corrects_label:  # as `distinct_as_repeated`
            continue
        excluded = scheme.excludes_label
        every = [
            _losses(
                problem,
                e,
                trials[excluded][e],
                laws[excluded][e],
                scheme,
                fault,
                counts,
                observer.with_gradient,
            )
            for e in examples
        ]
        means = np.concatenate([one.mean(axis=0) for one in every])[order]
        errors = np.concatenate([one.std(axis=0) / np.sqrt(len(one)) for one in every])[order]
        found.append((Hypothesis(f"{name}_distinct", fault, None, means), errors))
    return found


def _law(problem: Problem, e: int, exclude: bool) -> FloatArray:
    """Return the proposal (n,) of an example, without its label where that is excluded."""
    q = problem.q[e].copy()
    if exclude:
        q[problem.labels[e]] = 0.0
    law: FloatArray = q / q.sum()
    return law


def _trials(q: FloatArray, m: int, seed: int) -> _Trials:
    """Return trials of drawing m different classes by q (n,)."""
    rng = np.random.default_rng(seed)
    size = min(_MOST_TRIALS, _NUMBERS // len(q))
    with np.errstate(divide="ignore"):
        # exponential clocks of rates q: the m earliest are m distinct classes (Plackett and Luce)
        times = rng.standard_exponential((size, len(q))) / q
        ids = np.argsort(times, axis=1)[:, :m]
        times = np.take_along_axis(times, ids, axis=1)
        # until the next new class comes, classes already seen come again: a Poisson number
        seen = np.cumsum(q[ids], axis=1)[:, :-1]
        again = rng.poisson((seen * np.diff(times, axis=1)).sum(axis=1))
        # TensorFlow's expected count: the chance of a class within the number of tries
        log_tries = np.log(-np.expm1((m + again)[:, None] * np.log1p(-q)))
        present = np.bincount(ids.ravel(), minlength=len(q)) / size
        least = 0.1 / size  # of classes that no trial has drawn
        return _Trials(ids, log_tries, np.log(np.maximum(present, least)))


def _losses(
    problem: Problem,
    e: int,
    trials: _Trials,
    law: FloatArray,
    scheme: Scheme,
    fault: str | None,
    counts: str,
    with_gradient: bool,
) -> FloatArray:
    """Return the losses and gradients (N, 1 + d) of an example in all trials."""
    label, o = problem.labels[e], problem.logits[e]
    ids, m = trials.ids, trials.ids.shape[1]
    with np.errstate(divide="ignore"):
        correction = {
            "uncorrected": np.zeros(len(o)),
            "log_m_left_out": np.log(law),
            "distinct_as_repeated": np.log(m * law),
        }.get(fault or "", trials.log_tries if counts == "tries" else trials.log_inclusion)
    correction = np.broadcast_to(correction, (len(ids), len(o)))
    if fault == "log_q_added":
        correction = -correction
    own = np.full(len(ids), o[label])
    if scheme.corrects_label:
        own = own - correction[:, label]
    x = o[ids] - np.take_along_axis(correction, ids, axis=1)
    if scheme.hits == "masked":
        x[ids == label] = -np.inf
    x = np.minimum(x, _MOST_LOGIT)  # of classes that are hardly ever drawn
    own = np.minimum(own, _MOST_LOGIT)
    total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
    losses: FloatArray = (total - own)[:, None]
    if not with_gradient:
        return losses
    c = problem.class_embeddings
    slopes = np.einsum("tm,tmd->td", np.exp(x - total[:, None]), c[ids])
    slopes += (np.exp(own - total) - 1.0)[:, None] * c[label]
    whole: FloatArray = np.concatenate([losses, problem.tau * slopes], axis=1)
    return whole


def _order(examples: int, dim: int) -> IntArray:
    """Return where losses, and then gradients, stand among rows of a loss and a gradient each."""
    places = np.arange(examples * (1 + dim)).reshape(examples, 1 + dim)
    order: IntArray = np.concatenate([places[:, 0], places[:, 1:].ravel()])
    return order
