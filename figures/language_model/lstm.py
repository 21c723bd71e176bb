"""Layers of long short-term memory, with backpropagation through time written out."""

from __future__ import annotations

from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from language_model.layers import (
    Dropout,
    ParameterGradients,
    Parameters,
    as_init_scale,
    check_array,
    check_finite,
)
from language_model.step_products import column_pieces, products, row_parts
from samplesoft._jit import njit, thread_for_each
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_memory
from samplesoft._random import mix64, stream_key
from samplesoft._validation import as_count, as_flag, as_nonnegative
from samplesoft.models.linear import as_float_dtype, require_finite_outputs, uniform_weights

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call
Numbers = tuple[np.floating[Any], ...]
State = tuple[Floats, Floats]


class _Run(NamedTuple):
    """The steps of one layer: its input, and what `gates_forward` wrote."""

    x: Floats
    factors: Floats | None  # of the dropout of its input
    gates: Floats
    cells: Floats
    tanh_cells: Floats
    hidden: Floats


class LSTM:
    r"""Layers of long short-term memory with dropout between them.

    One layer takes, from inputs :math:`x_t` and its own state,

    .. math:: i, f, o, g = \sigma, \sigma, \sigma, \tanh(x_t W + h_{t-1} U + b), \quad
       c_t = f c_{t-1} + i g, \quad h_t = o \tanh c_t.

    Parameters
    ----------
    input_size : int
        Length d of the inputs.
    hidden_size : int
        Length H of the outputs of each layer.
    num_layers : int
        Layers, each of which reads the outputs of the one below.
    dropout : float
        Probability in [0, 1) to drop an output on its way to the next layer, in training. What
        goes from step to step is never dropped, nor are the inputs and the last outputs: see
        `Dropout` for those.
    init_scale : float, optional
        All weights and biases start uniform in [-init_scale, init_scale]; 1 / sqrt(H) if None.
    dtype : dtype
        float32 or float64: that of inputs, outputs and parameters.
    rng : int or numpy.random.Generator or None
        Source of the weights.

    Attributes
    ----------
    parameters : dict of str to ndarray
        For layer l from 0, ``input_l`` (d or H, 4H), ``recurrent_l`` (H, 4H) and ``bias_l`` (4H,),
        with columns in the order i, f, o, g.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many weights do not fit.

    References
    ----------
    Hochreiter and Schmidhuber (1997), Long Short-Term Memory; Zaremba, Sutskever and Vinyals
    (2014), Recurrent Neural Network Regularization, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> lstm = LSTM(3, 2, num_layers=2, rng=0)
    >>> x = np.ones((5, 4, 3), np.float32)
    >>> y, state, cache = lstm.forward(x)
    >>> y.shape, state[0].shape
    ((5, 4, 2), (2, 4, 2))
    >>> dx, gradients = lstm.backward(cache, np.ones_like(y))
    >>> dx.shape, gradients["recurrent_1"].shape
    ((5, 4, 3), (2, 8))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        dropout: float = 0.0,
        init_scale: float | None = None,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.input_size = as_count("input_size", input_size)
        self.hidden_size = as_count("hidden_size", hidden_size)
        self.num_layers = as_count("num_layers", num_layers)
        self.dropout = Dropout(as_nonnegative("dropout", dropout, below=1.0))
        self.dtype = as_float_dtype(dtype)
        scale = as_init_scale(init_scale, self.hidden_size)
        key, width = stream_key(rng), 4 * self.hidden_size
        numbers = width * (self.input_size + 2 * self.num_layers * self.hidden_size)
        require_memory("hidden_size", self.hidden_size, self.dtype.itemsize * numbers)
        self.parameters: Parameters = {}
        for layer in range(self.num_layers):
            size = self.hidden_size if layer else self.input_size
            shapes = {"input": (size, width), "recurrent": (self.hidden_size, width)}
            for name, shape in {**shapes, "bias": (width,)}.items():
                stream = np.uint64(mix64(key, np.uint64(len(self.parameters))))
                self.parameters[f"{name}_{layer}"] = uniform_weights(
                    shape, scale, self.dtype, stream
                )

    def forward(
        self,
        x: Floats,
        state: State | None = None,
        *,
        rng: int | np.random.Generator | None = None,
        training: bool = False,
    ) -> tuple[Floats, State, list[_Run]]:
        """Run over T steps of B sequences.

        Parameters
        ----------
        x : ndarray, shape (T, B, d)
            Inputs, finite.
        state : tuple of ndarray, each of shape (num_layers, B, H), optional
            Hidden states and cells before the first step; zeros if None.
        rng : int or numpy.random.Generator or None
            Source of the dropout masks: the same seed gives the same masks.
        training : bool
            Whether to drop.

        Returns
        -------
        y : ndarray, shape (T, B, H)
            Outputs of the last layer; part of the cache, so change it only after `backward`.
        state : tuple of ndarray, each of shape (num_layers, B, H)
            Hidden states and cells after the last step, in arrays of their own.
        cache : list
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong shape or type, or is not finite.
        """
        check_array("x", x, (None, None, self.input_size), self.dtype)
        check_finite("x", x)
        as_flag("training", training)
        shape = (self.num_layers, x.shape[1], self.hidden_size)
        if state is None:
            state = np.zeros(shape, self.dtype), np.zeros(shape, self.dtype)
        _check_state(state, shape, self.dtype)
        key = stream_key(rng)
        # in one piece: the system hands out, and takes back, several of this size page by page
        spaces = np.empty((self.num_layers, 7 * len(x) + 2, *shape[1:]), self.dtype)
        below, runs = np.ascontiguousarray(x), []
        for layer, space in enumerate(spaces):
            factors = None
            if layer:
                seed = int(mix64(key, np.uint64(layer)))
                below, factors = self.dropout.forward(below, rng=seed, training=training)
            run = _Run(below, factors, *_divide(space))
            run.hidden[0], run.cells[0] = state[0][layer], state[1][layer]
            self._take_steps(layer, run)
            below = run.hidden[1:]
            runs.append(run)
        require_finite_outputs(below)
        last = np.stack([run.hidden[-1] for run in runs]), np.stack([run.cells[-1] for run in runs])
        return below, last, runs

    def _take_steps(self, layer: int, run: _Run) -> None:
        weights, recurrent, bias = self._parameters_of(layer)
        steps, batch, width = run.gates.shape
        products([(_matrix(run.x), weights, _matrix(run.gates))])

        def take(rows: slice) -> None:
            product = np.empty((rows.stop - rows.start, width), self.dtype)
            pieces = column_pieces(recurrent, product)
            for t in range(steps):
                with ignore_overflow():
                    for piece, place in pieces:
                        np.matmul(run.hidden[t, rows], piece, out=place)
                gates_forward(
                    t,
                    rows.start,
                    product,
                    bias,
                    run.gates,
                    run.cells,
                    run.tanh_cells,
                    run.hidden,
                    TERMS[self.dtype],
                )

        thread_for_each(take, row_parts(batch, recurrent))

    def backward(self, cache: list[_Run], dy: Floats) -> tuple[Floats, ParameterGradients]:
        """Go back through all steps that `forward` took, and no further."""
        check_array("dy", dy, cache[-1].tanh_cells.shape, self.dtype)
        gradients: ParameterGradients = {}
        d_gates = np.empty_like(cache[0].gates)
        rows = _matrix(d_gates)
        for layer, run in reversed(list(enumerate(cache))):
            weights, recurrent, _ = self._parameters_of(layer)
            _go_back(run, recurrent, np.ascontiguousarray(dy), d_gates)
            d_input, d_recurrent = np.empty_like(weights), np.empty_like(recurrent)
            dx = np.empty(run.x.shape, self.dtype)
            products(
                [
                    (_matrix(run.x).T, rows, d_input),
                    (_matrix(run.hidden[:-1]).T, rows, d_recurrent),
                    (rows, weights.T, _matrix(dx)),
                ]
            )
            gradients[f"input_{layer}"] = d_input
            gradients[f"recurrent_{layer}"] = d_recurrent
            gradients[f"bias_{layer}"] = rows.sum(axis=0)
            dy, _ = self.dropout.backward(run.factors, dx)
        return dy, gradients

    def _parameters_of(self, layer: int) -> tuple[Floats, Floats, Floats]:
        input_, recurrent, bias = (
            self.parameters[f"{name}_{layer}"] for name in ("input", "recurrent", "bias")
        )
        return input_, recurrent, bias


def _divide(space: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Divide 7 T + 2 blocks (B, H) into gates, cells, tanh of cells and hidden states."""
    steps = len(space) // 7
    gates, cells, tanh_cells, hidden = np.split(space, np.cumsum([4 * steps, steps + 1, steps]))
    return gates.reshape(steps, space.shape[1], -1), cells, tanh_cells, hidden


def _matrix(values: Floats) -> Floats:
    """View (T, B, width) as the rows of all steps, (T B, width)."""
    return values.reshape(-1, values.shape[2])


def _go_back(run: _Run, recurrent: Floats, dy: Floats, d_gates: Floats) -> None:
    """Write derivatives (T, B, 4H) in the pre-activations of one layer into `d_gates`."""

    def back(rows: slice) -> None:
        d_hidden, d_cells = np.zeros((2, rows.stop - rows.start, dy.shape[2]), dy.dtype)
        pieces = column_pieces(recurrent.T, d_hidden)
        for t in reversed(range(len(dy))):
            gates_backward(
                t,
                rows.start,
                dy,
                d_hidden,
                run.gates,
                run.cells,
                run.tanh_cells,
                d_cells,
                d_gates,
            )
            with ignore_overflow():
                for piece, place in pieces:
                    np.matmul(d_gates[t, rows], piece, out=place)

    thread_for_each(back, row_parts(dy.shape[1], recurrent))


def _check_state(state: Any, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    if not isinstance(state, tuple) or len(state) != 2:
        raise TypeError("`state` must be a pair of arrays, hidden states and cells.")
    for name, array in zip(("state[0]", "state[1]"), state, strict=True):
        check_array(name, array, shape, dtype)
        check_finite(name, array)


# The gates of one step, in loops that vectorise. The pre-activations of a row stand in the order
# input, forget, output, candidate (i, f, o, g), so
# that the three that pass a sigmoid are neighbours.


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
