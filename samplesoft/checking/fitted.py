"""Candidates that are tried if no simple one fits; most have a constant that is fitted.

Such a candidate has a wrong gradient, another proposal, another temperature, or a mistake with an
unknown constant.
"""

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
from samplesoft.checking.problems import NAMED_PROPOSALS, Problem

# gradients that are not those of the sum of weighted losses --------------------------------------


def candidates_with_gradient_faults(
    observer: Observer, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield the faultless candidates in `tested`, each with each fault in adding up gradients."""
    faults = {name: fault for name, fault in FAULTS.items() if fault.in_gradients}
    for candidate, (name, fault) in product(tested, faults.items()):
        if candidate.fault is not None or candidate.expected is None:
            continue

        for wrong in fault.applied_to(ESTIMATORS[candidate.scheme]):
            weighting = wrong.weighting
            means = candidate.expected.observed_means(
                observer.problem, observer.num_gradients, weighting
            )

            if not np.array_equal(means, candidate.means):
                # the moments from `sums` hold only if each loss has the weight of its example
                sums = candidate.sums if weighting.losses == "own" else ()
                yield replace(
                    candidate, fault=name, means=means, spread=None, sums=sums, equivalents=()
                )


def with_scaled_gradient(
    candidate: Candidate, observed: Observed, is_gradient: NDArray[np.bool_]
) -> Candidate | None:
    """Return the candidate with its gradients multiplied by the constant that fits best.

    `is_gradient` (K,) marks the means that are gradients. Returns None if there are no gradients
    that can be compared, or if the best constant is 1 within its error.
    """
    if not is_gradient.any():
        return None

    units = distance_units(observed)[is_gradient]
    expected_gradient = candidate.means[is_gradient] / units
    square_norm = float(expected_gradient @ expected_gradient)
    if not 0.0 < square_norm < np.inf:
        return None

    # fit the factor by least squares, in units of the standard errors
    factor = float(expected_gradient @ (observed.means[is_gradient] / units)) / square_norm
    error = 4.0 / np.sqrt(square_norm)
    if abs(factor - 1.0) <= error:
        return None

    factor = _round_to_simple_fraction(factor, error)
    factors = np.where(is_gradient, factor, 1.0)
    spread = candidate.spread
    if spread is not None:
        spread = spread._replace(deviations=spread.deviations * np.abs(factors))

    return replace(
        candidate,
        fault="gradient_scaled",
        means=candidate.means * factors,
        spread=spread,
        detail=f"the gradient is {_describe_factor(factor)} the gradient of these losses",
        gradient_factor=factor,
        equivalents=(),
    )


def _round_to_simple_fraction(value: float, error: float) -> float:
    """Round a value to an integer, or to 1 divided by an integer, if only one is within `error`.

    If none or several are within `error`, the value is returned unchanged.
    """
    uses_reciprocal = abs(value) < 1.0
    integer = round(1.0 / value if uses_reciprocal else value) if value else 0
    if integer == 0:
        return value
    rounded = 1.0 / integer if uses_reciprocal else float(integer)
    gap = 1.0 / (integer * integer) if uses_reciprocal else 1.0
    is_close = abs(value - rounded) <= error and 2.0 * error < gap
    return rounded if is_close else value


def _describe_factor(factor: float) -> str:
    """Return a factor as text, such as "1/64 of" or "2 times"."""
    inverse = 1.0 / factor if factor else 0.0
    if inverse == round(inverse) and abs(inverse) > 1.0:
        return f"{'-' if inverse < 0.0 else ''}1/{abs(round(inverse))} of"
    return f"{factor:.4g} times"


def candidates_with_scaled_gradients(
    observer: Observer, observed: Observed, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield the faultless candidates in `tested`, with gradients times a fitted constant."""
    is_gradient = np.arange(len(observed.means)) >= len(observer.problem.labels)
    for candidate in tested:
        if candidate.fault is None and candidate.expected is not None:
            scaled = with_scaled_gradient(candidate, observed, is_gradient)
            if scaled is not None:
                yield scaled


# another proposal, another temperature -----------------------------------------------------------


def _faultless_sums(observer: Observer, problem: Problem) -> Iterator[tuple[Estimator, SampledSum]]:
    """Yield each faultless estimator with independent draws, and its random sum on a problem."""
    for right in estimators_with_draws("repeated", "independent"):
        for sampled_sum in right(problem, observer.num_sampled, observer.batch_size):
            yield right, sampled_sum


def candidates_with_other_proposals(
    observer: Observer, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield candidates for `schemes` whose draws follow another proposal than `check_loss` got."""
    problem = observer.problem
    for fault, words, q in _other_proposals(problem):
        other_sums = _faultless_sums(observer, replace(problem, q=q))
        given_sums = _faultless_sums(observer, problem)
        for (right, other_sum), (_, given_sum) in zip(other_sums, given_sums, strict=True):
            if right.name not in schemes:
                continue

            # The loss draws by the other proposal. It corrects by the same other proposal, or, in a
            # second candidate, by the one that was passed.
            detail = f"draws and correction by {words}"
            if np.isfinite(other_sum.label_logit).all():  # infinite if a label has q = 0
                yield make_candidate(observer, right.name, fault, [other_sum], detail)
            detail = f"draws by {words}, correction by the proposal that was passed"
            mixed_sum = replace(
                given_sum, probs=other_sum.probs, set_distributions=other_sum.set_distributions
            )
            yield make_candidate(observer, right.name, fault, [mixed_sum], detail)


def _other_proposals(problem: Problem) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield proposals other than the problem's, each with the fault of drawing from it.

    A tuple is (name of the fault, description of the proposal, probabilities (E, n)).
    """
    for name, make_proposal in NAMED_PROPOSALS.items():
        q = np.broadcast_to(make_proposal(problem.num_classes), problem.q.shape)
        if not np.allclose(q, problem.q):
            yield "other_proposal", repr(name), q
    drawn_ids = np.sort(problem.classes_by_frequency)
    for words, excluded_id in (("last", drawn_ids[-1]), ("first", drawn_ids[0])):
        if len(drawn_ids) > 2:
            q = problem.q.copy()
            q[:, excluded_id] = 0.0
            q /= q.sum(axis=1, keepdims=True)
            yield "class_never_drawn", f"the proposal that was passed, without the {words} class", q


# values that are tried first for the log of (inverse temperature of the loss / `tau`)
LOG_FACTORS = np.linspace(-4.0, 4.0, 17)


def candidates_with_other_temperatures(
    observer: Observer, observed: Observed
) -> Iterator[Candidate]:
    """Yield candidates without other faults, with a fitted inverse temperature for `tau`."""
    draw_counts = observer.num_sampled, observer.batch_size

    def candidate_at_tau(right: Estimator, log_tau: float) -> Candidate:
        here = observer.problem.with_tau(float(np.exp(log_tau)))
        sums = right(here, *draw_counts)
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
        if right(observer.problem, *draw_counts):
            yield nearest_candidate(partial(candidate_at_tau, right), grid, observed)


# mistakes with an unknown constant ---------------------------------------------------------------

# finite logits that implementations often give to masked hits
_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)
# if the mean loss of a label is larger than this (nats), its probability is negligible
_MIN_LOSS_OF_NEGLIGIBLE = 30.0
# a smaller smoothing fraction has no visible effect, except by its product with the logit of hits
_MIN_SMOOTHING = 1e-3
_MAX_SMOOTHING = 0.9  # largest smoothing fraction of a candidate


def candidates_with_fitted_constants(
    observer: Observer, observed: Observed, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield a candidate for each fault with an unknown constant, which is fitted to the means."""
    problem = observer.problem
    draw_counts = (observer.num_sampled, observer.batch_size)
    if observer.is_random:
        estimators = estimators_with_draws("repeated", "independent")
    else:
        estimators = estimators_with_draws("all")

    for right in estimators:
        if right.name not in schemes:
            continue

        for sampled_sum in right(problem, *draw_counts) if right.is_log_of_sum else ():
            yield from _candidates_with_constant_in_log(observer, observed, right.name, sampled_sum)

        for name, fault in FAULTS.items():
            for form in fault.fitted if fault.where(right) else ():
                wrong = form.apply(right, float(form.grid[0]))
                if wrong(problem, *draw_counts):  # the fault can be made
                    candidate_at = partial(_candidate_with_constant, observer, right, name, form)
                    yield nearest_candidate(candidate_at, form.grid, observed)


def _candidate_with_constant(
    observer: Observer, right: Estimator, fault: str, fit: FittedFault, constant: float
) -> Candidate:
    """Return the candidate for a right estimator with one fault, whose constant is given.

    `fit` says how the fault with this constant changes the estimator.
    """
    sums = fit.apply(right, constant)(observer.problem, observer.num_sampled, observer.batch_size)
    return make_candidate(
        observer, right.name, fault, sums, fit.describe(constant), with_spread=True
    )


def candidates_with_label_smoothing(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield candidates with fitted label smoothing, for all losses that are the log of a sum."""
    for right, sampled_sum in _faultless_sums(observer, observer.problem):
        if right.is_log_of_sum:
            yield from _candidates_with_smoothed_sum(observer, observed, right.name, sampled_sum)


def _candidates_with_constant_in_log(
    observer: Observer, observed: Observed, scheme: str, sampled_sum: SampledSum
) -> Iterator[Candidate]:
    """Yield the candidate with the loss ``-log(p + constant)``, where p is the label's probability.

    `sampled_sum` is the random sum of the scheme. The constant is read off the loss of a label
    whose p is negligible; if there is no such label, nothing is yielded. For the other labels p is
    approximated by exp(-mean loss).
    """
    plain = expectation([sampled_sum])
    worst = int(plain.losses.argmax())

    if plain.losses[worst] > _MIN_LOSS_OF_NEGLIGIBLE:
        log_constant = -float(observed.means[worst])
        fraction = expit(-plain.losses - log_constant)  # p / (p + constant)
        losses = -np.logaddexp(-plain.losses, log_constant)

        capped = Means(losses, plain.d_logits * fraction[:, None])
        yield Candidate(
            scheme,
            "probability_capped",
            means=capped.observed_means(observer.problem, observer.num_gradients),
            expected=capped,
            detail=f"the number is {np.exp(log_constant):.2g}",
        )


_NUM_NEWTON_STEPS = 3
_DERIVATIVE_STEP = 1e-6


def nearest_candidate(
    candidate_at: Callable[[float], Candidate], grid: FloatArray, observed: Observed
) -> Candidate:
    """Return ``candidate_at(x)`` for the x whose means are nearest to the observed means.

    The best entry of `grid` is found first; x is then refined between its neighbours in the grid.
    """
    units = distance_units(observed)

    def squared_distance(constant: float) -> float:
        differences: FloatArray = (candidate_at(constant).means - observed.means) / units
        return float((differences**2).sum())

    best = int(np.argmin([squared_distance(constant) for constant in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimum = minimize_scalar(
        squared_distance, bounds=bounds, method="bounded", options={"xatol": 1e-9}
    )
    constant = float(minimum.x)

    # A deterministic loss must be matched up to rounding. The minimum of a sum of squares is flat,
    # so that minimising gives only half of the digits of x; Gauss-Newton steps give all.
    if not observed.stderrs.any():
        for _ in range(_NUM_NEWTON_STEPS):
            differences, moved = (
                candidate_at(x).means - observed.means
                for x in (constant, constant + _DERIVATIVE_STEP)
            )
            derivative = (moved - differences) / _DERIVATIVE_STEP
            square_norm = float(derivative @ derivative)
            constant -= float(differences @ derivative) / max(square_norm, _DERIVATIVE_STEP)

    return candidate_at(constant)


# label smoothing ---------------------------------------------------------------------------------


class SmoothedMeans(NamedTuple):
    """The means of an estimator on a problem without label smoothing, and what smoothing adds.

    `plain` are the means without smoothing. With a smoothing fraction f, f times `smoothing` is
    added.
    """

    plain: Means
    smoothing: Means
    problem: Problem


def _candidates_with_smoothed_sum(
    observer: Observer, observed: Observed, scheme: str, sampled_sum: SampledSum
) -> Iterator[Candidate]:
    """Yield candidates with fitted label smoothing for one scheme, whose random sum is given.

    If hits are masked, there are two candidates for each of `_MASKS`, the usual finite logits of
    hits: in one this logit changes with the label's logit, and in the other it is a constant.
    Otherwise there is one candidate.
    """
    rows = np.arange(len(sampled_sum.labels))
    hit_logits = sampled_sum.logits[rows, sampled_sum.labels]
    probs = sampled_sum.probs[rows, sampled_sum.labels]
    has_masked_hits = bool(((hit_logits == -np.inf) & (probs > 0.0)).any())
    plain = expectation([sampled_sum])

    cases: Iterable[tuple[float | None, bool]] = (
        product(_MASKS, (False, True)) if has_masked_hits else [(None, True)]
    )
    for mask, hits_follow_label in cases:
        if mask is None:
            logits = np.where(probs > 0.0, hit_logits, 0.0)
        else:
            logits = np.full_like(hit_logits, mask)

        draw_logits = sampled_sum.with_hit_logits(logits).logits
        smoothing_terms = label_smoothing_terms(
            sampled_sum, sampled_sum.num_draws * sampled_sum.probs, draw_logits, hits_follow_label
        )
        smoothed_means = [SmoothedMeans(plain, smoothing_terms, observer.problem)]
        yield fit_smoothing(smoothed_means, observer.num_gradients, observed, scheme, mask)


def observed_plain_and_smoothing(
    parts: list[SmoothedMeans], num_gradients: int
) -> tuple[FloatArray, FloatArray]:
    """Return the expected values of several problems without label smoothing, and its effect.

    Both arrays concatenate the values of all problems. The second is what a smoothing fraction of 1
    adds to the first.
    """
    pairs = (
        (
            smoothed.plain.observed_means(smoothed.problem, num_gradients),
            smoothed.smoothing.observed_means(smoothed.problem, num_gradients),
        )
        for smoothed in parts
    )
    plain, added = zip(*pairs, strict=True)
    return np.concatenate(plain), np.concatenate(added)


def fit_smoothing(
    parts: list[SmoothedMeans],
    num_gradients: int,
    observed: Observed,
    scheme: str,
    mask: float | None,
) -> Candidate:
    """Return the candidate with the fraction of label smoothing that fits best.

    `mask` is the finite logit of masked hits, which label smoothing averages too; None if hits are
    not masked, or are not in the average.
    """
    plain, added = observed_plain_and_smoothing(parts, num_gradients)

    # the loss is linear in the fraction: fit it by least squares, in units of the standard errors
    units: FloatArray = distance_units(observed)
    direction: FloatArray = added / units
    fraction = float(((observed.means - plain) / units * direction).sum() / (direction**2).sum())
    fraction = min(max(fraction, 0.0), _MAX_SMOOTHING)
    expected = None
    if len(parts) == 1:
        smoothed = parts[0]
        expected = Means(
            smoothed.plain.losses + fraction * smoothed.smoothing.losses,
            smoothed.plain.d_logits + fraction * smoothed.smoothing.d_logits,
        )

    fault = "label_smoothing"
    words = f"smoothing {fraction:.3g}"
    if mask is not None:
        fault = "smoothed_hits"
        words = f"{words}, hits at {mask:.3g}"
        if fraction < _MIN_SMOOTHING:  # only the logit of hits has an effect
            words = f"smoothing times the logit of hits is {fraction * mask:.3g}"

    return Candidate(scheme, fault, means=plain + fraction * added, expected=expected, detail=words)


def distance_units(observed: Observed) -> FloatArray:
    """Return the units (K,) of differences from observed means: standard errors plus rounding.

    A unit is infinite, so that its mean has no influence, if the mean depends on rare events: its
    standard error is then not reliable.
    """
    if not observed.stderrs.any():  # deterministic losses
        return observed.rounding_bounds
    units = observed.stderrs + observed.rounding_bounds
    has_few_occurrences = (observed.stderrs == 0.0) | (
        np.abs(observed.skewness) > np.sqrt(observed.num_calls) / 10.0
    )
    return np.where(has_few_occurrences, np.inf, units)
