"""Softmax with a partition function estimated from the draws alone."""

from __future__ import annotations

from typing import ClassVar

from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.merged_draws import merge_exponentials
from samplesoft.kernels.losses.softmax_terms import softmax_terms
from samplesoft.losses.sampled import SampledLoss
from samplesoft.schemes import Scheme, select


class ImportanceSamplingLoss(SampledLoss):
    r"""Minus the label's score, plus the logarithm of an unbiased estimate of the sum of exp(o).

    The loss is :math:`\log \sum_i \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t`. Draws are from all
    classes, and the label is not in the sum unless it is drawn: so the loss may be below 0, and
    its gradient varies more than that of sampled softmax.

    Parameters
    ----------
    scheme : str
        "importance", the only one.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Quick training of probabilistic neural nets by importance
       sampling", AISTATS 2003: the estimate and its gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UnigramSampler
    >>> scores = np.log([[1.0], [2.0], [5.0]])
    >>> sampler = UnigramSampler([1, 2, 5], power=1.0)  # in proportion to exp(score)
    >>> draw = sampler.sample(np.ones((1, 1)), 4, rng=0)
    >>> value, _ = ImportanceSamplingLoss().forward([[1.0]], scores, np.array([2]), draw)
    >>> abs(value - float(np.log(8 / 5))) < 1e-12  # exact, whatever was drawn
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = select("importance")
    is_softmax = True

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        softmax_terms(logits, losses, 1)

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        merge_exponentials(logits, merged)
