"""A recommender with the interface of the library implicit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from samplesoft.recommend import files
from samplesoft.recommend.factors import Factors
from samplesoft.recommend.interactions import as_interactions, normalized
from samplesoft.recommend.training import trained
from samplesoft.recommend.vectors import propagated, user_vectors


class SampledSoftmaxRecommender(Factors):
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
        ``"sampled-masked"`` are quick; ``"full"`` draws nothing.
    sampler : str
        A key of `samplesoft.samplers.SAMPLERS`: ``"uniform"``; ``"unigram"`` by how often items are
        taken, which is corrected; ``"clusters"`` among items that are likely for each user.
    num_sampled : int
        Draws m for a batch, or for each user if not `shared`.
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
        some for what is held out.
    max_iter : int
        Times to go over the users.
    batch_size : int
        Users in a step.
    learning_rate : float
        Of Adagrad.
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
    validation_scores_ : list of float
        nDCG at 20 of what was hidden, each time; none without `early_stopping`.

    Notes
    -----
    Recall and nDCG at 20 of a fifth of the training interactions, hidden for that, of 3,000 users,
    with vectors of 128: of Gowalla (40,981 items) after 20 rounds, at the best weight of
    propagation, with the time of one processor, and of the words of Bibtex's texts (1,836 words):

    =========================================  ======================  =============
    loss                                       Gowalla                 words
    =========================================  ======================  =============
    bilateral, ``negative_weight=1.2``         0.211 / 0.137 in 38 s   0.357 / 0.415
    bilateral, ``negative_weight=1.0``         0.210 / 0.136 in 38 s   0.368 / 0.424
    sampled softmax, ``"sampled-masked"``      0.211 / 0.136 in 40 s   0.368 / 0.423
    full softmax                               0.214 / 0.139 in 441 s  0.369 / 0.423
    =========================================  ======================  =============

    On Gowalla without propagation the full softmax has an nDCG of 0.136, the weight of 1.2 0.133,
    and the other two 0.127: a greater weight makes up for hard negatives that were not drawn.

    **Steps over the graph.** One step on the items is all: with it nDCG on Gowalla is 0.140, and
    with a second one, or one on the users, it is no higher at any weight that was tried.

    **The weight of negatives.** Of texts, where frequent words are right for all, 1 is better: with
    vectors of 256 it takes the words of Bibtex from 0.356 / 0.413 to 0.371 / 0.429. On Gowalla 1.2
    takes less time to be as good.

    **Others.** Of a few thousand items a ridge regression on items, EASE, is trained in a second
    and better than the defaults: 0.357 / 0.415 of those words, split in another way, where these
    have 0.345 / 0.402 and a weight of 1 has 0.361 / 0.420. Random walks of three steps, RP3beta,
    which are not trained at all, come near on the test data of Gowalla: 0.186 / 0.155, the
    defaults 0.190 / 0.156. See ``figures/recommenders.py``.

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

    propagation_: float
    loss_curve_: list[float]
    validation_scores_: list[float]

    def __init__(
        self,
        embedding_dim: int = 256,
        *,
        loss: str = "bilateral",
        sampler: str = "uniform",
        num_sampled: int = 1000,
        shared: bool | None = None,
        negative_weight: float = 1.2,
        tau: float = 13.0,
        dropout: float = 0.5,
        propagation: float | str = "auto",
        max_iter: int = 40,
        batch_size: int = 256,
        learning_rate: float = 0.05,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 15,
        random_state: int | np.random.Generator | None = None,
        verbose: bool = False,
    ) -> None:
        self.embedding_dim = embedding_dim
        self.loss = loss
        self.sampler = sampler
        self.num_sampled = num_sampled
        self.shared = shared
        self.negative_weight = negative_weight
        self.tau = tau
        self.dropout = dropout
        self.propagation = propagation
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose

    @property
    def n_iter_(self) -> int:
        """Times gone over the users."""
        return len(self.loss_curve_)

    def fit(self, user_items: Any) -> SampledSoftmaxRecommender:
        """Train anew.

        Parameters
        ----------
        user_items : scipy.sparse matrix, shape (users, items)
            Weights of at least 0 of what users have taken, such as ones. Users and items without
            any are left out of training; a user without any has the vector of no items.

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
        """
        taken = as_interactions("user_items", user_items)
        if not taken.nnz:
            raise ValueError(
                f"`user_items` must hold items of some users, got a matrix {taken.shape} of zeros."
            )
        found = trained(self, taken)
        users = user_vectors(found.embedding, taken)
        self.item_factors = propagated(
            found.class_vectors, users, normalized(taken), found.propagation
        )
        self.user_factors, self._embedding = users, found.embedding
        self.propagation_ = found.propagation
        self.loss_curve_, self.validation_scores_ = found.losses, found.scores
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
        files.write_recommender(path, self)

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
        found: SampledSoftmaxRecommender = files.read_recommender(path, cls)
        return found
