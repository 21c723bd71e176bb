"""A linear embedding under a softmax layer: derivatives, lists, and what a step touches."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.losses.base import SparseRows
from samplesoft.models import Linear, LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers import make_optimizer

FULL = {"loss": "full", "sampler": None, "num_sampled": None}


def inputs(dense, num=5, width=7, dtype=np.float64):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num, width)) * (rng.random((num, width)) < 0.5)
    x[0] = 0.0
    return x.astype(dtype) if dense else sparse.csr_array(x.astype(dtype))


def as_dense(gradient, like):
    if not isinstance(gradient, SparseRows):
        return gradient
    out = np.zeros_like(like)
    out[gradient.ids] = gradient.rows
    return out


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_gradients_are_derivatives(dense, normalize, several):
    settings = LinearSoftmaxSettings(**FULL, embedding_dim=3, tau=2.0, normalize=normalize)
    model = LinearSoftmax(7, 4, settings, dtype=np.float64, rng=0)
    x, labels = inputs(dense), np.array([3, 0, 1, 1, 2])
    if several:
        matrix = np.eye(4)[labels]
        matrix[0, :2] = 1.0
        labels = sparse.csr_array(matrix)
    weights = np.array([1.0, 2.0, 0.5, 1.0, 0.0])
    _, gradients = model.step(x, labels, weights=weights)
    for name, array in model.parameters.items():
        got = as_dense(gradients[name], array)
        for place in np.ndindex(array.shape):
            before = array[place]
            ends = []
            for sign in (1, -1):
                array[place] = before + sign * 1e-6
                ends.append(model.step(x, labels, weights=weights)[0])
            array[place] = before
            assert got[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-8), name


def test_a_step_touches_what_the_batch_does():
    settings = LinearSoftmaxSettings(num_sampled=2, embedding_dim=3)
    model, optimizer = LinearSoftmax(7, 500, settings, rng=0), make_optimizer("adagrad", 0.1)
    before = {name: array.copy() for name, array in model.parameters.items()}
    x = inputs(False, dtype=np.float32)
    labels = np.array([3, 0, 1, 1, 2])
    _, gradients = model.step(x, labels, rng=0)
    optimizer.step(model.parameters, gradients)
    model.after_step(gradients)
    moved = np.flatnonzero(
        (model.parameters["softmax.class_embeddings"] != before["softmax.class_embeddings"]).any(
            axis=1
        )
    )
    assert set(labels) <= set(moved) and 4 < len(moved) <= 5 * 3
    columns = np.flatnonzero(
        (model.parameters["embedding.weights"] != before["embedding.weights"]).any(axis=1)
    )
    assert set(columns) == set(x.indices.tolist())
    unit = model.class_vectors()
    np.testing.assert_allclose(model.softmax.sampler.class_embeddings(), unit, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_lists_are_those_of_all_scores(normalize):
    settings = LinearSoftmaxSettings(**FULL, embedding_dim=3, normalize=normalize)
    model = LinearSoftmax(7, 9, settings, dtype=np.float64, rng=0)
    x = inputs(False)
    scores = np.concatenate([block for _, block in model.scores(x)])
    h = model.embed(x)
    tau = 10.0 if normalize else 1.0  # the default
    np.testing.assert_allclose(scores, tau * h @ model.class_vectors().T, rtol=1e-12)
    ids, best = model.top_k(x, 4)
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1)[:, :4])
    np.testing.assert_allclose(best, np.sort(scores, axis=1)[:, ::-1][:, :4], rtol=1e-12)
    out = sparse.csr_array((np.random.default_rng(2).random((5, 9)) < 0.5).astype(float))
    ids, best = model.top_k(x, 4, leave_out=out)
    scores[out.toarray() > 0] = -np.inf
    np.testing.assert_allclose(best, np.sort(scores, axis=1)[:, ::-1][:, :4], rtol=1e-12)
    kept = best > -np.inf
    assert not out.toarray()[np.arange(5)[:, None], ids][kept].any()


@pytest.mark.parametrize("dense", [True, False])
def test_dropout_keeps_the_mean(dense):
    settings = LinearSoftmaxSettings(**FULL, dropout=0.4)
    model = LinearSoftmax(1000, 2, settings, rng=0)
    x = np.ones((20, 1000), np.float32)
    thin = model.with_dropout(x if dense else sparse.csr_array(x), np.uint64(3))
    values = thin if dense else thin.toarray()
    assert set(np.unique(values)) == {0.0, np.float32(1.0 / np.float32(0.6))}
    share = (values > 0).mean()
    assert abs(share - 0.6) < 4 * np.sqrt(0.24 / values.size)
    assert not np.array_equal(values[0], values[1])


def test_a_row_without_entries_is_the_intercept():
    layer = Linear(3, 2, rng=0)
    y, _ = layer.forward(sparse.csr_array((2, 3), dtype=np.float32))
    np.testing.assert_array_equal(y, np.tile(layer.parameters["intercept"], (2, 1)))
    assert np.linalg.norm(y) > 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_dim": 0}, "`embedding_dim` must be at least 1"),
        ({"dropout": 1.0}, "`dropout` must be at least 0 and less than 1"),
        ({"loss": "full"}, "must be None for loss='full'"),
    ],
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LinearSoftmaxSettings(**options)
