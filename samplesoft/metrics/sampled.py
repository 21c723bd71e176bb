r"""Metrics on sampled negatives: exact means and variances.

A metric is a function of the rank of a relevant item. Among m sampled negatives the rank is random:
:math:`1 + b`, where b of the m draws are better than the item. So a sampled metric has an exact
mean and variance, and a correction is another function, of the sampled rank, with its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, require_instance
from samplesoft.metrics.rank_distribution import fill_pmf
from samplesoft.metrics.ranking import METRICS, rank_metric
from samplesoft.metrics.target_ranks import TargetRanks
from samplesoft.samplers.base import Rows


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
    divided by their largest, of R relevant items, as in `ranking_scores`; MRR is of the best one
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
       sections 3 and 4: the binomial distribution and the expected metrics, for one relevant item.

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
    columns = [(size, name) for size in sizes for name in METRICS]
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
    pmf = np.empty(draws + 1)
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
                    fill_pmf(draws - b, between[p], ties[p] + worse[p], removed, pmf)
                    inside = min(length - j - b, draws - b + 1)  # of more, no item is in the list
                    inside = max(inside, 0)
                    outside = pmf[inside : draws - b + 1].sum()
                    for c in range(columns):
                        mean = 0.0
                        for d in range(inside):
                            mean += pmf[d] * later[c, b + d]
                        # the law of total variance: a sum of squares, not a difference of such
                        square = outside * mean * mean
                        for d in range(inside):
                            gap = later[c, b + d] - mean
                            square += pmf[d] * (spread[c, b + d] + gap * gap)
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
    pmf = np.empty(draws + 1)
    for b in range(min(length - start, draws) + 1):
        fill_pmf(draws - b, tied, worse, removed, pmf)
        for c in range(columns):
            mean = 0.0
            for t in range(draws - b + 1):
                mean += pmf[t] * value[c, b, t]
            square = 0.0
            for t in range(draws - b + 1):
                gap = value[c, b, t] - mean
                square += pmf[t] * (spread[c, b, t] + gap * gap)
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
