"""The bound on the bias of a random proposal, against proposals drawn at random and the worst."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplesoft import exact_bias, random_q_bound
from samplesoft.bias.negatives import make_negatives
from samplesoft.bias.random_q_bound import _bernstein, _bound, cauchy_schwarz
from samplesoft.feature_maps import RandomFourierFeatures


def norm(logits, label, kernel, m):
    return np.abs(exact_bias(logits, label, kernel / kernel.sum(), m).bias).sum()


def of_negatives(logits, label, kernel):
    """Return sqrt(V) and Z_t, in units where Z = 1."""
    e = np.delete(np.exp(logits) / np.exp(logits).sum(), label)
    q = np.delete(kernel, label)
    r = e / (q / q.sum())
    return np.sqrt(max(e @ r - e.sum() ** 2, 0.0)), e.sum()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(0.001, 0.99), st.sampled_from([0.0, 0.5, 3.0]))
def test_estimates_within_their_errors_have_a_norm_within_the_bound(seed, most, width):
    """Errors drawn at random, and the largest of either sign; (B59) for one q."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(3, 12)), int(rng.choice([1, 5, 100]))
    logits = 2.0 * rng.normal(size=n)
    kernel = np.exp(logits + width * rng.normal(size=n))  # near the softmax, or far
    within = most * rng.uniform(0.0, 1.0, n)
    bound = _bound(make_negatives(logits, 0, kernel / kernel.sum()), within, within)
    for errors in (rng.choice([-1.0, 1.0], n), rng.uniform(-1.0, 1.0, n), wide(logits, kernel)):
        off = kernel * (1.0 + within * errors)
        assert norm(logits, 0, off, m) <= bound / m * (1.0 + 1e-9) + 1e-12
        deviation, zt = of_negatives(logits, 0, off)
        assert cauchy_schwarz(deviation, zt) <= bound * (1.0 + 1e-9) + 1e-12


def wide(logits, kernel):
    """Return the signs that move each ratio away from the mean."""
    return np.where(logits - np.log(kernel) > np.median(logits - np.log(kernel)), -1.0, 1.0)


def test_the_bound_is_reached_within_a_factor():
    """A proposal that follows the softmax, half of it too large by t, and half too small."""
    for t in (0.01, 0.1):
        kernel = np.array([1.0, 1.0 + t, 1.0 - t])
        deviation, zt = of_negatives(np.zeros(3), 0, kernel)
        same = make_negatives(np.zeros(3), 0, np.full(3, 1 / 3))
        bound = _bound(same, np.full(3, t), np.full(3, t))
        assert 0.1 * bound < cauchy_schwarz(deviation, zt) < bound


@pytest.mark.parametrize("num", [60, 400])
def test_the_chance_is_one_of_bernstein(num):
    """Cosines that are far off, in 2,000 draws of the angles."""
    rng = np.random.default_rng(0)
    width = np.array([0.4, 1.0, 1.5])
    kernel = np.exp(-(width**2) / 2.0)
    errors = -np.expm1(-(width**2)) / (2.0 * num) ** 0.5 / kernel
    drawn = np.cos(width * rng.normal(size=(2000, num, 1))).mean(axis=1)
    for exponent in (1.0, 2.0, 4.0, 6.0):
        within = _bernstein(errors, 2.0 / num / kernel, exponent)
        often = np.mean(np.abs(drawn - kernel) > within * kernel, axis=0)
        allowed = 2.0 * np.exp(-exponent)
        assert np.all(often <= allowed)
        if exponent > 3.0:  # a third of the width is exceeded more often than is allowed
            assert np.any(np.mean(np.abs(drawn - kernel) > within * kernel / 3.0, axis=0) > allowed)


@pytest.mark.parametrize("m", [10, 300])
@pytest.mark.parametrize("sharpness", [(1.0, 1.0), (4.0, 1.0)])
def test_no_draw_of_the_features_is_beyond_the_bound(m, sharpness):
    tau, nu = sharpness
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(21, 6))
    h, *classes = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    classes, norms, inside = np.array(classes), [], 0
    logits = tau * classes @ h
    phi = RandomFourierFeatures(6, 20_000, nu)
    kernel, variance = phi.kernel(h, classes)[0], phi.variance(h, classes)[0]
    args = logits, 2, kernel, variance, m
    found = random_q_bound(*args, largest_term=2.0 / 20_000, floor=phi.floor)
    for seed in range(20):
        phi = RandomFourierFeatures(6, 20_000, nu, rng=seed)
        drawn = (phi.transform(h) @ phi.transform(classes).T)[0]
        norms.append(norm(logits, 2, np.maximum(drawn, phi.floor), m))
        if np.all(np.abs(drawn - kernel) <= found.closeness * kernel):
            inside += 1
            assert norms[-1] <= found.close_bound
    assert inside >= 19
    assert found.chance < 0.05
    assert np.mean(norms) <= found.norm_bound < 12.0 * np.mean(norms)
    assert found.norm_bound < found.close_bound + 2.0 * found.chance
    other = random_q_bound(*args, largest_term=2.0 / 20_000)
    assert other.norm_bound <= found.norm_bound


def test_more_features_tend_to_the_bound_of_the_kernel():
    logits, kernel = np.array([0.0, 1.0, -1.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    deviation, zt = of_negatives(logits, 0, kernel)
    limit = cauchy_schwarz(deviation, zt) / 50
    bounds = [
        random_q_bound(logits, 0, kernel, kernel**2 / num, 50, largest_term=4.0 / num).norm_bound
        for num in (10, 10**3, 10**5, 10**9, 10**14)
    ]
    assert bounds[0] == 2.0
    assert np.all(np.diff(bounds) < 0.0)
    assert bounds[-1] == pytest.approx(limit, rel=1e-4)
    assert bounds[-1] > limit
    assert norm(logits, 0, kernel, 50) <= limit


def test_a_floor_above_the_kernel_leaves_nothing_to_say():
    args = [0.0, 1.0, 2.0], 0, [1.0, 2.0, 3.0], np.full(3, 1e-9), 10
    assert random_q_bound(*args, largest_term=1e-9).norm_bound < 2.0
    assert random_q_bound(*args, largest_term=1e-9, floor=1.5).norm_bound == 2.0
    alone = random_q_bound([0.0, 1.0], 0, [1.0, 1.0], [1.0, 1.0], 3, largest_term=1.0)
    assert alone.norm_bound == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": [1.0, 2.0]}, r"`kernel` of shape \(2,\)"),
        ({"kernel": [1.0, 0.0, 2.0]}, "`kernel` must be greater than 0"),
        ({"variance": [1.0, -1.0, 2.0]}, "`variance` at least 0, got 1 and -1"),
        ({"largest_term": 0.0}, "`largest_term` must be finite and greater than 0"),
        ({"floor": -1.0}, "`floor` must be at least 0"),
        ({"labels": 3}, "`labels`"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
    ],
)
def test_bad_values_are_named(change, words):
    good = {"logits": [0.0, 1.0, 2.0], "labels": 0, "kernel": [1.0, 2.0, 1.0], "num_sampled": 5}
    with pytest.raises(ValueError, match=words):
        random_q_bound(**(good | {"variance": [1.0, 1.0, 1.0], "largest_term": 0.1} | change))
