"""What a kernel tree is made of, beside its numbers: sizes, leaves and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from samplesoft.kernels.tree.records import KERNEL, LEAVES, SOFTMAX, TreeRules


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

    def leaves_at_a_time(self, numbers: int) -> int:
        """Return of how many leaves the classes' features are about so many numbers."""
        return max(1, numbers // (self.leaf_size * self.feature_dim))
