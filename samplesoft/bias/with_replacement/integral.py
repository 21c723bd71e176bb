"""The integral of one example with replacement, and the bias of any class from it.

`with_replacement_bias` is the whole in memory. `Integral` takes the results of the sums over
classes, in memory or in chunks; it yields flows, and `bias_of_classes` makes the bias of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import (
    RELATIVE_TOLERANCE,
    STEP,
    ExampleBias,
    better_of,
    estimate_error,
    halved_steps,
    halving_change,
    rounding_at,
    sum_error,
)
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.deviations import DEVIATION_ERROR, deviation
from samplesoft.bias.with_replacement.draws import CLASS_CHUNK, Draws, make_draws
from samplesoft.bias.with_replacement.jackknife import jackknife_weights
from samplesoft.bias.with_replacement.laplace import atom_integrals
from samplesoft.bias.with_replacement.node_weights import (
    NodeWeights,
    assemble,
    assemble_loss,
    make_node_weights,
    none_kept_error,
)
from samplesoft.bias.with_replacement.nodes import Nodes, TiltedNodes, make_nodes
from samplesoft.bias.with_replacement.ratios import DIGITS_OF_KAPPA, Ratios, make_ratios
from samplesoft.kernels import panels
from samplesoft.schemes import Scheme

_SURE = 1e-10  # L1 norm of errors, relative to that of a bias, above which one is told
_LOST = 1e-290  # near the least numbers of float64, all have few digits


def with_replacement_bias(
    logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> ExampleBias:
    """Return the exact bias of one example; the step is halved until the error is small."""
    draws = make_draws(logits, label, q, m, scheme)
    if (row := trivial_bias(draws)) is not None:
        return row
    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    drawn, drawn_ratios, pairs = draws, ratios, None
    if scheme.label_is_a_draw:
        drawn, drawn_ratios = pair_with_label(draws, ratios)
        pairs = Pairs(
            draws=drawn,
            ratios=drawn_ratios,
            atoms=unscale_pairs(draws, make_atoms(drawn, drawn_ratios)),
        )
    integral = Integral(draws, ratios, atoms, pairs)
    best = None
    with np.errstate(all="ignore"):  # a result that is not finite has no error that is, and goes
        for flows in integral.attempts():
            bias = bias_of_classes(flows, drawn, drawn_ratios)
            row, is_enough = integral.estimate(flows, bias, float(np.abs(bias).sum()))
            best = better_of(best, row)
            if is_enough:
                break
    assert best is not None
    return best


def loses_digits(error: Any, size: Any) -> Any:
    """Tell whether biases of L1 norms `size` are not sure of their digits."""
    return np.logical_not(error <= np.maximum(_SURE * size, _LOST))  # NaN too


def trivial_bias(draws: Draws) -> ExampleBias | None:
    """Return the exact bias where all outcomes are the same, else None."""
    if draws.scheme.divides_by_kept and not draws.draws_any:  # the label alone is left: loss 0
        bias = -draws.probs
        if draws.label is not None:
            bias[draws.label] = draws.other_mass
        unit = rounding_at(draws.largest_log)
        return ExampleBias(bias, draws.probs, draws.log_label, 0.0, unit * abs(draws.log_label))
    if not draws.scheme.draws_label and draws.other_mass == 0.0:
        return ExampleBias(np.zeros_like(draws.probs), draws.probs, 0.0, 0.0, 0.0)
    return None


class Pairs(NamedTuple):
    """The classes, each drawn together with the label, eq. (B12)."""

    draws: Draws
    ratios: Ratios
    atoms: Atoms


class Flows(NamedTuple):
    """The flows (B6) over the mass of their atoms, by one set of node weights.

    The sizes are sums of magnitudes, which rounding is in proportion to.
    """

    atoms: Atoms
    values: FloatArray  # (A,) integrals of E (psi - psi_R) over kappa at the atoms
    total: float  # flow of all classes, as the atoms have it
    label_flow: float  # l of (B8); 0 without a base mass, and where that is a draw
    coarse: float  # change of the sums under half of the nodes
    size: float  # of the terms of the flows and of the label's
    class_size: float  # of the terms of the flows alone
    weights: NodeWeights

    def with_total_of(self, flows: Flows, other_mass: float) -> Flows:
        """Return these, of pairs of a class and the label, in place of `flows`; eq. (B12).

        The total that the ratio r_j + r_t of a class is compared with keeps r_j.
        """
        return self._replace(
            total=flows.total,
            coarse=self.coarse + 2.0 * other_mass * flows.coarse,
            size=self.size + 2.0 * other_mass * flows.size,
        )


class Integral:
    """The integrals (B6) and (B7) of one example, with a step that is halved.

    The units are relative errors of what is summed.

    Parameters
    ----------
    draws, ratios, atoms
        The draws, the ratios of the classes around their centres, and the atoms of the ratios.
    pairs : Pairs, optional
        The same of each class together with the label, where the base mass is a draw of it.
    """

    def __init__(
        self, draws: Draws, ratios: Ratios, atoms: Atoms, pairs: Pairs | None = None
    ) -> None:
        self.draws, self.ratios, self.atoms, self.pairs = draws, ratios, atoms, pairs
        # |log e| + |log q|, for both are logs of probabilities
        unit = rounding_at(draws.largest_product)
        near, far, near_squares, far_squares, size = ratios.errors.tolist()
        errors = DEVIATION_ERROR * near + unit * far
        squares = DEVIATION_ERROR**2 * near_squares + unit * unit * far_squares
        spread = math.sqrt(max(float(atoms.points.q_zeta2.sum()), 0.0))
        # of a term of the bias, by rounding
        self.bias_unit = max(unit, rounding_at(draws.largest_base_log))
        # of a term of the loss bias, which is a mean over the softmax
        self.loss_unit = max(unit, rounding_at(draws.largest_log))
        # of the flows, by the error of the differences r - R
        self.contrast_unit = errors / size if size > 0.0 else 0.0
        # of the loss bias, by that of the differences r - mean
        self.deviation_unit = math.sqrt(squares) / spread if spread > 0.0 else 0.0

    def attempts(self) -> Iterator[Flows]:
        """Yield the flows by ever more nodes, and for the jackknife by several weights of each."""
        draws = self.draws
        for step in halved_steps(0.5 * STEP if draws.scheme.jackknife else STEP):
            nodes = make_nodes(draws, self.ratios, self.atoms, step)
            every: Iterable[NodeWeights]
            if isinstance(nodes, TiltedNodes):
                every = jackknife_weights(draws, nodes, self.loss_unit)
            else:
                every = (make_node_weights(draws, nodes),)
            for weights in every:
                flows = _flows(draws, self.ratios, self.atoms, nodes, weights)
                if self.pairs is not None:
                    pairs = self.pairs
                    of_pairs = _flows(pairs.draws, pairs.ratios, pairs.atoms, nodes, weights)
                    flows = of_pairs.with_total_of(flows, draws.other_mass)
                yield flows

    def estimate(self, flows: Flows, bias: Any, norm: float) -> tuple[ExampleBias, bool]:
        """Return a bias by `flows` with its errors, and whether a smaller step would not better it.

        `norm` is the L1 norm of `bias`.
        """
        draws, weights, terms = self.draws, flows.weights, flows.weights.loss_terms
        bias_unit, loss_unit, is_jackknife = self.bias_unit, self.loss_unit, draws.scheme.jackknife
        loss_bias, size = assemble_loss(draws, weights)
        error = estimate_error(flows.coarse, flows.size, norm, bias_unit, is_jackknife)
        loss_error = sum_error(terms, size, loss_unit, weights.loss_narrow)
        is_enough = error <= (RELATIVE_TOLERANCE + 4.0 * bias_unit) * norm
        # the jackknife's terms cancel, and their size says little
        enough = RELATIVE_TOLERANCE * (abs(float(terms.sum())) if is_jackknife else size)
        is_enough = is_enough and loss_error <= enough + 4.0 * loss_unit * size
        error += self.contrast_unit * flows.class_size + none_kept_error(draws)
        loss_error += self.deviation_unit * float(np.abs(terms).sum())
        row = ExampleBias(
            bias=bias,
            probs=draws.probs,
            loss_bias=loss_bias,
            error=math.inf if math.isnan(error) else error,
            loss_error=math.inf if math.isnan(loss_error) else loss_error,
        )
        return row, is_enough


def _flows(draws: Draws, ratios: Ratios, atoms: Atoms, nodes: Nodes, weights: NodeWeights) -> Flows:
    points, log_d_ref = atoms.points, float(ratios.log_above_least[0])
    tilted = nodes.tilted if isinstance(nodes, TiltedNodes) else None
    over_nodes = atom_integrals(nodes.x, weights.coefficients, tilted, points, log_d_ref)
    weight = np.abs(points.q_kappa)
    # not as inner products of BLAS, whose last bits change with its threads
    coarse = float((weight * np.abs(over_nodes.full - over_nodes.half)).sum())
    size = class_size = float((weight * over_nodes.size).sum())
    # the label's terms reach the bias times the mass of the other classes: at the label, and
    # once more spread over the others
    coarse += 2.0 * draws.other_mass * halving_change(weights.label_terms)
    size += 2.0 * draws.other_mass * float(weights.label_sizes.sum())
    return Flows(
        atoms=atoms,
        values=over_nodes.full,
        total=float((points.q_kappa * over_nodes.full).sum()),
        label_flow=float(weights.label_terms.sum()),
        coarse=coarse,
        size=size,
        class_size=class_size,
        weights=weights,
    )


def bias_of_classes(
    integrals: Flows, draws: Draws, ratios: Ratios, others: float | None = None
) -> FloatArray:
    """Return the bias (n,) of the classes of a chunk, or of all.

    `others` is the sum of the bias of all classes but the label, of a chunk.
    """
    atoms, flows, total = integrals.atoms, draws.drawn * ratios.contrast, integrals.total
    if atoms.panels is None:
        # each class is an atom; behind them may stand that of weightless draws
        active = draws.drawn > 0.0
        by_class = np.empty(len(atoms.order))
        by_class[atoms.order] = integrals.values
        flows[active] *= by_class[: active.sum()]
    elif len(atoms.panels):
        panel, s = atoms.places(ratios)
        values = atoms.by_panel(integrals.values)[:, None]
        coefficients = values @ panels.to_coefficients()

        def work(part: slice) -> None:
            flows[part] *= panels.evaluate(panel[part], s[part], coefficients)[0]

        thread_each(work, chunks(len(flows), CLASS_CHUNK))
    if others is None and not draws.scheme.label_is_a_draw:
        total = float(flows.sum())  # so that the bias adds up to 0
    return assemble(draws, flows, total, integrals.label_flow, others)


def _excess(log_r_label: float) -> float:
    """Return the log of a factor that keeps draws of pairs from vanishing where r_t is large."""
    return max(log_r_label, 0.0)


def unscale_pairs(draws: Draws, atoms: Atoms) -> Atoms:
    """Undo the scaling of `pair_with_label`, so that draw probability times ratio is e_j again."""
    log_r = atoms.points.log_r - _excess(draws.log_r_label)
    return replace(atoms, points=atoms.points._replace(log_r=log_r))


def pair_with_label(draws: Draws, ratios: Ratios) -> tuple[Draws, Ratios]:
    """Return the classes, each drawn together with the label, eq. (B12).

    With the base mass r_t / m, E[p'_j] = e_j int m T**(m-1) exp(-v (r_j + r_t)) dv: the ratio
    of class j is r_j + r_t, while the total that it is compared with keeps r_j.
    """
    log_r_label = draws.log_r_label
    o_ref, q_ref, log_ref = ratios.reference
    distance = log_r_label - log_ref
    above_label = deviation(distance, draws.totals.label_logit, o_ref, draws.totals.label_q, q_ref)
    ratio_label = math.exp(min(distance, LARGEST_EXPONENT))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(np.minimum(ratios.log_r - log_ref, LARGEST_EXPONENT))
        kappa = ratios.contrast
        # r / R - 1; from kappa it keeps its digits where r is near R
        above = np.where(np.abs(kappa) < 0.5, 2.0 * kappa / (1.0 - kappa), ratio - 1.0)
        # r_j + r_t - R, the smaller ratio added to what the larger has above R
        rise = np.where(ratio < ratio_label, ratio + above_label, above + ratio_label)
        contrast = rise / (ratio + ratio_label + 1.0)
        log_r = np.logaddexp(ratios.log_r, log_r_label)
        drawn = np.exp(draws.log_probs - (log_r - _excess(log_r_label)))
    if draws.label is not None:
        drawn[draws.label] = 0.0
    low, high = np.logaddexp(ratios.span, distance).tolist()
    near = max(abs(low), abs(high)) < 2.0 * math.atanh(DIGITS_OF_KAPPA)
    shifted = replace(ratios, log_r=log_r, contrast=contrast, near=near, span=(low, high))
    return replace(draws, drawn=drawn), shifted
