"""Candidates that are tried if no simple one fits; most have a constant that is fitted.

They have wrong gradients, another proposal, another temperature, or a mistake with a constant.
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
    """Yield the faultless ones of `tested`, with a fault in the summation of gradients."""
    faults = {name: fault for name, fault in FAULTS.items() if fault.in_gradients}
    for one, (name, fault) in product(tested, faults.items()):
        if one.fault is not None or one.expected is None:
            continue
        for wrong in fault.applied_to(ESTIMATORS[one.scheme]):
            weighting = wrong.weighting
            means = one.expected.observed_means(observer.problem, observer.num_gradients, weighting)
            if not np.array_equal(means, one.means):
                # `sums` give the moments of losses with their own weights only
                sums = one.sums if weighting.losses == "own" else ()
                yield replace(one, fault=name, means=means, spread=None, sums=sums, equivalents=())


def with_scaled_gradient(
    candidate: Candidate, observed: Observed, is_gradient: NDArray[np.bool_]
) -> Candidate | None:
    """Return the candidate with its gradients multiplied by the constant that fits best.

    `is_gradient` (K,) marks the means that are gradients. Returns None if there are no gradients,
    or if the best constant is 1.
    """
    if not is_gradient.any():
        return None
    unit = _distance_units(observed)[is_gradient]
    due = candidate.means[is_gradient] / unit
    size = float(due @ due)
    if not 0.0 < size < np.inf:
        return None
    # least squares, in units of the standard errors
    factor = float(due @ (observed.means[is_gradient] / unit)) / size
    error = 4.0 / np.sqrt(size)
    if abs(factor - 1.0) <= error:
        return None
    factor = _round_to_simple_fraction(factor, error)
    factors = np.where(is_gradient, factor, 1.0)
    width = candidate.spread
    if width is not None:
        width = width._replace(deviations=width.deviations * np.abs(factors))
    return replace(
        candidate,
        fault="gradient_scaled",
        means=candidate.means * factors,
        spread=width,
        detail=f"the gradient is {_describe_factor(factor)} the gradient of these losses",
        gradient_factor=factor,
        equivalents=(),
    )


def _round_to_simple_fraction(value: float, error: float) -> float:
    """Round a value to an integer or the reciprocal of one, if exactly one is within `error`.

    Other values are returned unchanged.
    """
    inverse = abs(value) < 1.0
    whole = round(1.0 / value if inverse else value) if value else 0
    if whole == 0:
        return value
    nearest_one = 1.0 / whole if inverse else float(whole)
    gap = 1.0 / (whole * whole) if inverse else 1.0
    is_it = abs(value - nearest_one) <= error and 2.0 * error < gap
    return nearest_one if is_it else value


def _describe_factor(factor: float) -> str:
    """Return a factor in words, such as "1/64 of" or "2 times"."""
    inverse = 1.0 / factor if factor else 0.0
    if inverse == round(inverse) and abs(inverse) > 1.0:
        return f"{'-' if inverse < 0.0 else ''}1/{abs(round(inverse))} of"
    return f"{factor:.4g} times"


def candidates_with_scaled_gradients(
    observer: Observer, observed: Observed, tested: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield the faultless ones of `tested`, with the gradient multiplied by a fitted constant."""
    is_gradient = np.arange(len(observed.means)) >= len(observer.problem.labels)
    for one in tested:
        if one.fault is None and one.expected is not None:
            scaled = with_scaled_gradient(one, observed, is_gradient)
            if scaled is not None:
                yield scaled


# another proposal, another temperature -----------------------------------------------------------


def _faultless_sums(observer: Observer, problem: Problem) -> Iterator[tuple[Estimator, SampledSum]]:
    """Yield the faultless estimators with independent draws, each with its sum on a problem."""
    for right in estimators_with_draws("repeated", "independent"):
        for one in right(problem, observer.num_sampled, observer.batch_size):
            yield right, one


def candidates_with_other_proposals(
    observer: Observer, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield candidates for `schemes` whose draws follow another proposal than `check_loss` got."""
    problem = observer.problem
    for fault, words, q in _other_proposals(problem):
        of_both = (_faultless_sums(observer, one) for one in (replace(problem, q=q), problem))
        for (right, drawn), (_, meant) in zip(*of_both, strict=True):
            if right.name not in schemes:
                continue
            # either draws and correction are by the other proposal, or only the draws
            constant = f"draws and correction by {words}"
            if np.isfinite(drawn.label_logit).all():  # not if a label has q = 0
                yield make_candidate(observer, right.name, fault, [drawn], constant)
            constant = f"draws by {words}, correction by the proposal that was passed"
            other = replace(meant, probs=drawn.probs, set_distributions=drawn.set_distributions)
            yield make_candidate(observer, right.name, fault, [other], constant)


def _other_proposals(problem: Problem) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield other proposals as tuples (fault, description, probabilities (E, n))."""
    for name, of_size in NAMED_PROPOSALS.items():
        q = np.broadcast_to(of_size(problem.num_classes), problem.q.shape)
        if not np.allclose(q, problem.q):
            yield "other_proposal", repr(name), q
    drawn = np.sort(problem.classes_by_frequency)
    for words, left_out in (("last", drawn[-1]), ("first", drawn[0])):
        if len(drawn) > 2:
            q = problem.q.copy()
            q[:, left_out] = 0.0
            q /= q.sum(axis=1, keepdims=True)
            yield "class_never_drawn", f"the proposal that was passed, without the {words} class", q


LOG_FACTORS = np.linspace(-4.0, 4.0, 17)  # grid for the log of a factor of the temperature


def candidates_with_other_temperatures(
    observer: Observer, observed: Observed
) -> Iterator[Candidate]:
    """Yield the faultless candidates with a fitted inverse temperature instead of `tau`."""
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


# mistakes with an unknown constant ---------------------------------------------------------------

_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # usual logits of masked hits
_FAR_BEHIND = 30.0  # a label with a larger loss (nats) has a negligible probability
_MIN_SMOOTHING = 1e-3  # smaller smoothing fractions have no effect except by the logit of hits
_MAX_SMOOTHING = 0.9  # largest smoothing fraction


def candidates_with_fitted_constants(
    observer: Observer, observed: Observed, schemes: Container[str] = ESTIMATORS
) -> Iterator[Candidate]:
    """Yield a candidate for each fault with an unknown constant, fitted to the observed means."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch_size)
    for right in (
        estimators_with_draws("repeated", "independent")
        if observer.is_random
        else estimators_with_draws("all")
    ):
        if right.name not in schemes:
            continue
        for one in right(problem, *sizes) if right.is_log_of_sum else ():
            yield from _candidates_with_constant_in_log(observer, observed, right.name, one)
        for name, fault in FAULTS.items():
            for fit in fault.fitted if fault.where(right) else ():
                if fit.apply(right, float(fit.grid[0]))(problem, *sizes):  # the fault can be made
                    candidate_at = partial(_candidate_with_constant, observer, right, name, fit)
                    yield nearest_candidate(candidate_at, fit.grid, observed)


def _candidate_with_constant(
    observer: Observer, right: Estimator, fault: str, fit: FittedFault, constant: float
) -> Candidate:
    """Return the candidate for an estimator with a fault that has the given constant."""
    sums = fit.apply(right, constant)(observer.problem, observer.num_sampled, observer.batch_size)
    return make_candidate(
        observer, right.name, fault, sums, fit.describe(constant), with_spread=True
    )


def candidates_with_label_smoothing(observer: Observer, observed: Observed) -> Iterator[Candidate]:
    """Yield candidates with label smoothing, for all losses that are the log of a sum."""
    for right, one in _faultless_sums(observer, observer.problem):
        if right.is_log_of_sum:
            yield from _candidates_with_smoothed_sum(observer, observed, right.name, one)


def _candidates_with_constant_in_log(
    observer: Observer, observed: Observed, scheme: str, sampled_sum: SampledSum
) -> Iterator[Candidate]:
    """Yield the candidate with the loss ``-log(p + constant)`` for a scheme.

    `sampled_sum` is the random sum of the scheme. The constant is read off a label that is so far
    behind that p is negligible; without such a label nothing is yielded. Elsewhere p is
    approximated by exp of minus the mean loss.
    """
    plain = expectation([sampled_sum])
    last = int(plain.losses.argmax())
    if plain.losses[last] > _FAR_BEHIND:
        log_constant = -float(observed.means[last])
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


_POLISHES, _NUDGE = 3, 1e-6


def nearest_candidate(
    candidate_at: Callable[[float], Candidate], grid: FloatArray, observed: Observed
) -> Candidate:
    """Return the candidate ``candidate_at(x)`` that is nearest to the observed means.

    `x` is the best entry of `grid`, refined between its neighbours in the grid.
    """
    unit = _distance_units(observed)

    def squared_distance(constant: float) -> float:
        away: FloatArray = (candidate_at(constant).means - observed.means) / unit
        return float((away**2).sum())

    at = int(np.argmin([squared_distance(constant) for constant in grid]))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    found = minimize_scalar(
        squared_distance, bounds=ends, method="bounded", options={"xatol": 1e-9}
    )
    constant = float(found.x)
    # a deterministic loss must be matched to rounding, but a minimum of squares is flat, which
    # gives half of the digits only: Gauss-Newton steps give all
    if not observed.stderrs.any():
        for _ in range(_POLISHES):
            away, more = (
                candidate_at(x).means - observed.means for x in (constant, constant + _NUDGE)
            )
            derivative = (more - away) / _NUDGE
            square = float(derivative @ derivative)
            constant -= float(away @ derivative) / max(square, _NUDGE)
    return candidate_at(constant)


# label smoothing ---------------------------------------------------------------------------------


class SmoothedMeans(NamedTuple):
    """The means of an estimator on a problem: `plain` ones, and what label smoothing adds.

    `smoothing` holds the terms for a smoothing fraction of 1; a fraction f adds f times these.
    """

    plain: Means
    smoothing: Means
    problem: Problem


def _candidates_with_smoothed_sum(
    observer: Observer, observed: Observed, scheme: str, sampled_sum: SampledSum
) -> Iterator[Candidate]:
    """Yield candidates with label smoothing for a scheme with the given random sum.

    If hits are masked, there are two candidates for each usual finite logit of hits: it changes
    with the label's logit, or it is constant.
    """
    rows = np.arange(len(sampled_sum.labels))
    hits, probs = (
        sampled_sum.logits[rows, sampled_sum.labels],
        sampled_sum.probs[rows, sampled_sum.labels],
    )
    masked = bool(((hits == -np.inf) & (probs > 0.0)).any())
    plain = expectation([sampled_sum])
    for mask, follow in product(_MASKS, (False, True)) if masked else [(None, True)]:
        logits = np.where(probs > 0.0, hits, 0.0) if mask is None else np.full_like(hits, mask)
        x = sampled_sum.with_hit_logits(logits).logits
        added = label_smoothing_terms(
            sampled_sum, sampled_sum.num_draws * sampled_sum.probs, x, follow
        )
        parts = [SmoothedMeans(plain, added, observer.problem)]
        yield fit_smoothing(parts, observer.num_gradients, observed, scheme, mask)


def observed_plain_and_smoothing(
    parts: list[SmoothedMeans], num_gradients: int
) -> tuple[FloatArray, FloatArray]:
    """Return the values for several problems without label smoothing, and what smoothing adds.

    The values of all problems are concatenated. The second array is for a smoothing fraction of 1.
    """
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
    """Return the candidate with the fraction of label smoothing that fits best.

    `mask` is the constant logit that masked hits have in the average over candidates, or None.
    """
    plain, added = observed_plain_and_smoothing(parts, num_gradients)
    # least squares for the fraction, in which the loss is linear, in units of the standard errors
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
        if fraction < _MIN_SMOOTHING:  # only the logit of hits has an effect
            words = f"smoothing times the logit of hits is {fraction * mask:.3g}"
    return Candidate(scheme, fault, means=plain + fraction * added, expected=expected, detail=words)


def _distance_units(observed: Observed) -> FloatArray:
    """Return the scale (K,) of differences from observed means: standard errors plus rounding.

    It is infinite for means of rare events, whose standard errors are not reliable.
    """
    if not observed.stderrs.any():  # deterministic losses
        return observed.rounding_bounds
    unit = observed.stderrs + observed.rounding_bounds
    few = (observed.stderrs == 0.0) | (
        np.abs(observed.skewness) > np.sqrt(observed.num_calls) / 10.0
    )
    return np.where(few, np.inf, unit)
