"""Sampled softmax with less bias, by a Markov chain through its draws."""

from __future__ import annotations

from typing import Any, ClassVar

from samplesoft._validation import FloatArray, as_count
from samplesoft.kernels.losses.br_snis_terms import br_snis_terms
from samplesoft.losses.chains import chain_draw, uniforms_of
from samplesoft.losses.pairs import Pairs, Results, each_pair
from samplesoft.losses.sampled import Request, SampledLoss, Seed
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select


class BrSnisLoss(SampledLoss):
    r"""Bias-reduced self-normalised importance sampling: BR-SNIS.

    The m draws are a first state and the candidates of k rounds. In each round a sampled softmax is
    made of the state and the new candidates, and one of them becomes the next state, in proportion
    to :math:`e_t` plus its own weight. The loss is the mean of these :math:`\log S` over the rounds
    but for the first few, less the label's logit; choices are not differentiated.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`.
    rounds : int
        Number of rounds k, as long as there are draws for them.
    burn_in : int
        Number of first rounds that are left out of the mean, below `rounds`.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` if the draw is not from `draw`.

    Notes
    -----
    States come ever nearer to the law under which the gradient has no bias; with N candidates a
    round, and weights at most :math:`\omega` times their mean, the distance falls by
    :math:`(2\omega - 1) / (2\omega + N - 2)` a round. But a round has fewer draws than there are in
    all, and the first ones are not in the mean. So the bias is below that of sampled softmax on
    the same draws only where m is well above the spread of the weights, and there
    `samplesoft.losses.JackknifeLoss` has less of it and varies less. It is here for comparison.
    As in `samplesoft.losses.CoupledLoss`, the value is no estimate of the full softmax loss.

    The defaults are those of ten pairs that left the least bias, or nearly so, for what they
    vary (uniform draws of 2,000 Gaussian classes, m = 20 and 100).

    References
    ----------
    .. [1] G. Cardoso, S. Samsonov, A. Thin, E. Moulines and J. Olsson, "BR-SNIS: Bias Reduced
       Self-Normalized Importance Sampling", NeurIPS 2022, arXiv 2207.06364, algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.models import SoftmaxLayer
    >>> from samplesoft.samplers import UniformSampler
    >>> rows = np.random.default_rng(0).normal(size=(30, 2))
    >>> layer = SoftmaxLayer(rows, BrSnisLoss(rounds=4), UniformSampler(30), num_sampled=9)
    >>> value, cache = layer.forward(np.ones((5, 2)), np.arange(5), rng=0)
    >>> layer.backward(cache)[0].shape
    (5, 2)
    """

    schemes: ClassVar[dict[str, Scheme]] = select("negatives", "masked")
    is_softmax = True
    with_replacement = True
    why_no_bias = "no exact bias of its chain is known"

    def __init__(
        self, *, scheme: str | None = None, rounds: int = 2, burn_in: int = 1, **options: Any
    ) -> None:
        super().__init__(scheme=scheme, **options)
        self.rounds = as_count("rounds", rounds)
        self.burn_in = as_count("burn_in", burn_in, 0)
        if self.burn_in >= self.rounds:
            raise ValueError(
                f"`burn_in` must be below `rounds`, got {burn_in} of {rounds}; leave a round in."
            )

    def draw(self, request: Request, rng: Seed) -> Draw:
        """Draw as many classes as asked for, and what decides on the states."""
        m = request.num_sampled
        return chain_draw(request, m, self._rounds(m), rng, type(self).__name__)

    def _results(self, pairs: Pairs) -> Results:
        uniforms = uniforms_of(pairs, type(self).__name__)
        rounds = self._rounds(pairs.drawn.shape[1])
        if uniforms.shape[1] != rounds:
            raise ValueError(
                f"`draw` must hold {rounds} uniforms for each example, got {uniforms.shape[1]}; "
                f"take it from {type(self).__name__}.draw."
            )
        burn_in = min(self.burn_in, rounds - 1)

        def terms(logits: FloatArray, losses: FloatArray, uniforms: FloatArray) -> None:
            br_snis_terms(logits, losses, uniforms, burn_in)

        return each_pair(pairs, terms, uniforms)

    def _rounds(self, num_sampled: int) -> int:
        return max(1, min(self.rounds, num_sampled - 1))
