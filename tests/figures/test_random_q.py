"""The expansion of the bias in the errors of a proposal, against exact biases of perturbed ones."""

import doctest

import feature_moments
import numpy as np
import pytest
import random_q
from random_q import random_q_bias, sampled_q_bias
from scipy.stats import foldnorm

from samplesoft import asymptotic_bias, exact_bias
from samplesoft.feature_maps import RandomFourierFeatures

Z = 4.5


def test_examples_of_docstrings():
    assert doctest.testmod(random_q).failed == 0


def problem(seed, n=9):
    """Return logits, a label, a kernel and one direction of relative errors."""
    rng = np.random.default_rng(seed)
    kernel = np.exp(rng.normal(size=n)) * rng.choice([1e-6, 1.0, 1e5])
    return 2.0 * rng.normal(size=n), int(rng.integers(n)), kernel, rng.normal(size=n)


def moved(logits, label, kernel, m):
    return exact_bias(logits, label, kernel / kernel.sum(), m).bias


@pytest.mark.parametrize("m", [1, 2, 3, 30, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_with_two_values_has_its_mean_and_deviation(seed, m):
    """With errors +s u and -s u the mean is that of two exact biases, but for terms of s**4."""
    logits, label, kernel, u = problem(seed)
    wrong = []
    for size in (0.02, 0.01):
        ends = [moved(logits, label, kernel * (1.0 + s * u), m) for s in (size, -size)]
        found = random_q_bias(logits, label, kernel, size**2 * np.outer(kernel * u, kernel * u), m)
        np.testing.assert_allclose(found.kernel_bias, moved(logits, label, kernel, m), rtol=1e-13)
        mean, half = (ends[0] + ends[1]) / 2.0, np.abs(ends[0] - ends[1]) / 2.0
        assert abs(found.mean_bias.sum()) < 1e-15
        wrong.append(np.abs(found.mean_bias - mean).sum() / np.abs(found.correction).sum())
        assert np.abs(found.deviation - half).sum() < 10.0 * size**2 * half.sum()
        assert found.largest_error == pytest.approx(size * np.abs(np.delete(u, label)).max())
    assert wrong[1] < 0.01
    assert wrong[0] / wrong[1] == pytest.approx(4.0, rel=0.1)


def test_covariances_matter_and_not_variances_alone():
    logits, label, kernel, u = problem(0)
    covariance = 1e-4 * np.outer(kernel * u, kernel * u)
    ends = [moved(logits, label, kernel * (1.0 + s * u), 10) for s in (0.01, -0.01)]
    right = random_q_bias(logits, label, kernel, covariance, 10)
    wrong = random_q_bias(logits, label, kernel, np.diag(np.diag(covariance)), 10)
    wanted = (ends[0] + ends[1]) / 2.0 - right.kernel_bias
    size = np.abs(wanted).sum()
    assert np.abs(right.correction - wanted).sum() < 0.01 * size
    assert np.abs(wrong.correction - wanted).sum() > 0.2 * size
    assert np.abs(wrong.deviation - right.deviation).sum() > 0.2 * right.deviation.sum()


@pytest.mark.parametrize("m", [10**6, 10**9])
def test_many_draws_have_the_closed_limit(m):
    """(B55) with E[r_j] = r_j (1 + C_jj - sum_k q_k C_jk), to second order."""
    logits, label, kernel, _ = problem(5)
    rng = np.random.default_rng(0)
    half = 0.1 * rng.normal(size=(9, 9))
    relative = half @ half.T
    found = random_q_bias(logits, label, kernel, relative * np.outer(kernel, kernel), m)
    e = np.exp(logits) / np.exp(logits).sum()
    keep = np.arange(9) != label
    q = kernel[keep] / kernel[keep].sum()
    part = relative[np.ix_(keep, keep)]
    more = e[keep] / q * (np.diag(part) - part @ q)
    wanted = np.zeros(9)
    wanted[keep] = e[keep] * (e[keep] @ more - more)
    wanted[label] = e[label] * (e[keep] @ more)
    np.testing.assert_allclose(m * found.correction, wanted, rtol=1e-4)
    steps = [asymptotic_bias(logits, label, k / k.sum()) for k in moves(kernel, half)]
    slopes = np.array(steps[::2]) - np.array(steps[1::2])
    deviation = np.sqrt((slopes**2).sum(axis=0)) / 2e-4
    np.testing.assert_allclose(m * found.deviation, deviation, rtol=1e-4)


def moves(kernel, half):
    for column in half.T:
        yield kernel * (1.0 + 1e-4 * column)
        yield kernel * (1.0 - 1e-4 * column)


H = np.array([1.0, 0.0])
ANGLES = np.array([0.2, -0.5, 0.9, -1.0, 1.3, 0.6])
CLASSES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def fourier(rng, num=400):
    """Return a proposal by random Fourier features with nu = 1, clipped."""
    phi = RandomFourierFeatures(2, num, 1.0, rng=rng)
    kernel = np.maximum((phi.transform(H) @ phi.transform(CLASSES).T)[0], phi.floor)
    return kernel / kernel.sum()


@pytest.mark.thorough
def test_random_fourier_features_have_this_mean_and_norm():
    """With nu = tau the label's bias has no term of first order, so that few draws tell it."""
    logits, m = CLASSES @ H, 5
    drawn = sampled_q_bias(logits, 0, fourier, m, num_draws=800, rng=0)

    def z(covariance, kernel=None):
        phi = RandomFourierFeatures(2, 400, 1.0)
        kernel = phi.kernel(H, CLASSES)[0] if kernel is None else kernel
        found = random_q_bias(logits, 0, kernel, covariance, m)
        apart = (drawn.mean_bias - found.mean_bias) / drawn.standard_error
        return np.abs(apart).max(), (drawn.mean_norm - found.mean_norm) / drawn.norm_error

    phi = RandomFourierFeatures(2, 400, 1.0)
    right = feature_moments.covariance(phi, H, CLASSES)
    assert np.max(np.abs(z(right))) < Z
    kernel = phi.kernel(H, CLASSES)[0]
    first_alone = (0.5 * phi.kernel(CLASSES, CLASSES) - np.outer(kernel, kernel)) / 400
    with pytest.raises(ValueError, match="of no negative variance"):
        z(first_alone)  # cos(a - b) without cos(a + b), which is no covariance
    assert z(0.8 * right)[0] > Z
    printed = RandomFourierFeatures(2, 400, 1.0 / 4.0)  # N(0, I / nu), were nu 2
    assert (
        z(feature_moments.covariance(printed, H, CLASSES), printed.kernel(H, CLASSES)[0])[0] > 3 * Z
    )


def test_the_norm_of_one_q_falls_like_the_root_of_that_of_the_mean():
    logits = CLASSES @ H
    found = []
    for num in (10**4, 10**6):
        phi = RandomFourierFeatures(2, num, 1.0)
        kernel, covariance = phi.kernel(H, CLASSES)[0], feature_moments.covariance(phi, H, CLASSES)
        found.append(random_q_bias(logits, 0, kernel, covariance, 10))
    means = [np.abs(f.mean_bias).sum() for f in found]
    assert means[0] / means[1] == pytest.approx(100.0, rel=1e-6)
    assert found[0].mean_norm / found[1].mean_norm == pytest.approx(10.0, rel=1e-2)
    logits[2] += 1.0  # so that no deviation is 0
    one = random_q_bias(logits, 0, kernel, covariance, 10)
    wanted = foldnorm.mean(np.abs(one.mean_bias) / one.deviation, scale=one.deviation).sum()
    assert one.mean_norm == pytest.approx(wanted, rel=1e-9)


def test_far_kernels_and_no_errors():
    rng = np.random.default_rng(1)
    logits, kernel = 50.0 * rng.normal(size=40), 10.0 ** -rng.uniform(0.0, 200.0, 40)
    still = random_q_bias(logits, 3, kernel, np.zeros((40, 40)), 20)
    np.testing.assert_array_equal(still.correction, 0.0)
    assert still.mean_norm == pytest.approx(np.abs(still.kernel_bias).sum(), rel=1e-12)
    # a common error of all estimates leaves q as it is
    common = random_q_bias(logits, 3, np.ones(40), np.full((40, 40), 0.01), 20)
    assert np.abs(common.correction).max() < 1e-14
    assert common.deviation.max() < 1e-9
    spread = random_q_bias(logits, 3, kernel, 1e-4 * np.diag(kernel**2), 20)
    assert np.isfinite(spread.correction).all()
    assert abs(spread.correction.sum()) < 1e-16
    pair = random_q_bias([0.0, 1.0], 0, [1.0, 2.0], np.eye(2), 3)
    np.testing.assert_allclose([pair.correction, pair.deviation], 0.0, atol=1e-16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": [1.0, 2.0]}, r"`kernel` of shape \(2,\)"),
        ({"kernel": [1.0, 0.0, 2.0]}, "`kernel` must be greater than 0, got 0 at class 1"),
        ({"covariance": np.eye(2)}, r"`covariance` of shape \(2, 2\)"),
        ({"covariance": -np.eye(3)}, "of no negative variance"),
        ({"covariance": np.triu(np.ones((3, 3)))}, "`covariance` must be symmetric"),
        ({"covariance": np.full((3, 3), np.inf)}, "`covariance` must be finite"),
        ({"kernel": [1.0, 1e-300, 1.0]}, "must be within the range of float64"),
        ({"labels": 3}, "`labels`"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
    ],
)
def test_bad_values_are_named(change, words):
    good = {"logits": [0.0, 1.0, 2.0], "labels": 0, "kernel": [1.0, 2.0, 1.0], "num_sampled": 5}
    with pytest.raises(ValueError, match=words):
        random_q_bias(**(good | {"covariance": np.eye(3)} | change))
