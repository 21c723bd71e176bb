"""Defaults and checks of the inverse temperature tau, and products of vectors with tau."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._limits import ignore_overflow
from samplesoft._validation import as_positive

TAU_OF_UNIT_VECTORS = 10.0  # cosines, from -1 to 1, would be too small as logits
TAU_OF_OTHER_VECTORS = 1.0  # inner products are used as logits, and the model learns the norms

_MIN_SQUARABLE = 1e-150  # float64 holds the squares of magnitudes from 1e-150 to 1e150


def as_tau(value: float | None, unit_vectors: bool) -> float:
    """Return the inverse temperature `value` as a finite float > 0, or the default for None.

    The default depends on `unit_vectors`, which is True if class vectors and contexts have norm 1
    or are normalised.
    """
    if value is not None:
        return as_positive("tau", value)
    return TAU_OF_UNIT_VECTORS if unit_vectors else TAU_OF_OTHER_VECTORS


def default_tau(num_classes: int) -> float:
    """Return the default inverse temperature for n classes with learned vectors of norm 1.

    It is ``max(10, 1.5 log n)``. With tau = 1.5 log n, a class with cosine 1 has the probability
    ``1 / (1 + (n - 1) n**-1.5) > 1 - n**-0.5`` if the cosines of all other classes are 0. With
    tau = 10 this probability would be only 0.3 for 50,000 classes.
    """
    return max(TAU_OF_UNIT_VECTORS, 1.5 * log(num_classes))


def times_tau(rows: NDArray[Any], tau: float) -> NDArray[Any]:
    """Return `rows` (B, d) times tau in the same dtype; the same array if tau is 1.

    Products may overflow to infinity. Raises ValueError if tau itself is infinite in the dtype.
    """
    if tau == 1.0:
        return rows
    with ignore_overflow():  # callers check that scores are finite
        # a scalar of the same dtype keeps the product in this dtype
        factor = rows.dtype.type(tau)
        if not np.isfinite(factor):
            raise ValueError(
                f"`tau` must be finite in {rows.dtype}, the type of the vectors, got {tau:g}; "
                "lower it, or use float64."
            )

        product: NDArray[Any] = rows * factor
    return product


def require_squarable(class_embeddings: NDArray[Any], tau: float) -> None:
    """Raise ValueError if squares of tau, or of vectors times tau, leave the range of float64.

    Of `class_embeddings`, only the largest magnitude is checked.
    """
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
    """Return whether the nonzero rows of all matrices have norm 1, to within 1e-3.

    1e-3 is also the tolerance of the samplers. Rows of zeros are ignored, because normalisation
    leaves them unchanged. The result is False if all rows are zero.
    """
    norms = [np.linalg.norm(m, axis=1) for m in matrices]
    nonzero = np.concatenate([row_norms[row_norms != 0.0] for row_norms in norms])
    return len(nonzero) > 0 and bool(np.abs(nonzero - 1.0).max() <= 1e-3)
