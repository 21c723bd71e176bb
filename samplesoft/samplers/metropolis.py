"""Proposals of a fixed law, of which a Metropolis-Hastings chain makes the softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, as_count, as_counts, as_positive
from samplesoft.kernels.independence import after_steps, make_chain
from samplesoft.samplers.dense import DenseSampler
from samplesoft.samplers.frequency import unigram_weights


class MetropolisSampler(DenseSampler):
    """The state of a Metropolis-Hastings chain after some steps from a unigram, for study.

    A step proposes class j in proportion to a power of its count, and goes there from class i with
    the chance ``min(1, w_j / w_i)``, where w is ``exp(tau h . c)`` over the proposal. Of no steps
    come the proposals, of many the softmax.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    counts : array_like, shape (n,)
        How often each class occurs, in any unit; one that never does counts as half of the rarest
        that does.
    num_steps : int
        Number of steps T, at least 0, after a first state that is drawn by the counts.
    tau : float, optional
        Inverse temperature, 1 by default.
    power : float
        Distortion of the counts.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.

    Notes
    -----
    Take it to see what the bias of T steps is, beside that of other proposals, and not for speed: a
    chain needs T + 1 logits, but the probability of where it ends, which importance weights ask
    for, is the exact law of `samplesoft.bias.metropolis_bias`, O(n (d + log n)) for each context
    at any T. Draws are from this law; they walk no chain.

    References
    ----------
    Y. Bengio and J.-S. Senécal, "Quick training of probabilistic neural nets by importance
    sampling", AISTATS 2003, and IEEE Transactions on Neural Networks 19(4), 2008.

    Examples
    --------
    >>> vectors = np.log([[1.0], [2.0], [5.0]])
    >>> for steps in (0, 1, 100):
    ...     sampler = MetropolisSampler(vectors, [1, 1, 1], num_steps=steps)
    ...     print(sampler.probs([1.0]).round(3))
    [[0.333 0.333 0.333]]
    [[0.189 0.322 0.489]]
    [[0.125 0.25  0.625]]
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        counts: ArrayLike,
        *,
        num_steps: int = 10,
        tau: float | None = None,
        power: float = 0.75,
    ) -> None:
        super().__init__(class_embeddings, tau=as_tau(tau, unit_vectors=False))
        checked = as_counts("counts", counts, self.num_classes)
        weights = unigram_weights(checked, as_positive("power", power))
        self.num_steps = as_count("num_steps", num_steps, 0)
        # a weight that underflows is raised, for what is never proposed is never reached
        self._q: FloatArray = np.maximum(weights / weights.sum(), np.finfo(np.float64).tiny)

    def weights(self, h: Any) -> FloatArray:
        """Return the law (B, n) of the state after the last step.

        Parameters
        ----------
        h : ndarray, shape (B, d)
            Context vectors.
        """
        assert self.class_embeddings is not None and self.tau is not None
        with np.errstate(over="ignore", invalid="ignore"):
            logits = (times_tau(h, self.tau) @ self.class_embeddings.T).astype(np.float64)
        if not np.isfinite(logits).all():
            what = f"within the range of {h.dtype}, got one that is not finite"
            raise ValueError(f"`h` must have logits {what}; scale vectors down, or use float64.")
        log_q = np.log(self._q)
        chains = (make_chain(log_p, log_q) for log_p in log_softmax(logits, axis=1))
        return np.array([after_steps(chain, self._q, self.num_steps) for chain in chains])
