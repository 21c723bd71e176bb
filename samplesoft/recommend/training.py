"""Training of the recommender: interactions, initial vectors, epochs, validation, propagation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._progress import progress_phase, report_line
from samplesoft._random import stream_key, uniform_block, uniform_slice
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_choice,
    as_count,
    as_flag,
    as_nonnegative,
    as_positive,
    short_repr,
)
from samplesoft.losses.registry import LOSSES
from samplesoft.losses.vectors import unit_rows
from samplesoft.metrics.ranking import ranking_scores
from samplesoft.models.linear import Linear, column_counts, sparse_product
from samplesoft.models.linear_softmax import LinearSoftmax, select_entries
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.search import best_classes
from samplesoft.training.callbacks import (
    Average,
    EarlyStop,
    EpochBar,
    KeepBest,
    Refresh,
    Score,
)
from samplesoft.training.linear_task import (
    Examples,
    LinearTask,
    as_csr_weights,
    divergence_as_value_error,
    entry_chunks,
    held_out_order,
    row_of_each_entry,
    with_unit_rows,
)
from samplesoft.training.loop import Callback, fit
from samplesoft.training.resolved import FitSettings, Resolved, resolve
from samplesoft.training.schedules import SCHEDULES
from samplesoft.training.task import derive_seed

Matrix = sparse.csr_array

_AUTO = "auto"  # value of `propagation` with which validation chooses its weight
# the default number of draws is the number of items / _ITEMS_PER_DRAW, within these limits
_MIN_DRAWS = 1000
_MAX_DRAWS = 4000
_ITEMS_PER_DRAW = 10
# losses that accept several labels with weights, which one-versus-all losses do not
_LOSS_NAMES = [
    name
    for name, spec in LOSSES.items()
    if spec.several_labels
    and not spec.absolute
    and not spec.on_tree
    and "label_reduction" not in spec.fixed
]

_TRAINING_STREAM, _START_STREAM, _HELD_OUT_STREAM = range(3)  # random streams derived from the seed
# random stream of the dropout of items; smaller numbers are streams of `LinearTask`
_DROPOUT_STREAM = 100
# label weight of an item that dropout leaves in the history; a dropped item has weight 1
_KEPT_LABEL_WEIGHT = 0.3
# factor of the random initial values of dimensions that have no singular vector
_RANDOM_SCALE = 0.1

# of the randomized singular vectors: random directions beyond the number of vectors, and number of
# power iterations
_OVERSAMPLING = 16
_POWER_ITERATIONS = 3

_LIST_LENGTH = 20  # number of items recommended to a user in validation
_MAX_VALIDATION_USERS = 2000  # maximum number of users with hidden items
_PROPAGATION_WEIGHTS = (0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # candidates for "auto"
# propagation weight with which "auto" validates each epoch; the final one is chosen after training
_EPOCH_WEIGHT = 0.05
_DEFAULT_WEIGHT = 0.1  # propagation weight if nothing is held out
_USERS_PER_CHUNK = 1024
_ENTRIES_PER_CHUNK = 1 << 18


def checked_settings(recommender: Any, num_items: int = 2) -> FitSettings:
    """Check the parameters of a recommender, and return its training settings."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        as_count(name, getattr(recommender, name))

    for name in ("learning_rate", "negative_weight"):
        as_positive(name, getattr(recommender, name))

    as_nonnegative("dropout", recommender.dropout, below=1.0)
    as_choice("schedule", recommender.schedule, SCHEDULES)
    as_nonnegative("warmup", recommender.warmup, below=1.0)

    for name in ("early_stopping", "verbose"):
        as_flag(name, getattr(recommender, name))

    fraction = as_nonnegative("validation_fraction", recommender.validation_fraction, below=1.0)
    if fraction == 0.0:
        raise ValueError(
            "`validation_fraction` must be greater than 0, got 0; or turn `early_stopping` off."
        )

    weight = recommender.propagation
    if not isinstance(weight, str):
        as_nonnegative("propagation", weight)
    elif weight != _AUTO:
        raise ValueError(f"`propagation` must be a number or 'auto', got {short_repr(weight)}.")

    as_choice("loss", recommender.loss, _LOSS_NAMES)
    num_sampled = recommender.num_sampled
    if num_sampled is None:
        num_sampled = min(max(num_items // _ITEMS_PER_DRAW, _MIN_DRAWS), _MAX_DRAWS)

    model = {
        "loss": recommender.loss,
        "sampler": recommender.sampler,
        "num_sampled": num_sampled,
        "shared": recommender.shared,
        "tau": recommender.tau,
        "embedding_dim": recommender.embedding_dim,
        "negative_weight": recommender.negative_weight,
    }

    return FitSettings(
        model=model,
        batch_size=recommender.batch_size,
        epochs=recommender.max_iter,
        learning_rate=recommender.learning_rate,
        schedule=recommender.schedule,
        warmup=recommender.warmup,
    )


class TrainedRecommender(NamedTuple):
    """The result of training a recommender."""

    embedding: Linear  # maps histories to user vectors
    item_vectors: Rows  # (items, d): after propagation
    user_vectors: Rows  # (users, d)
    propagation_weight: float
    losses: list[float]  # per epoch
    scores: list[float]  # validation nDCG per epoch; empty if nothing is held out
    resolved: Resolved


class _TrainedModel(NamedTuple):
    """A trained model before propagation, with losses and validation scores per epoch."""

    model: LinearSoftmax
    propagation_weight: float
    losses: list[float]
    scores: list[float]
    resolved: Resolved


def train_recommender(
    recommender: Any, interactions: Matrix, more_callbacks: Sequence[Callback]
) -> TrainedRecommender:
    """Train a model on interactions (users, items) with the parameters of a recommender.

    The callbacks `more_callbacks` are called after the built-in ones.
    """
    settings = checked_settings(recommender, interactions.shape[1])
    active = np.flatnonzero(np.diff(interactions.indptr))
    num_users = interactions.shape[0]
    if len(active) < num_users:
        # users without items are left out of training
        interactions = interactions[active]

    trained = _train_model(recommender, interactions, settings, more_callbacks)
    model = trained.model
    # user vectors from all items of each user, also from those that were held out
    users = user_vectors(model.embedding, interactions)
    items = model.class_vectors()

    if trained.propagation_weight:
        user_sums = sparse_product(transposed(normalized_graph(interactions)), users)
        items = propagated(items, user_sums, trained.propagation_weight)

    if len(active) < num_users:
        active_users = users
        empty_vector = user_vectors(model.embedding, Matrix((1, interactions.shape[1])))
        users = empty_vector.repeat(num_users, axis=0)
        users[active] = active_users

    return TrainedRecommender(
        embedding=model.embedding,
        item_vectors=items,
        user_vectors=users,
        propagation_weight=trained.propagation_weight,
        losses=trained.losses,
        scores=trained.scores,
        resolved=trained.resolved,
    )


def _train_model(
    recommender: Any,
    interactions: Matrix,
    settings: FitSettings,
    more_callbacks: Sequence[Callback],
) -> _TrainedModel:
    """Return a model trained on interactions (users, items), and the chosen propagation weight."""
    key = stream_key(recommender.random_state, "random_state")
    held_out = None
    training_items = interactions
    if recommender.early_stopping:
        held_out = HeldOut(
            interactions, recommender.validation_fraction, derive_seed(key, _HELD_OUT_STREAM)
        )
        training_items = held_out.remaining

    num_items = training_items.shape[1]
    history_sizes = np.diff(training_items.indptr)
    active_users = np.flatnonzero(history_sizes)
    resolved = resolve(settings, num_items, len(active_users), several_labels=True)
    resolved.model.require_memory(num_items, num_items, np.dtype(np.float32))

    item_counts = column_counts(training_items)
    seed = derive_seed(key, _TRAINING_STREAM)
    task = RecommenderTask(num_items, num_items, resolved.model, item_counts, seed)
    task.dropout = recommender.dropout
    optimizer = make_optimizer(resolved.optimizer, resolved.learning_rate)
    model = task.model
    graph = normalized_graph(training_items)

    # the rank of the interactions is at most the number of users, and at most the number of items
    # that have a user
    rank = min(interactions.shape[0], int(np.count_nonzero(column_counts(interactions))))
    with progress_phase(recommender.verbose, "singular vectors"):
        _initialise_from_singular_vectors(model, graph, rank, derive_seed(key, _START_STREAM))

    # the loss of a user is a mean over the user's items: weights proportional to the number of
    # items give all interactions equal influence
    user_weights = history_sizes / history_sizes[active_users].mean()
    examples = Examples(training_items, training_items, user_weights)
    task.use(examples, active_users, resolved.batch_size)
    resolved = replace(resolved, step_by_step=task.why_step_by_step(optimizer))

    weight = recommender.propagation
    if weight == _AUTO and held_out is None:
        weight = _DEFAULT_WEIGHT

    def compute_ndcg(weights: Sequence[float]) -> list[float]:
        """Return nDCG at 20 on the held-out items for each propagation weight."""
        assert held_out is not None
        users = user_vectors(model.embedding, training_items)
        items = model.class_vectors()
        user_sums = np.zeros_like(items)
        if any(weights):
            # skipped if all weights are 0, because the transpose needs as much memory as the graph
            user_sums = sparse_product(transposed(graph), users)
        return [held_out.score(users, propagated(items, user_sums, weight)) for weight in weights]

    average = Average(task.parameters)
    score = None
    callbacks: list[Callback] = [Refresh(), average]
    if held_out is not None:
        score_weight = _EPOCH_WEIGHT if weight == _AUTO else weight
        score = Score(lambda: compute_ndcg([score_weight])[0], average=average)
        callbacks += [
            score,
            KeepBest(average),
            EarlyStop(recommender.n_iter_no_change),
        ]

    if recommender.verbose:
        callbacks.append(EpochBar(resolved.epochs, "ndcg_at_20", score))

    report_line(recommender.verbose, f"fit: {resolved}")
    progress = fit(
        task,
        optimizer,
        epochs=resolved.epochs,
        schedule=resolved.make_schedule(),
        callbacks=[*callbacks, *more_callbacks],
        guard=divergence_as_value_error,
    )

    losses = [epoch["train_loss"] for epoch in progress.history]
    scores = [] if score is None else score.scores
    if weight == _AUTO:
        with progress_phase(recommender.verbose, "weight of the propagation"):
            weight = _PROPAGATION_WEIGHTS[int(np.argmax(compute_ndcg(_PROPAGATION_WEIGHTS)))]

    return _TrainedModel(
        model=model, propagation_weight=weight, losses=losses, scores=scores, resolved=resolved
    )


def _initialise_from_singular_vectors(
    model: LinearSoftmax, graph: Matrix, rank: int, seed: int
) -> None:
    """Set the vector of each item to its row of the right singular vectors, scaled to norm 1.

    The singular vectors are those of the graph (users, items). Items without users keep their
    random vectors. Dimensions without a singular vector get small random values.
    """
    directions = item_singular_vectors(graph, model.class_vectors().shape[1], seed, rank)
    norms = np.sqrt(np.einsum("ij,ij->i", directions, directions, dtype=np.float64))
    with_users = np.flatnonzero(norms > np.finfo(np.float32).tiny)
    unit_vectors = unit_rows("user_items", directions[with_users])[0]
    num_vectors = unit_vectors.shape[1]

    for name in ("embedding.weights", "softmax.class_embeddings"):
        model.parameters[name][with_users, :num_vectors] = unit_vectors
        model.parameters[name][with_users, num_vectors:] *= np.float32(_RANDOM_SCALE)

    model.parameters["embedding.intercept"] *= np.float32(_RANDOM_SCALE)
    model.softmax.refresh()


class RecommenderTask(LinearTask):
    """Training task: predict all items of a user from a random subset of them, the input history.

    Each step drops a fraction `dropout` of the items from the input history. All items are labels.
    Items that remain in the input have a smaller label weight, because predicting an item from
    itself is easy.

    References
    ----------
    P. Vincent et al., "Stacked denoising autoencoders", JMLR 2010, section 3.4: larger weights for
    corrupted inputs.
    """

    dropout = 0.0

    def _rows(self, rows: IntArray) -> Examples:
        """Return the examples of the users `rows`, with histories divided by their norms."""
        examples = self.data.rows(rows)
        return examples._replace(X=with_unit_rows(examples.X))

    def prepared(self, x: Any, labels: Any, first: int = 0) -> tuple[Any, Any]:
        """Return the histories `x` after dropout, and all items as weighted labels.

        For `first` see `with_dropout`.
        """
        seed = derive_seed(self._seed, _DROPOUT_STREAM, self.steps_taken)
        return with_dropout(x, labels, self.dropout, seed, first)


def with_dropout(
    histories: Matrix, labels: Matrix, dropout: float, seed: int | np.uint64, first: int = 0
) -> tuple[Matrix, Matrix]:
    """Return histories (B, items) after dropout, and the labels (B, items) with weights.

    `histories` and `labels` have the same sparsity pattern. Remaining entries of the histories are
    scaled up, so that the expectation is unchanged. Items that remain get a smaller label weight.
    `first` is the number of entries in the preceding rows of the batch: with it, an entry gets the
    same random number, however the batch is split among calls.
    """
    is_kept = uniform_slice(np.uint64(seed), first, histories.nnz) >= dropout
    inputs = select_entries(histories, is_kept)
    inputs.data /= inputs.data.dtype.type(1.0 - dropout)
    label_weights = np.where(is_kept, _KEPT_LABEL_WEIGHT, 1.0) * labels.data
    return inputs, sparse.csr_array((label_weights, labels.indices, labels.indptr), labels.shape)


def as_interactions(name: str, value: Any, num_items: int | None = None) -> Matrix:
    """Return interaction weights (users, items) as a new canonical CSR array without zeros."""
    matrix = as_csr_weights(name, value)
    if num_items is not None and matrix.shape[1] != num_items:
        raise ValueError(
            f"`{name}` must have a column for each of the {num_items} items, got {matrix.shape[1]}."
        )

    matrix.sum_duplicates()
    # store weights as float32 if that is exact, which halves the memory; computations use float64
    if all(np.array_equal(chunk, chunk.astype(np.float32)) for chunk in _array_chunks(matrix.data)):
        matrix.data = matrix.data.astype(np.float32)
    return matrix


def _array_chunks(array: Any) -> list[Any]:
    """Return chunks of an array (E,), as views."""
    return [array[chunk] for chunk in chunks(len(array), _ENTRIES_PER_CHUNK)]


def hide_items(
    user_items: Matrix, user_fraction: float, seed: int
) -> tuple[Matrix, IntArray, Matrix]:
    """Split interactions (users, items): a fifth of the items of random users are hidden.

    At least one item of each chosen user is hidden. The users are chosen among those with at least
    two items; `user_fraction` is the chosen fraction of them. Returns the remaining interactions
    (users, items), the chosen users (k,), and their hidden items (k, items).
    """
    eligible = np.flatnonzero(np.diff(user_items.indptr) > 1)
    users = np.sort(held_out_order(eligible, seed)[: int(np.ceil(user_fraction * len(eligible)))])

    is_chosen = np.zeros(user_items.shape[0], bool)
    is_chosen[users] = True
    is_hidden = np.empty(user_items.nnz, bool)
    random = np.random.default_rng(seed)

    for chunk in entry_chunks(user_items):
        example_ids, entries = row_of_each_entry(user_items, chunk)
        random_keys = random.random(len(example_ids))
        order = np.lexsort((random_keys, example_ids))  # by user; items of a user in random order

        # rank of each entry in the random order of its user's items, from 0
        num_items = np.diff(user_items.indptr[chunk.start : chunk.stop + 1])
        starts = np.cumsum(num_items) - num_items
        item_rank = np.empty(len(example_ids), np.int64)
        item_rank[order] = np.arange(len(example_ids)) - starts[example_ids]

        num_hidden = np.maximum(1, num_items // 5)
        is_hidden[entries] = is_chosen[chunk][example_ids] & (item_rank < num_hidden[example_ids])

    remaining = select_entries(user_items, ~is_hidden)
    return remaining, users, select_entries(user_items, is_hidden)[users]


def normalized_graph(user_items: Matrix) -> Matrix:
    """Return the interactions (users, items), normalised by the degrees of the graph, as float32.

    An entry is divided by the square roots of two degrees: the sum of its user's weights, and the
    sum of its item's weights.
    """
    max_weight = max(1.0, float(user_items.data.max(initial=0.0)))
    row_chunks = entry_chunks(user_items)
    user_degrees = np.zeros(user_items.shape[0])
    item_degrees = np.zeros(user_items.shape[1])
    values = np.empty(user_items.nnz, np.float32)

    def positive_weights(entries: slice) -> FloatArray:
        scaled: FloatArray = user_items.data[entries].astype(np.float64) / max_weight
        # at least the smallest normal number, so that no degree is 0
        return np.maximum(scaled, np.finfo(np.float64).tiny)

    for chunk in row_chunks:
        example_ids, entries = row_of_each_entry(user_items, chunk)
        user_degrees[chunk] = np.bincount(
            example_ids, positive_weights(entries), chunk.stop - chunk.start
        )
        # `add.at` adds in the order of the entries, so that sums do not depend on the chunks
        np.add.at(item_degrees, user_items.indices[entries], positive_weights(entries))

    for chunk in row_chunks:
        example_ids, entries = row_of_each_entry(user_items, chunk)
        user_roots = np.sqrt(user_degrees[chunk][example_ids])
        items = user_items.indices[entries]
        values[entries] = positive_weights(entries) / user_roots / np.sqrt(item_degrees[items])

    return sparse.csr_array((values, user_items.indices, user_items.indptr), user_items.shape)


def item_singular_vectors(
    graph: sparse.csr_array, dim: int, seed: int, rank: int | None = None
) -> Rows:
    """Return the right singular vectors (items, r) of the r largest singular values of a graph.

    r is the smaller of `dim` and `rank`. `rank` is an upper bound of the rank of the graph, by
    default the smaller of its dimensions.

    The method is the randomized range finder of Halko, Martinsson and Tropp (2011), "Finding
    structure with randomness", algorithm 4.4. It uses `graph` (users, items) only in sparse
    products.
    """
    rank = min(graph.shape) if rank is None else rank
    num_directions = min(dim, rank)
    width = min(num_directions + _OVERSAMPLING, rank)
    transpose = transposed(graph)

    basis = 2.0 * uniform_block(np.uint64(seed), graph.shape[1], width) - 1.0
    basis = basis.astype(np.float32)
    for _ in range(_POWER_ITERATIONS):
        basis, _ = np.linalg.qr(sparse_product(transpose, sparse_product(graph, basis)))

    # The eigenvalues are the squares of the singular values, ascending. Squares lose half of the
    # digits, which is precise enough for initial vectors.
    small_matrix = sparse_product(graph, basis)
    _, vectors = np.linalg.eigh(small_matrix.T @ small_matrix)
    directions: Rows = basis @ vectors[:, ::-1][:, :num_directions]
    return directions


class HeldOut:
    """Validation data: a fifth of the items of some users, hidden from training.

    Attributes
    ----------
    remaining : csr_array, shape (users, items)
        The remaining interactions, for training.
    """

    def __init__(self, user_items: Matrix, user_fraction: float, seed: int) -> None:
        num_eligible = int(np.sum(np.diff(user_items.indptr) > 1))
        if not num_eligible:
            raise ValueError(
                "`early_stopping` needs users with at least two items, to hide some of them, got "
                "none; turn it off."
            )

        self.remaining, self._users, self._hidden = hide_items(
            user_items, min(user_fraction, _MAX_VALIDATION_USERS / num_eligible), seed
        )
        self._histories = self.remaining[self._users]
        num_candidates = user_items.shape[1] - int(np.diff(self._histories.indptr).max())
        self._length = min(_LIST_LENGTH, num_candidates)

    def score(self, users: Rows, items: Rows) -> float:
        """Return nDCG at 20 on the hidden items, for the vectors (n, d) of all users and items."""
        ids, _ = best_classes(users[self._users], items, self._length, leave_out=self._histories)
        return ranking_scores(ids, self._hidden, self._length)[f"ndcg_at_{self._length}"]


def user_vectors(embedding: Linear, histories: Any) -> Rows:
    """Return the user vectors (B, d), of norm 1, for `histories`, a CSR matrix (B, items).

    A user vector is the embedding of the history (divided by its norm), again divided by its norm.
    For an empty history it is the intercept of the embedding, divided by its norm.
    """
    users: Rows = np.empty((histories.shape[0], embedding.parameters["intercept"].size), np.float32)
    for chunk in chunks(len(users), _USERS_PER_CHUNK):
        inputs = with_unit_rows(histories[chunk])
        users[chunk] = unit_rows("user_items", embedding.forward(inputs)[0])[0]
    return users


def transposed(graph: Matrix) -> Matrix:
    """Return the transpose (items, users) of a graph as CSR, for products with user vectors."""
    return sparse.csr_array(graph.T)


def propagated(items: Rows, user_sums: Rows, weight: float) -> Rows:
    """Return the item vectors (items, d) after propagation, ``items + weight * user_sums``.

    `user_sums` (items, d) holds, for each item, the weighted sum of its users' vectors; the weights
    are the entries of `normalized_graph`.
    """
    if weight == 0.0:
        return items
    vectors: Rows = items + np.float32(weight) * user_sums
    return vectors
