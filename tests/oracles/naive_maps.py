"""Slow, independent oracles for the feature maps; nothing here comes from samplesoft."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.linalg import hadamard
from scipy.stats import chi, norm


def gaussian_kernel(x, y, nu):
    """exp(-nu |x - y|^2 / 2) in high precision, as a float."""
    with mp.workdps(60):
        square = mp.fsum((mpf(float(a)) - mpf(float(b))) ** 2 for a, b in zip(x, y, strict=True))
        return float(mp.exp(-mpf(nu) * square / 2))


def exponential_kernel(x, y, tau):
    """exp(tau x . y) in high precision, as a float."""
    with mp.workdps(60):
        return float(mp.exp(mpf(tau) * _dot(x, y)))


def quadratic_kernel(x, y, alpha):
    """alpha (x . y)^2 + 1 in high precision, as a float."""
    with mp.workdps(60):
        return float(mpf(alpha) * _dot(x, y) ** 2 + 1)


def _dot(x, y):
    return mp.fsum(mpf(float(a)) * mpf(float(b)) for a, b in zip(x, y, strict=True))


def cos_sin_of_turns(t):
    """Cosine and sine of 2 pi t for one float t, to the last digit."""
    with mp.workdps(400):
        angle = 2 * mp.pi * mpf(float(t))
        return float(mp.cos(angle)), float(mp.sin(angle))


def structured_matrix(signs, scale, num):
    """Rows (num, p) of blocks scale * sqrt(p) * H S_3 H S_2 H S_1, H orthonormal."""
    size = signs.shape[2]
    h = hadamard(size) / np.sqrt(size)
    blocks = [h @ np.diag(c) @ h @ np.diag(b) @ h @ np.diag(a) for a, b, c in signs]
    return scale * np.sqrt(size) * np.concatenate(blocks)[:num]


def fourier_variance(x, y, nu, num):
    """Variance of the mean of cos(w . (x - y)) over `num` independent w, by quadrature."""
    distance = np.sqrt(nu) * np.linalg.norm(np.subtract(x, y))
    first, second = (
        quad(lambda g, p=p: np.cos(distance * g) ** p * norm.pdf(g), -12, 12, limit=400)[0]
        for p in (1, 2)
    )
    return (second - first**2) / num


def uniform_direction(d, length):
    """Mean of exp(length u_1) for u uniform on the sphere in d > 1 dimensions; complex `length`."""
    weights = quad(lambda a: np.sin(a) ** (d - 2), 0, np.pi)[0]
    mean = quad(
        lambda a: np.exp(length * np.cos(a)).real * np.sin(a) ** (d - 2), 0, np.pi, limit=400
    )[0]
    return mean / weights


def orthogonal_moment(d, length):
    """Mean of exp((w_1 + w_2) . s) for w_1 orthogonal to w_2 with Gaussian lengths, |s| = length.

    By quadrature over both lengths and the direction; an imaginary length gives cosines.
    """
    top = np.sqrt(d) + 9.0

    def inner(r):
        def value(q):
            return chi.pdf(q, d) * uniform_direction(d, length * np.hypot(r, q))

        return chi.pdf(r, d) * quad(value, 0, top, epsabs=1e-9)[0]

    return quad(inner, 0, top, epsabs=1e-8)[0]


def maclaurin_variance(x, y, tau, num):
    """Variance of a Maclaurin estimate by enumeration of the signs and the sum over degrees."""
    d = len(x)
    square = np.mean(
        [np.dot(w, x) ** 2 * np.dot(w, y) ** 2 for w in product((-1.0, 1.0), repeat=d)]
    )
    with mp.workdps(40):
        moment = mp.nsum(
            lambda n: (
                mpf(2) ** -(n + 1)
                * (mpf(tau) ** n / mp.factorial(n) * mpf(2) ** (n + 1)) ** 2
                * mpf(float(square)) ** n
            ),
            [0, mp.inf],
        )
        return float((moment - mp.exp(mpf(tau) * _dot(x, y)) ** 2) / num)


def positive_variance(x, y, tau, num):
    """Variance of a FAVOR+ estimate with independent w, by quadrature over w . (x + y)."""
    x, y = np.sqrt(tau) * np.asarray(x), np.sqrt(tau) * np.asarray(y)
    length, shift = np.linalg.norm(x + y), (x @ x + y @ y) / 2
    first, second = (
        quad(lambda g, p=p: np.exp(p * (length * g - shift)) * norm.pdf(g), -12, 25, limit=400)[0]
        for p in (1, 2)
    )
    return (second - first**2) / num


def covariance(name, x, y, other, sharpness, num):
    """Covariance of the estimates k(x, y) and k(x, other), by quadrature over two Gaussians.

    A feature sees of w only two inner products, which are Gaussian in the plane of two vectors.
    """
    x, y, other = (np.sqrt(sharpness) * np.asarray(v) for v in (x, y, other))
    nodes, weights = np.polynomial.hermite_e.hermegauss(90)
    weights = np.outer(weights, weights) / (2.0 * np.pi)

    def terms(v, w, feature):
        plane = np.linalg.qr(np.stack([v, w], axis=1))[0]
        angles = [plane.T @ u for u in (v, w)]
        return [feature(a[0] * nodes[:, None] + a[1] * nodes) for a in angles]

    if name == "rff":
        one, two = terms(x - y, x - other, np.cos)
    else:
        one, two = terms(x + y, x + other, np.exp)
        one, two = (t * np.exp(-(x @ x + v @ v) / 2) for t, v in ((one, y), (two, other)))
    return float((weights * one * two).sum() - (weights * one).sum() * (weights * two).sum()) / num


class Oracle(NamedTuple):
    """The kernel k(x, y, sharpness) of a map, and a sharpness at which estimates vary little."""

    kernel: Callable[..., float]
    sharpness: float
    variance: Callable[..., float] | None = None  # of an estimate: (x, y, sharpness, num)


ORACLES = {
    "rff": Oracle(gaussian_kernel, 1.7, fourier_variance),
    "rff:orthogonal": Oracle(gaussian_kernel, 1.7),
    "rff:structured": Oracle(gaussian_kernel, 1.7),
    "quadratic": Oracle(quadratic_kernel, 3.0, lambda x, y, alpha, num: 0.0),
    "maclaurin": Oracle(exponential_kernel, 0.6, maclaurin_variance),
    "positive": Oracle(exponential_kernel, 0.4, positive_variance),
    "positive:orthogonal": Oracle(exponential_kernel, 0.4),
}
