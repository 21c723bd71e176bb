"""Noise-contrastive estimation."""

from __future__ import annotations

from typing import ClassVar

from samplesoft.losses.logistic import LogisticLoss
from samplesoft.schemes import Scheme, select


class NCELoss(LogisticLoss):
    r"""Logistic regression of the label against the draws, whose scores learn log-probabilities.

    With k(j) the expected number of draws of class j, which is m q(j) with replacement, the logit
    of a class is :math:`o_j - \log k(j)`, and the loss is the sum of softplus of that of each draw
    and of minus that of the label. No sum over the classes is needed: where the scores are
    log-probabilities, the gradient tends to that of the full softmax as m grows.

    Parameters
    ----------
    scheme : {"candidate", "candidate_masked"}
        Whether a draw of the label counts as a negative, as the theory has it, or is left out.
    offset : float
        Added to all scores, which learn log-probabilities: about -4 on average with 50 classes.
        Dot products of vectors of norm 1 do not reach that; ``-log(n)`` brings them there.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] M. Gutmann and A. Hyvärinen, "Noise-contrastive estimation: a new estimation principle
       for unnormalized statistical models", AISTATS 2010, section 2.
    .. [2] A. Mnih and Y. W. Teh, "A fast and simple algorithm for training neural probabilistic
       language models", ICML 2012, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> sampler, h, labels = UniformSampler(3), np.ones((1, 1)), np.array([2])
    >>> scores = np.log([[0.2], [0.3], [0.5]])  # log-probabilities
    >>> draw = sampler.sample(h, 100_000, rng=0)
    >>> count = sampler.log_expected_count(h, labels[:, None], 100_000)[:, 0]
    >>> loss = NCELoss()
    >>> value, cache = loss.forward(h, scores, labels, draw, label_log_count=count)
    >>> loss.backward(cache).dW.rows[:, 0].round(2)
    array([ 0.2,  0.3, -0.5])
    """

    schemes: ClassVar[dict[str, Scheme]] = select("candidate", "candidate_masked")
