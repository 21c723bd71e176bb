"""Scores of a few classes for each example, and the sums that carry their gradients back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import IntArray
from samplesoft.kernels.rows import row_dot

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call


@njit
def _add(factor: float, matrix: Floats, i: int, total: Floats) -> None:
    for f in range(len(total)):
        total[f] += factor * matrix[i, f]


@njit
def score_rows(z: Floats, block: Floats, rows: IntArray, scores: Floats) -> None:
    """Write ``scores[b, k] = z[b] . block[rows[b, k]]``, for `z` (B, d) and `block` (r, d)."""
    for b in range(len(rows)):
        for k in range(rows.shape[1]):
            scores[b, k] = row_dot(block, rows[b, k], z, b)


@njit
def label_scores(z: Floats, owners: IntArray, block: Floats, rows: IntArray, own: Floats) -> None:
    """Write ``own[p] = z[owners[p]] . block[rows[p]]`` for each of P pairs."""
    for p in range(len(own)):
        own[p] = row_dot(block, rows[p], z, owners[p])


@njit
def scaled_rows(d_own: Floats, z: Floats, owners: IntArray, out: Floats) -> None:
    """Write ``out[p] = d_own[p] z[owners[p]]`` for each of P pairs."""
    for p in range(len(d_own)):
        for f in range(z.shape[1]):
            out[p, f] = d_own[p] * z[owners[p], f]


@njit
def context_sums(d_scores: Floats, block: Floats, rows: IntArray, dz: Floats) -> None:
    """Add ``sum_k d_scores[b, k] block[rows[b, k]]``, summed in float64, to each row of `dz`."""
    total = np.empty(dz.shape[1])
    for b in range(len(rows)):
        total[:] = 0.0
        for k in range(rows.shape[1]):
            if d_scores[b, k] != 0.0:
                _add(d_scores[b, k], block, rows[b, k], total)
        for f in range(len(total)):
            dz[b, f] += total[f]


@njit
def label_sums(
    d_own: Floats, z: Floats, block: Floats, rows: IntArray, owners: IntArray, dz: Floats
) -> None:
    """Add ``d_own[p] block[rows[p]]`` to row ``owners[p]`` of `dz` (B, d), for each of P pairs."""
    for p in range(len(rows)):
        _add(d_own[p], block, rows[p], dz[owners[p]])


@njit
def class_sums(
    d_own: Floats,
    d_drawn: Floats,
    z: Floats,
    owners: IntArray,
    order: IntArray,
    starts: IntArray,
    first: int,
    d_block: Floats,
) -> None:
    """Write the gradients `d_block` (k, d) of k classes from `first` on, each summed in float64.

    `order` and `starts`, from `kernels.sort_ids.equal_runs`, are the places of each class
    among the P labels, of which `d_own` (P,) are the derivatives, and the draws after them, with
    the flat `d_drawn` (B, m). `z` (B, d) are the contexts, ``z[owners[p]]`` that of label p.
    """
    pairs, width = len(d_own), d_drawn.shape[1]
    flat = d_drawn.ravel()
    total = np.empty(d_block.shape[1])
    for g in range(len(d_block)):
        total[:] = 0.0
        for place in order[starts[first + g] : starts[first + g + 1]]:
            if place < pairs:
                _add(d_own[place], z, owners[place], total)
            elif flat[place - pairs] != 0.0:
                _add(flat[place - pairs], z, (place - pairs) // width, total)
        d_block[g] = total


@njit
def group_totals(d_scores: Floats, order: IntArray, starts: IntArray) -> Floats:
    """Return the sum of the `d_scores` (K,) of each class."""
    totals = np.zeros(len(starts) - 1, d_scores.dtype)
    for g in range(len(totals)):
        total = 0.0
        for place in order[starts[g] : starts[g + 1]]:
            total += d_scores[place]
        totals[g] = total
    return totals
