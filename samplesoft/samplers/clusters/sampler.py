"""Classes drawn through cells of similar ones, whose mass two cumulants estimate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend
from samplesoft._device.select import as_device, twin
from samplesoft._memory import require_bytes
from samplesoft._random import as_key
from samplesoft._temperature import as_tau
from samplesoft._validation import IntArray, as_count, as_flag
from samplesoft.samplers.base import EngineSampler


class ClusterSampler(EngineSampler):
    r"""The softmax among similar classes, which are reached through cells of estimated mass.

    K-means divides the classes into cells, these into smaller ones, and so on down to leaves of
    some 16 classes. A draw takes a cell by its estimated mass, a cell in it, and so on, and in a
    leaf a class by the softmax. Take it for more than some thousand classes, where each example
    has draws of its own: it has the least bias of the samplers that do not score all classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    leaf_size : int
        Classes in a leaf, about; at most four times as many. Larger leaves have less bias, and
        cost a draw more.
    progress : bool
        Show progress on stderr while clustering: a bar if that is a terminal, else lines.
    rng : int, numpy.random.Generator or None
        Seed of the clustering.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays, but for `cells`. Classes are divided on
        the processor in both cases.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.
    MemoryError
        If the cells would not fit in the memory that is left.

    Notes
    -----
    **Mass of a cell.** Over the :math:`n_c` classes of a cell, with mean :math:`\mu_c` and
    variances :math:`v_c` of their vectors, the logits :math:`x_j = \tau h \cdot c_j` are taken to
    have two cumulants,

    .. math:: \log M_c = \log n_c + \tau h \cdot \mu_c + \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck},

    which is above 0 for all vectors, and costs 2 d multiplications.

    **q is exact.** The probability of a class is the product of the shares that are used on the
    way to it; `sample`, `log_prob` and `probs` compute the same numbers. Rounding of the products
    with cells may depend on the batch that a context comes in. Cells that have become stale cost
    bias of the loss, and nothing else.

    **How far q is from the softmax p.** Let all x_j of a cell lie in an interval of width
    :math:`w_c`. Then its true mass :math:`S_c = \sum_j e^{x_j}` has
    :math:`\log n_c + \bar x \le \log S_c \le \log n_c + \bar x + w_c^2 / 8` (Jensen; Hoeffding's
    lemma). With :math:`s_c = \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck}` so
    :math:`|\log M_c - \log S_c| \le e_c = \max(s_c, w_c^2 / 8)`, and as each level normalises
    among siblings, :math:`|\log q_j / p_j| \le 2 \sum e`, summed over levels with the greatest
    e among the siblings of each.

    **Exclusion is exact.** An excluded class is left out of its leaf, and of the mass of every
    cell above by the share that it has there; only positive numbers are added.

    **Class biases** b are one more coordinate: with vectors :math:`(c_j, b_j / \tau)` and contexts
    :math:`(h, 1)` draws follow :math:`\tau h \cdot c_j + b_j`.

    **Updates** sum up the leaf of each class, and the cells above from their children, anew: they
    leave no rounding behind. Cells that were made of untrained vectors are of little use later. So
    classes are divided anew, as `cluster` does, by an update of all of them, and when n vectors
    have been updated, and 2 n, 4 n and so on. Once an epoch is well besides: call `cluster`, or
    ``refresh`` of a `samplesoft.models.SoftmaxLayer`, as the classifier and ``samplesoft train``
    do. A log-bilinear model of 64,000 words had a perplexity of 58.4 after a million examples with
    its first cells, of 52.8 so, and of 52.5 with draws from the softmax itself.

    References
    ----------
    .. [1] J. Chen et al., "Fast Variational AutoEncoder with Inverted Multi-Index for
       Collaborative Filtering", WWW 2022, draw through cells of a product quantiser.

    Examples
    --------
    >>> vectors = np.random.default_rng(0).normal(size=(1000, 8))
    >>> sampler = ClusterSampler(vectors, rng=0)
    >>> softmax = np.exp(vectors @ vectors[0])
    >>> softmax /= softmax.sum()
    >>> float(abs(sampler.probs(vectors[0]) - softmax).sum()) < 0.2
    True
    >>> sampler.update([5], vectors[[0]])
    >>> 1.0 <= sampler.staleness < 1.1
    True
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        tau: float | None = None,
        leaf_size: int = 16,
        progress: bool = False,
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        arrays = backend(as_device(device))
        as_flag("progress", progress)
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype, device)
        self.tau = as_tau(tau, unit_vectors=False)
        self.leaf_size = as_count("leaf_size", leaf_size)
        what = f"cells of {self.num_classes:,} classes"
        # vectors, a mean and a variance for each cell, and eight numbers for each class
        needed = rows.nbytes * (1.0 + 4.0 / self.leaf_size) + 64.0 * self.num_classes
        remedy = "use float32, larger leaves or fewer classes"
        require_bytes(what, rows.nbytes + needed, remedy)  # where they are divided
        require_bytes(what, needed, remedy, arrays.available_bytes())
        engine = twin(device, "samplesoft.samplers.clusters.engine:Clusters")
        self._engine = engine(rows, self.tau, self.leaf_size, as_key(rng), progress)

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell: level by level from the top, the leaves at the end."""
        cells: list[list[IntArray]] = self._engine.cells()
        return cells

    @property
    def staleness(self) -> float:
        """Mean squared distance of classes to the mean of their leaf, over that when clustered.

        1 for cells as good as new. The bias grows faster: a few classes that have moved far, as at
        1.4, can make it ten times what it was. Beyond 1.2 or so call `cluster`. Where all classes
        draw together, as in training that starts from random vectors, it falls, though new cells
        would be far better: there call `cluster` once an epoch, whatever it says.
        """
        before, now = float(self._engine.spread_when_clustered), float(self._engine.spread())
        return now / before if before > 0.0 else 1.0 if now == 0.0 else np.inf

    def cluster(self, *, progress: bool = False) -> None:
        """Divide the classes anew, by their vectors as they are now.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if that is a terminal, else lines.
        """
        self._engine.cluster(as_flag("progress", progress))
