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
    Recall and nDCG at 20 of a fifth of the training interactions, hidden for that, with vectors of
    128: of 6,000 users of Gowalla (40,981 items) after some rounds, at the best weight of
    propagation, with the time of one processor, and of 3,000 of Bibtex's texts, whose items are
    words (1,836), after 20 rounds. A row's weight is that of negatives:

    ===================================  ==================================  =============
    loss                                 Gowalla                             words
    ===================================  ==================================  =============
    bilateral, 1,000 draws, weight 1.2   0.221 / 0.147, 24 rounds in 34 s    0.356 / 0.416
    the same, longer                     0.223 / 0.148, 40 rounds in 58 s
    bilateral, 4,000 draws, weight 1.2   0.223 / 0.148, 12 rounds in 39 s    0.343 / 0.404
    bilateral, 4,000 draws, weight 1.1   0.223 / 0.148, 12 rounds in 36 s    0.364 / 0.423
    the same, longer                     0.225 / 0.150, 20 rounds in 62 s
    bilateral, 8,000 draws, weight 1.2   0.219 / 0.146, 8 rounds in 41 s
    full softmax                         0.221 / 0.149, 8 rounds in 144 s    0.367 / 0.425
    the same, longer                     0.224 / 0.150, 12 rounds in 218 s
    ===================================  ==================================  =============

    On Gowalla 4,000 draws are as good as the full softmax after 12 rounds, in less than a third of
    its time, and better than 1,000 in equal time; the full one was still rising, and was not
    trained for longer. Of the words 1,000 draws of weight 1.1 have 0.364 / 0.424, in half the time
    of 4,000: few items need few draws. Of so few, the full softmax takes no more time: 5 s.

    With vectors of 256 and a weight of 1.1, on Gowalla 20 rounds of 4,000 draws come to
    0.229 / 0.153 in 107 s, 30 to 0.232 / 0.155 in 150 s, and 40 of 1,000 draws to 0.226 / 0.152 in
    107 s; without propagation 15 rounds of 4,000 have an nDCG of 0.150 in 76 s. Of the words 30
    rounds of 1,000 draws have 0.369 / 0.427, of weight 1.2 0.346 / 0.406.

    **Steps over the graph.** One step on the items is all: a second one, or one on the users,
    raises nDCG on Gowalla at no weight that was tried, and powers of the degrees other than -1/2,
    of users from -1/4 to -1 and of items from -0.2 to -0.7, by 0.1% at most. What RP3beta knows
    beyond the model is of high rank: its scores of all items, added to those of vectors of 256,
    raise nDCG from 0.146 to 0.152, and 512 singular vectors of the graph beside these, untrained,
    to 0.149. Vectors of 512 that are trained gain about as much, 0.148 to 0.150 after 15 rounds.

    **The weight of negatives.** Of texts, where frequent words are right for all, it should be low;
    on Gowalla, of few draws, high: it makes up for hard negatives that were not drawn. With 4,000
    draws 1.1 does there what 1.2 does.

    **Others.** Of a few thousand items a ridge regression on items, EASE, is trained in a second
    and about as good: 0.357 / 0.415 of those words, split in another way, where the defaults have
    0.359 / 0.415. Random walks of three steps, RP3beta, which are not trained at all, come near on
    the test data of Gowalla: 0.186 / 0.155, the defaults 0.192 / 0.159.
    See ``figures/recommenders.py``.

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
        num_sampled: int | None = None,
        shared: bool | None = None,
        negative_weight: float = 1.1,
        tau: float = 13.0,
        dropout: float = 0.5,
        propagation: float | str = "auto",
        max_iter: int = 30,
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
