"""Softmaxes over trees of classes, against sums over paths that are written out in NumPy."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax

from samplesoft.losses import (
    ClassTree,
    HierarchicalLoss,
    huffman_tree,
    make_loss,
    two_level_tree,
)
from samplesoft.models import (
    HierarchicalSoftmax,
    LinearSoftmax,
    LinearSoftmaxSettings,
    SoftmaxLayer,
)
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import read_linear_softmax
from samplesoft.training.trained import sample_trained_softmax

COUNTS = np.array([9, 1, 4, 0, 2, 7, 1, 3, 30, 5, 2, 2, 1.5])


def deep_tree(n):
    """A tree of all kinds of nodes: with one child, with many, and classes at every depth."""
    parents = [n, n, n + 1, *[n + 2] * (n - 5), n + 3, n + 4]
    return ClassTree.from_parents([*parents, -1, n, n + 1, n + 1, n + 3], n)


TREES = {
    "huffman": huffman_tree(COUNTS),
    "two levels": two_level_tree(COUNTS),
    "one cell": two_level_tree(COUNTS, 1),
    "cells of one": two_level_tree(COUNTS, 1000),
    "given cells": two_level_tree(COUNTS, np.arange(len(COUNTS)) % 3),
    "deep": deep_tree(len(COUNTS)),
}
each_tree = pytest.mark.parametrize("name", TREES)


def path_of(tree, class_id):
    node, path = int(tree.places[class_id]), []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def log_probs_by_hand(tree, rows, h, tau=1.0):
    logs = np.zeros((len(h), tree.num_classes))
    for j in range(tree.num_classes):
        for node in path_of(tree, j):
            siblings = np.flatnonzero(tree.parents == tree.parents[node])
            scores = tau * h @ rows[siblings].T
            logs[:, j] += log_softmax(scores, axis=1)[:, list(siblings).index(node)]
    return logs


def problem(tree, dtype=np.float64, batch=5, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    rows = scale * rng.normal(size=(tree.num_nodes, 3))
    h, labels = rng.normal(size=(batch, 3)), rng.integers(0, tree.num_classes, batch)
    return rows.astype(dtype), h.astype(dtype), labels


@each_tree
def test_a_tree_has_each_node_once_and_children_after_it(name):
    tree = TREES[name]
    nodes = np.arange(tree.num_nodes)
    for node in [*nodes.tolist(), -1]:
        first, last = tree.children[node]
        assert (nodes[first:last] == np.flatnonzero(tree.parents == node)).all()
        assert first == last or first > node
        assert (first == last) == (tree.classes[node] >= 0 and node >= 0)
    assert sorted(tree.places) == sorted(nodes[tree.classes >= 0])
    assert tree.depths.tolist() == [len(path_of(tree, j)) for j in range(tree.num_classes)]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(any))
def test_huffman_paths_are_the_shortest_on_average(counts):
    heap, cost = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        cost += joined
        heapq.heappush(heap, joined)
    tree = huffman_tree(counts)
    assert np.dot(tree.depths, counts) == cost
    assert (np.diff(tree.children)[[-1], 0] == 2).all() and tree.num_nodes == 2 * len(counts) - 2


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300).filter(any))
def test_cells_by_frequency_are_few_and_small(counts):
    tree = two_level_tree(counts)
    n = len(counts)
    sizes = np.diff(tree.children[: tree.num_top])[:, 0]
    assert sizes.sum() == n and tree.num_top <= np.sqrt(n) and sizes.max() <= 2 * n / np.sqrt(n) + 3
    cells = tree.parents[tree.places]
    frequent = np.argsort(-np.array(counts), kind="stable")
    assert (np.diff(cells[frequent]) >= 0).all()  # cells hold neighbours by frequency


@each_tree
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probabilities(name, dtype):
    tree = TREES[name]
    rows, h, labels = problem(tree, dtype)
    layer = HierarchicalSoftmax(rows, tree, tau=2.0)
    logs, expected = layer.log_probs(h), log_probs_by_hand(tree, rows.astype(float), h, 2.0)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(logs, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=tolerance)
    loss, _ = layer.forward(h, labels)
    assert loss == pytest.approx(-expected[np.arange(5), labels].mean(), rel=10 * tolerance)


@each_tree
def test_gradients_by_finite_differences(name):
    tree = TREES[name]
    rows, h, labels = problem(tree)
    weights = np.array([1.0, 0.5, 2.0, 0.0, 3.0])

    def loss_of(rows, h):
        own = log_probs_by_hand(tree, rows, h, 1.5)[np.arange(5), labels]
        return -np.dot(weights, own)

    layer = HierarchicalSoftmax(rows, tree, tau=1.5, reduction="sum")
    loss, cache = layer.forward(h, labels, weights=weights)
    assert loss == pytest.approx(loss_of(rows, h), rel=1e-12)
    dh, gradients = layer.backward(cache)
    ids, of_rows = gradients["class_embeddings"]
    assert (np.diff(ids) > 0).all()
    dense = np.zeros_like(rows)
    dense[ids] = of_rows
    for array, found in ((h, dh), (rows, dense)):
        for place in np.ndindex(*array.shape):
            before, values = array[place], []
            for step in (1e-6, -1e-6):
                array[place] = before + step
                values.append(loss_of(rows, h))
            array[place] = before
            assert found[place] == pytest.approx((values[0] - values[1]) / 2e-6, abs=2e-7)


@each_tree
@pytest.mark.parametrize("reduction", ["pal", "pal-n"])
def test_several_labels_are_the_sum_of_one_each(name, reduction):
    tree = TREES[name]
    rows, h, _ = problem(tree, batch=3)
    labels = sparse.csr_array(np.array([[2, 1, 0, 1] + 9 * [0], 12 * [0] + [1], 13 * [1.0]]))
    layer = HierarchicalSoftmax(rows, tree, reduction="sum", label_reduction=reduction)
    loss, cache = layer.forward(h, labels)
    dh, gradients = layer.backward(cache)
    dense = labels.toarray() / (labels.sum(axis=1)[:, None] if reduction == "pal-n" else 1.0)
    one = HierarchicalSoftmax(rows, tree, reduction="sum")
    b, j = np.nonzero(dense)
    expected, cache = one.forward(h[b], j, weights=dense[b, j])
    dh_of_pairs, expected_gradients = one.backward(cache)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(dh, np.stack([dh_of_pairs[b == k].sum(0) for k in range(3)]))
    for found, wanted in zip(
        gradients["class_embeddings"], expected_gradients["class_embeddings"], strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-14)


@each_tree
@pytest.mark.parametrize("k", [1, 4, 13])
@pytest.mark.parametrize("leaves_out", [False, True])
def test_the_best_are_found_without_a_look_at_the_rest(name, k, leaves_out):
    tree = TREES[name]
    rows, h, _ = problem(tree, batch=40, scale=3.0)
    rows[tree.places[3]] = rows[tree.places[4]] = 0.0
    layer = HierarchicalSoftmax(rows, tree)
    logs, absent = layer.log_probs(h), np.random.default_rng(1).random((40, 13)) < 0.3
    if leaves_out:
        logs[absent] = -np.inf
    ids, best = layer.top_k(h, k, leave_out=sparse.csr_array(absent) if leaves_out else None)
    order = np.argsort(-logs, axis=1, kind="stable")[:, :k]
    np.testing.assert_allclose(best, np.take_along_axis(logs, order, axis=1), rtol=1e-9)
    np.testing.assert_allclose(best, np.take_along_axis(logs, ids, axis=1), rtol=1e-9)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_equal_classes_come_in_their_order():
    tree = huffman_tree(np.ones(8))
    ids, logs = HierarchicalSoftmax(np.zeros((14, 2)), tree).top_k([[1.0, 2.0]], 8)
    assert ids.tolist() == [list(range(8))]
    np.testing.assert_allclose(logs, -np.log(8.0))


def test_extreme_scores_keep_their_digits():
    tree = two_level_tree(np.ones(4))
    rows = np.array([[1e4], [-1e4], [50.0], [0.0], [1e4], [0.0]])
    layer = HierarchicalSoftmax(rows, tree)
    loss, cache = layer.forward([[1.0]], [0])
    assert loss == pytest.approx(np.exp(-50.0), rel=1e-12)
    dh, _ = layer.backward(cache)
    assert dh[0, 0] == pytest.approx(-50.0 * np.exp(-50.0), rel=1e-10)
    loss, _ = layer.forward([[1.0]], [3])
    assert loss == pytest.approx(3e4, rel=1e-12)
    with pytest.raises(ValueError, match="must be finite"):
        HierarchicalSoftmax(rows.astype(np.float32) * 1e30, tree).forward([[1e8]], [0])


def test_results_do_not_depend_on_threads(threads):
    tree = huffman_tree(np.random.default_rng(0).random(300))
    rows, h, labels = problem(tree, np.float32, batch=100)
    layer, found = HierarchicalSoftmax(rows, tree), []
    for count in (1, 3):
        threads(count)
        loss, cache = layer.forward(h, labels)
        dh, gradients = layer.backward(cache)
        found.append((loss, dh, gradients["class_embeddings"].rows, *layer.top_k(h, 5)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluation_is_that_of_the_probabilities():
    tree = TREES["deep"]
    rows, h, labels = problem(tree, batch=30)
    layer = HierarchicalSoftmax(rows, tree)
    found, logs = layer.evaluate(h, labels, k=(1, 3)), layer.log_probs(h)
    assert found.loss == pytest.approx(-logs[np.arange(30), labels].mean())
    rank = (logs > logs[np.arange(30), labels][:, None]).sum(axis=1)
    assert found.top_k == pytest.approx({1: (rank < 1).mean(), 3: (rank < 3).mean()})
    assert found.precision_at_k == pytest.approx({1: (rank < 1).mean(), 3: (rank < 3).mean() / 3})


def test_one_class_is_certain():
    for tree in (huffman_tree([3.0]), two_level_tree([3.0])):
        layer = HierarchicalSoftmax(np.ones((tree.num_nodes, 2)), tree)
        loss, cache = layer.forward([[1.0, 2.0]], [0])
        assert loss == 0.0 and not layer.backward(cache)[0].any()
        assert layer.top_k([[1.0, 2.0]], 1)[0].tolist() == [[0]]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([3, 3, 4, 4, 2], "one root"),
        ([3, 3, 4, -1, -1], "one root"),
        ([3, 3, 3, -1, 3], "a child"),
        ([1, 3, 3, 4, -1], "no class above"),
        ([3, 3, 3, 9, -1], "one root"),
        ([3, 3], "more integers"),
        ([[3, 3, 3, -1]], "more integers"),
        ([0.5, 1, 2, -1], "more integers"),
    ],
)
def test_what_is_no_tree_is_refused(parents, message):
    with pytest.raises(ValueError, match=message):
        ClassTree.from_parents(parents, 3)


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match="circle"):
        ClassTree.from_parents([3, 3, 5, -1, 5, 4], 3)


def test_bad_arguments_are_refused():
    tree = huffman_tree(COUNTS)
    rows, h, labels = problem(tree)
    layer = HierarchicalSoftmax(rows, tree)
    with pytest.raises(ValueError, match=r"`labels` must hold classes in 0\.\.12, got 13"):
        layer.forward(h, labels * 0 + 13)
    with pytest.raises(ValueError, match="13 columns"):
        layer.forward(h, sparse.csr_array(np.ones((5, 24))))
    with pytest.raises(ValueError, match="each of the 24 nodes"):
        HierarchicalSoftmax(rows[:5], tree)
    with pytest.raises(ValueError, match="each of the 24 nodes"):
        HierarchicalLoss(tree).forward(h, rows[:20], labels)
    with pytest.raises(ValueError, match="`biases` must be None"):
        HierarchicalLoss(tree).forward(h, rows, labels, biases=np.zeros(24))
    with pytest.raises(TypeError, match="`tree` must be given for 'hierarchical'"):
        make_loss("hierarchical")
    assert make_loss("hierarchical", tree=tree).tree is tree
    with pytest.raises(ValueError, match="take a samplesoft.models.HierarchicalSoftmax"):
        SoftmaxLayer(rows, HierarchicalLoss(tree))
    for call in (layer.log_probs, lambda h: layer.top_k(h, 2)):
        with pytest.raises(ValueError, match="`h` must have logits within the range of float64"):
            call(h * 5e307)
    with pytest.raises(TypeError, match="`tree` must be"):
        HierarchicalSoftmax(rows, rows)
    with pytest.raises(ValueError, match="`counts` must be at least 0"):
        huffman_tree([0, 0])
    with pytest.raises(TypeError, match="`draw` must be None"):
        HierarchicalLoss(tree).forward(h, rows, labels, labels)


def test_a_wrong_correction_would_be_seen():
    """The gradient that leaves out the children of the root differs from finite differences."""
    tree = TREES["two levels"]
    rows, h, labels = problem(tree)
    layer = HierarchicalSoftmax(rows, tree)
    _, cache = layer.forward(h, labels)
    right = layer.backward(cache)[0]
    cache.saved[0][...] = 0.0
    assert np.abs(layer.backward(cache)[0] - right).max() > 1e-3


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = sparse.csr_array(rng.random((300, 30)) * (rng.random((300, 30)) < 0.3))
    y = np.asarray(X.toarray().argmax(axis=1))
    options = {"loss": "hierarchical", "embedding_dim": 16, "max_iter": 40, "random_state": 0}
    return SampledSoftmaxClassifier(**options).fit(X, y), X, y


def test_the_classifier_learns_on_a_tree_and_ranks_by_branch_and_bound(fitted):
    model, X, y = fitted
    assert model.score(X, y) > 0.6
    p, (best, scores) = model.predict_proba(X), model.predict_topk(X, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-5)
    rows = np.arange(len(p))[:, None]
    order = np.argsort(-p, axis=1, kind="stable")[:, :3]
    np.testing.assert_allclose(p[rows, best], p[rows, order], rtol=1e-4)
    logs = model.model_.softmax.log_probs(model.model_.embed(X))
    np.testing.assert_allclose(scores, logs[rows, best], rtol=1e-4, atol=1e-5)


def test_a_model_on_a_tree_is_saved_and_read(fitted, tmp_path):
    model, X, _ = fitted
    path = tmp_path / "model.npz"
    model.save(path)
    loaded, read = SampledSoftmaxClassifier.load(path), read_linear_softmax(path)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(read.top_k(X, 2)[0], model.predict_topk(X, 2)[0])
    labels = sparse.csr_array(np.eye(30)[:1].repeat(300, axis=0))
    with pytest.raises(ValueError, match="class vectors"):
        sample_trained_softmax(read, X, labels, 5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_dim": None}, "`embedding_dim` must be a number"),
        ({"normalize": True}, "`normalize` must be False"),
        ({"label_reduction": "ova"}, "must not be 'ova'"),
        ({"sampler": "uniform"}, "draws nothing"),
    ],
)
def test_settings_that_do_not_go_with_a_tree(options, message):
    base = {"loss": "hierarchical", "sampler": None, "num_sampled": None}
    with pytest.raises(ValueError, match=message):
        LinearSoftmaxSettings(**{**base, **options})


def test_options_that_a_tree_does_not_have():
    with pytest.raises(ValueError, match="`absolute` must be False for HierarchicalLoss"):
        HierarchicalLoss(TREES["deep"], absolute=True)
    settings = LinearSoftmaxSettings(loss="hierarchical", sampler=None, num_sampled=None)
    model = LinearSoftmax(4, 9, settings, rng=0)
    assert model.softmax.tree.num_top == 3
    with pytest.raises(ValueError, match="none of classes"):
        model.class_vectors()


def test_given_cells_are_those_of_the_tree():
    tree = two_level_tree(COUNTS, [5, 0, 5, 0, 5, 0, 12, 0, 5, 0, 12, 0, 5])
    offsets, n = [0, 1, 6], len(COUNTS)  # a class of each cell
    layer = HierarchicalSoftmax(np.zeros((tree.num_nodes, 2)), tree)
    logs = layer.log_probs([[0.0, 0.0]])[0]
    np.testing.assert_allclose(np.exp(-logs[offsets]), 3.0 * np.array([5, 6, 2]))
    assert tree.num_nodes == n + 3
    for cells in ([0, 1], np.full(n, n), np.full(n, 0.5)):
        with pytest.raises((TypeError, ValueError), match="`cells`"):
            two_level_tree(COUNTS, cells)
