"""Kernel samplers: draws in proportion to a kernel, by a tree of feature sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend, backend_of
from samplesoft._device.rows import squared_norms
from samplesoft._device.select import as_device, to_host
from samplesoft._temperature import as_tau
from samplesoft._validation import FloatArray, IntArray, as_choice, as_float_rows
from samplesoft.feature_maps import (
    FeatureMap,
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
)
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.tree.features import Transform
from samplesoft.samplers.tree.kernel_tree import MIN_FLOOR, KernelTree

# largest allowed deviation of a norm from 1, well above the rounding of normalised float32 vectors
UNIT_TOLERANCE = 1e-3


class KernelSampler(Sampler):
    """Draw classes in proportion to a kernel, which a feature map estimates.

    The sums of class features are kept in a tree, so that a draw costs O(F log n) for F features.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    feature_map : FeatureMap, or callable
        Map whose inner products of features estimate the kernel; the sampler works on the device of
        the map. Or a function that returns a new array of features (k, F) for rows (k, d), as in
        `KernelTree`.
    leaf : {"softmax", "kernel"}
        Weight of a class within its leaf. With "softmax" it is ``exp(tau h . c)``, which costs d
        multiplications for each class and is closer to the softmax. With "kernel" it is the kernel,
        as in the rest of the tree.
    leaf_size : int, optional
        Number of classes in a leaf; 1 for a tree with single classes as leaves. See `KernelTree`.
    tau : float, optional
        Inverse temperature of ``leaf="softmax"``, 1 by default.
    floor : float, optional
        Minimum mass of a class in the tree. The default is ``feature_map.floor``, the smallest
        kernel of two unit vectors; longer vectors may have smaller kernels, which are raised to the
        floor. If `feature_map` is a function, the default is 1e-9.
    progress : bool
        Show progress on stderr while the tree is built: a bar on a terminal, otherwise lines.

    Attributes
    ----------
    tree : KernelTree
        The tree, which has the members ``nbytes``, ``drift`` and ``rebuild``.

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
    >>> sampler = KernelSampler(vectors, RandomMaclaurinFeatures(2, 64, rng=0), leaf_size=2)
    >>> int(sampler.probs([1.0, 0.0]).argmax()), sampler.tree.feature_dim
    (0, 64)
    >>> absolute = KernelSampler(vectors, np.abs, leaf="kernel", leaf_size=1)
    >>> absolute.probs([1.0, 0.0]).round(2)
    array([[0.5, 0. , 0.5]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        feature_map: FeatureMap | Transform,
        *,
        leaf: str = "softmax",
        leaf_size: int | None = None,
        tau: float | None = None,
        floor: float | None = None,
        progress: bool = False,
    ) -> None:
        if not callable(feature_map):
            raise TypeError(
                "`feature_map` must be a FeatureMap or a function from rows to features, got "
                f"{type(feature_map).__name__}; samplesoft.feature_maps has some."
            )

        scale = as_tau(tau, unit_vectors=False)
        # draws from kernel leaves do not follow a softmax: there is no tau to compare with the loss
        self.tau = scale if as_choice("leaf", leaf, ("softmax", "kernel")) == "softmax" else None

        # a plain function as feature map has these defaults; a `FeatureMap` declares its own
        dim = None
        device = "cpu"
        default_floor = 1e-9
        if isinstance(feature_map, FeatureMap):
            dim = feature_map.dim
            device = feature_map.device
            default_floor = feature_map.floor
            # in leaves, the formula of the kernel is cheaper than inner products of exact features
            if leaf == "kernel" and feature_map.closed_form:
                leaf, scale = feature_map.closed_form

        self.feature_map = feature_map
        self.tree = KernelTree(
            backend(device).float_rows("class_embeddings", class_embeddings, dim),
            feature_map,
            leaf=leaf,
            leaf_size=leaf_size,
            scale=scale,
            # estimates of a kernel may be 0 or negative, and the floor raises them: masses must be
            # above 0
            floor=max(default_floor, MIN_FLOOR) if floor is None else floor,
            progress=progress,
            device=device,
        )

        tree = self.tree
        super().__init__(tree.num_classes, tree.dim, tree._dtype, tree.device)

    @property
    def nbytes(self) -> int:
        """Memory of the class vectors and of the node sums, in bytes."""
        return self.tree.nbytes

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the vectors (k, d) of classes `ids`, or of all classes for None."""
        return self.tree.class_embeddings(ids)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        return self.tree._sample(h, m, exclude, key)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self.tree._log_prob(h, ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self.tree._probs(h, exclude)

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self.tree._log_total_weight(h, exclude)

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        return self.tree._prepare_update(ids, rows)


class QuadraticSampler(KernelSampler):
    """Draw classes in proportion to the quadratic kernel ``alpha (h.c)**2 + 1``.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. A node of the tree has
        ``d (d + 1) / 2 + 1`` features.
    alpha : float
        Weight of the squared dot product. Blanc and Rendle weight the square of the logit
        ``tau h . c`` instead: their alpha is this alpha divided by ``tau**2``.
    tau, leaf, leaf_size, progress
        As for `KernelSampler`. With ``leaf="kernel"``, q is proportional to the kernel.

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
        tau: float | None = None,
        leaf: str = "softmax",
        leaf_size: int | None = None,
        progress: bool = False,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        # each node of the tree has d (d + 1) / 2 + 1 features: about d / 2 times the memory of a
        # class vector
        phi = QuadraticFeatures(rows.shape[1], alpha)
        super().__init__(rows, phi, leaf=leaf, leaf_size=leaf_size, tau=tau, progress=progress)


class PositiveSampler(KernelSampler):
    """Draw classes in proportion to an estimate of ``exp(tau h.c)`` by positive random features.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Estimates are most accurate for short
        vectors, with norms of about 1.
    num_features : int
        Number of features.
    tau : float, optional
        Inverse temperature of the kernel, and of ``leaf="softmax"``; 1 by default.
    frequencies : {"iid", "orthogonal"}
        Method by which projections are drawn; see `PositiveRandomFeatures`.
    leaf, leaf_size, progress
        As for `KernelSampler`.
    rng : int, numpy.random.Generator or None
        Seed of the projections.
    device : {"cpu", "cuda"}
        Device of the computation and of the results.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or features of a vector overflow or underflow to 0.
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
        tau: float | None = None,
        frequencies: str = "iid",
        leaf: str = "softmax",
        leaf_size: int | None = None,
        progress: bool = False,
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        rows = backend(as_device(device)).float_rows("class_embeddings", class_embeddings)
        tau = as_tau(tau, unit_vectors=False)
        phi = PositiveRandomFeatures(
            rows.shape[1], num_features, tau, frequencies=frequencies, rng=rng, device=device
        )
        super().__init__(rows, phi, leaf=leaf, leaf_size=leaf_size, tau=tau, progress=progress)
        self.tau = tau  # with kernel leaves as well, because the kernel estimates exp(tau h . c)


class RFSoftmaxSampler(KernelSampler):
    """Draw classes in proportion to random Fourier features of the Gaussian kernel (RF-softmax).

    For unit vectors only, the Gaussian kernel is a constant times ``exp(nu h . c)``. Class vectors
    and contexts must therefore have norm 1, with a tolerance of 1e-3. Rows of zeros, which have no
    direction, are also allowed.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row of norm 1 for each class, float32 or float64; copied.
    nu : float
        Sharpness of the kernel; 4 was best in the paper, whose models had tau = 11.
    num_features : int
        Number of random frequencies D; there are 2 D features.
    frequencies : {"iid", "orthogonal", "structured"}
        Method by which frequencies are drawn; see `RandomFourierFeatures`.
    tau : float, optional
        Inverse temperature of the model, used by softmax leaves; 10 by default.
    leaf, leaf_size, progress
        As for `KernelSampler`. The paper's sampler is ``leaf="kernel", leaf_size=1``. Larger
        leaves need 1 / leaf_size of the paper's memory, and draws from softmax leaves are closer to
        the softmax.
    rng : int, numpy.random.Generator or None
        Seed of the frequencies.
    device : {"cpu", "cuda"}
        Device of the computation and of the results.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a vector does not have norm 1. An `update` that raises
        changes nothing.
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
        rows = backend(as_device(device)).float_rows("class_embeddings", class_embeddings)
        _require_unit_norms("class_embeddings", rows)

        # Rawat et al., section 3.2: nu is the sharpness of the kernel, less than the model's tau
        phi = RandomFourierFeatures(
            rows.shape[1], num_features, nu, frequencies=frequencies, rng=rng, device=device
        )
        tau = as_tau(tau, unit_vectors=True)
        super().__init__(rows, phi, leaf=leaf, leaf_size=leaf_size, tau=tau, progress=progress)

    def _checked_contexts(self, h: ArrayLike | None) -> Rows:
        # if norms differ from 1, the kernel, a function of |h - c|^2, is not a function of h . c:
        # draws would depend on norms
        rows = super()._checked_contexts(h)
        _require_unit_norms("h", rows)
        return rows

    def _checked_class_rows(self, class_embeddings: ArrayLike) -> Rows:
        rows = super()._checked_class_rows(class_embeddings)
        _require_unit_norms("class_embeddings", rows)
        return rows


def _require_unit_norms(name: str, rows: Rows) -> None:
    """Raise ValueError if a row of `rows` (N, d) has neither norm 1 nor only zeros.

    `name` is the name of the rows in the error message.
    """
    norms = np.sqrt(to_host(squared_norms(rows)))
    zero_norm = np.flatnonzero(norms == 0.0)
    if len(zero_norm):  # rows of zeros, or of values whose squares underflow
        zero_norm_rows = to_host(backend_of(rows).take_rows(rows, zero_norm))
        norms[zero_norm[~zero_norm_rows.any(axis=1)]] = 1.0

    # the message names the worst row
    row = int(np.argmax(np.abs(norms - 1.0)))
    if not 1.0 - UNIT_TOLERANCE <= norms[row] <= 1.0 + UNIT_TOLERANCE:
        # the norm is computed in float64, in which squares of float32 values do not overflow
        norm = np.linalg.norm(to_host(rows[row : row + 1]).astype(np.float64))
        raise ValueError(
            f"rows of `{name}` must have norm 1, got {norm:.6g} at row {row}; divide each row by "
            "its norm."
        )
