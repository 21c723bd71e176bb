"""Candidates that do not depend on the observations: estimators with zero, one or two mistakes.

Candidates with in-batch negatives are in `samplesoft.checking.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.candidates import Candidate, make_candidate, merge_equal_means
from samplesoft.checking.estimators import (
    BY_TRIES,
    ESTIMATORS,
    OF_ALL,
    DrawLogProbs,
    Estimator,
    SampledSum,
    estimators_with_draws,
)
from samplesoft.checking.faults import AND, FAULTS, combine_faults
from samplesoft.checking.observe import Observer
from samplesoft.checking.problems import NAMED_PROPOSALS, Problem

# largest number of classes for the slow mistake "counted_twice"; with more it is not tried
_MAX_CLASSES_OF_SLOW_FAULTS = 64
# largest number of classes for draws without replacement; with more they are not tried
_MAX_CLASSES_DISTINCT = 512
_MAX_CACHED_LISTS = 32  # largest number of lists in `_CACHE`; when it is full, it is emptied
_CACHE: dict[tuple[object, ...], list[Candidate]] = {}  # candidates from earlier `check_loss` calls
# The means of draws without replacement take long to compute, so that only these most frequent
# mistakes are tried for the number of tries, and in pairs.
_COMMON_FAULTS = (
    "log_q_added",
    "uncorrected",
    "distinct_as_repeated",
    "hits_kept",
    "label_uncorrected",
)


def _single_faults() -> list[tuple[str]]:
    """Return the faults with `ways` that are not in gradients, each as a tuple of one name."""
    return [(name,) for name, fault in FAULTS.items() if fault.ways and not fault.in_gradients]


def known_candidates(observer: Observer) -> list[Candidate]:
    """Return the simplest candidates, which `check_loss` tests first.

    They have the full softmax or independent draws, with zero or one fault; or mixed negatives. For
    a deterministic loss they have only the full softmax.
    """
    if not observer.is_random:
        return merge_equal_means(
            _make_candidates(observer, [(), *_single_faults()], [ESTIMATORS["full"]])
        )

    estimators = estimators_with_draws("all", "repeated", "independent")

    def make_candidates() -> list[Candidate]:
        return [
            *merge_equal_means(_make_candidates(observer, [(), *_single_faults()], estimators)),
            *_mixed_candidates(observer),
        ]

    return cached_candidates(observer, "known", make_candidates)


def full_candidate(known: Iterable[Candidate]) -> Candidate:
    """Return the candidate of the full softmax without a fault."""
    return next(candidate for candidate in known if candidate.name == ("full", None))


def candidates_of_distinct_draws(observer: Observer) -> list[Candidate]:
    """Return the faultless candidates with distinct draws, or with repeated draws counted once."""
    estimators = estimators_with_draws("distinct", "once")
    return cached_candidates(
        observer,
        "distinct",
        lambda: merge_equal_means(_make_candidates(observer, [()], estimators)),
    )


def faulty_candidates_of_distinct_draws(observer: Observer) -> list[Candidate]:
    """Return the candidates of `candidates_of_distinct_draws`, each with one fault."""
    estimators = estimators_with_draws("distinct", "once")
    return cached_candidates(
        observer,
        "mistakes",
        lambda: merge_equal_means(_make_candidates(observer, _single_faults(), estimators)),
    )


def tested_kinds_of_draws(problem: Problem) -> tuple[str, ...]:
    """Return the kinds of draws (`Estimator.draws`) that are fast enough to test on `problem`."""
    tests_distinct = problem.num_classes <= _MAX_CLASSES_DISTINCT
    return "all", "repeated", "independent", "once", *(("distinct",) if tests_distinct else ())


def candidates_by_name(
    observer: Observer, names: Iterable[tuple[str, str | None]]
) -> list[Candidate]:
    """Return the candidates with the given names (scheme, fault).

    Names with a fault that has a fitted constant are skipped. Candidates with equal means are
    merged into one, which is faultless if one of them is.
    """
    known = {name for (name,) in _single_faults()}
    right_first = sorted(names, key=lambda name: (name[1] is not None, str(name)))

    schemes_and_faults = [
        (scheme, tuple(fault.split(AND)) if fault else ()) for scheme, fault in right_first
    ]
    return merge_equal_means(
        chain.from_iterable(
            _make_candidates(observer, [faults], [ESTIMATORS[scheme]])
            for scheme, faults in schemes_and_faults
            if known.issuperset(faults)
        )
    )


def candidates_with_two_faults(observer: Observer) -> list[Candidate]:
    """Return the candidates with two mistakes."""
    fault_names = [name for (name,) in _single_faults()]
    repeated_estimators = estimators_with_draws("all", "repeated", "independent")

    return cached_candidates(
        observer,
        "pairs",
        lambda: merge_equal_means(
            chain(
                _make_candidates(observer, combinations(fault_names, 2), repeated_estimators),
                _make_candidates(
                    observer, combinations(_COMMON_FAULTS, 2), estimators_with_draws("distinct")
                ),
            )
        ),
    )


def cached_candidates(
    observer: Observer, family: str, make_candidates: Callable[[], list[Candidate]]
) -> list[Candidate]:
    """Return ``make_candidates()``, from a cache if it was called for an equal observer before.

    The key of the cache is `family`, the problem and the settings of the observer.
    """
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q, problem.weights
    settings = problem.tau, observer.num_sampled, observer.batch_size, observer.num_gradients
    key = (family, *(array.tobytes() for array in arrays), *settings, *FAULTS)
    if key not in _CACHE:
        if len(_CACHE) >= _MAX_CACHED_LISTS:
            _CACHE.clear()
        _CACHE[key] = make_candidates()
    return _CACHE[key]


def _make_candidates(
    observer: Observer, mistakes: Iterable[tuple[str, ...]], estimators: Iterable[Estimator]
) -> Iterator[Candidate]:
    """Yield candidates for each right estimator with each tuple of mistakes, in all their forms.

    `mistakes` holds tuples of zero, one or two names of faults; `estimators` are right ones.
    """
    problem = observer.problem
    known: dict[tuple[object, ...], Candidate] = {}
    for names, right in product(mistakes, estimators):
        for wrong in with_faults(right, names):
            if wrong.reduction == "twice" and problem.num_classes > _MAX_CLASSES_OF_SLOW_FAULTS:
                continue

            for detail, variant in _estimator_variants(problem, wrong, right, names):
                sums = variant(problem, observer.num_sampled, observer.batch_size)

                # Skip a correction by the number of tries that is the same for each number: the
                # candidate before it has the same means.
                if not sums or (
                    variant.corrects_by_tries
                    and len({sampled_sum.logits.tobytes() for sampled_sum in sums}) == 1
                ):
                    continue

                key = tuple(sampled_sum.key for sampled_sum in sums)
                fault = AND.join(names) or None
                if key not in known:
                    known[key] = make_candidate(observer, right.name, fault, sums, with_spread=True)
                yield replace(known[key], scheme=right.name, fault=fault, detail=detail)


def with_faults(right: Estimator, names: tuple[str, ...]) -> list[Estimator]:
    """Return the variants of an estimator with zero, one or two named mistakes.

    There is one variant for each form of a mistake, or for each pair of forms of two mistakes. The
    list is empty if the mistakes cannot be made in `right`.
    """
    if not names:
        return [right]
    first_faults, *second_faults = (FAULTS[name].applied_to(right) for name in names)
    if not second_faults:
        return first_faults
    combined = (
        combine_faults(right, first, second)
        for first, second in product(first_faults, second_faults[0])
    )
    return [estimator for estimator in combined if estimator is not None]


def _estimator_variants(
    problem: Problem, wrong: Estimator, right: Estimator, names: tuple[str, ...]
) -> Iterator[tuple[str, Estimator]]:
    """Yield a wrong estimator and its variants, each with a description that reports show.

    A variant corrects draws without replacement by the number of tries, as in TensorFlow, or
    includes classes with q = 0 in the full softmax.
    """
    yield "", wrong
    if right.corrects_distinct_draws and {*names} <= {*_COMMON_FAULTS}:
        yield BY_TRIES, replace(wrong, corrects_by_tries=True)
    if right.name == "full" and (problem.q <= 0.0).any():
        yield OF_ALL, replace(wrong, sums_all_classes=True)


# mixed negatives: labels of the batch and random draws -------------------------------------------


def log_probs_from_counts(
    problem: Problem, log_counts: FloatArray, log_num_draws: float = 0.0
) -> DrawLogProbs:
    """Return the `DrawLogProbs` of draws with the expected counts that are passed.

    The expected counts are ``exp(log_counts + log_num_draws)``. All three log-probabilities are set
    to `log_counts` (E, n), so that every kind of correction uses these counts.
    """
    return DrawLogProbs(
        log_one_draw=log_counts,
        log_proposal=log_counts,
        log_inclusion=log_counts,
        log_num_draws=log_num_draws,
        labels=problem.labels,
    )


def _mixed_candidates(observer: Observer) -> Iterator[Candidate]:
    """Yield candidates with mixed negatives: the labels of the batch, and m random draws.

    The labels are in the sum S at every call, because the batch is the same at every call. The loss
    assumes that labels follow the proposal of the problem; the draws are uniform, log-uniform, or
    follow that proposal too.
    """
    problem = observer.problem
    m = observer.num_sampled
    batch_size = observer.batch_size
    labels = problem.labels

    # how often each class is a label in the batch, which has the same number of copies of each
    # example
    label_counts = np.bincount(labels, minlength=problem.num_classes) * (batch_size // len(labels))
    with np.errstate(divide="ignore"):
        log_counts_in_batch = np.log(label_counts)

    proposals = {"`proposal` too": problem.q}
    for name, make_proposal in NAMED_PROPOSALS.items():
        q = np.broadcast_to(make_proposal(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in proposals.values()):
            proposals[f"{name!r}"] = q

    schemes = (("mixed", "masked"), ("mixed_candidate", "candidate_masked"))
    faults = (None, "uncorrected", "corrected_apart")

    for (proposal_name, q), (name, scheme), fault in product(proposals.items(), schemes, faults):
        with np.errstate(divide="ignore"):
            log_expected_labels = np.log((batch_size - 1) * problem.q)
            log_expected_draws = np.log(m * q)

        # the right correction is log((B - 1) q + m u), where u is the distribution of the m draws
        if fault != "corrected_apart":
            log_expected_labels = log_expected_draws = np.logaddexp(
                log_expected_labels, log_expected_draws
            )

        estimator = ESTIMATORS[scheme]
        if fault == "uncorrected":
            (estimator,) = FAULTS[fault].applied_to(estimator)

        label_logit, log_label_mass, included_logits = estimator.label_and_draw_logits(
            problem, log_probs_from_counts(problem, log_expected_labels)
        )
        _, _, logits = estimator.label_and_draw_logits(
            problem, log_probs_from_counts(problem, log_expected_draws)
        )
        sampled_sum = SampledSum(
            reduction="sum",
            labels=labels,
            probs=q,
            logits=logits,
            log_label_mass=log_label_mass,
            label_logit=label_logit,
            num_draws=m,
            always_included_logits=included_logits + log_counts_in_batch,
        )
        detail = f"draws are by {proposal_name}"
        candidate = make_candidate(observer, name, fault, [sampled_sum], detail, with_spread=True)
        yield replace(candidate, expected=None)  # the means hold for this batch only
