"""The exact distribution of the rank of a relevant item among sampled negatives."""

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
        Ranks of the relevant items among all candidates, for example from `target_ranks`.
    num_sampled, replacement
        As in `sampled_metrics`.

    Returns
    -------
    ndarray of float64, shape (P, m + 1)
        Probabilities of the ranks 1, ..., m + 1 among the m sampled negatives. Other relevant items
        of the example do not count.

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
    """Return the probabilities that 0, ..., m draws rank above an item, for a slice of P items.

    The result has the shape (P, m + 1). Draws that tie with an item are in random order with it.
    """
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
    """Write P(b draws rank above an item) to ``pmf[b]``, for an item that ties with negatives.

    If t of the draws tie with the item, then 0, 1, ..., t of them rank above it with equal
    probability. `better`, `tied` and `worse` are masses of negatives, as in `write_pmf`.
    """
    pmf[:] = 0.0
    better_pmf = np.empty(draws + 1)
    tied_pmf = np.empty(draws + 1)
    write_pmf(draws, better, tied + worse, without_replacement, better_pmf)

    for b in range(draws + 1):
        if better_pmf[b] > 0.0:
            write_pmf(draws - b, tied, worse, without_replacement, tied_pmf)
            # P(at least t draws tie with the item, and t of them rank above it)
            tail = 0.0
            for t in range(draws - b, -1, -1):
                tail += tied_pmf[t] / (t + 1)
                pmf[b + t] += better_pmf[b] * tail


@njit
def write_pmf(
    draws: int, better: float, worse: float, without_replacement: bool, pmf: FloatArray
) -> None:
    """Write P(b draws are better) to ``pmf[b]`` for b = 0, 1, ..., `draws`.

    The distribution is hypergeometric if `without_replacement`, else binomial. `better` and `worse`
    are the masses of the better and the worse negatives: their numbers for draws without
    replacement, else their probabilities up to a factor. If there are too few negatives for the
    draws, `pmf` is 0.
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

    # The naive formula, exp of a difference of log-factorials, loses seven digits for factorials of
    # 1e6. So start with 1 near the mode, multiply by the ratios of neighbouring probabilities, and
    # divide by the sum. All terms are positive, so that no digits are lost.
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
    """Return P(b + 1 draws are better) / P(b draws are better).

    `step` is the mass that a draw removes: 1 without replacement, else 0.
    """
    numerator = (draws - b) * (better - step * b)
    denominator = (b + 1) * (worse - step * (draws - b - 1))
    return numerator / denominator
