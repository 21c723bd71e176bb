"""The compiled pieces of the exact bias, each against mpmath or a plain sum."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from samplesoft.bias.numerics.summation import weighted_median
from samplesoft.bias.with_replacement import deviations, laplace
from samplesoft.kernels import panels

SERIES = {
    laplace.second_order: lambda x: (mp.exp(-x) - 1 + x) / x**2,
    laplace.tangent: lambda x: (1 - (1 + x) * mp.exp(-x)) / x**2,
}


@pytest.mark.parametrize("function", SERIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("x", [-30.0, -1.0, -0.9999, -1e-3, 1e-12, 0.3, 0.999, 1.0, 2.5, 600.0])
def test_series_keep_their_digits(function, x):
    with mp.workdps(60):
        want = SERIES[function](mpf(x))
        assert abs(mpf(function(x)) - want) <= 4e-15 * abs(want)


def exact_deviation(o, o_ref, q, q_ref):
    with mp.workdps(60):
        return mp.exp(mpf(o) - mpf(o_ref)) * mpf(q_ref) / mpf(q) - 1


@pytest.mark.parametrize("size", [1e-3, 1e-8, 1e-13, 1e-16])
@pytest.mark.parametrize("gap", [0.0, 3.7, -60.0, 690.0, -690.0])
def test_deviation_keeps_28_digits_before_the_subtraction(gap, size):
    rng = np.random.default_rng(7)
    for _ in range(20):
        q_ref = math.exp(min(0.0, -gap)) * rng.uniform(0.5, 1.0)
        o_ref = rng.normal()
        o = o_ref + gap
        with mp.workdps(60):
            q = float(mpf(q_ref) * mp.exp(mpf(o) - mpf(o_ref)) * (1 + mpf(size * rng.normal())))
        want = exact_deviation(o, o_ref, q, q_ref)
        log_ratio = float(mp.log1p(want))
        got = deviations.deviation(log_ratio, o, o_ref, q, q_ref)
        assert abs(got - want) <= 4e-16 * abs(want) + 1e-26


def test_a_plain_difference_of_logs_would_lose_them():
    o, o_ref, q_ref = 690.0, 0.0, 1e-300
    q = float(mpf(q_ref) * mp.exp(690) * (1 + mpf("1e-9")))
    want = exact_deviation(o, o_ref, q, q_ref)
    plain = math.expm1((o - o_ref) - (math.log(q) - math.log(q_ref)))
    assert abs(plain - want) > 1e-6 * abs(want)


@pytest.mark.parametrize("gap", [3.0, -20.0, 650.0, 705.0, 720.0, 900.0])
def test_a_ratio_of_any_size_keeps_its_part_in_the_mean(gap):
    """Beyond exp(709) the ratio itself leaves float64, its product with a rare draw does not."""
    logits, q = np.array([0.0, gap - 600.0]), np.array([1.0, math.exp(-600.0)])
    contrast = np.zeros(2)
    columns = logits, logits - np.log(q), q, q, q
    mean = deviations.relative_ratios(*columns, (0.0, 1.0, 0.0), contrast)[0][0]
    with mp.workdps(60):
        deviation = mp.exp(mpf(logits[1])) / mpf(q[1]) - 1
        assert abs(mpf(mean) - mpf(q[1]) * deviation) <= 1e-12 * abs(mpf(q[1]) * deviation)
        assert abs(mpf(contrast[1]) - deviation / (2 + deviation)) < 1e-14
    assert contrast[0] == 0.0


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_weighted_median_splits_the_weight(pairs):
    values = np.array([v for v, _ in pairs])
    weights = np.array([w for _, w in pairs])
    if not weights.any():
        weights[0] = 1.0
    median = values[weighted_median(values, weights)]
    half = 0.5 * weights.sum() * (1 + 1e-12)
    assert weights[values < median].sum() <= half
    assert weights[values > median].sum() <= half


@pytest.mark.parametrize("seed", range(6))
def test_weighted_median_of_many_values(seed):
    """More than the histogram has bins, so that few of them are sorted."""
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=20_000) ** 3, rng.random(20_000) ** (1 + seed)
    weights[rng.random(20_000) < 0.1] = 0.0
    median = values[weighted_median(values, weights)]
    half = 0.5 * weights.sum() * (1 + 1e-12)
    assert weights[values < median].sum() <= half
    assert weights[values > median].sum() <= half


def test_weighted_median_of_values_that_are_next_to_equal():
    values, weights = np.array([0.0, -1.1e-308, 3.0]), np.array([1.0, 0.5, 0.1])
    assert weighted_median(values, weights) == 0
    assert weighted_median(values[:2], weights[:2]) == 0
    assert weighted_median(-values[:2], weights[:2]) == 0


def compressed(log_r, weights, contrast):
    """Atoms, weights (3, A) and places of one set of classes, with R = 1 and mean exp(0.2)."""
    width, first = panels.WIDTH, math.floor(log_r.min() / panels.WIDTH)
    count = math.floor(log_r.max() / panels.WIDTH) - first + 1
    places = panels.place(log_r, width, first, count)
    rows, zeta = panels.class_weights(log_r, weights, contrast, 0.2, math.tanh(0.1))
    np.testing.assert_allclose(zeta, np.tanh(0.5 * (log_r - 0.2)), rtol=0, atol=1e-14)
    moments = np.zeros((count, 3, panels.DEGREE))
    panels.add_moments(*places, rows, moments)
    atoms = (first + np.arange(count)[:, None] + panels.node_positions()) * width
    return atoms, np.moveaxis(moments @ panels.coefficient_matrix().T, 1, 0), places


@pytest.mark.parametrize("rate", [1e-6, 0.05, 1.0, 30.0])
def test_panels_carry_sums_and_values(rate):
    rng = np.random.default_rng(3)
    log_r = rng.normal(size=3000) * 4.0
    weights = rng.dirichlet(np.ones(3000))
    contrast = np.tanh(0.5 * log_r)
    zeta = np.tanh(0.5 * (log_r - 0.2))
    atoms, measure, places = compressed(log_r, weights, contrast)

    def decay(t):
        return np.exp(-rate * np.exp(t))

    for row, factor in enumerate((1.0, contrast, zeta**2)):
        direct = math.fsum(weights * factor * decay(log_r))
        size = math.fsum(np.abs(weights * factor))
        assert abs((measure[row] * decay(atoms)).sum() - direct) <= 2e-14 * size

    coefficients = np.stack([decay(atoms), -atoms], axis=1) @ panels.coefficient_matrix()
    values = panels.evaluate(*places, coefficients)
    assert np.allclose(values[0], decay(log_r), rtol=0, atol=2e-14)
    assert np.allclose(values[1], -log_r, rtol=0, atol=1e-13)


def test_what_lies_beyond_the_panels_is_at_their_ends():
    t = np.array([-np.inf, -1e300, -0.75, 0.75, 1.5, np.inf])
    panel, s = panels.place(t, 0.75, -1, 3)
    assert panel.tolist() == [0, 0, 0, 2, 2, 2]
    assert s.tolist() == [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0]
