"""The trapezoid rule on log v that every exact expectation is integrated with."""

from __future__ import annotations

import numpy as np

from samplesoft._validation import FloatArray

STEP = 0.2  # the trapezoid error falls as exp(-pi**2 / STEP), below rounding here
_LEFT = -4.2  # v = exp(z - exp(-z)) has reached exp(-70) of its scale here
_RIGHT = 60.0  # exp(-60) of the least S is left beyond the last node
_WIDEST = 1e5
ROUNDING = 2e-15


def make_grid(
    log_largest: float, log_smallest: float, step: float = STEP
) -> tuple[FloatArray, FloatArray]:
    """Return log v and the weights of dv / v, both (K,).

    `log_largest` is the log of the largest rate at which the integrand changes with v,
    `log_smallest` that of the least rate at which it decays; eq. (B24).
    """
    span = np.log(_RIGHT) - log_smallest + log_largest - _LEFT
    if span > _WIDEST:
        raise ValueError(
            f"`logits` and `q` must give sums within a factor exp({_WIDEST:.0f}) of each other, "
            f"got exp({span:.3g}); rescale or clip the logits."
        )
    # z - exp(-z) cuts the left end off double exponentially, as v does the right end
    z = np.arange(_LEFT, _LEFT + span + step, step)
    return z - np.exp(-z) - log_largest, step * (1.0 + np.exp(-z))


def halving_change(terms: FloatArray) -> float:
    """Return by how much the sum of `terms` (K,) differs from that of every second node."""
    return abs(float(terms.sum()) - 2.0 * float(terms[::2].sum()))


def rounding_unit(log_ratios: FloatArray, log_base: float) -> float:
    """Return the relative error of a term: rounding, and that of ratios known by their logs."""
    base = abs(log_base) if np.isfinite(log_base) else 0.0
    largest = max(float(np.abs(log_ratios).max(initial=0.0)), base)
    return 2.0 * (ROUNDING + float(np.finfo(np.float64).eps) * largest)


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
    return unit * (size + norm) + coarse * float(np.sqrt(relative))
