r"""Exact means and variances of ranking metrics that are computed on sampled negatives.

A ranking metric is a function of the rank of a relevant item. Among m sampled negatives this rank
is random: it is :math:`1 + b` if b of the m draws have higher scores than the item. The
distribution of b is known exactly, and with it the mean and the variance of the metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, require_instance
from samplesoft.metrics.rank_distribution import write_pmf
from samplesoft.metrics.ranking import METRICS, rank_metric
from samplesoft.metrics.target_ranks import TargetRanks
from samplesoft.samplers.base import Rows


@dataclass(frozen=True)
class SampledMetrics:
    """Metrics on all candidates, and exact moments of the same metrics on sampled negatives.

    Parameters
    ----------
    full : dict of str to float
        ``recall@k``, ``precision@k``, ``ndcg@k`` and ``mrr@k`` for each k, and ``auc``, among all
        candidates, averaged over the examples.
    expected : dict of str to float
        Expectations of the metrics among sampled negatives, as ``sampled_recall@k`` and so on.
    variance : dict of str to float
        Variances of the sampled metrics, under the names of `expected`. Only the draws are random:
        the examples are fixed, and each has independent draws.
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
        Ranks of the relevant items among all candidates, for example from `target_ranks`.
    num_sampled : int
        Number m of negatives that are drawn for each example.
    k : int or sequence of int
        Lengths of the lists.
    replacement : bool
        Whether a negative may be drawn more than once. Must be True if draws are not uniform.

    Returns
    -------
    SampledMetrics
        Metrics on all candidates; means and variances of the same metrics on sampled negatives.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or m exceeds the number of negatives and `replacement` is
        False.

    Notes
    -----
    Nothing is drawn. With :math:`K` of the :math:`N` negatives better than an item, its sampled
    rank among m draws is :math:`1 + b`, with :math:`b \sim \mathrm{Hypergeometric}(N, K, m)`, or
    :math:`\mathrm{Binomial}(m, K/N)` with replacement. For a proposal q, the probability of the
    better negatives replaces :math:`K/N`.

    An example may have several relevant items. All of them are ranked in one list with the same m
    negatives, as they are among all candidates: the j-th best has the rank :math:`j + b_j`. Recall
    and nDCG are divided by their largest possible value for R relevant items, as in
    `ranking_scores`. MRR uses the best relevant item only. AUC is the mean fraction of negatives
    that are worse. Given :math:`b_j`, the number of draws between item j and the next is again
    binomial or hypergeometric, so the :math:`b_j` form a Markov chain. One backward pass over the
    chain gives mean and variance of a sum over the items, in time :math:`O(R k m)`. With m = N and
    no replacement the metrics equal those on all candidates, and the variance is 0 except for
    ties.

    Candidates of equal score are in random order. All metrics are expectations over that order as
    well, and the variances include it. Of d draws that tie with r relevant items, x precede the
    first of these items with probability
    :math:`\binom{d - x + r - 1}{r - 1} / \binom{d + r}{r}`. AUC counts a tie as one half.

    References
    ----------
    .. [1] W. Krichene and S. Rendle, "On Sampled Metrics for Item Recommendation", KDD 2020,
       sections 3 and 4: the binomial distribution and the expected metrics, for one relevant item.

    Examples
    --------
    Among all 10,001 items the first recommender is better, among 100 negatives the second:

    >>> for ranks in ([1, 3000], [100, 100]):
    ...     result = sampled_metrics(TargetRanks(ranks, 10_001), 100, k=10)
    ...     print(result.full["recall@10"], round(result.expected["sampled_recall@10"], 3))
    0.5 0.5
    0.0 1.0
    """
    require_instance("targets", targets, TargetRanks)
    draws, without_replacement = targets._checked_draws(num_sampled, replacement)
    sizes = sorted({as_count("k", size) for size in np.atleast_1d(as_array("k", k))})
    if not sizes:
        raise ValueError("`k` must hold lengths of lists, got none.")

    first_items = targets._first_items
    num_relevant = targets._num_relevant
    index_in_example = targets._index_in_example

    metric_columns = [(size, name) for size in sizes for name in METRICS]
    list_ranks = np.arange(1, min(sizes[-1], draws + int(num_relevant.max())) + 1)
    gain_table = np.array([rank_metric(name, size, list_ranks) for size, name in metric_columns])

    # two tables of gains: for the best item of an example, and for its other items, which do not
    # count in MRR (every fourth row)
    gain_tables = np.stack([gain_table, gain_table])
    gain_tables[1, 3::4] = 0.0

    # largest possible sums of gains over the relevant items, by which the metrics are divided
    ideal = np.cumsum(1.0 / np.log2(1.0 + list_ranks))
    ones = np.ones(len(first_items))
    ideal_dcg = [ideal[np.minimum(num_relevant, size) - 1] for size in sizes]
    scales = np.array([row for dcg in ideal_dcg for row in (num_relevant, ones, dcg, ones)])

    gains = np.array([rank_metric(name, size, targets.ranks) for size, name in metric_columns])
    gains[3::4] *= index_in_example == 0

    item_offsets = np.append(first_items, len(index_in_example))
    negative_mass = targets.better + targets.tied + targets.worse
    tie_sizes = targets._tie_sizes()

    with_ties = np.flatnonzero((tie_sizes > 0) & (targets.num_tied > 0))
    if len(with_ties):
        # make a longer table: ranks among all candidates can exceed those among the draws
        tie_ranks = np.arange(1, sizes[-1] + 1)
        gain_table = np.array([rank_metric(name, size, tie_ranks) for size, name in metric_columns])
        _average_over_ties(
            gains,
            with_ties,
            tie_sizes,
            index_in_example,
            targets._num_better_negatives,
            targets.num_tied,
            gain_table,
        )

    tied_before = np.append(0.0, targets.tied[:-1])
    masses_between = np.where(
        index_in_example > 0, targets._differences_to_previous_item(targets.better), targets.better
    )
    new_group = (index_in_example > 0) & ~targets._ties_with_previous
    masses_between[new_group] = np.maximum(masses_between[new_group] - tied_before[new_group], 0.0)
    tie_masses = np.where(targets._ties_with_previous, 0.0, targets.tied)

    mean, variance = _gain_moments(
        item_offsets,
        masses_between,
        targets.worse,
        draws,
        without_replacement,
        gain_tables,
        tie_masses,
        tie_sizes,
    )

    # AUC is a mean over the draws: a draw that is worse than j of the R items contributes j / R
    num_relevant_of_item = np.repeat(num_relevant, num_relevant)
    better_fractions = (targets.better + targets.tied / 2) / negative_mass
    auc = 1.0 - np.add.reduceat(better_fractions, first_items) / num_relevant
    auc_of_item = np.repeat(auc, num_relevant)
    auc_squares = masses_between * (index_in_example / num_relevant_of_item - auc_of_item) ** 2
    worse_fractions = (index_in_example + tie_sizes / 2) / num_relevant_of_item
    auc_squares += tie_masses * (worse_fractions - auc_of_item) ** 2
    auc_squares = (
        np.add.reduceat(auc_squares, first_items)
        + targets.worse[item_offsets[1:] - 1] * (1.0 - auc) ** 2
    )

    finite_population_factor = ones
    if without_replacement:
        finite_population_factor = (negative_mass[first_items] - draws) / np.maximum(
            negative_mass[first_items] - 1.0, 1.0
        )
    auc_variance = auc_squares * finite_population_factor / negative_mass[first_items] / draws

    # AUC among all candidates
    num_better = targets._num_better_negatives + targets.num_tied / 2  # a tie counts as one half
    better_fractions = num_better / targets._num_negatives
    full_auc = 1.0 - np.add.reduceat(better_fractions, first_items) / num_relevant
    full = [*np.add.reduceat(gains, first_items, axis=1) / scales, full_auc]
    expected = [*mean / scales, auc]
    variances = [*variance / scales**2, auc_variance]

    names = [f"{name}@{size}" for size, name in metric_columns] + ["auc"]
    sampled_names = [f"sampled_{name}" for name in names]
    return SampledMetrics(
        {name: float(row.mean()) for name, row in zip(names, full, strict=True)},
        {name: float(row.mean()) for name, row in zip(sampled_names, expected, strict=True)},
        {
            name: float(row.mean() / len(row))
            for name, row in zip(sampled_names, variances, strict=True)
        },
    )


@njit
def _average_over_ties(
    gains: FloatArray,
    with_ties: IntArray,
    tie_sizes: IntArray,
    index_in_example: IntArray,
    num_better: IntArray,
    num_tied: IntArray,
    table: FloatArray,
) -> None:
    """Overwrite the gains of relevant items that tie with negatives by their expectations.

    A metric is a sum of gains of the items, up to a factor; `gains` (C, P) are the gains of P items
    in C metrics. Each position within a tie is equally likely for an item.
    `with_ties` are the indices of the first item of each tie, and `tie_sizes` (P,) has the number
    of relevant items in the tie at that index. `index_in_example`, `num_better` and `num_tied` (P,)
    are the item's index in its example, and its numbers of better and of tied negatives. `table`
    (C, L) has the gains at the ranks 1, ..., L; beyond rank L the gain is 0. Every fourth metric is
    MRR, which counts only the best item of an example.
    """
    num_metrics, length = table.shape
    for p in with_ties:
        tie_size = tie_sizes[p] + num_tied[p]
        first_position = index_in_example[p] + num_better[p]
        num_listed = max(0, min(tie_size, length - first_position))
        for c in range(num_metrics):
            mean = 0.0
            if c % 4 < 3:
                for j in range(num_listed):
                    mean += table[c, first_position + j]
                for i in range(tie_sizes[p]):
                    gains[c, p + i] = mean / tie_size
                continue

            if index_in_example[p] == 0:
                # P(the first of the r relevant items in a tie of N is at position j + 1)
                probability = tie_sizes[p] / tie_size
                for j in range(num_listed):
                    mean += probability * table[c, first_position + j]
                    if tie_size - j > 1:
                        probability *= (tie_size - j - tie_sizes[p]) / (tie_size - j - 1)
            gains[c, p : p + tie_sizes[p]] = 0.0
            gains[c, p] = mean


@njit
def _gain_moments(
    item_offsets: IntArray,
    masses_between: FloatArray,
    worse: FloatArray,
    draws: int,
    without_replacement: bool,
    gain_tables: Rows,
    tie_masses: FloatArray,
    tie_sizes: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the means and variances (C, B) of the sum of gains over the items of each example.

    A metric is a sum of gains of the items, up to a factor. There are C metrics, B examples and P
    items. Example e has the items ``item_offsets[e]`` to ``item_offsets[e + 1] - 1``, the best
    first. `gain_tables` (2, C, L) has the gains at the ranks 1, ..., L, first for the best item of
    an example, then for the other items. Larger ranks have the gain 0, or are impossible.

    A mass is a number of negatives, or the probability of drawing them. `masses_between` (P,) is
    the mass of the negatives between an item and the previous one, and `worse` (P,) the mass of all
    negatives after the item. At the first item of each tie, `tie_masses` (P,) is the mass of the
    negatives in the tie, and `tie_sizes` (P,) its number of relevant items. At all other items of
    the tie both are 0. An item that ties with no other is a tie of one item.
    """
    _, num_metrics, length = gain_tables.shape
    means = np.zeros((num_metrics, len(item_offsets) - 1))
    variances = np.zeros((num_metrics, len(item_offsets) - 1))
    pmf = np.empty(draws + 1)

    for e in range(len(item_offsets) - 1):
        # later items are beyond the end of every list
        depth = min(item_offsets[e + 1] - item_offsets[e], length)

        # at [c, b]: mean and variance of the sum of gains of items j, j + 1, ... in metric c, if b
        # draws are better than item j
        means_after = np.zeros((num_metrics, length))
        variances_after = np.zeros((num_metrics, length))

        # items are counted from 1; j = 0 stands for the start of the list, before all items
        j = depth
        while j >= 0:
            means_at_j = np.zeros((num_metrics, length))
            variances_at_j = np.zeros((num_metrics, length))
            tie_start = j  # the first item of the tie of item j
            while tie_start > 0 and tie_sizes[item_offsets[e] + tie_start - 1] == 0:
                tie_start -= 1
            is_tied = j > 0 and tie_masses[item_offsets[e] + tie_start - 1] > 0.0
            min_rank = 1 if is_tied else j

            for b in range(min(length - min_rank, draws) + 1 if j > 0 else 1):
                if j < depth:
                    p = item_offsets[e] + j
                    write_pmf(
                        draws - b,
                        masses_between[p],
                        tie_masses[p] + worse[p],
                        without_replacement,
                        pmf,
                    )

                    # item j + 1 is in the list only if fewer than `num_listed` draws are between
                    # items j and j + 1
                    num_listed = min(length - j - b, draws - b + 1)
                    num_listed = max(num_listed, 0)
                    prob_unlisted = pmf[num_listed : draws - b + 1].sum()
                    for c in range(num_metrics):
                        mean = 0.0
                        for d in range(num_listed):
                            mean += pmf[d] * means_after[c, b + d]

                        # law of total variance, as a sum of squares: E[x^2] - E[x]^2 would cancel
                        variance = prob_unlisted * mean * mean
                        for d in range(num_listed):
                            deviation = means_after[c, b + d] - mean
                            variance += pmf[d] * (variances_after[c, b + d] + deviation * deviation)
                        means_at_j[c, b] = mean
                        variances_at_j[c, b] = variance
                if j > 0 and not is_tied:
                    means_at_j[:, b] += gain_tables[min(j - 1, 1), :, j + b - 1]

            if is_tied:
                p = item_offsets[e] + tie_start - 1
                means_at_j, variances_at_j = _gain_moments_of_tie(
                    means_at_j,
                    variances_at_j,
                    tie_start,
                    j,
                    tie_sizes[p],
                    tie_masses[p],
                    worse[p],
                    draws,
                    without_replacement,
                    gain_tables,
                )
                j = tie_start

            means_after = means_at_j
            variances_after = variances_at_j
            j -= 1

        means[:, e] = means_after[:, 0]
        variances[:, e] = variances_after[:, 0]

    return means, variances


@njit
def _gain_moments_of_tie(
    means_after: FloatArray,
    variances_after: FloatArray,
    first_item: int,
    last_item: int,
    tie_size: int,
    tied: float,
    worse: float,
    draws: int,
    without_replacement: bool,
    gain_tables: Rows,
) -> tuple[FloatArray, FloatArray]:
    """Return the means and variances (C, L) of the sum of gains from the first item of a tie on.

    The second axis is the number of draws that are better than the tie. Items `first_item` to
    `last_item` of an example, counted from 1, tie with each other and with negatives of mass
    `tied`. The tie has `tie_size` items; those after `last_item` are beyond the end of every list.
    `means_after` and `variances_after` (C, L) are the moments of the sum of gains of the items
    after the tie.
    """
    _, num_metrics, length = gain_tables.shape
    # at [c, b, t]: moments of the sum of gains of the current and all later items in metric c, if b
    # draws come before the current position, and t draws of the tie are still to come
    means_in_tie = np.zeros((num_metrics, length, draws + 1))
    variances_in_tie = np.zeros((num_metrics, length, draws + 1))

    for b in range(length):
        for t in range(draws + 1):
            if b + t < length:
                means_in_tie[:, b, t] = means_after[:, b + t]
                variances_in_tie[:, b, t] = variances_after[:, b + t]

    probability = np.empty(draws + 1)
    for item in range(last_item, first_item - 1, -1):
        # number of relevant items in the tie from `item` on
        num_left = tie_size - (item - first_item)
        if num_left == 1:
            # This case is the most frequent. The function is ten times as fast as the general
            # method below.
            _add_last_item_of_tie(
                means_in_tie, variances_in_tie, gain_tables[min(item - 1, 1)], item
            )
            continue

        new_means = np.zeros(means_in_tie.shape)
        new_variances = np.zeros(means_in_tie.shape)
        for t in range(draws + 1):
            # P(x of the t tied draws come before the first of the remaining items)
            probability[0] = num_left / (t + num_left)
            for x in range(t):
                probability[x + 1] = probability[x] * (t - x) / (t - x + num_left - 1.0)

            for b in range(length):
                num_listed = max(0, min(t + 1, length - item - b + 1))
                prob_unlisted = max(0.0, 1.0 - probability[:num_listed].sum())
                for c in range(num_metrics):
                    mean = 0.0
                    for x in range(num_listed):
                        gain = gain_tables[min(item - 1, 1), c, item + b + x - 1]
                        mean += probability[x] * (gain + means_in_tie[c, b + x, t - x])
                    variance = prob_unlisted * mean * mean
                    for x in range(num_listed):
                        gain = gain_tables[min(item - 1, 1), c, item + b + x - 1]
                        deviation = gain + means_in_tie[c, b + x, t - x] - mean
                        variance += probability[x] * (
                            variances_in_tie[c, b + x, t - x] + deviation * deviation
                        )
                    new_means[c, b, t] = mean
                    new_variances[c, b, t] = variance
        means_in_tie = new_means
        variances_in_tie = new_variances

    means_before = np.zeros((num_metrics, length))
    variances_before = np.zeros((num_metrics, length))
    pmf = np.empty(draws + 1)

    for b in range(min(length - first_item, draws) + 1):
        write_pmf(draws - b, tied, worse, without_replacement, pmf)
        for c in range(num_metrics):
            mean = 0.0
            for t in range(draws - b + 1):
                mean += pmf[t] * means_in_tie[c, b, t]
            variance = 0.0
            for t in range(draws - b + 1):
                deviation = means_in_tie[c, b, t] - mean
                variance += pmf[t] * (variances_in_tie[c, b, t] + deviation * deviation)
            means_before[c, b] = mean
            variances_before[c, b] = variance

    return means_before, variances_before


@njit
def _add_last_item_of_tie(
    means_in_tie: FloatArray, variances_in_tie: FloatArray, gain_table: Rows, item: int
) -> None:
    """Add the gain of the last item of a tie to the moments of the gains after it, in place.

    Each position of the item among t tied draws has the probability 1 / (t + 1). Gains after the
    tie do not depend on this position. `means_in_tie` and `variances_in_tie` (C, L, m + 1) are the
    moments, as in `_gain_moments_of_tie`. `gain_table` (C, L) has the gains by rank.
    """
    num_metrics, length, num_counts = means_in_tie.shape

    for b in range(length):
        first_index = item + b - 1  # index in `gain_table` of the item's first possible rank
        for c in range(num_metrics):
            # mean of the gains at the positions so far that are in the table, and sum of squared
            # deviations from it
            center = 0.0
            squares = 0.0
            num_listed = 0
            for t in range(num_counts):
                if first_index + t < length:
                    num_listed += 1
                    deviation = gain_table[c, first_index + t] - center
                    center += deviation / num_listed
                    squares += deviation * (gain_table[c, first_index + t] - center)
                mean = center * num_listed / (t + 1)
                squared_deviations = (
                    squares + num_listed * (center - mean) ** 2 + (t + 1 - num_listed) * mean * mean
                )
                means_in_tie[c, b, t] += mean
                variances_in_tie[c, b, t] += squared_deviations / (t + 1)
