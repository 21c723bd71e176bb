"""The gates of one LSTM step, forward and backward, in loops that vectorise.

The pre-activations of a row stand in the order input, forget, output, candidate (i, f, o, g), so
that the three that pass a sigmoid are neighbours.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call
Numbers = tuple[np.floating[Any], ...]


def _terms(
    dtype: type[np.floating[Any]], degree: int, *reduction: float
) -> tuple[Numbers, Numbers]:
    """Return `reduction` and the Taylor coefficients of exp(r) from that of r**2."""
    coefficients = (1.0 / factorial(k) for k in range(2, degree + 1))
    return tuple(dtype(v) for v in reduction), tuple(dtype(c) for c in coefficients)


# log 2 as a part with trailing zeros, whose multiples are exact, and the rest; then the largest
# |x| whose exponential fits. A further coefficient would add < 6e-9, < 5e-18 at r = log(2) / 2.
TERMS: dict[np.dtype[Any], tuple[Numbers, Numbers]] = {
    np.dtype(np.float32): _terms(np.float32, 7, 0.693359375, -2.12194440e-4, 87.0),
    np.dtype(np.float64): _terms(
        np.float64, 13, 0.693147180369123816490, 1.90821492927058770002e-10, 708.0
    ),
}


@njit
def _expm1(x: Any, number: Any, reduction: Numbers, taylor: Numbers) -> Any:
    """Return exp(x) - 1 in the type `number`, for `x` cut to the range of the terms."""
    high, low, limit = reduction
    x = limit if x > limit else (-limit if x < -limit else x)  # NaN stays, unlike in min and max
    k = np.rint(x * number(1.4426950408889634))
    r = (x - k * high) - k * low
    p = taylor[-1]
    for i in range(len(taylor) - 2, -1, -1):
        p = p * r + taylor[i]
    power = number(np.int64((np.int64(k) + 1023) << 52).view(np.float64))  # 2**k
    return power * (r + r * r * p) + (power - number(1.0))


@njit
def _sigmoid(x: Floats, terms: tuple[Numbers, Numbers]) -> None:
    number = x.dtype.type
    for j in range(len(x)):
        e = _expm1(-x[j], number, terms[0], terms[1])
        x[j] = number(1.0) / (number(2.0) + e)


@njit
def _tanh(x: Floats, terms: tuple[Numbers, Numbers]) -> None:
    number = x.dtype.type
    for j in range(len(x)):
        e = _expm1(x[j] + x[j], number, terms[0], terms[1])
        x[j] = e / (number(2.0) + e)


@njit
def gates_forward(
    t: int,
    first: int,
    recurrent: Floats,
    bias: Floats,
    gates: Floats,
    cells: Floats,
    tanh_cells: Floats,
    hidden: Floats,
    terms: tuple[Numbers, Numbers],
) -> None:
    """Take step `t` of some rows of the batch, from `first` on: from pre-activations to the states.

    `gates` (T, B, 4H) hold the inputs times their weights, to which `recurrent` (rows, 4H), the
    same of the last hidden states, and `bias` (4H,) are added; row t becomes the gates. `cells` and
    `hidden` (T + 1, B, H) hold the states before step t in row t; row t + 1 is written, and row t
    of `tanh_cells` (T, B, H). `terms` is the entry of `TERMS` for the type.
    """
    size = hidden.shape[2]
    for k in range(len(recurrent)):
        b = first + k
        row, added = gates[t, b], recurrent[k]
        for j in range(4 * size):
            row[j] += added[j] + bias[j]
        _sigmoid(row[: 3 * size], terms)
        i, f, o, g = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
        _tanh(g, terms)
        old, cell = cells[t, b], cells[t + 1, b]
        for j in range(size):
            cell[j] = f[j] * old[j] + i[j] * g[j]
        squashed, out = tanh_cells[t, b], hidden[t + 1, b]
        squashed[:] = cell
        _tanh(squashed, terms)
        for j in range(size):
            out[j] = o[j] * squashed[j]


@njit
def gates_backward(
    t: int,
    first: int,
    dy: Floats,
    recurrent: Floats,
    gates: Floats,
    cells: Floats,
    tanh_cells: Floats,
    d_cells: Floats,
    d_gates: Floats,
) -> None:
    """Go back through step `t` of some rows, from `first` on: from outputs to pre-activations.

    `dy` (T, B, H) are derivatives in the outputs; `recurrent` and `d_cells` (rows, H) those in
    hidden states and cells after step t by way of step t + 1. `d_cells` become those before the
    step, and row t of `d_gates` (T, B, 4H) is written. The others are as `gates_forward` left them.
    """
    number = gates.dtype.type
    one = number(1.0)
    size = dy.shape[2]
    for k in range(len(recurrent)):
        b = first + k
        row, d_row, d_cell = gates[t, b], d_gates[t, b], d_cells[k]
        i, f, o, g = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
        d_out, later, squashed = dy[t, b], recurrent[k], tanh_cells[t, b]
        d_o = d_row[2 * size : 3 * size]
        for j in range(size):  # short loops over few arrays: more of them would not vectorise
            d_hidden = d_out[j] + later[j]
            d_cell[j] += d_hidden * o[j] * (one - squashed[j] * squashed[j])
            d_o[j] = d_hidden * squashed[j] * o[j] * (one - o[j])
        d_i, d_g = d_row[:size], d_row[3 * size :]
        for j in range(size):
            d_i[j] = d_cell[j] * g[j] * i[j] * (one - i[j])
            d_g[j] = d_cell[j] * i[j] * (one - g[j] * g[j])
        d_f, old = d_row[size : 2 * size], cells[t, b]
        for j in range(size):
            d_f[j] = d_cell[j] * old[j] * f[j] * (one - f[j])
            d_cell[j] *= f[j]
