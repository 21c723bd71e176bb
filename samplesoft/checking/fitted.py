"""Candidates for what was observed: other gradients, proposals and temperatures, fitted numbers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit

from samplesoft._validation import FloatArray
from samplesoft.checking.candidates import Candidate, make_candidate
from samplesoft.checking.estimators import ESTIMATORS, Estimator, SampledSum, estimators_with_draws
from samplesoft.checking.exact import Means, expectation, label_smoothing_terms
from samplesoft.checking.faults import FAULTS, FittedFault
from samplesoft.checking.observe import Observed, Observer
from samplesoft.checking.problems import NAMED, Problem

# gradients of others than the sum of weighted losses --------------------------------------------


def candidates_with_gradient_faults(
    observer: Observer, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield faultless candidates with a fault in the summation of the examples' gradients."""
    faults = {name: fault for name, fault in FAULTS.items() if fault.in_gradients}
    for one, (name, fault) in product(tested, faults.items()):
        if one.fault is not None or one.expected is None:
            continue
        for wrong in fault.applied_to(ESTIMATORS[one.scheme]):
            weighting = wrong.weighting
            means = one.expected.observed_means(observer.problem, observer.num_gradients, weighting)
            if not np.array_equal(means, one.means):
                sums = one.sums if weighting.losses == "own" else ()  # else squares are others
                yield replace(one, fault=name, means=means, spread=None, sums=sums, equivalents=())


def with_scaled_gradient(
    one: Candidate, observed: Observed, is_gradient: NDArray[np.bool_]
) -> Candidate | None:
    """Return the candidate with its gradients multiplied by the best constant.

    None without gradients, or if the best constant is 1.
    """
    if not is_gradient.any():
        return None
    unit = _distance_units(observed)[is_gradient]
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
        detail=f"the gradient is {_describe_factor(factor)} theirs",
        gradient_factor=factor,
        equivalents=(),
    )


def _simple_fraction(value: float, error: float) -> float:
    """Return the nearest integer, or reciprocal of an integer, if unambiguous; else the value."""
    inverse = abs(value) < 1.0
    whole = round(1.0 / value if inverse else value) if value else 0
    if whole == 0:
        return value
    nearest_one = 1.0 / whole if inverse else float(whole)
    gap = 1.0 / (whole * whole) if inverse else 1.0
    is_it = abs(value - nearest_one) <= error and 2.0 * error < gap
    return nearest_one if is_it else value


def _describe_factor(factor: float) -> str:
    """Return a description of a factor."""
    inverse = 1.0 / factor if factor else 0.0
    if inverse == round(inverse) and abs(inverse) > 1.0:
        return f"{'-' if inverse < 0.0 else ''}1/{abs(round(inverse))} of"
    return f"{factor:.4g} times"


def candidates_with_scaled_gradients(
    observer: Observer, observed: Observed, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield faultless candidates whose gradient is a constant multiple of the losses' gradient."""
    is_gradient = np.arange(len(observed.means)) >= len(observer.problem.labels)
    for one in tested:
        if one.fault is None and one.expected is not None:
            scaled = with_scaled_gradient(one, observed, is_gradient)
            if scaled is not None:
                yield scaled


# another proposal, another temperature -----------------------------------------------------------


def _faultless_sums(observer: Observer, problem: Problem) -> Iterator[tuple[Estimator, SampledSum]]:
    """Yield the faultless estimators that draw, with their sums on a problem."""
    for right in estimators_with_draws("repeated", "independent"):
        for one in right(problem, observer.num_sampled, observer.batch_size):
            yield right, one


def candidates_with_other_proposals(
    observer: Observer, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield estimators whose draws follow another proposal than the argument."""
    problem = observer.problem
    for fault, words, q in _other_proposals(problem):
        of_both = (_faultless_sums(observer, one) for one in (replace(problem, q=q), problem))
        for (right, drawn), (_, meant) in zip(*of_both, strict=True):
            if right.name not in schemes:
                continue
            # the sampler differs, or loss and sampler both do
            number = f"draws and correction by {words}"
            if np.isfinite(drawn.label_logit).all():  # not where the label is a class with q = 0
                yield make_candidate(observer, right.name, fault, [drawn], number)
            number = f"draws by {words}, corrected by what was given"
            other = replace(meant, probs=drawn.probs, set_distributions=drawn.set_distributions)
            yield make_candidate(observer, right.name, fault, [other], number)


def _other_proposals(problem: Problem) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield faults, descriptions of other proposals, and their probabilities (E, n)."""
    for name, of_size in NAMED.items():
        q = np.broadcast_to(of_size(problem.num_classes), problem.q.shape)
        if not np.allclose(q, problem.q):
            yield "other_proposal", repr(name), q
    drawn = np.sort(problem.classes_by_frequency)
    for words, left_out in (("last", drawn[-1]), ("first", drawn[0])):
        if len(drawn) > 2:
            q = problem.q.copy()
            q[:, left_out] = 0.0
            q /= q.sum(axis=1, keepdims=True)
            yield "class_never_drawn", f"what was given without the {words} class", q


LOG_FACTORS = np.linspace(-4.0, 4.0, 17)  # of other temperatures


def candidates_with_other_temperatures(
    observer: Observer, observed: Observed
) -> Iterator[Candidate]:
    """Yield all estimators with a fitted inverse temperature in place of the argument."""
    sizes = observer.num_sampled, observer.batch_size

    def candidate_at_tau(right: Estimator, log_tau: float) -> Candidate:
        here = observer.problem.with_tau(float(np.exp(log_tau)))
        sums = right(here, *sizes)
        expected = expectation(sums)
        return Candidate(
            right.name,
            "other_temperature",
            means=expected.observed_means(here, observer.num_gradients),
            expected=expected,
            sums=tuple(sums),
            detail=f"tau is {here.tau:.3g}",
        )

    grid = np.log(observer.problem.tau) + LOG_FACTORS
    for right in estimators_with_draws("repeated", "independent"):
        if right(observer.problem, *sizes):
            yield nearest_candidate(partial(candidate_at_tau, right), grid, observed)


# mistakes with a number that nobody gave ---------------------------------------------------------

_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_FAR_BEHIND = 30.0  # nats
_MIN_SMOOTHING = 1e-3
_MAX_SMOOTHING = 0.9


def candidates_with_fitted_constants(
    observer: Observer, observed: Observed, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield the best fit of each fault with an unknown number to the observed means."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch_size)
    for right in (
        estimators_with_draws("repeated", "independent")
        if observer.is_random
        else estimators_with_draws("all")
    ):
        if right.name not in schemes:
            continue
        for one in right(problem, *sizes) if right.is_log_of_sum else ():
            yield from _with_constant_in_log(observer, observed, right.name, one)
        for name, fault in FAULTS.items():
            for fit in fault.fitted if fault.where(right) else ():
                if fit.apply(right, float(fit.grid[0]))(problem, *sizes):  # it can be made
                    of_number = partial(_candidate_with_constant, observer, right, name, fit)
                    yield nearest_candidate(of_number, fit.grid, observed)


def _candidate_with_constant(
    observer: Observer, right: Estimator, fault: str, fit: FittedFault, number: float
) -> Candidate:
    sums = fit.apply(right, number)(observer.problem, observer.num_sampled, observer.batch_size)
    return make_candidate(observer, right.name, fault, sums, fit.describe(number), with_spread=True)


def candidates_with_label_smoothing(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield candidates with label smoothing, for all estimators that are sums."""
    for right, one in _faultless_sums(observer, observer.problem):
        if right.is_log_of_sum:
            yield from _candidates_with_smoothed_sum(observer, observed, right.name, one)


def _with_constant_in_log(
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
            means=capped.observed_means(observer.problem, observer.num_gradients),
            expected=capped,
            detail=f"the number is {np.exp(log_number):.2g}",
        )


_POLISHES, _NUDGE = 3, 1e-6


def nearest_candidate(
    of_number: Callable[[float], Candidate], grid: FloatArray, observed: Observed
) -> Candidate:
    """Return the candidate nearest to the observed means: by grid search, then refinement."""
    unit = _distance_units(observed)

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
            derivative = (more - away) / _NUDGE
            square = float(derivative @ derivative)
            number -= float(away @ derivative) / max(square, _NUDGE)
    return of_number(number)


# label smoothing ---------------------------------------------------------------------------------


class SmoothedMeans(NamedTuple):
    """The means of an estimator on a problem, and what label smoothing adds with all the target."""

    plain: Means
    smoothing: Means
    problem: Problem


def _candidates_with_smoothed_sum(
    observer: Observer, observed: Observed, scheme: str, one: SampledSum
) -> Iterator[Candidate]:
    """Yield label smoothing, in which masked hits have one logit or another."""
    rows = np.arange(len(one.labels))
    hits, probs = one.logits[rows, one.labels], one.probs[rows, one.labels]
    masked = bool(((hits == -np.inf) & (probs > 0.0)).any())
    plain = expectation([one])
    for mask, follow in product(_MASKS, (False, True)) if masked else [(None, True)]:
        logits = np.where(probs > 0.0, hits, 0.0) if mask is None else np.full_like(hits, mask)
        x = one.with_hit_logits(logits).logits
        added = label_smoothing_terms(one, one.num_draws * one.probs, x, follow)
        parts = [SmoothedMeans(plain, added, observer.problem)]
        yield fit_smoothing(parts, observer.num_gradients, observed, scheme, mask)


def observed_plain_and_smoothing(
    parts: list[SmoothedMeans], num_gradients: int
) -> tuple[FloatArray, FloatArray]:
    """Return the observed values of an estimator, and of its label smoothing term."""
    both = (
        (
            part.plain.observed_means(part.problem, num_gradients),
            part.smoothing.observed_means(part.problem, num_gradients),
        )
        for part in parts
    )
    plain, added = zip(*both, strict=True)
    return np.concatenate(plain), np.concatenate(added)


def fit_smoothing(
    parts: list[SmoothedMeans],
    num_gradients: int,
    observed: Observed,
    scheme: str,
    mask: float | None,
) -> Candidate:
    """Return the candidate with the best fraction of label smoothing."""
    plain, added = observed_plain_and_smoothing(parts, num_gradients)
    # it is linear: least squares for the fraction, in units of the standard errors
    unit: FloatArray = _distance_units(observed)
    direction: FloatArray = added / unit
    fraction = float(((observed.means - plain) / unit * direction).sum() / (direction**2).sum())
    fraction = min(max(fraction, 0.0), _MAX_SMOOTHING)
    expected = None
    if len(parts) == 1:
        part = parts[0]
        expected = Means(
            part.plain.losses + fraction * part.smoothing.losses,
            part.plain.d_logits + fraction * part.smoothing.d_logits,
        )
    fault, words = "label_smoothing", f"smoothing {fraction:.3g}"
    if mask is not None:
        fault, words = "smoothed_hits", f"{words}, hits at {mask:.3g}"
        if fraction < _MIN_SMOOTHING:  # beside that of hits it has no effect
            words = f"smoothing times the logit of hits is {fraction * mask:.3g}"
    return Candidate(scheme, fault, means=plain + fraction * added, expected=expected, detail=words)


def _distance_units(observed: Observed) -> FloatArray:
    """Return the units (K,) of differences from observed means; inf for means of rare events."""
    if not observed.stderrs.any():  # nothing is random
        return observed.rounding_bounds
    unit = observed.stderrs + observed.rounding_bounds
    few = (observed.stderrs == 0.0) | (
        np.abs(observed.skewness) > np.sqrt(observed.num_calls) / 10.0
    )
    return np.where(few, np.inf, unit)
