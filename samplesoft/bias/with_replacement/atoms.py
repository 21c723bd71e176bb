"""The classes, or fewer points that stand for them: the atoms of the measure of log r."""

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

_MOMENT_CHUNK = 2048


@dataclass
class Atoms:
    """The measure of log r on few points, for the kernels.

    `panels` (P,) are the Chebyshev panels that hold classes, counted from R, each of `width` in
    log r; it is None where each class is its own atom.
    """

    width: float  # of the panels
    panels: IntArray | None
    points: Points  # (A,) sorted by r
    order: IntArray  # (A,) the number of each before: by panel and node, or by class

    def places(self, ratios: Ratios) -> tuple[IntArray, FloatArray]:
        """Return the index in `panels` of each class's panel (n,), and the position there."""
        assert self.panels is not None
        first, count = int(self.panels[0]), int(self.panels[-1] - self.panels[0]) + 1
        panel, s = panels.place(ratios.log_distances, self.width, first, count)
        number = np.zeros(count, np.int64)
        number[self.panels - first] = np.arange(len(self.panels))
        return number[panel], s

    def by_panel(self, values: FloatArray) -> FloatArray:
        """Return what atoms (A,) have at the nodes of each panel, (P, DEGREE)."""
        assert self.panels is not None
        out = np.empty(len(self.order))
        out[self.order] = values
        return out[: len(self.panels) * panels.DEGREE].reshape(-1, panels.DEGREE)


def panel_grid(centres: Ratios) -> tuple[float, int, int]:
    """Return the width of panels that hold all ratios, the first, and their number."""
    low, high = centres.span
    # ratios that all lie close to R get narrow panels: one on either side of it
    width = min(panels.WIDTH, 1.0000001 * max(-low, high, 1e-300))
    first = math.floor(low / width)
    return width, first, math.floor(high / width) - first + 1


class PanelMoments:
    """The third sums over classes: the Chebyshev moments of their weights, eq. (B22)."""

    def __init__(self, centres: Ratios) -> None:
        require_width(centres.span[1] - centres.span[0])
        self.width, self.first, self.count = panel_grid(centres)
        self.numbers = np.empty(0, np.int64)  # of the panels that hold classes, (P,)
        self.sums = Sum((0, 3, panels.DEGREE))

    def add(self, draws: Draws, ratios: Ratios) -> PanelMoments:
        """Add the classes of a chunk."""
        numbers, s = panels.place(ratios.log_distances, self.width, self.first, self.count)
        occupied = np.bincount(numbers, draws.drawn, self.count) > 0.0
        panel = (np.cumsum(occupied) - 1)[numbers]

        def weigh(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
            return panel[part], s[part], _class_weights(draws, ratios, part)[0]

        moments = class_moments(weigh, len(s), (int(occupied.sum()), 3))
        self._take(np.flatnonzero(occupied), Sum.of(moments))
        return self

    def merge(self, other: PanelMoments) -> PanelMoments:
        """Add what another has summed."""
        self._take(other.numbers, other.sums)
        return self

    def _take(self, numbers: IntArray, sums: Sum) -> None:
        if not len(self.numbers):
            self.numbers, self.sums = numbers, sums.times(1.0)
            return
        union = np.union1d(self.numbers, numbers)
        own, more = (np.searchsorted(union, some) for some in (self.numbers, numbers))
        self.numbers, self.sums = union, self.sums.spread(own, len(union))
        self.sums.merge(sums.spread(more, len(union)))

    def finish(self, draws: Draws, centres: Ratios) -> Atoms:
        """Return the nodes of the panels as atoms; `draws` may hold any of the classes."""
        # the transpose of interpolation: the weight of a class goes to the nodes of its panel
        at_nodes = self.sums.value @ panels.to_coefficients().T
        weights = np.moveaxis(at_nodes, 1, 0).reshape(3, -1)
        positions = self.first + self.numbers[:, None] + panels.node_places()
        t = (positions * self.width).ravel()
        kappa = np.tanh(0.5 * t)
        zeta = np.tanh(0.5 * (t - centres.log_mean_distance))
        points, order = _sort_points(draws, centres, weights, t, kappa, zeta)
        return Atoms(width=self.width, panels=self.numbers + self.first, points=points, order=order)


def make_atoms(draws: Draws, ratios: Ratios) -> Atoms:
    """Compress all classes to Chebyshev atoms where that makes fewer of them, eq. (B22)."""
    width, _, count = panel_grid(ratios)
    if count * panels.DEGREE > len(draws.drawn):
        points, order = class_points(draws, ratios, draws.drawn > 0.0)
        return Atoms(width=width, panels=None, points=points, order=order)
    return PanelMoments(ratios).add(draws, ratios).finish(draws, ratios)


def _class_weights(draws: Draws, ratios: Ratios, part: Any) -> tuple[FloatArray, FloatArray]:
    """Return the weights (3, k) of some classes, and their zeta (k,)."""
    return panels.class_weights(
        ratios.log_distances[part],
        draws.drawn[part],
        ratios.contrast[part],
        ratios.log_mean_distance,
        ratios.kappa_mean,
    )


def class_points(draws: Draws, ratios: Ratios, some: NDArray[np.bool_]) -> tuple[Points, IntArray]:
    """Return each of some classes that are drawn as an atom."""
    t, kappa = ratios.log_distances[some], ratios.contrast[some]
    weights, zeta = _class_weights(draws, ratios, some)
    return _sort_points(draws, ratios, weights, t, kappa, zeta)


def class_moments(
    weigh: Callable[[slice], tuple[IntArray, FloatArray, FloatArray]],
    num_classes: int,
    shape: tuple[int, int],
) -> FloatArray:
    """Return Chebyshev moments (panels, k, DEGREE), with `shape` (panels, k), on all threads.

    `weigh` returns the panels, positions in them and weights (k, ...) of a slice of the classes.
    """
    total = np.zeros((*shape, panels.DEGREE))

    def work(part: slice) -> FloatArray:
        moments = np.zeros_like(total)
        panels.add_moments(*weigh(part), moments)
        return moments

    # Equal terms that are added one after another err in one direction, the further the more: so
    # parts are no longer than it costs to add their moments up.
    parts = chunks(num_classes, max(_MOMENT_CHUNK, total.size))
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
    """Return atoms at r = R exp(t), (A,), whose `weights` are (3, A), and the number of each."""
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
    """Return the rows of `Points`, (10, A), from t, kappa and zeta, log R, t_mean and log r0."""
    (t, kappa, zeta), (log_ref, t_mean, log_least) = columns, centres
    rows = np.empty((10, len(t)))
    for i in range(len(t)):
        rows[0, i], rows[1, i], rows[2, i] = weights[0, i], weights[1, i], weights[2, i]
        rows[5, i], rows[7, i] = kappa[i], zeta[i]
        log_sum_mean = max(t[i], t_mean) + math.log1p(math.exp(-abs(t[i] - t_mean))) + log_ref
        rows[3, i] = rows[4, i] = t[i] + log_ref
        if log_least > -np.inf:
            share = -math.expm1(min(log_least - log_ref - t[i], 0.0))
            rows[4, i] += math.log(share) if share > 0.0 else -np.inf
        rows[6, i] = max(t[i], 0.0) + math.log1p(math.exp(-abs(t[i]))) + log_ref
        rows[8, i] = log_sum_mean + (math.log(abs(zeta[i])) if zeta[i] != 0.0 else -np.inf)
        rows[9, i] = log_sum_mean
    return rows
