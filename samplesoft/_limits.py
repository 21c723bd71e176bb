"""Ends of the range of float64 that formulas keep clear of, and what happens beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
LARGEST_EXPONENT = 700.0  # exp of it is finite, of minus it not 0; what lies beyond is cut to it
FAR = 2.0**26  # a logit whose sum with a number about 1 keeps half of the digits of that


# as a decorator, for functions whose callers look at the result: less to do than in `quiet`
quietly = np.errstate(over="ignore", invalid="ignore")


@quietly
def call_quietly(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns, for callers that look at it."""
    return function(*arguments)


def quiet() -> np.errstate:
    """Leave out NumPy's warnings of overflow, for callers look at the result.

    Whoever has asked for errors in their place, as training does to see that it diverges, has them.
    """
    asked = dict(np.geterr())
    kinds = ("over", "invalid")
    kept: dict[str, Any] = {k: "raise" if asked[k] == "raise" else "ignore" for k in kinds}
    return np.errstate(**kept)
