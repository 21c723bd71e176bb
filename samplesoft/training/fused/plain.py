"""Steps of training, one example at a time: to be read, not to be used.

A linear embedding under a sampled softmax. A sparse input x (v,) becomes a context, the context
scores classes, and a step changes only the rows involved:

    embedded   u = sum of x_f U_f over the entries f of x, plus the intercept
    context    h = u / |u|
    scores     o_j = tau h . c_j / |c_j|          for the label and the drawn classes
    logits     the label's score; o_j less log(m q_j) for a draw
    loss       log(sum of e^logit) - the label's logit

Let an example have features 2 and 5 and label 7, and let the draws of the step be 3, 9 and 3. Then
only the rows c_3, c_7, c_9, U_2, U_5 and the intercept change, for any n and v.

The examples of a step share its draws, and all use the parameters from before the step: gradients
are summed over the examples first, and each row is updated once, by its sum.

`samplesoft.training.fused` computes the same for a block of steps in one compiled call. It lists
the rows of each step in advance, scores blocks of examples by matrix products, and distributes the
blocks over threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def unit(vector: Any) -> Any:
    """Return the vector divided by its norm; a zero vector is returned unchanged."""
    norm = math.sqrt(float(np.dot(vector, vector)))
    return vector / norm if norm > 0 else vector


def through_norm(d_unit: Any, vector: Any) -> Any:
    """Return the gradient in x from the gradient d in ``u = x / |x|``: (I - u u') d / |x|.

    Scaling x does not change u, so that the gradient has no component along u.
    """
    norm = math.sqrt(float(np.dot(vector, vector)))
    if norm == 0:
        return np.zeros(len(vector))
    u = vector / norm
    return (d_unit - np.dot(u, d_unit) * u) / norm


def embed(x: Any, inputs: Any, intercept: Any) -> Any:
    """Return the embedded input: the intercept plus a sum over the features that occur."""
    total = intercept.copy()
    for feature in np.flatnonzero(x):
        total += x[feature] * inputs[feature]
    return total


def logits_of(
    scores: dict[int, float], label: int, drawn: Any, log_counts: Any
) -> list[tuple[int, float]]:
    """Return pairs of a class and its logit: of the label, then of each draw.

    A draw is weighted by 1 over its expected count m q: log(m q) is subtracted from its score.
    Accidental hits are left out, because the label is in the sum already.
    """
    logits = [(label, scores[label])]
    for j, log_count in zip(drawn, log_counts, strict=True):
        if j != label:
            logits.append((j, scores[j] - log_count))
    return logits


def loss_and_derivatives(logits: list[tuple[int, float]]) -> tuple[float, dict[int, float]]:
    """Return the loss, and its derivative in the score of each class in the sum.

    The derivative is p_j for a draw and p - 1 for the label. A class drawn twice has both terms.
    """
    max_logit = max(logit for _, logit in logits)
    masses = [math.exp(logit - max_logit) for _, logit in logits]
    total = math.fsum(masses)
    label, label_logit = logits[0]
    derivatives = {label: -1.0}
    for (j, _), mass in zip(logits, masses, strict=True):
        derivatives[j] = derivatives.get(j, 0.0) + mass / total
    return max_logit + math.log(total) - label_logit, derivatives


def step(
    parameters: dict[str, Any],
    x: Any,
    labels: Any,
    weights: Any,
    drawn: Any,
    log_counts: Any,
    tau: float,
    update: Any,
) -> float:
    """Take one step on B examples; return their weighted mean loss.

    `parameters` are "inputs" U (v, d), "intercept" (1, d) and "classes" (n, d), changed in place.
    ``update(name, row, gradient)`` changes one row of them: the optimizer.
    """
    inputs, intercept, classes = (parameters[k] for k in ("inputs", "intercept", "classes"))
    gradients: dict[tuple[str, int], Any] = {}

    def add(name: str, row: int, gradient: Any) -> None:
        gradients[name, row] = gradients.get((name, row), 0.0) + gradient

    mean_loss = 0.0
    for b in range(len(x)):
        # forward: context, scores, loss
        embedded = embed(x[b], inputs, intercept[0])
        z = tau * unit(embedded)
        label = int(labels[b])
        scores = {j: float(np.dot(z, unit(classes[j]))) for j in {label, *map(int, drawn)}}
        logits = logits_of(scores, label, map(int, drawn), log_counts)
        loss, derivatives = loss_and_derivatives(logits)
        weight = weights[b] / len(x)
        mean_loss += weight * loss
        # backward: from scores to class vectors and to the context, and on to the input's rows
        dz = np.zeros(len(z))
        for j, derivative in derivatives.items():
            dz += weight * derivative * unit(classes[j])
            add("classes", j, through_norm(weight * derivative * z, classes[j]))
        d_embedded = through_norm(tau * dz, embedded)
        add("intercept", 0, d_embedded)
        for feature in np.flatnonzero(x[b]):
            add("inputs", int(feature), x[b][feature] * d_embedded)
    for (name, row), gradient in gradients.items():
        update(name, row, gradient)
    return mean_loss


def adagrad(parameters: dict[str, Any], rate: float, epsilon: float = 1e-10) -> Any:
    """Return an `update` for `step`: the rate of each entry shrinks with its past gradients.

    Duchi et al. (2011): s += g^2, and w -= rate g / (sqrt(s) + epsilon).
    """
    squares = {name: np.zeros(rows.shape) for name, rows in parameters.items()}

    def update(name: str, row: int, gradient: Any) -> None:
        squares[name][row] += gradient**2
        parameters[name][row] -= rate * gradient / (np.sqrt(squares[name][row]) + epsilon)

    return update


def train(
    parameters: dict[str, Any],
    x: Any,
    labels: Any,
    weights: Any,
    ids: Any,
    log_counts: Any,
    batch_size: int,
    tau: float,
    update: Any,
) -> list[float]:
    """Take steps of `batch_size` examples, fewer in the last; return their mean losses.

    Step s has the draws ``ids[s]`` and ``log_counts[s]`` (m,): classes, and log(m q) of each.
    """
    losses = []
    for s, first in enumerate(range(0, len(x), batch_size)):
        of_step = slice(first, first + batch_size)
        losses.append(
            step(
                parameters,
                x[of_step],
                labels[of_step],
                weights[of_step],
                ids[s],
                log_counts[s],
                tau,
                update,
            )
        )
    return losses
