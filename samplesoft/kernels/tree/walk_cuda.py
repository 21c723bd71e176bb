"""Descents of the kernel tree on the device: a warp for each draw.

Lanes share the inner products, whose rows they read side by side, and take each decision alike.
Branches are those of `kernels.tree.walk`: given the same masses and uniforms, draws are the same.
"""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import for_device, kernel, lane, thread_index, warp_index, warp_sync
from samplesoft.kernels.lanes_cuda import warp_dot, warp_row_dot
from samplesoft.kernels.tree import walk as host
from samplesoft.kernels.tree.records import Exclusion, TreeRules
from samplesoft.kernels.tree.walk import excluding_share, half_shares, stretch, times_share, top

read_path = for_device(host.read_path, row_dot=warp_row_dot)
condition_path = for_device(host.condition_path)


@kernel
def exclude_classes(
    phi: Any, nodes: Any, exclusion: Exclusion, rules: TreeRules, shares: Any
) -> None:
    """Write the shares (B, depth, 2) on the path to each excluded class where it is not drawn.

    Reads the first column of ``log_remaining`` and writes the second; a warp for each example.
    """
    b = warp_index()
    if b >= phi.shape[0]:
        return
    classes, log_remaining = exclusion.classes, exclusion.log_remaining
    root = top(nodes.shape[0])
    has_path = classes[b] >= 0 and root > 0
    if has_path:
        read_path(phi, b, nodes, classes[b] // rules.leaf_size, rules, shares[b])
    warp_sync()
    if lane() == 0:
        log_remaining[b, 1] = log_remaining[b, 0]
        if has_path:
            remaining = condition_path(shares[b], root, math.exp(log_remaining[b, 0]))
            log_remaining[b, 1] = math.log(remaining)


@kernel
def walk(
    phi: Any,
    nodes: Any,
    exclusion: Exclusion,
    shares: Any,
    rules: TreeRules,
    uniforms: Any,
    leaves: Any,
    log_reach: Any,
) -> None:
    """Send each of the uniforms (B, m) down the tree, a warp for each.

    Writes its leaf, the leaf's log-probability and, in `uniforms`, what is left of it there.
    `shares` is from `exclude_classes`.
    """
    m = uniforms.shape[1]
    b, k = warp_index() // m, warp_index() % m
    if b >= uniforms.shape[0]:
        return
    excluded_leaf = exclusion.classes[b] // rules.leaf_size  # -1 where nothing is excluded
    mass, u = warp_dot(nodes[0], phi[b]), uniforms[b, k]
    first, log_here, factor = 0, 0.0, 1.0
    for level in range(top(nodes.shape[0]), 0, -1):
        half = 1 << (level - 1)
        if first + half >= nodes.shape[0]:
            continue
        difference = warp_dot(nodes[first + half], phi[b])
        left, right = half_shares(mass, difference, first, half, rules)
        towards, away = shares[b, level, 0], shares[b, level, 1]
        chosen = excluding_share(left, towards, away, first, half, excluded_leaf)
        is_left, u = stretch(u, chosen)
        share = left if is_left else right
        mass = 0.5 * (mass + difference) if is_left else 0.5 * (mass - difference)
        first = first if is_left else first + half
        log_here, factor = times_share(log_here, factor, share)
    if lane() == 0:
        uniforms[b, k], leaves[b, k] = u, first
        log_reach[b, k] = log_here + math.log(factor)


@kernel
def reach_leaves(
    phi: Any, nodes: Any, leaves: Any, rules: TreeRules, shares: Any, log_reach: Any
) -> None:
    """Write the log-probability of reaching each of the leaves (B, k), a warp for each.

    `shares` (B * k, depth, 2) is room to work in.
    """
    place, num = warp_index(), leaves.shape[1]
    b, k = place // num, place % num
    if b < leaves.shape[0]:
        found = read_path(phi, b, nodes, leaves[b, k], rules, shares[place])
        if lane() == 0:
            log_reach[b, k] = found


@kernel
def start_at_root(phi: Any, nodes: Any, mass: Any, log_reach: Any, factor: Any) -> None:
    """Write what `reach_next_level` reads at the root, a warp for each example."""
    b = warp_index()
    if b < phi.shape[0]:
        total = warp_dot(nodes[0], phi[b])
        if lane() == 0:
            mass[b, 0], log_reach[b, 0], factor[b, 0] = total, 0.0, 1.0


@kernel
def reach_next_level(
    phi: Any, nodes: Any, half: int, rules: TreeRules, mass: Any, log_reach: Any, factor: Any
) -> None:
    """Descend from all nodes over ``2 * half`` leaves to their halves, a warp for each.

    `mass`, `log_reach` and the factor beside it, (B, L), hold at the first leaf of a node what
    belongs to the node.
    """
    num_leaves = nodes.shape[0]
    across = -(-num_leaves // (2 * half))
    b, first = warp_index() // across, warp_index() % across * 2 * half
    right_first = first + half
    if b >= phi.shape[0] or right_first >= num_leaves:
        return
    difference = warp_dot(nodes[right_first], phi[b])
    warp_sync()
    if lane() == 0:
        here, log_here, factor_here = mass[b, first], log_reach[b, first], factor[b, first]
        left, right = half_shares(here, difference, first, half, rules)
        mass[b, first], mass[b, right_first] = 0.5 * (here + difference), 0.5 * (here - difference)
        log_reach[b, right_first], factor[b, right_first] = times_share(
            log_here, factor_here, right
        )
        log_reach[b, first], factor[b, first] = times_share(log_here, factor_here, left)


@kernel
def add_log(log_reach: Any, factor: Any) -> None:
    """Add the logarithm of the factor to `log_reach` (N,), a thread for each number."""
    i = thread_index()
    if i < log_reach.shape[0]:
        log_reach[i] += math.log(factor[i])
