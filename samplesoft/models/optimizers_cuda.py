"""Parameters on a CUDA device: checks of their gradients, their state and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from samplesoft._cuda import (
    as_device_array,
    cuda,
    first_found,
    kernel,
    launch_threads,
    thread_index,
    to_device,
)
from samplesoft._device.cuda import contiguous, first_outside
from samplesoft._device.select import on_device
from samplesoft.kernels.lanes_cuda import for_device
from samplesoft.losses.base import SparseRows
from samplesoft.models.optimizers import Update, greatest, rows_out_of_order, too_large, wrong_shape


class CudaSteps:
    """Checks and changes parameters on the device."""

    @staticmethod
    def as_update(name: str, parameters: Mapping[str, Any], gradient: Any, squares: bool) -> Update:
        """Return the update of a parameter, as `HostSteps` does."""
        parameter = as_device_array(parameters[name])
        if parameter.dtype not in (np.float32, np.float64) or not parameter.flags["C_CONTIGUOUS"]:
            raise TypeError(
                f"`parameters` must hold C-contiguous arrays of float32 or float64, got "
                f"{parameter.dtype} with strides {parameter.strides} for {name!r}."
            )
        ids, values, shape = None, gradient, tuple(parameter.shape)
        if isinstance(gradient, SparseRows):
            ids, values = _there(name, gradient.ids, np.dtype(np.int64)), gradient.rows
            place = first_found(launch_threads, _find_not_rising, ids.size, ids, parameter.shape[0])
            if place is not None:
                raise rows_out_of_order(name, ids.copy_to_host(), parameter.shape[0])
            shape = (ids.shape[0], *shape[1:])
        values = _there(name, values, parameter.dtype)
        if tuple(values.shape) != shape:
            raise wrong_shape(name, tuple(values.shape), shape, tuple(parameter.shape), ids)
        # one pass finds the first number beyond the limit; only that one is copied back
        limit = greatest(parameter.dtype, squares)
        place = first_outside(values, -limit, limit)
        if place is not None:
            worst = values.reshape(-1)[place : place + 1].copy_to_host()[0]
            raise too_large(name, worst, limit, parameter.dtype)
        # a gradient without numbers cannot say how wide its rows are
        width = values.size // (1 if ids is None else max(1, ids.shape[0]))
        return Update(name, parameter, ids, values.reshape(-1, width) if width else values)

    @staticmethod
    def state_like(parameter: Any, state: Any) -> Any:
        """Return a state on the device: zeros of the shape of a parameter where there is none."""
        if state is None:
            return to_device(np.zeros(parameter.shape, parameter.dtype))
        return state if on_device(state) else to_device(state)

    @staticmethod
    def apply(rows_kernel: Callable[..., None], update: Update, states: Any, numbers: Any) -> None:
        """Change a parameter and its state in place."""
        ids = to_device(np.zeros(1, np.int64)) if update.ids is None else update.ids
        parameter, *tables = (update.table(array) for array in (update.parameter, *states))
        # without a state the tuple may not be empty, which has no type for the compiler
        arrays = ids, update.rows, parameter, tuple(tables) or (update.rows,)
        step = _step_kernel(rows_kernel, len(arrays[-1]))
        launch_threads(step, update.rows.size, *arrays, numbers)


def _there(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    if not on_device(value):
        return to_device(np.asarray(value, dtype))
    return contiguous(f"gradients[{name!r}]", value, dtype)


@cache
def _step_kernel(function: Callable[..., None], num_states: int) -> Any:
    """Return the kernel that does what one of the processor does, a thread for each number."""
    body = for_device(function)

    def step(ids: Any, gradients: Any, parameters: Any, states: Any, numbers: Any) -> None:
        place, width = thread_index(), gradients.shape[1]
        i, c = place // width, place % width
        if i < ids.shape[0]:
            # the processor's kernel does one number, so that the formulas stand once
            one = ids[i : i + 1], gradients[i : i + 1, c : c + 1], parameters[:, c : c + 1]
            if num_states == 2:
                body(*one, (states[0][:, c : c + 1], states[1][:, c : c + 1]), numbers)
            else:
                body(*one, (states[0][:, c : c + 1],), numbers)

    step.__name__ = f"{function.__name__}_on_device"
    return kernel(step)


@kernel
def _find_not_rising(ids: Any, stop: int, found: Any) -> None:
    """Look for ids (k,) that do not rise, or are not in ``range(stop)``, a thread for each."""
    i = thread_index()
    if i < ids.shape[0]:
        # neighbours are compared, and the least place that fails wins
        before = ids[i - 1] if i > 0 else -1
        if not before < ids[i] < stop:
            cuda.atomic.min(found, 0, i)
