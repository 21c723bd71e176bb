"""The one rule for an inverse temperature tau that is left out, and the product with one."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._limits import quiet
from samplesoft._validation import as_positive

TAU_OF_UNIT_VECTORS = 10.0  # dot products of unit vectors span [-1, 1], too little for a softmax
TAU_OF_OTHER_VECTORS = 1.0  # the model has chosen the lengths, and the logits are dot products
_LEAST_SIZE = 1e-150  # what has a square in float64


def as_tau(value: float | None, unit_vectors: bool) -> float:
    """Return a `tau` argument as a finite float greater than 0; None stands for the default.

    `unit_vectors` says that class vectors and contexts have norm 1, or are divided by their norms.
    """
    if value is not None:
        return as_positive("tau", value)
    return TAU_OF_UNIT_VECTORS if unit_vectors else TAU_OF_OTHER_VECTORS


def tau_of_classes(num_classes: int) -> float:
    """Return an inverse temperature for n classes and vectors of norm 1 that a model learns.

    With 1.5 log n a class at a cosine of 1, all others being at 0, has a probability of
    ``1 / (1 + (n - 1) n**-1.5)``, above ``1 - n**-0.5``, where 10 gives it 0.3 of 50,000.
    """
    return max(TAU_OF_UNIT_VECTORS, 1.5 * log(num_classes))


def times_tau(rows: NDArray[Any], tau: float) -> NDArray[Any]:
    """Return rows (B, d) times tau, in their type; infinite where that is too large for it."""
    if tau == 1.0:
        return rows
    with quiet():  # callers look at the scores that they get
        # in the type of the rows, whose products stay in it
        factor = rows.dtype.type(tau)
        if not np.isfinite(factor):
            raise ValueError(
                f"`tau` must be finite in {rows.dtype}, the type of the vectors, got {tau:g}; "
                "lower it, or use float64."
            )
        product: NDArray[Any] = rows * factor
    return product


def require_squares(class_embeddings: NDArray[Any], tau: float) -> None:
    """Raise ValueError where ``tau c``, in whose squares moments are measured, has none."""
    if not _LEAST_SIZE <= tau <= 1.0 / _LEAST_SIZE:
        raise ValueError(
            f"`tau` must lie from {_LEAST_SIZE:g} to {1.0 / _LEAST_SIZE:g}, for its square is "
            "needed, got "
            f"{tau:g}; scale the class vectors."
        )
    largest = tau * float(np.abs(class_embeddings).max())
    if not (largest == 0.0 or _LEAST_SIZE <= largest <= 1.0 / _LEAST_SIZE):
        raise ValueError(
            f"`class_embeddings` times tau must lie from {_LEAST_SIZE:g} to "
            f"{1.0 / _LEAST_SIZE:g} in size, "
            f"for their squares are needed, got {largest:g}; scale them."
        )


def have_unit_norm(*matrices: NDArray[Any]) -> bool:
    """Return whether all rows have norm 1, to 1e-3 as the samplers ask; or 0, but not all of them.

    Rows of zeros are as they were before they were divided by their norms.
    """
    norms = [np.linalg.norm(m, axis=1) for m in matrices]
    some = np.concatenate([of_rows[of_rows != 0.0] for of_rows in norms])
    return len(some) > 0 and bool(np.abs(some - 1.0).max() <= 1e-3)
