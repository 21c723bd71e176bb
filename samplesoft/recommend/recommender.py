"""A recommender with the interface of the library implicit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._files import with_prefixes
from samplesoft._jit import report_compilation, row_chunks
from samplesoft._memory import require_bytes
from samplesoft._validation import IntArray, as_array, as_count, as_csr, as_flag, as_ids
from samplesoft.losses.vectors import unit_rows
from samplesoft.metrics.sampled import sampled_metrics
from samplesoft.metrics.target_ranks import TargetRanks, target_ranks
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.recommend.training import (
    Matrix,
    as_interactions,
    train_recommender,
    user_vectors,
)
from samplesoft.samplers.base import Rows
from samplesoft.search import best_classes, checked_leave_out
from samplesoft.training.checkpoint import (
    Checkpoint,
    array_group,
    copy_arrays,
    open_checkpoint,
    plain,
    storable_parameters,
    write_checkpoint,
)
from samplesoft.training.loop import Callback, require_callbacks, unchanged_on_error
from samplesoft.training.resolved import Resolved

Lists = tuple[NDArray[np.int32], Rows]
_MODEL = "SampledSoftmaxRecommender"
_FACTOR_FIELDS = ("item_factors", "user_factors")
# largest number of users for which `evaluate` checks whether their vectors contain hidden items
_MAX_COMPARED_USERS = 1000
_VECTOR_TOLERANCE = 1e-4  # largest difference at which that check takes vectors of norm 1 as equal
_FITTED_FIELDS = ("loss_curve_", "validation_scores_", "propagation_")


@dataclass(eq=False, repr=False)
class SampledSoftmaxRecommender:
    """Recommender with a linear embedding of user histories, trained by sampled softmax.

    The vector of a user is the normalised sum of the input vectors of the items in the history, so
    new users need no training. Training starts from singular vectors of the interaction matrix. A
    step predicts all items of a user from a random subset of them, with one set of sampled items
    per batch. The final parameters are an average over the epochs, with larger weights for later
    epochs. Finally, a weighted sum of its users' vectors is added to each item vector: one
    propagation step over the interaction graph.

    Parameters
    ----------
    embedding_dim : int
        Dimension d of the vectors.
    loss : str
        A key of `samplesoft.losses.LOSSES` that supports several labels. ``"bilateral"`` and
        ``"sampled-masked"`` are fast; ``"full"`` is the full softmax; ``"bpr"``, ``"warp"`` and
        ``"gbce"`` are for comparison, with uniform draws.
    sampler : str
        A key of `samplesoft.samplers.SAMPLERS`: ``"uniform"``; ``"unigram"``, by item counts, with
        correction; ``"clusters"``, which draws items with large scores for each user.
    num_sampled : int, optional
        Number m of draws per batch, or per user if not `shared`; by default a tenth of the number
        of items, but at least 1,000 and at most 4,000.
    shared : bool, optional
        Whether to use one set of draws per batch; by default True if the sampler does not depend on
        users.
    negative_weight : float
        Weight of the log-sum-exp of the draws in the loss ``"bilateral"``; others do not use it.
    tau : float
        Inverse temperature of the cosines in training.
    dropout : float
        Fraction of a user's items that a step leaves out of the user's vector. These items have the
        largest weight as labels.
    propagation : float or "auto"
        Weight of the user vectors that are added to an item vector; 0 for none. ``"auto"`` chooses
        the best of several weights on the held-out items, or takes 0.1 without `early_stopping`,
        when nothing is held out.
    max_iter : int
        Number of epochs over the users.
    batch_size : int
        Number of users per step.
    learning_rate : float
        Learning rate of Adagrad.
    schedule : {"constant", "linear", "cosine", "inverse-sqrt"}
        Learning rate during training: constant, or decreasing to 0 at the end of `max_iter`, or
        falling with the square root of the epochs.
    warmup : float
        Fraction of the steps, at the start, in which the learning rate rises linearly.
    early_stopping : bool
        Hide a fifth of the items of some users, stop when nDCG at 20 on these items no longer
        rises, and keep the best parameters.
    validation_fraction : float
        Fraction of the users with at least two items whose items are hidden; at most 2,000 users.
    n_iter_no_change : int
        Number of epochs without improvement after which training stops.
    random_state : int, numpy.random.Generator or None
        Seed of draws, order, dropout and hidden items. The same seed gives the same model at any
        number of Numba threads; the last bits may differ with the number of BLAS threads.
    verbose : bool
        Show progress on stderr: a bar on a terminal, else one line per epoch.

    Attributes
    ----------
    item_factors : ndarray of float32, shape (items, d)
        Item vectors after propagation.
    user_factors : ndarray of float32, shape (users, d)
        User vectors of norm 1. Scores are ``user_factors @ item_factors.T``.
    propagation_ : float
        Weight of the propagation, given or chosen by `fit`.
    n_iter_ : int
        Number of epochs.
    loss_curve_ : list of float
        Mean training loss per epoch.
    resolved_ : samplesoft.training.Resolved
        Settings of `fit` with all defaults resolved: loss, draws, epochs, learning rate and kind of
        steps. `verbose` prints them in its first line. `step_by_step` is the reason why steps ran
        one by one; it is None if many steps ran in one compiled call.
    validation_scores_ : list of float
        nDCG at 20 on the hidden items per epoch; empty without `early_stopping`.

    Notes
    -----
    **Number of draws.** Use as many as cost no more than the rest of a step. With about ten
    thousand items, 4,000 draws are as good as the full softmax, in a third of its time. With few
    items, use few draws or the full softmax. Losses, draws and dimensions are measured in
    docs/benchmarks.md, section "Losses and draws of the recommender".

    **Propagation.** One step for the items is enough. A second step, a step for the users, or other
    powers of the degrees than -1/2 bring no improvement.

    **Weight of negatives.** For texts, where frequent words suit all contexts, it should be low.
    For user histories with few draws it should be high, to make up for hard negatives that were not
    drawn. With 4,000 draws, 1.1 is as good as 1.2.

    **Other models.** With a few thousand items, EASE, a ridge regression on items, is trained in a
    second and often better. ``figures/recommenders.py`` compares it with other models.

    References
    ----------
    .. [1] P. Covington, J. Adams and E. Sargin, "Deep Neural Networks for YouTube Recommendations",
       RecSys 2016: users as pooled histories, trained by sampled softmax.
    .. [2] X. He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
       Recommendation", SIGIR 2020: propagation over the graph.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from samplesoft.recommend import SampledSoftmaxRecommender
    >>> taken = csr_array(np.kron(np.eye(2), np.ones((8, 5)) - np.eye(8, 5)))  # two groups
    >>> model = SampledSoftmaxRecommender(8, num_sampled=5, random_state=0).fit(taken)
    >>> ids, scores = model.recommend([0, 8], taken[[0, 8]], N=1)  # each lacks one item
    >>> ids.ravel().tolist()
    [0, 5]
    """

    embedding_dim: int = 256
    _: KW_ONLY
    loss: str = "bilateral"
    sampler: str = "uniform"
    num_sampled: int | None = None
    shared: bool | None = None
    negative_weight: float = 1.1
    tau: float = 13.0
    dropout: float = 0.5
    propagation: float | str = "auto"
    max_iter: int = 30
    batch_size: int = 256
    learning_rate: float = 0.05
    schedule: str = "constant"
    warmup: float = 0.0
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_iter_no_change: int = 8
    random_state: int | np.random.Generator | None = None
    verbose: bool = False

    @property
    def n_iter_(self) -> int:
        """Number of epochs over the users."""
        return len(self.loss_curve_)

    def fit(
        self, user_items: Any, *, callbacks: Sequence[Callback] = ()
    ) -> SampledSoftmaxRecommender:
        """Train the model from scratch.

        Parameters
        ----------
        user_items : scipy.sparse matrix, shape (users, items)
            Interactions: nonnegative weights of the items that users have taken, such as ones.
            Ratings are weights too: a low rating is no dislike. Duplicate entries are added up.
            Users without items are left out of training, and get the vector of an empty history. An
            item without users starts from a random vector, and is a negative whenever it is drawn.
        callbacks : sequence of samplesoft.training.Callback
            Callbacks between steps and after epochs. Their ``task.model`` is the model after the
            last step; after training, the average over the epochs replaces it.

        Returns
        -------
        SampledSoftmaxRecommender
            The recommender.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or training diverges.
        MemoryError
            If the model does not fit into memory.
        KeyboardInterrupt
            If Ctrl-C interrupts training. The recommender is then unchanged, as after any error.
        """
        interactions = as_interactions("user_items", user_items)
        if not interactions.nnz:
            raise ValueError(
                f"`user_items` must hold items of some users, got a matrix {interactions.shape} "
                "of zeros."
            )

        require_callbacks(callbacks)
        with report_compilation(bool(self.verbose)), unchanged_on_error(self):
            trained = train_recommender(self, interactions, callbacks)
            self._embedding = trained.embedding
            self.item_factors = trained.item_vectors
            self.user_factors = trained.user_vectors
            self.propagation_ = trained.propagation_weight
            self.loss_curve_ = trained.losses
            self.validation_scores_ = trained.scores
            self.resolved_ = trained.resolved

        return self

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
        """Return the N items with the largest scores for each user.

        Parameters
        ----------
        userids : int or array_like of int, shape (B,)
            Users, by their rows in `fit`; ignored if `recalculate_user` is set.
        user_items : scipy.sparse matrix, shape (B, items), optional
            Histories, one row per user; required for `filter_already_liked_items` and
            `recalculate_user`. For one user also an array of shape (items,), such as a row of a
            sparse array.
        N : int
            Number of items per user.
        filter_already_liked_items : bool
            Leave out the items in `user_items`.
        filter_items : array_like of int, shape (k,), optional
            Items to leave out for all users.
        recalculate_user : bool
            Compute the user vectors from `user_items`, as for new users.
        items : array_like of int, shape (k,), optional
            Candidates: recommend only these items.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one user
            Items, best first; if fewer than N remain, the last are -1.
        scores : ndarray of float32, of the same shape
            Scores of the items; -inf for an item of -1.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        length = as_count("N", N)
        num_items = len(self.item_factors)
        exclude_liked = as_flag("filter_already_liked_items", filter_already_liked_items)
        recalculate = as_flag("recalculate_user", recalculate_user)
        single = as_array("userids", userids).ndim == 0
        ids = _checked_user_ids(userids)

        histories = None
        if exclude_liked or recalculate:
            histories = self._checked_histories(user_items, len(ids))
        if not recalculate and len(ids) and ids.max() >= len(self.user_factors):
            raise ValueError(
                f"`userids` must be below {len(self.user_factors)}, the number of users, got "
                f"{ids.max()}; call partial_fit_users, or pass recalculate_user=True."
            )

        if recalculate:
            vectors = user_vectors(self._embedding, histories)
        else:
            vectors = self.user_factors[ids]

        excluded = _excluded_mask(num_items, filter_items, items)
        exclusions = {"leave_out": histories if exclude_liked else None, "absent": excluded}
        return best_items(vectors, self.item_factors, length, single, **exclusions)

    def evaluate(
        self, user_items: Any, hidden: Any, k: int | Sequence[int] = 20, sampled: int | None = None
    ) -> dict[str, float]:
        """Compute ranking metrics on items that were hidden from `fit`.

        Parameters
        ----------
        user_items : scipy.sparse matrix, shape (users, items)
            The interactions given to `fit`. They are excluded from the lists.
        hidden : scipy.sparse matrix, shape (users, items)
            Nonzero entries are the hidden items to be found, none of them in `user_items`. Users
            without hidden items are left out.
        k : int or sequence of int
            Lengths of the lists.
        sampled : int, optional
            Number of negatives: rank the hidden items of a user only among this many other items,
            drawn uniformly without replacement. By default they are ranked among all items.

        Returns
        -------
        dict of str to float
            ``recall@k``, ``precision@k``, ``ndcg@k`` and ``mrr@k`` for each k, and ``auc``. With
            `sampled` the keys are ``sampled_recall@k`` and so on, and the values are exact
            expectations over the draws. These are different metrics, which may rank recommenders
            differently.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed, `sampled` exceeds the number of negatives of a user, or the
            user vectors were computed from `hidden` and not from `user_items`.

        Notes
        -----
        For variances, draws with replacement or another proposal q, pass
        ``user_factors @ item_factors.T`` to `samplesoft.metrics.target_ranks`, and the result to
        `samplesoft.metrics.sampled_metrics`.
        """
        self._require_fitted()
        interactions = self._checked_histories(user_items, len(self.user_factors))
        hidden_items = checked_leave_out(as_csr("hidden", hidden), interactions.shape, "hidden")
        num_in_both = hidden_items.multiply(interactions).nnz
        if not hidden_items.nnz or num_in_both:
            raise ValueError(
                "`hidden` must hold items to be found, and none of `user_items`, got "
                f"{hidden_items.nnz} items, of which {num_in_both} are in both; hide some "
                "items of each user from `fit`, and pass these items here."
            )

        users = np.flatnonzero(np.diff(hidden_items.indptr))
        checked_users = users[:_MAX_COMPARED_USERS]
        match_interactions, match_hidden = (
            self._user_vectors_match(matrix[checked_users], checked_users)
            for matrix in (interactions, hidden_items)
        )
        if match_hidden and not match_interactions:
            raise ValueError(
                "`hidden` must hold items that are hidden from the recommender, got those that "
                "its vectors of these users are made from, and `user_items` has others; pass what "
                "`fit` was given first, and the hidden items second."
            )

        ranks_by_chunk = []
        for chunk in row_chunks((len(users), interactions.shape[1]), 1 << 23):
            rows = users[chunk]
            scores = self.user_factors[rows] @ self.item_factors.T
            chunk_ranks = target_ranks(scores, hidden_items[rows], leave_out=interactions[rows])
            examples = rows[chunk_ranks.examples]
            ranks_by_chunk.append(
                (chunk_ranks.ranks, chunk_ranks.num_candidates, examples, chunk_ranks.num_tied)
            )

        ranks, num_candidates, examples, num_tied = map(
            np.concatenate, zip(*ranks_by_chunk, strict=True)
        )
        targets = TargetRanks(ranks, num_candidates, examples, num_tied=num_tied)
        metrics = sampled_metrics(targets, 1 if sampled is None else sampled, k)
        return metrics.full if sampled is None else metrics.expected

    def similar_items(self, itemid: ArrayLike, N: int = 10) -> Lists:
        """Return the N items most similar to an item, by the cosine of their vectors.

        Parameters
        ----------
        itemid : int or array_like of int, shape (B,)
            Items.
        N : int
            Length of the list, which includes the item itself.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one item
            Items, most similar first; -1 if there are fewer than N.
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
        return _most_similar_rows("itemid", itemid, self.item_factors, N, "items")

    def similar_users(self, userid: ArrayLike, N: int = 10) -> Lists:
        """Return the N users most similar to a user, by the cosine of their vectors.

        Parameters
        ----------
        userid : int or array_like of int, shape (B,)
            Users, by their rows in `fit`.
        N : int
            Length of the list, which includes the user.

        Returns
        -------
        ids : ndarray of int32, shape (B, N), or (N,) for one user
            Users, most similar first; -1 if there are fewer than N.
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
        return _most_similar_rows("userid", userid, self.user_factors, N, "users")

    def partial_fit_users(self, userids: ArrayLike, user_items: Any) -> Self:
        """Recompute the vectors of some users from new histories; item vectors stay unchanged.

        Parameters
        ----------
        userids : array_like of int, shape (B,)
            Distinct users. Numbers beyond the number of users are new users. If they leave a gap
            after the old users, users in the gap get an empty history.
        user_items : scipy.sparse matrix, shape (B, items)
            Current histories, one row per user; for one user also of shape (items,).

        Returns
        -------
        SampledSoftmaxRecommender
            The recommender.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        MemoryError
            If the vectors of all users do not fit into memory.
        TypeError, ValueError
            If an argument is malformed.
        """
        self._require_fitted()
        ids = _checked_user_ids(userids)
        if len(np.unique(ids)) < len(ids):
            raise ValueError("`userids` must hold each user once; add up the rows of a user.")

        vectors = user_vectors(self._embedding, self._checked_histories(user_items, len(ids)))
        old_factors = self.user_factors
        num_users = max(len(old_factors), int(ids.max(initial=-1)) + 1)
        require_bytes(
            f"vectors of {num_users:,} users, up to the largest of `userids`,",
            num_users * old_factors[:1].nbytes,
            "number users from 0 without gaps",
        )

        # users in a gap between old and new ones have the vector of an empty history
        empty_vector = user_vectors(self._embedding, Matrix((1, len(self.item_factors))))
        added = empty_vector.repeat(num_users - len(old_factors), axis=0)
        users = np.concatenate([old_factors, added])
        users[ids] = vectors
        self.user_factors = users

        return self

    def save(self, path: str | Path) -> None:
        """Write the model as arrays and JSON, without pickled objects.

        Parameters
        ----------
        path : str or Path
            An ``.npz`` file, written atomically.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        OSError
            If the file cannot be written.
        """
        self._require_fitted()
        parameters = storable_parameters(asdict(self))
        values = {name: getattr(self, name) for name in _FITTED_FIELDS}

        # there are no resolved settings if the model was loaded from a file of an older version
        resolved = getattr(self, "resolved_", None)
        if resolved is not None:
            values["resolved"] = {"model": resolved.model.config(), **resolved.stored()}

        arrays = {name: getattr(self, name) for name in _FACTOR_FIELDS}
        arrays |= with_prefixes({"embedding": self._embedding.parameters}, "/")
        config = {"model": _MODEL, "parameters": parameters}
        write_checkpoint(path, Checkpoint(plain(config), plain(values), arrays))

    @classmethod
    def load(cls, path: str | Path) -> SampledSoftmaxRecommender:
        """Read a model written by `save`.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        SampledSoftmaxRecommender
            The recommender.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        MemoryError
            If the model does not fit into memory.
        ValueError
            If the file is damaged, of another format, or holds another model.
        """
        with open_checkpoint(path, _MODEL) as (config, values, arrays):
            recommender = cls(**config["parameters"])
            vars(recommender).update({name: values[name] for name in _FITTED_FIELDS})
            vars(recommender).update({name: arrays[name] for name in _FACTOR_FIELDS})

            resolved = values.get("resolved")
            if resolved is not None:  # a file of an older version has none
                model = LinearSoftmaxSettings(**resolved.pop("model"))
                recommender.resolved_ = Resolved(model, **resolved)

            recommender._embedding = Linear(*recommender.item_factors.shape)
            copy_arrays(path, array_group("embedding", arrays), recommender._embedding.parameters)

        return recommender

    def _checked_histories(self, user_items: Any, batch: int) -> Matrix:
        if user_items is None:
            raise ValueError(
                "`user_items` must hold what the users have taken, got None; pass their rows, or "
                "filter_already_liked_items=False."
            )

        histories = as_interactions("user_items", user_items, len(self.item_factors))
        if histories.shape[0] != batch:
            raise ValueError(
                f"`user_items` must have a row for each of the {batch} users, got "
                f"{histories.shape[0]}; pass user_items[userids]."
            )

        return histories

    def _user_vectors_match(self, histories: Matrix, users: IntArray) -> bool:
        """Whether the vectors of `users` (k,) equal those computed from `histories` (k, items)."""
        computed = user_vectors(self._embedding, histories)
        return np.allclose(computed, self.user_factors[users], rtol=0.0, atol=_VECTOR_TOLERANCE)

    def _require_fitted(self) -> None:
        if not hasattr(self, "item_factors"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first.")


def _checked_user_ids(userids: ArrayLike) -> IntArray:
    """Return validated user ids as an array (B,); also ids beyond the users of `fit` are valid."""
    ids = np.atleast_1d(as_array("userids", userids))
    if ids.size and ids.dtype.kind == "i" and ids.min() < 0:
        raise ValueError(f"`userids` must be at least 0, got {ids.min()}.")
    return as_ids("userids", ids, np.iinfo(int).max, of="users")


def _most_similar_rows(
    name: str, value: ArrayLike, factors: Rows, num_similar: int, of: str
) -> Lists:
    """Return the indices of the rows of `factors` (n, d) most similar to given rows, and cosines.

    `value`, an integer or B integers, gives the indices of the rows; `name` is its name in errors.
    Both results have the shape (B, num_similar), or (num_similar,) for an integer.
    """
    array = as_array(name, value)
    ids = as_ids(name, np.atleast_1d(array), len(factors), of=of)
    # divide by the norms, because propagation has changed the norms of item vectors
    vectors = unit_rows("factors", factors.copy())[0]
    return best_items(vectors[ids], vectors, as_count("N", num_similar), array.ndim == 0)


def best_items(users: Rows, items: Rows, length: int, single: bool, **left_out: Any) -> Lists:
    """Return the items (B, N) with the largest scores for user vectors (B, d), and these scores.

    N is `length`. If `single`, B is 1, and both results have the shape (N,). The keyword arguments
    `left_out` are passed to `best_classes`.
    """
    classes, scores = best_classes(users, items, length, **left_out)
    ids = classes.astype(np.int32)
    return (ids[0], scores[0]) if single else (ids, scores)


def _excluded_mask(
    num_items: int, filter_items: ArrayLike | None, items: ArrayLike | None
) -> NDArray[np.bool_] | None:
    """Return a mask (num_items,) of the items never to recommend; None if there are none.

    These are the items `filter_items`, and all items outside `items`, unless it is None.
    """
    if filter_items is None and items is None:
        return None
    excluded = np.zeros(num_items, bool)
    if items is not None:
        excluded[:] = True
        excluded[as_ids("items", items, num_items, of="items")] = False
    if filter_items is not None:
        excluded[as_ids("filter_items", filter_items, num_items, of="items")] = True
    return excluded
