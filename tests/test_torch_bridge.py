"""The bridge to torch of docs/howto: gradients, the loss that it is, and the example."""

import sys
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from documents import blocks, run

from samplesoft import exact_bias
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.samplers import Draw, UniformSampler

torch = pytest.importorskip("torch", reason="needs torch")
FOLDER = Path(__file__).parents[1] / "docs" / "howto"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, not ours


@pytest.fixture
def bridge(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    torch_bridge = import_module("torch_bridge")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as there are cores fight with those of the kernels
    yield torch_bridge
    torch.set_num_threads(threads)
    del sys.modules["torch_bridge"]


def make(seed, n=7, batch=4, dim=3):
    shapes = (batch, dim), (n, dim), (n,)
    rng = np.random.default_rng(seed)
    given = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
    return given, torch.tensor(rng.integers(0, n, batch))


@pytest.mark.parametrize("scheme", ["masked", "negatives"])
def test_gradcheck(bridge, scheme):
    given, labels = make(0)
    loss, exclude = SampledSoftmaxLoss(scheme=scheme), labels.numpy()
    draw = UniformSampler(7).sample(None, 5, exclude=exclude, rng=1)
    assert torch.autograd.gradcheck(
        lambda *x: 3.0 * bridge.SampledLossFunction.apply(*x, labels, loss, draw), given
    )


def test_without_a_chain_rule_gradcheck_fails(bridge):
    class Wrong(bridge.SampledLossFunction):
        @staticmethod
        def backward(ctx, upstream):
            return bridge.SampledLossFunction.backward(ctx, torch.ones_like(upstream))

    given, labels = make(0)
    draw = UniformSampler(7).sample(None, 5, exclude=labels.numpy(), rng=1)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(
            lambda *x: 3.0 * Wrong.apply(*x, labels, SampledSoftmaxLoss(), draw), given
        )


def test_in_evaluation_it_is_linear_and_cross_entropy(bridge):
    (h, *_), labels = make(1)
    torch.manual_seed(0)
    layer = bridge.SampledSoftmax(3, UniformSampler(7), 5).double().eval()
    plain = torch.nn.Linear(3, 7).double()
    plain.load_state_dict(layer.state_dict())
    assert layer(h, labels) == torch.nn.CrossEntropyLoss()(plain(h), labels)
    layer.train()
    values = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(layer(h, labels).item())
    assert values[0] == values[1] != values[2]


def test_the_mean_over_all_draws_is_that_of_the_exact_bias(bridge):
    ((h, weight, bias), _), q, t = make(2, n=4, batch=1), np.array([0.4, 0.3, 0.2, 0.1]), 2
    loss, mean = SampledSoftmaxLoss(scheme="masked"), 0.0
    for ids in product(range(4), repeat=3):
        draw = Draw(np.array([ids]), np.log(q[list(ids)])[None])
        args = h, weight, bias, torch.tensor([t]), loss, draw
        mean = mean + q[list(ids)].prod() * bridge.SampledLossFunction.apply(*args)
    (slope,) = torch.autograd.grad(mean, bias)
    logits = (h @ weight.T + bias).detach().numpy()[0]
    exact = exact_bias(logits, t, q, 3, scheme="masked")
    full = np.logaddexp.reduce(logits) - logits[t]
    assert mean.item() == pytest.approx(full + exact.loss_bias, rel=1e-12)
    np.testing.assert_allclose(slope, exact.expected_probs - (np.arange(4) == t), atol=1e-12)


def test_it_goes_on_from_a_layer_that_was_trained(bridge):
    (h, *_), _ = make(1)
    plain = torch.nn.Linear(3, 7).double()
    layer = bridge.SampledSoftmax(3, UniformSampler(7), 5).double()
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.logits(h), plain(h))


@pytest.mark.slow
def test_the_examples_print_what_they_say(bridge):
    text, namespace = (FOLDER / "torch.md").read_text(), {}
    training, check = (b for b in blocks(text) if b.language == "py")
    printed = run(training, namespace, "torch.md").split()
    full, sampled = map(float, printed[1::2])  # other versions of torch have other numbers
    assert printed[::2] == ["nn.Linear", "SampledSoftmax"]
    assert full == pytest.approx(1.79, abs=0.2) and sampled == pytest.approx(1.89, abs=0.2)
    assert run(check, namespace, "torch.md") in text
