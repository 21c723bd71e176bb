"""Limits of exponents and logits in float64, and contexts that silence overflow warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")

# exp(LARGEST_EXPONENT) is finite and exp(-LARGEST_EXPONENT) is not 0; larger exponents are clipped
LARGEST_EXPONENT = 700.0
# Magnitude of a logit at which a value near 1, if added to it, keeps half of its digits. Larger
# logits leave fewer digits.
FAR = 2.0**26


# Decorator for functions whose callers check that the result is finite. It is faster than
# `ignore_overflow`, and also turns off errors that a caller has turned on with np.errstate.
ignoring_overflow = np.errstate(over="ignore", invalid="ignore")


@ignoring_overflow
def call_ignoring_overflow(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``function(*arguments)``, computed without warnings of overflow.

    Callers should check that the result is finite.
    """
    return function(*arguments)


def ignore_overflow() -> np.errstate:
    """Return a context manager that silences NumPy's warnings of overflow and invalid operations.

    Callers should check the result. If NumPy is set to raise errors of overflow, it still does,
    because training detects divergence by these errors.
    """
    current = dict(np.geterr())
    kinds = ("over", "invalid")
    settings: dict[str, Any] = {k: "raise" if current[k] == "raise" else "ignore" for k in kinds}
    return np.errstate(**settings)
