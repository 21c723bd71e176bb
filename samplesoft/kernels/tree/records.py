"""What kernels of the tree take together, by name, so that no two arrays change places.

The same records serve on the processor and on a device, where their arrays lie on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray

Real = NDArray[Any]  # float32 or float64

KERNEL, SOFTMAX, QUADRATIC = 0, 1, 2
LEAVES = {"kernel": KERNEL, "softmax": SOFTMAX, "quadratic": QUADRATIC}


class TreeRules(NamedTuple):
    """The numbers by which a tree is descended and a class is drawn in its leaf.

    A class is weighed there by its inner product x with the query: for ``KERNEL`` by
    ``max(x, scale)``, for ``SOFTMAX`` by ``exp(scale * x)``, for ``QUADRATIC`` by
    ``scale * x**2 + 1``.
    """

    num_classes: int
    leaf_size: int  # classes that share a leaf; the last leaf may hold fewer
    floor: float  # least mass of a class on the way down
    kind: int
    scale: float


class Exclusion(NamedTuple):
    """The class that each example excludes, and how likely all the others are.

    The latter are log-probabilities: in the leaf of the excluded class, and from the root. Both
    are 0 where nothing is excluded.
    """

    classes: IntArray  # (B,), -1 for none
    log_remaining: FloatArray  # (B, 2)


class Draws(NamedTuple):
    """Draws on their way through the tree, those of one leaf side by side, (B, m)."""

    uniforms: FloatArray  # what is left of each in its leaf: its place between 0 and 1 there
    order: IntArray  # which draw of the example it is
    leaves: IntArray
    log_reach: FloatArray  # log-probability of reaching the leaf


class LeafRows(NamedTuple):
    """What is multiplied inside leaves: class vectors, or features of classes."""

    queries: Real  # (B, d): contexts, or their features
    rows: Real  # (k, d): the same of classes, those of a leaf one after another
    starts: IntArray  # row of the first class of each leaf visited; -1 where it is not here
