"""Arithmetic that several rooms share, compiled: loops over arrays, without checks or classes.

What calls a kernel has checked its arguments and made room for its results. A kernel is a plain
function under `samplesoft._jit.njit`, which runs on one thread; callers share out the work. Most
stand beside the one class that calls them. Kernels hold no randomness: uniforms come in as arrays,
or from a counter with a key (`samplesoft._random`), so that any number of threads, and a GPU, draw
the same classes.

Read in this order:

1. `rows`: inner products, norms and weighted sums of rows, and a prefetch.
2. `weights`: draws among weights; `alias`: tables that draw from any weights in constant time.
3. `exponential`: exp and log several at a time.
4. `sort_ids`: runs of equal ids, so that one thread adds up what belongs to one row.
5. `lanes`: how one function serves the processor and, with ``lanes_cuda``, the lanes of a warp.
"""
