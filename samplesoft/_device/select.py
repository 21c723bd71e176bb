"""Checks of `device` arguments, the device that holds an array, and copies from a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samplesoft._validation import as_choice

DEVICES = ("cpu", "cuda")


def as_device(value: Any) -> str:
    """Return the public argument `device`, after checking that it is "cpu" or "cuda".

    Raises RuntimeError, with what to install, if it is "cuda" and Numba can use no GPU.
    """
    device = as_choice("device", value, DEVICES)
    if device == "cuda":
        _require_cuda()
    return device


def on_device(value: Any) -> bool:
    """Return whether `value` is an array on a GPU, of any library."""
    # in the simulator, Numba's arrays have the second attribute only
    return hasattr(value, "__cuda_array_interface__") or hasattr(value, "__cuda_ndarray__")


def device_of(array: Any) -> str:
    """Return the device that holds an array, "cuda" or "cpu"."""
    return "cuda" if type(array) is not np.ndarray and on_device(array) else "cpu"


def to_host(value: Any) -> Any:
    """Return a copy of an array on a GPU, or of all such arrays in an object, as NumPy arrays.

    Parameters
    ----------
    value : Any
        An array on a GPU, of any library; an object with a method ``to_host``, such as a `Draw` or
        the gradients of a loss; or a dict of these.

    Returns
    -------
    Any
        The array, object or dict with NumPy arrays; any other `value` unchanged.

    Examples
    --------
    >>> to_host({"already": "here"})
    {'already': 'here'}
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    if hasattr(value, "to_host"):
        return value.to_host()
    if not on_device(value):
        return value
    from samplesoft._cuda import as_device_array

    return as_device_array(value).copy_to_host()


def require_cpu(what: str, device: str) -> None:
    """Raise ValueError unless `device` is "cpu", because `what` has no CUDA kernels."""
    if device != "cpu":
        raise ValueError(
            f"`device` must be 'cpu' for {what}, which has no CUDA kernels, got {device!r}; "
            "docs/gpu.md lists what runs on a GPU."
        )


def require_copyable(value: Any, device: str) -> None:
    """Raise TypeError if `value` is on a GPU, where objects cannot be pickled or copied."""
    if device != "cpu":
        raise TypeError(
            f"{type(value).__name__} must be on the processor to be pickled or copied, got it on "
            f"{device!r}; keep the arrays that it was made from, samplesoft.to_host copies them."
        )


@cache
def _require_cuda() -> None:
    """Raise RuntimeError, with what to install, if Numba can use no GPU."""
    from samplesoft._cuda import cuda

    if cuda.is_available():
        return

    error = str(cuda.cuda_error() or "the compiler is missing")
    why = " ".join(error.split()).split(". ")[0]
    raise RuntimeError(
        f"`device` is 'cuda', but Numba finds no NVIDIA GPU that it can use ({why}). Install "
        "NVIDIA's driver, and Numba's CUDA target with pip install 'numba-cuda[cu12]' or "
        "'numba-cuda[cu13]'; or use device='cpu'."
    )
