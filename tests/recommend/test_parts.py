"""The parts of a recommender against dense versions of them."""

import numpy as np
import pytest
from oracles import naive_recommend as naive
from scipy import sparse

from samplesoft.models.linear import Linear, sparse_product
from samplesoft.recommend.recommender import best_items
from samplesoft.recommend.training import (
    as_interactions,
    hide_items,
    item_singular_vectors,
    normalized_graph,
    propagated,
    transposed,
    user_vectors,
    with_dropout,
)

WEIGHTED = np.array(
    [[2.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 3.0, 0.0, 0.0], [0.0, 1.0, 4.0, 0.0]]
)


def test_vectors_of_users_are_pooled_histories():
    embedding = Linear(4, 3, rng=0)
    found = user_vectors(embedding, sparse.csr_array(WEIGHTED))
    wanted = naive.user_vectors(*embedding.parameters.values(), WEIGHTED)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_propagation_adds_the_vectors_of_users():
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
    graph = normalized_graph(as_interactions("x", sparse.csr_array(WEIGHTED)))
    wanted = naive.graph(WEIGHTED)
    np.testing.assert_allclose(graph.toarray(), wanted, rtol=1e-6)
    of_users = sparse_product(transposed(graph), users)
    np.testing.assert_array_equal(of_users, graph.T @ users)  # as SciPy adds up, on one thread
    found = propagated(items, of_users, 0.3)
    np.testing.assert_allclose(found, items + 0.3 * wanted.T @ users, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[3], items[3])  # nobody has taken it
    assert propagated(items, of_users, 0.0) is items


def test_weights_of_any_size_make_the_same_graph():
    huge = sparse.csr_array(WEIGHTED * 1e307)
    np.testing.assert_allclose(normalized_graph(huge).toarray(), naive.graph(WEIGHTED), rtol=1e-6)
    apart = np.kron(np.diag([1e-300, 1e300]), np.ones((2, 3)))  # no unit has room for both
    found = normalized_graph(sparse.csr_array(apart)).toarray()
    np.testing.assert_allclose(found, np.kron(np.eye(2), np.full((2, 3), 6**-0.5)), rtol=1e-6)


def test_lists_leave_out_what_they_are_told():
    rng = np.random.default_rng(1)
    users, items = (rng.normal(size=(n, 3)).astype(np.float32) for n in (700, 8))
    taken = sparse.csr_array((rng.random((700, 8)) < 0.5).astype(np.float32))
    absent = np.isin(np.arange(len(items)), [2, 6])
    ids, scores = best_items(users, items, 5, False, leave_out=taken, absent=absent)
    assert ids.dtype == np.int32
    for b in range(0, 700, 50):
        left_out = {2, 6, *taken[[b]].indices}
        wanted = naive.best(users[b] @ items.T, 5, left_out)
        assert ids[b].tolist() == [j for j, _ in wanted]
        np.testing.assert_allclose(scores[b], [s for _, s in wanted], rtol=1e-5)


def test_directions_are_singular_vectors():
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 25))
    matrix += 1e-3 * rng.normal(size=matrix.shape)
    found = item_singular_vectors(sparse.csr_array(matrix.astype(np.float32)), 3, 0)
    wanted = np.linalg.svd(matrix)[2][:3].T
    np.testing.assert_allclose(np.abs(np.sum(found * wanted, axis=0)), 1.0, atol=1e-4)
    few = sparse.csr_array(np.eye(2, 5, dtype=np.float32))
    assert item_singular_vectors(few, 8, 0).shape == (5, 2)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_what_is_hidden_and_what_is_left(share):
    kept = (np.arange(60) % 4 > 0)[:, None]  # other users have no items
    taken = sparse.csr_array(naive.planted().toarray() * kept)
    left, users, hidden = hide_items(taken, share, 3)
    whole = left.toarray()
    assert not (whole[users] * hidden.toarray()).any()
    whole[users] += hidden.toarray()
    np.testing.assert_array_equal(whole, taken.toarray())
    able = np.sum(np.diff(taken.indptr) > 1)
    assert len(users) == np.ceil(share * able)
    assert set(np.diff(hidden.indptr)) == {1}  # a fifth of six
    again = hide_items(taken, share, 4)[1:]
    assert share == 1.0 or users.tolist() != again[0].tolist()
    assert hidden.toarray().tolist() != again[1].toarray().tolist()


def test_histories_lose_items_that_remain_labels():
    rng = np.random.default_rng(0)
    taken = sparse.csr_array(rng.integers(0, 4, size=(200, 30)).astype(np.float32))
    histories = sparse.csr_array(taken * 0.25)
    x, labels = (found.toarray() for found in with_dropout(histories, taken, 0.4, 7))
    left = x > 0.0
    np.testing.assert_allclose(x, np.where(left, histories.toarray() / 0.6, 0.0), rtol=1e-6)
    np.testing.assert_allclose(labels, taken.toarray() * np.where(left, 0.3, 1.0), rtol=1e-6)
    assert abs(left.sum() / taken.nnz - 0.6) < 4.0 * np.sqrt(0.24 / taken.nnz)
    other, _ = with_dropout(histories, taken, 0.4, 8)
    assert (other.toarray() > 0.0).tolist() != left.tolist()
    whole, labels = with_dropout(histories, taken, 0.0, 7)
    np.testing.assert_array_equal(whole.toarray(), histories.toarray())
    np.testing.assert_allclose(labels.data, 0.3 * taken.data, rtol=1e-6)
