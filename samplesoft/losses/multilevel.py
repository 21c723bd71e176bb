"""Unbiased sampled softmax, which uses a random number of draws and corrects for that number.

Notation of the kernels: the M draws of a row are split into blocks. S is the sum of exponentials of
label and draws, with draws weighted by 1 / (M q). Such sums with only some of the draws, and
correspondingly larger weights, are ``S_b`` for block b, and ``H_1`` and ``H_2`` for the two halves.
Z is the sum over all classes. Each sum is stored relative to its largest term, because the sums may
differ by hundreds of orders of magnitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._memory import require_bytes
from samplesoft._random import stream_key
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.base import Targets
from samplesoft.losses.candidates import require_replacement
from samplesoft.losses.sampled import (
    LossKernel,
    Sample,
    SampledLoss,
    Seed,
    exp_in_place,
    loss_from_masses,
)
from samplesoft.samplers.base import Draw
from samplesoft.schemes import DECAY, Scheme, last_level, select

# largest relative difference of two sums at which the difference of their logarithms is computed by
# log1p; beyond it, subtracting the logarithms is precise enough
_SMALL_DIFFERENCE = 0.5


@dataclass(frozen=True, eq=False)
class MultilevelDraw(Draw):
    """The classes drawn by `MultilevelLoss.draw`, and the probability of their number.

    Parameters
    ----------
    ids, log_q, log_inclusion
        As for `Draw`. On the last level of `MultilevelLoss` all classes follow the draws (all but
        the label if draws exclude it), as always-included classes with a `log_q` of 0.
        `log_inclusion` is None.
    num_sampled : int
        Number of draws m in a block.
    num_draws : int
        Number of all draws M, a multiple of m.
    probability : float
        Probability that the level, which determines M, is drawn.
    """

    num_sampled: int = 1
    num_draws: int = 2
    probability: float = 1.0

    @property
    def log_expected_count(self) -> FloatArray:
        """Log expected count of each drawn class in the M draws; 0 for always-included classes."""
        counts = self.log_q.copy()
        counts[:, : self.num_draws] += np.log(self.num_draws)  # always-included classes occur once
        return counts


class MultilevelLoss(SampledLoss):
    r"""Unbiased sampled softmax: its mean loss and gradient equal the full loss and gradient.

    A level k is drawn once for a batch, with probability :math:`p_k = (1 - r) r^k`,
    :math:`r = 2^{-3/2}`. Each example gets :math:`M = 2^{k+1} m` draws, where m is `num_sampled`.
    With :math:`L_m` the loss of `SampledSoftmaxLoss` on m draws, the loss is

    .. math:: \text{mean over the } M/m \text{ blocks of } L_m
        + \frac1{p_k} \Big(L_M - \frac{L_{M/2} + L'_{M/2}}2\Big)

    where :math:`L_{M/2}` and :math:`L'_{M/2}` are the losses on the two halves of the draws. The
    expected differences of all levels sum to minus the bias of :math:`L_m`: no bias remains.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` if the draw is not from `draw`.
    MemoryError
        In a layer, if all classes of a batch do not fit.

    Notes
    -----
    **Cost.** An example needs 4.4 m draws on average, most often 2 m. The last level K, at least 1,
    is the first with as many draws as classes, :math:`2^{K+1} m \ge n`. It has probability
    :math:`r^K`, and uses :math:`M = 2^K m` draws and all classes. Its difference completes the sum
    exactly:

    .. math:: L - L_M + \Big(\frac SZ - 1\Big), \qquad S = Z e^{L_M - L}

    with L the full softmax loss. The last term has mean 0, and removes the first-order variation of
    S. A batch never needs more than 2 n logits for an example, but occasionally that many. The
    proposal must give every class a positive probability.

    **Variance.** For a variance V of the weights, a difference has mean and standard deviation of
    order V / M, like the bias. The contributions of the levels to the variance are proportional to
    :math:`4^{-k} / p_k`, and fall by a factor of 0.71 a level. They add about :math:`V^2 / m^2` to
    the variance of the loss, which is small if m is well above V. Sampled softmax with the same
    average number of draws has at most 0.58 times the variance. Sharing the level among the
    examples adds almost no variance, because the mean differences are small. See sections 18 and 19
    of ``samplesoft/bias/README.md`` for figures.

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
        """Draw a level for the batch, and then the number of classes that the level requires.

        See `SampledLoss.draw` for the arguments, and the class docstring for the levels.
        """
        generator = np.random.default_rng(int(stream_key(rng)))
        max_level = last_level(num_sampled, num_classes)

        # one level for all examples of the batch; see Variance in the class docstring
        level = int(generator.geometric(1.0 - DECAY)) - 1
        if level < max_level:
            num_draws = num_sampled << (level + 1)
            probability = (1.0 - DECAY) * DECAY**level
        else:
            # the last level stands for itself and all later ones, whose sum it computes exactly
            num_draws = num_sampled << max_level
            probability = DECAY**max_level

        draw = sample(num_draws, generator)
        require_replacement(draw, type(self).__name__)

        ids = draw.ids
        log_q = draw.log_q
        if level >= max_level:
            ids, log_q = _append_all_classes(ids, log_q, num_classes, targets, self.excludes_label)

        return MultilevelDraw(ids, log_q, None, num_sampled, num_draws, probability)

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        if not isinstance(draw, MultilevelDraw):
            raise TypeError(
                f"`draw` must be a MultilevelDraw, got {type(draw).__name__}; take it from "
                f"{type(self).__name__}.draw, or let a SoftmaxLayer draw."
            )

        block = draw.num_sampled
        num_draws = draw.num_draws
        probability = draw.probability
        # number of always-included classes after the draws; 0 except on the last level
        num_others = draw.ids.shape[1] - num_draws
        is_valid = (
            1 <= block <= num_draws
            and num_draws % block == 0
            and num_others >= 0
            and 0.0 < probability <= 1.0
        )
        if not is_valid or (num_others == 0 and num_draws // block % 2):
            raise ValueError(
                "`draw` must hold two halves of blocks of num_sampled draws, or num_draws of them "
                f"before all classes, got num_sampled={block}, num_draws={num_draws}, "
                f"probability={probability} and ids of shape {draw.ids.shape}; take it from "
                f"{type(self).__name__}.draw."
            )

        return LossKernel(multilevel_kernel, (block, num_draws, 1.0 / probability))


def _append_all_classes(
    ids: IntArray, log_q: FloatArray, n: int, targets: Targets, without_labels: bool
) -> tuple[IntArray, FloatArray]:
    """Return ids and log q of the draws, followed by all n classes with a log q of 0.

    If `without_labels`, the label of each example is left out.
    """
    num_rows = len(ids)
    num_examples = len(targets.offsets())
    require_bytes(
        f"all {n} classes of a batch of {num_examples}, which the last level of a multilevel loss "
        "takes,",
        (16.0 * num_rows + 8.0 * num_examples) * (n + ids.shape[1]),
        "use smaller batches, or scheme='masked' with draws that the batch shares",
    )

    all_classes = np.arange(n)
    if without_labels:
        # a row for each example: 0, 1, ..., n - 1 without its label
        all_classes = all_classes[:-1] + (all_classes[:-1] >= targets.labels[:, None])

    all_classes = np.broadcast_to(all_classes, (num_rows, all_classes.shape[-1]))
    return np.hstack([ids, all_classes]), np.hstack([log_q, np.zeros(all_classes.shape)])


@njit
def multilevel_kernel(
    logits: FloatArray, losses: FloatArray, block: int, num_draws: int, weight: float
) -> None:
    """Write the estimate of each row (P, 1 + M + c), and overwrite rows by its gradient.

    Column 0 is the label's logit. The logits of M = `num_draws` draws follow, in blocks of `block`
    draws. On the last level, the logits of all c other classes follow; otherwise c is 0. The
    estimate is the mean of ``log(S_b)`` minus the label's logit, plus `weight` times
    `_difference_from_all` on the last level, or `_difference_of_halves`.
    """
    num_blocks = num_draws // block
    max_logits = np.empty(num_blocks)
    sums = np.empty(num_blocks)
    derivatives = np.empty(num_blocks)

    for p in range(len(logits)):
        row = logits[p]
        draw_logits = logits[p, 1 : 1 + num_draws]
        others = logits[p, 1 + num_draws :]
        label = row[0]
        loss = 0.0
        label_derivative = 0.0

        for b in range(num_blocks):
            # exponentials for log S_b, relative to the largest term of the block
            block_logits = draw_logits[b * block : (b + 1) * block]
            max_logits[b] = exp_relative_to_max(block_logits, label)
            sums[b] = total(block_logits)

            # Logits are corrected for all M draws: the weights are 1 / (M q). In S_b they are
            # 1 / (m q), which is larger by the number of blocks.
            label_mass = math.exp(label - max_logits[b])
            sampled_mass = num_blocks * sums[b]
            loss += loss_from_masses(label_mass, sampled_mass, max_logits[b] - label)
            label_derivative -= sampled_mass / (label_mass + sampled_mass)
            derivatives[b] = 1.0 / (label_mass + sampled_mass)

        if len(others) > 0:
            difference, d_label = _difference_from_all(
                label, max_logits, sums, derivatives, others, weight
            )
        else:
            difference, d_label = _difference_of_halves(
                label, max_logits, sums, derivatives, weight
            )

        # the derivative in a draw's logit is its exponential times a factor of its block
        losses[p] = loss / num_blocks + difference
        row[0] = label_derivative / num_blocks + d_label
        for b in range(num_blocks):
            for k in range(b * block, (b + 1) * block):
                draw_logits[k] *= derivatives[b]


@njit
def exp_relative_to_max(logits: FloatArray, label: float) -> float:
    """Replace logits by ``exp(logit - max)``, and return max, the largest of them and `label`."""
    max_logit = max(label, row_max(logits))
    for k in range(len(logits)):
        logits[k] -= max_logit
    exp_in_place(logits)
    return float(max_logit)


@njit
def _scaled_masses(
    label: float, max_logits: FloatArray, sums: FloatArray
) -> tuple[float, float, float]:
    """Return the max logit of several blocks, and the masses of label and draws relative to it.

    A mass is a sum of ``exp(logit - max)``. `max_logits` holds the max logit of each block; `sums`
    holds the mass of its draws relative to the max of the block.
    """
    max_logit = row_max(max_logits)
    sampled_mass = 0.0
    for b in range(len(max_logits)):
        sampled_mass += sums[b] * math.exp(max_logits[b] - max_logit)
    return max_logit, math.exp(label - max_logit), sampled_mass


@njit
def _difference_of_halves(
    label: float, max_logits: FloatArray, sums: FloatArray, derivatives: FloatArray, weight: float
) -> tuple[float, float]:
    """Return ``log S - (log H_1 + log H_2) / 2``, and its derivative in the label's logit.

    Both are multiplied by `weight`. Adds, for each block, to `derivatives` the factor that turns
    the masses of its draws into derivatives. With ``u = (H_1 - H_2) / (H_1 + H_2)`` the difference
    is ``-log(1 - u**2) / 2``. Its derivative in the logit of a draw of the first half is u times
    the draw's fraction of ``H_1``; of the second half, -u times the fraction of ``H_2``. For the
    label it is ``u / 2`` times the label's fraction of ``H_1`` minus its fraction of ``H_2``.
    """
    half = len(max_logits) // 2
    max_1, label_1, mass_1 = _scaled_masses(label, max_logits[:half], sums[:half])
    max_2, label_2, mass_2 = _scaled_masses(label, max_logits[half:], sums[half:])

    whole_1 = label_1 + 2.0 * mass_1
    whole_2 = label_2 + 2.0 * mass_2
    max_logit = max(max_1, max_2)
    draws_1 = mass_1 * math.exp(max_1 - max_logit)
    draws_2 = mass_2 * math.exp(max_2 - max_logit)
    label_mass = math.exp(label - max_logit)
    whole = label_mass + draws_1 + draws_2
    u = (draws_1 - draws_2) / whole

    # For small u the difference is about u**2 / 2. Subtracting the nearly equal logarithms would
    # lose its digits, so log1p(-u**2) is used. For u near 1, 1 - u**2 would lose digits instead.
    if abs(u) < _SMALL_DIFFERENCE:
        difference = -0.5 * math.log1p(-u * u)
        label_derivative = -u * u / (1.0 - u * u) * (label_mass / whole)
    else:
        log_scale = 0.5 * ((max_logit - max_1) + (max_logit - max_2))
        difference = log_scale + math.log(whole) - 0.5 * (math.log(whole_1) + math.log(whole_2))
        label_derivative = 0.5 * u * (label_1 / whole_1 - label_2 / whole_2)

    # the derivatives in draws of the two halves have opposite signs
    for b in range(half):
        derivatives[b] += weight * u / whole_1 * math.exp(max_logits[b] - max_1)
    for b in range(half, len(max_logits)):
        derivatives[b] -= weight * u / whole_2 * math.exp(max_logits[b] - max_2)

    return weight * difference, weight * label_derivative


@njit
def _difference_from_all(
    label: float,
    max_logits: FloatArray,
    sums: FloatArray,
    derivatives: FloatArray,
    others: FloatArray,
    weight: float,
) -> tuple[float, float]:
    """Return ``log Z - log S + (S / Z - 1)``, and its derivative in the label's logit.

    Both are multiplied by `weight`. Adds, for each block, to `derivatives` the factor that turns
    the masses of its draws into derivatives, and overwrites the logits `others` (c,) of all other
    classes by derivatives. With ``x = S / Z - 1``, whose mean is 0, the difference is
    ``x - log(1 + x)``, and its derivatives are x times the derivatives of ``log S - log Z``.
    """
    max_s, label_s, draws_s = _scaled_masses(label, max_logits, sums)
    max_z = exp_relative_to_max(others, label)

    label_z = math.exp(label - max_z)
    others_z = total(others)
    sum_s = label_s + draws_s
    sum_z = label_z + others_z
    gap = (max_s - max_z) + (math.log(sum_s) - math.log(sum_z))  # log S - log Z

    if abs(gap) < _SMALL_DIFFERENCE:
        # S - Z without the label's mass, which cancels
        x = (draws_s * math.exp(max_s - max_z) - others_z) / sum_z
        gap = math.log1p(x)
    else:
        x = math.expm1(gap)

    for k in range(len(others)):
        others[k] *= -weight * x / sum_z
    for b in range(len(max_logits)):
        derivatives[b] += weight * x / sum_s * math.exp(max_logits[b] - max_s)

    return weight * (x - gap), -weight * x * (x * (label_s / sum_s))
