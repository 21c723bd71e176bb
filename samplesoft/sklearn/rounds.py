"""Rounds of training over the same examples, until they are done or no longer help."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._progress import progress_bar, progress_line
from samplesoft._validation import FloatArray, IntArray


def train_rounds(
    classifier: Any,
    X: Any,
    codes: Any,
    weights: FloatArray,
    train: IntArray,
    held_out: IntArray,
    sample_weight: FloatArray,
) -> None:
    """Train on some rows; losses and rounds are attributes of the classifier as they end.

    `weights` (N,) are those of the losses. With rows that are held out, stop when precision at 1
    on them, by `sample_weight` (N,), no longer rises, and go back to the best parameters.
    """
    learner, verbose = classifier._learner, bool(classifier.verbose)
    num_rounds = classifier.max_iter if len(classifier.classes_) > 1 else 1
    classifier.loss_curve_ = []
    best, best_score, since = None, -np.inf, 0
    with progress_bar(verbose, total=num_rounds, desc="fit") as bar:
        for classifier.n_iter_ in range(1, num_rounds + 1):
            loss = learner.epoch(
                X, codes, weights, train, classifier.batch_size, classifier.learning_rate
            )
            classifier.loss_curve_.append(loss)
            bar.update()
            bar.set_postfix(loss=f"{loss:.4f}")
            progress_line(verbose, f"round {classifier.n_iter_} of {num_rounds}: loss {loss:.4f}")
            if not len(held_out):
                continue
            score = learner.precision_at_1(X[held_out], codes[held_out], sample_weight[held_out])
            since = 0 if score > best_score + classifier.tol else since + 1
            if score > best_score:
                best_score, best = score, _copy(learner.model.parameters)
            if since >= classifier.n_iter_no_change:
                break
    if best is not None:
        for name, array in learner.model.parameters.items():
            array[...] = best[name]
        learner.model.softmax.refresh()


def _copy(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array.copy() for name, array in arrays.items()}
