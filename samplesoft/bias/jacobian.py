"""The Jacobian of the logits: checking it, and carrying class weights through it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_real_array


def check_jacobian(jacobian: ArrayLike, logits_shape: tuple[int, ...]) -> FloatArray:
    """Return a float64 Jacobian (n, P), or (B, n, P), that fits logits of shape (n,) or (B, n)."""
    array = as_real_array("jacobian", jacobian, (2, 3) if len(logits_shape) == 2 else (2,))
    wanted = logits_shape if array.ndim == 3 else logits_shape[-1:]
    if array.shape[:-1] != wanted:
        expected = "(n, P)" if len(logits_shape) == 1 else "(n, P) or (B, n, P)"
        raise ValueError(
            f"`jacobian` of shape {array.shape} does not match `logits` of shape {logits_shape}; "
            f"give the derivatives of all logits, {expected}, one column for each parameter."
        )
    return array


def with_room(jacobian: FloatArray) -> tuple[FloatArray, int]:
    """Return ``jacobian / 2**k`` and k, so that sums over classes of what is at most 1 are finite.

    Far from the end of float64 k is 0, and the Jacobian is itself.
    """
    largest = int(np.frexp(np.abs(jacobian).max())[1])
    excess = max(largest + jacobian.shape[-2].bit_length() + 2 - 1023, 0)
    return (np.ldexp(jacobian, -excess) if excess else jacobian), excess


def times_power(numbers: FloatArray, exponent: int) -> FloatArray:
    """Return ``numbers * 2**exponent``, infinite where that is too large."""
    with np.errstate(over="ignore"):
        product: FloatArray = np.ldexp(numbers, exponent)
    return product


def contract(weights: FloatArray, jacobian: FloatArray) -> FloatArray:
    """Return ``sum_i weights_i * jacobian_i``: (P,) for weights (n,), (B, P) for (B, n)."""
    if jacobian.ndim == 2:
        product: FloatArray = weights @ jacobian
    else:
        product = np.matmul(weights[:, None, :], jacobian)[:, 0, :]
    return product
