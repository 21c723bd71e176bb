"""Building blocks of kernels that run on both devices: on a CPU thread, or on the lanes of a warp.

A warp is a group of threads of a GPU, its lanes, that run in parallel. A kernel for both devices
loops over ``range(lane(), size, num_lanes())``. On the CPU there is one lane, and the compiler sees
a plain loop. `compile_for_device` of ``lanes_cuda`` compiles the same kernel for the lanes of a
warp.

Such a kernel must call `sync_lanes` before it reads values that other lanes have written. All lanes
must take the same branches. Several lanes may write the same value to one address, which must then
not be read before `sync_lanes`.

A kernel loops over its items, such as examples, draws or rows, by
``range(worker(), num_items, num_workers())``. On the CPU one worker processes all items. On a GPU
each warp is a worker, and processes one item. If a kernel needs a workspace, each worker uses the
row with the worker's index.
"""

from __future__ import annotations

from samplesoft._jit import njit


@njit
def worker() -> int:
    """Return the index of the calling worker: the warp on a GPU, 0 on the CPU."""
    return 0


@njit
def num_workers() -> int:
    """Return the step of a worker's loop over items, the number of workers; 1 on the CPU.

    On a GPU it is larger than any number of items, because each warp processes one item.
    """
    return 1


@njit
def lane() -> int:
    """Return the index of the calling lane in its warp; 0 on the CPU."""
    return 0


@njit
def num_lanes() -> int:
    """Return the number of lanes of a warp; 1 on the CPU."""
    return 1


@njit
def sync_lanes() -> None:
    """Wait for all lanes of the warp, so that each sees the values that the others have written."""


@njit
def sum_of_lanes(value: float) -> float:
    """Return the sum of the values that the lanes of the warp pass, the same on all lanes."""
    return value


@njit
def max_of_lanes(value: float) -> float:
    """Return the maximum of the values that the lanes of the warp pass, the same on all lanes."""
    return value
