"""A model while it is trained: steps, rounds, what has been counted, and the pilot before it."""

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
from samplesoft.tuning.pilot import PILOT, choose, pilot_steps

_CALIBRATED = 1000  # examples at most, and so many of their scores
_SCORES = 1 << 24
_AT_A_TIME = 1 << 16  # numbers of the inputs whose norms are taken


class Learner(LinearTask):
    """A linear softmax model with random parameters, and an optimizer by its name.

    `counts` (n,) say how often each class occurs, for samplers that draw by that; all randomness
    follows from the seed.
    """

    calibrated: Calibration | None = None
    row_norm = 1.0  # of the inputs of the first fit, in the mean

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
        """Return what a copy is made from: never the examples, also if a fit is going on."""
        of_fit = ("data", "rows")
        state = {name: value for name, value in vars(self).items() if name not in of_fit}
        return {**state, "_epoch": None, "_batches": []}

    def split(self, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and a share of them that is held out."""
        held = int(np.ceil(share * len(rows)))
        if held >= len(rows):
            raise ValueError(
                f"`early_stopping` needs examples to hold out, got {len(rows)} in all; turn it "
                "off, or give more or an `eval_set`."
            )
        return self._parted(rows, held)

    def count(self, x: Any, labels: Any) -> None:
        """Count examples and labels, for the mean number of labels."""
        self.examples_seen += x.shape[0]
        self.labels_seen += labels.nnz if self.codec.multilabel else x.shape[0]

    def scores(self, X: Any) -> Iterator[tuple[slice, Rows]]:
        """Yield scores of all classes, as `LinearSoftmax.scores`; raise if one is infinite."""
        for part, scores in self.model.scores(X):
            if not scores.max() < np.inf:
                row = int(np.argmin(scores.max(axis=1) < np.inf))
                raise ValueError(
                    f"the scores of row {part.start + row} of `X` must be finite in "
                    f"{scores.dtype}, got {scores[row].max()}; bring inputs to the scale of those "
                    "that the model was trained on."
                )
            yield part, scores

    def precision_at_1(self, X: Any, codes: Any, weights: FloatArray) -> float:
        """Return the share of examples, by weights (N,), whose best class is a label."""
        best = self.model.top_k(X, 1)[0][:, 0]
        single = isinstance(codes, np.ndarray)
        right = best == codes if single else codes[np.arange(len(best)), best]
        return float(np.average(right, weights=scale_by_power_of_two(weights)))

    @property
    def calibration(self) -> Calibration:
        """How scores become probabilities."""
        if self.calibrated is not None:
            return self.calibrated
        if isinstance(self.model.softmax.loss, FullLogisticLoss):
            return LogisticCalibration(1.0, self.codec.multilabel)
        if not self.codec.multilabel:
            return SoftmaxCalibration()
        # as many labels as in training; before the first step one
        return SoftmaxCalibration(1.0, self.labels_seen / max(self.examples_seen, 1) or 1.0)

    def split_to_calibrate(self, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on at first, and a share of them, if few, for `calibrate`."""
        return self._parted(rows, min(int(share * len(rows)), self._most_calibrated()))

    def _parted(self, rows: IntArray, held: int) -> tuple[IntArray, IntArray]:
        order = held_out_order(rows, self.seed)
        return np.sort(order[held:]), np.sort(order[:held])

    def calibrate(self, X: Any, codes: Any, weights: FloatArray, rows: IntArray) -> None:
        """Calibrate probabilities on some of the rows, which the model was not trained on."""
        some = np.sort(held_out_order(rows, self.seed)[: self._most_calibrated()])
        if weights[some].any():
            scores = np.concatenate([scores for _, scores in self.scores(X[some])])
            labels = codes[some]
            if self.codec.multilabel:  # without the column of labels that are no class
                labels = labels[:, : len(self.codec.classes)]
            # from what it was last time on, whose temperature a few examples move little
            self.calibrated = self.calibration.fitted(scores, labels, weights[some])

    def with_seen_labels(self, codes: Any) -> IntArray:
        """Return the rows whose labels are classes."""
        n = len(self.codec.classes)  # the number of labels that are no class
        unseen = codes[:, n:].sum(axis=1) if self.codec.multilabel else codes == n
        return np.flatnonzero(unseen == 0)

    def probabilities(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield probabilities of all classes, as `calibration` makes them of the scores."""
        for part, scores in self.scores(X):
            yield part, self.calibration.probabilities(scores)

    def _most_calibrated(self) -> int:
        return min(_CALIBRATED, max(1, _SCORES // len(self.codec.classes)))


class Calibrate(Callback):
    """Calibrates a model halfway on examples that are held out until then, and learned afterwards.

    Parameters
    ----------
    apart : ndarray of int, shape (k,)
        Rows of these examples.
    halfway : int
        At the end of which epoch.
    average : Average or None
        What stands for the parameters meanwhile.
    """

    def __init__(self, apart: IntArray, halfway: int, average: Average | None) -> None:
        self._apart, self._halfway, self._average = apart, halfway, average
        self._is_calibrated = False

    def end_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate, if it is halfway."""
        if progress.epoch + 1 == self._halfway:
            self._calibrate(task)

    def after_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Learn the examples that were left out so far, once now and in each epoch to come."""
        if progress.epoch == self._halfway:
            before = task.rows
            task.use(task.data, self._apart, task.batch_size)
            fit(task, optimizer, epochs=1, callbacks=[Refresh()], guard=divergence_as_value_error)
            task.use(task.data, np.sort(np.concatenate((before, self._apart))), task.batch_size)

    def end(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate, if a callback has ended training before; the examples are not learned then.

        Where no epoch has followed, an average has not yet seen what was learned of the examples.
        """
        if not self._is_calibrated:
            self._calibrate(task)
        elif progress.epoch == self._halfway and self._average is not None:
            self._average.add(task.parameters)

    def _calibrate(self, task: Any) -> None:
        with averaged(self._average, task.parameters):
            task.calibrate(*task.data, self._apart)
        self._is_calibrated = True


def resolved_for(classifier: Any, codec: LabelCodec, num_examples: int, **known: Any) -> Resolved:
    """Return what the parameters of a classifier stand for, for some examples and their labels.

    What else is `known` is as for `samplesoft.training.resolved.resolve`.
    """
    num_classes = len(codec.classes)
    asked = fit_settings(classifier, num_classes, getattr(classifier, "auto_choice_", {}))
    return resolve(asked, num_classes, num_examples, several_labels=codec.multilabel, **known)


def train(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    validation: Examples | None,
    apart: IntArray,
    of_class: FloatArray,
    callbacks: Sequence[Callback],
) -> None:
    """Train on some rows; losses, scores and rounds become attributes of the classifier.

    A score is precision at 1 of the examples for validation. Rows that are apart calibrate the
    model halfway, and are learned from then on. Weights `of_class` (n + 1,) count in calibration
    as in training, and not in scores.
    """
    learner = classifier._learner
    with learner.using(examples, rows, classifier.batch_size):
        resolved = replace(
            resolved_for(
                classifier,
                learner.codec,
                len(rows),
                num_held_back=len(apart),
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
            callbacks=[*_callbacks(classifier, resolved, average, score, apart), *callbacks],
            guard=divergence_as_value_error,
        )
    classifier.resolved_ = resolved
    classifier.loss_curve_ = [epoch["train_loss"] for epoch in progress.history]
    classifier.validation_scores_ = [] if score is None else score.scores
    classifier.n_iter_ = progress.epoch
    if validation is not None and classifier.calibrate:
        X, codes, weights = validation
        weights = example_weights(of_class, codes, weights)
        learner.calibrate(X, codes, weights, learner.with_seen_labels(codes))


def _callbacks(
    classifier: Any,
    resolved: Resolved,
    average: Average | None,
    score: Score | None,
    apart: IntArray,
) -> list[Callback]:
    """Return what is done between the steps of a fit, in this order."""
    callbacks: list[Callback] = [Refresh()]
    if average is not None:
        callbacks.append(average)
    if len(apart):
        callbacks.append(Calibrate(apart, half_of(resolved.epochs), average))
    if score is not None:
        callbacks.append(score)
    if classifier.verbose:
        callbacks.append(EpochBar(resolved.epochs, "precision_at_1", score))
    if classifier.early_stopping:
        callbacks.append(KeepBest(average))
        callbacks.append(EarlyStop(classifier.n_iter_no_change))
    return callbacks


def auto_choice(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    codec: LabelCodec,
    counts: FloatArray,
    seed: int,
) -> dict[str, Any]:
    """Return loss, sampler, number of draws and `shared` for some rows, and the verdict in words.

    The pilot is a learner of its own.
    """
    X = examples.X
    num_classes = len(codec.classes)
    asked = fit_settings(classifier, num_classes, PILOT)
    resolved = resolve(asked, num_classes, len(rows), several_labels=codec.multilabel)
    settings = replace(resolved.model, **PILOT)
    learner = Learner(codec, X.shape[1], settings, counts, X.dtype, seed, classifier.optimizer)
    loss = LOSSES[classifier.loss].masked if codec.multilabel else None
    size, verbose = classifier.batch_size, bool(classifier.verbose)
    steps = pilot_steps(resolved.num_steps)
    progress_line(verbose, f"pilot of {steps:,} steps, by which the sampler is chosen")
    learner.optimizer.learning_rate = resolved.learning_rate
    with learner.using(examples, rows, size), progress_phase(verbose, "pilot"):
        fit(
            learner,
            learner.optimizer,
            epochs=-(-steps // learner.num_steps),
            max_steps=steps,
            guard=divergence_as_value_error,
        )
    some = learner.batches(rows, learner.epochs_begun, max(size, NUM_EXAMPLES))[0]
    choice = choose(
        learner.tune_inputs(examples.X[some], examples.labels[some]),
        loss or classifier.loss,
        classifier.sampler,
        num_draws(model_fields(classifier), num_classes),
        shared=classifier.shared,
        nu=classifier.nu,
        num_features=classifier.num_features,
        batch=size,
        progress=verbose,
        rng=seed,
    )
    progress_line(verbose, f"auto: {choice['verdict']}")
    return choice


def in_order(X: Any) -> Any:
    """Return inputs whose entries are in order, each once: the same ones where they can change."""
    if isinstance(X, np.ndarray) or X.has_canonical_format:
        return X
    arrays = (X.data, X.indices, X.indptr)
    # SciPy puts a matrix in order whenever it needs that; one mapped from a file cannot change
    X = X if all(array.flags.writeable for array in arrays) else X.copy()
    X.sum_duplicates()
    return X


def mean_norm(X: Any, rows: IntArray) -> float:
    """Return the mean norm of those of some rows of inputs (N, v) that are not zero, 1 if all are.

    The inputs are read in parts, so that no array of their size is made.
    """
    every = len(rows) == X.shape[0]
    chosen = [part if every else rows[part] for part in _parts(X, rows)]
    largest = max((float(abs(X[some]).max()) for some in chosen), default=0.0)
    if largest == 0.0:
        return 1.0
    norms = np.concatenate([_norms(X[some], largest) for some in chosen])
    return largest * float(norms[norms > 0.0].mean())


def _parts(X: Any, rows: IntArray) -> list[slice]:
    """Return slices of `rows` (k,), of each of which the inputs (N, v) have few entries."""
    if not len(rows) or not X.shape[1]:
        return []
    if isinstance(X, np.ndarray):
        # never a row alone: NumPy adds up the squares of a row of a Fortran array in another
        # order where it is all that there is
        size = max(2, _AT_A_TIME // X.shape[1])
        starts = np.arange(0, max(len(rows) - 1, 1), size)
    else:
        # by their entries, for some rows may have most of them
        before = np.append(0, np.cumsum(np.diff(X.indptr)[rows]))[:-1]
        starts = np.unique(before // _AT_A_TIME, return_index=True)[1]
    stops = np.append(starts[1:], len(rows))
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _norms(part: Any, largest: float) -> FloatArray:
    """Return the norms of rows, in the unit of the largest number, so that no square overflows."""
    scaled = part.astype(np.float64) / largest
    of_entries = scaled.multiply(scaled) if sparse.issparse(part) else scaled**2
    norms: FloatArray = np.sqrt(np.asarray(of_entries.sum(axis=1)).reshape(-1))
    return norms
