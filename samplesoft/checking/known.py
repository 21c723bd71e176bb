"""Candidates that are known before any call: estimators without a mistake, with one and with two.

Negatives of the batch are apart, in `samplesoft.checking.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.candidates import Candidate, make_candidate, merged
from samplesoft.checking.estimators import (
    BY_TRIES,
    ESTIMATORS,
    OF_ALL,
    Drawn,
    Estimator,
    SampledSum,
    estimators,
)
from samplesoft.checking.faults import AND, FAULTS, combined
from samplesoft.checking.observe import Observer
from samplesoft.checking.problems import NAMED, Problem

_MAX_CLASSES_OF_SLOW_FAULTS = 64  # for which the mistakes that take longest are tried
_MAX_CLASSES_DISTINCT = 512  # of sets
_MAX_CACHED = 32  # families of problems whose candidates are kept, for the next loss
_CACHE: dict[tuple[object, ...], list[Candidate]] = {}
# without replacement those are tried that are made most often, for their means take a while
_COMMON = ("log_q_added", "uncorrected", "distinct_as_repeated", "hits_kept", "label_uncorrected")


def _single() -> list[tuple[str]]:
    """Return all faults without an unknown number, as tuples of one."""
    return [(name,) for name, fault in FAULTS.items() if fault.ways and not fault.in_gradients]


def known_candidates(observer: Observer) -> list[Candidate]:
    """Return repeated draws without a fault, then with one fault, and mixed negatives.

    For a deterministic loss, only the full softmax.
    """
    if not observer.is_random:
        return merged(_candidates(observer, [(), *_single()], [ESTIMATORS["full"]]))
    rights = estimators("all", "repeated", "independent")

    def make() -> list[Candidate]:
        return [*merged(_candidates(observer, [(), *_single()], rights)), *_mixed(observer)]

    return _cached(observer, "known", make)


def full_candidate(known: Iterable[Candidate]) -> Candidate:
    """Return the candidate of the full softmax without a fault."""
    return next(one for one in known if one.name == ("full", None))


def distinct_candidates(observer: Observer) -> list[Candidate]:
    """Return candidates with draws without replacement, or with repeats counted once."""
    rights = estimators("distinct", "once")
    return _cached(observer, "distinct", lambda: merged(_candidates(observer, [()], rights)))


def distinct_mistakes(observer: Observer) -> list[Candidate]:
    """Return the candidates of `distinct_candidates` with one fault."""
    rights = estimators("distinct", "once")
    return _cached(observer, "mistakes", lambda: merged(_candidates(observer, _single(), rights)))


def draws_that_are_tried(problem: Problem) -> tuple[str, ...]:
    """Return the kinds of draws whose exact means are fast enough for `problem`."""
    few = problem.num_classes <= _MAX_CLASSES_DISTINCT
    return "all", "repeated", "independent", "once", *(("distinct",) if few else ())


def named_candidates(
    observer: Observer, names: Iterable[tuple[str, str | None]]
) -> list[Candidate]:
    """Return estimators that draw, with and without mistakes.

    Those without stand for others with the same means; mistakes with a number are left out.
    """
    known = {name for (name,) in _single()}
    right_first = sorted(names, key=lambda name: (name[1] is not None, str(name)))
    mistakes = [(scheme, tuple(fault.split(AND)) if fault else ()) for scheme, fault in right_first]
    return merged(
        chain.from_iterable(
            _candidates(observer, [faults], [ESTIMATORS[scheme]])
            for scheme, faults in mistakes
            if known.issuperset(faults)
        )
    )


def pairs(observer: Observer) -> list[Candidate]:
    """Return estimators with two mistakes."""
    single = [name for (name,) in _single()]
    repeated = estimators("all", "repeated", "independent")
    return _cached(
        observer,
        "pairs",
        lambda: merged(
            chain(
                _candidates(observer, combinations(single, 2), repeated),
                _candidates(observer, combinations(_COMMON, 2), estimators("distinct")),
            )
        ),
    )


def _cached(
    observer: Observer, family: str, make: Callable[[], list[Candidate]]
) -> list[Candidate]:
    """Return ``make()``, cached by problem and family."""
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q, problem.weights
    sizes = problem.tau, observer.num_sampled, observer.batch, observer.gradients
    key = (family, *(array.tobytes() for array in arrays), *sizes, *FAULTS)
    if key not in _CACHE:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        _CACHE[key] = make()
    return _CACHE[key]


def _candidates(
    observer: Observer, mistakes: Iterable[tuple[str, ...]], rights: Iterable[Estimator]
) -> Iterator[Candidate]:
    """Yield estimators with each of some sets of mistakes, made in all ways."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch)
    known: dict[tuple[object, ...], Candidate] = {}
    for names, right in product(mistakes, rights):
        for wrong in _made_in(right, names):
            if wrong.reduction == "twice" and problem.num_classes > _MAX_CLASSES_OF_SLOW_FAULTS:
                continue
            for number, one in _forms(problem, wrong, right, names):
                sums = one(problem, *sizes)
                # one that does not ask for the number of tries was there before
                if not sums or (one.by_tries and len({s.logits.tobytes() for s in sums}) == 1):
                    continue
                key = tuple(each.key for each in sums)
                fault = AND.join(names) or None
                if key not in known:
                    known[key] = make_candidate(observer, right.name, fault, sums, with_spread=True)
                yield replace(known[key], scheme=right.name, fault=fault, number=number)


def _made_in(right: Estimator, names: tuple[str, ...]) -> list[Estimator]:
    """Return the estimators with no mistake, one or two; none where they cannot be made."""
    if not names:
        return [right]
    first, *rest = (FAULTS[name].made_in(right) for name in names)
    if not rest:
        return first
    both = (combined(right, one, other) for one, other in product(first, rest[0]))
    return [one for one in both if one is not None]


def _forms(
    problem: Problem, wrong: Estimator, right: Estimator, names: tuple[str, ...]
) -> Iterator[tuple[str, Estimator]]:
    """Yield an estimator, and another with the same name where there is one, with words for it."""
    yield "", wrong
    if right.corrects_distinct and {*names} <= {*_COMMON}:
        yield BY_TRIES, replace(wrong, by_tries=True)
    if right.name == "full" and (problem.q <= 0.0).any():
        yield OF_ALL, replace(wrong, of_all=True)


# negatives of the batch with draws beside (mixed) ------------------------------------------------


def drawn_with_counts(problem: Problem, log_counts: FloatArray, log_num: float = 0.0) -> Drawn:
    """Return the log-probabilities of draws whose expected counts are known."""
    return Drawn(
        one_draw=log_counts,
        proposal=log_counts,
        inclusion=log_counts,
        log_num=log_num,
        labels=problem.labels,
    )


def _mixed(observer: Observer) -> Iterator[Candidate]:
    """Yield mixed negatives with m draws by each proposal.

    The batch is always the same, and its labels are classes that are certain; `proposal` is theirs,
    and draws are uniform, log-uniform or by the same.
    """
    problem, m, batch = observer.problem, observer.num_sampled, observer.batch
    labels = problem.labels
    # how often each label is in the batch, in which every example stands as often
    times = np.bincount(labels, minlength=problem.num_classes) * (batch // len(labels))
    with np.errstate(divide="ignore"):
        log_times = np.log(times)
    proposals = {"`proposal` too": problem.q}
    for name, named in NAMED.items():
        q = np.broadcast_to(named(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in proposals.values()):
            proposals[f"{name!r}"] = q
    schemes = (("mixed", "masked"), ("mixed_candidate", "candidate_masked"))
    faults = (None, "uncorrected", "corrected_apart")
    for (words, q), (name, scheme), fault in product(proposals.items(), schemes, faults):
        with np.errstate(divide="ignore"):
            of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * q)
        if fault != "corrected_apart":  # log((B - 1) q + m u): a class may come either way
            of_labels = of_draws = np.logaddexp(of_labels, of_draws)
        one = ESTIMATORS[scheme]
        if fault == "uncorrected":
            (one,) = FAULTS[fault].made_in(one)
        own, base, certain = one.logits(problem, drawn_with_counts(problem, of_labels))
        _, _, logits = one.logits(problem, drawn_with_counts(problem, of_draws))
        mixed = SampledSum(
            reduction="sum",
            labels=labels,
            probs=q,
            logits=logits,
            base=base,
            own=own,
            num_draws=m,
            certain=certain + log_times,
        )
        number = f"draws are by {words}"
        candidate = make_candidate(observer, name, fault, [mixed], number, with_spread=True)
        yield replace(candidate, expected=None)  # its bias is that of this one batch
