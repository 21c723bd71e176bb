"""Validation of a parameter and its gradient, and their conversion to arrays for kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import Backend, backend, cpu
from samplesoft._device.select import device_of, on_device, to_host
from samplesoft._validation import IntArray, as_array, require_host_array
from samplesoft.losses.base import SparseRows

Array = NDArray[Any]

MAX_FLOAT = {np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)}
_INT64 = np.dtype(np.int64)
_ROW_0 = np.zeros(1, np.int64)  # row ids of a dense gradient, whose table has one row
# factor of the largest gradient, so that the sum of a million squares is finite
_SQUARES_MARGIN = 2.0**-10


def largest_gradient(dtype: np.dtype[Any], squares: bool) -> Any:
    """Return the largest allowed absolute value of a gradient's entry.

    `squares` says whether the optimizer sums squares of gradients. The limit is then smaller,
    because an infinite sum of squares would silently stop all updates of its entry.
    """
    limit = MAX_FLOAT[dtype]
    if squares:
        limit = limit**0.5 * _SQUARES_MARGIN
    return dtype.type(limit)


# largest allowed gradients; the keys are whether squares are summed, and then the dtype
_GRADIENT_LIMITS = {
    squares: {dtype: largest_gradient(dtype, squares) for dtype in MAX_FLOAT}
    for squares in (False, True)
}


@dataclass(slots=True, eq=False)
class Update:
    """A parameter and its gradient, validated, C-contiguous, and of the same dtype."""

    name: str
    parameter: Array
    backend: Backend  # of the parameter's device
    # the parameter as a matrix: (n, d) for sparse rows, (1, parameter.size) for a dense gradient
    table: Array
    ids: IntArray  # (k,): rows of the table with a gradient
    rows: Array  # (k, d): gradient of these rows
    states: tuple[Array, ...] = ()  # states of the optimizer, each of the shape of the parameter


def checked_update(name: str, parameter: Any, gradient: Any, squares: bool) -> Update:
    """Return a parameter and its gradient as a validated `Update`.

    Raises TypeError or ValueError if an array is malformed, if row ids do not ascend, or if an
    entry of the gradient or of the rows that it changes is not finite. `squares` says whether the
    optimizer sums squares of gradients; entries must then also be small enough that a sum of a
    million squares is finite.
    """
    # NumPy arrays of the expected shapes and dtypes need no conversion
    if (
        type(gradient) is SparseRows
        and type(parameter) is type(gradient.ids) is type(gradient.rows) is np.ndarray
        and parameter.dtype in MAX_FLOAT
        and parameter.ndim == 2
        and parameter.flags.carray
        and gradient.ids.dtype == _INT64
        and gradient.ids.ndim == 1
        and gradient.ids.flags.c_contiguous
        and gradient.rows.dtype == parameter.dtype
        and gradient.rows.shape == (gradient.ids.shape[0], parameter.shape[1])
        and gradient.rows.flags.c_contiguous
    ):
        update = Update(
            name=name,
            parameter=parameter,
            backend=cpu,
            table=parameter,
            ids=gradient.ids,
            rows=gradient.rows,
        )
    else:
        update = _converted_update(name, parameter, gradient)

    table = update.table
    limit = _GRADIENT_LIMITS[squares][table.dtype]
    max_float = _GRADIENT_LIMITS[False][table.dtype]
    if not update.backend.is_step_safe(update.ids, update.rows, table, limit, max_float):
        raise _update_error(update, gradient, float(limit))

    return update


def _converted_update(name: str, parameter: Any, gradient: Any) -> Update:
    """Return the `Update` of any valid parameter and gradient, as arrays that kernels accept."""
    device = device_of(parameter)
    arrays = backend(device)
    on_gpu = device != "cpu"
    if not on_gpu:
        require_updatable("parameters", name, parameter)

    parameter = arrays.viewed(parameter)
    if on_gpu and not (parameter.dtype in MAX_FLOAT and parameter.flags["C_CONTIGUOUS"]):
        raise TypeError(
            f"`parameters` must hold C-contiguous arrays of float32 or float64, got "
            f"{parameter.dtype} with strides {parameter.strides} for {name!r}."
        )

    parameter_shape = tuple(parameter.shape)
    if isinstance(gradient, SparseRows):
        row_ids = gradient.ids
        values = gradient.rows
        if not (on_gpu and on_device(row_ids)):
            row_ids = _checked_row_ids(name, row_ids, parameter_shape)
        # convert ids to one integer type, so that kernels are compiled only once
        ids = arrays.as_dtype(f"gradients[{name!r}]", row_ids, _INT64)
        shape = (ids.shape[0], *parameter_shape[1:])
        table = parameter.reshape(parameter_shape[0], prod(parameter_shape[1:]))
    else:
        values = gradient
        shape = parameter_shape
        ids = arrays.to_device(_ROW_0)
        table = parameter.reshape(1, prod(parameter_shape))

    if not (on_gpu and on_device(values)):
        _require_floats(name, values)

    # A gradient gets the dtype of its parameter. Entries that overflow become infinite, and
    # `checked_update` rejects them.
    rows = arrays.as_dtype(f"gradients[{name!r}]", values, parameter.dtype)
    if rows.shape != shape:
        raise _shape_error(name, rows.shape, shape, parameter_shape, gradient)

    table_shape = (ids.shape[0], table.shape[1])
    if shape != table_shape:
        rows = rows.reshape(table_shape)

    return Update(name=name, parameter=parameter, backend=arrays, table=table, ids=ids, rows=rows)


def _update_error(update: Update, gradient: Any, limit: float) -> ValueError:
    """Return the error to raise for an update that `is_step_safe` rejects.

    `gradient` is the gradient as the caller passed it, before conversion. `limit` is the largest
    allowed absolute value of its entries.
    """
    name = update.name
    table = update.table
    arrays = update.backend

    if not arrays.are_increasing_row_ids(update.ids, table.shape[0]):
        ids = to_host(update.ids)
        return ValueError(
            f"`gradients` must have ids that ascend, each once, in 0..{table.shape[0] - 1} for "
            f"{name!r}, got {ids[:5].tolist()}{'...' if len(ids) > 5 else ''}; add up rows that "
            "have the same id first."
        )

    index = arrays.first_index_outside(update.rows, -limit, limit)
    if index is not None:
        values = gradient.rows if isinstance(gradient, SparseRows) else gradient
        worst = to_host(values).flat[index]
        return ValueError(
            f"`gradients` must be finite, and at most {limit:.2g} for a {table.dtype} parameter, "
            f"got {worst} for {name!r}; clip it, or look for the first step that is too large."
        )

    return ValueError(
        f"`parameters` must be finite, got NaN or infinity in a row of {name!r} that has a "
        "gradient; training has diverged: go back to a checkpoint, and lower the learning "
        "rate."
    )


def require_updatable(argument: str, name: str, array: Any) -> None:
    """Raise unless `array` is an array of floats that can be updated in place.

    The error calls it ``argument[name]``.
    """
    require_host_array(f"{argument}[{name!r}]", array)
    if not isinstance(array, np.ndarray) or array.dtype not in MAX_FLOAT:
        raise TypeError(
            f"`{argument}` must hold arrays of float32 or float64, got "
            f"{getattr(array, 'dtype', type(array).__name__)} for {name!r}."
        )
    if not array.flags.carray:
        raise ValueError(
            f"`{argument}` must be C-contiguous and writable, to change in place, but {name!r} is "
            "not; copy it with numpy.array(..., order='C')."
        )


def _require_floats(name: str, values: Any) -> None:
    require_host_array(f"gradients[{name!r}]", values)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        raise TypeError(
            f"`gradients` must hold arrays or SparseRows of floating-point numbers, got "
            f"{getattr(values, 'dtype', type(values).__name__)} for {name!r}; convert it with "
            "astype."
        )


def _checked_row_ids(name: str, ids: Any, parameter_shape: tuple[int, ...]) -> IntArray:
    array = ids if type(ids) is np.ndarray else as_array(f"gradients[{name!r}]", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not parameter_shape:
        raise TypeError(
            f"`gradients` must have ids of shape (k,) and an integer type for {name!r}, of shape "
            f"{parameter_shape}; got shape {array.shape} of {array.dtype}."
        )
    return array


def _shape_error(
    name: str,
    got: tuple[int, ...],
    shape: tuple[int, ...],
    parameter_shape: tuple[int, ...],
    gradient: Any,
) -> ValueError:
    """Return the error for a gradient of shape `got`, which should have the shape `shape`."""
    rows = f" and there are {len(gradient.ids)} ids" if isinstance(gradient, SparseRows) else ""
    return ValueError(
        f"`gradients` must have shape {shape} for {name!r}, got {got}; the parameter has shape "
        f"{parameter_shape}{rows}."
    )
