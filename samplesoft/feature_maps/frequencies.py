"""Three ways to draw frequencies w ~ N(0, I): independent, orthogonal, structured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend
from samplesoft._jit import chunks, njit
from samplesoft._memory import require_memory
from samplesoft._random import as_key
from samplesoft._validation import FloatArray

_COLUMNS_AT_A_TIME = 64  # of a dense matrix, multiplied at a time
_SMALL_PRODUCT = 1 << 18  # multiplications up to which BLAS stays on the calling thread
_LEAST_BLOCK = 64  # shorter rows of a Hadamard product are too far from Gaussian
_TYPES = [np.dtype(t) for t in (np.float32, np.float64)]
KINDS = ("iid", "orthogonal", "structured")


class Dense:
    """Frequencies, scaled and given as rows (D, d), held as matrices of a few columns each."""

    def __init__(self, matrix: FloatArray) -> None:
        num, dim = matrix.shape
        whole = num - num % _COLUMNS_AT_A_TIME
        tiles = matrix[:whole].reshape(-1, _COLUMNS_AT_A_TIME, dim).transpose(0, 2, 1)
        # a tile of columns stays in the cache while all rows pass it
        with np.errstate(over="ignore"):  # maps refuse rows of float32 then
            self._parts = {
                dtype: [
                    np.ascontiguousarray(part, dtype=dtype)
                    for part in (tiles, matrix[None, whole:].mT)
                ]
                for dtype in _TYPES
            }

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write ``X @ matrix.T`` into `out` (N, D), in products too small for BLAS's own threads.

        Those would wait for work in a busy loop, and slow down the threads of this library.
        """
        rows = max(1, _SMALL_PRODUCT // (X.shape[1] * _COLUMNS_AT_A_TIME))
        whole = len(X) - len(X) % rows
        start = 0
        for tiles in self._parts[X.dtype]:
            num, _, width = tiles.shape
            columns = slice(start, start + num * width)
            # views alone: one call of matmul then does all whole blocks, and one the rest
            for part, size in ((slice(0, whole), rows), (slice(whole, len(X)), len(X) - whole)):
                if size and num * width:
                    target = out[part, columns].reshape(-1, size, num, width)
                    blocks = X[part].reshape(-1, 1, size, X.shape[1])
                    np.matmul(blocks, tiles, out=target.transpose(0, 2, 1, 3))
            start = columns.stop


class Structured:
    """Blocks of ``scale * sqrt(p) * H S_3 H S_2 H S_1`` with random signs S, never stored.

    `signs` (blocks, 3, p) are the diagonals in the order in which they are applied, the first
    times all factors, with p a power of two. Yu et al. (2016), "Orthogonal random features",
    section 4.
    """

    def __init__(self, signs: FloatArray) -> None:
        self._signs = {t: signs.astype(t) for t in _TYPES}

    def project(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the products into `out` in O(log p) for each."""
        structured_rows(X, self._signs[X.dtype], out)


def random_signs(shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Return an array of independent +-1."""
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def generator_of(rng: int | np.random.Generator | None, num: int, dim: int) -> np.random.Generator:
    """Return what draws `num` frequencies of length `dim`; MemoryError where they do not fit."""
    require_memory("num_features", num, 12.0 * num * dim)  # in both types
    return np.random.default_rng(int(as_key(rng)))


def draw_frequencies(
    kind: str, dim: int, num: int, scale: float, rng: np.random.Generator, device: str = "cpu"
) -> Any:
    """Draw `num` frequencies of length `dim`: one of the classes above, or columns on a device.

    Those are a dict of arrays (d, D) by type, of which `Backend.write_features` takes one.

    Entries are from ``N(0, scale**2)`` where the kind is ``"iid"``. ``"orthogonal"`` has blocks of
    d orthogonal rows, each alone distributed as ``N(0, scale**2 I)``; ``"structured"``, blocks of p
    rows that are orthogonal where p = d, and nearly Gaussian for large p.
    """
    if kind == "structured":
        size = max(_LEAST_BLOCK, 1 << (dim - 1).bit_length())  # p, a power of two
        signs = random_signs((-(-num // size), 3, size), rng)
        signs[:, 0] *= scale / size  # sqrt(p), and p**-0.5 for each of the three H
        structured = Structured(signs)
        if device == "cpu":
            return structured
        # multiplied out: one kernel serves all frequencies on a device
        columns = np.empty((dim, num))
        structured.project(np.eye(dim), columns)
        return _held(columns.T, device)
    if kind == "iid":
        return _held(scale * rng.standard_normal((num, dim)), device)
    directions = np.empty((num, dim))
    for block in chunks(num, dim):
        q, r = np.linalg.qr(rng.standard_normal((dim, block.stop - block.start)))
        # without these signs LAPACK's bases are not uniformly distributed
        directions[block] = (q * np.sign(np.diag(r))).T
    norms = np.sqrt(rng.chisquare(dim, num))  # as long as Gaussian rows, so that each is one
    return _held(scale * norms[:, None] * directions, device)


def _held(matrix: FloatArray, device: str) -> Any:
    """Return frequencies (D, d) as the feature maps of a device take them."""
    if device == "cpu":
        return Dense(matrix)
    return {t: backend(device).placed(matrix.T.astype(t)) for t in _TYPES}


# Every pass has Pease's constant geometry: it reads contiguous parts of one buffer and
# interleaves their sums and differences in another, so that LLVM vectorises all of them alike.
# In place, the first passes would pair neighbours and stay scalar.


@njit
def _pass_of_two(x: NDArray[Any], signs: NDArray[Any] | None, y: NDArray[Any]) -> None:
    """Do two levels of butterflies on ``signs * x`` (p,), into `y` (p,); None for no signs."""
    n = len(x) // 4
    a = x[:n]
    b = x[n : 2 * n]
    c = x[2 * n : 3 * n]
    d = x[3 * n :]
    # compiled twice: without signs Numba leaves these branches out
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
def _pass_of_one(x: NDArray[Any], y: NDArray[Any]) -> None:
    """Do one level of butterflies on `x` (p,), into `y` (p,)."""
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
    """Return H (signs * x), not normalized, and the buffer left over; p = len(x) is 4 or more.

    `y` and `spare` are buffers of the length of `x`, of which the result is one; `x` may be
    `spare`, and is then overwritten.
    """
    _pass_of_two(x, signs, y)
    left = len(x) // 4
    while left >= 4:  # log2 p levels in all, of which the first pass has done two
        _pass_of_two(y, None, spare)
        y, spare = spare, y
        left //= 4
    if left == 2:
        _pass_of_one(y, spare)
        y, spare = spare, y
    return y, spare


@njit
def structured_rows(X: NDArray[Any], signs: NDArray[Any], out: NDArray[Any]) -> None:
    """Write H S_3 H S_2 H S_1 x for each row x of `X` (N, d) and each block into `out` (N, D).

    `signs` (blocks, 3, p) holds the diagonals in the order in which they are applied; rows are
    padded with zeros to p numbers, and the last block is cut to fill `out`.
    """
    blocks, factors, size = signs.shape
    row = np.zeros(size, X.dtype)  # whose end stays 0, the padding
    first = np.empty(size, X.dtype)
    second = np.empty(size, X.dtype)
    for i in range(X.shape[0]):
        row[: X.shape[1]] = X[i]
        for b in range(blocks):
            y, spare = signed_hadamard(row, signs[b, 0], first, second)
            for k in range(1, factors):
                y, spare = signed_hadamard(y, signs[b, k], spare, y)
            part = out[i, b * size : (b + 1) * size]
            for j in range(len(part)):
                part[j] = y[j]
