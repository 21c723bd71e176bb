"""A recommender with the interface of the library implicit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._files import prefixed
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
    train,
    user_vectors,
)
from samplesoft.samplers.base import Rows
from samplesoft.search import best_classes, check_leave_out
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    part_of,
    plain,
    reading,
    saved_parameters,
    write_checkpoint,
)
from samplesoft.training.loop import Callback, require_callbacks, unchanged_on_error
from samplesoft.training.resolved import Resolved

Lists = tuple[NDArray[np.int32], Rows]
_MODEL = "SampledSoftmaxRecommender"
_FACTORS = ("item_factors", "user_factors")
_COMPARED, _ROUNDING = 1000, 1e-4  # users of whom `evaluate` compares vectors, of norm 1
_FITTED = ("loss_curve_", "validation_scores_", "propagation_")


@dataclass(eq=False, repr=False)
class SampledSoftmaxRecommender:
    """Recommend items by a linear embedding of what a user has taken, under a sampled softmax.

    A user is the sum of the vectors of the items that the user has taken, divided by its norm: a
    new user needs no training. Training begins with singular vectors of the interactions, and
    predicts the items of a user from a part of them, on one set of drawn items for a batch. The
    model is an average of the parameters after each round, late ones weighing more. Item vectors
    then get those of their users added, one step over the graph of interactions.

    Parameters
    ----------
    embedding_dim : int
        Length d of the vectors.
    loss : str
        A key of `samplesoft.losses.LOSSES` that takes several labels: ``"bilateral"`` and
        ``"sampled-masked"`` are quick; ``"full"`` draws nothing; ``"bpr"``, ``"warp"`` and
        ``"gbce"`` are there to compare with, by uniform draws.
    sampler : str
        A key of `samplesoft.samplers.SAMPLERS`: ``"uniform"``; ``"unigram"`` by how often items are
        taken, which is corrected; ``"clusters"`` among items that are likely for each user.
    num_sampled : int, optional
        Draws m for a batch, or for each user if not `shared`; by default a tenth of the items, from
        1,000 to 4,000.
    shared : bool, optional
        Draw one set for a batch; by default where the sampler does not look at users.
    negative_weight : float
        What the log-sum-exp of the draws weighs in ``"bilateral"``; other losses have none.
    tau : float
        Inverse temperature of the cosines in training.
    dropout : float
        Share of the items of a user that a step leaves out of the user's vector. As labels they
        weigh most.
    propagation : float or "auto"
        What the vectors of its users weigh in an item's; 0 for none. ``"auto"`` takes the best of
        some for what is held out, or 0.1 without `early_stopping`, which holds nothing out.
    max_iter : int
        Times to go over the users.
    batch_size : int
        Users in a step.
    learning_rate : float
        Of Adagrad.
    schedule : {"constant", "linear", "cosine"}
        How the learning rate changes: it stays, or falls to 0 at the end of `max_iter`.
    warmup : float
        Share of the steps, at the beginning, in which the learning rate rises in a line.
    early_stopping : bool
        Hide a fifth of the items of some users, stop when nDCG at 20 of these no longer rises, and
        keep the best.
    validation_fraction : float
        Share of the users of whom items are hidden, at most 2,000.
    n_iter_no_change : int
        Stop after so many times over the users without a rise.
    random_state : int, numpy.random.Generator or None
        Seed of draws, order, dropout and what is hidden. The same seed gives the same model at any
        number of Numba's threads; with other threads of BLAS the last bits may differ.
    verbose : bool
        Show progress on stderr: a bar if that is a terminal, else a line for each round.

    Attributes
    ----------
    item_factors : ndarray of float32, shape (items, d)
        Vectors of the items, with those of their users added.
    user_factors : ndarray of float32, shape (users, d)
        Vectors of the users, of norm 1. Scores are ``user_factors @ item_factors.T``.
    propagation_ : float
        The weight that was taken.
    n_iter_ : int
        Times gone over the users.
    loss_curve_ : list of float
        Mean loss that was minimised, each time.
    resolved_ : samplesoft.training.Resolved
        What `fit` did: the loss, draws, rounds, learning rate and kind of steps that the parameters
        stood for. `verbose` shows it in its first line. Its `step_by_step` says why steps were
        taken one by one; it is None where many of them were one compiled call.
    validation_scores_ : list of float
        nDCG at 20 of what was hidden, each time; none without `early_stopping`.

    Notes
    -----
    **How many draws.** As many as cost no more than the rest of a step: of some ten thousand items
    4,000 draws are as good as the full softmax in a third of its time; of few items, few draws, or
    the full softmax. Losses, draws and dimensions are measured in docs/benchmarks.md, section
    "Losses and draws of the recommender".

    **Steps over the graph.** One step on the items is all: a second one, or one on the users, or
    other powers of the degrees than -1/2 bring nothing more.

    **The weight of negatives.** Of texts, where frequent words are right for all, it should be low;
    of user histories and few draws, high: it makes up for hard negatives that were not drawn. With
    4,000 draws 1.1 does there what 1.2 does.

    **Other models.** Of a few thousand items a ridge regression on items, EASE, is trained in a
    second and about as good. ``figures/recommenders.py`` compares with others.

    References
    ----------
    .. [1] P. Covington, J. Adams and E. Sargin, "Deep Neural Networks for YouTube Recommendations",
       RecSys 2016: users as pooled histories under a sampled softmax.
    .. [2] X. He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
       Recommendation", SIGIR 2020: the step over the graph.

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
    n_iter_no_change: int = 4
    random_state: int | np.random.Generator | None = None
    verbose: bool = False

    @property
    def n_iter_(self) -> int:
        """Times gone over the users."""
        return len(self.loss_curve_)

    def fit(
        self, user_items: Any, *, callbacks: Sequence[Callback] = ()
    ) -> SampledSoftmaxRecommender:
        """Train again.

        Parameters
        ----------
        user_items : scipy.sparse matrix, shape (users, items)
            Weights of at least 0 of what users have taken, such as ones. A user without any is left
            out, as if it were not there, and has the vector of no items. An item that nobody has
            taken is drawn and recommended like any other, and begins at random.
        callbacks : sequence of samplesoft.training.Callback
            What else is to be done between steps and after epochs. Their ``task.model`` is the
            model as the last step left it; it becomes the average in the end.

        Returns
        -------
        SampledSoftmaxRecommender
            The recommender.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or training diverges.
        MemoryError
            If a model of such parameters does not fit.
        KeyboardInterrupt
            At Ctrl-C. As after an error, the recommender is then as it was before.
        """
        taken = as_interactions("user_items", user_items)
        if not taken.nnz:
            raise ValueError(
                f"`user_items` must hold items of some users, got a matrix {taken.shape} of zeros."
            )
        require_callbacks(callbacks)
        with report_compilation(bool(self.verbose)), unchanged_on_error(self):
            trained = train(self, taken, callbacks)
            self._embedding = trained.embedding
            self.item_factors = trained.items
            self.user_factors = trained.users
            self.propagation_ = trained.weight
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
        """Return the items of the largest scores.

        Parameters
        ----------
        userids : int or array_like of int, shape (B,)
            Users, by their rows in `fit`; any numbers where `recalculate_user` is set.
        user_items : scipy.sparse matrix, shape (B, items), optional
            What each of them has taken, a row for each; needed for the next two. Of one user also
            an array of shape (items,), as a row of a sparse array is.
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
        taken = self._histories(user_items, len(ids)) if liked or anew else None
        if not anew and len(ids) and ids.max() >= len(self.user_factors):
            raise ValueError(
                f"`userids` must be below {len(self.user_factors)}, the number of users, got "
                f"{ids.max()}; call partial_fit_users, or pass recalculate_user=True."
            )
        vectors = user_vectors(self._embedding, taken) if anew else self.user_factors[ids]
        absent = _absent(num_items, filter_items, items)
        left_out = {"leave_out": taken if liked else None, "absent": absent}
        return best_items(vectors, self.item_factors, length, single, **left_out)

    def evaluate(
        self, user_items: Any, hidden: Any, k: int | Sequence[int] = 20, sampled: int | None = None
    ) -> dict[str, float]:
        """Score the lists of users by items that are hidden from `fit`.

        Parameters
        ----------
        user_items : scipy.sparse matrix, shape (users, items)
            What users have taken, the rows of `fit`. It is in no list.
        hidden : scipy.sparse matrix, shape (users, items)
            Items to be found, where it is not 0, others than those in `user_items`. Users without
            any are left out.
        k : int or sequence of int
            Lengths of the lists.
        sampled : int, optional
            Rank the hidden items of a user among so many of the user's other items only, drawn
            uniformly and without replacement. By default they are ranked among all.

        Returns
        -------
        dict of str to float
            ``recall@k``, ``precision@k``, ``ndcg@k`` and ``mrr@k`` for each k, and ``auc``. With
            `sampled` these are other metrics, which may order recommenders otherwise, and have
            other names: ``sampled_recall@k`` and so on. They are exact expectations over the draws.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        TypeError, ValueError
            If an argument is malformed, or a user has fewer other items than are to be drawn, or
            users' vectors are made from `hidden`, and not from `user_items`.

        Notes
        -----
        `samplesoft.metrics.sampled_metrics` says more: variances, draws with replacement or by any
        q, from `samplesoft.metrics.target_ranks` of ``user_factors @ item_factors.T``.
        """
        self._require_fitted()
        taken = self._histories(user_items, len(self.user_factors))
        wanted, found = check_leave_out(as_csr("hidden", hidden), taken.shape, "hidden"), []
        both = wanted.multiply(taken).nnz
        if not wanted.nnz or both:
            raise ValueError(
                "`hidden` must hold items to be found, and none of `user_items`, got "
                f"{wanted.nnz} items, of which {both} are in both; take some items of each user "
                "out of what the recommender is given, and pass them here."
            )
        users = np.flatnonzero(np.diff(wanted.indptr))
        some = users[:_COMPARED]
        given, hides = (self._made(matrix[some], some) for matrix in (taken, wanted))
        if hides and not given:
            raise ValueError(
                "`hidden` must hold items that are hidden from the recommender, got those that "
                "its vectors of these users are made from, and `user_items` has others; pass what "
                "`fit` was given first, and the hidden items second."
            )
        for part in row_chunks((len(users), taken.shape[1]), 1 << 23):
            rows = users[part]
            scores = self.user_factors[rows] @ self.item_factors.T
            places = target_ranks(scores, wanted[rows], leave_out=taken[rows])
            examples = rows[places.examples]
            found.append((places.ranks, places.num_candidates, examples, places.num_tied))
        ranks, sizes, examples, num_tied = map(np.concatenate, zip(*found, strict=True))
        targets = TargetRanks(ranks, sizes, examples, num_tied=num_tied)
        metrics = sampled_metrics(targets, 1 if sampled is None else sampled, k)
        return metrics.full if sampled is None else metrics.expected

    def similar_items(self, itemid: ArrayLike, N: int = 10) -> Lists:
        """Return the items whose vectors have the largest cosines with that of an item.

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
        """Return the users whose vectors have the largest cosines with that of a user.

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
        """Make the vectors of some users again, from what they have taken; items stay as they are.

        Parameters
        ----------
        userids : array_like of int, shape (B,)
            Users, each once; numbers beyond those of `fit` are new users, and users between are
            without items.
        user_items : scipy.sparse matrix, shape (B, items)
            What each of them has taken by now, a row for each; of one user also of shape (items,).

        Returns
        -------
        SampledSoftmaxRecommender
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
        old, number = self.user_factors, max(len(self.user_factors), int(ids.max(initial=-1)) + 1)
        require_bytes(
            f"vectors of {number:,} users, up to the largest of `userids`,",
            number * old[:1].nbytes,
            "number users from 0 without gaps",
        )
        # users between those of `fit` and new ones have taken nothing, and so the same vector
        of_none = user_vectors(self._embedding, Matrix((1, len(self.item_factors))))
        users = np.concatenate([old, of_none.repeat(number - len(old), axis=0)])
        users[ids] = vectors
        self.user_factors = users
        return self

    def save(self, path: str | Path) -> None:
        """Write the model, as arrays and JSON without any pickled object.

        Parameters
        ----------
        path : str or Path
            An ``.npz`` file; it is written whole or not at all.

        Raises
        ------
        AttributeError
            If `fit` has not been called.
        OSError
            If it cannot be written.
        """
        self._require_fitted()
        parameters = saved_parameters(asdict(self))
        values = {name: getattr(self, name) for name in _FITTED}
        resolved = getattr(self, "resolved_", None)  # None of a file of an older version
        if resolved is not None:
            values["resolved"] = {"model": resolved.model.config(), **resolved.stored()}
        arrays = {name: getattr(self, name) for name in _FACTORS}
        arrays |= prefixed({"embedding": self._embedding.parameters}, "/")
        config = {"model": _MODEL, "parameters": parameters}
        write_checkpoint(path, Checkpoint(plain(config), plain(values), arrays))

    @classmethod
    def load(cls, path: str | Path) -> SampledSoftmaxRecommender:
        """Read a model of `save`.

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
            If the model would not fit.
        ValueError
            If it is damaged, of another format, or holds another model.
        """
        with reading(path, _MODEL) as (config, values, arrays):
            recommender = cls(**config["parameters"])
            resolved = values.get("resolved")
            vars(recommender).update({name: values[name] for name in _FITTED})
            vars(recommender).update({name: arrays[name] for name in _FACTORS})
            if resolved is not None:  # a file of before has none
                model = LinearSoftmaxSettings(**resolved.pop("model"))
                recommender.resolved_ = Resolved(model, **resolved)
            recommender._embedding = Linear(*recommender.item_factors.shape)
            copy_arrays(path, part_of("embedding", arrays), recommender._embedding.parameters)
        return recommender

    def _histories(self, user_items: Any, batch: int) -> Matrix:
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

    def _made(self, histories: Matrix, users: IntArray) -> bool:
        """Return whether the vectors of some users are made from these histories."""
        made = user_vectors(self._embedding, histories)
        return np.allclose(made, self.user_factors[users], rtol=0.0, atol=_ROUNDING)

    def _require_fitted(self) -> None:
        if not hasattr(self, "item_factors"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first.")


def _user_ids(userids: ArrayLike) -> IntArray:
    """Return numbers of users (B,), be they of `fit` or new."""
    ids = np.atleast_1d(as_array("userids", userids))
    if ids.size and ids.dtype.kind == "i" and ids.min() < 0:
        raise ValueError(f"`userids` must be at least 0, got {ids.min()}.")
    return as_ids("userids", ids, np.iinfo(int).max, of="users")


def _similar(name: str, value: ArrayLike, factors: Rows, number: int, of: str) -> Lists:
    """Return the rows of the largest cosines with some rows (B,) of vectors (n, d)."""
    array = as_array(name, value)
    ids = as_ids(name, np.atleast_1d(array), len(factors), of=of)
    vectors = unit_rows("factors", factors.copy())[0]  # propagated items have no norm of 1
    return best_items(vectors[ids], vectors, as_count("N", number), array.ndim == 0)


def best_items(users: Rows, items: Rows, number: int, single: bool, **left_out: Any) -> Lists:
    """Return the best items (B, N) of user vectors (B, d), and their scores.

    Those of `single`, who was asked for without a sequence, are (N,). What is `left_out` is as for
    `best_classes`.
    """
    ids, scores = best_classes(users, items, number, **left_out)
    lists = ids.astype(np.int32), scores
    return (lists[0][0], lists[1][0]) if single else lists


def _absent(
    num_items: int, filter_items: ArrayLike | None, items: ArrayLike | None
) -> NDArray[np.bool_] | None:
    """Return which items (num_items,) are in no list."""
    if filter_items is None and items is None:
        return None
    absent = np.zeros(num_items, bool)
    if items is not None:
        absent[:] = True
        absent[as_ids("items", items, num_items, of="items")] = False
    if filter_items is not None:
        absent[as_ids("filter_items", filter_items, num_items, of="items")] = True
    return absent
