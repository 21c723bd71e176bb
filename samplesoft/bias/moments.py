"""Exact bias, variance and mean squared error of the gradient in the input embedding h."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._temperature import require_squares
from samplesoft._validation import FloatArray, as_positive, as_real_array
from samplesoft.bias.draw_law import Classes, DrawLaw, make_classes, make_draw_law
from samplesoft.bias.exact import with_replacement_bias
from samplesoft.bias.inclusion_moments import inclusion_moments
from samplesoft.bias.inputs import check_inputs, join
from samplesoft.bias.jackknife_moments import jackknife_squared_error
from samplesoft.bias.node_weights import compute_decay_rates, log_kept
from samplesoft.bias.transform import STEP, Nodes, make_atoms, make_nodes
from samplesoft.schemes import Scheme

_CHUNK_NUMBERS = 1 << 20  # nodes times classes at a time


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
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
) -> GradientMoments:
    """Compute exactly how far one sampled gradient in h is from the full one.

    The gradient of the loss in h is tau * (sum_i p'_i c_i - c_t).

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c.
    labels, q, h, certain
        As for `samplesoft.exact_bias`, the jackknife of first order.
    num_sampled : int
        Number m of draws, at least 1.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.
    scheme : str or samplesoft.schemes.Scheme
        As for `samplesoft.exact_bias`, the jackknife of first order.

    Returns
    -------
    GradientMoments
        Squared bias, variance and mean squared error, each a float or (B,).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or for the jackknife the ratios ``exp(logits) / q`` of more
        than 4,096 classes spread over hundreds of powers of e.

    References
    ----------
    Rawat et al., "Sampled Softmax with Random Fourier Features", 2019, eq. 8; the second moment
    follows from 1/S**2 = int u exp(-u S) du, as section 9 of ``samplesoft/bias/README.md`` shows.

    Examples
    --------
    >>> import samplesoft
    >>> moments = samplesoft.exact_gradient_moments(
    ...     [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    ... )
    >>> round(moments.variance, 4), round(moments.squared_bias, 6)
    (0.032, 0.001059)
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h, certain, takes_certain=True)
    facts = inputs.scheme
    vectors, scale = check_vectors(class_embeddings, inputs.logits.shape[1], tau)
    rows = []
    for o, t, p in inputs.rows():
        example, rows_of_c = (o, t, p), vectors
        if len(inputs.certain):
            joined = join(*example, inputs.certain)
            example, rows_of_c = joined[:3], joined.mean_rows(vectors)
        if facts.independent:
            squared_bias, mse = inclusion_moments(*example, rows_of_c)
        else:
            squared_bias, mse = _moments(*example, inputs.num_sampled, facts, rows_of_c)
        rows.append((scale * squared_bias, scale * (mse - squared_bias), scale * mse))
    return GradientMoments(*inputs.columns(rows))


def check_vectors(class_embeddings: ArrayLike, n: int, tau: Any) -> tuple[FloatArray, float]:
    """Return the vectors of n classes, (n, d), and the square of tau, both checked."""
    vectors = as_real_array("class_embeddings", class_embeddings, (2,))
    if len(vectors) != n:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {n} classes of `logits`, got "
            f"shape {vectors.shape}."
        )
    scale = as_positive("tau", tau)
    require_squares(vectors, scale)
    return vectors, scale * scale


def centre(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return class vectors (n, d) less their mean under the softmax."""
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def _moments(
    logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme, vectors: FloatArray
) -> tuple[float, float]:
    """Return the squared norm of the bias and the mean squared error, for tau = 1."""
    law = make_draw_law(logits, label, q, m, scheme)
    if law.other_mass == 0.0 and not scheme.draws_label:
        return 0.0, 0.0
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred = vectors - vectors[np.argmax(law.probs)]
    bias = with_replacement_bias(logits, label, q, m, scheme).bias @ centred
    squared_bias = float(bias @ bias)
    if np.count_nonzero(law.drawn) + (scheme.random_count and law.label_draw > 0.0) <= 1:
        return squared_bias, squared_bias  # every draw is the same class
    centred -= law.probs @ centred
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(law, classes, atoms, *compute_decay_rates(law, classes), STEP)
        if scheme.jackknife:
            mse = jackknife_squared_error(law, classes, atoms, nodes, centred)
        else:
            mse = _mean_squared_error(law, classes, nodes, centred)
    return squared_bias, max(mse, squared_bias)


def _mean_squared_error(law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray) -> float:
    """Return E|sum_i p'_i c_i|**2 for class vectors `centred` (n, d) of mean 0 under p.

    With A = B c_t + sum_k e_k psi_k c_k, it is the integral (B28) of
    v E[theta**K (K**2 |A|**2 + K (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))],
    where K is the number of draws that S is divided by: m, or for some schemes a random one.
    """
    own = centred[law.label]
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_first, ratio, none = _count_moments(law, nodes.log_transform - v_base)
    # half of the weight of each node; with it, in the exponents, no factor overflows
    change, scatter = numerator_moments(law, classes, nodes, centred, 0.5 * log_first)
    total = ratio * np.einsum("kd,kd->k", change, change) + scatter
    return float(nodes.dx @ total) + none * float(own @ own)


def numerator_moments(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return v A (K, d) and v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2), (K,).

    The first is times exp(`log_half`), (K,), the second times its square.
    """
    x, own = nodes.x, centred[law.label]
    label_part = np.outer(np.exp(x + law.log_base + log_half), own)
    # A, written as changes from psi_R of the label, if it is not drawn, and of the classes: the
    # centred sum is 0
    change = np.outer(_label_change(law, nodes, log_half), own)
    square = np.zeros(len(x))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        rise, second = _class_terms(law, classes, nodes, log_half[:, None], part)
        rows = centred[part]
        return rise @ rows, second @ np.einsum("jd,jd->j", rows, rows)

    for vector, scalar in thread_map(work, chunks(len(centred), max(1, _CHUNK_NUMBERS // len(x)))):
        change += vector
        square += scalar
    drawn_part = change - label_part
    return change, np.maximum(square - np.einsum("kd,kd->k", drawn_part, drawn_part), 0.0)


def _count_moments(law: DrawLaw, log_theta: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return log E[K theta**K], E[K**2 theta**K] over it, and the probability that K is 0."""
    m = law.num_draws
    if not law.scheme.divides_by_kept:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m)), 0.0
    log_mix = log_kept(law, log_theta)
    log_one = math.log(law.other_draw) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_one - log_mix)
    return math.log(m) + log_one + (m - 1) * log_mix, ratio, law.label_draw**m


def _label_change(law: DrawLaw, nodes: Nodes, log_half: FloatArray) -> FloatArray:
    """Return v times what A has of c_t beside the draws, less e_t psi_R if the label is not drawn.

    It is weighted by exp(log_half). The plain base mass e_t is told from e_t psi_R by `above`.
    """
    base = nodes.x + law.log_base + log_half
    if law.scheme.draws_label:
        return np.exp(base)
    own = nodes.x + law.log_probs[law.label] + log_half
    with np.errstate(divide="ignore"):
        log_above = np.log(np.abs(nodes.above)) - nodes.log_transform_least
    change: FloatArray = np.sign(nodes.above) * np.exp(own + log_above)
    if law.scheme.corrects_label:
        change = change + np.exp(base) - np.exp(own)
    return change


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
