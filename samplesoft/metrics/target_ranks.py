"""Ranks of relevant items among all candidates of their examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit
from samplesoft._validation import (
    LARGEST_COUNT,
    FloatArray,
    IntArray,
    as_count,
    as_counts,
    as_csr,
    as_flag,
    as_float_rows,
    as_ids,
    as_labels,
    as_real_array,
    scale_by_power_of_two,
    short_repr,
)
from samplesoft.samplers.base import Rows
from samplesoft.search import checked_leave_out

# Marks of items that are not negatives, in the array of masses. Masses of negatives are at least 0.
_EXCLUDED_MASS = -1.0
_RELEVANT_MASS = -2.0


class TargetRanks:
    """Ranks of the relevant items of each example among all candidates.

    Parameters
    ----------
    ranks : array_like of int, shape (P,)
        Ranks of the relevant items among all candidates, counted from 1. At equal scores, relevant
        items come before negatives.
    num_candidates : int or array_like of int, shape (P,)
        Number of candidates of the item's example: its relevant items and its negatives.
    examples : array_like of int, shape (P,), optional
        Index of the example of each item; by default each item is an example by itself.
    better : array_like, shape (P,), optional
        Probability that a drawn negative has a higher score than the item; only for draws that are
        not uniform.
    num_tied : array_like of int, shape (P,), optional
        Number of negatives with the same score as the item; by default 0.
    tied : array_like, shape (P,), optional
        Probability that a drawn negative has the same score as the item; only for draws that are
        not uniform.

    Attributes
    ----------
    ranks, num_candidates, examples, num_tied : ndarray of int64, shape (P,)
        The parameters, sorted by example, then by rank.
    better, tied, worse : ndarray of float64, shape (P,)
        Numbers of negatives with a higher, the same and a lower score than the item. For draws that
        are not uniform, the probabilities of drawing such negatives.
    uniform : bool
        Whether negatives are drawn uniformly.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or ranks of an example are equal or too large.

    Examples
    --------
    >>> TargetRanks([4, 2], 10, examples=[0, 0]).better  # of 3 better items, one is relevant
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
        rank_array = as_ranks(ranks)
        num_candidates_array = as_labels(
            "num_candidates", num_candidates, LARGEST_COUNT, rank_array.shape, of="candidates"
        )

        example_ids = np.arange(len(rank_array))
        if examples is not None:
            example_ids = as_labels(
                "examples", examples, LARGEST_COUNT, rank_array.shape, of="examples"
            )
        num_tied_array = np.zeros(len(rank_array), np.int64)
        if num_tied is not None:
            num_tied_array = as_labels(
                "num_tied", num_tied, LARGEST_COUNT, rank_array.shape, of="candidates"
            )
        order = np.lexsort((rank_array, example_ids))
        self.ranks = rank_array[order]
        self.num_candidates = num_candidates_array[order]
        self.examples = example_ids[order]
        self.num_tied = num_tied_array[order]
        self.uniform = better is None

        self._first_items = np.flatnonzero(np.diff(self.examples, prepend=-1))
        # number of relevant items of each example
        self._num_relevant = np.diff(self._first_items, append=len(order))

        # index of an item among the relevant items of its example, from 0
        offsets = np.repeat(self._first_items, self._num_relevant)
        self._index_in_example = np.arange(len(order)) - offsets

        num_better = self.ranks - 1 - self._index_in_example
        self._num_better_negatives = num_better
        self._num_negatives = self.num_candidates - np.repeat(
            self._num_relevant, self._num_relevant
        )
        self.better = num_better.astype(np.float64)
        self.tied = self.num_tied.astype(np.float64)
        self.worse = 1.0 * (self._num_negatives - num_better - self.num_tied)

        invalid = (self.worse < 0.0) | (
            self._differences_to_previous_item(self.num_candidates) != 0
        )

        # relevant items of equal score have the same numbers of better and of tied negatives
        better_steps = self._differences_to_previous_item(num_better)
        tied_before = np.append(0, self.num_tied[:-1])
        same_tie = (better_steps == 0) & (self._differences_to_previous_item(self.num_tied) == 0)
        self._ties_with_previous = (self._index_in_example > 0) & same_tie & (self.num_tied > 0)
        invalid |= (self._index_in_example > 0) & ~same_tie & (better_steps < tied_before)
        invalid |= better_steps < 0

        if better is not None:
            better_mass = _as_probabilities("better", better, order)
            self.better = better_mass
            self.tied = np.zeros(len(order))
            if num_tied is not None:
                self.tied = _as_probabilities("tied", tied, order)
            self.worse = np.maximum(1.0 - self.better - self.tied, 0.0)
            invalid |= self._differences_to_previous_item(self.better) < 0.0

        if invalid.any():
            raise ValueError(
                "`ranks` of an example must be distinct and at most its one `num_candidates`, with "
                "`num_tied` negatives after those of a tie, and `better` must not fall with them, "
                "got otherwise in example "
                f"{self.examples[np.argmax(invalid)]}; take them from target_ranks."
            )

    def _differences_to_previous_item(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return differences (P,) from the previous item's value; 0 for an example's first item."""
        return np.where(self._index_in_example > 0, np.diff(values, prepend=values[0]), 0)

    def _tie_sizes(self) -> IntArray:
        """Return an array (P,): at the first item of each tie, the number of its relevant items.

        The array is 0 at all other items. An item without a tie counts as a tie of one.
        """
        starts = np.flatnonzero(~self._ties_with_previous)
        sizes = np.zeros(len(self.ranks), np.int64)
        sizes[starts] = np.diff(starts, append=len(self.ranks))
        return sizes

    def _checked_draws(self, num_sampled: Any, replacement: Any) -> tuple[int, bool]:
        """Validate the arguments; return the number of draws, and whether draws cannot repeat."""
        draws = as_count("num_sampled", num_sampled)
        with_replacement = as_flag("replacement", replacement)

        min_negatives = int(self._num_negatives.min())
        if min_negatives < (1 if with_replacement else draws):
            raise ValueError(
                "`num_sampled` must be at most the number of negatives, got "
                f"{draws} of {min_negatives}; "
                "draw fewer, or of at least one negative with replacement=True."
            )
        if not (with_replacement or self.uniform):
            raise ValueError("`replacement` must be True for draws by a `q`, got False.")

        return draws, not with_replacement


def target_ranks(
    scores: ArrayLike, labels: Any, *, q: ArrayLike | None = None, leave_out: Any = None
) -> TargetRanks:
    """Compute the ranks of the relevant items of each example among all candidates.

    Parameters
    ----------
    scores : array_like, shape (B, n)
        Scores of all items for each example. Ties are counted in `TargetRanks.num_tied`.
    labels : scipy.sparse matrix, shape (B, n)
        Nonzero entries are relevant items. Examples without relevant items are ignored.
    q : array_like, shape (n,), optional
        Distribution from which negatives are drawn, up to a constant factor, such as counts; by
        default uniform. It is restricted to the negatives of the example.
    leave_out : scipy.sparse matrix, shape (B, n), optional
        Nonzero entries are items that are not candidates of an example, such as its training items.

    Returns
    -------
    TargetRanks
        The ranks, for `sampled_metrics`. Its `examples` are row indices of `scores`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, an item is relevant and left out, no example has a label, or
        no negative of an example can be drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> targets = target_ranks([[0.3, 0.9, 0.1, 0.5]], csr_array([[1, 0, 1, 0]]))
    >>> targets.ranks, targets.num_candidates
    (array([3, 4]), array([4, 4]))
    """
    rows = as_float_rows("scores", scores)
    relevant = checked_leave_out(as_csr("labels", labels), rows.shape, "labels")
    excluded = checked_leave_out(leave_out, rows.shape)

    n = rows.shape[1]
    masses = scale_by_power_of_two(as_counts("q", np.ones(n) if q is None else q, n))
    masses = np.tile(masses, (len(rows), 1))
    if excluded is not None:
        masses[excluded.nonzero()] = _EXCLUDED_MASS

    examples, items = (ids.astype(np.int64) for ids in relevant.nonzero())
    num_left_out = int(np.sum(masses[examples, items] == _EXCLUDED_MASS))
    if not len(items) or num_left_out:
        raise ValueError(
            "`labels` must hold relevant items, none of them in `leave_out`, got "
            f"{len(items)} relevant items, and {num_left_out} that are left out."
        )
    masses[examples, items] = _RELEVANT_MASS

    ranks, num_tied, better, tied = _rank_items(rows, masses, examples, items)
    if np.isnan(better).any():
        raise ValueError(
            "`scores` must have a negative that can be drawn in each row with a label, got none in "
            f"row {examples[np.argmax(np.isnan(better))]}; leave out its labels."
        )

    num_candidates = np.sum(masses != _EXCLUDED_MASS, axis=1)[examples]
    if q is None:
        return TargetRanks(ranks, num_candidates, examples, num_tied=num_tied)
    return TargetRanks(ranks, num_candidates, examples, better, num_tied=num_tied, tied=tied)


def as_ranks(value: ArrayLike) -> IntArray:
    """Return validated ranks (P,), integers that are at least 1."""
    ranks = as_ids("ranks", value, LARGEST_COUNT, of="ranks")
    if not len(ranks) or ranks.min() < 1:
        raise ValueError(f"`ranks` must hold ranks counted from 1, got {short_repr(ranks)}; add 1.")
    return ranks


def _as_probabilities(name: str, value: Any, order: IntArray) -> FloatArray:
    """Return validated probabilities (P,), permuted by `order` (P,)."""
    probabilities = as_real_array(name, value, (1,))
    if probabilities.shape != order.shape or probabilities.min() < 0.0 or probabilities.max() > 1.0:
        raise ValueError(
            f"`{name}` must be of shape {order.shape} and from 0 to 1, got "
            f"{short_repr(probabilities)}."
        )
    return probabilities[order]


@njit
def _rank_items(
    scores: Rows, masses: FloatArray, examples: IntArray, items: IntArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Rank relevant item ``items[p]`` of example ``examples[p]`` among all candidates.

    Returns four arrays (P,): the rank, the number of tied negatives, and the probabilities that a
    drawn negative is better and that it ties. Both probabilities are NaN if no negative can be
    drawn. Of equal scores, relevant items come first, in order of their index, and then negatives.
    `masses` (B, n) are proportional to the probabilities of the draws, but `_RELEVANT_MASS` for
    relevant items and `_EXCLUDED_MASS` for items that are not candidates.
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
        better_mass = 0.0
        tied_mass = 0.0
        total_mass = 0.0

        for c in range(len(row)):
            if mass[c] != _EXCLUDED_MASS:
                is_negative = mass[c] != _RELEVANT_MASS
                if is_negative:
                    total_mass += mass[c]
                if row[c] > row[i]:
                    rank += 1
                    if is_negative:
                        better_mass += mass[c]
                elif row[c] == row[i] and is_negative:
                    num_tied[p] += 1
                    tied_mass += mass[c]
                elif row[c] == row[i] and c < i:
                    rank += 1

        ranks[p] = rank
        better[p] = better_mass / total_mass
        tied[p] = tied_mass / total_mass

    return ranks, num_tied, better, tied
