"""Moments of the gradients of the two losses that are sums, against all draws of the library's."""

import numpy as np
import pytest
from oracles.naive_losses import every_draw
from sums_moments import double_sum_moments, one_vs_each_moments

from samplesoft.losses import DoubleSumLoss, OneVsEachLoss
from samplesoft.samplers.base import Draw

RNG = np.random.default_rng(4)
VECTORS, H, LABEL = RNG.normal(size=(4, 3)), 2.0 * RNG.normal(size=3), 1
LOGITS = VECTORS @ H
Q = {
    "uniform": np.full(4, 0.25),
    "skewed": np.array([0.1, 0.2, 0.65, 0.05]),
    "without the label": np.array([0.3, 0.0, 0.2, 0.5]),
}


def over_all_draws(loss, q, m, **options):
    """Mean and variance of the gradient in h."""
    ids, chances = map(np.array, zip(*every_draw(q, m), strict=True))
    size = len(ids)
    options = {name: np.full(size, value) for name, value in options.items()}
    draw = Draw(ids, np.log(q[ids]))
    h, labels = np.tile(H, (size, 1)), np.full(size, LABEL)
    gradients = loss.backward(loss.forward(h, VECTORS, labels, draw, **options)[1]).dh
    mean = chances @ gradients
    return mean, chances @ (gradients**2).sum(axis=1) - mean @ mean


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("kind", Q)
@pytest.mark.parametrize("log_sum", [-3.0, 0.3, 1.2, 4.0])
def test_double_sum(kind, m, log_sum):
    """Low u are raised by all draws, or by some."""
    slack, loss = 0.3, DoubleSumLoss(reduction="sum", slack=0.3)
    mean, variance = double_sum_moments(LOGITS, LABEL, Q[kind], m, VECTORS, log_sum, slack)
    wanted = over_all_draws(loss, Q[kind], m, log_sums=log_sum)
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12, atol=1e-13)
    assert variance == pytest.approx(wanted[1], rel=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("kind", Q)
def test_one_vs_each(kind, m):
    mean, variance = one_vs_each_moments(LOGITS, LABEL, Q[kind], m, VECTORS)
    wanted = over_all_draws(OneVsEachLoss(reduction="sum"), Q[kind], m)
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12)
    assert variance == pytest.approx(wanted[1], rel=1e-12)


# WRONG: as if no draw raised u
def test_the_raise_is_seen():
    of = [double_sum_moments(LOGITS, LABEL, Q["skewed"], 2, VECTORS, 0.3, s) for s in (0.0, 9.0)]
    assert np.abs(of[0][0] - of[1][0]).max() > 1e-2 and of[0][1] < of[1][1]
