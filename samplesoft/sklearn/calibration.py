"""Calibration: probabilities from scores, fitted on examples that the model was not trained on."""

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

# weight of the penalty on changes of parameters, as a number of examples
_PRIOR_EXAMPLES = 10.0
_MAX_LOG_CHANGE = 4.0  # max absolute change of the log of a parameter
_MAX_CHUNK_SCORES = 1 << 18  # max number of scores that are processed at a time
# probabilities are clipped to this range, in which log(p) and log(1 - p) are finite
_MIN_PROB = 1e-300
_MAX_PROB = 1.0 - 2.0**-53


class SoftmaxCalibration(NamedTuple):
    """Calibration of a softmax, by a temperature and, for several labels, the number of labels.

    Let p be the softmax of the scores divided by `temperature`. The probability of a class is p, or
    ``1 - (1 - p)**labels_each`` if an example may have several labels.

    Parameters
    ----------
    temperature : float
        Divisor of the scores; 1 without calibration.
    labels_each : float or None
        Number of labels per example; None if each example has exactly one label.
    """

    temperature: float = 1.0
    labels_each: float | None = None

    def probabilities(self, scores: Rows) -> FloatArray:
        """Return the probabilities (B, n) for scores (B, n)."""
        p = _softmax(scores, 1.0 / self.temperature)
        if self.labels_each is None:
            return p
        # 1 - (1 - p)**labels_each, computed without losing p if it is below the rounding unit of 1
        with np.errstate(divide="ignore"):
            prob_among_labels: FloatArray = -np.expm1(self.labels_each * np.log1p(-p))
        return prob_among_labels

    def fitted(self, scores: Rows, codes: Any, weights: FloatArray) -> SoftmaxCalibration:
        """Return a calibration that minimises a penalised log loss, starting from this one.

        Because of the penalty, the result stays close to this one if there are few examples.

        Parameters
        ----------
        scores : ndarray, shape (N, n)
            Scores of held-out examples.
        codes : ndarray of int, shape (N,), or sparse matrix, shape (N, n)
            Labels of the examples; a matrix if `labels_each` is a number.
        weights : ndarray, shape (N,)
            Weights of the examples, not all 0.

        Returns
        -------
        Calibration
            The minimiser of the log loss plus a penalty. If examples may have several labels, the
            log loss is the sum of the binary log losses of all classes. The penalty of each
            parameter is 5 nats times the squared log of the factor by which it changes.
        """
        start = [1.0 / self.temperature]
        if self.labels_each is not None:
            start.append(self.labels_each)
        scale, *labels_each = _minimise_log_loss(softmax_log_loss, start, scores, codes, weights)
        return SoftmaxCalibration(1.0 / scale, *labels_each)


class LogisticCalibration(NamedTuple):
    """Calibration of logistic regressions, one for each class, by a temperature.

    If an example may have several labels, the probability of a class is
    ``1 / (1 + exp(-score / temperature))``. If it has one label, these probabilities are divided by
    their sum over the classes.

    Parameters
    ----------
    temperature : float
        Divisor of the scores; 1 without calibration.
    several_labels : bool
        Whether an example may have several labels.
    """

    temperature: float = 1.0
    several_labels: bool = True

    def probabilities(self, scores: Rows) -> FloatArray:
        """Return the probabilities (B, n) for scores (B, n)."""
        logs = log_sigmoid(scores / self.temperature, dtype=np.float64)
        p: FloatArray = np.exp(logs if self.several_labels else log_softmax(logs, axis=1))
        return p

    def fitted(self, scores: Rows, codes: Any, weights: FloatArray) -> LogisticCalibration:
        """Return a calibration that minimises a penalised log loss.

        See `SoftmaxCalibration.fitted` for arguments and penalty.
        """
        start = [1.0 / self.temperature]
        (scale,) = _minimise_log_loss(logistic_log_loss, start, scores, codes, weights)
        return LogisticCalibration(1.0 / scale, self.several_labels)


Calibration = SoftmaxCalibration | LogisticCalibration


def _minimise_log_loss(
    log_loss: Callable[..., tuple[float, FloatArray]],
    start: list[float],
    scores: Rows,
    codes: Any,
    weights: FloatArray,
) -> list[float]:
    """Return the parameters that minimise `log_loss` plus a penalty on their changes.

    `start` are the initial values: the scale of the scores (1 / temperature), and the number of
    labels per example if it is fitted.
    """
    weights = scale_by_power_of_two(weights)
    # scale the weights to mean 1, because the weight of the penalty is a number of examples
    weights *= len(weights) / weights.sum()
    score_chunks = chunks(len(scores), max(1, _MAX_CHUNK_SCORES // scores.shape[1]))

    def penalised(logs: FloatArray) -> tuple[float, FloatArray]:
        """Return the penalised log loss and its gradient, for logs of the parameter changes."""
        # with logarithms as variables, parameters stay positive and the penalty is symmetric
        factors = np.array(start) * np.exp(logs)
        value = _PRIOR_EXAMPLES / 2.0 * float(logs @ logs)
        gradient = _PRIOR_EXAMPLES * logs

        for chunk in score_chunks:
            loss, derivatives = log_loss(scores[chunk], codes[chunk], weights[chunk], *factors)
            value = value + loss
            # chain rule: d / d log f = f * d / d f
            gradient = gradient + factors * derivatives

        return value, gradient

    bounds = [(-_MAX_LOG_CHANGE, _MAX_LOG_CHANGE)] * len(start)
    best = minimize(penalised, np.zeros(len(start)), jac=True, bounds=bounds).x
    return [float(parameter) for parameter in np.array(start) * np.exp(best)]


def softmax_log_loss(
    scores: Rows, codes: Any, weights: FloatArray, scale: float, labels_each: float | None = None
) -> tuple[float, FloatArray]:
    """Return the weighted log loss of a calibrated softmax, and its derivatives (1,) or (2,).

    The softmax is that of ``scale * scores``. The derivatives are with respect to `scale` and, if
    it is given, `labels_each`.
    """
    p = _softmax(scores, scale)
    rows = np.arange(len(p))

    if labels_each is None:
        label_scores = scores[rows, codes].astype(np.float64)
        # -log(p[label]) would be infinite if p underflows, so it is computed from the difference of
        # the largest score and the label's score
        losses = scale * (scores.max(axis=1) - label_scores) - np.log(p.max(axis=1))
        # d log(sum(exp(s z))) / ds is the mean of the scores z under p
        derivative = np.einsum("ij,ij->i", p, scores) - label_scores
        return float(weights @ losses), np.array([weights @ derivative])

    # n binary log losses, with the probability that a class is among `labels_each` draws from p
    np.clip(p, _MIN_PROB, _MAX_PROB, out=p)
    log_missed = np.log1p(-p)  # log-probability that one draw is not this class
    gradient = labels_each * p / (1.0 - p)  # derivatives of the losses with respect to log p

    # first as if no class were a label; then the entries of labels are corrected
    losses = -labels_each * log_missed.sum(axis=1)
    d_labels_each = -log_missed.sum(axis=1)
    labels = codes.tocoo()
    label_index = labels.row, labels.col
    prob_drawn = -np.expm1(labels_each * log_missed[label_index])  # P(some draw is the label)
    np.add.at(losses, labels.row, labels_each * log_missed[label_index] - np.log(prob_drawn))
    np.add.at(d_labels_each, labels.row, log_missed[label_index] / prob_drawn)
    gradient[label_index] -= gradient[label_index] / prob_drawn

    # chain rule of the softmax: the derivative of log p by the scale is the score minus its mean
    means = np.einsum("ij,ij->i", p, scores)
    d_scale = np.einsum("ij,ij->i", gradient, scores) - gradient.sum(axis=1) * means
    return float(weights @ losses), np.array([weights @ d_scale, weights @ d_labels_each])


def logistic_log_loss(
    scores: Rows, codes: Any, weights: FloatArray, scale: float
) -> tuple[float, FloatArray]:
    """Return the weighted log loss of logistic regressions, and its derivative (1,) by `scale`.

    The probabilities are sigmoids of ``scale * scores``. If each example has one label (`codes` is
    1-D), they are divided by their sum over the classes.
    """
    scores = scores.astype(np.float64)
    logs = log_sigmoid(scale * scores)
    d_logs = scores * -np.expm1(logs)  # derivatives of `logs` by the scale

    if codes.ndim == 1:
        rows = np.arange(len(scores))
        normalised = softmax(logs, axis=1)  # sigmoids divided by their sum
        losses = logsumexp(logs, axis=1) - logs[rows, codes]
        gradient = np.einsum("ij,ij->i", normalised, d_logs) - d_logs[rows, codes]
    else:
        labels = codes.tocoo()
        label_index = labels.row, labels.col
        # first as if no class were a label, by -log(1 - sigmoid(x)) = x - log(sigmoid(x)); then the
        # entries of labels are corrected
        losses = (scale * scores - logs).sum(axis=1)
        gradient = (scores - d_logs).sum(axis=1)
        np.add.at(losses, labels.row, -scale * scores[label_index])
        np.add.at(gradient, labels.row, -scores[label_index])

    return float(weights @ losses), np.array([weights @ gradient])


def _softmax(scores: Rows, scale: float) -> FloatArray:
    """Return the softmax of ``scale * scores`` (B, n), in float64."""
    p = scores.astype(np.float64)
    p -= p.max(axis=1, keepdims=True)  # before scaling, so that no scale makes exp overflow
    p *= scale
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p
