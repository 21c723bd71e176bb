"""Atoms: the classes themselves, or fewer points with weights that represent their ratios.

Sums over atoms replace sums over classes; see section 5 of the README of `bias`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.quadrature import require_few_nodes
from samplesoft.bias.numerics.summation import Sum
from samplesoft.bias.with_replacement.deviations import Floats
from samplesoft.bias.with_replacement.draws import CLASS_CHUNK, Draws
from samplesoft.bias.with_replacement.laplace import Points, Rows
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels import panels

_CLASSES_PER_CHUNK = 2048


@dataclass
class Atoms:
    """The distribution of the ratio r of one draw, as A atoms with weights.

    The atoms are the Chebyshev points of panels, or the classes themselves. A panel with index i
    covers log(r / R) from i * `width` to (i + 1) * `width`.
    """

    width: float  # of a panel, in log r
    # (P,) indices of the panels that contain classes; None if the atoms are the classes
    panel_ids: IntArray | None
    points: Points  # arrays (A,), sorted by r
    # (A,) index of each atom before it was sorted: in the order of panels and their points, or of
    # classes
    order: IntArray

    def panel_positions(self, ratios: Ratios) -> tuple[IntArray, FloatArray]:
        """Return the panel of each class, and the position of the class in it, both (n,).

        A panel is given as an index into `panel_ids`.
        """
        assert self.panel_ids is not None
        first = int(self.panel_ids[0])
        count = int(self.panel_ids[-1] - self.panel_ids[0]) + 1
        panel, s = panels.place(ratios.log_distances, self.width, first, count)
        slots = np.zeros(count, np.int64)
        slots[self.panel_ids - first] = np.arange(len(self.panel_ids))
        return slots[panel], s

    def by_panel(self, values: FloatArray) -> FloatArray:
        """Return `values` (A,) of the atoms as (P, DEGREE), by panel and by point in the panel."""
        assert self.panel_ids is not None
        out = np.empty(len(self.order))
        out[self.order] = values
        return out[: len(self.panel_ids) * panels.DEGREE].reshape(-1, panels.DEGREE)


def panel_grid(centres: Ratios) -> tuple[float, int, int]:
    """Return the width, the first index and the number of the panels that cover all ratios."""
    low, high = centres.log_ratio_range
    # if all ratios are close to R, one narrow panel on each side of R suffices, or on the only side
    # that has classes
    width = min(panels.WIDTH, 1.0000001 * max(-low, high, 1e-300))
    first = math.floor(low / width)
    return width, first, math.floor(high / width) - first + 1


class PanelMoments:
    """Sums over classes in the third pass over them: Chebyshev moments of the weights (B22).

    A moment of a panel is the sum, over its classes, of a weight times a Chebyshev polynomial.
    """

    def __init__(self, centres: Ratios) -> None:
        require_few_nodes(centres.log_ratio_range[1] - centres.log_ratio_range[0])
        self.width, self.first, self.count = panel_grid(centres)
        # (P,) panels that contain classes, counted from the panel with the index `first`
        self.panel_ids = np.empty(0, np.int64)
        self.sums = Sum((0, 3, panels.DEGREE))

    def add(self, draws: Draws, ratios: Ratios) -> PanelMoments:
        """Add the classes of a chunk; return self."""
        panel_of_class, s = panels.place(ratios.log_distances, self.width, self.first, self.count)
        occupied = np.bincount(panel_of_class, draws.draw_probs, self.count) > 0.0
        panel = (np.cumsum(occupied) - 1)[panel_of_class]

        def weighted_classes(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
            return panel[part], s[part], _class_weights(draws, ratios, part)[0]

        moments = class_moments(weighted_classes, len(s), (int(occupied.sum()), 3))
        self._merge_panels(np.flatnonzero(occupied), Sum.of(moments))
        return self

    def merge(self, other: PanelMoments) -> PanelMoments:
        """Add the sums of `other`, which are over other classes; return self."""
        self._merge_panels(other.panel_ids, other.sums)
        return self

    def _merge_panels(self, panel_ids: IntArray, sums: Sum) -> None:
        if not len(self.panel_ids):
            self.panel_ids = panel_ids
            self.sums = sums.times(1.0)
            return
        union = np.union1d(self.panel_ids, panel_ids)
        mine, others = (np.searchsorted(union, ids) for ids in (self.panel_ids, panel_ids))
        self.panel_ids = union
        self.sums = self.sums.to_rows(mine, len(union))
        self.sums.merge(sums.to_rows(others, len(union)))

    def finish(self, draws: Draws, centres: Ratios) -> Atoms:
        """Return the Chebyshev points of the panels as atoms.

        `draws` may be of any chunk of the classes, because only its `weightless` is used.
        """
        # the weight of each class is distributed over the points of its panel: the matrix is the
        # transpose of the one that interpolates from these points
        at_nodes = self.sums.value @ panels.coefficient_matrix().T
        weights = np.moveaxis(at_nodes, 1, 0).reshape(3, -1)
        positions = self.first + self.panel_ids[:, None] + panels.node_positions()
        t = (positions * self.width).ravel()
        kappa = np.tanh(0.5 * t)
        zeta = np.tanh(0.5 * (t - centres.log_mean_distance))
        points, order = _sort_points(draws, centres, weights, t, kappa, zeta)
        return Atoms(
            width=self.width, panel_ids=self.panel_ids + self.first, points=points, order=order
        )


def make_atoms(draws: Draws, ratios: Ratios) -> Atoms:
    """Return Chebyshev points as atoms, eq. (B22), or the classes if they are fewer."""
    width, _, count = panel_grid(ratios)
    if count * panels.DEGREE > len(draws.draw_probs):
        points, order = class_points(draws, ratios, draws.draw_probs > 0.0)
        return Atoms(width=width, panel_ids=None, points=points, order=order)
    return PanelMoments(ratios).add(draws, ratios).finish(draws, ratios)


def _class_weights(draws: Draws, ratios: Ratios, part: Any) -> tuple[FloatArray, FloatArray]:
    """Return the weights (3, k) and zeta (k,) of the k classes that a slice or mask selects."""
    return panels.class_weights(
        ratios.log_distances[part],
        draws.draw_probs[part],
        ratios.kappa[part],
        ratios.log_mean_distance,
        ratios.kappa_mean,
    )


def class_points(
    draws: Draws, ratios: Ratios, selected: NDArray[np.bool_]
) -> tuple[Points, IntArray]:
    """Return `Atoms.points` and `Atoms.order` if the atoms are the `selected` classes.

    `selected` (n,) is a mask; a selected class must have a positive draw probability.
    """
    t = ratios.log_distances[selected]
    kappa = ratios.kappa[selected]
    weights, zeta = _class_weights(draws, ratios, selected)
    return _sort_points(draws, ratios, weights, t, kappa, zeta)


def class_moments(
    weighted_classes: Callable[[slice], tuple[IntArray, FloatArray, FloatArray]],
    num_classes: int,
    shape: tuple[int, int],
) -> FloatArray:
    """Return the Chebyshev moments (P, k, DEGREE) of the classes in each panel, on all threads.

    `shape` is (P, k): the number of panels and of weights per class. ``weighted_classes(slice)``
    returns, for a slice of L classes, their panels (L,), their positions in the panels (L,), and
    their weights (k, L).
    """
    total = np.zeros((*shape, panels.DEGREE))

    def work(part: slice) -> FloatArray:
        moments = np.zeros_like(total)
        panels.add_moments(*weighted_classes(part), moments)
        return moments

    # In a long sum of equal terms, rounding errors have the same sign and add up. So chunks are
    # short, but not so short that adding the moments of chunks would take most of the time.
    parts = chunks(num_classes, max(_CLASSES_PER_CHUNK, total.size))
    for moments in (thread_map if num_classes > CLASS_CHUNK else map)(work, parts):
        total += moments
    return total


def _sort_points(
    draws: Draws,
    ratios: Ratios,
    weights: FloatArray,
    t: FloatArray,
    kappa: FloatArray,
    zeta: FloatArray,
) -> tuple[Points, IntArray]:
    """Return atoms sorted by r as `Points`, and the index (A,) of each before sorting.

    `weights` (3, A) and `t` = log(r / R), `kappa` and `zeta` (A,) describe the atoms. If draws can
    be weightless (add nothing to S), they become one more atom.
    """
    if draws.weightless:  # the atom of these draws is at r = 0, where kappa = zeta = -1
        t = np.append(t, -np.inf)
        kappa = np.append(kappa, -1.0)
        zeta = np.append(zeta, -1.0)
        masked = draws.weightless * np.array([[1.0], [-1.0], [1.0]])
        weights = np.concatenate([weights, masked], axis=1)
    centres = ratios.log_ref, ratios.log_mean - ratios.log_ref, ratios.log_r0
    rows = _write_points(weights, (t, kappa, zeta), centres)
    order = rows[4].argsort(kind="stable")
    return Points(*rows.take(order, axis=1)), order


@njit
def _write_points(weights: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return the fields of `Points` as rows (10, A), in the order of the fields.

    `columns` are t = log(r / R), kappa and zeta, each (A,). `centres` are log R, log(mean / R) and
    log r0. The logs of sums r + R and r + mean do not cancel, so the plain difference log(mean / R)
    is accurate enough for them.
    """
    (t, kappa, zeta) = columns
    (log_ref, t_mean, log_r0) = centres
    rows = np.empty((10, len(t)))
    for i in range(len(t)):
        rows[0, i], rows[1, i], rows[2, i] = weights[0, i], weights[1, i], weights[2, i]
        rows[5, i], rows[7, i] = kappa[i], zeta[i]
        log_sum_mean = max(t[i], t_mean) + math.log1p(math.exp(-abs(t[i] - t_mean))) + log_ref
        rows[3, i] = rows[4, i] = t[i] + log_ref
        if log_r0 > -np.inf:
            fraction_above = -math.expm1(min(log_r0 - log_ref - t[i], 0.0))
            rows[4, i] += math.log(fraction_above) if fraction_above > 0.0 else -np.inf
        rows[6, i] = max(t[i], 0.0) + math.log1p(math.exp(-abs(t[i]))) + log_ref
        rows[8, i] = log_sum_mean + (math.log(abs(zeta[i])) if zeta[i] != 0.0 else -np.inf)
        rows[9, i] = log_sum_mean

    return rows
