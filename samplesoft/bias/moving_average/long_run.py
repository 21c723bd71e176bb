"""The state of a moving average in the long run, at fixed logits: its Laplace transform.

In the long run U is the sum of gamma (1 - gamma)**i S_i over the visits i = 0, 1, ..., of which 0
is the newest. The S_i are independent, so that E exp(-y U) is a product of E exp(-u S) at
u = y gamma (1 - gamma)**i. In log u these are equidistant points: all factors are read from one
table. Section 25 of the README of `bias` derives the equations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import (
    RELATIVE_TOLERANCE,
    STEP,
    change_by_half_of_nodes,
    estimate_error,
    halved_steps,
    require_few_nodes,
)
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.integral import Integral, flows_of_classes
from samplesoft.bias.with_replacement.laplace import atom_integrals
from samplesoft.bias.with_replacement.node_weights import difference_of_exp, exponent_magnitudes
from samplesoft.bias.with_replacement.nodes import Nodes, evaluate_nodes
from samplesoft.bias.with_replacement.ratios import Ratios, make_ratios

_LEFT_MARGIN = 26.0  # the first node is so far, in nats, below the node at which 1 - exp(-y S) is 1
_LAST_EXPONENT = 100.0  # at the last node, E exp(-y U) is below exp(-100)
_MAX_NODES = 5_000_000  # of the table of factors; each takes about 200 bytes


class LongRun(NamedTuple):
    """Nodes of the integral over y of exp(-y U), and E exp(-y U) at each; arrays are (K,).

    A node is v = y gamma / m, the argument of the Laplace transform T of one draw of the newest S.
    """

    draws: Draws
    ratios: Ratios
    atoms: Atoms
    nodes: Nodes
    y: FloatArray
    log_transform: FloatArray  # log E exp(-y U), (B89)
    excess: FloatArray  # log E exp(-y U) + y, at least 0


def long_runs(draws: Draws, gamma: float) -> Iterator[LongRun]:
    """Yield the quadratures of one example for smaller and smaller steps.

    Raises ValueError if the table of factors would have too many nodes.
    """
    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    distance = -math.log1p(-gamma)  # of two visits, in log u
    for step in halved_steps(STEP):
        # a table of the factors at equal steps has the factors of earlier visits at equal lags; the
        # integrals need only every so many nodes of a fine table
        lag = math.ceil(distance / step)
        stride = max(1, math.floor(step * lag / distance))
        yield _make_long_run(draws, ratios, atoms, gamma, distance / lag, lag, stride)
        if lag == stride == 1:  # smaller steps give the same nodes
            return


def _make_long_run(
    draws: Draws, ratios: Ratios, atoms: Atoms, gamma: float, step: float, lag: int, stride: int
) -> LongRun:
    """Return the quadrature with a table of factors at equal steps of log u.

    `lag` is the number of steps from the factor of a visit to the factor of the visit before. Every
    `stride`-th node of the table is a node of the quadrature.
    """
    m = draws.num_draws
    log_rate = math.log(m) - math.log(gamma)  # of y / v
    first = -max(log_rate, float(atoms.points.log_r.max())) - _LEFT_MARGIN
    log_least = float(np.logaddexp(draws.log_base, ratios.log_r0))
    last = math.log(_LAST_EXPONENT) - log_rate - log_least
    require_few_nodes(last - first)
    num_nodes = (last - first) / step
    if not num_nodes < _MAX_NODES:
        raise ValueError(
            f"`gamma` must be larger for these logits, got {gamma:g}, for which the integral has "
            f"{num_nodes:.3g} nodes; take a larger gamma, for the bias falls in proportion to it, "
            "or clip the logits."
        )

    x: FloatArray = first + step * np.arange(math.ceil(num_nodes) + 1, dtype=np.float64)
    nodes = evaluate_nodes(draws, ratios, atoms, x, np.full(len(x), step))
    y = np.exp(np.minimum(x + log_rate, LARGEST_EXPONENT))

    # log E exp(-u S) of the newest visit, and its excess over -u E S; near u = 0 the logs of all
    # earlier visits sum to -(1 - gamma) y, and their excesses, which are quadratic, to a
    # geometric series
    v_base = np.exp(np.minimum(x + draws.log_base, LARGEST_EXPONENT))
    newest = m * (nodes.log_transform - v_base)
    newest_excess = m * nodes.excess
    decay = (1.0 - gamma) ** 2
    log_transform = _sum_over_visits(newest, -(1.0 - gamma) * y[:lag], lag)
    excess = _sum_over_visits(newest_excess, newest_excess[:lag] * decay / (1.0 - decay), lag)

    picked = slice(0, None, stride)
    nodes = Nodes(**{field.name: getattr(nodes, field.name)[picked] for field in fields(Nodes)})
    nodes.dx = stride * nodes.dx
    return LongRun(
        draws=draws,
        ratios=ratios,
        atoms=atoms,
        nodes=nodes,
        y=y[picked],
        log_transform=log_transform[picked],
        excess=excess[picked],
    )


def _sum_over_visits(newest: FloatArray, before: FloatArray, lag: int) -> FloatArray:
    """Return the sums (K,) over all visits, given the terms (K,) of the newest.

    The term of the visit before is `lag` nodes to the left. `before` (lag,) are the sums over all
    visits but the newest at the first nodes.
    """
    num_rows = -(-len(newest) // lag)
    terms = np.zeros((num_rows, lag))
    terms.ravel()[: len(newest)] = newest
    terms[0, : len(before)] += before
    sums: FloatArray = np.cumsum(terms, axis=0)
    return sums.ravel()[: len(newest)]


class BiasParts(NamedTuple):
    """The parts of the bias of one example."""

    relative_step: float
    turning_bias: FloatArray  # (n,)
    error: float  # estimated L1 error of the bias


def long_run_bias(draws: Draws, gamma: float) -> BiasParts:
    """Return the bias of the gradient of one example in the long run, in two parts, (B90)."""
    best: BiasParts | None = None
    with np.errstate(all="ignore"):
        for run in long_runs(draws, gamma):
            result, is_enough = _integrate(run, gamma)
            if best is None or result.error < best.error:
                best = result
            if is_enough:
                break
    assert best is not None
    return best


def _integrate(run: LongRun, gamma: float) -> tuple[BiasParts, bool]:
    """Return the bias by one quadrature, and whether its error is small enough to stop."""
    draws = run.draws
    ratios = run.ratios
    nodes = run.nodes
    points = run.atoms.points
    m = draws.num_draws

    # E[p'_j] / p_j minus its value at the reference ratio R, by class. The weight of a node is
    # m / gamma E exp(-y U) / (T exp(v r0)).
    coefficients = np.zeros((len(run.y), 6))
    log_weights = run.log_transform - nodes.log_transform - nodes.v_r0
    coefficients[:, 0] = nodes.dx * (m / gamma) * np.exp(log_weights)
    over_nodes = atom_integrals(nodes.x, coefficients, None, points, ratios.log_ref_above_r0)
    flows = flows_of_classes(run.atoms, over_nodes.full, draws, ratios)
    total = float(flows.sum())

    # E[p'_R] / p_R - 1 is the integral of psi_R E exp(-y U) - exp(-y). Near y = 0 the difference
    # cancels, but the logarithm of the quotient of the two is known: psi_R is
    # exp(v (mean - R) - excess).
    v_ref = np.exp(np.minimum(nodes.x + ratios.log_ref, LARGEST_EXPONENT))
    log_quotient = v_ref * ratios.mean_deviation - nodes.excess + run.excess
    log_value = run.log_transform + nodes.log_psi_ref
    terms = nodes.dx * run.y * difference_of_exp(log_value, -run.y, log_quotient)
    at_reference = float(terms.sum())

    relative_step = at_reference + total / draws.other_mass
    turning = flows - draws.probs * (total / draws.other_mass)
    turning[draws.totals.label] = 0.0

    # errors, as for sampled softmax: (B25)
    weight = np.abs(points.q_kappa)
    class_size = float((weight * over_nodes.size).sum())
    change = float((weight * np.abs(over_nodes.full - over_nodes.half)).sum())
    change = 2.0 * (change + draws.other_mass * change_by_half_of_nodes(terms))
    sizes = exponent_magnitudes(np.abs(terms), np.minimum(-log_value, run.y))
    size = 2.0 * (class_size + draws.other_mass * float(sizes.sum()))
    integral = Integral(draws, ratios, run.atoms)
    norm = float(np.abs(turning).sum()) + 2.0 * draws.other_mass * abs(relative_step)
    unit = integral.bias_unit
    error = estimate_error(change, size, norm, unit)
    is_enough = error <= (RELATIVE_TOLERANCE + 4.0 * unit) * norm
    error += 2.0 * integral.kappa_unit * class_size
    error = math.inf if math.isnan(error) else error
    return BiasParts(relative_step=relative_step, turning_bias=turning, error=error), is_enough
