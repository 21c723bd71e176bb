"""RF-softmax: random Fourier features in a kernel tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.arrays import ARRAYS
from samplesoft._device.select import as_device, twin
from samplesoft._temperature import as_tau
from samplesoft.feature_maps import RandomFourierFeatures
from samplesoft.samplers.base import Rows
from samplesoft.samplers.kernel import KernelSampler

UNIT_TOLERANCE = 1e-3  # the norms of float32 vectors divided by their norms are well within it


class RFSoftmaxSampler(KernelSampler):
    """Random Fourier softmax: draws by random Fourier features of the Gaussian kernel.

    For vectors of norm 1, and only for them, the Gaussian kernel is ``exp(nu h . c)`` times a
    constant; so class vectors and contexts must have norm 1, to 1e-3.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row of norm 1 for each class, float32 or float64; copied.
    nu : float
        Sharpness of the kernel; 4 did best in the paper, whose models had tau = 11.
    num_features : int
        Number of random frequencies D; features are twice as many.
    frequencies : {"iid", "orthogonal", "structured"}
        How they are drawn; see `RandomFourierFeatures`.
    tau : float, optional
        Inverse temperature of the model, which softmax leaves follow; 10 by default.
    leaf, leaf_size, progress
        As for `KernelSampler`. The paper's sampler is ``leaf="kernel", leaf_size=1``. Larger
        leaves need 1 / leaf_size of its memory, and softmax leaves draw closer to the softmax.
    rng : int, numpy.random.Generator or None
        Seed of the frequencies.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a vector is not of norm 1; `update` changes nothing then.
    MemoryError
        If the tree would not fit in the memory that is left.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       section 3.2.

    Examples
    --------
    >>> vectors = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]
    >>> sampler = RFSoftmaxSampler(vectors, nu=1.0, leaf="kernel", leaf_size=1, rng=0)
    >>> sampler.probs([1.0, 0.0]).round(2)
    array([[0.56, 0.37, 0.08]])
    >>> sampler.probs([2.0, 0.0])
    Traceback (most recent call last):
        ...
    ValueError: rows of `h` must have norm 1, got 2 at row 0; divide each row by its norm.
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        nu: float = 4.0,
        num_features: int = 1024,
        frequencies: str = "iid",
        tau: float | None = None,
        leaf: str = "softmax",
        leaf_size: int | None = None,
        progress: bool = False,
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        rows = twin(as_device(device), ARRAYS).float_rows("class_embeddings", class_embeddings)
        _require_unit("class_embeddings", rows, device)
        phi = RandomFourierFeatures(
            rows.shape[1], num_features, nu, frequencies=frequencies, rng=rng, device=device
        )
        tau = as_tau(tau, unit_vectors=True)
        super().__init__(rows, phi, leaf=leaf, leaf_size=leaf_size, tau=tau, progress=progress)

    def _check_contexts(self, h: ArrayLike | None) -> Rows:
        rows = super()._check_contexts(h)
        _require_unit("h", rows, self.device)
        return rows

    def _check_class_rows(self, class_embeddings: ArrayLike) -> Rows:
        rows = super()._check_class_rows(class_embeddings)
        _require_unit("class_embeddings", rows, self.device)
        return rows


def _require_unit(name: str, rows: Rows, device: str) -> None:
    limits = 1.0 - UNIT_TOLERANCE, 1.0 + UNIT_TOLERANCE
    found = twin(device, ARRAYS).norm_outside(rows, *limits)
    if found is not None:
        row, norm = found
        raise ValueError(
            f"rows of `{name}` must have norm 1, got {norm:.6g} at row {row}; divide each row by "
            "its norm."
        )
