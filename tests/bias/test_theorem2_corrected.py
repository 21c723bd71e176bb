"""The corrected Theorem 2 and its corollary, against simulations over the frequencies."""

import math

import numpy as np
import pytest
from mpmath import mp

from samplesoft import exact_bias
from samplesoft.bias.theorems import theorem2_corrected, theorem2_ratio
from samplesoft.feature_maps import RandomFourierFeatures

TRIALS = 1000


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def problem(seed, n, d):
    """Return unit class vectors (n, d) and h (d,)."""
    rng = np.random.default_rng(seed)
    return unit(rng.normal(size=(n, d))), unit(rng.normal(size=d))


def simulate(classes, h, nu, num_features, trials=TRIALS, seed=0):
    """Return estimates (trials, n) of the kernel, each row with frequencies of its own."""
    w = np.random.default_rng(seed).normal(size=(trials, num_features, len(h)))
    return np.array([np.cos(math.sqrt(nu) * x @ (classes - h).T).mean(axis=0) for x in w])


def ratios(cosine, estimates, tau):
    """Return (e^o / q) / Z_t of the negatives, the label being class 0."""
    q = estimates[:, 1:] / estimates[:, 1:].sum(axis=1, keepdims=True)
    e = np.exp(tau * cosine[1:])
    return e / q / e.sum()


CASES = [(10, 4, 1.0, 1.0, 900, 0.25), (10, 4, 0.5, 3.0, 100, 0.3), (6, 3, 2.0, 2.0, 600, 0.5)]


class TestRatio:
    @pytest.mark.parametrize(("n", "d", "nu", "tau", "num_features", "gamma"), CASES)
    def test_holds_as_often_as_it_says(self, n, d, nu, tau, num_features, gamma):
        classes, h = problem(n, n, d)
        holds, bolder = (
            theorem2_corrected(classes @ h, 0, tau=tau, nu=nu, num_features=k, gamma=gamma)
            for k in (num_features, 5 * num_features)
        )
        estimates = simulate(classes, h, nu, num_features)
        kernel = np.exp(nu * (classes @ h - 1.0))
        near = (np.abs(estimates - kernel) <= gamma * kernel)[:, 1:].all(axis=1)
        assert 0.05 < holds.failure < 0.95
        error = 4.0 * math.sqrt(holds.failure / TRIALS)
        assert np.mean(~near) <= holds.failure + error
        # as if there were five times as many: the wrong twin
        assert np.mean(~near) > bolder.failure + 4.0 * math.sqrt(bolder.failure / TRIALS)
        found = ratios(classes @ h, estimates[near], tau)
        assert (found >= holds.lower).all() and (found <= holds.upper).all()
        assert found.max(axis=0).max() > 0.0

    def test_library_features_are_within(self):
        classes, h = problem(1, 8, 5)
        holds = theorem2_corrected(classes @ h, 0, tau=2.0, nu=1.0, num_features=40_000, gamma=0.1)
        assert holds.failure < 1e-5
        for seed in range(3):
            phi = RandomFourierFeatures(5, 40_000, 1.0, rng=seed)
            estimates = phi.transform(classes) @ phi.transform(h[None])[0]
            found = theorem2_ratio(classes @ h, 0, estimates, tau=2.0, nu=1.0)
            assert found.classes.tolist() == holds.classes.tolist()
            assert (found.ratio >= holds.lower).all() and (found.ratio <= holds.upper).all()

    def test_the_printed_center_fails_always_where_the_corrected_one_never_does(self):
        """Three negatives, tau = 8, nu = 2, gamma = 0.3: for ever more features."""
        cosine = np.array([0.9, 0.5, 0.0, -0.5])
        classes = np.stack([cosine, np.sqrt(1.0 - cosine**2)], axis=1)
        for num_features in (24_000, 48_000):
            holds = theorem2_corrected(
                cosine, 0, tau=8.0, nu=2.0, num_features=num_features, gamma=0.3
            )
            estimates = simulate(classes, np.array([1.0, 0.0]), 2.0, num_features, trials=40)
            found = [theorem2_ratio(cosine, 0, x, tau=8.0, nu=2.0) for x in estimates]
            assert min(one.printed_gamma for one in found) > 0.3
            assert all((one.ratio <= holds.upper).all() for one in found)
            assert all((one.ratio >= holds.lower).all() for one in found)
            assert holds.failure < 0.02

    def test_printed_constants_are_farther_out_up_to_one_half(self):
        def factor(gamma):
            holds = theorem2_corrected([0.3, 0.3, 0.3], 0, tau=1, nu=1, num_features=9, gamma=gamma)
            return holds.lower[0], holds.upper[0]

        for gamma in (0.01, 0.2, 0.499):
            low, high = factor(gamma)
            assert 1.0 - 2.0 * gamma <= low <= high <= 1.0 + 4.0 * gamma
        low, high = factor(0.6)
        assert high == pytest.approx(4.0) and high > 1.0 + 4.0 * 0.6
        # nine tenths of the estimates too large, one too small: almost that far
        cosine, estimates = np.full(101, 0.3), np.full(101, 1.6)
        estimates[1] = 0.4
        ratio = theorem2_ratio(cosine, 0, estimates, tau=1.0, nu=1.0).ratio
        assert 1.0 + 4.0 * 0.6 < ratio.max() < high

    def test_failure_is_the_sum_of_bernsteins_bounds_and_below_the_closed_form(self):
        rng = np.random.default_rng(2)
        for _ in range(200):
            n, nu = int(rng.integers(2, 20)), 10.0 ** rng.uniform(-2.0, 0.7)
            cosine, gamma = rng.uniform(-1.0, 1.0, size=n), rng.uniform(0.01, 0.99)
            num = int(10 ** rng.uniform(1.0, 7.0))
            holds = theorem2_corrected(cosine, 0, tau=2.0, nu=nu, num_features=num, gamma=gamma)
            with mp.workdps(30):
                total = mp.mpf(0)
                for x in cosine[1:]:
                    k = mp.exp(-mp.mpf(nu) * (1 - mp.mpf(float(x))))
                    variance, size, epsilon = (1 - k**2) ** 2 / 2, 1 + k, mp.mpf(gamma) * k
                    total += 2 * mp.exp(-num * epsilon**2 / (2 * variance + 2 * size * epsilon / 3))
                closed = 2 * n * mp.exp(-0.75 * num * gamma**2 * mp.exp(-4 * mp.mpf(nu)))
            assert holds.failure == pytest.approx(float(min(total, 1)), rel=1e-9, abs=1e-300)
            assert total <= closed


class TestCorollary:
    @pytest.mark.parametrize(("nu", "tau"), [(1.0, 1.0), (1.0, 1.5), (0.5, 3.0)])
    def test_bounds_the_bias_wherever_the_estimates_are_near(self, nu, tau):
        classes, h = problem(4, 12, 4)
        cosine, gamma = classes @ h, 0.4
        holds = theorem2_corrected(cosine, 0, tau=tau, nu=nu, num_features=400, gamma=gamma)
        estimates = simulate(classes, h, nu, 400, trials=60)
        kernel = np.exp(nu * (cosine - 1.0))
        near = (np.abs(estimates - kernel) <= gamma * kernel)[:, 1:].all(axis=1)
        assert near.sum() > 30
        for one in estimates[near]:
            q = np.append(0.0, one[1:] / one[1:].sum())
            for m in (1, 10, 1000):
                norm = np.abs(exact_bias(tau * cosine, 0, q, m).bias).sum()
                assert m * norm <= holds.bias

    def test_no_smaller_constant_will_do(self):
        """Half of the estimates too large, half too small, and nearly all mass on the label."""
        gamma, n = 0.4, 100
        cosine = np.append(1.0, np.full(n, -1.0))
        holds = theorem2_corrected(cosine, 0, tau=8.0, nu=8.0, num_features=9, gamma=gamma)
        q = np.append(0.0, np.repeat([1.0 + gamma, 1.0 - gamma], n // 2)) / n
        m = 10**9
        norm = np.abs(exact_bias(8.0 * cosine, 0, q, m).bias).sum()
        assert m * norm / holds.bias == pytest.approx(1.0, rel=1e-4)
        p = np.exp(8.0 * cosine) / np.exp(8.0 * cosine).sum()
        assert holds.bias == pytest.approx((1.0 - p[0]) ** 2 * gamma / (1.0 - gamma))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cosine": [0.1, 0.2, 1.5]}, r"`cosine` must lie in \[-1, 1\]"),
        ({"cosine": [0.1]}, "at least 2 classes"),
        ({"labels": 3}, "`labels` must lie in"),
        ({"tau": 0.0}, "`tau` must be finite and greater than 0"),
        ({"nu": -1.0}, "`nu` must be finite and greater than 0"),
        ({"num_features": 0}, "`num_features` must be at least 1"),
        ({"gamma": 1.0}, "`gamma` must be less than 1, got 1"),
        ({"gamma": 0.0}, "`gamma` must be finite and greater than 0"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"cosine": [0.1, 0.2, 0.3], "labels": 0, "tau": 2.0, "nu": 1.0}
    with pytest.raises(ValueError, match=message):
        theorem2_corrected(**(given | {"num_features": 10, "gamma": 0.1} | change))


def test_extremes_are_never_nan():
    for tau, nu in ((1e-300, 700.0), (700.0, 1e-300), (1e308, 1e308), (1e5, 1e5)):
        holds = theorem2_corrected(
            [1.0, -1.0, 0.5], 1, tau=tau, nu=nu, num_features=10**9, gamma=0.5
        )
        assert not np.isnan([*holds.lower, *holds.upper, holds.failure, holds.bias]).any()
