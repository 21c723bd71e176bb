"""Compiled arithmetic that several packages share: loops over arrays, without checks or classes.

Callers of a kernel have checked its arguments and allocated its results. A kernel is a plain
function under `samplesoft._jit.njit` and runs on one thread; callers divide the work. Most kernels
are in the module of the one class that calls them. Kernels have no random state: uniforms are
arrays, or come from a counter and a key (`samplesoft._random`), so that draws are the same with any
number of threads and on a GPU.

Read in this order:

1. `rows`: inner products, norms and weighted sums of rows, and a prefetch.
2. `weights`: draws in proportion to weights; `alias`: tables for such draws in constant time.
3. `exponential`: vectorised exp and log.
4. `sort_ids`: runs of equal ids, so that one thread adds up everything for one row.
5. `lanes`: functions that run on the CPU and, with ``lanes_cuda``, on the lanes of a warp.
"""
