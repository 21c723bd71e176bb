"""The limit of m * bias, and the bounds that hold for every m, against 50 digits and more."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplesoft.bias.asymptotic import asymptotic_bias
from samplesoft.bias.bounds import FiniteSampleBounds, finite_sample_bounds

CASES = settings(max_examples=60, deadline=None)


@st.composite
def instances(draw, max_classes=5, spread=5.0, smallest=-6.0):
    """Draw (logits, label, q)."""
    n = draw(st.integers(3, max_classes))
    logits = draw(st.lists(st.floats(-spread, spread), min_size=n, max_size=n))
    powers = np.array(draw(st.lists(st.floats(smallest, 0.0), min_size=n, max_size=n)))
    powers[draw(st.integers(0, n - 1))] = 0.0
    q = 10.0**powers
    return np.array(logits), draw(st.integers(0, n - 1)), q / q.sum()


extremes = instances(max_classes=4, spread=700.0, smallest=-300.0)
ROOM = mpmath.mpf(10) ** -45
DIGITS = 2500  # differences of e^-700 and e^700 squared, and more


def negatives(logits, label, q):
    """Return (a, e_j, conditioned q_j) of the negatives in mpmath."""
    keep = [j for j in range(len(q)) if j != label]
    mass = sum(mpmath.mpf(float(q[j])) for j in keep)
    weights = [mpmath.exp(mpmath.mpf(float(o))) for o in logits]
    return (
        weights[label],
        [weights[j] for j in keep],
        [mpmath.mpf(float(q[j])) / mass for j in keep],
    )


def enumerated_bias(logits, label, q, m, digits=50):
    """Return E[p'] - p by summing over every multinomial outcome."""
    with mpmath.workdps(digits):
        a, e, qn = negatives(logits, label, q)
        z, k = a + sum(e), len(e)
        at_label, others = -a / z, [-x / z for x in e]
        for cuts in itertools.combinations(range(m + k - 1), k - 1):
            counts = np.diff([-1, *cuts, m + k - 1]) - 1
            chance, mass = mpmath.factorial(m), []
            for count, x, p in zip(counts.tolist(), e, qn, strict=True):
                chance *= p**count / mpmath.factorial(count)
                mass.append(count * x / (m * p))
            total = a + sum(mass)
            at_label += chance * a / total
            others = [b + chance * w / total for b, w in zip(others, mass, strict=True)]
        return [*others[:label], at_label, *others[label:]]


def limit(logits, label, q, digits=50):
    """Return lim m * bias as the expansion of eq. 8 gives it."""
    with mpmath.workdps(digits):
        a, e, qn = negatives(logits, label, q)
        z_t = sum(e)
        z = a + z_t
        r = [x / p for x, p in zip(e, qn, strict=True)]
        v = sum(p * (x - z_t) ** 2 for p, x in zip(qn, r, strict=True))
        others = [x * (v / z**3 - (y - z_t) / z**2) for x, y in zip(e, r, strict=True)]
        return [*others[:label], a * v / z**3, *others[label:]]


def outside(bounds, exact):
    """Return how many values lie outside the bounds, with room for the oracle's rounding only."""
    lower, upper = (side.tolist() for side in bounds)
    return sum(
        not lo - ROOM <= b <= up + ROOM for lo, b, up in zip(lower, exact, upper, strict=True)
    )


def both(logits, label, q, m):
    bounds = finite_sample_bounds(logits, label, q, m)
    return bounds.lower, bounds.upper


def spelled_out(logits, label, q, m, *, condition=True):
    """Return the formulas in plain floats; a wrong twin if q is not conditioned."""
    e = np.exp(logits - np.max(logits))
    keep = np.arange(len(e)) != label
    a, e_j, qn = e[label], e[keep], q[keep] / (q[keep].sum() if condition else 1.0)
    r, z_t = e_j / qn, e_j.sum()
    z, v = a + z_t, np.sum(qn * (r - z_t) ** 2)
    mu = a + r / m + (m - 1) * z_t / m
    ends = []
    for end in (r.max(), r.min()):
        s = a + r / m + (m - 1) * end / m
        b = e_j * ((z_t - r) / (m * mu * z) + (m - 1) * v / (m * mu) ** 2 / s)
        ends.append(np.insert(b, label, a * v / (m * z**2 * (a + end))))
    return ends


class TestAsymptotic:
    @CASES
    @given(instances())
    def test_matches_fifty_digits(self, instance):
        expected = np.array(limit(*instance), dtype=float)
        error = np.abs(asymptotic_bias(*instance) - expected).sum()
        assert error <= 1e-10 * np.abs(expected).sum() + 1e-15

    @CASES
    @given(extremes)
    def test_matches_many_digits_at_the_extremes(self, instance):
        expected = limit(*instance, digits=DIGITS)
        computed = asymptotic_bias(*instance)
        size = sum(abs(x) for x in expected)
        error = sum(abs(x - y) for x, y in zip(computed, expected, strict=True))
        assert np.isfinite(computed).all()
        a, e, _ = negatives(*instance)
        ulps = 4e-15 * sum(e) / (a + sum(e))  # an ulp in every e_j and q_j moves the limit so far
        assert error <= 1e-10 * size + ulps + 1e-300

    @pytest.mark.parametrize("gap", [30.0, 300.0])
    def test_a_dominant_label_keeps_its_digits(self, gap):
        logits, q = np.array([gap, 0.0, 1.0, -1.0]), np.array([1.0 - 3e-9, 1e-9, 1e-9, 1e-9])
        expected = np.array(limit(logits, 0, q, digits=DIGITS), dtype=float)
        np.testing.assert_allclose(asymptotic_bias(logits, 0, q), expected, rtol=1e-12)

    def test_is_the_limit_of_the_exact_bias(self):
        logits, q, m = np.array([0.3, 1.0, -0.5]), np.array([0.2, 0.3, 0.5]), 400
        exact = np.array(enumerated_bias(logits, 1, q, m), dtype=float)
        np.testing.assert_allclose(m * exact, asymptotic_bias(logits, 1, q), rtol=0.02)

    @CASES
    @given(instances(), st.floats(-600.0, 600.0), st.randoms(use_true_random=False))
    def test_sums_to_zero_and_respects_symmetries(self, instance, shift, random):
        logits, label, q = instance
        limits = asymptotic_bias(logits, label, q)
        scale = np.abs(limits).max()
        assert limits[label] >= 0.0
        assert abs(limits.sum()) <= 1e-9 * scale + 1e-14
        moved = asymptotic_bias(logits + shift, label, q)
        np.testing.assert_allclose(moved, limits, atol=1e-9 * scale + 1e-10)
        order = random.sample(range(len(q)), len(q))
        permuted = asymptotic_bias(logits[order], order.index(label), q[order])
        np.testing.assert_allclose(permuted, limits[order], atol=1e-9 * scale + 1e-14)

    def test_batches_equal_their_rows(self, rng=3):
        rng = np.random.default_rng(rng)
        logits, q = rng.normal(size=(4, 6)), rng.dirichlet(np.ones(6))
        labels = [0, 5, 2, 2]
        rows = [asymptotic_bias(o, t, q) for o, t in zip(logits, labels, strict=True)]
        np.testing.assert_array_equal(asymptotic_bias(logits, labels, q), rows)
        np.testing.assert_array_equal(asymptotic_bias(logits, labels, np.tile(q, (4, 1))), rows)


class TestFiniteSample:
    @CASES
    @given(instances(max_classes=4), st.integers(1, 5))
    def test_contains_the_exact_bias(self, instance, m):
        assert outside(both(*instance, m), enumerated_bias(*instance, m)) == 0

    @settings(max_examples=25, deadline=None)
    @given(extremes, st.integers(1, 4))
    def test_contains_the_exact_bias_at_the_extremes(self, instance, m):
        lower, upper = both(*instance, m)
        assert np.isfinite(lower).all() and np.isfinite(upper).all()
        assert outside((lower, upper), enumerated_bias(*instance, m, digits=DIGITS)) == 0

    @CASES
    @given(instances(max_classes=8), st.sampled_from([1, 2, 10, 10**4]))
    def test_are_never_wider_than_the_range_of_the_sum_says(self, instance, m):
        logits, label, _ = instance
        p = np.exp(logits - logits.max())
        p /= p.sum()
        floor = -p
        floor[label] = 0.0
        lower, upper = both(*instance, m)
        low, high = spelled_out(*instance, m)
        room = 1e-10 + 1e-7 * np.abs([low, high]).max(axis=0)
        assert (lower >= np.maximum(low, floor) - room).all()
        assert (upper <= np.minimum(high, 1.0 - p) + room).all()

    def test_a_twin_with_an_unconditioned_proposal_fails(self):
        rng, failures = np.random.default_rng(5), {True: 0, False: 0}
        for _ in range(20):
            logits, q = rng.normal(size=4), rng.dirichlet(np.ones(4))
            exact = enumerated_bias(logits, 0, q, 3)
            for condition in failures:
                lower, upper = spelled_out(logits, 0, q, 3, condition=condition)
                room = 1e-12  # plain floats, no outward rounding
                failures[condition] += outside((lower - room, upper + room), exact)
        assert failures[True] == 0
        assert failures[False] > 10

    @CASES
    @given(instances(max_classes=8), st.sampled_from([1, 2, 7, 1000, 10**9, 10**15]))
    def test_signs_order_and_sums(self, instance, m):
        lower, upper = both(*instance, m)
        assert (lower <= upper).all()
        assert lower.sum() <= 0.0 <= upper.sum()
        assert lower[instance[1]] >= 0.0

    @CASES
    @given(instances(max_classes=8))
    def test_contain_the_limit_for_many_draws(self, instance):
        m = 10**12
        lower, upper = both(*instance, m)
        limits = asymptotic_bias(*instance)
        # What is left of the next order: each factor differs from its limit by max(r) / (m Z).
        room = 1e-3 * np.abs(limits).sum() + 1e-12
        assert (m * lower <= limits + room).all()
        assert (limits - room <= m * upper).all()

    @CASES
    @given(instances(), st.floats(-600.0, 600.0), st.randoms(use_true_random=False))
    def test_respect_symmetries(self, instance, shift, random):
        logits, label, q = instance
        order = random.sample(range(len(q)), len(q))
        for side, moved, permuted in zip(
            both(*instance, 20),
            both(logits + shift, label, q, 20),
            both(logits[order], order.index(label), q[order], 20),
            strict=True,
        ):
            np.testing.assert_allclose(moved, side, atol=1e-10)
            np.testing.assert_allclose(permuted, side[order], atol=1e-12)

    def test_collapse_if_and_only_if_the_proposal_is_the_softmax(self):
        logits = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
        q = np.exp(logits)
        q[0] = 40.0  # whatever the label has
        lower, upper = both(logits, 0, q / q.sum(), 5)
        assert (lower <= 0.0).all() and (upper >= 0.0).all()
        assert np.abs([lower, upper]).max() < 1e-12
        q[1] *= 1.01
        lower, upper = both(logits, 0, q / q.sum(), 5)
        assert lower[0] > 1e-9 and lower[1] > 1e-9

    @pytest.mark.parametrize("m", [1, 50])
    def test_a_single_negative_has_no_bias(self, m):
        for side in both([3.0, -700.0], 0, [0.99, 0.01], m):
            np.testing.assert_array_equal(side, [0.0, 0.0])
        np.testing.assert_array_equal(asymptotic_bias([3.0, -700.0], 0, [0.99, 0.01]), [0.0, 0.0])

    def test_one_draw_leaves_no_room_on_the_negatives(self):
        lower, upper = both([0.0, 1.0, 2.0], 0, [0.2, 0.3, 0.5], 1)
        exact = np.array(enumerated_bias([0.0, 1.0, 2.0], 0, [0.2, 0.3, 0.5], 1), dtype=float)
        np.testing.assert_allclose(lower[1:], exact[1:], rtol=1e-11)
        np.testing.assert_allclose(upper[1:], exact[1:], rtol=1e-11)

    @pytest.mark.parametrize("spread", [1e4, 1e10, 1e15, 1.7e308])
    @pytest.mark.parametrize(
        "q", [[0.3, 0.3, 0.4, 0.0], [1e-300, 5e-324, 1.0, 0.0], [0.5, 0.5, 1e-310, 0]]
    )
    def test_never_nan(self, spread, q):
        for label, logits in itertools.product(
            (0, 3), itertools.permutations([-1.0, 0.0, 1.0, 0.5])
        ):
            proposal = q if label == 3 else q[::-1]
            logits = spread * np.array(logits)
            lower, upper = both(logits, label, proposal, 3)
            assert np.isfinite([lower, upper]).all() and (lower <= upper).all()
            assert not np.isnan(asymptotic_bias(logits, label, proposal)).any()


class TestGradient:
    @CASES
    @given(instances(max_classes=4), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_contains_the_exact_bias(self, instance, m, seed):
        logits, label, q = instance
        jacobian = np.random.default_rng(seed).normal(size=(len(q), 3))
        exact = enumerated_bias(logits, label, q, m)
        lower, upper = finite_sample_bounds(logits, label, q, m).gradient(jacobian)
        products = [
            sum(b * float(x) for b, x in zip(exact, column, strict=True)) for column in jacobian.T
        ]
        assert outside((lower, upper), products) == 0

    def test_is_interval_arithmetic_on_slopes_less_a_constant(self):
        bounds = FiniteSampleBounds(np.array([0.1, -0.3, 0.0]), np.array([0.2, -0.2, 0.1]))
        lower, upper = bounds.gradient(np.array([[1.0, 7.0], [-2.0, 7.0], [0.0, 8.0]]))
        # no constant is better for the first column; for the second it is 22 / 3
        np.testing.assert_allclose([lower[0], upper[0]], [0.5, 0.8], rtol=1e-12)
        np.testing.assert_allclose([lower[1], upper[1]], [0.0, 2.0 / 15.0], atol=1e-12)

    def test_batches_equal_their_rows(self):
        rng = np.random.default_rng(8)
        logits, q, labels = rng.normal(size=(3, 5)), rng.dirichlet(np.ones(5)), [4, 0, 0]
        batch = finite_sample_bounds(logits, labels, q, 6)
        shared, own = rng.normal(size=(5, 2)), rng.normal(size=(3, 5, 2))
        for i, label in enumerate(labels):
            row = finite_sample_bounds(logits[i], label, q, 6)
            np.testing.assert_array_equal(batch.lower[i], row.lower)
            np.testing.assert_array_equal(batch.upper[i], row.upper)
            for jacobian, together in ((shared, shared), (own[i], own)):
                for ours, theirs in zip(
                    batch.gradient(together), row.gradient(jacobian), strict=True
                ):
                    np.testing.assert_allclose(ours[i], theirs, rtol=1e-12)

    @pytest.mark.parametrize("shape", [(4, 2), (3,), (1, 3, 2)])
    def test_a_jacobian_of_the_wrong_shape_is_refused(self, shape):
        bounds = finite_sample_bounds([0.0, 1.0, 2.0], 0, [0.2, 0.3, 0.5], 4)
        with pytest.raises(ValueError, match="`jacobian`"):
            bounds.gradient(np.ones(shape))


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize("m", [1, 1000])
def test_a_label_so_heavy_that_no_node_is_left(m, scheme):
    """The label decays before any draw does, and classes on panels have no node to be known at."""
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=2000)
    logits[7] = 250.0
    q = np.full(2000, 1 / 2000)
    bounds = finite_sample_bounds(logits, 7, q, m, scheme=scheme)
    ratio = np.exp(logits - 250.0) * (1999 if scheme == "negatives" else 2000)
    ratio[7] = 0.0
    drawn = np.full(2000, 1 / 1999)
    if scheme == "masked":
        drawn[:] = 1 / 2000
    drawn[7] *= scheme == "masked"
    variance = (
        drawn @ (ratio - drawn @ ratio) ** 2
    )  # the bias of the label, but for 1 part in e^230
    assert bounds.lower[7] <= variance / m * (1 + 1e-9)
    assert bounds.upper[7] >= variance / m * (1 - 1e-9)
    assert bounds.upper[7] <= 1.001 * variance / m


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": [0.0, math.nan, 1.0]}, ValueError, "`logits` must be finite"),
        ({"logits": [0.0, 1.0]}, ValueError, "`q` must cover all 2 classes"),
        ({"labels": 3}, ValueError, "`labels` must lie in 0..2"),
        ({"labels": 0.0}, TypeError, "`labels` must hold integers"),
        ({"q": [0.5, -0.5, 1.0]}, ValueError, "`q` must hold probabilities"),
        ({"q": [0.5, 0.1, 0.1]}, ValueError, "`q` must sum to 1"),
        ({"q": [0.5, 0.5, 0.0]}, ValueError, "got 0 at class 2"),
        ({"q": [1.0, 0.0, 0.0]}, ValueError, "no negative to draw"),
        ({"num_sampled": 0}, ValueError, "`num_sampled` must be at least 1, got 0"),
        ({"num_sampled": 2.0}, TypeError, "`num_sampled` must be an integer"),
    ],
)
def test_bad_input_is_named(change, error, message):
    given_ = {
        "logits": [0.0, 1.0, 2.0],
        "labels": 0,
        "q": [0.2, 0.3, 0.5],
        "num_sampled": 4,
    } | change
    with pytest.raises(error, match=message):
        finite_sample_bounds(**given_)
    if "num_sampled" not in change:
        del given_["num_sampled"]
        with pytest.raises(error, match=message):
            asymptotic_bias(**given_)
