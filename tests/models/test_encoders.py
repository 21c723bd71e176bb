import numpy as np
import pytest
from oracles import naive_models
from scipy.sparse import coo_array, csr_array, csr_matrix, random_array

from samplesoft.models import encoders
from samplesoft.models.dropout import Dropout
from samplesoft.models.encoders import Embedding, SparseLinear

DTYPES = [np.float32, np.float64]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def sparse(rng, batch, num_inputs, density=0.3, dtype=np.float64):
    return csr_array(random_array((batch, num_inputs), density=density, rng=rng, dtype=dtype))


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [csr_array, csr_matrix])
@pytest.mark.parametrize(("batch", "num_inputs", "dim"), [(1, 1, 1), (4, 9, 3), (30, 200, 17)])
def test_sparse_linear_multiplies(rng, dtype, kind, batch, num_inputs, dim):
    layer = SparseLinear(num_inputs, dim, dtype=dtype, rng=1)
    x = kind(sparse(rng, batch, num_inputs, dtype=dtype))
    y, cache = layer.forward(x)
    assert y.dtype == dtype
    dense, weights = x.toarray().tolist(), layer.parameters["weights"].tolist()
    eps = np.finfo(dtype).eps
    expected = naive_models.sparse_linear(dense, weights)
    np.testing.assert_allclose(y, expected, rtol=0, atol=100 * eps)
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, gradients = layer.backward(cache, dy)
    assert dx is None
    ids, rows = gradients["weights"]
    assert rows.dtype == dtype
    np.testing.assert_array_equal(ids, np.flatnonzero(np.diff(x.tocsc().indptr)))
    expected = naive_models.sparse_linear(x.toarray().T.tolist(), dy.tolist())
    dense = naive_models.dense_rows(ids, rows, num_inputs)
    np.testing.assert_allclose(dense, expected, rtol=0, atol=100 * eps)


def test_sparse_linear_gradient_is_that_of_differences(rng):
    layer = SparseLinear(6, 3, dtype=np.float64, rng=1)
    x, weights = sparse(rng, 4, 6), rng.standard_normal((4, 3))

    def value():
        return np.sum(weights * layer.forward(x)[0] ** 2)

    y, cache = layer.forward(x)
    _, gradients = layer.backward(cache, 2.0 * weights * y)
    slopes = naive_models.differences(value, layer.parameters["weights"])
    dense = naive_models.dense_rows(*gradients["weights"], 6)
    np.testing.assert_allclose(dense, slopes, rtol=0, atol=1e-9)


def test_rows_without_entries_and_entries_in_any_order(rng):
    layer = SparseLinear(5, 2, dtype=np.float64, rng=1)
    x = csr_array((np.array([1.0, 2.0, 3.0]), np.array([4, 0, 4]), np.array([0, 0, 3, 3])), (3, 5))
    weights = layer.parameters["weights"]
    y, cache = layer.forward(x)
    np.testing.assert_allclose(y, [[0, 0], 4 * weights[4] + 2 * weights[0], [0, 0]], rtol=1e-15)
    ids, rows = layer.backward(cache, np.ones((3, 2)))[1]["weights"]
    np.testing.assert_array_equal(ids, [0, 4])
    np.testing.assert_array_equal(rows, [[2.0, 2.0], [4.0, 4.0]])


def test_a_matrix_without_entries():
    layer = SparseLinear(5, 2, rng=1)
    y, cache = layer.forward(csr_array((3, 5), dtype=np.float32))
    np.testing.assert_array_equal(y, np.zeros((3, 2)))
    ids, rows = layer.backward(cache, y)[1]["weights"]
    assert ids.shape == (0,) and rows.shape == (0, 2)


def test_results_do_not_depend_on_the_number_of_threads(rng, threads, monkeypatch):
    monkeypatch.setattr(encoders, "_CHUNK_NUMBERS", 64)
    embedding, linear = Embedding(50, 8, rng=0), SparseLinear(70, 8, rng=0)
    ids, x = rng.integers(0, 50, (9, 40)), sparse(rng, 90, 70, dtype=np.float32)
    results = []
    for count in (1, 3):
        threads(count)
        arrays = []
        for layer, inputs in ((embedding, ids), (linear, x)):
            y, cache = layer.forward(inputs)
            arrays += [y, *layer.backward(cache, y)[1]["weights"]]
        results.append(arrays)
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)


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


@pytest.mark.parametrize("layer", [Embedding, SparseLinear])
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
def test_bad_settings(layer, arguments, options, error):
    with pytest.raises(error):
        layer(*arguments, **options)


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


def broken(change):
    """A CSR matrix that scipy has not looked at since it was changed."""
    x = csr_array(np.eye(3))
    change(x)
    return x


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.eye(3), TypeError, "CSR matrix, got ndarray.*csr_array"),
        (coo_array(np.eye(3)), TypeError, "CSR matrix, got coo_array"),
        (csr_array(np.eye(4)), ValueError, r"shape \(B, 3\).*got \(4, 4\)"),
        (csr_array((0, 3)), ValueError, "not empty"),
        (csr_array(np.eye(3), dtype=np.float32), TypeError, "float64, got float32.*astype"),
        (csr_array(np.eye(3), dtype=np.int64), TypeError, "got int64"),
        (csr_array(np.diag([1.0, np.nan, 1.0])), ValueError, "`x` must be finite"),
        (broken(lambda x: x.indices.__setitem__(1, 3)), ValueError, "well-formed CSR"),
        (broken(lambda x: x.indices.__setitem__(1, -1)), ValueError, "well-formed CSR"),
        (broken(lambda x: x.indptr.__setitem__(1, 3)), ValueError, "well-formed CSR"),
    ],
)
def test_bad_sparse_input(x, error, message):
    with pytest.raises(error, match=message):
        SparseLinear(3, 2, dtype=np.float64, rng=0).forward(x)


@pytest.mark.parametrize(
    ("dy", "error"), [(np.zeros((2, 3)), ValueError), (np.zeros((2, 2), np.float32), TypeError)]
)
def test_bad_derivatives(dy, error):
    embedding, linear = Embedding(3, 2, dtype=np.float64), SparseLinear(3, 2, dtype=np.float64)
    for layer, x in ((embedding, [0, 1]), (linear, csr_array(np.eye(2, 3)))):
        _, cache = layer.forward(x)
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
