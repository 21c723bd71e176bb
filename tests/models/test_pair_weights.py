"""Weights of pairs of a feature and a class: their training, and how models add them."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from samplesoft._jit import num_threads, set_num_threads
from samplesoft.models import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.pair_weights import PairWeights, PairWeightsTrainer

NUM_INPUTS, NUM_CLASSES = 7, 9


def examples(num=40, several=False, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X = sparse.random_array((num, NUM_INPUTS), density=0.4, rng=rng, format="csr").astype(dtype)
    labels = rng.integers(0, NUM_CLASSES, num)
    if several:
        chosen = rng.random((num, NUM_CLASSES)) < 0.2
        chosen[np.arange(num), labels] = True
        labels = sparse.csr_array(chosen.astype(float))
    return X, labels, rng.uniform(0.1, 3.0, num)


def indicators(labels):
    return labels.toarray() > 0 if sparse.issparse(labels) else np.eye(NUM_CLASSES)[labels] > 0


def loss(scores, is_label):
    """The mean over the labels of the softmax loss among a label and the classes without."""
    values = []
    for j in np.flatnonzero(is_label):
        kept = ~is_label
        kept[j] = True
        values.append(logsumexp(scores[kept]) - scores[j])
    return np.mean(values)


def trained(X, labels, weights, order, scale=0.5):
    trainer = PairWeightsTrainer(X, labels, weights, NUM_CLASSES, scale)
    trainer.run(order)
    return trainer.result()


def as_matrix(pairs):
    shape = NUM_INPUTS, NUM_CLASSES
    return sparse.csr_array((pairs.values, pairs.classes, pairs.starts), shape).toarray()


def random_pairs(seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    matrix = sparse.random_array((NUM_INPUTS, NUM_CLASSES), density=0.5, rng=rng, format="csr")
    return PairWeights(
        rng.normal(size=NUM_CLASSES).astype(np.float32),
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
        scale,
    )


@pytest.mark.parametrize("several", [False, True])
def test_steps_are_those_of_numerical_derivatives(several):
    X, labels, weights = examples(several=several)
    is_label, x = indicators(labels), X.toarray().astype(float) / 0.5
    relative = weights / weights.mean()
    counts = relative @ is_label + 1.0
    biases = np.log(counts / counts.sum())
    W, squares = np.zeros((NUM_INPUTS, NUM_CLASSES)), np.ones(NUM_INPUTS)
    order = np.random.default_rng(1).permutation(40)
    for i in order:
        scores = biases + x[i] @ W
        steps = 1e-5 * np.eye(NUM_CLASSES)
        d = [(loss(scores + e, is_label[i]) - loss(scores - e, is_label[i])) / 2e-5 for e in steps]
        d = relative[i] * np.array(d)
        d[abs(d) <= 1e-3] = 0.0
        squares += x[i] ** 2 * (d @ d)
        W -= 10.0 * np.outer(x[i] / np.sqrt(squares), d)
    found = trained(X, labels, weights, order)
    np.testing.assert_allclose(found.biases, biases, rtol=1e-5)
    np.testing.assert_allclose(as_matrix(found), W, atol=0.02)


def test_only_ratios_of_weights_and_inputs_count():
    X, labels, weights = examples()
    order = np.arange(40)
    wanted = trained(X, labels, weights, order)
    found = trained(X, labels, weights * 2.0**-1030, order)
    np.testing.assert_array_equal(found.values, wanted.values)
    found = trained(X * np.float32(8.0), labels, weights, order, scale=4.0)
    np.testing.assert_array_equal(found.values, wanted.values)
    # examples of weight 0 count for nothing
    some = np.where(np.arange(40) < 20, weights, 0.0)
    found = trained(X, labels, some, order[:20])
    wanted = trained(X[:20], labels[:20], weights[:20], order[:20])
    np.testing.assert_array_equal(found.values, wanted.values)
    np.testing.assert_array_equal(found.biases, wanted.biases)


def test_huge_inputs_leave_weights_and_scores_finite():
    X, labels, weights = examples(dtype=np.float64)
    X.data[::7] = 1e300
    pairs = trained(X, labels, weights, np.arange(40), scale=1e-10)
    assert np.isfinite(pairs.values).all() and len(pairs.values)
    scores = np.zeros((40, NUM_CLASSES), np.float32)
    pairs.add_to(scores, X)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dense", [False, True])
def test_scores_are_those_of_matrix_products(dtype, dense):
    X = examples(dtype=dtype)[0]
    pairs = random_pairs()
    wanted = 1.0 + pairs.biases + X.toarray() / 2.0 @ as_matrix(pairs)
    found = np.ones((40, NUM_CLASSES), dtype)
    pairs.add_to(found, X.toarray() if dense else X)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_any_number_of_threads_computes_the_same():
    X = examples(1000)[0]
    results = []
    for threads in (1, 2):
        before = num_threads()
        set_num_threads(threads)
        scores = np.zeros((1000, NUM_CLASSES), np.float32)
        random_pairs().add_to(scores, X)
        results.append(scores)
        set_num_threads(before)
    np.testing.assert_array_equal(*results)


def model_with_pairs(dtype=np.float32):
    settings = LinearSoftmaxSettings(loss="full", sampler=None, num_sampled=None, embedding_dim=3)
    model = LinearSoftmax(NUM_INPUTS, NUM_CLASSES, settings, dtype=dtype, rng=0)
    X = examples(dtype=dtype)[0]
    alone = np.concatenate([scores for _, scores in model.scores(X)])
    model.pair_weights = random_pairs()
    return model, X, alone


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_adds_them_to_its_scores(dtype, monkeypatch):
    model, X, wanted = model_with_pairs(dtype)
    monkeypatch.setattr(model, "_chunk_rows", 16)
    model.pair_weights.add_to(wanted, X)
    found = np.concatenate([scores for _, scores in model.scores(X)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    excluded = sparse.csr_array(np.random.default_rng(0).random((40, NUM_CLASSES)) < 0.8)
    for leave_out in (None, excluded):
        ids, best = model.top_k(X, 5, leave_out=leave_out)
        scores = np.concatenate([s for _, s in model.scores(X, leave_out=leave_out)])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        np.testing.assert_array_equal(ids, order)
        np.testing.assert_array_equal(best, np.take_along_axis(scores, order, axis=1))
        assert best.dtype == dtype


def test_of_equal_scores_the_first_class_comes_first():
    model, X, _ = model_with_pairs()
    for array in model.parameters.values():
        array[:] = 0.0
    pairs = model.pair_weights
    model.pair_weights = PairWeights(
        np.array([0, 1, 1, 2, 0, 1, 2, 2, 0], np.float32),
        pairs.starts * 0,
        np.empty(0, np.int32),
        np.empty(0, np.float32),
        scale=1.0,
    )
    model.softmax.loss.normalize = False
    ids, _ = model.top_k(X, 4)
    np.testing.assert_array_equal(ids, np.tile([3, 6, 7, 1], (40, 1)))


def test_scores_that_are_not_finite_are_refused():
    model, X, _ = model_with_pairs()
    model.pair_weights.biases[2] = np.inf
    with pytest.raises(ValueError, match="must be finite"):
        model.top_k(X, 2)


def test_steps_do_not_change_them():
    model, X, _ = model_with_pairs()
    with_them = model.step(X, np.arange(40) % NUM_CLASSES, rng=0)
    model.pair_weights = None
    without = model.step(X, np.arange(40) % NUM_CLASSES, rng=0)
    assert with_them[0] == without[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", np.arange(5)),
        ("starts", np.full(NUM_INPUTS + 1, 3)),
        ("classes", np.array([0, NUM_CLASSES], np.int32)),
        ("classes", np.array([-1, 0], np.int32)),
        ("values", np.array([1.0, np.nan], np.float32)),
        ("values", np.array([1.0, 1.0])),
        ("biases", np.ones(3, np.float32)),
        ("scale", np.array(0.0)),
    ],
)
def test_arrays_that_do_not_fit_a_model_are_refused(name, value):
    starts = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    two = np.array([0, 1], np.int32), np.ones(2, np.float32)
    arrays = PairWeights(np.ones(NUM_CLASSES, np.float32), starts, *two, 2.0).arrays()
    found = PairWeights.from_arrays(arrays, NUM_INPUTS, NUM_CLASSES)
    assert found.scale == 2.0
    for key in ("biases", "starts", "classes", "values"):
        np.testing.assert_array_equal(getattr(found, key), arrays[key])
    with pytest.raises(ValueError, match="do not fit"):
        PairWeights.from_arrays(arrays | {name: value}, NUM_INPUTS, NUM_CLASSES)
