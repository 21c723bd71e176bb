"""What an update is, and the errors for one that is refused before anything changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray, as_nonnegative

Array = NDArray[Any]

LARGEST = {np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)}
_ROOM = 2.0**-10  # a million of the largest squares have a finite sum
_SMALLEST = 1e-37  # a number of float32 with all its digits


class Update(NamedTuple):
    """A parameter and its gradient, both C-contiguous and of one type, as kernels take them."""

    name: str
    parameter: Array
    ids: IntArray | None  # (k,): the rows that have a gradient; None for all
    rows: Array  # (k, d): the gradient, or (1, parameter.size) where `ids` is None


def greatest(dtype: np.dtype[Any], squares: bool) -> float:
    """Return how large a number of a gradient may be, of which squares may be added up."""
    limit = LARGEST[dtype]
    # an infinite sum of squares would end all learning of its entry, without a word
    return limit**0.5 * _ROOM if squares else limit


def wrong_shape(
    name: str, got: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...], ids: Any
) -> ValueError:
    """Return the error for a gradient that has not the shape of its parameter."""
    rows = "" if ids is None else f" and there are {ids.shape[0]} ids"
    return ValueError(
        f"`gradients` must have shape {shape} for {name!r}, got {got}; the parameter has shape "
        f"{whole}{rows}."
    )


def too_large(name: str, worst: Any, limit: float, dtype: np.dtype[Any]) -> ValueError:
    """Return the error for a gradient with a number that is too large for a step."""
    return ValueError(
        f"`gradients` must be finite, and at most {limit:.2g} for a {dtype} parameter, got {worst} "
        f"for {name!r}; clip it, or look for the first step that is too large."
    )


def not_finite(name: str) -> ValueError:
    """Return the error for a parameter that a step would not bring back."""
    return ValueError(
        f"`parameters` must be finite, got NaN or infinity in a row of {name!r} that has a "
        "gradient; training has diverged: go back to a checkpoint, and lower the learning rate."
    )


def rows_out_of_order(name: str, ids: IntArray, num: int) -> ValueError:
    """Return the error for ids that are not rows of a parameter, each once."""
    return ValueError(
        f"`gradients` must have ids that ascend, each once, in 0..{num - 1} for {name!r}, got "
        f"{ids[:5].tolist()}{'...' if len(ids) > 5 else ''}; add up rows that have the same id "
        "first."
    )


def as_epsilon(name: str, value: Any) -> float:
    """Return `value` as a float that is greater than 0 in float32 too."""
    number = as_nonnegative(name, value)
    if number < _SMALLEST:
        raise ValueError(f"`{name}` must be at least {_SMALLEST}, got {value}; 1e-8 is usual.")
    return number
