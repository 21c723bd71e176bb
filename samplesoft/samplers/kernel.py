"""Kernel-based samplers: a feature map in a kernel tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_choice, as_count, as_float_rows
from samplesoft.feature_maps import (
    FeatureMap,
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
)
from samplesoft.sampler import Draw, Rows, Sampler
from samplesoft.tree import SMALLEST_FLOOR, KernelTree

UNIT_TOLERANCE = 1e-3  # float32 vectors, normalised by their owner, are well within it


class KernelSampler(Sampler):
    """Classes drawn by a kernel, through a tree of sums of the features of a map.

    Parameters
    ----------
    feature_map : FeatureMap
        Estimates the kernel. Its ``floor`` is the least mass that the tree gives to a class.
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    leaf : {"softmax", "kernel"}
        How a class is drawn in its bucket: by ``exp(tau h . c)``, which costs d multiplications a
        class and is closer to the softmax, or by the kernel, as everywhere in the tree.
    leaf_size : int
        Classes in a bucket; 1 for a tree down to single classes.
    tau : float
        Inverse temperature of ``leaf="softmax"``.
    progress : bool
        Show a progress bar on stderr while building, if that is a terminal.

    Attributes
    ----------
    tree : KernelTree
        The tree, with its ``nbytes``, ``drift`` and ``rebuild``.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tree would not fit in the memory that is left.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018, section 3.

    Examples
    --------
    >>> from samplesoft.feature_maps import RandomMaclaurinFeatures
    >>> vectors = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    >>> sampler = KernelSampler(RandomMaclaurinFeatures(2, 64, rng=0), vectors, leaf_size=2)
    >>> int(sampler.probs([1.0, 0.0]).argmax()), sampler.tree.num_features
    (0, 64)
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        class_embeddings: ArrayLike,
        *,
        leaf: str = "softmax",
        leaf_size: int = 64,
        tau: float = 1.0,
        progress: bool = False,
    ) -> None:
        scale = tau
        if as_choice("leaf", leaf, ("softmax", "kernel")) == "kernel":
            if isinstance(feature_map, QuadraticFeatures):  # the same kernel without its features
                leaf, scale = "quadratic", feature_map.alpha
        self.feature_map = feature_map
        self.tree = KernelTree(
            as_float_rows("class_embeddings", class_embeddings, feature_map.dim),
            feature_map.transform,
            leaf=leaf,
            leaf_size=leaf_size,
            scale=scale,
            floor=max(feature_map.floor, SMALLEST_FLOOR),
            progress=progress,
        )
        super().__init__(self.tree.num_classes, self.tree.dim)

    def _contexts(self, h: ArrayLike | None) -> Rows:
        return self.tree._contexts(h)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        return self.tree._sample(h, m, exclude, key)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self.tree._log_prob(h, ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self.tree._probs(h, exclude)

    def _update(self, ids: IntArray, rows: Rows) -> None:
        self.tree._update(ids, rows)


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
    num_frequencies : int
        Number of random frequencies D; features are twice as many.
    frequencies : {"iid", "orthogonal", "structured"}
        How they are drawn; see `RandomFourierFeatures`.
    tau, leaf, leaf_size
        As for `KernelSampler`. The paper's sampler is ``leaf="kernel", leaf_size=1``. Buckets with
        softmax leaves need 1 / leaf_size of its memory, and draw closer to the softmax.
    rng : int, numpy.random.Generator or None
        Seed of the frequencies.

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
        num_frequencies: int = 1024,
        frequencies: str = "iid",
        tau: float = 1.0,
        leaf: str = "softmax",
        leaf_size: int = 64,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        _require_unit("class_embeddings", rows)
        phi = RandomFourierFeatures(
            rows.shape[1], num_frequencies, nu, frequencies=frequencies, rng=rng
        )
        super().__init__(phi, rows, leaf=leaf, leaf_size=leaf_size, tau=tau)

    def _contexts(self, h: ArrayLike | None) -> Rows:
        rows = super()._contexts(h)
        _require_unit("h", rows)
        return rows

    def _update(self, ids: IntArray, rows: Rows) -> None:
        _require_unit("class_embeddings", rows)
        super()._update(ids, rows)


class QuadraticSampler(KernelSampler):
    """Draws by the quadratic kernel ``alpha (h . c)**2 + 1``.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. A node of the tree has
        ``d (d + 1) / 2 + 1`` features.
    alpha : float
        Weight of the square of the dot product. Blanc and Rendle's is of the logit
        ``tau h . c``: their alpha is the one here divided by ``tau**2``.
    tau, leaf, leaf_size
        As for `KernelSampler`. With ``leaf="kernel"``, q is in proportion to the kernel.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tree would not fit in the memory that is left.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018, section 3.3.

    Examples
    --------
    >>> sampler = QuadraticSampler([[2.0], [1.0], [0.0]], alpha=1.0, leaf="kernel")
    >>> sampler.probs([1.0])
    array([[0.625, 0.25 , 0.125]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        alpha: float = 100.0,
        tau: float = 1.0,
        leaf: str = "softmax",
        leaf_size: int = 64,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        phi = QuadraticFeatures(rows.shape[1], alpha)
        super().__init__(phi, rows, leaf=leaf, leaf_size=leaf_size, tau=tau)


class PositiveSampler(KernelSampler):
    """Draws by positive random features of ``exp(tau h . c)``.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Estimates are the best for short
        vectors, of norm 1 or so.
    num_features : int
        Number of features.
    tau : float
        Inverse temperature of the kernel, and of ``leaf="softmax"``.
    frequencies : {"iid", "orthogonal"}
        How the projections are drawn; see `PositiveRandomFeatures`.
    leaf, leaf_size
        As for `KernelSampler`.
    rng : int, numpy.random.Generator or None
        Seed of the projections.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or features of a vector overflow or vanish.
    MemoryError
        If the tree would not fit in the memory that is left.

    References
    ----------
    .. [1] K. Choromanski et al., "Rethinking Attention with Performers", ICLR 2021, lemma 1.

    Examples
    --------
    >>> vectors = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]
    >>> sampler = PositiveSampler(vectors, leaf="kernel", rng=0)
    >>> sampler.probs([1.0, 0.0]).round(2)
    array([[0.55, 0.36, 0.09]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        num_features: int = 1024,
        tau: float = 1.0,
        frequencies: str = "iid",
        leaf: str = "softmax",
        leaf_size: int = 64,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        phi = PositiveRandomFeatures(
            rows.shape[1],
            as_count("num_features", num_features),
            tau,
            frequencies=frequencies,
            rng=rng,
        )
        super().__init__(phi, rows, leaf=leaf, leaf_size=leaf_size, tau=tau)


def _require_unit(name: str, rows: Rows) -> None:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    worst = int(np.argmax(np.abs(norms - 1.0)))
    if abs(norms[worst] - 1.0) > UNIT_TOLERANCE:
        raise ValueError(
            f"rows of `{name}` must have norm 1, got {norms[worst]:.6g} at row {worst}; divide "
            "each row by its norm."
        )
