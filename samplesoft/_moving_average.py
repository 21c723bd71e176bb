"""Checks of the arguments of moving averages, which losses and bias functions share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import (
    FloatArray,
    as_array,
    as_fraction,
    as_positive,
    as_real_array,
    short_repr,
)

DEFAULT_GAMMA = 0.5  # weight of the new draws in a running estimate


def as_moving_average(
    gamma: Any, alpha: Any, *, alpha_name: str = "alpha"
) -> tuple[float | None, float | None]:
    """Return checked `gamma` and `alpha`, one of which is None; without either, the default.

    `alpha_name` is the name of the argument `alpha` in errors.
    """
    if gamma is not None and alpha is not None:
        raise ValueError(
            f"`{alpha_name}` must be left out where `gamma` is given, got {short_repr(alpha)} and "
            f"{short_repr(gamma)}; both say how fast the running estimate moves."
        )
    if alpha is not None:
        return None, as_positive(alpha_name, alpha)
    rate = as_fraction("gamma", DEFAULT_GAMMA if gamma is None else gamma)
    return as_positive("gamma", rate), None


def as_log_sums(name: str, value: ArrayLike) -> FloatArray:
    """Return log-sums (B,) as float64 numbers, which may be -inf; raise if they are malformed."""
    array = as_array(name, value)
    if array.dtype.kind == "f":
        is_new = np.isneginf(array)
        return np.where(is_new, -np.inf, as_real_array(name, np.where(is_new, 0.0, array), (1,)))
    return as_real_array(name, array, (1,))
