"""The base class `DenseSampler`, for samplers whose method computes the weights of all classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import row_chunks
from samplesoft._random import uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_float_rows,
    as_positive,
    writable,
)
from samplesoft.samplers.base import Draw, Rows, Sampler

# largest number of weights, contexts times classes, in one chunk; larger batches have more chunks
_MAX_CHUNK_WEIGHTS = 1 << 22


class DenseSampler(Sampler):
    """Draw classes in proportion to the weights that the method `weights` of a subclass returns.

    The base class provides exact probabilities, exclusion of a label, sets shared by a batch,
    updates of class vectors and checks of all arguments. For each context, all n weights are
    computed, as in an exact softmax. Use it to try an idea, not for speed.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d), optional
        Class vectors, float32 or float64; copied. Omit them for a sampler that does not depend on
        vectors.
    num_classes : int, optional
        Number of classes n, if there are no class vectors.
    tau : float, optional
        Inverse temperature of the logits, if the weights follow logits. A `SoftmaxLayer` compares
        it with the inverse temperature of its loss.

    Attributes
    ----------
    class_embeddings : ndarray, shape (n, d), or None
        Class vectors after the last `update`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed. `sample`, `log_prob` and `probs` also raise if the result of
        `weights` is malformed.

    Examples
    --------
    >>> class CosineSampler(DenseSampler):
    ...     def weights(self, h):
    ...         return 2.0 + h @ self.class_embeddings.T
    >>> sampler = CosineSampler([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> sampler.probs([1.0, 0.0])
    array([[0.5       , 0.33333333, 0.16666667]])
    >>> sampler.probs([1.0, 0.0], exclude=0)
    array([[0.        , 0.66666667, 0.33333333]])
    >>> sampler.sample([1.0, 0.0], 5, exclude=0, rng=0).ids
    array([[2, 1, 2, 1, 1]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike | None = None,
        *,
        num_classes: int | None = None,
        tau: float | None = None,
    ) -> None:
        if (class_embeddings is None) == (num_classes is None):
            raise ValueError(
                "one of `class_embeddings` and `num_classes` must be given, got "
                f"{'neither' if num_classes is None else 'both'}; vectors say how many they are."
            )
        self.class_embeddings: Rows | None = None
        if class_embeddings is None:
            super().__init__(as_count("num_classes", num_classes))
        else:
            rows = as_float_rows("class_embeddings", class_embeddings).copy()
            super().__init__(len(rows), rows.shape[1], rows.dtype)
            self.class_embeddings = rows

        self.tau = None if tau is None else as_positive("tau", tau)

    @abstractmethod
    def weights(self, h: Any) -> Any:
        """Return the weight of every class for each context.

        Parameters
        ----------
        h : ndarray, shape (B, d)
            Checked context vectors in the dtype of `class_embeddings`. Without class vectors the
            shape is (B, 0).

        Returns
        -------
        array_like, shape (B, n) or (n,)
            Weights: finite and at least 0, with at least one above 0 in each row. They need not sum
            to 1. One row (n,) serves all contexts.
        """

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # each uniform depends only on its row and column, so that chunks do not change the draws
        uniforms = uniform_block(key, len(h), m)
        ids = np.empty((len(h), m), np.int64)
        log_q = np.empty((len(h), m))

        for chunk in row_chunks((len(h), self.num_classes), _MAX_CHUNK_WEIGHTS):
            q = self._probs(h[chunk], exclude[chunk])
            for row, p in enumerate(q, chunk.start):
                ids[row] = inverse_cdf(p, uniforms[row])
                log_q[row] = np.log(p[ids[row]])
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = np.empty(ids.shape)
        for chunk in row_chunks((len(h), self.num_classes), _MAX_CHUNK_WEIGHTS):
            q = self._probs(h[chunk], exclude[chunk])
            with np.errstate(divide="ignore"):
                log_q[chunk] = np.log(np.take_along_axis(q, ids[chunk], axis=1))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        # users write the method `weights`, so that its result must be checked
        raw = np.asarray(self.weights(h))
        full_shape = (len(h), self.num_classes)
        row_shape = (self.num_classes,)
        if raw.dtype.kind not in "buif" or raw.shape not in (full_shape, row_shape):
            raise ValueError(
                f"`weights` must return real numbers of shape {full_shape} or {row_shape} for "
                f"{len(h)} contexts, got {raw.dtype} of shape {raw.shape}; correct "
                f"{type(self).__name__}.weights."
            )

        weights = np.array(np.broadcast_to(raw, full_shape), np.float64)
        if not (np.isfinite(weights).all() and weights.min() >= 0.0):
            raise ValueError(
                f"`weights` must return finite numbers that are at least 0, got {weights.min()} "
                f"to {weights.max()}; correct {type(self).__name__}.weights."
            )

        # excluded classes get weight 0, because subtraction from a sum would lose digits
        rows = np.flatnonzero(exclude >= 0)
        weights[rows, exclude[rows]] = 0.0

        max_weights = weights.max(axis=1, keepdims=True)
        if not max_weights.all():
            # the remedy depends on whether exclusion has left only weights of 0
            context = int(np.argmin(max_weights))
            remedy = "; give a class a weight greater than 0"
            if np.broadcast_to(raw, weights.shape)[context].any():
                remedy = f" beside its excluded class{remedy}, or leave `exclude` out"
            raise ValueError(
                "`weights` must leave each context a class to draw, got only 0 for context "
                f"{context}{remedy}."
            )

        weights /= max_weights  # so that the sum does not overflow
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        # `update` calls this method only if there are class vectors
        self.class_embeddings = writable(self.class_embeddings)  # type: ignore[arg-type]
        return partial(setitem, self.class_embeddings, ids, rows)


def inverse_cdf(probs: FloatArray, uniforms: FloatArray) -> IntArray:
    """Return classes (m,) drawn from `probs` (n,) by inversion of `uniforms` (m,) in [0, 1)."""
    cumulative = np.cumsum(probs)
    # With side="right", a target that equals a cumulative sum draws the next class with a positive
    # probability. If rounding moves a target to the last sum, the last such class is drawn.
    positions = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    ids: IntArray = np.minimum(positions, np.flatnonzero(probs)[-1])
    return ids
