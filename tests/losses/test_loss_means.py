"""Mean losses and gradients: over all draws, and over many of each sampler."""

import numpy as np
import pytest
from oracles.loss_cases import dense, full_softmax, of_scores
from oracles.naive_losses import every_draw
from scipy import stats

from samplesoft import exact_bias
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.samplers import SAMPLERS, SamplerInputs, make_sampler
from samplesoft.samplers.base import Draw

EXACT = {name: spec.bias_scheme for name, spec in LOSSES.items() if spec.bias_scheme}


def enumerated(loss, o, label, q, m):
    """E[loss] and E[gradient] over all sequences of m draws."""
    own = np.log(m * q[label]) if loss.needs_label_count else None
    given = np.array(q)
    if loss.excludes_label:
        given[label] = 0.0
        given /= given.sum()
    ids, chances = map(np.array, zip(*every_draw(given, m), strict=True))
    draw = Draw(ids, np.log(given[ids]))
    return of_scores(loss, draw, o, label, chances, own)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("n", "m"), [(3, 1), (3, 2), (3, 4), (4, 2), (4, 4), (2, 3)])
def test_mean_loss_and_gradient_over_all_draws(name, n, m):
    m = max(m, LOSSES[name].min_draws)
    loss = make_loss(name, reduction="sum")
    rng = np.random.default_rng(10 * n + m)
    o, q = 2.0 * rng.normal(size=n), rng.dirichlet(np.ones(n))
    for label in range(n):
        seen, slope = (np.abs(o), np.sign(o)) if loss.absolute else (o, 1.0)
        exact = exact_bias(seen, label, q, m, scheme=EXACT[name])
        full, gradient = full_softmax(seen, label)
        value, found = enumerated(loss, o, label, q, m)
        np.testing.assert_allclose(found, slope * (gradient + exact.bias), rtol=0, atol=1e-10)
        assert value == pytest.approx(full + exact.loss_bias, abs=1e-10)


# --- the samplers -----------------------------------------------------------------------------

N, M, TRIALS, BLOCKS = 10, 5, 12_000, 40
FOLLOW_THE_SOFTMAX = [
    "softmax",
    "clusters",
    "rff+softmax-leaf",
    "two-pass",
    "metropolis",
]  # as few classes as this


def world(name):
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(N, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    h = rng.normal(size=(2, 4))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    counts = rng.integers(1, 20, size=N)
    inputs = SamplerInputs(rows, counts, tau=3.0, nu=3.0, num_features=16, rng=4)
    return h, rows, make_sampler(name, inputs)


def expected_score_gradient(o, label, q, m, scheme):
    """Exact; classes that are never drawn have no part in it."""
    seen = (q > 0.0) | (np.arange(len(o)) == label)
    exact = exact_bias(o[seen], int(seen[:label].sum()), q[seen], m, scheme=scheme)
    out = np.zeros(len(o))
    out[seen] = exact.expected_probs
    out[label] -= 1.0
    return out


def p_value(blocks, wanted):
    """The least of t-tests of block means (BLOCKS, n), one for each entry, corrected for n."""
    error = blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    moves = error > 1e-12  # the rest may in events too rare to have come
    np.testing.assert_allclose(blocks.mean(axis=0)[~moves], wanted[~moves], atol=1e-5)
    t = np.abs(blocks.mean(axis=0) - wanted)[moves] / error[moves]
    return min(1.0, float(2 * stats.t.sf(t, len(blocks) - 1).min() * moves.sum()))


@pytest.mark.thorough(but=12)
@pytest.mark.parametrize("sampler_name", SAMPLERS)
@pytest.mark.parametrize("name", ["sampled", "sampled-reject", "jackknife"])
def test_mean_gradient_with_each_sampler(name, sampler_name):
    loss = make_loss(name, reduction="sum", tau=3.0)
    h, rows, sampler = world(sampler_name)
    h = h[:1]
    o = 3.0 * (rows @ h[0])
    q, label = sampler.probs(h)[0], int(np.argmin(sampler.probs(h)[0] == 0.0))
    blocks = np.empty((BLOCKS, N))
    for i in range(BLOCKS):
        many = np.repeat(h, TRIALS // BLOCKS, axis=0)
        labels = np.full(len(many), label)
        exclude = labels if loss.excludes_label else None
        draw = sampler.sample(many, M, exclude=exclude, rng=i)
        own = sampler.log_expected_count(many, labels[:, None], M)[:, 0]
        _, cache = loss.forward(many, rows, labels, draw, label_log_count=own)
        dW = dense(loss.backward(cache).dW, N)
        blocks[i] = dW @ h[0] / (3.0 * len(many))  # of unit norm: the gradient in the scores
    tests = 3 * len(SAMPLERS)
    wanted = expected_score_gradient(o, label, q, M, EXACT[name])
    assert p_value(blocks, wanted) > 1e-3 / tests
    seen = np.where((q > 0.0) | (np.arange(N) == label), o, -np.inf)
    unbiased = np.exp(seen - np.logaddexp.reduce(seen)) - (np.arange(N) == label)
    if np.abs(wanted - unbiased).max() > 0.02:
        assert p_value(blocks, unbiased) < 1e-8
    else:
        assert name == "jackknife" or sampler_name in FOLLOW_THE_SOFTMAX


@pytest.mark.thorough(but=3)
@pytest.mark.slow
@pytest.mark.parametrize("sampler_name", ["uniform", "unigram", "softmax", "rff", "mixture"])
@pytest.mark.parametrize("name", ["sampled-reject", "sampled-candidate"])
def test_mean_gradient_with_shared_sets(name, sampler_name):
    """Each example of the batch has the bias that the mean proposal gives it."""
    loss = make_loss(name, reduction="sum", tau=3.0)
    h, rows, sampler = world(sampler_name)
    labels = np.array([1, 7])
    q = sampler.probs(h).mean(axis=0)
    own = np.log(M * q[labels])
    blocks = np.zeros((BLOCKS, N, 4))
    for trial in range(1_000):
        draw = sampler.sample(h, M, shared=True, rng=trial)
        np.testing.assert_allclose(draw.log_q[0], np.log(q[draw.ids[0]]), rtol=1e-9)
        _, cache = loss.forward(h, rows, labels, draw, label_log_count=own)
        ids, values = loss.backward(cache).dW
        blocks[trial % BLOCKS, ids] += values * BLOCKS / 1_000
    blocks = blocks.reshape(BLOCKS, -1)
    wanted, full = (
        3.0
        * sum(np.outer(gradient(3.0 * (rows @ x), t), x) for x, t in zip(h, labels, strict=True))
        for gradient in (
            lambda o, t: expected_score_gradient(o, t, q, M, EXACT[name]),
            lambda o, t: full_softmax(o, t)[1],
        )
    )
    assert p_value(blocks, wanted.ravel()) > 1e-3 / 15
    if name == "sampled-candidate":  # whose bias is large
        assert p_value(blocks, full.ravel()) < 1e-8
