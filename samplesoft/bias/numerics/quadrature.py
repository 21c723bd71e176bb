"""The trapezoid rule on log v that every exact expectation is integrated with, and its error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS

STEP = 0.2  # the trapezoid error falls as exp(-pi**2 / STEP), below rounding here
LEAST_STEP = 0.02
ENOUGH = 1e-12  # relative L1 error at which the step is not halved again
ROUNDING = 2e-15
_LEFT = -4.2  # v = exp(z - exp(-z)) has reached exp(-70) of its scale here
_RIGHT = 60.0  # at the last node the slowest factor of the integrand has fallen to exp(-60)
_WIDEST = 1e5


# --- the quadrature ----------------------------------------------------------------------------


def make_grid(
    log_largest: float, log_smallest: float, step: float = STEP
) -> tuple[FloatArray, FloatArray]:
    """Return log v and the weights of dv / v, both (K,).

    `log_largest` is the log of the largest rate at which the integrand changes with v,
    `log_smallest` that of the least rate at which it decays; eq. (B24).
    """
    span = math.log(_RIGHT) - log_smallest + log_largest - _LEFT
    require_width(span)
    # z - exp(-z) cuts the left end off double exponentially, as v does the right end
    z = np.arange(_LEFT, _LEFT + span + step, step)
    early = np.exp(-z)
    return z - early - log_largest, step * (1.0 + early)


def require_width(span: float) -> None:
    """Raise ValueError where sums or ratios lie so far apart that nodes would be too many."""
    if span > _WIDEST:
        raise ValueError(
            f"`logits` and `q` must give sums within a factor exp({_WIDEST:.0f}) of each other, "
            f"got exp({span:.3g}); rescale or clip the logits."
        )


def halving_change(terms: FloatArray) -> float:
    """Return by how much the sum of `terms` (K,) differs from that of every second node."""
    return abs(float(terms[::2].sum()) - float(terms[1::2].sum()))


def rounding_unit(*logs: FloatArray) -> float:
    """Return the relative error of a term: rounding, and that of numbers known by sums of `logs`.

    A ratio e / q may be near 1 where log e and log q are far from 0, and has their rounding.
    """
    first, *others = map(np.abs, logs)
    return rounding_at(float(sum(others, first).max(initial=0.0)))


def rounding_at(largest: float) -> float:
    """Return the relative error of a term, of the largest magnitude of the logs in it."""
    return 2.0 * (ROUNDING + EPS * largest)


def estimate_error(
    coarse: float, size: float, norm: float, unit: float, narrow: bool = False
) -> float:
    """Return an L1 error from the change under half the nodes and the size of all terms.

    `unit` is the relative error of a term; `narrow` says that the integrand is analytic in a narrow
    strip only, so that no more is taken for granted than that half the step does no harm.

    Halving the step squares the relative error of the trapezoid rule where the integrand is
    analytic in a wide strip; the power 3/2 leaves room for a narrow one. Eq. (B25).
    """
    relative = 1.0 if narrow else min(coarse / max(norm, 1e-300), 1.0)
    return unit * (size + norm) + coarse * math.sqrt(relative)


def sum_error(terms: FloatArray, size: float, unit: float, narrow: bool = False) -> float:
    """Return the error of the sum of `terms` (K,) that are made of what adds up to `size`."""
    return estimate_error(halving_change(terms), size, abs(float(terms.sum())), unit, narrow)


class ExampleBias(NamedTuple):
    """The exact bias of one example."""

    bias: FloatArray  # (n,)
    probs: FloatArray  # (n,) the softmax
    loss_bias: float
    error: float  # estimated, of the bias in the L1 norm
    loss_error: float  # estimated, of the loss bias
    inclusion: FloatArray | None = None  # (n,) probability that a set of draws holds a class


def halved_steps(step: float) -> Iterator[float]:
    """Yield the steps of the trapezoid rule to try: `step`, and its halves above `LEAST_STEP`."""
    yield step
    while (step := 0.5 * step) > LEAST_STEP:
        yield step


def better_of(best: ExampleBias | None, other: ExampleBias) -> ExampleBias:
    """Return the bias and the loss bias of the smaller errors, of two attempts or the first."""
    if best is None:
        return other
    bias = other if other.error < best.error else best
    loss = other if other.loss_error < best.loss_error else best
    return bias._replace(loss_bias=loss.loss_bias, loss_error=loss.loss_error)
