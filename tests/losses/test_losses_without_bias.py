"""Losses that have no bias in a layer: by trials, and in training."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from samplesoft.losses import FullSoftmaxLoss, SampledSoftmaxLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import UniformSampler, WeightedSampler

UNBIASED = ["multilevel", "multilevel-masked"]
OWN_AND_SHARED = [(name, False) for name in UNBIASED]
OWN_AND_SHARED += [(name, True) for name in UNBIASED if name.endswith("masked")]

N, M, BATCH = 12, 2, 8
RNG = np.random.default_rng(0)
ROWS, H = 1.5 * RNG.normal(size=(N, 3)), RNG.normal(size=(BATCH, 3))
LABELS = RNG.integers(N, size=BATCH)
SAMPLER = WeightedSampler(RNG.dirichlet(np.ones(N)) + 0.02)


def p_value(loss, shared, trials=500):
    """That of the full gradient in h and of the value, by trials."""
    layer, full = SoftmaxLayer(ROWS, loss, SAMPLER, M, shared=shared), FullSoftmaxLoss()
    value, cache = full.forward(H, ROWS, LABELS)
    wanted, found = np.append(full.backward(cache).dh, value), []
    for seed in range(trials):
        value, cache = layer.forward(H, LABELS, rng=seed)
        found.append(np.append(layer.backward(cache)[0], value))
    found = np.array(found)
    t = np.abs(found.mean(axis=0) - wanted) / (found.std(axis=0, ddof=1) / np.sqrt(trials))
    return min(1.0, float(2 * stats.t.sf(t.max(), trials - 1) * len(t)))


@pytest.mark.parametrize(("name", "shared"), OWN_AND_SHARED)
def test_no_bias_by_trials(name, shared):
    assert p_value(make_loss(name), shared) > 1e-3


# WRONG: what is left where nothing is added to the first set or block
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_trials_find_a_bias(scheme):
    assert p_value(SampledSoftmaxLoss(scheme=scheme), False) < 1e-8


# WRONG: chances that are too small
def test_trials_find_a_wrong_draw():
    loss = make_loss("multilevel")
    draw = loss.draw

    def draw_wrong(*request):
        drawn = draw(*request)
        return replace(drawn, probability=drawn.probability**2)

    loss.draw = draw_wrong
    assert p_value(loss, False) < 1e-6


@pytest.mark.parametrize("name", UNBIASED)
def test_it_trains_with_one_draw(name, threads):
    """The same at any number of threads."""
    ends = []
    for count in (1, 3):
        threads(count)
        layer = SoftmaxLayer(np.eye(6), make_loss(name), UniformSampler(6), 1)
        x, labels, optimizer = np.eye(6), np.array([1, 2, 3, 4, 5, 0]), make_optimizer("adam", 0.1)
        for step in range(150):
            _, cache = layer.forward(x, labels, rng=step)
            optimizer.step(layer.parameters, layer.backward(cache)[1])
        assert layer.evaluate(x, labels).loss < 0.5
        ends.append(layer.parameters["class_embeddings"].copy())
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("name", UNBIASED)
def test_scores_far_apart(name):
    layer = SoftmaxLayer(np.diag([1e4, -1e4, 1.0, 0.5]), make_loss(name), UniformSampler(4), 1)
    for seed in range(20):
        value, cache = layer.forward(np.eye(4), [1, 0, 3, 2], rng=seed)
        dh, _ = layer.backward(cache)
        assert np.isfinite(value) and np.isfinite(dh).all()
