"""What the variance of a multilevel estimate is made of, and the cost of its draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.schemes import DECAY


def expected_draws(m: int, last: int, others: int, decay: float = DECAY) -> float:
    """Return how many classes are looked at in the mean, if the last level adds `others`."""
    chances, blocks = _chances(last, decay), _blocks(last)
    return float(m * (chances @ blocks) + chances[-1] * others)


def _chances(last: int, decay: float) -> FloatArray:
    """Return the probabilities of the levels up to the last one, which has all that is left."""
    chances: FloatArray = decay ** np.arange(last + 1.0)
    chances[:-1] *= 1.0 - decay
    return chances


def _blocks(last: int) -> FloatArray:
    """Return how many blocks of draws each level has: the last as many as that before it."""
    blocks: FloatArray = 2.0 ** np.minimum(np.arange(1.0, last + 2.0), last)
    return blocks


class LevelMoments(NamedTuple):
    """Second moments of the loss, or of its gradient for tau = 1, in the levels up to the last."""

    squares: FloatArray  # (L,) E|D_k|**2 of the differences D_k
    covariances: FloatArray  # (L,) of what a block says with D_k
    block_variance: float
    block_squared_bias: float

    def variance(self, decay: float = DECAY) -> float:
        """Return the variance for levels whose chances fall by a factor of `decay`, eq. (B66)."""
        last = len(self.squares) - 1
        chances = _chances(last, decay)
        means = float(chances @ (1.0 / _blocks(last))) * self.block_variance
        changes = float((self.squares / chances).sum()) + 2.0 * float(self.covariances.sum())
        return max(means - self.block_squared_bias + changes, 0.0)


def no_moments(last: int) -> LevelMoments:
    """Return those of draws that are all alike."""
    return LevelMoments(np.zeros(last + 1), np.zeros(last + 1), 0.0, 0.0)
