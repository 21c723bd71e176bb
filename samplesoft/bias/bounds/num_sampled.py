"""The least number of draws whose bias is below a wanted one, by a search."""

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

_SMALLEST_NORM = 1e-300


@dataclass(frozen=True)
class NumSampled:
    """Numbers of draws m that keep the L1 norm of the bias at or below a given number.

    Attributes
    ----------
    exact : int or ndarray of int, shape (B,)
        The least m, by `samplesoft.exact_bias`.
    guaranteed : int or ndarray of int, shape (B,)
        An m for which `samplesoft.finite_sample_bounds` prove it, the least that was found.
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
    """Return how many draws it takes for the bias to have an L1 norm of at most ``bias``.

    More draws than either number have a bias of at most ``bias``, too.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    bias : float
        Wanted ``sum_i |E[p'_i] - p_i|``, in probability, greater than 0; it is never above 2.
    scheme : str
        ``negatives`` or ``masked``, those that have bounds.

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
    The L1 norm of the bias does not rise with m: section 14 of ``samplesoft/bias/README.md`` has a
    proof. So a search that brackets the least m finds it; it takes some ten values of
    `samplesoft.exact_bias`, and as many of the bounds. Where two numbers of draws next to each
    other differ by less than the numerical error of the bias, either may come out.

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
    # with two draws, which every scheme allows, so that a scheme is refused for what it is
    inputs = check_inputs(logits, labels, q, 2, scheme, h, require=require_bounds)
    wanted = as_positive("bias", bias)
    rows = [_search(row, inputs.scheme, wanted) for row in inputs.rows()]
    return NumSampled(*inputs.columns(rows))


def _search(example: Example, scheme: Scheme, wanted: float) -> tuple[int, int]:
    """Return both numbers of draws of one example."""

    def exact(m: int) -> float:
        return float(np.abs(with_replacement_bias(*example, m, scheme).bias).sum())

    def bound(m: int) -> float:
        lower, upper = example_bounds(make_draws(*example, m, scheme))
        # the biases sum to 0: twice the sum of either sign is their norm
        return 2.0 * float(min(np.maximum(upper, 0.0).sum(), np.maximum(-lower, 0.0).sum()))

    least = least_num_sampled(exact, 1, wanted)
    return least, least_num_sampled(bound, least, wanted)


def least_num_sampled(norm: Callable[[int], float], first: int, wanted: float) -> int:
    """Return the least m from `first` on with ``norm(m) <= wanted``, for a norm that falls.

    The norm is nearly a multiple of 1/m, so the search is for a root of its logarithm in log m, by
    the Illinois rule.
    """

    def excess(m: int) -> float:
        return math.log(max(norm(m), _SMALLEST_NORM)) - math.log(wanted)

    low, above = first, excess(first)
    if above <= 0.0:
        return first
    high, below = low, above
    while below > 0.0:
        low, above = high, below
        high = max(2 * low, math.ceil(low * math.exp(min(above, 50.0))))
        if high > LARGEST_COUNT:
            raise ValueError(
                f"`bias` must be one that {LARGEST_COUNT:.0e} draws can reach, got {wanted:g}; "
                "give a larger one."
            )
        below = excess(high)
    last = 0.0
    while high - low > 1:
        part = above / (above - below)
        middle = round(math.exp((1.0 - part) * math.log(low) + part * math.log(high)))
        middle = min(max(middle, low + 1), high - 1)
        now = excess(middle)
        if now > 0.0:
            low, above = middle, now
            below *= 0.5 if last > 0.0 else 1.0
        else:
            high, below = middle, now
            above *= 0.5 if last < 0.0 else 1.0
        last = 1.0 if now > 0.0 else -1.0
    return high
