"""Written once for both devices: what the lanes of a warp share out, and a thread does alone.

A function that kernels share goes through its numbers by ``range(lane(), size, num_lanes())``, and
calls `meet` before it reads what others have written. On the processor there is one lane, and the
compiler is left with a plain loop. `for_device` of ``lanes_cuda`` compiles the same function with
the lanes of a warp; all lanes take each decision alike, and where all write
the same number to one place, nobody has to be chosen for it. So nothing may be read there after.

What is done for many examples, draws or rows goes through them by
``range(worker(), num, num_workers())``: one after another on the processor, and each by a warp of
its own on the device. Where a worker needs room, its number is that of its row.
"""

from __future__ import annotations

from samplesoft._jit import njit


@njit
def worker() -> int:
    """Return which of the workers this is."""
    return 0


@njit
def num_workers() -> int:
    """Return how many workers share the work."""
    return 1


@njit
def lane() -> int:
    """Return which of the lanes this is."""
    return 0


@njit
def num_lanes() -> int:
    """Return how many lanes share the work."""
    return 1


@njit
def meet() -> None:
    """Let the lanes see what the others have written."""


@njit
def sum_of_lanes(value: float) -> float:
    """Return the sum over all lanes, the same in each of them."""
    return value


@njit
def max_of_lanes(value: float) -> float:
    """Return the maximum over all lanes, the same in each of them."""
    return value
