"""Where arrays live and kernels run: the processor, or a GPU with CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samplesoft import _memory
from samplesoft._validation import as_choice, as_float_rows, as_ids, as_labels

DEVICES = ("cpu", "cuda")


class HostArrays:
    """Checks of arrays that a function takes, for work on the processor."""

    empty = staticmethod(np.empty)
    filled = staticmethod(np.full)
    plus = staticmethod(np.add)
    float_rows = staticmethod(as_float_rows)
    ids = staticmethod(as_ids)
    labels = staticmethod(as_labels)

    @staticmethod
    def available_bytes() -> int | None:
        """Return the bytes that new arrays may take, where the system tells."""
        return _memory.available_bytes()


def as_device(value: Any) -> str:
    """Return the public `device` argument, having made sure that there is such a device.

    Parameters
    ----------
    value : {"cpu", "cuda"}
        Where to compute.

    Returns
    -------
    str
        `value`.

    Raises
    ------
    RuntimeError
        If there is no GPU that Numba can use; says what to install.
    TypeError, ValueError
        If it is no such name.
    """
    device = as_choice("device", value, DEVICES)
    if device == "cuda":
        _require_cuda()
    return device


def arrays_on(device: str) -> Any:
    """Return the checks of arrays for a device: `HostArrays`, or its twin for CUDA."""
    if device == "cpu":
        return HostArrays
    from samplesoft._device.arrays_cuda import DeviceArrays

    return DeviceArrays


def on_device(value: Any) -> bool:
    """Return whether `value` is an array on a GPU, of any library."""
    return hasattr(value, "__cuda_array_interface__") or hasattr(value, "__cuda_ndarray__")


def device_of(array: Any) -> str:
    """Return where an array lies."""
    return "cuda" if on_device(array) else "cpu"


def to_host(value: Any) -> Any:
    """Copy from a GPU.

    Parameters
    ----------
    value : Any
        An array on a GPU, of any library; something with a method ``to_host``, such as a `Draw`
        or the gradients of a loss; or a dict of such.

    Returns
    -------
    Any
        The same in NumPy arrays; `value` itself if it is none of these.

    Examples
    --------
    >>> to_host({"already": "here"})
    {'already': 'here'}
    """
    if isinstance(value, dict):
        return {key: to_host(part) for key, part in value.items()}
    if hasattr(value, "to_host"):
        return value.to_host()
    if not on_device(value):
        return value
    from samplesoft._cuda import as_device_array

    return as_device_array(value).copy_to_host()


def require_cpu(what: str, device: str) -> None:
    """Raise for something that has no CUDA twin."""
    if device != "cpu":
        raise ValueError(
            f"`device` must be 'cpu' for {what}, which has no CUDA kernels, got {device!r}; "
            "README's section on GPUs lists what has some."
        )


def require_copyable(thing: Any, device: str) -> None:
    """Raise where something cannot be pickled or copied."""
    if device != "cpu":
        raise TypeError(
            f"{type(thing).__name__} must be on the processor to be pickled or copied, got it on "
            f"{device!r}; keep the arrays that it was made from, samplesoft.to_host copies them."
        )


@cache
def _require_cuda() -> None:
    from samplesoft._cuda import cuda

    if not cuda.is_available():
        raise RuntimeError(
            "`device` is 'cuda', but Numba finds no NVIDIA GPU that it can use "
            f"({_why_not()}). Install NVIDIA's driver, and Numba's CUDA target with "
            "pip install 'samplesoft[cuda12]' or 'samplesoft[cuda13]'; "
            "or leave `device` at 'cpu'."
        )


def _why_not() -> str:
    from samplesoft._cuda import cuda

    reason = cuda.cuda_error()
    return " ".join(str(reason).split()).split(". ")[0] if reason else "the compiler is missing"
