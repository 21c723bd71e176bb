"""The division of classes into cells, and of cells into smaller ones, by k-means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samplesoft._jit import thread_map
from samplesoft._progress import progress_bar
from samplesoft._random import mix64
from samplesoft._validation import IntArray
from samplesoft.samplers.base import Rows
from samplesoft.samplers.k_means import k_means

# max number of classes in a cell, relative to the mean over all cells of the same parent
_MAX_SIZE_RATIO = 4
# max number of leaves per top cell; beyond it, there is a level between top cells and leaves
_MAX_DIRECT_LEAVES = 32


def make_partition(
    rows: Rows, leaf_size: int, key: np.uint64, progress: bool
) -> tuple[IntArray, list[IntArray]]:
    """Divide classes with the vectors `rows` (n, d) into cells, on one to three levels.

    Returns the classes (n,), grouped by leaf, and a list with one array for each level from the
    top: the index of the first class of each cell, in the array of classes. A leaf has about
    `leaf_size` classes, and at most 4 times as many. If there are several top cells, about half of
    them hold a single class, an outlier that was far from the mean of its former cell. An outlier,
    for example a frequent word, is poorly described by the mean and the variance of a cell.
    """
    cells_above = [np.arange(len(rows))]
    offsets = list[IntArray]()
    for level, num_children in enumerate(_child_count_functions(len(rows), leaf_size)):
        cells: list[IntArray] = []

        desc = f"clustering, level {level + 1}"
        with progress_bar(progress, total=len(rows), unit="class", desc=desc) as bar:
            # a separate key for each cell, so that the result does not depend on threads
            stream = np.uint64(mix64(key, np.uint64(level)))
            keys = [np.uint64(mix64(stream, np.uint64(i))) for i in range(len(cells_above))]
            for children in thread_map(
                lambda task: _split_by_k_means(rows, task[0], num_children(len(task[0])), task[1]),  # noqa: B023
                zip(cells_above, keys, strict=True),
            ):
                cells += children
                bar.update(sum(map(len, children)))

        # outliers are separated only from the cells of the top level, which are large
        cells_above = cells if offsets or len(cells) == 1 else _separate_outliers(rows, cells)
        offsets.append(np.cumsum([0, *map(len, cells_above[:-1])]))

    return np.concatenate(cells_above), offsets


def _child_count_functions(num_classes: int, leaf_size: int) -> list[Callable[[int], int]]:
    """Return, for each level, a function that gives the number of children of a cell.

    The argument of a function is the number of classes in the cell. The first function is for the
    root. The root of a large tree has ``6 n**(1/3)`` children, whose masses are one matrix product
    for all contexts.
    """

    def num_leaves(size: int) -> int:
        """Return the number of leaves for a cell of `size` classes."""
        return -(-size // leaf_size)

    if num_classes <= _MAX_SIZE_RATIO * leaf_size:
        return [lambda size: 1]

    num_leaves_in_tree = num_leaves(num_classes)
    top = round(6.0 * num_classes ** (1 / 3))
    if num_leaves_in_tree <= top:
        return [num_leaves]
    if num_leaves_in_tree <= _MAX_DIRECT_LEAVES * top:
        return [lambda size: top, num_leaves]

    return [lambda size: top, lambda size: round(num_leaves(size) ** 0.5), num_leaves]


def _split_by_k_means(rows: Rows, ids: IntArray, num_cells: int, key: np.uint64) -> list[IntArray]:
    """Divide the classes `ids` (k,) by k-means into about `num_cells` cells; return the cells.

    No cell is empty, or larger than 4 times ``k // num_cells``.
    """
    if num_cells <= 1:
        return [ids]

    labels = k_means(rows[ids], num_cells, key)
    order = np.argsort(labels, kind="stable")
    edges = np.flatnonzero(np.diff(labels[order])) + 1
    max_size = _MAX_SIZE_RATIO * (len(ids) // num_cells)

    cells = []
    for cell in np.split(ids[order], edges):
        # k-means may leave a large cell, for example of equal vectors: sort the classes of this
        # cell by the entry with the widest range, and cut them into equal pieces
        if len(cell) > max_size:
            widest = np.ptp(rows[cell], axis=0).argmax()
            cell = cell[np.argsort(rows[cell, widest], kind="stable")]
        cells += np.array_split(cell, -(-len(cell) // max_size))

    return cells


def _separate_outliers(rows: Rows, cells: list[IntArray]) -> list[IntArray]:
    """Return `cells` without their outliers, and then each outlier as a cell of one class.

    Outliers are the classes farthest from the mean of their cell, as many as there are cells.
    """
    distances = np.empty(len(rows))
    for cell in cells:
        vectors = rows[cell].astype(np.float64)  # squares of float32 vectors may overflow
        distances[cell] = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)

    is_outlier = np.zeros(len(rows), bool)
    is_outlier[np.argsort(-distances, kind="stable")[: len(cells)]] = True

    remaining = (cell[~is_outlier[cell]] for cell in cells)
    return [*(cell for cell in remaining if len(cell)), *np.flatnonzero(is_outlier)[:, None]]
