"""The exact bias, and its estimated error, at the limits of floating point, by enumeration.

Every outcome of a few draws is visited, with digits beyond the least number that counts, `LOST`.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from mpmath import mpf
from oracles import naive
from oracles.extremes import LOST, enumerated, extreme

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.schemes import SCHEMES, exact_schemes

DIGITS = 400  # beyond the 289 of LOST


def check(logits, label, q, m, scheme):
    """Require ten digits of the bias, or for the jackknife a warning, and the error."""
    m = max(m, SCHEMES[scheme].min_draws)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = exact_bias(logits, label, q, m, scheme=scheme)
    error, norm = naive.l1_error(result.bias, enumerated(logits, label, q, m, scheme, DIGITS))
    assert error <= max(mpf(float(result.error)), LOST)
    if told:
        assert scheme in naive.JACKKNIFED  # whose bias is the rest of two larger ones
        assert "before you rely on its digits" in str(told[0].message)
        assert told[0].filename == __file__
    else:
        assert error <= max(mpf("1e-10") * norm, LOST)
        assert float(result.error) <= max(1.01e-10 * float(norm), 1e-280)


THIRDS = [0.4, 0.3, 0.3]
LEADS = {  # the label has all the mass, and more than float64 can tell
    "800 nats": ([0.0, -800.0, -1600.0], 0, THIRDS),
    "745 nats": ([0.0, -745.0, -1490.0], 0, THIRDS),
    "740 nats": ([0.0, -740.0, -1400.0], 0, THIRDS),
    "10,000 nats": ([1e4, -1e4, 3.0], 0, THIRDS),
    "285 nats, rare": ([0.0, -285.0, -300.0], 0, [1e-200, 0.5, 0.5]),
    "55 nats, very rare": ([0.0, -55.0, -30.0], 0, [1e-300, 0.5, 0.5]),
    "a sure label": ([300.0, 0.0, 1.0], 0, [1.0, 1e-60, 1e-40]),
}
TRAILS = {
    "a heavy class that is never drawn": ([10.0, -30.0], 1, [1.0, 2e-59]),
    "rare, of little mass": ([-745.0, -800.0, -30.0], 1, [2e-33, 2e-86, 1.0]),
    "two that are rare": ([-285.0, -745.0, -30.0], 0, [1e-100, 1e-100, 1.0]),
    "no mass at all": ([-745.0, 1e4, -1e4], 2, [5e-101, 0.5, 0.5]),
    "nearly always the label": ([-285.0, 3.0, -700.0], 1, [3e-7, 1.0 - 3.2e-7, 2e-8]),
    "a mean beside the reference": ([-20.6, 27.9, 20.4], 2, [4.7e-65, 1.0, 1.4e-21]),
}


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("scheme", exact_schemes())
def test_the_label_leads_or_trails_by_any_gap(scheme):
    """Each gap with 1 draw or with 3, the other number with the next scheme."""
    for k, case in enumerate((LEADS | TRAILS).values(), exact_schemes().index(scheme)):
        check(*case, (1, 3)[k % 2], scheme)


@pytest.mark.thorough(but=3)
@pytest.mark.slow
@pytest.mark.parametrize("scheme", exact_schemes())
def test_the_estimated_error_bounds_the_error(scheme):
    rng = np.random.default_rng(29)
    for _ in range(6):
        check(*extreme(rng), scheme)


@pytest.mark.parametrize("spread", [1.0, 40.0])
@pytest.mark.parametrize("scheme", ["negatives", "jackknife"])
def test_the_error_of_ratios_that_differ_by_a_hundredth(scheme, spread):
    """They are known by their logs, of whose digits the differences have lost two."""
    for seed in range(14):
        rng = np.random.default_rng(seed)
        logits = spread * rng.normal(size=3)
        q = np.exp(logits - logits.max()) * (1.0 + 1e-2 * rng.normal(size=3))
        q /= q.sum()
        check(logits, 1, q, 2, scheme)


def test_rounding_alone_would_be_too_small_an_estimate():
    """WRONG: an estimate without the digits that logits of 10,000 lack behind the point."""
    logits, q = [1e4, -285.0, -285.0], [4e-89, 8e-88, 1.0]
    result = exact_bias(logits, 2, q, 2, scheme="importance")
    exact = enumerated(logits, 2, q, 2, "importance", DIGITS)
    error, norm = naive.l1_error(result.bias, exact)
    assert 8 * 2e-15 * norm < error <= mpf(float(result.error))


def test_moments_of_a_label_that_trails_are_finite():
    moments = exact_gradient_moments([0.0, -700.0, -1400.0], 1, THIRDS, 1, np.eye(3))
    exact = naive.gradient_moments([0.0, -700.0, -1400.0], 1, THIRDS, 1, np.eye(3), 1.0)
    for got, wanted in zip(
        (moments.squared_bias, moments.variance, moments.mse), exact, strict=True
    ):
        assert abs(got - wanted) <= 1e-13 * wanted


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("gap", [0.0, 383.0, 700.0, 1e4])
@pytest.mark.parametrize("q", [THIRDS, [1e-300, 0.5, 0.5], [0.5, 1e-200, 0.5]])
def test_moments_are_never_negative_nor_nan(q, gap):
    for label in range(3):
        result = exact_gradient_moments([0.0, -gap, -2 * gap], label, q, 2, np.eye(3))
        assert 0.0 <= result.squared_bias <= result.mse < 4.0
        assert result.variance >= 0.0


def test_of_one_negative_there_is_no_variance():
    for gap in (0.0, 3.0, 40.0):
        result = exact_gradient_moments([gap, 0.0], 0, [0.3, 0.7], 5, [[0.2, 0.7], [0.9, -0.3]])
        assert result.variance == 0.0 and result.squared_bias == result.mse
