"""Devices: arrays and kernels on the CPU, or on a GPU with CUDA.

The following support ``device="cuda"``:

- random Fourier and positive features;
- `RFSoftmaxSampler`, `PositiveSampler`, `KernelTree` and `ClusterSampler`;
- `SampledSoftmaxLoss` with its `SoftmaxLayer`, with one label per example, and all optimizers.

Everything else runs on the CPU. Samplers that do not depend on vectors, such as `UniformSampler`,
draw on the CPU for a layer on a GPU.

Arrays on a GPU of any library with ``__cuda_array_interface__`` (CuPy, torch, Numba) are accepted
without a copy, on the default stream. Results are Numba's device arrays. `samplesoft.to_host`
copies such an array to the host, and ``torch.as_tensor(x, device="cuda")`` shares its memory. The
first calls compile kernels, which takes seconds. The tests pass on an H100, and in Numba's
simulator.

Read in this order:

- `select`: checks of `device` arguments, the device of an array, and copies from a GPU.
- `Backend` and `backend`, in this file: the operations of a device, and the module that has them.
- `cpu`, `cuda`: the two backends, modules with the same functions.
- `rows`: operations on rows, written once for all devices.

`samplesoft._cuda` explains how kernels are written and launched, and `samplesoft.kernels.lanes` how
one function runs on both devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from numpy.typing import NDArray

from samplesoft._device.select import device_of
from samplesoft._validation import FloatArray, IntArray

Array = NDArray[Any]


class Backend(Protocol):
    """The functions that a backend provides: the modules `cpu` and `cuda` have all of them."""

    # checks of arguments, which return arrays on the device
    float_rows: Callable[..., Array]
    shaped_rows: Callable[..., Array]
    vector: Callable[..., Array]
    ids: Callable[..., IntArray]
    labels: Callable[..., IntArray]
    as_dtype: Callable[..., Array]
    # arrays on the device
    empty: Callable[..., Array]
    to_device: Callable[..., Array]
    viewed: Callable[..., Array]
    copied: Callable[..., Array]
    writable: Callable[..., Array]
    # operations on arrays on the device
    times: Callable[..., Array]
    take_rows: Callable[..., Array]
    put_rows: Callable[..., None]
    concatenate_rows: Callable[..., Array]
    column_sums: Callable[..., FloatArray]
    first_index_outside: Callable[..., int | None]
    are_increasing_row_ids: Callable[..., bool]
    is_step_safe: Callable[..., bool]
    # calls of kernels, and the division of their work
    run: Callable[..., None]
    num_workers_for: Callable[..., int]
    each: Callable[..., None]
    run_over_rows: Callable[..., None]
    step_rows: Callable[..., None]
    write_features: Callable[..., None]
    split: Callable[..., list[slice]]
    columns: Callable[..., list[tuple[int, int]]]
    stages: Callable[..., list[slice]]

    def available_bytes(self) -> float | None:
        """Return the number of bytes available for new arrays, or None if it is unknown."""


@cache
def backend(device: str) -> Backend:
    """Return the backend of a device: the module `cpu` or `cuda` of this package.

    Only this function imports `cuda`, so that CUDA is not loaded by programs on the CPU.

    >>> backend("cpu").to_device([1.0, 2.0])
    array([1., 2.])
    """
    # cached: a dict look-up after the first call
    if device == "cpu":
        from samplesoft._device import cpu

        return cpu
    from samplesoft._device import cuda

    return cuda


def backend_of(array: Any) -> Backend:
    """Return the backend of the device that holds an array."""
    return backend(device_of(array))
