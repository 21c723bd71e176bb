import mpmath as mp
import numpy as np
import pytest

from samplesoft.kernels.exponential import replace_by_exp

DENSE = np.concatenate([-np.linspace(0.0, 745.0, 20_011), -np.logspace(-300, 2.8, 5_003)])


def computed(x):
    out = np.array(x, dtype=float)
    replace_by_exp(out, out.size)
    return out


def test_follows_the_exponential_to_rounding():
    exact = np.exp(DENSE)
    normal = exact > 1e-300
    np.testing.assert_allclose(computed(DENSE)[normal], exact[normal], rtol=4.5e-16)
    np.testing.assert_allclose(computed(DENSE), exact, rtol=4.5e-16, atol=5e-324)


@pytest.mark.parametrize("x", [-1e-17, -0.34657359, -1.0, -17.3, -700.0, -708.3])
def test_against_many_digits(x):
    with mp.workdps(40):
        exact = mp.exp(mp.mpf(x))
        assert abs(mp.mpf(float(computed([x])[0])) / exact - 1) < mp.mpf("3.4e-16")


def test_ends():
    out = computed([0.0, -745.0, -746.0, -1e300, -np.inf])
    assert out[0] == 1.0
    assert np.all(out[1:] == 5e-324)  # never 0, so that nothing with a weight is shut out


def test_an_empty_array():
    assert computed([]).size == 0
