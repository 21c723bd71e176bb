"""Choice of the number of epochs and of the inverse temperature, on held-out examples."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit, thread_map
from samplesoft._progress import report_line
from samplesoft._temperature import times_tau
from samplesoft._validation import FloatArray, IntArray, scale_by_power_of_two
from samplesoft.kernels.exponential import replace_by_exp
from samplesoft.kernels.products import products, round_up_to_8
from samplesoft.losses.base import checked_targets
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Rows
from samplesoft.training.callbacks import Average, with_averages
from samplesoft.training.linear_task import Examples
from samplesoft.training.loop import Callback, Progress

# An epoch is an improvement if it lowers the held-out loss by more than this fraction. On nine data
# sets, twice the last such epoch was closest to the best number of epochs at a constant learning
# rate; see docs/benchmarks.md, section "Epochs and temperature of the classifier".
MIN_IMPROVEMENT = 0.002
# The loss is no longer computed after this number of epochs without an improvement, if there were
# at least this number of steps.
_PATIENCE = 2
_MIN_STEPS = 100
# The same number where training ends at once: with many examples the accuracy, too, soon falls.
_PATIENCE_AT_END = 1
# factors by which tau may change after an epoch
FACTORS = 2.0 ** (np.arange(-4, 5) / 8.0)
_UNCHANGED = 4  # index of the factor 1
# factors by which scores may be multiplied before losses of two kinds of scores are compared
_SCALES = 2.0 ** (np.arange(-8, 3) / 4.0)
_PENALTY = 5.0  # penalty of a change of log(tau) by 1, in nats
# Least number of examples whose mean loss shows whether training still improves the model. With
# fewer held-out examples, the number of epochs and tau are fixed.
MIN_WATCHED = 32
_MAX_COST = 0.15  # cost of scoring the held-out examples, as a fraction of the cost of an epoch
_MAX_CHUNK_SCORES = 1 << 18  # max number of scores that a thread computes at a time
_BLOCK = 256  # number of scores whose exponentials are computed together


class HeldOutLoss(NamedTuple):
    """Loss of a model on held-out examples, and the factor of tau with which it would be lowest.

    Parameters
    ----------
    loss : float
        Weighted mean of the full softmax loss, in nats; for several labels of an example, the mean
        of their losses.
    best_factor : float
        The factor, one of `FACTORS`.
    """

    loss: float
    best_factor: float


def held_out_loss(model: LinearSoftmax, examples: Examples) -> HeldOutLoss:
    """Return the loss of a model on `examples`, and the factor of tau with which it is lowest.

    The model must have an embedding, and its loss must be a softmax of inner products. Each example
    must have a label. With few examples a penalty keeps the factor near 1: 5 nats times the square
    of its logarithm, added to the sum of the losses. Sums are in a fixed order, so that the result
    does not depend on the number of threads.
    """
    x = examples.X.astype(model.dtype, copy=False)
    contexts = times_tau(model.embed(x), model.softmax.loss.tau)
    vectors = model.class_vectors()
    labels = examples.labels
    if not isinstance(labels, np.ndarray):  # leave out the column of labels that are no class
        labels = labels[:, : len(vectors)]
    targets = checked_targets(labels, len(contexts), len(vectors))
    starts = np.append(targets.offsets(), len(targets.labels))
    # as in training: the negatives of a label may exclude the other labels of the example
    masks = model.settings.mask_other_labels
    rows_each = max(1, _MAX_CHUNK_SCORES // len(vectors))

    def losses_of(rows: slice) -> FloatArray:
        """Return the losses (k, factors) of the examples `rows`."""
        losses = np.empty((rows.stop - rows.start, len(FACTORS)))
        scores = np.empty((1, round_up_to_8(len(vectors))), contexts.dtype)
        _write_losses(
            contexts, vectors, starts, targets.labels, masks, rows.start, FACTORS, scores, losses
        )
        return losses

    blocks = list(thread_map(losses_of, chunks(len(contexts), rows_each)))
    losses = np.concatenate(blocks)
    weights = scale_by_power_of_two(examples.weights)
    means = weights @ losses / weights.sum()

    penalties = _PENALTY * np.log(FACTORS) ** 2 / len(losses)
    best = int(np.argmin(means + penalties))
    return HeldOutLoss(loss=float(means[_UNCHANGED]), best_factor=float(FACTORS[best]))


def scores_in_fixed_order(model: LinearSoftmax, X: Any) -> Rows:
    """Return the scores (N, n) of inputs, whose bits do not depend on the number of threads.

    The model must have an embedding, and its loss must be a softmax of inner products.
    """
    contexts = times_tau(model.embed(X.astype(model.dtype, copy=False)), model.softmax.loss.tau)
    vectors = model.class_vectors()
    padded = np.empty((len(contexts), round_up_to_8(len(vectors))), contexts.dtype)
    _write_scores(contexts, vectors, padded)
    scores = np.ascontiguousarray(padded[:, : len(vectors)])
    if model.pair_weights is not None:
        model.pair_weights.add_to(scores, X)
    return scores


def loss_of_scores(scores: Rows, labels: Any, weights: FloatArray, masks: bool) -> float:
    """Return the loss of scores (N, n), in nats, after they are multiplied by the best factor.

    The loss is the weighted mean of the full softmax loss, and of several labels of an example the
    mean. The factor is from 1/4 to 1.4. `masks` says whether the negatives of a label exclude the
    other labels.
    """
    targets = checked_targets(labels, *scores.shape)
    starts = np.append(targets.offsets(), len(targets.labels))
    losses = np.empty((len(scores), len(_SCALES)))
    _write_losses_of_scores(scores.copy(), starts, targets.labels, masks, _SCALES, losses)
    weights = scale_by_power_of_two(weights)
    return float((weights @ losses).min() / weights.sum())


def num_watched(num_held_out: int, num_training: int, num_classes: int, cost: float) -> int:
    """Return the number of held-out examples on which the loss is computed after each epoch.

    The computation takes at most about a fifth of the time of an epoch, unless this would leave
    fewer than `MIN_WATCHED` examples. `cost` is the cost of training on one example, in the unit of
    `samplesoft.training.resolved.step_cost`.
    """
    affordable = int(_MAX_COST * num_training * cost / num_classes)
    return min(num_held_out, max(affordable, MIN_WATCHED))


class Watch(Callback):
    """Follows the held-out loss from epoch to epoch, changes tau, and may end training.

    The loss is computed after each epoch, until two epochs have not lowered it by more than
    `MIN_IMPROVEMENT`, and for at least 100 steps. After each of these epochs tau is changed such
    that the loss falls. If the number of epochs is chosen, training then ends: after a trial it
    begins again with `num_epochs` epochs; otherwise one epoch without an improvement is enough.

    Parameters
    ----------
    examples : Examples
        Examples of which some are held out.
    rows : ndarray of int, shape (k,)
        Rows of the held-out examples on which the loss is computed; all have a label.
    last_epoch : int
        Epoch, counted from 1, after which the loss is no longer computed.
    changes_tau : bool
        Whether tau is changed.
    chooses_epochs : bool
        Whether training ends when the loss is no longer computed.
    is_trial : bool
        Whether training begins again afterwards.
    verbose : bool
        Whether the choice is written to stderr.

    Attributes
    ----------
    chooses_epochs : bool
        The argument.
    average : Average or None
        Averaged parameters, with which the loss is computed; None to use the current ones.
    losses : list of float
        Held-out loss after each epoch, in nats.
    best_epoch : int
        Last epoch that improved the loss, counted from 1.
    is_done : bool
        Whether the loss is no longer computed.
    """

    def __init__(
        self,
        examples: Examples,
        rows: IntArray,
        last_epoch: int,
        *,
        changes_tau: bool,
        chooses_epochs: bool,
        is_trial: bool,
        verbose: bool = False,
    ) -> None:
        self._examples = examples
        self._rows = rows
        self._last_epoch = last_epoch
        self.average: Average | None = None
        self._changes_tau = changes_tau
        self.chooses_epochs = chooses_epochs
        self._is_trial = is_trial
        self._patience = _PATIENCE_AT_END if chooses_epochs and not is_trial else _PATIENCE
        self._verbose = verbose
        self._best_loss = np.inf
        self.losses: list[float] = []
        self.best_epoch = 1
        self.is_done = False

    @property
    def num_epochs(self) -> int:
        """Number of epochs of the training that begins after a trial.

        It is more than the epochs that improved the loss, because the learning rate decays, and
        because the accuracy of a model that has few examples still rises for a while.
        """
        return ceil(1.5 * self.best_epoch) + 1

    def end_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Compute the held-out loss, and change tau, until training no longer improves the loss."""
        if self.is_done:
            return

        model = task.model
        with with_averages(self.average, task.parameters):
            loss, best_factor = held_out_loss(model, self._examples.rows(self._rows))
        self.losses.append(loss)

        epoch = progress.epoch + 1
        if loss < self._best_loss * (1.0 - MIN_IMPROVEMENT):
            self._best_loss = loss
            self.best_epoch = epoch
        is_over = epoch >= self.best_epoch + self._patience and progress.step >= _MIN_STEPS
        self.is_done = is_over or epoch >= self._last_epoch
        # in the last of these epochs the model is calibrated, and tau is no longer changed
        if self._changes_tau and not self.is_done:
            model.set_tau(model.softmax.loss.tau * best_factor)

    def _report(self, tau: float) -> None:
        """Write the choice of tau and of the number of epochs to stderr."""
        text = f"held-out loss {self._best_loss:.4f} after epoch {self.best_epoch}: tau {tau:.3g}"
        if self._is_trial:
            text += f", {self.num_epochs} epochs on all examples"
        report_line(self._verbose, text)

    def after_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """End training if the number of epochs is chosen, and the loss is no longer computed."""
        if self.is_done and progress.epoch == len(self.losses):
            self._report(task.model.softmax.loss.tau)
        if self.chooses_epochs and self.is_done:
            progress.stop = True


@njit
def _write_losses(
    contexts: Rows,
    vectors: Rows,
    starts: IntArray,
    label_ids: IntArray,
    masks_other_labels: bool,
    first: int,
    factors: FloatArray,
    scores: Rows,
    losses: FloatArray,
) -> None:
    """Write the losses of the examples from index `first` on, for scores times each factor.

    `losses` has a row for each example, and a column for each factor. `scores` is a workspace of
    shape (1, n), with n rounded up to a multiple of 8.
    """
    n = len(vectors)
    row = scores[0]
    block = np.empty(_BLOCK, row.dtype)
    for k in range(len(losses)):
        i = first + k
        products(vectors, 0, n, contexts, i, -1, scores, 0)
        labels = label_ids[starts[i] : starts[i + 1]]
        _write_losses_of_row(row[:n], labels, masks_other_labels, factors, block, losses[k])


@njit
def _write_scores(contexts: Rows, vectors: Rows, scores: Rows) -> None:
    """Write the inner products of contexts (N, d) and vectors (n, d) to ``scores[:, :n]``.

    `scores` has n columns, rounded up to a multiple of 8.
    """
    for i in range(len(contexts)):
        products(vectors, 0, len(vectors), contexts, i, -1, scores, i)


@njit
def _write_losses_of_scores(
    scores: Rows,
    starts: IntArray,
    label_ids: IntArray,
    masks_other_labels: bool,
    factors: FloatArray,
    losses: FloatArray,
) -> None:
    """Write the losses (N, factors) of examples with the given scores (N, n), which change."""
    block = np.empty(_BLOCK, scores.dtype)
    for i in range(len(losses)):
        labels = label_ids[starts[i] : starts[i + 1]]
        _write_losses_of_row(scores[i], labels, masks_other_labels, factors, block, losses[i])


@njit
def _write_losses_of_row(
    row: Rows,
    labels: IntArray,
    masks_other_labels: bool,
    factors: FloatArray,
    block: Rows,
    losses: FloatArray,
) -> None:
    """Write the losses of an example with the scores `row` (n,), times each factor, to `losses`.

    The scores are changed. `block` is a workspace.
    """
    n = len(row)
    # subtract the largest score, so that no exponential overflows
    largest = row[0]
    for j in range(1, n):
        largest = max(largest, row[j])
    for j in range(n):
        row[j] -= largest

    label_scores = row[labels].astype(np.float64)
    if masks_other_labels:
        row[labels] = -np.inf

    for f in range(len(factors)):
        factor = row.dtype.type(factors[f])
        total = 0.0
        for start in range(0, n, _BLOCK):
            size = min(_BLOCK, n - start)
            for j in range(size):
                block[j] = factor * row[start + j]
            replace_by_exp(block, size)
            for j in range(size):
                total += block[j]

        loss = 0.0
        for score in label_scores:
            # log(total / exp(factor * score)), or with exp(factor * score) added to the total
            log_ratio = np.log(total) - factors[f] * score
            if masks_other_labels:
                log_ratio = max(log_ratio, 0.0) + np.log1p(np.exp(-abs(log_ratio)))
            loss += log_ratio
        losses[f] = loss / len(label_scores)
