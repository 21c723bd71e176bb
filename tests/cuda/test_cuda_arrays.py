"""What functions take on a device, what they refuse, and the small kernels that they share."""

import pickle

import numpy as np
import pytest

from samplesoft import exact_bias, to_host
from samplesoft._device import backend
from samplesoft._device.rows import last_row_of_each_id, union
from samplesoft._device.select import DEVICES, as_device
from samplesoft.feature_maps import RandomFourierFeatures
from samplesoft.losses import SampledSoftmaxLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import (
    SAMPLERS,
    KernelTree,
    MixtureSampler,
    PositiveSampler,
    RFSoftmaxSampler,
    SamplerInputs,
    SoftmaxSampler,
    TwoPassSampler,
    UniformSampler,
    UnigramSampler,
    make_sampler,
)
from samplesoft.samplers.base import Draw


def has_device():
    from numba import cuda

    return cuda.is_available()


@pytest.mark.skipif(has_device(), reason="there is a GPU, or its simulator")
def test_without_a_gpu_the_error_says_what_to_install():
    with pytest.raises(RuntimeError, match=r"no NVIDIA GPU.*numba-cuda\[cu12\].*cu13"):
        RandomFourierFeatures(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
        SamplerInputs(np.eye(3), device="cuda")


@pytest.mark.parametrize("device", ["gpu", "CUDA", 0, None])
def test_unknown_devices(device):
    with pytest.raises((TypeError, ValueError), match="`device` must be"):
        as_device(device)
    with pytest.raises((TypeError, ValueError), match="`device` must be"):
        RandomFourierFeatures(2, 3, device=device)


class TestOnDevice:
    pytestmark = pytest.mark.gpu

    def test_the_same_arrays_are_refused_as_on_the_processor(self):
        host, device = (backend(name) for name in DEVICES)
        rows = np.ones((2, 3))
        for name, arguments in [
            ("float_rows", ("h", rows, 4)),
            ("float_rows", ("h", np.full((2, 3), np.nan), 3)),
            ("float_rows", ("h", np.ones((2, 3, 1)))),
            ("float_rows", ("h", np.empty((0, 3)))),
            ("float_rows", ("h", np.full((1, 2), 1e300), 2, np.dtype(np.float32))),
            ("ids", ("ids", [0, 3], 3)),
            ("ids", ("ids", [[0.5]], 3, 1)),
            ("ids", ("ids", [[0, -1]], 3, 1)),
            ("labels", ("exclude", [0, 1], 3, (3,))),
            ("labels", ("exclude", [3], 3, (1,))),
        ]:
            with pytest.raises((TypeError, ValueError)) as there:
                getattr(device, name)(*arguments)
            with pytest.raises((TypeError, ValueError)) as here:
                getattr(host, name)(*arguments)
            assert str(there.value) == str(here.value)

    def test_arrays_on_the_device_are_checked_there(self):
        from samplesoft._cuda import to_device

        arrays = backend("cuda")
        bad = np.ones((2, 3), np.float32)
        bad[1, 2] = np.inf
        for check, arguments, message in [
            (arrays.float_rows, ("h", bad), r"finite in float32, got inf at index \[1, 2\]"),
            (arrays.float_rows, ("h", np.ones((2, 3)), 4), r"4 columns, got shape \(2, 3\)"),
            (arrays.float_rows, ("h", np.ones((2, 3), np.int32)), "float32 or float64, got int32"),
            (arrays.float_rows, ("h", np.ones((1, 2, 3))), r"rows of shape \(N, d\)"),
            (arrays.ids, ("ids", np.array([0, 5]), 5), r"lie in 0\.\.4 for 5 classes, got 5"),
            (arrays.ids, ("ids", np.array([0, 1], np.int32), 5), "must be of int64, got int32"),
            (arrays.ids, ("ids", np.array([[0, 1]]), 5, 2), r"shape \(2, k\), got \(1, 2\)"),
            (arrays.labels, ("exclude", np.array([0, -7]), 5, (2,)), "for 5 classes, got -7"),
            (arrays.labels, ("exclude", np.array([0]), 5, (2,)), r"shape \(2,\), got \(1,\)"),
        ]:
            name, value, *rest = arguments
            with pytest.raises((TypeError, ValueError), match=message):
                check(name, to_device(value), *rest)

    def test_good_arrays_on_the_device_are_not_copied(self):
        from samplesoft._cuda import to_device

        arrays = backend("cuda")
        rows, ids = to_device(np.ones((2, 3), np.float32)), to_device(np.array([0, 4]))
        assert arrays.float_rows("h", rows, 3) is rows
        assert arrays.ids("ids", ids, 5) is ids
        assert arrays.labels("exclude", ids, 5, (2,)) is ids
        assert arrays.float_rows("h", to_device(np.ones(3)), 3).shape == (1, 3)

    def test_sizes_of_numpy_and_broadcast_rows_go_to_a_device(self):
        from samplesoft._cuda import launch_threads, to_device
        from samplesoft._device.cuda import _multiply

        one_row = np.broadcast_to(np.arange(4.0), (1, 4))  # with a stride of 0
        there, out = to_device(one_row).reshape(-1), to_device(np.zeros(4))
        launch_threads(_multiply, np.int64(4), there, 2.0, out)
        np.testing.assert_array_equal(out.copy_to_host(), [0, 2, 4, 6])

    @pytest.mark.parametrize("size", [1, 2, 40, 2000])
    @pytest.mark.parametrize("stop", [1, 3, 1000])
    def test_equal_ids_are_brought_together(self, size, stop):
        from samplesoft._cuda import to_device
        from samplesoft._device.cuda import group_equal_ids

        ids = np.random.default_rng(size).integers(0, stop, size)
        found = (array.copy_to_host() for array in group_equal_ids(to_device(ids), stop))
        unique, inverse, order, starts = found
        wanted, first = np.unique(np.sort(ids), return_index=True)
        np.testing.assert_array_equal(unique, wanted)
        np.testing.assert_array_equal(unique[inverse], ids)
        np.testing.assert_array_equal(order, np.argsort(ids, kind="stable"))
        np.testing.assert_array_equal(starts, first)
        both = union([to_device(ids), to_device(ids[:1])]).copy_to_host()
        np.testing.assert_array_equal(both, wanted)
        rows = np.arange(2.0 * size).reshape(size, 2)
        unique, lasts = last_row_of_each_id(to_device(ids), to_device(rows))
        np.testing.assert_array_equal(unique, wanted)
        for i, row in zip(unique, lasts.copy_to_host(), strict=True):
            np.testing.assert_array_equal(row, rows[np.flatnonzero(ids == i)[-1]])

    @pytest.mark.parametrize("name", sorted(SAMPLERS))
    def test_samplers_have_twins_or_say_that_they_have_none(self, name):
        given = {"class_embeddings": np.eye(3), "counts": [1, 2, 3], "num_features": 4, "rng": 0}
        here = make_sampler(name, SamplerInputs(**given))
        if SAMPLERS[name].follows_vectors and not SAMPLERS[name].cuda:
            with pytest.raises(ValueError, match=f"'cpu' for {name}, which has no CUDA kernels"):
                make_sampler(name, SamplerInputs(**given, device="cuda"))
            return
        there = make_sampler(name, SamplerInputs(**given, device="cuda"))
        # what does not look at vectors draws on the processor for a layer on the device
        assert (there.device == "cuda") == SAMPLERS[name].cuda
        assert here.device == "cpu"
        probs = to_host(there.probs(np.eye(3)[:2]))
        np.testing.assert_allclose(probs, here.probs(np.eye(3)[:2]), rtol=1e-9)

    def test_arrays_of_other_libraries(self, monkeypatch):
        from samplesoft._cuda import cuda, to_device

        monkeypatch.setattr(cuda, "as_cuda_array", lambda other: other.own, raising=False)
        W, h = np.eye(3), np.ones((2, 3))
        sampler = PositiveSampler(Foreign(to_device(W)), num_features=4, rng=0, device="cuda")
        draw = sampler.sample(Foreign(to_device(h)), 4, rng=0)
        here = PositiveSampler(W, num_features=4, rng=0).sample(h, 4, rng=0)
        np.testing.assert_array_equal(draw.to_host().ids, here.ids)
        loss = SampledSoftmaxLoss(scheme="masked", device="cuda")
        foreign = Draw(Foreign(draw.ids), Foreign(draw.log_q))
        given = Foreign(to_device(h)), Foreign(to_device(W)), Foreign(to_device(np.array([0, 1])))
        value, _ = loss.forward(*given, foreign, biases=Foreign(to_device(np.zeros(3))))
        wanted, _ = SampledSoftmaxLoss(scheme="masked").forward(h, W, [0, 1], to_host(draw))
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        counts = Foreign(to_device(np.array([1.0, 2.0, 1.0])))
        q = UnigramSampler(counts).probs(None)[0]
        bias = exact_bias(Foreign(to_device(np.zeros(3))), 0, Foreign(to_device(q)), 2)
        wanted = exact_bias(np.zeros(3), 0, q, 2)
        np.testing.assert_array_equal(bias.bias, wanted.bias)

    def test_what_is_on_a_gpu_is_refused_on_the_processor(self):
        from samplesoft._cuda import to_device

        sampler = RFSoftmaxSampler(np.eye(3), num_features=4, rng=0, device="cuda")
        draw = sampler.sample(np.eye(3), 2, rng=0)
        W = to_device(np.eye(3))
        for function, arguments in [
            (SampledSoftmaxLoss(scheme="masked").forward, (np.eye(3), np.eye(3), [0, 1, 2], draw)),
            (SoftmaxSampler, (W,)),
            (UniformSampler(3).log_prob, (None, to_device(np.zeros((1, 1), np.int64)))),
        ]:
            with pytest.raises(TypeError, match="in the host's memory here.*samplesoft.to_host"):
                function(*arguments)
        for make in (
            lambda: MixtureSampler(sampler, UniformSampler(3)),
            lambda: TwoPassSampler(sampler, np.eye(3), num_candidates=2),
            lambda: make_loss("full", device="cuda"),
        ):
            with pytest.raises(ValueError, match="`device` must be 'cpu' for .*docs/gpu.md"):
                make()
        with pytest.raises(TypeError, match="array on the GPU with device='cuda', got ndarray"):
            KernelTree(W, lambda rows: np.ones((3, 2)), device="cuda")
        floats = Draw(np.array([[0.5]]), np.zeros((1, 1)))
        with pytest.raises(TypeError, match=r"`draw\.ids` must be an array of integers"):
            loss = SampledSoftmaxLoss(scheme="masked", device="cuda")
            loss.forward(np.eye(3)[:1], np.eye(3), [0], floats)

    def test_layers_on_a_gpu_are_not_pickled_by_halves(self):
        sampler = RFSoftmaxSampler(np.eye(3), num_features=4, tau=1.0, rng=0, device="cuda")
        layer = SoftmaxLayer(np.eye(3), SampledSoftmaxLoss(device="cuda"), sampler, 2)
        for thing in (sampler, layer):
            with pytest.raises(TypeError, match="on the processor to be pickled"):
                pickle.dumps(thing)
        assert to_host(layer.parameters)["class_embeddings"].tolist() == np.eye(3).tolist()
        with pytest.raises(ValueError, match="of float32, like `class_embeddings`"):
            single = np.eye(3, dtype=np.float32)
            SoftmaxLayer(single, SampledSoftmaxLoss(device="cuda"), sampler, 2)


class Foreign:
    """An array on the device of a library that turns nothing into NumPy arrays unasked."""

    __cuda_array_interface__ = None  # what reads it here is replaced

    def __init__(self, own):
        self.own, self.shape = own, own.shape

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion")
