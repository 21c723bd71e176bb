"""The sums of features in the nodes of a kernel tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, num_threads, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.tree_sums import add_to_tree, sum_runs, sums_to_differences

_ROWS = 1 << 12  # looked at together


class TreeSums:
    """Node sums in the type of the features, beside their total in float64.

    Parameters
    ----------
    leaf_sums : ndarray, shape (L, F)
        Sums of the features of each leaf's classes; used up.

    Attributes
    ----------
    nodes : ndarray, shape (L, F)
        The total, and differences between the halves of nodes; see `samplesoft.kernels.tree_sums`.
    total : ndarray of float64, shape (F,)
        The total, to which changes are added without the rounding of `nodes`.

    Raises
    ------
    ValueError
        If a sum is not finite.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        total = np.empty((1, leaf_sums.shape[1]))
        sum_runs(leaf_sums, np.array([0]), total)
        self.nodes, self.total = leaf_sums, total[0]
        for _ in thread_map(lambda part: sums_to_differences(self.nodes, part), self._columns()):
            pass
        self._require_finite(*(self.nodes[part] for part in chunks(len(leaf_sums), _ROWS)))

    @property
    def drift(self) -> float:
        """Distance of the total among the nodes from that in float64, relative to its norm."""
        norm = np.linalg.norm(self.total)
        return float(np.linalg.norm(self.nodes[0] - self.total) / norm) if norm > 0.0 else 0.0

    def add(self, leaves: IntArray, change: NDArray[Any], total: FloatArray) -> None:
        """Add `change` (k, F), used up, to the leaves (k,), and `total` (F,) to the total.

        Raises
        ------
        ValueError
            If a sum would not be finite; nothing has changed then.
        """
        total = self.total + total
        self._require_finite(total, change)
        self.total = total
        for _ in thread_map(
            lambda part: add_to_tree(self.nodes, leaves, change, part), self._columns()
        ):
            pass

    def _require_finite(self, *sums: NDArray[Any]) -> None:
        dtype = self.nodes.dtype
        with np.errstate(over="ignore"):
            if not all(np.isfinite(part.astype(dtype, copy=False)).all() for part in sums):
                raise ValueError(
                    "`class_embeddings`, through `transform`, must give features with sums that "
                    f"are finite in {dtype}, got infinity or NaN; scale the vectors down, or use "
                    "float64."
                )

    def _columns(self) -> list[IntArray]:
        """Return ranges of features, one for each thread."""
        ends = np.linspace(0, self.nodes.shape[1], num_threads() + 1).astype(np.int64)
        return [ends[i : i + 2] for i in range(num_threads())]
