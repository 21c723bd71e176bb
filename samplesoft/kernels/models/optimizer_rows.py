"""Steps of the optimizers over the rows of a parameter that have a gradient, in one pass each.

``ids`` (k,) are the rows, ascending and each once, `gradients` (k, d) their gradients; `parameters`
(n, d) and the state of the optimizer, of the same shape, change in place. All numbers come in the
type of the parameters, so that float32 stays float32.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import IntArray

Rows = NDArray[Any]


@njit
def sgd_rows(ids: IntArray, gradients: Rows, parameters: Rows, rate: float) -> None:
    """Step against the gradient."""
    for i in range(len(ids)):
        gradient, row = gradients[i], parameters[ids[i]]
        for c in range(len(row)):
            row[c] -= rate * gradient[c]


@njit
def momentum_rows(
    ids: IntArray,
    gradients: Rows,
    parameters: Rows,
    velocities: Rows,
    momentum: float,
    of_gradient: float,
    of_velocity: float,
) -> None:
    """Add to a sum of gradients that decays by `momentum`; step against a mixture of the two."""
    for i in range(len(ids)):
        gradient, row, velocity = gradients[i], parameters[ids[i]], velocities[ids[i]]
        for c in range(len(row)):
            velocity[c] = momentum * velocity[c] + gradient[c]
            row[c] -= of_gradient * gradient[c] + of_velocity * velocity[c]


@njit
def adagrad_rows(
    ids: IntArray,
    gradients: Rows,
    parameters: Rows,
    squares: Rows,
    rate: float,
    epsilon: float,
    initial: float,
) -> None:
    """Step by the gradient over the root of `initial` and the squares of all gradients so far."""
    for i in range(len(ids)):
        gradient, row, square = gradients[i], parameters[ids[i]], squares[ids[i]]
        for c in range(len(row)):
            square[c] += gradient[c] * gradient[c]
            row[c] -= rate * gradient[c] / (sqrt(initial + square[c]) + epsilon)


@njit
def adam_rows(
    ids: IntArray,
    gradients: Rows,
    parameters: Rows,
    firsts: Rows,
    seconds: Rows,
    rate: float,
    new_first: float,
    new_second: float,
    correction: float,
    epsilon: float,
) -> None:
    """Step by the mean of gradients over the root of the mean of their squares.

    `new_first` and `new_second` are what a new gradient weighs in the means, 1 - beta; `rate` and
    `correction` hold the corrections of the bias of the first mean and of the root of the second.
    """
    for i in range(len(ids)):
        j = ids[i]
        gradient, row, first, second = gradients[i], parameters[j], firsts[j], seconds[j]
        for c in range(len(row)):
            g = gradient[c]
            # in this order, and not as a step towards g, a beta of 0 leaves nothing of the old
            first[c] = (first[c] - new_first * first[c]) + new_first * g
            second[c] = (second[c] - new_second * second[c]) + new_second * g * g
            row[c] -= rate * first[c] / (correction * sqrt(second[c]) + epsilon)


@njit
def are_rows(ids: IntArray, num_rows: int) -> bool:
    """Tell whether `ids` ascend, each once, within ``range(num_rows)``."""
    last = -1
    for j in ids:
        if j <= last:
            return False
        last = j
    return last < num_rows


@njit
def count_beyond(values: Rows, limit: float) -> int:
    """Count the entries of `values` (k,) that are NaN or greater than `limit` in absolute value."""
    count = 0
    for i in range(len(values)):
        count += 0 if abs(values[i]) <= limit else 1
    return count


@njit
def count_beyond_in_rows(table: Rows, ids: IntArray, limit: float) -> int:
    """Count as `count_beyond` in the rows `ids` (k,) of a table, without a copy of them."""
    count = 0
    for i in ids:
        count += count_beyond(table[i], limit)
    return count


@njit_sum
def sum_squares(values: Rows, scale: float) -> float:
    """Return the sum of the squares of ``scale * values`` (k,) in float64."""
    total = 0.0
    for i in range(len(values)):
        scaled = scale * np.float64(values[i])
        total += scaled * scaled
    return total


@njit
def multiply(values: Rows, factor: float) -> None:
    """Multiply `values` (k,) by a float64 that may be too small for their type."""
    for i in range(len(values)):
        values[i] = np.float64(values[i]) * factor
