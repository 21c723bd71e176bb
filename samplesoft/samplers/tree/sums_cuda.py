"""The sums of features in the nodes of a kernel tree on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import available_bytes, empty, first_found, launch_threads, launch_warps
from samplesoft._device.arrays_cuda import filled
from samplesoft.kernels.tree import sums_cuda as kernels

_PARTS = 64  # of the rows whose columns are summed side by side


class CudaTreeSums:
    """The twin of `HostTreeSums`: node sums, beside their total in float64."""

    def __init__(self, leaf_sums: Any) -> None:
        zeros = filled(leaf_sums.shape[1], 0.0)
        self._total = self._limits = zeros
        sums, nothing = room_for_sums(leaf_sums), room_for_sums(leaf_sums, 0)
        sum_columns(leaf_sums, sums)
        self._total, self._limits = self._grown(sums, nothing, sums, leaf_sums.dtype)
        half = 1
        while half < leaf_sums.shape[0]:
            pairs = -(-leaf_sums.shape[0] // (2 * half))
            size = pairs * leaf_sums.shape[1]
            launch_threads(kernels.level_to_differences, size, leaf_sums, half)
            half *= 2
        self.nodes = leaf_sums

    @property
    def drift(self) -> float:
        """Distance of the total among the nodes from that in float64, relative to its norm."""
        total = self._total.copy_to_host()
        norm = np.linalg.norm(total)
        here = self.nodes[:1].copy_to_host()[0]
        return float(np.linalg.norm(here - total) / norm) if norm > 0.0 else 0.0

    def fit_again(self) -> bool:
        """Return whether there is memory for as many sums."""
        return bool(self.nodes.nbytes < available_bytes())

    def prepare(self, leaves: Any, change: Any, added: Any, taken: Any) -> Callable[[], None]:
        """Return what adds the change (k, F) of some leaves.

        `added` and `taken` are column sums, as `sum_columns` writes them, of what that is the
        difference of.
        """
        sizes = room_for_sums(change)
        sum_columns(change, sizes)
        total, limits = self._grown(added, taken, sizes, change.dtype)

        def commit() -> None:
            self._total, self._limits = total, limits
            self.add(leaves, change)

        return commit

    def add(self, leaves: Any, change: Any) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,)."""
        half = 1
        while half < self.nodes.shape[0]:
            launch_warps(kernels.add_level, leaves.shape[0], self.nodes, leaves, change, half)
            half *= 2
        launch_threads(kernels.add_to_root, change.shape[1], self.nodes, change)

    def subtract(self, leaves: Any, leaf_sums: Any) -> None:
        """Subtract from the sums (k, F) of leaves (k,) what the tree holds as such."""
        held = self.nodes, leaves, leaf_sums
        launch_threads(kernels.subtract_leaf_sums, leaf_sums.size, *held)

    def _grown(self, added: Any, taken: Any, sizes: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the total and the limits to the size of any node, with changes added."""
        num = self._total.shape[0]
        before = self._total, self._limits
        after = empty(num, np.float64), empty(num, np.float64)
        grown = added, taken, sizes, before, float(np.finfo(dtype).max), after
        if first_found(launch_threads, kernels.grow, num, *grown) is not None:
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {dtype}, got infinity or NaN; scale the vectors down, or use float64."
            )
        return after


def room_for_sums(rows: Any, num: int = 1) -> Any:
    """Return room for the column sums of `num` arrays as wide as `rows` (k, F)."""
    return empty((num * _PARTS, 2, rows.shape[1]), np.float64)


def sum_columns(rows: Any, sums: Any, place: int = 0) -> None:
    """Write sums of columns, and of their absolute values, to one of the places in `sums`."""
    part = sums[place * _PARTS : (place + 1) * _PARTS]
    launch_threads(kernels.sum_columns, _PARTS * rows.shape[1], rows, part)
