"""Two rivals of sampled softmax by Markov chains through its draws, in plain NumPy.

`BrSnisLoss` (Cardoso et al., NeurIPS 2022, algorithm 1) has less bias where draws are many;
`coupled_slopes` (Deligiannidis et al., arXiv 2411.09514) has none in the gradient. The library has
had both; its jackknife and its multilevel loss do better, as ``unbiased.png`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from samplesoft.losses import SampledLoss
from samplesoft.schemes import select

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROUNDS = 2  # of BR-SNIS, of which the first is left out


class BrSnisLoss(SampledLoss):
    """Rounds of a state and new candidates, of which one is the next state."""

    schemes = select("negatives")

    def __init__(self, rng: np.random.Generator, **options: Any) -> None:
        super().__init__(**options)
        self.rng = rng  # which decides on states; chunks of a large batch take turns

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        size, m = len(logits), logits.shape[1] - 1
        rounds, slopes = max(1, min(ROUNDS, m - 1)), np.zeros_like(logits)
        rows, state, own = np.arange(size), np.zeros(size, int), logits[:, :1]
        for r in range(rounds):
            new = np.arange(1 + (m - 1) * r // rounds, 1 + (m - 1) * (r + 1) // rounds)
            seen = np.column_stack([state, np.broadcast_to(new, (size, len(new)))])
            num = seen.shape[1]
            drawn = np.take_along_axis(logits, 1 + seen, axis=1) + np.log(m / num)
            both = np.column_stack([own, drawn])
            shares = softmax(both, axis=1)  # of S, the sum of this round
            if r == rounds - 1:
                losses[:] = logsumexp(both, axis=1) - own[:, 0]
                slopes[:, 0] = shares[:, 0] - 1.0
                slopes[rows[:, None], 1 + seen] = shares[:, 1:]
            # a candidate is the next state in proportion to e_t plus its own weight
            below = np.cumsum(shares[:, :1] + num * shares[:, 1:], axis=1)
            target = self.rng.random((size, 1)) * below[:, -1:]
            state = seen[rows, np.minimum((below <= target).sum(axis=1), num - 1)]
        logits[:] = slopes


def coupled_slopes(
    draw: Callable[[], tuple[IntArray, FloatArray]],
    scores: FloatArray,
    label: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Return slopes (n,) in the scores (n,), whose mean is the gradient of the full softmax loss.

    ``draw()`` returns a set of m classes that are not the label, and the logs of their
    probabilities. A chain moves to a new set with the chance min(1, S* / S), and a second one, a
    step behind, sees the same sets and numbers, until they meet.
    """

    def new() -> tuple[float, FloatArray]:
        ids, log_q = draw()
        logits = np.append(scores[label], scores[ids] - log_q - np.log(len(ids)))
        slopes = np.zeros(len(scores))
        np.add.at(slopes, np.append(label, ids), softmax(logits))
        return float(logsumexp(logits)), slopes

    one, other = new(), new()
    total = one[1].copy()
    total[label] -= 1.0
    if rng.random() < np.exp(other[0] - one[0]):  # the first step: to where the second starts
        return total
    while True:
        total += one[1] - other[1]
        both, u = new(), rng.random()
        one = both if u < np.exp(min(both[0] - one[0], 0.0)) else one
        other = both if u < np.exp(min(both[0] - other[0], 0.0)) else other
        if one is other:
            return total
