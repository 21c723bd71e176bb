"""Classes in chunks: the same bias as in memory, however they are cut, added and merged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samplesoft
from samplesoft.bias import BiasSums, ChunkBias, exact_bias_of_chunks
from samplesoft.schemes import SCHEMES, exact_schemes

WITH_SUMS = [name for name in exact_schemes() if name != "poisson"]


def problem(n, seed, spread=2.0):
    rng = np.random.default_rng(seed)
    q = rng.gamma(1.0, size=n) + 1e-6
    return spread * rng.normal(size=n), q / q.sum()


def cut(logits, q, size):
    return lambda: [(logits[i : i + size], q[i : i + size]) for i in range(0, len(q), size)]


def joined(result, chunks):
    starts = np.cumsum([0] + [len(logits) for logits, _ in chunks()])
    return np.concatenate(
        [result.bias(int(start), *chunk) for start, chunk in zip(starts, chunks(), strict=False)]
    )


def same_bias(bias, want, *errors):
    """Whether two biases are equal to 1e-13 of their L1 norm, and what they say of their errors."""
    size = np.abs(want).sum()
    return np.abs(bias - want).sum() <= 1e-13 * size + sum(errors)


@pytest.mark.parametrize("scheme", WITH_SUMS)
@pytest.mark.parametrize(
    "n, m, spread, size",
    [
        (2, 2, 1.0, 1),
        (50, 3, 0.001, 7),
        (50, 20, 300.0, 7),
        (3000, 1, 5.0, 700),
        (3000, 40, 2.0, 999),
    ],
)
def test_chunks_bring_the_bias_of_arrays(scheme, n, m, spread, size):
    m = max(m, SCHEMES[scheme].min_draws)
    logits, q = problem(n, n + m, spread)
    want = samplesoft.exact_bias(logits, 1, q, m, scheme=scheme)
    chunks = cut(logits, q, size)
    got = exact_bias_of_chunks(chunks, 1, m, scheme=scheme)
    bias = joined(got, chunks)
    assert same_bias(bias, want.bias, want.error, got.error)
    assert abs(got.loss_bias - want.loss_bias) <= got.loss_error + want.loss_error
    assert np.allclose(got.probs(0, logits, q), want.probs, rtol=1e-12, atol=0.0)
    assert got.size <= np.abs(want.bias).sum() * (1.0 + 1e-9) + got.error


@given(st.lists(st.integers(0, 400), max_size=6), st.randoms(use_true_random=False))
def test_cuts_and_the_order_of_merging_change_the_last_digits_at_most(cuts, random):
    logits, q = problem(400, 5)
    want = samplesoft.exact_bias(logits, 11, q, 30)
    ends = sorted({0, 400, *cuts})
    parts = list(zip(ends, ends[1:], strict=False))
    found = BiasSums(30, 11)
    while isinstance(found, BiasSums):
        each = [found.empty().add(a, logits[a:b], q[a:b]) for a, b in parts]
        random.shuffle(each)
        while len(each) > 1:
            each.append(each.pop(0).merge(each.pop(0)))
        found = each[0].finish()
    assert same_bias(found.bias(0, logits, q), want.bias, 1e-15)


def test_the_same_order_brings_the_same_bits():
    logits, q = problem(5000, 8)
    first, second = (exact_bias_of_chunks(cut(logits, q, 777), 3, 20) for _ in range(2))
    assert (first.bias(0, logits, q) == second.bias(0, logits, q)).all()
    assert first.loss_bias == second.loss_bias


def test_a_part_that_is_added_twice_is_seen():
    logits, q = problem(600, 3)
    want = samplesoft.exact_bias(logits, 1, q, 5)
    found = BiasSums(5, 1)
    with pytest.warns(RuntimeWarning, match="may be off by"):
        while isinstance(found, BiasSums):
            twice = found.empty().add(0, logits, q).add(0, logits[:60], q[:60])
            found = (
                twice if found.stage == "moments" else found.empty().add(0, logits, q)
            ).finish()
    assert not same_bias(found.bias(0, logits, q), want.bias, want.error, found.error)


def test_what_is_left_of_one_class_or_none():
    logits, q = np.array([1.0, 0.5]), np.array([0.0, 1.0])
    found = BiasSums(4, 0)
    while isinstance(found, BiasSums):
        found = (
            found.empty()
            .add(0, logits[:1], q[:1])
            .add(1, logits[1:], q[1:])
            .add(2, [], [])
            .finish()
        )
    assert (found.bias(0, logits, q) == 0.0).all()
    alone = exact_bias_of_chunks(lambda: [([3.0], [1.0])], 0, 5, scheme="reject")
    assert isinstance(alone, ChunkBias) and alone.loss_bias == 0.0


def test_malformed_chunks_are_refused():
    logits, q = problem(10, 0)
    chunks = cut(logits, q, 4)
    with pytest.raises(ValueError, match="`scheme` must be one that draws with replacement"):
        BiasSums(5, 0, "poisson")
    with pytest.raises(TypeError, match="`chunks` must be a function"):
        exact_bias_of_chunks(chunks(), 0, 5)
    with pytest.raises(ValueError, match="`label` must be one of the 10 classes"):
        exact_bias_of_chunks(chunks, 10, 5)
    with pytest.raises(ValueError, match="`q` must sum to 1 over all classes, got 2"):
        exact_bias_of_chunks(cut(logits, 2 * q, 4), 0, 5)
    with pytest.raises(ValueError, match="`q` of 3 classes does not match `logits` of 4"):
        BiasSums(5, 0).add(0, logits[:4], q[:3])
    once = iter([(logits, q)])
    with pytest.raises(ValueError, match="each time it is called, got 10 at first and then 0"):
        exact_bias_of_chunks(lambda: once, 0, 5)
    for tiny in (0.0, 1e-310):
        with pytest.raises(ValueError, match="`q` must be greater than 0, and at least"):
            BiasSums(5, 0, "candidate_masked").add(0, logits, np.append(tiny, q[1:]))
    with pytest.raises(ValueError, match="got 0.0 at class 6"):
        BiasSums(5, 0).add(4, logits[4:], np.where(np.arange(6) == 2, 0.0, q[4:]))
    with pytest.raises(ValueError, match="`logits` must be finite"):
        BiasSums(5, 0).add(0, np.append(logits, np.nan), np.append(q, 0.1))
    first = BiasSums(5, 0).add(0, logits, q)
    with pytest.raises(ValueError, match="`other` must be of the same pass, 'extremes'"):
        first.merge(first.empty().add(0, logits, q).finish())


@pytest.mark.parametrize("scheme", ["negatives", "candidate"])
def test_dask_arrays_whose_chunks_do_not_match(scheme):
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    logits, q = problem(3000, 4)
    rows = np.stack([logits, -logits])
    want = samplesoft.exact_bias(rows, [1, 2], q, 20, scheme=scheme)
    got = samplesoft.exact_bias(
        da.from_array(rows, chunks=(1, 700)),
        [1, 2],
        da.from_array(q, chunks=999),
        20,
        scheme=scheme,
    )
    assert got.bias.chunks == ((1, 1), (700, 700, 700, 700, 200))
    assert same_bias(got.bias.compute(), want.bias)
    assert np.allclose(got.loss_bias, want.loss_bias, rtol=1e-12)
    one = samplesoft.exact_bias(logits, 1, da.from_array(q, chunks=999), 20, scheme=scheme)
    assert same_bias(one.expected_probs.compute(), want.expected_probs[0])


def test_dask_arrays_that_do_not_fit_are_refused():
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    logits, q = problem(30, 4)
    lazy = da.from_array(logits, chunks=7)
    with pytest.raises(ValueError, match="`correction` must be left out"):
        samplesoft.exact_bias(lazy, 1, q, 5, correction=q)
    with pytest.raises(ValueError, match=r"known shapes \(n,\) or \(B, n\) with the same n"):
        samplesoft.exact_bias(lazy, 1, q[:29], 5)
    with pytest.raises(TypeError, match="must hold real numbers, got complex ones"):
        samplesoft.exact_bias(lazy * 1j, 1, q, 5)
    with pytest.raises(ValueError, match="`tau` must lie from 1e-150"):
        samplesoft.exact_gradient_moments(lazy, 1, q, 20, np.ones((30, 2)), tau=1e200)
    assert np.isfinite(samplesoft.exact_bias(lazy, np.array(1), q, 5).loss_bias)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        samplesoft.exact_bias(lazy[lazy > 0.0], 1, q, 5)
    with pytest.raises(ValueError, match="`q` must sum to 1"):
        samplesoft.exact_bias(lazy, 1, 3.0 * q, 5)


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize("n, m", [(2, 3), (40, 1), (3000, 50)])
def test_bounds_of_dask_arrays(scheme, n, m):
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    logits, q = problem(n, n)
    want = samplesoft.finite_sample_bounds(logits, 1, q, m, scheme=scheme)
    lazy = da.from_array(logits, chunks=n // 2), 1, da.from_array(q, chunks=n // 3 + 1), m
    got = samplesoft.finite_sample_bounds(*lazy, scheme=scheme)
    for one, other in ((got.lower, want.lower), (got.upper, want.upper)):
        assert np.abs(one.compute() - other).sum() <= 1e-13 * np.abs(want.upper).sum()
    exact = samplesoft.exact_bias(logits, 1, q, m, scheme=scheme).bias
    assert ((got.lower <= exact) & (exact <= got.upper)).compute().all()


def test_bounds_of_dask_arrays_with_logits_too_far_apart_are_refused():
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    lazy, q = da.from_array(np.array([0.0, 1e13, -1e13]), chunks=1), np.full(3, 1 / 3)
    with pytest.raises(ValueError, match="rescale or clip the logits"):
        samplesoft.finite_sample_bounds(lazy, 0, q, 5)
    with pytest.raises(ValueError, match="for bounds and limits are known of no other"):
        samplesoft.finite_sample_bounds(lazy, 0, q, 5, scheme="reject")


@pytest.mark.parametrize("scheme", [name for name in WITH_SUMS if "jackknife" not in name])
def test_moments_of_dask_arrays(scheme):
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    rng = np.random.default_rng(7)
    m = 100 if SCHEMES[scheme].divides_by_accepted else 6
    for n, chunk in ((3, 1), (900, 210))[SCHEMES[scheme].divides_by_accepted :]:
        logits, q = problem(n, n)
        vectors = rng.normal(size=(n, 3)) + 5.0  # a mean that must be taken off
        want = samplesoft.exact_gradient_moments(logits, 1, q, m, vectors, tau=2.0, scheme=scheme)
        rows = da.from_array(vectors, chunks=(chunk + 1, 2))
        lazy = da.from_array(logits, chunks=chunk), 1, da.from_array(q, chunks=n), m, rows
        got = samplesoft.exact_gradient_moments(*lazy, tau=2.0, scheme=scheme)
        for name in ("squared_bias", "variance", "mse"):
            off = abs(getattr(got, name) - getattr(want, name))
            assert off <= 1e-13 * want.mse + got.error + want.error
        assert got.error <= 1e-10 * got.mse


def test_moments_of_dask_arrays_that_would_lose_digits_are_refused():
    da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
    logits, q = problem(3000, 1)
    lazy, vectors = da.from_array(logits, chunks=999), np.ones((3000, 2))
    with pytest.raises(ValueError, match="`num_sampled` must be larger for classes in chunks"):
        samplesoft.exact_gradient_moments(lazy, 1, q, 1, vectors)
    with pytest.raises(ValueError, match="`class_embeddings` must have one row for each"):
        samplesoft.exact_gradient_moments(lazy, 1, q, 20, vectors[:7])
    with pytest.raises(ValueError, match="without the jackknife"):
        samplesoft.exact_gradient_moments(lazy, 1, q, 20, vectors, scheme="jackknife")
