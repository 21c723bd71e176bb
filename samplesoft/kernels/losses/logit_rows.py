"""The weights of a row of logits, as the terms of all losses need them."""

from __future__ import annotations

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import exp_to

_LEAST = 5e-324  # what `exp_to` gives for all that is too small


@njit
def weigh(x: FloatArray) -> None:
    """Replace each of `x`, at most 0, by its exponential; what is too small has no weight."""
    exp_to(x, len(x))
    for i in range(len(x)):
        x[i] = x[i] if x[i] > _LEAST else 0.0
