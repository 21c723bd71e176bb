"""Exact bias, variance and mean squared error of the gradient in the input embedding h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._temperature import require_squares
from samplesoft._validation import FloatArray, as_positive, as_real_array
from samplesoft.bias.certain import join
from samplesoft.bias.classes import Classes, make_atoms, make_classes
from samplesoft.bias.draw_law import DrawLaw, make_draw_law
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.node_weights import compute_decay_rates
from samplesoft.bias.quadrature import STEP
from samplesoft.bias.transform import Nodes, make_nodes
from samplesoft.bias.with_replacement import with_replacement_bias
from samplesoft.schemes import SCHEMES

_CLASS_CHUNK = 2048
_SCHEME = SCHEMES["negatives"]


@dataclass(frozen=True)
class GradientMoments:
    """Error of the sampled gradient in h: ``mse = squared_bias + variance``.

    Attributes
    ----------
    squared_bias, variance, mse : float or ndarray, shape (B,)
        Squared Euclidean norms, in the units of the squared gradient in h.
    """

    squared_bias: Any
    variance: Any
    mse: Any


def exact_gradient_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    h: ArrayLike | None = None,
    certain: Any = None,
) -> GradientMoments:
    """Compute exactly how far one sampled gradient in h is from the full one.

    The gradient of the loss in h is tau * (sum_i p'_i c_i - c_t); the draws are those of scheme
    ``negatives``.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c.
    labels, h, certain
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, conditioned here on not being the label; or an object with a
        method ``probs(h)``.
    num_sampled : int
        Number m of draws, at least 1.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.

    Returns
    -------
    GradientMoments
        Squared bias, variance and mean squared error, each a float or (B,).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    Rawat et al., "Sampled Softmax with Random Fourier Features", 2019, eq. 8; the second moment
    follows from 1/S**2 = int u exp(-u S) du.

    Examples
    --------
    >>> import samplesoft
    >>> moments = samplesoft.exact_gradient_moments(
    ...     [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    ... )
    >>> round(moments.variance, 4), round(moments.squared_bias, 6)
    (0.032, 0.001059)
    """
    inputs = check_inputs(logits, labels, q, num_sampled, h=h, certain=certain, takes_certain=True)
    vectors = as_real_array("class_embeddings", class_embeddings, (2,))
    if len(vectors) != inputs.logits.shape[1]:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {inputs.logits.shape[1]} "
            f"classes of `logits`, got shape {vectors.shape}."
        )
    scale = as_positive("tau", tau)
    require_squares(vectors, scale)
    scale *= scale
    rows = []
    for o, t, p in inputs.rows():
        example, rows_of_c = (o, t, p), vectors
        if len(inputs.certain):
            joined = join(*example, inputs.certain)
            example, rows_of_c = joined[:3], joined.mean_rows(vectors)
        squared_bias, mse = _moments(*example, inputs.num_sampled, rows_of_c)
        rows.append((scale * squared_bias, scale * (mse - squared_bias), scale * mse))
    return GradientMoments(*inputs.columns(rows))


def _moments(
    logits: FloatArray, label: int, q: FloatArray, m: int, vectors: FloatArray
) -> tuple[float, float]:
    """Return the squared norm of the bias and the mean squared error, for tau = 1."""
    law = make_draw_law(logits, label, q, m, _SCHEME)
    if law.other_mass == 0.0:
        return 0.0, 0.0
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred = vectors - vectors[np.argmax(law.probs)]
    bias = with_replacement_bias(logits, label, q, m, _SCHEME).bias @ centred
    squared_bias = float(bias @ bias)
    if np.count_nonzero(law.drawn) == 1:  # every draw is the same class
        return squared_bias, squared_bias
    centred -= law.probs @ centred
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(classes, atoms, *compute_decay_rates(law, classes), STEP)
        mse = _mean_squared_error(law, classes, nodes, centred)
    return squared_bias, max(mse, squared_bias)


def _mean_squared_error(law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray) -> float:
    """Return E|sum_i p'_i c_i|**2 for class vectors `centred` (n, d) of mean 0 under p.

    With A = e_t c_t + sum_k e_k psi_k c_k, which is 0 at v = 0, it is the integral (B28) of
    m**2 v theta**m [|A|**2 + (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2) / m].
    """
    m = law.num_draws
    x = nodes.x
    v_base = np.exp(np.minimum(x + law.log_base, LARGEST_EXPONENT))
    # half of the weight of each node; with it, in the exponents, no factor overflows
    log_half = 0.5 * m * (nodes.log_transform - v_base)
    label_part = np.outer(np.exp(x + law.log_base + log_half), centred[law.label])
    # A, written as the label's and the classes' changes from psi_R: the centred sum is 0
    with np.errstate(divide="ignore"):
        log_above = np.log(np.abs(nodes.above)) - nodes.log_transform_least
    factor = np.sign(nodes.above) * np.exp(x + law.log_base + log_above + log_half)
    change = np.outer(factor, centred[law.label])
    square = np.zeros(len(x))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        rise, second = _class_terms(law, classes, nodes, log_half[:, None], part)
        rows = centred[part]
        return rise @ rows, second @ np.einsum("jd,jd->j", rows, rows)

    for vector, scalar in thread_map(work, chunks(len(centred), _CLASS_CHUNK)):
        change += vector
        square += scalar
    drawn_part = change - label_part
    scatter = square - np.einsum("kd,kd->k", drawn_part, drawn_part)
    total = np.einsum("kd,kd->k", change, change) + np.maximum(scatter, 0.0) / m
    return float(nodes.dx @ total) * m * m


def _class_terms(
    law: DrawLaw, classes: Classes, nodes: Nodes, log_half: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray]:
    """Return v e (psi - psi_R) and v**2 e r psi, both (K, classes of `part`), weighted.

    The first is times exp(log_half), the second times its square; `log_half` is (K, 1).
    """
    x = nodes.x[:, None]
    q = law.drawn[part]
    kappa = classes.contrast[part]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_r = np.where(q > 0.0, classes.log_r[part], -np.inf)
        log_mass = np.where(q > 0.0, np.log(q), 0.0) + x + log_r + log_half  # of v e
        log_away = np.logaddexp(log_r, classes.log_ref) + np.log(np.abs(kappa))
    y = np.exp(np.minimum(x + log_r, LARGEST_EXPONENT))
    away = np.sign(kappa) * np.exp(np.minimum(x + log_away, LARGEST_EXPONENT))
    log_psi = -y - nodes.log_transform[:, None]
    psi_ref = np.exp(nodes.log_psi_ref[:, None] + log_mass)
    far = np.exp(log_psi + log_mass) - psi_ref
    rise = np.where(away > -1.0, psi_ref * np.expm1(-np.maximum(away, -1.0)), far)
    return rise, np.exp(log_mass + x + log_r + log_psi + log_half)
