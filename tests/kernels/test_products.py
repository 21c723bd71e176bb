"""Inner products of queries with rows, eight rows at a time."""

import numpy as np
import pytest

from samplesoft.kernels.products import (
    _EIGHT,
    _plain_products_of_eight,
    product,
    products,
    round_up_to_8,
)


@pytest.mark.parametrize("wide", [False, True], ids=["as the rows", "in float64"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 7, 8, 13, 64])
@pytest.mark.parametrize("num", [1, 8, 19])
def test_products_with_one_query_and_with_two(num, dim, dtype, wide):
    rng = np.random.default_rng(dim)
    rows = rng.integers(-9, 9, (num + 2, dim)).astype(dtype)  # whose sums are exact
    queries = rng.integers(-9, 9, (4, 2 * dim)).astype(dtype)
    for other in (-1, 1):
        out = np.full((4, round_up_to_8(num)), 0.5, np.float64 if wide else dtype)
        products(rows, 1, num + 1, queries, 3, other, out, 1)
        for row, query in ((1, 3), (2, other)):
            wanted = rows[1 : num + 1] @ queries[query, :dim]
            if query >= 0:
                np.testing.assert_array_equal(out[row, :num], wanted)
        untouched = [0, 3] if other >= 0 else [0, 2, 3]
        assert (out[untouched] == 0.5).all()


@pytest.mark.parametrize("c", [0, 1])
def test_what_stands_for_vectors_where_nothing_is_compiled(c):
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((5, 19)), rng.standard_normal((2, 19))
    out = np.zeros((2, _EIGHT))
    _plain_products_of_eight(rows, 1, 4, queries, 0, c, out, 0, 0)
    np.testing.assert_allclose(out[0, :3], rows[1:4, :16] @ queries[0, :16])
    np.testing.assert_array_equal(out[0, 3:], out[0, 2])
    assert out[1].any() == (c != 0)


@pytest.mark.parametrize("shape", [(1, 1, 1), (70, 300, 90), (3, 40_000, 5), (500, 9, 170)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_in_pieces(shape, dtype):
    """As a whole, whatever the order in memory, also into a part of an array."""
    height, depth, width = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((height, depth)).astype(dtype)
    b = rng.standard_normal((depth, width)).astype(dtype)
    wanted = a.astype(np.float64) @ b
    out = np.zeros((height, 2 * width), dtype)
    found = [product(a, b), product(np.asfortranarray(a), np.asfortranarray(b))]
    found.append(product(a, b, out[:, :width]))
    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-3 * depth**0.5)
    assert not out[:, width:].any() and np.array_equal(out[:, :width], found[2])
