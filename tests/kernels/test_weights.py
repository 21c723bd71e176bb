"""Which of several weights a running total falls on."""

import numpy as np
import pytest

from samplesoft.kernels.math.weights import find

WEIGHTS = np.array([0.0, 1.0, 0.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("target", "place", "below"), [(0.0, 1, 0.0), (0.5, 1, 0.0), (1.0, 3, 1.0)]
)
def test_the_first_place_whose_running_total_exceeds_the_target(target, place, below):
    assert find(WEIGHTS, 5, target, 0, 0.0) == (place, below)


def test_a_target_that_rounds_to_the_sum_falls_on_the_last_place_that_has_a_weight():
    assert find(WEIGHTS, 5, 3.0, 0, 0.0) == (3, 1.0)
    assert find(WEIGHTS, 5, 4.0, 2, 1.0) == (3, 1.0)
