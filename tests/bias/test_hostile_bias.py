"""The exact bias at the ends of floats, against all outcomes, and how long it takes there."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.hostile_bias import DIGITS, exact, problem

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias import stratified_bias
from samplesoft.bias.bounds import finite_sample_bounds
from samplesoft.bias.moments import sets
from samplesoft.bias.without_replacement import expectations, terms
from samplesoft.schemes import SCHEMES, exact_schemes

EVERY = exact_schemes() + exact_schemes(distinct=True)
LOST = mpf("1e-289")  # near the least numbers of float64 all have few digits


def draws_for(scheme, label, q, m):
    """As many draws as the scheme allows, 0 for none."""
    facts = SCHEMES[scheme]
    if facts.distinct:
        return min(m, int(np.count_nonzero(q)) - int(facts.excludes_label and q[label] > 0.0))
    return max(m, facts.min_draws)


def check(found, logits, label, q, m, scheme, correction=None):
    """No error is above its estimate, which is none for nothing."""
    bias, loss = exact(logits, label, q, m, scheme, correction)
    with mp.workdps(DIGITS):
        wrong = mp.fsum(abs(mpf(float(x)) - y) for x, y in zip(found.bias, bias, strict=True))
        assert wrong <= mpf(float(found.error)) + LOST
        assert abs(mpf(float(found.loss_bias)) - loss) <= mpf(float(found.loss_error)) + LOST
        return float(mp.fsum(abs(x) for x in bias))


@pytest.mark.filterwarnings("ignore:the bias of scheme")
@pytest.mark.thorough(but=12)
@pytest.mark.parametrize("scheme", EVERY)
@pytest.mark.parametrize("corrected", [True, False])
def test_no_error_is_above_its_estimate(scheme, corrected):
    rng = np.random.default_rng([7, corrected])
    for _ in range(3 if SCHEMES[scheme].distinct or SCHEMES[scheme].jackknife else 12):
        logits, label, q, m, correction = problem(rng, corrected)
        m = draws_for(scheme, label, q, m)
        others = np.delete(q, label).any()
        if m and (others or SCHEMES[scheme].draws_label or SCHEMES[scheme].corrects_label):
            found = exact_bias(logits, label, q, m, scheme=scheme, correction=correction)
            check(found, logits, label, q, m, scheme, correction)


# --- classes that are never drawn, beside a correction ------------------------------------------


@pytest.mark.parametrize("correction", [np.ones(4), np.array([0.2, 3.0, 0.5, 1e-3])])
@pytest.mark.parametrize("zeros", [[0], [1], [0, 1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("scheme", EVERY)
def test_a_class_whose_q_is_zero_is_never_drawn(scheme, zeros, correction):
    """The label, number 0, or others: with what stands for it in S, or without."""
    logits, q = [0.3, -1.0, 2.0, 0.5], np.array([0.1, 0.4, 0.2, 0.3])
    q[zeros] = 0.0
    q /= q.sum()
    m = draws_for(scheme, 0, q, 2)
    found = exact_bias(logits, 0, q, m, scheme=scheme, correction=correction)
    check(found, logits, 0, q, m, scheme, correction)
    assert found.error < 1e-11
    never = [j for j in zeros if j or not SCHEMES[scheme].label_in_sum]
    np.testing.assert_allclose(found.expected_probs[never], 0.0, atol=1e-14)


def test_importance_without_draws_of_the_label_by_hand():
    found = exact_bias([0, 0, 0], 0, [0, 0.5, 0.5], 1, scheme="importance", correction=[1, 1, 1])
    np.testing.assert_allclose(found.bias, [-1 / 3, 1 / 6, 1 / 6], atol=1e-14)
    assert found.loss_bias == pytest.approx(-np.log(3.0), rel=1e-14)


@pytest.mark.parametrize("scheme", ["importance", "candidate", "masked", "distinct_candidate"])
def test_strata_with_a_label_that_is_never_drawn(scheme):
    logits, q, ones = [0.3, -1.0, 2.0, 0.5], np.array([0.0, 0.5, 0.25, 0.25]), np.full(4, 0.7)
    one = stratified_bias(logits, 0, q, 2, np.zeros(4, int), scheme=scheme, correction=ones)
    m = 1 if SCHEMES[scheme].distinct else 2  # of whose draws the mean number is divided by
    other = exact_bias(logits, 0, q, 2, scheme=scheme, correction=ones / m)
    np.testing.assert_allclose(one.bias, other.bias, atol=1e-12)
    assert one.loss_bias == pytest.approx(other.loss_bias, abs=1e-12)


@pytest.mark.parametrize("scheme", ["candidate", "candidate_masked", "distinct_candidate"])
def test_a_label_that_is_corrected_needs_a_correction_though_it_is_never_drawn(scheme):
    with pytest.raises(ValueError, match="`correction` must be greater than 0, and at least"):
        exact_bias([0, 1, 2], 0, [0, 0.5, 0.5], 1, scheme=scheme, correction=[0.0, 1.0, 1.0])


# --- all that can be drawn is drawn -------------------------------------------------------------


@pytest.mark.parametrize("height", [30.0, 700.0, 740.0, 745.0, 800.0, 1e5, 1e300])
@pytest.mark.parametrize("scheme", exact_schemes(distinct=True))
def test_what_is_drawn_for_certain_may_be_nothing_beside_what_is_not(scheme, height):
    logits, q, ones = [0.0, -1.0, 0.3, height], [0.25, 0.25, 0.5, 0.0], np.ones(4)
    m = draws_for(scheme, 0, np.array(q), 3)
    for c in (ones, np.array([1e308, 1e308, 1e308, 1.0]), np.array([1e-300, 2e-300, 1e300, 1.0])):
        found = exact_bias(logits, 0, q, m, scheme=scheme, correction=c)
        check(found, logits, 0, q, m, scheme, c)
        assert found.error < 1e-11
        strata = stratified_bias(logits, 0, q, m, np.zeros(4, int), scheme=scheme, correction=c)
        np.testing.assert_array_equal(strata.bias, found.bias)
    if scheme == "distinct":
        found = exact_bias(logits, 0, q, m, scheme=scheme, correction=ones)
        masses = np.exp(logits[:3])
        np.testing.assert_allclose(found.bias[:3], masses / masses.sum(), rtol=1e-12)
        assert found.bias[3] == pytest.approx(-1.0, rel=1e-12)


def test_a_certain_set_tells_how_far_its_loss_is_off():
    q = [0.5, 0.5]
    for c in ([1.0, 1.0 - 1e-12], [1.0, 1.0 + 1e-9], [0.3, 0.7], [1e308, 1e308], [1.0, 3e-300]):
        for scheme, m in ("distinct", 1), ("distinct_candidate", 2), ("distinct_importance", 2):
            found = exact_bias([0.0, 0.0], 0, q, m, scheme=scheme, correction=c)
            norm = check(found, [0.0, 0.0], 0, q, m, scheme, c)
            assert found.error <= 1e-11 * norm


@pytest.mark.parametrize("c", [1e308, 1e-300])
@pytest.mark.parametrize("scheme", EVERY)
def test_quotients_that_floats_do_not_reach(scheme, c):
    logits, q = [0.0, 1.0, 2.0], np.array([0.5, 0.5 - 1e-200, 1e-200])
    m = draws_for(scheme, 0, q, 2)
    found = exact_bias(logits, 0, q, m, scheme=scheme, correction=[c] * 3)
    check(found, logits, 0, q, m, scheme, [c] * 3)
    assert found.error < 1e-10


# --- logits that lie far apart ------------------------------------------------------------------

GAPS = [1e2, 1e5, 1e100, 1e308]


@pytest.fixture
def few_nodes(monkeypatch):
    """More nodes than three scales of a sum need are an error, and no hang."""
    count, right = [0], terms.integrand_changes

    def integrand_changes(log_decay):
        count[0] += 1
        assert count[0] < 4000
        return right(log_decay)

    for module in terms, expectations, sets:
        monkeypatch.setattr(module, "integrand_changes", integrand_changes)
    return count


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("gap", GAPS)
def test_time_does_not_grow_with_the_distance_of_logits(gap, few_nodes):
    arguments = [gap, -gap, 0.0], 1, [0.5, 0.25, 0.25], 1
    found = exact_bias(*arguments, scheme="distinct")
    np.testing.assert_allclose(found.bias, [-1 / 3, 0.0, 1 / 3], atol=1e-14)
    assert found.error < 1e-13
    # two thirds of the time the largest class, weighed by 3 / 2, else that of logit 0 by 3
    loss = 2.0 / 3.0 * np.log(1.5) + (np.log(3.0) - gap) / 3.0
    assert found.loss_bias == pytest.approx(loss, rel=1e-14)
    bounds = finite_sample_bounds(*arguments, scheme="distinct")
    assert np.all((bounds.lower <= found.bias) & (found.bias <= bounds.upper))
    assert (bounds.upper - bounds.lower).max() < 1e-9
    moments = exact_gradient_moments(*arguments, np.eye(3), scheme="distinct")
    assert moments.mse == pytest.approx(2.0 / 3.0, rel=1e-12)
    strata = stratified_bias(*arguments, [0, 0, 0], scheme="distinct")
    np.testing.assert_array_equal(strata.bias, found.bias)


def test_scales_far_down_keep_the_digits_of_their_own(few_nodes):
    """Sets without the largest class are those of three classes 1e9 below it, as they stand."""
    low = np.array([0.5, 1.5, -0.25])
    q = np.array([0.25, 0.25, 0.25, 0.25])
    far = exact_bias(np.append(low - 2.0**30, 0.0), 0, q, 1, scheme="distinct_importance")
    np.testing.assert_allclose(far.expected_probs, q, atol=1e-14)
    two = exact_bias(np.append(low - 2.0**30, 0.0), 0, q, 2, scheme="distinct_importance")
    # half of the sets have the largest class; of the others each pair is one in three
    pairs = [(0, 1), (0, 2), (1, 2)]
    wanted = np.array([0.0, 0.0, 0.0, 0.5])
    for pair in pairs:
        share = np.exp(low[list(pair)])
        wanted[list(pair)] += share / share.sum() / 6.0
    np.testing.assert_allclose(two.expected_probs, wanted, atol=1e-13)
    assert two.error < 1e-12


@pytest.mark.parametrize("gap", [1e6, 1e308])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_with_replacement_far_logits_are_refused_in_words_or_right(scheme, gap):
    logits, q = [gap, -gap, 0.0], [0.5, 0.25, 0.25]
    try:
        found = exact_bias(logits, 1, q, 2, scheme=scheme)
    except ValueError as error:
        assert "`logits` and `q` must give sums within a factor" in str(error)  # noqa: PT017
    else:
        check(found, logits, 1, q, 2, scheme)


@pytest.mark.parametrize("gap", [700.0, 730.0, 745.0, 760.0])
@pytest.mark.parametrize("scheme", ["distinct", "distinct_masked", "distinct_candidate"])
def test_the_least_floats_have_few_digits(scheme, gap):
    """A probability of 5e-324 times the inverse of a divisor of 1e-300."""
    logits, q, correction = [1e-300, gap], [0.9, 0.1], [1e-300, 3e-301]
    m = 1 if scheme == "distinct" else 2
    found = exact_bias(logits, 1, q, m, scheme=scheme, correction=correction)
    size = check(found, logits, 1, q, m, scheme, correction)
    assert found.error < 1e-10 * size or size < 1e-300


@pytest.mark.parametrize("rare", [1e-16, 1.0245484971275832e-32, 5.6274354270052695e-89])
@pytest.mark.parametrize("logits", [[0.0583, -0.0137], [1.882, 0.239]])
def test_a_set_of_nothing_but_the_label_is_as_rare_as_its_logarithm_says(logits, rare):
    q = [rare, 1.0]
    check(exact_bias(logits, 0, q, 1, scheme="reject"), logits, 0, q, 1, "reject")


# --- classes that are drawn almost never, far above all others ------------------------------------

RARELY = [2e-268, 1.3e-130, 3.8e-49, 9.8e-161, 1.0, 1.1e-79, 7.5e-99]


@pytest.mark.filterwarnings("ignore:the bias of scheme")
@pytest.mark.parametrize("far", [1e5, 1e10, 1e100])
@pytest.mark.parametrize("scheme", ["distinct_candidate", "distinct_masked", "distinct_importance"])
def test_a_class_that_is_hardly_ever_drawn_takes_no_digits_of_the_others(scheme, far):
    """Measured from its logit, all others were at the same distance: shares of a third each."""
    logits = [far, 100.0, -745.0, 1e-300, -far, -far, 0.0]
    found = exact_bias(logits, 4, RARELY, 5, scheme=scheme)
    check(found, logits, 4, RARELY, 5, scheme)
    assert found.error < 1e-9
    np.testing.assert_allclose(found.bias, [-1, 1, 0, 0, 0, 0, 0], atol=1e-9)


@pytest.mark.filterwarnings("ignore:the bias of scheme")
def test_the_loss_of_a_set_that_is_too_rare_for_the_digits_of_its_probability():
    """Such sets come once in 1e44 times, and their loss is off by 1e100 then."""
    logits, q = [1e100, 0.0, -1e5, 745.0], [1.0, 1.2e-15, 7.5e-38, 1.1e-28]
    correction = [6.9e-286, 1.1e-178, 0.0015, 9.7e-23]
    found = exact_bias(logits, 2, q, 2, scheme="distinct_importance", correction=correction)
    check(found, logits, 2, q, 2, "distinct_importance", correction)
    assert found.loss_error < 1e91
