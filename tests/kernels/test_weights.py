"""Which of several weights a running total falls on."""

import numpy as np
import pytest

from samplesoft.kernels.weights import exp_weights, search_cumulative

WEIGHTS = np.array([0.0, 1.0, 0.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("target", "place", "below"), [(0.0, 1, 0.0), (0.5, 1, 0.0), (1.0, 3, 1.0)]
)
def test_the_first_place_whose_running_total_exceeds_the_target(target, place, below):
    assert search_cumulative(WEIGHTS[None], 0, 5, target, 0, 0.0) == (place, below)


def test_a_target_that_rounds_to_the_sum_falls_on_the_last_place_that_has_a_weight():
    assert search_cumulative(WEIGHTS[None], 0, 5, 3.0, 0, 0.0) == (3, 1.0)
    assert search_cumulative(WEIGHTS[None], 0, 5, 4.0, 2, 1.0) == (3, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("excluded", [-3, -1, 0, 4, 7, 40])
@pytest.mark.parametrize("size", [1, 2, 8, 33])
def test_weights_are_exponentials_over_the_greatest(size, excluded, dtype):
    logits = np.random.default_rng(size).normal(0.0, 20.0, size).astype(dtype)
    kept = np.arange(size) != excluded
    weights = logits.copy()
    total, max_logit = exp_weights(weights[None], weights[None], 0, size, excluded)
    if not kept.any():
        assert (total, max_logit, weights[0]) == (0.0, -np.inf, 0.0)
        return
    exact = np.where(kept, np.exp(logits.astype(float) - logits[kept].max()), 0.0)
    close = 1e-14 if dtype == np.float64 else 2e-5  # a difference of 80 is rounded by 4e-6
    assert weights.dtype == dtype
    assert max_logit == logits[kept].max()
    np.testing.assert_allclose(weights, exact, rtol=close, atol=1e-37)
    assert total == pytest.approx(weights.sum(dtype=float), rel=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_below_the_greatest_there_is_no_weight(dtype):
    weights = np.array([1e4, -1e4, -np.inf, 0.0], dtype)
    assert exp_weights(weights[None], weights[None], 0, 4, -1) == (1.0, 1e4)
    np.testing.assert_array_equal(weights, [1.0, 0.0, 0.0, 0.0])
