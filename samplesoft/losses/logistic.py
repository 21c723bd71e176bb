"""Logistic regression of the label against the draws: what two losses have in common."""

from __future__ import annotations

from typing import Any

from samplesoft._validation import FloatArray, as_finite
from samplesoft.kernels.losses.logistic_terms import logistic_terms
from samplesoft.kernels.losses.merged_draws import merge_softplus
from samplesoft.losses.sampled import SampledLoss


class LogisticLoss(SampledLoss):
    """The sum of softplus of the logit of each draw, and of that of minus the label's.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; the first of them by default.
    offset : float
        Added to all scores. Nothing brings scores to a level here, as the sum over the classes does
        in a softmax: they learn logarithms of probabilities, which ``tau h . c`` may not reach.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    """

    is_binary = True

    def __init__(self, *, scheme: str | None = None, offset: float = 0.0, **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.offset = as_finite("offset", offset)

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        logistic_terms(logits, losses)

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        merge_softplus(logits, merged)
