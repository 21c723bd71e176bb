"""Descents of the kernel tree: draws, and the probability of what they can reach.

At a node the mass of each half is clipped from below by its number of classes times a floor, and
a branch is taken with probability proportional to the clipped masses. All functions here take
the same inner products in the same way, so that a probability computed later is that of the draw.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.math.dot import dot
from samplesoft.kernels.math.prefetch import CACHE, prefetch_row

Real = NDArray[Any]  # float32 or float64

MAX_DEPTH = 62
_SMALL = 1e-100
_BELOW_ONE = 1.0 - 2.0**-53


@njit
def clip(mass: float, least: float) -> float:
    """Return a mass as it is used: at least `least`, also where it is NaN, and finite."""
    return min(mass, 1e150) if mass > least else least


@njit
def left_share(
    mass: float,
    difference: float,
    lo: int,
    half: int,
    num_classes: int,
    leaf_size: int,
    least: float,
) -> tuple[float, float]:
    """Return the probabilities of the halves of the node over leaves [lo, lo + 2 half)."""
    middle = (lo + half) * leaf_size
    last = min(num_classes, middle + half * leaf_size)
    left = clip(0.5 * (mass + difference), least * (half * leaf_size))
    right = clip(0.5 * (mass - difference), least * (last - middle))
    return left / (left + right), right / (left + right)


@njit
def descend(log_p: float, reach: float, share: float) -> tuple[float, float]:
    """Return a log-probability and a factor beside it, with one more share in their product.

    A logarithm is taken only where the factor becomes small, and at the end.
    """
    reach *= share
    if reach < _SMALL:
        return log_p + math.log(reach), 1.0
    return log_p, reach


@njit
def top(num_leaves: int) -> int:
    """Return the level of the root: it covers 2**level leaves or fewer."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level


@njit
def read_path(
    phi: Real,
    nodes: Real,
    leaf: int,
    num_classes: int,
    leaf_size: int,
    least: float,
    shares: FloatArray,
) -> float:
    """Return the log-probability of reaching `leaf`.

    Writes for each level of its path the probability of the half towards the leaf and of the
    other one; where a node has one half, 1 and 0.
    """
    mass = dot(nodes[0], phi)
    log_p, reach = 0.0, 1.0
    lo = 0
    for level in range(top(len(nodes)), 0, -1):
        half = 1 << (level - 1)
        towards, away = 1.0, 0.0
        if lo + half < len(nodes):
            difference = dot(nodes[lo + half], phi)
            towards, away = left_share(mass, difference, lo, half, num_classes, leaf_size, least)
            if leaf >= lo + half:
                towards, away = away, towards
                difference = -difference
                lo += half
            mass = 0.5 * (mass + difference)
        shares[level, 0], shares[level, 1] = towards, away
        log_p, reach = descend(log_p, reach, towards)
    return log_p + math.log(reach)


@njit
def rest_of_path(shares: FloatArray, level: int, rest: float) -> float:
    """Turn the shares of a path into those given that its class is not drawn.

    `rest` is the probability, in the leaf, of the others; the result is their probability from
    the root, built upwards from positive terms, so that nothing cancels when it is near 0.
    """
    for v in range(1, level + 1):
        towards, away = shares[v, 0] * rest, shares[v, 1]
        rest = towards + away
        if rest > 0.0:
            shares[v, 0], shares[v, 1] = towards / rest, away / rest
    return rest


@njit
def leave_out(
    phi: Real,
    nodes: Real,
    num_classes: int,
    leaf_size: int,
    least: float,
    excluded: int,
    rest: FloatArray,
    shares: FloatArray,
) -> None:
    """Write the shares on the path to an excluded class, given that it is not drawn.

    Reads ``rest[0]`` and writes ``rest[1]``, as `lift_rest` says.
    """
    root = top(len(nodes))
    rest[1] = rest[0]
    if excluded >= 0 and root > 0:
        read_path(phi, nodes, excluded // leaf_size, num_classes, leaf_size, least, shares)
        rest[1] = math.log(rest_of_path(shares, root, math.exp(rest[0])))


@njit
def lift_rest(
    phi: Real,
    nodes: Real,
    num_classes: int,
    leaf_size: int,
    least: float,
    exclude: IntArray,
    rest: FloatArray,
) -> None:
    """Write to ``rest[:, 1]`` the log-probability, from the root, of all but the excluded class.

    ``rest[:, 0]`` holds that of the others in its leaf; both are 0 where nothing is excluded.
    """
    shares = np.empty((MAX_DEPTH, 2))
    for b in range(len(phi)):
        leave_out(phi[b], nodes, num_classes, leaf_size, least, exclude[b], rest[b], shares)


@njit
def known_levels(num_leaves: int, batch: int, num_draws: int) -> int:
    """Return how many levels from the root are better multiplied whole than as they are visited.

    A row that many examples read in turn costs each of them a third or less of a row that it
    fetches for itself, so that a level pays even if an example visits but a third of it.
    """
    levels = 0
    while levels < top(num_leaves) and (4 << levels) <= num_draws * min(batch, 8):
        levels += 1
    return levels


@njit
def multiply_top(phi: Real, nodes: Real, levels: int, known: FloatArray) -> None:
    """Write the products (B, 2**levels) of all nodes in the upper levels and, first, of the total.

    One node after another, so that its row is read once for all examples.
    """
    step = 1 << (top(len(nodes)) - levels)
    for place in range(min(known.shape[1], -(-len(nodes) // step))):
        for b in range(len(phi)):
            known[b, place] = dot(nodes[place * step], phi[b])


@njit
def walk(
    phi: Real,
    nodes: Real,
    known: FloatArray,
    num_classes: int,
    leaf_size: int,
    least: float,
    exclude: IntArray,
    rest: FloatArray,
    uniforms: FloatArray,
    order: IntArray,
    leaves: IntArray,
    log_p: FloatArray,
) -> None:
    """Send the uniforms (B, m) of each example down the tree, level by level.

    Writes, in groups of one leaf, which draw of the example it is, its leaf and the leaf's
    log-probability, (B, m), and what is left of the uniform there. `known` is from
    `multiply_top`. `exclude` (B,) holds a class that is not drawn, or -1; `rest` (B, 2) is as
    for `lift_rest`.
    """
    num_leaves, (batch, m) = len(nodes), uniforms.shape
    root = top(num_leaves)
    below = root - top(known.shape[1])  # the levels whose products are not in `known`
    shares = np.empty((batch, root + 1, 2))
    far = nodes.size * nodes.itemsize > CACHE
    # draws that stand in one node are neighbours: the first has its leaf, stop, mass and log-p
    stops, mass, reach = np.full((batch, m), m), np.empty((batch, m)), np.ones((batch, m))
    for b in range(batch):
        leave_out(phi[b], nodes, num_classes, leaf_size, least, exclude[b], rest[b], shares[b])
        for k in range(m):
            order[b, k] = k
        leaves[b, 0], mass[b, 0], log_p[b, 0] = 0, known[b, 0], 0.0
    for level in range(root, 0, -1):
        half = 1 << (level - 1)
        for b in range(batch):
            barred = exclude[b] // leaf_size if exclude[b] >= 0 else -1
            stop = 0
            while stop < m:
                start, stop = stop, stops[b, stop]
                lo = leaves[b, start]
                if lo + half >= num_leaves:
                    continue
                if level > below:
                    difference = known[b, (lo + half) >> below]
                else:
                    if far:
                        ahead = leaves[b, stop] if stop < m else leaves[min(b + 1, batch - 1), 0]
                        prefetch_row(nodes, min(ahead + half, num_leaves - 1))
                    difference = dot(nodes[lo + half], phi[b])
                left, right = left_share(
                    mass[b, start], difference, lo, half, num_classes, leaf_size, least
                )
                chosen = left
                if lo <= barred < lo + 2 * half:
                    chosen = shares[b, level, 0] if barred < lo + half else shares[b, level, 1]
                middle = split(uniforms[b], order[b], start, stop, chosen)
                here, log_here, reached = mass[b, start], log_p[b, start], reach[b, start]
                if middle < stop:
                    leaves[b, middle], stops[b, middle] = lo + half, stop
                    mass[b, middle] = 0.5 * (here - difference)
                    log_p[b, middle], reach[b, middle] = descend(log_here, reached, right)
                if start < middle:
                    stops[b, start] = middle
                    mass[b, start] = 0.5 * (here + difference)
                    log_p[b, start], reach[b, start] = descend(log_here, reached, left)
    for b in range(batch):
        stop = 0
        while stop < m:
            start, stop = stop, stops[b, stop]
            leaves[b, start:stop] = leaves[b, start]
            log_p[b, start:stop] = log_p[b, start] + math.log(reach[b, start])


@njit
def stretch(u: float, left: float) -> tuple[bool, float]:
    """Return whether a uniform lies below `left`, and its place in that part or in the other.

    What rounds to 1 would enter a part without mass.
    """
    is_left = u < left
    begin, width = (0.0, left) if is_left else (left, 1.0 - left)
    return is_left, min((u - begin) / width, _BELOW_ONE)


@njit
def split(uniforms: FloatArray, order: IntArray, start: int, stop: int, left: float) -> int:
    """Move uniforms below `left` to the front, stretch all, and return where the parts meet."""
    middle = start
    for k in range(start, stop):
        is_left, u = stretch(uniforms[k], left)
        if is_left:
            uniforms[k], uniforms[middle] = uniforms[middle], u
            order[k], order[middle] = order[middle], order[k]
            middle += 1
        else:
            uniforms[k] = u
    return middle


@njit
def log_reach(
    phi: Real,
    nodes: Real,
    leaves: IntArray,
    num_classes: int,
    leaf_size: int,
    least: float,
    log_p: FloatArray,
) -> None:
    """Write the log-probability of reaching each of the leaves (B, k)."""
    shares = np.empty((MAX_DEPTH, 2))
    for b in range(len(phi)):
        for k in range(leaves.shape[1]):
            log_p[b, k] = read_path(
                phi[b], nodes, leaves[b, k], num_classes, leaf_size, least, shares
            )


@njit
def log_reach_all(
    phi: Real, nodes: Real, num_classes: int, leaf_size: int, least: float, log_p: FloatArray
) -> None:
    """Write the log-probability of reaching every leaf, (B, L)."""
    num_leaves = len(nodes)
    mass, reach = np.empty(num_leaves), np.empty(num_leaves)
    for b in range(len(phi)):
        mass[0], log_p[b, 0], reach[0] = dot(nodes[0], phi[b]), 0.0, 1.0
        for level in range(top(num_leaves), 0, -1):
            half = 1 << (level - 1)
            for lo in range(0, num_leaves - half, 2 * half):
                here = mass[lo]
                difference = dot(nodes[lo + half], phi[b])
                left, right = left_share(here, difference, lo, half, num_classes, leaf_size, least)
                mass[lo], mass[lo + half] = 0.5 * (here + difference), 0.5 * (here - difference)
                log_here, reached = log_p[b, lo], reach[lo]
                log_p[b, lo + half], reach[lo + half] = descend(log_here, reached, right)
                log_p[b, lo], reach[lo] = descend(log_here, reached, left)
        for leaf in range(num_leaves):
            log_p[b, leaf] += math.log(reach[leaf])
