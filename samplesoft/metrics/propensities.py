"""Propensities of labels: how likely an annotator is to give a label that is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_count, as_positive, as_real_array

LEAST_EXAMPLES = 3  # so that C is above 0


def propensities(
    counts: ArrayLike, num_examples: int, *, a: float = 0.55, b: float = 1.5
) -> FloatArray:
    r"""Estimate the propensities of labels from how often they occur.

    The propensity of a label with count :math:`N_l` among N examples is
    :math:`1 / (1 + C (N_l + B)^{-A})` with :math:`C = (\log N - 1) (B + 1)^A`: rare labels are
    missing most often where they are right.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Examples of each label in the training data.
    num_examples : int
        Examples N of the training data, at least 3.
    a, b : float
        A and B. The defaults are those for data sets without others; [1]_ and the extreme
        classification repository take 0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon.

    Returns
    -------
    ndarray of float64, shape (n,)
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] H. Jain, Y. Prabhu and M. Varma, "Extreme multi-label loss functions for
       recommendation, tagging, ranking and other missing label applications", KDD 2016,
       section 4.

    Examples
    --------
    >>> propensities([0, 10, 1000], 5000).round(3)
    array([0.091, 0.235, 0.782])
    """
    found = as_real_array("counts", counts, (1,))
    if found.min() < 0.0:
        raise ValueError(f"`counts` must be at least 0, got {found.min()}; count the labels again.")
    size = as_count("num_examples", num_examples, LEAST_EXAMPLES)
    a, b = as_positive("a", a), as_positive("b", b)
    with np.errstate(over="ignore", under="ignore"):  # c and the power of each count at once
        fall = (np.log(size) - 1.0) * ((b + 1.0) / (found + b)) ** a
    result: FloatArray = 1.0 / (1.0 + fall)
    return result
