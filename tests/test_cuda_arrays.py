"""What functions take on a device, what they refuse, and the small kernels that they share."""

import numpy as np
import pytest

from samplesoft._device import DEVICES, arrays_on, as_device
from samplesoft.feature_maps import RandomFourierFeatures
from samplesoft.samplers import SAMPLERS, SamplerInputs, UniformSampler, make_sampler


def has_device():
    from numba import cuda

    return cuda.is_available()


@pytest.mark.skipif(has_device(), reason="there is a GPU, or its simulator")
def test_without_a_gpu_the_error_says_what_to_install():
    with pytest.raises(RuntimeError, match=r"no NVIDIA GPU.*samplesoft\[cuda12\].*cuda13"):
        RandomFourierFeatures(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
        SamplerInputs(np.eye(3), device="cuda")


@pytest.mark.parametrize("device", ["gpu", "CUDA", 0, None])
def test_unknown_devices(device):
    with pytest.raises((TypeError, ValueError), match="`device` must be"):
        as_device(device)
    with pytest.raises((TypeError, ValueError), match="`device` must be"):
        UniformSampler(3, device=device)


class TestOnDevice:
    pytestmark = pytest.mark.gpu

    def test_the_same_arrays_are_refused_as_on_the_processor(self):
        host, device = (arrays_on(name) for name in DEVICES)
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

        arrays = arrays_on("cuda")
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

        arrays = arrays_on("cuda")
        rows, ids = to_device(np.ones((2, 3), np.float32)), to_device(np.array([0, 4]))
        assert arrays.float_rows("h", rows, 3) is rows
        assert arrays.ids("ids", ids, 5) is ids
        assert arrays.labels("exclude", ids, 5, (2,)) is ids
        assert arrays.float_rows("h", to_device(np.ones(3)), 3).shape == (1, 3)

    @pytest.mark.parametrize("size", [1, 2, 40, 100])
    @pytest.mark.parametrize("stop", [1, 3, 1000])
    def test_sorting_is_stable_and_runs_are_those_of_unique(self, size, stop):
        from samplesoft._cuda import to_device
        from samplesoft._gpu.groups import last_of_each, runs, sort

        ids = np.random.default_rng(size).integers(0, stop, size)
        in_order, order = (a.copy_to_host() for a in sort(to_device(ids), stop))
        np.testing.assert_array_equal(order, np.argsort(ids, kind="stable"))
        np.testing.assert_array_equal(in_order, np.sort(ids))
        for divisor in (1, 2):
            values, starts = (a.copy_to_host() for a in runs(to_device(in_order), divisor))
            wanted, places = np.unique(in_order // divisor, return_index=True)
            np.testing.assert_array_equal(values, wanted)
            np.testing.assert_array_equal(starts, places)
        rows = np.arange(2.0 * size).reshape(size, 2)
        unique, lasts = last_of_each(to_device(ids), to_device(rows), stop)
        np.testing.assert_array_equal(unique.copy_to_host(), np.unique(ids))
        for i, row in zip(unique.copy_to_host(), lasts.copy_to_host(), strict=True):
            np.testing.assert_array_equal(row, rows[np.flatnonzero(ids == i)[-1]])

    def test_uniforms_are_those_of_the_processor(self):
        from samplesoft._gpu.draws import uniforms
        from samplesoft._random import as_key, uniform_block

        key = as_key(3)
        np.testing.assert_array_equal(uniforms(key, 3, 5).copy_to_host(), uniform_block(key, 3, 5))

    @pytest.mark.parametrize("name", sorted(SAMPLERS))
    def test_samplers_have_twins_or_say_that_they_have_none(self, name):
        given = {"class_embeddings": np.eye(3), "counts": [1, 2, 3], "num_features": 4, "rng": 0}
        here = make_sampler(name, SamplerInputs(**given))
        if name in ("learned-unigram", "mixture", "quadratic", "two-pass"):
            with pytest.raises(ValueError, match=f"'cpu' for {name}, which has no CUDA kernels"):
                make_sampler(name, SamplerInputs(**given, device="cuda"))
            return
        there = make_sampler(name, SamplerInputs(**given, device="cuda"))
        assert (there.device, here.device) == ("cuda", "cpu")
        probs = there.probs(np.eye(3)[:2]).copy_to_host()
        np.testing.assert_allclose(probs, here.probs(np.eye(3)[:2]), rtol=1e-9)
