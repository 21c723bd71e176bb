"""What a kernel tree is made of, beside its numbers: sizes, leaves and their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._validation import IntArray
from samplesoft.kernels.tree.records import KERNEL, LEAVES, SOFTMAX, TreeRules

UPDATES_OF_A_CLASS = 16  # after which its leaf is summed anew


@dataclass(frozen=True)
class TreeShape:
    """Sizes and weights of a `KernelTree`, whose parameters these are."""

    num_classes: int
    feature_dim: int
    leaf_size: int
    leaf: str
    scale: float
    floor: float

    @property
    def num_leaves(self) -> int:
        """Number of buckets L."""
        return -(-self.num_classes // self.leaf_size)

    @property
    def rules(self) -> TreeRules:
        """What kernels need to know; a class alone in its leaf needs no features."""
        kind = LEAVES[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if kind == KERNEL else self.scale
        return TreeRules(self.num_classes, self.leaf_size, self.floor, kind, scale)

    def leaves_due(self, num_updates: int, num: int) -> IntArray:
        """Return the leaves (k,), rising, to be summed anew after `num` more updates.

        One after another, every leaf once in `UPDATES_OF_A_CLASS` updates of all classes.
        """
        each = UPDATES_OF_A_CLASS * self.leaf_size
        first, last = num_updates // each, (num_updates + num) // each
        return np.sort(np.arange(first, last) % self.num_leaves)

    def num_classes_in(self, leaves: IntArray) -> int:
        """Return how many classes are in leaves (k,), rising; the last of all may have fewer."""
        last = min(self.leaf_size, self.num_classes - int(leaves[-1]) * self.leaf_size)
        return (len(leaves) - 1) * self.leaf_size + last

    def leaves_at_a_time(self, numbers: int) -> int:
        """Return of how many leaves the classes' features are about so many numbers."""
        return max(1, numbers // (self.leaf_size * self.feature_dim))
