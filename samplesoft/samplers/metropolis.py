"""A sampler with the distribution of a Metropolis-Hastings chain that approaches the softmax."""

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
    """Draw from the exact distribution of a Metropolis-Hastings chain after T steps.

    The state of the chain is a class. A step from class i proposes class j in proportion to a power
    of its count, and moves to class j with the probability ``min(1, w_j / w_i)``, where w is
    ``exp(tau h . c)`` divided by the proposal probability. Without steps, draws come from the
    proposal; as the number of steps grows, their distribution approaches the softmax.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    counts : array_like, shape (n,)
        Count of each class, in any unit; a class with count 0 is treated as half of the smallest
        positive count.
    num_steps : int
        Number of steps T, at least 0. The initial state is drawn from the proposal.
    tau : float, optional
        Inverse temperature, 1 by default.
    power : float
        Exponent of the counts.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed. `sample`, `log_prob` and `probs` also raise if logits overflow.

    Notes
    -----
    Use it to compare the bias of T steps with the bias of other proposals, not for speed. To
    simulate a chain takes only T + 1 logits, but importance weights need the probability of the
    last state. This sampler computes the exact distribution of the last state, as
    `samplesoft.bias.metropolis_bias` does, in O(n (d + log n)) for each context at any T. Draws
    come from this distribution; no chain is simulated.

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
        class_counts = as_counts("counts", counts, self.num_classes)
        weights = unigram_weights(class_counts, as_positive("power", power))

        self.num_steps = as_count("num_steps", num_steps, 0)
        # probabilities that underflow are raised to a positive minimum, because the chain never
        # reaches a class that is never proposed
        self._q: FloatArray = np.maximum(weights / weights.sum(), np.finfo(np.float64).tiny)

    def weights(self, h: Any) -> FloatArray:
        """Return the probability (B, n) that each class is the state after the last step.

        Parameters
        ----------
        h : ndarray, shape (B, d)
            Context vectors.
        """
        assert self.class_embeddings is not None and self.tau is not None
        with np.errstate(over="ignore", invalid="ignore"):
            logits = (times_tau(h, self.tau) @ self.class_embeddings.T).astype(np.float64)

        if not np.isfinite(logits).all():
            requirement = f"within the range of {h.dtype}, got one that is not finite"
            raise ValueError(
                f"`h` must have logits {requirement}; scale vectors down, or use float64."
            )

        log_q = np.log(self._q)
        chains = (make_chain(log_p, log_q) for log_p in log_softmax(logits, axis=1))
        return np.array([after_steps(chain, self._q, self.num_steps) for chain in chains])
