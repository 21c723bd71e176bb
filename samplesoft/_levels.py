"""The levels of the multilevel loss: what it draws, and what its exact variance is made of."""

from __future__ import annotations

DECAY = 2.0**-1.5  # of their chances: above 1/4 the variance is finite, below 1/2 the cost


def last_level(num_sampled: int, num_classes: int) -> int:
    """Return the first level, from 1 on, with as many draws as there are classes."""
    last = 1
    while num_sampled << (last + 1) < num_classes:
        last += 1
    return last
