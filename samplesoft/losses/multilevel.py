"""Sampled softmax without bias: a random number of draws, and a correction by their level.

In the kernels the M draws of a row are cut into blocks. S is the sum of label and draws, ``S_b``
that with block b in place of all draws, ``H_1`` and ``H_2`` those with one half. Each is a sum of
positive numbers that is scaled by its own largest, for they may be hundreds of orders apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._memory import require_bytes
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.base import Targets
from samplesoft.losses.candidates import require_replacement
from samplesoft.losses.sampled import Sample, SampledLoss, Seed, Terms, log_ratio, weigh
from samplesoft.samplers.base import Draw
from samplesoft.schemes import DECAY, Scheme, last_level, select

_NEAR = 0.5  # below it differences are taken of sums, above it of their logarithms


@dataclass(frozen=True, eq=False)
class MultilevelDraw(Draw):
    """What `MultilevelLoss.draw` returns.

    Parameters
    ----------
    ids, log_q, log_inclusion
        As for `Draw`; on the last level all other classes come after the draws, with a `log_q` of
        0, for they are certain. `log_inclusion` is None.
    num_sampled : int
        Number of draws m of a block.
    num_draws : int
        Number of draws M, a multiple of m.
    probability : float
        Probability of the level.
    """

    num_sampled: int = 1
    num_draws: int = 2
    probability: float = 1.0

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of how often each class is expected in the M draws; 0 after these."""
        counts = self.log_q.copy()
        counts[:, : self.num_draws] += np.log(self.num_draws)  # those after are there once
        return counts


class MultilevelLoss(SampledLoss):
    r"""Sampled softmax whose mean, and that of its gradient, are those of the full softmax.

    A level k is drawn once for a batch, with probabilities :math:`p_k = (1 - r) r^k`,
    :math:`r = 2^{-3/2}`, and each example gets :math:`M = 2^{k+1} m` draws, m being `num_sampled`.
    With :math:`L_m` the loss of `SampledSoftmaxLoss` on m draws, the loss is

    .. math:: \text{mean over the } M/m \text{ blocks of } L_m
        + \frac1{p_k} \Big(L_M - \frac{L_{M/2} + L'_{M/2}}2\Big)

    where :math:`L_{M/2}` and :math:`L'_{M/2}` are of the two halves of the draws. The means of the
    differences add up to what :math:`L_m` lacks, so that nothing is left of its bias.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` if the draw is not from `draw`.
    MemoryError
        In a layer, if all classes of a batch do not fit.

    Notes
    -----
    **Cost.** A batch takes 4.4 m draws an example in the mean, most often 2 m. A level with as many
    draws as there are classes, :math:`2^{K+1} m \ge n`, is the last (K is at least 1). It has
    the probability :math:`r^K`, takes :math:`M = 2^K m` draws and all classes, and its difference
    ends the sum exactly:

    .. math:: L - L_M + \Big(\frac SZ - 1\Big), \qquad S = Z e^{L_M - L}

    with L the loss of the full softmax; the last term has the mean 0, and takes off what S varies
    in the first order. So no batch needs more than 2 n numbers an example, though it
    needs as many now and then, and a proposal must be able to draw every class.

    **Variance.** A difference is of the order of the bias, V / M for a variance V of the weights,
    and so is its deviation; the terms of the variance fall as :math:`4^{-k} / p_k`, by a factor of
    0.71 a level. They add about :math:`V^2 / m^2` to that of the loss: little where m is well above
    V, and much where it is not. With as many draws in the mean, sampled softmax varies 0.58 times
    as much, or less. That all examples share a level costs next to nothing, for the
    means of the differences are as small. Sections 18 and 19 of ``samplesoft/bias/README.md`` have
    figures.

    References
    ----------
    .. [1] J. H. Blanchet and P. W. Glynn, "Unbiased Monte Carlo for optimization and functions of
       expectations via multi-level randomization", Winter Simulation Conference 2015, section 2:
       differences of a whole and its halves.
    .. [2] C.-H. Rhee and P. W. Glynn, "Unbiased estimation with square root convergence for SDE
       models", Operations Research 63, 2015: one random term in place of the sum.
    .. [3] D. McLeish, "A general method for debiasing a Monte Carlo estimator", Monte Carlo Methods
       and Applications 17, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.models import SoftmaxLayer
    >>> from samplesoft.samplers import UniformSampler
    >>> rows = np.random.default_rng(0).normal(size=(30, 2))
    >>> layer = SoftmaxLayer(rows, MultilevelLoss(), UniformSampler(30), num_sampled=2)
    >>> h, labels = np.ones((5, 2)), np.arange(5)
    >>> mean = np.mean([layer.forward(h, labels, rng=seed)[0] for seed in range(2000)])
    >>> bool(abs(mean - layer.evaluate(h, labels).loss) < 0.02)
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = select("negatives", "masked")
    is_softmax = True
    with_replacement = True
    why_no_bias = "its mean is the full softmax loss, and has no bias"

    def draw(
        self, sample: Sample, num_sampled: int, targets: Targets, num_classes: int, rng: Seed
    ) -> Draw:
        """Draw a level, and as many classes as it takes."""
        generator = np.random.default_rng(int(as_key(rng)))
        last = last_level(num_sampled, num_classes)
        # One level for the batch: how little that costs says the class.
        level = int(generator.geometric(1.0 - DECAY)) - 1
        if level < last:
            num, probability = num_sampled << (level + 1), (1.0 - DECAY) * DECAY**level
        else:  # all levels from the last on are one, which ends the sum exactly
            num, probability = num_sampled << last, DECAY**last
        draw = sample(num, generator)
        require_replacement(draw, type(self).__name__)
        ids, log_q = draw.ids, draw.log_q
        if level >= last:
            ids, log_q = _with_all(ids, log_q, num_classes, targets, self.excludes_label)
        return MultilevelDraw(ids, log_q, None, num_sampled, num, probability)

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        if not isinstance(draw, MultilevelDraw):
            raise TypeError(
                f"`draw` must be a MultilevelDraw, got {type(draw).__name__}; take it from "
                f"{type(self).__name__}.draw, or let a SoftmaxLayer draw."
            )
        block, num, probability = draw.num_sampled, draw.num_draws, draw.probability
        others = draw.ids.shape[1] - num
        sound = 1 <= block <= num and num % block == 0 and others >= 0 and 0.0 < probability <= 1.0
        if not sound or (others == 0 and num // block % 2):
            raise ValueError(
                "`draw` must hold two halves of blocks of num_sampled draws, or num_draws of them "
                f"before all classes, got num_sampled={block}, num_draws={num}, "
                f"probability={probability} and ids of shape {draw.ids.shape}; take it from "
                f"{type(self).__name__}.draw."
            )
        return Terms(multilevel_terms, (block, num, 1.0 / probability))


def _with_all(
    ids: IntArray, log_q: FloatArray, n: int, targets: Targets, without_labels: bool
) -> tuple[IntArray, FloatArray]:
    """Return draws with all n classes after them, but for the label of each example if asked to."""
    size, batch = len(ids), len(targets.offsets())
    require_bytes(
        f"all {n} classes of a batch of {batch}, which the last level of a multilevel loss takes,",
        (16.0 * size + 8.0 * batch) * (n + ids.shape[1]),
        "take smaller batches, or scheme='masked' with draws that the batch shares",
    )
    every = np.arange(n)
    if without_labels:  # 0, 1, ... with a gap at the label of each example
        every = every[:-1] + (every[:-1] >= targets.labels[:, None])
    every = np.broadcast_to(every, (size, every.shape[-1]))
    return np.hstack([ids, every]), np.hstack([log_q, np.zeros(every.shape)])


@njit
def multilevel_terms(
    logits: FloatArray, losses: FloatArray, block: int, num_draws: int, weight: float
) -> None:
    """Write the estimate of each row (P, 1 + M + c), and turn rows into its gradient.

    Column 0 is the label's logit, then come M = `num_draws` draws, in blocks of `block`, and either
    none or all c other classes. The estimate is the mean of ``log(S_b)``, plus `weight` times a
    `_difference_of_halves` or a `_difference_from_all`, less the label's logit.
    """
    blocks = num_draws // block
    tops, sums, derivatives = np.empty(blocks), np.empty(blocks), np.empty(blocks)
    for p in range(len(logits)):
        row, drawn, others = logits[p], logits[p, 1 : 1 + num_draws], logits[p, 1 + num_draws :]
        label, loss, label_derivative = row[0], 0.0, 0.0
        for b in range(blocks):
            # log S_b of each block, by a unit of its own: the label or its largest draw
            part = drawn[b * block : (b + 1) * block]
            tops[b] = weigh_block(part, label)
            sums[b] = total(part)
            # a draw of a block weighs as many times more as there are blocks
            own, mass = math.exp(label - tops[b]), blocks * sums[b]
            loss += log_ratio(own, mass, tops[b] - label)
            label_derivative -= mass / (own + mass)
            derivatives[b] = 1.0 / (own + mass)
        if len(others) > 0:
            more, label_more = _difference_from_all(label, tops, sums, derivatives, others, weight)
        else:
            more, label_more = _difference_of_halves(label, tops, sums, derivatives, weight)
        # derivatives of all draws of a block are their weights times one number
        losses[p] = loss / blocks + more
        row[0] = label_derivative / blocks + label_more
        for b in range(blocks):
            for k in range(b * block, (b + 1) * block):
                drawn[k] *= derivatives[b]


@njit
def weigh_block(part: FloatArray, label: float) -> float:
    """Turn logits into weights in the unit of the largest of them and `label`; return that."""
    top = max(label, greatest(part))
    for k in range(len(part)):
        part[k] -= top
    weigh(part)
    return float(top)


@njit
def _sum(label: float, tops: FloatArray, sums: FloatArray) -> tuple[float, float, float]:
    """Return a unit, and in it the weight of the label and of all draws of some blocks."""
    top, mass = greatest(tops), 0.0
    for b in range(len(tops)):
        mass += sums[b] * math.exp(tops[b] - top)
    return top, math.exp(label - top), mass


@njit
def _difference_of_halves(
    label: float, tops: FloatArray, sums: FloatArray, derivatives: FloatArray, weight: float
) -> tuple[float, float]:
    """Return ``log S - (log H_1 + log H_2) / 2`` and its derivative in the label, weighted.

    What a draw of each block gets is added to `derivatives`. With ``u = (H_1 - H_2) / (H_1 + H_2)``
    the difference is ``-log(1 - u**2) / 2``; its derivative in a draw is u times its weight in
    ``H_1``, or -u times that in ``H_2``, and in the label's logit ``u / 2`` times the weight in
    ``H_1`` less that in ``H_2``.
    """
    half = len(tops) // 2
    top_1, own_1, mass_1 = _sum(label, tops[:half], sums[:half])
    top_2, own_2, mass_2 = _sum(label, tops[half:], sums[half:])
    whole_1, whole_2, top = own_1 + 2.0 * mass_1, own_2 + 2.0 * mass_2, max(top_1, top_2)
    one, two = mass_1 * math.exp(top_1 - top), mass_2 * math.exp(top_2 - top)
    own = math.exp(label - top)
    whole = own + one + two
    u = (one - two) / whole
    # Halves are mostly alike. Then the difference is u**2 / 2, which logarithms of sums that are
    # nearly equal would lose; apart, 1 - u**2 would lose its digits.
    if abs(u) < _NEAR:
        more = -0.5 * math.log1p(-u * u)
        label_derivative = -u * u / (1.0 - u * u) * (own / whole)
    else:
        behind = 0.5 * ((top - top_1) + (top - top_2))
        more = behind + math.log(whole) - 0.5 * (math.log(whole_1) + math.log(whole_2))
        label_derivative = 0.5 * u * (own_1 / whole_1 - own_2 / whole_2)
    # blocks of the first half pull one way, those of the second the other
    for b in range(half):
        derivatives[b] += weight * u / whole_1 * math.exp(tops[b] - top_1)
    for b in range(half, len(tops)):
        derivatives[b] -= weight * u / whole_2 * math.exp(tops[b] - top_2)
    return weight * more, weight * label_derivative


@njit
def _difference_from_all(
    label: float,
    tops: FloatArray,
    sums: FloatArray,
    derivatives: FloatArray,
    others: FloatArray,
    weight: float,
) -> tuple[float, float]:
    """Return ``log Z - log S + (S / Z - 1)`` and its derivative in the label, weighted.

    What a draw of each block gets is added to `derivatives`, and `others` (c,) become derivatives.
    With ``x = S / Z - 1``, whose mean is 0, the difference is ``x - log(1 + x)``, and its
    derivatives are x times those of ``log S - log Z``.
    """
    top, own, mass = _sum(label, tops, sums)
    top_z = weigh_block(others, label)
    own_z, mass_z = math.exp(label - top_z), total(others)
    whole, whole_z = own + mass, own_z + mass_z
    gap = (top - top_z) + (math.log(whole) - math.log(whole_z))  # log S - log Z
    if abs(gap) < _NEAR:
        # the label is in both, and drops out of S - Z
        x = (mass * math.exp(top - top_z) - mass_z) / whole_z
        gap = math.log1p(x)
    else:
        x = math.expm1(gap)
    for k in range(len(others)):
        others[k] *= -weight * x / whole_z
    for b in range(len(tops)):
        derivatives[b] += weight * x / whole * math.exp(tops[b] - top)
    return weight * (x - gap), -weight * x * (x * (own / whole))
