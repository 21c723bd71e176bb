"""Draws from a softmax by Gumbel noise: k classes without replacement, and lazy draws.

Independent Gumbel noise is added to the logits. The class with the largest sum is a draw from the
softmax, and the k largest are k draws without replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

from samplesoft._jit import njit
from samplesoft._limits import FAR, ignore_overflow
from samplesoft._random import mix64, stream_key, uniform_block
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_float_rows,
    as_ids,
    as_real_array,
)
from samplesoft.kernels.rows import row_dot
from samplesoft.samplers.base import Draw, Rows
from samplesoft.samplers.k_means import k_means, require_finite_distances

Rng = int | np.random.Generator | None
_NUM_DROPPED_BITS = np.uint64(12)  # of 64 random bits, 52 are used
# number of the random stream for the tail in log Z-hat; contexts have smaller numbers
_TAIL_STREAM = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class GumbelDraw(Draw):
    """Result of `gumbel_top_k`.

    The perturbed log-softmax of a class is the sum of its log-softmax and its Gumbel noise.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, k)
        Distinct classes, in the order of the draws.
    log_q : ndarray of float64, shape (B, k)
        Log-softmax of these classes.
    log_inclusion : ndarray of float64, shape (B, k)
        ``log(1 - exp(-exp(log_q - threshold)))``, the log-probability that the perturbed
        log-softmax of the class is above the threshold, for a **fixed** threshold.
    threshold : ndarray of float64, shape (B,)
        The largest perturbed log-softmax of the classes that are not drawn; -inf if all are drawn.
    """

    threshold: FloatArray | None = None


def gumbel_top_k(logits: ArrayLike, k: int, *, rng: Rng = None) -> GumbelDraw:
    """Draw k classes from the softmax without replacement: the k largest logits plus Gumbel noise.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits.
    k : int
        Number of classes, from 1 (one draw from the softmax) to n (a random order of all).
    rng : int or numpy.random.Generator or None
        Seed of the draws.

    Returns
    -------
    GumbelDraw
        The classes, by decreasing sum of logit and noise; their log-softmax; and the threshold.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or k is above n.

    Notes
    -----
    **Weights.** With the inclusion probability ``pi_j = exp(log_inclusion_j)``, the sum of
    ``f_j / pi_j`` over the k classes is an unbiased estimate of the sum of f over all n classes for
    k < n [2]_, and exact for k = n. A loss with scheme ``masked`` on this draw therefore has
    E[S] = Z. These inclusion probabilities are conditional on the threshold, which is random.
    `WeightedSampler` with ``replace=False`` draws from the same distribution and returns the
    unconditional inclusion probabilities, which are integrals.

    Use this function if all logits are known anyway, as in a beam search; it takes O(n) for each
    row. `SoftmaxSampler` draws with replacement.

    References
    ----------
    .. [1] T. Vieira, "Gumbel-max trick and weighted reservoir sampling", 2014.
    .. [2] W. Kool, H. van Hoof and M. Welling, "Stochastic Beams and Where to Find Them", ICML
       2019: the estimator with importance weights ``q_kappa``.

    Examples
    --------
    >>> draw = gumbel_top_k([0.0, 1.0, 2.0], 2, rng=0)
    >>> draw.ids, draw.log_q.round(3), draw.threshold.round(3)
    (array([[2, 0]]), array([[-0.408, -2.408]]), array([-1.224]))
    """
    o = np.atleast_2d(as_real_array("logits", logits, (1, 2)))
    batch, n = o.shape
    if as_count("k", k) > n:
        raise ValueError(f"`k` must be at most the number of classes {n}, got {k}.")

    with ignore_overflow():
        log_p = np.maximum(log_softmax(o, axis=1), -1e300)

    noise = _gumbel_noise(stream_key(rng), batch, n)
    perturbed = log_p + noise
    order = np.argsort(-perturbed, axis=1)
    large_rows = np.flatnonzero(log_p.min(axis=1) < -FAR)
    order[large_rows] = _order_by_exact_sum(o[large_rows], noise[large_rows])

    ids = np.ascontiguousarray(order[:, :k])
    log_q = np.take_along_axis(log_p, ids, axis=1)

    threshold = np.full(batch, -np.inf)
    if k < n:
        threshold = np.take_along_axis(perturbed, order[:, k : k + 1], axis=1)[:, 0]

    # exp overflows for a class with inclusion probability 1
    with np.errstate(over="ignore"):
        excess = log_q - threshold[:, None]

        for b in np.flatnonzero((threshold < -FAR) & (k < n)):
            # The excess is log q - (log q' + g), with the probability q' and the noise g of the
            # class at the threshold. If the logarithms are so large that g is lost in the sum,
            # subtract logits first.
            threshold_class = order[b, k]
            excess[b] = (o[b, ids[b]] - o[b, threshold_class]) - noise[b, threshold_class]

        log_inclusion = np.log(-np.expm1(-np.exp(excess)))

    return GumbelDraw(ids, log_q, log_inclusion, threshold)


def _order_by_exact_sum(logits: FloatArray, noise: FloatArray) -> IntArray:
    """Return the classes (B, n) of each row, sorted by decreasing exact sum of logit and noise."""
    # Different exact sums may round to the same float, but rounding never reverses their order.
    # Such ties are broken by the rounding error of each sum, which is computed exactly (Knuth's
    # two-sum). For -1e17 + 0.3, which rounds to -1e17, the error is 0.3.
    sums = logits + noise
    rounded_noise = sums - logits
    rounding_error = (logits - (sums - rounded_noise)) + (noise - rounded_noise)
    order: IntArray = np.lexsort((-rounding_error, -sums), axis=1)
    return order


class _Cells(NamedTuple):
    """Partition of the classes into K cells of similar class vectors.

    Cell i has the classes ``order[offsets[i] : offsets[i + 1]]``. For a query q, the logits of its
    classes are at most ``q . center + |q| radius``.
    """

    order: IntArray  # (n,): classes sorted by cell
    offsets: IntArray  # (K + 1,)
    centers: FloatArray  # (K, d): mean vector of each cell
    radii: FloatArray  # (K,): largest distance from the mean, rounded up


class LazyGumbel:
    r"""Exact draws from ``softmax(tau h.c)`` that compute about sqrt(n) logits each.

    The classes with the largest logits of a context, its *head*, are found once. Each draw adds
    Gumbel noise to the logits of the head; let M be the largest sum. All other classes are the
    *tail*, and c is an upper bound on their logits. A class of the tail can have a sum above M only
    if its noise exceeds ``M - c``. A draw scores only these classes, that is, computes their
    logits. Each class of the tail has such noise with probability ``1 - exp(-exp(c - M))``. So the
    number of classes to score is binomial, and their positions in the tail are uniform.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    num_head : int, optional
        Number k of classes in the head; by default the square root of n.
    num_clusters : int, optional
        Number of clusters of classes, by which heads are found. By default, all n logits are
        computed to find a head.
    tau : float, optional
        Inverse temperature, 1 by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Cost.** A draw uses k known logits and scores on average at most ``(n - k) e^c / Z_head``
    classes of the tail, because ``E[e^-M]`` is ``1 / Z_head``, where Z_head is the sum of
    exp(logit) over the head. If the head has the k largest logits, Z_head is at least ``k e^c``, so
    that a draw scores at most n / k classes of the tail. The head itself takes all n logits of a
    context, as many as `SoftmaxSampler` needs for any number of draws. There is a gain only with
    clusters, or with a `head` and a `tail_bound` from an index. If the bound does not hold, draws
    have another distribution. A scored class above the bound raises an error, but not all classes
    are scored.

    **Heads by clusters.** K-means divides the classes into cells. The logits of a cell with the
    mean :math:`\mu` are at most :math:`\tau (h \cdot \mu + |h| r)`, where r is the largest distance
    of a class of the cell from the mean. Cells are scored by decreasing bound, until there are k
    classes and a draw scores on average at most k classes of the tail: ``(n - k) e^c <= k Z``, with
    the bound c of the next cell and the sum Z over the scored classes. The k largest of the scored
    logits are the head. The larger of c and the smallest logit of the head is a bound on all other
    logits. Draws are thus from the softmax, whatever the cells.

    **When clusters pay.** They pay for few draws of each of many contexts, and for class vectors in
    tight groups. For names in a trained language model, ten draws with 3,162 clusters took a third
    of the time without clusters, and a hundred draws the same time. If all class vectors are from
    one Gaussian, cells are as wide as the Gaussian, and bounds by their radius are useless. The
    page of benchmarks has the measurements.

    **Not a `Sampler`.** The probability of a draw, ``exp(logit) / Z``, needs Z. `sample` returns
    ``logit - log Z-hat``, with the estimate Z-hat of `log_partition`. All draws of a context have
    the same error. The error cancels in self-normalised weights, as in the scheme ``importance``,
    where all weights are equal and the gradient has no bias. In the schemes without normalised
    weights the error remains; use `SoftmaxSampler` with them.

    References
    ----------
    S. Mussmann, D. Levy and S. Ermon, "Fast Amortized Inference and Learning in Log-linear Models
    with Randomly Perturbed Nearest Neighbor Search", UAI 2017: the algorithm. This implementation
    draws the binomial number and the positions together, as geometric gaps between the positions.

    Examples
    --------
    >>> import numpy as np
    >>> lazy = LazyGumbel(np.log([[1.0], [2.0], [5.0], [2.0]]))
    >>> draw = lazy.sample([1.0], 10_000, rng=0)
    >>> np.bincount(draw.ids[0]) / 10_000
    array([0.1012, 0.2009, 0.4964, 0.2015])
    >>> lazy.log_partition([1.0], 100, rng=0).round(2)  # log 10
    array([2.28])

    The same distribution over four groups of 1,000 classes, with clusters. Which classes are drawn
    depends on the last bits of the scores, and so on the processor:

    >>> groups = np.arange(1000) % 4
    >>> lazy = LazyGumbel(np.eye(4)[groups], num_clusters=4)
    >>> draw = lazy.sample(np.log([1.0, 2.0, 5.0, 2.0]), 10_000, rng=0)
    >>> shares = np.bincount(groups[draw.ids[0]]) / 10_000
    >>> bool(np.abs(shares - [0.1, 0.2, 0.5, 0.2]).max() < 0.02)
    True
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        num_head: int | None = None,
        num_clusters: int | None = None,
        tau: float | None = None,
    ) -> None:
        self._rows: Rows = as_float_rows("class_embeddings", class_embeddings).copy()
        n = len(self._rows)
        head_size = math.isqrt(n - 1) + 1 if num_head is None else as_count("num_head", num_head)
        self.num_head = min(head_size, n)
        self.tau = as_tau(tau, unit_vectors=False)

        self._cells: _Cells | None = None
        if num_clusters is not None:
            self._cells = _make_cells(self._rows, min(n, as_count("num_clusters", num_clusters)))
        self._largest_norm = float(_row_norms(self._rows).max())

    def sample(
        self, h: Any, num_sampled: int, *, head: Any = None, tail_bound: Any = None, rng: Rng = None
    ) -> Draw:
        """Draw classes from the softmax of each context.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        num_sampled : int
            Number of independent draws m for each context.
        head : array_like of int, shape (B, k) or (k,), optional
            Distinct classes with large logits, for example from an index of nearest neighbours. By
            default, the sampler finds `num_head` classes as described in the class.
        tail_bound : float or array_like, shape (B,), optional
            Upper bound on the logits of all classes outside the head. Without the argument `head`,
            the default is the bound that results from the search for the head. With this argument,
            the default is tau times the norm of the context times the largest norm of a class
            vector.
        rng : int or numpy.random.Generator or None
            Seed of the draws.

        Returns
        -------
        Draw
            ``ids`` (B, m) are exact draws. ``log_q`` (B, m) are estimates, as described in the
            class, whose Z-hat uses k draws from the tail.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, a logit is not finite, or a scored logit of the tail is
            above `tail_bound`.
        """
        m = as_count("num_sampled", num_sampled)
        key = stream_key(rng)
        queries, ids, scores, bounds = self._heads_and_bounds(h, head)
        batch, k = ids.shape

        if tail_bound is not None:
            bounds = as_real_array("tail_bound", tail_bound, (0, 1))
            if bounds.size not in (1, batch):
                raise ValueError(f"`tail_bound` must have shape ({batch},), got {bounds.shape}.")
        bounds = np.broadcast_to(bounds, batch)

        # If the scores of a context are so large that Gumbel noise would be rounded away, subtract
        # their maximum.
        shifts = _shifts_of_large_scores(scores)
        scores -= shifts[:, None]

        ids_drawn = np.empty((batch, m), np.int64)
        logits = np.empty((batch, m))

        for b, bound in enumerate(bounds):
            shift = shifts[b]
            max_tail_logit = _draw_lazily(
                self._rows,
                queries,
                b,
                ids[b],
                scores[b],
                bound - shift,
                key,
                ids_drawn[b],
                logits[b],
                shift,
            )

            if tail_bound is not None:
                tolerance = 1e-6 * (1.0 + abs(bound))  # for the rounding of products
                if max_tail_logit > (bound - shift) + tolerance:
                    raise ValueError(
                        f"`tail_bound` must be at least each logit outside the head, got {bound} "
                        f"for context {b}, where one is {max_tail_logit + shift}; raise it, or "
                        "leave it out."
                    )

        tail_key = np.uint64(mix64(key, _TAIL_STREAM))
        log_z = self._estimate_log_partition(queries, ids, scores, shifts, k, tail_key)
        return Draw(ids_drawn, logits - log_z[:, None])

    def log_partition(
        self, h: Any, num_tail: int, *, head: Any = None, rng: Rng = None
    ) -> FloatArray:
        """Estimate log Z from the head and from a uniform sample of the tail with replacement.

        With ``e = exp(logit)`` and l draws from the tail, the estimate ``Z-hat = (sum of e over the
        head) + (n - k) / l * (sum of e over the draws)`` has the mean Z and the variance ``((n - k)
        * sum of e^2 - (sum of e)^2) / l``, with sums over the tail. Its logarithm is too low on
        average, by about the variance divided by 2 Z^2. The exact difference is the loss bias of
        `samplesoft.exact_bias` with scheme ``negatives``, uniform q, the head as ``certain`` and a
        label in the head.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        num_tail : int
            Number l of draws from the tail.
        head : array_like of int, shape (B, k) or (k,), optional
            As in `sample`.
        rng : int or numpy.random.Generator or None
            Seed of the draws.

        Returns
        -------
        ndarray of float64, shape (B,)
            ``log Z-hat``, which is log Z itself if all classes are in the head.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a logit is not finite.
        """
        num_tail_draws = as_count("num_tail", num_tail)
        key = stream_key(rng)
        queries, ids, scores, _ = self._heads_and_bounds(h, head)
        return self._estimate_log_partition(
            queries, ids, scores, np.zeros(len(ids)), num_tail_draws, key
        )

    def _heads_and_bounds(self, h: Any, head: Any) -> tuple[Rows, IntArray, FloatArray, FloatArray]:
        """Return queries tau h (B, d), heads (B, k), their logits (B, k), and bounds (B,).

        Each row of the heads is sorted. The bound of a context is an upper bound on the logits of
        its tail.
        """
        rows = self._rows
        k = self.num_head
        queries = times_tau(as_float_rows("h", h, rows.shape[1], rows.dtype), self.tau)
        ids = np.empty((len(queries), k), np.int64)

        if head is not None:
            ids = np.sort(as_ids("head", head, len(rows), len(queries)), axis=1)
            if not ids.shape[1] or not np.diff(ids).all():
                requirement = (
                    f"a class twice, or none, in shape {ids.shape}; use numpy.unique of a row"
                )
                raise ValueError(f"`head` must hold distinct classes, got {requirement}.")

        scores = np.empty(ids.shape)
        bounds = np.empty(len(queries))
        for b, query in enumerate(queries):
            with ignore_overflow():
                if head is None:
                    candidates, logits, bounds[b] = self._scored_candidates(queries, b)
                    ids[b] = np.sort(candidates[np.argpartition(logits, len(logits) - k)[-k:]])
                scores[b] = rows[ids[b]] @ query

        if not np.isfinite(scores).all():
            requirement = f"within the range of {rows.dtype}, got {scores.max()}"
            raise ValueError(
                f"`h` must have logits {requirement}; scale vectors down, or use float64."
            )

        if head is None:
            # scored classes outside the head have at most its smallest logit
            return queries, ids, scores, np.maximum(bounds, scores.min(axis=1))
        return queries, ids, scores, self._largest_norm * _row_norms(queries)

    def _scored_candidates(self, queries: Rows, b: int) -> tuple[IntArray, FloatArray, float]:
        """Return the classes scored for query b, their logits, and a bound on all other logits."""
        n = len(self._rows)
        if self._cells is None:
            return np.arange(n), self._rows @ queries[b], -np.inf

        query = queries[b].astype(np.float64)
        bounds = self._cells.centers @ query + self._cells.radii * np.linalg.norm(query)
        cell_order = np.argsort(-bounds)
        bounds = np.append(bounds[cell_order], -np.inf)

        ids = np.empty(n, np.int64)
        logits = np.empty(n)
        num_cells, num_scored = _score_cells(
            self._rows, queries, b, self._cells, cell_order, bounds, self.num_head, ids, logits
        )
        return ids[:num_scored], logits[:num_scored], bounds[num_cells]

    def _estimate_log_partition(
        self,
        queries: Rows,
        ids: IntArray,
        scores: FloatArray,
        shifts: FloatArray,
        num_tail_draws: int,
        key: np.uint64,
    ) -> FloatArray:
        """Return log Z-hat (B,) from the heads and `num_tail_draws` draws from each tail.

        `ids` (B, k) are the sorted heads, and `scores` (B, k) their logits minus `shifts` (B,). The
        result is log Z-hat minus `shifts`.
        """
        log_z: FloatArray = np.logaddexp.reduce(scores, axis=1)

        tail_size = len(self._rows) - ids.shape[1]
        positions = (uniform_block(key, len(queries), num_tail_draws) * tail_size).astype(np.int64)

        for b in range(len(queries) if tail_size else 0):
            # for each drawn tail position, the number of head classes with a smaller index than the
            # class at this position
            num_head_before = np.searchsorted(
                ids[b] - np.arange(ids.shape[1]), positions[b], side="right"
            )
            drawn = self._rows[positions[b] + num_head_before]
            logits = (drawn @ queries[b]).astype(np.float64) - shifts[b]

            log_tail = np.logaddexp.reduce(logits) + math.log(tail_size / num_tail_draws)
            log_z[b] = np.logaddexp(log_z[b], log_tail)

        return log_z


def _row_norms(rows: Rows) -> FloatArray:
    """Return the Euclidean norms (N,) of rows (N, d), without intermediate overflow."""
    float64_rows = rows.astype(np.float64)  # in float32, squares of small values underflow
    with ignore_overflow():
        norms: FloatArray = np.linalg.norm(float64_rows, axis=1)
        if not np.isfinite(norms).all():  # squares overflow, but the norms may be finite
            unit = np.abs(float64_rows).max()
            norms = np.linalg.norm(float64_rows / unit, axis=1) * unit
    return norms


def _shifts_of_large_scores(scores: FloatArray) -> FloatArray:
    """Return, for each row of `scores` (B, k), its maximum if that is far from 0, and else 0."""
    max_scores: FloatArray = scores.max(axis=1)
    return np.where(np.abs(max_scores) > FAR, max_scores, 0.0)


def _make_cells(rows: Rows, max_cells: int) -> _Cells:
    """Return a partition of classes with vectors `rows` (n, d) into at most `max_cells` cells."""
    require_finite_distances(float(np.abs(rows).max()), rows.dtype)
    # the seed is fixed, because cells change only the time of draws
    labels = k_means(rows, max_cells, np.uint64(0))

    order = np.argsort(labels, kind="stable")
    offsets = np.append(np.flatnonzero(np.diff(labels[order], prepend=-1)), len(rows))
    centers = np.empty((len(offsets) - 1, rows.shape[1]))
    radii = np.empty(len(offsets) - 1)

    # The rounding error of a dot product is below d eps / 2 |q| |c|. Four times this is added to
    # the radii, which also allows for the rounding of centers, radii and bounds.
    slack = 2.0 * (rows.shape[1] + 2) * float(np.finfo(rows.dtype).eps)

    with ignore_overflow():
        for i, (start, stop) in enumerate(pairwise(offsets)):
            vectors = rows[order[start:stop]].astype(np.float64)
            centers[i] = vectors.mean(axis=0)
            radius = np.linalg.norm(vectors - centers[i], axis=1).max()
            radii[i] = radius + slack * (radius + np.linalg.norm(centers[i]))

    return _Cells(order, offsets, centers, radii)


@njit
def _score_cells(
    rows: Rows,
    queries: Rows,
    b: int,
    cells: _Cells,
    cell_order: IntArray,
    bounds: FloatArray,
    k: int,
    ids: IntArray,
    logits: FloatArray,
) -> tuple[int, int]:
    """Score classes cell by cell: write them to `ids` and their logits for query b to `logits`.

    Cells come in the order `cell_order`, by decreasing `bounds` on their logits. The search stops
    as soon as a draw scores on average at most k classes of the tail. Returns the number of scored
    cells and the number of scored classes.
    """
    num_scored = 0
    max_logit = -np.inf
    total = 0.0

    for c in range(len(cell_order)):
        # a draw scores on average at most (n - k) e^bound / Z classes of the tail, with the sum Z
        # of exp(logit) over the classes scored so far
        if num_scored >= k and bounds[c] - max_logit <= math.log(k * total / (len(rows) - k)):
            return c, num_scored

        for i in range(cells.offsets[cell_order[c]], cells.offsets[cell_order[c] + 1]):
            ids[num_scored] = cells.order[i]
            logits[num_scored] = row_dot(rows, ids[num_scored], queries, b)
            if logits[num_scored] > max_logit:
                total *= math.exp(max_logit - logits[num_scored])
                max_logit = logits[num_scored]
            total += math.exp(logits[num_scored] - max_logit)
            num_scored += 1

    return len(cell_order), num_scored


@njit
def _open_uniform(key: np.uint64, counter: np.uint64) -> float:
    """Return draw number `counter` of a random stream, uniform in the open interval (0, 1)."""
    # 52 random bits plus one half: with 53 bits, the largest value would round to 1
    return (float(mix64(key, counter) >> _NUM_DROPPED_BITS) + 0.5) * (1.0 / 4503599627370496.0)


@njit
def _gumbel_noise(key: np.uint64, batch: int, num_classes: int) -> FloatArray:
    """Return Gumbel noise (batch, num_classes), with one random stream for each row."""
    values = np.empty((batch, num_classes))
    for b in range(batch):
        row = mix64(key, np.uint64(b))
        for j in range(num_classes):
            values[b, j] = -math.log(-math.log(_open_uniform(row, np.uint64(j))))
    return values


@njit
def _draw_lazily(
    rows: Rows,
    queries: Rows,
    b: int,
    head: IntArray,
    scores: FloatArray,
    bound: float,
    key: np.uint64,
    ids: IntArray,
    logits: FloatArray,
    shift: float = 0.0,
) -> float:
    """Write draws of context b to `ids` (m,) and their logits to `logits` (m,).

    `head` (k,) holds the sorted classes of the head, `scores` (k,) their logits, and `bound` is an
    upper bound on the logits of the tail. The function returns the largest scored logit of the
    tail. All these logits, and the written ones, are minus `shift`.
    """
    tail_size = len(rows) - len(head)
    max_tail_logit = -np.inf

    for k in range(len(ids)):
        stream = mix64(mix64(key, np.uint64(b)), np.uint64(k))

        max_perturbed = -np.inf
        for i in range(len(head)):
            perturbed = scores[i] - math.log(-math.log(_open_uniform(stream, np.uint64(i))))
            if perturbed > max_perturbed:
                max_perturbed = perturbed
                ids[k] = head[i]
                logits[k] = scores[i]

        # Gumbel noise is -log of an exponential time, at which a clock of the class rings. A class
        # of the tail can have the largest sum only if its clock rings before `time`, which has the
        # probability `prob`.
        time = np.exp(bound - max_perturbed)
        prob = -math.expm1(-time)

        position = -1
        skipped = 0
        counter = len(head)

        while True:
            # Each clock of the tail rings before `time` with the same probability `prob`. So the
            # number of classes between two classes whose clocks ring is geometric, with
            # log(1 - prob) = -time.
            gap = -math.log(_open_uniform(stream, np.uint64(counter))) / time
            if not gap < tail_size - 1 - position:
                break

            position += 1 + int(gap)
            while skipped < len(head) and head[skipped] <= position + skipped:
                skipped += 1

            logit = row_dot(rows, position + skipped, queries, b) - shift
            max_tail_logit = max(max_tail_logit, logit)

            # the time at which the clock rings: exponential, given that it is less than `time`
            clock = -math.log1p(-prob * _open_uniform(stream, np.uint64(counter + 1)))
            counter += 2

            if logit - math.log(clock) > max_perturbed:
                max_perturbed = logit - math.log(clock)
                ids[k] = position + skipped
                logits[k] = logit

    return max_tail_logit
