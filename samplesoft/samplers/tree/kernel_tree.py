"""The kernel tree: draws classes in proportion to a kernel in time logarithmic in their number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log2
from typing import Any

from numpy.typing import ArrayLike, NDArray

from samplesoft._device import backend
from samplesoft._device.select import as_device, twin
from samplesoft._memory import require_memory
from samplesoft._validation import (
    as_choice,
    as_count,
    as_flag,
    as_positive,
)
from samplesoft.samplers.base import EngineSampler, Rows
from samplesoft.samplers.tree.leaf import KERNEL, LEAVES, SOFTMAX
from samplesoft.samplers.tree.walk import TreeRules

Transform = Callable[[Rows], NDArray[Any]]

SMALLEST_FLOOR = 1e-150  # so that the ratio of two masses is a number above 0


class KernelTree(EngineSampler):
    r"""A tree of feature sums from which classes are drawn in proportion to a kernel.

    A node holds the sum of the features of the classes below it, so that its inner product with
    the features of a context is the kernel's sum over all those classes. A draw descends from the
    root by these masses, each clipped from below by `floor` for each class, to a leaf bucket of
    `leaf_size` classes, and draws one of them by its own weight.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Without `transform` they are the
        features themselves.
    transform : callable, optional
        Gives a new array of features (k, F) for rows (k, d), as the ``transform`` of a feature
        map does. Applied to class vectors in chunks, and to contexts.
    leaf_size : int, optional
        Classes in a bucket. Node sums take ``n * F / leaf_size`` numbers; a draw costs
        ``leaf_size * d`` multiplications in its bucket, or ``leaf_size * F`` for
        ``leaf="kernel"``. By default the power of two, at least 16, with which node sums take
        about half the memory of the class vectors: the two then cost a draw about the same.
    leaf : {"kernel", "softmax", "quadratic"}
        Weight of a class in its bucket: the inner product of features, clipped by `floor`;
        ``exp(scale * h . c)``; or ``scale * (h . c)**2 + 1``.
    scale : float
        The inverse temperature of ``"softmax"``, the factor alpha of ``"quadratic"``.
    floor : float
        Least mass of one class; taken as at least 1e-150 and at most 1e150, as masses are.
    progress : bool
        Show progress on stderr while building: a bar if that is a terminal, else lines.
    device : {"cpu", "cuda"}
        Where the tree lies, and what is drawn and computed stays. `transform` takes and gives
        arrays there.

    Attributes
    ----------
    feature_dim : int
        Number of features F.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tree would not fit in the memory that is left; names a `leaf_size` that would.

    Notes
    -----
    **q is exact.** The probability of a class is defined as the product of the clipped branch
    probabilities that are used, whatever the features; `sample`, `log_prob` and `probs` compute
    the same numbers. How well they follow the kernel is another matter: a branch probability has
    an error of about 1e-7 with float32 features, so that in their sums a class much lighter than
    1e-7 of its neighbours counts as the floor.

    **Exclusion is exact.** With :math:`\rho_v` the probability of reaching the excluded class
    from node v, the branch c towards it is taken with probability
    :math:`p_c (1 - \rho_c) / (1 - \rho_v)`, where :math:`1 - \rho_v = (1 - p_c) + p_c (1 -
    \rho_c)` is built upwards from the leaf, without rejection and without cancellation.

    **Draws.** All draws of one context descend together: its uniforms are split at each node,
    whose inner product is computed once. They equal those of as many independent descents.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018, section 3.2.
    .. [2] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> tree = KernelTree(features, leaf_size=1)
    >>> tree.probs([1.0, 0.0]).round(3)
    array([[0.75, 0.25, 0.  ]])
    >>> tree.update([2], [[4.0, 0.0]])
    >>> tree.probs([1.0, 0.0], exclude=0).round(3)
    array([[0. , 0.2, 0.8]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        transform: Transform | None = None,
        *,
        leaf_size: int | None = None,
        leaf: str = "kernel",
        scale: float = 1.0,
        floor: float = 1e-9,
        progress: bool = False,
        device: str = "cpu",
    ) -> None:
        arrays = backend(as_device(device))
        # where they lie already, or copied there
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype, device)
        self.leaf = as_choice("leaf", leaf, LEAVES)
        # so that the ratio of two masses stays a number, whatever is asked for
        self.floor = min(max(as_positive("floor", floor), SMALLEST_FLOOR), 1.0 / SMALLEST_FLOOR)
        self.scale, progress = as_positive("scale", scale), as_flag("progress", progress)
        self.tau = self.scale if self.leaf == "softmax" else None
        if not (transform is None or callable(transform)):
            raise TypeError(
                f"`transform` must be callable, got {type(transform).__name__}; of a feature map, "
                "pass its `transform`."
            )
        engine = twin(device, "samplesoft.samplers.tree.engine:Tree")
        features = None if transform is None else engine.Features(transform, rows)
        self.feature_dim = rows.shape[1] if features is None else features.dim
        if leaf_size is None:
            # node sums take n F / leaf_size numbers, the vectors n d: half of that
            leaf_size = 1 << max(4, round(log2(2 * self.feature_dim / rows.shape[1])))
        self.leaf_size = min(as_count("leaf_size", leaf_size), self.num_classes)
        require_memory(
            f"the tree over {self.num_classes:,} classes with {self.feature_dim:,} features",
            "leaf_size",
            self.leaf_size,
            self.num_classes,
            partial(engine.predicted_bytes, *rows.shape, self.feature_dim, rows.dtype.itemsize),
            arrays.available_bytes(),
        )
        # a class alone in its leaf has a share of 1 there, whatever weighs it: by its vector, as
        # the softmax does, that costs least
        kind = LEAVES[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if kind == KERNEL else self.scale
        rules = TreeRules(self.num_classes, self.leaf_size, self.floor, kind, scale)
        self._engine = engine(rows, features, rules, progress)

    @property
    def num_updates(self) -> int:
        """Class vectors updated since all sums were built, as by an update of half of them."""
        return int(self._engine.num_updates)

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm.

        Every update adds to the root, whose rounding errors are measured against a sum in float64.
        It stays small by itself: with each update some leaves are summed anew, all of them once in
        16 updates of every class, and once features have become so much smaller than some that
        were there since the sums were built that rounding could show (by a factor of
        2,000 in float32 and 7e7 in float64), all sums are built anew.
        """
        return float(self._engine.drift)

    def rebuild(self, *, progress: bool = False) -> None:
        """Sum the features of all classes again, which ends any drift.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if that is a terminal, else lines.

        Raises
        ------
        TypeError
            If `progress` is neither True nor False.
        """
        self._engine.rebuild(as_flag("progress", progress))
