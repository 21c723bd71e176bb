"""The kernel tree on a CUDA device: what it does in another way than the processor."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import (
    as_device_array,
    empty,
    kernel,
    launch_threads,
    thread_index,
    to_device,
)
from samplesoft._device import cuda
from samplesoft._device.select import on_device
from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes_cuda import run_on_warps
from samplesoft.samplers.tree import sums, walk
from samplesoft.samplers.tree.engine import HostFeatures, HostTree

_NUMBERS = 1 << 26  # numbers about a batch held at a time
_PARTS = 64  # of the rows whose columns are summed side by side


def _as_array(features: Any) -> Any:
    if not on_device(features):
        raise TypeError(
            "`transform` must return an array on the GPU with device='cuda', got "
            f"{type(features).__name__}; make the feature map with device='cuda'."
        )
    return as_device_array(features)


class CudaFeatures(HostFeatures):
    """The twin of `HostFeatures`: results lie on the device."""

    _arrays = cuda
    _as_array = staticmethod(_as_array)


class CudaTreeSums(sums.TreeSums):
    """The twin of `TreeSums`: nodes lie on the device, their total and their limits do not."""

    _arrays = cuda

    def add(self, leaves: IntArray, change: Any) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,), level by level."""
        steps, starts = sums.steps_up(leaves, self.nodes.shape[0])
        # a launch for each level: those above read what it has left
        for first, last in zip(starts[:-1], starts[1:], strict=True):
            level = to_device(steps[first:last]), (0, self.nodes.shape[1])
            run_on_warps(sums.add_steps, last - first, self.nodes, change, *level)

    def column_sums(self, rows: Any) -> FloatArray:
        """Return the sums of columns and of their absolute values in float64, (2, F)."""
        out = empty((_PARTS, 2, rows.shape[1]), np.float64)
        launch_threads(_sum_columns, _PARTS * rows.shape[1], rows, out)
        totals: FloatArray = out.copy_to_host().sum(axis=0)
        return totals

    def _columns(self) -> list[tuple[int, int]]:
        return [(0, self.nodes.shape[1])]


class CudaTree(HostTree):
    """The twin of `HostTree`: class vectors (n, d) and node sums lie on the device."""

    Features = CudaFeatures
    Sums = CudaTreeSums
    _arrays = cuda

    def _parts(self, batch: int, num_leaves: int) -> list[slice]:
        levels = walk.top(self._num_leaves) + 1
        numbers = 2 * num_leaves * (self._rules.leaf_size + 2 * levels)
        return chunks(batch, max(1, _NUMBERS // (self._dim + numbers)))


@kernel
def _sum_columns(rows: Any, out: Any) -> None:
    part, f = thread_index() // rows.shape[1], thread_index() % rows.shape[1]
    if part >= out.shape[0]:
        return
    # a thread for each column of a part: 64 of them, for one alone would wait for memory
    each = -(-rows.shape[0] // out.shape[0])
    total, size = 0.0, 0.0
    for i in range(part * each, min((part + 1) * each, rows.shape[0])):
        total += float(rows[i, f])
        size += abs(float(rows[i, f]))
    out[part, 0, f], out[part, 1, f] = total, size
