"""Exact bias, variance and mean squared error of the gradient in the input embedding h.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. Three of them have one shape, an
integral over nodes of squares: for draws, for the jackknife, and for classes that are included
independently of each other. Each comes with the sizes of what it adds up, which say how large the
error is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, njit, num_threads, thread_each, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._temperature import require_squares
from samplesoft._validation import FloatArray, IntArray, as_positive, as_real_array
from samplesoft.bias import poisson
from samplesoft.bias.draw_law import Classes, DrawLaw, make_classes, make_draw_law
from samplesoft.bias.exact import with_replacement_bias
from samplesoft.bias.inputs import Inputs, check_inputs, join
from samplesoft.bias.laplace import _decay_ratio, tangent
from samplesoft.bias.node_weights import compute_decay_rates, log_kept
from samplesoft.bias.transform import (
    STEP,
    Atoms,
    Nodes,
    halving_change,
    make_atoms,
    make_nodes,
    rounding_unit,
)
from samplesoft.kernels import panels
from samplesoft.schemes import Scheme

EPS = float(np.finfo(np.float64).eps)
_CHUNK_NUMBERS = 1 << 20  # nodes times classes at a time
_LARGEST = 150.0 * np.log(10.0)  # of log y: its square is finite
_MOST_EXPONENT = 1e4  # what falls by more is 0
_LEAST = 1e-290  # of the squared class vectors: near the least numbers all have few digits

# of the jackknife
_NARROW = 32.0  # its terms are analytic in a narrower strip: room for a larger quadrature error
_MOST_ATOMS = 4096  # pairs of them are gone through at each node
_GONE = 745.0
_SERIES = 1.0  # up to here the divided difference is summed as a series of positive terms
_TERMS = 20
_FLAT = 1e-17  # below it k is its first order in x to the last bit
_FAR = 1e20  # above it k is nothing beside terms with one draw left out, times x too


@dataclass(frozen=True)
class GradientMoments:
    """Error of the sampled gradient in h: ``mse = squared_bias + variance``.

    Attributes
    ----------
    squared_bias, variance, mse : float or ndarray, shape (B,)
        Squared Euclidean norms, in the units of the squared gradient in h.
    error : float or ndarray, shape (B,)
        Estimated numerical error of each of them: quadrature and rounding. A variance far below
        the squared bias, or below its own error, has few digits or none.
    """

    squared_bias: Any
    variance: Any
    mse: Any
    error: Any


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
        Squared bias, variance, mean squared error, and their numerical error, each a float or (B,).

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
    return exact_gradient_moments_of(inputs, class_embeddings, tau)


def exact_gradient_moments_of(
    inputs: Inputs, class_embeddings: ArrayLike, tau: float = 1.0
) -> GradientMoments:
    """Return `exact_gradient_moments` of other arguments that are checked."""
    vectors, scale = check_vectors(class_embeddings, inputs.logits.shape[1], tau)
    rows = []
    for example in inputs.rows():
        rows_of_c, joining = vectors, 0.0
        if len(inputs.certain):
            joined = join(*example, inputs.certain)
            example, rows_of_c, joining = joined[:3], joined.mean_rows(vectors), joined.rounding
        if inputs.scheme.independent:
            found = _inclusion_moments(*example, rows_of_c)
        else:
            found = _moments(*example, inputs.num_sampled, inputs.scheme, rows_of_c)
        squared_bias, mse, error = (scale * x for x in found)
        error += (joining + 4.0 * EPS) * mse
        rows.append((squared_bias, mse - squared_bias, mse, error))
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
) -> tuple[float, float, float]:
    """Return the squared norm of the bias, the mean squared error, and an error, for tau = 1."""
    law = make_draw_law(logits, label, q, m, scheme)
    if law.other_mass == 0.0 and not scheme.draws_label:
        return 0.0, 0.0, 0.0
    row = with_replacement_bias(logits, label, q, m, scheme)
    squared_bias, error = _squared_bias(row.bias, row.error, vectors, law.probs)
    if np.count_nonzero(law.drawn) + (scheme.random_count and law.label_draw > 0.0) <= 1:
        return squared_bias, squared_bias, error  # every draw is the same class
    centred = centre(vectors, law.probs)
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    active = law.drawn > 0.0
    unit = rounding_unit(law.log_probs[active], np.log(law.drawn[active]))
    unit = max(unit, rounding_unit(law.base_logs))
    never, own = 0.0, centred[label]
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(law, classes, atoms, *compute_decay_rates(law, classes), STEP)
        if scheme.jackknife:
            terms, errors = _jackknife_terms(law, classes, atoms, nodes, centred, unit)
        else:
            terms, errors, chance = _terms(law, classes, nodes, centred, unit)
            never = chance * float(own @ own)
        mse, rounding = _integrate(nodes.dx, terms, errors, _NARROW if scheme.jackknife else 1.0)
    return squared_bias, max(mse + never, squared_bias), error + rounding + 4.0 * EPS * never


def _squared_bias(
    bias: FloatArray, error: float, vectors: FloatArray, probs: FloatArray
) -> tuple[float, float]:
    """Return the squared norm of the bias of the gradient, and its error, for tau = 1."""
    apart = vectors - vectors[np.argmax(probs)]  # a constant is free, for the biases sum to 0
    mean = bias @ apart
    squared = float(mean @ mean)
    reach = float(np.sqrt(np.einsum("jd,jd->j", apart, apart).max()))
    off = (error + EPS * (len(bias) + 8) * float(np.abs(bias).sum())) * reach
    return squared, off * (2.0 * squared**0.5 + off)


def _integrate(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the sum of weighted terms (K,), and its error from theirs and of the quadrature."""
    total = float(weights @ terms)
    coarse = halving_change(weights * terms)  # half the step squares the relative error, (B25)
    quadrature = margin * coarse * min(coarse / max(abs(total), _LEAST), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature


def _terms(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, unit: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return the integrand of E|sum_i p'_i c_i|**2 for class vectors (n, d) of mean 0 under p.

    With A = B c_t + sum_k e_k psi_k c_k, it is (B28),
    v E[theta**K (K**2 |A|**2 + K (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))],
    where K is the number of draws that S is divided by: m, or for some schemes a random one. With
    it come bounds on its rounding, and the chance that K is 0, where p' is 1 on the label.
    """
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_first, ratio, none = _count_moments(law, nodes.log_transform - v_base)
    # half of the weight of each node; with it, in the exponents, no factor overflows
    found = _numerator(law, classes, nodes, centred, 0.5 * log_first)
    square = np.einsum("kd,kd->k", found.change, found.change)
    # an exponent is known to its relative rounding, and so is what it is the log of
    units = unit * (1.0 + np.minimum(np.abs(log_first), _MOST_EXPONENT))
    moved = units * found.size
    errors = ratio * moved * (2.0 * np.sqrt(square) + moved) + units * (ratio * square)
    return ratio * square + found.scatter, errors + units * found.scatter_size, none


class _Numerator(NamedTuple):
    """Moments of v A and of what a draw adds to it, at each node (K,), and their sizes."""

    change: FloatArray  # (K, d) v A
    scatter: FloatArray  # v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2)
    size: FloatArray  # of the terms of `change`
    scatter_size: FloatArray


def numerator_moments(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return v A (K, d) times exp(`log_half`), (K,), and the scatter (K,) times its square."""
    return _numerator(law, classes, nodes, centred, log_half)[:2]


def _numerator(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> _Numerator:
    x, own = nodes.x, centred[law.label]
    label_part = np.outer(np.exp(x + law.log_base + log_half), own)
    # A, written as changes from psi_R of the label, if it is not drawn, and of the classes: the
    # centred sum is 0
    of_label, label_size = _label_change(law, nodes, log_half)
    change = np.outer(of_label, own)
    squares = np.einsum("jd,jd->j", centred, centred)
    norms = np.sqrt(squares)
    reach = norms + law.probs @ norms  # the mean that was taken off is rounded, too
    size, square = label_size * reach[law.label], np.zeros(len(x))

    def work(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        rise, second = _class_terms(law, classes, nodes, log_half[:, None], part)
        return rise @ centred[part], second @ squares[part], np.abs(rise) @ reach[part]

    parts = chunks(len(centred), max(1, _CHUNK_NUMBERS // len(x)))
    for vector, scalar, sizes in thread_map(work, parts):
        change += vector
        square += scalar
        size += sizes
    drawn_part = change - label_part
    drawn_square = np.einsum("kd,kd->k", drawn_part, drawn_part)
    drawn_size = size + np.exp(x + law.log_base + log_half) * norms[law.label]
    scatter_size = square + drawn_square + 2.0 * np.sqrt(drawn_square) * drawn_size
    return _Numerator(change, np.maximum(square - drawn_square, 0.0), size, scatter_size)


def _count_moments(law: DrawLaw, log_theta: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return log E[K theta**K], E[K**2 theta**K] over it, and the probability that K is 0."""
    m = law.num_draws
    if not law.scheme.divides_by_kept:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m)), 0.0
    log_mix = log_kept(law, log_theta)
    log_one = math.log(law.other_draw) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_one - log_mix)
    return math.log(m) + log_one + (m - 1) * log_mix, ratio, law.label_draw**m


def _label_change(
    law: DrawLaw, nodes: Nodes, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return v times what A has of c_t beside the draws, less e_t psi_R if the label is not drawn.

    It is weighted by exp(log_half), and comes with the size of its terms. The plain base mass e_t
    is told from e_t psi_R by `above`.
    """
    base = np.exp(nodes.x + law.log_base + log_half)
    if law.scheme.draws_label:
        return base, base
    own = nodes.x + law.log_probs[law.label] + log_half
    with np.errstate(divide="ignore"):
        log_above = np.log(np.abs(nodes.above)) - nodes.log_transform_least
    above = np.exp(own + log_above)
    change: FloatArray = np.sign(nodes.above) * above
    if law.scheme.corrects_label:
        return change + base - np.exp(own), above + base + np.exp(own)
    return change, above


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


# Independent inclusion


def _inclusion_moments(
    logits: FloatArray, label: int, q: FloatArray, vectors: FloatArray
) -> tuple[float, float, float]:
    """Return the same as `_moments`, eq. (B78)."""
    log_probs, pi, known = poisson.inclusion_law(logits, label, q)
    probs = np.exp(log_probs)
    if not probs[~known].any():
        return 0.0, 0.0, 0.0
    row = poisson.poisson_bias(logits, label, q)
    squared_bias, error = _squared_bias(row.bias, row.error, vectors, probs)
    centred = centre(vectors, probs)
    squares = np.einsum("jd,jd->j", centred, centred)
    norms = np.sqrt(squares)
    reach = norms + probs @ norms
    classes = poisson.make_included(logits, probs, log_probs, pi)
    log_base = poisson.log_sum(log_probs[known])
    shares = np.exp(log_probs[known] - log_base)
    unit = rounding_unit(log_probs[pi > 0.0], np.log(pi[pi > 0.0]))
    unit = max(unit, rounding_unit(log_probs[known]))
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        nodes = poisson.make_nodes(classes, poisson.make_inclusion_atoms(classes), log_base, STEP)
        u_base = np.exp(np.minimum(nodes.x + log_base, _LARGEST))
        of_base = u_base * poisson.base_contrast(nodes.x, classes)
        change = np.outer(of_base, shares @ centred[known])
        scatter, size = np.zeros(len(nodes.x)), np.abs(of_base) * (shares @ reach[known])

        def work(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
            rise, sizes, second = _inclusion_terms(classes, nodes, part)
            return rise @ centred[part], second @ squares[part], sizes @ reach[part]

        for vector, scalar, sizes in thread_map(
            work, chunks(len(pi), max(1, _CHUNK_NUMBERS // len(nodes.x)))
        ):
            change += vector
            scatter += scalar
            size += sizes
        kept = nodes.weights > 0.0
        half = np.sqrt(nodes.weights[kept])  # at either factor, so that none overflows
        change, size = half[:, None] * change[kept], half * size[kept]
        weighted = nodes.weights[kept]
        terms = np.einsum("kd,kd->k", change, change) + weighted * scatter[kept]
        units = unit * (1.0 + np.abs(np.log(weighted)))
        moved = units * size
        errors = moved * (2.0 * np.sqrt(np.einsum("kd,kd->k", change, change)) + moved)
        mse, rounding = _integrate(np.ones(len(terms)), terms, errors + units * terms)
    return squared_bias, max(mse, squared_bias), error + rounding


def _inclusion_terms(
    classes: poisson.Included, nodes: poisson.InclusionNodes, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), its size, and u**2 pi (1 - pi) (w / f)**2 exp(-u w)."""
    x, pi, pi_ref = nodes.x[:, None], classes.pi[part], classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w[part], _LARGEST))
    y_ref = np.exp(np.minimum(x + classes.log_w_ref, _LARGEST))
    away = classes.contrast[part] * (y + y_ref)  # y - y_ref
    decay, decay_ref = np.exp(-y), np.exp(-y_ref)
    near = np.abs(away) < 1.0
    drop = np.where(near, decay_ref * np.expm1(-np.where(near, away, 0.0)), decay - decay_ref)
    factor, factor_ref = (1.0 - pi) + pi * decay, (1.0 - pi_ref) + pi_ref * decay_ref
    of_decay, of_pi = (1.0 - pi) * drop, (pi_ref - pi) * np.expm1(-y_ref) * decay
    rise = (of_decay + of_pi) / (factor * factor_ref)
    size = pi * y * ((np.abs(of_decay) + np.abs(of_pi)) / (factor * factor_ref))
    second = pi * (1.0 - pi) * y * (y * decay / factor) / factor
    return pi * y * rise, size, second


# The jackknife: draws with one or two left out


class _Draws(NamedTuple):
    """Atoms of one draw, in the order of w: ``w = a + r``, and gamma = (a c_t + r c) / w.

    `vectors` and `squares` are what the classes of an atom have of q gamma and q |gamma|**2.
    """

    log_w: FloatArray  # (A,)
    q: FloatArray  # (A,)
    vectors: FloatArray  # (A, d)
    squares: FloatArray  # (A,)


def _jackknife_terms(
    law: DrawLaw,
    classes: Classes,
    atoms: Atoms,
    nodes: Nodes,
    centred: FloatArray,
    unit: float,
) -> tuple[FloatArray, FloatArray]:
    """Return the integrand of E|sum_i p'_i c_i|**2, eq. (B75), and bounds on its rounding.

    All terms are of the order of the result. ValueError where pairs of atoms are too many.
    """
    if len(atoms.points.q) > _MOST_ATOMS:
        raise ValueError(
            "`logits` and `q` must have ratios exp(logits) / q that fall into few panels, or up to "
            f"{_MOST_ATOMS:,} classes, for the second moments of the jackknife, got "
            f"{len(atoms.points.q):,} atoms; take samplesoft.monte_carlo_bias, or a q with less "
            "spread."
        )
    draws = _make_draws(law, classes, atoms, centred)
    gram = draws.vectors @ draws.vectors.T
    theta = nodes.log_transform - np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    slowest = nodes.x + draws.log_w[0]
    kept = (law.num_draws - 2) * -theta + np.exp(np.minimum(slowest, LARGEST_EXPONENT)) < _GONE
    places = np.flatnonzero(kept)
    terms, sizes = np.zeros(len(theta)), np.zeros(len(theta))

    def work(part: IntArray) -> None:
        at_nodes = nodes.x[part], nodes.v[part], theta[part]
        terms[part], sizes[part] = _left_out_terms(law.num_draws, draws, gram, unit, *at_nodes)

    # every so many-th node to each: neighbours cost the same
    parts = [places[i :: 2 * num_threads()] for i in range(2 * num_threads())]
    thread_each(work, [part for part in parts if len(part)])
    exponents = np.minimum(law.num_draws * np.abs(theta), _MOST_EXPONENT)
    return terms, unit * (1.0 + exponents) * sizes


def _make_draws(law: DrawLaw, classes: Classes, atoms: Atoms, centred: FloatArray) -> _Draws:
    active = law.drawn > 0.0
    own = centred[law.label]
    log_r = classes.log_r[active]
    log_w = np.logaddexp(law.log_base, log_r)
    gamma = np.exp(law.log_base - log_w)[:, None] * own
    gamma += np.exp(log_r - log_w)[:, None] * centred[active]
    q = law.drawn[active]
    columns = np.concatenate([gamma, np.einsum("jd,jd->j", gamma, gamma)[:, None]], axis=1)
    columns *= q[:, None]
    if atoms.panel is not None and atoms.s is not None:
        columns = _on_panels(atoms.panel[active], atoms.s[active], columns)
    if law.weightless:
        columns = np.concatenate([columns, law.weightless * np.append(own, own @ own)[None]])
    rows = columns[atoms.order]
    log_w = np.logaddexp(law.log_base, atoms.points.log_r)
    return _Draws(log_w, atoms.points.q, rows[:, :-1], rows[:, -1])


def _on_panels(panel: IntArray, s: FloatArray, columns: FloatArray) -> FloatArray:
    """Return what `columns` (n, d) of classes at `s` in a `panel` weigh at the atoms, (A, d)."""
    to_nodes = panels.to_coefficients().T
    order = np.argsort(panel, kind="stable")
    ends = np.flatnonzero(np.diff(panel[order])) + 1
    parts = [
        (np.polynomial.chebyshev.chebvander(s[one], panels.DEGREE - 1) @ to_nodes).T @ columns[one]
        for one in np.split(order, ends)
    ]
    return np.concatenate(parts)


def _left_out_terms(
    m: int,
    draws: _Draws,
    gram: FloatArray,
    unit: float,
    x: FloatArray,
    v: FloatArray,
    log_theta: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return v times the integrand of (B75) at nodes log v, and its size, (K,), for m draws."""
    y = np.exp(np.minimum(x[:, None] + draws.log_w, LARGEST_EXPONENT))
    weight = np.exp(-y - log_theta[:, None])
    # E w = 1, and the mean of g is 0: from exp(-v) the tilted mean keeps its digits
    away = v[:, None] - y
    limit = np.exp(-v - log_theta)[:, None]
    near = np.abs(away) < 1.0
    change = np.where(near, limit * np.expm1(np.where(near, away, 0.0)), weight - limit)
    mean = (y * change) @ draws.vectors
    size = np.einsum("kd,kd->k", mean, mean)
    square = (y * (y * weight)) @ draws.squares
    chi, chi_2 = once(y), twice(y)
    less_mean = (y * chi) @ draws.vectors
    crossed = np.einsum("kd,kd->k", less_mean, mean)
    # what the same sums may be off by, over the unit
    norms = np.sqrt(np.einsum("ad,ad->a", draws.vectors, draws.vectors))
    mean_size = (y * np.abs(change)) @ norms
    size_above = mean_size * (np.sqrt(size) + unit * mean_size)
    crossed_above = np.sqrt(np.einsum("kd,kd->k", less_mean, less_mean)) * mean_size
    crossed_above += ((y * chi) @ norms) * (np.sqrt(size) + unit * mean_size)
    linear = y * (mean @ draws.vectors.T)
    linear_above = y * np.outer(mean_size, norms)
    chi, chi_2 = chi @ draws.q, chi_2 @ draws.q
    rest = m - 1.0
    now, one, two = (np.exp(k * log_theta) for k in (m, m - 1, m - 2))

    def add_up(
        size: FloatArray, crossed: FloatArray, linear: FloatArray, sign: float
    ) -> FloatArray:
        less = rest * ((m - 2.0) * size + square)
        total: FloatArray = m * (rest * size + square) * now
        of_one = sign * one * (less * chi + rest * crossed)
        total += 2.0 * rest * (now * (rest * size + square) + of_one)
        of_one = one * (less * chi_2 + sign * 2.0 * rest * crossed)
        total += rest**2 / m * (now * square + of_one)
        others = m - 2.0
        common = others * ((others - 1.0) * size + square)
        pairs = now * size + sign * 2.0 * one * chi * (others * size + square)
        factors = np.stack([two * common, two * others, two], axis=1)
        pairs += pair_sums(y, draws.q, linear, gram if sign < 0.0 else np.abs(gram), factors)
        total += rest**3 / m * pairs
        return total

    return add_up(size, crossed, linear, -1.0), add_up(size_above, crossed_above, linear_above, 1.0)


@njit
def once(x: FloatArray) -> FloatArray:
    """Return (1 - (1 + x) exp(-x)) / x for each x (K, A)."""
    out = np.empty_like(x)
    for k in range(x.shape[0]):
        for i in range(x.shape[1]):
            at = x[k, i]  # whose square may overflow
            out[k, i] = at * tangent(at) if at < 1.0 else (1.0 - (1.0 + at) * math.exp(-at)) / at
    return out


@njit
def twice(x: FloatArray) -> FloatArray:
    """Return (x - 2 + (x + 2) exp(-x)) / x for each x (K, A)."""
    out = np.empty_like(x)
    for k in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[k, i] = _twice(x[k, i])
    return out


@njit
def _twice(x: float) -> float:
    if x >= 1.0:
        return (x - 2.0 + (x + 2.0) * math.exp(-x)) / x
    total, term = 0.0, x * x / 6.0
    for k in range(3, 22):
        total += (k - 2) * term
        term *= x / (k + 1)
    return total * math.exp(-x)


@njit
def pair_sums(
    x: FloatArray, q: FloatArray, linear: FloatArray, gram: FloatArray, factors: FloatArray
) -> FloatArray:
    """Sum over ordered pairs of atoms the kernel k of (B77), at each node (K,).

    k is multiplied by ``f0 q_i q_j + f1 (l_i q_j + l_j q_i) + f2 x_i x_j g_ij``, with `factors`
    (K, 3), `linear` l (K, A), and `gram` g (A, A); `x` (K, A) = v w rises along the atoms.
    """
    num, count = x.shape
    out = np.zeros(num)
    decay, first, second = np.empty(count), np.empty(count), np.empty(count)
    for k in range(num):
        f0, f1, f2 = factors[k, 0], factors[k, 1], factors[k, 2]
        if f0 == 0.0 and f1 == 0.0 and f2 == 0.0:
            continue
        stop = count
        while stop > 0 and x[k, stop - 1] > _FAR:
            stop -= 1
        for i in range(stop):
            decay[i] = math.exp(-x[k, i])
            first[i] = _decay_ratio(x[k, i])
            second[i] = tangent(x[k, i])
        total = flat_q = flat_l = 0.0
        flat = 0
        while flat < stop and x[k, flat] < _FLAT:
            flat_q += x[k, flat] * q[flat]
            flat_l += x[k, flat] * linear[k, flat]
            flat += 1
        total += (f0 * flat_q + 2.0 * f1 * flat_l) * flat_q / 6.0
        for j in range(flat, stop if flat > 0 else 0):
            b = x[k, j]
            first_order = second[j] - 0.5 * decay[j]
            if b < _SERIES:
                first_order = b * decay[j] * _series(0.0, b)
            part = f0 * flat_q * q[j] + f1 * (flat_l * q[j] + flat_q * linear[k, j])
            total += 2.0 * first_order * part
        for i in range(flat, stop):
            a = x[k, i]
            if a > _GONE:
                break
            own, a_q, a_l = 0.0, f0 * q[i] + f1 * linear[k, i], f1 * q[i]
            for j in range(i, stop):
                b = x[k, j]
                if b < _SERIES:
                    value = a * b * decay[i] * decay[j] * _series(a, b)
                else:
                    away = b - a
                    if away < 1.0:
                        both = decay[i] * _decay_ratio(away)
                    else:
                        both = (decay[i] - decay[j]) / away
                    value = a * ((both - decay[j] * first[i]) / b - decay[j] * second[i])
                part = value * (a_q * q[j] + a_l * linear[k, j] + f2 * a * b * gram[i, j])
                own += part if j == i else 2.0 * part
            total += own
        out[k] = total
    return out


@njit
def _series(a: float, b: float) -> float:
    """Return the sum of h_k / (k + 3)!, h_k the sum of a**i b**(k - i), for 0 <= a <= b < 1."""
    h = power = 1.0
    factorial = 1.0 / 6.0
    total = factorial
    for k in range(1, _TERMS):
        power *= a
        h = b * h + power
        factorial /= k + 3.0
        term = h * factorial
        total += term
        if term < 1e-17:
            break
    return total
