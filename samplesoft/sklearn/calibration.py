"""From scores to probabilities, calibrated on examples that the model has not been trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_expit as log_sigmoid
from scipy.special import log_softmax, logsumexp, softmax

from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, scale_by_power_of_two
from samplesoft.samplers.base import Rows

_PRIOR = 10.0  # examples' worth of trust in what the model was trained with
_FARTHEST = 4.0  # of a logarithm from there
_NUMBERS = 1 << 18  # at a time
_LEAST, _MOST = 1e-300, 1.0 - 2.0**-53  # probabilities whose logarithms are finite


class SoftmaxCalibration(NamedTuple):
    """How scores become probabilities, of a softmax.

    With p the softmax of the scores divided by `temperature`, a class has the probability p, or
    where an example may have several labels ``1 - (1 - p)**labels_each``.

    Parameters
    ----------
    temperature : float
        What scores are divided by; 1 where nothing was calibrated.
    labels_each : float or None
        Of several labels, how many an example has; None where each has one.
    """

    temperature: float = 1.0
    labels_each: float | None = None

    def probabilities(self, scores: Rows) -> FloatArray:
        """Return probabilities (B, n) of scores (B, n)."""
        p = _softmax(scores, 1.0 / self.temperature)
        if self.labels_each is None:
            return p
        # 1 - (1 - p)**L by logarithms, for p far below the rounding of 1 too
        with np.errstate(divide="ignore"):
            several: FloatArray = -np.expm1(self.labels_each * np.log1p(-p))
        return several

    def fitted(self, scores: Rows, codes: Any, weights: FloatArray) -> SoftmaxCalibration:
        """Return the calibration of least log loss, not far from this one where examples are few.

        Parameters
        ----------
        scores : ndarray, shape (N, n)
            Scores of held-out examples.
        codes : ndarray of int, shape (N,), or sparse matrix, shape (N, n)
            Their labels; a matrix if `labels_each` is a number.
        weights : ndarray, shape (N,)
            Weights of the examples, not all 0.

        Returns
        -------
        Calibration
            The minimum of the log loss, which of several labels is the sum of that of each class,
            and of 5 nats for each square of a logarithm of what changes.
        """
        start = [1.0 / self.temperature]
        if self.labels_each is not None:
            start.append(self.labels_each)
        scale, *labels = _least_log_loss(softmax_log_loss, start, scores, codes, weights)
        return SoftmaxCalibration(1.0 / scale, *labels)


class LogisticCalibration(NamedTuple):
    """How scores become probabilities, of a logistic regression of each class.

    A class has the probability ``1 / (1 + exp(-score / temperature))`` to be among several labels;
    where an example has one, its share in the sum of those of all classes.

    Parameters
    ----------
    temperature : float
        What scores are divided by; 1 where nothing was calibrated.
    several_labels : bool
        Whether an example may have several labels.
    """

    temperature: float = 1.0
    several_labels: bool = True

    def probabilities(self, scores: Rows) -> FloatArray:
        """Return probabilities (B, n) of scores (B, n)."""
        logs = log_sigmoid(scores / self.temperature, dtype=np.float64)
        p: FloatArray = np.exp(logs if self.several_labels else log_softmax(logs, axis=1))
        return p

    def fitted(self, scores: Rows, codes: Any, weights: FloatArray) -> LogisticCalibration:
        """Return the calibration of least log loss, as `SoftmaxCalibration.fitted`."""
        start = [1.0 / self.temperature]
        (scale,) = _least_log_loss(logistic_log_loss, start, scores, codes, weights)
        return LogisticCalibration(1.0 / scale, self.several_labels)


Calibration = SoftmaxCalibration | LogisticCalibration


def _least_log_loss(
    log_loss: Callable[..., tuple[float, FloatArray]],
    start: list[float],
    scores: Rows,
    codes: Any,
    weights: FloatArray,
) -> list[float]:
    """Return the numbers of a calibration of least log loss, not far from those at the start."""
    weights = scale_by_power_of_two(weights)
    weights *= len(weights) / weights.sum()  # of mean 1, for the prior counts examples
    parts = chunks(len(scores), max(1, _NUMBERS // scores.shape[1]))

    def penalised(logs: FloatArray) -> tuple[float, FloatArray]:
        # in logarithms all numbers stay above 0, and the prior is the same up and down
        factors = np.array(start) * np.exp(logs)
        value, gradient = _PRIOR / 2.0 * float(logs @ logs), _PRIOR * logs
        for part in parts:
            loss, derivatives = log_loss(scores[part], codes[part], weights[part], *factors)
            value, gradient = (
                value + loss,
                gradient + factors * derivatives,
            )  # d / d log f = f d / d f
        return value, gradient

    bounds = [(-_FARTHEST, _FARTHEST)] * len(start)
    best = minimize(penalised, np.zeros(len(start)), jac=True, bounds=bounds).x
    return [float(number) for number in np.array(start) * np.exp(best)]


def softmax_log_loss(
    scores: Rows, codes: Any, weights: FloatArray, scale: float, labels_each: float | None = None
) -> tuple[float, FloatArray]:
    """Return the weighted log loss of scores times a scale, and its derivatives in both numbers."""
    p = _softmax(scores, scale)
    rows = np.arange(len(p))
    if labels_each is None:
        own = scores[rows, codes].astype(np.float64)
        # -log p of the label, from its distance to the best: no p is 0 here, however far
        behind = scale * (scores.max(axis=1) - own) - np.log(p.max(axis=1))
        # d log sum exp(s z) / ds is the mean of the scores under p
        derivative = np.einsum("ij,ij->i", p, scores) - own
        return float(weights @ behind), np.array([weights @ derivative])
    # each class is hit by L draws, or by none: log loss of n yes-or-no questions
    np.clip(p, _LEAST, _MOST, out=p)
    missed = np.log1p(-p)  # of one draw
    gradient = labels_each * p / (1.0 - p)  # in the scores, before the softmax's own
    # as if no class were a label; then the labels change sides
    losses, in_labels = -labels_each * missed.sum(axis=1), -missed.sum(axis=1)
    labels = codes.tocoo()
    places = labels.row, labels.col
    found = -np.expm1(labels_each * missed[places])  # how likely some draw is the label
    np.add.at(losses, labels.row, labels_each * missed[places] - np.log(found))
    np.add.at(in_labels, labels.row, missed[places] / found)
    gradient[places] -= gradient[places] / found
    means = np.einsum("ij,ij->i", p, scores)  # through the softmax: dp/ds = p (z - mean z)
    in_scale = np.einsum("ij,ij->i", gradient, scores) - gradient.sum(axis=1) * means
    return float(weights @ losses), np.array([weights @ in_scale, weights @ in_labels])


def logistic_log_loss(
    scores: Rows, codes: Any, weights: FloatArray, scale: float
) -> tuple[float, FloatArray]:
    """Return the weighted log loss of scores times a scale, and its derivative in that."""
    scores = scores.astype(np.float64)
    logs = log_sigmoid(scale * scores)
    rest = scores * -np.expm1(logs)  # derivatives of the logarithms
    if codes.ndim == 1:
        rows = np.arange(len(scores))
        shares = softmax(logs, axis=1)  # one label: its share in the sum of all probabilities
        losses = logsumexp(logs, axis=1) - logs[rows, codes]
        gradient = np.einsum("ij,ij->i", shares, rest) - rest[rows, codes]
    else:
        labels = codes.tocoo()
        places = labels.row, labels.col
        # -log(1 - sigmoid(x)) = x - log sigmoid(x), of all classes; then the labels change sides
        losses, gradient = (scale * scores - logs).sum(axis=1), (scores - rest).sum(axis=1)
        np.add.at(losses, labels.row, -scale * scores[places])
        np.add.at(gradient, labels.row, -scores[places])
    return float(weights @ losses), np.array([weights @ gradient])


def _softmax(scores: Rows, scale: float) -> FloatArray:
    p = scores.astype(np.float64)
    p -= p.max(axis=1, keepdims=True)  # before the scale, which may be any number
    p *= scale
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p
