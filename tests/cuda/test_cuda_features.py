"""Feature maps on a device against those on the processor, and against slow oracles."""

import numpy as np
import pytest
from oracles import naive_maps

from samplesoft.feature_maps import FEATURE_MAPS, make_feature_map

pytestmark = pytest.mark.gpu
NAMES = [name for name, spec in FEATURE_MAPS.items() if spec.cuda]
DTYPES = [np.float32, np.float64]


def rows(num, dim, dtype=np.float64):
    return np.random.default_rng(num).normal(size=(num, dim)).astype(dtype)


@pytest.mark.parametrize("name", sorted(set(FEATURE_MAPS) - set(NAMES)))
def test_maps_without_kernels_say_so(name):
    with pytest.raises(ValueError, match=f"`device` must be 'cpu' for {name}, which has no CUDA"):
        make_feature_map(name, 3, 4, device="cuda")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num", "dim", "width"), [(1, 1, 1), (5, 3, 7), (9, 5, 4)])
def test_features_are_those_of_the_processor(name, dtype, num, dim, width):
    X = rows(num, dim, dtype)
    here = make_feature_map(name, dim, width, rng=1).transform(X)
    there = make_feature_map(name, dim, width, rng=1, device="cuda").transform(X)
    assert (there.dtype, there.shape) == (here.dtype, here.shape)
    tolerance = 100 * np.finfo(dtype).eps * max(1.0, np.abs(here).max())
    np.testing.assert_allclose(there.copy_to_host(), here, rtol=0, atol=tolerance)


def test_structured_frequencies_are_those_of_the_processor():
    for width in (3, 64, 70):  # a cut block, a whole one, and more than one
        X = rows(2, 3)
        maps = [
            make_feature_map("rff:structured", 3, width, rng=1, device=device)
            for device in ("cpu", "cuda")
        ]
        here, there = (phi.transform(X) for phi in maps)
        np.testing.assert_allclose(there.copy_to_host(), here, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", [name for name in NAMES if FEATURE_MAPS[name].unbiased])
def test_estimates_are_those_of_the_kernel(name):
    """Against an oracle in high precision, within five standard deviations."""
    x, y = rows(2, 3) / 4.0
    phi = make_feature_map(name, 3, 400, 2.0, rng=0, device="cuda")
    features = phi.transform(np.stack([x, y])).copy_to_host()
    others = (make_feature_map(name, 3, 400, 2.0, rng=seed) for seed in range(100))
    spread = np.std([float(other(x)[0] @ other(y)[0]) for other in others])
    assert abs(features[0] @ features[1] - naive_maps.ORACLES[name].kernel(x, y, 2.0)) < 5 * spread


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_digits_are_refused_as_on_the_processor(name):
    X = rows(5, 3, np.float32)
    X[3] *= 1e9
    for device in ("cpu", "cuda"):
        with pytest.raises(ValueError, match=r"scale the rows to norm 1, or pass float64"):
            make_feature_map(name, 3, 4, rng=0, device=device).transform(X)


def test_arrays_on_the_device_go_in_as_they_are():
    from samplesoft._cuda import to_device

    X = rows(4, 3)
    phi = make_feature_map("rff", 3, 5, rng=0, device="cuda")
    from_there = phi.transform(to_device(X)).copy_to_host()
    np.testing.assert_array_equal(from_there, phi.transform(X).copy_to_host())
