"""Adaptive softmax: frequent classes are in a head, rare ones in tails with shorter vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.special import log_softmax

from samplesoft._limits import ignoring_overflow
from samplesoft._random import mix64, stream_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_counts,
    as_float_rows,
    as_labels,
    as_positive,
    make_arrays_writable,
    scale_by_power_of_two,
)
from samplesoft.kernels.products import product
from samplesoft.losses.base import Cache, weights_for_reduction
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.models.linear import Gradient, as_float_dtype, uniform_weights
from samplesoft.samplers.base import Rows
from samplesoft.search import checked_k

_MAX_CUTOFF_CANDIDATES = 32  # largest number of cutoffs that are tried


class AdaptiveSoftmax:
    """An exact softmax with a head of frequent classes and tails of rarer classes.

    The head has a score for each of the most frequent classes, and one for each tail. The
    probability of a class in a tail is the probability of the tail times the probability of the
    class within the tail. Tail i projects contexts to ``d / div_value**i`` dimensions, so that its
    class vectors are shorter. Use this layer if a few classes make up most examples, as for words:
    most examples then need the head only. It distinguishes rare classes less well than the full or
    the sampled softmax.

    Parameters
    ----------
    embedding_dim : int
        Length d of contexts.
    counts : array_like, shape (n,)
        Count or frequency of each class, up to a constant factor; determines head and tails.
    cutoffs : sequence of int, optional
        Ascending numbers of classes: of the head, of the head and the first tail, and so on. The
        last tail has the remaining classes. Classes are in the order of descending frequency. The
        default is one or two cutoffs, or a head of all n classes, whichever has the fewest expected
        multiplications for an example.
    div_value : float
        Factor by which the dimension shrinks from tail to tail, at least 1.
    reduction : {"mean", "sum"}
        Weighted mean or weighted sum of the examples' losses.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Seed of the parameters.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"head"`` (c + T, d), the vectors of the c most frequent classes and of the T tails. For
        tail i of n_i classes, ``"projection_i"`` (d_i, d) and ``"tail_i"`` (n_i, d_i).
    order : ndarray of int64, shape (n,)
        The classes in the order of descending frequency.
    cutoffs : tuple of int
        The cutoffs in use.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] E. Grave et al., "Efficient softmax approximation for GPUs", ICML 2017.

    Examples
    --------
    >>> layer = AdaptiveSoftmax(8, [100, 50, 9, 8, 2, 1, 1, 1], cutoffs=[2, 4], rng=0)
    >>> [layer.parameters[name].shape for name in ("head", "projection_1", "tail_1", "tail_2")]
    [(4, 8), (2, 8), (2, 2), (4, 1)]
    >>> loss, cache = layer.forward(np.ones((2, 8), np.float32), [0, 6])
    >>> dh, gradients = layer.backward(cache)
    >>> np.exp(layer.log_probs(np.ones((1, 8)))).sum(axis=1).round(6)
    array([1.])
    """

    def __init__(
        self,
        embedding_dim: int,
        counts: ArrayLike,
        cutoffs: Sequence[int] | None = None,
        *,
        div_value: float = 4.0,
        reduction: str = "mean",
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        d = as_count("embedding_dim", embedding_dim)
        self.dtype = as_float_dtype(dtype)
        frequencies = scale_by_power_of_two(as_counts("counts", counts))
        divisor = as_positive("div_value", div_value)
        if divisor < 1.0:
            raise ValueError(f"`div_value` must be at least 1, got {div_value}.")
        self.reduction = as_choice("reduction", reduction, ("mean", "sum"))

        self.num_classes = n = len(frequencies)
        self.order: IntArray = np.argsort(-frequencies, kind="stable")
        self._ranks = np.argsort(self.order)

        if cutoffs is None:
            chosen = _cheapest_cutoffs(frequencies[self.order], d, divisor)
        else:
            cutoff_list = np.atleast_1d(as_array("cutoffs", cutoffs)).tolist()
            chosen = tuple(as_count("cutoffs", cutoff) for cutoff in cutoff_list)
            if not chosen or any(b <= a for a, b in zip(chosen, (*chosen[1:], n), strict=True)):
                raise ValueError(
                    f"`cutoffs` must rise and be below the {n} classes, got {list(chosen)}."
                )

        self.cutoffs = chosen
        self._bounds = np.unique([*chosen, n])  # only n if all classes are in the head

        shapes = {"head": (chosen[0] + len(self._bounds) - 1, d)}
        for i, num_tail in enumerate(np.diff(self._bounds).tolist(), start=1):
            tail_dim = _tail_dim(d, divisor, i)
            shapes |= {f"projection_{i}": (tail_dim, d), f"tail_{i}": (num_tail, tail_dim)}

        key = stream_key(rng)
        self.parameters: dict[str, Rows] = {
            name: uniform_weights(
                shape, shape[1] ** -0.5, self.dtype, np.uint64(mix64(key, np.uint64(k)))
            )
            for k, (name, shape) in enumerate(shapes.items())
        }
        self._loss = FullSoftmaxLoss(reduction="sum")

    def forward(
        self, h: ArrayLike, labels: Any, *, weights: ArrayLike | None = None, rng: object = None
    ) -> tuple[float, Any]:
        """Compute the loss for contexts with given labels. Nothing is drawn.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,)
            Labels.
        weights : array_like, shape (B,), optional
            Weights of the losses of the examples; by default 1.
        rng : object
            Not used; accepted because sampled layers have this argument.

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
        head = self.parameters["head"]
        contexts = as_float_rows("h", h, head.shape[1], self.dtype)
        ranks = self._ranks[as_labels("labels", labels, self.num_classes, contexts.shape[:1])]
        example_weights = weights_for_reduction(weights, len(contexts), self.reduction, self.dtype)

        # the tail of each label, counted from 1; 0 for a label in the head
        tails = np.searchsorted(self._bounds, ranks, side="right")
        head_labels = np.where(tails > 0, self.cutoffs[0] + tails - 1, ranks)
        value, head_cache = self._loss.forward(contexts, head, head_labels, weights=example_weights)

        tail_caches: list[tuple[int, IntArray, Rows, Cache]] = []
        for i in range(1, len(self._bounds)):
            rows = np.flatnonzero(tails == i)
            if len(rows):
                projected = product(contexts[rows], self.parameters[f"projection_{i}"].T)
                tail_labels = ranks[rows] - self._bounds[i - 1]
                vectors = self.parameters[f"tail_{i}"]
                tail_loss, cache = self._loss.forward(
                    projected, vectors, tail_labels, weights=example_weights[rows]
                )
                value += tail_loss
                tail_caches.append((i, rows, contexts[rows], cache))

        return float(value), (head_cache, tail_caches)

    def backward(self, cache: Any) -> tuple[Rows, dict[str, Gradient]]:
        """Compute the gradients of the loss.

        Parameters
        ----------
        cache : object
            Result of `forward`.

        Returns
        -------
        dh : ndarray, shape (B, d)
            Derivatives in the contexts.
        gradients : dict of str to ndarray or SparseRows
            Gradients under the names of `parameters`, of the head and of those tails that have
            labels in the batch.
        """
        make_arrays_writable(self.parameters)  # the optimizer will update them
        head_cache, tail_caches = cache
        head_gradients = self._loss.backward(head_cache)
        dh = head_gradients.dh
        gradients = dict[str, Gradient](head=head_gradients.dW)

        for i, rows, contexts, tail_cache in tail_caches:
            tail_gradients = self._loss.backward(tail_cache)
            dh[rows] += product(tail_gradients.dh, self.parameters[f"projection_{i}"])
            gradients[f"projection_{i}"] = product(tail_gradients.dh.T, contexts)
            gradients[f"tail_{i}"] = tail_gradients.dW

        return dh, gradients

    def update(self, ids: Any = None) -> None:
        """Do nothing: there is no sampler to update."""

    @ignoring_overflow  # results that are not finite raise an error
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
            If an argument is malformed, or a score is not finite.
        """
        head = self.parameters["head"]
        head_size = self.cutoffs[0]
        contexts = as_float_rows("h", h, head.shape[1], self.dtype)
        head_logs = log_softmax(product(contexts, head.T).astype(np.float64), axis=1)

        log_blocks = [head_logs[:, :head_size]]
        for i in range(1, len(self._bounds)):
            projected = product(contexts, self.parameters[f"projection_{i}"].T)
            scores = product(projected, self.parameters[f"tail_{i}"].T).astype(np.float64)
            log_blocks.append(head_logs[:, head_size + i - 1, None] + log_softmax(scores, axis=1))

        logs = np.concatenate(log_blocks, axis=1)[:, self._ranks]
        if not np.isfinite(logs).all():
            raise ValueError(
                f"`h` must have scores within the range of {self.dtype}, got numbers up to "
                f"{np.abs(contexts).max():.3g}; scale it down."
            )

        return logs

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
            If an argument is malformed, or a score is not finite.
        """
        k = checked_k(k, self.num_classes)
        logs = self.log_probs(h)
        ids = np.argsort(-logs, axis=1, kind="stable")[:, :k]
        return ids, np.take_along_axis(logs, ids, axis=1)


def _tail_dim(d: int, divisor: float, i: int) -> int:
    """Return the length of the class vectors of tail i, ``d / divisor**i``, at least 1."""
    return max(1, int(d // divisor**i)) if i * math.log(divisor) < 500.0 else 1


def _cheapest_cutoffs(frequencies: FloatArray, d: int, divisor: float) -> tuple[int, ...]:
    """Return the one or two cutoffs with which an example takes the fewest multiplications.

    `frequencies` (n,) are descending. If a head of all classes takes the fewest multiplications,
    the only cutoff is n.
    """
    n = len(frequencies)
    cumulative_fractions = np.append(0.0, np.cumsum(frequencies)) / frequencies.sum()
    candidates = np.unique(
        np.geomspace(1, max(n - 1, 1), _MAX_CUTOFF_CANDIDATES).astype(np.int64)
    ).tolist()

    costs = [(float(n * d), (n,))]

    for cut in [*combinations(candidates, 1), *combinations(candidates, 2)]:
        cost = float(d * (cut[0] + len(cut)))
        ends = (*cut, n)
        for i, (start, stop) in enumerate(zip(ends, ends[1:], strict=False), start=1):
            dim = _tail_dim(d, divisor, i)
            cost += (
                float(cumulative_fractions[stop] - cumulative_fractions[start])
                * dim
                * (d + stop - start)
            )
        costs.append((cost, cut))

    return min(costs)[1]
