"""Compiled loops over arrays that several packages share.

A kernel is a function with the decorator `samplesoft._jit.njit`, and runs on one thread. Its caller
checks the arguments, allocates the results, and divides the work among threads. A kernel that only
one class calls is in the module of that class. Kernels have no random state: uniform random values
are arguments, or are computed from a key and a counter (`samplesoft._random`), so that draws are
the same with any number of threads and on a GPU.

Read in this order:

1. `rows`: inner products, norms and weighted sums of rows, and a prefetch.
2. `weights`: draws in proportion to weights; `alias`: tables for such draws in constant time.
3. `exponential`: vectorised exp and log.
4. `sort_ids`: groups of equal ids, so that one thread can sum all contributions to a row.
5. `lanes`: functions that run on the CPU and, with ``lanes_cuda``, on the lanes of a GPU's warp.
"""
