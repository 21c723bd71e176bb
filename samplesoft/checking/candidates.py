"""The candidates: what a loss may be, with the exact means that it then has, and a verdict.

A candidate is an estimator, with mistakes or without. They come in families, from simple ones to
those that are less so; the next family is tried where nothing simpler fits: see `FAMILIES`.
Negatives of the batch are apart, in `samplesoft.checking.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit

from samplesoft._validation import FloatArray
from samplesoft.checking.estimators import (
    BY_TRIES,
    ESTIMATORS,
    OF_ALL,
    Drawn,
    Estimator,
    SampledSum,
    estimators,
)
from samplesoft.checking.exact import Means, expectation, smoothing_of
from samplesoft.checking.faults import AND, FAULTS, Fitted, combined
from samplesoft.checking.observe import NAMED, Observed, Observer, Problem
from samplesoft.checking.spread import Spread, spread

_MAX_CLASSES_TWICE = 64  # for which the mistakes that take longest are tried
_MAX_CLASSES_DISTINCT = 512  # of sets
_SAME = 1e-7  # relative distance of means that no experiment can tell apart
_MAX_KEPT = 32  # families of problems whose candidates are kept, for the next loss
_KEPT: dict[tuple[object, ...], list[Candidate]] = {}
_DIGITS = 1e-11  # relative error of exact means
_DIGITS_OF_SETS = 1e-7
_DIGITS_OF_MIXTURES = 1e-5  # of sets by their numbers of tries


@dataclass(frozen=True, eq=False)
class Candidate:
    """A scheme, the mistake in it or None; its exact means; and how far the loss is from them.

    Attributes
    ----------
    scheme, fault : str, str or None
        A name in `ESTIMATORS`, and one in `FAULTS`, or two of these with `AND` between them.
    means : ndarray, shape (K,)
        Means over the draws of what an `Observer` looks at.
    expected : Means or None
        Exact means of losses and gradients in the logits, where they are known, and do not depend
        on the batch at hand.
    sums : tuple of SampledSum
        The random sums that the means follow from; empty without a closed form.
    spread : Spread or None
        How widely single calls spread, where that is known.
    digits : float
        Error of the means, relative to the numbers that they are made of.
    number : str
        What was fitted or is not given, in words.
    same : tuple of Candidate
        Others with the same means.
    z : float
        The greatest distance of a mean from the observed one, in standard errors; of a loss that
        is the same for every seed the root mean square of the errors of single values.
    allowed : bool
        Whether all are within the limit.
    sd_ratio : float or None
        Standard deviation of single losses, as a multiple of the candidate's; None where that is
        not tested.
    factor : float
        Multiple of the gradient of the losses that the gradient is.
    """

    scheme: str
    fault: str | None
    means: FloatArray
    expected: Means | None = None
    sums: tuple[SampledSum, ...] = ()
    spread: Spread | None = None
    digits: float = _DIGITS
    number: str = ""
    same: tuple[Candidate, ...] = ()
    z: float = np.inf
    allowed: bool = False
    sd_ratio: float | None = None
    factor: float = 1.0

    @property
    def name(self) -> tuple[str, str | None]:
        """The scheme and the mistake."""
        return self.scheme, self.fault

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the mistakes."""
        return () if self.fault is None else tuple(self.fault.split(AND))

    @property
    def title(self) -> str:
        """The scheme and the mistakes, in words."""
        words = [FAULTS[name].words for name in self.faults]
        return f"`{self.scheme}`" + (", but " + "; and ".join(words) if words else "")


def _of_sums(
    observer: Observer,
    scheme: str,
    fault: str | None,
    sums: Sequence[SampledSum],
    number: str = "",
    with_spread: bool = False,
) -> Candidate:
    """Return the candidate that a loss has one of some sums, with its spread if asked for."""
    problem, gradients = observer.problem, observer.gradients
    expected = expectation(sums)
    digits = _DIGITS
    if any(one.sets is not None for one in sums):
        digits = _DIGITS_OF_SETS if len(sums) == 1 else _DIGITS_OF_MIXTURES
    return Candidate(
        scheme,
        fault,
        means=expected.observed(problem, gradients),
        expected=expected,
        sums=tuple(sums),
        spread=spread(sums, expected.losses, problem, gradients) if with_spread else None,
        digits=digits,
        number=number,
    )


# estimators without a mistake, with one and with two ---------------------------------------------

# without replacement those are tried that are made most often, for their means take a while
_COMMON = ("log_q_added", "uncorrected", "distinct_as_repeated", "hits_kept", "label_uncorrected")


def _single() -> list[tuple[str]]:
    """Return the mistakes of an estimator that have no unknown number, each alone."""
    return [(name,) for name, fault in FAULTS.items() if fault.ways and not fault.in_gradients]


def known_candidates(observer: Observer) -> list[Candidate]:
    """Return repeated draws without and with one mistake, as they should be first, and mixed.

    Of a loss that draws nothing only the full softmax is asked for.
    """
    if not observer.is_random:
        return _merged(_candidates(observer, [(), *_single()], [ESTIMATORS["full"]]))
    rights = estimators("all", "repeated", "independent")

    def make() -> list[Candidate]:
        return [*_merged(_candidates(observer, [(), *_single()], rights)), *_mixed(observer)]

    return _kept(observer, "known", make)


def full_candidate(known: Iterable[Candidate]) -> Candidate:
    """Return the full softmax as it should be."""
    return next(one for one in known if one.name == ("full", None))


def distinct_candidates(observer: Observer) -> list[Candidate]:
    """Return draws without replacement, or of which each class counts once."""
    rights = estimators("distinct", "once")
    return _kept(observer, "distinct", lambda: _merged(_candidates(observer, [()], rights)))


def distinct_mistakes(observer: Observer) -> list[Candidate]:
    """Return the same with a mistake."""
    rights = estimators("distinct", "once")
    return _kept(observer, "mistakes", lambda: _merged(_candidates(observer, _single(), rights)))


def draws_that_are_tried(problem: Problem) -> tuple[str, ...]:
    """Return the kinds of draws whose means do not take too long."""
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
    return _merged(
        chain.from_iterable(
            _candidates(observer, [faults], [ESTIMATORS[scheme]])
            for scheme, faults in mistakes
            if known.issuperset(faults)
        )
    )


def pairs(observer: Observer) -> list[Candidate]:
    """Return estimators with two mistakes."""
    single = [name for (name,) in _single()]
    families = (
        (combinations(single, 2), estimators("all", "repeated", "independent")),
        (combinations(_COMMON, 2), estimators("distinct")),
    )
    return _kept(
        observer,
        "pairs",
        lambda: _merged(chain(*(_candidates(observer, *family) for family in families))),
    )


def _kept(observer: Observer, family: str, make: Callable[[], list[Candidate]]) -> list[Candidate]:
    """Return what `make` does for a problem; that of the last ones is kept."""
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q, problem.weights
    sizes = problem.tau, observer.num_sampled, observer.batch, observer.gradients
    key = (family, *(array.tobytes() for array in arrays), *sizes, *FAULTS)
    if key not in _KEPT:
        if len(_KEPT) >= _MAX_KEPT:
            _KEPT.clear()
        _KEPT[key] = make()
    return _KEPT[key]


def _candidates(
    observer: Observer, mistakes: Iterable[tuple[str, ...]], rights: Iterable[Estimator]
) -> Iterator[Candidate]:
    """Yield estimators with each of some sets of mistakes, made in all ways."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch)
    known: dict[tuple[object, ...], Candidate] = {}
    for names, right in product(mistakes, rights):
        for wrong in _made_in(right, names):
            if wrong.reduction == "twice" and problem.num_classes > _MAX_CLASSES_TWICE:
                continue
            for number, one in _forms(problem, wrong, right, names):
                sums = one(problem, *sizes)
                # one that does not ask for the number of tries was there before
                if not sums or (one.by_tries and len({s.logits.tobytes() for s in sums}) == 1):
                    continue
                key = tuple(each.key for each in sums)
                fault = AND.join(names) or None
                if key not in known:
                    known[key] = _of_sums(observer, right.name, fault, sums, with_spread=True)
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


def _merged(candidates: Iterator[Candidate]) -> list[Candidate]:
    """Return one candidate for all that have the same means, and the others with it."""
    groups: list[list[Candidate]] = []  # the first of a group stands for it
    means = np.empty((0, 0))
    for one in candidates:
        if len(groups) == len(means):
            means = np.resize(means, (2 * len(means) + 64, len(one.means)))
        apart = np.abs(means[: len(groups)] - one.means).max(axis=1)
        same = np.flatnonzero(apart <= _SAME * (1.0 + np.abs(one.means).max()))
        if not len(same):
            means[len(groups)] = one.means
            groups.append([one])
        elif all(one.name != other.name for other in groups[same[0]]):
            groups[same[0]].append(one)
    return [replace(first, same=tuple(rest)) for first, *rest in groups]


# negatives of the batch with draws beside (mixed) ------------------------------------------------


def all_of_one_kind(problem: Problem, log_counts: FloatArray, log_num: float = 0.0) -> Drawn:
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
        own, base, certain = one.logits(problem, all_of_one_kind(problem, of_labels))
        _, _, logits = one.logits(problem, all_of_one_kind(problem, of_draws))
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
        candidate = _of_sums(observer, name, fault, [mixed], number, with_spread=True)
        yield replace(candidate, expected=None)  # its bias is that of this one batch


# gradients of others than the sum of weighted losses --------------------------------------------


def of_gradients(observer: Observer, tested: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield candidates without a mistake, with one in how the gradients of examples are added."""
    faults = {name: fault for name, fault in FAULTS.items() if fault.in_gradients}
    for one, (name, fault) in product(tested, faults.items()):
        if one.fault is not None or one.expected is None:
            continue
        for wrong in fault.made_in(ESTIMATORS[one.scheme]):
            weighting = wrong.weighting
            means = one.expected.observed(observer.problem, observer.gradients, weighting)
            if not np.array_equal(means, one.means):
                sums = one.sums if weighting.losses == "own" else ()  # else squares are others
                yield replace(one, fault=name, means=means, spread=None, sums=sums, same=())


def with_scaled_gradient(
    one: Candidate, observed: Observed, is_gradient: NDArray[np.bool_]
) -> Candidate | None:
    """Return a candidate whose gradients (where K are so) are the best constant times its own.

    None where there are none, or the best constant is 1.
    """
    if not is_gradient.any():
        return None
    unit = _unit(observed)[is_gradient]
    due = one.means[is_gradient] / unit
    size = float(due @ due)
    if not 0.0 < size < np.inf:
        return None
    # least squares, in units of the standard errors
    factor = float(due @ (observed.means[is_gradient] / unit)) / size
    error = 4.0 / np.sqrt(size)
    if abs(factor - 1.0) <= error:
        return None
    factor = _simple_fraction(factor, error)
    factors = np.where(is_gradient, factor, 1.0)
    width = one.spread
    if width is not None:
        width = width._replace(deviations=width.deviations * np.abs(factors))
    return replace(
        one,
        fault="gradient_scaled",
        means=one.means * factors,
        spread=width,
        number=f"the gradient is {_times(factor)} theirs",
        factor=factor,
        same=(),
    )


def _simple_fraction(value: float, error: float) -> float:
    """Return a whole number, or 1 over one, if no other is as near to a value; or the value."""
    inverse = abs(value) < 1.0
    whole = round(1.0 / value if inverse else value) if value else 0
    if whole == 0:
        return value
    nearest_one = 1.0 / whole if inverse else float(whole)
    gap = 1.0 / (whole * whole) if inverse else 1.0
    is_it = abs(value - nearest_one) <= error and 2.0 * error < gap
    return nearest_one if is_it else value


def _times(factor: float) -> str:
    """Return a factor in words."""
    inverse = 1.0 / factor if factor else 0.0
    if inverse == round(inverse) and abs(inverse) > 1.0:
        return f"{'-' if inverse < 0.0 else ''}1/{abs(round(inverse))} of"
    return f"{factor:.4g} times"


def scaled_gradients(
    observer: Observer, observed: Observed, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield candidates without a mistake whose gradient is a constant times that of the losses."""
    is_gradient = np.arange(len(observed.means)) >= len(observer.problem.labels)
    for one in tested:
        if one.fault is None and one.expected is not None:
            scaled = with_scaled_gradient(one, observed, is_gradient)
            if scaled is not None:
                yield scaled


# another proposal, another temperature -----------------------------------------------------------


def _right_sums(observer: Observer, problem: Problem) -> Iterator[tuple[Estimator, SampledSum]]:
    """Yield the estimators that draw, as they should be, with their sums on a problem."""
    for right in estimators("repeated", "independent"):
        for one in right(problem, observer.num_sampled, observer.batch):
            yield right, one


def of_other_proposals(
    observer: Observer, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield estimators with draws by a proposal that was not given."""
    problem = observer.problem
    for fault, words, q in _other_proposals(problem):
        of_both = (_right_sums(observer, one) for one in (replace(problem, q=q), problem))
        for (right, drawn), (_, meant) in zip(*of_both, strict=True):
            if right.name not in schemes:
                continue
            # the sampler differs, or loss and sampler both do
            number = f"draws and correction by {words}"
            if np.isfinite(drawn.own).all():  # not where the label is a class with q = 0
                yield _of_sums(observer, right.name, fault, [drawn], number)
            number = f"draws by {words}, corrected by what was given"
            other = replace(meant, probs=drawn.probs, sets=drawn.sets)
            yield _of_sums(observer, right.name, fault, [other], number)


def _other_proposals(problem: Problem) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield mistakes, proposals in words, and their probabilities (E, n) if not the problem's."""
    for name, of_size in NAMED.items():
        q = np.broadcast_to(of_size(problem.num_classes), problem.q.shape)
        if not np.allclose(q, problem.q):
            yield "other_proposal", repr(name), q
    drawn = np.sort(problem.by_frequency)
    for words, left_out in (("last", drawn[-1]), ("first", drawn[0])):
        if len(drawn) > 2:
            q = problem.q.copy()
            q[:, left_out] = 0.0
            q /= q.sum(axis=1, keepdims=True)
            yield "class_never_drawn", f"what was given without the {words} class", q


LOG_FACTORS = np.linspace(-4.0, 4.0, 17)  # of other temperatures


def of_other_temperatures(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield all estimators with the best inverse temperature in place of the one that was given."""
    sizes = observer.num_sampled, observer.batch

    def at_tau(right: Estimator, log_tau: float) -> Candidate:
        here = observer.problem.at_tau(float(np.exp(log_tau)))
        sums = right(here, *sizes)
        expected = expectation(sums)
        return Candidate(
            right.name,
            "other_temperature",
            means=expected.observed(here, observer.gradients),
            expected=expected,
            sums=tuple(sums),
            number=f"tau is {here.tau:.3g}",
        )

    grid = np.log(observer.problem.tau) + LOG_FACTORS
    for right in estimators("repeated", "independent"):
        if right(observer.problem, *sizes):
            yield nearest(partial(at_tau, right), grid, observed)


# mistakes with a number that nobody gave ---------------------------------------------------------

_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_FAR_BEHIND = 30.0  # nats
_MIN_SMOOTHING = 1e-3
_MAX_SMOOTHING = 0.9


def fitted(
    observer: Observer, observed: Observed, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield the best of each way to make a mistake that has a number, for what was observed."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch)
    for right in estimators("repeated", "independent") if observer.is_random else estimators("all"):
        if right.name not in schemes:
            continue
        for one in right(problem, *sizes) if right.is_sum else ():
            yield from _capped(observer, observed, right.name, one)
        for name, fault in FAULTS.items():
            for fit in fault.fitted if fault.where(right) else ():
                if fit.way(right, float(fit.grid[0]))(problem, *sizes):  # it can be made
                    of_number = partial(_with_number, observer, right, name, fit)
                    yield nearest(of_number, fit.grid, observed)


def _with_number(
    observer: Observer, right: Estimator, fault: str, fit: Fitted, number: float
) -> Candidate:
    sums = fit.way(right, number)(observer.problem, observer.num_sampled, observer.batch)
    return _of_sums(observer, right.name, fault, sums, fit.words(number), with_spread=True)


def smoothed(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield label smoothing, of all estimators that are sums."""
    for right, one in _right_sums(observer, observer.problem):
        if right.is_sum:
            yield from _smoothed(observer, observed, right.name, one)


def _capped(
    observer: Observer, observed: Observed, scheme: str, one: SampledSum
) -> Iterator[Candidate]:
    """Yield losses -log(p + a number), where a label is so far behind that only the number is left.

    What p is elsewhere hardly matters, and is taken as if the sum of the draws had its mean.
    """
    plain = expectation([one])
    last = int(plain.losses.argmax())
    if plain.losses[last] > _FAR_BEHIND:
        log_number = -float(observed.means[last])
        fraction = expit(-plain.losses - log_number)  # of p in the sum of both
        losses = -np.logaddexp(-plain.losses, log_number)
        capped = Means(losses, plain.d_logits * fraction[:, None])
        yield Candidate(
            scheme,
            "probability_capped",
            means=capped.observed(observer.problem, observer.gradients),
            expected=capped,
            number=f"the number is {np.exp(log_number):.2g}",
        )


_POLISHES, _NUDGE = 3, 1e-6


def nearest(
    of_number: Callable[[float], Candidate], grid: FloatArray, observed: Observed
) -> Candidate:
    """Return the candidate nearest to what was observed: on a grid, then beside the best there."""
    unit = _unit(observed)

    def distance(number: float) -> float:
        away: FloatArray = (of_number(number).means - observed.means) / unit
        return float((away**2).sum())

    at = int(np.argmin([distance(number) for number in grid]))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    found = minimize_scalar(distance, bounds=ends, method="bounded", options={"xatol": 1e-9})
    number = float(found.x)
    # where nothing is random values must be equal but for rounding, and the minimum of squares is
    # flat: known to half of the digits. Gauss and Newton's steps have all
    if not observed.stderrs.any():
        for _ in range(_POLISHES):
            away, more = (of_number(x).means - observed.means for x in (number, number + _NUDGE))
            slope = (more - away) / _NUDGE
            number -= float(away @ slope) / max(float(slope @ slope), _NUDGE)
    return of_number(number)


# label smoothing ---------------------------------------------------------------------------------


class Part(NamedTuple):
    """The means of an estimator on a problem, and what label smoothing adds with all the target."""

    plain: Means
    added: Means
    problem: Problem


def _smoothed(
    observer: Observer, observed: Observed, scheme: str, one: SampledSum
) -> Iterator[Candidate]:
    """Yield label smoothing, in which masked hits have one logit or another."""
    rows = np.arange(len(one.labels))
    hits, probs = one.logits[rows, one.labels], one.probs[rows, one.labels]
    masked = bool(((hits == -np.inf) & (probs > 0.0)).any())
    plain = expectation([one])
    for mask, follow in product(_MASKS, (False, True)) if masked else [(None, True)]:
        logits = np.where(probs > 0.0, hits, 0.0) if mask is None else np.full_like(hits, mask)
        x = one.with_hits(logits).logits
        added = smoothing_of(one, one.num_draws * one.probs, x, follow)
        parts = [Part(plain, added, observer.problem)]
        yield with_smoothing(parts, observer.gradients, observed, scheme, mask)


def observed_parts(parts: list[Part], gradients: int) -> tuple[FloatArray, FloatArray]:
    """Return what is seen of an estimator, and of what label smoothing adds."""
    both = (
        (part.plain.observed(part.problem, gradients), part.added.observed(part.problem, gradients))
        for part in parts
    )
    plain, added = zip(*both, strict=True)
    return np.concatenate(plain), np.concatenate(added)


def with_smoothing(
    parts: list[Part],
    gradients: int,
    observed: Observed,
    scheme: str,
    mask: float | None,
) -> Candidate:
    """Return label smoothing with the best fraction of what it adds to what is there without."""
    plain, added = observed_parts(parts, gradients)
    # it is linear: least squares for the fraction, in units of the standard errors
    unit: FloatArray = _unit(observed)
    slope: FloatArray = added / unit
    fraction = float(((observed.means - plain) / unit * slope).sum() / (slope**2).sum())
    fraction = min(max(fraction, 0.0), _MAX_SMOOTHING)
    expected = None
    if len(parts) == 1:
        part = parts[0]
        expected = Means(
            part.plain.losses + fraction * part.added.losses,
            part.plain.d_logits + fraction * part.added.d_logits,
        )
    fault, words = "label_smoothing", f"smoothing {fraction:.3g}"
    if mask is not None:
        fault, words = "smoothed_hits", f"{words}, hits at {mask:.3g}"
        if fraction < _MIN_SMOOTHING:  # beside that of hits it has no effect
            words = f"smoothing times the logit of hits is {fraction * mask:.3g}"
    return Candidate(scheme, fault, means=plain + fraction * added, expected=expected, number=words)


def _unit(observed: Observed) -> FloatArray:
    """Return what differences are measured in: infinity for means of what has hardly come."""
    if not observed.stderrs.any():  # nothing is random
        return observed.rounding
    unit = observed.stderrs + observed.rounding
    few = (observed.stderrs == 0.0) | (np.abs(observed.skewness) > np.sqrt(observed.calls) / 10.0)
    return np.where(few, np.inf, unit)


# the order in which they are tried ---------------------------------------------------------------


class Look(NamedTuple):
    """What was observed so far, and the candidates that were tested on it."""

    observer: Observer
    observed: Observed
    tested: list[Candidate]


class Family(NamedTuple):
    """Candidates that are tried together, `unless` simpler ones fit: right ones, or any."""

    make: Callable[[Look], Iterable[Candidate]]
    unless: str


def _random_candidates(look: Look) -> Iterable[Candidate]:
    return (one for one in known_candidates(look.observer) if one.scheme != "full")


def _unbiased(look: Look) -> Iterable[Candidate]:
    full = full_candidate(known_candidates(look.observer))
    return [replace(full, scheme="unbiased", sums=())]


def _dependent(look: Look) -> Iterator[Candidate]:
    """Yield right means with another spread."""
    for one in look.tested:
        if one.sd_ratio and not one.fault:
            ratio = f"{one.sd_ratio:.3g} times that of independent draws"
            yield replace(
                one,
                fault="dependent_draws",
                same=(),
                sums=(),
                number=f"their standard deviation is {ratio}",
                sd_ratio=None,
            )


# from the simplest on: what follows is less simple, or takes longer
FAMILIES = (
    Family(_random_candidates, unless="never"),
    Family(lambda look: distinct_candidates(look.observer), unless="right"),
    Family(lambda look: of_gradients(look.observer, list(look.tested)), unless="any"),
    Family(
        lambda look: scaled_gradients(look.observer, look.observed, list(look.tested)),
        unless="any",
    ),
    Family(_unbiased, unless="any"),
    Family(lambda look: distinct_mistakes(look.observer), unless="any"),
    Family(
        lambda look: chain(
            of_other_proposals(look.observer),
            _merged(fitted(look.observer, look.observed)),
        ),
        unless="any",
    ),
    Family(lambda look: of_other_temperatures(look.observer, look.observed), unless="any"),
    Family(lambda look: _dependent(look._replace(tested=list(look.tested))), unless="any"),
    Family(lambda look: smoothed(look.observer, look.observed), unless="any"),
    Family(lambda look: pairs(look.observer), unless="any"),
)
