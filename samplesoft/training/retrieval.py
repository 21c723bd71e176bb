"""The training task for extreme classification and item retrieval, on sparse inputs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._moving_average import as_log_sums
from samplesoft._random import stream_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_csr,
    as_flag,
    as_nonnegative,
    require_finite,
    require_instance,
    sum_repeated_entries,
)
from samplesoft.distributed.linear_softmax import require_shardable, shard
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.registry import LOSSES
from samplesoft.metrics.ranking import MIN_EXAMPLES, propensities, ranking_scores
from samplesoft.models.linear import Gradient
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, select_entries
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.static import UniformSampler
from samplesoft.training.checkpoint import Arrays, plain
from samplesoft.training.linear_task import (
    Examples,
    LinearTask,
    as_csr_weights,
    held_out_order,
    with_unit_rows,
)
from samplesoft.training.resolved import FitSettings, Resolved, resolve
from samplesoft.training.settings import Settings
from samplesoft.training.task import NUM_EXAMPLES, derive_seed
from samplesoft.training.trained import linear_softmax_config, sample_one_label

LIST_LENGTHS = (1, 3, 5, 20)  # lengths k of the top-k lists in metrics
_MAX_VALIDATION_EXAMPLES = 2000  # largest number of examples in a validation
_LOSS_BATCH_EXAMPLES = 256  # examples whose loss is computed at a time
# paths of random streams in `derive_seed`
_HIDDEN_ITEMS_STREAM = 3, 1  # which items of held-out users are hidden
_ONE_LABEL_STREAM = 3, 2  # which of several labels a checkpoint stores for an example

Matrix = sparse.csr_array


@dataclass(frozen=True)
class RetrievalSettings(LinearSoftmaxSettings):
    """Settings of a `RetrievalTask`: a linear softmax model, for examples with several labels.

    Parameters
    ----------
    loss : str
        Training loss, one that accepts several labels of an example; see
        `samplesoft.losses.LOSSES`. Or ``"moving-average"``, if each example has one label: the task
        keeps a running estimate for each training example, from epoch to epoch and in checkpoints.
    tau : float, optional
        Inverse temperature; by default 10, and 1 without `normalize`.
    normalize : bool, optional
        Divide contexts and class vectors by their norms. By default True; False for full-logistic,
        a tree, or a model without an embedding.
    sampler : str or None
        Sampler that draws classes, a key of `samplesoft.samplers.SAMPLERS`; None for a loss over
        all classes.
    num_sampled : int or None
        Draws for each example, or for the batch if `shared`.
    num_certain : int
        Number of always-included classes: the most frequent ones are used in each step, and the
        sampler draws from the others.
    shared : bool, optional
        Draw one set of classes for all examples of a batch. The default is True with a sampler that
        is independent of inputs, such as unigram, and a loss such as sampled-masked.
    nu : float
        Sharpness of the Gaussian kernel of the rff samplers.
    num_features : int
        Number of random frequencies of the rff samplers, or of features of the positive sampler.
    update_every : int
        Steps between two updates of a sampler that follows the class vectors.
    embedding_dim : int or None
        Length of embedded inputs and of class vectors; None for class vectors directly on the
        inputs.
    alpha : float, optional
        Factor of an L2 penalty on the class vectors of a model without an embedding; by default
        0.003 divided by the number of classes.
    dropout : float
        Probability with which an entry of an input is dropped in a step.
    label_reduction : {"pal-n", "pal", "ova"}
        Loss of an example with several labels: with pal-n the mean of the losses of its labels,
        with pal their sum; with ova, one versus all, a sum of binary losses over labels and
        draws, for nce and negative-sampling-masked.
    mask_other_labels : bool
        Whether the negatives of a label exclude the other labels of the example; by default True.
    negative_weight : float, optional
        Weight of the log-sum-exp of the draws in the bilateral loss.
    gamma, scent_alpha : float, optional
        Arguments `gamma` and `alpha` of `samplesoft.losses.MovingAverageLoss`, for
        ``loss="moving-average"`` only; at most one of them.
    batch_size : int
        Examples in a batch.
    validation : float
        Fraction of the examples to hold out. After each epoch at most 2,000 of them are evaluated;
        if the fraction is 0, at most 2,000 training examples.
    seed : int
        Seed of all randomness.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss excludes the label from the draws, which it cannot do
        for several labels.
    """

    dropout: float = 0.3
    batch_size: int = 64
    validation: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("batch_size", self.batch_size)
        as_count("seed", self.seed, 0)
        as_nonnegative("validation", self.validation, below=1.0)


class RetrievalTask(LinearTask):
    """The task to rank classes for sparse inputs.

    Parameters
    ----------
    inputs : scipy.sparse matrix, shape (N, v)
        Inputs. The task divides each row by its norm.
    labels : scipy.sparse matrix, shape (N, n)
        Weights of the labels, such as ones. Examples without labels are not trained on.
    settings : RetrievalSettings
        Settings of the model.
    leave_out : bool
        Whether inputs and labels are the same matrix: the items of each user. Validation then hides
        about a fifth of a user's items and predicts them from the others, which are excluded from
        the top-k lists.
    workers : optional
        Workers that hold the class vectors during training, as for a
        `samplesoft.distributed.ShardedSoftmaxLayer`.

    Attributes
    ----------
    num_unlabeled : int
        Number of examples without a label.
    test : tuple of matrix, or None
        Arguments of `evaluate` for a final test; None until a caller sets it.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, no example has a label, or an example has several for a loss
        that takes one.
    MemoryError
        If the parameters would not fit.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> X = csr_array(np.eye(4, dtype=np.float32))
    >>> settings = RetrievalSettings(num_sampled=2, num_features=8, validation=0.0, batch_size=2)
    >>> task = RetrievalTask(X, X, settings)
    >>> loss, gradients = task.step(0, 0)
    >>> task.num_steps, sorted(task.validate())[:2]
    (2, ['loss', 'ndcg_at_1'])
    """

    def __init__(
        self,
        inputs: Any,
        labels: Any,
        settings: RetrievalSettings,
        *,
        leave_out: bool = False,
        workers: Any = None,
    ) -> None:
        require_instance("settings", settings, RetrievalSettings)
        settings = settings.resolved()
        self._workers = workers
        model_settings = settings
        if workers is not None:
            require_shardable(settings)
            # the workers make the sampler later; a uniform one is a placeholder until then
            model_settings = replace(
                settings, sampler=lambda inputs: UniformSampler(len(inputs.counts))
            )
        self.settings = settings
        self.leave_out = as_flag("leave_out", leave_out)

        inputs, labels = _checked_examples(inputs, labels)
        if self.leave_out:
            _require_same_items(inputs, labels)
        keeps_sums = LOSSES[settings.loss].has_log_sums
        if keeps_sums:
            _require_one_label(labels, settings.loss)
        self.test: Any = None
        self._key = stream_key(settings.seed)
        self._inputs = inputs
        self._labels = labels
        self.num_unlabeled = int(np.sum(np.diff(labels.indptr) == 0))

        rows, held_out = self._split_rows()
        self._validation = self._make_validation_data(held_out[:_MAX_VALIDATION_EXAMPLES])
        # checkpoints store contexts of these examples, for ``samplesoft verify --checkpoint``
        self._checkpoint_rows = held_out[:NUM_EXAMPLES]

        num_columns = inputs.shape[1], labels.shape[1]
        settings.require_memory(*num_columns, np.dtype(np.float32))
        # count held-out examples too, because their classes must also be drawn
        counts = np.bincount(labels.indices, minlength=num_columns[1]).astype(np.float64)
        super().__init__(*num_columns, model_settings, counts, self._key)

        training_labels, weights = labels, np.ones(inputs.shape[0])
        if keeps_sums:
            training_labels, weights = _one_label_each(labels, settings.label_reduction)
        examples = Examples(with_unit_rows(inputs), training_labels, weights)
        self.use(examples, rows, settings.batch_size)

    def config(self) -> dict[str, Any]:
        """Return the settings, the numbers of examples and classes, and a hash of the data."""
        data = hashlib.sha256()
        for matrix in (self._inputs, self._labels):
            # as float64, so that the hash does not depend on the dtype
            for array in (matrix.indptr, matrix.indices, matrix.data):
                data.update(array.astype(np.float64).tobytes())

        return {
            "model": "retrieval",
            "data": data.hexdigest()[:16],
            "num_labeled": self._labels.shape[0] - self.num_unlabeled,
            **plain(self.settings.config()),
            "linear_softmax": linear_softmax_config(
                self.model, unit_inputs=True, leave_out=self.leave_out
            ),
        }

    def resolved(self, settings: Settings) -> Resolved:
        """Return the settings of this task and of its training, with all defaults filled in."""
        options = settings.optimizer_options
        optimizer = make_optimizer(settings.optimizer, settings.learning_rate, **options)
        reason: str | None = "class vectors lie on workers"
        if self._workers is None:
            reason = self.why_step_by_step(optimizer)

        fit_settings = FitSettings(
            model=self.settings,
            batch_size=self.batch_size,
            epochs=settings.epochs,
            optimizer=settings.optimizer,
            learning_rate=settings.learning_rate,
            schedule=settings.schedule,
            warmup_steps=settings.warmup_steps,
        )

        return resolve(fit_settings, self.model.num_classes, len(self.rows), step_by_step=reason)

    def start(self, optimizer: Optimizer) -> Any:
        """Return the optimizer; if there are workers, first distribute the class vectors to them.

        The returned optimizer then updates the class vectors on the workers.
        """
        if self._workers is None:
            return optimizer
        sharded = shard(
            self.model,
            self.settings,
            counts=self.counts,
            workers=self._workers,
            optimizer=optimizer,
        )
        self.parameters = self.model.parameters
        return sharded

    def begin_epoch(self, epoch: int, index: int) -> None:
        """Shuffle the examples.

        The order depends only on the seed and the epoch, so that a resumed run has the same order.
        """
        self.epochs_begun = epoch
        self.steps_taken = epoch * self.num_steps + index
        super().begin_epoch(epoch, index)

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a step's batch, and its gradients by parameter name.

        The parameters do not change.
        """
        self.steps_taken = epoch * self.num_steps + index
        return super().step(epoch, index)

    def examples(self) -> Arrays:
        """Return contexts of held-out examples with one label each, and class counts.

        One of several labels of an example is drawn. If `leave_out`, the drawn item is removed from
        the user's input.
        """
        stored_inputs = self._inputs[self._checkpoint_rows]
        labels = self._labels[self._checkpoint_rows]
        seed = derive_seed(self._key, *_ONE_LABEL_STREAM)
        inputs, drawn = sample_one_label(stored_inputs, labels, self.leave_out, seed)
        return {
            "h": self.model.embed(with_unit_rows(inputs)),
            "labels": drawn,
            "counts": self.counts,
        }

    def state(self) -> Arrays:
        """Return the state of the sampler, and the log-sums of the examples if the loss has them.

        State that is computed from class vectors is left out.
        """
        own = {} if self.log_sums is None else {"log_sums": self.log_sums.copy()}
        return {**self.model.state(), **own}

    def load_state(self, state: Arrays) -> None:
        """Restore the state of the sampler and the log-sums, given the result of `state`."""
        if self.log_sums is not None:
            log_sums = as_log_sums("log_sums", state["log_sums"])
            if log_sums.shape != self.log_sums.shape:
                raise ValueError(
                    f"`log_sums` must have shape {self.log_sums.shape}, a number for each example, "
                    f"got {log_sums.shape}; the state is that of another task."
                )
            self.log_sums = log_sums
        self.model.load_state(state)

    def validate(self) -> dict[str, float]:
        """Return the results of `evaluate` on the validation examples."""
        return self.evaluate(*self._validation)

    def evaluate(self, inputs: Any, labels: Any) -> dict[str, float]:
        """Compute the full-softmax loss and metrics of top-k lists on given examples.

        Parameters
        ----------
        inputs : scipy.sparse matrix, shape (N, v)
            Raw inputs, not divided by their norms. If `leave_out`, these items are excluded from
            the lists.
        labels : scipy.sparse matrix, shape (N, n)
            Examples without labels are ignored.

        Returns
        -------
        dict
            ``loss``, the mean loss in nats, and the metrics of `ranking_scores` for lists of
            1, 3, 5 and 20 classes. ``psp_at_k`` is omitted if `leave_out`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        inputs, labels = _checked_examples(inputs, labels)
        rows = np.flatnonzero(np.diff(labels.indptr))
        labeled_inputs = inputs[rows]
        row_labels = labels[rows]
        x = with_unit_rows(labeled_inputs)
        k = [k for k in LIST_LENGTHS if k <= labels.shape[1]]
        ids, _ = self.model.top_k(x, k[-1], leave_out=labeled_inputs if self.leave_out else None)

        num_labeled = self._labels.shape[0] - self.num_unlabeled
        # with `leave_out`, lists contain items of users, and are not scored by propensities
        uses_propensities = not self.leave_out and num_labeled >= MIN_EXAMPLES
        class_propensities = propensities(self.counts, num_labeled) if uses_propensities else None
        scores = ranking_scores(ids, row_labels, k, propensities=class_propensities)
        return {"loss": self._full_softmax_loss(x, row_labels), **scores}

    def _full_softmax_loss(self, x: Any, labels: Any) -> float:
        """Return the mean full-softmax loss in nats, or the mean loss of a model over a tree."""
        if LOSSES[self.settings.loss].on_tree:  # the model has no class vectors
            return float(self.model.softmax.evaluate(self.model.embed(x), labels).loss)

        # the same loss for all other models, so that runs with different losses are comparable
        tau = self.settings.tau
        normalize = bool(self.settings.normalize)
        full = FullSoftmaxLoss(tau=tau, normalize=normalize, reduction="sum")
        rows = self.model.softmax.class_embeddings

        # the scores of all classes are computed for 256 examples at a time
        losses = (
            full.forward(self.model.embed(x[chunk]), rows, labels[chunk])[0]
            for chunk in chunks(x.shape[0], _LOSS_BATCH_EXAMPLES)
        )
        return sum(map(float, losses)) / float(x.shape[0])

    def _split_rows(self) -> tuple[IntArray, IntArray]:
        """Return the indices of the training examples, and of the held-out examples."""
        rows = np.flatnonzero(np.diff(self._labels.indptr))
        order = held_out_order(rows, self._key)
        num_held_out = int(self.settings.validation * len(rows))
        # if nothing is held out, validate on training examples
        if num_held_out == 0:
            return rows, order
        return np.sort(order[num_held_out:]), order[:num_held_out]

    def _make_validation_data(self, rows: IntArray) -> tuple[Matrix, Matrix]:
        """Return inputs and labels of the validation examples `rows`.

        If `leave_out`, some items of each user are removed from the input. The labels are the
        removed items.
        """
        inputs = self._inputs[rows]
        labels = self._labels[rows]
        if not self.leave_out:
            return inputs, labels
        generator = np.random.default_rng(derive_seed(self._key, *_HIDDEN_ITEMS_STREAM))

        hidden = generator.random(labels.nnz) < 0.2
        # users with two or more items have at least one hidden item and one that is not hidden
        first_items = labels.indptr[:-1][np.diff(labels.indptr) > 1]
        hidden[first_items] = True
        hidden[first_items + 1] = False
        return select_entries(inputs, ~hidden), select_entries(labels, hidden)


def _checked_examples(inputs: Any, labels: Any) -> tuple[Matrix, Matrix]:
    """Return validated copies of inputs and labels, without labels of weight 0."""
    inputs = sum_repeated_entries(as_csr("inputs", inputs))
    labels = sum_repeated_entries(as_csr_weights("labels", labels))
    if inputs.shape[0] != labels.shape[0]:
        raise ValueError(
            f"`labels` must have a row for each of the {inputs.shape[0]} inputs, got "
            f"{labels.shape[0]}."
        )
    require_finite("inputs", inputs.data)

    if not labels.nnz:
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )
    return inputs, labels


def _require_one_label(labels: Matrix, loss: str) -> None:
    """Raise ValueError unless each row has at most one label."""
    counts = np.diff(labels.indptr)
    row = int(np.argmax(counts))
    if counts[row] > 1:
        raise ValueError(
            f"`labels` must hold one label an example with loss={loss!r}, got {counts[row]} in row "
            f"{row}; repeat the example for each of its labels, or use loss='sampled-masked'."
        )


def _one_label_each(labels: Matrix, reduction: str) -> tuple[IntArray, FloatArray]:
    """Return the label (N,) and the weight (N,) of each example, for rows of at most one label.

    An example without a label, which is not trained on, has the label 0.
    """
    has_label = np.diff(labels.indptr) > 0
    classes = np.zeros(len(has_label), np.int64)
    classes[has_label] = labels.indices
    weights = np.ones(len(has_label))
    if reduction == "pal":  # a sum, in which a label counts by its weight
        weights[has_label] = labels.data
    return classes, weights


def _require_same_items(inputs: Matrix, labels: Matrix) -> None:
    """Raise ValueError unless both matrices have entries at the same positions."""
    for matrix in (inputs, labels):
        # this also sorts the entries, so that their positions can be compared
        matrix.sum_duplicates()

    has_same_entries = all(
        np.array_equal(getattr(inputs, name), getattr(labels, name))
        for name in ("indptr", "indices")
    )
    if inputs.shape != labels.shape or not has_same_entries:
        raise ValueError(
            "`labels` must be the items of `inputs` where `leave_out` is True, got shapes "
            f"{inputs.shape} and {labels.shape}, or other positions; pass one matrix for both."
        )
