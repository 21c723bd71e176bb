"""Second moments where classes are included independently of each other, eq. (B78)."""

from __future__ import annotations

from functools import partial

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias import poisson
from samplesoft.bias.inputs import (
    Example,
)
from samplesoft.bias.moments.squares import (
    LARGEST_LOG,
    add_up_classes,
    integrate,
    reach_of,
    square_and_error,
)
from samplesoft.bias.numerics.quadrature import (
    STEP,
)

# Independent inclusion


def inclusion_square(example: Example, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B78), or 0 where all p' are the same."""
    draws = poisson.make_inclusion_draws(*example)
    if draws.others == 0.0:
        return 0.0, 0.0
    reach, classes, known = reach_of(centred, draws.probs), draws.classes, draws.known
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        atoms = poisson.make_inclusion_atoms(classes)
        x, weights = poisson.make_nodes(classes, atoms, draws.log_base, STEP)[:2]
        x, weights = x[weights > 0.0], weights[weights > 0.0]
        class_terms = partial(_inclusion_terms, classes, x)
        change, size, scatter = add_up_classes(class_terms, len(x), centred, reach)
        u_base = np.exp(np.minimum(x + draws.log_base, LARGEST_EXPONENT))
        of_base = u_base * poisson.base_contrast(x, classes)
        change += np.outer(of_base, draws.shares @ centred[known])
        size += np.abs(of_base) * (draws.shares @ reach[known])
        half = np.sqrt(weights)  # at either factor of the square, so that none overflows
        units = draws.unit * (1.0 + np.abs(np.log(weights)))
        square, errors = square_and_error(half[:, None] * change, half * size, units)
        scatter *= weights
        return integrate(np.ones(len(x)), square + scatter, errors + units * scatter)


def _inclusion_terms(
    classes: poisson.Included, x: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), its size, and u**2 pi (1 - pi) (w / f)**2 exp(-u w)."""
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
