"""One step of an optimizer: what it refuses before anything changes, and how threads share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_each
from samplesoft._validation import IntArray, as_array, require_plain
from samplesoft.losses.base import SparseRows

Array = NDArray[Any]

LARGEST = {np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)}
_ROOM = 2.0**-10  # a million of the largest squares have a finite sum
_PART = 1 << 18  # numbers below which threads cost more than they save
_WHOLE = np.zeros(1, np.int64)  # the only row of a parameter that has a gradient in all of it


class Update(NamedTuple):
    """A parameter and its gradient, both C-contiguous and of one type, as kernels take them."""

    name: str
    parameter: Array
    ids: IntArray | None  # (k,): the rows that have a gradient; None for all
    rows: Array  # (k, d): the gradient, or (1, parameter.size) where `ids` is None


class HostSteps:
    """Checks and changes parameters on the processor."""

    @staticmethod
    def as_update(
        name: str, parameters: Mapping[str, Array], gradient: Array | SparseRows, squares: bool
    ) -> Update:
        """Return the update of a parameter; the gradient, or its `squares` too, must be finite."""
        check_changeable("parameters", name, parameters[name])
        parameter = np.asarray(parameters[name])
        ids, values, shape = None, gradient, parameter.shape
        if isinstance(gradient, SparseRows):
            ids, values = _as_row_ids(name, gradient.ids, parameter), gradient.rows
            shape = (len(ids), *parameter.shape[1:])
        require_plain(f"gradients[{name!r}]", values)
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
            raise TypeError(
                f"`gradients` must hold arrays or SparseRows of floating-point numbers, got "
                f"{getattr(values, 'dtype', type(values).__name__)} for {name!r}; convert it with "
                "astype."
            )
        if values.shape != shape:
            raise wrong_shape(name, values.shape, shape, parameter.shape, ids)
        # a gradient in float64 for a parameter in float32 is taken, and cast once:
        # what is too large for float32 becomes infinite, and is refused next
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(values, parameter.dtype).reshape(
                (1, -1) if ids is None else (len(ids), prod(shape[1:]))
            )
        limit = greatest(parameter.dtype, squares)
        if count_beyond(rows.reshape(-1), parameter.dtype.type(limit)):
            worst = values.flat[np.argmax(~(np.abs(rows.reshape(-1)) <= limit))]
            raise too_large(name, worst, limit, parameter.dtype)
        # no step brings back a parameter that is infinite already; only rows that change are looked
        # at, so that a step on few rows of many costs what the few cost
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
        # kernels see two axes only: a dense gradient is one long row, whatever its shape
        shape = (1, -1) if ids is None else (len(update.parameter), rows.shape[1])
        arrays = [array.reshape(shape) for array in (update.parameter, *state)]
        tasks: list[tuple[Array, ...]]
        if ids is None:  # one long row, of which threads take parts
            tasks = [
                (_WHOLE, rows[:, part], *(array[:, part] for array in arrays))
                for part in _parts(rows.size, 1)
            ]
        else:
            # ids rise, each once, so that no two threads write to the same row
            tasks = [(ids[part], rows[part], *arrays) for part in _parts(*rows.shape)]
        thread_each(lambda task: kernel(*task, *numbers), tasks)


def check_changeable(argument: str, name: str, array: Any) -> None:
    """Require that the array `name` of a mapping is of floats and can be changed in place."""
    require_plain(f"{argument}[{name!r}]", array)
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"`{argument}` must hold arrays of float32 or float64, got "
            f"{getattr(array, 'dtype', type(array).__name__)} for {name!r}."
        )
    if not array.flags.carray:
        raise ValueError(
            f"`{argument}` must be C-contiguous and writable, to change in place, but {name!r} is "
            "not; copy it with numpy.array(..., order='C')."
        )


def _as_row_ids(name: str, ids: Any, parameter: Array) -> IntArray:
    array = as_array(f"gradients[{name!r}]", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or parameter.ndim == 0:
        raise TypeError(
            f"`gradients` must have ids of shape (k,) and an integer type for {name!r}, of shape "
            f"{parameter.shape}; got shape {array.shape} of {array.dtype}."
        )
    # ids of any integer type, as one type spares the kernels a version for each
    rows = np.ascontiguousarray(array, np.int64)
    if not are_rows(rows, len(parameter)):
        raise rows_out_of_order(name, array, len(parameter))
    return rows


def _parts(count: int, size: int) -> list[slice]:
    """Split `count` items of `size` numbers among the threads, where there are enough."""
    # one part where there is little to do, else one for each thread
    least = max(_PART // max(1, size), 1)
    return chunks(count, least if count <= least else max(-(-count // num_threads()), least))


def greatest(dtype: np.dtype[Any], squares: bool) -> float:
    """Return how large a number of a gradient may be, of which squares may be added up."""
    limit = LARGEST[dtype]
    # an infinite sum of squares would end all learning of its entry, without a word
    return limit**0.5 * _ROOM if squares else limit


def wrong_shape(
    name: str, got: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...], ids: Any
) -> ValueError:
    """Return the error for a gradient that has not the shape of its parameter."""
    rows = "" if ids is None else f" and there are {ids.shape[0]} ids"
    return ValueError(
        f"`gradients` must have shape {shape} for {name!r}, got {got}; the parameter has shape "
        f"{whole}{rows}."
    )


def too_large(name: str, worst: Any, limit: float, dtype: np.dtype[Any]) -> ValueError:
    """Return the error for a gradient with a number that is too large for a step."""
    return ValueError(
        f"`gradients` must be finite, and at most {limit:.2g} for a {dtype} parameter, got {worst} "
        f"for {name!r}; clip it, or look for the first step that is too large."
    )


def not_finite(name: str) -> ValueError:
    """Return the error for a parameter that a step would not bring back."""
    return ValueError(
        f"`parameters` must be finite, got NaN or infinity in a row of {name!r} that has a "
        "gradient; training has diverged: go back to a checkpoint, and lower the learning rate."
    )


def rows_out_of_order(name: str, ids: IntArray, num: int) -> ValueError:
    """Return the error for ids that are not rows of a parameter, each once."""
    return ValueError(
        f"`gradients` must have ids that ascend, each once, in 0..{num - 1} for {name!r}, got "
        f"{ids[:5].tolist()}{'...' if len(ids) > 5 else ''}; add up rows that have the same id "
        "first."
    )


@njit
def are_rows(ids: IntArray, num_rows: int) -> bool:
    """Tell whether `ids` ascend, each once, within ``range(num_rows)``."""
    last = -1
    # -1 before the first: negative ids are refused by the same comparison
    for j in ids:
        if j <= last:
            return False
        last = j
    return last < num_rows


@njit
def count_beyond(values: Array, limit: float) -> int:
    """Count the entries of `values` (k,) that are NaN or greater than `limit` in absolute value."""
    count = 0
    for i in range(len(values)):
        # in this order NaN, which is not <= anything, counts; without a branch it vectorises
        count += 0 if abs(values[i]) <= limit else 1
    return count


@njit
def count_beyond_in_rows(table: Array, ids: IntArray, limit: float) -> int:
    """Count as `count_beyond` in the rows `ids` (k,) of a table, without a copy of them."""
    count = 0
    for i in ids:
        count += count_beyond(table[i], limit)
    return count
