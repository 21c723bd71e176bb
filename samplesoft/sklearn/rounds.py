"""Rounds of training over the same examples, until they are done or no longer help."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from samplesoft._progress import progress_bar
from samplesoft._validation import FloatArray, IntArray
from samplesoft.sklearn.example_weights import example_weights
from samplesoft.sklearn.parameters import is_averaged, learning_rate
from samplesoft.training.average import Average, Best, write
from samplesoft.training.checkpoint import Arrays


class Examples(NamedTuple):
    """Inputs, their labels and their weights."""

    X: Any  # (N, v)
    codes: Any  # class numbers (N,), or a CSR matrix (N, n)
    weights: FloatArray  # (N,)

    def rows(self, rows: IntArray) -> Examples:
        """Return some of them."""
        return Examples(self.X[rows], self.codes[rows], self.weights[rows])


def train_rounds(
    classifier: Any,
    examples: Examples,
    rows: IntArray,
    validation: Examples | None,
    apart: IntArray,
    of_class: FloatArray | None,
) -> None:
    """Train on some rows; losses, scores and rounds are attributes of the classifier as they end.

    A score is precision at 1 of the examples for validation. With early stopping, stop when it no
    longer rises, and go back to the best parameters. With an average, that is the model, where it
    is scored and in the end. Rows that are apart calibrate the model halfway, and are learned from
    then on. Weights `of_class` (n + 1,) count in calibration as in training, and not in scores.
    """
    learner, verbose = classifier._learner, bool(classifier.verbose)
    parameters, rate = learner.model.parameters, learning_rate(classifier, learner.row_norm)
    average = Average(parameters) if is_averaged(classifier) else None
    best = Best(parameters if average is None else average.parameters)
    num_rounds = classifier.max_iter if len(classifier.classes_) > 1 else 1
    classifier.loss_curve_, classifier.validation_scores_ = [], []
    with progress_bar(verbose, each=True, total=num_rounds, unit="round", desc="fit") as bar:
        for classifier.n_iter_ in range(1, num_rounds + 1):
            loss = learner.epoch(*examples, rows, classifier.batch_size, rate)
            halfway = classifier.n_iter_ == -(-num_rounds // 2)
            with _averaged(average, parameters):
                if len(apart) and halfway:
                    learner.calibrate(*examples, apart)
                if validation is not None:
                    score = learner.precision_at_1(*validation)
            if len(apart) and halfway:
                learner.epoch(*examples, apart, classifier.batch_size, rate)
                rows = np.sort(np.concatenate((rows, apart)))
            classifier.loss_curve_.append(loss)
            shown = {"loss": f"{loss:.4f}"}
            if validation is not None:
                classifier.validation_scores_.append(score)
                shown["precision_at_1"] = f"{score:.4f}"
                if classifier.early_stopping:
                    best.add(score, classifier.tol)
            bar.set_postfix(refresh=False, **shown)
            bar.update()
            if best.since >= classifier.n_iter_no_change:
                break
    best.restore()
    if average is not None:
        write(average.parameters, parameters)
    if average is not None or best.scores:
        learner.model.softmax.refresh()
    if validation is not None and classifier.calibrate:
        X, codes, weights = validation
        weights = example_weights(of_class, codes, weights)
        learner.calibrate(X, codes, weights, learner.with_seen_labels(codes))


def _averaged(average: Average | None, parameters: Arrays) -> AbstractContextManager[None]:
    """Add the parameters to the average, if there is one, and let it stand for them."""
    if average is None:
        return nullcontext()
    average.add(parameters)
    return average.in_place_of(parameters)
