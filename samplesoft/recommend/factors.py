"""Vectors of users and items, and what they answer: lists, neighbours, new users."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._validation import IntArray, as_array, as_count, as_flag, as_ids
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.linear import Linear
from samplesoft.recommend.interactions import as_interactions
from samplesoft.recommend.lists import absent_items, best_items
from samplesoft.recommend.vectors import user_vectors, with_users
from samplesoft.samplers.base import Rows

Lists = tuple[NDArray[np.int32], Rows]


class Factors:
    """A recommender whose scores are products of vectors, once it has been fitted.

    Attributes
    ----------
    item_factors : ndarray of float32, shape (items, d)
        Vectors of the items.
    user_factors : ndarray of float32, shape (users, d)
        Vectors of the users, of norm 1, each made from a history.
    """

    item_factors: Rows
    user_factors: Rows
    _embedding: Linear

    def recommend(
        self,
        userids: ArrayLike,
        user_items: Any = None,
        N: int = 10,
        filter_already_liked_items: bool = True,
        filter_items: ArrayLike | None = None,
        recalculate_user: bool = False,
        items: ArrayLike | None = None,
    ) -> Lists:
        """Return the items of the greatest scores.

        Parameters
        ----------
        userids : int or array_like of int, shape (B,)
            Users, by their rows in `fit`; any numbers where `recalculate_user` is set.
        user_items : scipy.sparse matrix, shape (B, items), optional
            What each of them has taken, a row for each; needed for the next two.
        N : int
            Length of a list.
        filter_already_liked_items : bool
            Leave out what is in `user_items`.
        filter_items : array_like of int, shape (k,), optional
            Items to leave out for all.
        recalculate_user : bool
            Make the vectors of the users from `user_items`, as for users who are new.
        items : array_like of int, shape (k,), optional
            The only items to choose from.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one user
            Items, the best first; -1 where too few are left.
        scores : ndarray of float32, of the same shape
            Their scores; -inf where too few are left.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        length, num_items = as_count("N", N), len(self.item_factors)
        liked = as_flag("filter_already_liked_items", filter_already_liked_items)
        anew = as_flag("recalculate_user", recalculate_user)
        single = as_array("userids", userids).ndim == 0
        ids = _user_ids(userids)
        taken = None
        if liked or anew:
            taken = self._histories(user_items, len(ids))
        if not anew and len(ids) and ids.max() >= len(self.user_factors):
            raise ValueError(
                f"`userids` must be below {len(self.user_factors)}, the number of users, got "
                f"{ids.max()}; call partial_fit_users, or pass recalculate_user=True."
            )
        vectors = user_vectors(self._embedding, taken) if anew else self.user_factors[ids]
        found = best_items(
            vectors,
            self.item_factors,
            length,
            taken if liked else None,
            absent_items(num_items, filter_items, items),
        )
        return (found[0][0], found[1][0]) if single else found

    def similar_items(self, itemid: ArrayLike, N: int = 10) -> Lists:
        """Return the items whose vectors have the greatest cosines with that of an item.

        Parameters
        ----------
        itemid : int or array_like of int, shape (B,)
            Items.
        N : int
            Length of a list, which begins with the item itself, or others of the same vector.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one item
            Items, the most similar first; -1 where there are fewer.
        scores : ndarray of float32, of the same shape
            Cosines.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        return _similar("itemid", itemid, self.item_factors, N, "items")

    def similar_users(self, userid: ArrayLike, N: int = 10) -> Lists:
        """Return the users whose vectors have the greatest cosines with that of a user.

        Parameters
        ----------
        userid : int or array_like of int, shape (B,)
            Users, by their rows in `fit`.
        N : int
            Length of a list, which begins with the user, or others of the same vector.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one user
            Users, the most similar first; -1 where there are fewer.
        scores : ndarray of float32, of the same shape
            Cosines.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        return _similar("userid", userid, self.user_factors, N, "users")

    def partial_fit_users(self, userids: ArrayLike, user_items: Any) -> Self:
        """Make the vectors of some users anew, from what they have taken; items stay as they are.

        Parameters
        ----------
        userids : array_like of int, shape (B,)
            Users, each once; numbers beyond those of `fit` are new users, and users between are
            without items.
        user_items : scipy.sparse matrix, shape (B, items)
            What each of them has taken by now, a row for each.

        Returns
        -------
        Factors
            The recommender.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        MemoryError
            If so many users do not fit.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        ids = _user_ids(userids)
        if len(np.unique(ids)) < len(ids):
            raise ValueError("`userids` must hold each user once; add the rows of a user up.")
        vectors = user_vectors(self._embedding, self._histories(user_items, len(ids)))
        users = with_users(self.user_factors, self._embedding, ids)
        users[ids] = vectors
        self.user_factors = users
        return self

    def _histories(self, user_items: Any, batch: int) -> Any:
        if user_items is None:
            raise ValueError(
                "`user_items` must hold what the users have taken, got None; pass their rows, or "
                "filter_already_liked_items=False."
            )
        taken = as_interactions("user_items", user_items, len(self.item_factors))
        if taken.shape[0] != batch:
            raise ValueError(
                f"`user_items` must have a row for each of the {batch} users, got "
                f"{taken.shape[0]}; pass user_items[userids]."
            )
        return taken

    def _require_fitted(self) -> None:
        if not hasattr(self, "item_factors"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first.")


def _user_ids(userids: ArrayLike) -> IntArray:
    """Return numbers of users (B,), be they of `fit` or new."""
    given = np.atleast_1d(as_array("userids", userids))
    if given.size and given.dtype.kind == "i" and given.min() < 0:
        raise ValueError(f"`userids` must be at least 0, got {given.min()}.")
    return as_ids("userids", given, np.iinfo(int).max, of="users")


def _similar(name: str, given: ArrayLike, factors: Rows, number: int, of: str) -> Lists:
    """Return the rows of the greatest cosines with some rows (B,) of vectors (n, d)."""
    single = as_array(name, given).ndim == 0
    ids = as_ids(name, np.atleast_1d(as_array(name, given)), len(factors), of=of)
    vectors = unit_rows("factors", factors.copy())[0]
    found = best_items(vectors[ids], vectors, as_count("N", number))
    return (found[0][0], found[1][0]) if single else found
