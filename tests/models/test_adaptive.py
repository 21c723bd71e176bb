"""Adaptive softmax against its definition written out in NumPy, and against torch's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from samplesoft.models import AdaptiveSoftmax
from samplesoft.optimizers import make_optimizer

COUNTS = np.array([3, 100, 1, 50, 2, 9, 8, 1, 1, 30, 4])
CUTOFFS = {"two tails": [3, 6], "three tails": [2, 4, 9], "one tail": [1], "default": None}
each_cutoffs = pytest.mark.parametrize("name", CUTOFFS)


def make(name, dtype=np.float64, **options):
    return AdaptiveSoftmax(8, COUNTS, CUTOFFS[name], dtype=dtype, rng=1, **options)


def log_probs_by_hand(layer, h, parameters=None):
    parameters = layer.parameters if parameters is None else parameters
    order = np.argsort(-COUNTS, kind="stable")
    head = log_softmax(h @ parameters["head"].T, axis=1)
    logs, num = np.empty((len(h), len(COUNTS))), layer.cutoffs[0]
    logs[:, order[:num]] = head[:, :num]
    for i, first in enumerate(layer.cutoffs, start=1):
        if f"tail_{i}" in parameters:
            last = first + len(parameters[f"tail_{i}"])
            scores = h @ parameters[f"projection_{i}"].T @ parameters[f"tail_{i}"].T
            logs[:, order[first:last]] = head[:, [num + i - 1]] + log_softmax(scores, axis=1)
    return logs


def problem(batch=7, dtype=np.float64):
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 8)).astype(dtype), rng.integers(0, len(COUNTS), batch)


@each_cutoffs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probabilities_and_loss(name, dtype):
    layer, (h, labels) = make(name, dtype), problem(dtype=dtype)
    logs, expected = layer.log_probs(h), log_probs_by_hand(layer, h.astype(float))
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(logs, expected, rtol=tolerance)
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=1e-6)
    weights = np.arange(1.0, 8.0)
    own = expected[np.arange(7), labels]
    assert layer.forward(h, labels)[0] == pytest.approx(-own.mean(), rel=tolerance)
    value, _ = layer.forward(h, labels, weights=weights)
    assert value == pytest.approx(-np.average(own, weights=weights), rel=tolerance)
    ids, best = layer.top_k(h, 4)
    np.testing.assert_array_equal(ids, np.argsort(-logs, axis=1, kind="stable")[:, :4])
    np.testing.assert_array_equal(best, np.take_along_axis(logs, ids, axis=1))


@each_cutoffs
def test_gradients_by_finite_differences(name):
    layer, (h, labels) = make(name, reduction="sum"), problem()
    weights = np.linspace(0.0, 2.0, 7)
    value, cache = layer.forward(h, labels, weights=weights)
    dh, gradients = layer.backward(cache)

    def loss():
        return -np.dot(weights, log_probs_by_hand(layer, h)[np.arange(7), labels])

    assert value == pytest.approx(loss(), rel=1e-12)
    dense = {}
    for key, array in layer.parameters.items():
        dense[key] = np.zeros_like(array)
        if key in gradients:
            ids = getattr(gradients[key], "ids", slice(None))
            dense[key][ids] = getattr(gradients[key], "rows", gradients[key])
    for array, found in ((h, dh), *((layer.parameters[key], dense[key]) for key in dense)):
        for place in np.ndindex(*array.shape):
            before, values = array[place], []
            for step in (1e-6, -1e-6):
                array[place] = before + step
                values.append(loss())
            array[place] = before
            assert found[place] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)


def test_equal_to_torch():
    torch = pytest.importorskip("torch")
    layer, (h, labels) = make("two tails", div_value=2.0), problem(40)
    ranks = np.argsort(np.argsort(-COUNTS, kind="stable"))[labels]
    peer = torch.nn.AdaptiveLogSoftmaxWithLoss(
        8, len(COUNTS), [3, 6], div_value=2.0, dtype=torch.float64
    )
    weights = [layer.parameters["head"]]
    for i in (1, 2):
        weights += [layer.parameters[f"projection_{i}"], layer.parameters[f"tail_{i}"]]
    for parameter, array in zip(peer.parameters(), weights, strict=True):
        parameter.data = torch.tensor(array)
    contexts = torch.tensor(h, requires_grad=True)
    loss = peer(contexts, torch.tensor(ranks)).loss
    loss.backward()
    value, cache = layer.forward(h, labels)
    dh, gradients = layer.backward(cache)
    assert value == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(dh, contexts.grad.numpy(), rtol=1e-8, atol=1e-14)
    head = next(peer.parameters()).grad.numpy()
    np.testing.assert_allclose(gradients["head"].rows, head, rtol=1e-8, atol=1e-14)


def test_training_learns_what_there_is_to_learn():
    rng = np.random.default_rng(0)
    labels = rng.choice(len(COUNTS), 600, p=COUNTS / COUNTS.sum())
    h = (np.eye(len(COUNTS))[:, :8] + 0.1 * rng.normal(size=(len(COUNTS), 8)))[labels]
    layer, optimizer = make("default"), make_optimizer("adagrad", 0.3)
    losses = []
    for _ in range(60):
        loss, cache = layer.forward(h, labels)
        optimizer.step(layer.parameters, layer.backward(cache)[1])
        losses.append(loss)
    assert losses[-1] < 0.3 * losses[0]


def test_the_default_cutoffs_cost_least():
    """No other pair of cutoffs that was asked takes fewer multiplications for an example."""
    counts = 1.0 / np.arange(1, 20_001)
    layer = AdaptiveSoftmax(64, counts)
    shares = np.append(0.0, np.cumsum(counts)) / counts.sum()

    def cost(first, second):
        short = (16, first, second), (4, second, 20_000)
        of_tails = (d * (64 + b - a) * (shares[b] - shares[a]) for d, a, b in short)
        return 64 * (first + 2) + sum(of_tails)

    assert len(layer.cutoffs) == 2
    others = [(a, b) for a in range(50, 4000, 97) for b in range(a + 1, 20_000, 797)]
    assert cost(*layer.cutoffs) < 1.1 * min(cost(*pair) for pair in others)


def test_few_classes_are_all_in_the_head():
    layer = AdaptiveSoftmax(4, [1.0])
    assert (layer.cutoffs, list(layer.parameters)) == ((1,), ["head"])
    assert layer.forward(np.ones((1, 4)), [0])[0] == 0.0


@pytest.mark.parametrize("cutoffs", [[], [0], [3, 3], [4, 2], [11], [3, 12]])
def test_cutoffs_that_do_not_rise_are_refused(cutoffs):
    with pytest.raises(ValueError, match="`cutoffs` must"):
        AdaptiveSoftmax(4, COUNTS, cutoffs)


def test_bad_arguments_are_refused():
    layer = make("two tails")
    with pytest.raises(ValueError, match="`labels` must"):
        layer.forward(np.ones((1, 8)), [11])
    with pytest.raises(ValueError, match="`h` must"):
        layer.forward(np.ones((1, 7)), [1])
    with pytest.raises(ValueError, match="`reduction` must be one of mean, sum"):
        AdaptiveSoftmax(4, COUNTS, reduction="none")
    with pytest.raises(ValueError, match="`weights` must have"):
        layer.forward(np.ones((1, 8)), [1], weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="`div_value` must be at least 1"):
        AdaptiveSoftmax(4, COUNTS, div_value=0.5)
    layer = AdaptiveSoftmax(4, COUNTS, rng=0)
    layer.parameters["head"][:] = 1.0
    for of in (layer.log_probs, lambda h: layer.top_k(h, 2)):
        with pytest.raises(ValueError, match="`h` must have scores within the range of float32"):
            of(np.full((1, 4), 3e38, np.float32))


def test_units_of_counts_and_large_divisors_do_not_matter():
    counts = np.arange(500.0, 0.0, -1.0)
    wanted = AdaptiveSoftmax(16, counts).cutoffs
    assert AdaptiveSoftmax(16, counts * 1e305).cutoffs == wanted
    assert AdaptiveSoftmax(4, COUNTS, 3).cutoffs == (3,)
    layer = AdaptiveSoftmax(4, COUNTS, [2, 4], div_value=1e200)
    assert layer.parameters["tail_2"].shape[1] == 1
