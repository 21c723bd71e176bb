"""Candidates whose negatives are the labels of the batch (in-batch negatives).

Such losses do not draw, so that their values for single examples are compared instead of means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray
from samplesoft.checking.candidates import Candidate
from samplesoft.checking.estimators import ESTIMATORS, Estimator, SampledSum, sum_without_draws
from samplesoft.checking.exact import Means, expectation, label_smoothing_terms
from samplesoft.checking.faults import AND, FAULTS, combine_faults
from samplesoft.checking.fitted import (
    LOG_FACTORS,
    SmoothedMeans,
    fit_smoothing,
    nearest_candidate,
    observed_plain_and_smoothing,
    with_scaled_gradient,
)
from samplesoft.checking.known import log_probs_from_counts
from samplesoft.checking.observe import Observed, Observer
from samplesoft.checking.problems import Problem

_NUM_BATCHES = 12
_IN_BATCH = {
    "masked": "in_batch",
    "candidate_masked": "in_batch_candidate",
    "candidate": "in_batch_candidate_kept",
}


class _InBatchLoss(NamedTuple):
    """A loss with in-batch negatives: a scheme, its mistakes, and the m of the correction.

    `fault` is the name of its mistakes, or None. `estimator` is the estimator of the scheme with
    these mistakes, except for a wrong m. `count_rule` gives the m of the correction: 1; B - 1
    (``"others"``) or B (``"all"``) in a batch of B examples; or the argument `num_sampled`
    (``"given"``).
    """

    scheme: str
    fault: str | None
    estimator: Estimator
    count_rule: str | int = "others"


def _estimator_with_faults(scheme: str, *faults: str) -> Estimator:
    """Return the estimator of a scheme with one or two faults, each in the first of its `ways`."""
    right = ESTIMATORS[scheme]
    first_fault, *other_faults = (FAULTS[name].applied_to(right)[0] for name in faults)
    estimator = combine_faults(right, first_fault, other_faults[0]) if other_faults else first_fault
    assert estimator is not None  # the faults replace different fields
    return estimator


def _in_batch_losses() -> Iterator[_InBatchLoss]:
    """Yield the known losses with in-batch negatives, with and without mistakes."""
    for scheme in _IN_BATCH:
        yield _InBatchLoss(scheme, None, ESTIMATORS[scheme])

    masked = ESTIMATORS["masked"]
    hits_kept = _estimator_with_faults("masked", "hits_kept")
    yield _InBatchLoss("masked", "uncorrected", _estimator_with_faults("masked", "uncorrected"))
    added = _estimator_with_faults("masked", "log_q_added")
    yield _InBatchLoss("masked", "log_q_added", added)
    yield _InBatchLoss(
        "candidate_masked", "log_q_added", _estimator_with_faults("candidate_masked", "log_q_added")
    )
    yield _InBatchLoss("masked", "log_q_added", added, 1)
    for estimator in FAULTS["hits_of_other_rows"].applied_to(masked):
        yield _InBatchLoss("masked", "hits_of_other_rows", estimator)

    yield _InBatchLoss("masked", "log_m_left_out", masked, 1)
    yield _InBatchLoss("masked", "in_batch_count", masked, "all")
    yield _InBatchLoss("masked", "in_batch_count", masked, "given")
    yield _InBatchLoss("masked", "hits_kept", hits_kept)
    uncorrected = _estimator_with_faults("masked", "uncorrected", "hits_kept")
    yield _InBatchLoss("masked", f"uncorrected{AND}hits_kept", uncorrected)
    added = _estimator_with_faults("masked", "log_q_added", "hits_kept")
    yield _InBatchLoss("masked", f"log_q_added{AND}hits_kept", added)
    yield _InBatchLoss("masked", f"log_m_left_out{AND}hits_kept", hits_kept, 1)
    yield _InBatchLoss("masked", f"log_q_added{AND}hits_kept", added, 1)
    yield _InBatchLoss(
        "candidate", "log_q_added", _estimator_with_faults("candidate", "log_q_added")
    )


_IN_BATCH_LOSSES = tuple(_in_batch_losses())
_TWO_WAY = {
    "logits are not corrected, hits are kept": _estimator_with_faults(
        "masked", "uncorrected", "hits_kept"
    ),
    "logits are not corrected, hits are left out": _estimator_with_faults("masked", "uncorrected"),
    "log q of the class is subtracted, hits are kept": ESTIMATORS["candidate"],
    "log q of the class is subtracted, hits are left out": ESTIMATORS["candidate_masked"],
    "log(m q) is subtracted, but not from the label's logit, hits are kept": _estimator_with_faults(
        "masked", "hits_kept"
    ),
    "log(m q) is subtracted, but not from the label's logit, hits are left out": ESTIMATORS[
        "masked"
    ],
}


def _two_way_loss(batch_problem: Problem, sampled_sum: SampledSum) -> tuple[Problem, Means]:
    """Return a batch, and its losses as sums of row and column cross entropies, with gradients.

    The matrix of logits has a row for each context and a column for each label of the batch.
    `batch_problem` is the problem of the batch, and `sampled_sum` its sum S, which holds the
    logits.
    """
    size = len(batch_problem.labels)

    # logits (B, B): a row for each context, a column for each label of the batch
    logits = sampled_sum.logits[:, batch_problem.labels]
    np.fill_diagonal(logits, sampled_sum.log_label_mass)
    row_log_sums = np.logaddexp.reduce(logits, axis=1)
    column_log_sums = np.logaddexp.reduce(logits, axis=0)
    losses = row_log_sums + column_log_sums - 2.0 * sampled_sum.label_logit

    # The cross entropy of column j adds to the gradients of all contexts, with the weight of
    # example j. Gradients are divided by the weights of their contexts.
    weight_ratios = batch_problem.weights / batch_problem.weights[:, None]
    softmax_of_columns = np.exp(logits - column_log_sums) - np.eye(size)
    d_x = np.exp(logits - row_log_sums[:, None]) - np.eye(size) + weight_ratios * softmax_of_columns

    d_logits = np.zeros_like(sampled_sum.logits)
    np.add.at(d_logits, (np.arange(size)[:, None], batch_problem.labels), d_x)

    return batch_problem, Means(losses, d_logits)


class InBatchCandidates:
    """The results of a loss on several batches of random labels, and candidates that predict them.

    Attribute `observed` holds the results of one batch after the other: the losses, and the first
    `num_gradients` of the gradients in h, class vectors and biases. Its standard errors are 0.
    `size` is the number of examples in a batch, by default that of the observer.
    """

    def __init__(self, observer: Observer, num_gradients: int, size: int | None = None) -> None:
        rng = np.random.default_rng(0)
        problem = observer.problem
        self._observer = observer
        drawn_ids = np.sort(problem.classes_by_frequency)
        self._num_gradients = num_gradients
        self._size = observer.batch_size if size is None else size

        observed: list[FloatArray] = []
        is_gradient: list[NDArray[np.bool_]] = []
        measured_rounding: list[FloatArray] = []
        self._batches: list[tuple[Problem, FloatArray]] = []

        for _ in range(_NUM_BATCHES):
            # Draw labels with repeats, from at most `size` classes, so that labels of other
            # examples are often accidental hits.
            rows = rng.integers(0, len(problem.labels), self._size)
            labels = rng.choice(rng.choice(drawn_ids, self._size), self._size)
            batch = problem.select_examples(rows, labels)

            results = observer.results_of_call(batch, 0)[: 1 + num_gradients]
            observed += [result.ravel() for result in results]
            is_gradient += [np.full(result.size, k > 0) for k, result in enumerate(results)]
            bounds = observer.rounding_bounds_by_result(batch)
            measured_rounding += [
                np.full(result.size, bound) for result, bound in zip(results, bounds, strict=False)
            ]

            # counts (B, n): how often each class is the label of another example
            label_counts = np.bincount(labels, minlength=problem.num_classes)
            other_counts = np.tile(label_counts.astype(float), (self._size, 1))
            other_counts[np.arange(self._size), labels] -= 1.0
            self._batches.append((batch, other_counts))

        means = np.concatenate(observed)
        self._is_gradient = np.concatenate(is_gradient)
        max_magnitude = np.abs(problem.logits).max() + np.abs(means).max()
        type_rounding = observer.type_rounding * max_magnitude

        # the values are not random: standard errors are 0, and rounding is the only error
        zeros = np.zeros_like(means)
        self.observed = Observed(
            means=means,
            stderrs=zeros,
            rounding_bounds=np.maximum(zeros + type_rounding, np.concatenate(measured_rounding)),
            magnitudes=zeros + 1.0,
            num_calls=_NUM_BATCHES,
            skewness=zeros,
        )

    def known_candidates(self) -> Iterator[Candidate]:
        """Yield the candidates that have no fitted constant."""
        m = self._size - 1
        problem = self._observer.problem
        counts_by_rule = {"others": m, "all": self._size, "given": self._observer.num_sampled, 1: 1}
        seen_keys = set()

        for loss in _IN_BATCH_LOSSES:
            count = counts_by_rule[loss.count_rule]
            expected = None
            detail = ""
            key = loss.scheme, loss.estimator, count
            if key in seen_keys:  # another rule has given the same m
                continue

            seen_keys.add(key)
            # the report shows a bias: use means over random batches, whose labels are like draws
            if loss.fault is None:
                expected = expectation(loss.estimator(problem, m, self._size))
            if loss.fault is None or loss.count_rule == 1:
                detail = f"m is B - 1 = {m} in a batch of {self._size}; `num_sampled` is ignored"
            elif loss.fault == "in_batch_count":
                detail = (
                    f"the correction has m = {count}, but the batch has B - 1 = {m} other labels"
                )

            means = self._observed_means(loss.estimator, count)
            name = _IN_BATCH[loss.scheme]
            yield Candidate(name, loss.fault, means=means, expected=expected, detail=detail)

    def candidates_with_scaled_gradients(self) -> Iterator[Candidate]:
        """Yield faultless candidates with their gradients multiplied by a fitted constant.

        If the constant is 1 / B, the fault is "divided_by_batch" if it depends on the batch size B.
        """
        for candidate in self._faultless_candidates():
            scaled = with_scaled_gradient(candidate, self.observed, self._is_gradient)
            if scaled is None:
                continue

            # if the factor depends on B, it is twice as large in batches of half the size
            if scaled.gradient_factor == 1.0 / self._size:
                half = InBatchCandidates(self._observer, self._num_gradients, self._size // 2)
                same_name = next(
                    each for each in half._faultless_candidates() if each.name == candidate.name
                )
                other = with_scaled_gradient(same_name, half.observed, half._is_gradient)
                if other is not None and other.gradient_factor == 1.0 / half._size:
                    scaled = replace(scaled, fault="divided_by_batch", detail=candidate.detail)
                else:
                    scaled = replace(scaled, detail=f"{scaled.detail}, in smaller batches too")

            yield scaled

    def _faultless_candidates(self) -> Iterator[Candidate]:
        """Yield the candidates without a fault, including two-way losses."""
        yield from (candidate for candidate in self.known_candidates() if candidate.fault is None)
        yield from self.two_way_candidates()

    def two_way_candidates(self) -> Iterator[Candidate]:
        """Yield candidates for two-way losses, which two-tower models use.

        The logits of all contexts (rows) and all labels (columns) of a batch are a matrix. A
        two-way loss is the sum or the mean of the cross entropy of a row and that of a column.
        """
        m = self._size - 1
        problem = self._observer.problem
        name = "in_batch_symmetric"

        for words, estimator in _TWO_WAY.items():
            batch_means = [
                _two_way_loss(batch, sampled_sum)
                for batch, _, sampled_sum in self._sums_of_batches(estimator, m, problem.tau)
            ]
            means = np.concatenate(
                [
                    means_of_batch.observed_means(batch, self._num_gradients)
                    for batch, means_of_batch in batch_means
                ]
            )

            yield Candidate(name, None, means=0.5 * means, detail=f"the mean of both; {words}")
            yield Candidate(name, None, means=means, detail=f"the sum of both; {words}")

    def fitted_candidates(self) -> Iterator[Candidate]:
        """Yield the candidates with a fitted temperature or with fitted label smoothing."""
        tau = self._observer.problem.tau
        for scheme, name in _IN_BATCH.items():
            yield nearest_candidate(
                partial(self._candidate_at_tau, scheme), np.log(tau) + LOG_FACTORS, self.observed
            )

            # label smoothing leaves masked hits out (None), or averages a constant logit for them
            hit_logits = [None] if scheme == "candidate" else [None, self._fitted_hit_logit(scheme)]
            for hit_logit in hit_logits:
                smoothed_means = self._smoothed_means(scheme, hit_logit)
                yield fit_smoothing(
                    smoothed_means, self._num_gradients, self.observed, name, hit_logit
                )

    def _fitted_hit_logit(self, scheme: str) -> float:
        """Return the constant logit of masked hits that fits best with label smoothing."""
        means_by_mask = (self._smoothed_means(scheme, mask) for mask in (0.0, 1.0))
        (plain, smoothing_at_0), (_, smoothing_at_1) = (
            observed_plain_and_smoothing(parts, self._num_gradients) for parts in means_by_mask
        )

        # The loss is linear in two unknowns, the smoothing fraction, and this fraction times the
        # logit of hits: fit both by least squares.
        columns = np.column_stack([smoothing_at_0, smoothing_at_1 - smoothing_at_0])
        fraction, times_logit = np.linalg.lstsq(columns, self.observed.means - plain)[0]
        return float(times_logit / fraction) if fraction else 0.0

    def _smoothed_means(self, scheme: str, mask: float | None) -> list[SmoothedMeans]:
        """Return for each batch the losses of a scheme, and the terms that label smoothing adds.

        `mask` is the logit of masked hits, which label smoothing averages with the other logits;
        with None it leaves masked hits out.
        """
        smoothed_means = []
        hits_follow_label = scheme == "candidate"
        tau = self._observer.problem.tau
        sums_of_batches = self._sums_of_batches(ESTIMATORS[scheme], self._size - 1, tau)

        for batch, other_counts, sampled_sum in sums_of_batches:
            draw_logits = np.where(other_counts > 0.0, sampled_sum.logits, 0.0)
            candidate_counts = other_counts.copy()
            if not hits_follow_label:
                hits = np.arange(len(draw_logits)), batch.labels
                draw_logits[hits] = mask or 0.0
                candidate_counts[hits] = other_counts[hits] * (mask is not None)

            smoothing_terms = label_smoothing_terms(
                sampled_sum, candidate_counts, draw_logits, hits_follow_label
            )
            smoothed_means.append(SmoothedMeans(expectation([sampled_sum]), smoothing_terms, batch))

        return smoothed_means

    def _candidate_at_tau(self, scheme: str, log_tau: float) -> Candidate:
        """Return the candidate for a scheme with another inverse temperature."""
        tau = float(np.exp(log_tau))
        means = self._observed_means(ESTIMATORS[scheme], self._size - 1, tau)
        detail = f"tau is {tau:.6g}"
        return Candidate(_IN_BATCH[scheme], "other_temperature", means=means, detail=detail)

    def _observed_means(self, estimator: Estimator, m: int, tau: float | None = None) -> FloatArray:
        """Return the expected losses and gradients for all batches, in the order of `observed`.

        `estimator` describes the loss, `m` is that of its correction, and `tau` its inverse
        temperature, by default that of the problem.
        """
        sums_of_batches = self._sums_of_batches(estimator, m, tau or self._observer.problem.tau)
        return np.concatenate(
            [
                expectation([sampled_sum]).observed_means(batch, self._num_gradients)
                for batch, _, sampled_sum in sums_of_batches
            ]
        )

    def _sums_of_batches(
        self, estimator: Estimator, m: int, tau: float
    ) -> Iterator[tuple[Problem, FloatArray, SampledSum]]:
        """Yield for each batch its problem, the counts (B, n) of other labels, and the sum S.

        A count says how often a class is the label of another example; these labels are the
        negatives. `m` is the number of draws in the correction.
        """
        for stored_batch, other_counts in self._batches:
            batch = stored_batch.with_tau(tau)
            with np.errstate(divide="ignore"):
                drawn = log_probs_from_counts(batch, np.log(batch.q), float(np.log(m)))

            label_logit, log_label_mass, draw_logits = estimator.label_and_draw_logits(batch, drawn)
            with np.errstate(divide="ignore"):
                included_logits = draw_logits + np.log(other_counts)

            yield (
                batch,
                other_counts,
                replace(
                    sum_without_draws(batch.labels, label_logit, log_label_mass, included_logits),
                    logits=draw_logits,
                ),
            )
