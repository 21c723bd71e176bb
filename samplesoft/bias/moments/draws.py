"""Second moments for draws with replacement, and for independent inclusion of the classes.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals, and defines the symbols: theta,
psi, e, r and B.
"""

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
    integral_with_error,
    rounding_scales,
    squared_norms,
    squared_norms_with_errors,
    sum_over_classes,
)
from samplesoft.bias.numerics.quadrature import STEP, relative_term_error
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.node_weights import log_accepted_transform
from samplesoft.bias.with_replacement.nodes import Nodes, make_nodes
from samplesoft.bias.with_replacement.ratios import Ratios, make_ratios
from samplesoft.schemes import Scheme

_MAX_LOG_WEIGHT = 1e4  # largest |log weight| in an error bound; beyond it, the weight is 0


def require_no_jackknife(scheme: Scheme) -> None:
    """Raise ValueError for a jackknife."""
    if scheme.jackknife:
        raise ValueError(
            f"`scheme` must be one without the jackknife, got {scheme.name!r}; the module "
            "figures/jackknife_moments.py of the repository has its moments."
        )


# --- draws with replacement --------------------------------------------------------------------


class DrawQuadrature(NamedTuple):
    """Ratios of the classes, atoms that represent groups of classes, and nodes, for one example."""

    ratios: Ratios
    atoms: Atoms
    nodes: Nodes
    term_rounding: float  # relative rounding error of a term of the integrals


def make_draw_quadrature(draws: Draws) -> DrawQuadrature | None:
    """Return the quadrature of one example, or None if p' is the same in every outcome."""
    scheme = draws.scheme
    num_outcomes = np.count_nonzero(draws.draw_probs)
    num_outcomes += scheme.has_random_count and draws.label_draw_prob > 0.0
    if num_outcomes <= 1 or (draws.other_mass == 0.0 and not scheme.draws_label):
        return None

    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(draws, ratios, atoms, STEP)
    return DrawQuadrature(ratios, atoms, nodes, term_rounding(draws))


def term_rounding(draws: Draws) -> float:
    """Return the relative rounding error of a term of the integrals."""
    return relative_term_error(max(draws.max_log_product, draws.max_abs_log_in_base))


def gradient_mse_of_draws(draws: Draws, centred: FloatArray) -> tuple[float, float]:
    """Return ``E|sum_i p'_i c_i|**2`` for vectors c = `centred` (n, d), and its error.

    The vectors have the mean 0 under the softmax. If p' is the same in every outcome, the result is
    (0, 0).
    """
    quadrature = make_draw_quadrature(draws)
    if quadrature is None:
        return 0.0, 0.0

    with np.errstate(under="ignore", over="ignore"):
        terms, errors = _integrand(draws, quadrature, centred)
        mse, error = integral_with_error(quadrature.nodes.dx, terms, errors)

    if not draws.scheme.divides_by_accepted:
        return mse, error

    # if no draw is accepted, p' is 1 on the label
    label_square = float(squared_norms(centred[[draws.totals.label]])[0])
    no_draw_term = draws.label_draw_prob**draws.num_draws * label_square
    return mse + no_draw_term, error + 4.0 * EPS * no_draw_term


def _integrand(
    draws: Draws, quadrature: DrawQuadrature, centred: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the integrand (K,) of ``E|sum_i p'_i c_i|**2`` at the nodes, and error bounds (K,).

    `centred` (n, d) are class vectors c of mean 0 under the softmax. With
    ``A = B c_t + sum_k e_k psi_k c_k``, the integrand is, eq. (B28),
    ``v E[theta**N (N**2 |A|**2 + N (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))]``,
    where N is the number of draws that S is divided by: m, or the random number of accepted draws.
    The bounds are for the rounding of the integrand.
    """
    log_first, ratio = count_moments_at_nodes(draws, quadrature.nodes)
    numerator = numerator_moments(
        draws, quadrature.ratios, quadrature.nodes, centred, 0.5 * log_first
    )
    return mean_square_terms(quadrature.term_rounding, log_first, ratio, numerator)


def count_moments_at_nodes(draws: Draws, nodes: Nodes) -> tuple[FloatArray, FloatArray]:
    """Return the log of ``E[N theta**N]``, and ``E[N**2 theta**N] / E[N theta**N]``, at the nodes.

    N is the number of draws that S is divided by. Both arrays are (K,) at K nodes.
    """
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    return _count_moments(draws, nodes.log_transform - v_base)


def mean_square_terms(
    unit: float,
    log_first: FloatArray,
    ratio: FloatArray,
    numerator: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Return the integrand (K,) of the mean square at the nodes, and error bounds (K,).

    `unit` is the relative rounding error of a term. `log_first` and `ratio` are the results of
    `count_moments_at_nodes`, and `numerator` has the four arrays of `numerator_moments`.
    """
    # `change` is v A times the square root of the weight of each node, so that no factor overflows
    change, scatter, magnitude, scatter_magnitude = numerator

    # a relative error of x is multiplied by |x| in exp(x)
    units = unit * (1.0 + np.minimum(np.abs(log_first), _MAX_LOG_WEIGHT))
    square, error = squared_norms_with_errors(change, magnitude, units)
    return ratio * square + scatter, ratio * error + units * scatter_magnitude


def numerator_moments(
    draws: Draws, ratios: Ratios, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the vectors v A (K, d) of (B28) and the scatter (K,) at K nodes, and their magnitudes.

    A is defined in `_integrand`. The scatter is
    ``v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2)``. v A is multiplied by
    exp(`log_half`), (K,), and the scatter by the square of this factor. The magnitudes are two
    arrays (K,): the sums of the magnitudes of the terms of v A, and of the terms of the scatter.
    """
    label_vector = centred[draws.totals.label]
    scales = rounding_scales(centred, draws.probs)
    class_terms = partial(class_coefficients, draws, ratios, nodes, log_half[:, None])
    sums = sum_over_classes(class_terms, len(nodes.x), centred, scales)
    return add_label_terms(
        draws, nodes, log_half, label_vector, float(scales[draws.totals.label]), sums
    )


def add_label_terms(
    draws: Draws,
    nodes: Nodes,
    log_half: FloatArray,
    label_vector: FloatArray,
    label_scale: float,
    sums: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Add the label's terms to sums over classes, and return the results of `numerator_moments`.

    `sums` are the three arrays of `sum_over_classes`. `label_vector` (d,) is the label's centred
    vector, and `label_scale` the scale of its rounding error.
    """
    # sum_k e_k psi_k c_k cancels, because sum_k e_k c_k = 0. So psi_k is replaced by psi_k - psi_R
    # for all classes and the label, which does not change the sum.
    change, magnitude, square = sums
    label_coefficients, label_magnitude = _label_coefficient(draws, nodes, log_half)
    change = change + np.outer(label_coefficients, label_vector)
    magnitude = magnitude + label_magnitude * label_scale

    base = np.exp(nodes.x + draws.log_base + log_half)
    drawn_vectors = change - np.outer(base, label_vector)
    drawn_square = squared_norms(drawn_vectors)
    drawn_magnitude = magnitude + base * np.sqrt(label_vector @ label_vector)

    scatter_magnitude = square + drawn_square + 2.0 * np.sqrt(drawn_square) * drawn_magnitude
    return change, np.maximum(square - drawn_square, 0.0), magnitude, scatter_magnitude


def _count_moments(draws: Draws, log_theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the results of `count_moments_at_nodes`, given log theta at the nodes (K,)."""
    m = draws.num_draws
    if not draws.scheme.divides_by_accepted:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m))

    log_mix = log_accepted_transform(draws, log_theta)
    log_accepted = math.log(draws.other_draw_prob) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_accepted - log_mix)
    return math.log(m) + log_accepted + (m - 1) * log_mix, ratio


def _label_coefficient(
    draws: Draws, nodes: Nodes, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the coefficient (K,) of the label's vector in v A, and its magnitude (K,).

    The coefficient is exp(`log_half`) times v (B - e_t psi_R). If the label can be drawn, it is
    exp(`log_half`) times v B, and draws of the label are counted elsewhere. For B = e_t the
    difference cancels. So it is computed from `nodes.above`, in which 1 - psi_R has all its digits.
    The magnitude is the sum of the magnitudes of the terms.
    """
    base = np.exp(nodes.x + draws.log_base + log_half)
    if draws.scheme.draws_label:
        return base, base

    log_label_mass = nodes.x + draws.log_label + log_half
    with np.errstate(divide="ignore"):
        log_magnitude = np.log(np.abs(nodes.above)) - nodes.log_scaled_transform

    magnitude = np.exp(log_label_mass + log_magnitude)
    change: FloatArray = np.sign(nodes.above) * magnitude
    if draws.scheme.corrects_label:
        return change + base - np.exp(log_label_mass), magnitude + base + np.exp(log_label_mass)
    return change, magnitude


def class_coefficients(
    draws: Draws, ratios: Ratios, nodes: Nodes, log_half: FloatArray, chunk: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the coefficients of the classes of a slice `chunk` in v A and in the scatter.

    They are v e (psi - psi_R), its magnitude, and v**2 e r psi, at K nodes for the k classes of the
    slice, three arrays (K, k). The first two are multiplied by exp(`log_half`), (K, 1), and the
    third by the square of this factor.

    psi - psi_R loses digits if r is near R. So for v (r - R) > -1 it is psi_R expm1(-v (r - R)),
    where r - R is computed as kappa (r + R). Otherwise it is computed as the difference.
    """
    x = nodes.x[:, None]
    q = draws.draw_probs[chunk]
    kappa = ratios.kappa[chunk]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_r = np.where(q > 0.0, ratios.log_r[chunk], -np.inf)
        log_mass = np.where(q > 0.0, np.log(q), 0.0) + x + log_r + log_half  # log of v e
        log_exponent = np.logaddexp(log_r, ratios.log_ref) + np.log(np.abs(kappa))

    y = np.exp(np.minimum(x + log_r, LARGEST_EXPONENT))
    exponent = np.sign(kappa) * np.exp(np.minimum(x + log_exponent, LARGEST_EXPONENT))
    log_psi = -y - nodes.log_transform[:, None]

    psi_ref = np.exp(nodes.log_psi_ref[:, None] + log_mass)
    difference = np.exp(log_psi + log_mass) - psi_ref
    differences = np.where(
        exponent > -1.0, psi_ref * np.expm1(-np.maximum(exponent, -1.0)), difference
    )
    return differences, np.abs(differences), np.exp(log_mass + x + log_r + log_psi + log_half)


# --- independent inclusion ---------------------------------------------------------------------


def gradient_mse_of_inclusions(example: Example, centred: FloatArray) -> tuple[float, float]:
    """Return ``E|sum_i p'_i c_i|**2`` and its error, eq. (B78), if inclusions are independent.

    `centred` (n, d) are class vectors of mean 0 under the softmax. If p' is not random, the result
    is (0, 0).
    """
    draws = poisson.make_inclusion_draws(*example)
    if draws.random_mass == 0.0:
        return 0.0, 0.0

    scales = rounding_scales(centred, draws.probs)
    classes = draws.classes
    always_in = draws.always_in
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        atoms = poisson.make_inclusion_atoms(classes)
        x, weights = poisson.make_inclusion_nodes(classes, atoms, draws.log_base, STEP)[:2]

        x = x[weights > 0.0]
        weights = weights[weights > 0.0]
        class_terms = partial(_inclusion_coefficients, classes, x)
        change, magnitude, scatter = sum_over_classes(class_terms, len(x), centred, scales)

        u_base = np.exp(np.minimum(x + draws.log_base, LARGEST_EXPONENT))
        base_coefficients = u_base * poisson.base_contrast(x, classes)
        change += np.outer(base_coefficients, draws.fractions @ centred[always_in])
        magnitude += np.abs(base_coefficients) * (draws.fractions @ scales[always_in])

        # multiply the vectors by the roots of the weights, so that their squares are finite
        root_weights = np.sqrt(weights)
        units = draws.term_rounding * (1.0 + np.abs(np.log(weights)))
        square, errors = squared_norms_with_errors(
            root_weights[:, None] * change, root_weights * magnitude, units
        )
        scatter *= weights

        return integral_with_error(np.ones(len(x)), square + scatter, errors + units * scatter)


def _inclusion_coefficients(
    classes: poisson.IncludedClasses, x: FloatArray, chunk: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the coefficients in (B78) of the classes of a slice `chunk`.

    They are u e (psi - psi_R), eq. (B27), its magnitude, and u**2 pi (1 - pi) (w / f)**2 exp(-u w),
    three arrays (K, k) for the k classes of the slice, at K nodes `x` = log u.

    With y = u w, exp(-y) - exp(-y_R) loses digits if w is near W. So for |y - y_R| < 1 it is
    exp(-y_R) expm1(-(y - y_R)), where y - y_R is computed as kappa (y + y_R). Otherwise it is
    computed as the difference.
    """
    x = x[:, None]
    pi = classes.pi[chunk]
    pi_ref = classes.pi_ref

    y = np.exp(np.minimum(x + classes.log_w[chunk], LARGEST_LOG))
    y_ref = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_LOG))
    y_difference = classes.kappa[chunk] * (y + y_ref)

    decay = np.exp(-y)
    decay_ref = np.exp(-y_ref)
    is_near = np.abs(y_difference) < 1.0
    decay_difference = np.where(
        is_near, decay_ref * np.expm1(-np.where(is_near, y_difference, 0.0)), decay - decay_ref
    )

    factor = (1.0 - pi) + pi * decay
    factor_ref = (1.0 - pi_ref) + pi_ref * decay_ref
    decay_term = (1.0 - pi) * decay_difference
    pi_term = (pi_ref - pi) * np.expm1(-y_ref) * decay

    difference = (decay_term + pi_term) / (factor * factor_ref)
    magnitude = pi * y * ((np.abs(decay_term) + np.abs(pi_term)) / (factor * factor_ref))
    scatter_coefficients = pi * (1.0 - pi) * y * (y * decay / factor) / factor
    return pi * y * difference, magnitude, scatter_coefficients
