"""Random frequencies w ~ N(0, I), and products with them: independent, orthogonal or structured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend
from samplesoft._jit import chunks, njit
from samplesoft._memory import require_memory
from samplesoft._random import stream_key
from samplesoft._validation import FloatArray

_TILE_COLUMNS = 64  # number of frequencies in one matrix product
# largest number of multiplications in a matrix product for which BLAS uses only one thread
_MAX_SMALL_PRODUCT = 1 << 18
# smallest number p of rows in a block; with fewer, structured frequencies are too far from Gaussian
_MIN_BLOCK = 64
_DTYPES = [np.dtype(t) for t in (np.float32, np.float64)]
FREQUENCY_KINDS = ("iid", "orthogonal", "structured")


class DenseFrequencies:
    """A dense matrix of frequencies (D, d), stored in tiles of 64 frequencies for each dtype."""

    def __init__(self, matrix: FloatArray) -> None:
        num_frequencies, dim = matrix.shape
        num_in_tiles = num_frequencies - num_frequencies % _TILE_COLUMNS
        tiles = matrix[:num_in_tiles].reshape(-1, _TILE_COLUMNS, dim).transpose(0, 2, 1)

        # A matrix is stored in tiles, because a tile stays in the cache for all rows of a product.
        # Overflow in float32 is ignored here, because maps raise for infinite features.
        with np.errstate(over="ignore"):
            self._tiles = {
                dtype: [
                    np.ascontiguousarray(tile, dtype=dtype)
                    for tile in (tiles, matrix[None, num_in_tiles:].mT)
                ]
                for dtype in _DTYPES
            }

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write ``X @ matrix.T`` to `out` (N, D), for `X` (N, d).

        The product is divided into products that are so small that BLAS uses one thread for each.
        Further BLAS threads would busy-wait, and slow down the threads of this library.
        """
        block_rows = max(1, _MAX_SMALL_PRODUCT // (X.shape[1] * _TILE_COLUMNS))
        num_in_blocks = len(X) - len(X) % block_rows
        start = 0

        for tiles in self._tiles[X.dtype]:
            num_tiles, _, width = tiles.shape
            columns = slice(start, start + num_tiles * width)

            # one matmul call on views of all full blocks of rows, and one for the last rows
            for rows, num_rows in (
                (slice(0, num_in_blocks), block_rows),
                (slice(num_in_blocks, len(X)), len(X) - num_in_blocks),
            ):
                if num_rows and num_tiles * width:
                    target = out[rows, columns].reshape(-1, num_rows, num_tiles, width)
                    blocks = X[rows].reshape(-1, 1, num_rows, X.shape[1])
                    np.matmul(blocks, tiles, out=target.transpose(0, 2, 1, 3))

            start = columns.stop


class StructuredFrequencies:
    """Frequencies that are the rows of matrices ``H S_3 H S_2 H S_1``, one matrix for each block.

    The matrices are never computed. H is the Hadamard matrix (p, p), with p a power of 2. S_1, S_2
    and S_3 are diagonal, with the diagonals `signs` (blocks, 3, p). These are random signs; in S_1
    they are multiplied by the product of all scale factors. Yu et al. (2016), "Orthogonal random
    features", section 4.
    """

    def __init__(self, signs: FloatArray) -> None:
        self._signs = {t: signs.astype(t) for t in _DTYPES}

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the products of `X` (N, d) with the frequencies to `out` (N, D).

        Each product takes O(log p) operations.
        """
        write_structured_products(X, self._signs[X.dtype], out)


def random_signs(shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Return an array of independent random signs, 1.0 or -1.0."""
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def checked_generator(
    rng: int | np.random.Generator | None, num_frequencies: int, dim: int
) -> np.random.Generator:
    """Return a random generator for the seed `rng`.

    Raises MemoryError if `num_frequencies` vectors of length `dim` do not fit in memory.
    """
    # bytes of the frequencies in float32 and in float64
    require_memory("num_features", num_frequencies, 12.0 * num_frequencies * dim)
    return np.random.default_rng(int(stream_key(rng)))


def draw_frequencies(
    kind: str,
    dim: int,
    num_frequencies: int,
    scale: float,
    rng: np.random.Generator,
    device: str = "cpu",
) -> Any:
    """Draw `num_frequencies` frequencies of length `dim`, from N(0, scale**2 I) or nearly so.

    If `kind` is ``"iid"``, frequencies are independent. If it is ``"orthogonal"``, they are
    orthogonal in blocks of d. If it is ``"structured"``, they are `StructuredFrequencies` in blocks
    of p, a power of 2; these are only nearly Gaussian, and orthogonal within a block if p = d.
    Returns `DenseFrequencies` or `StructuredFrequencies`; for a GPU, a dict from dtypes to arrays
    (d, D).
    """
    if kind == "structured":
        block_size = max(_MIN_BLOCK, 1 << (dim - 1).bit_length())  # p, a power of two

        signs = random_signs((-(-num_frequencies // block_size), 3, block_size), rng)
        # the product of `scale`, of sqrt(p), and of p**-0.5 for each of the three H
        signs[:, 0] *= scale / block_size

        structured = StructuredFrequencies(signs)
        if device == "cpu":
            return structured

        # a GPU gets a dense matrix, so that one kernel serves all kinds of frequencies
        columns = np.empty((dim, num_frequencies))
        structured.project(np.eye(dim), columns)
        return _on_device(columns.T, device)

    if kind == "iid":
        return _on_device(scale * rng.standard_normal((num_frequencies, dim)), device)

    directions = np.empty((num_frequencies, dim))
    for block in chunks(num_frequencies, dim):
        q, r = np.linalg.qr(rng.standard_normal((dim, block.stop - block.start)))
        # the signs of the columns of q depend on LAPACK; with the signs of r, the distribution of
        # the orthogonal basis is uniform
        directions[block] = (q * np.sign(np.diag(r))).T

    norms = np.sqrt(rng.chisquare(dim, num_frequencies))  # distributed as norms of Gaussian vectors
    return _on_device(scale * norms[:, None] * directions, device)


def _on_device(matrix: FloatArray, device: str) -> Any:
    """Return frequencies (D, d) as `DenseFrequencies` for the CPU, or as device arrays for a GPU.

    For a GPU, the result is a dict from dtypes to transposed arrays (d, D).
    """
    if device == "cpu":
        return DenseFrequencies(matrix)
    return {t: backend(device).to_device(matrix.T.astype(t)) for t in _DTYPES}


# The Hadamard transforms of length p below have log2 p levels, with Pease's constant geometry. Each
# level reads contiguous slices of one buffer, and writes their sums and differences, interleaved,
# to another buffer; LLVM vectorises this. An in-place transform would combine neighbouring entries
# in some levels, which LLVM does not vectorise.


@njit
def _two_butterfly_levels(x: NDArray[Any], signs: NDArray[Any] | None, y: NDArray[Any]) -> None:
    """Write two levels of the Hadamard transform of ``signs * x`` (p,) to `y` (p,).

    If `signs` is None, `x` is transformed.
    """
    n = len(x) // 4
    a = x[:n]
    b = x[n : 2 * n]
    c = x[2 * n : 3 * n]
    d = x[3 * n :]

    # the function is compiled twice; if `signs` is None, Numba removes the branches on it
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
    """Write one level of the Hadamard transform of `x` (p,) to `y` (p,)."""
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
    """Return ``H @ (signs * x)`` (p,), for the Hadamard matrix H, and the unused buffer (p,).

    H has entries +1 and -1, and p is a power of 2, at least 4. `y` and `spare` (p,) are buffers.
    The result is in one of them, and the other is returned as unused. `x` may be the same array as
    `spare`, and is then overwritten.
    """
    _two_butterfly_levels(x, signs, y)
    remaining = len(x) // 4
    while remaining >= 4:  # log2(remaining) levels are left
        _two_butterfly_levels(y, None, spare)
        y, spare = spare, y
        remaining //= 4

    if remaining == 2:
        _one_butterfly_level(y, spare)
        y, spare = spare, y

    return y, spare


@njit
def write_structured_products(X: NDArray[Any], signs: NDArray[Any], out: NDArray[Any]) -> None:
    """Write ``H S_3 H S_2 H S_1 x``, for each row x of `X` (N, d) and each block, to `out` (N, D).

    `signs` (blocks, 3, p) are the diagonals of S_1, S_2 and S_3 of each block; H is the Hadamard
    matrix. Each row x is padded with zeros to length p. The products of all blocks are
    concatenated, and the last products are dropped if D is not a multiple of p.
    """
    num_blocks, num_factors, block_size = signs.shape
    row = np.zeros(block_size, X.dtype)  # the entries with index d and above stay 0
    buffer = np.empty(block_size, X.dtype)
    spare_buffer = np.empty(block_size, X.dtype)

    for i in range(X.shape[0]):
        row[: X.shape[1]] = X[i]

        for b in range(num_blocks):
            y, spare = signed_hadamard(row, signs[b, 0], buffer, spare_buffer)
            for k in range(1, num_factors):
                y, spare = signed_hadamard(y, signs[b, k], spare, y)

            out_block = out[i, b * block_size : (b + 1) * block_size]
            for j in range(len(out_block)):
                out_block[j] = y[j]
