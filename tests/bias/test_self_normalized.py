"""The classical terms of self-normalised importance sampling, against sums over all draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from oracles import extremes

from samplesoft import asymptotic_bias, exact_bias, self_normalized_terms

SCHEMES = ("negatives", "masked")


def plain(logits, label, q, scheme):
    """Return lim m * bias (n,) and rho of the plain estimator with weights ``w = a + r``.

    It is the textbook's: ``-E[w^2 (g - mean)] / E[w]^2`` for each function g, and
    ``E[w^2] / E[w]^2``, as sums over the outcomes of one draw.
    """
    e = [mp.exp(mpf(float(o))) for o in logits]
    q = [mpf(float(x)) for x in q]
    if scheme == "negatives":
        q[label] = mpf(0)
    q = [x / mp.fsum(q) for x in q]
    n, drawn = len(q), [s for s in range(len(q)) if q[s] > 0]
    r = [mpf(0) if s == label or q[s] == 0 else e[s] / q[s] for s in range(n)]
    w = [e[label] + x for x in r]
    mean_w = mp.fsum(q[s] * w[s] for s in drawn)
    limit = []
    for j in range(n):
        g = [(e[label] * (j == label) + r[s] * (j == s)) / w[s] for s in range(n)]
        mean = mp.fsum(q[s] * w[s] * g[s] for s in drawn) / mean_w
        limit.append(-mp.fsum(q[s] * w[s] ** 2 * (g[s] - mean) for s in drawn) / mean_w**2)
    return limit, mp.fsum(q[s] * w[s] ** 2 for s in drawn) / mean_w**2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_terms_are_those_of_plain_importance_sampling_with_weights_a_plus_r(scheme):
    rng = np.random.default_rng(0)
    told_apart = 0
    for _ in range(150):
        logits, label, q, m = extremes.ordinary(rng)
        terms = self_normalized_terms(logits, label, q, m, scheme=scheme)
        with mp.workdps(60):
            limit, rho = plain(logits, label, q, scheme)
            wrong = sum(abs(m * mpf(x) - y) for x, y in zip(terms.leading_bias, limit, strict=True))
            assert wrong <= 1e-11 * sum(map(abs, limit)) + 1e-14
        assert terms.agapiou_bound == pytest.approx(float(12 * rho / m), rel=1e-11)
        assert terms.effective_sample_size == pytest.approx(float(m / rho), rel=1e-11)
        assert terms.cauchy_schwarz_bound <= terms.agapiou_bound / 6 * (1 + 1e-9)
        other = plain(logits, label, q, SCHEMES[scheme == "negatives"])[1]
        told_apart += float(abs(rho - other)) > 1e-6 * float(rho)
    assert told_apart > 100


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("make", [extremes.ordinary, extremes.extreme])
def test_bounds_hold_by_enumeration(make, scheme):
    rng = np.random.default_rng(1)
    above_half = 0
    for _ in range(60):
        logits, label, q, m = make(rng)
        terms = self_normalized_terms(logits, label, q, m, scheme=scheme)
        with mp.workdps(1700):
            norm = sum(map(abs, extremes.enumerated(logits, label, q, m, scheme, 400)))
            room = mpf("1e-300")
            assert norm <= mpf(float(terms.cauchy_schwarz_bound)) + room
            assert norm <= mpf(float(terms.agapiou_bound)) + room
            above_half += norm > 0.5 * mpf(float(terms.cauchy_schwarz_bound)) + room
    assert above_half > 0  # a bound of half the size would have failed


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bounds_hold_for_many_classes_and_draws(scheme):
    rng = np.random.default_rng(4)
    close = 0
    for _ in range(250):
        n, m = int(2 + 10 ** rng.uniform(0.0, 2.3)), int(10 ** rng.uniform(0.0, 6.0))
        logits = rng.standard_t(2.0, n).clip(-300.0, 300.0) * rng.choice([0.3, 1.0, 3.0])
        q = 10.0 ** (-rng.choice([0.5, 3.0, 10.0, 100.0]) * rng.random(n))
        label = int(logits.argmax() if rng.random() < 0.3 else rng.integers(n))
        exact = exact_bias(logits, label, q / q.sum(), m, scheme=scheme)
        terms = self_normalized_terms(logits, label, q / q.sum(), m, scheme=scheme)
        norm = np.abs(exact.bias).sum() * (1.0 - 1e-10) - exact.error
        assert norm <= terms.cauchy_schwarz_bound <= terms.agapiou_bound
        close += norm > 0.5 * terms.cauchy_schwarz_bound
    assert close > 25


@st.composite
def problems(draw):
    """Draw (logits, label, q, m), from ordinary ones to q down to 1e-250."""
    n = draw(st.integers(2, 7))
    spread, smallest = draw(st.sampled_from([(2.0, -2.0), (8.0, -12.0), (300.0, -250.0)]))
    logits = draw(st.lists(st.floats(-spread, spread), min_size=n, max_size=n))
    powers = np.array(draw(st.lists(st.floats(smallest, 0.0), min_size=n, max_size=n)))
    powers[draw(st.integers(0, n - 1))] = 0.0
    q = 10.0**powers
    m = draw(st.sampled_from([1, 2, 5, 30, 1000, 10**6, 10**9]))
    return np.array(logits), draw(st.integers(0, n - 1)), q / q.sum(), m


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from(SCHEMES))
def test_two_rho_over_m_bounds_the_bias_anywhere(problem, scheme):
    logits, label, q, m = problem
    exact = exact_bias(logits, label, q, m, scheme=scheme)
    terms = self_normalized_terms(logits, label, q, m, scheme=scheme)
    norm = np.abs(exact.bias).sum() * (1.0 - 1e-10) - exact.error
    assert norm <= terms.cauchy_schwarz_bound <= terms.agapiou_bound
    with mp.workdps(700):  # 2 rho / m with the lesser rho, E[r^2] / Z^2, of one draw
        e, drawn = ([mp.exp(mpf(float(o))) for o in logits], [mpf(float(x)) for x in q])
        if scheme == "negatives":
            drawn[label] = mpf(0)
        others = [j for j in range(len(q)) if j != label]
        rho = mp.fsum(drawn) * mp.fsum(e[j] ** 2 / drawn[j] for j in others) / mp.fsum(e) ** 2
        bound = mpf(float(terms.cauchy_schwarz_bound))
        assert bound <= 2 * rho / m * (1 + mpf(10) ** -9) or bound == mp.inf


@settings(max_examples=60, deadline=None)
@given(problems(), st.floats(-50.0, 50.0), st.randoms(use_true_random=False))
def test_terms_know_neither_a_common_shift_nor_the_order(problem, shift, random):
    logits, label, q, m = problem
    order = random.sample(range(len(q)), len(q))
    one, other = (
        self_normalized_terms(logits, label, q, m),
        self_normalized_terms(logits[order] + shift, order.index(label), q[order], m),
    )
    size = float(np.abs(one.leading_bias).sum())
    room = 1e-9 * size + 1e-12 * one.agapiou_bound  # where it is the rounding of nothing
    assert np.abs(one.leading_bias[order] - other.leading_bias).sum() <= room
    for name in ("agapiou_bound", "effective_sample_size"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-300)


def test_no_constant_below_two_will_do():
    """A class with e near 0 and e * r large comes to 2 (1 - e) rho / m."""
    e, q, m = 1e-3, 1e-9, 10**9
    logits, proposal = np.log([1e-6, e, 1.0 - e - 1e-6]), [0.0, q, 1.0 - q]
    norm = np.abs(exact_bias(logits, 0, proposal, m).bias).sum()
    terms = self_normalized_terms(logits, 0, proposal, m)
    assert 6.0 < terms.agapiou_bound / norm < 6.03
    assert 1.0 < terms.cauchy_schwarz_bound / norm < 1.01


@pytest.mark.parametrize("scheme", SCHEMES)
def test_leading_term_is_off_by_order_one_over_m(scheme):
    rng = np.random.default_rng(2)
    logits, q = 2.0 * rng.standard_normal(300), rng.dirichlet(np.full(300, 3.0))
    errors = []
    for m in (10**4, 10**5):
        bias = exact_bias(logits, 7, q, m, scheme=scheme).bias
        leading = self_normalized_terms(logits, 7, q, m, scheme=scheme).leading_bias
        errors.append(np.abs(leading - bias).sum() / np.abs(bias).sum())
    assert errors[0] < 0.05
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.1)


def test_leading_term_is_no_bound_and_has_no_factor():
    """It is linear in r_j = e_j / q_j, however rare the class; the exact bias is below 2."""
    terms = self_normalized_terms([0.0, 0.0, -10.0], 0, [0.0, 1.0, 1e-30], 100)
    norm = np.abs(exact_bias([0.0, 0.0, -10.0], 0, [0.0, 1.0, 1e-30], 100).bias).sum()
    assert norm < 1e-4
    assert np.abs(terms.leading_bias).sum() > 1e15


def test_without_bias_the_close_bound_is_rounding():
    logits = np.array([0.3, -1.0, 2.0, 0.5])
    terms = self_normalized_terms(logits, 1, np.exp(logits) / np.exp(logits).sum(), 10)
    assert terms.cauchy_schwarz_bound < 1e-13
    assert 1.2 <= terms.agapiou_bound < 2.0
    one = self_normalized_terms([0.0, 3.0], 0, [0.5, 0.5], 10)
    assert (one.cauchy_schwarz_bound, one.effective_sample_size) == (0.0, 10.0)
    np.testing.assert_array_equal(one.leading_bias, 0.0)


def test_a_batch_is_its_examples():
    rng = np.random.default_rng(3)
    logits, q, labels = rng.standard_normal((4, 9)), rng.dirichlet(np.ones(9), 4), [0, 3, 8, 3]
    batch = self_normalized_terms(logits, labels, q, 20, scheme="masked")
    for b, label in enumerate(labels):
        one = self_normalized_terms(logits[b], label, q[b], 20, scheme="masked")
        limit = asymptotic_bias(logits[b], label, q[b], scheme="masked")
        np.testing.assert_array_equal(batch.leading_bias[b], limit / 20)
        assert batch.agapiou_bound[b] == one.agapiou_bound
        assert batch.effective_sample_size[b] == one.effective_sample_size


@pytest.mark.parametrize("scheme", ["importance", "candidate", "poisson", "jackknife", "reject"])
def test_other_schemes_are_refused(scheme):
    with pytest.raises(ValueError, match="scheme"):
        self_normalized_terms([0.0, 1.0, 2.0], 0, [0.2, 0.3, 0.5], 5, scheme=scheme)
