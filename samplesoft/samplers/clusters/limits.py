"""Sizes of contexts beyond which the masses of cells would overflow."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_logits(bound: float, row: int, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if a `bound` on the logits of a row of contexts is out of range."""
    if not bound < np.finfo(dtype).max:
        raise ValueError(
            f"`h` must have logits and squares of them within the range of {dtype}, got up "
            f"to {bound:.3g} for row {row}; scale the vectors down, or use float64."
        )
