"""The trapezoid rule in log v, which all exact expectations use, and its error estimate.

Errors have two sources: the quadrature, estimated from the change if only every second node is
used; and rounding, a relative error (the *unit*) times the sum of the magnitudes of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS

# The step is in z of (B24), log v = z - exp(-z). The relative error of the trapezoid rule is about
# exp(-pi**2 / STEP), which is below rounding.
STEP = 0.2
MIN_STEP = 0.02
RELATIVE_TOLERANCE = 1e-12  # largest relative L1 error at which the step is not halved again
ROUNDING = 2e-15  # relative error of a term, besides the rounding of its exponents
_FIRST_Z = -4.2  # z of the first node, where v is about exp(-70) divided by the largest rate
_LAST_EXPONENT = 60.0  # at the last node, the slowest factor of the integrand is exp(-60)
_MAX_LOG_RANGE = 1e5  # largest range of log v, in nats; a larger one raises ValueError


# --- the quadrature ----------------------------------------------------------------------------


def make_grid(
    log_largest: float, log_smallest: float, step: float = STEP
) -> tuple[FloatArray, FloatArray]:
    """Return log v of the nodes (K,), and their quadrature weights (K,) for integrals over dv / v.

    The nodes are those of (B24), with the given `step` in z. `log_largest` is the log of the
    largest rate at which the integrand changes with v, and `log_smallest` the log of the smallest
    rate at which it decays.
    """
    span = math.log(_LAST_EXPONENT) - log_smallest + log_largest - _FIRST_Z
    require_few_nodes(span)

    # The integrand decays double exponentially in log v at the right end. The substitution
    # log v = z - exp(-z) makes it decay double exponentially at the left end, too.
    z = np.arange(_FIRST_Z, _FIRST_Z + span + step, step)
    left_tail = np.exp(-z)
    return z - left_tail - log_largest, step * (1.0 + left_tail)


def require_few_nodes(span: float) -> None:
    """Raise ValueError if the range `span` of log v, in nats, would need too many nodes."""
    if span > _MAX_LOG_RANGE:
        raise ValueError(
            f"`logits` and `q` must give sums within a factor exp({_MAX_LOG_RANGE:.0f}) of each "
            f"other, got exp({span:.3g}); rescale or clip the logits."
        )


def change_by_half_of_nodes(terms: FloatArray) -> float:
    """Return how much the sum of `terms` (K,) changes if the rule has only every second node.

    The rule by every second node is twice the sum of the terms with even index. So the change is
    the difference between the sums of the terms with even and with odd index.
    """
    return abs(float(terms[::2].sum()) - float(terms[1::2].sum()))


def relative_term_error_of_logs(*logs: FloatArray) -> float:
    """Return the relative rounding error of a term that is a product of exponentials of `logs`.

    Each of the `logs` is an array (k,). Their magnitudes are added, because the logs may cancel: a
    ratio e / q has the rounding errors of log e and of log q, even if the ratio is near 1.
    """
    first, *others = map(np.abs, logs)
    return relative_term_error(float(sum(others, first).max(initial=0.0)))


def relative_term_error(largest: float) -> float:
    """Return the relative rounding error of a term whose logs have magnitudes up to `largest`."""
    return 2.0 * (ROUNDING + EPS * largest)


def estimate_error(
    change: float, magnitude: float, norm: float, unit: float, narrow: bool = False
) -> float:
    """Return an estimate of the L1 error of a result of the trapezoid rule, eq. (B25).

    `change` is the change of the result if only every second node is used, `magnitude` the sum of
    the magnitudes of all terms, `norm` the L1 norm of the result, and `unit` the relative rounding
    error of a term.

    Halving the step squares the relative error of the trapezoid rule if the integrand is analytic
    in a wide strip. The estimate uses the power 3/2 instead of 2, as a margin for narrower strips;
    with `narrow`, for very narrow strips, it uses the power 1.
    """
    relative_change = 1.0 if narrow else min(change / max(norm, 1e-300), 1.0)
    return unit * (magnitude + norm) + change * math.sqrt(relative_change)


def estimate_sum_error(
    terms: FloatArray, magnitude: float, unit: float, narrow: bool = False
) -> float:
    """Return an estimate of the error of the sum of `terms` (K,) of the trapezoid rule.

    `magnitude` is the sum of the magnitudes from which the terms were computed. For `unit` and
    `narrow`, see `estimate_error`.
    """
    change = change_by_half_of_nodes(terms)
    return estimate_error(change, magnitude, abs(float(terms.sum())), unit, narrow)


class ExampleBias(NamedTuple):
    """The exact bias of one example."""

    bias: FloatArray  # (n,) E[p'] - p
    probs: FloatArray  # (n,) the softmax
    loss_bias: float  # E[L'] - L, in nats
    error: float  # estimated L1 error of the bias
    loss_error: float  # estimated error of the loss bias
    # (n,) probability that each class is drawn, for draws without replacement
    inclusion: FloatArray | None = None


def halved_steps(step: float) -> Iterator[float]:
    """Yield the steps of the trapezoid rule to try: `step`, then its halves above `MIN_STEP`."""
    yield step
    while (step := 0.5 * step) > MIN_STEP:
        yield step


def combine_better(best: ExampleBias | None, other: ExampleBias) -> ExampleBias:
    """Combine two attempts: return the bias and the loss bias that have the smaller errors.

    The two may come from different attempts. `best` is None before the first attempt.
    """
    if best is None:
        return other
    bias = other if other.error < best.error else best
    loss = other if other.loss_error < best.loss_error else best
    return bias._replace(loss_bias=loss.loss_bias, loss_error=loss.loss_error)
