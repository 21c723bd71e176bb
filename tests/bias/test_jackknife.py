"""Which of two ways to the loss of the jackknife is taken."""

import numpy as np

from samplesoft.bias import jackknife


def test_terms_that_cancel_are_in_doubt_although_half_of_them_have_the_same_sum():
    def doubt(*terms):
        return jackknife._doubt((np.array(terms), np.abs(terms)))

    assert 0.0 < doubt(1.0, 1.0, 1.0, 1.0) < 1e-13
    assert doubt(1e9, 1e9, -1e9, 1.0 - 1e9) > 1e-6
    assert doubt(1.0, 2.0, 1.0, 2.0) > 0.1  # half of them have another
    assert doubt(1.0, np.nan) == np.inf
    assert jackknife._doubt((np.ones(2), np.array([1.0, np.nan]))) == np.inf
