"""The coupled loss: means over very many chains, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.loss_cases import full_softmax
from oracles.naive_losses import every_draw
from scipy import stats

from samplesoft.losses import CoupledLoss
from samplesoft.losses.sampled import Request
from samplesoft.losses.targets import Targets
from samplesoft.samplers import UniformSampler, WeightedSampler

SCORES, LABEL = np.array([0.3, -1.0, 1.2, 2.0]), 1
Q = np.array([0.1, 0.4, 0.3, 0.2])


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_means_over_many_chains(scheme, m):
    """The gradient is that of the full softmax, the value that of log S under the chain's law."""
    size, loss = 30_000, CoupledLoss(scheme=scheme, reduction="none")
    h, labels, sampler = np.ones((size, 1)), np.full(size, LABEL), WeightedSampler(Q)
    exclude = labels if loss.excludes_label else None

    def sample(num, rng):
        return sampler.sample(h, num, exclude=exclude, rng=rng)

    batch = loss.check_batch(h, SCORES[:, None], labels, None)
    draw = loss.draw(Request(batch.targets, 4, m, sample, lambda draw: (batch, draw)), 1)
    values, cache = loss.forward_batch(batch, draw)
    saved = cache.saved
    slopes = np.zeros((size, 4))
    np.add.at(slopes, (np.arange(size)[:, None], draw.ids), saved.d_drawn)
    slopes[:, LABEL] += saved.d_own
    q, mean, total = np.array(Q), 0.0, 0.0
    if loss.excludes_label:
        q[LABEL] = 0.0
        q /= q.sum()
    for ids, chance in every_draw(q, m):
        s = np.exp(SCORES[LABEL]) + sum(np.exp(SCORES[j]) / (m * q[j]) for j in ids if j != LABEL)
        mean, total = mean + chance * s * np.log(s), total + chance * s
    wanted = np.append(full_softmax(SCORES, LABEL)[1], mean / total - SCORES[LABEL])
    found = np.column_stack([slopes, values])
    z = (found.mean(axis=0) - wanted) / (found.std(axis=0) / np.sqrt(size))
    assert stats.norm.sf(np.abs(z)).min() * 2 * len(z) > 1e-3
    # WRONG: one set, or the value for an estimate of the full loss
    first = found.mean(axis=0) - np.append(wanted[:4], full_softmax(SCORES, LABEL)[0])
    assert abs(first[4]) > 8 * found[:, 4].std() / np.sqrt(size)


def test_what_it_refuses():
    h, rows, labels, loss = np.ones((3, 1)), SCORES[:, None], np.array([0, 1, 2]), CoupledLoss()
    sampler = UniformSampler(4)

    def sample(num, rng):
        return sampler.sample(h, num, exclude=labels, rng=rng)

    with pytest.raises(TypeError, match="`draw` must be a ChainDraw, got Draw; take it from"):
        loss.forward(h, rows, labels, sample(4, 0))
    batch = loss.check_batch(h, rows, labels, None)
    request = Request(Targets(labels), 4, 2, sample, lambda draw: (batch, draw))
    draw = loss.draw(request, 0)
    steps = draw.uniforms.shape[1]
    for uniforms, message in [
        (np.empty((3, 0)), "`draw` must hold a set of as many draws for each"),
        (np.full((3, 2 * steps), 0.5), "`draw` must hold a set of as many draws for each"),
        (np.full((2, steps), 0.5), r"`draw` must hold uniforms of shape \(3, k\) or \(1, k\)"),
        (np.full((3, steps), 1e9), "`draw` must hold sets until the chains meet, got"),
    ]:
        with pytest.raises(ValueError, match=message):
            loss.forward(h, rows, labels, replace(draw, uniforms=uniforms))
