"""Layers of the language model beside its LSTM, and clipping of its gradients."""

import numpy as np
import pytest
from language_model import layers
from language_model.clipping import clip_by_global_norm
from language_model.layers import Dropout, Embedding
from language_model.lstm import LSTM
from oracles import naive_models

from samplesoft.losses import SparseRows

DTYPES = [np.float32, np.float64]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 3, 4)])
def test_embedding_looks_up_and_adds_up(rng, dtype, shape):
    layer = Embedding(6, 3, dtype=dtype, rng=1)
    ids = rng.integers(0, 6, shape)
    y, cache = layer.forward(ids)
    assert y.shape == (*shape, 3) and y.dtype == dtype
    for place in np.ndindex(shape):
        np.testing.assert_array_equal(y[place], layer.parameters["weights"][ids[place]])
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, gradients = layer.backward(cache, dy)
    assert dx is None
    expected = np.zeros((6, 3))
    for place in np.ndindex(shape):
        expected[ids[place]] += dy[place]
    ids_of, rows = gradients["weights"]
    assert rows.dtype == dtype
    assert set(ids_of) == set(ids.ravel())
    np.testing.assert_allclose(
        naive_models.dense_rows(ids_of, rows, 6), expected, rtol=0, atol=20 * np.finfo(dtype).eps
    )


def test_embedding_gradient_is_that_of_differences(rng):
    layer = Embedding(5, 2, dtype=np.float64, rng=1)
    ids = np.array([[4, 1, 4], [0, 4, 1]])
    weights = rng.standard_normal((2, 3, 2))

    def value():
        return np.sum(weights * layer.forward(ids)[0] ** 2)

    y, cache = layer.forward(ids)
    _, gradients = layer.backward(cache, 2.0 * weights * y)
    slopes = naive_models.differences(value, layer.parameters["weights"])
    dense = naive_models.dense_rows(*gradients["weights"], 5)
    np.testing.assert_allclose(dense, slopes, rtol=0, atol=1e-9)


def test_large_weights_are_the_same_at_any_number_of_threads(threads):
    several = []
    for count in (1, 3):
        threads(count)
        several.append(Embedding(70_001, 32, init_scale=0.1, rng=3).parameters["weights"])
    np.testing.assert_array_equal(*several)
    assert abs(several[0]).max() <= np.float32(0.1)
    counts = np.histogram(several[0], 50, (-0.1, 0.1))[0]
    expected = several[0].size / 50
    assert np.sum((counts - expected) ** 2 / expected) < 85.4  # chi-square, 49 degrees, 1e-3
    assert len(np.unique(several[0][:, 0])) > 69_500


def test_results_do_not_depend_on_the_number_of_threads(rng, threads, monkeypatch):
    monkeypatch.setattr(layers, "_CHUNK_NUMBERS", 64)
    layer, ids, results = Embedding(50, 8, rng=0), rng.integers(0, 50, (9, 40)), []
    for count in (1, 3):
        threads(count)
        y, cache = layer.forward(ids)
        results.append([y, *layer.backward(cache, y)[1]["weights"]])
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0, 3), {}, ValueError),
        ((3, 0), {}, ValueError),
        ((3, 2.0), {}, TypeError),
        ((3, 2), {"dtype": np.int64}, TypeError),
        ((3, 2), {"init_scale": 0.0}, ValueError),
        ((3, 2), {"rng": "seed"}, TypeError),
    ],
)
def test_bad_settings(arguments, options, error):
    with pytest.raises(error):
        Embedding(*arguments, **options)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 5], ValueError, r"`x` must lie in 0\.\.4.*got 5"),
        ([[-1]], ValueError, "got -1"),
        ([0.0, 1.0], TypeError, "`x` must hold integers"),
        ([True], TypeError, "`x` must hold integers"),
        ([], ValueError, "`x` must not be empty"),
        (np.zeros((0, 4), int), ValueError, "`x` must not be empty"),
    ],
)
def test_bad_ids(ids, error, message):
    with pytest.raises(error, match=message):
        Embedding(5, 2, rng=0).forward(ids)


@pytest.mark.parametrize(
    ("dy", "error"), [(np.zeros((2, 3)), ValueError), (np.zeros((2, 2), np.float32), TypeError)]
)
def test_bad_derivatives(dy, error):
    layer = Embedding(3, 2, dtype=np.float64)
    _, cache = layer.forward([0, 1])
    with pytest.raises(error, match="`dy`"):
        layer.backward(cache, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40,), (7, 50), (4, 5, 60)])
def test_dropout_drops_its_share(rng, dtype, shape):
    layer = Dropout(0.25)
    x = (rng.standard_normal(shape) + 5.0).astype(dtype)
    y, cache = layer.forward(x, rng=1, training=True)
    assert y.dtype == dtype and y.shape == shape
    dropped = y == 0.0
    np.testing.assert_allclose(y[~dropped], x[~dropped] / 0.75, rtol=1e-6)
    deviation = (dropped.mean() - 0.25) / (0.25 * 0.75 / x.size) ** 0.5
    assert abs(deviation) < 4.0
    dy = rng.standard_normal(shape).astype(dtype)
    dx, gradients = layer.backward(cache, dy)
    np.testing.assert_allclose(dx, np.where(dropped, 0.0, dy / 0.75), rtol=1e-6)
    assert gradients == {} == layer.parameters


def test_dropout_counts_and_a_wrong_rate():
    y, _ = Dropout(0.3).forward(np.ones((500, 400)), rng=2, training=True)
    for counts in ((y == 0.0).sum(axis=0), (y == 0.0).sum(axis=1)):
        total = y.size // len(counts)

        def chi_square(rate, counts=counts, total=total):
            return np.sum((counts - total * rate) ** 2 / (total * rate * (1.0 - rate)))

        bound = len(counts) + 4.0 * (2.0 * len(counts)) ** 0.5
        assert chi_square(0.3) < bound
        assert chi_square(0.32) > bound


def test_dropout_follows_its_seed():
    x = np.ones((30, 40))
    masks = [Dropout(0.5).forward(x, rng=seed, training=True)[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert np.any(masks[0] != masks[2])


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_dropout_leaves_its_input_alone(rate, training):
    x = np.ones((2, 3))
    y, cache = Dropout(rate).forward(x, rng=0, training=training)
    dx, _ = Dropout(rate).backward(cache, 2.0 * x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(dx, 2.0 * x)


@pytest.mark.parametrize("rate", [-0.1, 1.0, np.nan])
def test_a_bad_rate(rate):
    with pytest.raises(ValueError, match="`rate` must be at least 0 and less than 1"):
        Dropout(rate)


@pytest.mark.parametrize("x", [[1.0], np.ones(3, int), np.ones(3, np.float16)])
def test_bad_input_of_dropout(x):
    with pytest.raises(TypeError, match="`x` must be an array of float32 or float64"):
        Dropout(0.5).forward(x, rng=0, training=True)


def gradients_of(rng, dtype, scale):
    ids = np.array([1, 5])
    return {
        "w": (scale * rng.normal(size=(4, 3))).astype(dtype),
        "e": SparseRows(ids, (scale * rng.normal(size=(2, 7))).astype(dtype)),
        "b": SparseRows(ids, (scale * rng.normal(size=2)).astype(dtype)),
    }


def numbers(gradients):
    arrays = [g.rows if isinstance(g, SparseRows) else g for g in gradients.values()]
    return np.concatenate([a.ravel() for a in arrays])


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, s) for s in (1e-30, 1.0, 1e30, 1e37)]
    + [(np.float64, s) for s in (1e-310, 1e-200, 1.0, 1e200, 1e306)],
)
def test_clipping_scales_all_gradients_in_place(dtype, scale):
    gradients = gradients_of(np.random.default_rng(7), dtype, scale)
    before = numbers(gradients)
    wanted = naive_models.norm(before)
    result, norm = clip_by_global_norm(gradients, 2 * wanted)
    assert result is gradients and numbers(gradients).tobytes() == before.tobytes()
    assert norm == pytest.approx(wanted, rel=1e-13, abs=0)
    result, norm = clip_by_global_norm(gradients, 0.25)
    if wanted <= 0.25:
        assert numbers(gradients).tobytes() == before.tobytes()
        return
    assert norm == pytest.approx(wanted, rel=1e-13, abs=0)
    share = before.astype(np.float64) / wanted
    np.testing.assert_allclose(numbers(gradients), 0.25 * share, rtol=1e-6, atol=0)
    assert naive_models.norm(numbers(gradients)) == pytest.approx(0.25, rel=1e-6, abs=0)


def test_clipping_by_a_factor_that_float32_does_not_have():
    gradient = np.full(4, 3e38, np.float32)
    clip_by_global_norm({"w": gradient}, 1e-5)
    np.testing.assert_allclose(gradient, 5e-6, rtol=1e-6)


def test_clipping_nothing():
    assert clip_by_global_norm({}, 1.0) == ({}, 0.0)
    assert clip_by_global_norm({"w": np.zeros((0, 3))}, 1.0)[1] == 0.0
    assert clip_by_global_norm({"w": np.zeros(3)}, 1.0)[1] == 0.0


def test_clipping_in_parts():
    gradient = np.random.default_rng(8).normal(size=700_001)
    wanted = np.sqrt(np.sum(gradient**2))
    before = gradient.copy()
    assert clip_by_global_norm({"w": gradient}, 1.0)[1] == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(gradient, before / wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.array([1.0, np.nan]), ValueError, "finite, got nan for 'bad'"),
        (np.array([1.0, -np.inf], np.float32), ValueError, "finite, got inf for 'bad'"),
        (np.full(2, 1.7e308), ValueError, "norm that is finite"),
        (np.array([1, 2]), TypeError, "int64 for 'bad'"),
        ([1.0], TypeError, "list for 'bad'"),
        (np.ones(4)[::2], ValueError, "'bad'"),
        (np.broadcast_to(1.0, 2), ValueError, "'bad'"),
    ],
)
def test_clipping_refuses_and_changes_nothing(bad, error, message):
    good = np.full(3, 10.0)
    with pytest.raises(error, match=message):
        clip_by_global_norm({"good": good, "bad": bad}, 1.0)
    assert (good == 10).all()
    with pytest.raises(ValueError, match="`max_norm`"):
        clip_by_global_norm({"good": good}, 0.0)


def test_values_of_another_kind_are_refused():
    for bad in (np.ma.masked_array([0, 1], [True, False]), [[0], [0, 1]]):
        with pytest.raises((TypeError, ValueError), match="`x` must"):
            Embedding(4, 3).forward(bad)
    with pytest.raises(TypeError, match="`training` must"):
        Dropout(0.5).forward(np.ones((2, 3)), training=3)
    with pytest.raises(TypeError, match="`gradients` must"):
        clip_by_global_norm(300, 1.0)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(MemoryError, match="`num_embeddings`"):
        Embedding(10**15, 3)
    with pytest.raises(MemoryError, match="`hidden_size`"):
        LSTM(3, 10**8)
