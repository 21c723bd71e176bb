"""Averages of the parameters of all rounds, and the best of them."""

import numpy as np
import pytest

from samplesoft.training.callbacks import Average, Best


def rounds(number, dtype=np.float32):
    """Parameters of a model after some rounds."""
    rng = np.random.default_rng(0)
    shapes = {"weights": (5, 2), "intercept": (2,)}
    return [
        {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        for _ in range(number)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_late_rounds_weigh_more(dtype):
    found = rounds(6, dtype)
    average = Average(found[0])
    for parameters in found:
        average.add(parameters)
    t = np.arange(1.0, 7.0)
    for weights, same in ((t * (t + 1) * (t + 2), True), (t**0, False)):
        for name, array in average.parameters.items():
            assert array.dtype == dtype
            wanted = np.average([p[name] for p in found], axis=0, weights=weights)
            tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12}
            assert np.allclose(array, wanted, **tolerance) is same


def test_the_average_stands_for_the_parameters_for_a_while():
    before, now = rounds(2)
    average = Average(before)
    kept = {name: array.copy() for name, array in now.items()}
    with pytest.raises(RuntimeError), average.in_place_of(now):
        for name, array in now.items():
            np.testing.assert_array_equal(array, before[name])
        raise RuntimeError
    for name, array in now.items():
        np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize(("tolerance", "since"), [(0.0, 1), (0.2, 3)])
def test_the_last_of_the_best_is_kept_even_if_it_is_no_rise(tolerance, since):
    found = rounds(1)[0]
    best = Best(found)
    for score in [0.3, 0.2, 0.4, 0.4]:
        found["weights"][0] = score + len(best.scores)
        best.add(score, tolerance)
    assert best.since == since and best.scores == [0.3, 0.2, 0.4, 0.4]
    best.restore()
    np.testing.assert_allclose(found["weights"][0], 3.4)
    untouched = rounds(1)[0]
    Best(untouched).restore()
    np.testing.assert_array_equal(untouched["weights"], rounds(1)[0]["weights"])
