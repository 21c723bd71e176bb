"""Top-k search: the classes with the largest scores, without a matrix of all scores.

Each thread searches chunks of the classes, and keeps the k best classes of each context in a heap.
Scores are computed in tiles of a few contexts by a few classes, which fit in the processor's cache.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import cpu
from samplesoft._device.arrays import RemoteRows
from samplesoft._jit import chunks, njit, njit_bare, njit_sum, num_threads, thread_map
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_csr, as_flag, as_float_rows
from samplesoft.kernels.products import products, round_up_to_8
from samplesoft.kernels.rows import divide_by_norms, row_dot
from samplesoft.kernels.sort_ids import count_below
from samplesoft.losses.vectors import (
    checked_class_embeddings,
    require_finite_rows,
    unit_rows,
)
from samplesoft.samplers.base import Rows

# Multiplications for the scores of a tile. OpenBLAS computes a product of this size on the calling
# thread alone, so that the threads of the search do not wait for each other.
_PRODUCTS_PER_TILE = 1 << 18
_MAX_TILE_SHAPE = 64, 256  # largest numbers of contexts and classes in a tile
_CLASSES_PER_TASK = 8192  # number of classes in a task, which one thread searches
_MIN_CLASS_CHUNKS = 16  # with fewer chunks of classes, the contexts are split into tasks too
_CONTEXTS_PER_TASK = 128  # number of contexts in a task if the contexts are split
_MAX_CONTEXTS_IN_LOOP = 8  # with up to this many contexts in a tile, a loop is faster than BLAS
_CONTEXTS_AT_A_TIME = 1024  # number of contexts whose k best classes a thread keeps in memory


def top_k_classes(
    h: ArrayLike,
    class_embeddings: ArrayLike,
    k: int,
    *,
    tau: float | None = None,
    normalize: bool = False,
    absolute: bool = False,
    biases: ArrayLike | None = None,
    leave_out: Any = None,
) -> tuple[IntArray, Rows]:
    """Return the k classes with the largest scores for each context, and the scores.

    Parameters
    ----------
    h : array_like, shape (B, d)
        Context vectors.
    class_embeddings : array_like, shape (n, d)
        Class vectors.
    k : int
        Number of classes, at most n.
    tau, normalize, absolute
        As in `samplesoft.losses.base.Loss`.
    biases : array_like, shape (n,), optional
        Class biases, which are added to the scores.
    leave_out : scipy.sparse matrix, shape (B, n), optional
        Row b has nonzero entries for the classes to exclude for context b.

    Returns
    -------
    ids : ndarray of int64, shape (B, k)
        Classes of each context by decreasing score; among equal scores by increasing index. If
        fewer than k classes remain after exclusion, the first excluded classes fill the row.
    scores : ndarray, shape (B, k)
        Scores in the type of the class vectors; -inf for excluded classes.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or one of the k best scores is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> top_k_classes([[1.0, 3.0, 2.0]], np.eye(3), 2)
    (array([[1, 2]]), array([[3., 2.]]))
    """
    rows = checked_class_embeddings(class_embeddings)
    n = int(rows.shape[0])
    d = rows.shape[1]
    contexts = as_float_rows("h", h, d, rows.dtype)
    size = checked_k(k, n)
    normalize = as_flag("normalize", normalize)
    absolute = as_flag("absolute", absolute)
    offsets = None if biases is None else cpu.vector("biases", biases, n, rows.dtype)
    excluded = checked_leave_out(leave_out, (len(contexts), n))

    if normalize:
        contexts, _ = unit_rows("h", contexts.copy())
    z = times_tau(contexts, as_tau(tau, unit_vectors=normalize))
    ids, scores = best_classes(
        z, rows, size, normalize=normalize, absolute=absolute, offsets=offsets, leave_out=excluded
    )

    # for each context the number of entries to fill with excluded classes
    num_missing = np.zeros(len(z), np.int64)
    if excluded is not None:
        num_missing = np.maximum(np.diff(excluded.indptr) - (n - size), 0)
        for b in np.flatnonzero(num_missing):  # replace -1 by the first excluded classes
            start = excluded.indptr[b]
            ids[b, size - num_missing[b] :] = excluded.indices[start : start + num_missing[b]]

    # The search replaces NaN by infinity, which is among the k best scores: check only these.
    num_finite = np.isfinite(scores).sum(axis=1) == size - num_missing
    if not num_finite.all():
        row = int(np.argmin(num_finite))
        raise ValueError(
            f"the best scores must be finite, got {scores[row].max()} for row {row} of `h`; "
            f"`class_embeddings` must be finite, and scores within the range of {z.dtype}: scale "
            "vectors down, or use float64."
        )

    return ids, scores


def best_classes(
    z: Rows,
    rows: Rows,
    k: int,
    *,
    normalize: bool = False,
    absolute: bool = False,
    offsets: Rows | None = None,
    leave_out: Any = None,
    absent: NDArray[np.bool_] | None = None,
) -> tuple[IntArray, Rows]:
    """Return the ids and the scores, both (B, k), of the k best classes of contexts `z` (B, d).

    The score of a class is the inner product of the context with the class's row of `rows` (n, d),
    plus its entry of `offsets` (n,). If `normalize` is True, class vectors are divided by their
    norms, unless a norm is 0. If `absolute` is True, absolute values of the scores are compared and
    returned. `leave_out`, a canonical CSR matrix (B, n), has nonzero entries for the classes to
    exclude for a context; classes where `absent` (n,) is True are excluded for all contexts.

    Classes are sorted by decreasing score, and among equal scores by increasing index. If fewer
    than k classes remain, a row ends with ids of -1 and scores of -inf. The result does not depend
    on the number of threads.
    """
    remote: Any = rows
    if isinstance(remote, RemoteRows):
        return remote.best(z, k, normalize=normalize, absolute=absolute, leave_out=leave_out)

    tile_contexts, tile_classes = _tile_shape(z.shape)
    # empty arrays instead of None, so that the kernel is compiled for one combination of types
    biases = np.empty(0, z.dtype) if offsets is None else offsets
    is_excluded = np.empty(0, np.bool_) if absent is None else absent

    ids = np.empty((len(z), k), np.int64)
    best = np.empty((len(z), k), z.dtype)
    for chunk in chunks(len(z), _CONTEXTS_AT_A_TIME):
        indptr = np.zeros(chunk.stop - chunk.start + 1, np.int64)
        excluded_ids = np.empty(0, np.int64)
        if leave_out is not None:
            excluded = leave_out[chunk]
            indptr = excluded.indptr.astype(np.int64)
            excluded_ids = excluded.indices.astype(np.int64)

        task = _SearchTask(
            z=z[chunk],
            rows=rows,
            normalize=normalize,
            offsets=biases,
            absolute=absolute,
            indptr=indptr,
            excluded_ids=excluded_ids,
            is_excluded=is_excluded,
            tile_contexts=tile_contexts,
            tile_classes=tile_classes,
        )
        ids[chunk], best[chunk] = _search_in_threads(task, k)

    return ids, best


def checked_k(k: Any, n: int) -> int:
    """Return `k` as an int; raise ValueError unless it is from 1 to the number of classes n."""
    if as_count("k", k) > n:
        raise ValueError(f"`k` must be at most the number of classes {n}, got {k}.")
    return int(k)


def checked_leave_out(leave_out: Any, shape: tuple[int, ...], name: str = "leave_out") -> Any:
    """Return the public argument `leave_out`, None or a sparse matrix, after checking it.

    The matrix becomes a canonical CSR matrix without stored zeros. Raises ValueError unless its
    shape is `shape`, (B, n).
    """
    if leave_out is None:
        return None
    matrix = as_csr(name, leave_out)
    if matrix.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {matrix.shape}.")
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _search_in_threads(task: _SearchTask, k: int) -> tuple[IntArray, Rows]:
    """Return the ids and the scores, both (B, k), of the k best classes, searched on threads.

    If fewer than k classes remain after exclusion, a row ends with ids of -1.
    """
    batch = len(task.z)
    n = len(task.rows)
    class_chunks = chunks(n, _CLASSES_PER_TASK)

    # with few chunks of classes, threads would be idle, so split the contexts too
    splits_contexts = len(class_chunks) < _MIN_CLASS_CHUNKS
    context_chunks = chunks(batch, _CONTEXTS_PER_TASK if splits_contexts else batch)

    # the threads share this iterator, whose `next` is atomic
    remaining = iter([(c, b) for c in class_chunks for b in context_chunks])

    def search_tasks(_: int) -> tuple[int, Rows, IntArray]:
        best = np.full((batch, k), -np.inf, task.z.dtype)
        ids = np.full((batch, k), n)
        # tasks are taken in order, so a thread sees the classes by increasing index
        for c, b in remaining:
            first_bad_class = _update_top_k(task, c.start, c.stop, b.start, b.stop, best, ids)
            if first_bad_class >= 0:
                return first_bad_class, best, ids
        return n, best, ids

    bad_by_thread, best_by_thread, ids_by_thread = zip(
        *thread_map(search_tasks, range(num_threads())), strict=True
    )

    # report the smallest class with a bad vector, so that the error does not depend on timing
    if min(bad_by_thread) < n:
        _raise_for_bad_class_vector(task.rows, min(bad_by_thread), task.normalize)

    best = np.concatenate(best_by_thread, axis=1)
    ids = np.concatenate(ids_by_thread, axis=1)
    order = np.lexsort((ids, -best), axis=1)[:, :k]  # by decreasing score, then by class
    best = np.take_along_axis(best, order, 1)
    ids = np.take_along_axis(ids, order, 1)
    ids[ids == n] = -1

    return ids, best


def _tile_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of contexts and the number of classes in a tile.

    `shape` is the shape (B, d) of the contexts.
    """
    batch, dim = shape
    num_contexts = max(1, min(batch, _MAX_TILE_SHAPE[0], math.isqrt(_PRODUCTS_PER_TILE // dim)))
    num_classes = max(1, min(_MAX_TILE_SHAPE[1], _PRODUCTS_PER_TILE // (num_contexts * dim)))
    return num_contexts, round_up_to_8(num_classes)


def _raise_for_bad_class_vector(rows: Rows, class_id: int, normalize: bool) -> None:
    """Raise ValueError for the vector of a class, which is not finite or cannot be normalised."""
    row = rows[class_id : class_id + 1]
    if normalize:  # raises if the norm is not finite
        unit_rows("class_embeddings", row.copy(), np.array([class_id]))
    require_finite_rows(row, class_id)


class _SearchTask(NamedTuple):
    """Arguments of a top-k search: vectors, options of the scores, and excluded classes."""

    z: Rows  # (B, d)
    rows: Rows  # (n, d)
    normalize: bool  # divide class vectors by their norms
    offsets: Rows  # (n,): class biases, or (0,) for none
    absolute: bool  # use absolute values of scores
    # context b excludes the classes ``excluded_ids[indptr[b] : indptr[b + 1]]``, which increase
    indptr: IntArray  # (B + 1,)
    excluded_ids: IntArray  # (P,)
    is_excluded: NDArray[np.bool_]  # (n,): classes excluded for all contexts, or (0,) for none
    tile_contexts: int  # contexts per tile
    tile_classes: int  # classes per tile


@njit
def _update_top_k(
    task: _SearchTask,
    first_class: int,
    end_class: int,
    first_context: int,
    end_context: int,
    best: Rows,
    ids: IntArray,
) -> int:
    """Search a range of classes, and update the k best classes of a range of contexts, in place.

    The ranges are ``[first_class, end_class)`` and ``[first_context, end_context)``. `best` (B, k)
    holds the k best scores so far. Each row is a heap with the worst score in column 0; an empty
    entry is -inf. `ids` (B, k) holds the classes of these scores, and n for an empty entry. Among
    equal scores the smaller index is better. NaN counts as infinity, so that the caller notices it.
    The search stops at the first class whose vector is not finite or cannot be normalised, and
    returns this class; otherwise it returns -1.
    """
    width = task.tile_classes
    dim = task.rows.shape[1]
    block = np.empty((width, dim), task.rows.dtype)
    norms = np.empty(width)
    use_loop = min(task.tile_contexts, end_context - first_context) <= _MAX_CONTEXTS_IN_LOOP
    buffer = np.empty(task.tile_contexts * width, task.rows.dtype)

    for start in range(first_class, end_class, width):
        count = min(width, end_class - start)
        vectors = task.rows[start : start + count]

        if task.normalize and not (use_loop and _write_norms_and_check_range(vectors, norms)):
            # normalise a copy, because the caller's vectors may be read-only
            unit_vectors = block[:count]
            for j in range(count):
                for i in range(dim):
                    unit_vectors[j, i] = vectors[j, i]
            divide_by_norms(unit_vectors, norms[:count])
            for j in range(count):
                if not (norms[j] < np.inf):  # true for NaN too
                    return start + j
                norms[j] = 1.0
            vectors = unit_vectors

        for first_row in range(first_context, end_context, task.tile_contexts):
            contexts = task.z[first_row : min(first_row + task.tile_contexts, end_context)]

            if len(contexts) <= _MAX_CONTEXTS_IN_LOOP:
                stride = width
                scores = buffer.reshape((task.tile_contexts, width))
                _write_scores_of_few_contexts(contexts, vectors, scores)
                if task.normalize:  # norms are 1 if the vectors are already normalised
                    for i in range(len(contexts)):
                        for j in range(count):
                            scores[i, j] /= norms[j]
            else:
                stride = count
                scores = buffer[: len(contexts) * count].reshape((-1, count))
                np.dot(contexts, vectors.T, scores)

            # A vector that is not finite has no finite score, so checking one context suffices.
            if first_row == first_context and not _is_finite(buffer[:count]):
                for j in range(count):
                    if not _is_finite(vectors[j]):
                        return start + j

            for i in range(len(contexts)):
                b = first_row + i
                context_scores = buffer[i * stride : i * stride + count]

                # loops, because NumPy expressions of arrays take ten times as long to compile
                if len(task.offsets) > 0:
                    for j in range(count):
                        context_scores[j] += task.offsets[start + j]
                if task.absolute:
                    for j in range(count):
                        context_scores[j] = abs(context_scores[j])

                if _any_above(context_scores, best[b, 0]):
                    _insert_candidates(task, b, start, context_scores, best[b], ids[b])

    return -1


@njit_bare
def _write_norms_and_check_range(rows: Rows, norms: FloatArray) -> bool:
    """Write the norms of class vectors to `norms`; return whether all are in (1e-12, 1e12).

    If so, scores can be divided by the norms instead of normalising the vectors.
    """
    all_moderate = True
    for j in range(len(rows)):
        norms[j] = math.sqrt(_squared_norm(rows, j))
        all_moderate &= 1e-12 < norms[j] < 1e12
    return all_moderate


@njit_sum
def _squared_norm(rows: Rows, j: int) -> float:
    """Return the squared norm of row j, in float64."""
    total = 0.0
    for i in range(rows.shape[1]):
        total += float(rows[j, i]) * float(rows[j, i])
    return total


@njit_bare
def _write_scores_of_few_contexts(contexts: Rows, rows: Rows, scores: Rows) -> None:
    """Write the inner products of contexts (k, d) with class vectors `rows` (n, d) to `scores`.

    `scores` has a row for each context.
    """
    # the first context reads the vectors from memory, the others from the processor's cache
    for j in range(len(rows)):
        scores[0, j] = row_dot(rows, j, contexts, 0)
    for i in range(1, len(contexts), 2):
        products(rows, 0, len(rows), contexts, i, i + 1 if i + 1 < len(contexts) else -1, scores, i)


@njit_sum
def _is_finite(row: Rows) -> bool:
    """Return whether all entries of `row` (k,) are finite."""
    total = row[0] - row[0]  # x - x is 0 if x is finite, otherwise NaN, and so is the sum
    for i in range(1, len(row)):
        total += row[i] - row[i]
    return bool(total == 0.0)


@njit
def _any_above(scores: Rows, bound: float) -> bool:
    """Return whether any score is above `bound` or NaN."""
    any_above = False
    for j in range(len(scores)):  # no early exit, so that LLVM vectorises the loop
        any_above |= not (scores[j] <= bound)  # true for NaN too
    return any_above


@njit
def _insert_candidates(
    task: _SearchTask, b: int, first_class: int, scores: Rows, best: Rows, ids: IntArray
) -> None:
    """Insert a block of classes into the k best of context b, skipping excluded classes.

    `scores` are the scores of the classes from `first_class` on. Only a class with a better score
    than the worst of the k best is inserted. `best` (k,) and `ids` (k,), the heap of the context,
    are updated in place.
    """
    excluded_ids = task.excluded_ids[task.indptr[b] : task.indptr[b + 1]]
    is_excluded = task.is_excluded

    for j in range(len(scores)):
        if not (scores[j] <= best[0]):
            class_id = first_class + j
            if len(is_excluded) > 0 and is_excluded[class_id]:
                continue
            position = count_below(excluded_ids, class_id)
            if position < len(excluded_ids) and excluded_ids[position] == class_id:
                continue

            score = np.inf if np.isnan(scores[j]) else scores[j]
            _replace_worst_in_heap(best, ids, score, class_id)


@njit
def _replace_worst_in_heap(best: Rows, ids: IntArray, score: float, class_id: int) -> None:
    """Replace the worst of the k best classes, the root of the heap, by a new class, in place."""
    k = len(best)

    # sift the new entry down from the root
    parent = 0
    while 2 * parent + 1 < k:
        child = 2 * parent + 1
        if child + 1 < k and _is_worse(best[child + 1], ids[child + 1], best[child], ids[child]):
            child += 1
        if not _is_worse(best[child], ids[child], score, class_id):
            break
        best[parent] = best[child]
        ids[parent] = ids[child]
        parent = child

    best[parent] = score
    ids[parent] = class_id


@njit
def _is_worse(score: float, class_id: int, other_score: float, other_id: int) -> bool:
    """Return whether a class has a smaller score than another, or an equal score and larger id."""
    return score < other_score or (score == other_score and class_id > other_id)
