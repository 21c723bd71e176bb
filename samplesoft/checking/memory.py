"""Candidates for losses with a memory: a running estimate U of the sum, for each example.

Relative to the label's term, let S be the random sum of a loss, and U its running estimate, which
``log_sums`` holds the log of. A visit sets U to ``(1 - gamma) U + gamma S``; the gradient is that
of log S times S / U, with the new U. With ``V = U (1 - gamma) / gamma`` before the visit, the new U
is ``gamma (S + V)``, so that all means are those of a sum whose fixed part is larger by V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from samplesoft._validation import FloatArray
from samplesoft.checking.candidates import Candidate, merge_equal_means
from samplesoft.checking.estimators import ESTIMATORS, Estimator, SampledSum, full_sum
from samplesoft.checking.exact import Means, expectation
from samplesoft.checking.faults import AND, FAULTS
from samplesoft.checking.fitted import distance_units, nearest_candidate
from samplesoft.checking.known import cached_candidates, with_faults
from samplesoft.checking.observe import Observed, Observer
from samplesoft.checking.problems import Memory, Problem

_SCHEMES = ("masked", "negatives", "importance")  # how the sum may be drawn
# mistakes that a sum with a memory cannot show, or that are not mistakes in it
_SKIPPED_FAULTS = ("label_left_out", "detached_negatives", "divided_by_batch")
# Log-sums minus their true values. They are never more than 1 too low, where U-max would raise
# them, and the last one has a rare label: -inf stands for a new example.
_OFFSETS = np.array([1.5, -0.7, 0.4, -0.3])
_OBJECTIVE, _RATIO, _LOG, _SURROGATE = (
    "u + S/U - 1",
    "S/U",
    "log U",
    "the sum of score differences times their weights",
)
_MIN_LOG_MASS = -30.0  # in place of a label's mass of 0, so that a sum of masked draws is above 0
_MIN_LOG = -1e300  # replaces -inf in the log of a divisor
_STEP = 0.02  # step in log V of a derivative
_RELATIVE_ERROR = 1e-6  # relative error of means of sets and of derivatives
_LOGITS_OF_GAMMA = logit(np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 0.99]))
_LOGS_OF_ALPHA = np.linspace(-12.0, 3.0, 11)
_NUM_REFINED = 3  # number of hypotheses whose rate is refined after a grid of rates


def with_memory(problem: Problem, gamma: float | None, alpha: float | None) -> Problem:
    """Return the problem with log-sums for its examples; without a rate, no example is new."""
    log_sums = expectation([full_sum(problem)]).losses
    log_sums = log_sums + np.resize(_OFFSETS, len(log_sums))
    if gamma is not None or alpha is not None:
        log_sums[len(_OFFSETS) - 1 :: len(_OFFSETS)] = -np.inf
    return replace(problem, memory=Memory(log_sums, gamma, alpha))


class _Visit(NamedTuple):
    """Means over the draws of a visit: of log U (E,), of S/U (E,), and of gradients (E, n)."""

    log_sum: FloatArray
    ratio: FloatArray
    d_logits: FloatArray

    def means(self, value: str, logits: FloatArray) -> Means:
        """Return the means of a loss that reports the named value."""
        values = {
            _OBJECTIVE: self.log_sum + self.ratio - 1.0,
            _RATIO: self.ratio,
            _LOG: self.log_sum,
            _SURROGATE: (self.d_logits * logits).sum(axis=1),
        }
        return Means(values[value], self.d_logits)


def _gradient(d_draws: FloatArray, one: SampledSum) -> FloatArray:
    """Return gradients (E, n) from those of draws: the label's is minus the sum of the others."""
    d_logits = d_draws.copy()
    rows = np.arange(len(d_logits))
    d_logits[rows, one.labels] = 0.0
    d_logits[rows, one.labels] = -d_logits.sum(axis=1)
    return d_logits


def _fractions(one: SampledSum, log_old_mass: FloatArray) -> tuple[Means, FloatArray]:
    """Return means of ``log(S + V)`` and of draws' fractions of S + V, and of V's fraction."""
    with np.errstate(invalid="ignore"):
        log_mass = np.logaddexp(one.log_label_mass, one.label_logit + log_old_mass)
    moved = replace(one, log_label_mass=log_mass, label_derivative=0.0)
    means = expectation([moved])
    of_base = np.exp(one.label_logit + log_old_mass - np.maximum(log_mass, _MIN_LOG))
    return means, (1.0 - means.d_logits.sum(axis=1)) * of_base


def _moving_average(one: SampledSum, gamma: FloatArray, log_old_mass: FloatArray) -> _Visit:
    """Return the means of a visit that moves U with the weights `gamma` (E,)."""
    means, old_fraction = _fractions(one, log_old_mass)
    return _Visit(
        means.losses + np.log(gamma),
        (1.0 - old_fraction) / gamma,
        _gradient(means.d_logits / gamma[:, None], one),
    )


def _double_sum(one: SampledSum, memory: Memory, first: _Visit) -> _Visit:
    """Return the means of a visit whose divisor is U of before; a new example has U = S."""
    draws = one.num_draws * one.probs * np.exp(one.logits - one.label_logit[:, None])
    is_new = np.isneginf(memory.log_sums)
    log_sums = np.where(is_new, 0.0, memory.log_sums)
    total = np.exp(one.log_label_mass - one.label_logit) + draws.sum(axis=1)
    return _Visit(
        np.where(is_new, first.log_sum, log_sums),
        np.where(is_new, 1.0, total * np.exp(-log_sums)),
        np.where(
            is_new[:, None],
            first.d_logits,
            _gradient(draws * np.exp(-log_sums)[:, None], one),
        ),
    )


def _sums(
    observer: Observer, has_faults: bool = True
) -> Iterator[tuple[Estimator, bool, str | None, SampledSum]]:
    """Yield sums S: how they are drawn, whether the label is in them, their fault, and the sum."""
    problem = observer.problem
    names: list[tuple[str, ...]] = [()]
    if has_faults:
        names += [
            (name,)
            for name, one_fault in FAULTS.items()
            if one_fault.ways and not one_fault.in_gradients and name not in _SKIPPED_FAULTS
        ]
    for name, fault in product(_SCHEMES, names):
        right = ESTIMATORS[name]
        variants = [(fault[0] if fault else None, wrong) for wrong in with_faults(right, fault)]
        if not fault and has_faults:
            mean = replace(right, correction=lambda log_q, log_m: np.full_like(log_q, log_m))
            variants.append(("mean_over_draws", mean))
        for wrong_name, wrong in variants:
            for one in wrong(problem, observer.num_sampled, observer.batch_size):
                yield right, True, wrong_name, one
                if right.has_label_in_sum and wrong_name != "label_twice":
                    least = _MIN_LOG_MASS if right.masks_hits else -np.inf
                    yield (
                        right,
                        False,
                        wrong_name,
                        replace(one, log_label_mass=one.label_logit + least),
                    )


def _candidates_of_sum(
    observer: Observer, right: Estimator, has_label: bool, fault: str | None, one: SampledSum
) -> Iterator[Candidate]:
    """Yield the candidates of a sum S: what the divisor may be, and what is reported."""
    problem = observer.problem
    memory = problem.memory
    assert memory is not None
    gamma, log_old_mass = memory.gamma_of_examples, memory.log_old_mass
    nothing = np.full_like(gamma, -np.inf)
    first = _moving_average(one, np.ones_like(gamma), nothing)
    visit = _moving_average(one, gamma, log_old_mass)
    scheme = "moving_average" if has_label else "moving_average_negatives"
    make = partial(_candidates_of_visit, observer, right, memory.rate)

    if memory.rate is not None:
        yield from make(scheme, fault, visit)
    if one.reduction == "sum" and (has_label or fault is None):
        label_fault = fault if has_label else "label_left_out"
        before = _double_sum(one, memory, first)
        yield from make("double_sum", label_fault, before)
        if memory.rate is not None:  # the value has the new U
            yield from make("double_sum", label_fault, before._replace(log_sum=visit.log_sum))
    if fault is not None or not has_label:
        return

    yield from make(scheme, "log_sums_ignored", first)
    if memory.rate is None:
        return

    # an estimate that starts from 0: the first U is gamma S, with the gamma of other visits
    if memory.gamma is not None:
        rates = np.full_like(gamma, memory.gamma)
        yield from make(scheme, "new_from_zero", _moving_average(one, rates, log_old_mass))

    if not observer.num_gradients:
        return

    # gradients through U hold the derivative of fractions in log V
    ends = [_fractions(one, log_old_mass + step * _STEP)[0].d_logits for step in (-2, -1, 1, 2)]
    slope = (ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * _STEP)
    through_log = visit.d_logits * gamma[:, None]
    through_ratio = _gradient(-slope / gamma[:, None], one)
    for value, d_logits in (
        (_OBJECTIVE, through_log + through_ratio),
        (_RATIO, through_ratio),
        (_LOG, through_log),
    ):
        attached = visit._replace(d_logits=d_logits)
        yield from make(scheme, "gradient_through_log_sums", attached, values=(value,))

    for name, factor in (("gradient_times_gamma", gamma), ("gradient_over_gamma", 1.0 / gamma)):
        scaled = visit._replace(d_logits=visit.d_logits * factor[:, None])
        yield from make(scheme, name, scaled, values=(_OBJECTIVE, _RATIO, _LOG))


def _candidates_of_visit(
    observer: Observer,
    right: Estimator,
    rate: str | None,
    scheme: str,
    fault: str | None,
    visit: _Visit,
    values: Iterable[str] = (_OBJECTIVE, _RATIO, _LOG, _SURROGATE),
) -> Iterator[Candidate]:
    """Yield the candidates of a visit, one for each value that the loss may report."""
    problem = observer.problem
    parts = [f"draws as in `{right.name}`"]
    parts += [rate] if rate is not None and scheme != "double_sum" else []
    for value in values:
        expected = visit.means(value, problem.logits)
        yield Candidate(
            scheme,
            fault,
            means=expected.observed_means(problem, observer.num_gradients),
            expected=expected,
            relative_error=_RELATIVE_ERROR,
            detail=", ".join([*parts, f"the value is {value}"]),
        )


def memory_candidates(observer: Observer) -> list[Candidate]:
    """Return the candidates with a memory: right ones, and ones with one mistake."""
    memory = observer.problem.memory
    assert memory is not None

    def make_candidates() -> list[Candidate]:
        found = (
            candidate
            for each in _sums(observer)
            for candidate in _candidates_of_sum(observer, *each)
        )
        return merge_equal_means(iter(sorted(found, key=lambda candidate: len(candidate.faults))))

    return cached_candidates(observer, f"memory {memory.rate}", make_candidates)


def candidates_with_other_rates(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield right moving averages whose gamma or alpha is fitted to the observations."""
    problem = observer.problem
    assert problem.memory is not None

    def candidates_at(
        right: Estimator, has_label: bool, one: SampledSum, of_alpha: bool, x: float
    ) -> list[Candidate]:
        assert problem.memory is not None
        memory = problem.memory._replace(
            gamma=None if of_alpha else float(expit(x)),
            alpha=float(np.exp(x)) if of_alpha else None,
        )
        visit = _moving_average(one, memory.gamma_of_examples, memory.log_old_mass)
        scheme = "moving_average" if has_label else "moving_average_negatives"
        return list(_candidates_of_visit(observer, right, memory.rate, scheme, "other_rate", visit))

    def one_at(at: Callable[[float], list[Candidate]], index: int, x: float) -> Candidate:
        return at(x)[index]

    tried: list[tuple[float, int, Callable[[float], Candidate], FloatArray]] = []
    for right, has_label, _, one in _sums(observer, has_faults=False):
        for of_alpha, grid in ((False, _LOGITS_OF_GAMMA), (True, _LOGS_OF_ALPHA)):
            at = partial(candidates_at, right, has_label, one, of_alpha)
            means = np.array([[each.means for each in at(x)] for x in grid])
            distances = (((means - observed.means) / distance_units(observed)) ** 2).sum(axis=2)
            for index, distance in enumerate(distances.min(axis=0)):
                tried.append((float(distance), len(tried), partial(one_at, at, index), grid))

    for _, _, candidate_at, grid in sorted(tried)[:_NUM_REFINED]:
        yield nearest_candidate(candidate_at, grid, observed)


def candidates_with_other_values(
    observed: Observed, tested: list[Candidate]
) -> Iterator[Candidate]:
    """Yield tested candidates whose gradients alone are compared: the value is another one."""
    for candidate in tested:
        if candidate.expected is None or len(candidate.faults) > 1:
            continue
        num_losses = len(candidate.expected.losses)
        if len(candidate.means) > num_losses:
            means = np.append(observed.means[:num_losses], candidate.means[num_losses:])
            parts = candidate.detail.split(", the value is")
            yield replace(
                candidate,
                fault=AND.join([*candidate.faults, "other_value"]),
                means=means,
                detail=parts[0],
                equivalents=(),
            )
