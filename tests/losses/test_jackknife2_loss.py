"""The second-order jackknife of sampled softmax."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.naive_losses import derivative, exact, jackknife2

from samplesoft import exact_bias
from samplesoft.kernels.losses.jackknife2_terms import jackknife2_terms
from samplesoft.losses import SecondJackknifeLoss
from samplesoft.samplers import UniformSampler

INF = np.inf


def computed(logits):
    """Loss and derivatives in the logits of one row; the label's is the first."""
    rows, losses = np.array([logits], dtype=float), np.empty(1)
    jackknife2_terms(rows, losses)
    return losses[0], rows[0]


def definition(logits):
    """The same by leaving out draws; a logit of -inf is a draw without weight, as of the label."""
    drawn = range(1, len(logits))
    ids = [j if float(logits[j]) > -INF else 0 for j in drawn]
    finite = [x if float(x) > -INF else mpf(0) for x in logits]
    return jackknife2(finite, 0, ids, [mpf(1)] * len(ids), None)


def check(logits):
    value, gradient = computed(logits)
    with mp.workdps(100):
        wanted = definition(exact(logits))
        largest = max(abs(x) for x in logits if x > -INF)
        room = 1e-15 * (largest if largest > 50 else 0.0) + 1e-80
        assert value == pytest.approx(float(wanted), rel=1e-12, abs=room)
        seen = [k for k, x in enumerate(logits) if x > -INF]

        def change(part):
            whole = exact(np.where(np.isfinite(logits), logits, -INF))
            whole[seen] = part
            return definition(whole)

        (slopes,) = derivative(change, [exact(np.array(logits, dtype=float)[seen])], "1e-40")
    np.testing.assert_allclose(gradient[seen], slopes, rtol=1e-11, atol=4e-15)
    assert not np.delete(gradient, seen).any()


ROWS = {
    "even": [0.0, 0.1, -0.2, 0.3],
    "equal draws": [-3.0, 2.0, 2.0, 2.0],
    "a heavy draw": [0.0, 5.0, 1.0, 0.5, -2.0],
    "two heavy draws": [0.0, 5.0, 5.0, 0.5, -2.0],
    "just below a quarter": [0.0, *[np.log(0.9999999)] * 2, np.log(1.0000001)],
    "hundreds of orders above": [0.0, 1.0, 2000.0, 3.0, -1.0],
    "two of them": [0.0, 1.0, 2000.0, 1000.0, -1.0],
    "the rest hundreds of orders apart": [-4000.0, 1.0, 2000.0, -3000.0, -1.0],
    "far below": [-1e4, -1e4, -1e4 - 3.0, -1e4 + 40.0],
    "small": [0.0, -60.0, -61.0, -58.0],
    "masked": [0.0, 1.0, -INF, 0.5, -INF],
    "all but one masked": [-2.0, 0.4, -INF, -INF, -INF],
    "all but the last masked": [0.0, -INF, -INF, 3.0],
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_definition(kind):
    check(ROWS[kind])


def test_the_definition_anywhere():
    rng = np.random.default_rng(0)
    for _ in range(25):
        size = int(rng.integers(3, 7))
        logits = rng.normal(size=1 + size) * rng.choice([0.5, 5.0, 500.0])
        masked = (rng.random(1 + size) < 0.2) & (np.arange(1 + size) > 0)
        check(np.where(masked, -INF, logits).tolist())


def test_all_draws_masked():
    value, gradient = computed([2.0, -INF, -INF, -INF])
    assert value == 0.0 and not gradient.any()


def test_rows_do_not_mix():
    rows = np.array([[0.0, 1.0, 50.0, 2.0], [1.0, 0.0, 0.5, 0.2], [0.0, -INF, 60.0, 1.0]])
    together, losses = rows.copy(), np.empty(3)
    jackknife2_terms(together, losses)
    for b, row in enumerate(rows):
        value, gradient = computed(row)
        assert losses[b] == value
        np.testing.assert_array_equal(together[b], gradient)


def test_the_mean_of_many_trials_is_that_of_its_exact_bias():
    o, m, trials = 1.5 * np.random.default_rng(1).normal(size=8), 4, 40_000
    labels = np.full(trials, 3)
    draw = UniformSampler(8).sample(None, m, exclude=labels, rng=5)
    losses, _ = SecondJackknifeLoss(reduction="none").forward(
        np.ones((trials, 1)), o[:, None], labels, draw
    )
    full, error = np.log(np.exp(o).sum()) - o[3], losses.std() / np.sqrt(trials)
    means = {
        scheme: full + exact_bias(o, 3, np.full(8, 1 / 8), m, scheme=scheme).loss_bias
        for scheme in ("jackknife2", "jackknife", "negatives")
    }
    assert abs(losses.mean() - means["jackknife2"]) < 4.0 * error
    assert abs(losses.mean() - means["negatives"]) > 8.0 * error  # WRONG: without a jackknife


def test_what_it_refuses():
    h, rows, labels = np.ones((2, 1)), np.ones((5, 1)), np.array([0, 1])
    draw = UniformSampler(5).sample(h, 2, exclude=labels, rng=0)
    with pytest.raises(ValueError, match="at least 3 draws for the jackknife.*out 2, got 2"):
        SecondJackknifeLoss().forward(h, rows, labels, draw)
    for scheme in ("reject", "candidate", "importance"):
        with pytest.raises(ValueError, match="`scheme` must be one of negatives, masked; got"):
            SecondJackknifeLoss(scheme=scheme)
