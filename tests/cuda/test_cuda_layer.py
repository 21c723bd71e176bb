"""Sampled softmax and training steps on a device against those on the processor."""

import numpy as np
import pytest

from samplesoft._device.select import to_host
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers.registry import OPTIMIZERS, make_optimizer
from samplesoft.samplers import (
    SAMPLERS,
    LogUniformSampler,
    RFSoftmaxSampler,
    SamplerInputs,
    UniformSampler,
    make_sampler,
)

pytestmark = pytest.mark.gpu
LABELS = np.array([4, 1, 1])
PLAIN = {}
ALL = {"tau": 2.0, "normalize": True, "absolute": True, "reduction": "sum"}


def vectors(num, dtype=np.float64, dim=3):
    return np.random.default_rng(num).normal(size=(num, dim)).astype(dtype)


def unit(num, dtype=np.float64):
    rows = vectors(num, dtype)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def drawn(scheme, shared, h):
    """A draw of classes 0..6 and what the loss must be given of the labels."""
    sampler, exclude = LogUniformSampler(7), LABELS if scheme == "negatives" else None
    draw = sampler.sample(h, 4, exclude=exclude, shared=shared, rng=1)
    return draw, sampler.log_expected_count(h, LABELS[:, None], 4)[:, 0]


@pytest.mark.parametrize("options", [PLAIN, ALL], ids=["plain", "all options"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("scheme", SampledSoftmaxLoss.schemes)
def test_losses_and_gradients_are_those_of_the_processor(scheme, shared, dtype, options):
    if shared and scheme == "negatives":
        pytest.skip("one set cannot leave out the label of each example")
    h, W = vectors(3, dtype), vectors(7, dtype)
    draw, counts = drawn(scheme, shared, h)
    found = []
    for device in ("cpu", "cuda"):
        loss = SampledSoftmaxLoss(scheme=scheme, device=device, **options)
        value, cache = loss.forward(
            h,
            W,
            LABELS,
            draw,
            label_log_count=counts if loss.needs_label_count else None,
            biases=np.linspace(-1, 1, 7) if options else None,
            weights=[1.0, 2.0, 0.5] if options else None,
        )
        found.append((value, loss.backward(cache).to_host()))
    (value, wanted), (there, got) = found
    near = {"rtol": 0, "atol": 2e-5 if dtype == np.float32 else 1e-12}
    np.testing.assert_allclose(there, value, **near)
    np.testing.assert_allclose(got.dh, wanted.dh, **near)
    np.testing.assert_array_equal(got.dW.ids, wanted.dW.ids)
    np.testing.assert_allclose(got.dW.rows, wanted.dW.rows, **near)
    assert got.dW.rows.dtype == dtype
    if options:
        np.testing.assert_allclose(got.db.rows, wanted.db.rows, **near)


def test_losses_of_each_example():
    h, W = vectors(3), vectors(7)
    draw, _ = drawn("masked", False, h)
    here, there = (
        SampledSoftmaxLoss(scheme="masked", reduction="none", device=device).forward(
            h, W, LABELS, draw, weights=[1.0, 0.0, 3.0]
        )[0]
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(to_host(there), here, rtol=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("scheme", "shared", "every"),
    [("negatives", False, 1), ("candidate", True, 2)],
    ids=["own", "shared"],
)
def test_training_goes_as_on_the_processor(name, scheme, shared, every):
    W = unit(7)

    def make(device):
        return RFSoftmaxSampler(W, num_features=4, leaf_size=2, tau=2.0, rng=0, device=device)

    check_training(W, make, name, scheme, shared, every)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.parametrize(("scheme", "shared"), [("negatives", False), ("candidate", True)])
def test_a_sampler_of_the_processor_serves_a_layer_on_the_device(name, scheme, shared):
    if scheme == "candidate" and not SAMPLERS[name].every_class:
        pytest.skip("the label may have no mass to correct for")
    W = unit(7)
    given = SamplerInputs(W, np.arange(1, 8), 2.0, num_features=4, rng=0)
    check_training(W, lambda device: make_sampler(name, given), "sgd", scheme, shared, 1)


def check_training(W, make, name, scheme, shared, every):
    h, found = unit(3), []
    for device in ("cpu", "cuda"):
        sampler = make(device)
        layer = SoftmaxLayer(
            W,
            SampledSoftmaxLoss(scheme=scheme, tau=2.0, normalize=True, device=device),
            sampler,
            4,
            shared=shared,
            update_every=every,
            biases=np.zeros(7),
        )
        optimizer, values = make_optimizer(name, 0.1), []
        for step in range(2):
            value, cache = layer.forward(h, LABELS, rng=step)
            _, gradients = layer.backward(cache)
            optimizer.step(layer.parameters, gradients)
            layer.update(gradients["class_embeddings"].ids)
            values.append(value)
        arrays = {**layer.parameters, **optimizer.state(), "q": sampler.probs(h)}
        found.append(({key: to_host(array) for key, array in arrays.items()}, values))
        assert layer.evaluate(h, LABELS).loss > 0.0
    (wanted, values), (got, there) = found
    np.testing.assert_allclose(there, values, rtol=1e-12)
    assert set(got) == set(wanted)
    for key in wanted:
        np.testing.assert_allclose(got[key], wanted[key], rtol=1e-9, atol=1e-12, err_msg=key)


def test_an_optimizer_goes_on_from_its_state():
    from samplesoft._cuda import to_device

    gradient = vectors(3)
    parameters = {"w": to_device(vectors(3) + 1.0)}
    first = make_optimizer("adam", 0.1)
    first.step(parameters, {"w": to_device(gradient)})
    second = make_optimizer("adam", 0.1)
    second.load_state(first.state())
    other = {"w": to_device(to_host(parameters["w"]))}
    first.step(parameters, {"w": to_device(gradient)})
    second.step(other, {"w": gradient})
    np.testing.assert_array_equal(to_host(parameters["w"]), to_host(other["w"]))


def test_what_is_refused_on_the_processor_is_refused_there():
    from samplesoft._cuda import to_device

    h, W = vectors(3), vectors(7)
    draw, counts = drawn("masked", False, h)
    nan = W.copy()
    nan[4] = np.nan
    for options, arguments, known in [
        ({"scheme": "negatives"}, (h, W, LABELS, draw), {}),
        ({"scheme": "masked"}, (h, W, LABELS, None), {}),
        ({"scheme": "masked"}, (h[:2], W, LABELS[:2], draw), {}),
        ({"scheme": "masked"}, (h, W, [4, 1, 7], draw), {}),
        ({"scheme": "masked"}, (h, nan, LABELS, draw), {}),
        ({"scheme": "masked"}, (h, W, LABELS, draw), {"weights": [0.0, 0.0, 0.0]}),
        ({"scheme": "candidate"}, (h, W, LABELS, draw), {}),
        ({"scheme": "candidate"}, (h, W, LABELS, draw), {"label_log_count": counts[:2]}),
    ]:
        messages = []
        for device in ("cpu", "cuda"):
            with pytest.raises((TypeError, ValueError)) as error:
                SampledSoftmaxLoss(device=device, **options).forward(*arguments, **known)
            messages.append(str(error.value))
        assert messages[0][:30] == messages[1][:30], messages
    on_gpu = SampledSoftmaxLoss(scheme="masked", device="cuda")
    for biases, message in [
        (np.zeros(6), r"`biases` must have shape \(7,\)"),
        (np.zeros(7, np.float32), "`biases` on the device must be of float64"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            on_gpu.forward(h, W, LABELS, draw, biases=to_device(biases))
    without = UniformSampler(7, replace=False).sample(h, 3, rng=0)
    with pytest.raises(ValueError, match="with replacement with device='cuda'"):
        SampledSoftmaxLoss(scheme="masked", device="cuda").forward(h, W, LABELS, without)
    sampler = RFSoftmaxSampler(unit(7), num_features=4, rng=0, device="cuda")
    with pytest.raises(ValueError, match="`sampler` must work where the loss does, on 'cpu'"):
        SoftmaxLayer(unit(7), SampledSoftmaxLoss(), sampler, 3)


def test_vectors_of_zeros_are_those_of_the_processor():
    h, W = unit(3), unit(7)
    h[1], W[[LABELS[0], 2]] = 0.0, 0.0
    for name in ("uniform", "rff"):
        found = []
        for device in ("cpu", "cuda"):
            given = SamplerInputs(W, tau=2.0, num_features=4, rng=0, device=device)
            loss = SampledSoftmaxLoss(scheme="masked", tau=2.0, normalize=True, device=device)
            layer = SoftmaxLayer(W, loss, make_sampler(name, given), 6)
            value, cache = layer.forward(h, LABELS, rng=0)
            dh, gradients = layer.backward(cache)
            rows = gradients["class_embeddings"]
            found.append([value, *map(to_host, (dh, rows.ids, rows.rows))])
            assert not found[-1][1][1].any() and np.isfinite(found[-1][3]).all()
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-14)


def test_gradients_that_are_refused_change_nothing():
    from samplesoft._cuda import to_device
    from samplesoft.losses.base import SparseRows

    optimizer = make_optimizer("adagrad", 0.1)
    parameters = {"w": to_device(np.ones((3, 2)))}
    for gradient, message in [
        (np.full((3, 2), np.nan), "must be finite"),
        (np.ones((2, 2)), r"shape \(3, 2\) for 'w', got \(2, 2\)"),
        (SparseRows(np.array([1, 1]), np.ones((2, 2))), "ascend, each once"),
        (SparseRows(np.array([1, 3]), np.ones((2, 2))), r"in 0\.\.2"),
        (to_device(np.ones((3, 2), np.float32)), r"\['w'\]` on the device must be of float64"),
        (to_device(np.ones((3, 4)))[:, ::2], r"\['w'\]` on the device must be C-contiguous"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            optimizer.step(parameters, {"w": gradient})
    np.testing.assert_array_equal(to_host(parameters["w"]), np.ones((3, 2)))
    assert optimizer.steps == 0
