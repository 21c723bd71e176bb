"""Cases that several tests of the kernel tree share, and its plain twin in fractions."""

from fractions import Fraction

import numpy as np
from mpmath import mp, mpf

from samplesoft.samplers.tree import plain

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


# --- the plain twin, without rounding ---------------------------------------------------------


def exactly(x):
    """Floats as fractions, which they are."""
    return [Fraction(float(value)) for value in x]


def real(x):
    """A fraction as mpf."""
    return mpf(x.numerator) / x.denominator


def exact_exp(x):
    """The exponential of a fraction to 50 digits, as a fraction."""
    with mp.workdps(50):
        y = mp.exp(real(x))
    return Fraction(int(y.man)) * Fraction(2) ** int(y.exp)


def kernel_of(phi, features):
    """K(h, c) of all classes, as fractions."""
    return [plain.inner_product(exactly(phi), exactly(row)) for row in features]


def probabilities(
    h, class_rows, phi, features, *, leaf_size, kind="kernel", scale=1.0, floor=1e-9, exclude=None
):
    """Probabilities (n,) of one context as fractions."""
    kernel, logits = kernel_of(phi, features), kernel_of(h, class_rows)
    scale, floor = Fraction(float(scale)), Fraction(float(floor))
    weights = plain.leaf_weights(kind, kernel, logits, scale, floor, exact_exp)
    q = plain.class_probabilities(kernel, weights, leaf_size, floor)
    return q if exclude is None else plain.probabilities_without(q, exclude)


def is_clipped(kernel, leaf_size, floor):
    """Whether some half of a node has less than the floor for each of its classes."""
    for first, middle, last in plain.nodes(plain.num_leaves(len(kernel), leaf_size)):
        for start, stop in ((first, middle), (middle, last)):
            below = plain.classes_in_leaves(start, stop, len(kernel), leaf_size)
            if sum(kernel[c] for c in below) < Fraction(floor) * len(below):
                return True
    return False
