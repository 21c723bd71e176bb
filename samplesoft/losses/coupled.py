"""A gradient without bias from coupled Markov chains on sets of draws."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from samplesoft._random import as_key
from samplesoft.kernels.losses.coupled_terms import coupled_terms
from samplesoft.losses.base import Batch
from samplesoft.losses.chains import ChainDraw, chain_draw, uniforms_of
from samplesoft.losses.pairs import Pairs, Results, each_pair
from samplesoft.losses.sampled import Request, SampledLoss, Seed
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select


class _ApartError(ValueError):
    """Chains have not met."""


class CoupledLoss(SampledLoss):
    r"""Sampled softmax with an unbiased gradient, by coupled chains on sets of draws.

    A set of m draws has the sum S, its chance in :math:`q^m` times S is the law of a Markov chain,
    and under that law the mean of the gradient of :math:`\log S` is that of the full softmax. The
    chain starts with a set X, and moves to a new set with the chance :math:`\min(1, S^*/S)`. A
    second one, a step behind, sees the same sets and numbers, until they meet at step
    :math:`\tau`. What the first lacks of its law is

    .. math:: \tau \log S(X) - \sum_{k=1}^{\tau-1} \log S(Y_{k-1}) - o_t

    where :math:`Y_0, Y_1, \dots` are the states of the second.

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
        In a layer, if the draws that chains need do not fit.

    Notes
    -----
    **Only the gradient** is without bias: steps are not differentiated. The value estimates the
    mean of :math:`\log S` under the law of the chain, which lies above the full softmax loss by
    about as much as that of sampled softmax lies below it. Compare models by the full loss.

    **Why it is so short.** The first step of the first chain and the start of the second are the
    same set. From there on the second never has the greater S: it moves whenever the first does,
    and where the first leaves X they have met.

    **Cost.** An example takes :math:`(\tau + 1) m` draws, at least 2 m, and all take as many as the
    last of the batch. A class that outweighs all others and has the probability q keeps its
    chain for about 1 / (q m) steps.

    References
    ----------
    .. [1] P. E. Jacob, J. O'Leary and Y. F. Atchadé, "Unbiased Markov chain Monte Carlo methods
       with couplings", Journal of the Royal Statistical Society B 82, 2020, section 2: the sum up
       to the meeting.
    .. [2] G. Deligiannidis, P. E. Jacob, E. M. Khribch and G. Wang, "On importance sampling and
       independent Metropolis-Hastings with an unbounded weight function", arXiv 2411.09514: chains
       on sets of draws, with common proposals.
    .. [3] C. Andrieu, A. Doucet and R. Holenstein, "Particle Markov chain Monte Carlo methods",
       Journal of the Royal Statistical Society B 72, 2010: sets of draws as states.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses import FullSoftmaxLoss
    >>> from samplesoft.models import SoftmaxLayer
    >>> from samplesoft.samplers import UniformSampler
    >>> rows, h = np.random.default_rng(0).normal(size=(30, 2)), np.ones((5, 2))
    >>> labels = np.arange(5)
    >>> layer = SoftmaxLayer(rows, CoupledLoss(), UniformSampler(30), num_sampled=4)
    >>> draws = [layer.forward(h, labels, rng=seed)[1] for seed in range(1000)]
    >>> mean = np.mean([layer.backward(cache)[0] for cache in draws], axis=0)
    >>> loss = FullSoftmaxLoss()
    >>> full = loss.backward(loss.forward(h, rows, labels)[1]).dh
    >>> bool(abs(mean - full).max() < 0.02)
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = select("negatives", "masked")
    is_softmax = True
    with_replacement = True
    why_no_bias = "its gradient has no bias, and its value is no estimate of the full softmax loss"

    def draw(self, request: Request, rng: Seed) -> Draw:
        """Draw sets of classes until the chains of every example have met."""
        generator = np.random.default_rng(int(as_key(rng)))
        name, m = type(self).__name__, request.num_sampled
        draw = chain_draw(request, 2 * m, 1, generator, name)
        while not self._have_met(*request.batch_of(draw)):
            sets = max(1, draw.ids.shape[1] // (2 * m))  # half as many as there are
            more = chain_draw(request, sets * m, sets, generator, name)
            draw = ChainDraw(
                np.hstack([draw.ids, more.ids]),
                np.hstack([draw.log_q, more.log_q]),
                None,
                np.hstack([draw.uniforms, more.uniforms]),
            )
        return draw

    def _have_met(self, batch: Batch, draw: Draw | None) -> bool:
        try:
            self._forward(batch, draw, None)
        except _ApartError:
            return False
        return True

    def _results(self, pairs: Pairs) -> Results:
        uniforms = uniforms_of(pairs, type(self).__name__)
        width, sets = pairs.drawn.shape[1], uniforms.shape[1] + 1
        if sets < 2 or width % sets:
            raise ValueError(
                "`draw` must hold a set of as many draws for each of its uniforms, and one more, "
                f"got {width} draws and {sets - 1} uniforms; take it from "
                f"{type(self).__name__}.draw."
            )
        apart = np.empty(len(uniforms))
        results = each_pair(pairs, coupled_terms, uniforms, apart)
        if apart.any():
            raise _ApartError(
                f"`draw` must hold sets until the chains meet, got {sets}, which do not do for "
                f"example {pairs.owners[apart.argmax()]}; take it from {type(self).__name__}.draw."
            )
        return results
