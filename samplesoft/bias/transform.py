"""The Laplace transform of one draw, on a quadrature in v that no range of ratios outruns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import Atoms, Classes
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.quadrature import make_grid
from samplesoft.bias.sums import node_sums
from samplesoft.kernels.bias import laplace

_BACK = 3.0  # log of v over that at which a class of noise 1e-14 still has most of its weight
_NARROW = 1e-3  # panels on which all ratios decay as one, without noise
_LOST = -12.0  # log of how far T has fallen since, below which that noise may be seen


@dataclass(frozen=True)
class Nodes:
    """The transform T and what follows from it at the quadrature nodes, all arrays (K,).

    "Tilted" is the law of r whose probabilities are q exp(-v r) / T; see section 4 of the README.
    """

    x: FloatArray  # log v
    dx: FloatArray  # weight of dv / v
    v: FloatArray
    v_least: FloatArray  # v r0
    log_transform: FloatArray  # log T, T = sum q exp(-v r)
    log_transform_least: FloatArray  # log sum q exp(-v (r - r0)), eq. (B18)
    log_psi_ref: FloatArray  # log of psi_R = exp(-v R) / T
    above: FloatArray  # T exp(v r0) (1 - psi_R) = sum q (exp(-v (r - r0)) - exp(-v (R - r0)))
    excess: FloatArray  # log T + v times the mean of r, at least 0, eq. (B20)
    mean: FloatArray  # v times the tilted mean
    variance: FloatArray  # v**2 times the second tilted cumulant
    skew: FloatArray  # v**3 times the third
    above_least: FloatArray  # v (tilted mean - r0)
    lead: FloatArray  # v (R - tilted mean)
    variance_size: FloatArray  # the sums of the sizes of what these three are made of
    skew_size: FloatArray
    lead_size: FloatArray
    gap: FloatArray  # log T + v times the tilted mean, at most 0, eq. (B21)
    balance: FloatArray  # 2 gap + variance, of third order in v

    @property
    def tilted(self) -> FloatArray:
        """`above_least`, `lead`, `variance`, and the sizes of the last two, (K, 5)."""
        columns = self.above_least, self.lead, self.variance, self.lead_size, self.variance_size
        return np.stack(columns, axis=1)


def make_nodes(
    law: DrawLaw,
    classes: Classes,
    atoms: Atoms,
    log_largest: float,
    log_smallest: float,
    step: float,
) -> Nodes:
    """Evaluate the transform on nodes that cover every scale of v at which it changes.

    `log_largest` and `log_smallest` are the logs of the typical and of the least decay rate of
    E(v); `step` is that of the trapezoid rule.
    """
    largest = max(log_largest, float(atoms.rows[0].max()))
    return evaluate_nodes(law, classes, atoms, *make_grid(largest, log_smallest, step))


def evaluate_nodes(
    law: DrawLaw,
    classes: Classes,
    atoms: Atoms,
    x: FloatArray,
    dx: FloatArray,
) -> Nodes:
    """Evaluate the transform at given nodes log v, `x` (K,), of weights `dx` (K,)."""
    above_least = classes.log_above_least
    found = node_sums(x, atoms.weights, atoms.rows, above_least)
    if len(x) > 0 and atoms.slot is not None and atoms.width > _NARROW:
        _replace_noise(law, classes, x, found, above_least)
    return _compute_nodes(classes, x, dx, found, above_least)


def _replace_noise(
    law: DrawLaw, classes: Classes, x: FloatArray, sums: FloatArray, log_above_least: FloatArray
) -> None:
    """Put sums over classes in place of a transform that panels leave no digits.

    Weights of their atoms have both signs. Next to what has decayed they leave noise, which is
    nothing beside 1, but may be more than T, and is divided by where draws are few.
    """
    with np.errstate(all="ignore"):
        v_least = np.exp(x + classes.log_least)
        log_least = np.log(np.maximum(sums[:, 0], 1e-307))
    log_transform = log_least - v_least
    order = np.argsort(x)
    before = np.interp(x - _BACK, x[order], log_transform[order], left=0.0)
    lost = np.flatnonzero(log_transform < before + _LOST)
    if len(lost) == 0:
        return
    active = law.drawn > 0.0
    q, log_r, kappa = law.drawn[active], classes.log_r[active], classes.contrast[active]

    def work(part: slice) -> list[list[float]]:
        found = []
        for k in lost[part]:
            v_r = np.exp(np.minimum(x[k] + log_r, LARGEST_EXPONENT))
            v_ref = np.exp(min(x[k] + classes.log_ref, LARGEST_EXPONENT))
            d, rise = np.maximum(v_r - v_least[k], 0.0), kappa * (v_r + v_ref)  # v (r - R)
            terms = q * np.exp(-d)
            up = q * np.exp(-np.maximum(v_ref - v_least[k], 0.0)) * np.expm1(-np.maximum(rise, 0.0))
            above = up - terms * np.expm1(np.minimum(rise, 0.0))
            y = rise - classes.mean_deviation * v_ref  # v (r - mean)
            excess = q * (np.expm1(-y) + y)
            moments = [terms, terms * d, terms * d * d, terms * d * d * d, above, excess]
            found.append([float(moment.sum()) for moment in moments])
        return found

    with np.errstate(all="ignore"):
        moments = np.vstack(list(thread_map(work, chunks(len(lost), 1))))
        v_ref, v_mean = np.exp(np.minimum(x[lost] + log_above_least[:, None], LARGEST_EXPONENT))
        if law.weightless:  # at r = r0 = 0
            moments[:, 0] += law.weightless
            moments[:, 4] -= law.weightless * np.expm1(-v_ref)
            moments[:, 5] += law.weightless * (np.expm1(v_mean) - v_mean)
        least = np.maximum(moments[:, 0], 1e-307)
        log_excess = np.log(least) + np.minimum(v_mean, laplace.CENTRED_LIMIT)
        # small ones by their terms, which have one sign
        excess = np.where(log_excess < 0.5, moments[:, 5], np.expm1(log_excess))
        sums[lost, 0], sums[lost, 1], sums[lost, 2:5] = least, -1.0, moments[:, 1:4]
        sums[lost, 5], sums[lost, 6] = moments[:, 4], excess
    sums[lost, 7] = 1e300  # the sums around r0 are those to take


def _compute_nodes(
    classes: Classes, x: FloatArray, dx: FloatArray, sums: FloatArray, log_above_least: FloatArray
) -> Nodes:
    transform, f, d1, d2, d3, above, p, h, third_sum, y2, y3 = sums.T
    # rounding, where no weight is left
    transform, p = np.maximum(transform, 1e-307), np.maximum(p, 0.0)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        v_least = np.exp(x + classes.log_least)
        v_ref = np.exp(x + log_above_least[0])
        v_mean = np.exp(np.minimum(x + log_above_least[1], LARGEST_EXPONENT))
        log_least = np.where(f > -0.5, np.log1p(np.maximum(f, -0.5)), np.log(transform))
        v_reference = np.exp(np.minimum(x + classes.log_ref, LARGEST_EXPONENT))
        v_all = np.exp(np.minimum(x + classes.log_mean, LARGEST_EXPONENT))
    centred = v_mean < laplace.CENTRED_LIMIT
    # cumulants from the centre that the tilted mean is nearer to: the mean of r, or r0
    near = centred & ((p + h) / (1.0 + p) <= d1 * np.exp(-log_least))
    total = np.where(near, 1.0 + p, np.exp(log_least))
    first = np.where(near, -(p + h), d1) / total
    second = np.where(near, y2, d2) / total
    third = np.where(near, y3, d3) / total
    variance = np.maximum(second - first**2, 0.0)
    rest = laplace.excess_decay(np.log1p(p))  # log (1 + p) - p / (1 + p)
    gap = np.where(near, rest - h / (1.0 + p), log_least + first)
    from_mean = np.where(near, -first, v_mean - first)  # v (mean - tilted mean)
    return Nodes(
        x=x,
        dx=dx,
        v=np.exp(np.minimum(x, LARGEST_EXPONENT)),
        v_least=v_least,
        log_transform=log_least - v_least,
        log_transform_least=log_least,
        log_psi_ref=-v_ref - log_least,
        above=above,
        excess=np.where(centred, np.log1p(p), log_least + v_mean),
        mean=np.where(near, v_all + first, v_least + first),
        variance=variance,
        skew=third - 3.0 * first * second + 2.0 * first**3,
        above_least=np.where(near, v_mean + first, first),
        # R - mean is known without cancellation, and so is the distance of the tilted mean
        lead=-classes.mean_deviation * v_reference + from_mean,
        variance_size=second + first**2,
        skew_size=np.abs(third) + np.abs(first) * (3.0 * second + 2.0 * first**2),
        lead_size=abs(classes.mean_deviation) * v_reference
        + np.where(near, 0.0, v_mean)
        + np.abs(first),
        gap=gap,
        balance=np.where(near, 2.0 * rest + third_sum / (1.0 + p) - first**2, 2.0 * gap + variance),
    )
