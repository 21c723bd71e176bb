"""Products of a few rows with the same matrix, one after another, shared among threads by rows.

A recurrent layer multiplies B states by its weights at each of T steps. Threads that share one
such product have to meet T times, which takes longer than the product. Rows never meet: each
thread takes some of them through all steps, in products so small that BLAS adds no threads.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import chunks

Floats = NDArray[Any]

_ALONE = 1 << 18  # multiplications of a product up to which OpenBLAS stays on the thread it is on
_ROWS = 10  # of a part, at most: few enough for two threads to share a batch of 20
_COLUMNS = 64  # of a piece of recurrent weights, at least: narrower ones lose what threads win


def row_parts(batch: int, weights: Floats) -> list[slice]:
    """Split a batch evenly for threads, or not at all where `weights` are too large for it.

    Parameters
    ----------
    batch : int
        Number of rows.
    weights : ndarray, shape (K, n)
        What they are multiplied by.

    Returns
    -------
    list of slice
        Parts of ``range(batch)``; they do not depend on the number of threads.
    """
    rows = -(-batch // -(-batch // _ROWS))
    return chunks(batch, rows if _is_small(rows, weights) else batch)


def column_pieces(weights: Floats, out: Floats) -> list[tuple[Floats, Floats]]:
    """Cut a product into products that one thread of the BLAS does alone.

    Parameters
    ----------
    weights : ndarray, shape (K, n)
        The factor on the right.
    out : ndarray, shape (rows, n)
        Where the product goes.

    Returns
    -------
    list of tuple of ndarray
        ``np.matmul(x, piece, out=place)`` for every pair of views (piece, place) leaves
        ``x @ weights`` in `out`. Where `weights` are large, there is one pair, uncut.
    """
    width = max(_ALONE // (len(out) * len(weights)) // 8, 1) * 8
    columns = out.shape[1]
    if width >= columns or not _is_small(len(out), weights):
        return [(weights, out)]
    whole = columns // width * width
    stacks = _stack(weights[:, :whole], width), _stack(out[:, :whole], width)
    rest = [(weights[:, whole:], out[:, whole:])] if whole < columns else []
    return [stacks, *rest]


def _is_small(rows: int, weights: Floats) -> bool:
    return bool(rows * min(weights.shape) * _COLUMNS <= _ALONE)


def _stack(matrix: Floats, width: int) -> Floats:
    """View a matrix (K, p * width) as p matrices (p, K, width) side by side."""
    return matrix.reshape(len(matrix), -1, width).transpose(1, 0, 2)
