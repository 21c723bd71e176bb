"""The mean bias of positive random features, against quadrature over the frequencies themselves."""

import feature_moments
import numpy as np
import pytest
from random_q import positive_features_bias, random_q_bias, sampled_q_bias

from samplesoft import asymptotic_bias, exact_bias
from samplesoft.feature_maps import PositiveRandomFeatures


def problem(seed, n=6, dim=3):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n + 1, dim))
    h, *classes = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rng.normal(size=n), int(rng.integers(n)), h, np.array(classes)


def estimates(frequencies, h, classes, tau):
    """Return estimates (..., n) of the kernel, for frequencies (..., D, d) from N(0, I)."""
    y = np.sqrt(tau) * (h + classes)
    shift = tau * (1.0 + (classes**2).sum(axis=1)) / 2.0
    return np.exp(frequencies @ y.T - shift).mean(axis=-2)


def limits(logits, label, kernel):
    """Return lim m * bias (..., n) of proposals in proportion to `kernel`, as the paper has it."""
    e = np.exp(logits) / np.exp(logits).sum()
    kernel = np.delete(kernel, label, axis=-1)
    negatives = np.delete(e, label)
    r = negatives * kernel.sum(axis=-1, keepdims=True) / kernel
    variance = (negatives * r).sum(axis=-1, keepdims=True) - negatives.sum() ** 2
    out = negatives * (variance - r + negatives.sum())
    return np.insert(out, label, e[label] * variance[..., 0], axis=-1)


def leading(found, m=7):
    return m * found.leading_bias


@pytest.mark.parametrize("tau", [0.3, 3.0, 12.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_feature_in_closed_form(seed, tau):
    """E[k_k / k_j] = exp(tau |c_k - c_j|^2 / 2): a ratio of exponentials is an exponential."""
    logits, label, h, classes = problem(seed)
    found = positive_features_bias(logits, label, h, classes, 7, tau=tau, num_features=1)
    apart = ((classes[:, None] - classes) ** 2).sum(axis=-1)
    e = np.exp(logits) / np.exp(logits).sum()
    keep = np.arange(6) != label
    r = e[keep] * np.exp(tau * apart[np.ix_(keep, keep)] / 2.0).sum(axis=1)
    zt = e[keep].sum()
    variance = e[keep] @ r - zt**2
    wanted = np.zeros(6)
    wanted[keep], wanted[label] = e[keep] * (variance - r + zt), e[label] * variance
    np.testing.assert_allclose(leading(found), wanted, rtol=1e-10)


@pytest.mark.parametrize("tau", [0.5, 4.0])
@pytest.mark.parametrize("num", [1, 2])
def test_few_features_in_one_dimension_by_quadrature(tau, num):
    rng = np.random.default_rng(0)
    classes, h = rng.uniform(-1.0, 1.0, (5, 1)), np.array([0.8])
    logits = tau * classes @ h  # the kernel itself has no bias then, so that all is by errors
    g = np.arange(-22.0, 22.0, 0.08)
    grid = np.stack(np.meshgrid(*[g] * num, indexing="ij"), axis=-1)[..., None]
    weights = np.exp(-0.5 * (grid**2).sum(axis=(-1, -2))) * (0.08 / np.sqrt(2 * np.pi)) ** num
    shift = tau * (0.64 + classes[:, 0] ** 2) / 2.0
    kernel = np.exp(np.sqrt(tau) * grid * (h + classes)[:, 0] - shift).mean(axis=-2)
    wanted = np.tensordot(weights, limits(logits, 2, kernel), num)
    found = positive_features_bias(logits, 2, h, classes, 7, tau=tau, num_features=num)
    np.testing.assert_allclose(leading(found), wanted, rtol=1e-9)
    other = positive_features_bias(logits, 2, h, classes, 7, tau=tau, num_features=num + 1)
    assert np.abs(leading(other) - wanted).sum() > 0.1 * np.abs(wanted).sum()


def test_some_features_by_drawing_them():
    _, label, h, classes = problem(4)
    logits = 0.5 * classes @ h
    w = np.random.default_rng(0).normal(size=(40_000, 8, 3))
    drawn = limits(logits, label, estimates(w, h, classes, 0.5))
    found = leading(positive_features_bias(logits, label, h, classes, 7, tau=0.5, num_features=8))
    error = drawn.std(axis=0) / 200.0
    assert np.abs((drawn.mean(axis=0) - found) / error).max() < 4.5
    more = leading(positive_features_bias(logits, label, h, classes, 7, tau=0.5, num_features=9))
    assert np.abs((drawn.mean(axis=0) - more) / error).max() > 9.0


def test_many_features_have_the_expansion_and_the_kernel():
    logits, label, h, classes = problem(1)
    m = 10**8
    wrong = []
    for num in (10**5, 10**6):
        phi = PositiveRandomFeatures(3, num, 1.0)
        kernel, covariance = phi.kernel(h, classes)[0], feature_moments.covariance(phi, h, classes)
        args = logits, label, h, classes, m
        found = positive_features_bias(*args, tau=1.0, num_features=num)
        limit = m * found.leading_bias - asymptotic_bias(logits, label, kernel / kernel.sum())
        expanded = m * random_q_bias(logits, label, kernel, covariance, m).correction
        wrong.append(np.abs(limit - expanded).sum() / np.abs(limit).sum())
    assert wrong[0] < 0.01
    assert wrong[0] / wrong[1] == pytest.approx(10.0, rel=0.1)


def test_more_features_have_a_smaller_variance():
    """E[1 / mean] falls with the number in the mean, to 1 over the kernel."""
    logits, label, h, classes = problem(2)
    labels_part = [
        positive_features_bias(
            logits, label, h, classes, 1, tau=8.0, num_features=num
        ).leading_bias[label]
        for num in (1, 2, 5, 30, 1000, 10**6, 10**9)
    ]
    assert np.all(np.diff(labels_part) < 0.0)
    kernel = np.exp(8.0 * classes @ h)
    least = asymptotic_bias(logits, label, kernel / kernel.sum())[label]
    assert labels_part[-1] == pytest.approx(least, rel=1e-3)


def test_the_norm_is_bounded_for_every_number_of_draws():
    """By quadrature over one frequency in one dimension, and by drawing."""
    g = np.arange(-12.0, 12.0, 0.25)
    weights = np.exp(-0.5 * g**2) * 0.25 / np.sqrt(2 * np.pi)
    close = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        classes, h = rng.uniform(-1.0, 1.0, (4, 1)), np.array([0.5])
        logits, tau = rng.normal(size=4), rng.choice([0.1, 1.0])
        kernels = np.exp(np.sqrt(tau) * g[:, None] * (h + classes)[:, 0])
        kernels /= np.exp(tau * classes[:, 0] ** 2 / 2.0)
        q = kernels / kernels.sum(axis=1, keepdims=True)
        m = int(rng.choice([1, 4, 50]))
        bias = exact_bias(np.tile(logits, (len(g), 1)), [1] * len(g), q, m).bias
        norm = weights @ np.abs(bias).sum(axis=1)
        bound = positive_features_bias(logits, 1, h, classes, m, tau=tau, num_features=1).norm_bound
        assert norm <= bound <= 2.0
        close += norm > 0.4 * bound
    assert close > 3

    logits, label, h, classes = problem(3)

    def draw_q(rng):
        kernel = estimates(rng.normal(size=(4, 3)), h, classes, 2.0)
        return kernel / kernel.sum()

    drawn = sampled_q_bias(logits, label, draw_q, 20, num_draws=50, rng=0)
    found = positive_features_bias(logits, label, h, classes, 20, tau=2.0, num_features=4)
    assert drawn.mean_norm < found.norm_bound


def test_ends():
    h, classes = np.array([1.0, 0.0]), np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    found = positive_features_bias([0.0, 1.0, 2.0], 0, h, classes, 5, tau=4.0, num_features=10)
    assert np.isfinite(found.leading_bias).all()  # class 1 has an estimate without variance
    one = positive_features_bias([0.0, 1.0], 0, h, classes[:2], 5, tau=4.0, num_features=10)
    np.testing.assert_array_equal(one.leading_bias, 0.0)
    assert one.norm_bound == 0.0
    far = positive_features_bias([0.0, 0.0, 0.0], 0, h, classes, 5, tau=60.0, num_features=1)
    assert far.norm_bound == 2.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"h": [1.0]}, r"`class_embeddings` of shape \(3, 2\) does not match"),
        ({"class_embeddings": np.ones((2, 2))}, "`class_embeddings` of shape"),
        ({"tau": 0.0}, "`tau` must be finite and greater than 0"),
        ({"tau": 1000.0}, "`tau` times the squared norm of h \\+ c must be below 350"),
        ({"num_features": 0}, "`num_features` must be at least 1"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
        ({"labels": 5}, "`labels`"),
        ({"logits": [0.0, np.nan, 1.0]}, "`logits` must be finite"),
    ],
)
def test_bad_values_are_named(change, words):
    good = {"logits": [0.0, 1.0, 2.0], "labels": 0, "h": [1.0, 0.0], "num_sampled": 5}
    good |= {"class_embeddings": np.eye(3)[:, :2] + 0.1, "tau": 1.0, "num_features": 10}
    with pytest.raises(ValueError, match=words):
        positive_features_bias(**(good | change))
