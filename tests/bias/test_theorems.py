"""Theorems 1 and 2 as printed: what they say, and where they fail. None is assumed to hold."""

import math

import numpy as np
import pytest

from samplesoft.bias.asymptotic import asymptotic_bias
from samplesoft.bias.bounds import finite_sample_bounds
from samplesoft.bias.exact import exact_bias
from samplesoft.bias.theorems import theorem1_bounds, theorem1_terms, theorem2_ratio

UPPER_FAILS = (np.zeros(3), 0, np.array([0.0, 0.999, 0.001]), np.array([[1.0], [1.0], [0.0]]))
LOWER_FAILS = (
    np.array([math.log(8.0), 0.0, 0.0]),
    0,
    np.array([0.0, 0.9, 0.1]),
    np.array([[-1.0], [-1.0], [1.0]]),
)


def binomial_bias(logits, q, m):
    """Return E[p'] - p for the label 0 and two negatives, over all m + 1 outcomes."""
    e, k = np.exp(logits), np.arange(m + 1)
    qn = q[1:] / q[1:].sum()
    chance = np.array([math.lgamma(m + 1) - math.lgamma(i + 1) - math.lgamma(m - i + 1) for i in k])
    chance = np.exp(chance + k * math.log(qn[0]) + (m - k) * math.log(qn[1]))
    mass = np.array([np.full(m + 1, e[0]), k * e[1] / (m * qn[0]), (m - k) * e[2] / (m * qn[1])])
    return (mass / mass.sum(axis=0)) @ chance - e / e.sum()


def printed(logits, label, q, jacobian, bound):
    """Return (LB, UB) times m, term by term as eqs. 10 and 11 are printed."""
    keep = [j for j in range(len(q)) if j != label]
    e = np.exp(logits)
    qn = q / q[keep].sum()
    z, z_t = e.sum(), e[keep].sum()
    second = sum(e[j] ** 2 / qn[j] for j in keep)
    gap = max(abs(e[i] / qn[i] - e[j] / qn[j]) for i in keep for j in keep)
    g = sum(e[j] * jacobian[j] for j in keep)
    lower = -bound * sum(e[k] * abs(z_t - e[k] / qn[k]) for k in keep) / z**2
    upper = (second - z_t**2) / z**3 * g + 2.0 * bound * gap * z_t / (z**2 + second)
    return np.full(g.shape, lower), upper, (second / z**2, gap / z)


def unit_vectors(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class TestTheorem1:
    def test_is_what_is_printed(self):
        rng = np.random.default_rng(1)
        for n in (2, 3, 7, 30):
            logits, q = rng.normal(size=n) * 2.0, rng.dirichlet(np.ones(n))
            jacobian, label = rng.normal(size=(n, 4)), int(rng.integers(n))
            result = theorem1_bounds(logits, label, q, 7, jacobian)
            ends = result.lower, result.upper
            for m, (low, high) in (
                (result.grad_bound, ends),
                (9.0, result.terms.bounds(result.g, 9.0, 7)),
            ):
                lower, upper, (second, gap) = printed(logits, label, q, jacobian, m)
                np.testing.assert_allclose(7 * low, lower, rtol=1e-9, atol=1e-14)
                np.testing.assert_allclose(7 * high, upper, rtol=1e-9, atol=1e-14)
            np.testing.assert_allclose(result.terms.second_moment, second, rtol=1e-12)
            np.testing.assert_allclose(result.terms.max_gap, gap, rtol=1e-9)
            assert result.terms.deviation[label] == 0.0
            largest = max(result.terms.deviation)
            assert result.sign_condition is bool((result.g >= 0.0).all())
            assert n == 2 or largest > 0.0

    def test_counterexample_to_the_upper_bound(self):
        logits, label, q, jacobian = UPPER_FAILS
        result = theorem1_bounds(logits, label, q, 1000, jacobian)
        assert result.grad_bound == 1.0
        assert result.sign_condition is True
        assert round(1000 * result.upper[0], 2) == 40.88
        assert round((asymptotic_bias(logits, label, q) @ jacobian)[0], 2) == 73.96
        exact = binomial_bias(logits, q, 1000)
        assert round(1000 * (exact @ jacobian)[0], 2) == 69.00
        assert (exact @ jacobian)[0] > result.upper[0]  # so a check by it as a true bound fails
        lower, upper = finite_sample_bounds(logits, label, q, 1000).gradient(jacobian)
        assert lower[0] <= (exact @ jacobian)[0] <= upper[0]

    @pytest.mark.parametrize(
        ("label", "rare", "short"),
        [(1, 1e-3, 1.8), (10, 1e-6, 10.9), (100, 1e-9, 100.6), (10_000, 1e-13, 7142.4)],
    )
    def test_the_upper_bound_is_short_without_limit(self, label, rare, short):
        """Theory has these numbers. The bound is as printed, the limit by its closed form."""
        logits, q = np.array([math.log(label), 0.0, 0.0]), np.array([0.0, 1.0 - rare, rare])
        jacobian = UPPER_FAILS[3]
        upper = theorem1_bounds(logits, 0, q, 10, jacobian).upper[0]
        limit = (asymptotic_bias(logits, 0, q) @ jacobian)[0]
        assert round(limit / (10 * upper), 1) == short
        z = label + 2
        variance, second = (1 / q[1] + 1 / rare - 4) / z**2, (1 / q[1] + 1 / rare) / z**2
        by_hand = variance * (label + 1) / z - (1 / q[1] - 2) / z**2
        bound = variance / z + 4 / z * (1 / rare - 1 / q[1]) / z / (1 + second)
        assert round(by_hand / bound, 1) == short

    def test_counterexample_to_the_lower_bound(self):
        logits, label, q, jacobian = LOWER_FAILS
        result = theorem1_bounds(logits, label, q, 10, jacobian)
        assert round(10 * result.lower[0], 4) == -0.0889
        assert round((asymptotic_bias(logits, label, q) @ jacobian)[0], 4) == -0.1458
        exact = binomial_bias(logits, q, 10)
        assert round(10 * (exact @ jacobian)[0], 4) == -0.1385
        assert (exact @ jacobian)[0] < result.lower[0]
        lower, upper = finite_sample_bounds(logits, label, q, 10).gradient(jacobian)
        assert lower[0] <= (exact @ jacobian)[0] <= upper[0]

    def test_counterexample_at_the_label_without_an_identity_matrix(self):
        logits = np.zeros(1001)
        logits[:2] = math.log(1000.0)
        q = np.full(1001, 1.0 / 1001.0)
        terms = theorem1_terms(logits, 0, q)
        lower, upper = terms.bounds(terms.negative_probs, 1.0, 1)
        assert round(upper[0], 3) == 3.954
        limits = asymptotic_bias(logits, 0, q)
        assert round(limits[0], 2) == 36.96
        assert (limits > upper).tolist() == [True] + 1000 * [False]
        full = theorem1_bounds(logits, 0, q, 1, np.eye(1001))
        np.testing.assert_allclose(full.upper, upper, rtol=1e-12)
        np.testing.assert_allclose(full.lower, lower, rtol=1e-12)

    @pytest.mark.parametrize(("n", "d", "lower_breaks"), [(100, 64, False), (10, 8, True)])
    def test_random_embeddings_break_the_bounds_in_the_limit(self, n, d, lower_breaks):
        rng = np.random.default_rng(0)
        above = below = signs = 0
        for trial in range(300):
            tau = (5.0, 11.1, 20.0, 30.0)[trial % 4]
            classes, h = unit_vectors(rng, n, d), unit_vectors(rng, d)
            logits, q, label = tau * classes @ h, np.full(n, 1.0 / n), int(rng.integers(n))
            limits = asymptotic_bias(logits, label, q) @ (tau * classes)
            result = theorem1_bounds(logits, label, q, 1, tau * classes)
            broken = bool((limits > result.upper).any())
            above += broken
            below += bool((limits < result.lower).any())
            signs += broken and result.sign_condition
        assert 90 < above < 180
        assert (below > 0) is lower_breaks
        assert signs == 0  # here UB fails through the sign of g alone

    def test_coordinates_outside_are_told_with_the_sign_of_their_g(self):
        rng = np.random.default_rng(1)
        vectors, q = rng.normal(size=(100, 20)), np.full(100, 0.01)
        logits = 2.5 * vectors[:, 0]
        bias = exact_bias(np.stack([logits, -logits]), [0, 3], q, 100).bias @ vectors
        printed = theorem1_bounds(np.stack([logits, -logits]), [0, 3], q, 100, vectors)
        outside = printed.outside(bias)
        beyond = (bias < printed.lower) | (bias > printed.upper)
        np.testing.assert_array_equal(outside, beyond)
        assert outside.sum(axis=1).tolist() == [6, 0]
        assert not (outside & printed.sign_holds).any()
        assert (printed.sign_holds == (printed.g >= 0.0)).all()
        assert (printed.sign_holds.all(axis=-1) == printed.sign_condition).all()
        assert not printed.outside(bias, slack=np.full((2, 1), 100.0)).any()
        wide = printed.upper > printed.lower  # where g < 0 the upper one may be below the lower
        for room, within in ((1e-12, True), (1e-6, False)):
            for ends in (printed.upper, printed.lower):
                off = np.where(ends == printed.upper, 1.0, -1.0) * room * np.abs(ends)
                assert (printed.outside(ends + off)[wide] == (not within)).all()

    def test_a_proposal_that_is_the_softmax_has_no_bounds_to_speak_of(self):
        logits, jacobian = np.array([0.0, 1.0, -1.0, 2.0]), np.eye(4)
        result = theorem1_bounds(logits, 1, np.exp(logits) / np.exp(logits).sum(), 3, jacobian)
        np.testing.assert_allclose([result.lower, result.upper], 0.0, atol=1e-14)

    def test_batches_equal_their_rows(self):
        rng = np.random.default_rng(4)
        logits, labels, q = rng.normal(size=(3, 5)), [1, 4, 0], rng.dirichlet(np.ones(5), size=3)
        jacobian = rng.normal(size=(3, 5, 2))
        for own in (True, False):
            batch = theorem1_bounds(logits, labels, q, 9, jacobian if own else jacobian[0])
            for i, label in enumerate(labels):
                row = theorem1_bounds(logits[i], label, q[i], 9, jacobian[i if own else 0])
                for name in ("lower", "upper", "g"):
                    np.testing.assert_allclose(
                        getattr(batch, name)[i], getattr(row, name), rtol=1e-13
                    )
                for several, one in zip(batch.terms, row.terms, strict=True):
                    np.testing.assert_allclose(several[i], one, rtol=1e-13)
                assert batch.grad_bound[i] == row.grad_bound
                assert batch.sign_condition[i] == row.sign_condition

    @pytest.mark.parametrize("shift", [-1e4, 700.0])
    def test_quantities_do_not_see_a_shift(self, shift):
        logits, label, q, jacobian = LOWER_FAILS
        one, two = (theorem1_bounds(logits + s, label, q, 5, jacobian) for s in (0.0, shift))
        for name in ("lower", "upper", "g"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-10)
        for first, second in zip(one.terms, two.terms, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-10)

    @pytest.mark.parametrize("spread", [700.0, 1e4])
    def test_extremes_are_never_nan(self, spread):
        logits = spread * np.array([1.0, -1.0, 0.0, 0.5])
        for label in range(4):
            for q in ([1e-300, 0.5, 0.5, 1e-300], [5e-324, 1e-310, 1.0, 1e-300]):
                result = theorem1_bounds(logits, label, q, 2, np.eye(4))
                assert not np.isnan([result.lower, result.upper]).any()
                assert (result.lower <= 0.0).all()

    def test_bad_input_is_named(self):
        logits, label, q, jacobian = LOWER_FAILS
        with pytest.raises(ValueError, match=r"`jacobian` of shape \(2, 1\) does not match"):
            theorem1_bounds(logits, label, q, 5, jacobian[:2])
        with pytest.raises(ValueError, match="`jacobian` must be finite"):
            theorem1_bounds(logits, label, q, 5, jacobian * np.inf)
        with pytest.raises(ValueError, match="`num_sampled` must be at least 1"):
            theorem1_bounds(logits, label, q, 0, jacobian)
        with pytest.raises(ValueError, match="got 0 at class 1"):
            theorem1_bounds(logits, label, [0.5, 0.0, 0.5], 5, jacobian)


class TestTheorem2:
    @pytest.mark.parametrize(("tau", "expected"), [(11.1, 0.438), (20.0, 0.056)])
    def test_the_missing_normaliser(self, tau, expected):
        rng, found = np.random.default_rng(0), []
        for _ in range(40):
            cosine = unit_vectors(rng, 2000, 64) @ unit_vectors(rng, 64)
            found.append(theorem2_ratio(cosine, 0, np.exp(4.0 * cosine), tau=tau, nu=4.0))
        values = [result.normalizer for result in found]
        # One draw of the vectors differs from the next by the standard deviation.
        assert abs(np.mean(values) - expected) < np.std(values)
        for result in found:
            np.testing.assert_allclose(result.ratio, result.corrected_center, rtol=1e-12)
            assert result.corrected_gamma < 1e-12
            assert result.printed_gamma > 0.25

    def test_eq_20_holds_at_its_gamma_and_not_below(self):
        rng = np.random.default_rng(2)
        cosine = rng.uniform(-1.0, 1.0, size=12)
        estimates = np.exp(3.0 * cosine) * rng.uniform(0.5, 1.5, size=12)
        estimates[4] *= -0.8
        result = theorem2_ratio(cosine, 7, estimates, tau=5.0, nu=3.0)
        assert result.num_negative == 1
        assert result.classes.tolist() == [i for i in range(12) if i != 7]
        keep = result.classes
        q = estimates[keep] / estimates[keep].sum()
        e = np.exp(5.0 * cosine[keep])
        np.testing.assert_allclose(result.ratio, np.abs(e / q) / e.sum(), rtol=1e-12)
        for center, gamma in (
            (result.printed_center, result.printed_gamma),
            (result.corrected_center, result.corrected_gamma),
        ):
            x = result.ratio / center
            for scale, holds in ((1.0 + 1e-9, True), (1.0 - 1e-9, False)):
                low, high = 1.0 - 2.0 * scale * gamma, 1.0 + 4.0 * scale * gamma
                assert bool(((low <= x) & (x <= high)).all()) is holds

    def test_scale_of_the_features_does_not_matter(self):
        cosine = np.array([0.5, 0.2, -0.4, 0.9])
        results = [
            theorem2_ratio(cosine, 1, scale * np.exp(cosine), tau=700.0, nu=1.0).ratio
            for scale in (1.0, 1e-300, 1e300)
        ]
        np.testing.assert_allclose(results[1], results[0], rtol=1e-12)
        np.testing.assert_allclose(results[2], results[0], rtol=1e-12)

    def test_a_zero_estimate_needs_an_infinite_gamma(self):
        result = theorem2_ratio([0.1, 0.2, 0.3], 0, [1.0, 0.0, 1.0], tau=2.0, nu=2.0)
        assert result.ratio[0] == np.inf
        assert result.printed_gamma == result.corrected_gamma == np.inf

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"estimates": [1.0, 0.0, 0.0]}, "positive sum, got one of 0"),
            ({"estimates": [1.0, -1.0, -2.0]}, "positive sum, got one below 0"),
            ({"estimates": [1.0, 1.0]}, "`estimates` of shape"),
            ({"estimates": [1.0, math.inf, 1.0]}, "`estimates` must be finite"),
            ({"cosine": [0.1, 0.2, 1.5]}, r"`cosine` must lie in \[-1, 1\]"),
            ({"labels": 3}, "`labels` must lie in"),
            ({"tau": 0.0}, "`tau` must be finite and greater than 0"),
            ({"nu": -1.0}, "`nu` must be finite and greater than 0"),
            ({"cosine": [0.1], "estimates": [1.0]}, "at least 2 classes"),
        ],
    )
    def test_bad_input_is_named(self, change, message):
        given = {"cosine": [0.1, 0.2, 0.3], "labels": 0, "estimates": [1.0, 2.0, 3.0]}
        with pytest.raises(ValueError, match=message):
            theorem2_ratio(**({"tau": 2.0, "nu": 1.0} | given | change))
