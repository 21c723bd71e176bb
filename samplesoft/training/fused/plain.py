"""Training steps, one example at a time: to be read, not to be used. They explain fused steps.

The model is a linear embedding with a sampled softmax. It computes a context vector h from a sparse
input x (v,), then scores of classes, logits and a loss:

    embedded   u = sum of x_f U_f over the entries f of x, plus the intercept
    context    h = u / |u|
    scores     o_j = tau h . c_j / |c_j|          for the label and the drawn classes
    logits     o_j for the label, and o_j - log(m q_j) for a draw
    loss       log(sum of e^logit) - the label's logit

A step changes only the rows that it uses. If an example has features 2 and 5 and label 7, and the
draws of the step are 3, 9 and 3, then only the rows c_3, c_7, c_9, U_2, U_5 and the intercept
change, however many classes and features there are.

All examples of a step have the same draws, and use the parameters from before the step. Gradients
are first summed over the examples. Then each row is updated once, with its sum.

`samplesoft.training.fused` computes the same for a block of steps in one compiled call. It lists
the rows of each step in advance, scores blocks of examples with matrix products, and distributes
the blocks over threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def divide_by_norm(vector: Any) -> Any:
    """Return the vector divided by its norm; a zero vector is returned unchanged."""
    norm = math.sqrt(float(np.dot(vector, vector)))
    return vector / norm if norm > 0 else vector


def gradient_through_norm(d_unit: Any, vector: Any) -> Any:
    """Return the gradient in `vector` x, given the gradient d in ``u = x / |x|``.

    It is ``(I - u u') d / |x|``. Scaling x does not change u, so that the gradient has no component
    along u.
    """
    norm = math.sqrt(float(np.dot(vector, vector)))
    if norm == 0:
        return np.zeros(len(vector))
    u = vector / norm
    return (d_unit - np.dot(u, d_unit) * u) / norm


def embed(x: Any, inputs: Any, intercept: Any) -> Any:
    """Return the embedded input: the intercept plus the weighted sum of the features' rows."""
    total = intercept.copy()
    for feature in np.flatnonzero(x):
        total += x[feature] * inputs[feature]
    return total


def corrected_logits(
    scores: dict[int, float], label: int, drawn: Any, log_counts: Any
) -> list[tuple[int, float]]:
    """Return the label and the draws, each as a pair (class, logit); the label comes first.

    Subtracting log(m q) from the score of a draw divides its exponential by its expected count m q.
    Draws of the label, accidental hits, are left out, because the label is in the sum already.
    """
    logits = [(label, scores[label])]
    for j, log_count in zip(drawn, log_counts, strict=True):
        if j != label:
            logits.append((j, scores[j] - log_count))
    return logits


def loss_and_derivatives(logits: list[tuple[int, float]]) -> tuple[float, dict[int, float]]:
    """Return the loss, and its derivative in the score of each class as a dict.

    With p the softmax of the logits, the derivative is p - 1 for the label and p for a draw. For a
    class that was drawn twice both probabilities are added.
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

    `parameters` holds "inputs" U (v, d), "intercept" (1, d) and "classes" (n, d). The optimizer
    ``update(name, row, gradient)`` changes one of their rows in place. `drawn` and `log_counts`
    (m,) are the drawn classes and the log(m q) of each.
    """
    inputs, intercept, classes = (parameters[k] for k in ("inputs", "intercept", "classes"))
    gradients: dict[tuple[str, int], Any] = {}

    def add_gradient(name: str, row: int, gradient: Any) -> None:
        gradients[name, row] = gradients.get((name, row), 0.0) + gradient

    mean_loss = 0.0
    for b in range(len(x)):
        # forward: context, scores, loss
        embedded = embed(x[b], inputs, intercept[0])
        z = tau * divide_by_norm(embedded)
        label = int(labels[b])
        scores = {
            j: float(np.dot(z, divide_by_norm(classes[j]))) for j in {label, *map(int, drawn)}
        }
        logits = corrected_logits(scores, label, map(int, drawn), log_counts)
        loss, derivatives = loss_and_derivatives(logits)
        weight = weights[b] / len(x)
        mean_loss += weight * loss

        # backward: gradients of the class vectors, of the context, and of the input's rows
        dz = np.zeros(len(z))
        for j, derivative in derivatives.items():
            dz += weight * derivative * divide_by_norm(classes[j])
            add_gradient("classes", j, gradient_through_norm(weight * derivative * z, classes[j]))
        d_embedded = gradient_through_norm(tau * dz, embedded)
        add_gradient("intercept", 0, d_embedded)
        for feature in np.flatnonzero(x[b]):
            add_gradient("inputs", int(feature), x[b][feature] * d_embedded)

    for (name, row), gradient in gradients.items():
        update(name, row, gradient)
    return mean_loss


def adagrad(parameters: dict[str, Any], rate: float, epsilon: float = 1e-10) -> Any:
    """Return an `update` function for `step` that does Adagrad, Duchi et al. (2011).

    Each entry w with gradient g has a sum s of squares: ``s += g**2``, and then
    ``w -= rate * g / (sqrt(s) + epsilon)``.
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
    """Take steps of `batch_size` examples each; return the weighted mean loss of each step.

    The last step may have fewer examples. The drawn classes of step s are ``ids[s]`` (m,), and
    their log(m q) are ``log_counts[s]`` (m,).
    """
    losses = []
    for s, start in enumerate(range(0, len(x), batch_size)):
        examples = slice(start, start + batch_size)
        losses.append(
            step(
                parameters,
                x[examples],
                labels[examples],
                weights[examples],
                ids[s],
                log_counts[s],
                tau,
                update,
            )
        )
    return losses
