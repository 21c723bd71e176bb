"""The multilevel loss: no bias over all draws of all levels, digits, chances, errors."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from oracles.loss_cases import full_softmax, of_scores
from oracles.naive_losses import derivative, exact, multilevel
from scipy import stats

from samplesoft.losses import MultilevelLoss, SampledSoftmaxLoss
from samplesoft.losses.base import Targets
from samplesoft.losses.multilevel import multilevel_kernel
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import CertainSampler, UniformSampler
from samplesoft.samplers.base import Draw


def every_draw(q, m):
    """All sequences of m draws from q (n,) as one draw of many rows, and their chances."""
    ids = np.array(list(product(np.flatnonzero(q), repeat=m)))
    return Draw(ids, np.log(q[ids])), q[ids].prod(axis=1)


def levels(loss, label, q, m):
    """One draw of each level that `loss.draw` makes, of all sequences, with their chances."""
    given, found = np.where(np.arange(len(q)) == label, 0.0, q) if loss.excludes_label else q, {}
    given = given / given.sum()
    for seed in range(60):
        chances = None

        def sample(num, rng):
            nonlocal chances
            draw, chances = every_draw(given, num)
            return draw

        draw = loss.draw(sample, m, Targets(np.array([label])), len(q), seed)
        found[draw.probability] = draw, chances
    assert sum(found) == pytest.approx(1.0, rel=1e-14)
    return found


def mean(loss, o, label, q, m, weight=lambda draw: draw.probability):
    """E[loss] and E[gradient in the scores], over levels and draws."""
    value, slopes = 0.0, np.zeros(len(o))
    for probability, (draw, chances) in levels(loss, label, q, m).items():
        draw = replace(draw, probability=weight(draw))
        one, gradient = of_scores(loss, draw, o, label, chances)
        value, slopes = value + probability * one, slopes + probability * gradient
    return value, slopes


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize(("n", "m", "num_levels"), [(3, 1, 2), (5, 1, 3), (4, 2, 2)])
def test_no_bias_over_all_draws_of_all_levels(scheme, n, m, num_levels):
    loss = MultilevelLoss(scheme=scheme, reduction="sum")
    rng = np.random.default_rng(n)
    o, q, label = 2.0 * rng.normal(size=n), rng.dirichlet(np.ones(n)), 1
    assert len(levels(loss, label, q, m)) == num_levels
    full, slopes = full_softmax(o, label)
    value, found = mean(loss, o, label, q, m)
    assert value == pytest.approx(full, rel=1e-13)
    np.testing.assert_allclose(found, slopes, rtol=0, atol=1e-13)
    # WRONG: differences that are not divided by the chance of their level
    value, found = mean(loss, o, label, q, m, weight=lambda draw: 1.0)
    assert abs(value - full) > 1e-3 and np.abs(found - slopes).max() > 1e-3
    # WRONG: as many draws without the differences
    plain = SampledSoftmaxLoss(scheme=scheme, reduction="sum")
    drawn = levels(loss, label, q, m).values()
    first, chances = min(drawn, key=lambda pair: pair[0].ids.shape[1])
    value, found = of_scores(plain, Draw(first.ids, first.log_q), o, label, chances)
    assert abs(value - full) > 1e-3 and np.abs(found - slopes).max() > 1e-3


def computed(logits, block, num_draws, weight):
    rows, losses = np.array([logits], dtype=float), np.empty(1)
    multilevel_kernel(rows, losses, block, num_draws, weight)
    return losses[0], rows[0]


@given(st.lists(st.floats(-1e4, 1e4) | st.floats(-3.0, 3.0), min_size=5, max_size=5))
def test_the_definition_anywhere(logits):
    """Of four draws of classes 1 to 4, which may be hundreds of orders apart."""
    value, gradient = computed(logits, 1, 4, 1.0 / 0.3)

    def definition(part):
        return multilevel(part, 0, [1, 2, 3, 4], [1.0] * 4, None)

    with mp.workdps(100):
        largest = max(map(abs, logits))
        wanted = float(definition(exact(logits)))
        assert value == pytest.approx(wanted, rel=1e-12, abs=2e-15 * max(largest, 50.0))
        (slopes,) = derivative(definition, [exact(logits)], "1e-40")
    np.testing.assert_allclose(gradient, slopes, rtol=1e-11, atol=1e-14 * max(largest, 1.0))


def test_small_differences_keep_their_digits():
    """Of halves that are nearly alike, and of all classes from draws that are nearly they."""
    logits, weight = np.array([0.0, 1.0, 2.0, 1.0 + 1e-5, 2.0]), 1e10
    for block, num_draws in [(1, 4), (2, 2)]:
        value, gradient = computed(logits, block, num_draws, weight)

        def difference(part, num_draws=num_draws):
            a, *w = (mp.exp(x) for x in part)
            one, two = mp.fsum(w[:2]), mp.fsum(w[2:])
            if num_draws == 4:
                u = (one - two) / (a + one + two)
                return -weight * mp.log(1 - u * u) / 2
            x = (one - two) / (a + two)
            return weight * (x - mp.log(1 + x))

        with mp.workdps(60):
            wanted = difference(exact(logits))
            (slopes,) = derivative(difference, [exact(logits)])
        plain, base = computed(logits, block, num_draws, 0.0)
        assert value - plain == pytest.approx(float(wanted), rel=1e-9)
        np.testing.assert_allclose(gradient - base, slopes, rtol=1e-9)


def test_chances_of_levels_and_cost():
    """By chi-square; 4.4 m draws in the mean, and no level with more draws than classes."""
    n, m, num = 1000, 10, 4000
    rows = np.zeros((n, 1))
    sampler = UniformSampler(n)
    loss = MultilevelLoss(scheme="masked")
    layer = SoftmaxLayer(rows, loss, sampler, m)
    widths = []
    for seed in range(num):
        draw, _ = layer._draw(np.zeros((1, 1)), Targets(np.array([0])), seed)
        widths.append(draw.ids.shape[1])
    last = 6  # 10 * 2**7 is the first number of draws that is at least 1000
    sizes = [m << (k + 1) for k in range(last)] + [(m << last) + n]
    r = 2.0**-1.5
    chances = np.array([(1 - r) * r**k for k in range(last)] + [r**last])
    counts = np.array([widths.count(size) for size in sizes])
    assert counts.sum() == num
    seen = np.append(counts[:4], counts[4:].sum()), np.append(chances[:4], chances[4:].sum())
    assert stats.chisquare(seen[0], num * seen[1]).pvalue > 1e-3
    wrong = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])  # of a level by coin tosses
    assert stats.chisquare(seen[0], num * wrong).pvalue < 1e-6
    exact_cost = (chances * sizes).sum() / m
    assert exact_cost == pytest.approx(4.4, rel=0.05)
    assert np.mean(widths) / m == pytest.approx(exact_cost, rel=0.1)


def test_what_it_refuses():
    rows, h, labels = np.eye(5), np.eye(5)[:2], np.array([0, 1])
    sampler, loss = UniformSampler(5), MultilevelLoss()
    with pytest.raises(TypeError, match="`draw` must be a MultilevelDraw, got Draw; take it from"):
        loss.forward(h, rows, labels, sampler.sample(h, 2, exclude=labels, rng=0))
    draw = loss.draw(
        lambda num, rng: sampler.sample(h, num, exclude=labels), 2, Targets(labels), 5, 0
    )
    for wrong in (
        {"num_draws": 3},
        {"num_sampled": 3},
        {"num_draws": 64},
        {"num_sampled": 0},
        {"probability": 0.0},
    ):
        with pytest.raises(ValueError, match="`draw` must hold two halves of blocks"):
            loss.forward(h, rows, labels, replace(draw, **wrong))
    distinct = SoftmaxLayer(rows, loss, UniformSampler(5, replace=False), 2)
    with pytest.raises(ValueError, match="`draw` must be with replacement for MultilevelLoss"):
        distinct.forward(h, labels)
    certain = CertainSampler(UniformSampler(4), [0])
    with pytest.raises(ValueError, match="`sampler` must have no certain classes"):
        SoftmaxLayer(rows, MultilevelLoss(scheme="masked"), certain, 2)
