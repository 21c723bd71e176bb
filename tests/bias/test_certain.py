"""Classes that are in S for certain: exact bias, moments and Monte Carlo against enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.loss_cases import full_softmax, of_scores
from oracles.naive_certain import certain_bias, enumerate_certain

import samplesoft
from samplesoft import exact_bias, exact_gradient_moments, monte_carlo_bias
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.samplers import CertainSampler, Draw, SoftmaxSampler, WeightedSampler
from samplesoft.schemes import SCHEMES, certain_schemes, exact_schemes

LOGITS, Q = np.array([0.4, -1.1, 2.0, 0.3, 1.0]), np.array([0.4, 0.1, 0.2, 0.15, 0.15])
W = np.random.default_rng(0).normal(size=(5, 2))
HEADS = {"label in": [2, 0], "label in the tail": [1, 4], "one class": [3]}


def test_schemes_that_take_certain_classes():
    names = "negatives", "masked", "reject", "jackknife", "jackknife_masked"
    assert certain_schemes() == names
    assert not SCHEMES["kept"].allows_always_included


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("scheme", certain_schemes())
def test_equals_enumeration(scheme, head, m):
    m = max(m, SCHEMES[scheme].min_draws)
    exact = exact_bias(LOGITS, 2, Q, m, scheme=scheme, certain=HEADS[head])
    bias, loss_bias = certain_bias(LOGITS, 2, Q, m, scheme, HEADS[head])
    np.testing.assert_allclose(exact.bias, bias, rtol=1e-10, atol=1e-13)
    assert exact.loss_bias == pytest.approx(loss_bias, rel=1e-10)
    assert abs(exact.bias - bias).sum() <= exact.error + 1e-16
    other = certain_bias(LOGITS, 2, Q, m, scheme, [])[0]
    assert abs(exact.bias - other).max() > 1e-4  # and not that without a head


@pytest.mark.parametrize("label", [2, 3])
@pytest.mark.parametrize("scheme", ["negatives", "masked", "jackknife"])
def test_a_tail_that_never_draws_the_head(scheme, label):
    q = np.array([0.0, 0.3, 0.0, 0.5, 0.2])
    exact = exact_bias(LOGITS, label, q, 3, scheme=scheme, certain=[0, 2])
    bias, loss_bias = certain_bias(LOGITS, label, q, 3, scheme, [0, 2])
    np.testing.assert_allclose(exact.bias, bias, rtol=1e-10, atol=1e-14)
    assert exact.loss_bias == pytest.approx(loss_bias, rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-12.0, 12.0), min_size=3, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
    st.integers(0, 2),
    st.sets(st.integers(0, 2)),
    st.sampled_from(certain_schemes()),
)
def test_equals_enumeration_anywhere(logits, weights, label, certain, scheme):
    q = np.array(weights[: len(logits)])
    q /= q.sum()
    m = max(2, SCHEMES[scheme].min_draws)
    exact = exact_bias(logits, label, q, m, scheme=scheme, certain=list(certain))
    bias, loss_bias = certain_bias(logits, label, q, m, scheme, certain)
    assert abs(exact.bias - bias).sum() <= 1e-10 * abs(bias).sum() + 1e-14
    assert exact.loss_bias == pytest.approx(loss_bias, rel=1e-9, abs=1e-14)


def test_what_vectors_have_in_common_costs_moments_no_digits():
    c = np.array([[0.0], [1.0], [2.0], [3.5], [0.25]])
    few, many = (
        exact_gradient_moments(LOGITS, 2, Q, 3, c + shift, certain=[1]) for shift in (0.0, 2.0**30)
    )
    assert few.mse == many.mse and few.error == many.error


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("head", HEADS)
def test_moments_equal_enumeration(head, m):
    c = np.random.default_rng(1).normal(size=(5, 3))
    expected, _, second = enumerate_certain(LOGITS, 2, Q, m, "negatives", HEADS[head])
    bias = 1.7 * (exact_bias(LOGITS, 2, Q, m, certain=HEADS[head]).bias @ c)
    spread = (second - np.outer(expected, expected)).astype(float)
    for shift in (0.0, 1e4):  # a common part of the class vectors cancels
        found = exact_gradient_moments(LOGITS, 2, Q, m, c + shift, tau=1.7, certain=HEADS[head])
        assert found.squared_bias == pytest.approx(bias @ bias, rel=1e-8)
        assert found.variance == pytest.approx(1.7**2 * np.sum(spread * (c @ c.T)), rel=1e-8)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("scheme", certain_schemes())
def test_simulation_agrees(scheme, head):
    exact = exact_bias(LOGITS, 2, Q, 4, scheme=scheme, certain=HEADS[head])
    how = {"num_trials": 60_000, "scheme": scheme, "certain": HEADS[head], "rng": 0}
    got = monte_carlo_bias(LOGITS, 2, Q, 4, **how)
    assert abs((got.bias - exact.bias) / got.stderr).max() < 4.5
    assert abs(got.loss_bias - exact.loss_bias) < 4.5 * got.loss_stderr
    plain = exact_bias(LOGITS, 2, Q, 4, scheme=scheme)
    assert abs((got.bias - plain.bias) / got.stderr).max() > 4.5  # it could have failed


@pytest.mark.parametrize("label", [0, 3])
@pytest.mark.parametrize("scheme", certain_schemes())
def test_with_all_classes_certain_there_is_no_bias(scheme, label):
    for certain in (range(5), [j for j in range(5) if j != label]):
        given = LOGITS, label, Q, 3
        exact = exact_bias(*given, scheme=scheme, certain=certain)
        assert not exact.bias.any() and exact.loss_bias == exact.error == 0.0
        np.testing.assert_allclose(exact.probs, exact_bias(*given).probs, rtol=1e-14)
        simulated = monte_carlo_bias(*given, num_trials=5, scheme=scheme, certain=certain)
        assert not simulated.bias.any() and not simulated.stderr.any()
        moments = exact_gradient_moments(*given, W, certain=certain)
        assert moments.mse == moments.squared_bias == 0.0


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("scheme", exact_schemes())
def test_an_empty_head_changes_no_bit(scheme):
    plain = exact_bias(LOGITS, 2, Q, 3, scheme=scheme)
    empty = exact_bias(LOGITS, 2, Q, 3, scheme=scheme, certain=[])
    np.testing.assert_array_equal(empty.bias, plain.bias)
    assert (empty.loss_bias, empty.error) == (plain.loss_bias, plain.error)


def test_a_head_of_the_label_alone_is_none():
    plain = exact_bias(LOGITS, 2, Q, 3, scheme="masked")
    head = exact_bias(LOGITS, 2, Q, 3, scheme="masked", certain=[2])
    np.testing.assert_allclose(head.bias, plain.bias, rtol=1e-12)


def test_order_does_not_matter_and_a_batch_is_its_examples():
    logits, labels = np.stack([LOGITS, LOGITS[::-1], -LOGITS]), [0, 1, 4]
    batch = exact_bias(logits, labels, Q, 3, scheme="masked", certain=[4, 1])
    moments = exact_gradient_moments(logits, labels, Q, 3, W, certain=[4, 1])
    for i, label in enumerate(labels):
        one = exact_bias(logits[i], label, Q, 3, scheme="masked", certain=[1, 4])
        np.testing.assert_array_equal(batch.bias[i], one.bias)
        assert batch.loss_bias[i] == one.loss_bias
        assert (
            moments.mse[i] == exact_gradient_moments(logits[i], label, Q, 3, W, certain=[1, 4]).mse
        )


def test_a_class_that_underflows_keeps_its_share():
    exact = exact_bias([-1e308, 0.0, 1e308, 1.0], 0, np.full(4, 0.25), 3, certain=[2])
    assert not exact.bias.any() and exact.probs.tolist() == [0.0, 0.0, 1.0, 0.0]
    near = exact_bias([-700.0, 0.0, -699.0, 1.0], 0, np.full(4, 0.25), 3, certain=[2]).bias
    assert near[2] / near[0] == pytest.approx(np.e, rel=1e-12)


@pytest.mark.filterwarnings("ignore:the bias of scheme")
def test_the_error_tells_that_the_mass_of_the_head_is_rounded():
    logits = 2.0**47 + np.array([0.0, 0.0, 1.0, 2.0])
    exact = exact_bias(logits, 0, np.full(4, 0.25), 2, certain=[1])
    wanted, _ = certain_bias([0.0, 0.0, 1.0, 2.0], 0, np.full(4, 0.25), 2, "negatives", [1])
    wrong = abs(exact.bias - wanted).sum()
    assert 1e-10 < wrong <= exact.error


BAD = {
    "twice": ({"certain": [1, 3, 1]}, ValueError, "distinct classes, got 1 twice; use numpy.uni"),
    "above": ({"certain": [5]}, ValueError, "`certain` must lie in 0..4 for 5 classes, got 5"),
    "below": ({"certain": [-1]}, ValueError, "`certain` must lie in 0..4 for 5 classes, got -1"),
    "floats": ({"certain": [1.0]}, TypeError, "`certain` must hold integers, got float64"),
    "a mask": ({"certain": [True] * 5}, TypeError, "`certain` must hold integers, got bool"),
    "one number": ({"certain": 3}, ValueError, r"`certain` must have shape \(k,\), got \(\)"),
    "nothing to draw": (
        {"certain": [1], "q": [0.5, 0.5, 0, 0, 0]},
        ValueError,
        r"`q` must leave mass on a class other than the label 0, or a certain one \(example 0\)",
    ),
    "no mass": (
        {"certain": [1], "q": [0.2, 0.2, 0.6, 0, 0]},
        ValueError,
        "`q` must be greater than 0 on every class .* got 0 at class 3",
    ),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("function", ["exact_bias", "exact_gradient_moments", "monte_carlo_bias"])
def test_bad_input(function, kind):
    changes, error, message = BAD[kind]
    given = {"logits": LOGITS, "labels": 0, "q": Q, "num_sampled": 3, **changes}
    if function == "monte_carlo_bias":
        given["num_trials"] = 2
    elif function == "exact_gradient_moments":
        given["class_embeddings"] = W
    with pytest.raises(error, match=message):
        getattr(samplesoft, function)(**given)


@pytest.mark.parametrize(
    "scheme", [name for name in exact_schemes() if name not in certain_schemes()]
)
def test_schemes_that_make_no_sense_with_a_head_are_refused(scheme):
    remedy = "take one of negatives, masked, reject, jackknife"
    if scheme == "poisson":
        remedy = "set their inclusion probabilities in `q` to 1"
    for function, options in ((exact_bias, {}), (monte_carlo_bias, {"num_trials": 2})):
        with pytest.raises(ValueError, match=f"`certain` must be empty with.*{scheme}.*{remedy}"):
            function(LOGITS, 0, Q, 3, scheme=scheme, certain=[1, 2], **options)


@pytest.mark.parametrize("m", [1, 6])
def test_with_poisson_a_class_of_probability_1_is_certain_already(m):
    """Where every class is, there is no bias."""
    exact = exact_bias(LOGITS, 0, np.ones(5), m, scheme="poisson")
    assert abs(exact.bias).sum() < 1e-15


# --- the losses whose bias it is


class EveryDraw(WeightedSampler):
    """A sampler whose draws for as many contexts are all that there are, one after another."""

    def _sample(self, h, m, exclude, key):
        ids = np.array(list(product(range(self.num_classes), repeat=m)))
        return Draw(ids, self._log_prob(h, ids, exclude))


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_the_mean_over_all_draws_of_the_loss_has_the_exact_bias(scheme, m, label):
    sampler = CertainSampler(EveryDraw([0.3, 0.5, 0.2]), [0, 3])
    batch = np.ones((3**m, 1))
    loss = SampledSoftmaxLoss(scheme=scheme)
    exclude = np.full(3**m, label) if loss.excludes_label else None
    draw = sampler.sample(batch, m, exclude=exclude)
    chances = np.exp(draw.log_q[:, 2:].sum(axis=1))
    kept = chances > 0.0  # a draw of what is excluded
    draw = Draw(draw.ids[kept], draw.log_q[kept], draw.log_inclusion[kept])
    value, gradient = of_scores(loss, draw, LOGITS, label, weights=chances[kept])
    exact = exact_bias(LOGITS, label, sampler, m, scheme=scheme)
    full, slope = full_softmax(LOGITS, label)
    np.testing.assert_allclose(gradient - slope, exact.bias, atol=1e-14)
    assert value - full == pytest.approx(exact.loss_bias, abs=1e-14)
    assert abs(exact.bias).max() > 1e-3
    own = certain_bias(LOGITS, label, sampler.probs(None)[0], m, scheme, [0, 3])[0]
    np.testing.assert_allclose(exact.bias, own, rtol=1e-9, atol=1e-14)


def test_a_sampler_brings_its_certain_classes_and_contexts():
    sampler = CertainSampler(SoftmaxSampler(W[[0, 2, 4]], tau=0.5), [1, 3])
    h = np.random.default_rng(2).normal(size=(3, 2))
    given = h @ W.T, [0, 1, 4]
    for scheme in certain_schemes():
        found = exact_bias(*given, sampler, 6, scheme=scheme, h=h).bias
        wanted = exact_bias(*given, sampler.probs(h), 6, scheme=scheme, certain=[3, 1]).bias
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    moments = exact_gradient_moments(*given, sampler, 6, W, h=h)
    wanted = exact_gradient_moments(*given, sampler.probs(h), 6, W, certain=[1, 3])
    np.testing.assert_allclose(moments.mse, wanted.mse, rtol=1e-9)
    simulated = monte_carlo_bias(*given, sampler, 6, h=h, num_trials=20_000, rng=0)
    exact = exact_bias(*given, sampler, 6, h=h)
    assert abs((simulated.bias - exact.bias) / simulated.stderr).max() < 4.5
