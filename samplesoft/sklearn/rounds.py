"""Rounds of training over the same examples, until they are done or no longer help."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._progress import progress_bar
from samplesoft._validation import FloatArray, IntArray
from samplesoft.sklearn.parameters import learning_rate


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
) -> None:
    """Train on some rows; losses, scores and rounds are attributes of the classifier as they end.

    A score is precision at 1 of the examples for validation. With early stopping, stop when it no
    longer rises, and go back to the best parameters. Rows that are apart calibrate the model
    halfway, and are learned from then on.
    """
    learner, verbose = classifier._learner, bool(classifier.verbose)
    rate = learning_rate(classifier)
    num_rounds = classifier.max_iter if len(classifier.classes_) > 1 else 1
    classifier.loss_curve_, classifier.validation_scores_ = [], []
    best, best_score, since = None, -np.inf, 0
    with progress_bar(verbose, each=True, total=num_rounds, unit="round", desc="fit") as bar:
        for classifier.n_iter_ in range(1, num_rounds + 1):
            loss = learner.epoch(*examples, rows, classifier.batch_size, rate)
            if len(apart) and classifier.n_iter_ == -(-num_rounds // 2):
                learner.calibrate(*examples, apart)
                learner.epoch(*examples, apart, classifier.batch_size, rate)
                rows = np.sort(np.concatenate((rows, apart)))
            classifier.loss_curve_.append(loss)
            shown = {"loss": f"{loss:.4f}"}
            if validation is not None:
                score = learner.precision_at_1(*validation)
                classifier.validation_scores_.append(score)
                shown["precision_at_1"] = f"{score:.4f}"
            bar.set_postfix(refresh=False, **shown)
            bar.update()
            if validation is None or not classifier.early_stopping:
                continue
            since = 0 if score > best_score + classifier.tol else since + 1
            if score > best_score:
                best_score, best = score, _copy(learner.model.parameters)
            if since >= classifier.n_iter_no_change:
                break
    if best is not None:
        for name, array in learner.model.parameters.items():
            array[...] = best[name]
        learner.model.softmax.refresh()
    if validation is not None and classifier.calibrate:
        learner.calibrate(*validation, learner.with_seen_labels(validation.codes))


def _copy(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array.copy() for name, array in arrays.items()}
