"""The mean squared error of the jackknife's gradient, from draws with one or two left out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from samplesoft._jit import num_threads, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias import left_out
from samplesoft.bias.draw_law import Classes, DrawLaw
from samplesoft.bias.transform import Atoms, Nodes
from samplesoft.kernels import panels

_MOST_ATOMS = 4096  # pairs of them are gone through at each node
_GONE = 745.0


class _Draws(NamedTuple):
    """Atoms of one draw, in the order of w: ``w = a + r``, and gamma = (a c_t + r c) / w.

    `vectors` and `squares` are what the classes of an atom have of q gamma and q |gamma|**2.
    """

    log_w: FloatArray  # (A,)
    q: FloatArray  # (A,)
    vectors: FloatArray  # (A, d)
    squares: FloatArray  # (A,)


def jackknife_squared_error(
    law: DrawLaw, classes: Classes, atoms: Atoms, nodes: Nodes, centred: FloatArray
) -> float:
    """Return E|sum_i p'_i c_i|**2 for class vectors `centred` (n, d) of mean 0 under p, eq. (B75).

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

    def work(part: IntArray) -> float:
        own = nodes.x[part], nodes.v[part], theta[part]
        return float(nodes.dx[part] @ _terms(law.num_draws, draws, gram, *own))

    # every so many-th node to each: neighbours cost the same
    parts = [places[i :: 2 * num_threads()] for i in range(2 * num_threads())]
    return float(sum(thread_map(work, [part for part in parts if len(part)])))


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
    if atoms.slot is not None:
        columns = _on_panels(classes.log_distances[active], atoms, atoms.slot, columns)
    if law.weightless:
        columns = np.concatenate([columns, law.weightless * np.append(own, own @ own)[None]])
    rows = columns[atoms.order]
    log_w = np.logaddexp(law.log_base, atoms.points.log_r)
    return _Draws(log_w, atoms.points.q, rows[:, :-1], rows[:, -1])


def _on_panels(t: FloatArray, atoms: Atoms, slot: IntArray, columns: FloatArray) -> FloatArray:
    """Return what `columns` (n, d) of the classes at t (n,) weigh at the atoms, (A, d)."""
    panel = np.clip(np.floor(t / atoms.width).astype(np.int64) - atoms.first, 0, len(slot) - 1)
    s = np.clip(2.0 * (t / atoms.width - (atoms.first + panel)) - 1.0, -1.0, 1.0)
    to_nodes = panels.to_coefficients().T
    order = np.argsort(slot[panel], kind="stable")
    ends = np.flatnonzero(np.diff(slot[panel][order])) + 1
    parts = [
        (np.polynomial.chebyshev.chebvander(s[one], panels.DEGREE - 1) @ to_nodes).T @ columns[one]
        for one in np.split(order, ends)
    ]
    return np.concatenate(parts)


def _terms(
    m: int, draws: _Draws, gram: FloatArray, x: FloatArray, v: FloatArray, log_theta: FloatArray
) -> FloatArray:
    """Return v times the integrand of (B75) at nodes log v, all (K,), for m draws."""
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
    chi, chi_2 = left_out.once(y), left_out.twice(y)
    crossed = np.einsum("kd,kd->k", (y * chi) @ draws.vectors, mean)
    chi, chi_2 = chi @ draws.q, chi_2 @ draws.q
    rest = m - 1.0
    less = rest * ((m - 2.0) * size + square)
    now, one, two = (np.exp(k * log_theta) for k in (m, m - 1, m - 2))
    total: FloatArray = m * (rest * size + square) * now
    total += 2.0 * rest * (now * (rest * size + square) - one * (less * chi + rest * crossed))
    total += rest**2 / m * (now * square + one * (less * chi_2 - 2.0 * rest * crossed))
    others = m - 2.0
    common = others * ((others - 1.0) * size + square)
    pairs = now * size - 2.0 * one * chi * (others * size + square)
    factors = np.stack([two * common, two * others, two], axis=1)
    linear = y * (mean @ draws.vectors.T)
    pairs += left_out.pair_sums(y, draws.q, linear, gram, factors)
    total += rest**3 / m * pairs
    return total
