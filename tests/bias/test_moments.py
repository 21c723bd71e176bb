"""Squared bias, variance and mean squared error of the gradient in h."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.schemes import SCHEMES, exact_schemes

LOGITS = np.array([0.3, -1.0, 2.0, 0.7])
Q = np.array([0.1, 0.25, 0.3, 0.35])
C = np.random.default_rng(0).normal(size=(4, 3))


WITH_MOMENTS = [
    name for name in exact_schemes() if not (SCHEMES[name].jackknife or SCHEMES[name].independent)
]


def assert_equals_enumeration(result, logits, label, q, m, c, tau, scheme="negatives"):
    squared_bias, variance, mse = naive.gradient_moments(logits, label, q, m, c, tau, scheme)
    assert result.squared_bias == pytest.approx(squared_bias, rel=1e-10)
    assert result.variance == pytest.approx(variance, rel=1e-10)
    assert result.mse == pytest.approx(mse, rel=1e-10)


@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_equals_enumeration(n, m):
    for seed in range(4):
        rng = np.random.default_rng(10 * n + seed)
        logits, q, c = rng.normal(size=n) * 2, rng.dirichlet(np.ones(n)), rng.normal(size=(n, 3))
        for scheme in WITH_MOMENTS:
            result = exact_gradient_moments(logits, seed % n, q, m, c, tau=1.7, scheme=scheme)
            if n == 2 and scheme == "negatives":  # the one negative always comes
                assert max(result.squared_bias, result.variance, result.mse) < 1e-15
                continue
            assert_equals_enumeration(result, logits, seed % n, q, m, c, 1.7, scheme)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_common_part_of_the_class_vectors_cancels(shift):
    result = exact_gradient_moments(LOGITS, 0, Q, 3, C + shift)
    _, variance, mse = naive.gradient_moments(LOGITS, 0, Q, 3, C + shift, 1)
    assert result.variance == pytest.approx(variance, rel=1e-9)
    assert result.mse == pytest.approx(mse, rel=1e-9)


@pytest.mark.parametrize("logits", [[0.0, 30.0, 1.0, 2.0], [30.0, 0.0, 1.0, 2.0], [9.0, -9, 0, 3]])
def test_one_class_with_nearly_all_the_mass(logits):
    for m in (1, 3):
        result = exact_gradient_moments(logits, 0, Q, m, C, tau=2.0)
        assert_equals_enumeration(result, logits, 0, Q, m, C, 2.0)


@pytest.mark.parametrize("scheme", WITH_MOMENTS)
@pytest.mark.parametrize("logits", [[0.0, 20.0, 1.0, 2.0], [9.0, -9.0, 0.0, 3.0]])
def test_far_apart_logits_of_every_scheme(logits, scheme):
    result = exact_gradient_moments(logits, 0, Q, 3, C, scheme=scheme)
    assert_equals_enumeration(result, logits, 0, Q, 3, C, 1.0, scheme)
    wrong = exact_gradient_moments(logits, 0, Q, 4, C, scheme=scheme)
    with pytest.raises(AssertionError):
        assert_equals_enumeration(wrong, logits, 0, Q, 3, C, 1.0, scheme)


def test_a_label_with_all_the_mass_may_not_be_drawn():
    """With importance weights the one draw is the label or not, however light the other is."""
    result = exact_gradient_moments(
        [2000.0, 0.0], 0, [0.3, 0.7], 1, [[0.0], [2.0]], scheme="importance"
    )
    assert result.mse == pytest.approx(0.7 * 4.0, rel=1e-12)


def test_no_error_where_one_class_has_all_the_mass_that_float64_can_tell():
    result = exact_gradient_moments([1e4, 0.0, -1e4, 3.0], 0, Q, 3, C)
    assert (result.squared_bias, result.variance, result.mse) == (0.0, 0.0, 0.0)


def test_proposal_close_to_the_softmax():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    q = p * (1 + 1e-5 * np.array([1, -1, 1, -1]))
    q /= q.sum()
    assert_equals_enumeration(exact_gradient_moments(LOGITS, 2, q, 3, C), LOGITS, 2, q, 3, C, 1)


@pytest.mark.parametrize("m", [1, 7, 1000, 10**6, 10**9])
def test_parts_add_up_and_the_bias_is_the_exact_bias(m):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n = 6 if seed < 8 else 3000
        logits, q, c = rng.normal(size=n) * 2, rng.dirichlet(np.ones(n)), rng.normal(size=(n, 4))
        q = 0.9 * q + 0.1 / n
        result = exact_gradient_moments(logits, 1, q, m, c, tau=3.0)
        assert result.mse == pytest.approx(result.variance + result.squared_bias, rel=1e-12)
        assert min(result.squared_bias, result.variance) > 0.0
        bias = exact_bias(logits, 1, q, m).gradient_bias(3.0 * c)
        assert result.squared_bias == pytest.approx(bias @ bias, rel=1e-9)


def test_variance_falls_as_one_over_m():
    small, large = (exact_gradient_moments(LOGITS, 0, Q, m, C) for m in (10**6, 10**8))
    assert small.variance / large.variance == pytest.approx(100.0, rel=1e-4)
    assert small.squared_bias / large.squared_bias == pytest.approx(1e4, rel=1e-4)


def test_variance_against_draws():
    rng = np.random.default_rng(5)
    n, m, trials = 50, 8, 40_000
    logits, q, c = rng.normal(size=n) * 1.5, rng.dirichlet(np.full(n, 2.0)), rng.normal(size=(n, 5))
    negatives = np.where(np.arange(n) == 4, 0.0, q)
    negatives /= negatives.sum()
    ids = rng.choice(n, size=(trials, m), p=negatives)
    e = np.exp(logits)
    w = e[ids] / (m * negatives[ids])
    total = e[4] + w.sum(axis=1, keepdims=True)
    gradients = np.einsum("tm,tmd->td", w / total, c[ids]) + (e[4] / total - 1) * c[4]
    full = (e / e.sum()) @ c - c[4]
    squares = ((gradients - full) ** 2).sum(axis=1)
    result = exact_gradient_moments(logits, 4, q, m, c)
    assert abs(squares.mean() - result.mse) < 5 * squares.std() / np.sqrt(trials)


def test_tau_scales_by_its_square():
    one, three = (exact_gradient_moments(LOGITS, 0, Q, 5, C, tau=tau) for tau in (1.0, 3.0))
    for name in ("squared_bias", "variance", "mse"):
        assert getattr(three, name) == pytest.approx(9.0 * getattr(one, name), rel=1e-14)


def test_batch_equals_loop():
    logits = np.random.default_rng(1).normal(size=(3, 4))
    batch = exact_gradient_moments(logits, [0, 2, 3], Q, 5, C, tau=2.0)
    assert batch.variance.shape == batch.squared_bias.shape == batch.mse.shape == (3,)
    for i, label in enumerate((0, 2, 3)):
        one = exact_gradient_moments(logits[i], label, Q, 5, C, tau=2.0)
        assert (batch.mse[i], batch.variance[i]) == (one.mse, one.variance)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"class_embeddings": C[:3]}, ValueError, "`class_embeddings` must have one row for.*4"),
        ({"class_embeddings": C[:, 0]}, ValueError, "`class_embeddings` must have 2 dimension"),
        ({"class_embeddings": C * np.nan}, ValueError, "`class_embeddings` must be finite"),
        ({"tau": 0.0}, ValueError, "`tau` must be finite and greater than 0"),
        ({"tau": "1"}, TypeError, "`tau` must be a number"),
        ({"num_sampled": 0}, ValueError, "`num_sampled` must be at least 1"),
        ({"labels": 9}, ValueError, "`labels` must lie in"),
    ],
)
def test_bad_input(change, error, message):
    good = {"logits": LOGITS, "labels": 0, "q": Q, "num_sampled": 5, "class_embeddings": C}
    with pytest.raises(error, match=message):
        exact_gradient_moments(**{**good, **change})
