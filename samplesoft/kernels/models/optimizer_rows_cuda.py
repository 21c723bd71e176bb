"""Steps of the optimizers on the device: those of the processor, a thread for each number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from samplesoft._cuda import cuda, for_device, kernel, thread_index


@cache
def step_kernel(function: Callable[..., None], num_states: int) -> Any:
    """Return the kernel that does what one of `kernels.models.optimizer_rows` does.

    It takes ids (k,), gradients (k, d), parameters (n, d), a tuple of state arrays (n, d) and a
    tuple of numbers.
    """
    body = for_device(function)

    def step(ids: Any, gradients: Any, parameters: Any, states: Any, numbers: Any) -> None:
        place, width = thread_index(), gradients.shape[1]
        i, c = place // width, place % width
        if i >= ids.shape[0]:
            return
        one = ids[i : i + 1], gradients[i : i + 1, c : c + 1], parameters[:, c : c + 1]
        if num_states == 0:
            body(*one, *numbers)
        elif num_states == 1:
            body(*one, states[0][:, c : c + 1], *numbers)
        else:
            body(*one, states[0][:, c : c + 1], states[1][:, c : c + 1], *numbers)

    step.__name__ = f"{function.__name__}_on_device"
    return kernel(step)


@kernel
def find_not_rising(ids: Any, stop: int, found: Any) -> None:
    """Look for ids (k,) that do not rise, or are not in ``range(stop)``, a thread for each."""
    i = thread_index()
    if i < ids.shape[0]:
        before = ids[i - 1] if i > 0 else -1
        if not before < ids[i] < stop:
            cuda.atomic.min(found, 0, i)
