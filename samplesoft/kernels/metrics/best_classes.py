"""The best classes of each context: scores by the tile, which stay in the first cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import IntArray
from samplesoft.kernels.rows import Real as Floats
from samplesoft.kernels.rows import divide_by_norms


class Scoring(NamedTuple):
    """What is made of products of contexts and class vectors."""

    normalize: bool  # divide class vectors by their norms
    offsets: Floats  # (n,): biases, or (0,)
    absolute: bool


class LeftOut(NamedTuple):
    """Classes that are not wanted."""

    starts: IntArray  # (B + 1,): where those of a context begin in `ids`; zeros if there are none
    ids: IntArray  # (P,): ascending for each context
    absent: NDArray[np.bool_]  # (n,): those of all contexts, or (0,)


@njit
def keep_best(
    z: Floats,
    rows: Floats,
    first: int,
    end: int,
    tile: tuple[int, int],
    scoring: Scoring,
    left_out: LeftOut,
    best: Floats,
    ids: IntArray,
) -> int:
    """Let classes from `first` to before `end` into the k best of each context in `z` (B, d).

    `best` (B, k) are scores so far, a heap with the worst in column 0, -inf where there is none
    yet; `ids` (B, k) their classes, n where there is none. Classes come in their order: of equal
    scores the first is better. NaN counts as infinite, so that it is seen. A `tile` has so many
    contexts and classes. The return value is the first class whose vector is not finite or cannot
    be normalised, at which the search ends, or -1.
    """
    height, width = tile
    block, norms = np.empty((width, rows.shape[1]), rows.dtype), np.empty(width)
    buffer = np.empty(height * width, rows.dtype)
    for start in range(first, end, width):
        count = min(width, end - start)
        given = rows[start : start + count]
        if scoring.normalize:
            unit = block[:count]
            for j in range(count):
                for i in range(rows.shape[1]):
                    unit[j, i] = given[j, i]
            divide_by_norms(unit, norms[:count])
            for j in range(count):
                if not (0.0 < norms[j] < np.inf):
                    return start + j
            _search(z, unit, start, height, buffer, scoring, left_out, best, ids)
        else:
            for j in range(count):
                if not _is_finite(given[j]):
                    return start + j
            _search(z, given, start, height, buffer, scoring, left_out, best, ids)
    return -1


@njit
def _search(
    z: Floats,
    rows: Floats,
    first: int,
    height: int,
    buffer: Floats,
    scoring: Scoring,
    left_out: LeftOut,
    best: Floats,
    ids: IntArray,
) -> None:
    """Search classes from `first` on, of vectors `rows` (r, d), for `height` contexts at a time."""
    for begin in range(0, len(z), height):
        contexts = z[begin : begin + height]
        scores = buffer[: len(contexts) * len(rows)].reshape((len(contexts), len(rows)))
        np.dot(contexts, rows.T, scores)
        _finish(scores, first, scoring)
        for i in range(len(contexts)):
            if _some_above(scores[i], best[begin + i, 0]):
                _let_in(scores[i], first, left_out, begin + i, best[begin + i], ids[begin + i])


@njit_sum
def _is_finite(row: Floats) -> bool:
    total = row[0] - row[0]
    for i in range(1, len(row)):
        total += row[i] - row[i]
    return bool(total == 0.0)


@njit
def _finish(scores: Floats, first: int, scoring: Scoring) -> None:
    if len(scoring.offsets) == 0 and not scoring.absolute:
        return
    for i in range(len(scores)):
        row = scores[i]
        if len(scoring.offsets) > 0:
            for j in range(len(row)):
                row[j] += scoring.offsets[first + j]
        if scoring.absolute:
            for j in range(len(row)):
                row[j] = abs(row[j])


@njit
def _some_above(scores: Floats, bound: float) -> bool:
    some = False
    for j in range(len(scores)):
        some |= not (scores[j] <= bound)
    return some


@njit
def _let_in(
    scores: Floats, first: int, left_out: LeftOut, example: int, best: Floats, ids: IntArray
) -> None:
    own = left_out.ids[left_out.starts[example] : left_out.starts[example + 1]]
    for j in range(len(scores)):
        if not (scores[j] <= best[0]):
            class_id = first + j
            if len(left_out.absent) > 0 and left_out.absent[class_id]:
                continue
            place = np.searchsorted(own, class_id)
            if place < len(own) and own[place] == class_id:
                continue
            score = np.inf if np.isnan(scores[j]) else scores[j]
            _replace_worst(best, ids, score, class_id)


@njit
def _replace_worst(best: Floats, ids: IntArray, score: float, class_id: int) -> None:
    place, k = 0, len(best)
    while 2 * place + 1 < k:
        child = 2 * place + 1
        if child + 1 < k and _worse(best[child + 1], ids[child + 1], best[child], ids[child]):
            child += 1
        if not _worse(best[child], ids[child], score, class_id):
            break
        best[place], ids[place] = best[child], ids[child]
        place = child
    best[place], ids[place] = score, class_id


@njit
def _worse(score: float, class_id: int, other_score: float, other_id: int) -> bool:
    return score < other_score or (score == other_score and class_id > other_id)
