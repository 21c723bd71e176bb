"""BR-SNIS: chains of several rounds by their definition, its bias, and what it refuses."""

from functools import partial

import numpy as np
import pytest
from oracles import naive_losses
from oracles.loss_cases import check_value_and_gradients, full_softmax, make_case
from oracles.naive_losses import br_snis, rounds_of, uniforms_of

from samplesoft.losses import BrSnisLoss, SampledSoftmaxLoss
from samplesoft.losses.chains import ChainDraw
from samplesoft.samplers import UniformSampler


@pytest.mark.parametrize(("rounds", "burn_in"), [(1, 0), (3, 0), (3, 1), (5, 3), (40, 39)])
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_chains_of_many_rounds(scheme, rounds, burn_in, monkeypatch):
    loss = BrSnisLoss(scheme=scheme, rounds=rounds, burn_in=burn_in)
    oracle = partial(br_snis, most=rounds, burn_in=burn_in)
    monkeypatch.setitem(naive_losses.ORACLES, "br-snis", oracle)
    monkeypatch.setattr("loss_cases.rounds_of", partial(rounds_of, most=rounds))
    case = make_case(loss, batch=2, n=5, dim=2, m=9, seed=rounds)
    check_value_and_gradients("br-snis", loss, case)


def mean_gradient(loss, scores, m, size=100_000):
    """E[gradient in the scores], and its standard error."""
    n, labels = len(scores), np.zeros(size, int)
    draw = UniformSampler(n).sample(None, m, exclude=labels, rng=1)
    if isinstance(loss, BrSnisLoss):
        uniforms = np.random.default_rng(2).random((size, loss.rounds))
        draw = ChainDraw(draw.ids, draw.log_q, None, uniforms)
    _, cache = loss.forward(np.ones((size, 1)), scores[:, None], labels, draw)
    found = np.zeros((size, n))
    np.add.at(found, (np.arange(size)[:, None], draw.ids), cache.saved.d_drawn)
    found[:, 0] = cache.saved.d_own
    return found.mean(axis=0), found.std(axis=0) / np.sqrt(size)


def test_the_bias_of_a_round_falls_from_round_to_round():
    """With as many draws a round, that of the last is ever less; without states it is not."""
    scores = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5])
    full, bias = full_softmax(scores, 0)[1], []
    for rounds in (1, 2, 4, 8):
        loss = BrSnisLoss(rounds=rounds, burn_in=rounds - 1)
        mean, error = mean_gradient(loss, scores, 1 + 3 * rounds)
        bias.append(np.abs(mean - full).max())
    assert bias[1] < 0.5 * bias[0] and bias[2] < 0.5 * bias[1] and bias[3] < 5 * error.max()
    # WRONG: the last round alone
    mean, error = mean_gradient(SampledSoftmaxLoss(), scores, 4)
    assert np.abs(mean - full).max() > 20 * error.max()


def test_what_it_refuses():
    h, rows, labels = np.ones((2, 1)), np.ones((5, 1)), np.array([0, 1])
    draw, loss = UniformSampler(5).sample(h, 6, exclude=labels, rng=0), BrSnisLoss()
    with pytest.raises(TypeError, match="`draw` must be a ChainDraw, got Draw; take it from BrSn"):
        loss.forward(h, rows, labels, draw)
    wrong = ChainDraw(draw.ids, draw.log_q, None, uniforms_of(3)[None])
    with pytest.raises(ValueError, match="`draw` must hold 2 uniforms for each example, got 3"):
        loss.forward(h, rows, labels, wrong)
    with pytest.raises(ValueError, match="`burn_in` must be below `rounds`, got 2 of 2"):
        BrSnisLoss(burn_in=2)
    with pytest.raises(ValueError, match="`rounds` must be at least 1"):
        BrSnisLoss(rounds=0)
