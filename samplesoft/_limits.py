"""Limits of the float64 range that formulas respect, and how overflow is silenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
# exp(LARGEST_EXPONENT) is finite and exp(-LARGEST_EXPONENT) is not 0; larger exponents are clipped
LARGEST_EXPONENT = 700.0
FAR = 2.0**26  # added to a logit of this size, a number near 1 keeps half of its digits


# Decorator for functions whose callers check that the result is finite. Cheaper than
# `ignore_overflow`, which respects errors that a caller has asked for.
ignoring_overflow = np.errstate(over="ignore", invalid="ignore")


@ignoring_overflow
def call_ignoring_overflow(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``function(*arguments)``; for callers that check that the result is finite."""
    return function(*arguments)


def ignore_overflow() -> np.errstate:
    """Silence NumPy's overflow warnings, because callers check the result.

    Errors stay errors where a caller has asked for them, as training does to detect divergence.
    """
    current = dict(np.geterr())
    kinds = ("over", "invalid")
    settings: dict[str, Any] = {k: "raise" if current[k] == "raise" else "ignore" for k in kinds}
    return np.errstate(**settings)
