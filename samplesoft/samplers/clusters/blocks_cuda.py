"""The top cells of clusters on the device: their masses, and that in which a uniform falls."""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_max,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels.arrays.search_cuda import first_above


@kernel
def add_up_blocks(masses: Any, shares: Any, log_totals: Any) -> None:
    """Write running sums (B, L) of exp(mass) over the greatest, and the logarithm of all (B,).

    A warp for each example, whose lanes add up parts of the blocks.
    """
    b = warp_index()
    if b >= masses.shape[0]:
        return
    num = masses.shape[1]
    greatest = -math.inf
    for block in range(lane(), num, WARP_SIZE):
        greatest = max(greatest, masses[b, block])
    greatest = warp_max(greatest)
    each = -(-num // WARP_SIZE)
    first, stop = lane() * each, min((lane() + 1) * each, num)
    own = 0.0
    for block in range(first, stop):
        own += math.exp(masses[b, block] - greatest)
        shares[b, block] = own
    before = 0.0
    for other in range(WARP_SIZE):
        there = warp_sum(own if lane() == other else 0.0)
        before += there if other < lane() else 0.0
    for block in range(first, stop):
        shares[b, block] += before
    warp_sync()
    if lane() == 0:
        log_totals[b] = greatest + math.log(shares[b, num - 1])


@kernel
def choose_blocks(
    masses: Any, shares: Any, log_totals: Any, uniforms: Any, blocks: Any, log_q: Any
) -> None:
    """Write the block in which each uniform (B, m) falls, its place there and the log-probability.

    What is left of the uniform replaces it; a thread for each.
    """
    place, num = thread_index(), uniforms.shape[1]
    b, k = place // num, place % num
    if b >= uniforms.shape[0]:
        return
    total = shares[b, shares.shape[1] - 1]
    target = uniforms[b, k] * total
    block = first_above(shares[b], target, False)
    if block == shares.shape[1]:  # the product was rounded up to all
        block = first_above(shares[b], total, True)
    below = shares[b, block - 1] if block > 0 else 0.0
    uniforms[b, k] = min((target - below) / (shares[b, block] - below), 1.0 - 2.0**-53)
    blocks[b, k] = block
    log_q[b, k] = masses[b, block] - log_totals[b]


@kernel
def log_blocks(masses: Any, log_totals: Any, blocks: Any, log_q: Any) -> None:
    """Write the log-probability of blocks (B, k), a thread for each."""
    place, num = thread_index(), blocks.shape[1]
    b, k = place // num, place % num
    if b < blocks.shape[0]:
        log_q[b, k] = masses[b, blocks[b, k]] - log_totals[b]
