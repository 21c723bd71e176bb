"""Exact bias, variance and mean squared error of the gradient in the input embedding h.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. Three of them have one shape, an
integral over nodes of squares: for draws, for the jackknife, and for classes that are included
independently of each other. Each comes with the sizes of what it adds up, which say how large the
error is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from samplesoft.bias.node_weights import log_kept
from samplesoft.bias.transform import (
    STEP,
    Atoms,
    Nodes,
    Row,
    class_moments,
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
    scheme: str = "negatives",
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
    scheme : str
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
        moments = _moments(*example, inputs.num_sampled, inputs.scheme, rows_of_c)
        squared_bias, mse, error = (scale * x for x in moments)
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


def _moments(
    logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme, vectors: FloatArray
) -> tuple[float, float, float]:
    """Return the squared norm of the bias, the mean squared error, and an error, for tau = 1."""
    if scheme.independent:
        row = poisson.poisson_bias(logits, label, q)
        mse, rounding = _inclusion_square(logits, label, q, centre(vectors, row.probs))
    else:
        row = with_replacement_bias(logits, label, q, m, scheme)
        law = make_draw_law(logits, label, q, m, scheme)
        mse, rounding = _draws_square(law, centre(vectors, row.probs))
    squared_bias, error = _squared_bias(row, vectors)
    return squared_bias, max(mse, squared_bias), error + rounding


def _squared_bias(row: Row, vectors: FloatArray) -> tuple[float, float]:
    """Return the squared norm of the bias of the gradient, and its error, for tau = 1."""
    apart = vectors - vectors[np.argmax(row.probs)]  # a constant is free, for the biases sum to 0
    mean = row.bias @ apart
    squared = float(mean @ mean)
    reach = float(np.sqrt(_squares(apart).max()))
    off = (row.error + EPS * (len(row.bias) + 8) * float(np.abs(row.bias).sum())) * reach
    return squared, off * (2.0 * squared**0.5 + off)


# What the integrals have in common


def centre(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return class vectors (n, d) less their mean under the softmax."""
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def _reach(centred: FloatArray, probs: FloatArray) -> FloatArray:
    """Return how large the numbers are that the centred vectors (n, d) come from, (n,)."""
    norms = np.sqrt(_squares(centred))
    return norms + probs @ norms  # the mean that was taken off is rounded, too


def _squares(vectors: FloatArray) -> FloatArray:
    """Return the squared norms (k,) of vectors (k, d)."""
    squares: FloatArray = np.einsum("kd,kd->k", vectors, vectors)
    return squares


def _square_and_error(
    change: FloatArray, size: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the squared norms of `change` (K, d), and bounds on their errors, both (K,).

    Terms of the size `size` (K,) add up to `change`; `units` (K,) are their relative errors.
    """
    square, moved = _squares(change), units * size
    return square, moved * (2.0 * np.sqrt(square) + moved) + units * square


def _add_up_classes(
    class_terms: Callable[[slice], tuple[FloatArray, FloatArray, FloatArray]],
    num_nodes: int,
    centred: FloatArray,
    reach: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Add up what the classes give to a vector at each node, its size, and what to its square.

    Of the classes of a slice `class_terms` returns what their vectors c are multiplied by, the
    sizes of that, and what |c|**2 is multiplied by, all (K, classes). The sums are (K, d), (K,)
    and (K,).
    """
    squares = _squares(centred)
    change, sums = np.zeros((num_nodes, centred.shape[1])), np.zeros((2, num_nodes))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        rise, size, second = class_terms(part)
        return rise @ centred[part], np.stack([size @ reach[part], second @ squares[part]])

    parts = chunks(len(centred), max(1, _CHUNK_NUMBERS // num_nodes))
    for vectors, scalars in thread_map(work, parts):
        change += vectors
        sums += scalars
    return change, sums[0], sums[1]


def _integrate(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the sum of weighted terms (K,), and its error from theirs and of the quadrature."""
    total = float(weights @ terms)
    coarse = halving_change(weights * terms)  # half the step squares the relative error, (B25)
    quadrature = margin * coarse * min(coarse / max(abs(total), _LEAST), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature


# Independent draws


def _draws_square(law: DrawLaw, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, or 0 where that is the square of the bias."""
    scheme = law.scheme
    num_outcomes = np.count_nonzero(law.drawn) + (scheme.random_count and law.label_draw > 0.0)
    if num_outcomes <= 1 or (law.other_mass == 0.0 and not scheme.draws_label):
        return 0.0, 0.0
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    active = law.drawn > 0.0
    unit = rounding_unit(law.log_probs[active], np.log(law.drawn[active]))
    unit = max(unit, rounding_unit(law.base_logs))
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(law, classes, atoms, STEP)
        if scheme.jackknife:
            terms = _jackknife_terms(law, classes, atoms, nodes, centred, unit)
            return _integrate(nodes.dx, *terms, _NARROW)
        mse, error = _integrate(nodes.dx, *_terms(law, classes, nodes, centred, unit))
    if scheme.divides_by_kept:  # no draw may be left: then p' is 1 on the label
        none_left = law.label_draw**law.num_draws * float(_squares(centred[[law.label]])[0])
        return mse + none_left, error + 4.0 * EPS * none_left
    return mse, error


def _terms(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, unit: float
) -> tuple[FloatArray, FloatArray]:
    """Return the integrand of E|sum_i p'_i c_i|**2 for class vectors (n, d) of mean 0 under p.

    With A = B c_t + sum_k e_k psi_k c_k, it is (B28),
    v E[theta**K (K**2 |A|**2 + K (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))],
    where K is the number of draws that S is divided by: m, or for some schemes a random one. With
    it come bounds on its rounding.
    """
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_first, ratio = _count_moments(law, nodes.log_transform - v_base)
    # half of the weight of each node; with it, in the exponents, no factor overflows
    numerator = numerator_moments(law, classes, nodes, centred, 0.5 * log_first)
    change, scatter, size, scatter_size = numerator
    # an exponent is known to its relative rounding, and so is what it is the log of
    units = unit * (1.0 + np.minimum(np.abs(log_first), _MOST_EXPONENT))
    square, error = _square_and_error(change, size, units)
    return ratio * square + scatter, ratio * error + units * scatter_size


def numerator_moments(
    law: DrawLaw, classes: Classes, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return v A, what a draw adds to its square, and the sizes of the terms of both.

    A is that of `_terms`, (K, d). What a draw adds is the scatter, (K,),
    v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2). The first is times
    exp(`log_half`), (K,), the second times its square.
    """
    own, reach = centred[law.label], _reach(centred, law.probs)

    def class_terms(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        rise, second = _class_terms(law, classes, nodes, log_half[:, None], part)
        return rise, np.abs(rise), second

    # A, written as changes from psi_R of the label, if it is not drawn, and of the classes: the
    # centred sum is 0
    change, size, square = _add_up_classes(class_terms, len(nodes.x), centred, reach)
    of_label, label_size = _label_change(law, nodes, log_half)
    change += np.outer(of_label, own)
    size += label_size * reach[law.label]
    base = np.exp(nodes.x + law.log_base + log_half)
    drawn_part = change - np.outer(base, own)
    drawn_square = _squares(drawn_part)
    drawn_size = size + base * np.sqrt(own @ own)
    scatter_size = square + drawn_square + 2.0 * np.sqrt(drawn_square) * drawn_size
    return change, np.maximum(square - drawn_square, 0.0), size, scatter_size


def _count_moments(law: DrawLaw, log_theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log E[K theta**K], and E[K**2 theta**K] over it, both (K,)."""
    m = law.num_draws
    if not law.scheme.divides_by_kept:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m))
    log_mix = log_kept(law, log_theta)
    log_one = math.log(law.other_draw) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_one - log_mix)
    return math.log(m) + log_one + (m - 1) * log_mix, ratio


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


def _inclusion_square(
    logits: FloatArray, label: int, q: FloatArray, centred: FloatArray
) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B78), or 0 where all p' are the same."""
    law = poisson.make_inclusion_law(logits, label, q)
    if law.others == 0.0:
        return 0.0, 0.0
    reach, classes, known = _reach(centred, law.probs), law.classes, law.known
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        atoms = poisson.make_inclusion_atoms(classes)
        x, weights = poisson.make_nodes(classes, atoms, law.log_base, STEP)[:2]
        x, weights = x[weights > 0.0], weights[weights > 0.0]

        def class_terms(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
            return _inclusion_terms(classes, x, part)

        change, size, scatter = _add_up_classes(class_terms, len(x), centred, reach)
        u_base = np.exp(np.minimum(x + law.log_base, LARGEST_EXPONENT))
        of_base = u_base * poisson.base_contrast(x, classes)
        change += np.outer(of_base, law.shares @ centred[known])
        size += np.abs(of_base) * (law.shares @ reach[known])
        half = np.sqrt(weights)  # at either factor of the square, so that none overflows
        units = law.unit * (1.0 + np.abs(np.log(weights)))
        square, errors = _square_and_error(half[:, None] * change, half * size, units)
        scatter *= weights
        return _integrate(np.ones(len(x)), square + scatter, errors + units * scatter)


def _inclusion_terms(
    classes: poisson.Included, x: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), its size, and u**2 pi (1 - pi) (w / f)**2 exp(-u w)."""
    x, pi, pi_ref = x[:, None], classes.pi[part], classes.pi_ref
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
    law: DrawLaw, classes: Classes, atoms: Atoms, nodes: Nodes, centred: FloatArray, unit: float
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
    terms_and_sizes = np.zeros((2, len(theta)))

    def work(part: IntArray) -> None:
        at_nodes = nodes.x[part], nodes.v[part], theta[part]
        terms_and_sizes[:, part] = _left_out_terms(law.num_draws, draws, gram, unit, *at_nodes)

    # every so many-th node to each: neighbours cost the same
    parts = [places[i :: 2 * num_threads()] for i in range(2 * num_threads())]
    thread_each(work, [part for part in parts if len(part)])
    exponents = np.minimum(law.num_draws * np.abs(theta), _MOST_EXPONENT)
    return terms_and_sizes[0], unit * (1.0 + exponents) * terms_and_sizes[1]


def _make_draws(law: DrawLaw, classes: Classes, atoms: Atoms, centred: FloatArray) -> _Draws:
    active = law.drawn > 0.0
    own = centred[law.label]
    log_r = classes.log_r[active]
    log_w = np.logaddexp(law.log_base, log_r)
    gamma = np.exp(law.log_base - log_w)[:, None] * own
    gamma += np.exp(log_r - log_w)[:, None] * centred[active]
    columns = law.drawn[active][:, None] * np.column_stack([gamma, _squares(gamma)])
    if atoms.panel is not None and atoms.s is not None:
        columns = _on_panels(atoms.panel[active], atoms.s[active], columns)
    if law.weightless:
        columns = np.concatenate([columns, law.weightless * np.append(own, own @ own)[None]])
    rows = columns[atoms.order]
    log_w = np.logaddexp(law.log_base, atoms.points.log_r)
    return _Draws(log_w, atoms.points.q, rows[:, :-1], rows[:, -1])


def _on_panels(panel: IntArray, s: FloatArray, columns: FloatArray) -> FloatArray:
    """Return what `columns` (n, d) of classes at `s` in a `panel` weigh at the atoms, (A, d)."""
    shape = int(panel.max()) + 1, columns.shape[1]
    moments = class_moments(lambda part: (panel[part], s[part], columns[part].T), len(s), shape)
    # the transpose of interpolation: what a class weighs goes to the nodes of its panel
    on_atoms = np.moveaxis(moments @ panels.to_coefficients().T, 2, 1)
    return on_atoms.reshape(-1, columns.shape[1])


def _left_out_terms(
    m: int,
    draws: _Draws,
    gram: FloatArray,
    unit: float,
    x: FloatArray,
    v: FloatArray,
    log_theta: FloatArray,
) -> FloatArray:
    """Return v times the integrand of (B75) at nodes log v, and its size, (2, K), for m draws."""
    y = np.exp(np.minimum(x[:, None] + draws.log_w, LARGEST_EXPONENT))
    weight = np.exp(-y - log_theta[:, None])
    # E w = 1, and the mean of g is 0: from exp(-v) the tilted mean keeps its digits
    away = v[:, None] - y
    limit = np.exp(-v - log_theta)[:, None]
    near = np.abs(away) < 1.0
    change = np.where(near, limit * np.expm1(np.where(near, away, 0.0)), weight - limit)
    square = (y * (y * weight)) @ draws.squares
    once, twice = left_out(y)
    mean, less_mean = (y * change) @ draws.vectors, (y * once) @ draws.vectors
    # each sum, and what it may be off by, over the unit
    norms = np.sqrt(_squares(draws.vectors))
    mean_size = (y * np.abs(change)) @ norms
    moved = np.sqrt(_squares(mean)) + unit * mean_size
    size = np.stack([_squares(mean), mean_size * moved])
    crossed_size = np.sqrt(_squares(less_mean)) * mean_size + ((y * once) @ norms) * moved
    crossed = np.stack([np.einsum("kd,kd->k", less_mean, mean), crossed_size])
    linear = y * (mean @ draws.vectors.T), y * np.outer(mean_size, norms)
    chi, chi_2 = once @ draws.q, twice @ draws.q
    sign, rest, others = np.array([[-1.0], [1.0]]), m - 1.0, m - 2.0  # of terms, and of sizes
    now, one, two = (np.exp(k * log_theta) for k in (m, m - 1, m - 2))
    none_left_out, less = rest * size + square, others * size + square
    total = m * none_left_out * now
    total += 2.0 * rest * (now * none_left_out + sign * rest * one * (less * chi + crossed))
    total += rest**2 / m * (now * square + rest * one * (less * chi_2 + sign * 2.0 * crossed))
    pairs = now * size + sign * 2.0 * one * chi * less
    cases = zip(linear, (gram, np.abs(gram)), (others - 1.0) * size + square, strict=True)
    for of_pairs, (lines, products, both) in zip(pairs, cases, strict=True):
        factors = np.stack([two * others * both, two * others, two], axis=1)
        of_pairs += pair_sums(y, draws.q, lines, products, factors)
    out: FloatArray = total + rest**3 / m * pairs
    return out


@njit
def left_out(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (1 - (1 + x) exp(-x)) / x, and (x - 2 + (x + 2) exp(-x)) / x, for each x (K, A)."""
    once, twice = np.empty_like(x), np.empty_like(x)
    for i, at in np.ndenumerate(x):  # whose square may overflow
        decay = math.exp(-at)
        if at < 1.0:
            once[i], twice[i] = at * tangent(at), at * at * decay * _series(at, at)
        else:
            once[i] = (1.0 - (1.0 + at) * decay) / at
            twice[i] = (at - 2.0 + (at + 2.0) * decay) / at
    return once, twice


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
        f0, f1, f2 = factors[k]
        start, stop = np.searchsorted(x[k], _FLAT), np.searchsorted(x[k], _FAR, "right")
        own_q, own_l = q.copy(), linear[k].copy()
        if start > 0:  # k is of first order in x there, so that these atoms are as one
            shares = x[k, :start] / max(x[k, start - 1], _LEAST)
            start -= 1
            own_q[start] = (shares * q[: start + 1]).sum()
            own_l[start] = (shares * linear[k, : start + 1]).sum()
        for i in range(start, stop):
            decay[i] = math.exp(-x[k, i])
            first[i] = _decay_ratio(x[k, i])
            second[i] = tangent(x[k, i])
        for i in range(start, np.searchsorted(x[k], _GONE, "right")):
            a = x[k, i]
            total, a_q, a_l = 0.0, f0 * own_q[i] + f1 * own_l[i], f1 * own_q[i]
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
                part = value * (a_q * own_q[j] + a_l * own_l[j] + f2 * a * b * gram[i, j])
                total += part if j == i else 2.0 * part
            out[k] += total
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
