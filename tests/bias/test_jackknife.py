"""Which of two ways to the loss of the jackknife is taken."""

import numpy as np

from samplesoft.bias import jackknife


def test_terms_that_cancel_are_in_doubt_although_half_of_them_have_the_same_sum():
    sure, large = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1e9, 1e9, -1e9, 1.0 - 1e9])
    assert 0.0 < jackknife._doubt(sure) < 1e-14
    assert jackknife._doubt(large) > 1e-6
    assert jackknife._doubt(np.array([1.0, 2.0, 1.0, 2.0])) > 0.1  # half of them have another
    assert jackknife._doubt(np.array([1.0, np.nan])) == np.inf
