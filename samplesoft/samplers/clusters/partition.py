"""Divide classes into cells, and those into smaller ones, by k-means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samplesoft._jit import thread_map
from samplesoft._progress import progress_bar
from samplesoft._random import mix64
from samplesoft._validation import IntArray
from samplesoft.samplers.base import Rows
from samplesoft.samplers.k_means import k_means

_LARGEST_SIZE_RATIO = 4  # times the mean size of the cells in a cell
_FEW_LEAVES = 32  # leaves in a cell that needs no cells between


def make_partition(
    rows: Rows, leaf_size: int, key: np.uint64, progress: bool
) -> tuple[IntArray, list[IntArray]]:
    """Divide classes with vectors (n, d) into leaves of about `leaf_size`, at most 4 times that.

    Half the cells at the top are single classes, those farthest from the centers of the others:
    two cumulants of a cell do not show a class that is unlike the rest, such as a frequent word.

    Returns the classes (n,), those of a leaf side by side, and for each level from the top where
    its cells begin among them.
    """
    parts = [np.arange(len(rows))]
    starts = list[IntArray]()
    for level, wanted in enumerate(_levels(len(rows), leaf_size)):
        cells: list[IntArray] = []
        desc = f"clustering, level {level + 1}"
        with progress_bar(progress, total=len(rows), unit="class", desc=desc) as bar:
            stream = np.uint64(mix64(key, np.uint64(level)))
            keys = [np.uint64(mix64(stream, np.uint64(i))) for i in range(len(parts))]
            for found in thread_map(
                lambda part: _divide(rows, part[0], wanted(len(part[0])), part[1]),  # noqa: B023
                zip(parts, keys, strict=True),
            ):
                cells += found
                bar.update(sum(map(len, found)))
        # only at the top: below it cells are small, and a class unlike the rest has left them
        parts = cells if starts or len(cells) == 1 else _set_apart(rows, cells)
        starts.append(np.cumsum([0, *map(len, parts[:-1])]))
    return np.concatenate(parts), starts


def _levels(num_classes: int, leaf_size: int) -> list[Callable[[int], int]]:
    """Return for each level into how many cells a cell of some size is divided.

    At the top there are ``6 n**(1/3)``, which are weighed for all contexts by one matrix product.
    """

    def leaves(size: int) -> int:
        return -(-size // leaf_size)

    if num_classes <= _LARGEST_SIZE_RATIO * leaf_size:
        return [lambda size: 1]
    num = leaves(num_classes)
    top = round(6.0 * num_classes ** (1 / 3))
    if num <= top:
        return [leaves]
    if num <= _FEW_LEAVES * top:
        return [lambda size: top, leaves]
    return [lambda size: top, lambda size: round(leaves(size) ** 0.5), leaves]


def _divide(rows: Rows, ids: IntArray, num: int, key: np.uint64) -> list[IntArray]:
    """Divide classes (k,) by k-means into about `num` cells, none of them empty or very large."""
    if num <= 1:
        return [ids]
    # keys are those of the cell, not of the thread that divides it
    labels = k_means(rows[ids], num, key)
    order = np.argsort(labels, kind="stable")
    edges = np.flatnonzero(np.diff(labels[order])) + 1
    largest = _LARGEST_SIZE_RATIO * (len(ids) // num)
    cells = []
    for cell in np.split(ids[order], edges):
        if len(cell) > largest:  # as of equal vectors
            widest = np.ptp(rows[cell], axis=0).argmax()
            cell = cell[np.argsort(rows[cell, widest], kind="stable")]
        cells += np.array_split(cell, -(-len(cell) // largest))
    return cells


def _set_apart(rows: Rows, cells: list[IntArray]) -> list[IntArray]:
    """Make cells of their own, as many as there are, of the classes farthest from their means."""
    distances = np.empty(len(rows))
    for cell in cells:
        here = rows[cell].astype(np.float64)
        # in float64: squares of float32 vectors of any size
        distances[cell] = ((here - here.mean(axis=0)) ** 2).sum(axis=1)
    alone = np.zeros(len(rows), bool)
    alone[np.argsort(-distances, kind="stable")[: len(cells)]] = True
    rest = (cell[~alone[cell]] for cell in cells)
    return [*(cell for cell in rest if len(cell)), *np.flatnonzero(alone)[:, None]]
