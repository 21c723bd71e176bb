"""The sums of features in the nodes of a kernel tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import num_threads, thread_each
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.kernels.tree.sums import (
    add_to_tree,
    subtract_leaf_sums,
    sum_runs,
    sum_sizes,
    sums_to_differences,
)


class HostTreeSums:
    """Node sums (L, F) in the type of the features, beside their total (F,) in float64.

    `nodes` is laid out as in `samplesoft.kernels.tree.sums`, from the sums of each leaf (L, F),
    which are used up; changes are added to `total` without the rounding of `nodes`.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        self._limits = np.zeros(leaf_sums.shape[1])
        self._limits = self._grown(leaf_sums)
        total = np.empty((1, leaf_sums.shape[1]))
        sum_runs(leaf_sums, np.array([0]), total)
        self.nodes, self.total = leaf_sums, total[0]
        thread_each(lambda part: sums_to_differences(self.nodes, part), self._columns())

    @property
    def drift(self) -> float:
        """Distance of the total among the nodes from that in float64, relative to its norm."""
        norm = np.linalg.norm(self.total)
        return float(np.linalg.norm(self.nodes[0] - self.total) / norm) if norm > 0.0 else 0.0

    def prepare(
        self, leaves: IntArray, change: NDArray[Any], total: FloatArray
    ) -> Callable[[], None]:
        """Return what adds `change` (k, F), used up, to leaves (k,), and `total` (F,) to the total.

        Raises `ValueError` if a sum might not be finite.
        """
        limits = self._grown(change)
        self.nodes = writable(self.nodes)

        def commit() -> None:
            self.total = self.total + total
            self._limits = limits
            self.add(leaves, change)

        return commit

    def add(self, leaves: IntArray, change: NDArray[Any]) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,)."""
        thread_each(lambda part: add_to_tree(self.nodes, leaves, change, part), self._columns())

    def subtract(self, leaves: IntArray, leaf_sums: NDArray[Any]) -> None:
        """Subtract from the sums (k, F) of leaves (k,) what the tree holds as such."""
        subtract_leaf_sums(self.nodes, leaves, leaf_sums)

    def _grown(self, sums: NDArray[Any]) -> FloatArray:
        """Return limits (F,) to the size of any node after sums of leaves are added."""
        limits = self._limits.copy()
        sum_sizes(sums, limits)
        if not limits.max() < float(np.finfo(sums.dtype).max):  # nor NaN
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {sums.dtype}, got infinity or NaN; scale the vectors down, or use "
                "float64."
            )
        return limits

    def _columns(self) -> list[IntArray]:
        """Return ranges of features, two for each thread."""
        ends = np.linspace(0, self.nodes.shape[1], 2 * num_threads() + 1).astype(np.int64)
        return [ends[i : i + 2] for i in range(len(ends) - 1)]
