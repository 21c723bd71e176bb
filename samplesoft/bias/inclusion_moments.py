"""Second moments of the gradient in h where classes are included independently of each other."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.poisson import (
    Included,
    InclusionNodes,
    base_contrast,
    inclusion_law,
    log_sum,
    make_included,
    make_inclusion_atoms,
    make_nodes,
    poisson_bias,
)
from samplesoft.bias.transform import STEP

_CHUNK_NUMBERS = 1 << 20  # nodes times classes at a time
_LARGEST = 150.0 * np.log(10.0)  # of log y: its square is finite


def inclusion_moments(
    logits: FloatArray, label: int, q: FloatArray, vectors: FloatArray
) -> tuple[float, float]:
    """Return the squared norm of the bias and the mean squared error, for tau = 1, eq. (B78)."""
    log_probs, pi, known = inclusion_law(logits, label, q)
    probs = np.exp(log_probs)
    if not probs[~known].any():
        return 0.0, 0.0
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred = vectors - vectors[np.argmax(probs)]
    bias = poisson_bias(logits, label, q).bias @ centred
    centred -= probs @ centred
    classes = make_included(logits, probs, log_probs, pi)
    log_base = log_sum(log_probs[known])
    own = np.exp(log_probs[known] - log_base) @ centred[known]
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(classes, make_inclusion_atoms(classes), log_base, STEP)
        u_base = np.exp(np.minimum(nodes.x + log_base, _LARGEST))
        change = np.outer(u_base * base_contrast(nodes.x, classes), own)
        scatter = np.zeros(len(nodes.x))

        def work(part: slice) -> tuple[FloatArray, FloatArray]:
            rise, second = _class_terms(classes, nodes, part)
            rows = centred[part]
            return rise @ rows, second @ np.einsum("jd,jd->j", rows, rows)

        size = max(1, _CHUNK_NUMBERS // len(nodes.x))
        for vector, scalar in thread_map(work, chunks(len(pi), size)):
            change += vector
            scatter += scalar
        kept = nodes.weights > 0.0
        half = np.sqrt(nodes.weights[kept])[:, None] * change[kept]  # no factor overflows
        mse = float(np.einsum("kd,kd->", half, half) + nodes.weights[kept] @ scatter[kept])
    squared_bias = float(bias @ bias)
    return squared_bias, max(mse, squared_bias)


def _class_terms(
    classes: Included, nodes: InclusionNodes, part: slice
) -> tuple[FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), and u**2 pi (1 - pi) (w / f)**2 exp(-u w), both (K, n)."""
    x, pi, pi_ref = nodes.x[:, None], classes.pi[part], classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w[part], _LARGEST))
    y_ref = np.exp(np.minimum(x + classes.log_w_ref, _LARGEST))
    away = classes.contrast[part] * (y + y_ref)  # y - y_ref
    decay, decay_ref = np.exp(-y), np.exp(-y_ref)
    near = np.abs(away) < 1.0
    drop = np.where(near, decay_ref * np.expm1(-np.where(near, away, 0.0)), decay - decay_ref)
    factor, factor_ref = (1.0 - pi) + pi * decay, (1.0 - pi_ref) + pi_ref * decay_ref
    rise = ((1.0 - pi) * drop + (pi_ref - pi) * np.expm1(-y_ref) * decay) / (factor * factor_ref)
    second = pi * (1.0 - pi) * y * (y * decay / factor) / factor
    return pi * y * rise, second
