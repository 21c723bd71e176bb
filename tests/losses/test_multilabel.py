"""Several labels of an example: what a sparse matrix of labels means, for any loss."""

import numpy as np
import pytest
from oracles import naive_losses_full as naive
from scipy import sparse

from samplesoft.losses.base import checked_targets
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.sampled import SampledSoftmaxLoss
from samplesoft.samplers.base import Draw

DENSE = np.array([[0.0, 2.0, 0.0, 6.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.0, 0.5]])


def vectors(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((3, 4)), rng.standard_normal((5, 4))


def test_pairs_come_example_by_example():
    targets = checked_targets(sparse.csr_array(DENSE), 3, 5)
    assert targets.labels.tolist() == [1, 3, 0, 0, 1, 2, 4]
    assert targets.example_ids.tolist() == [0, 0, 1, 2, 2, 2, 2]
    np.testing.assert_allclose(targets.label_weights, [0.25, 0.75, 1.0, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float32, np.float64])
def test_any_type_of_weights(dtype):
    targets = checked_targets(sparse.csr_array((DENSE > 0).astype(dtype)), 3, 5)
    np.testing.assert_allclose(targets.label_weights, [0.5, 0.5, 1.0, 0.25, 0.25, 0.25, 0.25])
    assert targets.label_weights.dtype == np.float64


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array", "lil_array", "dok_array"])
def test_any_form(form):
    targets = checked_targets(getattr(sparse, form)(DENSE), 3, 5)
    assert targets.labels.tolist() == [1, 3, 0, 0, 1, 2, 4]


def test_zeros_repeats_and_order_in_storage():
    data, indices = np.array([3.0, 1.0, 0.0, 1.0]), np.array([4, 2, 0, 4])
    matrix = sparse.csr_array((data, indices, [0, 4]), shape=(1, 5))
    targets = checked_targets(matrix, 1, 5)
    assert targets.labels.tolist() == [2, 4]
    np.testing.assert_allclose(targets.label_weights, [0.2, 0.8])
    assert matrix.indices.tolist() == [4, 2, 0, 4], "the matrix of the caller has changed"
    assert matrix.data.tolist() == [3.0, 1.0, 0.0, 1.0]


def test_sums_over_the_pairs_of_each_example():
    targets = checked_targets(sparse.csr_array(DENSE), 3, 5)
    np.testing.assert_array_equal(targets.per_example(np.arange(7.0)), [1.0, 2.0, 18.0])
    np.testing.assert_array_equal(targets.rows(np.array([5, 6, 7])), [5, 5, 6, 7, 7, 7, 7])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_loss_is_the_mean_of_those_of_the_labels(sampled, absolute, reduction):
    h, rows = vectors()
    weights = np.array([1.0, 3.0, 0.5])
    kind = SampledSoftmaxLoss if sampled else FullSoftmaxLoss
    options = {"scheme": "masked"} if sampled else {}
    draw = Draw(np.array([[0, 2, 3]]), np.log(np.full((1, 3), 0.2))) if sampled else None
    loss = kind(absolute=absolute, reduction=reduction, **options)
    value, cache = loss.forward(h, rows, sparse.csr_array(DENSE), draw, weights=weights)
    gradients = loss.backward(cache)
    single = kind(absolute=absolute, reduction="none", **options)
    total, dh, dW = np.zeros(3), np.zeros_like(h), np.zeros_like(rows)
    for label in range(5):
        shares = naive.shares(sparse.csr_array(DENSE), 5)[:, label]
        part, cache = single.forward(h, rows, np.full(3, label), draw, weights=shares * weights)
        total += part
        part = single.backward(cache)
        dh += part.dh
        dW[part.dW.ids] += part.dW.rows
    scale = weights.sum() if reduction == "mean" else 1.0
    np.testing.assert_allclose(value, (total if reduction == "none" else total.sum()) / scale)
    np.testing.assert_allclose(gradients.dh, dh / scale, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(gradients.dW.rows, dW[gradients.dW.ids] / scale, rtol=1e-12)


def test_one_label_as_a_matrix_is_one_label():
    h, rows = vectors()
    labels = np.array([3, 0, 4])
    loss = FullSoftmaxLoss()
    results = [
        (value, loss.backward(cache))
        for value, cache in (
            loss.forward(h, rows, labels),
            loss.forward(h, rows, sparse.csr_array(7.0 * np.eye(5)[labels])),
        )
    ]
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1].dh, results[1][1].dh)
    np.testing.assert_array_equal(results[0][1].dW.rows, results[1][1].dW.rows)


def test_the_least_loss_is_the_entropy_of_the_shares():
    shares = np.array([0.25, 0.75])
    rows = np.log(shares)[:, None]
    loss = FullSoftmaxLoss()
    value, cache = loss.forward([[1.0]], rows, sparse.csr_array(shares[None]))
    assert value == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-14)
    np.testing.assert_allclose(loss.backward(cache).dW.rows, 0.0, atol=1e-15)


def test_all_classes_are_labels():
    h, rows = vectors()
    labels = sparse.csr_array(np.ones((3, 5)))
    value, _ = FullSoftmaxLoss().forward(h, rows, labels)
    assert value == pytest.approx(naive.value(h, rows, labels), rel=1e-13)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[1.0, 0.0], [0.0, 0.0]]), "a label in each row, got none in row 1"),
        (np.array([[1.0, -1.0], [0.0, 1.0]]), "weights of at least 0, got -1.0"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "`labels` must be finite"),
        (np.array([[1.0, np.inf], [0.0, 1.0]]), "`labels` must be finite"),
        (np.ones((2, 3)), r"must have shape \(2, 2\) as a matrix, got \(2, 3\)"),
        (np.ones((1, 2)), r"must have shape \(2, 2\) as a matrix, got \(1, 2\)"),
    ],
)
def test_messages(matrix, message):
    with pytest.raises(ValueError, match=message):
        checked_targets(sparse.csr_array(matrix), 2, 2)


def test_a_dense_matrix_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"scipy\.sparse"):
        checked_targets(np.ones((2, 2), int), 2, 2)
