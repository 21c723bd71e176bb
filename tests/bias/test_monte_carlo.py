"""Monte Carlo against enumeration, and the properties of its random streams."""

from __future__ import annotations

from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from oracles import naive
from scipy import stats

from samplesoft._random import mix64
from samplesoft.bias import monte_carlo
from samplesoft.bias.monte_carlo import monte_carlo_bias, simulate
from samplesoft.kernels.alias import alias_draw, build_alias
from samplesoft.schemes import SCHEMES, exact_schemes

LOGITS = np.array([0.3, -1.0, 2.0, 0.7, 1.2])
Q = np.array([0.1, 0.25, 0.3, 0.05, 0.3])
KEY = np.uint64(20)
TRIALS = 100_000
NUM_TESTS = 400  # z-scores in this file, roughly: the family-wise level is 1e-3
LIMIT = NormalDist().inv_cdf(1 - 1e-3 / NUM_TESTS / 2)


def exact(logits, label, q, m, scheme):
    """Bias, loss bias and second moments by enumeration, as float64."""
    expected, loss, second = naive.enumerate_scheme(logits, label, q, m, scheme)
    p = np.array(naive.softmax(logits), dtype=object)
    loss_bias = float(loss + naive.mp.log(p[label]))
    if second is not None:
        second = np.diag(second).astype(float) - expected.astype(float) ** 2
    return (expected - p).astype(float), loss_bias, second


def z_scores(result, bias, loss_bias):
    errors = np.append(result.bias - bias, result.loss_bias - loss_bias)
    stderr = np.append(result.stderr, result.loss_stderr)
    assert np.all(np.abs(errors[stderr == 0.0]) < 1e-12)
    return np.append(0.0, errors[stderr > 0.0] / stderr[stderr > 0.0])


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_agrees_with_enumeration(scheme, m):
    m = max(m, SCHEMES[scheme].min_draws)
    for label in (1, 2):
        bias, loss_bias, variance = exact(LOGITS, label, Q, m, scheme)
        got = monte_carlo_bias(LOGITS, label, Q, m, num_trials=TRIALS, scheme=scheme, rng=m)
        assert np.abs(z_scores(got, bias, loss_bias)).max() < LIMIT
        assert abs(got.bias.sum()) < 1e-12
        if variance is not None:
            np.testing.assert_allclose(got.stderr**2 * TRIALS, variance, rtol=0.1)


@pytest.mark.parametrize("scheme", ["negatives", "reject", "candidate_masked", "importance"])
def test_agrees_with_enumeration_at_one_draw(scheme):
    bias, loss_bias, _ = exact(LOGITS, 0, Q, 1, scheme)
    got = monte_carlo_bias(LOGITS, 0, Q, 1, num_trials=TRIALS, scheme=scheme, rng=3)
    assert np.abs(z_scores(got, bias, loss_bias)).max() < LIMIT


@pytest.mark.parametrize("q", [[0.9, 1.0, 1e-2, 0.999, 0.5], [1.0] * 5, [0.0, 1e-300, 1, 1, 1]])
def test_poisson_with_sure_and_rare_classes(q):
    bias, loss_bias, _ = exact(LOGITS, 0, q, 1, "poisson")
    got = monte_carlo_bias(LOGITS, 0, q, 1, num_trials=TRIALS, scheme="poisson", rng=4)
    assert np.abs(z_scores(got, bias, loss_bias)).max() < LIMIT


def test_unnormalised_proposal_is_normalised():
    q = Q * (1 + 5e-5)
    for scheme in [s for s in exact_schemes() if s not in ("poisson", *naive.JACKKNIFED)]:
        a = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=500, scheme=scheme, rng=0)
        b = monte_carlo_bias(LOGITS, 1, q, 3, num_trials=500, scheme=scheme, rng=0)
        np.testing.assert_allclose(a.bias, b.bias, atol=1e-12)


def wrong_sign(log_p, q):
    return np.where(q > 0, log_p + np.log(np.maximum(q, 1e-300)), -np.inf)


@pytest.mark.parametrize("scheme", exact_schemes())
def test_flipped_correction_is_detected(monkeypatch, scheme):
    bias, loss_bias, _ = exact(LOGITS, 1, Q, 3, scheme)
    monkeypatch.setattr(monte_carlo, "_divide_logs", wrong_sign)
    got = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=2000, scheme=scheme, rng=5)
    assert np.abs(z_scores(got, bias, loss_bias)).max() > LIMIT


def test_proposal_that_draws_the_label_is_detected(monkeypatch):
    bias, loss_bias, _ = exact(LOGITS, 1, Q, 3, "negatives")
    monkeypatch.setattr(monte_carlo, "build_alias", lambda _: build_alias(Q))
    got = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=TRIALS, rng=5)
    assert np.abs(z_scores(got, bias, loss_bias)).max() > LIMIT


@pytest.mark.parametrize("scheme", exact_schemes())
def test_threads_do_not_change_a_bit(threads, scheme):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=(2, 300)), rng.dirichlet(np.ones(300))
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(
            monte_carlo_bias(logits, [0, 7], q, 20, num_trials=2003, scheme=scheme, rng=9)
        )
    for other in results[1:]:
        for name in ("bias", "stderr", "loss_bias", "loss_stderr"):
            np.testing.assert_array_equal(getattr(results[0], name), getattr(other, name))


def test_seeds_and_batches():
    one = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=100, rng=1)
    batch = monte_carlo_bias(np.stack([LOGITS] * 2), 1, Q, 3, num_trials=100, rng=1)
    np.testing.assert_array_equal(batch.bias[0], one.bias)
    assert batch.loss_bias[0] == one.loss_bias
    assert batch.loss_bias.shape == batch.loss_stderr.shape == (2,)
    assert batch.stderr.shape == (2, 5)
    assert np.any(batch.bias[0] != batch.bias[1])  # examples have streams of their own
    rng = np.random.default_rng(1)
    first = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=100, rng=rng)
    second = monte_carlo_bias(LOGITS, 1, Q, 3, num_trials=100, rng=rng)
    assert np.any(first.bias != second.bias)


@pytest.mark.parametrize("scheme", exact_schemes())
def test_bins_and_projection_match_identity(scheme):
    rng = np.random.default_rng(2)
    n = 40
    logits, q = rng.normal(size=n), rng.dirichlet(np.ones(n))
    bins = rng.integers(0, 6, n)
    onto = np.eye(6)[bins]
    plain = simulate(logits, 3, q, 8, SCHEMES[scheme], 3000, KEY)
    binned = simulate(logits, 3, q, 8, SCHEMES[scheme], 3000, KEY, bins, onto)
    np.testing.assert_allclose(binned.bias, np.bincount(bins, plain.bias), atol=1e-14)
    # each bin is also a direction, so both ways of adding up moments must agree
    np.testing.assert_allclose(binned.projection_bias, binned.bias, atol=1e-14)
    np.testing.assert_allclose(binned.projection_stderr, binned.stderr, rtol=1e-10)
    assert (plain.loss_bias, plain.loss_stderr) == (binned.loss_bias, binned.loss_stderr)
    assert plain.projection_bias.size == 0
    each = simulate(logits, 3, q, 8, SCHEMES[scheme], 3000, KEY, np.arange(n), np.eye(n))
    np.testing.assert_array_equal(each.bias, plain.bias)
    np.testing.assert_array_equal(each.stderr, plain.stderr)
    np.testing.assert_allclose(each.projection_stderr, plain.stderr, rtol=1e-9, atol=1e-15)


def table_probabilities(thresholds, alias):
    n, full = len(alias), 2**64
    out = [Fraction(0)] * n
    for j in range(n):
        share = Fraction(int(thresholds[j]), full)
        out[j] += share / n
        out[alias[j]] += (1 - share) / n
    return out


@pytest.mark.parametrize("seed", range(4))
def test_alias_table_holds_the_probabilities(seed):
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(200, [1.0, 0.01, 100.0, 0.1][seed]))
    q[:3] = 0.0, 1e-300, 1e-12
    q /= q.sum()
    got = table_probabilities(*build_alias(q))
    assert got[0] == 0
    assert got[1] == 0  # below 2**-64: never drawn, and above all never rounded up to a column
    np.testing.assert_allclose([float(x) for x in got], q, rtol=1e-6, atol=1e-16)
    assert abs(float(got[2]) / q[2] - 1) < 1e-6


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 64])
def test_alias_table_of_equal_classes(n):
    for weight in (1.0, 0.3):
        got = table_probabilities(*build_alias(np.full(n, weight)))
        np.testing.assert_allclose([float(x) for x in got], 1.0 / n, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 1000])
def test_alias_draws_follow_chi_square(n):
    q = np.random.default_rng(n).dirichlet(np.ones(n))
    table = build_alias(q)
    draws = 200_000
    words = [np.uint64(mix64(KEY, np.uint64(i))) for i in range(draws)]
    ids = np.array([alias_draw(word, *table) for word in words])
    order = np.argsort(q)
    counts, expected = np.bincount(ids, minlength=n)[order], draws * q[order]
    small = max(int(np.searchsorted(np.cumsum(expected), 5.0)) + 1, 1)  # merged to one bin
    counts = np.append(counts[:small].sum(), counts[small:])
    expected = np.append(expected[:small].sum(), expected[small:])
    keep = expected >= 5
    assert keep.all() or small < n
    if len(expected) > 1:
        assert stats.chisquare(counts, expected).pvalue > 1e-4
        wrong = np.roll(expected, 1)  # the test has power: a shifted proposal fails
        assert stats.chisquare(counts, wrong).pvalue < 1e-8


@pytest.mark.parametrize("rate", [1e-300, 0.3, 17.0, 4000.5])
def test_poisson_table(rate):
    first, cdf = monte_carlo._poisson_cdf(rate)
    np.testing.assert_allclose(
        cdf, stats.poisson.cdf(first + np.arange(len(cdf)), rate), rtol=1e-11, atol=1e-15
    )


@pytest.mark.parametrize("scheme", exact_schemes())
def test_weights_in_logs_give_the_same(monkeypatch, scheme):
    plain = monte_carlo_bias(LOGITS, 1, Q, 4, num_trials=300, scheme=scheme, rng=2)
    monkeypatch.setattr(monte_carlo, "_MAX_LINEAR_LOG", -1.0)
    logs = monte_carlo_bias(LOGITS, 1, Q, 4, num_trials=300, scheme=scheme, rng=2)
    np.testing.assert_allclose(logs.bias, plain.bias, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(logs.stderr, plain.stderr, rtol=1e-10)
    assert logs.loss_bias == pytest.approx(plain.loss_bias, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.parametrize("label", [0, 1, 2])
def test_extreme_logits_agree_with_enumeration(scheme, label):
    logits, q = np.array([1e4, -1e4, 9.9995e3, 0.0]), np.array([0.3, 0.2, 0.3, 0.2])
    bias, loss_bias, _ = exact(logits, label, q, 3, scheme)
    got = monte_carlo_bias(logits, label, q, 3, num_trials=20_000, scheme=scheme, rng=6)
    for array in (got.bias, got.stderr, got.loss_bias, got.loss_stderr):
        assert np.isfinite(array).all()
    assert np.abs(z_scores(got, bias, loss_bias)).max() < LIMIT


@pytest.mark.parametrize("scheme", exact_schemes())
def test_tiny_proposals_stay_finite(scheme):
    logits, q = np.array([1e4, -1e4, 0.0, 5.0]), np.array([0.5, 0.5, 1e-300, 5e-324])
    m = SCHEMES[scheme].min_draws
    got = monte_carlo_bias(logits, 1, q, m + 1, num_trials=500, scheme=scheme, rng=7)
    for array in (got.bias, got.stderr, got.loss_bias, got.loss_stderr):
        assert np.isfinite(array).all()


def test_no_bias_where_the_sum_is_constant():
    p = np.exp(LOGITS - np.log(np.exp(LOGITS).sum()))
    for scheme in ("negatives", "jackknife"):
        got = monte_carlo_bias(LOGITS, 1, p, 3, num_trials=500, scheme=scheme, rng=8)
        assert abs(got.bias[1]) < 1e-14
        assert abs(got.loss_bias) < 1e-14
        assert got.stderr[1] < 1e-14


def test_label_with_all_the_mass():
    got = monte_carlo_bias([0.0, 1.0], 1, [0.0, 1.0], 3, num_trials=10, scheme="reject")
    p = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(got.bias, [p - 1, 1 - p], atol=1e-15)
    assert got.loss_bias == pytest.approx(np.log(p), abs=1e-15)
    assert got.loss_stderr == 0.0


def test_one_class():
    got = monte_carlo_bias([2.0], 0, [1.0], 3, num_trials=10, scheme="importance")
    assert abs(got.bias[0]) < 1e-15
    with pytest.raises(ValueError, match="no negative to draw"):
        monte_carlo_bias([2.0], 0, [1.0], 3, num_trials=10)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"num_trials": 1}, ValueError, "`num_trials` must be at least 2, got 1"),
        ({"num_trials": 10.0}, TypeError, "`num_trials` must be an integer"),
        ({"num_sampled": 0}, ValueError, "`num_sampled` must be at least 1"),
        ({"num_sampled": 1, "scheme": "jackknife"}, ValueError, "at least 2"),
        ({"scheme": "other"}, ValueError, "`scheme` must be one of"),
        ({"labels": 5}, ValueError, "`labels` must lie in 0..4"),
        ({"q": Q * 2}, ValueError, "`q` must sum to 1"),
        ({"q": [0.0, 0.5, 0.0, 0.5, 0.0]}, ValueError, "`q` must be greater than 0"),
        ({"logits": [0.0, np.nan, 0.0, 0.0, 0.0]}, ValueError, "`logits` must be finite"),
        ({"rng": "seed"}, TypeError, "`rng` must be"),
        ({"rng": -1}, ValueError, "`rng` as a seed"),
    ],
)
def test_bad_input(change, error, words):
    given = {"logits": LOGITS, "labels": 1, "q": Q, "num_sampled": 3, "num_trials": 10} | change
    with pytest.raises(error, match=words):
        monte_carlo_bias(**given)
