import numpy as np
import pytest
from oracles import naive_models
from scipy.sparse import coo_array, csr_array, csr_matrix, random_array

from samplesoft.models import Linear
from samplesoft.models import linear as linear_module

DTYPES = [np.float32, np.float64]


def without_intercept(*sizes, **options):
    """Return a layer whose outputs are products alone."""
    layer = Linear(*sizes, **options)
    layer.parameters["intercept"][:] = 0.0
    return layer


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def sparse(rng, batch, num_inputs, density=0.3, dtype=np.float64):
    return csr_array(
        random_array((batch, num_inputs), density=density, random_state=rng, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [csr_array, csr_matrix])
@pytest.mark.parametrize(("batch", "num_inputs", "dim"), [(1, 1, 1), (4, 9, 3), (30, 200, 17)])
def test_sparse_linear_multiplies(rng, dtype, kind, batch, num_inputs, dim):
    layer = without_intercept(num_inputs, dim, dtype=dtype, rng=1)
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
    layer = without_intercept(6, 3, dtype=np.float64, rng=1)
    x, weights = sparse(rng, 4, 6), rng.standard_normal((4, 3))

    def value():
        return np.sum(weights * layer.forward(x)[0] ** 2)

    y, cache = layer.forward(x)
    _, gradients = layer.backward(cache, 2.0 * weights * y)
    slopes = naive_models.differences(value, layer.parameters["weights"])
    dense = naive_models.dense_rows(*gradients["weights"], 6)
    np.testing.assert_allclose(dense, slopes, rtol=0, atol=1e-9)


def test_rows_without_entries_and_entries_in_any_order(rng):
    layer = without_intercept(5, 2, dtype=np.float64, rng=1)
    x = csr_array((np.array([1.0, 2.0, 3.0]), np.array([4, 0, 4]), np.array([0, 0, 3, 3])), (3, 5))
    weights = layer.parameters["weights"]
    y, cache = layer.forward(x)
    np.testing.assert_allclose(y, [[0, 0], 4 * weights[4] + 2 * weights[0], [0, 0]], rtol=1e-15)
    ids, rows = layer.backward(cache, np.ones((3, 2)))[1]["weights"]
    np.testing.assert_array_equal(ids, [0, 4])
    np.testing.assert_array_equal(rows, [[2.0, 2.0], [4.0, 4.0]])


def test_a_matrix_without_entries():
    layer = without_intercept(5, 2, rng=1)
    y, cache = layer.forward(csr_array((3, 5), dtype=np.float32))
    np.testing.assert_array_equal(y, np.zeros((3, 2)))
    ids, rows = layer.backward(cache, y)[1]["weights"]
    assert ids.shape == (0,) and rows.shape == (0, 2)


def test_results_do_not_depend_on_the_number_of_threads(rng, threads, monkeypatch):
    monkeypatch.setattr(linear_module, "_CHUNK_VALUES", 64)
    layer, results = Linear(70, 8, rng=0), []
    x = sparse(rng, 90, 70, dtype=np.float32)
    for count in (1, 3):
        threads(count)
        y, cache = layer.forward(x)
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
        ((3, 2), {"rng": "seed"}, TypeError),
    ],
)
def test_bad_settings(arguments, options, error):
    with pytest.raises(error):
        Linear(*arguments, **options)


def broken(change):
    """A CSR matrix that scipy has not looked at since it was changed."""
    x = csr_array(np.eye(3))
    change(x)
    return x


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
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
        without_intercept(3, 2, dtype=np.float64, rng=0).forward(x)


@pytest.mark.parametrize("dy", [np.zeros((2, 3)), np.zeros((1, 2)), np.zeros((2, 2), np.float32)])
def test_bad_derivatives(dy):
    layer = Linear(3, 2, dtype=np.float64)
    for x in (csr_array(np.eye(2, 3)), np.eye(2, 3)):
        _, cache = layer.forward(x)
        with pytest.raises(ValueError, match="`dy`"):
            layer.backward(cache, dy)
