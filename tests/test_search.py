"""The best classes against a sort of all scores."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive_losses_full as naive
from oracles import naive_recommend
from scipy import sparse

from samplesoft import search as module
from samplesoft.search import best_classes, top_k_classes

MODELS = [
    {},
    {"tau": 4.0, "normalize": True},
    {"absolute": True},
    {"biases": np.linspace(-2.0, 2.0, 23)},
    {"biases": np.linspace(-2.0, 2.0, 23), "absolute": True, "tau": 0.5},
]


@pytest.fixture(params=[(1, (1, 1), 1, 1, 1), (40, (3, 2), 7, 9, 4), (10**6, (64, 256), 5, 2, 3)])
def small_parts(request, monkeypatch):
    """Divide contexts and classes into tiny parts, and these into tiny tiles."""
    for name, value in zip(
        (
            "_PRODUCTS_PER_TILE",
            "_MAX_TILE_SHAPE",
            "_CLASSES_PER_TASK",
            "_MIN_CLASS_CHUNKS",
            "_CONTEXTS_PER_TASK",
        ),
        request.param,
        strict=True,
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "_CONTEXTS_AT_A_TIME", 9)  # that are many, and then few


def case(n=23, d=5, batch=11, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, d)), rng.standard_normal((n, d))


@pytest.mark.parametrize("k", [1, 2, 5, 22, 23])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: ",".join(model))
def test_of_all_classes(small_parts, model, k, threads):
    threads(2)
    h, rows = case()
    ids, scores = top_k_classes(h, rows, k, **model)
    o = naive.scores(h, rows, **model)
    np.testing.assert_array_equal(ids, naive.ranking(o)[:, :k])
    wanted = np.take_along_axis(o, ids, axis=1)  # sums of numbers of about 1
    np.testing.assert_allclose(scores, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_equal_scores_parts_and_threads(small_parts, number, threads):
    threads(number)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def check(data):
        batch, n = data.draw(st.integers(1, 14)), data.draw(st.integers(1, 40))
        dtype = data.draw(st.sampled_from([np.float32, np.float64]))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        h, rows = (rng.integers(-2, 3, (m, 2)).astype(dtype) for m in (batch, n))
        share = data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
        left_out = rng.random((batch, n)) < share
        absent = rng.random(n) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        k = data.draw(st.integers(1, n + 3))
        matrix = sparse.csr_array(left_out.astype(float))
        ids, scores = best_classes(
            h,
            rows,
            k,
            leave_out=matrix if share else None,
            absent=absent if absent.any() else None,
        )
        assert (ids.dtype, scores.dtype) == (np.int64, dtype)
        for b in range(batch):
            unwanted = set(np.flatnonzero(left_out[b] | absent))
            wanted = naive_recommend.best(h[b] @ rows.T, k, unwanted)
            assert list(zip(ids[b], scores[b], strict=True)) == wanted

    check()


def test_many_best_of_many_classes(threads):
    h, rows = case(30_000, 2, 3, seed=4)
    found = []
    for number in (1, 3):
        threads(number)
        ids, scores = top_k_classes(h, rows, 700)
        np.testing.assert_array_equal(ids, naive.ranking(h @ rows.T)[:, :700])
        assert (np.diff(scores) <= 0.0).all()
        found.append(scores)
    np.testing.assert_array_equal(*found)  # to the last bit


def test_classes_left_out_come_last_where_there_are_too_few_others():
    h, rows = np.ones((3, 1)), np.array([[0.0], [5.0], [7.0], [6.0]])
    left_out = sparse.csr_array([[0, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=float)
    left_out.data[0] = 0.0  # an entry that is 0 does not count
    ids, scores = top_k_classes(h, rows, 3, leave_out=sparse.coo_array(left_out))
    assert ids.tolist() == [[2, 3, 1], [3, 0, 1], [0, 1, 2]]
    assert scores.tolist() == [[7.0, 6.0, 5.0], [6.0, -np.inf, -np.inf], [-np.inf] * 3]
    with pytest.raises(ValueError, match=r"`leave_out` must have shape \(3, 4\), got \(4, 3\)"):
        top_k_classes(h, rows, 3, leave_out=left_out.T)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_bad_class_vector_is_named(small_parts, normalize, value, threads):
    threads(3)
    h, rows = case()
    rows[[9, 15], [2, 4]] = value
    with pytest.raises(ValueError, match=r"`class_embeddings` .* row 9\b"):
        top_k_classes(h, rows, 2, normalize=normalize)
    rows[[9, 15]] = 0.0
    if normalize:  # vectors of 0 have logits of 0
        ids, scores = top_k_classes(h, rows, len(rows), normalize=True)
        assert not scores[np.isin(ids, [9, 15])].any()


def test_scores_beyond_the_range_are_seen_only_among_the_best():
    h, rows = np.full((2, 1), 1e30, np.float32), np.array([[1.0], [-1e30], [2.0]], np.float32)
    h[0] = 1.0
    ids, _ = top_k_classes(h, rows, 2)
    assert ids.tolist() == [[2, 0], [2, 0]]
    with pytest.raises(ValueError, match="the best scores must be finite, got .* for row 1 of `h`"):
        top_k_classes(h, rows, 3)
    with pytest.raises(ValueError, match="got inf for row 1 of `h`"):
        top_k_classes(h, -rows, 1)
    left_out = sparse.csr_array(np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert top_k_classes(h, -rows, 1, leave_out=left_out)[0].tolist() == [[1], [0]]


def test_memory_is_that_of_the_best():
    h, rows = (x.astype(np.float32) for x in case(200_000, 2, 256))
    top_k_classes(h, rows[:1000], 5)
    tracemalloc.start()
    top_k_classes(h, rows, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6  # all scores have 205 MB


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_norms_of_any_size_say_nothing(batch):
    h, rows = case(n=600, batch=batch)
    h, rows = h.astype(np.float32), rows.astype(np.float32)
    wanted = top_k_classes(h, rows, 9, normalize=True)
    rows[::3] *= np.float32(2.0**-90)
    rows[1::3] *= np.float32(2.0**90)
    found = top_k_classes(h, rows, 9, normalize=True)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)
