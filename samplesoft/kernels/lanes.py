"""Functions that run on both devices: on a CPU thread, or on the lanes of a CUDA warp.

Such a function loops over ``range(lane(), size, num_lanes())``, and calls `meet`, which
synchronises the warp, before it reads values that other lanes have written. On the CPU there is one
lane, and the compiler sees a plain loop. `for_device` of ``lanes_cuda`` compiles the same function
for the lanes of a warp. Control flow must be uniform across the warp. Several lanes may store the
same value to one address; it must not be read again before `sync_lanes`.

Loops over examples, draws or rows are over ``range(worker(), num, num_workers())``: all of them
on the CPU, and one for each warp on a GPU. The index of a worker is that of its row in workspaces.
"""

from __future__ import annotations

from samplesoft._jit import njit


@njit
def worker() -> int:
    """Return the index of this worker."""
    return 0


@njit
def num_workers() -> int:
    """Return the number of workers."""
    return 1


@njit
def lane() -> int:
    """Return the index of this lane."""
    return 0


@njit
def num_lanes() -> int:
    """Return the number of lanes."""
    return 1


@njit
def sync_lanes() -> None:
    """Wait for all lanes, so that each sees the writes of the others."""


@njit
def sum_of_lanes(value: float) -> float:
    """Return the sum over all lanes, the same in each of them."""
    return value


@njit
def max_of_lanes(value: float) -> float:
    """Return the maximum over all lanes, the same in each of them."""
    return value
