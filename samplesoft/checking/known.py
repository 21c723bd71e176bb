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

_MAX_CLASSES_OF_SLOW_FAULTS = 64  # with more, the slow mistake "counted_twice" is not tried
_MAX_CLASSES_DISTINCT = 512  # with more, draws without replacement are not tried
_MAX_CACHED = 32  # number of lists of candidates that are cached for later calls of `check_loss`
_CACHE: dict[tuple[object, ...], list[Candidate]] = {}
# for draws without replacement, whose means are slow, only the most frequent mistakes are tried
_COMMON = ("log_q_added", "uncorrected", "distinct_as_repeated", "hits_kept", "label_uncorrected")


def _single_faults() -> list[tuple[str]]:
    """Return the names of faults without an unknown constant, each as a tuple of one name."""
    return [(name,) for name, fault in FAULTS.items() if fault.ways and not fault.in_gradients]


def known_candidates(observer: Observer) -> list[Candidate]:
    """Return the candidates with independent draws, with zero or one fault, and mixed negatives.

    For a deterministic loss, return only the candidates with the full softmax.
    """
    if not observer.is_random:
        return merge_equal_means(
            _make_candidates(observer, [(), *_single_faults()], [ESTIMATORS["full"]])
        )
    rights = estimators_with_draws("all", "repeated", "independent")

    def make_candidates() -> list[Candidate]:
        return [
            *merge_equal_means(_make_candidates(observer, [(), *_single_faults()], rights)),
            *_mixed_candidates(observer),
        ]

    return _cached_candidates(observer, "known", make_candidates)


def full_candidate(known: Iterable[Candidate]) -> Candidate:
    """Return the candidate of the full softmax without a fault."""
    return next(one for one in known if one.name == ("full", None))


def distinct_candidates(observer: Observer) -> list[Candidate]:
    """Return the faultless candidates without replacement, or whose repeats count once."""
    rights = estimators_with_draws("distinct", "once")
    return _cached_candidates(
        observer, "distinct", lambda: merge_equal_means(_make_candidates(observer, [()], rights))
    )


def distinct_candidates_with_fault(observer: Observer) -> list[Candidate]:
    """Return the candidates of `distinct_candidates` with one fault."""
    rights = estimators_with_draws("distinct", "once")
    return _cached_candidates(
        observer,
        "mistakes",
        lambda: merge_equal_means(_make_candidates(observer, _single_faults(), rights)),
    )


def tested_kinds_of_draws(problem: Problem) -> tuple[str, ...]:
    """Return the kinds of draws whose exact means can be computed fast enough for `problem`."""
    few = problem.num_classes <= _MAX_CLASSES_DISTINCT
    return "all", "repeated", "independent", "once", *(("distinct",) if few else ())


def candidates_by_name(
    observer: Observer, names: Iterable[tuple[str, str | None]]
) -> list[Candidate]:
    """Return the candidates with the given names (scheme, fault).

    Names of faults with a fitted constant are skipped. Candidates with equal means are merged, and
    a faultless one represents its group.
    """
    known = {name for (name,) in _single_faults()}
    right_first = sorted(names, key=lambda name: (name[1] is not None, str(name)))
    mistakes = [(scheme, tuple(fault.split(AND)) if fault else ()) for scheme, fault in right_first]
    return merge_equal_means(
        chain.from_iterable(
            _make_candidates(observer, [faults], [ESTIMATORS[scheme]])
            for scheme, faults in mistakes
            if known.issuperset(faults)
        )
    )


def candidates_with_two_faults(observer: Observer) -> list[Candidate]:
    """Return the candidates with two mistakes."""
    single = [name for (name,) in _single_faults()]
    repeated = estimators_with_draws("all", "repeated", "independent")
    return _cached_candidates(
        observer,
        "pairs",
        lambda: merge_equal_means(
            chain(
                _make_candidates(observer, combinations(single, 2), repeated),
                _make_candidates(
                    observer, combinations(_COMMON, 2), estimators_with_draws("distinct")
                ),
            )
        ),
    )


def _cached_candidates(
    observer: Observer, family: str, make_candidates: Callable[[], list[Candidate]]
) -> list[Candidate]:
    """Return ``make_candidates()``, cached by the problem, the observer's settings and `family`."""
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q, problem.weights
    sizes = problem.tau, observer.num_sampled, observer.batch_size, observer.num_gradients
    key = (family, *(array.tobytes() for array in arrays), *sizes, *FAULTS)
    if key not in _CACHE:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        _CACHE[key] = make_candidates()
    return _CACHE[key]


def _make_candidates(
    observer: Observer, mistakes: Iterable[tuple[str, ...]], rights: Iterable[Estimator]
) -> Iterator[Candidate]:
    """Yield candidates for each right estimator with each tuple of mistakes, made in every way."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch_size)
    known: dict[tuple[object, ...], Candidate] = {}
    for names, right in product(mistakes, rights):
        for wrong in _with_faults(right, names):
            if wrong.reduction == "twice" and problem.num_classes > _MAX_CLASSES_OF_SLOW_FAULTS:
                continue
            for detail, one in _estimator_variants(problem, wrong, right, names):
                sums = one(problem, *sizes)
                # a variant that does not depend on the number of tries repeats the one before it
                if not sums or (
                    one.corrects_by_tries and len({s.logits.tobytes() for s in sums}) == 1
                ):
                    continue
                key = tuple(each.key for each in sums)
                fault = AND.join(names) or None
                if key not in known:
                    known[key] = make_candidate(observer, right.name, fault, sums, with_spread=True)
                yield replace(known[key], scheme=right.name, fault=fault, detail=detail)


def _with_faults(right: Estimator, names: tuple[str, ...]) -> list[Estimator]:
    """Return an estimator with zero, one or two named mistakes, made in every way.

    The list is empty if the mistakes cannot be made in `right`.
    """
    if not names:
        return [right]
    first, *rest = (FAULTS[name].applied_to(right) for name in names)
    if not rest:
        return first
    both = (combine_faults(right, one, other) for one, other in product(first, rest[0]))
    return [one for one in both if one is not None]


def _estimator_variants(
    problem: Problem, wrong: Estimator, right: Estimator, names: tuple[str, ...]
) -> Iterator[tuple[str, Estimator]]:
    """Yield a wrong estimator and its variants, each with a description that reports show.

    Variants correct by the number of tries, or let the full softmax include classes with q = 0.
    """
    yield "", wrong
    if right.corrects_distinct_draws and {*names} <= {*_COMMON}:
        yield BY_TRIES, replace(wrong, corrects_by_tries=True)
    if right.name == "full" and (problem.q <= 0.0).any():
        yield OF_ALL, replace(wrong, sums_all_classes=True)


# mixed negatives: labels of the batch and random draws -------------------------------------------


def log_probs_from_counts(
    problem: Problem, log_counts: FloatArray, log_num_draws: float = 0.0
) -> DrawLogProbs:
    """Return a `DrawLogProbs` whose three log-probabilities are all `log_counts` (E, n).

    It is for draws whose expected counts ``exp(log_counts + log_num_draws)`` are known.
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

    The batch is always the same, so that its labels are always included. The labels follow the
    proposal of the problem; the draws are uniform, log-uniform, or follow that proposal too.
    """
    problem, m, batch = observer.problem, observer.num_sampled, observer.batch_size
    labels = problem.labels
    # counts of the labels in the batch, which contains the same number of copies of each example
    times = np.bincount(labels, minlength=problem.num_classes) * (batch // len(labels))
    with np.errstate(divide="ignore"):
        log_times = np.log(times)
    proposals = {"`proposal` too": problem.q}
    for name, named in NAMED_PROPOSALS.items():
        q = np.broadcast_to(named(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in proposals.values()):
            proposals[f"{name!r}"] = q
    schemes = (("mixed", "masked"), ("mixed_candidate", "candidate_masked"))
    faults = (None, "uncorrected", "corrected_apart")
    for (words, q), (name, scheme), fault in product(proposals.items(), schemes, faults):
        with np.errstate(divide="ignore"):
            of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * q)
        if fault != "corrected_apart":  # log((B - 1) q + m u), u the distribution of draws
            of_labels = of_draws = np.logaddexp(of_labels, of_draws)
        one = ESTIMATORS[scheme]
        if fault == "uncorrected":
            (one,) = FAULTS[fault].applied_to(one)
        own, base, certain = one.label_and_draw_logits(
            problem, log_probs_from_counts(problem, of_labels)
        )
        _, _, logits = one.label_and_draw_logits(problem, log_probs_from_counts(problem, of_draws))
        mixed = SampledSum(
            reduction="sum",
            labels=labels,
            probs=q,
            logits=logits,
            log_label_mass=base,
            label_logit=own,
            num_draws=m,
            always_included_logits=certain + log_times,
        )
        detail = f"draws are by {words}"
        candidate = make_candidate(observer, name, fault, [mixed], detail, with_spread=True)
        yield replace(candidate, expected=None)  # its bias is that of one batch
