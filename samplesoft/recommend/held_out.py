"""Hidden items of some users, and how many of them a model puts into its lists."""

from __future__ import annotations

import numpy as np

from samplesoft.metrics.ranking import ranking_scores
from samplesoft.recommend.interactions import Matrix, hide
from samplesoft.recommend.lists import best_items
from samplesoft.samplers.base import Rows

_LENGTH = 20  # of the lists
_USERS = 2000  # at most


class HeldOut:
    """A fifth of the items of some users, which a model is not trained on.

    Attributes
    ----------
    left : csr_array, shape (users, items)
        The interactions to train on.
    """

    def __init__(self, user_items: Matrix, share: float, seed: int) -> None:
        able = int(np.sum(np.diff(user_items.indptr) > 1))
        if not able:
            raise ValueError(
                "`early_stopping` needs users with at least two items, to hide some of them, got "
                "none; turn it off, and give `propagation` as a number."
            )
        self.left, self._users, self._hidden = hide(user_items, min(share, _USERS / able), seed)
        self._given = self.left[self._users]
        free = user_items.shape[1] - int(np.diff(self._given.indptr).max())
        self._length = min(_LENGTH, free)

    def score(self, users: Rows, items: Rows) -> float:
        """Return nDCG at 20 of the hidden items, for vectors of all users and items."""
        ids, _ = best_items(users[self._users], items, self._length, self._given)
        return ranking_scores(ids, self._hidden, self._length)[f"ndcg_at_{self._length}"]
