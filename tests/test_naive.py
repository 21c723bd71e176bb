"""The oracles agree with each other before anything is tested against them."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp
from oracles import frozen, naive

LOGITS = np.array([0.3, -1.0, 2.0, 0.7])
Q = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("scheme", naive.SCHEMES)
def test_enumeration_and_integral_agree(scheme, m):
    expected, loss, second = naive.enumerate_scheme(LOGITS, 2, Q, m, scheme)
    integral, bias, loss_bias = naive.laplace_mpmath(LOGITS, 2, Q, m, scheme, dps=30)
    with mp.workdps(50):
        assert max(abs(x) for x in integral - expected) < 1e-28
        assert abs(loss_bias - mp.log(naive.softmax(LOGITS)[2]) - loss) < 1e-28
        assert abs(mp.fsum(expected) - 1) < 1e-45
        assert abs(mp.fsum(bias)) < 1e-28
        p = np.array(naive.softmax(LOGITS), dtype=object)
        assert max(abs(x) for x in bias - (expected - p)) < 1e-28
        if second is not None:  # the rows of E[p' p'^T] add up to E[p']
            assert max(abs(x) for x in second.sum(axis=1) - expected) < 1e-45


def test_one_negative_draw_by_hand():
    # two classes, one draw: the negative always comes, so p' = softmax and the bias is zero
    expected, loss, _ = naive.enumerate_scheme([0.0, np.log(3.0)], 0, [0.5, 0.5], 1, "negatives")
    assert float(expected[0]) == pytest.approx(0.25, abs=1e-15)
    assert float(loss) == pytest.approx(np.log(4.0), abs=1e-15)


def test_reject_without_negatives_has_loss_zero():
    expected, loss, _ = naive.enumerate_scheme(LOGITS, 1, [0.0, 1.0, 0.0, 0.0], 3, "reject")
    assert expected.tolist() == [0, 1, 0, 0]
    assert loss == 0
    expected, _, loss_bias = naive.laplace_mpmath(LOGITS, 1, [0.0, 1.0, 0.0, 0.0], 3, "reject")
    assert [float(x) for x in expected] == pytest.approx([0, 1, 0, 0], abs=1e-30)
    with mp.workdps(50):
        assert abs(loss_bias - mp.log(naive.softmax(LOGITS)[1])) < 1e-40


@pytest.mark.thorough
@pytest.mark.slow
def test_gauss_rule_for_the_binomial_law():
    with mp.workdps(60):
        for m in (40, 10**9):
            rule = naive._binomial_nodes(m, mp.mpf(9) / 10, gauss=True)
            assert len(rule) <= 40
            mean = mp.fsum(k * x for k, x in rule)
            square = mp.fsum(k**2 * x for k, x in rule)
            assert abs(mean / m - mp.mpf(9) / 10) < 1e-40
            assert abs((square - mean**2) / m - mp.mpf(9) / 100) < 1e-30


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("m", "share"), [(45, 0.3), (45, 0.999), (60, 1e-6)])
def test_integral_of_reject_sums_over_every_number_kept(m, share):
    logits, q = [0.5, 2.5, -1.0], [1.0 - share, share / 4, 3 * share / 4]
    expected, loss, _ = naive.enumerate_scheme(logits, 0, q, m, "reject")
    integral, _, loss_bias = naive.laplace_mpmath(logits, 0, q, m, "reject", dps=20)
    with mp.workdps(50):
        assert max(abs(x) for x in integral - expected) < 1e-20
        assert abs(loss_bias - mp.log(naive.softmax(logits)[0]) - loss) < 1e-20


@pytest.mark.thorough
@pytest.mark.slow
def test_gauss_rule_and_plain_sum_over_the_draws_kept_agree(monkeypatch):
    args = ([0.5, 2.5, -1.0], 0, [0.3, 0.01, 0.69], 100, "reject")
    every = naive.laplace_mpmath(*args, dps=15)
    nodes = naive._binomial_nodes
    monkeypatch.setattr(naive, "_binomial_nodes", lambda m, p: nodes(m, p, gauss=True))
    rule = naive.laplace_mpmath(*args, dps=15)
    assert rule[1][1] != every[1][1]
    error, norm = naive.l1_error(rule[1], every[1])
    assert error < 1e-13 * norm
    assert abs(rule[2] / every[2] - 1) < 1e-13


@pytest.mark.parametrize("pi", [[0.4, 1.0, 0.3], [1.0, 0.9, 1.0]])
def test_integral_with_sure_classes(pi):
    logits = [0.5, 9.0, -1.0]
    expected, loss, _ = naive.enumerate_scheme(logits, 0, pi, 1, "poisson")
    integral, _, loss_bias = naive.laplace_mpmath(logits, 0, pi, 1, "poisson", dps=20)
    with mp.workdps(50):
        assert max(abs(x) for x in integral - expected) < 1e-20
        assert abs(loss_bias - mp.log(naive.softmax(logits)[0]) - loss) < 1e-20


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["negatives", "jackknife", "reject", "candidate_masked"])
def test_integral_at_a_billion_draws(scheme):
    # m * bias has a limit for `negatives` and `reject`; the jackknife removes it
    logits, q, m = [0.5, -0.5, 1.0], [0.2, 0.3, 0.5], 10**9
    _, bias, _ = naive.laplace_mpmath(logits, 0, q, m, scheme, dps=25)
    if scheme == "candidate_masked":
        assert max(abs(b) for b in bias) > 0.01
        return
    with mp.workdps(60):
        p = naive.softmax(logits)
        share = mp.mpf(q[1]) + mp.mpf(q[2])
        r = [p[j] * share / mp.mpf(q[j]) for j in (1, 2)]
        variance = mp.fsum(
            mp.mpf(q[j]) / share * (x - (1 - p[0])) ** 2 for j, x in zip((1, 2), r, strict=True)
        )
        draws = m * (1 - mp.mpf(q[0])) if scheme == "reject" else m
        limit = p[0] * variance / draws
    if scheme == "jackknife":
        assert abs(bias[0]) < 1e-8 * limit
    else:
        assert float(bias[0] / limit) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "spread", "least"),
    [("negatives", 300.0, 1e-130), ("candidate", 700.0, 1e-300), ("jackknife", 70.0, 1e-30)],
)
def test_integral_at_extreme_logits_and_proposals(scheme, spread, least):
    # the first two are hundreds of orders below the label's probability
    logits, q = [spread, -spread, 0.0], [0.5, least, 0.5]
    bias = naive.laplace_mpmath(logits, 2, q, 3, scheme, dps=15)[1]
    expected = naive.enumerate_scheme(logits, 2, q, 3, scheme, dps=1000)[0]
    with mp.workdps(1000):
        exact = expected - np.array(naive.softmax(logits), dtype=object)
        assert sum(abs(bias - exact)) < 1e-13 * sum(abs(exact))


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("scheme", [name for name in naive.SCHEMES if "2" not in name])
def test_frozen_digits_are_computed_anew(scheme):
    """One record of each scheme, for time; `python -m oracles.frozen` computes them all."""
    entries = [e for e in frozen.records().values() if e["scheme"] == scheme and e["m"] == 2]
    entries = [e for e in entries if e["logits"] == [0.5, -0.5, 1.0]]
    assert entries
    for entry in entries:
        new = frozen.compute(entry)
        kept, again = ([*e["bias"], e["loss_bias"]] for e in (entry, new))
        with mp.workdps(entry["dps"] + frozen.MORE):
            kept, again = ([mp.mpf(x) for x in values] for values in (kept, again))
            norm = mp.fsum(abs(x) for x in kept)
            off = mp.fsum(abs(x - y) for x, y in zip(kept, again, strict=True))
            assert off < mp.mpf(10) ** (1 - entry["dps"]) * norm


@pytest.mark.slow
def test_integral_finds_a_bias_of_zero():
    bias = naive.laplace_mpmath([1.0, 0.0, 0.0], 0, [0.2, 0.4, 0.4], 5, "negatives", dps=15)[1]
    assert all(abs(x) < mp.mpf("1e-400") for x in bias)


def test_gradient_moments_by_hand():
    # one draw of two equally likely negatives: p' takes two values, so the moments are a sum
    logits, q, c = np.array([0.0, 1.0, -1.0]), [0.2, 0.4, 0.4], np.eye(3)
    e = np.exp(logits)
    outcomes = []
    for j in (1, 2):
        p = np.zeros(3)
        p[0], p[j] = e[0], 2 * e[j]
        outcomes.append(p / p.sum())
    mean = np.mean(outcomes, axis=0)
    squared_bias = 4 * ((mean - e / e.sum()) ** 2).sum()
    variance = 4 * np.mean([((p - mean) ** 2).sum() for p in outcomes])
    got = naive.gradient_moments(logits, 0, q, 1, c, 2.0)
    assert got == pytest.approx((squared_bias, variance, squared_bias + variance), rel=1e-13)


def test_numpy_monte_carlo_agrees_with_enumeration():
    exact, _, _ = naive.enumerate_scheme(LOGITS, 2, Q, 3, "negatives")
    p = np.array(naive.softmax(LOGITS), dtype=object)
    rng = np.random.default_rng(1)
    bias, stderr = naive.multinomial_numpy_monte_carlo(LOGITS, 2, Q, 3, 50_000, rng, stderr=True)
    z = (bias - (exact - p).astype(float)) / stderr
    assert np.abs(z).max() < 4.0
    rng = np.random.default_rng(1)
    again, _ = naive.multinomial_numpy_monte_carlo(LOGITS, 2, Q, 3, 50_000, rng)
    np.testing.assert_allclose(again, bias, atol=1e-14)
