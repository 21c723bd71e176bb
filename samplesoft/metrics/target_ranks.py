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
    in_small_unit,
    shown,
)
from samplesoft.samplers.base import Rows
from samplesoft.search import check_leave_out

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
        places = as_ranks(ranks)
        of = "candidates"
        count = as_labels("num_candidates", num_candidates, LARGEST_COUNT, places.shape, of=of)
        example_ids = np.arange(len(places))
        if examples is not None:
            example_ids = as_labels(
                "examples", examples, LARGEST_COUNT, places.shape, of="examples"
            )
        equal = np.zeros(len(places), np.int64)
        if num_tied is not None:
            equal = as_labels("num_tied", num_tied, LARGEST_COUNT, places.shape, of="candidates")
        order = np.lexsort((places, example_ids))
        self.ranks = places[order]
        self.num_candidates = count[order]
        self.examples = example_ids[order]
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


def as_ranks(value: ArrayLike) -> IntArray:
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
