"""Samplers on a device against those on the processor; their laws are tested there."""

import numpy as np
import pytest
from oracles.naive_samplers import chi_square

from samplesoft.samplers import PositiveSampler, RFSoftmaxSampler

pytestmark = pytest.mark.gpu


def unit_rows(num, dim, seed, dtype=np.float64):
    rows = np.random.default_rng(seed).normal(size=(num, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)


def both(make):
    return make("cpu"), make("cuda")


KERNELS = {
    "rff": lambda W, device: RFSoftmaxSampler(
        W, nu=2.0, num_features=5, leaf="kernel", leaf_size=1, rng=1, device=device
    ),
    "rff, kernel buckets": lambda W, device: RFSoftmaxSampler(
        W,
        num_features=5,
        frequencies="structured",
        leaf="kernel",
        leaf_size=3,
        rng=1,
        device=device,
    ),
    "rff, softmax buckets": lambda W, device: RFSoftmaxSampler(
        W, num_features=5, tau=3.0, leaf_size=4, rng=1, device=device
    ),
    "positive": lambda W, device: PositiveSampler(
        W, num_features=6, leaf_size=2, rng=1, device=device
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_samplers_draw_what_the_processor_draws(name, dtype):
    rows, h = unit_rows(7, 3, 1, dtype), unit_rows(2, 3, 2, dtype)
    here, there = both(lambda device: KERNELS[name](rows, device))
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == np.float32 else 1e-12}
    a, b = (s.sample(h, 5, exclude=[1, 6], rng=0) for s in (here, there))
    np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
    np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, **tolerance)
    for sampler in (here, there):
        sampler.update([1, 5, 1], unit_rows(3, 3, 5, dtype))
    np.testing.assert_allclose(there.probs(h).copy_to_host(), here.probs(h), **tolerance)


def test_vectors_that_are_not_of_norm_1_are_named_by_their_row():
    rows = unit_rows(5, 3, 1)
    there = KERNELS["rff"](rows, "cuda")
    wrong = rows.copy()
    wrong[3] *= 2.0
    with pytest.raises(ValueError, match="rows of `h` must have norm 1, got 2 at row 3"):
        there.sample(wrong, 2)
    with pytest.raises(ValueError, match="`class_embeddings` must have norm 1, got 2 at row 3"):
        KERNELS["rff"](wrong, "cuda")


@pytest.mark.slow
def test_draws_follow_the_probabilities():
    rows, h = unit_rows(5, 3, 1), unit_rows(1, 3, 2)
    there = KERNELS["rff, softmax buckets"](rows, "cuda")
    ids = there.sample(h, 250, rng=3).ids.copy_to_host()
    q = there.probs(h).copy_to_host()[0]
    counts = np.bincount(ids[0], minlength=5)
    assert chi_square(counts, q) > 1e-3
    assert chi_square(counts, np.roll(q, 1)) < 1e-3  # the test can fail
