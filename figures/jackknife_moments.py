"""Exact bias, variance and mean squared error of the jackknife's gradient in the embedding h.

Section 9 of ``samplesoft/bias/README.md`` derives the integral, which needs pairs of draws: with
one or two left out. Top to bottom: the public function; the integrand; and the sums over pairs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import njit, num_threads, thread_for_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.moments import GradientMoments
from samplesoft.bias.moments.draws import make_draw_quadrature
from samplesoft.bias.moments.gradient import moments_with_square
from samplesoft.bias.moments.squares import integral_with_error, squared_norms
from samplesoft.bias.with_replacement.atoms import Atoms, class_moments
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.laplace import _decay_ratio, tangent
from samplesoft.bias.with_replacement.nodes import Nodes
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels import panels
from samplesoft.schemes import select

_MOST_EXPONENT = 1e4  # what falls by more is 0
_LEAST = 1e-290  # of v w: where it is 0 there is nothing to share
_NARROW = 32.0  # its terms are analytic in a narrower strip: room for a larger quadrature error
_MOST_ATOMS = 4096  # pairs of them are gone through at each node
_GONE = 745.0
_SERIES = 1.0  # up to here the divided difference is summed as a series of positive terms
_TERMS = 20
_FLAT = 1e-17  # below it k is its first order in x to the last bit
_FAR = 1e20  # above it k is nothing beside terms with one draw left out, times x too


def jackknife_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    scheme: str = "jackknife",
    h: ArrayLike | None = None,
    certain: Any = None,
) -> GradientMoments:
    """Compute exactly how far one gradient in h of the jackknife is from the full one.

    Parameters
    ----------
    logits, labels, q, num_sampled, class_embeddings, tau, h, certain
        As for `samplesoft.exact_gradient_moments`; at least 2 draws.
    scheme : {"jackknife", "jackknife_masked"}
        Whether draws exclude the label, or have no weight where they are it.

    Returns
    -------
    GradientMoments
        Squared bias, variance, mean squared error, and their numerical error, each a float or (B,).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the ratios ``exp(logits) / q`` of more than 4,096 classes
        spread over hundreds of powers of e.

    Examples
    --------
    >>> moments = jackknife_moments(
    ...     [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    ... )
    >>> round(moments.variance, 4), moments.squared_bias < 1e-4
    (0.0281, True)
    """
    as_choice("scheme", scheme, select("jackknife", "jackknife_masked"))
    inputs = check_inputs(
        logits, labels, q, num_sampled, scheme, h, certain, allows_always_included=True
    )
    return moments_with_square(inputs, class_embeddings, tau, _square)


def _square(law: Draws, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, or 0 where that is the square of the bias."""
    at = make_draw_quadrature(law)
    if at is None:
        return 0.0, 0.0
    with np.errstate(under="ignore", over="ignore"):
        terms = _jackknife_terms(law, at.ratios, at.atoms, at.nodes, centred, at.term_rounding)
        return integral_with_error(at.nodes.dx, *terms, _NARROW)


class _Draws(NamedTuple):
    """Atoms of one draw, in the order of w: ``w = a + r``, and gamma = (a c_t + r c) / w.

    `vectors` and `squares` are what the classes of an atom have of q gamma and q |gamma|**2.
    """

    log_w: FloatArray  # (A,)
    q: FloatArray  # (A,)
    vectors: FloatArray  # (A, d)
    squares: FloatArray  # (A,)


def _jackknife_terms(
    law: Draws, ratios: Ratios, atoms: Atoms, nodes: Nodes, centred: FloatArray, unit: float
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
    draws = _make_draws(law, ratios, atoms, centred)
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
    thread_for_each(work, [part for part in parts if len(part)])
    exponents = np.minimum(law.num_draws * np.abs(theta), _MOST_EXPONENT)
    return terms_and_sizes[0], unit * (1.0 + exponents) * terms_and_sizes[1]


def _make_draws(law: Draws, ratios: Ratios, atoms: Atoms, centred: FloatArray) -> _Draws:
    active = law.draw_probs > 0.0
    own = centred[law.label]
    log_r = ratios.log_r[active]
    log_w = np.logaddexp(law.log_base, log_r)
    gamma = np.exp(law.log_base - log_w)[:, None] * own
    gamma += np.exp(log_r - log_w)[:, None] * centred[active]
    columns = law.draw_probs[active][:, None] * np.column_stack([gamma, squared_norms(gamma)])
    if atoms.panel_ids is not None:
        panel, s = atoms.panel_positions(ratios)
        columns = _on_panels(panel[active], s[active], columns)
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
    on_atoms = np.moveaxis(moments @ panels.coefficient_matrix().T, 2, 1)
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
    norms = np.sqrt(squared_norms(draws.vectors))
    mean_size = (y * np.abs(change)) @ norms
    moved = np.sqrt(squared_norms(mean)) + unit * mean_size
    size = np.stack([squared_norms(mean), mean_size * moved])
    crossed_size = np.sqrt(squared_norms(less_mean)) * mean_size + ((y * once) @ norms) * moved
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
