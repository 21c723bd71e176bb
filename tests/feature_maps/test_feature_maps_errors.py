"""What feature maps refuse, and how they say so."""

from functools import partial

import feature_moments  # of figures/
import numpy as np
import pytest

from samplesoft.feature_maps import (
    FEATURE_MAPS,
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
    RandomMaclaurinFeatures,
    make_feature_map,
)

NAMES = sorted(FEATURE_MAPS)
CLASSES = [PositiveRandomFeatures, RandomFourierFeatures, RandomMaclaurinFeatures]


REFUSED = [
    (np.zeros((2, 5)), ValueError, r"`X` must have 4 columns, got shape \(2, 5\)"),
    (np.zeros(3), ValueError, r"`X` must have 4 columns"),
    (np.zeros((0, 4)), ValueError, "`X` must not be empty"),
    (np.zeros((0, 4), np.float32), ValueError, "`X`.* not empty"),
    (np.zeros((2, 2, 4)), ValueError, r"`X` must have 1 or 2 dimension"),
    (np.zeros((2, 2, 4), np.float32), ValueError, "`X` must"),
    ([[0.0, np.nan, 0.0, 0.0]], ValueError, r"`X` must be finite.*, got nan at index \[0, 1\]"),
    (np.full((1, 4), np.inf, np.float32), ValueError, "`X` must be finite.*, got inf"),
    ([["a", "b", "c", "d"]], TypeError, "`X` must hold real numbers"),
    (np.zeros((1, 4), complex), TypeError, "`X` must hold real numbers, got dtype complex128"),
    ([[0.0] * 4, [0.0]], ValueError, "`X` must be a rectangular array"),
    (None, TypeError, "`X` must hold real numbers"),
]


@pytest.mark.parametrize("name", NAMES)
def test_transform_and_kernel_refuse(name):
    phi = make_feature_map(name, 4, 8, rng=0)
    for X, error, words in REFUSED:
        with pytest.raises(error, match=words):
            phi.transform(X)
        with pytest.raises(error, match=words):
            phi.kernel(X, np.zeros(4))


@pytest.mark.parametrize("name", NAMES)
def test_kernel_and_variance_name_the_second_argument(name):
    phi = make_feature_map(name, 4, 8, rng=0)
    moments = (partial(f, phi) for f in (feature_moments.variance, feature_moments.covariance))
    for call in (phi.kernel, *moments):
        with pytest.raises(ValueError, match=r"`Y` must have 4 columns"):
            call(np.zeros((1, 4)), np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"`x` must have 4 columns"):
        feature_moments.covariance(phi, np.zeros(3), np.zeros((1, 4)))
    with pytest.raises(ValueError, match=r"`x` must be one vector of length 4, got 2 rows"):
        feature_moments.covariance(phi, np.zeros((2, 4)), np.zeros((1, 4)))


@pytest.mark.parametrize("map_class", CLASSES)
def test_constructors_refuse(map_class):
    for arguments, error, words in [
        ((0, 8), ValueError, "`dim` must be at least 1, got 0"),
        ((2.0, 8), TypeError, "`dim` must be an integer"),
        ((4, 0), ValueError, "`num_features` must be at least 1, got 0"),
        ((4, 8.5), TypeError, "`num_features` must be an integer"),
        ((4, 8, 0.0), ValueError, "`(nu|tau)` must be finite and greater than 0, got 0.0"),
        ((4, 8, -1.0), ValueError, "`(nu|tau)` must be finite and greater than 0"),
        ((4, 8, np.nan), ValueError, "`(nu|tau)` must be finite"),
        ((4, 8, "1"), TypeError, "`(nu|tau)` must be a number"),
    ]:
        with pytest.raises(error, match=words):
            map_class(*arguments, rng=0)


def test_constructors_refuse_seeds_and_names():
    for map_class in CLASSES:
        with pytest.raises(ValueError, match="`rng` as a seed must be at least 0"):
            map_class(4, 8, rng=-1)
        with pytest.raises(TypeError, match="`rng` must be"):
            map_class(4, 8, rng="0")
    with pytest.raises(ValueError, match="`frequencies` must be one of iid, orthogonal, struct"):
        RandomFourierFeatures(4, 8, frequencies="sorf")
    with pytest.raises(ValueError, match="`frequencies` must be one of iid, orthogonal; got"):
        PositiveRandomFeatures(4, 8, frequencies="structured")
    with pytest.raises(ValueError, match="`alpha` must be finite and greater than 0, got 0"):
        QuadraticFeatures(4, 0.0)
    with pytest.raises(ValueError, match="`dim` must be at least 1"):
        QuadraticFeatures(0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 1e10), (np.float32, 1e37), (np.float64, 1e300)]
)
def test_huge_vectors_give_finite_features_or_an_error(name, dtype, size):
    X = np.random.default_rng(0).choice([-1.0, 1.0], (5, 16)).astype(dtype) * dtype(size)
    phi = make_feature_map(name, 16, 64, 2.0, rng=0)
    try:
        features = phi.transform(X)
    except ValueError as error:
        assert "`X`" in str(error) and "scale the rows" in str(error)
        assert ("pass float64" in str(error)) == (dtype == np.float32)
    else:
        assert np.isfinite(features).all()
        assert features.any(axis=1).all()


@pytest.mark.parametrize("frequencies", ["iid", "orthogonal", "structured"])
def test_angles_without_digits_are_refused(frequencies):
    phi = RandomFourierFeatures(4, 8, 4.0, frequencies=frequencies, rng=0)
    # up to where rounding moves a typical angle by 1 / 128 of a turn
    longest = 2.0**-7 / np.finfo(np.float32).eps * 2.0 * np.pi / 4.0**0.5
    phi.transform(np.float32([[0.999 * longest, 0.0, 0.0, 0.0]]))
    with pytest.raises(ValueError, match="too large for float32"):
        phi.transform(np.float32([[1.001 * longest, 0.0, 0.0, 0.0]]))
    X = np.full((2, 4), 1e6)
    phi.transform(X)
    with pytest.raises(ValueError, match="norm 2e.06; its angles .* or pass float64"):
        phi.transform(X.astype(np.float32))


def test_positive_features_at_large_tau():
    x = np.array([[0.6, 0.8]])
    float32 = x.astype(np.float32)
    phi = PositiveRandomFeatures(2, 100, 100.0, rng=0)
    np.testing.assert_allclose(phi.transform(float32), phi.transform(x), rtol=2e-4)
    phi = PositiveRandomFeatures(2, 100, 600.0, rng=0)
    with pytest.raises(ValueError, match="all 0 in float32: with tau = 600 .* or pass float64"):
        phi.transform(float32)
    assert phi.transform(x).max() > 0.0
    with pytest.raises(ValueError, match="all 0 in float64: with tau = 10000 .* norm 1.$"):
        PositiveRandomFeatures(2, 100, 1e4, rng=0).transform(x)


def test_kernels_beyond_float64_are_infinite_without_a_warning():
    x = np.full((1, 3), 1e4)
    assert PositiveRandomFeatures(3, 4, rng=0).kernel(x, x) == np.inf
    assert RandomMaclaurinFeatures(3, 4, rng=0).kernel(x, -x) == 0.0
    assert RandomFourierFeatures(3, 4, rng=0).kernel(x, -x) == 0.0


@pytest.mark.parametrize("x", [[1e200, 0.0], [1e200, -1e200]])
def test_inner_products_beyond_float64_are_refused_on_every_processor(x):
    y = [1e200, 1e200]
    for phi in (PositiveRandomFeatures(2, 4, rng=0), RandomMaclaurinFeatures(2, 8, rng=0)):
        with pytest.raises(ValueError, match="`X` and `Y` must have inner products within"):
            phi.kernel(x, y)
    with pytest.raises(ValueError, match="`X` and `Y` must have inner products within"):
        QuadraticFeatures(2).kernel(x, y)
