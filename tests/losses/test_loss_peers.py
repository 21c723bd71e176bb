"""Values and gradients of TensorFlow and PyTorch, where they are installed."""

import warnings

import numpy as np
import pytest
from oracles.loss_cases import dense

from samplesoft.losses.registry import make_loss
from samplesoft.samplers.base import Draw


def peer_case(m=6):
    rng = np.random.default_rng(5)
    h, rows, biases = rng.normal(size=(4, 3)), rng.normal(size=(9, 3)), rng.normal(size=9)
    labels, ids = np.array([2, 0, 8, 5]), np.array([[7, 2, 4, 8, 1, 3]])  # two hits, no repeats
    q = rng.dirichlet(np.ones(9))
    return h, rows, biases, labels, Draw(ids[:, :m], np.log(q[ids])[:, :m]), m * q


@pytest.fixture(scope="module")
def tensorflow():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tensorflow")


@pytest.mark.parametrize(
    ("name", "function", "masks"),
    [
        ("sampled-candidate-masked", "sampled_softmax_loss", True),
        ("sampled-candidate", "sampled_softmax_loss", False),
        ("nce", "nce_loss", False),
    ],
)
def test_tensorflow_computes_the_same(tensorflow, name, function, masks):
    h, rows, biases, labels, draw, counts = peer_case()
    loss = make_loss(name, reduction="none")
    value, cache = loss.forward(
        h, rows, labels, draw, biases=biases, label_log_count=np.log(counts[labels])
    )
    found = loss.backward(cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = [tensorflow.constant(x) for x in (rows, biases, h)]
        with tensorflow.GradientTape() as tape:
            tape.watch(arguments)
            peer = getattr(tensorflow.nn, function)(
                weights=arguments[0],
                biases=arguments[1],
                labels=labels[:, None],
                inputs=arguments[2],
                num_sampled=draw.ids.shape[1],
                num_classes=9,
                sampled_values=(
                    tensorflow.constant(draw.ids[0]),
                    tensorflow.constant(counts[labels][:, None]),
                    tensorflow.constant(np.exp(draw.log_expected_count[0])),
                ),
                remove_accidental_hits=masks,
            )
            total = tensorflow.reduce_sum(peer)
        wanted = [tensorflow.convert_to_tensor(g).numpy() for g in tape.gradient(total, arguments)]
    np.testing.assert_allclose(value, peer.numpy(), rtol=1e-12)
    np.testing.assert_allclose(dense(found.dW, 9), wanted[0], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(dense(found.db, 9), wanted[1], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.dh, wanted[2], rtol=1e-10, atol=1e-14)


def torch_losses(torch, name, o, labels, ids, log_counts):
    """Losses (B,) of all scores (B, n), as one would write them with automatic gradients."""
    rows = torch.arange(len(labels))[:, None]
    own = o[rows, labels[:, None]]
    drawn = o[rows, ids.expand(len(labels), -1)]
    corrected = drawn - log_counts[ids]
    hits = ids == labels[:, None]
    if name == "sampled-masked":
        logits = torch.cat([own, corrected.masked_fill(hits, -torch.inf)], dim=1)
        return torch.nn.functional.cross_entropy(
            logits, torch.zeros(len(labels), dtype=torch.long), reduction="none"
        )
    softplus = torch.nn.functional.softplus
    if name == "nce":
        return softplus(log_counts[labels] - own[:, 0]) + softplus(corrected).sum(dim=1)
    return softplus(-own[:, 0]) + softplus(drawn).sum(dim=1)


@pytest.mark.parametrize("name", ["sampled-masked", "nce", "negative-sampling"])
def test_torch_differentiates_to_the_same(name):
    torch = pytest.importorskip("torch")
    h, rows, biases, labels, draw, counts = peer_case()
    scheme = {"scheme": "kept"} if name == "negative-sampling" else {}
    loss = make_loss(name, tau=1.3, normalize=True, reduction="mean", **scheme)
    own = np.log(counts[labels])
    value, cache = loss.forward(h, rows, labels, draw, biases=biases, label_log_count=own)
    found = loss.backward(cache)
    tensors = [torch.tensor(x, requires_grad=True) for x in (h, rows, biases)]
    unit = torch.nn.functional.normalize
    o = 1.3 * unit(tensors[0]) @ unit(tensors[1]).T + tensors[2]
    ids, t = torch.tensor(draw.ids), torch.tensor(labels)
    peer = torch_losses(torch, name, o, t, ids, torch.tensor(np.log(counts))).mean()
    peer.backward()
    assert value == pytest.approx(peer.item(), rel=1e-12)
    mine = (found.dh, dense(found.dW, 9), dense(found.db, 9))
    for one, tensor in zip(mine, tensors, strict=True):
        np.testing.assert_allclose(one, tensor.grad.numpy(), rtol=1e-9, atol=1e-13)
