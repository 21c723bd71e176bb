"""The corrected Theorem 1, against sums over all outcomes and against the exact bias."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from oracles import extremes
from oracles.theorem1_families import FAMILIES, row

from samplesoft import asymptotic_bias, exact_bias
from samplesoft.bias.theorems import theorem1_bounds, theorem1_corrected, theorem1_terms

README = Path(__file__).parents[2] / "samplesoft" / "bias" / "README.md"
ABOVE_UB = (np.zeros(3), 0, np.array([0.0, 0.999, 0.001]), np.array([[1.0], [1.0], [0.0]]))
BELOW_LB = (
    np.array([math.log(8.0), 0.0, 0.0]),
    0,
    np.array([0.0, 0.9, 0.1]),
    np.array([[-1.0], [-1.0], [1.0]]),
)


def spelled_out(logits, label, q, m, slopes, bound, twin=""):
    """Return (lower, upper) for one parameter in the printed units, as README.md states them.

    A `twin` leaves something out, and is wrong.
    """
    e = [mp.exp(mpf(float(x))) for x in logits]
    keep = [j for j in range(len(e)) if j != label]
    mass = mp.fsum(mpf(float(q[j])) for j in keep)
    r = {j: e[j] * mass / mpf(float(q[j])) for j in keep}
    z, z_t = mp.fsum(e), mp.fsum(e[j] for j in keep)
    rho = mp.fsum(e[j] * r[j] for j in keep)
    v, gap = rho - z_t**2, max(r.values()) - min(r.values())
    g = mp.fsum(e[j] * mpf(float(slopes[j])) for j in keep)
    rest = v * mp.sqrt(3 * v / m + gap**2 / m**2) + mp.sqrt(rho * v) * gap / m
    at_label = 0 if twin == "no label" else e[label] * v / z
    rest = 0 if twin == "no rest" else rest / z
    lows, highs = [-2 * m * z**2 * bound], [2 * m * z**2 * bound]
    for shift in (0, v / z):
        spread = mp.fsum(e[j] * abs(r[j] - z_t - shift) for j in keep)
        factor = mpf(1) / 2 if twin == "half" else 1
        for push, more in ((0, v), (v / z, at_label + rest)):
            center, reach = (push - shift) * g, factor * bound * (spread + more)
            lows.append(center - reach)
            highs.append(center + reach)
    return max(lows) / (m * z**2), min(highs) / (m * z**2)


def one_draw(logits, label, q):
    """Return the bias (n,) for m = 1, where class j is drawn with q_j and S = a + r_j."""
    e = [mp.exp(mpf(float(x))) for x in logits]
    keep = [j for j in range(len(e)) if j != label]
    mass, z, a = mp.fsum(mpf(float(q[j])) for j in keep), mp.fsum(e), e[label]
    sums = {j: a + e[j] * mass / mpf(float(q[j])) for j in keep}
    bias = [e[j] / sums.get(j, z) - e[j] / z for j in range(len(e))]
    bias[label] = mp.fsum(mpf(float(q[j])) / mass * a / sums[j] for j in keep) - a / z
    return bias


def outside(bounds, bias, jacobian):
    """Count the parameters whose exact bias is outside."""
    count = 0
    for k, (low, high) in enumerate(zip(bounds.lower, bounds.upper, strict=True)):
        exact = mp.fsum(x * mpf(float(y)) for x, y in zip(bias, jacobian[:, k], strict=True))
        count += not mpf(float(low)) <= exact <= mpf(float(high))
    return count


class TestBounds:
    def test_are_what_is_stated(self):
        rng = np.random.default_rng(0)
        for _ in range(60):
            logits, label, q, _ = extremes.ordinary(rng)
            if len(q) == 2:
                continue
            m, slopes = int(10 ** rng.uniform(0.0, 5.0)), rng.normal(size=(len(q), 1))
            found = theorem1_corrected(logits, label, q, m, slopes)
            terms = found.terms
            lower, upper = terms.corrected_bounds(found.g, 9.0, m)
            with mp.workdps(40):
                low, high = spelled_out(logits, label, q, m, slopes[:, 0], 9)
            room = 1e-11 * 9.0 * terms.second_moment / m  # what outward rounding adds
            assert lower[0] == pytest.approx(float(low), rel=1e-10, abs=room)
            assert upper[0] == pytest.approx(float(high), rel=1e-10, abs=room)
            assert lower[0] <= low and high <= upper[0]

    @pytest.mark.parametrize("make", [extremes.ordinary, extremes.extreme])
    def test_hold_by_enumeration(self, make):
        rng = np.random.default_rng(1)
        for _ in range(30):
            logits, label, q, m = make(rng)
            jacobian = rng.choice([-1.0, 0.0, 1.0], size=(len(q), 4))
            with mp.workdps(1700):
                exact = extremes.enumerated(logits, label, q, m, "negatives")
                jacobian[:, 0] = [float(mp.sign(x)) for x in exact]
                found = theorem1_corrected(logits, label, q, m, jacobian)
                assert outside(found, exact, jacobian) == 0

    @pytest.mark.slow
    @settings(max_examples=250, deadline=None)
    @given(
        st.lists(st.floats(-700.0, 700.0), min_size=2, max_size=5),
        st.lists(st.floats(-300.0, 0.0), min_size=5, max_size=5),
        st.integers(0, 4),
        st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=5, max_size=5),
        st.sampled_from([1e-300, 1.0, 1e300]),
    )
    def test_hold_for_one_draw(self, logits, powers, at, slopes, size):
        n = len(logits)
        powers[at] = 0.0
        q = 10.0 ** np.array(powers[:n])
        jacobian = size * np.array(slopes[:n])[:, None]
        q, label = np.maximum(q / q.sum(), 1e-300), at % n
        found = theorem1_corrected(logits, label, q, 1, jacobian)
        with mp.workdps(1300):
            assert outside(found, one_draw(logits, label, q), jacobian) == 0

    @pytest.mark.slow
    def test_hold_for_many_classes_and_draws(self):
        rng = np.random.default_rng(2)
        close = 0
        for _ in range(250):
            n, m = int(2 + 10 ** rng.uniform(0.0, 2.3)), int(10 ** rng.uniform(0.0, 9.0))
            logits = rng.standard_t(2.0, n) * rng.choice([0.3, 1.0, 3.0, 100.0])
            logits = logits.clip(-700.0, 700.0)
            q = 10.0 ** (-rng.choice([0.5, 3.0, 10.0, 300.0]) * rng.random(n))
            q = np.maximum(q / q.sum(), 1e-300)
            label = int(logits.argmax() if rng.random() < 0.3 else rng.integers(n))
            exact = exact_bias(logits, label, q, m)
            jacobian = rng.choice([-1.0, 1.0], size=(n, 3))
            jacobian[:, 0] = np.sign(exact.bias)  # the worst: its bias is the L1 norm
            found = theorem1_corrected(logits, label, q, m, jacobian)
            bias, norm = exact.bias @ jacobian, np.abs(exact.bias).sum()
            room = exact.error + 1e-12 * norm
            assert (found.lower - room <= bias).all() and (bias <= found.upper + room).all()
            close += found.upper[0] <= 1.1 * norm + room
        assert close > 25  # so a bound a tenth smaller would have failed

    @pytest.mark.parametrize("twin", ["half", "no label", "no rest"])
    def test_a_twin_that_leaves_something_out_fails(self, twin):
        rng, failures = np.random.default_rng(3), 0
        for _ in range(400):
            n = int(rng.integers(3, 6))
            logits, q = 3.0 * rng.normal(size=n), rng.dirichlet(np.full(n, 0.5)) + 1e-6
            m, q = int(10 ** rng.uniform(0.0, 6.0)), q / q.sum()
            bias = exact_bias(logits, 0, q, m).bias
            slopes = np.sign(bias)
            low, high = spelled_out(logits, 0, q, m, slopes, 1, twin)
            failures += not low - 1e-12 <= bias @ slopes <= high + 1e-12
        assert failures > 3


def test_with_all_derivatives_the_limit_is_off_by_the_rest():
    """|m bias - limit| <= M R_m, the first step of the proof of (B52); a fifth of R_m fails."""
    rng, short = np.random.default_rng(7), 0
    for _ in range(300):
        n, m = int(rng.integers(3, 30)), int(10 ** rng.uniform(0.0, 5.0))
        logits, q = 2.0 * rng.normal(size=n), rng.dirichlet(np.full(n, 0.5)) + 1e-6
        slopes, p = rng.choice([-1.0, 1.0], size=n), np.exp(logits) / np.exp(logits).sum()
        qn = q[1:] / q[1:].sum()
        r = p[1:] / qn
        rho, gap = qn @ r**2, np.ptp(r)
        variance = qn @ (r - p[1:].sum()) ** 2
        rest = variance * math.sqrt(3.0 * variance / m + gap**2 / m**2)
        rest += math.sqrt(rho * variance) * gap / m
        exact = exact_bias(logits, 0, q / q.sum(), m)
        off = abs(m * exact.bias @ slopes - asymptotic_bias(logits, 0, q / q.sum()) @ slopes)
        assert off <= rest * (1.0 + 1e-9) + 1e-12 * m
        short += off > 0.2 * rest + 1e-9
    assert short > 5


class TestBesideThePrinted:
    @pytest.mark.parametrize("case", [ABOVE_UB, BELOW_LB])
    @pytest.mark.parametrize("m", [10, 1000, 10**7])
    def test_hold_where_the_printed_bounds_fail(self, case, m):
        logits, label, q, jacobian = case
        bias = exact_bias(logits, label, q, m).gradient_bias(jacobian)[0]
        printed = theorem1_bounds(logits, label, q, m, jacobian)
        broken = not printed.lower[0] <= bias <= printed.upper[0]
        assert broken is not (m == 10 and case is ABOVE_UB)
        found = theorem1_corrected(logits, label, q, m, jacobian)
        assert found.lower[0] <= bias <= found.upper[0]
        assert max(found.upper[0], -found.lower[0]) <= 2.0 * -printed.lower[0] * (1.0 + 1e-10)

    def test_the_printed_lower_bound_is_short_by_a_factor_of_two_at_most(self):
        """With a rare class, and nearly all of the softmax on the label, it is short by that."""
        slopes = np.array([[-1.0], [-1.0], [1.0]])
        case = [math.log(1e8), 0.0, 0.0], 0, [0.0, 1.0 - 1e-4, 1e-4]
        limit = (asymptotic_bias(*case) @ slopes)[0]
        printed, true = (f(*case, 1, slopes) for f in (theorem1_bounds, theorem1_corrected))
        assert limit / printed.lower[0] == pytest.approx(2.0, rel=1e-3)
        assert true.lower[0] / limit == pytest.approx(1.0, rel=1e-3)

    def test_the_printed_upper_bound_is_short_without_limit(self):
        """At the label, where g = 0, of three classes one of which is ever more rare."""
        for rare in (1e-3, 1e-6, 1e-9):
            case = np.zeros(3), 0, np.array([0.0, 1.0 - rare, rare])
            printed = theorem1_bounds(*case, 1, np.eye(3))
            assert printed.sign_condition
            assert asymptotic_bias(*case)[0] > 0.009 / rare * printed.upper[0]

    def test_with_many_draws_reach_the_limit_of_the_worst_gradient(self):
        rng = np.random.default_rng(4)
        logits, q, m = rng.normal(size=50), rng.dirichlet(np.full(50, 3.0)), 10**12
        limit = asymptotic_bias(logits, 3, q)
        found = theorem1_corrected(logits, 3, q, m, np.sign(limit)[:, None])
        assert m * found.upper[0] == pytest.approx(np.abs(limit).sum(), rel=1e-3)

    @pytest.mark.parametrize(("name", "m"), [("vectors", 1), ("signs", 10**6), ("rare", 100)])
    def test_table_of_the_readme(self, name, m):
        assert name in FAMILIES
        (line,) = (x for x in README.read_text().splitlines() if x.startswith(f"| {name} | {m:,} "))
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        _, _, counts, violated, *ratios = row(name, m)
        assert cells[2:4] == [counts, str(violated)] and violated == 0
        assert [float(x) for x in cells[4:]] == pytest.approx(ratios, rel=0.006)


def test_a_single_negative_and_the_softmax_have_no_bias():
    one = theorem1_corrected([3.0, -700.0], 0, [0.99, 0.01], 5, np.eye(2))
    assert np.abs([one.lower, one.upper]).max() < 1e-300
    logits = np.array([0.3, -1.0, 2.0, 0.5])
    p = np.exp(logits) / np.exp(logits).sum()
    none = theorem1_corrected(logits, 1, p, 10, np.eye(4))
    assert (none.lower <= 0.0).all() and (none.upper >= 0.0).all()
    assert np.abs([none.lower, none.upper]).max() < 1e-12


def test_a_batch_is_its_examples():
    rng = np.random.default_rng(5)
    logits, q, labels = rng.normal(size=(3, 6)), rng.dirichlet(np.ones(6), size=3), [1, 4, 0]
    jacobian = rng.normal(size=(3, 6, 2))
    for own in (True, False):
        batch = theorem1_corrected(logits, labels, q, 40, jacobian if own else jacobian[0])
        for i, label in enumerate(labels):
            one = theorem1_corrected(logits[i], label, q[i], 40, jacobian[i if own else 0])
            for name in ("lower", "upper", "g", "grad_bound"):
                np.testing.assert_allclose(getattr(batch, name)[i], getattr(one, name), rtol=1e-12)


def test_without_an_identity_matrix():
    rng = np.random.default_rng(6)
    logits, q = rng.normal(size=7), rng.dirichlet(np.ones(7))
    terms = theorem1_terms(logits, 2, q)
    full = theorem1_corrected(logits, 2, q, 30, np.eye(7))
    np.testing.assert_allclose(
        terms.corrected_bounds(terms.negative_probs, 1.0, 30), [full.lower, full.upper]
    )


@pytest.mark.parametrize("spread", [700.0, 1e4, 1e15, 1.7e308])
def test_extremes_stay_within_twice_the_largest_derivative(spread):
    logits = spread * np.array([1.0, -1.0, 0.0, 0.5])
    for label in range(4):
        for q in ([1e-300, 0.5, 0.5, 1e-300], [5e-324, 1e-310, 1.0, 1e-300]):
            found = theorem1_corrected(logits, label, q, 2, np.eye(4))
            assert (np.abs([found.lower, found.upper]) <= 2.0 * (1.0 + 1e-15)).all()
            assert (found.lower <= 0.0).all() and (found.upper >= 0.0).all()


def test_bad_input_is_named():
    logits, label, q, jacobian = BELOW_LB
    with pytest.raises(ValueError, match=r"`jacobian` of shape \(2, 1\) does not match"):
        theorem1_corrected(logits, label, q, 5, jacobian[:2])
    with pytest.raises(ValueError, match="`num_sampled` must be at least 1"):
        theorem1_corrected(logits, label, q, 0, jacobian)
    with pytest.raises(ValueError, match="got 0 at class 1"):
        theorem1_corrected(logits, label, [0.5, 0.0, 0.5], 5, jacobian)
