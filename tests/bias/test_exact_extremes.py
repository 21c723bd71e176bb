"""The exact bias against 50 digits: huge logits, tiny proposals, many draws, tiny biases."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import frozen, naive

from samplesoft import exact_bias
from samplesoft.schemes import SCHEMES, exact_schemes

DRAWS = (1, 2, 3, 100, 10**4, 10**9)
NO_MORE = mpf("1e-290")  # a bias below this is lost in float64
THIRDS = [1 / 3, 1 / 3, 1 / 3]


def softmax(logits):
    e = np.exp(np.asarray(logits) - np.max(logits))
    return e / e.sum()


def off_by(p, size):
    """A proposal that differs from `p` by a relative `size`, alternately up and down."""
    q = p * (1.0 + size * (-1.0) ** np.arange(len(p)))
    return q / q.sum()


def assert_exact(logits, label, q, m, scheme, rtol=1e-10, dps=30):
    if scheme in naive.JACKKNIFED and m == 1:
        m = 2
    result = exact_bias(logits, label, q, m, scheme=scheme)
    assert np.isfinite(result.bias).all() and np.isfinite(result.loss_bias)
    assert np.isfinite(result.error) and result.error >= 0.0
    bias, loss_bias = frozen.laplace(logits, label, q, m, scheme, dps=dps)
    error, norm = naive.l1_error(result.bias, bias)
    if norm < NO_MORE:
        assert np.abs(result.bias).sum() <= max(1e-289, 3 * result.error) < 1e-7
        return
    assert error <= rtol * norm, f"relative error {float(error / norm):.1e} of {float(norm):.1e}"
    # the estimate covers the error, but for the last bits of p itself
    assert error <= 10 * mpf(float(result.error)) + 1e-12 * norm, f"estimate {result.error:.1e}"
    with mp.workdps(60):
        # m log S_m - (m - 1) log S_(m - 1) takes its rounding m times
        relative = max(1e-8, 2e-16 * m) if scheme in naive.JACKKNIFED else 1e-10
        room = relative * (abs(loss_bias) + norm) + mpf("1e-15")
        loss_error = abs(loss_bias - mpf(float(result.loss_bias)))
        assert loss_error <= room
        assert loss_error <= 3 * mpf(float(result.loss_error)) + mpf("1e-290")


# (logits, label, q): the same under every scheme
PLAIN = {
    "even": ([0.5, -0.5, 1.0], 0, [0.2, 0.3, 0.5]),
    "two clusters": ([0.0, 30.0, 30.0, 0.0, 30.0], 1, [0.2, 0.2, 0.2, 0.2, 0.2]),
    "rare heavy class": ([0.0, 0.0, 0.5], 0, [0.5, 1e-10, 0.5 - 1e-10]),
    "dominating label": ([0.0, 25.0, 0.5, -1.0], 1, [0.25, 0.25, 0.25, 0.25]),
    "dominating negative": ([0.0, 25.0, 0.5, -1.0], 0, [0.25, 0.25, 0.25, 0.25]),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("m", [2, 100, 10**9])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_ordinary_and_lopsided(scheme, m, case):
    if scheme == "poisson" and m > 2:
        pytest.skip("no draws to count")
    if (m, case) == (2, "two clusters") and scheme in naive.JACKKNIFED:
        pytest.skip("the bias of 1e-186 is the rest of terms of order 1")
    assert_exact(*PLAIN[case], m, scheme)


HUGE = {
    "700": ([700.0, -700.0, 0.0], 2, [0.25, 0.25, 0.5]),
    "700 with a rare class": ([700.0, -700.0, 0.0], 0, [0.5, 1e-300, 0.5]),
    "two at the top": ([700.0, 699.5, -700.0], 0, [0.25, 0.5, 0.25]),
    "rare at the top": ([-700.0, 700.0, 699.0], 0, [0.25, 1e-300, 0.75]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HUGE)
@pytest.mark.parametrize("m", [3, 10**9])
@pytest.mark.parametrize("scheme", [s for s in exact_schemes() if s not in ("reject", "poisson")])
def test_logits_of_700(scheme, m, case):
    assert_exact(*HUGE[case], m, scheme)


@pytest.mark.slow
@pytest.mark.parametrize("case", HUGE)
@pytest.mark.parametrize(("scheme", "m"), [("reject", 2), ("poisson", 1)])
def test_logits_of_700_with_a_random_number_of_draws(scheme, m, case):
    assert_exact(*HUGE[case], m, scheme)


TINY = {
    "one": ([0.0, 1.0, -1.0], 0, [0.5, 1e-300, 0.5]),
    "labels": ([0.0, 1.0, -1.0], 0, [1e-300, 0.4, 0.6]),
    "sure label": ([0.0, 1.0, -1.0], 0, [1.0, 1e-300, 3e-300]),
    "several": ([0.0, 1.0, -1.0, 0.5], 3, [1e-200, 1e-100, 1.0, 1e-10]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("m", [3, 10**4])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_proposals_down_to_1e_300(scheme, m, case):
    if (scheme, m) == ("poisson", 3):
        pytest.skip("no draws to count")
    assert_exact(*TINY[case], m, scheme)


@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12, 0.0])
@pytest.mark.parametrize("m", [2, 100, 10**9])
@pytest.mark.parametrize("scheme", ["negatives", "jackknife", "reject", "importance"])
def test_proposal_close_to_the_softmax(scheme, m, size):
    # with size 0 the bias is that of the rounding of q, and still has its digits
    logits = [0.3, -1.0, 2.0, 0.7]
    q = off_by(softmax(logits), size)
    bias, _ = frozen.laplace(logits, 1, q, m, scheme, dps=15)
    error, norm = naive.l1_error(exact_bias(logits, 1, q, m, scheme=scheme).bias, bias)
    if scheme == "reject" and m == 2:
        assert norm > 1e-6  # sometimes no draw is left
    elif scheme in naive.JACKKNIFED:
        assert norm < size / m + 1e-15  # of second order in 1/m
    else:
        assert norm < 3 * size / m + 1e-15
    if norm > 1e-33:
        assert error <= 1e-10 * norm


def test_proposal_equal_to_the_softmax_has_no_bias_at_all():
    for scheme in ("negatives", "jackknife", "importance"):
        result = exact_bias([1.0, 0.0, 0.0, 0.0], 0, [0.25, 0.25, 0.25, 0.25], 5, scheme=scheme)
        if scheme == "importance":
            result = exact_bias([0.0] * 4, 0, [0.25] * 4, 5, scheme=scheme)
        np.testing.assert_array_equal(result.bias, 0.0)
        assert abs(result.loss_bias) < 1e-30


@pytest.mark.parametrize("scheme", ["candidate", "candidate_masked"])
@pytest.mark.parametrize("gap", [5.0, 20.0, 35.0])
def test_a_label_with_nearly_all_the_mass_keeps_its_digits(scheme, gap):
    logits, q = [gap, 0.0, 0.5], THIRDS
    for m in (2, 100, 10**9):
        result = exact_bias(logits, 0, q, m, scheme=scheme)
        bias = frozen.laplace(logits, 0, q, m, scheme, dps=40)[0]
        error, norm = naive.l1_error(result.bias, bias)
        assert error <= 10 * mpf(float(result.error)) + 1e-12 * norm
        assert error <= 1e-10 * norm


@pytest.mark.parametrize("scheme", exact_schemes())
def test_error_estimate_is_fair(scheme):
    rng = np.random.default_rng(17)
    for m in (1, 4, 30, 1000, 10**6, 10**9):
        logits, q = rng.normal(size=4) * 2.0, rng.dirichlet(np.full(4, 2.0))
        if scheme in naive.JACKKNIFED and m == 1:
            continue
        result = exact_bias(logits, 2, q, m, scheme=scheme)
        bias = frozen.laplace(logits, 2, q, m, scheme, dps=15)[0]
        error, norm = naive.l1_error(result.bias, bias)
        assert error <= 5 * mpf(float(result.error))
        assert result.error <= 1e-10 * float(norm), (m, result.error, float(norm))


@pytest.mark.parametrize("m", DRAWS)
def test_largest_class_keeps_the_sum_at_zero(m):
    for scheme in exact_schemes():
        draws = max(m, SCHEMES[scheme].min_draws)
        result = exact_bias([9.0, -4.0, 1.0, 3.0], 1, [0.1, 0.2, 0.3, 0.4], draws, scheme=scheme)
        assert abs(result.bias.sum()) <= 1e-13 * np.abs(result.bias).sum()


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.parametrize("smallest", [5e-324, 1e-309])
def test_probabilities_without_all_their_digits_are_refused(scheme, smallest):
    """Their inverses do not fit: biases were infinite, and once wrong."""
    logits, q = [0.0, 1.0, 2.0], [0.3, smallest, 0.7]
    with pytest.raises(ValueError, match=r"`q` must be 0 or at least 2.2e-308, .* at class 1"):
        exact_bias(logits, 0, q, 2, scheme=scheme)
    q[1] = 1e-307
    assert np.isfinite(exact_bias(logits, 0, q, 2, scheme=scheme).bias).all()


def test_a_label_that_is_not_drawn_may_have_any_probability():
    tiny, none = (exact_bias([0.0, 1.0, 2.0], 0, [x, 0.3, 0.7], 2) for x in (1e-310, 0.0))
    np.testing.assert_array_equal(tiny.bias, none.bias)


def test_logits_beyond_their_digits_warn():
    with pytest.warns(RuntimeWarning, match="may be off by 2.7"):
        exact_bias([1e16, 1e16 + 2.0, 0.0], 2, [0.3, 0.3, 0.4], 2)
