"""The inverted multi-index: quantised vectors, draws in a cell, updates and extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive_draws
from oracles.naive_samplers import chi_square

from samplesoft.samplers import MidxSampler

DTYPES = [np.float32, np.float64]
CLOSE = {np.float32: 2e-5, np.float64: 1e-11}


def vectors(n, dim=4, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(dtype)


def check(sampler, h, rows):
    """Compare probabilities, with and without an excluded class, with the oracle."""
    for excluded in (None, int(np.argmax(rows @ h))) if len(rows) > 1 else (None,):
        wanted = naive_draws.midx(h, rows, sampler.codes, sampler.tau, excluded)
        found = sampler.probs(h, exclude=excluded)[0]
        close = CLOSE[rows.dtype.type]
        np.testing.assert_allclose(found, np.array(wanted, float), rtol=close, atol=1e-300)


@st.composite
def tables(draw):
    n, dim = draw(st.sampled_from([1, 2, 3, 6, 17, 70])), draw(st.integers(1, 4))
    rows = vectors(n, dim, seed=draw(st.integers(0, 99)))
    distinct = draw(st.integers(1, n))
    return rows[np.arange(n) % distinct] * draw(st.sampled_from([0.0, 1e-200, 1.0, 30.0]))


@settings(max_examples=25)
@given(rows=tables(), num_codewords=st.integers(1, 9))
def test_probabilities_are_those_of_the_means_of_the_halves(rows, num_codewords):
    sampler = MidxSampler(rows, tau=0.7, num_codewords=num_codewords, rng=1)
    for book in sampler.codes.T:
        used = len(np.unique(book))
        assert used <= num_codewords and book.max() == used - 1
    check(sampler, vectors(1, rows.shape[1], seed=1)[0], rows)


@pytest.mark.parametrize("n", [1, 5, 64])
def test_few_classes_have_the_softmax_itself(n):
    rows, h = vectors(n), vectors(3, seed=1)
    for row, q in zip(h, MidxSampler(rows, rng=0).probs(h), strict=True):
        np.testing.assert_allclose(q, np.array(naive_draws.softmax(row, rows), float), rtol=1e-12)


@pytest.mark.parametrize(("n", "num"), [(10, 10), (100, 64), (1000, 64), (8000, 120)])
def test_codewords_grow_with_the_third_root_of_the_classes(n, num):
    assert MidxSampler(vectors(n), rng=0).num_codewords == num


def test_the_ratio_to_the_softmax_is_within_the_bound():
    rows, h, tau = vectors(500), vectors(4, seed=1), 1.5
    sampler = MidxSampler(rows, tau=tau, num_codewords=12, rng=0)
    rounded = np.empty_like(rows)
    for half, book in zip((slice(0, 2), slice(2, 4)), sampler.codes.T, strict=True):
        for word in np.unique(book):
            rounded[book == word, half] = rows[book == word, half].mean(axis=0)
    p = np.exp(tau * h @ rows.T)
    p /= p.sum(axis=1, keepdims=True)
    ratios = np.abs(np.log(sampler.probs(h) / p)).max(axis=1)
    bounds = 2.0 * np.abs(tau * h @ (rows - rounded).T).max(axis=1)
    assert (ratios <= bounds).all() and (ratios > 0.1 * bounds).all()


def test_a_class_of_a_cell_of_many_is_left_out_of_the_draws():
    rows, h = vectors(30), vectors(2, seed=1)
    sampler = MidxSampler(rows, num_codewords=2, rng=0)
    assert np.unique(sampler.codes, axis=0, return_counts=True)[1].min() > 2
    for label in (0, 7, 29):
        q = sampler.probs(h, exclude=[label, label])
        ids = sampler.sample(h, 50_000, exclude=[label, label], rng=label).ids
        for row in range(2):
            counts = np.bincount(ids[row], minlength=30)
            assert chi_square(counts, q[row]) > 1e-4
            assert chi_square(np.roll(counts, 1), q[row]) < 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
def test_masses_that_underflow_are_summed_up_in_the_logarithm(dtype):
    rows, h = vectors(40, dtype=dtype) * dtype(300.0), vectors(1, dtype=dtype, seed=1)[0]
    sampler = MidxSampler(rows, num_codewords=5, rng=0)
    assert np.ptp(sampler.log_prob(h, np.arange(40))) > 745.0
    for excluded in (None, int(sampler.probs(h).argmax())):
        wanted = naive_draws.midx(h, rows, sampler.codes, 1.0, excluded)
        found = sampler.log_prob(h, np.arange(40), exclude=excluded)[0]
        for j in set(range(40)) - {excluded}:
            off = found[j] - float(naive_draws.mp.log(wanted[j]))
            assert abs(off) < {np.float32: 1e-2, np.float64: 1e-10}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_move_codewords_to_the_means_of_their_classes(dtype):
    rows, h = vectors(100, dtype=dtype), vectors(1, dtype=dtype, seed=1)[0]
    sampler = MidxSampler(rows, num_codewords=6, rng=0)
    codes = sampler.codes
    for seed in range(3):
        ids = np.random.default_rng(seed).integers(0, 100, 20)
        new = vectors(20, dtype=dtype, seed=seed + 5)
        sampler.update(ids, new)
        rows[ids] = new  # of a class named twice, the last
    np.testing.assert_array_equal(sampler.codes, codes)
    check(sampler, h, rows)


def test_an_update_of_all_classes_quantises_them_anew():
    rows, new, h = vectors(300), vectors(300, seed=5), vectors(2, seed=1)
    sampler = MidxSampler(rows, num_codewords=9, rng=3)
    order = np.random.default_rng(0).permutation(300)
    sampler.update(order, new[order])
    anew = MidxSampler(new, num_codewords=9, rng=3)
    np.testing.assert_array_equal(sampler.probs(h), anew.probs(h))


def test_contexts_are_served_part_by_part(monkeypatch):
    rows, h = vectors(90), vectors(70, seed=1)
    sampler = MidxSampler(rows, num_codewords=10, rng=0)
    whole, labels = sampler.sample(h, 9, exclude=np.arange(70), rng=1), np.arange(70)
    monkeypatch.setattr("samplesoft.samplers.midx._SCORES", 330)
    parts = sampler.sample(h, 9, exclude=labels, rng=1)
    np.testing.assert_array_equal(parts.ids, whole.ids)
    np.testing.assert_allclose(parts.log_q, whole.log_q, rtol=1e-12)
    h[50] = 1e308
    with pytest.raises(ValueError, match="`h` must have logits .* for row 50"):
        sampler.probs(h)


def test_what_overflows_is_refused_in_words():
    rows = np.ones((5, 2), np.float32)
    with pytest.raises(ValueError, match=r"`class_embeddings` must be less than 1\.8e\+19"):
        MidxSampler(rows * np.float32(1e20))
    sampler = MidxSampler(rows, tau=2.0)
    with pytest.raises(ValueError, match="`class_embeddings` must be less than"):
        sampler.update([1], rows[:1] * np.float32(1e20))
    for size in (1.7e38, 1e38, 4e37):
        with pytest.raises(ValueError, match="`h` must have logits within the range of float32"):
            sampler.sample(rows[:1] * np.float32(size), 3)
    assert sampler.probs(rows[:1] * np.float32(1e37)).tolist() == [[0.2] * 5]
    with pytest.raises(ValueError, match="`num_codewords` must be at least 1, got 0"):
        MidxSampler(rows, num_codewords=0)


def test_what_it_says_it_takes_is_what_it_holds():
    rows = vectors(5000, 64, np.float32)
    sampler = MidxSampler(rows, rng=0)
    few, many = (MidxSampler(rows, num_codewords=k, rng=0).nbytes for k in (8, 200))
    assert rows.nbytes < few < sampler.nbytes < many < 3 * rows.nbytes
