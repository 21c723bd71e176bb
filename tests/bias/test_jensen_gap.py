"""The close bounds on E[1/S]: their parts against enumeration, and how close they come."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from samplesoft import exact_bias, finite_sample_bounds
from samplesoft.bias import jensen_gap, lower_tail
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
        values, p3 = orthogonal(y, chance, 3)
        left_out = chance @ (values**2 / (mu + y)) / p3(-mu) ** 2
        expected = chance @ (1.0 / (mu + y)) - left_out - 1.0 / mu
        found = jensen_gap.gap_below(law, np.array([mu]))[0]
        assert found == pytest.approx(expected, rel=1e-8)
        assert found <= expected * (1.0 + 1e-13)
    low = jensen_gap.gap_below(law, np.ones(1))[0]
    assert finite_sample_bounds(logits, 0, q, m).lower[0] >= a * low * (1.0 - 1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_jacobi_coefficients_contain_those_of_all_outcomes(seed):
    m, draws = 9, 6
    logits, q, _, r, qn = instance(seed)
    y, chance = outcomes(r, qn, draws, m)
    law = sum_moments(draw_moments(make_negatives(logits, 0, q)), draws, m)
    (p1, _), (p2, _) = orthogonal(y, chance, 1), orthogonal(y, chance, 2)
    norms = chance @ p1**2, chance @ p2**2
    b1, g1 = norms[0], chance @ (y * p1**2) / norms[0]
    b2, g2 = norms[1] / norms[0], chance @ (y * p2**2) / norms[1]
    for interval, value in ((law.b1, b1), (law.g1, g1), (law.b2, b2)):
        assert interval.low == pytest.approx(value, rel=1e-9)
        assert interval.high == pytest.approx(value, rel=1e-9)
        assert interval.low < interval.high
    assert law.g2.high == pytest.approx(g2, rel=1e-9)


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
            (25, 0.05, 0.05, 0.3),
            (75, 0.01, 0.01, 0.05),
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
