"""All feature maps: kernels, means and variances, drawn frequencies, types and memory orders."""

from functools import cache

import feature_moments  # of figures/
import numpy as np
import pytest
from mpmath import mp
from oracles import naive_maps
from oracles.naive_maps import ORACLES
from scipy.linalg import hadamard

from samplesoft.feature_maps import (
    FEATURE_MAPS,
    PositiveRandomFeatures,
    RandomFourierFeatures,
    RandomMaclaurinFeatures,
    make_feature_map,
)
from samplesoft.feature_maps.frequencies import (
    FREQUENCY_KINDS,
    draw_frequencies,
    signed_hadamard,
)
from samplesoft.kernels.sincos import TERMS, cos_sin_rows

NAMES = sorted(FEATURE_MAPS)
DIM = 6
SEEDS = 4000
# Every z below is at most 5.2 in size: with 500 comparisons in this file, chance alone passes that
# once in ten thousand runs; the seeds are fixed, so that a failure is always a change.
Z = 5.2


def unit_rows(num, dim, seed):
    rows = np.random.default_rng(seed).normal(size=(num, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def pairs():
    """Rows X (4, DIM) and Y (3, DIM): near, far, opposite and equal, of norms 0 to 1.3."""
    X, Y = unit_rows(4, DIM, 0), unit_rows(3, DIM, 1)
    Y[0] = -X[0]
    Y[1] = X[1]
    X[2] *= 1.3
    X[3] = 0.0
    return X, Y


def make(name, num=16, factor=1.0, dim=DIM, seed=0):
    """Make a map of the sharpness at which estimates vary little, times `factor`."""
    return make_feature_map(name, dim, num, factor * ORACLES[name].sharpness, rng=seed)


@cache
def estimates(name, num=16):
    """Estimates (SEEDS, 4, 3) of the kernel of `pairs`, one for each seed."""
    X, Y = pairs()
    maps = (make(name, num, seed=seed) for seed in range(SEEDS))
    return np.array([phi.transform(X) @ phi.transform(Y).T for phi in maps])


def z_of_mean(values, mean, variance):
    """Greatest z of the mean of `values` (S, ...); inf where entries without variance differ."""
    error = np.abs(values.mean(axis=0) - mean)
    still = variance < 1e-20
    if not np.allclose(error[still], 0.0, atol=1e-12):
        return np.inf
    return np.max(error[~still] / np.sqrt(variance[~still] / len(values)), initial=0.0)


def z_of_variance(values, mean, variance):
    """Greatest z of the mean squared error of `values` (S, ...) about `mean`."""
    squares = (values - mean) ** 2
    return z_of_mean(squares, variance, squares.var(axis=0))


# kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_kernel_against_high_precision(name):
    X, Y = pairs()
    phi, oracle = make(name, 4), ORACLES[name]
    expected = [[oracle.kernel(x, y, oracle.sharpness) for y in Y] for x in X]
    np.testing.assert_allclose(phi.kernel(X, Y), expected, rtol=4e-15)
    assert phi.kernel(X.astype(np.float32), Y).dtype == np.float64


def test_gaussian_kernel_does_not_cancel_for_neighbours_far_from_zero():
    x = np.full(DIM, 1e4)
    y = x + 1e-4
    phi = RandomFourierFeatures(DIM, 2, nu=1e7, rng=0)
    expected = naive_maps.gaussian_kernel(x, y, 1e7)
    np.testing.assert_allclose(phi.kernel(x, y), [[expected]], rtol=1e-13)
    assert 0.5 < expected < 0.9 or 0.5 < -np.log(expected) < 2.0


@pytest.mark.parametrize("name", NAMES)
def test_floor_is_the_least_kernel_of_unit_vectors(name):
    phi = make(name, 4)
    x = unit_rows(1, DIM, 0)[0]
    other = np.linalg.svd(x[None])[2][-1]  # orthogonal to x
    angles = np.linspace(0.0, np.pi, 201)[:, None]
    values = phi.kernel(x, np.cos(angles) * x + np.sin(angles) * other)
    assert values.min() == pytest.approx(phi.floor, rel=1e-12)


# means and variances -----------------------------------------------------------------------


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if FEATURE_MAPS[n].unbiased])
def test_mean_and_variance_over_seeds(name):
    X, Y = pairs()
    phi = make(name)
    kernel, variance = phi.kernel(X, Y), feature_moments.variance(phi, X, Y)
    assert z_of_mean(estimates(name), kernel, variance) < Z
    assert z_of_variance(estimates(name), kernel, variance) < Z


@pytest.mark.parametrize("name", [n for n in NAMES if not FEATURE_MAPS[n].unbiased])
def test_a_map_that_is_said_to_be_biased_is(name):
    values = estimates(name, 64)  # enough features for the bias to stand out of the noise
    assert z_of_mean(values, make(name).kernel(*pairs()), values.var(axis=0)) > Z


def test_structured_mean_is_that_of_frequencies_of_fixed_norm():
    # Its frequencies have the norm sqrt(nu p) and nearly uniform directions in p = 64 dimensions:
    # a bias of -z^4 exp(-z^2 / 2) / (4 p), at most 0.0085, for z^2 = nu |x - y|^2. What is left
    # beside it is of order 1 / p^2 and allowed for, 0.002.
    X, Y = pairs()
    phi = make_feature_map("rff:structured", DIM, 64, 1.7, rng=0)
    assert feature_moments.variance(phi, X, Y) is None
    values, kernel = estimates("rff:structured", 64), phi.kernel(X, Y)
    square = -2.0 * np.log(kernel)
    expected = [
        [naive_maps.uniform_direction(64, 1j * np.sqrt(64 * s)) for s in row] for row in square
    ]
    error = np.abs(values.mean(axis=0) - expected)
    assert np.max(error - Z * values.std(axis=0) / np.sqrt(SEEDS)) < 0.002
    np.testing.assert_allclose(expected - kernel, -(square**2) * kernel / 256, atol=0.001)
    assert np.abs(values.mean(axis=0) - kernel).max() < 0.6 / 64 + 0.003


def test_structured_varies_no_more_than_independent_frequencies():
    X, Y = pairs()
    iid = feature_moments.variance(make_feature_map("rff", DIM, 64, 1.7, rng=0), X, Y)
    assert np.all(estimates("rff:structured", 64).var(axis=0) < 1.15 * iid + 1e-9)


def test_the_printed_frequencies_fail_the_mean_test():
    X, Y = pairs()
    printed = make_feature_map("rff", DIM, 16, 1.0 / 1.7, rng=0)  # the paper's w ~ N(0, I / nu)
    assert (
        z_of_mean(estimates("rff"), printed.kernel(X, Y), feature_moments.variance(printed, X, Y))
        > 5 * Z
    )


@pytest.mark.parametrize("name", [n for n in NAMES if FEATURE_MAPS[n].random])
def test_a_sharpness_that_is_off_by_a_tenth_fails_the_mean_test(name):
    twin = make(name, factor=1.1)
    variance = estimates(name).var(axis=0)
    assert z_of_mean(estimates(name), twin.kernel(*pairs()), variance) > Z


@pytest.mark.parametrize("name", ["rff", "positive"])
def test_wrong_twins_fail_the_variance_test(name):
    X, Y = pairs()
    phi = make(name)
    kernel, variance = phi.kernel(X, Y), feature_moments.variance(phi, X, Y)
    assert z_of_variance(estimates(f"{name}:orthogonal"), kernel, variance) > Z
    assert z_of_variance(estimates(name), kernel, 0.8 * variance) > Z


@pytest.mark.parametrize("name", NAMES)
def test_estimates_that_are_never_negative_are_declared(name):
    values = estimates(name, 64) if name == "rff:structured" else estimates(name)
    assert FEATURE_MAPS[name].nonnegative == (values.min() >= 0.0)


@pytest.mark.parametrize("name", [n for n in NAMES if ORACLES[n].variance])
def test_variance_formulas_against_enumeration_and_quadrature(name):
    X, Y = pairs()
    phi, oracle = make(name, 7), ORACLES[name]
    wanted = [[oracle.variance(x, y, oracle.sharpness, 7) for y in Y] for x in X]
    np.testing.assert_allclose(feature_moments.variance(phi, X, Y), wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("dim", "length"), [(2, 0.7), (3, 1.2), (8, 0.8j)])
def test_moment_of_orthogonal_frequencies_against_quadrature(dim, length):
    t = np.array([(length**2).real / 2])
    expected = naive_maps.orthogonal_moment(dim, length)
    assert feature_moments.orthogonal_moment(dim, t)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [0.5, 5.0, 40.0])
def test_variance_of_the_orthogonal_positive_map_at_any_tau(tau):
    x, y = unit_rows(2, 4, 1)
    phi = make_feature_map("positive:orthogonal", 4, 6, tau)  # a block of 4, and one of 2
    for other in (x, y):
        t, dot = float(tau * (x + other) @ (x + other) / 2), float(tau * x @ other)
        together = mp.hyp1f1(4, 2, t) * mp.exp(-2 * t) - 1
        pairs_of_a_block = (4 * 3 + 2 * 1) / 6**2
        alone = (mp.exp(2 * t) - 1) / 6
        wanted = (alone + pairs_of_a_block * together) * mp.exp(2 * dot)
        assert feature_moments.variance(phi, x, other)[0, 0] == pytest.approx(
            float(wanted), rel=1e-9
        )


def test_variance_of_the_positive_map_ends_in_infinity_without_nan():
    x = unit_rows(2, DIM, 0)
    for frequencies in ("iid", "orthogonal"):
        phi = PositiveRandomFeatures(DIM, 10, 1e5, frequencies=frequencies, rng=0)
        variance = feature_moments.variance(phi, x, x)
        assert np.all(variance[[0, 1], [0, 1]] == np.inf)
        assert not np.isnan(feature_moments.variance(phi, x, -x)).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_diagonal_of_the_covariance_is_the_variance(name):
    phi, (X, Y) = make(name, 7), pairs()
    for x in X:
        covariance = feature_moments.covariance(phi, x, Y)
        if name in ("rff", "positive", "quadratic"):
            expected = feature_moments.variance(phi, x, Y)[0]
            np.testing.assert_allclose(np.diag(covariance), expected, rtol=1e-10, atol=1e-16)
            np.testing.assert_array_equal(covariance, covariance.T)
        else:
            assert covariance is None


@pytest.mark.parametrize("name", ["rff", "positive"])
@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0])
def test_covariance_against_quadrature(name, factor):
    phi, (X, Y) = make(name, 7, factor), pairs()
    sharpness = factor * ORACLES[name].sharpness
    for x in X:
        wanted = [[naive_maps.covariance(name, x, y, z, sharpness, 7) for z in Y] for y in Y]
        np.testing.assert_allclose(
            feature_moments.covariance(phi, x, Y), wanted, rtol=1e-9, atol=1e-13
        )


def test_the_covariance_of_cosines_has_two_terms():
    """Cosines have the mean of cos(a - b) and of cos(a + b); phases at random have the first."""
    X, Y = pairs()
    values = {
        factor: feature_moments.covariance(make("rff", 7, factor), X[0], Y) for factor in (0.1, 1.0)
    }
    for factor, covariance in values.items():
        phi = make("rff", 7, factor)
        kernel = phi.kernel(X[0], Y)[0]
        first_alone = (0.5 * phi.kernel(Y, Y) - np.outer(kernel, kernel)) / 7
        far = np.abs(covariance - first_alone).max()
        assert far > 0.03 if factor == 0.1 else far < 3e-4  # the second falls off with distance


def test_covariance_beyond_the_range_is_infinite_or_zero():
    x = unit_rows(3, DIM, 0)
    with np.errstate(all="raise", under="ignore"):
        far = feature_moments.covariance(RandomFourierFeatures(DIM, 10, 1e6, rng=0), x[0], x)
    np.testing.assert_array_equal(far[0], 0.0)
    assert far[1, 1] == pytest.approx(0.05)
    large = feature_moments.covariance(PositiveRandomFeatures(DIM, 10, 1e5, rng=0), x[0], x)
    assert large[0, 0] == np.inf
    assert not np.isnan(large).any()


# the frequencies and the compiled loops ------------------------------------------------------


def rows_of(kind, dim, num, seed):
    frequencies = draw_frequencies(kind, dim, num, 1.0, np.random.default_rng(seed))
    out = np.empty((dim, num))
    frequencies.project(np.eye(dim), out)
    return out.T


@pytest.mark.parametrize(("dim", "num"), [(1, 3), (2, 5), (7, 18), (64, 64)])
def test_orthogonal_blocks(dim, num):
    rows = rows_of("orthogonal", dim, num, 0)
    for start in range(0, num, dim):
        gram = rows[start : start + dim] @ rows[start : start + dim].T
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0.0, atol=1e-11)


def test_orthogonal_rows_have_norms_and_directions_of_gaussian_vectors():
    rows = np.concatenate([rows_of("orthogonal", 3, 3, seed) for seed in range(SEEDS)])
    squares = (rows**2).sum(axis=1)  # chi-square: mean 3, variance 6, third moment about it 24
    root = np.sqrt(len(rows))
    assert abs(squares.mean() - 3.0) < Z * np.sqrt(6.0) / root
    assert abs(squares.var() - 6.0) < Z * squares.var() * np.sqrt(2.0 + 12.0 / 3.0) / root
    # each row of a block by itself: LAPACK's bases would give the last a sign of its own
    for row in range(3):
        assert np.all(np.abs(rows[row::3].mean(axis=0)) < Z / np.sqrt(SEEDS))


@pytest.mark.parametrize(("dim", "size"), [(64, 64), (128, 128), (100, 128), (3, 64)])
def test_structured_blocks(dim, size):
    rows = rows_of("structured", dim, 2 * size, 0)
    gram = rows.T @ rows  # columns are orthogonal whether or not the rows were cut
    np.testing.assert_allclose(gram, 2 * size * np.eye(dim), atol=1e-10)
    if dim == size:
        np.testing.assert_allclose(rows[:dim] @ rows[:dim].T, dim * np.eye(dim), atol=1e-10)


@pytest.mark.parametrize(("dim", "num"), [(1, 1), (5, 64), (64, 130), (100, 50), (256, 300)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_structured_against_explicit_product(dim, num, dtype):
    X = np.random.default_rng(0).normal(size=(9, dim)).astype(dtype)
    frequencies = draw_frequencies("structured", dim, num, 0.3, np.random.default_rng(5))
    out = np.empty((9, num), dtype)
    frequencies.project(X, out)
    size = max(64, 1 << (dim - 1).bit_length())
    blocks = -(-num // size)
    signs = np.where(np.random.default_rng(5).random((blocks, 3, size)) < 0.5, -1.0, 1.0)
    matrix = naive_maps.structured_matrix(signs, 0.3, num)[:, :dim]
    expected = X.astype(np.float64) @ matrix.T
    np.testing.assert_allclose(out, expected, atol=20 * np.finfo(dtype).eps * np.sqrt(dim))


@pytest.mark.parametrize("size", [4, 8, 16, 64, 128, 1024])
def test_signed_hadamard_against_scipy(size):
    rng = np.random.default_rng(size)
    x, signs = rng.normal(size=size), rng.choice([-1.0, 1.0], size)
    kept = x.copy()
    got, spare = signed_hadamard(x, signs, np.empty(size), np.empty(size))
    expected = hadamard(size) @ (signs * x)
    np.testing.assert_allclose(got, expected, atol=1e-12 * size)
    np.testing.assert_array_equal(x, kept)
    again, _ = signed_hadamard(got, np.ones(size), spare, got)  # H H = p I, the input overwritten
    np.testing.assert_allclose(again, size * signs * x, atol=1e-12 * size**2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-7), (np.float64, 5e-16)])
def test_cos_and_sin_of_turns(dtype, tolerance):
    rng = np.random.default_rng(0)
    turns = np.concatenate(
        [
            np.arange(-9, 10) / 8,
            np.nextafter(dtype(0.25), dtype([0, 1])),
            np.nextafter(dtype(0.5), dtype([0, 1])),
            [0.0, -0.0, 1e-40, -1e-8, 2.0**21 + 0.5, 1.0 - 2.0**21, 2.0**60, -1e30],
            rng.normal(size=200),
            rng.normal(size=200) * 1e3,
        ]
    ).astype(dtype)
    num = len(turns)
    out = np.empty((1, 2 * num), dtype)
    out[0, :num] = turns
    cos_sin_rows(out, 1.0, *TERMS[out.dtype])
    expected = np.array([naive_maps.cos_sin_of_turns(t) for t in turns])
    np.testing.assert_allclose(out[0, :num], expected[:, 0], rtol=0, atol=tolerance)
    np.testing.assert_allclose(out[0, num:], expected[:, 1], rtol=0, atol=tolerance)


# types, shapes, seeds ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dim", "num"), [(1, 1), (1, 5), (3, 33), (20, 7)])
def test_shapes_types_and_precision(name, dim, num):
    phi = make_feature_map(name, dim, num, rng=3)
    X = unit_rows(11, dim, 2)
    double, single = phi.transform(X), phi.transform(X.astype(np.float32))
    assert double.shape == single.shape == (11, phi.feature_dim)
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    scale = np.abs(double).max()
    np.testing.assert_allclose(single, double, atol=3e-6 * scale)
    np.testing.assert_allclose(
        single.astype(float) @ single.T, double @ double.T, atol=3e-6 * scale**2 * phi.feature_dim
    )
    assert phi.dim == dim


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_memory_order_gives_the_same(name, dtype):
    X = unit_rows(12, DIM, 3).astype(dtype)
    phi = make_feature_map(name, DIM, 40, rng=1)
    expected = phi.transform(X)
    wide = np.zeros((24, 3 * DIM), dtype)
    wide[::2, ::3] = X
    locked = X.copy()
    locked.flags.writeable = False
    for same in (np.asfortranarray(X), wide[::2, ::3], X[::-1][::-1], locked):
        np.testing.assert_array_equal(phi.transform(same), expected)
    np.testing.assert_allclose(phi.transform(X[4]), expected[4:5], rtol=1e-5, atol=1e-7)
    if dtype == np.float64:
        np.testing.assert_array_equal(phi.transform(X.tolist()), expected)
        np.testing.assert_array_equal(phi.transform(X.astype(">f8")), expected)
    assert phi.transform(np.eye(DIM, dtype=np.int8)).dtype == np.float64


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name):
    X = unit_rows(3, DIM, 0)
    first = make(name, seed=4).transform(X)
    np.testing.assert_array_equal(make(name, seed=4).transform(X), first)
    by_generator = [make(name, seed=np.random.default_rng(9)).transform(X) for _ in range(2)]
    np.testing.assert_array_equal(*by_generator)
    for seeds in ((4, 5), (None, None)):
        one, other = (make(name, seed=seed).transform(X) for seed in seeds)
        assert (not np.allclose(one, other)) == FEATURE_MAPS[name].random


@pytest.mark.parametrize("name", NAMES)
def test_neither_chunks_nor_threads_matter(name, threads, monkeypatch):
    X = unit_rows(50, DIM, 0).astype(np.float32)
    phi = make_feature_map(name, DIM, 20, rng=0)
    expected = phi.transform(X)
    monkeypatch.setattr("samplesoft._device.cpu._TASK_FEATURES", 100)
    monkeypatch.setattr("samplesoft.feature_maps.exponential._MAX_CHUNK_PRODUCTS", 100)
    results = []
    for count in (1, 3):
        threads(count)
        results.append(phi.transform(X))  # kept, so that no memory holds them already
        np.testing.assert_allclose(results[-1], expected, rtol=1e-6, atol=1e-8)


def test_fourier_features_of_one_vector_have_norm_one():
    X = np.random.default_rng(0).normal(size=(20, DIM)) * np.logspace(-6, 4, 20)[:, None]
    for frequencies in FREQUENCY_KINDS:
        phi = RandomFourierFeatures(DIM, 9, 2.0, frequencies=frequencies, rng=0)
        np.testing.assert_allclose((phi.transform(X) ** 2).sum(axis=1), 1.0, rtol=1e-14)
        single = phi.transform(X.astype(np.float32))
        np.testing.assert_allclose((single**2).sum(axis=1), 1.0, rtol=2e-6)


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_quadratic_features_are_exact(dim):
    X, Y = unit_rows(6, dim, 0) * 1e4, unit_rows(5, dim, 1) * 1e-2
    phi = make_feature_map("quadratic", dim, 1, 7.0)
    assert phi.feature_dim == dim * (dim + 1) // 2 + 1
    expected = [[naive_maps.quadratic_kernel(x, y, 7.0) for y in Y] for x in X]
    np.testing.assert_allclose(phi.transform(X) @ phi.transform(Y).T, expected, rtol=1e-11)
    np.testing.assert_array_equal(feature_moments.variance(phi, X, Y), np.zeros((6, 5)))


def test_a_variance_beyond_float64_is_infinite():
    phi = RandomMaclaurinFeatures(3, 16, rng=0)
    rows = np.full((2, 3), 1e4)
    assert (feature_moments.variance(phi, rows, rows) == np.inf).all()
