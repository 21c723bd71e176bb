"""Feature maps row by row against their plain twin."""

import numpy as np
import pytest

from samplesoft.feature_maps import (
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
    RandomMaclaurinFeatures,
    plain,
)
from samplesoft.feature_maps.frequencies import StructuredFrequencies

DIM, ROWS = 5, np.random.default_rng(0).standard_normal((7, 5)) / 2
DTYPES = [(np.float64, 1e-12), (np.float32, 2e-5)]


def frequencies_of(projections):
    """Frequencies (D, d) that a map multiplies by."""
    products = np.empty((DIM, projections[1]))
    projections[0].project(np.eye(DIM), products)
    return products.T


def require_rows(phi, twin, dtype, off):
    """Each row is that of the twin, and of a slightly different vector it is not."""
    found = phi.transform(ROWS.astype(dtype))
    wanted = np.array([twin(x) for x in ROWS])
    np.testing.assert_allclose(found, wanted, rtol=off, atol=off)
    wrong = np.array([twin(1.001 * x) for x in ROWS])  # WRONG
    assert np.abs(found - wrong).max() > 10 * off


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
@pytest.mark.parametrize("kind", ["iid", "orthogonal", "structured"])
@pytest.mark.parametrize("num", [3, 70])
def test_fourier(num, kind, dtype, off):
    phi = RandomFourierFeatures(DIM, num, nu=2.0, frequencies=kind, rng=1)
    w = 2.0 * np.pi * frequencies_of((phi.turns, num))
    require_rows(phi, lambda x: plain.fourier(x, w), dtype, off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_positive(kind, dtype, off):
    phi = PositiveRandomFeatures(DIM, 70, tau=1.5, frequencies=kind, rng=1)
    w = frequencies_of((phi.projections, 70)) / np.sqrt(1.5)
    require_rows(phi, lambda x: plain.positive(x, w, 1.5), dtype, off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_maclaurin(dtype, off):
    phi = RandomMaclaurinFeatures(DIM, 70, tau=1.5, rng=1)
    signs = [[] for _ in range(70)]
    for num, factor in phi._factors:
        for j, row in enumerate(frequencies_of((factor, num))):
            signs[j].append(row)
    assert {len(rows) for rows in signs} >= {0, 1, 2, 3}
    require_rows(phi, lambda x: plain.maclaurin(x, signs, 1.5), dtype, off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_quadratic(dtype, off):
    require_rows(QuadraticFeatures(DIM, 3.0), lambda x: plain.quadratic(x, 3.0), dtype, off)


def test_orthogonal_frequencies_are_those_of_gram_and_schmidt():
    phi = PositiveRandomFeatures(DIM, DIM, tau=1.0, frequencies="orthogonal", rng=3)
    w = frequencies_of((phi.projections, DIM))
    directions = w / np.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_allclose(plain.orthogonal(w), directions, atol=1e-13)
    gaussian = np.random.default_rng(0).standard_normal((4, 4))
    q, r = np.linalg.qr(gaussian.T)
    np.testing.assert_allclose(plain.orthogonal(gaussian), (q * np.sign(np.diag(r))).T, atol=1e-13)


@pytest.mark.parametrize("p", [4, 8, 64])
def test_structured_products(p):
    rng = np.random.default_rng(p)
    signs = rng.choice([-1.0, 1.0], (3, p))
    given = signs[None].copy()
    given[0, 0] /= p  # sqrt(p), and p**-0.5 for each of the three H
    found = np.empty((len(ROWS), p))
    x = ROWS[:, : min(p, DIM)]
    StructuredFrequencies(given).project(x, found)
    np.testing.assert_allclose(
        found, [plain.structured_products(row, signs) for row in x], atol=1e-12
    )
    h = np.array([plain.hadamard(row) for row in np.eye(p)])
    np.testing.assert_array_equal(h @ h, p * np.eye(p))


def test_the_means_over_frequencies_are_the_kernels():
    rng, (x, y) = np.random.default_rng(0), ROWS[:2]
    w = rng.standard_normal((40_000, DIM))
    gaussian = np.exp(-((x - y) @ (x - y)) / 2.0)
    estimate = plain.fourier(x, w) @ plain.fourier(y, w)
    assert estimate == pytest.approx(gaussian, abs=0.02)
    estimate = plain.positive(x, w, 1.0) @ plain.positive(y, w, 1.0)
    assert estimate == pytest.approx(np.exp(x @ y), rel=0.05)
    assert plain.quadratic(x, 3.0) @ plain.quadratic(y, 3.0) == pytest.approx(3 * (x @ y) ** 2 + 1)
