"""Losses with a number u for each example: moving averages of the sum, and the safe KL double sum.

`test_sums` has the double sum.
"""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.log_sum_cases import BEST, OTHERS, M, N, O, Q, all_draws, of_log_sums
from oracles.loss_cases import LABEL, SCORES, dense, full_softmax, make_case, of_scores
from oracles.naive_losses import derivative, exact, scores
from scipy import sparse

from samplesoft.losses import (
    DoubleSumLoss,
    FullSoftmaxLoss,
    MovingAverageLoss,
    SafeKLLoss,
    SampledSoftmaxLoss,
    plain,
)
from samplesoft.losses.log_sums import moved_log_sums
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import UniformSampler, WeightedSampler
from samplesoft.samplers.base import Draw

US = np.array([2.0, -np.inf, 0.5])  # of three examples, one of which is new
RATES = {
    "default": {},
    "gamma": {"gamma": 0.3},
    "large gamma": {"gamma": 0.97},
    "gamma 1": {"gamma": 1.0},
    "alpha": {"alpha": 0.2},
    "large alpha": {"alpha": 50.0},
}
OPTIONS = {
    "plain": {},
    "normalize": {"tau": 3.0, "normalize": True},
    "absolute": {"tau": 1.7, "absolute": True, "reduction": "mean"},
}


def run(loss, case, u):
    """Value, gradients and new u of a case."""
    value, cache = loss.forward(
        case.h,
        case.class_embeddings,
        case.labels,
        case.draw,
        log_sums=u,
        biases=case.biases,
        weights=case.weights,
    )
    return value, loss.backward(cache), cache.batch.log_sums


def sums(case, loss, h, rows, biases):
    """The sum over label and draws of each example, over its label's term, in many digits."""
    found = []
    for b, label in enumerate(case.labels):
        o = scores(h[b], rows, biases, loss.tau, loss.normalize, loss.absolute)
        ids, q = case.ids[b % len(case.ids)], case.q[b % len(case.q)]
        pairs = [(o[j] - o[label], len(ids) * mpf(float(q[j]))) for j in ids if j != label]
        found.append(1 + mp.fsum(mp.exp(x) / count for x, count in pairs))
    return found


def moved(u, total, gamma=None, alpha=None):
    """The new average in many digits, by the formulas of the papers."""
    if u == -np.inf:
        return total
    average = mp.exp(mpf(float(u)))
    if alpha is not None:
        alpha = mpf(alpha)
        return average * (1 + alpha * total) / (1 + alpha * average)
    gamma = mpf(0.5 if gamma is None else gamma)
    return (1 - gamma) * average + gamma * total


def arrays_of(case):
    return [exact(x) for x in (case.h, case.class_embeddings, case.biases)]


def errors(loss, case, us, rates):
    """Largest errors of value, gradients and new u, against formulas in many digits."""
    value, found, kept = run(loss, case, us)
    weights = exact(case.weights)
    if loss.reduction == "mean":
        weights = weights / mp.fsum(weights)
    parts = arrays_of(case)
    totals = sums(case, loss, *parts)
    averages = [moved(u, total, **rates) for u, total in zip(us, totals, strict=True)]

    def change(*arrays):  # the averages are held
        terms = zip(weights, averages, sums(case, loss, *arrays), strict=True)
        return mp.fsum(w * (mp.log(A) + S / A - 1) for w, A, S in terms)

    n = len(case.class_embeddings)
    gradients = found.dh, dense(found.dW, n), dense(found.db, n)
    gaps = [np.abs(kept - np.array([mp.log(A) for A in averages], float)).max()]
    gaps.append(abs(value - float(change(*parts))))
    for one, wanted in zip(gradients, derivative(change, parts), strict=True):
        gaps.append(np.abs(one - wanted).max())
    return np.array(gaps)


# --- moving averages: values, gradients, new numbers ------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("rate", RATES)
def test_value_gradients_and_new_sums_follow_the_formulas(rate, kind, shared):
    loss = MovingAverageLoss(**{"reduction": "sum", **OPTIONS[kind]}, **RATES[rate])
    case = make_case(loss, shared=shared, full=True, batch=3, n=5, dim=2, seed=len(kind))
    with mp.workdps(50):
        assert errors(loss, case, US, RATES[rate]).max() < 2e-11


@pytest.mark.parametrize("rate", RATES)
def test_float32_vectors(rate):
    loss = MovingAverageLoss(reduction="sum", tau=2.0, **RATES[rate])
    case = make_case(loss, full=True, batch=3, n=5, dim=2, seed=3).astype(np.float32)
    case.biases = case.biases.astype(np.float32)
    value, found, kept = run(loss, case, US)
    assert found.dh.dtype == found.dW.rows.dtype == np.float32 and kept.dtype == np.float64
    with mp.workdps(30):
        assert errors(loss, case, US, RATES[rate]).max() < 1e-3  # of gradients of up to 145


class _Late(MovingAverageLoss):
    """The divisor is u of the visit before."""

    def _backward(self, batch, saved, weights):
        softmax, gaps = saved
        late = np.where(np.isneginf(US), gaps, gaps + batch.log_sums - US)
        return super()._backward(batch, (softmax, late), weights)


class _Unmoved(MovingAverageLoss):
    """u is never moved."""

    def _next_log_sums(self, log_sums, losses, d_sampled, draw):
        return np.where(np.isneginf(log_sums), losses, log_sums)


# WRONG: the sum before the update divides, or there is no update
@pytest.mark.parametrize("mistake", [_Late, _Unmoved])
def test_formulas_find_a_mistake(mistake):
    rates = {"gamma": 0.3}
    loss = mistake(reduction="sum", **rates)
    case = make_case(loss, full=True, batch=3, n=5, dim=2, seed=5)
    with mp.workdps(50):
        assert errors(loss, case, US, rates).max() > 0.01


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shared", [False, True])
def test_gamma_of_one_is_sampled_softmax_to_the_bit(shared, dtype):
    options = {"normalize": True, "reduction": "none"}
    loss = MovingAverageLoss(gamma=1.0, **options)
    case = make_case(loss, shared=shared, full=True, batch=9, n=30, m=12, dim=8)
    case = case.astype(dtype)
    value, found, kept = run(loss, case, np.linspace(-9.0, 9.0, 9))
    softmax = SampledSoftmaxLoss(scheme="masked", **options)
    wanted, cache = case.forward(softmax)
    gradients = softmax.backward(cache)
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(kept * case.weights, wanted)
    for one, other in (
        (found.dh, gradients.dh),
        (found.dW.ids, gradients.dW.ids),
        (found.dW.rows, gradients.dW.rows),
        (found.db.rows, gradients.db.rows),
    ):
        np.testing.assert_array_equal(one, other)
    assert found.d_log_sums is None


@pytest.mark.parametrize("rate", RATES)
def test_gradients_are_those_of_differences_at_a_held_sum(rate):
    """By the sampled softmax of the same draws, in floats."""
    loss = MovingAverageLoss(reduction="none", **RATES[rate])
    case = make_case(loss, batch=3, n=6, dim=3, seed=1)
    _, found, kept = run(loss, case, US)
    softmax = SampledSoftmaxLoss(scheme="masked", reduction="none")

    def held(h, rows):
        L, _ = softmax.forward(h, rows, case.labels, case.draw)
        return (kept + np.expm1(L - kept)).sum()

    given = case.h, case.class_embeddings
    for k, wanted in enumerate((found.dh, dense(found.dW, 6))):
        for place in np.ndindex(wanted.shape):
            ends = []
            for step in (1e-6, -1e-6):
                arrays = [x.copy() for x in given]
                arrays[k][place] += step
                ends.append(held(*arrays))
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(wanted[place], abs=1e-7)


@pytest.mark.parametrize("rate", RATES)
def test_the_plain_twin_visits_one_example_again_and_again(rate):
    loss, u, average = MovingAverageLoss(**RATES[rate]), np.array([-np.inf]), None
    rng = np.random.default_rng(0)
    for _ in range(6):
        ids = rng.choice(N, 3, p=Q["skewed"])
        draw = Draw(ids[None], np.log(Q["skewed"][ids])[None])
        gamma = loss.gamma
        if gamma is None:
            gamma = 0.0 if average is None else loss.alpha * average / (1 + loss.alpha * average)
        counts = list(3 * Q["skewed"][ids])
        average, wanted = plain.moving_average(list(O), LABEL, ids, counts, average, gamma)
        _, cache = loss.forward(np.ones((1, 1)), O[:, None], [LABEL], draw, log_sums=u)
        u = cache.batch.log_sums
        assert u[0] == pytest.approx(np.log(average), rel=1e-13)
        found = dense(loss.backward(cache).dW, N)[:, 0]
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("u", [-700.0, -3.0, 0.0, 5.0, 700.0])
@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 2.0, 1e300])
def test_steps_of_scent_follow_their_formula(u, alpha):
    losses = np.array([0.0, 1e-9, 3.0, 50.0, 700.0, 2e4])
    found = moved_log_sums(np.full(6, u), losses, None, alpha)
    with mp.workdps(60):
        for L, one in zip(losses, found, strict=True):
            wanted = mp.log(moved(u, mp.exp(mpf(L)), alpha=alpha))
            assert one == pytest.approx(float(wanted), rel=1e-14, abs=2e-13)


def test_a_moving_average_stays_at_what_does_not_move():
    L = np.array([0.3, 700.0, 2e4])
    for gamma, alpha in ((0.1, None), (1e-12, None), (None, 0.5), (None, 1e9)):
        np.testing.assert_allclose(moved_log_sums(L, L, gamma, alpha), L, rtol=1e-15)


EXTREMES = {
    "a draw far above": [3.0, 1e4, 0.0, 5.0],
    "label far above": [-1e4, 0.0, 1e4, 5.0],
    "label far below": [0.0, 1e4, -1e4, 5.0],
    "all far above": [1e4, 1e4 + 1.0, 1e4, 1e4 - 1.0],
    "all far below": [-1e4, 1.0 - 1e4, -1e4, -1.0 - 1e4],
}


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("u", [-700.0, 0.0, 700.0, -np.inf])
@pytest.mark.parametrize("rate", ["default", "gamma 1", "alpha"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_far_apart(kind, u, rate, dtype):
    """A visit weighs at most 1 / gamma more than in sampled softmax; alpha has no such limit."""
    loss = MovingAverageLoss(reduction="none", **RATES[rate])
    o, size = np.array(EXTREMES[kind], dtype), 3
    draw = Draw(np.array([[1, 0], [3, 3], [2, 2]]), np.log([[1e-300, 0.5]] * size))
    given = np.ones((size, 1)), o[:, None], np.full(size, LABEL), draw
    values, cache = loss.forward(*given, log_sums=np.full(size, u))
    found, kept = loss.backward(cache), cache.batch.log_sums
    assert np.isfinite(values).all() and np.isfinite(kept).all()
    L = SampledSoftmaxLoss(scheme="masked", reduction="none").forward(*given)[0]
    rates = {"alpha": 0.2} if rate == "alpha" else {"gamma": loss.gamma}
    with mp.workdps(50):
        wanted = [mp.log(moved(u, mp.exp(mpf(x)), **rates)) for x in L]
    np.testing.assert_allclose(kept, np.array(wanted, float), rtol=1e-14, atol=1e-12)
    limit = np.exp(np.maximum(L - kept, 0.0)).sum()
    if limit < np.finfo(dtype).max / 1e5:  # scores are up to 1e4
        assert np.isfinite(found.dW.rows).all() and np.isfinite(found.dh).all()
        assert np.abs(found.dW.rows).max() <= limit * (1.0 + 1e-6)
    if rate != "alpha":
        assert limit <= size / loss.gamma * (1.0 + 1e-12)


def test_a_step_beyond_all_numbers_is_an_error():
    """With alpha an old sum that is far too low is hardly raised."""
    loss = MovingAverageLoss(alpha=1e-10)
    draw = Draw(np.array([[1, 1]]), np.log([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="the loss of example 0 must be finite, got inf"):
        given = np.ones((1, 1)), np.array([[0.0], [1e4], [0.0]]), [2], draw
        loss.forward(*given, log_sums=[-700.0])


def test_the_same_bits_at_any_number_of_threads(threads):
    loss = MovingAverageLoss(normalize=True)
    case = make_case(loss, batch=400, n=300, m=200, dim=20)
    found = []
    for count in (1, 3):
        threads(count)
        value, gradients, kept = run(loss, case, np.linspace(-1.0, 9.0, 400))
        found.append((np.array(value), gradients.dh, gradients.dW.rows, kept))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_small_gamma_has_a_smaller_bias_than_sampled_softmax():
    """In the long run at fixed scores, by a plain loop."""
    _, wanted = full_softmax(O)
    h, rows, u, means = np.ones((1, 1)), O[:, None], None, []
    draws = WeightedSampler(Q["skewed"]).sample(np.ones((20_000, 1)), M, rng=0)
    for gamma in (0.05, 1.0):
        loss, u, mean = MovingAverageLoss(gamma=gamma), np.array([BEST]), np.zeros(N)
        for ids, log_q in zip(draws.ids, draws.log_q, strict=True):
            _, cache = loss.forward(h, rows, [LABEL], Draw(ids[None], log_q[None]), log_sums=u)
            u = cache.batch.log_sums
            mean += dense(loss.backward(cache).dW, N)[:, 0] / len(draws.ids)
        means.append(np.abs(mean - wanted).max())
    assert means[0] < 0.25 * means[1]


# --- moving averages: what is refused ---------------------------------------------------------

ARGUMENTS = np.ones((2, 1)), np.ones((3, 1)), [0, 1]
DRAW = UniformSampler(3).sample(np.ones((2, 1)), 2, rng=0)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"gamma": 0.0}, ValueError, "`gamma` must be"),
        ({"gamma": 1.1}, ValueError, "`gamma` must be"),
        ({"gamma": -0.1}, ValueError, "`gamma` must be"),
        ({"gamma": np.nan}, ValueError, "`gamma` must be"),
        ({"gamma": "0.1"}, TypeError, "`gamma` must be"),
        ({"alpha": 0.0}, ValueError, "`alpha` must be"),
        ({"alpha": np.inf}, ValueError, "`alpha` must be"),
        ({"alpha": "1"}, TypeError, "`alpha` must be"),
        ({"gamma": 0.1, "alpha": 1.0}, ValueError, "`alpha` must be left out where `gamma`"),
        ({"scheme": "negatives"}, ValueError, "`scheme` must be"),
    ],
)
def test_rates_that_are_refused(options, kind, said):
    with pytest.raises(kind, match=said):
        MovingAverageLoss(**options)


@pytest.mark.parametrize("loss", [MovingAverageLoss(), SafeKLLoss()])
@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ([1.0], ValueError, r"`log_sums` must have shape \(2,\).*got \(1,\)"),
        (1.0, ValueError, "`log_sums` must have 1 dim"),
        ([1.0, np.nan], ValueError, r"`log_sums` must be finite, got nan at index \[1\]"),
        ([1.0, np.inf], ValueError, r"`log_sums` must be finite, got inf at index \[1\]"),
        (["a", "b"], TypeError, "`log_sums` must hold real numbers"),
    ],
)
def test_sums_that_are_refused(loss, given, kind, said):
    with pytest.raises(kind, match=said):
        loss.forward(*ARGUMENTS, DRAW, log_sums=given)


def test_a_safe_sum_must_be_given_and_finite():
    with pytest.raises(TypeError, match="`log_sums` must be given to SafeKLLoss"):
        SafeKLLoss().forward(*ARGUMENTS, DRAW)
    with pytest.raises(ValueError, match="`log_sums` must be finite, got -inf"):
        SafeKLLoss().forward(*ARGUMENTS, DRAW, log_sums=[0.0, -np.inf])


@pytest.mark.parametrize("loss", [MovingAverageLoss(), SafeKLLoss()])
def test_several_labels_are_refused(loss):
    labels = sparse.csr_array([[1, 1, 0], [0, 0, 1]])
    with pytest.raises(TypeError, match="`labels` must hold one label an example"):
        loss.forward(*ARGUMENTS[:2], labels, DRAW, log_sums=[1.0, 1.0])


@pytest.mark.parametrize("rho", [0.0, -1.0, np.nan, np.inf, "1"])
def test_rho_that_is_refused(rho):
    with pytest.raises((TypeError, ValueError), match="`rho` must be"):
        SafeKLLoss(rho=rho)


def test_sums_of_the_caller_stay_as_they_are():
    given = np.array([-3.0, -np.inf])
    _, cache = MovingAverageLoss().forward(*ARGUMENTS, DRAW, log_sums=given)
    assert given.tolist() == [-3.0, -np.inf]
    assert np.isfinite(cache.batch.log_sums).all() and cache.batch.log_sums[0] > -3.0


def test_integers_are_sums_too():
    _, one = MovingAverageLoss().forward(*ARGUMENTS, DRAW, log_sums=[1, 2])
    _, other = MovingAverageLoss().forward(*ARGUMENTS, DRAW, log_sums=[1.0, 2.0])
    np.testing.assert_array_equal(one.batch.log_sums, other.batch.log_sums)


# --- in a layer -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [MovingAverageLoss(), DoubleSumLoss(), SafeKLLoss()])
def test_a_layer_passes_sums(loss):
    h, rows, labels, u = np.ones((2, 1)), SCORES[:, None], np.array([0, 1]), np.array([1.0, 2.0])
    layer = SoftmaxLayer(rows, loss, UniformSampler(5), 3, shared=False)
    value, cache = layer.forward(h, labels, log_sums=u, rng=4)
    draw = UniformSampler(5).sample(h, 3, rng=4)
    wanted, other = loss.forward(h, rows, labels, draw, log_sums=u)
    assert value == wanted
    np.testing.assert_array_equal(cache.batch.log_sums, other.batch.log_sums)
    np.testing.assert_array_equal(layer.backward(cache)[0], loss.backward(other).dh)


def test_examples_of_a_layer_are_new_by_default():
    layer = SoftmaxLayer(SCORES[:, None], MovingAverageLoss(), UniformSampler(5), 3)
    value, cache = layer.forward(np.ones((2, 1)), np.array([0, 1]), rng=0)
    assert value == pytest.approx(cache.batch.log_sums.mean(), rel=1e-15)


class _Uncalled(UniformSampler):
    def sample(self, *arguments, **options):
        raise AssertionError("nothing may be drawn")


@pytest.mark.parametrize(
    ("loss", "given", "said"),
    [
        (SampledSoftmaxLoss(scheme="masked"), [0.0, 0.0], "`log_sums` must be None for Sampled"),
        (DoubleSumLoss(), None, "`log_sums` must be given to DoubleSumLoss"),
    ],
)
def test_a_layer_refuses_sums_before_it_draws(loss, given, said):
    layer = SoftmaxLayer(SCORES[:, None], loss, _Uncalled(5), 3)
    with pytest.raises(TypeError, match=said):
        layer.forward(np.ones((2, 1)), np.array([0, 1]), log_sums=given)


def test_a_layer_over_all_classes_has_no_sums():
    layer = SoftmaxLayer(SCORES[:, None], FullSoftmaxLoss())
    with pytest.raises(TypeError, match="`log_sums` must be None for FullSoftmaxLoss"):
        layer.forward(np.ones((2, 1)), np.array([0, 1]), log_sums=[0.0, 0.0])


# --- safe KL ----------------------------------------------------------------------------------


def softened(u, rho, o=O):
    """The sum over all classes, its gradient in the scores, and that in u."""
    gaps = o - o[LABEL] - u
    slopes = 1.0 / (np.exp(-gaps) + rho)
    value = u - 1.0 + np.logaddexp(0.0, np.log(rho) + gaps).sum() / rho
    return value, slopes * OTHERS - slopes[OTHERS].sum() * ~OTHERS, 1.0 - slopes.sum()


@pytest.mark.parametrize("kind", Q)
@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("u", [BEST, BEST - 3.0, 9.0])
def test_the_mean_over_draws_is_the_softened_sum(kind, m, exclude, rho, u):
    draw, chances = all_draws(Q[kind], m, exclude)
    loss, us = SafeKLLoss(rho=rho, reduction="sum"), np.full(len(chances), u)
    value, gradient, d_u, _ = of_log_sums(loss, draw, chances, us)
    wanted, slopes, slope_of_u = softened(u, rho)
    assert value == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-11, atol=1e-12)
    assert d_u.sum() == pytest.approx(slope_of_u, abs=1e-11)


@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0])
def test_gradients_of_the_safe_sum_are_differences(rho):
    loss = SafeKLLoss(rho=rho, reduction="sum", tau=1.3, normalize=True)
    case = make_case(loss, full=True, batch=3, n=5, dim=2, seed=2)
    us = np.array([2.0, 0.5, -1.1])
    _, found, kept = run(loss, case, us)
    np.testing.assert_array_equal(kept, us)
    names = ("h", "class_embeddings", "biases")
    given = {**{name: getattr(case, name) for name in names}, "log_sums": us}
    gradients = found.dh, dense(found.dW, 5), dense(found.db, 5), found.d_log_sums
    for (name, array), gradient in zip(given.items(), gradients, strict=True):
        for place in np.ndindex(array.shape):
            ends = []
            for step in (1e-6, -1e-6):
                changed = {key: value.copy() for key, value in given.items()}
                changed[name][place] += step
                h, rows = changed.pop("h"), changed.pop("class_embeddings")
                more = {**changed, "weights": case.weights}
                ends.append(loss.forward(h, rows, case.labels, case.draw, **more)[0])
            slope = (ends[0] - ends[1]) / 2e-6
            assert slope == pytest.approx(gradient[place], rel=1e-6, abs=1e-7)


def test_a_small_rho_is_the_double_sum():
    draw, _ = all_draws(Q["skewed"])
    us = np.linspace(0.5, 6.0, len(draw.ids))
    double = of_log_sums(DoubleSumLoss(reduction="none", slack=1e3), draw, None, us)[:3]
    gaps = []
    for rho in (1e-3, 1e-6):
        safe = of_log_sums(SafeKLLoss(rho=rho, reduction="none"), draw, None, us)[:3]
        gaps.append(max(np.abs(a - b).max() for a, b in zip(safe, double, strict=True)))
    assert gaps[1] == pytest.approx(1e-3 * gaps[0], rel=0.2)


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("u", [-700.0, 0.0, 700.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_draw_pulls_harder_than_its_weight_over_rho(kind, u, dtype):
    draw, _ = all_draws(Q["skewed"])
    weights = np.exp(-draw.log_expected_count)
    loss, o = SafeKLLoss(rho=0.1, reduction="none"), np.array(EXTREMES[kind], dtype)
    for k in range(len(draw.ids)):
        one = Draw(draw.ids[k : k + 1], draw.log_q[k : k + 1])
        value, gradient, d_u, _ = of_log_sums(loss, one, None, np.array([u]), o)
        assert np.isfinite(value).all() and np.isfinite(d_u).all()
        limits = np.bincount(draw.ids[k], weights[k], N) / 0.1
        limits[LABEL] = weights[k].sum() / 0.1
        assert (np.abs(gradient) <= limits * (1.0 + 1e-6)).all()


def least(o, rho):
    """The minimum of the softened sum over u, by bisection of its slope."""
    low, high = -200.0, full_softmax(o)[0] + 1.0
    for _ in range(200):
        u = 0.5 * (low + high)
        low, high = (low, u) if softened(u, rho, o)[2] > 0.0 else (u, high)
    return softened(low, rho, o)[0]


def test_the_minimum_is_not_far_below_the_softmax_loss():
    """By at most rho times the sum of squared probabilities, and about half of it for small rho."""
    rng, ratios = np.random.default_rng(0), []
    for rho in (1e-3, 0.1, 0.5, 1.0):
        for _ in range(50):
            o = rng.normal(size=N) * rng.choice([0.1, 1.0, 5.0])
            loss, slopes = full_softmax(o)
            p = slopes + ~OTHERS
            gap, unit = loss - least(o, rho), rho * (p**2).sum()
            assert -1e-12 <= gap <= unit + 1e-10
            ratios.append((rho, gap / unit))
    small = [ratio for rho, ratio in ratios if rho == 1e-3]
    assert max(ratio for _, ratio in ratios) > 0.55 > max(small) > 0.499
    assert min(ratio for _, ratio in ratios) > 0.499


def test_value_of_scores_by_themselves():
    draw, _ = all_draws(Q["uniform"])
    L = of_scores(SampledSoftmaxLoss(scheme="masked", reduction="none"), draw, O)[0]
    u = np.full(len(L), 1.5)
    moved_u = moved_log_sums(u, L, 0.5, None)
    value, *_ = of_log_sums(MovingAverageLoss(reduction="none"), draw, None, u)
    np.testing.assert_allclose(value, moved_u + np.expm1(L - moved_u), rtol=1e-14)
