"""The exact distribution of a rank among sampled negatives."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._memory import require_memory
from samplesoft._validation import FloatArray, require_instance
from samplesoft.metrics.target_ranks import TargetRanks


def sampled_rank_distribution(
    targets: TargetRanks, num_sampled: int, *, replacement: bool = False
) -> FloatArray:
    """Compute the exact distribution of the rank of each relevant item among sampled negatives.

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
    >>> sampled_rank_distribution(TargetRanks([1, 3], 5), 2).round(3)
    array([[1.   , 0.   , 0.   ],
           [0.167, 0.667, 0.167]])
    """
    require_instance("targets", targets, TargetRanks)
    draws, removed = targets._draws(num_sampled, replacement)
    require_memory("num_sampled", draws, 8.0 * len(targets.ranks) * (draws + 1))
    return rank_distributions(targets, slice(None), draws, removed)


def rank_distributions(targets: TargetRanks, part: slice, draws: int, removed: bool) -> FloatArray:
    """Return the probabilities (P, m + 1) of 0, ..., m better draws, for the items of a part."""
    distributions = np.empty((len(targets.ranks[part]), draws + 1))
    masses = targets.better[part], targets.tied[part], targets.worse[part]
    for pmf, better, tied, worse in zip(distributions, *masses, strict=True):
        if tied > 0.0:
            _fill_pmf_with_ties(draws, better, tied, worse, removed, pmf)
        else:
            fill_pmf(draws, better, worse, removed, pmf)
    return distributions


@njit
def _fill_pmf_with_ties(
    draws: int, better: float, tied: float, worse: float, removed: bool, pmf: FloatArray
) -> None:
    """Write the probabilities that 0, 1, ... of some draws stand before an item that ties.

    Of t draws that tie with it, 0, 1, ..., t stand before it with equal probability.
    """
    pmf[:] = 0.0
    of_better = np.empty(draws + 1)
    of_tied = np.empty(draws + 1)
    fill_pmf(draws, better, tied + worse, removed, of_better)
    for b in range(draws + 1):
        if of_better[b] > 0.0:
            fill_pmf(draws - b, tied, worse, removed, of_tied)
            at_least = 0.0  # of the tied draws, from the most on
            for t in range(draws - b, -1, -1):
                at_least += of_tied[t] / (t + 1)
                pmf[b + t] += of_better[b] * at_least


@njit
def fill_pmf(draws: int, better: float, worse: float, removed: bool, pmf: FloatArray) -> None:
    """Write the probabilities that 0, 1, ... of some draws are from the better of two parts.

    The parts have masses, or numbers where draws are `removed`. All is 0 if no draws are possible.
    """
    pmf[: draws + 1] = 0.0
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
    pmf[start] = 1.0
    for b in range(start, high):
        pmf[b + 1] = pmf[b] * _pmf_ratio(b, draws, better, worse, less)
    for b in range(start - 1, low - 1, -1):
        pmf[b] = pmf[b + 1] / _pmf_ratio(b, draws, better, worse, less)
    pmf[low : high + 1] /= pmf[low : high + 1].sum()


@njit
def _pmf_ratio(b: int, draws: int, better: float, worse: float, less: float) -> float:
    """Return the probability of b + 1 divided by that of b."""
    up = (draws - b) * (better - less * b)
    down = (b + 1) * (worse - less * (draws - b - 1))
    return up / down
