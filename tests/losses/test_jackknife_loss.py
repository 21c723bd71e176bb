"""The delete-one jackknife of sampled softmax."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from oracles.naive_losses import derivative, every_draw, exact, jackknife, negatives

from samplesoft import exact_bias
from samplesoft.losses.jackknife import JackknifeLoss, jackknife_kernel
from samplesoft.losses.sampled import SampledSoftmaxLoss
from samplesoft.samplers import UniformSampler
from samplesoft.samplers.base import Draw


def computed(logits):
    """Loss and derivatives in the logits of one row; the label's is the first."""
    rows, losses = np.array([logits], dtype=float), np.empty(1)
    jackknife_kernel(rows, losses)
    return losses[0], rows[0]


def definition(logits):
    """The same by leaving out each draw; a logit of -inf is a draw without weight."""
    m = len(logits) - 1
    drawn = list(range(1, m + 1))
    # `jackknife` leaves draws of the label, 0, out of the sum and in their number
    ids = [j if float(logits[j]) > -np.inf else 0 for j in drawn]
    finite = [x if float(x) > -np.inf else mpf(0) for x in logits]
    return jackknife(finite, 0, ids, [mpf(1)] * m, None)


def check(logits, loss_tolerance=2e-13, tolerance=1e-12):
    value, gradient = computed(logits)
    with mp.workdps(100):
        wanted = definition(exact(logits))
        largest = max((abs(x) for x in logits if x > -np.inf), default=0.0)
        assert value == pytest.approx(
            float(wanted),
            rel=loss_tolerance,
            abs=4e-16 * (largest if largest > 50 else 0.0) + 1e-80,
        )
        seen = [k for k, x in enumerate(logits) if x > -np.inf]

        def change(part):
            whole = exact(np.where(np.isfinite(logits), logits, -np.inf))
            whole[seen] = part
            return definition(whole)

        (slopes,) = derivative(change, [exact(np.array(logits, dtype=float)[seen])], "1e-40")
    np.testing.assert_allclose(gradient[seen], slopes, rtol=tolerance, atol=4e-16)
    assert not np.delete(gradient, seen).any()


INF = np.inf
ROWS = {
    "even": [0.0, 0.1, -0.2, 0.3],
    "two draws": [0.0, 1.0, -1.0],
    "two equal draws": [-3.0, 2.0, 2.0],
    "a heavy draw": [0.0, 5.0, 1.0, 0.5, -2.0],
    "just above half": [0.0, np.log(2.000001), -1e9, 0.0],
    "just below half": [0.0, np.log(1.999999), -1e9, 0.0],
    "a draw hundreds of orders above": [0.0, 1.0, 2000.0, 3.0, -1.0],
    "the rest hundreds of orders apart": [-4000.0, 1.0, 2000.0, -3000.0, -1.0],
    "far above": [1e4, 1e4, 1e4 - 3.0, -1e4],
    "far below": [-1e4, -1e4, -1e4 - 3.0, -1e4 + 40.0],
    "only the label": [0.0, -1e4, -1e4, -1e4],
    "small": [0.0, -60.0, -61.0, -58.0],
    "masked": [0.0, 1.0, -INF, 0.5, -INF],
    "all but one masked": [0.0, -INF, 3.0, -INF],
    "a heavy draw, the rest masked": [0.0, -INF, 900.0, -INF, -INF],
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_definition(kind):
    check(ROWS[kind])


@given(
    st.lists(st.floats(-1e4, 1e4) | st.floats(-3.0, 3.0), min_size=3, max_size=6),
    st.integers(0, 2),
)
def test_the_definition_anywhere(logits, masked):
    logits = [*logits, *[-INF] * masked]
    check(logits, tolerance=1e-11)


def test_all_draws_masked():
    value, gradient = computed([2.0, -INF, -INF])
    assert value == 0.0 and not gradient.any()


def test_many_draws():
    """By the closed form of the sums without a draw, in 40 digits."""
    rng = np.random.default_rng(0)
    logits = np.concatenate([[8.0], rng.normal(size=3_000)])
    value, gradient = computed(logits)
    with mp.workdps(40):
        own, *w = (mp.exp(x) for x in exact(logits))
        m, drawn = len(w), mp.fsum(w)
        without = [own + (drawn - x) * m / (m - 1) for x in w]
        whole = own + drawn
        wanted = m * mp.log(whole) - mpf(m - 1) / m * mp.fsum(map(mp.log, without)) - mp.log(own)
        inverse = mp.fsum(1 / s for s in without)
        slopes = [x * (m / whole - inverse + 1 / s) for x, s in zip(w, without, strict=True)]
        label = own * (m / whole - mpf(m - 1) / m * inverse) - 1
    assert value == pytest.approx(float(wanted), rel=1e-14)
    np.testing.assert_allclose(gradient[1:], np.array(slopes, dtype=float), rtol=1e-12)
    assert gradient[0] == pytest.approx(float(label), rel=1e-13)


def test_rows_do_not_mix():
    rows = np.array([[0.0, 1.0, 50.0], [1.0, 0.0, 0.5], [0.0, -INF, 60.0]])
    together, losses = rows.copy(), np.empty(3)
    jackknife_kernel(together, losses)
    for b, row in enumerate(rows):
        value, gradient = computed(row)
        assert losses[b] == value
        np.testing.assert_array_equal(together[b], gradient)


def means(loss, o, q, m):
    """E[loss] and E[gradient in the scores] over all draws of m of the classes but 0."""
    ids, chances = map(np.array, zip(*every_draw(q, m), strict=True))
    with np.errstate(divide="ignore"):
        draw = Draw(ids, np.log(q)[ids])
    value, cache = loss.forward(
        np.ones((len(ids), 1)), o[:, None], np.zeros(len(ids), int), draw, weights=chances
    )
    found = np.zeros(len(o))
    sparse = loss.backward(cache).dW
    found[sparse.ids] = sparse.rows[:, 0]
    return value, found


def test_the_mean_is_that_of_m_and_of_one_less():
    o, q, m = np.array([0.0, 1.0, -0.5, 2.0]), np.array([0.0, 0.2, 0.5, 0.3]), 4
    plain, loss = SampledSoftmaxLoss(reduction="sum"), JackknifeLoss(reduction="sum")
    now, less = means(plain, o, q, m), means(plain, o, q, m - 1)
    value, gradient = means(loss, o, q, m)
    assert value == pytest.approx(m * now[0] - (m - 1) * less[0], rel=1e-13)
    np.testing.assert_allclose(gradient, m * now[1] - (m - 1) * less[1], rtol=1e-12)
    # a twin that leaves a draw out and does not give its weight to the others
    wrong = 0.0
    for ids, probability in every_draw(q, m):
        c = [m * q[j] for j in ids]
        without = [
            negatives(o, 0, ids[:i] + ids[i + 1 :], c[:i] + c[i + 1 :], None) for i in range(m)
        ]
        wrong += probability * float(m * negatives(o, 0, ids, c, None) - (m - 1) * np.mean(without))
    assert abs(wrong - value) > 0.05


@pytest.mark.parametrize(
    ("scheme", "o", "q", "short", "long"),
    [
        ("negatives", [0.0, 1.0, -0.5], [0.0, 0.5, 0.5], 4, 12),
        ("masked", [1.0, 0.5, -0.5], [0.2, 0.4, 0.4], 3, 6),
    ],
)
def test_the_bias_falls_with_the_square_of_m(scheme, o, q, short, long):
    o, q = np.array(o), np.array(q)
    e = np.exp(o)
    full, slopes = np.log(e.sum()) - o[0], e / e.sum() - (np.arange(3) == 0)
    bias = {}
    for loss in (SampledSoftmaxLoss, JackknifeLoss):
        for m in (short, long):
            found = means(loss(scheme=scheme, reduction="sum"), o, q, m)
            bias[loss, m] = np.array([abs(found[0] - full), np.abs(found[1] - slopes).sum()])
    growth = long / short
    assert (bias[SampledSoftmaxLoss, short] < 1.3 * growth * bias[SampledSoftmaxLoss, long]).all()
    assert (bias[JackknifeLoss, short] > 0.8 * growth**2 * bias[JackknifeLoss, long]).all()
    assert (bias[JackknifeLoss, long] < 0.1 * bias[SampledSoftmaxLoss, long]).all()


def test_no_bias_is_left_as_it_is():
    """Draws in proportion to exp(score) have a constant sum, with or without a draw."""
    o = np.array([0.0, 1.0, -0.5, 2.0])
    q = np.exp(o) * (np.arange(4) > 0)
    q /= q.sum()
    ids = np.array([[1, 3, 3, 2]])
    value, _ = JackknifeLoss().forward(np.ones((1, 1)), o[:, None], [0], Draw(ids, np.log(q[ids])))
    assert value == pytest.approx(np.log(np.exp(o).sum()), rel=1e-15)


def test_the_exact_bias_is_met_at_larger_m_by_many_trials():
    """Twenty classes, 8 draws of a uniform sampler: loss and its standard error."""
    o, m, trials = np.random.default_rng(1).normal(size=20), 8, 40_000
    labels = np.full(trials, 3)
    draw = UniformSampler(20).sample(None, m, exclude=labels, rng=5)
    losses = {
        loss: loss(reduction="none").forward(np.ones((trials, 1)), o[:, None], labels, draw)[0]
        for loss in (JackknifeLoss, SampledSoftmaxLoss)
    }
    full = np.log(np.exp(o).sum()) - o[3]
    q = np.full(20, 0.05)
    for loss, scheme in [(JackknifeLoss, "jackknife"), (SampledSoftmaxLoss, "negatives")]:
        error = losses[loss].std() / np.sqrt(trials)
        exact_mean = full + exact_bias(o, 3, q, m, scheme=scheme).loss_bias
        assert abs(losses[loss].mean() - exact_mean) < 4.0 * error
    assert abs(losses[SampledSoftmaxLoss].mean() - full) > 8.0 * error
    assert (losses[JackknifeLoss] >= losses[SampledSoftmaxLoss]).all()  # log is concave


def test_what_it_refuses():
    h, rows, labels = np.ones((2, 1)), np.ones((5, 1)), np.array([0, 1])
    sampler = UniformSampler(5)
    with pytest.raises(ValueError, match="at least 2 draws for the jackknife.*got 1"):
        JackknifeLoss().forward(h, rows, labels, sampler.sample(h, 1, exclude=labels, rng=0))
    distinct = UniformSampler(5, replace=False).sample(h, 3, exclude=labels, rng=0)
    with pytest.raises(ValueError, match="`draw` must be with replacement for JackknifeLoss"):
        JackknifeLoss().forward(h, rows, labels, distinct)
    for scheme in ("reject", "candidate", "candidate_masked", "importance"):
        with pytest.raises(ValueError, match="`scheme` must be one of negatives, masked; got"):
            JackknifeLoss(scheme=scheme)
