"""Second moments of the jackknife: against all outcomes, draws, and the plain gradient."""

import doctest

import jackknife_moments as module
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jackknife_moments import jackknife_moments, left_out, pair_sums
from oracles import naive
from oracles.moments_cases import assert_has_digits, hard_cases, largest_miss, powered_case

from samplesoft import exact_gradient_moments

LOGITS = np.array([0.3, -1.0, 2.0, 0.7])
Q = np.array([0.1, 0.25, 0.3, 0.35])
C = np.random.default_rng(0).normal(size=(4, 3))
each_scheme = pytest.mark.parametrize("scheme", ["jackknife", "jackknife_masked"])


def test_the_example_in_its_documentation():
    assert doctest.testmod(module).failed == 0


def assert_equals_enumeration(result, logits, label, q, m, c, tau, scheme):
    squared_bias, variance, mse = naive.gradient_moments(logits, label, q, m, c, tau, scheme)
    assert result.squared_bias == pytest.approx(squared_bias, rel=1e-10)
    assert result.variance == pytest.approx(variance, rel=1e-10)
    assert result.mse == pytest.approx(mse, rel=1e-10)


@each_scheme
@pytest.mark.parametrize("m", [2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_equals_enumeration(n, m, scheme):
    for seed in range(4):
        rng = np.random.default_rng(10 * n + seed)
        logits, q, c = rng.normal(size=n) * 2, rng.dirichlet(np.ones(n)), rng.normal(size=(n, 3))
        args = logits, seed % n, q, m, c
        result = jackknife_moments(*args, tau=1.7, scheme=scheme)
        if n == 2 and scheme == "jackknife":  # the one negative always comes
            assert max(result.squared_bias, result.variance, result.mse) < 1e-15
            continue
        assert_equals_enumeration(result, *args, 1.7, scheme)


@each_scheme
@pytest.mark.parametrize("logits", [[0.0, 20.0, 1.0, 2.0], [9.0, -9.0, 0.0, 3.0]])
def test_far_apart_logits(logits, scheme):
    result = jackknife_moments(logits, 0, Q, 3, C, scheme=scheme)
    assert_equals_enumeration(result, logits, 0, Q, 3, C, 1.0, scheme)
    wrong = jackknife_moments(logits, 0, Q, 4, C, scheme=scheme)
    with pytest.raises(AssertionError):
        assert_equals_enumeration(wrong, logits, 0, Q, 3, C, 1.0, scheme)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01, 1.0, 5.0, 30.0, 300.0, 700.0]),
    st.sampled_from([1.0, 5.0, 50.0]),
    st.sampled_from(["jackknife", "jackknife_masked"]),
)
def test_equals_enumeration_anywhere(seed, spread, power, scheme):
    args = powered_case(seed, spread, power)
    result = jackknife_moments(*args, scheme=scheme)
    assert_has_digits(result, naive.gradient_moments(*args, 1.0, scheme))


@each_scheme
def test_jackknife_of_classes_on_panels(scheme):
    """Each negative is split in 20 that are alike, and they become atoms of panels."""
    rng = np.random.default_rng(3)
    n = 300
    logits, q, c = rng.normal(size=n), rng.dirichlet(np.full(n, 2.0)), rng.normal(size=(n, 3))
    few = np.append(logits[0], logits[1:] + np.log(20.0))
    wanted = jackknife_moments(few, 0, q, 7, c, scheme=scheme)
    part = np.append(0, np.repeat(np.arange(1, n), 20))
    many = np.append(logits[0], np.repeat(logits[1:], 20))
    parts = np.append(q[0], np.repeat(q[1:] / 20, 20))
    got = jackknife_moments(many, 0, parts, 7, c[part], scheme=scheme)
    for name in ("squared_bias", "variance", "mse"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), rel=1e-12)


@each_scheme
def test_moments_against_draws(scheme):
    rng = np.random.default_rng(6)
    n, m, trials = 20, 6, 20_000
    logits, c = 1.5 * rng.normal(size=n), rng.normal(size=(n, 4))
    q = rng.dirichlet(np.full(n, 2.0))
    e = np.exp(logits)
    drawn = np.where(np.arange(n) == 3, 0.0, q) if scheme == "jackknife" else q
    counts = rng.multinomial(m, drawn / drawn.sum(), size=trials)
    w = np.where(np.arange(n) == 3, 0.0, e * drawn.sum() / np.where(drawn > 0.0, drawn, 1.0))

    def shares(counts, draws):
        mass = counts * w / draws
        mass[:, 3] += e[3]
        return mass / mass.sum(axis=1, keepdims=True)

    less = [counts[:, [k]] * shares(counts - np.eye(n)[k], m - 1) for k in range(n)]
    p = m * shares(counts, m) - (m - 1) * sum(less) / m
    squares = ((p @ c - (e / e.sum()) @ c) ** 2).sum(axis=1)
    right, wrong = (
        jackknife_moments(logits, 3, known_q, m, c, scheme=scheme).mse for known_q in (q, q[::-1])
    )
    standard_error = squares.std() / np.sqrt(trials)
    assert abs(squares.mean() - right) < 4 * standard_error < abs(squares.mean() - wrong)


@settings(max_examples=40, deadline=None)
@given(hard_cases(), st.sampled_from(["jackknife", "jackknife_masked"]))
def test_no_moment_is_off_by_more_than_its_error(case, scheme):
    logits, label, q, m, c = case
    args = logits, label, q, max(m, 2), c
    result = jackknife_moments(*args, scheme=scheme)
    exact = naive.gradient_moments(*args, 1.0, scheme, dps=800 + int(2.0 * np.ptp(logits)))
    # enumeration, too, leaves a rest where the result is 0
    assert largest_miss(result, exact) <= result.error + 1e-150
    assert result.error <= 1e-8 * result.mse + 1e-13 * np.ptp(c) ** 2  # it says something


def test_an_error_of_zero_would_be_exceeded():
    """A proposal near the softmax, and a class with nearly all the mass."""
    rng, missed = np.random.default_rng(0), 0
    for gap in (0.0, 15.0, 30.0, 100.0):
        logits = np.array([gap, 0.3, -1.0, 0.7])
        q = np.exp(logits - logits.max()) * (1.0 + 1e-6 * rng.normal(size=4))
        args = logits, 0, q / q.sum(), 3, C
        result = jackknife_moments(*args, tau=2.0)
        off = largest_miss(result, naive.gradient_moments(*args, 2.0, "jackknife", dps=400))
        assert off <= result.error
        missed += off > 1e-5 * result.error
    assert missed > 1  # so small a part of the error would have failed, too


@each_scheme
def test_with_all_classes_certain_there_is_no_error(scheme):
    for label in range(4):
        moments = jackknife_moments(LOGITS, label, Q, 3, C, scheme=scheme, certain=range(4))
        assert max(moments.mse, moments.variance) < 1e-25


def test_other_schemes_are_refused():
    with pytest.raises(ValueError, match="`scheme` must be one of jackknife, jackknife_masked"):
        jackknife_moments(LOGITS, 0, Q, 3, C, scheme="negatives")
    with pytest.raises(ValueError, match="`num_sampled` must be at least 2"):
        jackknife_moments(LOGITS, 0, Q, 1, C)


def test_pairs_of_too_many_atoms_are_refused():
    n = 5000
    logits = np.linspace(0.0, 300.0, n)
    with pytest.raises(ValueError, match="few panels.*4,096 classes.*got 4,999.*monte_carlo_bias"):
        jackknife_moments(logits, 0, np.full(n, 1 / n), 5, np.eye(n, 2), scheme="jackknife")


def test_the_jackknife_ends_where_its_draws_do():
    """Where draws abound all of its variance is that of the plain gradient."""
    for m in (10**6, 10**9):
        plain, left = (f(LOGITS, 0, Q, m, C) for f in (exact_gradient_moments, jackknife_moments))
        assert left.variance == pytest.approx(plain.variance, rel=20 / m)


@pytest.mark.parametrize(("first", "second"), [(0.3, 2.0), (1.1, 1.3), (1e-4, 0.5), (0.7, 90.0)])
def test_draws_that_are_left_out(first, second):
    """What (B76) and (B77) put under the integral gives back the functions of U."""
    log_v = np.arange(-60.0, 8.0, 0.01)
    v = np.exp(log_v)
    rest, near, far = 0.8, v[:, None] * first, v[:, None] * second
    once, twice = (values[:, 0] for values in left_out(far))
    pair = pair_sums(
        np.hstack([near, far]), np.eye(2)[0], np.eye(2)[[1] * len(v)], np.zeros((2, 2)),
        np.eye(3)[[1] * len(v)],
    )  # fmt: skip
    back = lambda kernel: 0.01 * np.sum(np.exp(-v * rest) * v**2 * kernel)  # noqa: E731
    own, total = rest + second, rest + first + second
    assert back(once) == pytest.approx(second / (rest * own**2), rel=1e-11)
    assert back(twice) == pytest.approx((second / (rest * own)) ** 2, rel=1e-11)
    apart = second / (total**2 * (rest + first))
    assert back(np.exp(-near[:, 0]) * once) == pytest.approx(apart, rel=1e-11)
    both = first * second / (total**2 * (rest + first) * own)
    # l = (0, 1) and q = (1, 0): only pairs of the two, in either order
    assert back(pair) == pytest.approx(2 * both, rel=1e-11)
    assert back(pair * np.exp(-1e-6 * v)) != pytest.approx(2 * both, rel=1e-11)
