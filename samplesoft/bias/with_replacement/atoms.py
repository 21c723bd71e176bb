"""The atoms of the distribution of log r: the classes, or fewer points that represent them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.quadrature import require_width
from samplesoft.bias.numerics.summation import Sum
from samplesoft.bias.with_replacement.deviations import Floats
from samplesoft.bias.with_replacement.draws import CLASS_CHUNK, Draws
from samplesoft.bias.with_replacement.laplace import Points, Rows
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels import panels

_CLASSES_PER_CHUNK = 2048


@dataclass
class Atoms:
    """The distribution of log r on a few points, for the kernels.

    `panels` (P,) are the indices of the Chebyshev panels that contain classes: intervals of `width`
    in log r, counted from R. It is None where each class is an atom.
    """

    width: float  # of a panel, in log r
    panels: IntArray | None
    points: Points  # (A,) sorted by r
    order: IntArray  # (A,) index of each atom before sorting: by panel and node, or by class

    def panel_positions(self, ratios: Ratios) -> tuple[IntArray, FloatArray]:
        """Return the index in `panels` of each class's panel (n,), and the position there."""
        assert self.panels is not None
        first, count = int(self.panels[0]), int(self.panels[-1] - self.panels[0]) + 1
        panel, s = panels.place(ratios.log_distances, self.width, first, count)
        slots = np.zeros(count, np.int64)
        slots[self.panels - first] = np.arange(len(self.panels))
        return slots[panel], s

    def by_panel(self, values: FloatArray) -> FloatArray:
        """Return `values` of the atoms (A,) at the nodes of each panel, (P, DEGREE)."""
        assert self.panels is not None
        out = np.empty(len(self.order))
        out[self.order] = values
        return out[: len(self.panels) * panels.DEGREE].reshape(-1, panels.DEGREE)


def panel_grid(centres: Ratios) -> tuple[float, int, int]:
    """Return the width of panels that cover all ratios, the first index, and their number."""
    low, high = centres.span
    # if all ratios are close to R, two narrow panels suffice, one on either side of R
    width = min(panels.WIDTH, 1.0000001 * max(-low, high, 1e-300))
    first = math.floor(low / width)
    return width, first, math.floor(high / width) - first + 1


class PanelMoments:
    """The sums of the third pass: Chebyshev moments of the weights of the classes, eq. (B22)."""

    def __init__(self, centres: Ratios) -> None:
        require_width(centres.span[1] - centres.span[0])
        self.width, self.first, self.count = panel_grid(centres)
        self.panel_ids = np.empty(0, np.int64)  # (P,) the panels that contain classes
        self.sums = Sum((0, 3, panels.DEGREE))

    def add(self, draws: Draws, ratios: Ratios) -> PanelMoments:
        """Add the classes of a chunk."""
        panel_of_class, s = panels.place(ratios.log_distances, self.width, self.first, self.count)
        occupied = np.bincount(panel_of_class, draws.drawn, self.count) > 0.0
        panel = (np.cumsum(occupied) - 1)[panel_of_class]

        def weighted_classes(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
            return panel[part], s[part], _class_weights(draws, ratios, part)[0]

        moments = class_moments(weighted_classes, len(s), (int(occupied.sum()), 3))
        self._merge_panels(np.flatnonzero(occupied), Sum.of(moments))
        return self

    def merge(self, other: PanelMoments) -> PanelMoments:
        """Add the sums of `other`."""
        self._merge_panels(other.panel_ids, other.sums)
        return self

    def _merge_panels(self, panel_ids: IntArray, sums: Sum) -> None:
        if not len(self.panel_ids):
            self.panel_ids, self.sums = panel_ids, sums.times(1.0)
            return
        union = np.union1d(self.panel_ids, panel_ids)
        mine, others = (np.searchsorted(union, ids) for ids in (self.panel_ids, panel_ids))
        self.panel_ids, self.sums = union, self.sums.scattered(mine, len(union))
        self.sums.merge(sums.scattered(others, len(union)))

    def finish(self, draws: Draws, centres: Ratios) -> Atoms:
        """Return the nodes of the panels as atoms; `draws` may contain any of the classes."""
        # the transpose of interpolation distributes the weight of a class over its panel's nodes
        at_nodes = self.sums.value @ panels.to_coefficients().T
        weights = np.moveaxis(at_nodes, 1, 0).reshape(3, -1)
        positions = self.first + self.panel_ids[:, None] + panels.node_places()
        t = (positions * self.width).ravel()
        kappa = np.tanh(0.5 * t)
        zeta = np.tanh(0.5 * (t - centres.log_mean_distance))
        points, order = _sort_points(draws, centres, weights, t, kappa, zeta)
        return Atoms(
            width=self.width, panels=self.panel_ids + self.first, points=points, order=order
        )


def make_atoms(draws: Draws, ratios: Ratios) -> Atoms:
    """Compress all classes to Chebyshev atoms where that leaves fewer points, eq. (B22)."""
    width, _, count = panel_grid(ratios)
    if count * panels.DEGREE > len(draws.drawn):
        points, order = class_points(draws, ratios, draws.drawn > 0.0)
        return Atoms(width=width, panels=None, points=points, order=order)
    return PanelMoments(ratios).add(draws, ratios).finish(draws, ratios)


def _class_weights(draws: Draws, ratios: Ratios, part: Any) -> tuple[FloatArray, FloatArray]:
    """Return the weights (3, k) of the classes of a slice or mask, and their zeta (k,)."""
    return panels.class_weights(
        ratios.log_distances[part],
        draws.drawn[part],
        ratios.contrast[part],
        ratios.log_mean_distance,
        ratios.kappa_mean,
    )


def class_points(
    draws: Draws, ratios: Ratios, selected: NDArray[np.bool_]
) -> tuple[Points, IntArray]:
    """Return the selected classes, all of which are drawn, as one atom each."""
    t, kappa = ratios.log_distances[selected], ratios.contrast[selected]
    weights, zeta = _class_weights(draws, ratios, selected)
    return _sort_points(draws, ratios, weights, t, kappa, zeta)


def class_moments(
    weighted_classes: Callable[[slice], tuple[IntArray, FloatArray, FloatArray]],
    num_classes: int,
    shape: tuple[int, int],
) -> FloatArray:
    """Return Chebyshev moments (panels, k, DEGREE), with `shape` (panels, k), on all threads.

    ``weighted_classes(slice)`` returns the panels of a slice of classes, the positions in the
    panels, and the weights (k, ...).
    """
    total = np.zeros((*shape, panels.DEGREE))

    def work(part: slice) -> FloatArray:
        moments = np.zeros_like(total)
        panels.add_moments(*weighted_classes(part), moments)
        return moments

    # The rounding errors of many equal terms in sequence have one sign and add up. So chunks are as
    # short as possible, until adding their moments would dominate.
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
    """Return atoms (A,) at r = R exp(t) with `weights` (3, A), sorted by r, and the order."""
    if draws.weightless:  # an atom at r = 0, where kappa = zeta = -1
        t = np.append(t, -np.inf)
        kappa, zeta = np.append(kappa, -1.0), np.append(zeta, -1.0)
        masked = draws.weightless * np.array([[1.0], [-1.0], [1.0]])
        weights = np.concatenate([weights, masked], axis=1)
    centres = ratios.log_ref, ratios.log_mean - ratios.log_ref, ratios.log_least
    rows = _write_points(weights, (t, kappa, zeta), centres)
    order = rows[4].argsort(kind="stable")
    return Points(*rows.take(order, axis=1)), order


@njit
def _write_points(weights: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return the rows of `Points`, (10, A).

    `columns` are t, kappa and zeta, `centres` log R, log(mean / R) and log r0.
    """
    (t, kappa, zeta), (log_ref, t_mean, log_least) = columns, centres
    rows = np.empty((10, len(t)))
    for i in range(len(t)):
        rows[0, i], rows[1, i], rows[2, i] = weights[0, i], weights[1, i], weights[2, i]
        rows[5, i], rows[7, i] = kappa[i], zeta[i]
        log_sum_mean = max(t[i], t_mean) + math.log1p(math.exp(-abs(t[i] - t_mean))) + log_ref
        rows[3, i] = rows[4, i] = t[i] + log_ref
        if log_least > -np.inf:
            fraction_above = -math.expm1(min(log_least - log_ref - t[i], 0.0))
            rows[4, i] += math.log(fraction_above) if fraction_above > 0.0 else -np.inf
        rows[6, i] = max(t[i], 0.0) + math.log1p(math.exp(-abs(t[i]))) + log_ref
        rows[8, i] = log_sum_mean + (math.log(abs(zeta[i])) if zeta[i] != 0.0 else -np.inf)
        rows[9, i] = log_sum_mean
    return rows
