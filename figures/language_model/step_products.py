"""Products of matrices in pieces so small that BLAS adds no threads, shared among our own.

A recurrent layer multiplies B states by its weights at each of T steps. Threads that share one
such product have to meet T times, which takes longer than the product. Rows never meet: each
thread takes some of them through all steps. The products over all steps go the same way, for
threads of BLAS keep spinning after a product, in the way of the steps that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, num_threads, thread_for_each
from samplesoft._limits import ignore_overflow

Floats = NDArray[Any]

_ALONE = 1 << 18  # multiplications of a product up to which OpenBLAS stays on the thread it is on
_ROWS = 10  # of a part, at most: few enough for two threads to share a batch of 20
_COLUMNS = 64  # of a piece of recurrent weights, at least: narrower ones lose what threads win
_TILE = 20, 200  # rows and depth of a piece of a long product, which leaves it 64 columns
_TILES = 5  # that a thread takes at a time


def row_parts(batch: int, weights: Floats) -> list[slice]:
    """Split a batch evenly for threads, or not at all where `weights` (K, n) are too large for it.

    The parts of ``range(batch)`` do not depend on the number of threads.
    """
    rows = -(-batch // -(-batch // _ROWS))
    return chunks(batch, rows if _is_small(rows, weights) else batch)


def column_pieces(weights: Floats, out: Floats) -> list[tuple[Floats, Floats]]:
    """Cut a product with `weights` (K, n) into products that one thread of the BLAS does alone.

    ``np.matmul(x, piece, out=place)`` for every pair of views (piece, place) leaves ``x @ weights``
    in `out` (rows, n). Where the weights are large, there is one pair, uncut.
    """
    rows, columns = out.shape[-2:]
    width = max(_ALONE // (rows * len(weights)) // 8, 1) * 8
    if width >= columns or not _is_small(rows, weights):
        return [(weights[None], out[..., None, :, :])]
    whole = columns // width * width
    stacks = _stack(weights[:, :whole], width), _stack(out[..., :whole], width)
    rest = [(weights[None, :, whole:], out[..., None, :, whole:])] if whole < columns else []
    return [stacks, *rest]


def products(tasks: list[tuple[Floats, Floats, Floats]]) -> None:
    """Write ``a @ b`` into `out` for triples of a (M, K), b (K, n) and `out` (M, n), all long.

    `out` is C-contiguous; a and b may be transposes. What comes out does not depend on the number
    of threads.
    """
    parts = []
    for a, b, out in tasks:
        if not (_is_small(_ROWS, a) or _is_small(_ROWS, b)):  # as for steps, BLAS has the threads
            with ignore_overflow():
                np.matmul(a, b, out=out)
            continue
        right = np.ascontiguousarray(b)  # the columns of a transpose are slow to read
        parts += [(a[part], right, out[part]) for part in _tall_parts(len(a))]
    left = iter(parts)  # of which each thread takes one when it is ready, for some are held up

    def work(_: int) -> None:
        with ignore_overflow():
            for part in left:
                _multiply(*part)

    thread_for_each(work, range(min(num_threads(), len(parts))))


def _tall_parts(size: int) -> list[slice]:
    """Split rows into parts of whole tiles, and a last one that is lower than a tile."""
    rows, whole = _TILE[0], size // _TILE[0] * _TILE[0]
    return chunks(whole, _TILES * rows) + [slice(whole, size)] * (whole < size)


def _multiply(a: Floats, b: Floats, out: Floats) -> None:
    """Write ``a @ b`` into `out`, in tiles."""
    height = min(_TILE[0], len(a))
    depth = -(-len(b) // -(-len(b) // _TILE[1]))  # the same for all tiles, nearly
    tiles, total = a.reshape(-1, height, len(b)), out.reshape(-1, height, b.shape[1])
    added = np.empty_like(total)
    for inner in chunks(len(b), depth):
        place = added if inner.start else total
        for piece, columns in column_pieces(b[inner], place):
            np.matmul(tiles[:, None, :, inner], piece, out=columns)
        if inner.start:
            total += added


def _is_small(rows: int, weights: Floats) -> bool:
    return bool(rows * min(weights.shape) * _COLUMNS <= _ALONE)


def _stack(matrix: Floats, width: int) -> Floats:
    """View matrices (..., K, p * width) as p matrices (..., p, K, width) side by side."""
    return matrix.reshape(*matrix.shape[:-1], -1, width).swapaxes(-2, -3)
