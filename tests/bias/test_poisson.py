"""Exact inclusion probabilities against enumeration, recursion and quadrature."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf
from oracles import naive_samplers as naive

from samplesoft.samplers import without_replacement
from samplesoft.samplers.static import UniformSampler, WeightedSampler

RNG = np.random.default_rng(20)
WEIGHTS = {
    "equal": [1.0] * 6,
    "mild": [3.0, 2.0, 1.0, 1.0, 0.5],
    "zipf": [1.0 / k for k in range(1, 8)],
    "one heavy": [1.0, 1e-12, 2e-12, 3e-12, 1e-12],
    "two heavy": [1.0, 0.7, 1e-12, 2e-12, 3e-12, 1e-12],
    "steps": [10.0 ** (-3 * k) for k in range(7)],
    "with zeros": [0.0, 2.0, 0.0, 1.0, 5.0, 1.0],
    "extreme": [1e300, 1e299, 1e200, 3e200, 1e100, 1.0, 2.0],
    "two": [1.0, 4.0],
    "random": RNG.lognormal(0.0, 3.0, 8).tolist(),
}


def sampler_of(weights):
    return WeightedSampler(weights, replace=False)


def worst_error(got, want):
    """Largest relative error; a wanted 0 must be got exactly."""
    assert all((x == 0.0) == (y == 0) for x, y in zip(got, want, strict=True))
    return max(abs(mpf(float(x)) / y - 1) for x, y in zip(got, want, strict=True) if y)


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_size_and_exclusion_against_the_sets(name):
    weights = WEIGHTS[name]
    sampler = sampler_of(weights)
    positive = [j for j, w in enumerate(weights) if w > 0.0]
    for m in range(1, len(positive) + 1):
        got = sampler.inclusion_probs(m)
        assert worst_error(got, naive.inclusion_by_sets(weights, m)) < 1e-11
        assert got.sum() == pytest.approx(m, rel=1e-11)
        for excluded in range(len(weights)):
            if m <= len(positive) - (excluded in positive):
                got = sampler.inclusion_probs(m, exclude=excluded)
                want = naive.inclusion_by_sets(weights, m, excluded)
                assert worst_error(got, want) < 1e-11, (m, excluded)


def test_the_oracle_by_sets_adds_up_the_sequences():
    weights = WEIGHTS["mild"]
    for m in (1, 2, 4):
        pi = [mpf(0)] * 5
        for taken, prob in naive.sequences(weights, m).items():
            for j in taken:
                pi[j] += prob
        assert worst_error(pi, naive.inclusion_by_sets(weights, m)) < 1e-12


@pytest.mark.parametrize("m", [1, 3, 17, 29])
@pytest.mark.parametrize("spread", [0.5, 3.0, 8.0])
def test_medium_n_against_the_poisson_binomial_law(m, spread):
    weights = np.random.default_rng(m).lognormal(0.0, spread, 30)
    got = sampler_of(weights).inclusion_probs(m)
    np.testing.assert_allclose(got, naive.inclusion_by_clocks(weights, m), rtol=1e-11)


@pytest.mark.parametrize("m", [2, 150, 700])
def test_crowded_panels_agree_with_class_by_class(m, monkeypatch):
    rng = np.random.default_rng(m)
    weights = np.concatenate([rng.lognormal(0.0, 1.0, 800), 1e3 * rng.random(5), [1e6]])
    labels = [0, 17, 800, 805]
    short = sampler_of(weights)
    got = [short.inclusion_probs(m), *short.inclusion_probs(m, exclude=labels)]
    monkeypatch.setattr(without_replacement, "_MIN_CROWDED_CLASSES", 10**9)
    full = sampler_of(weights)
    want = [full.inclusion_probs(m), *full.inclusion_probs(m, exclude=labels)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def crowds_error(crowds, few, left, width, monkeypatch):
    """Worst relative error that panels of `width` make with 40 classes at each of `crowds`."""
    weights = np.exp(np.concatenate([[0.0], np.repeat(crowds, 40), few]))
    m = len(weights) - left
    with monkeypatch.context() as patch:
        patch.setattr(without_replacement, "_PANEL_WIDTH", width)
        got = sampler_of(weights).inclusion_probs(m)
        patch.setattr(without_replacement, "_MIN_CROWDED_CLASSES", 10**9)
        want = sampler_of(weights).inclusion_probs(m)
    return np.abs(got / want - 1.0).max()


@pytest.mark.parametrize(
    ("crowds", "few", "left"),
    [
        ([-1.6], [-6.9, -9.0, -12.0, -16.3], 4),
        ([-1.6, -2.001], [-6.9, -9.9], 2),
        ([-0.02, -6.0005], [-5.2, -12.0], 1),
        ([-5.02], [-12.0, -15.0], 2),
        ([-5.001], [-3.8, -9.0, -15.7], 3),
        ([-4.3, -10.84], [-14.5, -15.0], 1),
    ],
)
def test_small_crowds_in_panels(crowds, few, left, monkeypatch):
    """Crowds of about the least size, and only a few classes left over: the hardest for panels."""
    assert crowds_error(crowds, few, left, without_replacement._PANEL_WIDTH, monkeypatch) < 1e-11


def test_wider_panels_would_not_do(monkeypatch):
    assert crowds_error([-1.6], [-6.9, -9.9], 2, 0.5, monkeypatch) > 1e-8


@pytest.mark.parametrize(("n", "m"), [(1000, 1), (1000, 999), (30_000, 100), (200_000, 20_000)])
def test_large_n_sums_to_m(n, m):
    sampler = sampler_of(1.0 / np.arange(1.0, n + 1.0))
    pi = sampler.inclusion_probs(m)
    assert pi.sum() == pytest.approx(m, rel=1e-13)
    assert (np.diff(pi) <= 1e-14).all() and pi.max() <= 1.0
    without = sampler.inclusion_probs(m, exclude=[0, n // 2])
    np.testing.assert_allclose(without.sum(axis=1), m, rtol=1e-13)
    assert (without[0, 1:] >= pi[1:] * (1.0 - 1e-14)).all() and without[0, 0] == 0.0


def test_equal_weights_and_the_uniform_sampler():
    for n, m in [(1, 1), (2, 1), (50, 7), (50, 49), (50, 50), (1000, 300)]:
        np.testing.assert_allclose(sampler_of(np.ones(n)).inclusion_probs(m), m / n, rtol=1e-13)
        uniform = UniformSampler(n, replace=False)
        assert (uniform.inclusion_probs(m) == m / n).all()
        if m < n:
            one = uniform.inclusion_probs(m, exclude=[0, n - 1])
            assert (one[0, 1:] == m / (n - 1)).all() and one[0, 0] == one[1, n - 1] == 0.0


def test_one_draw_is_q_and_all_draws_are_certain():
    weights = np.random.default_rng(3).lognormal(0.0, 4.0, 300)
    sampler = sampler_of(weights)
    np.testing.assert_allclose(sampler.inclusion_probs(1), sampler.probs(None)[0], rtol=1e-13)
    assert (sampler.inclusion_probs(300) == 1.0).all()
    assert (np.delete(sampler.inclusion_probs(299, exclude=8), 8) == 1.0).all()


def test_close_to_certain():
    weights = [1.0, 1e-3, 1e-4, 1e-5]
    got = sampler_of(weights).inclusion_probs(3)
    want = naive.inclusion_by_sets(weights, 3)
    assert max(abs(mpf(float(x)) - y) for x, y in zip(got, want, strict=True)) < 3e-15


def test_the_approximation_of_tensorflow_is_another_thing():
    weights = WEIGHTS["mild"]
    q = np.array(weights) / sum(weights)
    pi = sampler_of(weights).inclusion_probs(3)
    tries = np.linspace(3.0, 20.0, 1000)[:, None]
    nearest = np.abs(-np.expm1(tries * np.log1p(-q)) - pi).max(axis=1).min()
    assert nearest > 0.005


def test_draws_carry_their_inclusion_probabilities():
    weights = np.random.default_rng(5).lognormal(0.0, 2.0, 2000)
    sampler = sampler_of(weights)
    labels = np.array([3, 3, 900])
    draw = sampler.sample(np.zeros((3, 2)), 40, exclude=labels, rng=1)
    want = np.take_along_axis(sampler.inclusion_probs(40, exclude=labels), draw.ids, axis=1)
    np.testing.assert_allclose(np.exp(draw.log_inclusion), want, rtol=1e-13)
    free = sampler.sample(np.zeros((2, 2)), 40, rng=1)
    want = sampler.inclusion_probs(40)[free.ids]
    np.testing.assert_allclose(np.exp(free.log_inclusion), want, rtol=1e-15)


def test_with_replacement_it_is_the_chance_of_any_draw():
    sampler = WeightedSampler([3.0, 1.0, 0.0])
    np.testing.assert_allclose(sampler.inclusion_probs(2), [1 - 1 / 16, 1 - 9 / 16, 0], rtol=1e-14)
    assert sampler.inclusion_probs(5, exclude=0).tolist() == [0.0, 1.0, 0.0]
    rare = WeightedSampler([1.0, 1e-200]).inclusion_probs(3)
    assert rare[1] == pytest.approx(3e-200, rel=1e-13)


@given(st.data())
def test_properties(data):
    log_weights = data.draw(st.lists(st.floats(-40.0, 40.0), min_size=2, max_size=9))
    m = data.draw(st.integers(1, len(log_weights) - 1))
    excluded = data.draw(st.integers(0, len(log_weights) - 1))
    weights = np.exp(log_weights)
    sampler = sampler_of(weights)
    got = sampler.inclusion_probs(m, exclude=excluded)
    assert worst_error(got, naive.inclusion_by_sets(weights, m, excluded)) < 1e-11
    pi = sampler.inclusion_probs(m)
    assert pi.sum() == pytest.approx(m, rel=1e-11)
    order = np.argsort(weights)
    assert (np.diff(pi[order]) >= -1e-11 * pi[order][1:]).all()
    more = sampler.inclusion_probs(m + 1)
    assert (more >= pi * (1.0 - 1e-11)).all()
