"""Where arrays lie and kernels run: on the processor, or on a GPU with CUDA.

What takes ``device="cuda"``:

- random Fourier and positive features;
- `RFSoftmaxSampler`, `PositiveSampler`, `KernelTree` and `ClusterSampler`;
- `SampledSoftmaxLoss` with its `SoftmaxLayer`, one label an example, and all optimizers.

All else runs on the processor. What it draws without looking at vectors, as `UniformSampler` does,
serves a layer on a GPU too.

Arrays of any library with ``__cuda_array_interface__`` (CuPy, torch, Numba) go in without a copy,
on the default stream. Numba's device arrays come out; `samplesoft.to_host` copies them back, and
``torch.as_tensor(x, device="cuda")`` shares one. The first calls compile kernels, for seconds.
Their tests pass on an H100, and in Numba's simulator.

Read in this order:

- `select`: checks a `device`, tells where an array lies, and copies from a GPU.
- `Backend` and `backend`, below: what a device can do, and the module that does it.
- `cpu`, `cuda`: these modules, with the same functions.
- `rows`: small work on rows, written once for all devices.

How kernels are written and launched says `samplesoft._cuda`; how one function serves both devices,
`samplesoft.kernels.lanes`.
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
    """What `cpu` and `cuda` have: functions of these names, with the same arguments."""

    # arrays of a function, checked and on the device
    float_rows: Callable[..., Array]
    shaped_rows: Callable[..., Array]
    vector: Callable[..., Array]
    ids: Callable[..., IntArray]
    labels: Callable[..., IntArray]
    typed: Callable[..., Array]
    # arrays of the device
    empty: Callable[..., Array]
    placed: Callable[..., Array]
    viewed: Callable[..., Array]
    copied: Callable[..., Array]
    writable: Callable[..., Array]
    # small work on them
    times: Callable[..., Array]
    take_rows: Callable[..., Array]
    put_rows: Callable[..., None]
    joined: Callable[..., Array]
    column_sums: Callable[..., FloatArray]
    first_outside: Callable[..., int | None]
    are_rows: Callable[..., bool]
    can_step: Callable[..., bool]
    # kernels, and how their work is parted
    run: Callable[..., None]
    workers: Callable[..., int]
    each: Callable[..., None]
    over_rows: Callable[..., None]
    step_rows: Callable[..., None]
    write_features: Callable[..., None]
    split: Callable[..., list[slice]]
    columns: Callable[..., list[tuple[int, int]]]
    stages: Callable[..., list[slice]]

    def available_bytes(self) -> float | None:
        """Return the bytes that new arrays may take, where that is known."""


@cache
def backend(device: str) -> Backend:
    """Return the module that works on a device.

    This is the only way onto a GPU: who computes on the processor never loads CUDA.

    >>> backend("cpu").placed([1.0, 2.0])
    array([1., 2.])
    """
    # with @cache, a look-up in a dict after the first call
    if device == "cpu":
        from samplesoft._device import cpu

        return cpu
    from samplesoft._device import cuda

    return cuda


def backend_of(array: Any) -> Backend:
    """Return the module that works where an array lies."""
    return backend(device_of(array))
