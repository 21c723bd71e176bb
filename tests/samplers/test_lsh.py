"""Hash tables: their probabilities, draws without a label, updates, and what papers correct by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from oracles import naive_draws
from oracles.naive_samplers import chi_square

from samplesoft import exact_bias
from samplesoft.samplers import LSHSampler

DRAWS = 100_000


def vectors(n, dim=4, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(dtype)


def oracle(sampler, h, rows, excluded=None):
    masses = naive_draws.lsh(h, rows, sampler.directions, sampler.uniform_share, excluded)
    return np.array([float(q) for q in masses])


def bucket_codes(sampler, rows):
    """The codes (N, L) as numbers, by NumPy."""
    bits = np.einsum("lkd,nd->nlk", sampler.directions, rows) > 0.0
    return (bits * 2 ** np.arange(sampler.num_bits)).sum(axis=2)


# --- probabilities ----------------------------------------------------------------------------


@st.composite
def cases(draw):
    n, dim = draw(st.sampled_from([1, 2, 3, 17])), draw(st.sampled_from([1, 3, 8, 11]))
    rows = vectors(n, dim, seed=draw(st.integers(0, 99)))
    rows = rows[np.arange(n) % draw(st.integers(1, n))]  # several alike
    h = vectors(1, dim, seed=draw(st.integers(0, 99)))[0]
    scales = st.sampled_from([0.0, 1e-200, 1.0, 1e4, 1e306])
    return rows * draw(scales), h * draw(scales)


@settings(max_examples=30)
@given(
    case=cases(),
    num_tables=st.sampled_from([1, 4]),
    num_bits=st.sampled_from([1, 3, 7]),
    share=st.sampled_from([1e-100, 0.2, 1.0]),
)
def test_probabilities_are_those_of_the_mixture_of_buckets(case, num_tables, num_bits, share):
    rows, h = case
    options = {"num_tables": num_tables, "num_bits": num_bits, "uniform_share": share}
    sampler = LSHSampler(rows, rng=3, **options)
    n = len(rows)
    for excluded in (None, int(np.argmax(sampler.probs(h)))) if n > 1 else (None,):
        wanted = oracle(sampler, h, rows, excluded)
        np.testing.assert_allclose(sampler.probs(h, exclude=excluded)[0], wanted, rtol=1e-12)
        log_q = sampler.log_prob(h, np.arange(n), exclude=excluded)[0]
        left = np.arange(n) != excluded
        np.testing.assert_allclose(np.exp(log_q[left]), wanted[left], rtol=1e-12)
        assert np.isfinite(log_q[left]).all()  # every class can be drawn
        draw = sampler.sample(h, 3 * n, exclude=excluded, rng=1)
        np.testing.assert_array_equal(draw.log_q[0], log_q[draw.ids[0]])


def test_contexts_whose_buckets_are_all_empty_draw_uniformly():
    rows = np.abs(vectors(20, 2)) * [1.0, 1e-9]  # all in one direction, and the context opposite
    sampler = LSHSampler(rows, num_tables=5, num_bits=16, rng=0)
    assert not (bucket_codes(sampler, -rows[:1]) == bucket_codes(sampler, rows)).any()
    np.testing.assert_allclose(sampler.probs(-rows[0]), 1.0 / 20, rtol=1e-14)
    np.testing.assert_allclose(sampler.probs(-rows[0], exclude=4)[0, 5:], 1.0 / 19, rtol=1e-14)


def test_lengths_do_not_matter_up_to_the_ends_of_the_range():
    rows, h = vectors(30), vectors(2, seed=1)
    wanted = LSHSampler(rows, num_bits=4, rng=0).probs(h)
    for scale in (1e-290, 1e4, 1e307):
        found = LSHSampler(rows / np.abs(rows).max() * scale, num_bits=4, rng=0)
        np.testing.assert_array_equal(found.probs(h / np.abs(h).max() * scale), wanted)


# --- draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bits", [2, 5])
def test_draws_without_a_label_are_the_mixture_given_that(num_bits):
    n, label, share = 30, 7, 0.1
    rows = vectors(n)
    sampler = LSHSampler(rows, num_tables=3, num_bits=num_bits, uniform_share=share, rng=2)
    h = rows[label]
    ids = sampler.sample(h, DRAWS, exclude=label, rng=1).ids[0]
    counts = np.bincount(ids, minlength=n)
    assert counts[label] == 0
    assert chi_square(counts, oracle(sampler, h, rows, label)) > 1e-4
    # the twin takes a bucket by the mass that it has with the label, and then another class of it
    codes, twin = bucket_codes(sampler, rows), np.full(n, share / (n - 1))
    for code in codes.T:
        others = np.flatnonzero((code == code[label]) & (np.arange(n) != label))
        if len(others):
            twin[others] += (1 - share) / 3 / len(others)
    twin[label] = 0.0
    assert chi_square(counts, twin / twin.sum()) < 1e-9


def test_a_label_alone_in_its_buckets_leaves_the_uniform_draws():
    rows = np.concatenate([np.tile([[1.0, 0.0]], (9, 1)), [[-1.0, 0.0]]])
    sampler = LSHSampler(rows, num_tables=4, num_bits=3, uniform_share=1e-100, rng=0)
    draw = sampler.sample(rows[9], 500, exclude=9, rng=0)
    np.testing.assert_allclose(draw.log_q, -np.log(9.0), rtol=1e-14)
    assert set(draw.ids[0]) == set(range(9))


# --- updates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_updated_sampler_draws_as_one_made_anew(dtype):
    rows, h = vectors(60, dtype=dtype), vectors(5, dtype=dtype, seed=1)
    sampler = LSHSampler(rows, num_bits=4, rng=3)
    rng = np.random.default_rng(4)
    for num in (1, 7, 60):
        ids = rng.integers(0, 60, num)
        new = vectors(num, dtype=dtype, seed=num)
        for i, row in zip(ids, new, strict=True):  # the last one counts
            rows[i] = row
        sampler.update(ids, new)
        anew = LSHSampler(rows, num_bits=4, rng=3)
        np.testing.assert_array_equal(sampler.probs(h), anew.probs(h))
        draws = [each.sample(h, 50, exclude=ids[0], rng=5) for each in (sampler, anew)]
        np.testing.assert_array_equal(draws[0].ids, draws[1].ids)


# --- what papers correct by -------------------------------------------------------------------


def test_collision_probabilities_are_those_of_the_formula():
    rows = np.concatenate([vectors(6), [[0.0, 0.0, 0.0, 0.0]]])
    h = np.concatenate([vectors(2, seed=1), -3.0 * rows[:1]])
    sampler = LSHSampler(rows, num_tables=6, num_bits=5, uniform_share=0.3, rng=0)
    for num_tables in (None, 1):
        found = sampler.collision_log_prob(h, rows, num_tables=num_tables)
        assert np.isfinite(found).all() and found.max() <= 0.0
        for b, i in np.ndindex(*found.shape):
            norms = mp.sqrt(naive_draws.inner(h[b], h[b]) * naive_draws.inner(rows[i], rows[i]))
            cosine = naive_draws.inner(h[b], rows[i]) / norms if norms else mpf(0)
            p = 1 - mp.re(mp.acos(cosine)) / mp.pi
            missed = (1 - p**5) ** (num_tables or 6) * (1 - mpf(0.3) / 7)
            assert np.exp(found[b, i]) == pytest.approx(float(1 - missed), rel=1e-6)
    assert np.exp(found[2, 0]) == pytest.approx(0.3 / 7)  # opposite: by a uniform draw alone


def test_classes_share_a_bucket_as_often_as_the_formula_says():
    rows, h, num = vectors(8), vectors(1, seed=1), 20_000
    sampler = LSHSampler(rows, num_tables=num, num_bits=3, uniform_share=1e-9, rng=0)
    met = (bucket_codes(sampler, rows) == bucket_codes(sampler, h)).mean(axis=1)
    wanted = np.exp(sampler.collision_log_prob(h, rows, num_tables=1))[0]
    error = np.sqrt(wanted * (1.0 - wanted) / num)
    assert (np.abs(met - wanted) < 5.0 * error).all()
    cosines = (rows @ h[0]) / np.linalg.norm(rows, axis=1) / np.linalg.norm(h)
    twin = ((1.0 + cosines) / 2.0) ** 3  # of a cosine in place of the angle
    assert (np.abs(met - twin) > 5.0 * error).any()


def test_draws_corrected_by_collisions_stay_biased():
    rows, h = vectors(40), vectors(2, seed=1)
    logits, labels = 2.0 * h @ rows.T, [3, 5]
    sampler = LSHSampler(rows, num_tables=4, rng=0)
    q = sampler.probs(h, exclude=labels)
    for num_tables in (None, 1):
        found = np.exp(sampler.collision_log_prob(h, rows, num_tables=num_tables))
        found /= found.sum(axis=1, keepdims=True)
        for m in (100, 10_000):
            wrong = exact_bias(logits, labels, q, m, correction=found)
            assert (np.abs(wrong.bias).sum(axis=1) > 0.02).all()
            right = exact_bias(logits, labels, q, m)
            assert (np.abs(right.bias).sum(axis=1) < 10.0 / m).all()


# --- arguments --------------------------------------------------------------------------------


def test_bits_follow_the_number_of_classes():
    bits = [LSHSampler(vectors(n, 2), num_tables=1).num_bits for n in (1, 2, 100, 2000, 40_000)]
    assert bits == [1, 1, 3, 4, 6]
    sampler = LSHSampler(vectors(5), num_tables=3, num_bits=2)
    assert sampler.directions.shape == (3, 2, 4)
    assert (sampler.num_tables, sampler.num_bits, sampler.uniform_share) == (3, 2, 0.5)


BAD = {
    "no tables": ({"num_tables": 0}, ValueError, "`num_tables` must be at least 1, got 0"),
    "no bits": ({"num_bits": 0}, ValueError, "`num_bits` must be at least 1, got 0"),
    "many bits": ({"num_bits": 17}, ValueError, "`num_bits` must be at most 16, got 17; use more"),
    "half a bit": ({"num_bits": 2.5}, TypeError, "`num_bits` must be an integer"),
    "no share": ({"uniform_share": 0.0}, ValueError, "`uniform_share` must be .* greater than 0"),
    "small share": ({"uniform_share": 1e-200}, ValueError, "must lie from 1e-100 to 1, got 1e-200"),
    "great share": ({"uniform_share": 1.5}, ValueError, "must lie from 1e-100 to 1, got 1.5"),
    "seed": ({"rng": "a"}, TypeError, "`rng` must be an int seed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case):
    options, error, message = BAD[case]
    with pytest.raises(error, match=message):
        LSHSampler(vectors(5), **options)


def test_bad_vectors_are_named():
    sampler = LSHSampler(vectors(5), num_tables=2)
    with pytest.raises(ValueError, match="`class_embeddings` must have 4 columns"):
        sampler.collision_log_prob(vectors(1), vectors(5, 3))
    with pytest.raises(ValueError, match="`h` must have 4 columns"):
        sampler.collision_log_prob(vectors(1, 3), vectors(5))
    with pytest.raises(ValueError, match="`num_tables` must be at least 1"):
        sampler.collision_log_prob(vectors(1), vectors(5), num_tables=0)
    with pytest.raises(MemoryError, match="tables of 5 classes need .*lower `num_tables`"):
        LSHSampler(vectors(5), num_tables=10**9)
