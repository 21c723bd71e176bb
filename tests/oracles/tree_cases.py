"""Cases that several tests of the kernel tree share."""

import numpy as np

SIZES = [1, 2, 3, 5, 37, 64, 65, 130]
DTYPES = [np.float32, np.float64]


def lifted(rows):
    """Features that have the same bits in a batch of any size, unlike a matrix product."""
    return np.concatenate([np.maximum(rows, 0), rows**2 - 0.5 * rows], axis=1)


def whole_numbers(n, dtype=np.float64, batch=2, dim=5):
    """Vectors whose inner products and sums are exact, so that clipping is; many are negative."""
    rng = np.random.default_rng(n)
    rows, h = rng.integers(-3, 4, (n, dim)), rng.integers(-3, 4, (batch, dim))
    return rows.astype(dtype), h.astype(dtype)


def real_numbers(n, dtype=np.float64, batch=2, dim=4):
    rng = np.random.default_rng(n)
    rows, h = rng.standard_normal((n, dim)), rng.standard_normal((batch, dim))
    return rows.astype(dtype), h.astype(dtype)


def as_floats(q):
    return np.array([float(x) for x in q])


def leaf_sizes(n):
    return sorted({1, 3, 64, n})
