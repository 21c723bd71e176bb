"""Draws through an inverted multi-index, whose cells are pairs of codewords of two codebooks.

A row of cells shares the first codeword. A draw takes a row by its mass, a cell of it by the mass
of that, and a class of the cell with equal probability. The mass of a cell is the number of its
classes times ``exp(tau h . (u + v))`` for its codewords u and v; that of u is a factor of the row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.math.weights import exp_weights, find

_LEAST = 1e-250  # a sum of exponentials below it may have lost some to underflow


class Cells(NamedTuple):
    """Cells (K, L): their numbers of classes, the logarithms of these, and where they begin.

    The classes lie cell by cell, row after row.
    """

    counts: FloatArray
    log_counts: FloatArray
    starts: IntArray


@njit
def weigh_row(
    cells: Cells,
    row: int,
    scores: FloatArray,
    excluded: IntArray,
    logits: FloatArray,
    weights: FloatArray,
) -> tuple[float, float]:
    """Write the logits of the cells of a row, and exp(logit) divided by the greatest.

    `scores` (L,) are those of the second codewords, `excluded` (3,) the row, the cell and the
    place of the class that is left out. Returns the sum of what is written last, and the logarithm
    of the whole.
    """
    for cell in range(len(scores)):
        logits[cell] = cells.log_counts[row, cell] + scores[cell]
    if row == excluded[0]:
        cell = excluded[1]
        others = cells.counts[row, cell] - 1.0
        logits[cell] = scores[cell] + math.log(others) if others > 0.0 else -np.inf
    if logits.max() == -np.inf:  # nothing but the excluded class
        weights[:] = 0.0
        return 0.0, -np.inf
    weights[:] = logits
    total, greatest = exp_weights(weights, len(weights), -1)
    return total, greatest + math.log(total)


@njit
def weigh_rows(
    cells: Cells,
    first: FloatArray,
    second: FloatArray,
    greatest: FloatArray,
    exclude: IntArray,
    sums: FloatArray,
) -> None:
    """Turn sums of ``exp(second - greatest)`` over the classes of each row into log shares (B, K).

    `first` (B, K) are the scores of the first codewords. Where a sum does not serve, for a class is
    excluded or for underflow, the row is summed up anew.
    """
    num_rows, num_cells = cells.counts.shape
    room, shares = np.empty((2, num_cells)), np.empty(num_rows)
    for b in range(len(sums)):
        for row in range(num_rows):
            if row == exclude[b, 0] or sums[b, row] < _LEAST:
                mass = weigh_row(cells, row, second[b], exclude[b], room[0], room[1])[1]
            else:
                mass = greatest[b] + math.log(sums[b, row])
            sums[b, row] = first[b, row] + mass
        shares[:] = sums[b]
        total, heaviest = exp_weights(shares, num_rows, -1)
        for row in range(num_rows):
            sums[b, row] -= heaviest
            sums[b, row] -= math.log(total)  # which a huge number before it would hide


@njit
def others_in(cells: Cells, row: int, cell: int, excluded: IntArray) -> int:
    """Return how many classes a cell has without the one that is left out."""
    own = row == excluded[0] and cell == excluded[1]
    return int(cells.counts[row, cell]) - (1 if own else 0)


@njit
def draw(
    cells: Cells,
    log_shares: FloatArray,
    second: FloatArray,
    exclude: IntArray,
    uniforms: FloatArray,
    order: IntArray,
    places: IntArray,
    log_q: FloatArray,
) -> None:
    """Draw the place of a class (B, m) for each uniform.

    `order` (B, m) sorts the uniforms of each context; `exclude` (B, 3) is as in `weigh_row`.
    """
    num_rows, num_cells = cells.counts.shape
    shares, logits, weights = np.empty(num_rows), np.empty(num_cells), np.empty(num_cells)
    for b in range(len(log_shares)):
        shares[:] = log_shares[b]
        total, _ = exp_weights(shares, num_rows, -1)
        row, below, here, cell, under, within, log_within = 0, 0.0, -1, 0, 0.0, 0.0, 0.0
        for k in order[b]:
            target = uniforms[b, k] * total
            row, below = find(shares, num_rows, target, row, below)
            if row != here:
                within, log_within = weigh_row(cells, row, second[b], exclude[b], logits, weights)
                here, cell, under = row, 0, 0.0
            inner = within * ((target - below) / shares[row])
            cell, under = find(weights, num_cells, inner, cell, under)
            size = others_in(cells, row, cell, exclude[b])
            at = min(int((inner - under) / weights[cell] * size), size - 1)
            place = cells.starts[row, cell] + at
            if size < cells.counts[row, cell] and place >= exclude[b, 2]:
                place += 1
            places[b, k] = place
            log_q[b, k] = log_shares[b, row] + (logits[cell] - log_within) - math.log(size)


@njit
def log_prob(
    cells: Cells,
    log_shares: FloatArray,
    second: FloatArray,
    exclude: IntArray,
    codes: IntArray,
    order: IntArray,
    log_q: FloatArray,
) -> None:
    """Write the log-probability of classes (B, k), which have `codes` (B, k, 2).

    `order` (B, k) sorts the rows of each context; the rest is as in `draw`.
    """
    num_cells = cells.counts.shape[1]
    logits, weights = np.empty(num_cells), np.empty(num_cells)
    for b in range(len(log_shares)):
        here, log_within = -1, 0.0
        for k in order[b]:
            row, cell = codes[b, k]
            if row != here:
                _, log_within = weigh_row(cells, row, second[b], exclude[b], logits, weights)
                here = row
            size = others_in(cells, row, cell, exclude[b])
            if size == 0:
                log_q[b, k] = -np.inf
            else:
                log_q[b, k] = log_shares[b, row] + (logits[cell] - log_within) - math.log(size)
