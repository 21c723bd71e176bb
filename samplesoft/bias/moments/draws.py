"""Second moments for draws with replacement, and for independent inclusion: README, section 9."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias import poisson
from samplesoft.bias.inputs import Example
from samplesoft.bias.moments.squares import (
    LARGEST_LOG,
    add_up_classes,
    integrate,
    reach_of,
    square_and_error,
    squared_norms,
)
from samplesoft.bias.numerics.quadrature import STEP, rounding_at
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.node_weights import log_accepted_transform
from samplesoft.bias.with_replacement.nodes import Nodes, make_nodes
from samplesoft.bias.with_replacement.ratios import Ratios, make_ratios
from samplesoft.schemes import Scheme

_MAX_LOG_WEIGHT = 1e4  # exp(-1e4) is 0


def require_no_jackknife(scheme: Scheme) -> None:
    """Raise ValueError for a jackknife."""
    if scheme.jackknife:
        raise ValueError(
            f"`scheme` must be one without the jackknife, got {scheme.name!r}; the module "
            "figures/jackknife_moments.py of the repository has its moments."
        )


# Independent draws


class DrawNodes(NamedTuple):
    """The ratios, atoms and nodes of one draw, and the relative error of a term."""

    ratios: Ratios
    atoms: Atoms
    nodes: Nodes
    unit: float


def nodes_of_draws(draws: Draws) -> DrawNodes | None:
    """Evaluate the transform of one draw at the nodes; None if p' is the same in every outcome."""
    scheme = draws.scheme
    num_outcomes = np.count_nonzero(draws.drawn) + (scheme.random_count and draws.label_draw > 0.0)
    if num_outcomes <= 1 or (draws.other_mass == 0.0 and not scheme.draws_label):
        return None
    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(draws, ratios, atoms, STEP)
    return DrawNodes(ratios, atoms, nodes, term_unit(draws))


def term_unit(draws: Draws) -> float:
    """Return the relative rounding error of a term."""
    return rounding_at(max(draws.max_log_product, draws.max_base_log))


def draws_square(draws: Draws, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error; (0, 0) if p' is the same in every outcome."""
    at_nodes = nodes_of_draws(draws)
    if at_nodes is None:
        return 0.0, 0.0
    with np.errstate(under="ignore", over="ignore"):
        mse, error = integrate(at_nodes.nodes.dx, *_terms(draws, at_nodes, centred))
    if draws.scheme.divides_by_kept:  # with no accepted draw, p' is 1 on the label
        no_draw_term = draws.label_draw**draws.num_draws * float(
            squared_norms(centred[[draws.totals.label]])[0]
        )
        return mse + no_draw_term, error + 4.0 * EPS * no_draw_term
    return mse, error


def _terms(draws: Draws, at_nodes: DrawNodes, centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the integrand of E|sum_i p'_i c_i|**2 for class vectors (n, d) of mean 0 under p.

    With A = B c_t + sum_k e_k psi_k c_k, it is (B28),
    v E[theta**K (K**2 |A|**2 + K (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))],
    where K is the number of draws that S is divided by: m, or a random number. Also return bounds
    on the rounding of the integrand.
    """
    log_first, ratio = square_weights(draws, at_nodes.nodes)
    numerator = numerator_moments(draws, at_nodes.ratios, at_nodes.nodes, centred, 0.5 * log_first)
    return square_terms(at_nodes.unit, log_first, ratio, numerator)


def square_weights(draws: Draws, nodes: Nodes) -> tuple[FloatArray, FloatArray]:
    """Return log E[K theta**K] at the nodes, and E[K**2 theta**K] over it, both (K,)."""
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    return _count_moments(draws, nodes.log_transform - v_base)


def square_terms(
    unit: float,
    log_first: FloatArray,
    ratio: FloatArray,
    numerator: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Return the terms of the mean square at the nodes (K,), and bounds on their errors."""
    # the square root of the weight of each node is in A already, so that no factor overflows
    change, scatter, size, scatter_size = numerator
    # exp(x) has |x| times the relative rounding of x
    units = unit * (1.0 + np.minimum(np.abs(log_first), _MAX_LOG_WEIGHT))
    square, error = square_and_error(change, size, units)
    return ratio * square + scatter, ratio * error + units * scatter_size


def numerator_moments(
    draws: Draws, ratios: Ratios, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return v A, the scatter of a draw, and the sizes of the terms of both.

    A (K, d) is defined in `_terms`. The scatter (K,) is
    v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2). v A is multiplied by
    exp(`log_half`), (K,), and the scatter by its square.
    """
    label_vector, reach = centred[draws.totals.label], reach_of(centred, draws.probs)
    class_terms = partial(terms_of_classes, draws, ratios, nodes, log_half[:, None])
    sums = add_up_classes(class_terms, len(nodes.x), centred, reach)
    return with_label(draws, nodes, log_half, label_vector, float(reach[draws.totals.label]), sums)


def with_label(
    draws: Draws,
    nodes: Nodes,
    log_half: FloatArray,
    label_vector: FloatArray,
    label_reach: float,
    sums: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Add the label's terms to the `sums` over classes; return what `numerator_moments` returns."""
    # A = sum_k e_k psi_k c_k cancels, because sum_k e_k c_k = 0: replace psi_k by psi_k - psi_R,
    # also for the label
    change, size, square = sums
    of_label, label_size = _label_change(draws, nodes, log_half)
    change = change + np.outer(of_label, label_vector)
    size = size + label_size * label_reach
    base = np.exp(nodes.x + draws.log_base + log_half)
    drawn_part = change - np.outer(base, label_vector)
    drawn_square = squared_norms(drawn_part)
    drawn_size = size + base * np.sqrt(label_vector @ label_vector)
    scatter_size = square + drawn_square + 2.0 * np.sqrt(drawn_square) * drawn_size
    return change, np.maximum(square - drawn_square, 0.0), size, scatter_size


def _count_moments(draws: Draws, log_theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log E[K theta**K], and E[K**2 theta**K] over it, both (K,)."""
    m = draws.num_draws
    if not draws.scheme.divides_by_kept:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m))
    log_mix = log_accepted_transform(draws, log_theta)
    log_one = math.log(draws.other_draw) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_one - log_mix)
    return math.log(m) + log_one + (m - 1) * log_mix, ratio


def _label_change(
    draws: Draws, nodes: Nodes, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the coefficient of c_t in v A without draws, times exp(log_half), and its term size.

    It is v (B - e_t psi_R), or v B if the label is drawn. For B = e_t the difference cancels, and
    is taken from `nodes.above`.
    """
    base = np.exp(nodes.x + draws.log_base + log_half)
    if draws.scheme.draws_label:
        return base, base
    log_label_mass = nodes.x + draws.log_label + log_half
    with np.errstate(divide="ignore"):
        log_above = np.log(np.abs(nodes.above)) - nodes.log_transform_least
    above = np.exp(log_label_mass + log_above)
    change: FloatArray = np.sign(nodes.above) * above
    if draws.scheme.corrects_label:
        return change + base - np.exp(log_label_mass), above + base + np.exp(log_label_mass)
    return change, above


def terms_of_classes(
    draws: Draws, ratios: Ratios, nodes: Nodes, log_half: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return v e (psi - psi_R), its size, and v**2 e r psi, all (K, classes of `part`).

    The first is multiplied by exp(`log_half`), (K, 1), the last by its square. psi - psi_R loses
    digits where r is near R: take psi_R expm1(-v (r - R)) for v (r - R) > -1, where r - R is
    kappa (r + R), and the difference beyond.
    """
    x = nodes.x[:, None]
    q = draws.drawn[part]
    kappa = ratios.contrast[part]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_r = np.where(q > 0.0, ratios.log_r[part], -np.inf)
        log_mass = np.where(q > 0.0, np.log(q), 0.0) + x + log_r + log_half  # of v e
        log_away = np.logaddexp(log_r, ratios.log_ref) + np.log(np.abs(kappa))
    y = np.exp(np.minimum(x + log_r, LARGEST_EXPONENT))
    away = np.sign(kappa) * np.exp(np.minimum(x + log_away, LARGEST_EXPONENT))
    log_psi = -y - nodes.log_transform[:, None]
    psi_ref = np.exp(nodes.log_psi_ref[:, None] + log_mass)
    far = np.exp(log_psi + log_mass) - psi_ref
    rise = np.where(away > -1.0, psi_ref * np.expm1(-np.maximum(away, -1.0)), far)
    return rise, np.abs(rise), np.exp(log_mass + x + log_r + log_psi + log_half)


# --- independent inclusion ---------------------------------------------------------------------


def inclusion_square(example: Example, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B78); (0, 0) if p' is not random."""
    draws = poisson.make_inclusion_draws(*example)
    if draws.random_mass == 0.0:
        return 0.0, 0.0
    reach, classes, always_in = reach_of(centred, draws.probs), draws.classes, draws.always_in
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        atoms = poisson.make_inclusion_atoms(classes)
        x, weights = poisson.make_nodes(classes, atoms, draws.log_base, STEP)[:2]
        x, weights = x[weights > 0.0], weights[weights > 0.0]
        class_terms = partial(_inclusion_terms, classes, x)
        change, size, scatter = add_up_classes(class_terms, len(x), centred, reach)
        u_base = np.exp(np.minimum(x + draws.log_base, LARGEST_EXPONENT))
        of_base = u_base * poisson.base_contrast(x, classes)
        change += np.outer(of_base, draws.fractions @ centred[always_in])
        size += np.abs(of_base) * (draws.fractions @ reach[always_in])
        half = np.sqrt(weights)  # in both factors of the square, so that none overflows
        units = draws.unit * (1.0 + np.abs(np.log(weights)))
        square, errors = square_and_error(half[:, None] * change, half * size, units)
        scatter *= weights
        return integrate(np.ones(len(x)), square + scatter, errors + units * scatter)


def _inclusion_terms(
    classes: poisson.Included, x: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), its size, and u**2 pi (1 - pi) (w / f)**2 exp(-u w).

    exp(-y) - exp(-y_R) loses digits where w is near W: take exp(-y_R) expm1(-(y - y_R)) for
    |y - y_R| < 1, where y - y_R is kappa (y + y_R), and the difference beyond.
    """
    x, pi, pi_ref = x[:, None], classes.pi[part], classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w[part], LARGEST_LOG))
    y_ref = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_LOG))
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
