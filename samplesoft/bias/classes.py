"""The classes of one example: their ratios, the centres of these, and atoms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.sums import CLASS_CHUNK, class_moments
from samplesoft.kernels.bias import panels, ratios
from samplesoft.kernels.bias.panels import PanelClasses

_NEAR = 0.3  # of kappa: below it, it has more digits than a difference of logs


@dataclass(frozen=True)
class Classes:
    """The ratios r of the classes, (n,), and their three centres: R, the mean of r, and r0."""

    log_r: FloatArray
    contrast: FloatArray  # kappa = (r - R) / (r + R)
    reference: int  # the class whose ratio is R
    log_ref: float  # log R
    mean_deviation: float  # mean / R - 1
    log_mean: float  # of the mean of r over a draw
    log_least: float  # log r0, which no ratio lies below

    @property
    def kappa_mean(self) -> float:
        """(mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @cached_property
    def log_distances(self) -> FloatArray:
        """Log (r / R), (n,); where all ratios are near R, with the digits of kappa."""
        if np.abs(self.contrast).max() < _NEAR:
            t: FloatArray = 2.0 * np.arctanh(self.contrast)
            return t
        return self.log_r - self.log_ref

    @property
    def log_mean_distance(self) -> float:
        """Log (mean / R)."""
        if abs(self.mean_deviation) < _NEAR:
            return float(np.log1p(self.mean_deviation))
        return self.log_mean - self.log_ref

    @property
    def log_above_least(self) -> FloatArray:
        """Log (R - r0) and log (mean - r0)."""
        upper = np.array([self.log_ref, self.log_mean])
        with np.errstate(divide="ignore"):
            parts = -np.expm1(np.minimum(self.log_least - upper, 0.0))  # 1 - r0 / upper
            above: FloatArray = upper + np.log(parts)
            if self.mean_deviation > -0.5:  # mean - r0 keeps what the mean has above R
                above[1] = self.log_ref + np.log(max(parts[0] + self.mean_deviation, 0.0))
        return above


@dataclass(frozen=True)
class Atoms:
    """The measure of log r on few points: `weights` (3, A) and `rows` (8, A) for the kernels.

    `slot` numbers the occupied Chebyshev panels; it is None where each class is its own atom.
    """

    width: float
    first: int
    slot: IntArray | None
    weights: FloatArray
    rows: FloatArray


def make_classes(law: DrawLaw) -> Classes:
    """Find the ratios and the reference class, the softmax-weighted median of the ratios.

    Every bias is a sum of flows e_j e_k (psi_j - psi_k). Measured from the median, the sizes of
    the terms add up to no more than the flows themselves, so nothing cancels in the L1 norm.
    """
    active = law.drawn > 0.0
    with np.errstate(divide="ignore"):
        log_r = law.log_probs - np.log(law.drawn)
    masses = np.where(active, law.probs, 0.0)
    if not masses.any():  # every drawn class underflows: rank them by their logs
        shift = law.log_probs[active].max()
        masses[active] = np.exp(law.log_probs[active] - shift)
    reference = ratios.weighted_median(log_r, masses)
    contrast = np.zeros(len(log_r))

    def work(part: slice) -> float:
        return ratios.relative_ratios(
            law.logits, log_r, law.q, law.drawn, reference, contrast, part.start, part.stop
        )

    mean_deviation = sum(thread_map(work, chunks(len(log_r), CLASS_CHUNK)))
    log_ref = float(log_r[reference])
    # a draw without weight has r = 0, and so r / R - 1 = -1
    mean_deviation = float(mean_deviation) - law.weightless
    if mean_deviation > -0.5:
        log_mean = log_ref + float(np.log1p(mean_deviation))
    else:  # far below R the sum has cancelled, while the mean itself is known
        log_mean = float(np.log(law.mean))
    found = Classes(log_r, contrast, reference, log_ref, mean_deviation, log_mean, -np.inf)
    if law.weightless:
        return found
    # r0 is a panel's edge: no Chebyshev atom lies below it, nor any class by its distance
    steps = np.floor(float(found.log_distances[active].min()) / panels.WIDTH)
    return replace(found, log_least=log_ref + panels.WIDTH * float(steps))


def make_atoms(law: DrawLaw, classes: Classes) -> Atoms:
    """Compress the classes to Chebyshev atoms where that makes fewer of them, eq. (B22)."""
    active = law.drawn > 0.0
    distances = classes.log_distances
    t_min = float(np.min(distances, where=active, initial=np.inf))
    t_max = float(np.max(distances, where=active, initial=-np.inf))
    # ratios that all lie close to R get narrow panels: one on either side of it
    width = min(panels.WIDTH, 1.0000001 * max(-t_min, t_max, 1e-300))
    first = int(np.floor(t_min / width))
    count = int(np.floor(t_max / width)) - first + 1
    t_mean = classes.log_mean_distance
    slot = None
    if count * panels.DEGREE > len(classes.log_r):
        t = distances[active]
        kappa = classes.contrast[active]
        parts = panels.class_weights(t, law.drawn[active], kappa, t_mean, classes.kappa_mean)
        weights, zeta = parts[:3], parts[3]
    else:
        span = (distances, law.drawn, width, first, count)
        occupied = panels.mark(*span) > 0.0
        slot = np.cumsum(occupied) - 1
        moments = class_moments(make_panel_classes(law, classes, width, first, slot))
        # the transpose of interpolation: what a class weighs goes to the nodes of its panel
        weights = np.moveaxis(moments @ panels.to_coefficients().T, 1, 0).reshape(3, -1)
        places = first + np.flatnonzero(occupied)[:, None] + panels.node_places()
        t = (places * width).ravel()
        kappa = np.tanh(0.5 * t)
        zeta = np.tanh(0.5 * (t - t_mean))
    if law.weightless:  # an atom at r = 0, where kappa = zeta = -1
        t = np.append(t, -np.inf)
        kappa, zeta = np.append(kappa, -1.0), np.append(zeta, -1.0)
        masked = law.weightless * np.array([[1.0], [-1.0], [1.0]])
        weights = np.concatenate([weights, masked], axis=1)
    return Atoms(width, first, slot, weights, _atom_rows(t, kappa, zeta, classes))


def make_panel_classes(
    law: DrawLaw, classes: Classes, width: float, first: int, slot: IntArray
) -> PanelClasses:
    """Return the classes on Chebyshev panels of a width, from number `first` on."""
    t_mean = classes.log_mean_distance
    centres = t_mean, classes.kappa_mean
    return PanelClasses(
        classes.log_distances, law.drawn, classes.contrast, *centres, width, first, slot
    )


def _atom_rows(t: FloatArray, kappa: FloatArray, zeta: FloatArray, classes: Classes) -> FloatArray:
    """Return what the kernels know of atoms at r = R exp(t), (8, A), all distances as logs.

    log r; log (r - r0); kappa, log |r - R|, log (r + R); zeta, log |r - mean|, log (r + mean).
    """
    with np.errstate(divide="ignore"):
        from_least = t
        if classes.log_least > -np.inf:
            below = np.minimum(classes.log_least - classes.log_ref - t, 0.0)
            from_least = t + np.log(-np.expm1(below))
        sum_ref = np.logaddexp(t, 0.0)
        sum_mean = np.logaddexp(t, classes.log_mean - classes.log_ref)
        rows = np.stack(
            [
                t,
                from_least,
                kappa,
                sum_ref + np.log(np.abs(kappa)),
                sum_ref,
                zeta,
                sum_mean + np.log(np.abs(zeta)),
                sum_mean,
            ]
        )
    rows[[0, 1, 3, 4, 6, 7]] += classes.log_ref  # so far all were relative to R
    return rows
