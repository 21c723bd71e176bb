"""Generalised binary cross-entropy: negative sampling that is not overconfident."""

from __future__ import annotations

from typing import Any, ClassVar

from samplesoft._validation import as_share
from samplesoft.losses.logistic import LogisticLoss, NegativeSamplingLoss
from samplesoft.losses.sampled import Terms
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme


class GBCELoss(LogisticLoss):
    r"""Negative sampling in which the label's probability is raised to a power.

    With :math:`\sigma(o) = 1 / (1 + e^{-o})` the loss is

    .. math:: -\log \sigma(o_t)^\beta - \sum_{i:\, s_i \ne t} \log(1 - \sigma(o_{s_i})), \qquad
        \beta = \alpha \Big( c \Big(1 - \frac{1}{\alpha}\Big) + \frac{1}{\alpha} \Big)
        = 1 - c + c \, \alpha

    for a calibration c and the expected number :math:`\alpha` of uniform draws of a class that is
    not the label.

    Parameters
    ----------
    calibration : float
        From 0, which is `NegativeSamplingLoss` with :math:`\beta = 1`, to 1, at which the minimum
        is :math:`\sigma(o_j) = p_j`. The parameter t of [1]_.
    scheme : {"masked", "negatives"}
        Whether draws of the label are left out, :math:`\alpha = m / n`, or there are none, as in
        [1]_, :math:`\alpha = m / (n - 1)`.
    offset : float
        Added to all scores.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **What the calibration does.** A class is the label with probability :math:`p_j`, and is else
    drawn :math:`\alpha` times on average, by uniform draws. The mean loss in its score,
    :math:`-\beta p_j \log \sigma - \alpha (1 - p_j) \log(1 - \sigma)`, is least at
    :math:`\sigma = \beta p_j / (\beta p_j + \alpha (1 - p_j))`. With c = 0 that is far above
    :math:`p_j` where draws are few: probabilities near the top are all nearly 1, and hard to tell
    apart. With c = 1 it is :math:`p_j`. The order of the classes is the same for every c; what
    changes is how well few examples lead there. Of draws that are not uniform none of this is true.

    **When to take it.** Where scores are to be probabilities of classes, and few are drawn. [1]_
    recommends 0.75 with many draws, hundreds for each example, and divides the loss by m + 1, of
    which nothing is left in Adam or Adagrad; here it is a sum, as in `NegativeSamplingLoss`. Where
    the sum over all classes can be estimated, sampled softmax makes better use of the same draws.

    References
    ----------
    .. [1] A. Petrov and C. Macdonald, "gSASRec: Reducing Overconfidence in Sequential
       Recommendation Trained with Negative Sampling", RecSys 2023, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, labels = np.ones((1, 1)), np.array([3])
    >>> draw = UniformSampler(9).sample(h, 2, exclude=labels, rng=0)
    >>> loss = GBCELoss(scheme="negatives", calibration=1.0)
    >>> value, cache = loss.forward(h, np.zeros((9, 1)), labels, draw)
    >>> round(value / float(np.log(2.0)), 6)  # two draws, and the label by 2 / 8, at even odds
    2.25
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        name: NegativeSamplingLoss.schemes[name] for name in ("masked", "negatives")
    }

    def __init__(
        self,
        *,
        calibration: float = 0.75,
        scheme: str | None = None,
        offset: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(scheme=scheme, offset=offset, **options)
        self.calibration = as_share("calibration", calibration)

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        others = max(1, num_classes - self.excludes_label)  # one class has no draws, as is told
        alpha = draw.ids.shape[1] / others
        beta = 1.0 - self.calibration + self.calibration * alpha
        return super()._terms_of(draw, num_classes)._replace(numbers=(beta,))
