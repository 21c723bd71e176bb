"""Negative sampling, as for word vectors."""

from __future__ import annotations

from typing import ClassVar

from samplesoft.losses.logistic import LogisticLoss
from samplesoft.schemes import Scheme, select


class NegativeSamplingLoss(LogisticLoss):
    r"""Logistic regression of the label against the draws, on scores as they are.

    The loss is :math:`\text{softplus}(-o_t) + \sum_i \text{softplus}(o_{s_i})`. Nothing corrects
    for how classes were drawn: it learns vectors, and no probabilities. At its minimum
    :math:`o_j` is :math:`\log(p_j / (m q_j))` for draws that may repeat the label.

    Parameters
    ----------
    scheme : {"negatives", "masked", "kept"}
        What is done with draws of the label: there are none, as `forward` checks; they are left
        out; or they count as negatives.
    offset : float
        Added to all scores; with ``-log(m)`` a score of 0 says that p and q are equal.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] T. Mikolov et al., "Distributed representations of words and phrases and their
       compositionality", NeurIPS 2013, eq. 4.
    .. [2] O. Levy and Y. Goldberg, "Neural word embedding as implicit matrix factorization",
       NeurIPS 2014, section 3.1: the minimum.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, labels = np.ones((1, 1)), np.array([1])
    >>> draw = UniformSampler(2).sample(h, 3, exclude=labels, rng=0)
    >>> value, cache = NegativeSamplingLoss().forward(h, [[0.0], [0.0]], labels, draw)
    >>> round(value / float(np.log(2.0)), 6)  # the label and three negatives, at even chances
    4.0
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        name: scheme.without_correction()
        for name, scheme in select("negatives", "masked", "kept").items()
    }
