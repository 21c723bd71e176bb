"""A parameter and its gradient, checked and in the form that kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import Backend, backend, cpu
from samplesoft._device.select import device_of, on_device, to_host
from samplesoft._validation import IntArray, as_array, require_plain
from samplesoft.losses.base import SparseRows

Array = NDArray[Any]

LARGEST = {np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)}
_INT64 = np.dtype(np.int64)
_FIRST = np.zeros(1, np.int64)  # the only row of a table that is one row
_ROOM = 2.0**-10  # a million of the largest squares have a finite sum


def largest_gradient(dtype: np.dtype[Any], squares: bool) -> Any:
    """Return how large a number of a gradient may be, of which squares may be added up."""
    limit = LARGEST[dtype]
    # an infinite sum of squares would end all learning of its entry, without a word
    return dtype.type(limit**0.5 * _ROOM if squares else limit)


# of a type as of the numbers that kernels compare with it, and by whether squares are added up
_LIMITS = {
    squares: {dtype: largest_gradient(dtype, squares) for dtype in LARGEST}
    for squares in (False, True)
}


@dataclass(slots=True, eq=False)
class Update:
    """A parameter and its gradient, both C-contiguous and of one type, as kernels take them."""

    name: str
    parameter: Array
    arrays: Backend  # where the parameter lies
    table: Array  # (n, d): the parameter, or (1, parameter.size) where all of it has a gradient
    ids: IntArray  # (k,): the rows of the table that have a gradient
    rows: Array  # (k, d): the gradient
    states: tuple[Array, ...] = ()  # of the shape of the parameter


def as_update(name: str, parameter: Any, gradient: Any, squares: bool) -> Update:
    """Return the update of a parameter; the gradient, or its `squares` too, must be finite."""
    # as in most steps, a matrix and rows of its gradient, which are computed with as they are
    if (
        type(gradient) is SparseRows
        and type(parameter) is type(gradient.ids) is type(gradient.rows) is np.ndarray
        and parameter.dtype in LARGEST
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
            arrays=cpu,
            table=parameter,
            ids=gradient.ids,
            rows=gradient.rows,
        )
    else:
        update = _converted(name, parameter, gradient)
    table = update.table
    limit, largest = _LIMITS[squares][table.dtype], _LIMITS[False][table.dtype]
    if not update.arrays.can_step(update.ids, update.rows, table, limit, largest):
        raise _wrong_step(update, gradient, float(limit))
    return update


def _converted(name: str, parameter: Any, gradient: Any) -> Update:
    """Return the update of a parameter on any device, by a gradient of any form."""
    device = device_of(parameter)
    arrays, there = backend(device), device != "cpu"
    if not there:
        check_changeable("parameters", name, parameter)
    parameter = arrays.viewed(parameter)
    if there and not (parameter.dtype in LARGEST and parameter.flags["C_CONTIGUOUS"]):
        raise TypeError(
            f"`parameters` must hold C-contiguous arrays of float32 or float64, got "
            f"{parameter.dtype} with strides {parameter.strides} for {name!r}."
        )
    whole = tuple(parameter.shape)
    if isinstance(gradient, SparseRows):
        some, values = gradient.ids, gradient.rows
        if not (there and on_device(some)):
            some = _as_row_ids(name, some, whole)
        # of any integer type, as one type spares the kernels a version for each
        ids = arrays.typed(f"gradients[{name!r}]", some, _INT64)
        shape = (ids.shape[0], *whole[1:])
        table = parameter.reshape(whole[0], prod(whole[1:]))
    else:
        values, shape = gradient, whole
        ids = arrays.placed(_FIRST)
        table = parameter.reshape(1, prod(whole))
    if not (there and on_device(values)):
        _require_floats(name, values)
    # a gradient in float64 for a parameter in float32 is taken, and cast once:
    # what is too large for float32 becomes infinite, and is refused next
    rows = arrays.typed(f"gradients[{name!r}]", values, parameter.dtype)
    if rows.shape != shape:
        raise _wrong_shape(name, rows.shape, shape, whole, gradient)
    columns = (ids.shape[0], table.shape[1])
    rows = rows if shape == columns else rows.reshape(columns)
    return Update(name=name, parameter=parameter, arrays=arrays, table=table, ids=ids, rows=rows)


def _wrong_step(update: Update, gradient: Any, limit: float) -> ValueError:
    """Return the error for an update that cannot be made, by a gradient as it was given."""
    name, table, arrays = update.name, update.table, update.arrays
    if not arrays.are_rows(update.ids, table.shape[0]):
        ids = to_host(update.ids)
        return ValueError(
            f"`gradients` must have ids that ascend, each once, in 0..{table.shape[0] - 1} for "
            f"{name!r}, got {ids[:5].tolist()}{'...' if len(ids) > 5 else ''}; add up rows that "
            "have the same id first."
        )
    place = arrays.first_outside(update.rows, -limit, limit)
    if place is not None:
        values = gradient.rows if isinstance(gradient, SparseRows) else gradient
        worst = to_host(values).flat[place]
        return ValueError(
            f"`gradients` must be finite, and at most {limit:.2g} for a {table.dtype} parameter, "
            f"got {worst} for {name!r}; clip it, or look for the first step that is too large."
        )
    return ValueError(
        f"`parameters` must be finite, got NaN or infinity in a row of {name!r} that has a "
        "gradient; training has diverged: go back to a checkpoint, and lower the learning "
        "rate."
    )


def check_changeable(argument: str, name: str, array: Any) -> None:
    """Require that the array `name` of a mapping is of floats and can be changed in place."""
    require_plain(f"{argument}[{name!r}]", array)
    if not isinstance(array, np.ndarray) or array.dtype not in LARGEST:
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
    require_plain(f"gradients[{name!r}]", values)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        raise TypeError(
            f"`gradients` must hold arrays or SparseRows of floating-point numbers, got "
            f"{getattr(values, 'dtype', type(values).__name__)} for {name!r}; convert it with "
            "astype."
        )


def _as_row_ids(name: str, ids: Any, whole: tuple[int, ...]) -> IntArray:
    array = ids if type(ids) is np.ndarray else as_array(f"gradients[{name!r}]", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not whole:
        raise TypeError(
            f"`gradients` must have ids of shape (k,) and an integer type for {name!r}, of shape "
            f"{whole}; got shape {array.shape} of {array.dtype}."
        )
    return array


def _wrong_shape(
    name: str,
    got: tuple[int, ...],
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    gradient: Any,
) -> ValueError:
    """Return the error for a gradient that has not the shape of its parameter."""
    rows = f" and there are {len(gradient.ids)} ids" if isinstance(gradient, SparseRows) else ""
    return ValueError(
        f"`gradients` must have shape {shape} for {name!r}, got {got}; the parameter has shape "
        f"{whole}{rows}."
    )
