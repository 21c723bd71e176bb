"""Training of the classifier: the learner, its calibration, callbacks, and the "auto" pilot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._progress import progress_line, progress_phase, report_line
from samplesoft._validation import FloatArray, IntArray, scale_by_power_of_two
from samplesoft.losses.logistic import FullLogisticLoss
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.sklearn.calibration import Calibration, LogisticCalibration, SoftmaxCalibration
from samplesoft.sklearn.labels import LabelCodec, example_weights
from samplesoft.sklearn.parameters import fit_settings, model_fields
from samplesoft.training.callbacks import (
    Average,
    EarlyStop,
    EpochBar,
    KeepBest,
    Refresh,
    Score,
    averaged,
)
from samplesoft.training.linear_task import (
    Examples,
    LinearTask,
    divergence_as_value_error,
    held_out_order,
)
from samplesoft.training.loop import Callback, Progress, fit
from samplesoft.training.resolved import Resolved, half_of, num_draws, resolve
from samplesoft.training.task import NUM_EXAMPLES
from samplesoft.tuning.pilot import PILOT_SETTINGS, choose_settings, num_pilot_steps

_MAX_CALIBRATION_EXAMPLES = 1000  # examples for calibration, at most
_MAX_CALIBRATION_SCORES = 1 << 24  # scores of these examples, at most
_ENTRIES_AT_A_TIME = 1 << 16  # entries of the inputs per chunk of a norm computation


class ClassifierTask(LinearTask):
    """A linear softmax model in training: model, optimizer, label codec and counters.

    The model starts with random parameters; all randomness is derived from `seed`. `counts` (n,)
    are the class counts, for samplers that draw by frequency.
    """

    calibrated: Calibration | None = None  # the fitted calibration
    row_norm = 1.0  # mean norm of the inputs of the first fit

    def __init__(
        self,
        codec: LabelCodec,
        num_inputs: int,
        settings: LinearSoftmaxSettings,
        counts: FloatArray,
        dtype: Any,
        seed: int,
        optimizer: str,
    ) -> None:
        super().__init__(num_inputs, len(codec.classes), settings, counts, seed, dtype)
        self.optimizer = make_optimizer(optimizer, 0.0)
        self.codec, self.seed, self.optimizer_name = codec, seed, optimizer
        self.examples_seen = self.labels_seen = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle: without training data, even during a fit."""
        training_data = ("data", "rows")
        state = {name: value for name, value in vars(self).items() if name not in training_data}
        return {**state, "_epoch": None, "_batches": []}

    def split(self, rows: IntArray, fraction: float) -> tuple[IntArray, IntArray]:
        """Split rows into those to train on and a fraction `fraction` that is held out."""
        num_held_out = int(np.ceil(fraction * len(rows)))
        if num_held_out >= len(rows):
            raise ValueError(
                f"`early_stopping` needs examples to hold out, got {len(rows)} in all; turn it "
                "off, or give more or an `eval_set`."
            )
        return self._split_rows(rows, num_held_out)

    def count(self, x: Any, labels: Any) -> None:
        """Add to the counts of examples and labels, which give the mean number of labels."""
        self.examples_seen += x.shape[0]
        self.labels_seen += labels.nnz if self.codec.multilabel else x.shape[0]

    def scores(self, X: Any) -> Iterator[tuple[slice, Rows]]:
        """Yield scores of all classes, as `LinearSoftmax.scores`; raise if one is not finite."""
        for chunk, scores in self.model.scores(X):
            if not scores.max() < np.inf:
                row = int(np.argmin(scores.max(axis=1) < np.inf))
                raise ValueError(
                    f"the scores of row {chunk.start + row} of `X` must be finite in "
                    f"{scores.dtype}, got {scores[row].max()}; bring inputs to the scale of those "
                    "that the model was trained on."
                )
            yield chunk, scores

    def precision_at_1(self, X: Any, codes: Any, weights: FloatArray) -> float:
        """Return the weighted fraction of examples whose best class is one of their labels."""
        best = self.model.top_k(X, 1)[0][:, 0]
        single = isinstance(codes, np.ndarray)
        is_correct = best == codes if single else codes[np.arange(len(best)), best]
        return float(np.average(is_correct, weights=scale_by_power_of_two(weights)))

    @property
    def calibration(self) -> Calibration:
        """The fitted calibration, or the default one of the loss and the label form."""
        if self.calibrated is not None:
            return self.calibrated
        if isinstance(self.model.softmax.loss, FullLogisticLoss):
            return LogisticCalibration(1.0, self.codec.multilabel)
        if not self.codec.multilabel:
            return SoftmaxCalibration()
        # mean number of labels in training; 1 before the first step
        return SoftmaxCalibration(1.0, self.labels_seen / max(self.examples_seen, 1) or 1.0)

    def split_to_calibrate(self, rows: IntArray, fraction: float) -> tuple[IntArray, IntArray]:
        """Split rows into those to train on at first and a limited number for `calibrate`."""
        return self._split_rows(
            rows, min(int(fraction * len(rows)), self._max_calibration_examples())
        )

    def _split_rows(self, rows: IntArray, num_held_out: int) -> tuple[IntArray, IntArray]:
        order = held_out_order(rows, self.seed)
        return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])

    def calibrate(self, X: Any, codes: Any, weights: FloatArray, rows: IntArray) -> None:
        """Fit the calibration on a random subset of rows that the model was not trained on."""
        subset = np.sort(held_out_order(rows, self.seed)[: self._max_calibration_examples()])
        if weights[subset].any():
            scores = np.concatenate([scores for _, scores in self.scores(X[subset])])
            labels = codes[subset]
            if self.codec.multilabel:  # without the column of unseen labels
                labels = labels[:, : len(self.codec.classes)]
            # start from the last calibration, which a few examples change little
            self.calibrated = self.calibration.fitted(scores, labels, weights[subset])

    def with_seen_labels(self, codes: Any) -> IntArray:
        """Return the indices of the examples whose labels are all known classes."""
        n = len(self.codec.classes)  # the code of unseen labels
        num_unseen = codes[:, n:].sum(axis=1) if self.codec.multilabel else codes == n
        return np.flatnonzero(num_unseen == 0)

    def probabilities(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield calibrated probabilities of all classes, chunk by chunk."""
        for chunk, scores in self.scores(X):
            yield chunk, self.calibration.probabilities(scores)

    def _max_calibration_examples(self) -> int:
        fitting = max(1, _MAX_CALIBRATION_SCORES // len(self.codec.classes))
        return min(_MAX_CALIBRATION_EXAMPLES, fitting)


class Calibrate(Callback):
    """Calibrate on held-out examples halfway through training, and train on them afterwards.

    Parameters
    ----------
    calibration_rows : ndarray of int, shape (k,)
        Rows of the held-out examples.
    halfway : int
        Number of epochs before calibration.
    average : Average or None
        Averaged parameters, which replace the current ones during calibration.
    """

    def __init__(self, calibration_rows: IntArray, halfway: int, average: Average | None) -> None:
        self._calibration_rows, self._halfway, self._average = calibration_rows, halfway, average
        self._is_calibrated = False

    def end_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate at the end of epoch `halfway`."""
        if progress.epoch + 1 == self._halfway:
            self._calibrate(task)

    def after_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Train on the held-out examples, once now and in every later epoch."""
        if progress.epoch == self._halfway:
            training_rows = task.rows
            task.use(task.data, self._calibration_rows, task.batch_size)
            fit(task, optimizer, epochs=1, callbacks=[Refresh()], guard=divergence_as_value_error)
            all_rows = np.sort(np.concatenate((training_rows, self._calibration_rows)))
            task.use(task.data, all_rows, task.batch_size)

    def end(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate if training ended before halfway; then the held-out examples are not learned.

        If training ends right after calibration, add the parameters, which have just learned the
        held-out examples, to the average.
        """
        if not self._is_calibrated:
            self._calibrate(task)
        elif progress.epoch == self._halfway and self._average is not None:
            self._average.add(task.parameters)

    def _calibrate(self, task: Any) -> None:
        with averaged(self._average, task.parameters):
            task.calibrate(*task.data, self._calibration_rows)
        self._is_calibrated = True


def resolve_classifier(
    classifier: Any, codec: LabelCodec, num_examples: int, **options: Any
) -> Resolved:
    """Resolve the parameters of a classifier, including defaults, for a number of examples.

    Keyword arguments are passed to `samplesoft.training.resolved.resolve`.
    """
    num_classes = len(codec.classes)
    settings = fit_settings(classifier, num_classes, getattr(classifier, "auto_choice_", {}))
    return resolve(settings, num_classes, num_examples, several_labels=codec.multilabel, **options)


def train(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    validation: Examples | None,
    calibration_rows: IntArray,
    weights_by_class: FloatArray,
    callbacks: Sequence[Callback],
) -> None:
    """Train on `rows` of the examples; set losses, scores and epochs on the classifier.

    Validation scores are precision at 1. The model is calibrated on `calibration_rows` halfway, and
    trained on them afterwards. `weights_by_class` (n + 1,) apply to training and calibration, not
    to validation scores.
    """
    learner = classifier._learner
    with learner.using(examples, rows, classifier.batch_size):
        resolved = replace(
            resolve_classifier(
                classifier,
                learner.codec,
                len(rows),
                num_held_back=len(calibration_rows),
                row_norm=learner.row_norm,
            ),
            step_by_step=learner.why_step_by_step(learner.optimizer),
        )
        report_line(bool(classifier.verbose), f"fit: {resolved}")
        learner.optimizer.learning_rate = resolved.learning_rate
        average = Average(learner.parameters) if classifier.average else None
        score = None
        if validation is not None:
            precision = partial(learner.precision_at_1, *validation)
            score = Score(precision, tolerance=classifier.tol, average=average)
        progress = fit(
            learner,
            learner.optimizer,
            epochs=resolved.epochs,
            schedule=resolved.make_schedule(),
            callbacks=[
                *_callbacks(classifier, resolved, average, score, calibration_rows),
                *callbacks,
            ],
            guard=divergence_as_value_error,
        )
    classifier.resolved_ = resolved
    classifier.loss_curve_ = [epoch["train_loss"] for epoch in progress.history]
    classifier.validation_scores_ = [] if score is None else score.scores
    classifier.n_iter_ = progress.epoch
    if validation is not None and classifier.calibrate:
        X, codes, weights = validation
        weights = example_weights(weights_by_class, codes, weights)
        learner.calibrate(X, codes, weights, learner.with_seen_labels(codes))


def _callbacks(
    classifier: Any,
    resolved: Resolved,
    average: Average | None,
    score: Score | None,
    calibration_rows: IntArray,
) -> list[Callback]:
    """Return the callbacks of a fit, in the order in which they are called."""
    callbacks: list[Callback] = [Refresh()]
    if average is not None:
        callbacks.append(average)
    if len(calibration_rows):
        callbacks.append(Calibrate(calibration_rows, half_of(resolved.epochs), average))
    if score is not None:
        callbacks.append(score)
    if classifier.verbose:
        callbacks.append(EpochBar(resolved.epochs, "precision_at_1", score))
    if classifier.early_stopping:
        callbacks.append(KeepBest(average))
        callbacks.append(EarlyStop(classifier.n_iter_no_change))
    return callbacks


def choose_automatically(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    codec: LabelCodec,
    counts: FloatArray,
    seed: int,
) -> dict[str, Any]:
    """Train a pilot model, and choose loss, sampler, number of draws and `shared` by measuring it.

    Returns these settings and the verdict in words, the attribute ``auto_choice_``.
    """
    X = examples.X
    num_classes = len(codec.classes)
    pilot_settings = fit_settings(classifier, num_classes, PILOT_SETTINGS)
    resolved = resolve(pilot_settings, num_classes, len(rows), several_labels=codec.multilabel)
    settings = replace(resolved.model, **PILOT_SETTINGS)
    learner = ClassifierTask(
        codec, X.shape[1], settings, counts, X.dtype, seed, classifier.optimizer
    )
    masked_loss = LOSSES[classifier.loss].masked if codec.multilabel else None
    batch_size, verbose = classifier.batch_size, bool(classifier.verbose)
    steps = num_pilot_steps(resolved.num_steps)
    progress_line(verbose, f"pilot of {steps:,} steps, by which the sampler is chosen")
    learner.optimizer.learning_rate = resolved.learning_rate
    with learner.using(examples, rows, batch_size), progress_phase(verbose, "pilot"):
        fit(
            learner,
            learner.optimizer,
            epochs=-(-steps // learner.num_steps),
            max_steps=steps,
            guard=divergence_as_value_error,
        )
    batch_rows = learner.batches(rows, learner.epochs_begun, max(batch_size, NUM_EXAMPLES))[0]
    choice = choose_settings(
        learner.tune_inputs(examples.X[batch_rows], examples.labels[batch_rows]),
        masked_loss or classifier.loss,
        classifier.sampler,
        num_draws(model_fields(classifier), num_classes),
        shared=classifier.shared,
        nu=classifier.nu,
        num_features=classifier.num_features,
        batch=batch_size,
        progress=verbose,
        rng=seed,
    )
    progress_line(verbose, f"auto: {choice['verdict']}")
    return choice


def canonical_inputs(X: Any) -> Any:
    """Return inputs in canonical CSR format: sorted, without duplicates; in place if writable."""
    if isinstance(X, np.ndarray) or X.has_canonical_format:
        return X
    arrays = (X.data, X.indices, X.indptr)
    # copy a matrix mapped from a file, because SciPy sorts in place
    X = X if all(array.flags.writeable for array in arrays) else X.copy()
    X.sum_duplicates()
    return X


def mean_row_norm(X: Any, rows: IntArray) -> float:
    """Return the mean norm of the nonzero rows among `rows` of inputs (N, v); 1 if there are none.

    The inputs are read in chunks, so that no array of their size is made.
    """
    all_rows = len(rows) == X.shape[0]
    selections = [chunk if all_rows else rows[chunk] for chunk in _row_chunks(X, rows)]
    largest = max((float(abs(X[selection]).max()) for selection in selections), default=0.0)
    if largest == 0.0:
        return 1.0
    norms = np.concatenate([_scaled_norms(X[selection], largest) for selection in selections])
    return largest * float(norms[norms > 0.0].mean())


def _row_chunks(X: Any, rows: IntArray) -> list[slice]:
    """Split `rows` (k,) into slices whose inputs have a limited number of entries."""
    if not len(rows) or not X.shape[1]:
        return []
    if isinstance(X, np.ndarray):
        # at least two rows: for a single row of a Fortran array NumPy adds squares in another order
        chunk_rows = max(2, _ENTRIES_AT_A_TIME // X.shape[1])
        chunk_starts = np.arange(0, max(len(rows) - 1, 1), chunk_rows)
    else:
        # by number of entries, because a few rows may have most of them
        entries_before = np.append(0, np.cumsum(np.diff(X.indptr)[rows]))[:-1]
        chunk_starts = np.unique(entries_before // _ENTRIES_AT_A_TIME, return_index=True)[1]
    chunk_ends = np.append(chunk_starts[1:], len(rows))
    return [slice(start, stop) for start, stop in zip(chunk_starts, chunk_ends, strict=True)]


def _scaled_norms(rows: Any, largest: float) -> FloatArray:
    """Return the norms of ``rows / largest``; `largest` is the largest entry, against overflow."""
    scaled = rows.astype(np.float64) / largest
    squares = scaled.multiply(scaled) if sparse.issparse(rows) else scaled**2
    norms: FloatArray = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
    return norms
