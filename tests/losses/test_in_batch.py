"""In-batch negatives against enumeration of all batches, and the exact bias of `masked`."""

import itertools

import numpy as np
import pytest
from oracles.naive_losses import mixed_means
from scipy import sparse

from samplesoft import exact_bias
from samplesoft.losses import InBatchLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import (
    CertainSampler,
    LearnedUnigramSampler,
    SoftmaxSampler,
    UniformSampler,
    UnigramSampler,
    WeightedSampler,
)

Q = np.array([0.5, 0.3, 0.15, 0.05])
C = np.random.default_rng(0).normal(size=(4, 3))
H = np.random.default_rng(1).normal(size=(4, 3))


def batches(label, size):
    """Yield the chance of each batch whose first example has a label, and the labels."""
    for others in itertools.product(range(4), repeat=size - 1):
        yield np.prod(Q[list(others)]), np.array([label, *others])


def means(loss, label, size, **options):
    """Return the mean loss of the first example and that of its gradient in h."""
    value, slope = 0.0, np.zeros(3)
    for probability, labels in batches(label, size):
        weights = np.eye(size)[0] / 1.0
        losses, cache = loss.forward(H[:size], C, labels, weights=weights, **options)
        value += probability * losses
        slope += probability * loss.backward(cache).dh[0]
    return value, slope


@pytest.mark.parametrize("label", range(4))
@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
def test_the_mean_over_batches_is_the_exact_one(label, scheme):
    loss = InBatchLoss(WeightedSampler(Q), scheme=scheme, reduction="sum", tau=1.5)
    value, slope = means(loss, label, 4)
    logits = 1.5 * H[0] @ C.T
    exact = exact_bias(logits, label, Q, 3, scheme=scheme)
    full = np.logaddexp.reduce(logits) - logits[label]
    assert value == pytest.approx(full + exact.loss_bias, rel=1e-9)
    wanted = 1.5 * (exact.expected_probs - np.eye(4)[label]) @ C
    np.testing.assert_allclose(slope, wanted, rtol=1e-7, atol=1e-9)


def test_the_correction_of_recsys_2025_has_the_same_gradient():
    """A softmax among the negatives alone, times 1 - p of the label as it stands in the sum."""
    labels = np.array([0, 1, 0, 3])
    loss = InBatchLoss(WeightedSampler(Q), reduction="sum")
    _, cache = loss.forward(H, C, labels)
    found = loss.backward(cache).dh
    for b, t in enumerate(labels):
        others = [s for k, s in enumerate(labels) if k != b and s != t]
        weights = np.array([np.exp(H[b] @ C[s]) / (3 * Q[s]) for s in others])
        p_label = np.exp(H[b] @ C[t]) / (np.exp(H[b] @ C[t]) + weights.sum())
        among = weights / weights.sum() @ C[others] - C[t]
        np.testing.assert_allclose(found[b], (1 - p_label) * among, rtol=1e-9)


def test_mixed_negatives_are_corrected_by_what_is_expected_of_both():
    """The sum of all weights has the partition function of the negatives as its mean."""
    extra = UniformSampler(4)
    loss = InBatchLoss(WeightedSampler(Q), extra=extra, reduction="none")
    total, label = 0.0, 1
    for probability, labels in batches(label, 3):
        for drawn in itertools.product(range(4), repeat=2):
            draw = extra.sample(None, 2, rng=0)
            draw = type(draw)(np.array([drawn]), draw.log_q)
            losses, _ = loss.forward(H[:3], C, labels, draw)
            own = H[0] @ C[label]
            total += probability / 16 * (np.exp(losses[0] + own) - np.exp(own))
    wanted = np.exp(H[0] @ C.T)
    assert total == pytest.approx(wanted.sum() - wanted[label], rel=1e-9)


def test_certain_classes_beside_a_batch_are_corrected_by_what_is_expected():
    extra = CertainSampler(UniformSampler(2), [0, 3])  # one of the classes 1 and 2
    loss = InBatchLoss(WeightedSampler(Q), extra=extra, reduction="none")
    draw = extra.sample(None, 1, rng=0)
    total, label = 0.0, 1
    for probability, labels in batches(label, 3):
        for drawn in (1, 2):
            ids = np.array([[0, 3, drawn]])
            one = type(draw)(ids, draw.log_q, draw.log_inclusion)
            losses, _ = loss.forward(H[:3], C, labels, one)
            own = H[0] @ C[label]
            total += probability / 2 * (np.exp(losses[0] + own) - np.exp(own))
    wanted = np.exp(H[0] @ C.T)
    assert total == pytest.approx(wanted.sum() - wanted[label], rel=1e-9)


@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
def test_the_mean_of_mixed_negatives_is_the_exact_one(scheme):
    extra, label = WeightedSampler(Q[::-1]), 1
    loss = InBatchLoss(WeightedSampler(Q), extra=extra, scheme=scheme, reduction="sum")
    value, slope = 0.0, np.zeros(3)
    for drawn in itertools.product(range(4), repeat=2):
        draw = extra.sample(None, 2, rng=0)
        draw = type(draw)(np.array([drawn]), draw.log_q)
        found = means(loss, label, 3, draw=draw)
        probability = Q[::-1][list(drawn)].prod()
        value, slope = value + probability * found[0], slope + probability * found[1]
    logits = H[0] @ C.T
    probs, loss = mixed_means(logits, label, (Q, 2), (Q[::-1], 2), scheme == "candidate_masked")
    assert value == pytest.approx(loss, rel=1e-9)
    np.testing.assert_allclose(slope, (probs - np.eye(4)[label]) @ C, rtol=1e-7)


def info_nce(h, c, labels, drawn=None, tau=1.0):
    """The plain formula: which of the batch's labels is the example's own."""
    losses = []
    for b, t in enumerate(labels):
        others = [] if drawn is None else drawn[b % len(drawn)]
        scores = [tau * h[b] @ c[s] for s in (*labels, *others)]
        losses.append(np.log(np.sum(np.exp(scores))) - tau * h[b] @ c[t])
    return np.array(losses)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 0, 3], [2, 2, 2, 2]])
def test_info_nce_is_the_softmax_of_the_batch(labels):
    """A label that another example has too is a negative there."""
    found, _ = InBatchLoss(scheme="infonce", reduction="none", tau=1.5).forward(H, C, labels)
    np.testing.assert_allclose(found, info_nce(H, C, labels, tau=1.5), rtol=1e-13)
    # WRONG where a label comes twice: its other places left out
    mass = np.exp(found + 1.5 * np.sum(H * C[labels], axis=1))
    for b, t in enumerate(labels):
        wrong = np.log(mass[b] - (labels.count(t) - 1) * np.exp(1.5 * H[b] @ C[t]))
        differs = abs(wrong - 1.5 * H[b] @ C[t] - found[b]) > 0.01
        assert differs == (labels.count(t) > 1)


@pytest.mark.parametrize("rows", [1, 4])
def test_info_nce_with_more_negatives(rows):
    extra, labels = UniformSampler(4), [0, 1, 0, 3]
    draw = extra.sample(H, 5, shared=rows == 1, rng=0)
    loss = InBatchLoss(scheme="infonce", extra=extra, reduction="none")
    np.testing.assert_allclose(
        loss.forward(H, C, labels, draw)[0], info_nce(H, C, labels, draw.ids), rtol=1e-13
    )


def test_small_losses_of_info_nce_keep_their_digits():
    vectors = 80.0 * np.eye(4)
    loss = InBatchLoss(scheme="infonce", reduction="none")
    found, cache = loss.forward(np.eye(4), vectors, [0, 1, 2, 3])
    np.testing.assert_allclose(found, 3.0 * np.exp(-80.0), rtol=1e-13)
    slopes = loss.backward(cache).dh
    np.testing.assert_allclose(np.diag(slopes), -240.0 * np.exp(-80.0), rtol=1e-12)


@pytest.mark.parametrize("scheme", ["masked", "candidate_masked", "infonce"])
@pytest.mark.parametrize("rows", [1, 4])
def test_gradients(scheme, rows):
    extra = UniformSampler(4)
    options = {"tau": 2.0, "normalize": True, "reduction": "sum"}
    proposal = None if scheme == "infonce" else UnigramSampler([4, 3, 2, 1])
    loss = InBatchLoss(proposal, scheme=scheme, extra=extra, **options)
    draw = extra.sample(H, 5, shared=rows == 1, rng=0)
    labels, biases = np.array([0, 1, 0, 3]), np.array([0.1, -0.2, 0.3, 0.0])

    def value(h, c, b):
        return loss.forward(h, c, labels, draw, biases=b)[0]

    gradients = loss.backward(loss.forward(H, C, labels, draw, biases=biases)[1])
    dense = np.zeros_like(C)
    dense[gradients.dW.ids] = gradients.dW.rows
    step = 1e-6
    for array, found in ((H, gradients.dh), (C, dense)):
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = array.copy()
                moved[place] += sign * step
                ends.append(value(*((moved, C) if array is H else (H, moved)), biases))
            assert found[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


def test_in_a_layer_it_learns():
    rng = np.random.default_rng(0)
    C, h = rng.normal(size=(20, 8)), rng.normal(size=(20, 8))
    proposal = LearnedUnigramSampler(20)
    layer = SoftmaxLayer(C, InBatchLoss(proposal))
    before = layer.evaluate(h, np.arange(20)).loss
    for _ in range(60):
        labels = rng.integers(0, 20, 16)
        _, cache = layer.forward(h[labels], labels)
        _, gradients = layer.backward(cache)
        ids = gradients["class_embeddings"].ids
        layer.parameters["class_embeddings"][ids] -= 0.5 * gradients["class_embeddings"].rows
        proposal.observe(labels)
    assert layer.evaluate(h, np.arange(20)).loss < 0.5 * before


LOSS = InBatchLoss(WeightedSampler(Q))
MIXED = InBatchLoss(WeightedSampler(Q), extra=UniformSampler(4))
BAD = {
    "`proposal` must be Sampler, got ndarray": lambda: InBatchLoss(Q),
    "`proposal` must be Sampler, got NoneType": lambda: InBatchLoss(),
    "`proposal` must be None with scheme='infonce'": lambda: InBatchLoss(
        UniformSampler(4), scheme="infonce"
    ),
    "`proposal` must not look at contexts": lambda: InBatchLoss(SoftmaxSampler(C)),
    "`extra` must not look at contexts": lambda: InBatchLoss(
        WeightedSampler(Q), extra=SoftmaxSampler(C)
    ),
    "`proposal` must be over the 4 classes .* over 5": lambda: InBatchLoss(
        WeightedSampler(np.ones(5) / 5)
    ).forward(H, C, [0] * 4),
    "`extra` must be over the 4 classes .* over 3": lambda: InBatchLoss(
        WeightedSampler(Q), extra=UniformSampler(3)
    ).forward(H, C, [0] * 4, UniformSampler(3).sample(H, 2)),
    "`scheme` must be one of": lambda: InBatchLoss(WeightedSampler(Q), scheme="negatives"),
    "at least 2 examples": lambda: LOSS.forward(H[:1], C, [0]),
    "one label of each": lambda: LOSS.forward(H, C, sparse.csr_array(np.eye(4))),
    "`draw` must be None": lambda: LOSS.forward(H, C, [0] * 4, UniformSampler(4).sample(H, 2)),
    "`draw` must be a Draw": lambda: MIXED.forward(H, C, [0] * 4),
    "`label_log_count` must be None": lambda: LOSS.forward(H, C, [0] * 4, label_log_count=[0.0]),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments(words):
    with pytest.raises((TypeError, ValueError), match=words):
        BAD[words]()


def test_batches_of_one_label_have_no_negatives():
    losses, _ = InBatchLoss(WeightedSampler(Q), reduction="none").forward(H, C, [2] * 4)
    np.testing.assert_array_equal(losses, 0.0)
    one, _ = MIXED.forward(H[:1], C, [2], UniformSampler(4).sample(None, 3, rng=0))
    full, _ = make_loss("full").forward(H[:1], C, [2])
    assert 0.0 <= one < 2 * full


@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
@pytest.mark.parametrize("label", [0, 2])
@pytest.mark.parametrize("extra", [False, True])
def test_a_label_that_the_proposal_never_gives_is_named(scheme, label, extra):
    weights = np.ones(4)
    weights[label] = 0.0
    proposal, vectors = WeightedSampler(weights), np.eye(4)
    loss = InBatchLoss(proposal, scheme=scheme, extra=proposal if extra else None)
    draw = proposal.sample(None, 5, rng=0) if extra else None
    words = rf"`proposal` must give each label .* got q = 0 for label {label} by a WeightedSampler"
    with pytest.raises(ValueError, match=words) as error:
        loss.forward(vectors, vectors, [3, 1, label, 1], draw)
    assert "draw" not in str(error.value) or extra
    if extra:
        with pytest.raises(ValueError, match=rf"`extra` must give .* label {label} .* no other"):
            loss.forward(vectors[:1], vectors, [label], draw)
        # what one of the two gives is enough
        every = InBatchLoss(proposal, scheme=scheme, extra=UniformSampler(4))
        drawn = UniformSampler(4).sample(None, 5, rng=0)
        assert np.isfinite(every.forward(vectors, vectors, [3, 1, label, 1], drawn)[0])
    # a label that is not in the batch may be anything
    assert np.isfinite(loss.forward(vectors, vectors, [3, 1, 1, 3], draw)[0])
