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

    Parameters
    ----------
    num_classes, leaf_size : int
        Classes n, and how many of them share a leaf; the last leaf may hold fewer.
    floor : float
        Least mass of a class on the way down.
    kind : int
        How a class is weighed in its leaf by its inner product x with the query: ``KERNEL`` for
        ``max(x, scale)``, ``SOFTMAX`` for ``exp(scale * x)``, ``QUADRATIC`` for
        ``scale * x**2 + 1``.
    scale : float
        Parameter of that weight.
    """

    num_classes: int
    leaf_size: int
    floor: float
    kind: int
    scale: float


class Exclusion(NamedTuple):
    """The class that each example excludes, and how likely all the others are.

    Parameters
    ----------
    classes : ndarray of int64, shape (B,)
        Classes that are not drawn; -1 for none.
    log_remaining : ndarray of float64, shape (B, 2)
        Log-probability of all other classes: in the leaf of the excluded class, and from the
        root. Both are 0 where nothing is excluded.
    """

    classes: IntArray
    log_remaining: FloatArray


class Draws(NamedTuple):
    """Draws on their way through the tree, those of one leaf side by side, (B, m).

    Parameters
    ----------
    uniforms : ndarray of float64
        What is left of each uniform in its leaf: its place between 0 and 1 there.
    order : ndarray of int64
        Which draw of the example it is.
    leaves : ndarray of int64
        The leaf that it reaches.
    log_reach : ndarray of float64
        The log-probability of reaching that leaf.
    """

    uniforms: FloatArray
    order: IntArray
    leaves: IntArray
    log_reach: FloatArray


class LeafRows(NamedTuple):
    """What is multiplied inside leaves: class vectors, or features of classes.

    Parameters
    ----------
    queries : ndarray, shape (B, d)
        Contexts, or their features.
    rows : ndarray, shape (k, d)
        The same of classes, those of a leaf one after another.
    starts : ndarray of int64
        Row of the first class of each leaf that is visited; -1 where its rows are not here.
    """

    queries: Real
    rows: Real
    starts: IntArray
