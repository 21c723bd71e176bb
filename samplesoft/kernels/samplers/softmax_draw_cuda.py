"""Blocks of a softmax on the device: their masses, and the block that each uniform falls in."""

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
def sum_blocks(
    logits: Any, first: int, width: int, num_classes: int, exclude: Any, masses: Any
) -> None:
    """Write the logarithm of the sum of exp of each block of `width` logits.

    `logits` (B, k * width) are those of k blocks from `first` on; `masses` is (B, L). The class
    that an example excludes is left out; a warp for each block of each example.
    """
    num = logits.shape[1] // width
    b, block = warp_index() // num, warp_index() % num
    if b >= logits.shape[0]:
        return
    begin = (first + block) * width
    size, excluded = min(width, num_classes - begin), exclude[b] - begin
    greatest = -math.inf
    for c in range(lane(), size, WARP_SIZE):
        if c != excluded:
            greatest = max(greatest, float(logits[b, block * width + c]))
    greatest = warp_max(greatest)
    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        if c != excluded:
            total += math.exp(float(logits[b, block * width + c]) - greatest)
    total = warp_sum(total)
    if lane() == 0:
        alone = size == 1 and excluded == 0
        masses[b, first + block] = -math.inf if alone else greatest + math.log(total)


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
