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

- `select`: checks a `device`, and chooses the class that works there (`select.twin`).
- `arrays`, ``arrays_cuda``: arrays that functions take, checked, and small work on them.

How kernels are written and launched says `samplesoft._cuda`; how one function serves both devices,
`samplesoft.kernels.lanes`.
"""

from functools import cache
from typing import Any

ARRAYS = "samplesoft._device.arrays:Arrays"  # for `select.twin`


@cache
def backend(device: str) -> Any:
    """Return what works on arrays of a device, which is imported when it is first asked for."""
    if device == "cpu":
        from samplesoft._device.arrays import HostArrays

        return HostArrays
    from samplesoft._device.arrays_cuda import CudaArrays

    return CudaArrays
