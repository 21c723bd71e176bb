"""Draws from a softmax as the best of perturbed logits: several at once, and without all of them.

Independent Gumbel numbers are added to the logits. The best class is a draw from the softmax, and
the k best are one of k draws without replacement.
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
from samplesoft._limits import FAR, quiet
from samplesoft._random import as_key, mix64, uniform_block
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
from samplesoft.samplers.k_means import k_means, require_distances

Rng = int | np.random.Generator | None
_S12 = np.uint64(12)
_TAIL_STREAM = np.uint64(1 << 63)  # of a stream, a number that no context has


@dataclass(frozen=True, eq=False)
class GumbelDraw(Draw):
    """What `gumbel_top_k` returns.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, k)
        Distinct classes, in the order in which they are drawn.
    log_q : ndarray of float64, shape (B, k)
        Their log-softmax.
    log_inclusion : ndarray of float64, shape (B, k)
        ``log(1 - exp(-exp(log_q - threshold)))``, the logarithm of the probability to be among the
        k best **given** the threshold.
    threshold : ndarray of float64, shape (B,)
        The perturbed log-softmax of the best class that is not drawn; -inf if all are.
    """

    threshold: FloatArray | None = None


def gumbel_top_k(logits: ArrayLike, k: int, *, rng: Rng = None) -> GumbelDraw:
    """Draw k distinct classes in turn from the softmax of what is left, by Gumbel numbers.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits.
    k : int
        Number of classes, from 1, which is a draw from the softmax, to n, a random order.
    rng : int or numpy.random.Generator or None
        Seed of the draws.

    Returns
    -------
    GumbelDraw
        The classes in the order of their perturbed logits, their log-softmax, and the threshold.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or k is above n.

    Notes
    -----
    **Weights.** The sum of ``f_j / q_j`` over the k classes, with log q = `log_inclusion`, is an
    estimate of the sum of f over all n without bias for k < n [2]_, and exact for k = n; so a loss
    of scheme ``masked`` on this draw has an S of mean Z. That is a probability given the threshold,
    which is random; the plain one, an integral, is that of `WeightedSampler` with
    ``replace=False``, which draws from the same law.

    Take it where all logits are there anyway, as in the steps of a beam search, for one row at a
    time: it costs O(n) numbers a row. `SoftmaxSampler` draws with replacement.

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
    with quiet():
        log_p = np.maximum(log_softmax(o, axis=1), -1e300)
    noise = _gumbels(as_key(rng), batch, n)
    perturbed = log_p + noise
    order = np.argsort(-perturbed, axis=1)
    far = np.flatnonzero(log_p.min(axis=1) < -FAR)
    order[far] = _exact_order(o[far], noise[far])
    ids = np.ascontiguousarray(order[:, :k])
    log_q = np.take_along_axis(log_p, ids, axis=1)
    threshold = np.full(batch, -np.inf)
    if k < n:
        threshold = np.take_along_axis(perturbed, order[:, k : k + 1], axis=1)[:, 0]
    with np.errstate(over="ignore"):  # of a class that is certain
        above = log_q - threshold[:, None]
        for b in np.flatnonzero((threshold < -FAR) & (k < n)):
            # log q - (log q' + g), where both logarithms may be so large that g is lost
            best = order[b, k]
            above[b] = (o[b, ids[b]] - o[b, best]) - noise[b, best]
        log_inclusion = np.log(-np.expm1(-np.exp(above)))
    return GumbelDraw(ids, log_q, log_inclusion, threshold)


def _exact_order(logits: FloatArray, noise: FloatArray) -> IntArray:
    """Return the classes of rows (B, n) by falling sums of logits and noise, without rounding."""
    # Rounded sums do not change the order but where they are equal; what they leave out, which is
    # known exactly (Knuth), decides there. Of -1e17 + 0.3 that is 0.3.
    sums = logits + noise
    added = sums - logits
    left_out = (logits - (sums - added)) + (noise - added)
    order: IntArray = np.lexsort((-left_out, -sums), axis=1)
    return order


class _Cells(NamedTuple):
    """Cells (K,) of similar classes: those of cell i are ``order[starts[i] : starts[i + 1]]``.

    No logit of one exceeds ``q . center + |q| reach`` for a query q.
    """

    order: IntArray  # (n,)
    starts: IntArray  # (K + 1,)
    centers: FloatArray  # (K, d)
    reach: FloatArray  # (K,)


class LazyGumbel:
    r"""Exact draws from ``softmax(tau h.c)`` that look at about sqrt(n) logits each.

    Of a context the largest logits, its *head*, are found once. A draw perturbs these, and of the
    others, the *tail*, only the classes whose Gumbel numbers are so large that they might win:
    with M the best of the head and c a bound on the logits of the tail, those above ``M - c``.
    Each class of the tail has one with the chance ``1 - exp(-exp(c - M))``, so their number is
    binomial and their places are uniform.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    num_head : int, optional
        Size k of the head, the square root of n if left out.
    num_clusters : int, optional
        Number of clusters of classes by which heads are found. Left out, all n logits are computed.
    tau : float, optional
        Inverse temperature, 1 by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Cost.** A draw looks at k logits that are known and in the mean at no more than
    ``(n - k) e^c / Z_head`` of the tail: ``e^-M`` is ``1 / Z_head`` in the mean, and Z_head is at
    least ``k e^c`` with an exact head, which makes it n / k. The head itself costs all n logits of
    a context, as much as `SoftmaxSampler` needs for any number of draws; so there is something to
    gain only with clusters, or with a `head` from an index and a `tail_bound` to go with it. A
    bound that does not hold makes other draws: a class of the tail that is seen above it is an
    error, but not all are.

    **Heads by clusters.** K-means divides the classes into cells. No logit of a cell with the mean
    :math:`\mu` exceeds :math:`\tau (h \cdot \mu + |h| r)`, with the greatest distance r of its
    classes from it. Cells are scored in the order of these bounds, until there are k classes and a
    draw is to look at no more than k others: ``(n - k) e^c <= k Z``, with the bound c of the next
    cell and the Z of what is scored. The best k are the head, and the greater of c and their least
    logit is a bound on all others. So draws are from the softmax, whatever the cells.

    **When clusters pay**: for few draws of each of many contexts, and for vectors in tight groups.
    With 100,000 classes of 64 numbers and k = 317, in the mean over 100 contexts, beside a bound
    for each cluster (the last column is ``(n - k) e^c / Z_head``):

    =======================================  ========  =============  ========================
    vectors                                  clusters  logits scored  looked at by a draw, <=
    =======================================  ========  =============  ========================
    any of these                             none      100,000        50
    names, in a trained language model       316       41,400         443
    the same                                 3,162     21,600         467
    1,000 groups, with 0.3 of the spread     1,000     15,800         343
    that their centers have
    the same                                 3,162     461            152
    one Gaussian                             3,162     99,600         308
    =======================================  ========  =============  ========================

    Ten draws of a name with 3,162 clusters take a third of the time that they take with none. A
    hundred take about as long, for each looks at more of the tail, and k-means takes as long as
    2,000 to 3,000 heads without it. In one Gaussian cells are as wide as the whole, and bounds by
    their radius say nothing. To stop at k classes would not do: a draw of a name would look at
    nearly all of the tail.

    **Not a `Sampler`.** The probability of a draw, ``exp(logit) / Z``, needs Z. `sample` gives
    ``logit - log Z-hat`` with the estimate of `log_partition`: all draws of a context are off by
    the same factor, and in weights that are divided by their sum, as in the scheme ``importance``,
    it cancels; all of them are equal then, and the gradient has no bias. For the plain schemes the
    factor is wrong where Z-hat is; take `SoftmaxSampler` there.

    References
    ----------
    S. Mussmann, D. Levy and S. Ermon, "Fast Amortized Inference and Learning in Log-linear Models
    with Randomly Perturbed Nearest Neighbor Search", UAI 2017: the algorithm. Here the binomial
    number and the places are drawn together, as geometric gaps between the classes.

    Examples
    --------
    >>> import numpy as np
    >>> lazy = LazyGumbel(np.log([[1.0], [2.0], [5.0], [2.0]]))
    >>> draw = lazy.sample([1.0], 10_000, rng=0)
    >>> np.bincount(draw.ids[0]) / 10_000
    array([0.1012, 0.2009, 0.4964, 0.2015])
    >>> lazy.log_partition([1.0], 100, rng=0).round(2)  # log 10
    array([2.28])

    The same distribution with clusters, of 1,000 classes in four groups. Which classes are drawn
    depends on the last bits of scores, and so on the processor:

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
        size = math.isqrt(n - 1) + 1 if num_head is None else as_count("num_head", num_head)
        self.num_head = min(size, n)
        self.tau = as_tau(tau, unit_vectors=False)
        self._cells: _Cells | None = None
        if num_clusters is not None:
            self._cells = _divide(self._rows, min(n, as_count("num_clusters", num_clusters)))
        self._largest_norm = float(_norms(self._rows).max())

    def sample(
        self, h: Any, num_sampled: int, *, head: Any = None, tail_bound: Any = None, rng: Rng = None
    ) -> Draw:
        """Draw classes from the softmax of each context.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        num_sampled : int
            Number of draws m of each, independent.
        head : array_like of int, shape (B, k) or (k,), optional
            Distinct classes with large logits, as of an index of nearest neighbours; the classes of
            the `num_head` largest, of those that are scored, if left out.
        tail_bound : float or array_like, shape (B,), optional
            What no logit of another class exceeds. Left out, it is known of a head that is found
            here, and for a given `head` the product of the norms of the context and of the longest
            class vector, which always holds.
        rng : int or numpy.random.Generator or None
            Seed of the draws.

        Returns
        -------
        Draw
            ``ids`` (B, m), exact, and ``log_q`` (B, m), estimates as the class says: their Z has as
            many classes of the tail as there are in the head.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, a logit is not finite, or one that is seen of the tail is
            above `tail_bound`.
        """
        m = as_count("num_sampled", num_sampled)
        key = as_key(rng)
        queries, ids, scores, bounds = self._head(h, head)
        batch, k = ids.shape
        if tail_bound is not None:
            bounds = as_real_array("tail_bound", tail_bound, (0, 1))
            if bounds.size not in (1, batch):
                raise ValueError(f"`tail_bound` must have shape ({batch},), got {bounds.shape}.")
        bounds = np.broadcast_to(bounds, batch)
        # less the greatest, where that is so large that it would swallow Gumbel numbers
        shifts = _large(scores)
        scores -= shifts[:, None]
        drawn = np.empty((batch, m), np.int64)
        logits = np.empty((batch, m))
        for b, bound in enumerate(bounds):
            shift = shifts[b]
            seen = _race(
                self._rows,
                queries,
                b,
                ids[b],
                scores[b],
                bound - shift,
                key,
                drawn[b],
                logits[b],
                shift,
            )
            # beyond what rounding does to products
            if tail_bound is not None and seen > (bound - shift) + 1e-6 * (1.0 + abs(bound)):
                raise ValueError(
                    f"`tail_bound` must be at least each logit outside the head, got {bound} for "
                    f"context {b}, where one is {seen + shift}; raise it, or leave it out."
                )
        tail = np.uint64(mix64(key, _TAIL_STREAM))
        log_z = self._estimate(queries, ids, scores, shifts, k, tail)
        return Draw(drawn, logits - log_z[:, None])

    def log_partition(
        self, h: Any, num_tail: int, *, head: Any = None, rng: Rng = None
    ) -> FloatArray:
        """Estimate log Z from the head, and a uniform sample of the tail with replacement.

        ``Z-hat = sum of e over the head + (n - k) / l * sum of e over l draws`` has the mean Z and
        the variance ``((n - k) * sum of e^2 - (sum of e)^2) / l``, sums over the tail. Its
        logarithm is low in the mean, by about half of the variance over Z^2; exactly by the loss
        bias of `samplesoft.exact_bias` with scheme ``negatives``, uniform q, ``certain`` the head
        and a label in it.

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
            ``log Z-hat``; log Z itself where there is no tail.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a logit is not finite.
        """
        count = as_count("num_tail", num_tail)
        key = as_key(rng)
        queries, ids, scores, _ = self._head(h, head)
        return self._estimate(queries, ids, scores, np.zeros(len(ids)), count, key)

    def _head(self, h: Any, head: Any) -> tuple[Rows, IntArray, FloatArray, FloatArray]:
        """Return queries tau h, sorted heads (B, k), their logits, and bounds on all others."""
        rows = self._rows
        k = self.num_head
        queries = times_tau(as_float_rows("h", h, rows.shape[1], rows.dtype), self.tau)
        ids = np.empty((len(queries), k), np.int64)
        if head is not None:
            ids = np.sort(as_ids("head", head, len(rows), len(queries)), axis=1)
            if not ids.shape[1] or not np.diff(ids).all():
                what = f"a class twice, or none, in shape {ids.shape}; take numpy.unique of a row"
                raise ValueError(f"`head` must hold distinct classes, got {what}.")
        scores = np.empty(ids.shape)
        bounds = np.empty(len(queries))
        for b, query in enumerate(queries):
            with quiet():
                if head is None:
                    some, logits, bounds[b] = self._candidates(queries, b)
                    ids[b] = np.sort(some[np.argpartition(logits, len(logits) - k)[-k:]])
                scores[b] = rows[ids[b]] @ query
        if not np.isfinite(scores).all():
            what = f"within the range of {rows.dtype}, got {scores.max()}"
            raise ValueError(f"`h` must have logits {what}; scale vectors down, or use float64.")
        if head is None:  # candidates that are left out are no better than the worst of the head
            return queries, ids, scores, np.maximum(bounds, scores.min(axis=1))
        return queries, ids, scores, self._largest_norm * _norms(queries)

    def _candidates(self, queries: Rows, b: int) -> tuple[IntArray, FloatArray, float]:
        """Return classes of query b with their logits, and a bound on the logits of all others."""
        n = len(self._rows)
        if self._cells is None:
            return np.arange(n), self._rows @ queries[b], -np.inf
        query = queries[b].astype(np.float64)
        bounds = self._cells.centers @ query + self._cells.reach * np.linalg.norm(query)
        turn = np.argsort(-bounds)
        bounds = np.append(bounds[turn], -np.inf)
        ids = np.empty(n, np.int64)
        logits = np.empty(n)
        num, seen = _scan(
            self._rows, queries, b, self._cells, turn, bounds, self.num_head, ids, logits
        )
        return ids[:seen], logits[:seen], bounds[num]

    def _estimate(
        self,
        queries: Rows,
        ids: IntArray,
        scores: FloatArray,
        shifts: FloatArray,
        count: int,
        key: np.uint64,
    ) -> FloatArray:
        """Return log Z-hat (B,) from heads and `count` draws from each tail.

        Scores are less `shifts` (B,), and so is the result.
        """
        log_z: FloatArray = np.logaddexp.reduce(scores, axis=1)
        size = len(self._rows) - ids.shape[1]
        places = (uniform_block(key, len(queries), count) * size).astype(np.int64)
        for b in range(len(queries) if size else 0):
            # classes of the head that come before the one in a place of the tail
            skipped = np.searchsorted(ids[b] - np.arange(ids.shape[1]), places[b], side="right")
            logits = (self._rows[places[b] + skipped] @ queries[b]).astype(np.float64) - shifts[b]
            of_tail = np.logaddexp.reduce(logits) + math.log(size / count)
            log_z[b] = np.logaddexp(log_z[b], of_tail)
        return log_z


def _norms(rows: Rows) -> FloatArray:
    """Return the norms of rows (N, d)."""
    precise = rows.astype(np.float64)  # squares of small float32 are 0
    with quiet():
        norms: FloatArray = np.linalg.norm(precise, axis=1)
        if not np.isfinite(norms).all():  # squares, and perhaps not the norms
            unit = np.abs(precise).max()
            norms = np.linalg.norm(precise / unit, axis=1) * unit
    return norms


def _large(scores: FloatArray) -> FloatArray:
    """Return the greatest of each row (B, k) where it is far from 0, else 0."""
    greatest: FloatArray = scores.max(axis=1)
    return np.where(np.abs(greatest) > FAR, greatest, 0.0)


def _divide(rows: Rows, num: int) -> _Cells:
    """Divide classes with vectors (n, d) into at most `num` cells by k-means."""
    require_distances(float(np.abs(rows).max()), rows.dtype)
    labels = k_means(rows, num, np.uint64(0))  # draws are from the same law, whatever the cells
    order = np.argsort(labels, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(labels[order], prepend=-1)), len(rows))
    centers = np.empty((len(starts) - 1, rows.shape[1]))
    reach = np.empty(len(starts) - 1)
    # rounding of a product is below d eps / 2 |q| |c|: four times that, for centers and norms too
    slack = 2.0 * (rows.shape[1] + 2) * float(np.finfo(rows.dtype).eps)
    with quiet():
        for i, (first, last) in enumerate(pairwise(starts)):
            some = rows[order[first:last]].astype(np.float64)
            centers[i] = some.mean(axis=0)
            radius = np.linalg.norm(some - centers[i], axis=1).max()
            reach[i] = radius + slack * (radius + np.linalg.norm(centers[i]))
    return _Cells(order, starts, centers, reach)


@njit
def _scan(
    rows: Rows,
    queries: Rows,
    b: int,
    cells: _Cells,
    turn: IntArray,
    bounds: FloatArray,
    k: int,
    ids: IntArray,
    logits: FloatArray,
) -> tuple[int, int]:
    """Write classes of cells in turn, and logits for query b; return how many of cells and classes.

    It ends where a draw is to look at no more than k classes of the tail; `bounds` fall.
    """
    seen = 0
    greatest = -np.inf
    total = 0.0
    for c in range(len(turn)):
        # a draw looks at (n - k) e^bound / Z of them in the mean; Z is of what is seen
        if seen >= k and bounds[c] - greatest <= math.log(k * total / (len(rows) - k)):
            return c, seen
        for i in range(cells.starts[turn[c]], cells.starts[turn[c] + 1]):
            ids[seen] = cells.order[i]
            logits[seen] = row_dot(rows, ids[seen], queries, b)
            if logits[seen] > greatest:
                total *= math.exp(greatest - logits[seen])
                greatest = logits[seen]
            total += math.exp(logits[seen] - greatest)
            seen += 1
    return len(turn), seen


@njit
def _uniform(key: np.uint64, counter: np.uint64) -> float:
    """Return a float64 strictly inside (0, 1), whose logarithm is below 0 and finite."""
    # 52 bits and a half: with 53 bits the largest is rounded to 1
    return (float(mix64(key, counter) >> _S12) + 0.5) * (1.0 / 4503599627370496.0)


@njit
def _gumbels(key: np.uint64, batch: int, num: int) -> FloatArray:
    """Return Gumbel numbers (batch, num), each row on a stream of its own."""
    values = np.empty((batch, num))
    for b in range(batch):
        row = mix64(key, np.uint64(b))
        for j in range(num):
            values[b, j] = -math.log(-math.log(_uniform(row, np.uint64(j))))
    return values


@njit
def _race(
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
    """Write draws (m,) of context b and their logits; return the largest logit seen of the tail.

    `head` (k,) are sorted classes with logits `scores` (k,); `bound` is one on all other logits.
    All of these are less `shift`.
    """
    size = len(rows) - len(head)
    seen = -np.inf
    for k in range(len(ids)):
        stream = mix64(mix64(key, np.uint64(b)), np.uint64(k))
        best = -np.inf
        for i in range(len(head)):
            value = scores[i] - math.log(-math.log(_uniform(stream, np.uint64(i))))
            if value > best:
                best = value
                ids[k] = head[i]
                logits[k] = scores[i]
        # a Gumbel number is minus the log of an exponential one, a clock: a class of the tail may
        # win if its clock rings before this time, which it does with the chance `share`
        time = np.exp(bound - best)
        share = -math.expm1(-time)
        place = -1
        skipped = 0
        at = len(head)
        while True:
            # as each rings in time with the same chance, those that do not between two that do are
            # geometric in number: log(1 - share) is -time
            gap = -math.log(_uniform(stream, np.uint64(at))) / time
            if not gap < size - 1 - place:
                break
            place += 1 + int(gap)
            while skipped < len(head) and head[skipped] <= place + skipped:
                skipped += 1
            logit = row_dot(rows, place + skipped, queries, b) - shift
            seen = max(seen, logit)
            # the clock, given that it rings in time
            clock = -math.log1p(-share * _uniform(stream, np.uint64(at + 1)))
            at += 2
            if logit - math.log(clock) > best:
                best = logit - math.log(clock)
                ids[k] = place + skipped
                logits[k] = logit
    return seen
