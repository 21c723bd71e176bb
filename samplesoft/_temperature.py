"""The one rule for an inverse temperature tau that is left out."""

from __future__ import annotations

from samplesoft._validation import as_positive

TAU_OF_UNIT_VECTORS = 10.0  # dot products of unit vectors span [-1, 1], too little for a softmax
TAU_OF_OTHER_VECTORS = 1.0  # the model has chosen the lengths, and the logits are dot products


def as_tau(value: float | None, unit_vectors: bool) -> float:
    """Return a `tau` argument as a finite float greater than 0; None stands for the default.

    `unit_vectors` says that class vectors and contexts have norm 1, or are divided by their norms.
    """
    if value is not None:
        return as_positive("tau", value)
    return TAU_OF_UNIT_VECTORS if unit_vectors else TAU_OF_OTHER_VECTORS
