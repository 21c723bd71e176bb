"""What holds for every instance of the exact bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samplesoft import (
    asymptotic_bias,
    exact_bias,
    finite_sample_bounds,
    num_sampled_for,
)
from samplesoft.schemes import SCHEMES, exact_schemes

CASES = settings(max_examples=60, deadline=None)
DRAWS = st.sampled_from([2, 3, 10, 1000, 10**6, 10**9])
DYADIC = 2.0**-20  # logits on this grid can be shifted by whole numbers exactly


@st.composite
def instances(draw, max_classes=7, spread=20.0, smallest=-8.0):
    """Draw (logits, label, q)."""
    n = draw(st.integers(3, max_classes))
    logits = np.array(draw(st.lists(st.floats(-spread, spread), min_size=n, max_size=n)))
    powers = np.array(draw(st.lists(st.floats(smallest, 0.0), min_size=n, max_size=n)))
    powers[draw(st.integers(0, n - 1))] = 0.0
    q = 10.0**powers
    return np.round(logits / DYADIC) * DYADIC, draw(st.integers(0, n - 1)), q / q.sum()


LOST_DIGITS = "ignore:the bias of scheme='jackknife'"
wild = instances(spread=700.0, smallest=-300.0)
schemes = st.sampled_from(exact_schemes())
EVEN = (np.array([0.0, 1.0, -1.0, 0.5]), 0, np.array([0.25, 0.25, 0.25, 0.25]))


def size(bias):
    return np.abs(bias).sum()


@pytest.mark.filterwarnings(LOST_DIGITS)
@CASES
@given(instances(), DRAWS, schemes)
def test_bias_sums_to_zero(case, m, scheme):
    logits, label, q = case
    result = exact_bias(logits, label, q, m, scheme=scheme)
    assert abs(result.bias.sum()) <= 1e-12 * size(result.bias) + result.error
    assert np.all(result.probs + result.bias >= -1e-14) or SCHEMES[scheme].jackknife


@CASES
@given(wild, DRAWS, schemes)
def test_anything_gives_finite_numbers(case, m, scheme):
    logits, label, q = case
    result = exact_bias(logits, label, q, m, scheme=scheme)
    assert np.isfinite(result.bias).all()
    assert np.isfinite(result.loss_bias) and np.isfinite(result.error)
    assert size(result.bias) <= 2.0 + 1e-12 or SCHEMES[scheme].jackknife


@CASES
@given(wild, st.sampled_from([1, 2, 100, 10**9]))
def test_negatives_favour_the_label_and_lower_the_loss(case, m):
    logits, label, q = case
    result = exact_bias(logits, label, q, m)
    assert result.bias[label] >= 0.0
    assert result.loss_bias <= 0.0


@CASES
@given(instances(), DRAWS)
def test_no_bias_if_and_only_if_the_proposal_is_the_softmax(case, m):
    logits, label, q = case
    others = np.arange(len(q)) != label
    # ratios that are equal in floating point too: powers of two
    powers = np.round(np.log2(q))
    own, even = np.full(len(q), 0.25), 2.0**powers
    even[others] /= even[others].sum()
    own[others] = 0.75 * even[others]
    exactly = exact_bias(powers * np.log(2.0), label, own, m)
    rounding = 1e-14
    assert size(exactly.bias) <= rounding
    o = logits[others]
    ratio = np.exp(o - o.max()) / q[others]
    if np.ptp(ratio) > 1e-3 * ratio.max() and exactly.probs[label] > 0:
        result = exact_bias(logits, label, q, m)
        assert result.bias[label] > 0.0
        assert result.loss_bias < 0.0


@CASES
@given(instances(), DRAWS, schemes, st.randoms(use_true_random=False))
def test_permuting_classes_permutes_the_bias(case, m, scheme, random):
    logits, label, q = case
    order = list(range(len(q)))
    random.shuffle(order)
    first = exact_bias(logits, label, q, m, scheme=scheme)
    second = exact_bias(logits[order], order.index(label), q[order], m, scheme=scheme)
    bound = 1e-11 * size(first.bias) + 4 * first.error
    assert size(second.bias - first.bias[order]) <= bound


@CASES
@given(instances(), DRAWS, schemes, st.sampled_from([-300.0, -1.0, 64.0, 500.0]))
def test_shifting_all_logits_changes_nothing(case, m, scheme, shift):
    logits, label, q = case
    first = exact_bias(logits, label, q, m, scheme=scheme)
    second = exact_bias(logits + shift, label, q, m, scheme=scheme)
    assert size(second.bias - first.bias) <= 1e-13 * size(first.bias) + first.error
    assert second.loss_bias == pytest.approx(first.loss_bias, rel=1e-10, abs=1e-300)


@CASES
@given(
    st.one_of(instances(), wild),
    st.sampled_from([1, 2, 3, 10, 1000, 10**6, 10**9]),
    st.sampled_from(["negatives", "masked"]),
)
@example(EVEN, 1, "negatives")
def test_finite_sample_bounds_contain_the_bias(case, m, scheme):
    logits, label, q = case
    result = exact_bias(logits, label, q, m, scheme=scheme)
    bounds = finite_sample_bounds(logits, label, q, m, scheme=scheme)
    # the bounds of one draw meet, closer than the digits of a bias far below the largest one
    room = min(result.error, 1e-10 * size(result.bias)) + 1e-13 * size(result.bias)
    assert np.all(bounds.lower <= result.bias + room)
    assert np.all(bounds.upper >= result.bias - room)


@pytest.mark.parametrize(("m", "rtol"), [(10**6, 1e-2), (10**9, 1e-5)])
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_m_times_bias_tends_to_the_limit(scheme, m, rtol):
    @CASES
    @given(instances(spread=3.0, smallest=-2.0))
    def check(case):
        logits, label, q = case
        limit = asymptotic_bias(logits, label, q, scheme=scheme)
        assert abs(limit.sum()) <= 1e-12 * size(limit) + 1e-300
        if size(limit) > 1e-6:
            bias = exact_bias(logits, label, q, m, scheme=scheme).bias
            assert size(m * bias - limit) <= rtol * size(limit)

    check()


def test_schemes_differ_in_their_limits_and_bounds():
    logits, q = np.array([0.5, -1.0, 2.0, 0.0]), np.array([0.4, 0.3, 0.2, 0.1])
    a, b = (asymptotic_bias(logits, 2, q, scheme=name) for name in ("negatives", "masked"))
    assert size(a - b) > 0.01 * size(a)
    wrong = finite_sample_bounds(logits, 2, q, 20)
    masked = exact_bias(logits, 2, q, 20, scheme="masked").bias
    assert np.any((masked < wrong.lower) | (masked > wrong.upper))


def test_schemes_without_a_limit_or_bounds_are_refused():
    given = [0.0, 1.0, 2.0], 0, [0.2, 0.3, 0.5]
    for scheme in ("reject", "jackknife_masked", "importance", "poisson", "candidate"):
        words = f"e_t plus a mean.*are known of no other.*{scheme}"
        with pytest.raises(ValueError, match=words):
            finite_sample_bounds(*given, 5, scheme=scheme)
        with pytest.raises(ValueError, match=words):
            asymptotic_bias(*given, scheme=scheme)
        with pytest.raises(ValueError, match=words):
            num_sampled_for(*given, 0.1, scheme=scheme)


@CASES
@given(
    instances(),
    st.sampled_from(["negatives", "reject", "importance", "jackknife", "jackknife_masked"]),
)
def test_bias_falls_with_the_number_of_draws(case, scheme):
    logits, label, q = case
    sizes = [size(exact_bias(logits, label, q, m, scheme=scheme).bias) for m in (10**7, 10**9)]
    first = exact_bias(logits, label, q, 10**9).bias
    if size(first) > 1e-25 and max(np.log(q).max() - np.log(q).min(), np.ptp(logits)) < 8.0:
        assert sizes[1] < 0.1 * sizes[0]


@CASES
@pytest.mark.filterwarnings("ignore:the bias of scheme")  # of next to none few digits are left
@given(instances(max_classes=4), DRAWS, schemes)
def test_gradient_bias_is_linear(case, m, scheme):
    logits, label, q = case
    result = exact_bias(logits, label, q, m, scheme=scheme)
    n = len(logits)
    np.testing.assert_allclose(result.gradient_bias(np.eye(n)), result.bias, rtol=1e-15)
    ones = result.gradient_bias(np.ones((n, 1)))
    assert abs(ones[0]) <= 1e-12 * size(result.bias)
