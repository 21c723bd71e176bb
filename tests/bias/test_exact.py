"""The exact bias against enumeration, the published counterexamples, and malformed input."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp
from oracles import naive

from samplesoft import asymptotic_bias, exact_bias, finite_sample_bounds
from samplesoft.bias.asymptotic import asymptotic_bias_of
from samplesoft.bias.bounds.finite import finite_sample_bounds_of
from samplesoft.bias.exact import exact_bias_of
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.theorems import theorem1_bounds
from samplesoft.schemes import SCHEMES, exact_schemes

LOGITS = np.array([0.3, -1.0, 2.0, 0.7])
Q = np.array([0.1, 0.25, 0.3, 0.35])
WITHOUT_LABEL = ("negatives", "jackknife", "reject", "poisson")


def instance(seed, n, spread=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n) * spread, rng.dirichlet(np.ones(n))


def assert_equals_enumeration(result, logits, label, q, m, scheme, rtol=1e-12):
    expected, loss, _ = naive.enumerate_scheme(logits, label, q, m, scheme)
    with mp.workdps(50):
        p = naive.softmax(logits)
        bias = expected - np.array(p, dtype=object)
        error, norm = naive.l1_error(result.bias, bias)
        assert error <= rtol * norm + 1e-40
        loss_bias = loss + mp.log(p[label])
        # the loss bias is a mean of terms as large as the bias, of both signs where q_t > 0
        assert abs(result.loss_bias - loss_bias) <= rtol * (abs(loss_bias) + norm) + 1e-40
    np.testing.assert_allclose(result.probs, [float(x) for x in p], rtol=1e-13)
    np.testing.assert_allclose(result.expected_probs, expected.astype(float), atol=1e-14)


# --- enumeration ------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_equals_enumeration(scheme, n, m):
    if m < SCHEMES[scheme].min_draws:
        pytest.skip("the jackknife needs more draws")
    for label in range(n):
        logits, q = instance(100 * n + 10 * m + label, n)
        result = exact_bias(logits, label, q, m, scheme=scheme)
        assert_equals_enumeration(result, logits, label, q, m, scheme)


@pytest.mark.parametrize("scheme", exact_schemes())
def test_equals_enumeration_with_uneven_proposals(scheme):
    logits = np.array([3.0, -4.0, 0.5, 0.0])
    for q in ([0.01, 0.01, 0.97, 0.01], [1e-6, 0.5, 0.25, 0.25 - 1e-6], [0.97, 0.01, 0.01, 0.01]):
        for label in (0, 2):
            result = exact_bias(logits, label, q, 3, scheme=scheme)
            assert_equals_enumeration(result, logits, label, q, 3, scheme)


@pytest.mark.parametrize("scheme", WITHOUT_LABEL)
def test_label_may_have_no_proposal_mass(scheme):
    q = np.array([0.25, 0.0, 0.375, 0.375])
    assert_equals_enumeration(exact_bias(LOGITS, 1, q, 3, scheme=scheme), LOGITS, 1, q, 3, scheme)


@pytest.mark.parametrize(
    "pi", [[1.0, 1.0, 1.0, 1.0], [0.2, 1.0, 1e-9, 0.9], [1.0, 1e-300, 1.0, 0.5]]
)
def test_inclusion_probabilities_need_not_sum_to_one(pi):
    result = exact_bias(LOGITS, 3, pi, 1, scheme="poisson")
    if min(pi) == 1.0:
        assert np.abs(result.bias).max() < 1e-16
        return
    assert_equals_enumeration(result, LOGITS, 3, pi, 1, "poisson")


def test_number_of_draws_plays_no_part_for_poisson():
    first = exact_bias(LOGITS, 0, Q, 1, scheme="poisson")
    np.testing.assert_array_equal(first.bias, exact_bias(LOGITS, 0, Q, 99, scheme="poisson").bias)


@pytest.mark.parametrize(("scheme", "plain"), naive.JACKKNIFED.items())
def test_jackknife_is_the_combination_of_sample_sizes(scheme, plain):
    m = 6
    parts = [
        (weight, exact_bias(LOGITS, 2, Q, k, scheme=plain)) for k, weight in naive.combination(m)
    ]
    bias = sum(float(weight) * part.bias for weight, part in parts)
    loss_bias = sum(float(weight) * part.loss_bias for weight, part in parts)
    result = exact_bias(LOGITS, 2, Q, m, scheme=scheme)
    np.testing.assert_allclose(result.bias, bias, rtol=1e-10, atol=1e-14)
    assert result.loss_bias == pytest.approx(loss_bias, rel=1e-10)


# --- wrong twins: the check must see them -----------------------------------------------------


def first_order(logits, label, q, m):
    """The limit of m * bias over m, taken for the bias itself."""
    return asymptotic_bias(logits, label, q) / m


def not_conditioned(logits, label, q, m):
    """Weights e_j / (m q_j) with q over all classes, though the label is never drawn."""
    shifted = np.array(logits)
    shifted[np.arange(len(q)) != label] -= np.log(1.0 - q[label])
    return exact_bias(shifted, label, q, m).expected_probs - exact_bias(logits, label, q, m).probs


def correction_added(logits, label, q, m):
    """The logit correction log(m q) added where it is to be subtracted."""
    shifted = np.array(logits) + 2.0 * np.log(q)
    shifted[label] = logits[label]
    return exact_bias(shifted, label, q, m).expected_probs - exact_bias(logits, label, q, m).probs


@pytest.mark.parametrize("twin", [first_order, not_conditioned, correction_added])
def test_wrong_twin_is_rejected(twin):
    for m in (1, 4):
        result = exact_bias(LOGITS, 0, Q, m)
        assert_equals_enumeration(result, LOGITS, 0, Q, m, "negatives")
        object.__setattr__(result, "bias", twin(LOGITS, 0, Q, m))
        with pytest.raises(AssertionError):
            assert_equals_enumeration(result, LOGITS, 0, Q, m, "negatives", rtol=1e-3)


# --- counterexamples to the printed theorem, and the jackknife --------------------------------


def test_upper_bound_counterexample():
    logits, q, jacobian = [0.0, 0.0, 0.0], [0.0, 0.999, 0.001], [[1.0], [1.0], [0.0]]
    bias = 1000 * exact_bias(logits, 0, q, 1000).gradient_bias(jacobian)[0]
    assert bias == pytest.approx(69.00, abs=0.005)
    printed = 1000 * theorem1_bounds(logits, 0, q, 1000, jacobian).upper[0]
    assert printed == pytest.approx(40.88, abs=0.005)
    assert bias > printed
    limit = 1e9 * exact_bias(logits, 0, q, 10**9).gradient_bias(jacobian)[0]
    assert limit == pytest.approx(73.96, abs=0.005)


def test_lower_bound_counterexample():
    logits, q, jacobian = [np.log(8.0), 0.0, 0.0], [0.0, 0.9, 0.1], [[-1.0], [-1.0], [1.0]]
    bias = 10 * exact_bias(logits, 0, q, 10).gradient_bias(jacobian)[0]
    assert bias == pytest.approx(-0.1385, abs=5e-5)
    printed = 10 * theorem1_bounds(logits, 0, q, 10, jacobian).lower[0]
    assert printed == pytest.approx(-0.0889, abs=5e-5)
    assert bias < printed
    limit = 1e9 * exact_bias(logits, 0, q, 10**9).gradient_bias(jacobian)[0]
    assert limit == pytest.approx(-0.1458, abs=5e-5)


def test_label_coordinate_counterexample():
    logits = np.zeros(1001)
    logits[:2] = np.log(1000.0)
    q = np.full(1001, 1 / 1001)
    for m, value in ((100, 12.67), (1000, 34.48), (10**9, 36.96)):
        assert m * exact_bias(logits, 0, q, m).bias[0] == pytest.approx(value, abs=0.005)
    printed = 1000 * theorem1_bounds(logits, 0, q, 1000, np.eye(1001)).upper[0]
    assert printed == pytest.approx(3.954, abs=5e-4)


def test_jackknife_moves_the_bias_to_second_order():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(1000, 64))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    h = rng.normal(size=64)
    logits = 11.1 * (c @ h) / np.linalg.norm(h)
    q = np.full(1000, 1e-3)

    def norm(m, scheme):
        return np.abs(exact_bias(logits, 0, q, m, scheme=scheme).bias).sum()

    plain = {m: norm(m, "negatives") for m in (10, 100)}
    debiased = {m: norm(m, "jackknife") for m in (10, 100, 10**4, 10**5)}
    assert debiased[10] < 0.6 * plain[10]
    assert debiased[100] < 0.1 * plain[100]
    assert debiased[10**4] / debiased[10**5] == pytest.approx(100.0, rel=0.02)


# --- edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["importance", "candidate", "candidate_masked", "reject"])
def test_one_class_has_no_bias(scheme):
    result = exact_bias([3.0], 0, [1.0], 5, scheme=scheme)
    np.testing.assert_allclose(result.bias, [0.0], atol=1e-15)
    np.testing.assert_array_equal(result.probs, [1.0])
    # the draws of `candidate` are the label again: S = e_t (1 + 1/m) over a base of e_t / m
    loss = np.log(6.0) if scheme == "candidate" else 0.0
    assert result.loss_bias == pytest.approx(loss, abs=1e-14)


@pytest.mark.parametrize("scheme", ["negatives", "jackknife"])
def test_one_class_has_no_negatives(scheme):
    with pytest.raises(ValueError, match="no negative to draw"):
        exact_bias([3.0], 0, [1.0], 5, scheme=scheme)


def test_all_mass_on_the_label():
    logits, q = [0.0, 1.0, 2.0], [0.0, 1.0, 0.0]
    result = exact_bias(logits, 1, q, 4, scheme="reject")
    np.testing.assert_allclose(result.expected_probs, [0.0, 1.0, 0.0], atol=1e-16)
    assert result.loss_bias == pytest.approx(np.log(result.probs[1]), rel=1e-14)
    for scheme in ("negatives", "jackknife", "poisson"):
        with pytest.raises(ValueError, match=r"`q` must leave mass .* label 1 .* scheme=\"reject"):
            exact_bias(logits, 1, q, 4, scheme=scheme)


def test_one_draw_of_two_negatives_by_hand():
    a, e, q = 1.0, np.array([2.0, 5.0]), np.array([0.3, 0.7])
    p = np.array([0.0, 0.0, 0.0])
    for j in (0, 1):
        total = a + e[j] / q[j]
        p[0] += q[j] * a / total
        p[1 + j] += e[j] / total
    logits = np.log([a, *e])
    result = exact_bias(logits, 0, [0.0, *q], 1)
    np.testing.assert_allclose(result.expected_probs, p, rtol=1e-14)


@pytest.mark.parametrize("scheme", exact_schemes())
def test_more_draws_than_classes(scheme):
    logits, q = instance(5, 2)
    for m in (7, 40):
        result = exact_bias(logits, 1, q, m, scheme=scheme)
        assert_equals_enumeration(result, logits, 1, q, m, scheme)


def test_two_classes_have_no_bias_with_a_sure_negative():
    for m in (1, 10, 10**9):
        result = exact_bias([2.0, -5.0], 0, [0.3, 0.7], m)
        np.testing.assert_array_equal(result.bias, [0.0, 0.0])
        assert result.loss_bias == pytest.approx(0.0, abs=1e-18)


# --- batches and the kinds of arrays ----------------------------------------------------------


@pytest.mark.parametrize("scheme", exact_schemes())
def test_batch_equals_loop(scheme):
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(3, 5))
    labels = np.array([4, 0, 2])
    rows = rng.dirichlet(np.ones(5), size=3)
    for q in (rows, rows[:1], rows[0]):
        batch = exact_bias(logits, labels, q, 6, scheme=scheme)
        assert batch.bias.shape == batch.probs.shape == batch.expected_probs.shape == (3, 5)
        assert batch.loss_bias.shape == batch.error.shape == (3,)
        for i in range(3):
            own = q if q.ndim == 1 else q[i % len(q)]
            one = exact_bias(logits[i], int(labels[i]), own, 6, scheme=scheme)
            np.testing.assert_array_equal(batch.bias[i], one.bias)
            assert batch.loss_bias[i] == one.loss_bias
            assert batch.error[i] == one.error
    jacobian = rng.normal(size=(3, 5, 2))
    together = batch.gradient_bias(jacobian)
    assert together.shape == (3, 2)
    for i in range(3):
        np.testing.assert_allclose(together[i], batch.bias[i] @ jacobian[i], atol=1e-15)
    np.testing.assert_allclose(
        batch.gradient_bias(jacobian[0]), batch.bias @ jacobian[0], atol=1e-15
    )


def test_one_label_serves_a_batch():
    logits = np.random.default_rng(0).normal(size=(2, 4))
    np.testing.assert_array_equal(
        exact_bias(logits, 1, Q, 3).bias, exact_bias(logits, [1, 1], Q, 3).bias
    )


@pytest.mark.parametrize("scheme", exact_schemes())
def test_kinds_of_arrays_do_not_matter(scheme):
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(2, 4)).astype(np.float32)
    q = np.full((2, 4), 0.25, dtype=np.float32)
    want = exact_bias(logits.astype(float), [0, 3], q.astype(float), 3, scheme=scheme)
    wide = np.repeat(np.repeat(logits, 2, axis=0), 2, axis=1)
    variants = [
        (logits, [0, 3], q),
        (np.asfortranarray(logits), np.array([0, 3], dtype=np.uint8), np.asfortranarray(q)),
        (wide[::2, ::2], np.array([0, 9, 3])[::2], q),
        (logits.tolist(), (0, 3), q.tolist()),
        (logits, [0, 3], np.broadcast_to(np.float32(0.25), (4,))),
    ]
    for variant in variants:
        copies = [np.array(v) for v in variant]
        got = exact_bias(*variant, 3, scheme=scheme)
        np.testing.assert_array_equal(got.bias, want.bias)
        assert got.bias.dtype == np.float64
        for before, after in zip(copies, variant, strict=True):
            np.testing.assert_array_equal(before, after)  # the inputs are left alone


def test_result_of_one_example_holds_floats():
    result = exact_bias(LOGITS, np.int32(1), Q, np.int64(3))
    assert isinstance(float(result.loss_bias), float) and np.ndim(result.loss_bias) == 0
    assert np.ndim(result.error) == 0
    assert result.gradient_bias(np.eye(4)) == pytest.approx(result.bias, abs=1e-17)


def test_integer_logits_and_a_slightly_unnormalised_proposal():
    exact = exact_bias([0.0, 1.0, 2.0], 0, [0.25, 0.25, 0.5], 3, scheme="importance")
    scaled = np.array([0.25, 0.25, 0.5]) * (1 + 5e-5)
    got = exact_bias([0, 1, 2], 0, scaled, 3, scheme="importance")
    np.testing.assert_allclose(got.bias, exact.bias, rtol=1e-13)


# --- malformed input --------------------------------------------------------------------------


GOOD = {"logits": LOGITS, "labels": 1, "q": Q, "num_sampled": 5}
BAD = [
    ({"logits": [[[0.0]]]}, ValueError, r"`logits` must have 1 or 2 dimension"),
    ({"logits": 1.0}, ValueError, r"`logits` must have 1 or 2 dimension.*got shape \(\)"),
    ({"logits": []}, ValueError, "`logits` must not be empty"),
    ({"logits": [[0.0, 1.0], [2.0]]}, ValueError, "`logits` must be a rectangular array"),
    ({"logits": ["a", "b", "c", "d"]}, TypeError, "`logits` must hold real numbers.*convert"),
    ({"logits": LOGITS + 1j}, TypeError, "`logits` must hold real numbers, got dtype complex"),
    ({"logits": [0.0, np.nan, 1.0, 2.0]}, ValueError, r"`logits` must be finite, got nan at.*\[1"),
    ({"logits": [0.0, 1.0, -np.inf, 2.0]}, ValueError, "`logits` must be finite, got -inf.*remove"),
    ({"logits": LOGITS[:3]}, ValueError, r"`q` must cover all 3 classes.*got shape \(4,\)"),
    ({"labels": 4}, ValueError, r"`labels` must lie in 0..3 for 4 classes, got 4"),
    ({"labels": -1}, ValueError, r"`labels` must lie in 0..3 for 4 classes, got -1"),
    ({"labels": 1.0}, TypeError, "`labels` must hold integers, got float64"),
    ({"labels": True}, TypeError, "`labels` must hold integers, got bool"),
    ({"labels": [1, 2]}, ValueError, r"`labels` must have shape \(\), got \(2,\)"),
    ({"q": [0.25, 0.25, 0.5]}, ValueError, r"`q` must cover all 4 classes.*got shape \(3,\)"),
    ({"q": [0.5, -0.1, 0.3, 0.3]}, ValueError, "`q` must hold probabilities, got -0.1 < 0"),
    ({"q": [1.5, 0.1, 0.3, 0.3]}, ValueError, "`q` must hold prob.*got 1.5 > 1; divide it by its"),
    ({"q": [0.2, 0.1, 0.3, 0.3]}, ValueError, "`q` must sum to 1.*got 0.9; divide it"),
    ({"q": [0.2, np.nan, 0.3, 0.3]}, ValueError, "`q` must be finite, got nan"),
    ({"q": [Q, Q]}, ValueError, r"`q` of shape \(2, 4\) does not match `logits` of shape \(4,\)"),
    ({"q": [0.0, 0.4, 0.3, 0.3]}, ValueError, "`q` must be greater than 0 on.*class 0.*mix"),
    ({"q": [0.0, 1.0, 0.0, 0.0]}, ValueError, "`q` must leave mass on a class other than"),
    ({"num_sampled": 0}, ValueError, "`num_sampled` must be at least 1, got 0"),
    ({"num_sampled": -3}, ValueError, "`num_sampled` must be at least 1, got -3"),
    ({"num_sampled": 2.0}, TypeError, "`num_sampled` must be an integer, got float 2.0"),
    ({"num_sampled": True}, TypeError, "`num_sampled` must be an integer, got bool"),
    ({"num_sampled": "5"}, TypeError, "`num_sampled` must be an integer, got str '5'"),
    ({"scheme": "rejection"}, ValueError, "`scheme` must be one of negatives, .*'rejection'"),
    ({"scheme": None}, ValueError, "`scheme` must be one of negatives, .*None"),
    ({"scheme": "jackknife", "num_sampled": 1}, ValueError, "`num_sampled` must be at least 2"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        exact_bias(**{**GOOD, **change})


@pytest.mark.parametrize("scheme", ["candidate", "candidate_masked", "importance"])
def test_label_needs_proposal_mass(scheme):
    with pytest.raises(ValueError, match=f"every class that scheme '{scheme}' can draw.*class 1"):
        exact_bias(LOGITS, 1, [0.25, 0.0, 0.375, 0.375], 3, scheme=scheme)


def test_bad_batches():
    logits = np.stack([LOGITS, LOGITS])
    with pytest.raises(ValueError, match=r"`labels` must have shape \(2,\), got \(3,\)"):
        exact_bias(logits, [0, 1, 2], Q, 3)
    with pytest.raises(ValueError, match=r"`q` of shape \(3, 4\) does not match"):
        exact_bias(logits, [0, 1], [Q, Q, Q], 3)
    with pytest.raises(ValueError, match=r"got 0 at class 2 \(example 1\)"):
        exact_bias(logits, [0, 1], [Q, [0.3, 0.3, 0.0, 0.4]], 3)
    with pytest.raises(ValueError, match=r"label 1 \(example 1\)"):
        exact_bias(logits, [0, 1], [Q, [0.0, 1.0, 0.0, 0.0]], 3)


@pytest.mark.parametrize(
    ("jacobian", "error", "message"),
    [
        (np.zeros((3, 2)), ValueError, "`jacobian`"),
        (np.zeros(4), ValueError, "`jacobian`"),
        (np.full((4, 2), np.nan), ValueError, "`jacobian` must be finite"),
        ([["a"]] * 4, TypeError, "`jacobian` must hold real numbers"),
        (np.zeros((2, 4, 2)), ValueError, "`jacobian`"),
    ],
)
def test_bad_jacobian(jacobian, error, message):
    with pytest.raises(error, match=message):
        exact_bias(LOGITS, 1, Q, 3).gradient_bias(jacobian)


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.parametrize("spread", [5.0, 50.0, 300.0])
def test_error_estimate_is_small_at_any_spread(scheme, spread):
    result = exact_bias(np.linspace(-spread, spread, 5), 3, [0.2] * 5, 3, scheme=scheme)
    rounding = 1e-12 + 2e-14 * spread  # a logit of 300 has no more digits behind the point
    assert 0.0 <= result.error <= rounding * np.abs(result.bias).sum()


def test_loss_of_a_dominating_label_keeps_its_digits():
    logits, q = [40.0, 0.0, 1.0], [0.2, 0.4, 0.4]
    result = exact_bias(logits, 0, q, 3, scheme="candidate_masked")
    assert result.loss_bias == pytest.approx(-6.3186313713e-18, rel=1e-6)


def test_numbers_beyond_reach_are_refused():
    with pytest.raises(ValueError, match="`num_sampled` must be at most 1e\\+15"):
        exact_bias([0.0, 1.0], 0, [0.5, 0.5], 10**30)
    with pytest.raises(ValueError, match="`logits` and `q` must give sums within a factor"):
        exact_bias([1e300, 0.0, 1.0], 1, [0.2, 0.4, 0.4], 3)


def test_the_name_of_a_sampler_is_refused():
    with pytest.raises(TypeError, match=r"`q` must .* got the text 'clusters'; make a sampler"):
        exact_bias(np.zeros((1, 4)), [0], "clusters", 3, h=np.ones((1, 3)))


def test_one_check_of_the_arguments_serves_several_questions():
    logits, q = np.array([[0.3, -1.0, 2.0], [1.0, 0.0, 0.5]]), [0.2, 0.3, 0.5]
    inputs = check_inputs(logits, [0, 2], q, 4)
    for m in (4, 9):
        asked = exact_bias_of(inputs.at(m))
        np.testing.assert_array_equal(asked.bias, exact_bias(logits, [0, 2], q, m).bias)
    bounds = finite_sample_bounds_of(inputs)
    np.testing.assert_array_equal(bounds.lower, finite_sample_bounds(logits, [0, 2], q, 4).lower)
    limit = asymptotic_bias_of(inputs)
    np.testing.assert_array_equal(limit, asymptotic_bias(logits, [0, 2], q))
