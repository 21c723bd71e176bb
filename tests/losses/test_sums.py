"""One-vs-each and double-sum: their means over all draws, and u of the double-sum."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.log_sum_cases import BEST, OTHERS, M, N, O, Q, all_draws, of_log_sums
from oracles.loss_cases import (
    LABEL,
    dense,
    full_softmax,
    make_case,
    of_scores,
)
from oracles.naive_losses import derivative, exact, scores
from scipy import sparse

from samplesoft.losses import DoubleSumLoss, FullSoftmaxLoss, OneVsEachLoss, SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import UniformSampler, WeightedSampler
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES


def one_vs_each(o):
    """The bound, and its gradient in the scores."""
    margins = np.where(OTHERS, o - o[LABEL], -np.inf)
    slopes = 1.0 / (1.0 + np.exp(-margins))
    return np.logaddexp(0.0, margins).sum(), slopes - slopes.sum() * ~OTHERS


# --- means over all draws ---------------------------------------------------------------------

DRAWS = [(kind, m, exclude) for kind in Q for m in (1, 2, 3) for exclude in (False, True)]


@pytest.mark.parametrize(("kind", "m", "exclude"), DRAWS)
def test_one_vs_each_has_no_bias_for_its_bound(kind, m, exclude):
    draw, chances = all_draws(Q[kind], m, exclude)
    value, gradient = of_scores(OneVsEachLoss(reduction="sum"), draw, O, weights=chances)
    bound, slopes = one_vs_each(O)
    assert value == pytest.approx(bound, rel=1e-13)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-13)


def test_one_vs_each_is_a_bound():
    assert one_vs_each(O)[0] > BEST
    pair = np.array([0.0, -np.inf, 1.0, -np.inf])  # of two classes it is the softmax loss itself
    assert one_vs_each(pair)[0] == pytest.approx(full_softmax(pair)[0])


def test_free_scores_learn_probabilities_by_one_vs_each():
    """The mean gradient over labels from p is 0 where scores are log p, for every q."""
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), Q["skewed"]
    draw, chances = all_draws(q)
    loss, total = OneVsEachLoss(reduction="sum"), np.zeros(N)
    for label in range(N):
        total += p[label] * of_scores(loss, draw, np.log(p), label, chances)[1]
    np.testing.assert_allclose(total, 0.0, atol=1e-14)


@pytest.mark.parametrize(("kind", "m", "exclude"), DRAWS)
@pytest.mark.parametrize("u", [BEST, BEST - 0.4, 9.0])
def test_double_sum_has_no_bias_at_any_u(kind, m, exclude, u):
    """That of no draw is raised: the best u is above the bound of every draw."""
    draw, chances = all_draws(Q[kind], m, exclude)
    us = np.full(len(chances), u)
    value, gradient, d_u, kept = of_log_sums(DoubleSumLoss(reduction="sum"), draw, chances, us)
    np.testing.assert_array_equal(kept, us)
    assert value == pytest.approx(u + np.exp(BEST - u) - 1.0, rel=1e-13)
    full = full_softmax(O)[1]
    np.testing.assert_allclose(gradient, np.exp(BEST - u) * full, rtol=0, atol=1e-12)
    assert d_u.sum() == pytest.approx(1.0 - np.exp(BEST - u), abs=1e-12)


@pytest.mark.parametrize("kind", Q)
def test_at_the_best_u_it_is_the_full_softmax(kind):
    draw, chances = all_draws(Q[kind])
    us = np.full(len(chances), BEST)
    value, gradient, d_u, _ = of_log_sums(DoubleSumLoss(reduction="sum"), draw, chances, us)
    full, slopes = full_softmax(O)
    assert value == pytest.approx(full, rel=1e-14) and abs(d_u.sum()) < 1e-13
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-12)
    biased = SampledSoftmaxLoss(scheme="masked", reduction="sum")
    assert np.abs(of_scores(biased, draw, O, weights=chances)[1] - slopes).max() > 0.01


class _Uncorrected:
    """Draws as they come, as if all were equally likely."""

    def forward(self, h, rows, labels, draw, **options):
        wrong = Draw(draw.ids, np.full(draw.ids.shape, -np.log(N)))
        return super().forward(h, rows, labels, wrong, **options)


class _Labelled:
    """The label is one of the others too."""

    schemes = {"masked": SCHEMES["kept"]}


# WRONG: no correction, or a label that counts where it is drawn
@pytest.mark.parametrize("mistake", [_Uncorrected, _Labelled])
@pytest.mark.parametrize("loss", [OneVsEachLoss, DoubleSumLoss])
def test_means_find_a_mistake(mistake, loss):
    wrong = type("Wrong", (mistake, loss), {})(reduction="sum")
    draw, chances = all_draws(Q["skewed"])
    if loss is DoubleSumLoss:
        value, gradient, *_ = of_log_sums(wrong, draw, chances, np.full(len(chances), BEST))
        wanted = full_softmax(O)
    else:  # the label against itself is a constant
        value, gradient = of_scores(wrong, draw, O, weights=chances)
        wanted = one_vs_each(O)
    assert np.abs(np.append(gradient - wanted[1], value - wanted[0])).max() > 0.05


# --- values, gradients and options ------------------------------------------------------------


def oracle(case, loss, us, h, rows, biases):
    """The value by the formula, in many digits, where no u is raised."""
    total = mpf(0)
    for b, label in enumerate(case.labels):
        o = scores(h[b], rows, biases, loss.tau, loss.normalize, loss.absolute)
        ids, q = case.ids[b % len(case.ids)], case.q[b % len(case.q)]
        pairs = [(o[j] - o[label], len(ids) * mpf(float(q[j]))) for j in ids if j != label]
        drawn = mp.fsum(mp.exp(x) / count for x, count in pairs)
        weight = mpf(float(case.weights[b]))
        total += weight * (us[b] + mp.exp(-us[b]) * (1 + drawn) - 1)
    return total


OPTIONS = {
    "plain": {},
    "normalize": {"tau": 3.0, "normalize": True},
    "absolute": {"tau": 1.7, "absolute": True},
}


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_value_and_gradients_follow_the_formula(kind, shared):
    loss = DoubleSumLoss(reduction="sum", slack=30.0, **OPTIONS[kind])
    case = make_case(loss, shared=shared, full=True, batch=3, n=5, dim=2, seed=len(kind))
    us = np.array([2.0, 0.5, 1.1])
    value, cache = loss.forward(
        case.h,
        case.class_embeddings,
        case.labels,
        case.draw,
        log_sums=us,
        biases=case.biases,
        weights=case.weights,
    )
    found, kept = loss.backward(cache), cache.batch.log_sums
    np.testing.assert_array_equal(kept, us)
    with mp.workdps(50):
        parts = [exact(x) for x in (us, case.h, case.class_embeddings, case.biases)]

        def change(us, *arrays):
            return oracle(case, loss, us, *arrays)

        assert value == pytest.approx(float(change(*parts)), rel=1e-13)
        d_u, dh, dW, db = derivative(change, parts)
    np.testing.assert_allclose(found.d_log_sums, d_u, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.dh, dh, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dense(found.dW, 5), dW, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dense(found.db, 5), db, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("signs", [1.0, np.array([1.0, -1.0, 1.0, -1.0])], ids=["o", "|o|"])
def test_a_raise_by_its_own_formula(signs):
    """What scores highest counts once, whatever its probability and how often it is drawn."""
    options = {"reduction": "none", "absolute": np.ndim(signs) > 0}
    loss, o = DoubleSumLoss(slack=0.25, **options), signs * np.abs(O)
    draw = Draw(np.array([[1, 3], [0, 3], [0, 0], [2, 2]]), np.log([[0.9, 1e-3]] * 4))
    highest = np.append(np.abs(O)[[3, 3, 0]], -np.inf)
    bounds = np.logaddexp(0.0, highest - np.abs(O)[LABEL])
    for below, raised in ((0.2, False), (0.3, True)):
        us = bounds - below
        values, _, d_u, kept = of_log_sums(loss, draw, None, us, o)
        np.testing.assert_allclose(kept, bounds if raised else us, rtol=1e-14, atol=1e-15)
        L = of_scores(SampledSoftmaxLoss(scheme="masked", **options), draw, o)[0]
        np.testing.assert_allclose(values, kept + np.expm1(L - kept), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(d_u, -np.expm1(L - kept), rtol=1e-12, atol=1e-14)


def test_a_raise_lowers_the_objective():
    """It goes towards the best u, and not beyond, whatever was drawn."""
    draw, _ = all_draws(Q["skewed"])
    kept = of_log_sums(DoubleSumLoss(slack=0.0), draw, None, np.full(N**M, -2.0))[3]
    assert (kept > -2.0).all() and (kept < BEST).all() and (kept[:-1] != kept[1:]).any()


def test_weights_and_means_share_out_slopes_of_u():
    loss, weights = DoubleSumLoss(), np.array([1.0, 3.0, 0.0])
    draw = Draw(np.array([[0, 3], [1, 1], [3, 0]]), np.log([[0.3, 0.2]] * 3))
    us = np.array([1.0, 2.0, 3.0])
    slopes = of_log_sums(DoubleSumLoss(reduction="sum"), draw, None, us)[2]
    found = of_log_sums(loss, draw, weights, us)[2]
    np.testing.assert_allclose(found, slopes * weights / 4.0, rtol=1e-14)


EXTREMES = {
    "a draw far above": [3.0, 1e4, 0.0, 5.0],
    "label far above": [-1e4, 0.0, 1e4, 5.0],
    "label far below": [0.0, 1e4, -1e4, 5.0],
    "all far above": [1e4, 1e4 + 1.0, 1e4, 1e4 - 1.0],
    "all far below": [-1e4, 1.0 - 1e4, -1e4, -1.0 - 1e4],
}


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("u", [-1e4, 0.0, 3e4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_far_apart(kind, u, dtype):
    """By U-max no draw pulls harder than its weight times exp(slack)."""
    loss, o = DoubleSumLoss(reduction="none"), np.array(EXTREMES[kind], dtype)
    draw, _ = all_draws(Q["skewed"])
    weights, size = np.exp(-draw.log_expected_count), len(draw.ids)
    values, gradient, d_u, kept = of_log_sums(loss, draw, None, np.full(size, u), o)
    assert all(np.isfinite(x).all() for x in (values, gradient, d_u, kept))
    assert np.abs(gradient).max() <= np.e * weights.sum() * (1.0 + 1e-6)
    assert (kept >= u).all() and d_u.max() <= 1.0
    if dtype is np.float64:
        for ids, count, value, kept_u in zip(draw.ids, weights, values, kept, strict=True):
            with mp.workdps(50):
                kept_ones = [(o[j], w) for j, w in zip(ids, count, strict=True) if j != LABEL]
                pairs = [(mpf(x) - mpf(o[LABEL]), w) for x, w in kept_ones]
                drawn = mp.fsum(mpf(w) * mp.exp(x - mpf(kept_u)) for x, w in pairs)
                wanted = mpf(kept_u) + mp.exp(-mpf(kept_u)) + drawn - 1
            assert value == pytest.approx(float(wanted), rel=2e-11, abs=1e-14)


# WRONG: without U-max
def test_without_a_raise_gradients_explode():
    draw, _ = all_draws(Q["skewed"])
    o, us = np.array(EXTREMES["a draw far above"]), np.zeros(N**M)
    with pytest.raises(ValueError, match="must be finite, got inf"):
        of_log_sums(DoubleSumLoss(slack=1e6), draw, None, us, o)


@pytest.mark.parametrize(("n", "m"), [(1, 3), (2, 1), (3, 7)])
def test_few_classes_and_many_draws(n, m):
    loss = DoubleSumLoss()
    case = make_case(loss, n=n, m=m)
    if n == 1:
        case.ids[:] = 0
    value, cache = loss.forward(
        case.h, case.class_embeddings, case.labels, case.draw, log_sums=np.zeros(3)
    )
    dh = loss.backward(cache).dh
    assert np.isfinite(dh).all()
    if n == 1:  # nothing to tell apart
        assert value == 0.0 and not dh.any()


def test_the_same_bits_at_any_number_of_threads(threads):
    for loss in (DoubleSumLoss(normalize=True), OneVsEachLoss(normalize=True)):
        case = make_case(loss, batch=400, n=300, m=200, dim=20)
        u = {"log_sums": np.full(400, 2.0)} if isinstance(loss, DoubleSumLoss) else {}
        found = []
        for count in (1, 3):
            threads(count)
            arguments = case.h, case.class_embeddings, case.labels, case.draw
            value, cache = loss.forward(*arguments, **u)
            gradients = loss.backward(cache)
            found.append((np.array(value), gradients.dh, gradients.dW.rows))
        for one, two in zip(*found, strict=True):
            np.testing.assert_array_equal(one, two)


# --- training ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_it_trains_by_two_skewed_draws_where_sampled_softmax_has_a_bias():
    """A plain loop; the minimum is that of the full softmax, whose class vectors are known."""
    p = np.array([0.5, 0.25, 0.15, 0.1])
    labels = np.repeat(np.arange(4), (20 * p).astype(int))
    h, sampler = np.ones((20, 1)), WeightedSampler([0.05, 0.15, 0.3, 0.5])
    rng, ends = np.random.default_rng(0), []
    for loss in (DoubleSumLoss(), SampledSoftmaxLoss(scheme="masked")):
        rows, u, mean = np.zeros((4, 1)), np.full(20, np.log(4.0)), np.zeros(4)
        for step in range(4000):
            draw = sampler.sample(h, 2, rng=rng)
            own = {"log_sums": u} if isinstance(loss, DoubleSumLoss) else {}
            _, cache = loss.forward(h, rows, labels, draw, **own)
            gradients = loss.backward(cache)
            if own:
                u = cache.batch.log_sums + np.log1p(-0.02 * 20 * gradients.d_log_sums)
            rows[gradients.dW.ids] -= 0.03 * gradients.dW.rows
            mean += rows[:, 0] / 3000.0 if step >= 1000 else 0.0
        ends.append(np.exp(mean) / np.exp(mean).sum())
    assert np.abs(ends[0] - p).max() < 0.03 < np.abs(ends[1] - p).max()


# --- what is refused --------------------------------------------------------------------------

ARGUMENTS = np.ones((2, 1)), np.ones((3, 1)), [0, 1]
DRAW = UniformSampler(3).sample(np.ones((2, 1)), 2, rng=0)


@pytest.mark.parametrize(
    ("sums", "kind", "said"),
    [
        (None, TypeError, "`log_sums` must be given"),
        ([1.0], ValueError, r"`log_sums` must have shape \(2,\).*got \(1,\)"),
        (1.0, ValueError, "`log_sums` must have 1 dim"),
        ([1.0, np.nan], ValueError, r"`log_sums` must be finite, got nan at index \[1\]"),
        (["a", "b"], TypeError, "`log_sums` must hold real numbers"),
    ],
)
def test_sums_that_are_refused(sums, kind, said):
    with pytest.raises(kind, match=said):
        DoubleSumLoss().forward(*ARGUMENTS, DRAW, log_sums=sums)


def test_a_layer_has_no_sums():
    layer = SoftmaxLayer(ARGUMENTS[1], DoubleSumLoss(), UniformSampler(3), 2)
    with pytest.raises(TypeError, match="`log_sums` must be given"):
        layer.forward(ARGUMENTS[0], np.array([0, 1]), rng=0)


def test_several_labels_are_refused():
    labels = sparse.csr_array([[1, 1, 0], [0, 0, 1]])
    with pytest.raises(TypeError, match="`labels` must hold one label an example for DoubleSum"):
        DoubleSumLoss().forward(*ARGUMENTS[:2], labels, DRAW, log_sums=[1.0, 1.0])


@pytest.mark.parametrize("slack", [-0.1, np.nan, np.inf, "1"])
def test_slack_that_is_refused(slack):
    with pytest.raises((TypeError, ValueError), match="`slack` must be"):
        DoubleSumLoss(slack=slack)


def test_sums_of_the_caller_stay_as_they_are():
    sums = np.array([-3.0, -3.0])
    _, cache = DoubleSumLoss().forward(*ARGUMENTS, DRAW, log_sums=sums)
    assert (sums == -3.0).all() and (cache.batch.log_sums > -3.0).all()


def test_others_have_no_such_gradient():
    _, cache = FullSoftmaxLoss().forward(*ARGUMENTS)
    assert FullSoftmaxLoss().backward(cache).d_log_sums is None
