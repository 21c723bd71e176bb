"""Taylor and spherical softmax: exact steps whose cost is independent of the number of classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from samplesoft._jit import row_chunks
from samplesoft._limits import ignoring_overflow
from samplesoft._random import stream_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_float_rows,
    as_ids,
    as_labels,
    as_nonnegative,
    as_positive,
    require_instance,
    writable,
)
from samplesoft.losses.base import SparseRows, weights_for_reduction
from samplesoft.metrics.evaluation import Evaluation, count_labels_by_position, make_evaluation
from samplesoft.models.linear import as_float_dtype, uniform_weights
from samplesoft.samplers.base import Rows
from samplesoft.search import checked_k, top_k_classes

_CHUNK_VALUES = 1 << 20  # entries of class vectors that are computed at a time


class FactoredGradient(NamedTuple):
    """A gradient in the class vectors W (n, d), in the form ``W @ matrix + offset + rows``.

    Parameters
    ----------
    matrix : ndarray of float64, shape (d, d)
        Matrix by which W is multiplied.
    offset : ndarray of float64, shape (d,)
        Term that is the same for all classes.
    rows : SparseRows
        Additional terms of the labels in the batch.
    steps : int
        Number of changes of the class vectors before the gradient was computed. After another
        change the gradient is no longer valid.
    """

    matrix: FloatArray
    offset: FloatArray
    rows: SparseRows
    steps: int

    def dense(self, class_embeddings: Rows) -> FloatArray:
        """Return the gradient as an array (n, d), given the class vectors W (n, d)."""
        gradient: FloatArray = class_embeddings @ self.matrix + self.offset
        gradient[self.rows.ids] += self.rows.rows
        return gradient


class SphericalSoftmax:
    r"""A softmax layer with quadratic weights in place of exponentials.

    Class i with score :math:`o_i`, where :math:`o = W h`, has the weight :math:`w_i` and the
    probability :math:`w_i / \sum_j w_j`. The loss is :math:`-\log p_t` for the label t. The weight
    is :math:`1 + o + o^2/2` in the log-Taylor softmax, and :math:`o^2 + \epsilon` in the
    log-spherical softmax. The sum over all classes then follows from :math:`s = W^\top 1` and
    :math:`Q = W^\top W`, without the scores. A step of gradient descent on all n class vectors is
    exact. It changes a few small matrices and the vectors of the labels, and takes
    :math:`O(B d^2 + d^3)` operations for any n.

    Parameters
    ----------
    num_classes : int
        Number n of classes.
    embedding_dim : int
        Length d of contexts and of class vectors.
    kind : {"taylor", "spherical"}
        The weight function.
    epsilon : float
        Weight of a class of score 0 in the spherical softmax. No probability is below
        :math:`\epsilon / \sum_j w_j`, and scores matter if they exceed about
        :math:`\sqrt{\epsilon}`. Must be 1 for the Taylor softmax.
    reduction : {"mean", "sum"}
        Weighted mean or weighted sum of the examples' losses.
    dtype : dtype
        float32 or float64, for arrays with a row for each class and for ``dh``. All other arrays
        are float64.
    rng : int or numpy.random.Generator or None
        Seed of the class vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Up to a constant factor both weights are :math:`(o + \beta)^2 + \epsilon`. The spherical softmax
    has :math:`\beta = 0`, and the Taylor softmax :math:`\beta = \epsilon = 1`. Let H be the
    contexts of a batch, and :math:`r_b` the loss weight of example b divided by the sum of its
    class weights. The gradient in W is :math:`W M + 1 g^\top` plus terms in the rows of the labels,
    with :math:`M = 2 H^\top \mathrm{diag}(r) H` and :math:`g = 2 \beta H^\top r`. W is stored as
    :math:`V U + 1 \omega^\top`, and a step changes U, :math:`\omega` and B rows of V. If U becomes
    nearly singular, V is recomputed. That is rare, and happens mostly in early steps. It takes
    about as long as a full-softmax step, and memory for a second V.

    **When to use it.** Use this layer if n is far above d, gradient descent without momentum or
    adaptive rates suffices, and a model other than the softmax is acceptable: its loss does not
    estimate the softmax loss. A step takes 0.6 ms at d = 64 for any number of classes. A
    full-softmax step takes a second for a million classes. On text the model is less accurate than
    a softmax. These measurements are in docs/benchmarks.md, section "Spherical softmax". Learning
    rates are far above those of a softmax, about 10 to 30, because gradients are small. To train a
    softmax itself, with any optimizer, use a sampled softmax.

    References
    ----------
    .. [1] A. de Brébisson and P. Vincent, "An exploration of softmax alternatives belonging to the
       spherical loss family", ICLR 2016, section 3: the two weights.
    .. [2] P. Vincent, A. de Brébisson and X. Bouthillier, "Efficient exact gradient update for
       training deep networks with very large sparse targets", NeurIPS 2015, section 3: V, U and Q.

    Examples
    --------
    >>> layer = SphericalSoftmax(100_000, 16, dtype=np.float64, rng=0)
    >>> h, labels = np.ones((2, 16)), [3, 70_000]
    >>> losses = []
    >>> for _ in range(3):
    ...     loss, cache = layer.forward(h, labels)
    ...     dh, gradient = layer.backward(cache)
    ...     layer.step(gradient, learning_rate=1.0)
    ...     losses.append(round(loss, 2))
    >>> losses
    [11.59, 8.08, 7.68]
    >>> np.exp(layer.log_probs(h)).sum(axis=1).round(9)
    array([1., 1.])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        kind: str = "taylor",
        epsilon: float = 1.0,
        reduction: str = "mean",
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        n = as_count("num_classes", num_classes)
        d = as_count("embedding_dim", embedding_dim)
        self.num_classes = n
        self.embedding_dim = d
        self.dtype = as_float_dtype(dtype)

        self.kind = as_choice("kind", kind, ("taylor", "spherical"))
        self._shift = 1.0 if kind == "taylor" else 0.0
        self.epsilon = as_positive("epsilon", epsilon)
        if kind == "taylor" and self.epsilon != 1.0:
            raise ValueError(
                f'`epsilon` must be 1 for kind="taylor", whose weight is half of (o + 1)**2 + 1, '
                f'got {self.epsilon}; leave it out, or take kind="spherical".'
            )

        self.reduction = as_choice("reduction", reduction, ("mean", "sum"))
        self._steps = 0

        # the class vectors are W = V U + 1 omega', where 1 is a column of ones
        self._U: FloatArray  # (d, d)
        self._omega: FloatArray  # (d,)
        self._s: FloatArray  # (d,): W' 1, the sum of the class vectors
        self._Q: FloatArray  # (d, d): W' W
        self._V: Rows = uniform_weights((n, d), d**-0.5, self.dtype, np.uint64(stream_key(rng)))
        self._rebuild_factors(np.eye(d), np.zeros(d))

    def class_embeddings(self, ids: ArrayLike | None = None) -> Rows:
        """Return the class vectors W, or rows of W.

        Parameters
        ----------
        ids : array_like of int, shape (k,), optional
            Classes whose vectors are returned; by default all.

        Returns
        -------
        ndarray, shape (n, d) or (k, d)
            The class vectors.

        Raises
        ------
        TypeError, ValueError
            If an id is malformed.
        """
        if ids is not None:
            chosen = as_ids("ids", ids, self.num_classes)
            return self._class_vectors(chosen).astype(self.dtype)

        rows = np.empty_like(self._V)
        for chunk in row_chunks(rows.shape, _CHUNK_VALUES):
            rows[chunk] = self._class_vectors(chunk)
        return rows

    def set_class_embeddings(self, class_embeddings: ArrayLike) -> None:
        """Replace the class vectors, for example by those of a saved layer.

        Parameters
        ----------
        class_embeddings : array_like, shape (n, d)
            New class vectors; copied.

        Raises
        ------
        TypeError, ValueError
            If the vectors are malformed, or so large that the sum of their squares overflows.
        """
        shape = self._V.shape
        rows = as_float_rows("class_embeddings", class_embeddings, shape[1], self.dtype)
        if rows.shape != shape:
            raise ValueError(f"`class_embeddings` must have shape {shape}, got {rows.shape}.")
        self._require_norm_in_range("class_embeddings", float(np.abs(rows).max()) * rows.size**0.5)
        self._V = rows.copy()
        self._rebuild_factors(np.eye(shape[1]), np.zeros(shape[1]))

    @ignoring_overflow  # results that are not finite raise an error
    def forward(
        self, h: ArrayLike, labels: Any, *, weights: ArrayLike | None = None
    ) -> tuple[float, Any]:
        """Compute the loss for contexts with given labels.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,)
            Labels.
        weights : array_like, shape (B,), optional
            Weights of the losses of the examples; by default 1.

        Returns
        -------
        value : float
            The loss in nats.
        cache : object
            Intermediate results for `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        contexts = as_float_rows("h", h, self.embedding_dim, self.dtype).astype(np.float64)
        targets = as_labels("labels", labels, self.num_classes, contexts.shape[:1])
        example_weights = weights_for_reduction(weights, len(contexts), self.reduction, self.dtype)

        rows = self._class_vectors(targets)
        label_scores = np.einsum("bd,bd->b", rows, contexts) + self._shift
        label_weights = label_scores**2 + self.epsilon
        total, derivative = self._sum_of_weights(contexts)

        # sum of the weights of the other classes, at least epsilon each; it is 0 if n = 1
        other_weights = np.maximum(total - label_weights, (self.num_classes - 1) * self.epsilon)
        losses = np.log1p(other_weights / label_weights)

        if not np.isfinite(losses @ example_weights):
            worst = int(np.argmin(np.isfinite(losses)))
            raise ValueError(
                f"`h` must have scores whose squares are within the range of float64, got a loss "
                f"of {losses[worst]} in example {worst}; scale `h` or `weights` down."
            )

        cache = (
            contexts,
            targets,
            rows,
            derivative,
            example_weights / (label_weights + other_weights),
            example_weights * 2.0 * label_scores / label_weights,
        )

        return float(losses @ example_weights), (cache, self._steps)

    @ignoring_overflow
    def backward(self, cache: Any) -> tuple[Rows, FactoredGradient]:
        """Compute the gradients of the loss.

        Parameters
        ----------
        cache : object
            Result of `forward`.

        Returns
        -------
        dh : ndarray, shape (B, d)
            Derivatives in the contexts.
        gradient : FactoredGradient
            Derivatives in the vectors of all classes.
        """
        (contexts, targets, rows, derivative, inverse_sums, label_factors), steps = cache
        dh = inverse_sums[:, None] * derivative - label_factors[:, None] * rows

        order = np.argsort(targets, kind="stable")
        ids, offsets = np.unique(targets[order], return_index=True)
        label_rows = np.add.reduceat(-(label_factors[:, None] * contexts)[order], offsets, axis=0)

        matrix = 2.0 * contexts.T @ (inverse_sums[:, None] * contexts)
        offset = 2.0 * self._shift * (inverse_sums @ contexts)
        gradient = FactoredGradient(matrix, offset, SparseRows(ids, label_rows), steps)
        return dh.astype(self.dtype), gradient

    @ignoring_overflow
    def step(self, gradient: FactoredGradient, learning_rate: float) -> None:
        """Subtract ``learning_rate`` times the gradient from the class vectors.

        Parameters
        ----------
        gradient : FactoredGradient
            Result of `backward`. No step may have been taken since `forward`.
        learning_rate : float
            Learning rate, at least 0.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or class vectors would overflow. The layer is then
            unchanged.
        """
        require_instance("gradient", gradient, FactoredGradient)
        rate = as_nonnegative("learning_rate", learning_rate)
        n = self.num_classes
        s = self._s

        if gradient.steps != self._steps:
            raise ValueError(
                f"`gradient` must be of the class vectors as they are, got one from before the "
                f"last {self._steps - gradient.steps} step(s); call `forward` again."
            )

        A = np.eye(len(s)) - rate * gradient.matrix
        move = rate * gradient.offset
        ids = gradient.rows.ids
        label_rows = rate * gradient.rows.rows

        # the step for all classes: W becomes W A - 1 move'
        U = self._U @ A
        omega = A @ self._omega - move
        s = A @ s
        cross = np.outer(s, move)
        Q = A @ self._Q @ A - cross - cross.T + n * np.outer(move, move)

        self._require_norm_in_range(
            "learning_rate", np.sqrt(max(np.trace(Q), 0.0)) + np.linalg.norm(label_rows)
        )

        self._steps += 1
        inverse = _well_conditioned_inverse(U, float(np.finfo(self.dtype).eps))
        if inverse is None:
            self._rebuild_factors(U, omega)
            inverse = self._U  # the identity matrix
        else:
            self._U = U
            self._omega = omega
            self._s = s - n * move
            self._Q = (Q + Q.T) / 2.0

        # The additional step for the labels. V is rounded, so s and Q are updated by the difference
        # of the rounded vectors.
        old_rows = self._class_vectors(ids)
        self._V = writable(self._V)
        self._V[ids] -= (label_rows @ inverse).astype(self.dtype)
        new_rows = self._class_vectors(ids)
        self._s = self._s + (new_rows - old_rows).sum(axis=0)
        self._Q = self._Q + new_rows.T @ new_rows - old_rows.T @ old_rows

    @ignoring_overflow
    def log_probs(self, h: ArrayLike) -> FloatArray:
        """Compute the log-probabilities of all classes.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.

        Returns
        -------
        ndarray of float64, shape (B, n)
            Log-probabilities, in nats.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the square of a score overflows.
        """
        contexts = as_float_rows("h", h, self.embedding_dim, self.dtype).astype(np.float64)
        logs = np.empty((len(contexts), self.num_classes))

        for chunk in row_chunks(self._V.shape, _CHUNK_VALUES):
            logs[:, chunk] = contexts @ self._class_vectors(chunk).T
        return self._log_probs(contexts, logs + self._shift)

    @ignoring_overflow
    def top_k(self, h: ArrayLike, k: int) -> tuple[IntArray, FloatArray]:
        """Find the k most likely classes of each context.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            Number of classes, at most n.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes by descending probability; of equal ones, the class with the smallest index
            first.
        logs : ndarray of float64, shape (B, k)
            Log-probabilities of these classes.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the square of a score overflows.
        """
        contexts = as_float_rows("h", h, self.embedding_dim, self.dtype)
        rows = self.class_embeddings()
        shifts = np.full(self.num_classes, self._shift, self.dtype)
        ids, abs_scores = top_k_classes(contexts, rows, k, tau=1.0, absolute=True, biases=shifts)
        return ids, self._log_probs(contexts.astype(np.float64), abs_scores.astype(np.float64))

    def evaluate(self, h: ArrayLike, labels: Any, *, k: tuple[int, ...] = ()) -> Evaluation:
        """Compute the loss and the top-k accuracy on given examples.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,)
            Labels.
        k : tuple of int
            Lengths k of the lists of best classes for which accuracies are computed.

        Returns
        -------
        Evaluation
            Mean of the loss of this layer, its exponential, top-k accuracy and precision at k.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        sizes = [checked_k(size, self.num_classes) for size in np.atleast_1d(as_array("k", k))]
        value, ((_, targets, *_), _) = self.forward(h, labels)
        value = value if self.reduction == "mean" else value / len(targets)

        label_hits = np.zeros(0)
        if sizes:
            contexts = np.asarray(h)
            example_ids = np.arange(len(targets))
            label_hits = count_labels_by_position(
                self.top_k, contexts, example_ids, targets, max(sizes), self.num_classes
            )

        return make_evaluation(value, label_hits, sizes, len(targets), len(targets))

    def _class_vectors(self, ids: IntArray | slice) -> FloatArray:
        """Return the vectors of the classes `ids` in float64."""
        rows: FloatArray = self._V[ids] @ self._U + self._omega
        return rows

    def _sum_of_weights(self, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the sum (B,) of the weights of all classes, and its gradients in the contexts."""
        half = contexts @ self._Q + self._shift * self._s  # half of the gradients
        squares = np.einsum("bd,bd->b", half, contexts) + self._shift * (contexts @ self._s)
        n = self.num_classes
        # without the maximum, rounding could make the sum negative if all shifted scores are 0
        return np.maximum(squares + n * self._shift**2, 0.0) + n * self.epsilon, 2.0 * half

    def _log_probs(self, contexts: FloatArray, scores: FloatArray) -> FloatArray:
        """Return log-probabilities (B, k) for shifted scores (B, k); the scores are overwritten."""
        logs = np.log(np.square(scores, out=scores) + self.epsilon)
        logs -= np.log(self._sum_of_weights(contexts)[0])[:, None]
        if not np.isfinite(logs).all():
            raise ValueError(
                "`h` must have scores whose squares are within the range of float64, got numbers "
                f"up to {np.abs(contexts).max():.3g}; scale it down."
            )
        return logs

    def _rebuild_factors(self, U: FloatArray, omega: FloatArray) -> None:
        """Replace V by ``V U + 1 omega'`` and U by the identity; recompute s and Q.

        This removes the rounding errors that s and Q have accumulated over steps.
        """
        d = len(omega)
        s = np.zeros(d)
        Q = np.zeros((d, d))
        V = np.empty_like(self._V)

        for chunk in row_chunks(V.shape, _CHUNK_VALUES):
            V[chunk] = self._V[chunk] @ U + omega
            rows = V[chunk].astype(np.float64)
            s = s + rows.sum(axis=0)
            Q = Q + rows.T @ rows

        self._V = V
        self._U = np.eye(d)
        self._omega = np.zeros(d)
        self._s = s
        self._Q = Q
        self._steps += 1

    def _require_norm_in_range(self, name: str, norm: float) -> None:
        """Raise ValueError if V could overflow for class vectors with the Frobenius norm `norm`."""
        # V may be larger than W by the norm of the inverse of U, which is below 1e6
        max_norm = min(float(np.finfo(self.dtype).max) / 1e6, 1e150)
        if not norm < max_norm:
            raise ValueError(
                f"`{name}` must keep the norm of the class vectors below {max_norm:.0e}, got "
                f"one of {norm:.3g}; lower it."
            )


def _well_conditioned_inverse(U: FloatArray, eps: float) -> FloatArray | None:
    """Return the inverse of U, or None if U is too ill-conditioned.

    V is rounded, with relative error `eps`, so that the error in ``W = V U`` grows with the
    condition number of U. Steps increase the condition number, because each multiplies U by
    ``I - rate * M``, which shortens the directions of contexts. If the rate is 1 over an eigenvalue
    of M, then U becomes singular, although W is well defined. In the condition number, norms below
    1 count as 1: if U shrank in all directions, its condition number would not grow, but V would
    overflow.
    """
    try:
        inverse = np.linalg.inv(U)
    except np.linalg.LinAlgError:
        return None

    norm, inverse_norm = (max(1.0, float(np.linalg.norm(x, 1))) for x in (U, inverse))
    # losing a third of the digits is accepted, because recomputing V takes as long as a
    # full-softmax step
    return np.asarray(inverse, np.float64) if norm * inverse_norm < eps ** (-1 / 3) else None
