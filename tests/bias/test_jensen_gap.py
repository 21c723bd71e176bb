"""The close bounds on E[1/S]: their parts against enumeration, and how close they come."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from samplesoft import exact_bias, finite_sample_bounds
from samplesoft.bias import gauss_rule, jensen_gap, lower_tail
from samplesoft.bias.draw_law import make_draw_law
from samplesoft.bias.draw_moments import draw_moments, sum_moments
from samplesoft.bias.negatives import make_negatives
from samplesoft.schemes import SCHEMES

SCHEME = SCHEMES["negatives"]


def instance(seed, n=4, spread=1.5):
    """Return (logits, q, a, r, qn) of an example whose label is class 0, in units where Z is 1."""
    rng = np.random.default_rng(seed)
    logits, q = spread * rng.normal(size=n), rng.dirichlet(np.ones(n)) * 0.9 + 0.1 / n
    p = np.exp(logits) / np.exp(logits).sum()
    qn = q[1:] / q[1:].sum()
    return logits, q, p[0], p[1:] / qn, qn


def outcomes(r, qn, draws, m):
    """Return the values of the sum of r / m over the draws, less its mean, and their chances."""
    every = np.array(list(itertools.product(range(len(r)), repeat=draws)))
    return r[every].sum(axis=1) / m - draws * (qn @ r) / m, qn[every].prod(axis=1)


def orthogonal(y, chance, degree):
    """Return the values at y of the polynomial orthogonal to lower degrees, and itself."""
    basis, polynomials = [], []
    for k in range(degree + 1):
        monomial = np.polynomial.Polynomial.basis(k)
        for p, values in zip(polynomials, basis, strict=True):
            monomial -= p * (chance @ (values * y**k)) / (chance @ values**2)
        polynomials.append(monomial)
        basis.append(monomial(y))
    return basis[-1], polynomials[-1]


@pytest.mark.parametrize(("seed", "m"), [(0, 4), (1, 6), (2, 7), (3, 5)])
def test_the_lower_bound_is_that_of_gauss(seed, m):
    logits, q, a, r, qn = instance(seed)
    y, chance = outcomes(r, qn, m, m)
    law = sum_moments(draw_moments(make_negatives(logits, 0, q)), m, m)
    for mu in (1.0, 1.3, 4.0):
        values, last = orthogonal(y, chance, len(law.norms) + 1)
        left_out = chance @ (values**2 / (mu + y)) / last(-mu) ** 2
        expected = chance @ (1.0 / (mu + y)) - left_out - 1.0 / mu
        found = jensen_gap.gap_below(law, np.array([mu]))[0]
        assert found == pytest.approx(expected, rel=1e-5)
        assert found <= expected * (1.0 + 1e-13)
    low = jensen_gap.gap_below(law, np.ones(1))[0]
    assert finite_sample_bounds(logits, 0, q, m).lower[0] >= a * low * (1.0 - 1e-10)


@pytest.mark.parametrize(("seed", "n", "draws"), [(0, 4, 6), (1, 4, 6), (2, 9, 3), (3, 7, 4)])
def test_jacobi_coefficients_contain_those_of_all_outcomes(seed, n, draws):
    m = 9
    logits, q, _, r, qn = instance(seed, n=n)
    y, chance = outcomes(r, qn, draws, m)
    law = sum_moments(draw_moments(make_negatives(logits, 0, q)), draws, m)
    polynomials = [orthogonal(y, chance, k)[0] for k in range(len(law.norms) + 1)]
    sizes = [chance @ values**2 for values in polynomials]
    assert len(law.norms) >= 4
    for k, (norm, slope) in enumerate(zip(law.norms, law.slopes, strict=True), start=1):
        middle = chance @ (y * polynomials[k] ** 2) / sizes[k]
        room = 1e-9 if k < 3 else 1e-4
        for interval, value in ((norm, sizes[k] / sizes[k - 1]), (slope, middle)):
            assert interval.low < value < interval.high
            assert interval.high - interval.low <= room * max(abs(value), sizes[1] ** 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_chances_are_chernoffs_and_above_the_true_ones(seed):
    logits, q, _, r, qn = instance(seed, spread=2.0)
    m, draws = 8, 7
    law = make_draw_law(logits, 0, q, m, SCHEME)
    tail = lower_tail.chernoff(
        lower_tail.make_transform(law, 1e-14), draws, m, float(np.log(r.min()))
    )
    y, chance = outcomes(r, qn, draws, m)
    for x, below, bound in zip(tail.x[:-1], tail.below[:-1], tail.chance[:-1], strict=True):
        assert bound >= chance[y <= -below].sum()
        best = minimize_scalar(
            lambda log_v, d=below: (
                draws * np.log(qn @ np.exp(-np.exp(log_v) * (r - qn @ r))) - m * np.exp(log_v) * d
            ),
            bounds=(-8.0, 6.0),
            method="bounded",
        )
        if best.fun > -15.0 and x > 0.05:
            assert best.fun * (1.0 + 1e-9) <= np.log(bound) <= best.fun * 0.98


def heavy(seed=0, n=2000):
    """Return logits whose ratios under uniform draws have a long tail, and the proposal."""
    return np.log(np.random.default_rng(seed).pareto(1.2, size=n) + 1.0), np.full(n, 1.0 / n)


def test_without_the_chances_the_upper_bound_fails(monkeypatch):
    logits, q = heavy()
    bias = exact_bias(logits, 0, q, 382).bias
    assert (finite_sample_bounds(logits, 0, q, 382).upper > bias).all()

    def none(*args):
        tail = lower_tail.chernoff(*args)
        return tail._replace(chance=np.zeros_like(tail.chance))

    monkeypatch.setattr(jensen_gap, "chernoff", none)
    assert (finite_sample_bounds(logits, 0, q, 382).upper < bias).mean() > 0.9


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_laws_of_few_points_lose_no_moments(scheme):
    """Where a rule stops early for rounding, what is made of it must not go on without moments."""
    one_large = np.zeros(2000)
    one_large[5] = np.log(2000.0) / 2.0
    skewed = np.array([8.2e-2, 4.6e-1, 1.1e-6, 4.6e-1])
    for logits, label, q in (
        (one_large, 0, np.full(2000, 1 / 2000)),
        (np.array([0.0, 0.0, -4.5, 5.0]), 3, skewed / skewed.sum()),
    ):
        for m in (2, 5, 47, 1000):
            exact = exact_bias(logits, label, q, m, scheme=scheme)
            bounds = finite_sample_bounds(logits, label, q, m, scheme=scheme)
            assert (bounds.lower <= exact.bias + exact.error).all()
            assert (exact.bias - exact.error <= bounds.upper).all()


def test_a_rule_that_stopped_early_limits_its_sums():
    rule = gauss_rule.jacobi_matrix(np.array([-2.0, 1.0, 1.0]), np.full(3, 1 / 3), 6, 1e-16)
    assert len(rule.norms) == rule.limit == 2
    assert len(gauss_rule.sum_of_draws(rule, 9).norms) == 2
    whole = gauss_rule.jacobi_matrix(np.array([-1.0, 2.0]), np.array([2 / 3, 1 / 3]), 6, 1e-16)
    assert (len(whole.norms), whole.limit) == (2, 6)


def proposals():
    rng = np.random.default_rng(0)
    n = 2000
    logits, uniform = 2.0 * rng.normal(size=n), np.full(n, 1.0 / n)
    near = np.exp(logits + rng.normal(size=n))
    yield logits, uniform, rng
    yield logits, near / near.sum(), rng
    yield *heavy(), rng


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_are_close_where_m_is_a_multiple_of_the_second_moment(scheme):
    for logits, q, rng in proposals():
        p = np.exp(logits - logits.max())
        p /= p.sum()
        vectors = rng.normal(size=(len(p), 16))
        for multiple, label_room, room, gradient_room in (
            (3, 0.07, 0.05, 0.3),
            (25, 0.001, 0.001, 0.005),
            (75, 1e-5, 1e-5, 5e-5),
        ):
            m = int(multiple * (p**2 / q).sum())
            bias = exact_bias(logits, 0, q, m, scheme=scheme).bias
            bounds = finite_sample_bounds(logits, 0, q, m, scheme=scheme)
            assert ((bounds.lower <= bias) & (bias <= bounds.upper)).all()
            assert bounds.upper[0] <= (1.0 + label_room) * bias[0]
            assert bounds.lower[0] >= (1.0 - label_room) * bias[0]
            assert (bounds.upper - bounds.lower).sum() <= room * np.abs(bias).sum()
            lower, upper = bounds.gradient(vectors)
            exact = bias @ vectors
            assert ((lower <= exact) & (exact <= upper)).all()
            assert (upper - lower).sum() <= gradient_room * np.abs(exact).sum()


def test_the_theorem_in_closed_terms():
    """Eq. (B41), and a twin without the chance, which fails."""
    failures = 0
    for seed in range(60):
        logits, q, a, r, qn = instance(seed, n=5, spread=3.0)
        y = r - qn @ r
        v, rho = qn @ y**2, qn @ r**2
        slope = qn @ y**3 / v
        for m, d in itertools.product((1, 5, 40), (0.2, 0.5, 0.9)):
            b = exact_bias(logits, 0, q, m).bias[0]
            first = a * v / ((1.0 - d) * (m + v / d))
            assert a * v / (m + slope - v) <= b * (1.0 + 1e-10)
            assert b <= first + np.exp(-m * d**2 / (2.0 * rho)) + 1e-12
            failures += b > first
    assert failures > 10
