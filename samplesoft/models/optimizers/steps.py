"""Parameters on the processor: checks of their gradients, their state and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, num_threads, thread_each
from samplesoft._validation import IntArray, as_array, require_plain
from samplesoft.kernels.models.optimizer_rows import are_rows, count_beyond, count_beyond_in_rows
from samplesoft.losses.base import SparseRows
from samplesoft.models.module import check_changeable
from samplesoft.models.optimizers.updates import (
    LARGEST,
    Update,
    greatest,
    not_finite,
    rows_out_of_order,
    too_large,
    wrong_shape,
)

Array = NDArray[Any]

_PART = 1 << 18  # numbers below which threads cost more than they save
_WHOLE = np.zeros(1, np.int64)


class HostSteps:
    """Checks and changes parameters on the processor."""

    @staticmethod
    def as_update(
        name: str, parameters: Mapping[str, Array], gradient: Array | SparseRows, squares: bool
    ) -> Update:
        """Return the update of a parameter; the gradient, or its `squares` too, must be finite."""
        parameter = _as_parameter(name, parameters)
        ids, given, shape = None, gradient, parameter.shape
        if isinstance(gradient, SparseRows):
            ids, given = _as_row_ids(name, gradient.ids, parameter), gradient.rows
            shape = (len(ids), *parameter.shape[1:])
        require_plain(f"gradients[{name!r}]", given)
        if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
            raise TypeError(
                f"`gradients` must hold arrays or SparseRows of floating-point numbers, got "
                f"{getattr(given, 'dtype', type(given).__name__)} for {name!r}; convert it with "
                "astype."
            )
        if given.shape != shape:
            raise wrong_shape(name, given.shape, shape, parameter.shape, ids)
        # what is too large for float32 becomes infinite, and is refused next
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, parameter.dtype).reshape(
                (1, -1) if ids is None else (len(ids), prod(shape[1:]))
            )
        limit = greatest(parameter.dtype, squares)
        if count_beyond(rows.reshape(-1), parameter.dtype.type(limit)):
            worst = given.flat[np.argmax(~(np.abs(rows.reshape(-1)) <= limit))]
            raise too_large(name, worst, limit, parameter.dtype)
        table = parameter.reshape((1, -1) if ids is None else (len(parameter), rows.shape[1]))
        largest = parameter.dtype.type(LARGEST[parameter.dtype])
        if count_beyond_in_rows(table, _WHOLE if ids is None else ids, largest):
            raise not_finite(name)
        return Update(name, parameter, ids, rows)

    @staticmethod
    def state_like(parameter: Array, state: Array | None) -> Array:
        """Return a state: zeros of the shape of a parameter where there is none."""
        return np.zeros(parameter.shape, parameter.dtype) if state is None else state

    @staticmethod
    def apply(
        kernel: Callable[..., None],
        update: Update,
        state: tuple[Array, ...],
        numbers: tuple[Any, ...],
    ) -> None:
        """Change a parameter and its state in place."""
        ids, rows = update.ids, update.rows
        shape = (1, -1) if ids is None else (len(update.parameter), rows.shape[1])
        arrays = [array.reshape(shape) for array in (update.parameter, *state)]
        tasks: list[tuple[Array, ...]]
        if ids is None:  # one long row, of which threads take parts
            tasks = [
                (_WHOLE, rows[:, part], *(array[:, part] for array in arrays))
                for part in _parts(rows.size, 1)
            ]
        else:
            tasks = [(ids[part], rows[part], *arrays) for part in _parts(*rows.shape)]
        thread_each(lambda task: kernel(*task, *numbers), tasks)


def _as_parameter(name: str, parameters: Mapping[str, Array]) -> Array:
    parameter = parameters[name]
    check_changeable("parameters", name, parameter)
    return np.asarray(parameter)


def _as_row_ids(name: str, ids: Any, parameter: Array) -> IntArray:
    array = as_array(f"gradients[{name!r}]", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or parameter.ndim == 0:
        raise TypeError(
            f"`gradients` must have ids of shape (k,) and an integer type for {name!r}, of shape "
            f"{parameter.shape}; got shape {array.shape} of {array.dtype}."
        )
    rows = np.ascontiguousarray(array, np.int64)
    if not are_rows(rows, len(parameter)):
        raise rows_out_of_order(name, array, len(parameter))
    return rows


def _parts(count: int, size: int) -> list[slice]:
    """Split `count` items of `size` numbers among the threads, where there are enough."""
    least = max(_PART // max(1, size), 1)
    return chunks(count, least if count <= least else max(-(-count // num_threads()), least))
