"""Slow oracles for the full softmax loss of batches, and for ranks."""

from __future__ import annotations

import numpy as np
from mpmath import mp, mpf

from samplesoft.losses import plain


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def scores(h, rows, tau=1.0, normalize=False, absolute=False, biases=None):
    """All scores (B, n) in float64."""
    h, rows = np.asarray(h, np.float64), np.asarray(rows, np.float64)
    if normalize:
        h, rows = unit(h), unit(rows)
    result = tau * h @ rows.T
    if biases is not None:
        result = result + np.asarray(biases, np.float64)
    return np.abs(result) if absolute else result


def shares(labels, num_classes):
    """Dense (B, n): each row sums to 1 over the labels of the example."""
    if hasattr(labels, "toarray"):
        dense = labels.toarray().astype(np.float64)
        return dense / dense.sum(axis=1, keepdims=True)
    return np.eye(num_classes)[np.asarray(labels)]


def losses(h, rows, labels, **model):
    """Cross entropy (B,) of the softmax against the shares."""
    o = scores(h, rows, **model)
    top = o.max(axis=1)
    log_sum = top + np.log(np.exp(o - top[:, None]).sum(axis=1))
    target = shares(labels, len(rows))
    return (target * (log_sum[:, None] - o)).sum(axis=1)


def value(h, rows, labels, weights=None, reduction="mean", **model):
    weights = np.ones(len(h)) if weights is None else np.asarray(weights)
    weighted = weights * losses(h, rows, labels, **model)
    if reduction == "none":
        return weighted
    return weighted.sum() / (weights.sum() if reduction == "mean" else 1.0)


def exact_loss(o, label):
    """Loss of one row of scores by mpmath, with digits enough for exp(-600)."""
    with mp.workdps(600):
        return plain.full([mpf(float(x)) for x in o], label, mp)


def numeric_gradient(function, array, step=1e-6):
    """Central differences of a function of no arguments in each entry of `array`."""
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + step
        above = function()
        array[index] = old - step
        below = function()
        array[index] = old
        gradient[index] = (above - below) / (2.0 * step)
    return gradient


def ranking(o):
    """Classes (B, n) from the best to the worst, ties to the first."""
    return np.argsort(-o, axis=1, kind="stable")


def hits(o, labels, k):
    """Number of pairs of example and label with the label among the k best, and of all pairs."""
    target = shares(labels, o.shape[1]) > 0.0
    best = ranking(o)[:, :k]
    return np.take_along_axis(target, best, axis=1).sum(), target.sum()
