"""Where arrays lie and kernels run: on the processor, or on a GPU with CUDA.

What takes ``device="cuda"``:

- random Fourier and positive features;
- `RFSoftmaxSampler`, `PositiveSampler`, `KernelTree`, `ClusterSampler`, `SoftmaxSampler`, and with
  replacement `UniformSampler`, `LogUniformSampler`, `UnigramSampler` and `WeightedSampler`;
- `SampledSoftmaxLoss` with its `SoftmaxLayer`, one label an example, and all optimizers;
- `exact_bias` (but for ``scheme="poisson"``) and `monte_carlo_bias`.

All else runs on the processor: quadratic and Maclaurin features, the other samplers and losses,
several labels an example, clipping, `evaluate`, `exact_gradient_moments` and `verify`.

Arrays of any library with ``__cuda_array_interface__`` (CuPy, torch, Numba) go in without a copy,
on the default stream. Numba's device arrays come out; `samplesoft.to_host` copies them back, and
``torch.as_tensor(x, device="cuda")`` shares one. The first calls compile kernels, for seconds.
Kernels have run in Numba's simulator and have been compiled for sm_90, but not run on hardware.

Read in this order:

- `select`: checks a `device`, and chooses the class that works there (`select.twin`).
- `arrays`, ``arrays_cuda``: arrays that functions take, checked, and small work on them.
- ``draws_cuda``: uniforms for draws, and batches in parts that fit in memory.
- ``sort_ids_cuda``: equal ids brought together.
"""
