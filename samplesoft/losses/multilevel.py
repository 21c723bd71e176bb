"""Sampled softmax without bias: a random number of draws, and a correction by their level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from samplesoft._levels import DECAY, last_level
from samplesoft._memory import require_bytes
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.multilevel_terms import multilevel_terms
from samplesoft.losses.draws import require_replacement
from samplesoft.losses.pairs import Pairs, Results, each_pair
from samplesoft.losses.sampled import Request, SampledLoss, Seed
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select


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
    chance : float
        Probability of the level.
    """

    num_sampled: int = 1
    num_draws: int = 2
    chance: float = 1.0

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of how often each class is expected in the M draws; 0 after these."""
        counts = self.log_q.copy()
        counts[:, : self.num_draws] += np.log(self.num_draws)
        return counts


class MultilevelLoss(SampledLoss):
    r"""Sampled softmax whose mean, and that of its gradient, are those of the full softmax.

    A level k is drawn once for a batch, with chances :math:`p_k = (1 - r) r^k`,
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
    the chance :math:`r^K`, takes :math:`M = 2^K m` draws and all classes, and its difference ends
    the sum exactly:

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

    def draw(self, request: Request, rng: Seed) -> Draw:
        """Draw a level, and as many classes as it takes."""
        generator = np.random.default_rng(int(as_key(rng)))
        m, n = request.num_sampled, request.num_classes
        last = last_level(m, n)
        level = int(generator.geometric(1.0 - DECAY)) - 1
        if level < last:
            num, chance = m << (level + 1), (1.0 - DECAY) * DECAY**level
        else:
            num, chance = m << last, DECAY**last
        draw = request.sample(num, generator)
        require_replacement(draw, type(self).__name__)
        ids, log_q = draw.ids, draw.log_q
        if level >= last:
            ids, log_q = _with_all(ids, log_q, n, request.targets, self.excludes_label)
        return MultilevelDraw(ids, log_q, None, m, num, chance)

    def _results(self, pairs: Pairs) -> Results:
        draw = pairs.draw
        if not isinstance(draw, MultilevelDraw):
            raise TypeError(
                f"`draw` must be a MultilevelDraw, got {type(draw).__name__}; take it from "
                f"{type(self).__name__}.draw, or let a SoftmaxLayer draw."
            )
        block, num, chance = draw.num_sampled, draw.num_draws, draw.chance
        others = draw.ids.shape[1] - num
        sound = 1 <= block <= num and num % block == 0 and others >= 0 and 0.0 < chance <= 1.0
        if not sound or (others == 0 and num // block % 2):
            raise ValueError(
                "`draw` must hold two halves of blocks of num_sampled draws, or num_draws of them "
                f"before all classes, got num_sampled={block}, num_draws={num}, chance={chance} "
                f"and ids of shape {draw.ids.shape}; take it from {type(self).__name__}.draw."
            )
        weight = 1.0 / chance

        def terms(logits: FloatArray, losses: FloatArray) -> None:
            multilevel_terms(logits, losses, block, num, weight)

        return each_pair(pairs, terms)


def _with_all(
    ids: IntArray, log_q: FloatArray, n: int, targets: Targets, without_labels: bool
) -> tuple[IntArray, FloatArray]:
    """Return draws with all n classes after them, but for the label of each example if asked to."""
    size, batch = len(ids), len(targets.firsts())
    require_bytes(
        f"all {n} classes of a batch of {batch}, which the last level of a multilevel loss takes,",
        (16.0 * size + 8.0 * batch) * (n + ids.shape[1]),
        "take smaller batches, or scheme='masked' with draws that the batch shares",
    )
    every = np.arange(n)
    if without_labels:
        every = every[:-1] + (every[:-1] >= targets.labels[:, None])
    every = np.broadcast_to(every, (size, every.shape[-1]))
    return np.hstack([ids, every]), np.hstack([log_q, np.zeros(every.shape)])
