"""Squared bias, variance and mean squared error of the gradient in h."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive
from oracles.moments_cases import assert_has_digits, hard_cases, largest_miss, powered_case

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.schemes import SCHEMES, exact_schemes

LOGITS = np.array([0.3, -1.0, 2.0, 0.7])
Q = np.array([0.1, 0.25, 0.3, 0.35])
C = np.random.default_rng(0).normal(size=(4, 3))


WITH_MOMENTS = [name for name in exact_schemes() if not SCHEMES[name].jackknife]


def known(scheme, q):
    """`q`, and three times as large as probabilities of inclusion."""
    return np.minimum(3 * q, 1.0) if SCHEMES[scheme].independent else q


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
            if m < SCHEMES[scheme].min_draws:
                continue
            args = logits, seed % n, known(scheme, q), m, c
            result = exact_gradient_moments(*args, tau=1.7, scheme=scheme)
            if n == 2 and scheme == "negatives":  # the one negative always comes
                assert max(result.squared_bias, result.variance, result.mse) < 1e-15
                continue
            assert_equals_enumeration(result, *args, 1.7, scheme)


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
    q = known(scheme, Q)
    result = exact_gradient_moments(logits, 0, q, 3, C, scheme=scheme)
    assert_equals_enumeration(result, logits, 0, q, 3, C, 1.0, scheme)
    other = 0.9 * q if scheme == "poisson" else q
    wrong = exact_gradient_moments(logits, 0, other, 4, C, scheme=scheme)
    with pytest.raises(AssertionError):
        assert_equals_enumeration(wrong, logits, 0, q, 3, C, 1.0, scheme)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01, 1.0, 5.0, 30.0, 300.0, 700.0]),
    st.sampled_from([1.0, 5.0, 50.0]),
)
def test_equals_enumeration_anywhere_with_independent_inclusion(seed, spread, power):
    logits, label, q, m, c = powered_case(seed, spread, power)
    args = logits, label, known("poisson", q), m, c
    result = exact_gradient_moments(*args, scheme="poisson")
    assert_has_digits(result, naive.gradient_moments(*args, 1.0, "poisson"))


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize("noise", [0.03, 0.3, 0.8, 3.0])
def test_one_draw_of_classes_on_panels(noise, scheme):
    """Beyond the least ratio panels leave no digits of the transform, which one draw divides by."""
    for seed, spread in enumerate([0.5, 2.0, 6.0]):
        rng = np.random.default_rng(seed)
        o, c = spread * rng.normal(size=2000), rng.normal(size=(2000, 3))
        q, label = np.exp(o + noise * rng.normal(size=2000)), 5
        q /= q.sum()
        chance = q.copy()
        if scheme == "negatives":
            chance[label] = 0.0
            chance /= chance.sum()
        own = np.exp(o[label])
        with np.errstate(divide="ignore"):
            ratio = np.where(np.arange(2000) == label, 0.0, np.exp(o) / chance)
        share = (own / (own + ratio))[:, None]
        errors = share * c[label] + (1 - share) * c - np.exp(o) @ c / np.exp(o).sum()
        mean = chance @ errors
        result = exact_gradient_moments(o, label, q, 1, c, scheme=scheme)
        assert result.mse == pytest.approx(chance @ (errors**2).sum(axis=1), rel=1e-9)
        assert result.squared_bias == pytest.approx(mean @ mean, rel=1e-9)


def test_moments_of_independent_inclusion_against_draws():
    rng = np.random.default_rng(6)
    n, trials = 20, 20_000
    logits, c = 1.5 * rng.normal(size=n), rng.normal(size=(n, 4))
    q = np.minimum(4 * rng.dirichlet(np.full(n, 2.0)), 1.0)
    e = np.exp(logits)
    mass = np.where(rng.random((trials, n)) < q, e / q, 0.0)
    mass[:, 3] = e[3]
    p = mass / mass.sum(axis=1, keepdims=True)
    squares = ((p @ c - (e / e.sum()) @ c) ** 2).sum(axis=1)
    right, wrong = (
        exact_gradient_moments(logits, 3, known_q, 6, c, scheme="poisson").mse
        for known_q in (q, q[::-1])
    )
    standard_error = squares.std() / np.sqrt(trials)
    assert abs(squares.mean() - right) < 4 * standard_error < abs(squares.mean() - wrong)


@settings(max_examples=60, deadline=None)
@given(hard_cases(), st.sampled_from(WITH_MOMENTS))
def test_no_moment_is_off_by_more_than_its_error(case, scheme):
    logits, label, q, m, c = case
    args = logits, label, known(scheme, q), max(m, SCHEMES[scheme].min_draws), c
    result = exact_gradient_moments(*args, scheme=scheme)
    digits = 800 + int(2.0 * np.ptp(logits))
    exact = naive.gradient_moments(*args, 1.0, scheme, dps=digits)
    # enumeration, too, leaves a rest where the result is 0
    assert largest_miss(result, exact) <= result.error + 1e-150
    assert result.error <= 1e-8 * result.mse + 1e-13 * np.ptp(c) ** 2  # it says something


def test_an_error_of_zero_would_be_exceeded():
    """A proposal near the softmax, and a class with nearly all the mass."""
    rng, missed = np.random.default_rng(0), 0
    for gap in (0.0, 15.0, 30.0, 100.0):
        logits = np.array([gap, 0.3, -1.0, 0.7])
        q = np.exp(logits - logits.max()) * (1.0 + 1e-6 * rng.normal(size=4))
        for scheme in ("negatives", "masked", "reject", "candidate", "importance"):
            args = logits, 0, q / q.sum(), 3, C
            result = exact_gradient_moments(*args, tau=2.0, scheme=scheme)
            exact = naive.gradient_moments(*args, 2.0, scheme, dps=400)
            off = largest_miss(result, exact)
            assert off <= result.error
            missed += off > 0.001 * result.error
    assert missed > 5  # a thousandth of the error would have failed, too


def test_a_variance_far_below_the_squared_bias_is_known_by_its_error():
    """Both classes are sure to be in the sum, so that the variance is one of rare draws."""
    logits, q = np.array([0.0, 40.0, 41.0]), np.array([0.4, 0.6 - 1e-14, 1e-14])
    for scheme in ("candidate", "candidate_masked", "importance"):
        args = logits, 1, q, 3, C[:3]
        result = exact_gradient_moments(*args, scheme=scheme)
        exact = naive.gradient_moments(*args, 1.0, scheme, dps=200)
        assert abs(result.variance - exact[1]) <= result.error
        batch = exact_gradient_moments(np.stack([logits] * 2), 1, q, 3, C[:3], scheme=scheme)
        assert batch.error.tolist() == [result.error] * 2


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


@pytest.mark.parametrize("scheme", ["jackknife", "jackknife_masked"])
def test_the_jackknife_is_refused(scheme):
    with pytest.raises(ValueError, match=f"got '{scheme}'; .*figures/jackknife_moments.py"):
        exact_gradient_moments(LOGITS, 0, Q, 5, C, scheme=scheme)
