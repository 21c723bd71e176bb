"""Frequencies w ~ N(0, I): independent, orthogonal or structured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend
from samplesoft._jit import chunks, njit
from samplesoft._memory import require_memory
from samplesoft._random import as_key
from samplesoft._validation import FloatArray

_TILE_COLUMNS = 64  # columns of a dense matrix in one product
_MAX_SMALL_PRODUCT = 1 << 18  # multiplications up to which BLAS uses one thread
_MIN_BLOCK = 64  # shorter rows of a Hadamard product are too far from Gaussian
_TYPES = [np.dtype(t) for t in (np.float32, np.float64)]
KINDS = ("iid", "orthogonal", "structured")


class Dense:
    """A dense matrix of scaled frequencies (D, d), stored in tiles of a few columns."""

    def __init__(self, matrix: FloatArray) -> None:
        num, dim = matrix.shape
        num_in_tiles = num - num % _TILE_COLUMNS
        tiles = matrix[:num_in_tiles].reshape(-1, _TILE_COLUMNS, dim).transpose(0, 2, 1)
        # a tile stays in the cache for all rows
        with np.errstate(over="ignore"):  # maps raise for infinite features in float32
            self._tiles = {
                dtype: [
                    np.ascontiguousarray(tile, dtype=dtype)
                    for tile in (tiles, matrix[None, num_in_tiles:].mT)
                ]
                for dtype in _TYPES
            }

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write ``X @ matrix.T`` to `out` (N, D), in products so small that BLAS uses one thread.

        BLAS threads would busy-wait, and slow down the threads of this library.
        """
        block_rows = max(1, _MAX_SMALL_PRODUCT // (X.shape[1] * _TILE_COLUMNS))
        num_in_blocks = len(X) - len(X) % block_rows
        start = 0
        for tiles in self._tiles[X.dtype]:
            num, _, width = tiles.shape
            columns = slice(start, start + num * width)
            # views: one matmul call for all full blocks, and one for the rest
            for rows, size in (
                (slice(0, num_in_blocks), block_rows),
                (slice(num_in_blocks, len(X)), len(X) - num_in_blocks),
            ):
                if size and num * width:
                    target = out[rows, columns].reshape(-1, size, num, width)
                    blocks = X[rows].reshape(-1, 1, size, X.shape[1])
                    np.matmul(blocks, tiles, out=target.transpose(0, 2, 1, 3))
            start = columns.stop


class Structured:
    """Blocks of ``scale * sqrt(p) * H S_3 H S_2 H S_1`` with random signs S, which are not stored.

    `signs` (blocks, 3, p) are the diagonals in the order of application; the first includes all
    scale factors. p is a power of 2. Yu et al. (2016), "Orthogonal random features", section 4.
    """

    def __init__(self, signs: FloatArray) -> None:
        self._signs = {t: signs.astype(t) for t in _TYPES}

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the products to `out`, in O(log p) for each."""
        structured_rows(X, self._signs[X.dtype], out)


def random_signs(shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Return independent signs +-1."""
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def generator_of(rng: int | np.random.Generator | None, num: int, dim: int) -> np.random.Generator:
    """Return the generator for `num` frequencies (dim,); MemoryError if they do not fit."""
    require_memory("num_features", num, 12.0 * num * dim)  # in both types
    return np.random.default_rng(int(as_key(rng)))


def draw_frequencies(
    kind: str, dim: int, num: int, scale: float, rng: np.random.Generator, device: str = "cpu"
) -> Any:
    """Draw `num` frequencies of length `dim`.

    Returns a `Dense` or `Structured`, or for a GPU a dict of arrays (d, D) by dtype.

    ``"iid"`` entries are from ``N(0, scale**2)``. ``"orthogonal"`` frequencies are orthogonal in
    blocks of d, and each has the distribution ``N(0, scale**2 I)``. ``"structured"`` frequencies
    come in blocks of p rows, which are orthogonal if p = d, and nearly Gaussian for large p.
    """
    if kind == "structured":
        size = max(_MIN_BLOCK, 1 << (dim - 1).bit_length())  # p, a power of two
        signs = random_signs((-(-num // size), 3, size), rng)
        signs[:, 0] *= scale / size  # sqrt(p), and p**-0.5 for each of the three H
        structured = Structured(signs)
        if device == "cpu":
            return structured
        # as a dense matrix: one kernel for all frequencies on a GPU
        columns = np.empty((dim, num))
        structured.project(np.eye(dim), columns)
        return _for_device(columns.T, device)
    if kind == "iid":
        return _for_device(scale * rng.standard_normal((num, dim)), device)
    directions = np.empty((num, dim))
    for block in chunks(num, dim):
        q, r = np.linalg.qr(rng.standard_normal((dim, block.stop - block.start)))
        # signs that make LAPACK's bases uniformly distributed
        directions[block] = (q * np.sign(np.diag(r))).T
    norms = np.sqrt(rng.chisquare(dim, num))  # norms of Gaussian vectors
    return _for_device(scale * norms[:, None] * directions, device)


def _for_device(matrix: FloatArray, device: str) -> Any:
    """Return a matrix of frequencies (D, d) in the form for a device."""
    if device == "cpu":
        return Dense(matrix)
    return {t: backend(device).to_device(matrix.T.astype(t)) for t in _TYPES}


# Every pass has Pease's constant geometry: it reads contiguous parts of one buffer and interleaves
# their sums and differences in another, which LLVM vectorises. In place, the first passes would
# combine neighbours and stay scalar.


@njit
def _two_butterfly_levels(x: NDArray[Any], signs: NDArray[Any] | None, y: NDArray[Any]) -> None:
    """Write two levels of butterflies on ``signs * x`` (p,) to `y` (p,); None for no signs."""
    n = len(x) // 4
    a = x[:n]
    b = x[n : 2 * n]
    c = x[2 * n : 3 * n]
    d = x[3 * n :]
    # compiled twice: without signs, Numba prunes these branches
    if signs is not None:
        e = signs[:n]
        f = signs[n : 2 * n]
        g = signs[2 * n : 3 * n]
        h = signs[3 * n :]
    for i in range(n):
        first = a[i]
        second = b[i]
        third = c[i]
        fourth = d[i]
        if signs is not None:
            first = first * e[i]
            second = second * f[i]
            third = third * g[i]
            fourth = fourth * h[i]
        p = first + third
        q = second + fourth
        r = first - third
        s = second - fourth
        y[4 * i] = p + q
        y[4 * i + 1] = p - q
        y[4 * i + 2] = r + s
        y[4 * i + 3] = r - s


@njit
def _one_butterfly_level(x: NDArray[Any], y: NDArray[Any]) -> None:
    """Write one level of butterflies on `x` (p,) to `y` (p,)."""
    n = len(x) // 2
    a = x[:n]
    b = x[n:]
    for i in range(n):
        y[2 * i] = a[i] + b[i]
        y[2 * i + 1] = a[i] - b[i]


@njit
def signed_hadamard(
    x: NDArray[Any], signs: NDArray[Any], y: NDArray[Any], spare: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return H (signs * x), not normalised, and the unused buffer; p = len(x) is 4 or more.

    `y` and `spare` are buffers of the same length, one of which holds the result. `x` may be
    `spare`, which is then overwritten.
    """
    _two_butterfly_levels(x, signs, y)
    remaining = len(x) // 4
    while remaining >= 4:  # log2 p levels; the first pass has done two
        _two_butterfly_levels(y, None, spare)
        y, spare = spare, y
        remaining //= 4
    if remaining == 2:
        _one_butterfly_level(y, spare)
        y, spare = spare, y
    return y, spare


@njit
def structured_rows(X: NDArray[Any], signs: NDArray[Any], out: NDArray[Any]) -> None:
    """Write H S_3 H S_2 H S_1 x for each row x of `X` (N, d) and each block to `out` (N, D).

    `signs` (blocks, 3, p) are the diagonals in the order of application. Rows are padded with zeros
    to length p, and the last block is truncated to fill `out`.
    """
    blocks, factors, size = signs.shape
    row = np.zeros(size, X.dtype)  # the end stays 0
    first = np.empty(size, X.dtype)
    second = np.empty(size, X.dtype)
    for i in range(X.shape[0]):
        row[: X.shape[1]] = X[i]
        for b in range(blocks):
            y, spare = signed_hadamard(row, signs[b, 0], first, second)
            for k in range(1, factors):
                y, spare = signed_hadamard(y, signs[b, k], spare, y)
            out_block = out[i, b * size : (b + 1) * size]
            for j in range(len(out_block)):
                out_block[j] = y[j]
