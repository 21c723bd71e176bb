"""Generalised binary cross-entropy: negative sampling that is not overconfident."""

from __future__ import annotations

from typing import Any, ClassVar

from samplesoft._validation import as_fraction
from samplesoft.losses.logistic import LogisticLoss, NegativeSamplingLoss
from samplesoft.losses.sampled import LossKernel
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
        From 0 to 1; the parameter t of [1]_. For 0, :math:`\beta = 1`, and the loss equals
        `NegativeSamplingLoss`. For 1, the loss is minimal at :math:`\sigma(o_j) = p_j`.
    scheme : {"masked", "negatives"}
        ``"masked"``: accidental hits are masked, and :math:`\alpha = m / n`. ``"negatives"``, as in
        [1]_: draws exclude the label, and :math:`\alpha = m / (n - 1)`.
    offset : float
        Added to all scores.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Effect of the calibration.** A class is the label with probability :math:`p_j`; otherwise
    uniform draws contain it :math:`\alpha` times on average. The mean loss in its score,
    :math:`-\beta p_j \log \sigma - \alpha (1 - p_j) \log(1 - \sigma)`, has its minimum at
    :math:`\sigma = \beta p_j / (\beta p_j + \alpha (1 - p_j))`. For c = 0 and few draws that is
    far above :math:`p_j`: the largest probabilities are all nearly 1, and hard to distinguish. For
    c = 1 it is :math:`p_j`. The order of the classes at the minimum is the same for every c, but
    how close training with few examples comes to it depends on c. None of this holds for draws
    that are not uniform.

    **When to use it.** If scores should be probabilities of classes, and draws are few. [1]_
    recommends 0.75 with hundreds of draws for each example. The paper divides the loss by m + 1, a
    factor that Adam and Adagrad cancel; this class and `NegativeSamplingLoss` do not. If q allows
    an estimate of the sum over all classes, sampled softmax makes better use of the same draws.

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
        self.calibration = as_fraction("calibration", calibration)

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        # number of classes that can be drawn; n = 1 is rejected elsewhere
        others = max(1, num_classes - self.excludes_label)
        alpha = draw.ids.shape[1] / others
        beta = 1.0 - self.calibration + self.calibration * alpha
        return super()._kernel_for_draw(draw, num_classes)._replace(parameters=(beta,))
