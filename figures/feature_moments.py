"""Variance and covariance of the estimates of feature maps, over the draw of the map.

Closed forms, of which `bias_vs_num_features` and `table1_kernel_mse` make use: `variance` of
``phi(x) . phi(y)``, and `covariance` between the estimates of one context with all classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import hyp1f1, i0

from samplesoft._device.rows import squared_norms
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._memory import require_memory
from samplesoft._validation import FloatArray, as_float_rows
from samplesoft.feature_maps import (
    FeatureMap,
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
    RandomMaclaurinFeatures,
)
from samplesoft.feature_maps.base import inner_products


def variance(phi: FeatureMap, X: ArrayLike, Y: ArrayLike) -> FloatArray | None:
    """Return the variance of ``phi(x) . phi(y)`` over the draw of the map.

    Parameters
    ----------
    phi : FeatureMap
        The map.
    X, Y : array_like, shapes (N, d) and (M, d), or (d,)
        Vectors.

    Returns
    -------
    ndarray of float64, shape (N, M), or None
        The exact variance, inf where it is too large for a float64; None for a map of which no
        closed form is known.

    Raises
    ------
    TypeError, ValueError
        If either is malformed or not of d columns, or inner products are beyond float64.

    Examples
    --------
    >>> phi = RandomFourierFeatures(3, 2000, nu=2.0, rng=0)
    >>> x, y = [[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]]
    >>> estimate = phi.transform(x) @ phi.transform(y).T
    >>> bool(abs(estimate - phi.kernel(x, y)) < 4 * variance(phi, x, y) ** 0.5)
    True
    """
    x, y = _pair(phi, X, Y)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(phi, QuadraticFeatures):
            values: FloatArray | None = np.zeros((len(x), len(y)))
        elif isinstance(phi, RandomFourierFeatures):
            values = _of_fourier(phi, x, y)
        elif isinstance(phi, PositiveRandomFeatures):
            values = _of_positive(phi, x, y)
        else:
            values = _of_maclaurin(phi, x, y) if isinstance(phi, RandomMaclaurinFeatures) else None
    # of finite rows, the difference of two numbers that are too large is not a number
    return None if values is None else np.nan_to_num(values, nan=np.inf, posinf=np.inf)


def covariance(phi: FeatureMap, x: ArrayLike, Y: ArrayLike) -> FloatArray | None:
    """Return the covariance of ``phi(x) . phi(y)`` between rows y, over the draw of the map.

    Parameters
    ----------
    phi : FeatureMap
        The map.
    x : array_like, shape (d,)
        One vector, such as a context.
    Y : array_like, shape (M, d)
        Vectors, such as those of the classes.

    Returns
    -------
    ndarray of float64, shape (M, M), or None
        The exact covariance, inf where it is too large for a float64; its diagonal is `variance`.
        None for a map of which no closed form is known.

    Raises
    ------
    TypeError, ValueError
        If either is malformed or not of d columns, `x` is not one vector, or inner products are
        beyond float64.
    MemoryError
        If M * M numbers do not fit.

    Examples
    --------
    >>> phi = RandomFourierFeatures(2, 10, nu=1.0)
    >>> covariance(phi, [1.0, 0.0], [[0.0, 1.0], [0.0, -1.0]]).round(4)
    array([[0.0374, 0.    ],
           [0.    , 0.0374]])
    """
    one, rows = _pair(phi, x, Y, "x")
    # of one context with all classes: this is what the bias under random features needs
    if len(one) != 1:
        raise ValueError(f"`x` must be one vector of length {phi.dim}, got {len(one)} rows.")
    # a few arrays of M * M numbers
    require_memory("Y", len(rows), 32.0 * len(rows) ** 2)
    if isinstance(phi, QuadraticFeatures):
        return np.zeros((len(rows), len(rows)))
    if getattr(phi, "frequencies", "") != "iid":
        return None
    with np.errstate(over="ignore"):
        if isinstance(phi, RandomFourierFeatures):
            # k(x, y) k(x, y') (cosh(s) - 1) / D with s = nu (x - y) . (x - y'), without overflow
            apart = phi.nu**0.5 * (one - rows)
            dots = np.abs(inner_products(apart, apart))
            half = 0.5 * np.diag(dots)
            out: FloatArray = np.exp(np.minimum(dots - half[:, None] - half, 0.0))
            # cosh is even in s, so that its absolute value will do, and no exponential overflows
            out *= np.expm1(-dots) ** 2 / (2 * phi.num_features)
            return out
        assert isinstance(phi, PositiveRandomFeatures)
        # k(x, y) k(x, y') (exp(s) - 1) / D with s = tau (x + y) . (x + y'), without inf - inf
        both = one + rows
        s = phi.tau * inner_products(both, both)
        dots = phi.tau * inner_products(rows, one)
        exponent = dots + dots.T + np.maximum(s, 0.0)
        out = np.exp(exponent) * -np.expm1(-np.abs(s)) / phi.num_features
        return np.copysign(out, s)


def _pair(
    phi: FeatureMap, X: ArrayLike, Y: ArrayLike, first: str = "X"
) -> tuple[FloatArray, FloatArray]:
    x, y = (as_float_rows(name, value, phi.dim) for name, value in ((first, X), ("Y", Y)))
    return x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)


def _of_fourier(phi: RandomFourierFeatures, X: FloatArray, Y: FloatArray) -> FloatArray | None:
    if phi.frequencies == "structured":
        return None
    num = phi.num_features
    # from differences: |x|^2 + |y|^2 - 2 x . y would cancel for neighbours
    exponent = 0.5 * phi.nu * cdist(X, Y, "sqeuclidean")
    # Var cos(w (x - y)) = (1 - k^2)^2 / 2 for a Gaussian w, by cos^2 = (1 + cos 2 w) / 2
    values = np.expm1(-2.0 * exponent) ** 2 / (2 * num)
    if phi.frequencies == "orthogonal":
        # pairs in one block depend on each other: their covariance, mostly negative
        together = orthogonal_moment(phi.dim, -exponent) - np.exp(-2.0 * exponent)
        values += orthogonal_pairs(phi.dim, num) / num**2 * together
    return np.maximum(values, 0.0)


def _of_positive(phi: PositiveRandomFeatures, X: FloatArray, Y: FloatArray) -> FloatArray:
    num = phi.num_features
    dots = phi.tau * inner_products(X, Y)
    # E exp(2 sqrt(tau) w (x + y)) in closed form, with the shifts of both features taken off
    exponent = 0.5 * phi.tau * (squared_norms(X)[:, None] + squared_norms(Y)) + dots
    exponent = np.maximum(exponent, 0.0)  # tau |x + y|^2 / 2, which may round below
    values: FloatArray = np.exp(2.0 * (dots + exponent)) * -np.expm1(-2.0 * exponent) / num
    if phi.frequencies == "orthogonal":
        # beyond both limits the part above is all, and the hypergeometric series overflows
        exponent = np.minimum(exponent, 300.0)
        square = np.exp(np.minimum(2.0 * dots, LARGEST_EXPONENT))
        together = orthogonal_moment(phi.dim, exponent) * np.exp(-2.0 * exponent) - 1.0
        values += orthogonal_pairs(phi.dim, num) / num**2 * together * square
    return np.maximum(values, 0.0)


def _of_maclaurin(phi: RandomMaclaurinFeatures, X: FloatArray, Y: FloatArray) -> FloatArray:
    # E[(w . x)^2 (w . y)^2], the factor that each degree puts on the second moment of a
    # feature; the sum over the degrees of (2 tau^2 square)^N / N!^2 is a Bessel function
    square = squared_norms(X)[:, None] * squared_norms(Y)
    square += 2.0 * inner_products(X, Y) ** 2 - 2.0 * (X**2 @ (Y**2).T)
    moment = 2.0 * i0(phi.tau * np.sqrt(8.0 * np.maximum(square, 0.0)))
    values: FloatArray = (moment - phi.kernel(X, Y) ** 2) / phi.num_features
    return values


def orthogonal_pairs(dim: int, num: int) -> int:
    """Return how many ordered pairs of `num` orthogonal frequencies share a block."""
    blocks, remainder = divmod(num, dim)  # the last block may be cut
    return blocks * dim * (dim - 1) + remainder * (remainder - 1)


def orthogonal_moment(dim: int, t: FloatArray) -> FloatArray:
    r"""Return ``E[exp(w_1 . s + w_2 . s)]`` for two frequencies of a block and ``t = |s|^2 / 2``.

    The sum of the two has a uniform direction, and a squared norm that is chi-square with 2 d
    degrees of freedom; averaged over both, the series of exp is :math:`{}_1F_1(d; d/2; t)`. For
    ``t < 0``, s is imaginary: ``E[cos(w_1 . s) cos(w_2 . s)]``.
    """
    return np.asarray(hyp1f1(dim, dim / 2.0, t), np.float64)
