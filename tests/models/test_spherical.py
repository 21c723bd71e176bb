"""Taylor and spherical softmax against definitions in 50 digits, and against dense descent."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp, mpf

from samplesoft.losses import SparseRows
from samplesoft.models import SphericalSoftmax

N, D = 30, 5
EPSILON = 0.1
KINDS = {"taylor": {"kind": "taylor"}, "spherical": {"kind": "spherical", "epsilon": EPSILON}}
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, num_classes=N, dim=D, dtype=np.float64, made=SphericalSoftmax, **options):
    return made(num_classes, dim, **KINDS[kind], dtype=dtype, rng=1, **options)


def problem(batch=7, seed=0, num_classes=N):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, D)), rng.integers(0, num_classes, batch)


def weight_and_slope(kind, o):
    """Return weights as they are printed, of numbers of any kind, and their derivatives."""
    return (1 + o + o**2 / 2, 1 + o) if kind == "taylor" else (o**2 + EPSILON, 2 * o)


def exact_loss(kind, W, h, label):
    """Return the loss of an example in the digits of mpmath."""
    scores = [mp.fsum(mpf(w) * x for w, x in zip(row, h, strict=True)) for row in W.tolist()]
    weights = [weight_and_slope(kind, o)[0] for o in scores]
    return mp.log(mp.fsum(weights)) - mp.log(weights[label])


def dense_gradients(kind, W, h, labels, each):
    """Return the loss, and its derivatives in contexts and in all class vectors."""
    weights, slopes = weight_and_slope(kind, h @ W.T)
    own, places = np.arange(len(h)), np.zeros((len(h), len(W)))
    places[own, labels] = 1.0
    probs = weights / weights.sum(axis=1, keepdims=True)
    d_scores = each[:, None] * (slopes / weights) * (probs - places)
    return -each @ np.log(probs[own, labels]), d_scores @ W, d_scores.T @ h


def descend(layer, kind, rate, steps=200, batch=16):
    """Return the class vectors of dense descent, on which those of the layer should be."""
    W = layer.class_embeddings().astype(float)
    for seed in range(steps):
        h, labels = problem(batch, seed, len(W))
        h = h.astype(layer.dtype).astype(float)
        _, cache = layer.forward(h, labels)
        layer.step(layer.backward(cache)[1], rate)
        W -= rate * dense_gradients(kind, W, h, labels, np.full(batch, 1 / batch))[2]
    return W


def relative_error(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


class Folds(SphericalSoftmax):
    """Counts how often V is made anew."""

    folds = -1  # the first makes the layer

    def _rebuild_factors(self, *arguments):
        self.folds += 1
        super()._rebuild_factors(*arguments)


@each_kind
@mp.workdps(50)
def test_loss_and_its_derivative_in_contexts_in_50_digits(kind):
    layer, (h, labels) = make(kind, reduction="sum"), problem()
    weights, W = np.linspace(0.5, 2.0, 7), layer.class_embeddings()
    value, cache = layer.forward(h, labels, weights=weights)
    dh, _ = layer.backward(cache)
    exact = mpf(0)
    for b, (row, label) in enumerate(zip(h, labels, strict=True)):
        x, factor = [mpf(number) for number in row.tolist()], mpf(float(weights[b]))
        exact += factor * exact_loss(kind, W, x, label)
        for j in range(D):
            slope = factor * mp.diff(
                lambda y, j=j, x=x, label=label: exact_loss(
                    kind, W, [*x[:j], y, *x[j + 1 :]], label
                ),
                x[j],
            )
            assert dh[b, j] == pytest.approx(float(slope), rel=1e-11, abs=1e-13)
    assert value == pytest.approx(float(exact), rel=1e-14)


@each_kind
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_of_the_gradient_is_the_dense_one(kind, reduction):
    layer, (h, _) = make(kind, reduction=reduction), problem()
    descend(layer, kind, 0.5, steps=5)  # so that U and omega are not 1 and 0
    labels, weights, W = [3, 0, 3, 3, 29, 0, 4], np.linspace(0.0, 2.0, 7), layer.class_embeddings()
    value, cache = layer.forward(h, labels, weights=weights)
    dh, gradient = layer.backward(cache)
    each = weights / weights.sum() if reduction == "mean" else weights
    loss, d_contexts, d_rows = dense_gradients(kind, W, h, np.array(labels), each)
    assert value == pytest.approx(loss, rel=1e-13)
    np.testing.assert_allclose(dh, d_contexts, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradient.dense(W), d_rows, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(gradient.rows.ids, [0, 3, 4, 29])


@each_kind
@pytest.mark.parametrize("num_classes", [1, 3, N, 400])
def test_descent_is_dense_descent(kind, num_classes):
    layer = make(kind, num_classes)
    W = descend(layer, kind, 0.5)
    assert relative_error(layer.class_embeddings(), W) < 1e-8
    assert relative_error(layer._Q, W.T @ W) < 1e-8
    np.testing.assert_allclose(layer._s, W.sum(axis=0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["_s", "_Q", "_omega", "_U"])
def test_a_layer_that_forgets_to_update_fails(name):
    class Forgetful(SphericalSoftmax):
        def step(self, gradient, learning_rate):
            before = getattr(self, name)
            super().step(gradient, learning_rate)
            setattr(self, name, before)

    layer = make("taylor", made=Forgetful)
    assert relative_error(layer.class_embeddings(), descend(layer, "taylor", 0.5)) > 1e-3


@each_kind
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("almost", [0.9, 0.999, 1.0 - 1e-9, 1.0])
def test_large_steps_write_class_vectors_anew(kind, dtype, almost):
    """Each takes nearly all of a direction, so that U is soon nearly singular.

    Labels pull a thousandth as much as they should, or vectors would grow without end.
    """
    layer, tolerance = make(kind, dtype=dtype, made=Folds), 2e-5 if dtype == np.float32 else 1e-11
    for seed in range(60):
        h, labels = problem(2, seed)
        h = h.astype(dtype)
        W = layer.class_embeddings().astype(float)
        _, cache = layer.forward(h, labels)
        gradient = layer.backward(cache)[1]
        ids, of_labels = gradient.rows
        gradient = gradient._replace(rows=SparseRows(ids, 1e-3 * of_labels))
        rate = almost / np.linalg.eigvalsh(gradient.matrix)[-1]
        layer.step(gradient, rate)
        W -= rate * gradient.dense(W)
        assert relative_error(layer.class_embeddings(), W) < tolerance
        assert relative_error(layer._Q, W.T @ W) < tolerance
        assert relative_error(layer._s, W.sum(axis=0)) < tolerance
    assert layer.folds >= 60 if almost == 1.0 else 5 <= layer.folds


def test_a_step_that_takes_a_direction_away():
    """W loses rank, and U has no inverse."""
    layer = make("spherical", 4, 2, made=Folds, reduction="sum")
    W = np.array([[1.0, 0.5], [-0.25, 1.0], [0.5, 0.25], [0.0, 2.0]])
    layer.set_class_embeddings(W)
    h, total = np.array([[1.0, 0.0]]), (W[:, 0] ** 2).sum() + 0.4
    _, cache = layer.forward(h, [1])
    dh, gradient = layer.backward(cache)
    layer.step(gradient._replace(matrix=np.diag([2.0, 0.0])), 0.5)
    assert layer.folds == 2
    expected = W * [0.0, 1.0]
    expected[1, 0] = 0.5 * 2 * -0.25 / (0.25**2 + 0.1)
    np.testing.assert_allclose(layer.class_embeddings(), expected, rtol=1e-14)
    assert gradient.matrix[0, 0] == pytest.approx(2.0 / total)


@each_kind
@pytest.mark.parametrize("own", [0.0, -1.0, 1e4, -1e4, 3.0])
def test_great_scores(kind, own):
    layer = make(kind, 4, 2)
    W = np.array([[own, 0.0], [1e4, 1.0], [-1e4, 2.0], [-1.0, 0.0]])
    layer.set_class_embeddings(W)
    h = np.array([[1.0, 0.0], [1e-4, 0.0]])
    for row in h:
        value, cache = layer.forward([row], [0])
        with mp.workdps(50):
            exact = float(exact_loss(kind, W, [mpf(x) for x in row.tolist()], 0))
        assert value == pytest.approx(exact, rel=1e-12)
        _, gradient = layer.backward(cache)
        dense = dense_gradients(kind, W, row[None], np.array([0]), np.ones(1))[2]
        assert relative_error(gradient.dense(W), dense) < 1e-7
    np.testing.assert_allclose(np.exp(layer.log_probs(h)).sum(axis=1), 1.0, rtol=1e-12)


@each_kind
def test_of_one_class_the_loss_is_nothing(kind):
    layer, (h, _) = make(kind, 1), problem()
    value, cache = layer.forward(1e4 * h, np.zeros(7, int))
    dh, gradient = layer.backward(cache)
    assert 0.0 <= value < 1e-14
    assert np.abs(gradient.dense(layer.class_embeddings())).max() < 1e-13
    assert np.abs(dh).max() < 1e-13
    np.testing.assert_allclose(layer.log_probs(h), 0.0, atol=1e-12)


@each_kind
def test_scores_of_zero_are_told_apart_by_nothing(kind):
    layer = make(kind)
    layer.set_class_embeddings(np.zeros((N, D)))
    value, _ = layer.forward(*problem())
    assert value == pytest.approx(np.log(N), rel=1e-14)


@each_kind
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions(kind, dtype):
    layer, (h, labels) = make(kind, dtype=dtype), problem(40)
    W, tolerance = descend(layer, kind, 1.0, steps=20), 1e-4 if dtype == np.float32 else 1e-9
    weights, _ = weight_and_slope(kind, h @ W.T)
    probs = weights / weights.sum(axis=1, keepdims=True)
    logs = layer.log_probs(h)
    np.testing.assert_allclose(logs, np.log(probs), rtol=tolerance, atol=tolerance)
    ids, best = layer.top_k(h, 3)
    np.testing.assert_array_equal(ids, np.argsort(-probs, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(best, np.take_along_axis(logs, ids, axis=1), atol=tolerance)
    for reduction in ("mean", "sum"):
        layer.reduction = reduction
        found = layer.evaluate(h, labels, k=(1, 3))
        assert found.loss == pytest.approx(-np.log(probs[range(40), labels]).mean(), rel=tolerance)
        hits = (ids == labels[:, None]).any(axis=1).mean()
        assert (found.top_k[3], found.num_examples) == (pytest.approx(hits), 40)


@each_kind
def test_float32_stays_by_dense_descent(kind):
    layer = make(kind, dtype=np.float32)
    W = descend(layer, kind, 0.5, steps=50)  # errors grow with the steps, as those of any descent
    rows = layer.class_embeddings()
    assert rows.dtype == np.float32
    assert relative_error(rows, W) < 2e-5
    assert relative_error(layer._Q, rows.astype(float).T @ rows) < 1e-6
    dh, _ = layer.backward(layer.forward(*problem())[1])
    assert dh.dtype == np.float32


def test_class_vectors_are_saved_and_set():
    layer, other = make("taylor"), make("taylor")
    descend(layer, "taylor", 0.5, steps=9)
    W = layer.class_embeddings()
    other.set_class_embeddings(W)
    np.testing.assert_array_equal(layer.class_embeddings([4, 2, 4]), W[[4, 2, 4]])
    assert other.forward(*problem())[0] == pytest.approx(layer.forward(*problem())[0], rel=1e-13)
    W[:] = 0.0  # a copy was taken
    assert other.class_embeddings().any()


def test_an_old_gradient_is_refused():
    layer = make("taylor")
    _, cache = layer.forward(*problem())
    _, gradient = layer.backward(cache)
    layer.step(gradient, 0.1)
    with pytest.raises(ValueError, match=r"`gradient` must be of the class vectors as they are"):
        layer.step(gradient, 0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_out_of_range_changes_nothing(dtype):
    layer = make("taylor", dtype=dtype)
    _, cache = layer.forward(*problem())
    gradient, before = layer.backward(cache)[1], layer.class_embeddings()
    with pytest.raises(ValueError, match="`learning_rate` must keep the norm"):
        layer.step(gradient, 1e38 if dtype == np.float32 else 1e200)
    np.testing.assert_array_equal(layer.class_embeddings(), before)
    layer.step(gradient, 0.1)


def test_bad_arguments_are_refused():
    layer, (h, labels) = make("taylor"), problem()
    bad = {
        "num_classes": lambda: SphericalSoftmax(0, 3),
        "kind": lambda: SphericalSoftmax(3, 3, kind="softmax"),
        "epsilon": lambda: SphericalSoftmax(3, 3, kind="spherical", epsilon=0.0),
        "epsilon` must be 1 for kind": lambda: SphericalSoftmax(3, 3, epsilon=0.5),
        "reduction": lambda: SphericalSoftmax(3, 3, reduction="none"),
        "h": lambda: layer.forward(h[:, 1:], labels),
        "h` must have scores": lambda: layer.forward(1e200 * h, labels),
        "h` must have scores whose": lambda: layer.log_probs(1e200 * h),
        "labels": lambda: layer.forward(h, labels + N),
        "weights": lambda: layer.forward(h, labels, weights=[1.0]),
        "class_embeddings": lambda: layer.set_class_embeddings(np.ones((N + 1, D))),
        "class_embeddings` must keep": lambda: layer.set_class_embeddings(np.full((N, D), 1e200)),
        "ids": lambda: layer.class_embeddings([N]),
        "k": lambda: layer.top_k(h, N + 1),
        "k ": lambda: layer.evaluate(h, labels, k=(0,)),
    }
    for name, call in bad.items():
        with pytest.raises(ValueError, match=f"`{name.strip()}"):
            call()
    with pytest.raises(TypeError, match="`gradient` must be FactoredGradient"):
        layer.step(np.ones((N, D)), 0.1)
    with pytest.raises(TypeError, match="`dtype` must be"):
        SphericalSoftmax(3, 3, dtype=np.float16)
