"""Rows divided by their norms, of any size that floating point has."""

import numpy as np
import pytest
from mpmath import mp, mpf

from samplesoft.kernels.rows import divide_by_norms

SCALES = [1.0, 1e-5, 1e30, 1e-140, 1e-155, 1e-308, 1e150, 1e160, 1e307]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", [[3.0, -4.0], [1.0, 0.0], [-0.7, 1.1, 1e-9, 2.0], [0.3]])
def test_any_row_gets_norm_one_and_keeps_its_direction(row, scale):
    given = np.array([row]) * scale
    rows, norms = given.copy(), np.empty(1)
    divide_by_norms(rows, norms)
    with mp.workdps(40):
        norm = mp.sqrt(mp.fsum(mpf(x) ** 2 for x in given[0]))
        assert abs(mpf(norms[0]) - norm) <= 1e-15 * norm + mpf("5e-324")
        for x, y in zip(given[0], rows[0], strict=True):
            assert abs(mpf(y) - mpf(x) / norm) <= 4e-16


def test_the_least_number_is_a_direction_too():
    rows, norms = np.array([[5e-324, -5e-324]]), np.empty(1)
    divide_by_norms(rows, norms)
    np.testing.assert_allclose(rows, [[np.sqrt(0.5), -np.sqrt(0.5)]], rtol=1e-15)


@pytest.mark.parametrize("row", [[0.0, 0.0], [np.inf, 1.0], [1.0, np.nan]])
def test_what_has_no_direction_is_left_alone(row):
    rows, norms = np.array([row]), np.empty(1)
    divide_by_norms(rows, norms)
    np.testing.assert_array_equal(rows, [row])
    assert norms[0] == 0.0 or not np.isfinite(norms[0])


@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e38])
def test_float32_is_summed_in_float64(scale):
    given = (np.array([[0.6, 0.8], [1.0, -1.0]]) * scale).astype(np.float32)
    rows, norms = given.copy(), np.empty(2)
    divide_by_norms(rows, norms)
    exact = np.linalg.norm(given.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, exact, rtol=1e-15)
    np.testing.assert_allclose(rows, given / exact[:, None], rtol=2e-7)
