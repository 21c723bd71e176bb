"""Validation of context and class vectors, their normalisation, and its gradient."""

from __future__ import annotations

import numpy as np

from samplesoft._device import cpu
from samplesoft._device.arrays import RemoteRows
from samplesoft._device.rows import unit_rows as unit_rows
from samplesoft._device.rows import unit_rows_backward as unit_rows_backward
from samplesoft.samplers.base import Rows


def checked_class_embeddings(value: object) -> Rows:
    """Return class vectors (n, d) in C order; only their type and shape are checked, not values."""
    return cpu.shaped_rows("class_embeddings", value)


def require_finite_rows(rows: Rows, first_class: int = 0) -> None:
    """Raise if class vectors (r, d) are not finite; row 0 belongs to the class `first_class`."""
    if isinstance(rows, RemoteRows):  # finite, because the other machines check every update
        return

    with np.errstate(over="ignore", invalid="ignore"):
        # the sum of all entries is fast, and allocates nothing; only if it is not finite, the rows
        # are checked one by one below
        if np.isfinite(rows.sum()):
            return

    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"`class_embeddings` must be finite, got row {first_class + int(finite.argmin())} that "
            "is not; training may have diverged: lower the learning rate, or clip gradients."
        )
