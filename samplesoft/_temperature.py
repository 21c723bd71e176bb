"""Default values of the inverse temperature tau, and products with it."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._limits import ignore_overflow
from samplesoft._validation import as_positive

TAU_OF_UNIT_VECTORS = 10.0  # cosines span [-1, 1], too small a range for a softmax
TAU_OF_OTHER_VECTORS = 1.0  # logits are dot products; the model has learned the norms
_MIN_SQUARABLE = 1e-150  # smallest magnitude whose square is not 0 in float64


def as_tau(value: float | None, unit_vectors: bool) -> float:
    """Return a `tau` argument as a finite float greater than 0; None means the default.

    `unit_vectors` is True if class vectors and contexts have norm 1 or are normalised.
    """
    if value is not None:
        return as_positive("tau", value)
    return TAU_OF_UNIT_VECTORS if unit_vectors else TAU_OF_OTHER_VECTORS


def tau_of_classes(num_classes: int) -> float:
    """Return the inverse temperature for n classes with learned vectors of norm 1.

    With tau = 1.5 log n, a class with cosine 1 has the probability
    ``1 / (1 + (n - 1) n**-1.5) > 1 - n**-0.5`` if all other cosines are 0. With tau = 10 it would
    be 0.3 for 50,000 classes.
    """
    return max(TAU_OF_UNIT_VECTORS, 1.5 * log(num_classes))


def times_tau(rows: NDArray[Any], tau: float) -> NDArray[Any]:
    """Return rows (B, d) times tau in the dtype of the rows; products may overflow to infinity."""
    if tau == 1.0:
        return rows
    with ignore_overflow():  # callers check their scores
        # a scalar of the same dtype keeps the product in that dtype
        factor = rows.dtype.type(tau)
        if not np.isfinite(factor):
            raise ValueError(
                f"`tau` must be finite in {rows.dtype}, the type of the vectors, got {tau:g}; "
                "lower it, or use float64."
            )
        product: NDArray[Any] = rows * factor
    return product


def require_squares(class_embeddings: NDArray[Any], tau: float) -> None:
    """Raise ValueError if the square of `tau`, or of an entry of ``tau * c``, is out of range."""
    if not _MIN_SQUARABLE <= tau <= 1.0 / _MIN_SQUARABLE:
        raise ValueError(
            f"`tau` must lie from {_MIN_SQUARABLE:g} to {1.0 / _MIN_SQUARABLE:g}, because its "
            f"square is needed, got {tau:g}; scale the class vectors."
        )
    largest = tau * float(np.abs(class_embeddings).max())
    if not (largest == 0.0 or _MIN_SQUARABLE <= largest <= 1.0 / _MIN_SQUARABLE):
        raise ValueError(
            f"`class_embeddings` times tau must lie from {_MIN_SQUARABLE:g} to "
            f"{1.0 / _MIN_SQUARABLE:g} in size, because their squares are needed, got "
            f"{largest:g}; scale them."
        )


def have_unit_norm(*matrices: NDArray[Any]) -> bool:
    """Return whether all nonzero rows have norm 1 to within 1e-3, the tolerance of the samplers.

    Rows of zeros are allowed, because normalisation leaves them unchanged; but not all rows may be
    zero.
    """
    norms = [np.linalg.norm(m, axis=1) for m in matrices]
    nonzero = np.concatenate([row_norms[row_norms != 0.0] for row_norms in norms])
    return len(nonzero) > 0 and bool(np.abs(nonzero - 1.0).max() <= 1e-3)
