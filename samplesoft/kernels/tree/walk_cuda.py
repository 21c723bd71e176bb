"""Descents of the kernel tree on the device: a warp for each draw.

Lanes share the inner products, whose rows they read side by side, and take each decision alike.
Branches are those of `kernels.tree.walk`: given the same masses and uniforms, draws are the same.
"""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    kernel,
    lane,
    thread_index,
    twin,
    warp_index,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels.tree import walk as tree_walk
from samplesoft.kernels.tree.walk import descend, left_share, stretch, top


@device_function
def warp_dot(x: Any, y: Any) -> float:
    """Return the inner product of two vectors, summed in the type of the first."""
    total = x.dtype.type(0)
    for f in range(lane(), x.shape[0], WARP_SIZE):
        total += x[f] * y[f]
    return float(warp_sum(total))


read_path = twin(tree_walk.read_path, dot=warp_dot)
rest_of_path = twin(tree_walk.rest_of_path)


@kernel
def leave_out(
    phi: Any,
    nodes: Any,
    num_classes: int,
    leaf_size: int,
    least: float,
    exclude: Any,
    rest: Any,
    shares: Any,
) -> None:
    """Write the shares (B, depth, 2) on the path to each excluded class where it is not drawn.

    Reads ``rest[:, 0]`` and writes ``rest[:, 1]``, as `tree_walk.lift_rest` says; a warp for each
    example.
    """
    b = warp_index()
    if b >= phi.shape[0]:
        return
    root = top(nodes.shape[0])
    barred = exclude[b] >= 0 and root > 0
    if barred:
        leaf = exclude[b] // leaf_size
        read_path(phi[b], nodes, leaf, num_classes, leaf_size, least, shares[b])
    warp_sync()
    if lane() == 0:
        rest[b, 1] = rest[b, 0]
        if barred:
            rest[b, 1] = math.log(rest_of_path(shares[b], root, math.exp(rest[b, 0])))


@kernel
def walk(
    phi: Any,
    nodes: Any,
    num_classes: int,
    leaf_size: int,
    least: float,
    exclude: Any,
    shares: Any,
    uniforms: Any,
    leaves: Any,
    log_p: Any,
) -> None:
    """Send each of the uniforms (B, m) down the tree, a warp for each.

    Writes its leaf, the leaf's log-probability and, in `uniforms`, what is left of it there.
    `exclude` (B,) holds a class that is not drawn, or -1, and `shares` is from `leave_out`.
    """
    m = uniforms.shape[1]
    b, k = warp_index() // m, warp_index() % m
    if b >= uniforms.shape[0]:
        return
    barred = exclude[b] // leaf_size if exclude[b] >= 0 else -1
    mass, u = warp_dot(nodes[0], phi[b]), uniforms[b, k]
    lo, log_here, reach = 0, 0.0, 1.0
    for level in range(top(nodes.shape[0]), 0, -1):
        half = 1 << (level - 1)
        if lo + half >= nodes.shape[0]:
            continue
        difference = warp_dot(nodes[lo + half], phi[b])
        left, right = left_share(mass, difference, lo, half, num_classes, leaf_size, least)
        chosen = left
        if lo <= barred < lo + 2 * half:
            chosen = shares[b, level, 0] if barred < lo + half else shares[b, level, 1]
        is_left, u = stretch(u, chosen)
        share = left if is_left else right
        mass = 0.5 * (mass + difference) if is_left else 0.5 * (mass - difference)
        lo = lo if is_left else lo + half
        log_here, reach = descend(log_here, reach, share)
    if lane() == 0:
        uniforms[b, k], leaves[b, k] = u, lo
        log_p[b, k] = log_here + math.log(reach)


@kernel
def log_reach(
    phi: Any,
    nodes: Any,
    leaves: Any,
    num_classes: int,
    leaf_size: int,
    least: float,
    shares: Any,
    log_p: Any,
) -> None:
    """Write the log-probability of reaching each of the leaves (B, k), a warp for each.

    `shares` (B * k, depth, 2) is room to work in.
    """
    place, num = warp_index(), leaves.shape[1]
    b, k = place // num, place % num
    if b < leaves.shape[0]:
        reached = read_path(
            phi[b], nodes, leaves[b, k], num_classes, leaf_size, least, shares[place]
        )
        if lane() == 0:
            log_p[b, k] = reached


@kernel
def start_all(phi: Any, nodes: Any, mass: Any, log_p: Any, reach: Any) -> None:
    """Write the mass of the root for `log_reach_level`, a warp for each example."""
    b = warp_index()
    if b < phi.shape[0]:
        total = warp_dot(nodes[0], phi[b])
        if lane() == 0:
            mass[b, 0], log_p[b, 0], reach[b, 0] = total, 0.0, 1.0


@kernel
def log_reach_level(
    phi: Any,
    nodes: Any,
    half: int,
    num_classes: int,
    leaf_size: int,
    least: float,
    mass: Any,
    log_p: Any,
    reach: Any,
) -> None:
    """Descend from all nodes over ``2 * half`` leaves to their halves, a warp for each.

    `mass`, `log_p` and the factor beside it, (B, L), hold at the first leaf of a node what
    belongs to the node.
    """
    num_leaves = nodes.shape[0]
    across = -(-num_leaves // (2 * half))
    b, lo = warp_index() // across, warp_index() % across * 2 * half
    if b >= phi.shape[0] or lo + half >= num_leaves:
        return
    difference = warp_dot(nodes[lo + half], phi[b])
    warp_sync()
    if lane() == 0:
        here, log_here, reached = mass[b, lo], log_p[b, lo], reach[b, lo]
        left, right = left_share(here, difference, lo, half, num_classes, leaf_size, least)
        mass[b, lo], mass[b, lo + half] = 0.5 * (here + difference), 0.5 * (here - difference)
        log_p[b, lo + half], reach[b, lo + half] = descend(log_here, reached, right)
        log_p[b, lo], reach[b, lo] = descend(log_here, reached, left)


@kernel
def add_log(log_p: Any, reach: Any) -> None:
    """Add the logarithm of the factor to `log_p` (N,), a thread for each number."""
    i = thread_index()
    if i < log_p.shape[0]:
        log_p[i] += math.log(reach[i])
