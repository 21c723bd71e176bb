"""The smallest number of draws with a bias of at most a given value, by root finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import LARGEST_COUNT, as_positive
from samplesoft.bias.bounds.finite import example_bounds, require_bounds
from samplesoft.bias.inputs import Example, check_inputs
from samplesoft.bias.with_replacement.draws import make_draws
from samplesoft.bias.with_replacement.integral import with_replacement_bias
from samplesoft.schemes import Scheme

_MIN_NORM = 1e-300  # replaces smaller norms, so that their log is finite


@dataclass(frozen=True)
class NumSampled:
    """Numbers of draws m for which the L1 norm of the bias is at most a given value.

    Attributes
    ----------
    exact : int or ndarray of int, shape (B,)
        The smallest m, by `samplesoft.exact_bias`.
    guaranteed : int or ndarray of int, shape (B,)
        The smallest m found for which `samplesoft.finite_sample_bounds` prove that the norm is at
        most the given value.
    """

    exact: Any
    guaranteed: Any


def num_sampled_for(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    bias: float,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> NumSampled:
    """Return the number of draws for which the bias has an L1 norm of at most ``bias``.

    For any larger number of draws, the norm is at most ``bias``, too.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    bias : float
        Largest ``sum_i |E[p'_i] - p_i|``, in probability, greater than 0. The norm never exceeds 2.
    scheme : str
        ``negatives`` or ``masked``, the schemes that have bounds.

    Returns
    -------
    NumSampled
        `exact` and `guaranteed`, for each example.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, the scheme has no bounds, or
        1e15 draws are too few.

    Notes
    -----
    The L1 norm of the bias does not increase with m: section 14 of ``samplesoft/bias/README.md``
    has a proof. So a search that brackets the smallest m finds it. It evaluates
    `samplesoft.exact_bias` about ten times, and the bounds as often. If the biases at adjacent m
    differ by less than their numerical error, either m may be returned.

    Examples
    --------
    >>> import samplesoft
    >>> found = samplesoft.num_sampled_for([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], bias=0.001)
    >>> found.exact, found.guaranteed
    (325, 325)
    >>> logits, q = [0.0, 1.0, 2.0], [0.2, 0.4, 0.4]
    >>> [bool(abs(samplesoft.exact_bias(logits, 0, q, m).bias).sum() <= 0.001) for m in (324, 325)]
    [False, True]
    """
    # the number of draws is not used; 2 is valid for every scheme
    inputs = check_inputs(logits, labels, q, 2, scheme, h, require=require_bounds)
    target = as_positive("bias", bias)
    rows = [_exact_and_guaranteed(row, inputs.scheme, target) for row in inputs.rows()]
    return NumSampled(*inputs.columns(rows))


def _exact_and_guaranteed(example: Example, scheme: Scheme, target: float) -> tuple[int, int]:
    """Return the smallest number of draws for one example, by the exact bias and by its bounds."""

    def exact_norm(m: int) -> float:
        return float(np.abs(with_replacement_bias(*example, m, scheme).bias).sum())

    def norm_bound(m: int) -> float:
        lower, upper = example_bounds(make_draws(*example, m, scheme))

        # the bias sums to 0: its L1 norm is twice its positive part, and twice its negative part
        return 2.0 * float(min(np.maximum(upper, 0.0).sum(), np.maximum(-lower, 0.0).sum()))

    exact = smallest_num_sampled(exact_norm, 1, target)
    return exact, smallest_num_sampled(norm_bound, exact, target)


def smallest_num_sampled(norm: Callable[[int], float], first: int, target: float) -> int:
    """Return the smallest m >= `first` with ``norm(m) <= target``; the norm decreases with m.

    The norm is nearly proportional to 1/m, so that log(norm / target) is nearly linear in log m.
    Regula falsi with the Illinois modification finds the root of this function of log m.
    """

    def log_excess(m: int) -> float:
        return math.log(max(norm(m), _MIN_NORM)) - math.log(target)

    low = first
    low_excess = log_excess(first)
    if low_excess <= 0.0:
        return first

    # bracket the root
    high = low
    high_excess = low_excess
    while high_excess > 0.0:
        low = high
        low_excess = high_excess
        high = max(2 * low, math.ceil(low * math.exp(min(low_excess, 50.0))))
        if high > LARGEST_COUNT:
            raise ValueError(
                f"`bias` must be one that {LARGEST_COUNT:.0e} draws can reach, got {target:g}; "
                "give a larger one."
            )
        high_excess = log_excess(high)

    # if the same end moves twice in a row, the excess of the other end is halved
    previous_sign = 0.0
    while high - low > 1:
        fraction = low_excess / (low_excess - high_excess)
        middle = round(math.exp((1.0 - fraction) * math.log(low) + fraction * math.log(high)))
        middle = min(max(middle, low + 1), high - 1)

        excess = log_excess(middle)
        if excess > 0.0:
            low = middle
            low_excess = excess
            high_excess *= 0.5 if previous_sign > 0.0 else 1.0
        else:
            high = middle
            high_excess = excess
            low_excess *= 0.5 if previous_sign < 0.0 else 1.0
        previous_sign = 1.0 if excess > 0.0 else -1.0

    return high
