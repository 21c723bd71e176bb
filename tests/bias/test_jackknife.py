"""The loss bias of the jackknife: by parts and plainly, and which of them is taken."""

import warnings
from math import comb

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import naive

from samplesoft import exact_bias
from samplesoft.bias.with_replacement import jackknife
from samplesoft.bias.with_replacement.jackknife import _LossTerms


def test_terms_that_cancel_are_in_doubt_although_half_of_them_have_the_same_sum():
    def doubt(*terms, narrow=False):
        found = _LossTerms(np.array(terms), np.abs(terms), narrow)
        return jackknife._expected_error(found, 4e-15)

    assert 0.0 < doubt(1.0, 1.0, 1.0, 1.0) < 1e-13
    assert doubt(1e9, 1e9, -1e9, 1.0 - 1e9) > 1e-6
    assert doubt(1.0, 2.0, 1.0, 2.0) > 0.1  # half of them have another
    assert doubt(1.0, 1.0, 1.0, 1.0 + 1e-8, narrow=True) > 1e3 * doubt(1.0, 1.0, 1.0, 1.0 + 1e-8)
    assert doubt(1.0, np.nan) == np.inf


def enumerated(logits, label, q, m):
    """The biases of E[p'] (n,) and of E[loss] over all outcomes of draws from two kinds of classes.

    The kinds are the two negatives of three classes, or the label without weight and one negative.
    """
    with mp.workdps(400):
        p, q = naive.softmax(logits), [mpf(float(x)) for x in q]
        pair = [j for j in range(len(p)) if j != label or len(p) == 2]
        total = mp.fsum(q[j] for j in pair)
        chances = [q[j] / total for j in pair]
        ratios = [p[j] / x if j != label else mpf(0) for j, x in zip(pair, chances, strict=True)]

        def mean(m):
            found = np.array([-x for x in p] + [mpf(0)], dtype=object)
            power = chances[1] ** m
            for k in range(m + 1):
                masses = k * ratios[0] / m, (m - k) * ratios[1] / m
                whole = p[label] + sum(masses)
                for j, mass in zip([*pair, label], [*masses, p[label]], strict=True):
                    found[j] += comb(m, k) * power * mass / whole
                found[-1] += comb(m, k) * power * mp.log(whole)
                power *= chances[0] / chances[1]
            return found

        found = sum(weight * mean(draws) for draws, weight in naive.combination(m))
        return found[:-1], found[-1]


def problems(seed, number):
    rng = np.random.default_rng(seed)
    for i in range(number):
        n = int(rng.integers(2, 4))
        logits = rng.normal(size=n) * rng.choice([0.3, 3.0, 30.0, 300.0])
        near = np.exp(logits - logits.max()) * np.exp(1e-4 * rng.normal(size=n)) + 1e-100
        q = (rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-30.0, 0.0, n), near)[i % 3]
        yield logits, int(rng.integers(n)), q / q.sum(), int(rng.choice([3, 5, 30, 200]))


@pytest.mark.filterwarnings("ignore:the bias of scheme")  # the estimate is looked at below
def test_estimates_bound_the_errors():
    for logits, label, q, m in problems(3, 60):
        scheme = "jackknife" if len(logits) == 3 else "jackknife_masked"
        result = exact_bias(logits, label, q, m, scheme=scheme)
        bias, loss = enumerated(logits, label, q, m)
        error, norm = naive.l1_error(result.bias, bias)
        loss_error = abs(mpf(float(result.loss_bias)) - loss)
        assert loss_error <= mpf(float(result.loss_error)) + mpf("1e-290")
        assert error <= mpf(float(result.error)) + 1e-12 * norm + mpf("1e-290")
        assert result.loss_error <= 1e-10 * abs(loss) + mpf("1e-290")


@pytest.mark.filterwarnings("ignore:the bias of scheme")
def test_terms_that_overflow_are_not_taken():
    logits, q = np.array([-172.0, 740.0, -397.0, -383.0, 323.0]), np.full(5, 1e-100)
    q[1] = 1.0
    result = exact_bias(logits, 0, q, 3, scheme="jackknife")
    _, loss, _ = naive.enumerate_scheme(logits, 0, q, 3, "jackknife", dps=1200)
    with mp.workdps(1200):
        loss += mp.log(naive.softmax(logits)[0])
    assert 0.0 < result.loss_error < 1e-10 * abs(loss)
    assert abs(mpf(float(result.loss_bias)) - loss) < result.loss_error


def test_an_error_beyond_the_estimate_is_seen():
    """WRONG: one draw more."""
    logits, label, q, m = [0.3, 1.0, -0.5], 0, [0.2, 0.5, 0.3], 30
    result = exact_bias(logits, label, q, m + 1, scheme="jackknife")
    bias, loss = enumerated(logits, label, q, m)
    assert naive.l1_error(result.bias, bias)[0] > 1e6 * result.error
    assert abs(result.loss_bias - loss) > 1e6 * result.loss_error


def test_the_bias_falls_like_one_power_more():
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=50), rng.dirichlet(np.full(50, 3.0))
    few, many = (exact_bias(logits, 0, q, m, scheme="jackknife") for m in (1000, 2000))
    fall = np.abs(few.bias).sum() / np.abs(many.bias).sum()
    assert fall == pytest.approx(4.0, rel=0.05)
    assert few.loss_bias / many.loss_bias == pytest.approx(4.0, rel=0.05)


def test_of_a_softmax_nobody_is_told_that_the_rounding_of_q_has_no_digits():
    logits = 1e-9 * np.random.default_rng(3).normal(size=(3, 3))
    q = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exact_bias(logits, labels, q, 5, scheme="jackknife")
    assert (found.error > 1e-10 * np.abs(found.bias).sum(axis=1)).any()  # or the test is empty
    near = q * (1.0 + 1e-9 * np.cos(np.arange(3)))
    with pytest.warns(RuntimeWarning, match="see ExactBias.error"):
        exact_bias(logits, labels, near / near.sum(axis=1, keepdims=True), 5, scheme="jackknife")


@pytest.mark.parametrize("noise", [1e-5, 1e-9])
def test_classes_on_panels_next_to_the_softmax(noise):
    """The places of ratios on narrow panels need more digits than a difference of logs has."""
    rng = np.random.default_rng(0)
    n, label = 60, 3
    logits = 2.0 * rng.normal(size=n)
    q = np.exp(logits + noise * rng.normal(size=n))
    q /= q.sum()
    with mp.workdps(60):
        p, chances = naive.softmax(logits), [mpf(float(x)) for x in q]
        others = [j for j in range(n) if j != label]
        total = mp.fsum(chances[j] for j in others)
        d = np.array([chances[j] / total for j in others], dtype=object)
        e = np.array([p[j] for j in others], dtype=object)
        r = e / d
        one = e * (1 / (p[label] + r) - 1)
        two = e * ((1 / (p[label] + (r[:, None] + r) / 2) - 1) @ d)
        wanted = 2 * two - one
        size, got = 2 * mp.fsum(abs(wanted)), exact_bias(logits, label, q, 2, scheme="jackknife")
        error = mp.fsum(abs(got.bias[others] - wanted))
    assert error < 1e-12 * size
    assert error < 3.0 * got.error
