"""Sampled softmax with most of its bias taken off."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.jackknife_examples import jackknife_examples
from samplesoft.kernels.losses.jackknife_terms import jackknife_terms
from samplesoft.losses.base import Batch
from samplesoft.losses.examples import Block, by_examples
from samplesoft.losses.pairs import Pairs, Results, each_pair
from samplesoft.losses.sampled import SampledLoss
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme


class JackknifeLoss(SampledLoss):
    r"""Delete-one jackknife of sampled softmax.

    With :math:`L` the loss of `samplesoft.losses.sampled.SampledSoftmaxLoss` on m draws, and
    :math:`L_{-i}` that without draw i, in which the others weigh m / (m - 1) times as much, it is
    :math:`m L - (m - 1) \, \text{mean}_i L_{-i}`. Its bias is of order 1 / m\ :sup:`2`, in the
    loss and in the gradient, against 1 / m for sampled softmax. It costs O(m) like that. By the
    concavity of the logarithm it is at least L.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`. The others weigh draws, or the
        label, in a way that changes with the number of draws.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` if there are fewer than 2 draws, or they are
        without replacement.

    References
    ----------
    .. [1] M. H. Quenouille, "Notes on bias in estimation", Biometrika 43, 1956: the jackknife.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft import exact_bias
    >>> from samplesoft.samplers.base import Draw
    >>> scores, q, m = np.array([0.0, 1.0, 3.0]), np.array([0.5, 0.5]), 4
    >>> ids = 1 + np.array(np.meshgrid(*[[0, 1]] * m)).reshape(m, -1).T  # all 16 draws
    >>> draw = Draw(ids, np.log(q)[ids - 1])
    >>> value, cache = JackknifeLoss().forward(
    ...     np.ones((16, 1)), scores[:, None], np.zeros(16, int), draw
    ... )
    >>> full = np.log(np.exp(scores).sum()) - scores[0]
    >>> exact = exact_bias(scores, 0, [1 / 3] * 3, m, scheme="jackknife").loss_bias
    >>> bool(abs(value - full - exact) < 1e-12)
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        "negatives": SCHEMES["jackknife"],
        "masked": SCHEMES["jackknife_masked"],
    }
    is_softmax = True
    with_replacement = True

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        if isinstance(draw, Draw) and draw.ids.shape[-1] < self.facts.least_draws:
            raise ValueError(
                f"`draw` must hold at least {self.facts.least_draws} draws for the jackknife, "
                f"which leaves out one, got {draw.ids.shape[-1]}; raise "
                "num_sampled."
            )
        return super()._forward(batch, draw, label_log_count)

    def _results(self, pairs: Pairs) -> Results:
        if pairs.found is None:
            return each_pair(pairs, self._terms)

        def compute(block: Block, results: Results) -> None:
            here = slice(block.ends[0], block.ends[-1])
            draws = block.logits, block.apart, block.places, block.found, *pairs.rules[:2]
            written = results.losses[here], results.d_own[here], results.d_drawn[block.examples]
            own, shares = pairs.own[here], pairs.shares[here]
            jackknife_examples(here.start, block.ends, own, *draws, shares, *written)

        return by_examples(pairs, compute)

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        jackknife_terms(logits, losses)
