"""The plain twin of the losses in floats, as a student runs it, and its gradient."""

import numpy as np
import pytest

from samplesoft.losses import plain

SCORES, Q = [0.5, -1.0, 2.0, 0.0, 1.0], [0.4, 0.1, 0.2, 0.2, 0.1]
IDS = [2, 4, 2]
COUNTS = [3 * Q[j] for j in IDS]


def test_the_example_of_the_first_page():
    e = np.exp(SCORES)
    assert plain.full(SCORES, 0) == pytest.approx(np.log(e.sum()) - 0.5)
    wanted = np.log(e[0] + e[2] / 0.6 + e[4] / 0.3 + e[2] / 0.6) - 0.5
    assert plain.sampled(SCORES, 0, IDS, COUNTS) == pytest.approx(wanted)


@pytest.mark.parametrize("ids", [IDS, [0, 4, 0], [0, 0, 0]])
def test_the_gradient_is_that_of_the_loss(ids):
    counts = [3 * Q[j] for j in ids]
    found = plain.sampled_gradient(SCORES, 0, ids, counts)
    for k in range(5):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [o + step * (j == k) for j, o in enumerate(SCORES)]
            ends.append(plain.sampled(moved, 0, ids, counts))
        assert found[k] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)
    assert sum(found) == pytest.approx(0.0, abs=1e-15)


def test_the_mean_of_the_sum_is_the_full_one_and_that_of_its_logarithm_is_not():
    others = [j for j in range(5) if j]
    sums, losses = 0.0, 0.0
    for first in others:
        for second in others:
            probability = Q[first] * Q[second] / 0.36
            counts = [2 * Q[j] / 0.6 for j in (first, second)]
            loss = plain.sampled(SCORES, 0, [first, second], counts)
            sums, losses = sums + probability * np.exp(loss), losses + probability * loss
    assert np.log(sums) == pytest.approx(plain.full(SCORES, 0))
    assert losses < plain.full(SCORES, 0) - 0.1
