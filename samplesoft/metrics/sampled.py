r"""Metrics on sampled negatives: their exact law, and what they say of the metrics on all items.

A metric is a function of the rank of a relevant item. Among m sampled negatives the rank is random:
:math:`1 + b`, where b of the m draws are better than the item. So a sampled metric has an exact
mean and variance, and a correction is another function, of the sampled rank, with its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit, row_chunks
from samplesoft._memory import require_room
from samplesoft._validation import (
    LARGEST_COUNT,
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_counts,
    as_csr,
    as_flag,
    as_float_rows,
    as_ids,
    as_labels,
    as_positive,
    as_real_array,
    as_share,
    in_small_unit,
    require_instance,
    shown,
)
from samplesoft.samplers.base import Rows
from samplesoft.search import check_leave_out

_METRICS = ("recall", "precision", "ndcg", "mrr")
_PROBABILITIES_AT_A_TIME = 1 << 22  # probabilities that are made at a time
# in place of the mass of a negative
_LEFT_OUT = -1.0
_RELEVANT = -2.0


class TargetRanks:
    """Relevant items of examples, by their places among all candidates.

    Parameters
    ----------
    ranks : array_like of int, shape (P,)
        Ranks of the relevant items among all candidates, counted from 1. Of equal scores relevant
        items come before negatives.
    num_candidates : int or array_like of int, shape (P,)
        Number of candidates of the example: its relevant items, and its negatives.
    examples : array_like of int, shape (P,), optional
        The example of each item; by default each is of an example of its own.
    better : array_like, shape (P,), optional
        For draws that are not uniform, the probability that a drawn negative is better than the
        item.
    num_tied : array_like of int, shape (P,), optional
        Negatives whose score is that of the item; by default none.
    tied : array_like, shape (P,), optional
        For draws that are not uniform, the probability that a drawn negative is one of these.

    Attributes
    ----------
    ranks, num_candidates, examples, num_tied : ndarray of int64, shape (P,)
        As above, in the order of the examples and, in an example, of the ranks.
    better, tied, worse : ndarray of float64, shape (P,)
        Numbers of negatives that are better, of equal score and worse, or for draws that are not
        uniform the probabilities of such.
    uniform : bool
        Whether draws are uniform.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or ranks of an example are equal or too great.

    Examples
    --------
    >>> TargetRanks([4, 2], 10, examples=[0, 0]).better  # the first is no negative of the second
    array([1., 2.])
    """

    def __init__(
        self,
        ranks: ArrayLike,
        num_candidates: ArrayLike,
        examples: ArrayLike | None = None,
        better: ArrayLike | None = None,
        num_tied: ArrayLike | None = None,
        tied: ArrayLike | None = None,
    ) -> None:
        places = _as_ranks(ranks)
        of = "candidates"
        count = as_labels("num_candidates", num_candidates, LARGEST_COUNT, places.shape, of=of)
        owners = np.arange(len(places))
        if examples is not None:
            owners = as_labels("examples", examples, LARGEST_COUNT, places.shape, of="examples")
        equal = np.zeros(len(places), np.int64)
        if num_tied is not None:
            equal = as_labels("num_tied", num_tied, LARGEST_COUNT, places.shape, of="candidates")
        order = np.lexsort((places, owners))
        self.ranks = places[order]
        self.num_candidates = count[order]
        self.examples = owners[order]
        self.num_tied = equal[order]
        self.uniform = better is None
        self._first = np.flatnonzero(np.diff(self.examples, prepend=-1))
        self._numbers = np.diff(self._first, append=len(order))  # of the items of an example
        self._place = np.arange(len(order)) - np.repeat(self._first, self._numbers)  # from 0
        above = self.ranks - 1 - self._place
        self._above = above
        self._negatives = self.num_candidates - np.repeat(self._numbers, self._numbers)
        self.better = above.astype(np.float64)
        self.tied = self.num_tied.astype(np.float64)
        self.worse = 1.0 * (self._negatives - above - self.num_tied)
        wrong = (self.worse < 0.0) | (self._steps(self.num_candidates) != 0)
        # relevant items of equal score share the negatives that are better, and those of a tie
        rises = self._steps(above)
        tied_before = np.append(0, self.num_tied[:-1])
        same_tie = (rises == 0) & (self._steps(self.num_tied) == 0)
        self._in_tie_before = (self._place > 0) & same_tie & (self.num_tied > 0)
        wrong |= (self._place > 0) & ~same_tie & (rises < tied_before)
        wrong |= rises < 0
        if better is not None:
            share = _as_probabilities("better", better, order)
            self.better = share
            self.tied = np.zeros(len(order))
            if num_tied is not None:
                self.tied = _as_probabilities("tied", tied, order)
            self.worse = np.maximum(1.0 - self.better - self.tied, 0.0)
            wrong |= self._steps(self.better) < 0.0
        if wrong.any():
            raise ValueError(
                "`ranks` of an example must be distinct and at most its one `num_candidates`, with "
                "`num_tied` negatives after those of a tie, and `better` must not fall with them, "
                "got otherwise in example "
                f"{self.examples[np.argmax(wrong)]}; take them from target_ranks."
            )

    def _steps(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return by how much values (P,) rise from the item before, 0 for the first of each."""
        return np.where(self._place > 0, np.diff(values, prepend=values[0]), 0)

    def _tie_sizes(self) -> IntArray:
        """Return how many relevant items a tie has (P,), at the first of these; 0 at the others."""
        starts = np.flatnonzero(~self._in_tie_before)
        sizes = np.zeros(len(self.ranks), np.int64)
        sizes[starts] = np.diff(starts, append=len(self.ranks))
        return sizes

    def _draws(self, num_sampled: Any, replacement: Any) -> tuple[int, bool]:
        """Return the number of draws, for which there must be negatives, and if these leave."""
        draws = as_count("num_sampled", num_sampled)
        again = as_flag("replacement", replacement)
        least = int(self._negatives.min())
        if least < (1 if again else draws):
            raise ValueError(
                f"`num_sampled` must be at most the number of negatives, got {draws} of {least}; "
                "draw fewer, or of at least one negative with replacement=True."
            )
        if not (again or self.uniform):
            raise ValueError("`replacement` must be True for draws by a `q`, got False.")
        return draws, not again


@dataclass(frozen=True)
class SampledMetrics:
    """Metrics on all candidates, and the same metrics on sampled negatives.

    Parameters
    ----------
    full : dict of str to float
        ``recall@k``, ``precision@k``, ``ndcg@k`` and ``mrr@k`` for each k, and ``auc``, among all
        candidates; means over the examples.
    expected : dict of str to float
        ``sampled_recall@k`` and so on: their expectation among sampled negatives.
    variance : dict of str to float
        The variance of the same, for examples as they are and draws of each example of its own.
    """

    full: dict[str, float]
    expected: dict[str, float]
    variance: dict[str, float]


class MetricCorrection(NamedTuple):
    """A function of the sampled rank that estimates a metric, and how well it does.

    Parameters
    ----------
    values : ndarray of float64, shape (m + 1,)
        What a sampled rank of 1, ..., m + 1 counts.
    bias : ndarray of float64, shape (n,)
        The mean of these, less the metric, for an item of rank 1, ..., n.
    variance : ndarray of float64, shape (n,)
        Their variance.
    """

    values: FloatArray
    bias: FloatArray
    variance: FloatArray


def rank_metric(name: str, k: int, ranks: ArrayLike) -> FloatArray:
    """Compute a metric of one relevant item by its rank.

    Parameters
    ----------
    name : str
        ``"recall"``, 1 for ranks up to k; ``"precision"``, 1 / k; ``"ndcg"``, 1 / log2(1 + rank);
        ``"mrr"``, 1 / rank. All are 0 beyond k.
    k : int
        Length of the list.
    ranks : array_like of int, shape (P,)
        Ranks, counted from 1.

    Returns
    -------
    ndarray of float64, shape (P,)
        The metric at each rank.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> rank_metric("ndcg", 3, [1, 2, 3, 4]).round(3)
    array([1.   , 0.631, 0.5  , 0.   ])
    """
    places = _as_ranks(ranks)
    size = as_count("k", k)
    costs = {"recall": 1.0, "precision": size, "ndcg": np.log2(1.0 + places), "mrr": places}
    gains: FloatArray = (places <= size) / costs[as_choice("name", name, _METRICS)]
    return gains


def target_ranks(
    scores: ArrayLike, labels: Any, *, q: ArrayLike | None = None, leave_out: Any = None
) -> TargetRanks:
    """Rank the relevant items of each example among all candidates.

    Parameters
    ----------
    scores : array_like, shape (B, n)
        Scores of all items. Ties are counted, see `TargetRanks.num_tied`.
    labels : scipy.sparse matrix, shape (B, n)
        Relevant items, where it is not 0. Examples without any are left out.
    q : array_like, shape (n,), optional
        Proposal of the negatives, or numbers in proportion to it, such as counts; by default
        uniform. Draws are among the negatives of the example.
    leave_out : scipy.sparse matrix, shape (B, n), optional
        Items that are no candidates of an example, where it is not 0, such as those of training.

    Returns
    -------
    TargetRanks
        The ranks, for `sampled_metrics`. `examples` are rows of `scores`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, an item is relevant and left out, no example has a label, or
        no negative of an example can be drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> found = target_ranks([[0.3, 0.9, 0.1, 0.5]], csr_array([[1, 0, 1, 0]]))
    >>> found.ranks, found.num_candidates
    (array([3, 4]), array([4, 4]))
    """
    rows = as_float_rows("scores", scores)
    relevant = check_leave_out(as_csr("labels", labels), rows.shape, "labels")
    absent = check_leave_out(leave_out, rows.shape)
    n = rows.shape[1]
    masses = in_small_unit(as_counts("q", np.ones(n) if q is None else q, n))
    masses = np.tile(masses, (len(rows), 1))
    if absent is not None:
        masses[absent.nonzero()] = _LEFT_OUT
    examples, items = (ids.astype(np.int64) for ids in relevant.nonzero())
    missing = int(np.sum(masses[examples, items] == _LEFT_OUT))
    if not len(items) or missing:
        raise ValueError(
            "`labels` must hold relevant items, none of them in `leave_out`, got "
            f"{len(items)} relevant items, and {missing} that are left out."
        )
    masses[examples, items] = _RELEVANT
    ranks, num_tied, better, tied = _rank(rows, masses, examples, items)
    if np.isnan(better).any():
        raise ValueError(
            "`scores` must have a negative that can be drawn in each row with a label, got none in "
            f"row {examples[np.argmax(np.isnan(better))]}; leave out its labels."
        )
    sizes = np.sum(masses != _LEFT_OUT, axis=1)[examples]
    if q is None:
        return TargetRanks(ranks, sizes, examples, num_tied=num_tied)
    return TargetRanks(ranks, sizes, examples, better, num_tied=num_tied, tied=tied)


def sampled_metrics(
    targets: TargetRanks, num_sampled: int, k: int | Sequence[int], *, replacement: bool = False
) -> SampledMetrics:
    r"""Compute exact means and variances of ranking metrics on sampled negatives.

    Parameters
    ----------
    targets : TargetRanks
        Ranks of the relevant items among all candidates, as from `target_ranks`.
    num_sampled : int
        Negatives m that are drawn for an example.
    k : int or sequence of int
        Lengths of the lists.
    replacement : bool
        Whether a negative may be drawn more than once. Draws by a `q` may.

    Returns
    -------
    SampledMetrics
        Metrics on all candidates, and mean and variance of the same on sampled negatives.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or there are fewer negatives than are to be drawn without
        replacement.

    Notes
    -----
    Nothing is drawn. With :math:`K` of the :math:`N` negatives better than an item, its sampled
    rank among m draws is :math:`1 + b`, with :math:`b \sim \mathrm{Hypergeometric}(N, K, m)`, or
    :math:`\mathrm{Binomial}(m, K/N)` with replacement; with any q, the mass of the better ones
    stands in place of :math:`K/N`.

    An example may have several relevant items. All stand in one list with the same m negatives, as
    they do among all candidates: the j-th best has the rank :math:`j + b_j`. Recall and nDCG are
    divided by their greatest, of R relevant items, as in `ranking_scores`; MRR is of the best one
    alone; AUC is the mean share of negatives that are worse. Given :math:`b_j`, the draws that fall
    between item j and the next are again binomial or hypergeometric, so that the :math:`b_j` are a
    Markov chain: mean and variance of a sum over the items come from one pass over it, from the
    last to the first, in time :math:`O(R k m)`. With m = N and no replacement all of it is as on
    all candidates, with a variance of 0 but for ties.

    Candidates of equal score stand in random order: all metrics are expectations over it, too, and
    the variances have its part. Of d draws that tie with r relevant items, x stand before the first
    of these with probability :math:`\binom{d - x + r - 1}{r - 1} / \binom{d + r}{r}`. AUC counts a
    tie as a half.

    References
    ----------
    .. [1] W. Krichene and S. Rendle, "On Sampled Metrics for Item Recommendation", KDD 2020,
       sections 3 and 4: the binomial law and the expected metrics, for one relevant item.

    Examples
    --------
    Among all 10,001 items the first recommender is better, among 100 negatives the second:

    >>> for ranks in ([1, 3000], [100, 100]):
    ...     found = sampled_metrics(TargetRanks(ranks, 10_001), 100, k=10)
    ...     print(found.full["recall@10"], round(found.expected["sampled_recall@10"], 3))
    0.5 0.5
    0.0 1.0
    """
    require_instance("targets", targets, TargetRanks)
    draws, removed = targets._draws(num_sampled, replacement)
    sizes = sorted({as_count("k", size) for size in np.atleast_1d(as_array("k", k))})
    if not sizes:
        raise ValueError("`k` must hold lengths of lists, got none.")
    first = targets._first
    numbers = targets._numbers
    place = targets._place
    columns = [(size, name) for size in sizes for name in _METRICS]
    longest = np.arange(1, min(sizes[-1], draws + int(numbers.max())) + 1)
    table = np.array([rank_metric(name, size, longest) for size, name in columns])
    tables = np.stack([table, table])  # of the best item of an example, and of the others
    tables[1, 3::4] = 0.0
    # what a sum over the relevant items is divided by
    ideal = np.cumsum(1.0 / np.log2(1.0 + longest))
    ones = np.ones(len(first))
    most = [ideal[np.minimum(numbers, size) - 1] for size in sizes]
    scale = np.array([row for each in most for row in (numbers, ones, each, ones)])
    gains = np.array([rank_metric(name, size, targets.ranks) for size, name in columns])
    gains[3::4] *= place == 0
    ends = np.append(first, len(place))
    whole = targets.better + targets.tied + targets.worse
    groups = targets._tie_sizes()
    with_ties = np.flatnonzero((groups > 0) & (targets.num_tied > 0))
    if len(with_ties):
        anywhere = np.arange(1, sizes[-1] + 1)  # the list may be longer than what is drawn
        table = np.array([rank_metric(name, size, anywhere) for size, name in columns])
        _average_over_ties(gains, with_ties, groups, place, targets._above, targets.num_tied, table)
    tied_before = np.append(0.0, targets.tied[:-1])
    between = np.where(place > 0, targets._steps(targets.better), targets.better)
    new_group = (place > 0) & ~targets._in_tie_before
    between[new_group] = np.maximum(between[new_group] - tied_before[new_group], 0.0)
    ties = np.where(targets._in_tie_before, 0.0, targets.tied)
    mean, variance = _moments(ends, between, targets.worse, draws, removed, tables, ties, groups)
    # AUC is a mean over the draws: one that j of the R items are better than counts j / R
    each = np.repeat(numbers, numbers)
    auc = 1.0 - np.add.reduceat((targets.better + targets.tied / 2) / whole, first) / numbers
    square = between * (place / each - np.repeat(auc, numbers)) ** 2
    square += ties * ((place + groups / 2) / each - np.repeat(auc, numbers)) ** 2
    square = np.add.reduceat(square, first) + targets.worse[ends[1:] - 1] * (1.0 - auc) ** 2
    left = (whole[first] - draws) / np.maximum(whole[first] - 1.0, 1.0) if removed else ones
    above = (
        np.add.reduceat((targets._above + targets.num_tied / 2) / targets._negatives, first)
        / numbers
    )
    full = [*np.add.reduceat(gains, first, axis=1) / scale, 1.0 - above]
    moments = [*mean / scale, auc], [*variance / scale**2, square * left / whole[first] / draws]
    names = [f"{name}@{size}" for size, name in columns] + ["auc"]
    sampled = [f"sampled_{name}" for name in names]
    return SampledMetrics(
        {name: float(row.mean()) for name, row in zip(names, full, strict=True)},
        {name: float(row.mean()) for name, row in zip(sampled, moments[0], strict=True)},
        {name: float(row.mean() / len(row)) for name, row in zip(sampled, moments[1], strict=True)},
    )


def sampled_rank_law(
    targets: TargetRanks, num_sampled: int, *, replacement: bool = False
) -> FloatArray:
    """Compute the exact law of the rank of each relevant item among sampled negatives.

    Parameters
    ----------
    targets : TargetRanks
        Ranks of the relevant items among all candidates, as from `target_ranks`.
    num_sampled, replacement
        As in `sampled_metrics`.

    Returns
    -------
    ndarray of float64, shape (P, m + 1)
        Probabilities of the ranks 1, ..., m + 1 among the m negatives, without other relevant
        items.

    Raises
    ------
    MemoryError
        If the probabilities do not fit.
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> sampled_rank_law(TargetRanks([1, 3], 5), 2).round(3)
    array([[1.   , 0.   , 0.   ],
           [0.167, 0.667, 0.167]])
    """
    require_instance("targets", targets, TargetRanks)
    draws, removed = targets._draws(num_sampled, replacement)
    require_room("num_sampled", draws, 8.0 * len(targets.ranks) * (draws + 1))
    return _laws(targets, slice(None), draws, removed)


def correct_metric(
    metric: ArrayLike,
    num_sampled: int,
    *,
    method: str = "bias-variance",
    gamma: float = 0.1,
    prior: ArrayLike | None = None,
    replacement: bool = False,
) -> MetricCorrection:
    r"""Make a function of the sampled rank that estimates a metric on all candidates.

    Parameters
    ----------
    metric : array_like, shape (n,)
        The metric of one relevant item by its rank 1, ..., n, as from `rank_metric`.
    num_sampled : int
        Negatives m that are drawn uniformly.
    method : str
        ``"bias-variance"``, or ``"rank"``: the metric at the rank that is estimated without bias.
    gamma : float
        Weight of the variance against the squared bias, from 0 to 1. 0 asks for the least bias, and
        for the least variance among such; 1 gives the mean of the metric given the sampled rank.
    prior : array_like, shape (n,), optional
        Weights of the ranks, with which bias and variance are averaged; by default all are equal.
    replacement : bool
        Whether a negative may be drawn more than once.

    Returns
    -------
    MetricCorrection
        The values by sampled rank, 0 for those that `prior` rules out, and their exact bias and
        variance for an item of each rank.

    Raises
    ------
    MemoryError
        If a matrix of m + 1 rows and columns does not fit.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    With the law :math:`A_{ri}` of the sampled rank i of an item of rank r, the metric M and the
    prior p, ``"bias-variance"`` minimises over the values c

    .. math:: \sum_r p_r \left[ (A_r c - M_r)^2 + \gamma \operatorname{Var}_r(c) \right] ,

    which has :math:`((1 - \gamma) A' P A + \gamma \operatorname{diag}(p A)) c = A' P M` [1]_.
    Squares of A would lose half of the digits. Here A is brought to a triangle, block by block, and
    its singular values s, in the metric of :math:`pA` at most 1, become
    :math:`s / ((1 - \gamma) s^2 + \gamma)`. That takes :math:`O(n m^2 + m^3)` in time.

    ``"rank"`` takes the metric at the rank :math:`1 + (n - 1)(i - 1)/m`, rounded down [1]_. For
    recall that reads the sampled curve at another length of list, the linear map of [2]_.

    No values are without bias for every metric: with replacement the mean is a polynomial of degree
    m in the rank, and recall at k is none. A metric that is linear in the rank, as AUC, needs no
    correction. Where the ranks of a recommender are not as the prior says, the bias over its ranks
    may be large: look at it. A prior from `estimate_rank_distribution` is made from the same
    sampled ranks [3]_; bias and variance then are those of the values, with the prior as it is.

    References
    ----------
    .. [1] W. Krichene and S. Rendle, "On Sampled Metrics for Item Recommendation", KDD 2020,
       section 5: unbiased rank estimator, and bias-variance trade-off.
    .. [2] D. Li, R. Jin, J. Gao and Z. Liu, "On Sampling Top-K Recommendation Evaluation", KDD
       2020.
    .. [3] D. Li, R. Jin, Z. Liu, B. Ren, J. Gao and Z. Liu, "Towards Reliable Item Sampling for
       Recommendation Evaluation", AAAI 2023.

    Examples
    --------
    >>> import numpy as np
    >>> recall = rank_metric("recall", 10, np.arange(1, 1001))
    >>> naive = rank_metric("recall", 10, np.arange(1, 101))  # of sampled ranks
    >>> law = sampled_rank_law(TargetRanks([50], 1000), 99)
    >>> (law @ naive).round(2)  # though an item of rank 50 is in no list of 10
    array([0.98])
    >>> correct_metric(recall, 99).bias[49].round(2)
    np.float64(-0.02)
    """
    exact = as_real_array("metric", metric, (1,))
    size = len(exact)
    weight = as_share("gamma", gamma)
    targets = TargetRanks(np.arange(1, size + 1), size)
    draws, removed = targets._draws(num_sampled, replacement)
    chances = in_small_unit(as_counts("prior", np.ones(size) if prior is None else prior, size))
    chances = chances / chances.sum()
    parts = row_chunks((size, draws + 1), _PROBABILITIES_AT_A_TIME)
    if as_choice("method", method, ("bias-variance", "rank")) == "rank":
        values = exact[np.arange(draws + 1) * (size - 1) // draws]
    else:
        require_room("num_sampled", draws, 64.0 * (draws + 2) ** 2)
        triangle = np.empty((0, draws + 2))
        seen = np.zeros(draws + 1)
        for part in parts:
            laws = _laws(targets, part, draws, removed)
            seen += chances[part] @ laws
            block = np.column_stack([laws, exact[part]]) * np.sqrt(chances[part])[:, None]
            triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, block]), mode="r"))
        unit = np.divide(1.0, np.sqrt(seen), out=np.zeros_like(seen), where=seen > 0.0)
        left, s, right = np.linalg.svd(triangle[:, :-1] * unit, full_matrices=False)
        kept = s > np.finfo(np.float64).eps * size
        factor = np.divide(s, (1.0 - weight) * s**2 + weight, out=np.zeros_like(s), where=kept)
        values = unit * (right.T @ (factor * (left.T @ triangle[:, -1])))
    bias = np.empty(size)
    variance = np.empty(size)
    for part in parts:
        laws = _laws(targets, part, draws, removed)
        mean = laws @ values
        bias[part] = mean - exact[part]
        variance[part] = np.einsum("ri,ri->r", laws, (values - mean[:, None]) ** 2)
    return MetricCorrection(values, bias, variance)


def estimate_rank_distribution(
    counts: ArrayLike, num_candidates: int, *, replacement: bool = False, tol: float = 1e-4
) -> FloatArray:
    r"""Estimate how ranks among all candidates are distributed, by the likelihood of sampled ranks.

    Parameters
    ----------
    counts : array_like, shape (m + 1,)
        How many relevant items have the sampled rank 1, ..., m + 1, or what share of them.
    num_candidates : int
        Number n of candidates: an item, and its negatives.
    replacement : bool
        Whether a negative may be drawn more than once.
    tol : float
        End when the mean log-likelihood of an item is within this of the greatest, in nats.

    Returns
    -------
    ndarray of float64, shape (n,)
        Probabilities of the ranks 1, ..., n. Their product with a metric by rank estimates it.

    Raises
    ------
    MemoryError
        If a matrix of n times m + 1 does not fit.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Steps of expectation maximisation from the uniform distribution, at most 5,000 [1]_. There are
    more ranks than m draws can tell apart, so that many distributions are about as likely; a `tol`
    that is not very small keeps what is not seen near to uniform. The greatest directional
    derivative bounds what is missing of the likelihood [2]_.

    References
    ----------
    .. [1] R. Jin, D. Li, B. Mudrak, J. Gao and Z. Liu, "On Estimating Recommendation Evaluation
       Metrics under Sampling", AAAI 2021: maximum likelihood by expectation maximisation.
    .. [2] B. G. Lindsay, "The Geometry of Mixture Likelihoods: A General Theory", Annals of
       Statistics 11(1), 1983.

    Examples
    --------
    >>> import numpy as np
    >>> seen = sampled_rank_law(TargetRanks([5], 50), 20)[0]  # all items have rank 5
    >>> found = estimate_rank_distribution(seen, 50)
    >>> (found @ np.arange(1, 51)).round(1)
    np.float64(5.0)
    """
    number = in_small_unit(as_counts("counts", counts, remedy="count the sampled ranks"))
    number = number / number.sum()
    bound = as_positive("tol", tol)
    size = as_count("num_candidates", num_candidates)
    m = len(number) - 1
    most = m if as_flag("replacement", replacement) else size - 1
    if size < 2 or not 1 <= m <= most:
        raise ValueError(
            f"`counts` must have shape (m + 1,), for m from 1 draw to all of the {size - 1} "
            f"negatives, got {number.shape}; with replacement m may be larger."
        )
    targets = TargetRanks(np.arange(1, size + 1), size)
    draws, removed = targets._draws(m, replacement)
    require_room("num_candidates", size, 8.0 * size * (draws + 1))
    laws = _laws(targets, slice(None), draws, removed)
    found = np.full(size, 1.0 / size)
    for _ in range(5000):
        ratio = np.divide(number, found @ laws, out=np.zeros_like(number), where=number > 0.0)
        slope = laws @ ratio  # of the likelihood, towards each rank; 1 on average
        if slope.max() <= 1.0 + bound:
            break
        found *= slope
    return found


def _as_ranks(value: ArrayLike) -> IntArray:
    """Return ranks (P,), counted from 1."""
    ranks = as_ids("ranks", value, LARGEST_COUNT, of="ranks")
    if not len(ranks) or ranks.min() < 1:
        raise ValueError(f"`ranks` must hold ranks counted from 1, got {shown(ranks)}; add 1.")
    return ranks


def _as_probabilities(name: str, value: Any, order: IntArray) -> FloatArray:
    """Return probabilities (P,) in the order of the items."""
    share = as_real_array(name, value, (1,))
    if share.shape != order.shape or share.min() < 0.0 or share.max() > 1.0:
        raise ValueError(
            f"`{name}` must be of shape {order.shape} and from 0 to 1, got {shown(share)}."
        )
    return share[order]


def _laws(targets: TargetRanks, part: slice, draws: int, removed: bool) -> FloatArray:
    """Return the probabilities that 0, 1, ..., m draws are better, for each item of a part."""
    laws = np.empty((len(targets.ranks[part]), draws + 1))
    masses = targets.better[part], targets.tied[part], targets.worse[part]
    for law, better, tied, worse in zip(laws, *masses, strict=True):
        if tied > 0.0:
            _fill_law_with_ties(draws, better, tied, worse, removed, law)
        else:
            _fill_law(draws, better, worse, removed, law)
    return laws


@njit
def _rank(
    scores: Rows, masses: FloatArray, examples: IntArray, items: IntArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return the rank of each item, the number of tied negatives, and two shares of the mass.

    These are the shares of negatives that are better, and of those of equal score. Masses of
    relevant items are `_RELEVANT`, and `_LEFT_OUT` of items that are no candidates. The shares are
    NaN where there is no mass. Relevant items of equal score come in their order, before negatives.
    """
    ranks = np.empty(len(items), np.int64)
    num_tied = np.zeros(len(items), np.int64)
    better = np.empty(len(items))
    tied = np.empty(len(items))
    for p in range(len(items)):
        row = scores[examples[p]]
        mass = masses[examples[p]]
        i = items[p]
        rank = 1
        above = 0.0
        equal = 0.0
        total = 0.0
        for c in range(len(row)):
            if mass[c] != _LEFT_OUT:
                is_negative = mass[c] != _RELEVANT
                if is_negative:
                    total += mass[c]
                if row[c] > row[i]:
                    rank += 1
                    if is_negative:
                        above += mass[c]
                elif row[c] == row[i] and is_negative:
                    num_tied[p] += 1
                    equal += mass[c]
                elif row[c] == row[i] and c < i:
                    rank += 1
        ranks[p] = rank
        better[p] = above / total
        tied[p] = equal / total
    return ranks, num_tied, better, tied


@njit
def _average_over_ties(
    gains: FloatArray,
    with_ties: IntArray,
    groups: IntArray,
    place: IntArray,
    above: IntArray,
    num_tied: IntArray,
    table: FloatArray,
) -> None:
    """Write the expected gains of relevant items that tie with negatives to `gains` (C, P).

    `with_ties` are the first items of each tie, and `groups` (P,) how many relevant ones it has.
    `table` (C, L) has gains at the ranks 1, ..., L. Each item is as likely in one place of its tie
    as in another. Every fourth column is for the best item of an example alone.
    """
    columns, length = table.shape
    for p in with_ties:
        size = groups[p] + num_tied[p]
        before = place[p] + above[p]
        inside = max(0, min(size, length - before))
        for c in range(columns):
            mean = 0.0
            if c % 4 < 3:
                for j in range(inside):
                    mean += table[c, before + j]
                for i in range(groups[p]):
                    gains[c, p + i] = mean / size
                continue
            if place[p] == 0:
                # the first of r relevant ones among N stands in place j + 1
                probability = groups[p] / size
                for j in range(inside):
                    mean += probability * table[c, before + j]
                    if size - j > 1:
                        probability *= (size - j - groups[p]) / (size - j - 1)
            gains[c, p : p + groups[p]] = 0.0
            gains[c, p] = mean


@njit
def _moments(
    ends: IntArray,
    between: FloatArray,
    worse: FloatArray,
    draws: int,
    removed: bool,
    tables: Rows,
    ties: FloatArray,
    groups: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Return means and variances (C, B) of sums of gains over the items of each example.

    Items of example e are those from ``ends[e]`` on, the best first; `between` (P,) is the mass of
    negatives from each to the one before, `worse` (P,) that of all after it. `tables` (2, C, L) are
    gains at the ranks 1, ..., L, of the best item of an example and of the others. `ties` (P,) is
    the mass of negatives that tie with an item, and `groups` (P,) the number of relevant items in
    that tie; both are at its first item, and 0 at the others.
    """
    _, columns, length = tables.shape
    means = np.zeros((columns, len(ends) - 1))
    variances = np.zeros((columns, len(ends) - 1))
    law = np.empty(draws + 1)
    for e in range(len(ends) - 1):
        depth = min(ends[e + 1] - ends[e], length)  # items after these are in no list
        # mean and variance of what items from j on bring, if b draws are better than item j
        later = np.zeros((columns, length))
        spread = np.zeros((columns, length))
        j = depth
        while j >= 0:  # 0 for no item
            here = np.zeros((columns, length))
            around = np.zeros((columns, length))
            start = j  # the first item of the tie of item j
            while start > 0 and groups[ends[e] + start - 1] == 0:
                start -= 1
            is_tied = j > 0 and ties[ends[e] + start - 1] > 0.0
            least = 1 if is_tied else j
            for b in range(min(length - least, draws) + 1 if j > 0 else 1):
                if j < depth:
                    p = ends[e] + j
                    _fill_law(draws - b, between[p], ties[p] + worse[p], removed, law)
                    inside = min(length - j - b, draws - b + 1)  # of more, no item is in the list
                    inside = max(inside, 0)
                    outside = law[inside : draws - b + 1].sum()
                    for c in range(columns):
                        mean = 0.0
                        for d in range(inside):
                            mean += law[d] * later[c, b + d]
                        # the law of total variance: a sum of squares, not a difference of such
                        square = outside * mean * mean
                        for d in range(inside):
                            gap = later[c, b + d] - mean
                            square += law[d] * (spread[c, b + d] + gap * gap)
                        here[c, b] = mean
                        around[c, b] = square
                if j > 0 and not is_tied:
                    here[:, b] += tables[min(j - 1, 1), :, j + b - 1]
            if is_tied:
                p = ends[e] + start - 1
                here, around = _moments_of_tie(
                    here, around, start, j, groups[p], ties[p], worse[p], draws, removed, tables
                )
                j = start
            later = here
            spread = around
            j -= 1
        means[:, e] = later[:, 0]
        variances[:, e] = spread[:, 0]
    return means, variances


@njit
def _moments_of_tie(
    after: FloatArray,
    around_after: FloatArray,
    start: int,
    last: int,
    size: int,
    tied: float,
    worse: float,
    draws: int,
    removed: bool,
    tables: Rows,
) -> tuple[FloatArray, FloatArray]:
    """Return means and variances (C, L) of what items from `start` on bring, by the draws before.

    Items `start` to `last`, counted from 1, tie with each other and with negatives of mass `tied`;
    there are `size` of them, of which those after `last` are in no list. `after` and
    `around_after` (C, L) are mean and variance of what the items after them bring.
    """
    _, columns, length = tables.shape
    # of the items from one of the tie on: after b draws, with t more draws of the tie to come
    value = np.zeros((columns, length, draws + 1))
    spread = np.zeros((columns, length, draws + 1))
    for b in range(length):
        for t in range(draws + 1):
            if b + t < length:
                value[:, b, t] = after[:, b + t]
                spread[:, b, t] = around_after[:, b + t]
    probability = np.empty(draws + 1)
    for item in range(last, start - 1, -1):
        left = size - (item - start)  # relevant items of the tie that have not come
        if left == 1:  # the most frequent case, in a tenth of the time
            _before_last_of_tie(value, spread, tables[min(item - 1, 1)], item)
            continue
        new_value = np.zeros(value.shape)
        new_spread = np.zeros(value.shape)
        for t in range(draws + 1):
            # that x of t draws come before the first of the items that are left
            probability[0] = left / (t + left)
            for x in range(t):
                probability[x + 1] = probability[x] * (t - x) / (t - x + left - 1.0)
            for b in range(length):
                inside = max(0, min(t + 1, length - item - b + 1))
                outside = max(0.0, 1.0 - probability[:inside].sum())
                for c in range(columns):
                    mean = 0.0
                    for x in range(inside):
                        gain = tables[min(item - 1, 1), c, item + b + x - 1]
                        mean += probability[x] * (gain + value[c, b + x, t - x])
                    square = outside * mean * mean
                    for x in range(inside):
                        gain = tables[min(item - 1, 1), c, item + b + x - 1]
                        gap = gain + value[c, b + x, t - x] - mean
                        square += probability[x] * (spread[c, b + x, t - x] + gap * gap)
                    new_value[c, b, t] = mean
                    new_spread[c, b, t] = square
        value = new_value
        spread = new_spread
    here = np.zeros((columns, length))
    around = np.zeros((columns, length))
    law = np.empty(draws + 1)
    for b in range(min(length - start, draws) + 1):
        _fill_law(draws - b, tied, worse, removed, law)
        for c in range(columns):
            mean = 0.0
            for t in range(draws - b + 1):
                mean += law[t] * value[c, b, t]
            square = 0.0
            for t in range(draws - b + 1):
                gap = value[c, b, t] - mean
                square += law[t] * (spread[c, b, t] + gap * gap)
            here[c, b] = mean
            around[c, b] = square
    return here, around


@njit
def _before_last_of_tie(value: FloatArray, spread: FloatArray, table: Rows, item: int) -> None:
    """Go from what comes after the last item of a tie to what comes before it, in place.

    It stands in each place among t draws with probability 1 / (t + 1), and what comes after all of
    them does not depend on its place. `value` and `spread` (C, L, m + 1) are as in
    `_moments_of_tie`; `table` (C, L) has gains by rank.
    """
    columns, length, num = value.shape
    for b in range(length):
        first = item + b - 1  # the index of its gain in the first place
        for c in range(columns):
            # mean of the gains in the first places, and the sum of squares about it, as it grows
            center = 0.0
            squares = 0.0
            inside = 0
            for t in range(num):
                if first + t < length:
                    inside += 1
                    gap = table[c, first + t] - center
                    center += gap / inside
                    squares += gap * (table[c, first + t] - center)
                mean = center * inside / (t + 1)
                around = squares + inside * (center - mean) ** 2 + (t + 1 - inside) * mean * mean
                value[c, b, t] += mean
                spread[c, b, t] += around / (t + 1)


@njit
def _fill_law_with_ties(
    draws: int, better: float, tied: float, worse: float, removed: bool, law: FloatArray
) -> None:
    """Write the probabilities that 0, 1, ... of some draws stand before an item that ties.

    Of t draws that tie with it, 0, 1, ..., t stand before it with equal probability.
    """
    law[:] = 0.0
    of_better = np.empty(draws + 1)
    of_tied = np.empty(draws + 1)
    _fill_law(draws, better, tied + worse, removed, of_better)
    for b in range(draws + 1):
        if of_better[b] > 0.0:
            _fill_law(draws - b, tied, worse, removed, of_tied)
            at_least = 0.0  # of the tied draws, from the most on
            for t in range(draws - b, -1, -1):
                at_least += of_tied[t] / (t + 1)
                law[b + t] += of_better[b] * at_least


@njit
def _fill_law(draws: int, better: float, worse: float, removed: bool, law: FloatArray) -> None:
    """Write the probabilities that 0, 1, ... of some draws are from the better of two parts.

    The parts have masses, or numbers where draws are `removed`. All is 0 if no draws are possible.
    """
    law[: draws + 1] = 0.0
    low = draws if worse <= 0.0 else 0
    high = 0 if better <= 0.0 else draws
    less = 0.0
    if removed:
        low = max(0, draws - int(worse))
        high = min(draws, int(better))
        less = 1.0
    if low > high:
        return
    # By ratios from near the mode, then divided by their sum: all terms are positive, so that each
    # keeps its digits, where differences of log-factorials of 1e6 would lose seven of them
    mean = draws * (better / (better + worse)) if better > 0.0 else 0.0
    start = min(max(int(mean), low), high)
    law[start] = 1.0
    for b in range(start, high):
        law[b + 1] = law[b] * _ratio(b, draws, better, worse, less)
    for b in range(start - 1, low - 1, -1):
        law[b] = law[b + 1] / _ratio(b, draws, better, worse, less)
    law[low : high + 1] /= law[low : high + 1].sum()


@njit
def _ratio(b: int, draws: int, better: float, worse: float, less: float) -> float:
    """Return the probability of b + 1 divided by that of b."""
    up = (draws - b) * (better - less * b)
    down = (b + 1) * (worse - less * (draws - b - 1))
    return up / down
