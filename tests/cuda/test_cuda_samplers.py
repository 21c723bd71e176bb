"""Samplers on a device against those on the processor; their laws are tested there."""

import numpy as np
import pytest
from oracles.naive_draws import softmax
from oracles.naive_samplers import chi_square

from samplesoft.samplers import (
    LogUniformSampler,
    PositiveSampler,
    RFSoftmaxSampler,
    SoftmaxSampler,
    UniformSampler,
    UnigramSampler,
    WeightedSampler,
)

pytestmark = pytest.mark.gpu
STATIC = {
    "uniform": lambda device: UniformSampler(5, device=device),
    "of one class": lambda device: UniformSampler(1, device=device),
    "a class without weight": lambda device: WeightedSampler([1.0, 5.0, 2.0, 0.0], device=device),
    "one class with a weight": lambda device: WeightedSampler([0.0, 1.0, 0.0], device=device),
    "log-uniform": lambda device: LogUniformSampler(7, device=device),
    "unigram": lambda device: UnigramSampler([1, 2, 3, 300], device=device),
}


def unit_rows(num, dim, seed, dtype=np.float64):
    rows = np.random.default_rng(seed).normal(size=(num, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)


def both(make):
    return make("cpu"), make("cuda")


@pytest.mark.parametrize("name", STATIC)
def test_static_samplers_draw_what_the_processor_draws(name):
    here, there = both(STATIC[name])
    last = here.num_classes - 1
    for exclude in (None, [0, last], [1, 1]):
        if exclude and (last < 1 or max(exclude) > last):
            continue
        try:
            a = here.sample(None, 6, exclude=exclude, rng=4)
        except ValueError as refused:
            with pytest.raises(ValueError) as error:  # noqa: PT011, compared below
                there.sample(None, 6, exclude=exclude, rng=4)
            assert str(error.value) == str(refused)
            continue
        b = there.sample(None, 6, exclude=exclude, rng=4)
        np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
        np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=1e-14, atol=1e-15)
        asked = np.zeros((len(a.ids), 1), np.int64)
        log_q = there.log_prob(None, asked, exclude=exclude).copy_to_host()
        wanted = here.log_prob(None, asked, exclude=exclude)
        np.testing.assert_allclose(log_q, wanted, rtol=1e-14, atol=1e-15)
        q = there.probs(None, exclude=exclude).copy_to_host()
        np.testing.assert_allclose(q, here.probs(None, exclude=exclude), atol=1e-15)
    a, b = (s.sample(np.ones((4, 2)), 6, shared=True, rng=4) for s in (here, there))
    np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)


def test_draws_without_replacement_are_of_the_processor_alone():
    with pytest.raises(ValueError, match="`replace` must be True on 'cuda', got False"):
        UniformSampler(5, replace=False, device="cuda")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "block_size"), [(1, 4), (5, 2), (9, 4), (6, 1)])
def test_softmax_draws_what_the_processor_draws(n, block_size, dtype):
    rows, h = (np.random.default_rng(n).normal(size=(k, 3)).astype(dtype) for k in (n, 2))
    here, there = both(
        lambda device: SoftmaxSampler(rows, tau=2.0, block_size=block_size, device=device)
    )
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    for exclude in [None] if n == 1 else [None, [0, n - 1]]:
        a, b = (s.sample(h, 5, exclude=exclude, rng=0) for s in (here, there))
        np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
        np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=0, atol=tolerance)
        again = there.log_prob(h, b.ids, exclude=exclude).copy_to_host()
        np.testing.assert_array_equal(again, b.log_q.copy_to_host())
        q = there.probs(h, exclude=exclude).copy_to_host()
        for row, context, label in zip(q, h, exclude or [None, None], strict=True):
            wanted = np.array(softmax(context, rows, 2.0, label), float)
            np.testing.assert_allclose(row, wanted, rtol=0, atol=tolerance)
    new = np.random.default_rng(7).normal(size=(3, 3)).astype(dtype)
    for sampler in (here, there):
        sampler.update([0, 0, n - 1], new)
    np.testing.assert_allclose(there.probs(h).copy_to_host(), here.probs(h), atol=tolerance)


def test_logits_that_overflow_are_refused():
    sampler = SoftmaxSampler(np.full((3, 2), 1e30, np.float32), device="cuda")
    with pytest.raises(ValueError, match="within the range of float32, got .* for row 0"):
        sampler.sample(np.full((1, 2), 1e20, np.float32), 2)


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
