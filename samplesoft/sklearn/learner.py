"""Training of the classifier: the task, its calibration, callbacks, and the pilot of "auto"."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._progress import progress_line_without_terminal, progress_phase, report_line
from samplesoft._validation import FloatArray, IntArray, scale_by_power_of_two
from samplesoft.losses.logistic import FullLogisticLoss
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.models.pair_weights import PairWeightsTrainer
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.sklearn.calibration import Calibration, LogisticCalibration, SoftmaxCalibration
from samplesoft.sklearn.held_out import (
    MIN_WATCHED,
    Watch,
    loss_of_scores,
    num_watched,
    scores_in_fixed_order,
)
from samplesoft.sklearn.labels import LabelCodec, example_weights
from samplesoft.sklearn.parameters import fit_settings, linear_softmax_parameters
from samplesoft.training.callbacks import (
    Average,
    EarlyStop,
    EpochBar,
    KeepBest,
    Refresh,
    Score,
    with_averages,
)
from samplesoft.training.linear_task import (
    PAIRS,
    Examples,
    LinearTask,
    divergence_as_value_error,
    held_out_order,
)
from samplesoft.training.loop import Callback, Progress, fit
from samplesoft.training.resolved import (
    Resolved,
    calibration_epoch,
    num_draws,
    resolve,
    step_cost,
)
from samplesoft.training.schedules import ENDLESS, INITIAL_ACCUMULATOR
from samplesoft.training.task import NUM_EXAMPLES, derive_seed
from samplesoft.tuning.pilot import PILOT_SETTINGS, choose_settings, num_pilot_steps

_MAX_CALIBRATION_EXAMPLES = 1000  # max number of examples for calibration
_MAX_CALIBRATION_SCORES = 1 << 24  # max number of scores (examples times classes)
# If more examples than this fraction are held out, the number of epochs is chosen in a trial run,
# and training then begins again on all examples. Otherwise it ends with the choice, because a new
# beginning would take longer for a small gain.
_MAX_UNSEEN = 0.05
_MAX_CHUNK_ENTRIES = 1 << 16  # max number of input entries in a chunk
# Passes over the training examples in which pair weights are trained, before one pass over the
# held-out examples.
_PAIR_PASSES = 4
_MAX_PAIR_WEIGHTS = 1 << 26  # of all pairs, which take 256 MiB in training
# Max number of pairs of an example's features and a class, for each unit of the cost of a step:
# training pair weights then takes at most about half of the time of the fit without them.
_MAX_PAIRS_PER_COST = 128


class ClassifierTask(LinearTask):
    """The training task of a classifier: model, optimizer, label codec and counters.

    The model starts with random parameters. All random numbers are derived from `seed`. `counts`
    (n,) are the class counts, which samplers by counts use.
    """

    calibrated: Calibration | None = None  # the fitted calibration, or None before `calibrate`
    row_norm = 1.0  # mean norm of the nonzero inputs in the first fit

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
        self.codec = codec
        self.seed = seed
        options = {}
        if optimizer == "adagrad" and settings.embedding_dim is not None:
            options["initial_accumulator"] = INITIAL_ACCUMULATOR
        self.optimizer = make_optimizer(optimizer, 0.0, **options)
        self.optimizer_name = optimizer
        self.examples_seen = 0
        self.labels_seen = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle, which does not contain training data."""
        training_data = ("data", "rows")
        state = {name: value for name, value in vars(self).items() if name not in training_data}
        return {**state, "_epoch": None, "_batches": []}

    def restarted(self) -> ClassifierTask:
        """Return a new task with the initial parameters of this one.

        It has the tau, which may have changed, the calibration and the pair weights of this one,
        but no examples.
        """
        task = ClassifierTask(
            codec=self.codec,
            num_inputs=self.model.num_inputs,
            settings=self.model.settings,
            counts=self.counts,
            dtype=self.model.dtype,
            seed=self.seed,
            optimizer=self.optimizer_name,
        )
        task.calibrated = self.calibrated
        task.row_norm = self.row_norm
        task.model.pair_weights = self.model.pair_weights
        return task

    def split_for_validation(self, rows: IntArray, fraction: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and a random fraction of `rows` that is held out.

        Both arrays are sorted. Raises ValueError if all rows would be held out.
        """
        num_held_out = int(np.ceil(fraction * len(rows)))
        if num_held_out >= len(rows):
            raise ValueError(
                f"`early_stopping` needs examples to hold out, got {len(rows)} in all; turn it "
                "off, or pass more examples or an `eval_set`."
            )
        return self._split_rows(rows, num_held_out)

    def count(self, x: Any, labels: Any) -> None:
        """Add a batch to the numbers of examples and labels seen.

        Their ratio is the mean number of labels per example.
        """
        self.examples_seen += x.shape[0]
        self.labels_seen += labels.nnz if self.codec.multilabel else x.shape[0]

    def scores(self, X: Any) -> Iterator[tuple[slice, Rows]]:
        """Yield pairs of a slice of rows of `X` and the scores (b, n) of these rows, in order.

        Raises ValueError if a score is infinite or NaN.
        """
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
        """Return the weighted fraction of examples whose best class is among their labels."""
        return _fraction_correct(self.model.top_k(X, 1)[0][:, 0], codes, weights)

    @property
    def calibration(self) -> Calibration:
        """The fitted calibration; before the fit, the default for the loss and the labels."""
        if self.calibrated is not None:
            return self.calibrated
        if isinstance(self.model.softmax.loss, FullLogisticLoss):
            return LogisticCalibration(1.0, self.codec.multilabel)
        if not self.codec.multilabel:
            return SoftmaxCalibration()
        # the mean number of labels per example in training, or 1 before the first step
        return SoftmaxCalibration(1.0, self.labels_seen / max(self.examples_seen, 1) or 1.0)

    def split_for_calibration(self, rows: IntArray, fraction: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on before calibration, and a random subset for calibration.

        The subset is `fraction` of the rows, but at most 1,000 examples. Both arrays are sorted.
        """
        return self._split_rows(rows, min(int(fraction * len(rows)), _MAX_CALIBRATION_EXAMPLES))

    def _split_rows(self, rows: IntArray, num_held_out: int) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and `num_held_out` random rows; both sorted."""
        order = held_out_order(rows, self.seed)
        return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])

    def random_subset(self, rows: IntArray, max_rows: int) -> IntArray:
        """Return at most `max_rows` random rows among `rows`, sorted."""
        return self._split_rows(rows, max_rows)[1]

    def calibrate(self, X: Any, codes: Any, weights: FloatArray, rows: IntArray) -> None:
        """Fit the attribute `calibrated` on a random subset of the examples `rows`.

        The model must not have been trained on these examples.
        """
        subset = self.random_subset(rows, self._max_calibration_examples())
        if weights[subset].any():
            scores = np.concatenate([scores for _, scores in self.scores(X[subset])])
            labels = codes[subset]
            if self.codec.multilabel:  # remove the column of unseen labels
                labels = labels[:, : len(self.codec.classes)]

            # the result stays close to the current calibration if there are few examples
            self.calibrated = self.calibration.fitted(scores, labels, weights[subset])

    def add_pair_weights(
        self, calibration_rows: IntArray, verbose: bool
    ) -> PairWeightsTrainer | None:
        """Train pair weights on the examples in use, and add them to the model if they are better.

        They are better if they lower the loss on a random subset of `calibration_rows`, on which
        nothing was trained. The loss is that after the scores are multiplied by the best factor,
        because the sum of two kinds of scores is too confident.
        Returns the trainer if the model has the weights, else None.
        """
        num_classes = len(self.codec.classes)
        trainer = PairWeightsTrainer(*self.data, num_classes, self.row_norm)
        for index in range(_PAIR_PASSES):
            self.run_pair_weights(trainer, self.rows, index)

        subset = self.random_subset(calibration_rows, self._max_calibration_examples())
        X, labels, weights = self.data.rows(subset)
        results = []
        for pair_weights in (None, trainer.result()):
            self.model.pair_weights = pair_weights
            scores = scores_in_fixed_order(self.model, X)
            loss = loss_of_scores(scores, labels, weights, self.model.settings.mask_other_labels)
            results.append((loss, _fraction_correct(scores.argmax(axis=1), labels, weights)))

        (loss, precision), (new_loss, new_precision) = results
        is_better = new_loss < loss
        report_line(
            verbose,
            f"pair weights {'added' if is_better else 'left out'}: with them the held-out loss is "
            f"{new_loss:.4f}, not {loss:.4f}, and the precision {new_precision:.4f}, not "
            f"{precision:.4f}",
        )
        if not is_better:
            self.model.pair_weights = None
            return None
        return trainer

    def run_pair_weights(self, trainer: PairWeightsTrainer, rows: IntArray, index: int) -> None:
        """Train pair weights by a pass over the examples `rows`, in the order of pass `index`."""
        rng = np.random.default_rng(derive_seed(self.seed, PAIRS, index))
        trainer.run(rng.permutation(rows))

    def indices_with_seen_labels(self, codes: Any) -> IntArray:
        """Return the sorted indices of the examples whose labels are all classes."""
        n = len(self.codec.classes)  # the number of classes is the code of unseen labels
        num_unseen = codes[:, n:].sum(axis=1) if self.codec.multilabel else codes == n
        return np.flatnonzero(num_unseen == 0)

    def probabilities(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield pairs of a slice of rows of `X` and their calibrated probabilities (b, n)."""
        for chunk, scores in self.scores(X):
            yield chunk, self.calibration.probabilities(scores)

    def _max_calibration_examples(self) -> int:
        """Return the max number of calibration examples; it is smaller for very many classes."""
        fitting = max(1, _MAX_CALIBRATION_SCORES // len(self.codec.classes))
        return min(_MAX_CALIBRATION_EXAMPLES, fitting)


def _fraction_correct(best: IntArray, codes: Any, weights: FloatArray) -> float:
    """Return the weighted fraction of examples of which the class `best` is a label."""
    is_correct = best == codes if codes.ndim == 1 else codes[np.arange(len(best)), best]
    return float(np.average(is_correct, weights=scale_by_power_of_two(weights)))


class Calibrate(Callback):
    """Calibrate on held-out examples halfway through training, and train on them afterwards.

    Parameters
    ----------
    calibration_rows : ndarray of int, shape (k,)
        Rows of the held-out examples.
    halfway : int
        Number of epochs before calibration.
    average : Average or None
        Averaged parameters, with which the model is calibrated; None to use the current ones.
    watch : Watch or None
        If given, the model is calibrated when the watch is done, not after `halfway` epochs.
    """

    def __init__(
        self,
        calibration_rows: IntArray,
        halfway: int,
        average: Average | None,
        watch: Watch | None,
    ) -> None:
        self._calibration_rows = calibration_rows
        self._halfway = halfway
        self._average = average
        self._watch = watch
        self._is_calibrated = False

    def end_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate at the end of the epoch that is halfway."""
        epoch = progress.epoch + 1
        if self._watch is not None and not self._is_calibrated:
            self._halfway = epoch if self._watch.is_done else epoch + 1
        if epoch == self._halfway:
            self._calibrate(task)

    def after_epoch(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """After the epoch with the calibration, start training on the held-out examples.

        The model is trained on them once at this point, and all later epochs use all examples.
        """
        if progress.epoch == self._halfway:
            training_rows = task.rows
            task.use(task.data, self._calibration_rows, task.batch_size)
            fit(task, optimizer, epochs=1, callbacks=[Refresh()], guard=divergence_as_value_error)

            all_rows = np.sort(np.concatenate((training_rows, self._calibration_rows)))
            task.use(task.data, all_rows, task.batch_size)

    def end(self, task: Any, optimizer: Any, progress: Progress) -> None:
        """Calibrate if training has ended early, before `end_epoch` has calibrated.

        The model is then not trained on the held-out examples.

        If training ends right after calibration, the model has just been trained on the held-out
        examples for the first time. Its parameters are then added to the average.
        """
        if not self._is_calibrated:
            self._calibrate(task)
        elif progress.epoch == self._halfway and self._average is not None:
            self._average.add(task.parameters)

    def _calibrate(self, task: Any) -> None:
        """Calibrate the task, with the averaged parameters if there are any."""
        with with_averages(self._average, task.parameters):
            task.calibrate(*task.data, self._calibration_rows)
        self._is_calibrated = True


def resolve_settings(
    classifier: Any,
    codec: LabelCodec,
    num_examples: int,
    *,
    epochs: int | None = None,
    **options: Any,
) -> Resolved:
    """Return the settings of a fit on `num_examples` examples, with all defaults resolved.

    The settings follow from the parameters of the classifier. If a trial run has determined the
    number of `epochs`, the learning rate decays by default. `options` are passed to
    `samplesoft.training.resolved.resolve`.
    """
    num_classes = len(codec.classes)
    settings = fit_settings(classifier, num_classes, getattr(classifier, "auto_choice_", {}))
    if epochs is not None:
        settings = replace(settings, epochs=epochs, schedule=settings.schedule or "linear")
    return resolve(settings, num_classes, num_examples, several_labels=codec.multilabel, **options)


def train(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    validation: Examples | None,
    calibration_rows: IntArray,
    weights_by_class: FloatArray,
    callbacks: Sequence[Callback],
    *,
    continues: bool,
) -> None:
    """Train the model of a classifier on the examples `rows`, and set the attributes of the fit.

    The attributes are `resolved_`, `loss_curve_`, `held_out_losses_`, `validation_scores_` and
    `n_iter_`. Validation scores are precision at 1 on `validation`, if this is not None.

    `calibration_rows` are held out, for calibration, and for the choice of tau and the number of
    epochs. If they are a large part of all examples, the choice is made in a trial run, after which
    the model is trained from scratch on all examples. Otherwise training ends with the choice, and
    with steps on `calibration_rows`.

    `weights_by_class` (n + 1,) apply to calibration on `validation`, but not to validation scores;
    the weights of `examples` already contain them. `continues` says whether the model was trained
    before.
    """
    learner: ClassifierTask = classifier._learner
    num_scored = learner.model.settings.num_sampled or len(learner.codec.classes)
    labels_each = _labels_each(examples.labels, rows)
    entries_each = _entries_each(examples.X)
    cost = step_cost(num_scored, labels_each, entries_each)
    watched = _watched_examples(classifier, examples, rows, calibration_rows, validation, cost)
    chooses_epochs = (
        watched is not None
        and classifier.max_iter is None
        and not classifier.early_stopping
        and not continues
    )
    has_trial = chooses_epochs and (
        len(calibration_rows) > _MAX_UNSEEN * len(rows) or _needs_epochs_before(classifier)
    )
    tries_pair_weights = (
        classifier.pair_weights
        and len(calibration_rows) > 0
        and _may_have_pair_weights(examples.X, len(learner.codec.classes), cost)
    )
    resolve_for = partial(
        resolve_settings,
        classifier,
        learner.codec,
        row_norm=learner.row_norm,
        chooses_epochs=chooses_epochs,
        labels_each=labels_each,
        entries_each=entries_each,
    )
    resolved = resolve_for(len(rows), num_held_back=len(calibration_rows))

    watch = None
    if watched is not None:
        ends_training = chooses_epochs and not has_trial
        last_epoch = resolved.epochs if ends_training else calibration_epoch(resolved.epochs)
        watch = Watch(
            *watched,
            last_epoch,
            changes_tau=_may_change_tau(classifier, learner.model.softmax.sampler),
            chooses_epochs=chooses_epochs,
            is_trial=has_trial,
            verbose=bool(classifier.verbose),
        )

    held_out_losses = [] if watch is None else watch.losses
    if watch is not None and has_trial:
        with learner.using(examples, rows, classifier.batch_size):
            _run_trial(classifier, learner, resolved, watch, calibration_rows, tries_pair_weights)
        rows = np.sort(np.concatenate((rows, calibration_rows)))
        calibration_rows = calibration_rows[:0]
        resolved = resolve_for(len(rows), epochs=watch.num_epochs)
        watch = None
        # so that the model of the trial is no longer in memory, and callbacks see the new one
        learner = learner.restarted()
        classifier._set_learner(learner)

    with learner.using(examples, rows, classifier.batch_size):
        resolved = replace(
            resolved,
            model=learner.model.settings,
            step_by_step=learner.why_step_by_step(learner.optimizer),
        )
        report_line(bool(classifier.verbose), f"fit: {resolved}")
        learner.optimizer.learning_rate = resolved.learning_rate

        # only now, because `using` has replaced parameters that are mapped from a file
        average = Average(learner.parameters) if classifier.average else None
        if watch is not None:
            watch.average = average
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
                *_make_callbacks(classifier, resolved, average, watch, score, calibration_rows),
                *callbacks,
            ],
            guard=divergence_as_value_error,
        )

    classifier.resolved_ = replace(resolved, model=learner.model.settings)
    classifier.held_out_losses_ = held_out_losses
    classifier.loss_curve_ = [epoch["train_loss"] for epoch in progress.history]
    classifier.validation_scores_ = [] if score is None else score.scores
    classifier.n_iter_ = progress.epoch

    if validation is not None and classifier.calibrate:
        X, codes, weights = validation
        weights = example_weights(weights_by_class, codes, weights)
        learner.calibrate(X, codes, weights, learner.indices_with_seen_labels(codes))


def _run_trial(
    classifier: Any,
    learner: ClassifierTask,
    resolved: Resolved,
    watch: Watch,
    calibration_rows: IntArray,
    tries_pair_weights: bool,
) -> None:
    """Train until `watch` has determined tau and the number of epochs, and calibrate the model.

    The learning rate is constant, because the number of epochs is not yet known. If
    `tries_pair_weights`, pair weights are trained, too, and the model gets them if they are better.
    """
    learner.optimizer.learning_rate = resolved.learning_rate
    average = Average(learner.parameters) if classifier.average else None
    watch.average = average
    fit(
        learner,
        learner.optimizer,
        epochs=calibration_epoch(resolved.epochs),
        callbacks=_make_callbacks(
            classifier,
            resolved,
            average,
            watch,
            score=None,
            calibration_rows=calibration_rows[:0],  # calibration follows below
            description="trial run",
        ),
        guard=divergence_as_value_error,
    )
    if not len(calibration_rows):
        return

    trainer = None
    if tries_pair_weights:
        trainer = learner.add_pair_weights(calibration_rows, bool(classifier.verbose))
    learner.calibrate(*learner.data, calibration_rows)
    if trainer is not None:
        learner.run_pair_weights(trainer, calibration_rows, _PAIR_PASSES)
        learner.model.pair_weights = trainer.result()


def _may_have_pair_weights(X: Any, num_classes: int, cost: float) -> bool:
    """Return whether inputs are sparse, and pair weights not too many or too slow to train.

    `cost` is the cost of training on one example.
    """
    if isinstance(X, np.ndarray) or num_classes < 2:
        return False
    return (
        X.shape[1] * num_classes <= _MAX_PAIR_WEIGHTS
        and _entries_each(X) * num_classes <= _MAX_PAIRS_PER_COST * cost
    )


def _make_callbacks(
    classifier: Any,
    resolved: Resolved,
    average: Average | None,
    watch: Watch | None,
    score: Score | None,
    calibration_rows: IntArray,
    description: str = "fit",
) -> list[Callback]:
    """Return the callbacks of a fit, in the order in which they are called.

    `description` is the name of the fit in the progress that is shown.
    """
    callbacks: list[Callback] = [Refresh()]
    if classifier.verbose:
        num_epochs = None if watch is not None and watch.chooses_epochs else resolved.epochs
        losses = None if watch is None else watch.losses
        callbacks.append(
            EpochBar(
                num_epochs,
                "precision_at_1",
                score,
                description=description,
                held_out_losses=losses,
            )
        )
    if average is not None:
        callbacks.append(average)
    if watch is not None:
        callbacks.append(watch)
    if len(calibration_rows):
        halfway = calibration_epoch(resolved.epochs)
        callbacks.append(Calibrate(calibration_rows, halfway, average, watch))
    if score is not None:
        callbacks.append(score)
    if classifier.early_stopping:
        callbacks.append(KeepBest(average))
        callbacks.append(EarlyStop(classifier.n_iter_no_change))

    return callbacks


def _labels_each(labels: Any, rows: IntArray) -> float:
    """Return the mean number of labels of the examples `rows`."""
    if isinstance(labels, np.ndarray):
        return 1.0
    return float(np.diff(labels.indptr)[rows].mean())


def _entries_each(X: Any) -> float:
    """Return the mean number of nonzero inputs of an example, as far as their cost is concerned.

    A tenth of the columns of dense inputs are counted, whose products are quicker.
    """
    if isinstance(X, np.ndarray):
        return float(X.shape[1]) / 10.0
    return float(X.nnz / max(X.shape[0], 1))


def _watched_examples(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    calibration_rows: IntArray,
    validation: Examples | None,
    cost: float,
) -> tuple[Examples, IntArray] | None:
    """Return examples, and the rows of those on which the loss is computed after each epoch.

    They are held out: a random subset of `calibration_rows`, or of the validation examples whose
    labels are all classes. `cost` is the cost of training on one example. The result is None if
    nothing may follow from held-out examples, if there are too few of them, or if the loss of the
    model is not an estimate of the full softmax.
    """
    learner = classifier._learner
    settings = learner.model.settings
    is_softmax = settings.loss == "full" or LOSSES[settings.loss].is_softmax
    if not classifier.calibrate or settings.embedding_dim is None or not is_softmax:
        return None

    held_out_rows = calibration_rows
    if validation is not None:
        examples = validation
        held_out_rows = learner.indices_with_seen_labels(validation.labels)
        held_out_rows = held_out_rows[validation.weights[held_out_rows] > 0.0]
    if len(held_out_rows) < MIN_WATCHED:
        return None

    num_classes = len(learner.codec.classes)
    num = num_watched(len(held_out_rows), len(rows), num_classes, cost)
    return examples, learner.random_subset(held_out_rows, num)


def _needs_epochs_before(classifier: Any) -> bool:
    """Return whether the number of epochs must be known when training begins.

    A schedule with decay, or a warm-up that is a fraction of all steps, needs it.
    """
    return classifier.warmup > 0.0 or classifier.schedule not in (None, *ENDLESS)


def _may_change_tau(classifier: Any, sampler: Any) -> bool:
    """Return whether tau is not given, and neither scores nor draws are fixed by it.

    Without normalisation, the norms of vectors determine the scale of the scores.
    """
    return (
        classifier.tau is None
        and classifier._learner.model.settings.normalize
        and (sampler is None or getattr(sampler, "tau", None) is None)
    )


def choose_auto_settings(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    codec: LabelCodec,
    counts: FloatArray,
    seed: int,
) -> dict[str, Any]:
    """Train a pilot model, measure settings on its vectors, and return the best settings.

    The result is the attribute ``auto_choice_``: a dict with ``loss``, ``sampler``,
    ``num_sampled``, ``shared``, ``verdict``, the reason in words, and ``seconds``, the time that
    the choice took.
    """
    start_time = time.perf_counter()
    X = examples.X
    num_classes = len(codec.classes)
    pilot_settings = fit_settings(classifier, num_classes, PILOT_SETTINGS)
    resolved = resolve(pilot_settings, num_classes, len(rows), several_labels=codec.multilabel)
    settings = replace(resolved.model, **PILOT_SETTINGS)
    learner = ClassifierTask(
        codec, X.shape[1], settings, counts, X.dtype, seed, classifier.optimizer
    )
    masked_loss = LOSSES[classifier.loss].masked if codec.multilabel else None

    batch_size = classifier.batch_size
    verbose = bool(classifier.verbose)
    steps = num_pilot_steps(resolved.num_steps)
    progress_line_without_terminal(
        verbose, f"pilot of {steps:,} steps, by which the sampler is chosen"
    )
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
        num_draws(linear_softmax_parameters(classifier), num_classes, codec.multilabel),
        shared=classifier.shared,
        nu=classifier.nu,
        num_features=classifier.num_features,
        batch=batch_size,
        progress=verbose,
        rng=seed,
    )
    choice["seconds"] = time.perf_counter() - start_time
    report_line(verbose, f"auto: {choice['verdict']} The choice took {choice['seconds']:.1f} s.")

    return choice


def canonical_inputs(X: Any) -> Any:
    """Return inputs whose CSR format is canonical: indices are sorted and without duplicates.

    The format is changed in place if the arrays are writable. Dense inputs are returned unchanged.
    """
    if isinstance(X, np.ndarray) or X.has_canonical_format:
        return X

    arrays = (X.data, X.indices, X.indptr)
    # copy a matrix that is mapped read-only from a file, because SciPy sorts in place
    if not all(array.flags.writeable for array in arrays):
        X = X.copy()
    X.sum_duplicates()
    return X


def mean_row_norm(X: Any, rows: IntArray) -> float:
    """Return the mean norm of the nonzero inputs among `rows` of `X` (N, v), or 1 if all are 0.

    The inputs are processed in chunks, so that no copy of all inputs is made.
    """
    all_rows = len(rows) == X.shape[0]
    selections = [chunk if all_rows else rows[chunk] for chunk in _row_chunks(X, rows)]
    largest = max((float(abs(X[selection]).max()) for selection in selections), default=0.0)
    if largest == 0.0:
        return 1.0

    norms = np.concatenate([_scaled_norms(X[selection], largest) for selection in selections])
    return largest * float(norms[norms > 0.0].mean())


def _row_chunks(X: Any, rows: IntArray) -> list[slice]:
    """Return slices that divide `rows` (k,), with a limited number of input entries in each."""
    if not len(rows) or not X.shape[1]:
        return []

    if isinstance(X, np.ndarray):
        # at least two rows, because NumPy sums a single row of a Fortran array in another order
        chunk_rows = max(2, _MAX_CHUNK_ENTRIES // X.shape[1])
        chunk_starts = np.arange(0, max(len(rows) - 1, 1), chunk_rows)
    else:
        # divided by the number of entries, because a few rows may have most of the entries
        entries_before = np.append(0, np.cumsum(np.diff(X.indptr)[rows]))[:-1]
        chunk_starts = np.unique(entries_before // _MAX_CHUNK_ENTRIES, return_index=True)[1]

    chunk_ends = np.append(chunk_starts[1:], len(rows))
    return [slice(start, stop) for start, stop in zip(chunk_starts, chunk_ends, strict=True)]


def _scaled_norms(rows: Any, largest: float) -> FloatArray:
    """Return the norms (k,) of ``rows / largest``.

    `largest` is the largest absolute value of all entries, so that squares do not overflow.
    """
    scaled = rows.astype(np.float64) / largest
    squares = scaled.multiply(scaled) if sparse.issparse(rows) else scaled**2
    norms: FloatArray = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
    return norms
