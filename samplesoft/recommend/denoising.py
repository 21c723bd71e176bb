"""Steps that leave items out of histories, and predict these first of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._random import uniform_block
from samplesoft.models.linear import Gradient
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, some_entries
from samplesoft.recommend.interactions import Matrix
from samplesoft.training.linear_epochs import LinearEpochs
from samplesoft.training.task import sub_seed

_KEPT = 0.3  # what an item that is still in the history weighs as a label; one left out: 1
_HISTORIES = 100  # stream of the seed, beside those of `LinearSteps`


class DenoisingEpochs(LinearEpochs):
    """Epochs in which a user's items are predicted from some of them.

    Of the entries of an input, which is a history, a share `dropout` is left out in each step. Its
    items are labels all the same, and those that are left in are labels of less weight: that
    an item follows from itself is nothing to learn.

    References
    ----------
    P. Vincent et al., "Stacked denoising autoencoders", JMLR 2010, section 3.4: more weight for
    what was left out.
    """

    def __init__(
        self,
        settings: LinearSoftmaxSettings,
        dropout: float,
        counts: ArrayLike,
        seed: int | np.uint64,
        optimizer: Any,
    ) -> None:
        num_items = len(np.asarray(counts))
        super().__init__(num_items, num_items, settings, counts, seed, optimizer)
        self._dropout, self._key = dropout, sub_seed(seed, _HISTORIES)

    def gradients(
        self, step: int, x: Any, labels: Any, weights: ArrayLike | None = None
    ) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch of histories, with the items of each as its labels."""
        x, labels = thinned(x, labels, self._dropout, sub_seed(self._key, step))
        return super().gradients(step, x, labels, weights)


def thinned(
    histories: Matrix, labels: Matrix, dropout: float, seed: int | np.uint64
) -> tuple[Matrix, Matrix]:
    """Return histories (B, items) without some entries, and the labels with their weights.

    Both have entries at the same places. Histories that are left are scaled up for their mean.
    """
    left = uniform_block(np.uint64(seed), 1, histories.nnz)[0] >= dropout
    x = some_entries(histories, left)
    x.data /= x.data.dtype.type(1.0 - dropout)
    values = np.where(left, _KEPT, 1.0) * labels.data
    return x, sparse.csr_array((values, labels.indices, labels.indptr), labels.shape)
