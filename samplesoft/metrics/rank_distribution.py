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
        Probabilities of the ranks 1, ..., m + 1 among the m negatives. Other relevant items are
        not counted.

    Raises
    ------
    MemoryError
        If the probabilities do not fit into memory.
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> sampled_rank_distribution(TargetRanks([1, 3], 5), 2).round(3)
    array([[1.   , 0.   , 0.   ],
           [0.167, 0.667, 0.167]])
    """
    require_instance("targets", targets, TargetRanks)
    draws, without_replacement = targets._checked_draws(num_sampled, replacement)
    require_memory("num_sampled", draws, 8.0 * len(targets.ranks) * (draws + 1))
    return rank_distributions(targets, slice(None), draws, without_replacement)


def rank_distributions(
    targets: TargetRanks, items: slice, draws: int, without_replacement: bool
) -> FloatArray:
    """Return the probabilities (P, m + 1) of 0, ..., m better draws, for a slice of the items."""
    distributions = np.empty((len(targets.ranks[items]), draws + 1))
    masses = targets.better[items], targets.tied[items], targets.worse[items]
    for pmf, better, tied, worse in zip(distributions, *masses, strict=True):
        if tied > 0.0:
            _write_pmf_with_ties(draws, better, tied, worse, without_replacement, pmf)
        else:
            write_pmf(draws, better, worse, without_replacement, pmf)
    return distributions


@njit
def _write_pmf_with_ties(
    draws: int, better: float, tied: float, worse: float, without_replacement: bool, pmf: FloatArray
) -> None:
    """Write P(b of the draws precede an item) for b = 0, 1, ..., where negatives tie with it.

    Of t draws that tie with the item, 0, 1, ..., t precede it with equal probability.
    """
    pmf[:] = 0.0
    better_pmf = np.empty(draws + 1)
    tied_pmf = np.empty(draws + 1)
    write_pmf(draws, better, tied + worse, without_replacement, better_pmf)
    for b in range(draws + 1):
        if better_pmf[b] > 0.0:
            write_pmf(draws - b, tied, worse, without_replacement, tied_pmf)
            tail = 0.0  # P(at least t draws tie, and t of them precede the item)
            for t in range(draws - b, -1, -1):
                tail += tied_pmf[t] / (t + 1)
                pmf[b + t] += better_pmf[b] * tail


@njit
def write_pmf(
    draws: int, better: float, worse: float, without_replacement: bool, pmf: FloatArray
) -> None:
    """Write the binomial or hypergeometric probabilities of 0, 1, ... better draws to `pmf`.

    `better` and `worse` are masses, or counts for draws `without_replacement`. All probabilities
    are 0 if such draws are impossible.
    """
    pmf[: draws + 1] = 0.0
    low = draws if worse <= 0.0 else 0
    high = 0 if better <= 0.0 else draws
    step = 0.0
    if without_replacement:
        low = max(0, draws - int(worse))
        high = min(draws, int(better))
        step = 1.0
    if low > high:
        return
    # Naive: exp of differences of log-factorials, which at 1e6 lose seven digits.
    # Here: ratios of neighbours, starting near the mode, divided by their sum. All terms are
    # positive, so each keeps its digits.
    mean = draws * (better / (better + worse)) if better > 0.0 else 0.0
    start = min(max(int(mean), low), high)
    pmf[start] = 1.0
    for b in range(start, high):
        pmf[b + 1] = pmf[b] * _pmf_ratio(b, draws, better, worse, step)
    for b in range(start - 1, low - 1, -1):
        pmf[b] = pmf[b + 1] / _pmf_ratio(b, draws, better, worse, step)
    pmf[low : high + 1] /= pmf[low : high + 1].sum()


@njit
def _pmf_ratio(b: int, draws: int, better: float, worse: float, step: float) -> float:
    """Return P(b + 1 better draws) / P(b better draws)."""
    up = (draws - b) * (better - step * b)
    down = (b + 1) * (worse - step * (draws - b - 1))
    return up / down
