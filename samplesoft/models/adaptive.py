"""Adaptive softmax: frequent classes in a head, and rare ones in tails of shorter vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.special import log_softmax

from samplesoft._limits import ignoring_overflow
from samplesoft._random import as_key, mix64
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
    copy_read_only_arrays,
    scale_by_power_of_two,
)
from samplesoft.kernels.products import product
from samplesoft.losses.base import Cache, checked_weights
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.models.linear import Gradient, as_float_dtype, uniform_weights
from samplesoft.samplers.base import Rows
from samplesoft.search import check_k

_PLACES = 32  # that cutoffs are chosen from


class AdaptiveSoftmax:
    """A softmax over frequent classes and over tails of rarer ones, which have shorter vectors.

    The head has a score for each of the most frequent classes, and one for each tail. A class of a
    tail has the probability of the tail times that of the class among those of the tail, by a
    projection of the context to ``d / div_value**i`` numbers in the i-th. Take it where a few
    classes make up most examples, such as words: what an example costs is the head, and seldom
    more. Rare classes are told apart less well than by the full or the sampled softmax.

    Parameters
    ----------
    embedding_dim : int
        Length d of contexts.
    counts : array_like, shape (n,)
        How often each class occurs, in any unit: the head and the tails are by that.
    cutoffs : sequence of int, optional
        How many of the most frequent classes are in the head, and how many in the head and in the
        tails up to each but the last. By default one or two, or a head of all n, of least
        multiplications for an example.
    div_value : float
        How much shorter the vectors of each tail are, at least 1.
    reduction : {"mean", "sum"}
        The value is the mean of the examples' losses by their weights, or their weighted sum.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Source of the parameters.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"head"`` (c + T, d), of c frequent classes by their frequency and T tails, and for each
        tail ``"projection_i"`` (d_i, d) and ``"tail_i"`` (n_i, d_i).
    order : ndarray of int64, shape (n,)
        The classes by frequency.
    cutoffs : tuple of int
        As above.

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
        d, self.dtype = as_count("embedding_dim", embedding_dim), as_float_dtype(dtype)
        frequencies = scale_by_power_of_two(as_counts("counts", counts))
        divisor = as_positive("div_value", div_value)
        if divisor < 1.0:
            raise ValueError(f"`div_value` must be at least 1, got {div_value}.")
        self.reduction = as_choice("reduction", reduction, ("mean", "sum"))
        self.num_classes = n = len(frequencies)
        self.order: IntArray = np.argsort(-frequencies, kind="stable")
        self._ranks = np.argsort(self.order)
        if cutoffs is None:
            chosen = _cheapest(frequencies[self.order], d, divisor)
        else:
            every = np.atleast_1d(as_array("cutoffs", cutoffs)).tolist()
            chosen = tuple(as_count("cutoffs", cutoff) for cutoff in every)
            if not chosen or any(b <= a for a, b in zip(chosen, (*chosen[1:], n), strict=True)):
                raise ValueError(
                    f"`cutoffs` must rise and be below the {n} classes, got {list(chosen)}."
                )
        self.cutoffs = chosen
        self._bounds = np.unique([*chosen, n])  # a head of all classes has no tail
        shapes = {"head": (chosen[0] + len(self._bounds) - 1, d)}
        for i, num in enumerate(np.diff(self._bounds).tolist(), start=1):
            short = _length(d, divisor, i)
            shapes |= {f"projection_{i}": (short, d), f"tail_{i}": (num, short)}
        key = as_key(rng)
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
        """Compute the loss; nothing is drawn, so that `rng` is not used.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,)
            Labels.
        weights : array_like, shape (B,), optional
            Weights of the examples.
        rng : object
            Not used.

        Returns
        -------
        value : float
            The loss in nats.
        cache : object
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        head = self.parameters["head"]
        contexts = as_float_rows("h", h, head.shape[1], self.dtype)
        ranks = self._ranks[as_labels("labels", labels, self.num_classes, contexts.shape[:1])]
        each = checked_weights(weights, len(contexts), self.reduction, self.dtype)
        tails = np.searchsorted(self._bounds, ranks, side="right")  # 0 is the head
        first = np.where(tails > 0, self.cutoffs[0] + tails - 1, ranks)
        value, of_head = self._loss.forward(contexts, head, first, weights=each)
        parts: list[tuple[int, IntArray, Rows, Cache]] = []
        for i in range(1, len(self._bounds)):
            rows = np.flatnonzero(tails == i)
            if len(rows):
                short = product(contexts[rows], self.parameters[f"projection_{i}"].T)
                places = ranks[rows] - self._bounds[i - 1]
                vectors = self.parameters[f"tail_{i}"]
                lost, cache = self._loss.forward(short, vectors, places, weights=each[rows])
                value += lost
                parts.append((i, rows, contexts[rows], cache))
        return float(value), (of_head, parts)

    def backward(self, cache: Any) -> tuple[Rows, dict[str, Gradient]]:
        """Compute gradients.

        Parameters
        ----------
        cache : object
            From `forward`.

        Returns
        -------
        dh : ndarray, shape (B, d)
            Derivatives in the contexts.
        gradients : dict of str to ndarray or SparseRows
            Derivatives under the names of `parameters`, of the head and of the tails that have a
            label in the batch.
        """
        copy_read_only_arrays(self.parameters)  # which are about to change
        of_head, parts = cache
        found = self._loss.backward(of_head)
        dh, gradients = found.dh, dict[str, Gradient](head=found.dW)
        for i, rows, contexts, of_tail in parts:
            of_loss = self._loss.backward(of_tail)
            dh[rows] += product(of_loss.dh, self.parameters[f"projection_{i}"])
            gradients[f"projection_{i}"] = product(of_loss.dh.T, contexts)
            gradients[f"tail_{i}"] = of_loss.dW
        return dh, gradients

    def update(self, ids: Any = None) -> None:
        """Do nothing: there is no sampler that follows."""

    @ignoring_overflow  # what is not finite is refused
    def log_probs(self, h: ArrayLike) -> FloatArray:
        """Compute the log-probabilities of all classes.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.

        Returns
        -------
        ndarray of float64, shape (B, n)
            In nats.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a score is not finite.
        """
        head, num = self.parameters["head"], self.cutoffs[0]
        contexts = as_float_rows("h", h, head.shape[1], self.dtype)
        of_head = log_softmax(product(contexts, head.T).astype(np.float64), axis=1)
        parts = [of_head[:, :num]]
        for i in range(1, len(self._bounds)):
            short = product(contexts, self.parameters[f"projection_{i}"].T)
            scores = product(short, self.parameters[f"tail_{i}"].T).astype(np.float64)
            parts.append(of_head[:, num + i - 1, None] + log_softmax(scores, axis=1))
        logs = np.concatenate(parts, axis=1)[:, self._ranks]
        if not np.isfinite(logs).all():
            raise ValueError(
                f"`h` must have scores within the range of {self.dtype}, got numbers up to "
                f"{np.abs(contexts).max():.3g}; scale it down."
            )
        return logs

    def top_k(self, h: ArrayLike, k: int) -> tuple[IntArray, FloatArray]:
        """Find the most likely classes.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            How many classes, at most n.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes, the most likely first, and of equal ones the first one.
        logs : ndarray of float64, shape (B, k)
            Their log-probabilities.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a score is not finite.
        """
        k, logs = check_k(k, self.num_classes), self.log_probs(h)
        ids = np.argsort(-logs, axis=1, kind="stable")[:, :k]
        return ids, np.take_along_axis(logs, ids, axis=1)


def _length(d: int, divisor: float, i: int) -> int:
    """Return the length of the vectors of the i-th tail; a power beyond d is as good as d."""
    return max(1, int(d // divisor**i)) if i * math.log(divisor) < 500.0 else 1


def _cheapest(frequencies: FloatArray, d: int, divisor: float) -> tuple[int, ...]:
    """Return one or two cutoffs of least multiplications, for falling frequencies (n,).

    It is n where a head of all classes takes the fewest.
    """
    n = len(frequencies)
    shares = np.append(0.0, np.cumsum(frequencies)) / frequencies.sum()
    places = np.unique(np.geomspace(1, max(n - 1, 1), _PLACES).astype(np.int64)).tolist()
    found = [(float(n * d), (n,))]
    for cut in [*combinations(places, 1), *combinations(places, 2)]:
        cost, ends = float(d * (cut[0] + len(cut))), (*cut, n)
        for i, (first, last) in enumerate(zip(ends, ends[1:], strict=False), start=1):
            short = _length(d, divisor, i)
            cost += float(shares[last] - shares[first]) * short * (d + last - first)
        found.append((cost, cut))
    return min(found)[1]
