"""The trapezoid rule in log v, which every exact expectation uses, and its error estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS

STEP = 0.2  # in log v: the trapezoid error is about exp(-pi**2 / STEP), here below rounding
MIN_STEP = 0.02
RELATIVE_TOLERANCE = 1e-12  # relative L1 error at which the step is not halved again
ROUNDING = 2e-15
_FIRST_Z = -4.2  # first node: v = exp(z - exp(-z)) is exp(-70) times its scale
_LAST_EXPONENT = 60.0  # last node: the slowest factor of the integrand has decayed to exp(-60)
_MAX_LOG_RANGE = 1e5


# --- the quadrature ----------------------------------------------------------------------------


def make_grid(
    log_largest: float, log_smallest: float, step: float = STEP
) -> tuple[FloatArray, FloatArray]:
    """Return log v and the weights of dv / v, both (K,).

    `log_largest` is the log of the largest rate at which the integrand changes with v,
    `log_smallest` the log of the smallest rate at which it decays; eq. (B24).
    """
    span = math.log(_LAST_EXPONENT) - log_smallest + log_largest - _FIRST_Z
    require_width(span)
    # in z - exp(-z) the integrand decays double exponentially at the left end, as in log v at the
    # right end
    z = np.arange(_FIRST_Z, _FIRST_Z + span + step, step)
    early = np.exp(-z)
    return z - early - log_largest, step * (1.0 + early)


def require_width(span: float) -> None:
    """Raise ValueError if the range of sums or ratios would need too many nodes."""
    if span > _MAX_LOG_RANGE:
        raise ValueError(
            f"`logits` and `q` must give sums within a factor exp({_MAX_LOG_RANGE:.0f}) of each "
            f"other, got exp({span:.3g}); rescale or clip the logits."
        )


def halving_change(terms: FloatArray) -> float:
    """Return the difference of the sums of the even and of the odd `terms` (K,).

    It is the change of the trapezoid rule under twice the step.
    """
    return abs(float(terms[::2].sum()) - float(terms[1::2].sum()))


def rounding_unit(*logs: FloatArray) -> float:
    """Return the relative error of a term: rounding, and the error of values given by their `logs`.

    A ratio e / q has the rounding of log e and log q, even where it is near 1.
    """
    first, *others = map(np.abs, logs)
    return rounding_at(float(sum(others, first).max(initial=0.0)))


def rounding_at(largest: float) -> float:
    """Return the relative error of a term, given the largest magnitude of the logs in it."""
    return 2.0 * (ROUNDING + EPS * largest)


def estimate_error(
    coarse: float, size: float, norm: float, unit: float, narrow: bool = False
) -> float:
    """Estimate an L1 error from the change under half of the nodes and the size of all terms.

    `coarse` is that change, `size` the sum of the magnitudes of all terms, `norm` the L1 norm of
    the result, and `unit` the relative error of a term. Eq. (B25).

    Halving the step squares the relative error of the trapezoid rule if the integrand is analytic
    in a wide strip. The estimate uses the power 3/2, as a margin for narrower strips. With
    `narrow`, it only assumes that half of the step does not increase the error.
    """
    relative = 1.0 if narrow else min(coarse / max(norm, 1e-300), 1.0)
    return unit * (size + norm) + coarse * math.sqrt(relative)


def sum_error(terms: FloatArray, size: float, unit: float, narrow: bool = False) -> float:
    """Estimate the error of the sum of `terms` (K,), whose magnitudes add up to `size`."""
    return estimate_error(halving_change(terms), size, abs(float(terms.sum())), unit, narrow)


class ExampleBias(NamedTuple):
    """The exact bias of one example."""

    bias: FloatArray  # (n,)
    probs: FloatArray  # (n,) the softmax
    loss_bias: float
    error: float  # estimated L1 error of the bias
    loss_error: float  # estimated error of the loss bias
    inclusion: FloatArray | None = None  # (n,) probability that a set of draws contains a class


def halved_steps(step: float) -> Iterator[float]:
    """Yield the steps of the trapezoid rule to try: `step`, then halves of it above `MIN_STEP`."""
    yield step
    while (step := 0.5 * step) > MIN_STEP:
        yield step


def better_of(best: ExampleBias | None, other: ExampleBias) -> ExampleBias:
    """Return the bias and the loss bias with the smaller error each, out of two attempts."""
    if best is None:
        return other
    bias = other if other.error < best.error else best
    loss = other if other.loss_error < best.loss_error else best
    return bias._replace(loss_bias=loss.loss_bias, loss_error=loss.loss_error)
