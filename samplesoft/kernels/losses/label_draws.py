"""Draws that are labels of their example: which they are, and where they have no weight."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray


@njit
def find_labels(
    label_places: IntArray,
    owners: IntArray,
    draw_places: IntArray,
    num: int,
    pairs: IntArray,
    hits: IntArray,
) -> None:
    """Write which of the pairs of its example each draw is the label of.

    `label_places` (P,) and `draw_places`, (B, m) or (1, m) for all, are classes in ``range(num)``,
    `owners` (P,) the examples of the labels, rising. `pairs` (B, m) gets the place of the pair, or
    -1, and `hits` (P,) how many draws are the label of a pair. The labels of an example differ.
    """
    mark = np.full(num, -1)
    hits[:] = 0
    first = 0
    for b in range(len(pairs)):
        last = first
        while last < len(owners) and owners[last] == b:
            mark[label_places[last]] = last
            last += 1
        classes = draw_places[b if len(draw_places) > 1 else 0]
        for k in range(len(classes)):
            p = mark[classes[k]]
            pairs[b, k] = p
            if p >= 0:
                hits[p] += 1
        for p in range(first, last):
            mark[label_places[p]] = -1
        first = last


@njit
def has_weight(pair: int, found: int, own: bool, others: bool) -> bool:
    """Tell whether a draw has weight for `pair`, where it is of the label of the pair `found`.

    A draw of the pair's label has where `own` says so, of another label of its example where
    `others` does, and one of no label, -1, always.
    """
    return found < 0 or (own if found == pair else others)


@njit
def leave_out(
    logits: FloatArray, start: int, owners: IntArray, found: IntArray, own: bool, others: bool
) -> None:
    """Set the logits (P, 1 + m) of pairs from `start` on to -inf for draws without weight.

    `owners` (P,) are the examples of these pairs, `found` (B, m) is from `find_labels`, and `own`
    and `others` are as for `has_weight`.
    """
    for i in range(len(logits)):
        b, row = owners[i], logits[i]
        for k in range(found.shape[1]):
            if not has_weight(start + i, found[b, k], own, others):
                row[1 + k] = -np.inf
