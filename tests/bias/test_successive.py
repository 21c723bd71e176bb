"""Draws without replacement: the exact bias against all sets, a closed form, and simulation."""

from functools import cache
from itertools import combinations, permutations, product

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from oracles.moments_cases import hard_cases, largest_miss
from oracles.naive import l1_error, softmax
from scipy.stats import hypergeom

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias import stratified_bias, tries_bias
from samplesoft.bias.bounds import finite_sample_bounds
from samplesoft.bias.without_replacement.expectations import expected_probs_and_log_sum
from samplesoft.bias.without_replacement.race import ExponentialRace
from samplesoft.bias.without_replacement.terms import SumTerms
from samplesoft.samplers import UniformSampler, WeightedSampler
from samplesoft.samplers.without_replacement import SuccessiveInclusion
from samplesoft.schemes import SCHEMES, exact_schemes

NAMES = exact_schemes(distinct=True)


def sets_of(q, m, skip):
    """Chances, mpf, of the sets of m classes by all orders in which they may be drawn."""
    left = [j for j in range(len(q)) if j != skip]
    total = mp.fsum(q[j] for j in left)
    chances = {}
    for order in permutations(left, m):
        chance, rest = mpf(1), total
        for place, j in enumerate(order):
            if place:  # never a difference: what is left may be nearly nothing
                rest = mp.fsum(q[i] for i in left if i not in order[:place])
            chance *= q[j] / rest
        key = frozenset(order)
        chances[key] = chances.get(key, mpf(0)) + chance
    return chances


def outcomes(logits, label, q, m, scheme, correction=None):
    """Of all sets the chance, p' (n,) and log S; and inclusion probabilities (n,), all mpf."""
    p, q = softmax(logits), [mpf(float(x)) for x in q]
    facts, n = SCHEMES[scheme], len(q)
    chances = sets_of(q, m, label if facts.excludes_label else None)
    pi = [mp.fsum(c for members, c in chances.items() if j in members) for j in range(n)]
    c = pi if correction is None else [mpf(float(x)) for x in correction]
    base = p[label] if facts.label_in_sum else mpf(0)
    if facts.corrects_label:
        base /= c[label]
    found = []
    for members, chance in chances.items():
        mass = [mpf(0)] * n
        for j in members:
            mass[j] = p[j] / c[j] if facts.draws_label or j != label else mpf(0)
        mass[label] += base
        total = mp.fsum(mass)
        log_sum = mp.log(total) + (mp.log(c[label]) if facts.corrects_label else 0)
        found.append((chance, [x / total for x in mass], log_sum))
    return found, pi


def by_enumeration(logits, label, q, m, scheme, correction=None):
    """Bias (n,), loss bias and inclusion probabilities (n,), all mpf."""
    found, pi = outcomes(logits, label, q, m, scheme, correction)
    bias = [-x for x in softmax(logits)]
    for chance, shares, _ in found:
        bias = [b + chance * x for b, x in zip(bias, shares, strict=True)]
    return bias, mp.fsum(chance * log_sum for chance, _, log_sum in found), pi


def check(logits, label, q, m, scheme, correction=None, room=1e-12):
    result = exact_bias(logits, label, q, m, scheme=scheme, correction=correction)
    with mp.workdps(50):
        bias, loss, pi = by_enumeration(logits, label, q, m, scheme, correction)
        wrong, size = l1_error(result.bias, bias)
        assert wrong <= max(result.error, 1e-15)
        assert wrong <= max(room * size, 1e-14)
        assert abs(loss - mpf(result.loss_bias)) <= max(result.loss_error, 1e-15)
        for got, exact in zip(result.inclusion, pi, strict=True):
            assert abs(mpf(float(got)) - exact) <= 1e-11 * exact
    return result


def corrections(q, m):
    return {"own": None, "m q": m * q / q.sum(), "none": np.ones(len(q))}


@pytest.mark.parametrize("correction", ["own", "m q", "none"])
@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize(("n", "m"), [(2, 1), (3, 2), (5, 3), (6, 5)])
def test_agrees_with_all_orders_of_draws(n, m, scheme, correction):
    rng = np.random.default_rng([n, m])
    logits, q = 2.0 * rng.standard_normal(n), rng.dirichlet(np.ones(n))
    check(logits, 1, q, m, scheme, corrections(q, m)[correction], room=1e-10)


@pytest.mark.filterwarnings("ignore:the bias of scheme")  # a bias near 0 has few digits
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_agrees_at_random(data):
    n = data.draw(st.integers(2, 6))
    numbers = st.floats(-8.0, 8.0, allow_nan=False)
    logits = data.draw(st.lists(numbers, min_size=n, max_size=n))
    q = np.exp(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    q /= q.sum()
    scheme = data.draw(st.sampled_from(NAMES))
    label, m = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n - 1))
    check(np.array(logits), label, q, m, scheme, room=1e-9)


@pytest.mark.thorough(but=2)
@pytest.mark.filterwarnings("ignore:the bias of scheme")
@pytest.mark.parametrize("scheme", ["distinct", "distinct_masked"])
@pytest.mark.parametrize(
    ("logits", "q"),
    [
        ([0.0, 1e4, -1e4, 3.0, 1.0], [0.2] * 5),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.6, 1e-300, 0.4, 1e-100, 1e-5]),
        ([0.0, 300.0, 2.0, -300.0, 4.0], [1.0, 1e-30, 1e-60, 1e-90, 1e-120]),
    ],
    ids=["logits", "q", "both"],
)
def test_extremes(logits, q, scheme):
    for m in (2,) if max(logits) > 1e3 else (1, 2, 3):
        check(np.array(logits), 0, np.array(q), m, scheme, room=1e-9)


@pytest.mark.parametrize("scheme", NAMES)
def test_one_draw_needs_no_replacement(scheme):
    rng = np.random.default_rng(1)
    logits, q = 2.0 * rng.standard_normal(60), rng.dirichlet(np.ones(60))
    plain = "negatives" if scheme == "distinct" else scheme.removeprefix("distinct_")
    one, other = (exact_bias(logits, 7, q, 1, scheme=name) for name in (scheme, plain))
    assert np.abs(one.bias - other.bias).sum() <= one.error + other.error
    assert one.loss_bias == pytest.approx(other.loss_bias, abs=1e-13)
    assert np.allclose(np.delete(one.inclusion, 7).sum() + one.inclusion[7], 1.0, atol=1e-13)


def test_all_classes_are_the_full_softmax():
    logits, q = np.array([0.3, -2.0, 5.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    for scheme, m in ("distinct", 3), ("distinct_masked", 4), ("distinct_importance", 4):
        result = exact_bias(logits, 2, q, m, scheme=scheme)
        assert not result.bias.any()
        assert result.loss_bias == result.error == result.loss_error == 0.0


@cache
def two_kinds(n, special, m):
    """Draws by equal chances of classes of two weights: how many are special is hypergeometric."""
    counts = np.arange(m + 1)
    return counts, hypergeom(n, special, m).pmf(counts)


@pytest.mark.parametrize(("n", "special", "m"), [(1000, 300, 20), (1000, 30, 400), (20_000, 9, 50)])
def test_agrees_with_a_closed_form_of_many_classes(n, special, m):
    race, log_w = ExponentialRace(np.ones(n), m), np.full(n, -1.0)
    log_w[:special] = 2.0
    logits, divisors = np.append(log_w, 0.5), np.zeros(n + 1)
    terms = SumTerms(logits, divisors, np.append(race.inclusion[0], 1.0))
    sums = expected_probs_and_log_sum([race], terms)
    counts, chances = two_kinds(n, special, m)
    total = np.exp(0.5) + counts * np.exp(2.0) + (m - counts) * np.exp(-1.0)
    assert np.allclose(race.inclusion[0], m / n, rtol=1e-13)
    assert sums.expected_base_prob[0] == pytest.approx(chances @ (np.exp(0.5) / total), rel=1e-12)
    share = chances @ (counts * np.exp(2.0) / total)
    assert sums.expected_probs[0, :special].sum() == pytest.approx(share, rel=1e-12)
    log_sum = sums.expected_log_sum[0] + terms.logits[terms.reference_index]
    assert log_sum == pytest.approx(chances @ np.log(total), rel=1e-12)


@pytest.mark.parametrize(("n", "m", "spread"), [(3000, 40, 1.0), (3000, 2500, 2.0), (500, 3, 6.0)])
def test_inclusion_agrees_with_another_integral(n, m, spread):
    q = np.exp(spread * np.random.default_rng(2).standard_normal(n))
    other = SuccessiveInclusion(np.log(q), m).of_classes(np.arange(n)[None], np.array([-1]))[0]
    assert np.allclose(ExponentialRace(q, m).inclusion[0], other, rtol=2e-11)


def simulated(logits, label, sampler, m, inclusion, num):
    """Mean p' (n,) and its standard errors over `num` sets, of scheme ``distinct``."""
    ids = sampler.sample(None, m, exclude=np.full(num, label), rng=3).ids
    p = np.exp(logits - np.logaddexp.reduce(logits))
    weights = p[ids] / inclusion[ids]
    share = weights / (p[label] + weights.sum(axis=1, keepdims=True))
    mean = np.bincount(ids.ravel(), share.ravel(), len(p)) / num
    square = np.bincount(ids.ravel(), share.ravel() ** 2, len(p)) / num
    return mean, np.sqrt((square - mean**2) / num)


def test_agrees_with_simulation_and_not_with_replacement():
    rng = np.random.default_rng(4)
    logits, q, m = 2.0 * rng.standard_normal(200), 1.0 / np.arange(2.0, 202.0), 10
    q /= q.sum()
    sampler = WeightedSampler(q, replace=False)
    result = exact_bias(logits, 0, sampler, m, scheme="distinct")
    mean, error = simulated(logits, 0, sampler, m, result.inclusion, 20_000)
    wrong = exact_bias(logits, 0, q, m).expected_probs
    z = [np.abs((mean - of)[1:] / error[1:]).max() for of in (result.expected_probs, wrong)]
    assert z[0] < 4.5 < z[1]


def test_a_batch_and_a_sampler():
    logits = np.random.default_rng(5).standard_normal((2, 30))
    result = exact_bias(logits, [3, 4], UniformSampler(30, replace=False), 5, scheme="distinct")
    assert result.bias.shape == result.inclusion.shape == (2, 30)
    assert np.allclose(result.inclusion[0], np.where(np.arange(30) == 3, 0.0, 5 / 29))
    one = exact_bias(logits[1], 4, np.ones(30) / 30, 5, scheme="distinct")
    assert np.allclose(result.bias[1], one.bias, atol=1e-14)
    assert exact_bias(logits, [3, 4], np.ones(30) / 30, 5).inclusion is None


def test_classes_that_are_never_drawn_have_a_correction():
    logits, q = np.array([0.0, 1.0, 2.0, 0.5]), np.array([0.4, 0.0, 0.3, 0.3])
    result = exact_bias(logits, 0, q, 1, scheme="distinct", correction=np.full(4, 0.5))
    assert result.expected_probs[1] == pytest.approx(0.0, abs=1e-15)
    assert result.inclusion[1] == 0.0


@pytest.mark.thorough
@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(6)
    logits, q = rng.standard_normal(17_000), rng.dirichlet(np.ones(17_000))
    before, results = numba.get_num_threads(), []
    for threads in 1, before:
        numba.set_num_threads(threads)
        results.append(exact_bias(logits, 5, q, 8, scheme="distinct"))
    numba.set_num_threads(before)
    assert np.array_equal(results[0].bias, results[1].bias)
    assert results[0].error < 1e-11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sampled": 4}, "`num_sampled` must be at most 3, the number of classes"),
        ({"certain": [1]}, "`certain` must be empty with scheme='distinct'"),
        ({"correction": [1.0, 1.0, 0.0, 1.0]}, "`correction` must be greater than 0, and"),
        ({"q": [0.5, 0.0, 0.25, 0.25]}, "`q` must be greater than 0 on every class"),
        (
            {"q": [2.3e-308, 0.5, 0.25, 0.25], "num_sampled": 3, "scheme": "distinct_masked"},
            "`q` must be at least 1e-300 of the sum of what is drawn",
        ),
    ],
)
def test_refuses(arguments, message):
    given = {"logits": np.zeros(4), "labels": 0, "q": np.full(4, 0.25), "num_sampled": 2}
    given["scheme"] = "distinct"
    with pytest.raises(ValueError, match=message):
        exact_bias(**(given | arguments))


# --- second moments ------------------------------------------------------------------------------


def moments_by_enumeration(logits, label, q, m, c, scheme, dps=50):
    """Squared bias, variance and mean squared error of sum_i p'_i c_i."""
    with mp.workdps(dps):
        found, p = outcomes(logits, label, q, m, scheme)[0], softmax(logits)
        rows = [[mpf(float(x)) for x in row] for row in np.transpose(c)]
        errors = []
        for chance, shares, _ in found:
            change = [x - y for x, y in zip(shares, p, strict=True)]
            errors.append((chance, [mp.fdot(change, row) for row in rows]))
        mean = [mp.fsum(chance * g[i] for chance, g in errors) for i in range(len(rows))]
        mse = mp.fsum(chance * mp.fdot(g, g) for chance, g in errors)
        squared = mp.fdot(mean, mean)
        return float(squared), float(mse - squared), float(mse)


def check_moments(logits, label, q, m, c, scheme, room=1e-10, dps=50):
    result = exact_gradient_moments(logits, label, q, m, c, scheme=scheme)
    exact = moments_by_enumeration(logits, label, q, m, c, scheme, dps)
    assert largest_miss(result, exact) <= result.error + 1e-150
    assert result.mse == pytest.approx(exact[2], rel=room, abs=1e-18)
    assert result.error <= 1e-8 * result.mse + 1e-13 * np.ptp(c) ** 2  # it says something
    return result, exact


@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize(("n", "m"), [(2, 1), (4, 2), (6, 5), (7, 3)])
def test_moments_agree_with_all_orders_of_draws(n, m, scheme):
    rng = np.random.default_rng([n, m])
    logits, q = 2.0 * rng.standard_normal(n), rng.dirichlet(np.ones(n))
    args = logits, 1, q, m, rng.standard_normal((n, 3)), scheme
    result, exact = check_moments(*args)
    assert result.variance == pytest.approx(exact[1], rel=1e-10)
    if m < n - 1:  # other proposals give others
        wrong = moments_by_enumeration(*args[:2], q[::-1], *args[3:])
        assert abs(wrong[2] - result.mse) > 1e6 * result.error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the bias of scheme")
@settings(max_examples=12, deadline=None)
@given(hard_cases(), st.sampled_from(NAMES))
def test_no_moment_is_off_by_more_than_its_error(case, scheme):
    logits, label, q, m, c = case
    m = min(m, len(q) - SCHEMES[scheme].excludes_label)
    check_moments(logits, label, q, m, c, scheme, np.inf, 800 + int(2.0 * np.ptp(logits)))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("logits", "q", "dps"),
    [
        ([1e4, 0.0, -1e4, 3.0, 1.0], [0.2] * 5, 9000),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.6, 1e-300, 0.4, 1e-100, 1e-5], 50),
        pytest.param([0.0, 1e4, -1e4, 3.0, 1.0], [0.2] * 5, 9000, marks=pytest.mark.slow),
        # mostly class 1 alone: the error is that of rare sets without it
        pytest.param(
            [0.0, 30.0, 1.0, 2.0, -1.0],
            [1e-9, 1.0, 1e-9, 1e-9, 2e-9],
            60,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["label", "q", "logits", "rare"],
)
@pytest.mark.parametrize("scheme", ["distinct", "distinct_masked"])
def test_moments_of_extremes(logits, q, dps, scheme):
    c = np.random.default_rng(8).standard_normal((5, 3))
    check_moments(np.array(logits), 0, np.array(q) / sum(q), 1, c, scheme, dps=dps)


@pytest.mark.parametrize("scheme", NAMES)
def test_moments_of_one_draw_need_no_replacement(scheme):
    rng = np.random.default_rng(9)
    logits, q, c = 2.0 * rng.standard_normal(12), rng.dirichlet(np.ones(12)), rng.random((12, 2))
    plain = "negatives" if scheme == "distinct" else scheme.removeprefix("distinct_")
    one, other = (
        exact_gradient_moments(logits, 7, q, 1, c, tau=3.0, scheme=name) for name in (scheme, plain)
    )
    assert one.mse == pytest.approx(other.mse, rel=1e-12)
    assert one.variance == pytest.approx(other.variance, rel=1e-12)


def test_all_classes_have_no_variance():
    logits, c = np.array([[0.3, -2.0, 5.0, 1.0]]), np.eye(4)
    for scheme, m in ("distinct", 3), ("distinct_masked", 4), ("distinct_importance", 4):
        result = exact_gradient_moments(logits, 2, np.full(4, 0.25), m, c, scheme=scheme)
        assert not np.any([result.mse, result.variance, result.squared_bias, result.error])


@pytest.mark.parametrize(("n", "special", "m"), [(300, 90, 20), (60, 5, 59)])
def test_moments_agree_with_a_closed_form_of_many_classes(n, special, m):
    """Uniform draws of two kinds, beside the label: all depends on how many are special."""
    kind = np.where(np.arange(n + 1) == n, 2, np.arange(n + 1) >= special)
    logits, c = np.array([3.0, 0.0, 1.0])[kind], np.array([[1.0, 0.0], [0.5, 2.0], [3.0, -1.0]])
    result = exact_gradient_moments(
        logits, n, np.ones(n + 1) / (n + 1), m, c[kind], scheme="distinct"
    )
    counts, chances = two_kinds(n, special, m)
    mass = np.stack(
        [counts * np.exp(3.0) * n / m, (m - counts) * n / m, np.full(m + 1, np.exp(1.0))]
    )
    gradients = (mass / mass.sum(axis=0)).T @ c - np.exp(logits) @ c[kind] / np.exp(logits).sum()
    assert result.mse == pytest.approx(chances @ (gradients**2).sum(axis=1), rel=1e-11)
    assert result.squared_bias == pytest.approx(((chances @ gradients) ** 2).sum(), rel=1e-10)


def test_moments_agree_with_simulation_and_not_with_replacement():
    rng = np.random.default_rng(10)
    logits, q, m, num = 1.5 * rng.standard_normal(50), rng.dirichlet(np.ones(50)), 12, 20_000
    c, sampler = rng.standard_normal((50, 4)), WeightedSampler(q, replace=False)
    inclusion = exact_bias(logits, 4, sampler, m, scheme="distinct").inclusion
    ids = sampler.sample(None, m, exclude=np.full(num, 4), rng=3).ids
    e = np.exp(logits)
    weights = e[ids] / inclusion[ids]
    sums = np.einsum("tm,tmd->td", weights, c[ids]) + e[4] * c[4]
    errors = sums / (e[4] + weights.sum(axis=1, keepdims=True)) - e @ c / e.sum()
    squares = (errors**2).sum(axis=1)
    right = exact_gradient_moments(logits, 4, sampler, m, c, scheme="distinct").mse
    wrong = exact_gradient_moments(logits, 4, q, m, c).mse
    z = [abs(squares.mean() - mse) / squares.std() * np.sqrt(num) for mse in (right, wrong)]
    assert z[0] < 4.0 < z[1]


def test_moments_of_a_batch():
    rng = np.random.default_rng(11)
    logits, c, q = rng.standard_normal((2, 8)), rng.standard_normal((8, 2)), np.full(8, 0.125)
    batch = exact_gradient_moments(logits, [3, 4], q, 5, c + 1e3, tau=2.0, scheme="distinct")
    for i, label in enumerate((3, 4)):
        one = exact_gradient_moments(logits[i], label, q, 5, c, scheme="distinct")
        assert batch.mse[i] == pytest.approx(4.0 * one.mse, rel=1e-10)


# --- bounds --------------------------------------------------------------------------------------


def holds(bounds, bias):
    pairs = zip(bounds.lower, bias, bounds.upper, strict=True)
    return all(mpf(float(low)) <= x <= mpf(float(high)) for low, x, high in pairs)


def check_bounds(logits, q, m, scheme, dps=50):
    bounds = finite_sample_bounds(logits, 0, q, m, scheme=scheme)
    assert (bounds.upper - bounds.lower).sum() < 1e-9
    with mp.workdps(dps):
        assert holds(bounds, by_enumeration(logits, 0, q, m, scheme)[0])
    return bounds


@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize("m", [1, 3])
def test_bounds_hold_the_bias_by_all_orders_of_draws(m, scheme):
    logits, q = [0.3, -2.0, 1.0, 3.0, 0.0], [0.1, 0.3, 0.2, 0.15, 0.25]
    bounds = check_bounds(logits, q, m, scheme)
    with mp.workdps(50):  # that of another law is outside
        q[4] += 1e-8
        assert not holds(bounds, by_enumeration(logits, 0, q, m, scheme)[0])


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["distinct", "distinct_candidate"])
@pytest.mark.parametrize(
    ("logits", "q", "dps"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.6, 1e-300, 0.4, 1e-100, 1e-5], 50),
        ([0.0, 300.0, 2.0, -300.0, 4.0], [1.0, 1e-30, 1e-60, 1e-90, 1e-120], 50),
        ([0.0, 1e4, -1e4, 3.0, 1.0], [0.2] * 5, 9000),
    ],
    ids=["q", "both", "logits"],
)
def test_bounds_of_extremes(logits, q, dps, scheme):
    check_bounds(logits, q, 2, scheme, dps)


@pytest.mark.slow
def test_bounds_of_more_classes_hold_the_exact_bias():
    rng = np.random.default_rng(12)
    logits, q = 2.0 * rng.standard_normal((2, 60)), 1.0 / np.arange(1.0, 61.0)
    args = logits, [0, 5], q / q.sum(), 20
    bounds, bias = (
        finite_sample_bounds(*args, scheme="distinct"),
        exact_bias(*args, scheme="distinct"),
    )
    assert np.all((bounds.lower < bias.bias) & (bias.bias < bounds.upper))
    assert (bounds.upper - bounds.lower).sum(axis=1).max() < 1e-9


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_where_all_classes_are_drawn_the_bias_has_digits_and_bounds_hold(seed, corrected):
    rng = np.random.default_rng(seed)
    n = 2 + seed % 3
    logits, q = 10.0 ** rng.uniform(-1, 2) * rng.normal(size=n), rng.dirichlet(np.ones(n))
    scheme = "distinct_candidate" if seed % 2 else "distinct"
    m = n if scheme == "distinct_candidate" else n - 1
    correction = rng.uniform(0.5, 2.0, n) if corrected else None
    found = exact_bias(logits, 0, q, m, scheme=scheme, correction=correction)
    with mp.workdps(400):
        masses = [mp.exp(mpf(float(o))) for o in logits]
        divided = [1 / mpf(float(c)) for c in (np.ones(n) if correction is None else correction)]
        weights = list(divided)
        weights[0] = 1 if scheme == "distinct" else weights[0] * 2
        of_sum = [mass * weight for mass, weight in zip(masses, weights, strict=True)]
        wanted = [
            one / mp.fsum(of_sum) - mass / mp.fsum(masses)
            for one, mass in zip(of_sum, masses, strict=True)
        ]
        wrong = mp.fsum(abs(a - mpf(float(b))) for a, b in zip(wanted, found.bias, strict=True))
        assert wrong <= 3.0 * found.error + 1e-300
        assert wrong <= 1e-10 * np.abs(found.bias).sum() + 1e-300
        if not corrected:
            bounds = finite_sample_bounds(logits, 0, q, m, scheme=scheme)
            assert holds(bounds, wanted)


def test_bounds_where_all_classes_are_drawn():
    bounds = finite_sample_bounds([0.3, -2.0, 1.0], 1, [0.2, 0.3, 0.5], 2, scheme="distinct")
    assert not bounds.lower.any()
    assert not bounds.upper.any()


def rule_error(rates, others, step, shift):
    """Relative error of the nodes in log t for a set of clocks, where `others` ring later."""
    t = np.exp(np.arange(-60.0, 12.0, step) + shift)
    rung = np.prod(-np.expm1(-t[:, None] * rates), axis=1)
    total = mpf(0)
    for size in range(len(rates) + 1):  # the chance, by inclusion and exclusion
        for some in combinations(rates, size):
            total += (-1) ** size * mpf(others) / (mpf(others) + mp.fsum(some))
    return abs(float(step * (t * others * np.exp(-t * others) * rung).sum() / total - 1))


@pytest.mark.parametrize("m", [1, 2, 5])
def test_nodes_in_time_are_as_good_as_proved_for_every_set(m):
    rng, largest = np.random.default_rng(m), 0.0
    step, theta = 1.6 / np.sqrt(m), np.linspace(0.01, 1.56, 2000)
    bound = 2.0 * np.min(np.cos(theta) ** -(m + 1.0) / np.expm1(2.0 * np.pi * theta / step))
    for _ in range(30):
        rates = np.exp(3.0 * rng.standard_normal(m))
        others, shift = np.exp(3.0 * rng.standard_normal()), step * rng.random()
        largest = max(largest, rule_error(rates, others, step, shift))
    assert bound / 300.0 < largest <= bound  # and not much better


# --- more or less bias than with replacement -----------------------------------------------------


def test_the_softmax_as_proposal_has_no_bias_with_replacement_alone():
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.3])
    q = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(exact_bias(logits, 0, q, 3).bias).sum() < 1e-15
    assert np.abs(exact_bias(logits, 0, q, 3, scheme="distinct").bias).sum() > 1e-3


@pytest.mark.filterwarnings("ignore:the bias of scheme")  # a bias near 0 has few digits
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_uniform_draws_without_replacement_bias_the_label_and_the_loss_less(data):
    n = data.draw(st.integers(3, 12))
    logits = data.draw(st.lists(st.floats(-5.0, 5.0), min_size=n, max_size=n))
    m, q = data.draw(st.integers(2, n - 1)), np.full(n, 1.0 / n)
    without, with_ = (exact_bias(logits, 0, q, m, scheme=s) for s in ("distinct", "negatives"))
    assert -1e-13 <= without.bias[0] <= with_.bias[0] + 1e-13
    assert 1e-13 >= without.loss_bias >= with_.loss_bias - 1e-13


# --- strata --------------------------------------------------------------------------------------


def in_strata(logits, label, q, counts, strata, scheme, correction):
    """Bias (n,) and loss bias by all outcomes of all strata, mpf."""
    p, q = softmax(logits), [mpf(float(x)) for x in q]
    facts, n = SCHEMES[scheme], len(q)
    laws = []
    for g, m in enumerate(counts):
        own = [j for j in range(n) if strata[j] == g and not (facts.excludes_label and j == label)]
        inside = [q[j] for j in own]
        if facts.distinct:
            law = [([own[i] for i in s], c) for s, c in sets_of(inside, m, None).items()]
        else:
            total = mp.fsum(inside)
            draws = product(range(len(own)), repeat=m)
            law = [([own[i] for i in d], mp.fprod(inside[i] / total for i in d)) for d in draws]
        laws.append(law)
    often = [mp.fsum(c * d.count(j) for law in laws for d, c in law) for j in range(n)]
    c = often if correction is None else [mpf(float(x)) for x in correction]
    base = (p[label] if facts.label_in_sum else mpf(0)) / (c[label] if facts.corrects_label else 1)
    bias, loss = [-x for x in p], mp.log(c[label]) if facts.corrects_label else mpf(0)
    for parts in product(*laws):
        drawn = [j for draws, _ in parts for j in draws if facts.draws_label or j != label]
        chance = mp.fprod(one for _, one in parts)
        total = base + mp.fsum(p[j] / c[j] for j in drawn)
        for j in drawn:
            bias[j] += chance * p[j] / c[j] / total
        bias[label] += chance * base / total
        loss += chance * mp.log(total)
    return bias, loss


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(
    "scheme", ["distinct", "distinct_candidate", "negatives", "masked", "candidate_masked"]
)
@pytest.mark.parametrize("counts", [(1, 2), (2, 0), (2, 3)])
def test_strata_agree_with_all_outcomes(counts, scheme, corrected):
    logits, label = np.array([0.5, -1.0, 2.0, 0.0, 1.0, -0.5, 0.1]), 1
    q = np.array([0.1, 0.2, 0.15, 0.05, 0.2, 0.1, 0.2])
    strata = [0, 0, 0, 1, 1, 1, 1]
    correction = None if corrected else np.ones(7)
    got = stratified_bias(logits, label, q, counts, strata, scheme=scheme, correction=correction)
    with mp.workdps(30):
        bias, loss = in_strata(logits, label, q, counts, strata, scheme, correction)
        wrong, size = l1_error(got.bias, bias)
        assert wrong <= min(max(got.error, 1e-15), 1e-10 * size + 1e-15)
        assert abs(loss - mpf(got.loss_bias)) <= max(got.loss_error, 1e-15)


def test_a_label_that_is_excluded_may_have_any_q():
    tiny, none = (
        stratified_bias([0.0, 1.0, 2.0, 0.5], 0, [q, 0.5, 0.25, 0.25], 1, [0, 0, 1, 1])
        for q in (1e-310, 0.0)
    )
    np.testing.assert_array_equal(tiny.bias, none.bias)


def test_one_stratum_is_none():
    logits, q = np.random.default_rng(7).standard_normal((2, 40)), np.full(40, 1 / 40)
    one = stratified_bias(logits, [0, 1], q, 5, np.zeros(40, int), scheme="distinct_masked")
    other = exact_bias(logits, [0, 1], q, 5, scheme="distinct_masked")
    assert np.array_equal(one.bias, other.bias)
    assert np.array_equal(one.inclusion, other.inclusion)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strata": [0, 0, 1]}, r"`strata` must have shape \(4,\)"),
        ({"num_sampled": [1, 1, 1]}, "`num_sampled` must be one number, or one for each of the 2"),
        ({"num_sampled": 2}, "got 2 for stratum 0, which has 1 "),
        ({"scheme": "reject"}, "`scheme` must be one whose draws add up"),
        (
            {"scheme": "distinct_candidate", "num_sampled": [0, 1]},
            "`num_sampled` must be above 0 in the stratum of a label that is corrected",
        ),
        (
            {"scheme": "importance", "num_sampled": 0},
            "`num_sampled` must be above 0 in a stratum with scheme='importance'",
        ),
        ({"q": [0.5, 1e-310, 0.25, 0.25]}, "`q` must be 0 or at least 2.2e-308"),
        (
            {"q": [1e-310, 0.5, 0.25, 0.25], "scheme": "distinct_masked"},
            "`q` must be at least 1e-300 of the sum of what is drawn",
        ),
    ],
)
def test_strata_refuse(arguments, message):
    given = {"logits": np.zeros(4), "labels": 0, "q": np.full(4, 0.25)}
    given |= {"num_sampled": 1, "strata": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match=message):
        stratified_bias(**(given | arguments))


# --- corrections by the number of tries ----------------------------------------------------------


def sets_and_tries(q, m, most=2000):
    """Yield (set, number of tries, chance) of draws with replacement until m classes are there."""
    states = {frozenset(): 1.0}
    for tries in range(1, most + 1):
        after = {}
        for members, chance in states.items():
            for j, one in enumerate(q):
                grown = members | {j}
                after[grown] = after.get(grown, 0.0) + chance * one
        for members in [s for s in after if len(s) == m]:
            yield sorted(members), tries, after.pop(members)
        states = after


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("scheme", NAMES)
def test_tries_agree_with_all_outcomes(scheme):
    logits, q, label, m = np.arange(6.0), np.array([0.4, 0.2, 0.2, 0.1, 0.05, 0.05]), 1, 3
    p, facts = np.exp(logits) / np.exp(logits).sum(), SCHEMES[scheme]
    own = np.delete(np.arange(6), label) if facts.excludes_label else np.arange(6)
    law = q[own] / q[own].sum()
    expected, loss, fixed = np.zeros(6), 0.0, np.zeros(6)
    for members, tries, chance in sets_and_tries(law, m):
        c = np.ones(6)
        c[own] = m * law if tries == m else 1.0 - (1.0 - law) ** tries
        drawn = [j for j in own[members] if facts.draws_label or j != label]
        mass = np.zeros(6)
        mass[drawn] = p[drawn] / c[drawn]
        base = facts.label_in_sum * p[label] / (c[label] if facts.corrects_label else 1.0)
        mass[label] += base
        expected += chance * mass / mass.sum()
        loss += chance * (np.log(mass.sum()) + facts.corrects_label * np.log(c[label]))
        fixed += chance * tries
    result = tries_bias(logits, label, q, m, scheme=scheme)
    assert np.abs(result.expected_probs - expected).sum() < result.error
    assert abs(result.loss_bias - loss) < result.loss_error
    # a fixed number of tries is another loss
    c = np.ones(6)
    c[own] = 1.0 - (1.0 - law) ** fixed[0]
    other = exact_bias(logits, label, q, m, scheme=scheme, correction=c)
    assert np.abs(result.bias - other.bias).sum() > 1e-4


def test_tries_refuse():
    with pytest.raises(ValueError, match="`scheme` must be one of draws without replacement"):
        tries_bias(np.zeros(3), 0, np.full(3, 1 / 3), 1, scheme="masked")
    with pytest.raises(ValueError, match="must not need over 512 tries"):
        tries_bias(np.zeros(3), 0, [0.5, 0.5 - 1e-9, 1e-9], 3)
