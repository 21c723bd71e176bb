"""The classes of the largest scores, without a matrix of all scores.

Threads take parts of the classes and keep heaps of the best; scores exist by the tile only.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import cpu
from samplesoft._device.arrays import DistantRows
from samplesoft._jit import chunks, njit, njit_bare, njit_sum, num_threads, thread_map
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_csr, as_flag, as_float_rows
from samplesoft.kernels.products import products, whole_eights
from samplesoft.kernels.rows import divide_by_norms, row_dot
from samplesoft.kernels.sort_ids import count_below
from samplesoft.losses.vectors import (
    check_class_embeddings,
    require_finite_rows,
    unit_rows,
)
from samplesoft.samplers.base import Rows

# Products of a tile: OpenBLAS computes so few on the calling thread, and threads of ours share the
# tiles out, without waiting for each other.
_TILE = 1 << 18
_SIDES = 64, 256  # contexts and classes of a tile, at most: vectors and scores stay in the caches
_CLASSES = 8192  # that a thread takes at a time, with all contexts
_FEW = 16  # such parts, of which threads take some contexts at a time
_SOME = 128
_FEW_CONTEXTS = 8  # for which BLAS would be slower than a loop
_CONTEXTS = 1024  # contexts at a time, for each of which a thread has its k best


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
    """Find the classes of the largest scores.

    Parameters
    ----------
    h : array_like, shape (B, d)
        Context vectors.
    class_embeddings : array_like, shape (n, d)
        Class vectors.
    k : int
        How many classes, at most n.
    tau, normalize, absolute
        As in `samplesoft.losses.base.Loss`.
    biases : array_like, shape (n,), optional
        Class biases.
    leave_out : scipy.sparse matrix, shape (B, n), optional
        Classes that are not wanted for a context, where it is not 0.

    Returns
    -------
    ids : ndarray of int64, shape (B, k)
        Classes of each example, the best first, and of classes of equal score the first one.
        Where fewer than k are wanted, the first of those left out come after them.
    scores : ndarray, shape (B, k)
        Their scores, in the type of the class vectors; -inf for classes left out.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a score among the best is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> top_k_classes([[1.0, 3.0, 2.0]], np.eye(3), 2)
    (array([[1, 2]]), array([[3., 2.]]))
    """
    rows = check_class_embeddings(class_embeddings)
    n = int(rows.shape[0])
    d = rows.shape[1]
    contexts = as_float_rows("h", h, d, rows.dtype)
    size = check_k(k, n)
    normalize = as_flag("normalize", normalize)
    absolute = as_flag("absolute", absolute)
    offsets = None if biases is None else cpu.vector("biases", biases, n, rows.dtype)
    without = check_leave_out(leave_out, (len(contexts), n))
    if normalize:
        contexts, _ = unit_rows("h", contexts.copy())
    z = times_tau(contexts, as_tau(tau, unit_vectors=normalize))
    ids, scores = best_classes(
        z, rows, size, normalize=normalize, absolute=absolute, offsets=offsets, leave_out=without
    )
    missing = np.zeros(len(z), np.int64)  # places of a list for which no class is left
    if without is not None:
        missing = np.maximum(np.diff(without.indptr) - (n - size), 0)
        for b in np.flatnonzero(missing):  # they get the first classes left out, in place of -1
            ids[b, size - missing[b] :] = without.indices[without.indptr[b] :][: missing[b]]
    # NaN has come out as infinity, so that one look at the best finds all that went wrong
    finite = np.isfinite(scores).sum(axis=1) == size - missing
    if not finite.all():
        row = int(np.argmin(finite))
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
    """Return the k best classes (B, k) of contexts `z` (B, d), the best first, and their scores.

    Scores are products with class vectors `rows` (n, d), which `normalize` divides by their norms
    where these are not 0, plus `offsets` (n,), and with `absolute` without their sign. Classes in
    `leave_out`, a canonical CSR matrix (B, n), are left out, and for all contexts those where
    `absent` (n,) is true. Where fewer are left, a list ends with ids of -1 and scores of -inf. Of
    equal scores the first class is better. The result does not depend on the number of threads.
    """
    distant: Any = rows
    if isinstance(distant, DistantRows):
        return distant.best(z, k, normalize=normalize, absolute=absolute, leave_out=leave_out)
    height, width = _tile(z.shape)
    # empty arrays, not None, for what is not given: compiled code has one type for both
    biases = np.empty(0, z.dtype) if offsets is None else offsets
    nowhere = np.empty(0, np.bool_) if absent is None else absent
    ids = np.empty((len(z), k), np.int64)
    best = np.empty((len(z), k), z.dtype)
    for part in chunks(len(z), _CONTEXTS):
        starts = np.zeros(part.stop - part.start + 1, np.int64)
        unwanted = np.empty(0, np.int64)
        if leave_out is not None:
            some = leave_out[part]
            starts = some.indptr.astype(np.int64)
            unwanted = some.indices.astype(np.int64)
        task = _Task(
            z=z[part],
            rows=rows,
            normalize=normalize,
            offsets=biases,
            absolute=absolute,
            starts=starts,
            unwanted=unwanted,
            absent=nowhere,
            height=height,
            width=width,
        )
        ids[part], best[part] = _best(task, k)
    return ids, best


def check_k(k: Any, n: int) -> int:
    """Return the number k of best classes, at most n."""
    if as_count("k", k) > n:
        raise ValueError(f"`k` must be at most the number of classes {n}, got {k}.")
    return int(k)


def check_leave_out(leave_out: Any, shape: tuple[int, ...], name: str = "leave_out") -> Any:
    """Return the classes to leave out, or others, as a canonical CSR matrix, or None."""
    if leave_out is None:
        return None
    matrix = as_csr(name, leave_out)
    if matrix.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {matrix.shape}.")
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _best(task: _Task, k: int) -> tuple[IntArray, Rows]:
    """Let threads search parts of the classes, and join what they have found."""
    batch = len(task.z)
    n = len(task.rows)
    classes = chunks(n, _CLASSES)
    # few parts of the classes would leave threads idle: then contexts are parted too
    contexts = chunks(batch, _SOME if len(classes) < _FEW else batch)
    left = iter([(c, b) for c in classes for b in contexts])  # `next` of a list's is atomic

    def search(_: int) -> tuple[int, Rows, IntArray]:
        best = np.full((batch, k), -np.inf, task.z.dtype)
        ids = np.full((batch, k), n)
        for c, b in left:  # which threads share: each has its classes in their order
            bad = _keep_best(task, c.start, c.stop, b.start, b.stop, best, ids)
            if bad >= 0:
                return bad, best, ids
        return n, best, ids

    bad, bests, numbers = zip(*thread_map(search, range(num_threads())), strict=True)
    if min(bad) < n:  # the first of all threads, so that the message is always the same
        _refuse(task.rows, min(bad), task.normalize)
    best = np.concatenate(bests, axis=1)
    ids = np.concatenate(numbers, axis=1)
    order = np.lexsort((ids, -best), axis=1)[:, :k]  # by falling score, then by class
    best = np.take_along_axis(best, order, 1)
    ids = np.take_along_axis(ids, order, 1)
    ids[ids == n] = -1
    return ids, best


def _tile(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many contexts and how many classes a tile has, for contexts (B, d)."""
    batch, dim = shape
    height = max(1, min(batch, _SIDES[0], math.isqrt(_TILE // dim)))
    return height, whole_eights(max(1, min(_SIDES[1], _TILE // (height * dim))))


def _refuse(rows: Rows, class_id: int, normalize: bool) -> None:
    """Raise ValueError for a class vector that cannot be used."""
    row = rows[class_id : class_id + 1]
    if normalize:  # raises for one whose norm is not finite
        unit_rows("class_embeddings", row.copy(), np.array([class_id]))
    require_finite_rows(row, class_id)


class _Task(NamedTuple):
    """Contexts, classes, what is made of their products, and the classes that are not wanted."""

    z: Rows  # (B, d)
    rows: Rows  # (n, d)
    normalize: bool  # divide class vectors by their norms
    offsets: Rows  # (n,): biases, or (0,)
    absolute: bool
    starts: IntArray  # (B + 1,): where the `unwanted` of a context begin; zeros if there are none
    unwanted: IntArray  # (P,): classes, ascending for each context
    absent: NDArray[np.bool_]  # (n,): those not wanted by any context, or (0,)
    height: int  # contexts and classes of a tile
    width: int


@njit
def _keep_best(
    task: _Task, first: int, end: int, begin: int, stop: int, best: Rows, ids: IntArray
) -> int:
    """Let classes from `first` to before `end` into the k best of contexts `begin` to `stop`.

    `best` (B, k) are scores so far, a heap with the worst in column 0, -inf where there is none
    yet; `ids` (B, k) their classes, n where there is none. Classes come in their order: of equal
    scores the first is better. NaN counts as infinite, so that it is seen. The return value is the
    first class whose vector is not finite or cannot be normalised, at which the search ends, or -1.
    """
    width = task.width
    dim = task.rows.shape[1]
    block = np.empty((width, dim), task.rows.dtype)
    norms = np.empty(width)
    few = min(task.height, stop - begin) <= _FEW_CONTEXTS
    buffer = np.empty(task.height * width, task.rows.dtype)
    for start in range(first, end, width):
        count = min(width, end - start)
        vectors = task.rows[start : start + count]
        if task.normalize and not (few and _moderate_norms(vectors, norms)):
            unit = block[:count]  # a copy: the vectors are the caller's, and may be read-only
            for j in range(count):
                for i in range(dim):
                    unit[j, i] = vectors[j, i]
            divide_by_norms(unit, norms[:count])
            for j in range(count):
                if not (norms[j] < np.inf):  # so that NaN is refused too
                    return start + j
                norms[j] = 1.0
            vectors = unit
        for low in range(begin, stop, task.height):
            contexts = task.z[low : min(low + task.height, stop)]
            if len(contexts) <= _FEW_CONTEXTS:
                stride = width
                scores = buffer.reshape((task.height, width))
                _multiply_few(contexts, vectors, scores)
                if task.normalize:  # by 1 where the vectors have been
                    for i in range(len(contexts)):
                        for j in range(count):
                            scores[i, j] /= norms[j]
            else:
                stride = count
                scores = buffer[: len(contexts) * count].reshape((-1, count))
                np.dot(contexts, vectors.T, scores)
            # a vector that is not finite has no finite score: others need no look of their own
            if low == begin and not _is_finite(buffer[:count]):
                for j in range(count):
                    if not _is_finite(vectors[j]):
                        return start + j
            for i in range(len(contexts)):
                b = low + i
                of_context = buffer[i * stride : i * stride + count]
                # loops, because arithmetic of whole arrays takes ten times as long to compile
                if len(task.offsets) > 0:
                    for j in range(count):
                        of_context[j] += task.offsets[start + j]
                if task.absolute:
                    for j in range(count):
                        of_context[j] = abs(of_context[j])
                if _some_above(of_context, best[b, 0]):
                    _let_in(task, b, start, of_context, best[b], ids[b])
    return -1


@njit_bare
def _moderate_norms(rows: Rows, norms: FloatArray) -> bool:
    """Write the norms of class vectors; return whether scores can be divided by all of them."""
    moderate = True
    for j in range(len(rows)):
        norms[j] = math.sqrt(_square(rows, j))
        moderate &= 1e-12 < norms[j] < 1e12
    return moderate


@njit_sum
def _square(rows: Rows, j: int) -> float:
    total = 0.0
    for i in range(rows.shape[1]):
        total += float(rows[j, i]) * float(rows[j, i])
    return total


@njit_bare
def _multiply_few(contexts: Rows, rows: Rows, scores: Rows) -> None:
    """Write the products of a few contexts with class vectors to rows of `scores`."""
    # one vector after another, as fast as they can be read; for other contexts they are in a cache
    for j in range(len(rows)):
        scores[0, j] = row_dot(rows, j, contexts, 0)
    for i in range(1, len(contexts), 2):
        products(rows, 0, len(rows), contexts, i, i + 1 if i + 1 < len(contexts) else -1, scores, i)


@njit_sum
def _is_finite(row: Rows) -> bool:
    total = row[0] - row[0]  # 0, but NaN for infinity and NaN: one sum, without a branch
    for i in range(1, len(row)):
        total += row[i] - row[i]
    return bool(total == 0.0)


@njit
def _some_above(scores: Rows, bound: float) -> bool:
    some = False
    for j in range(len(scores)):  # without an early end, which keeps it a loop of vectors
        some |= not (scores[j] <= bound)  # true of NaN
    return some


@njit
def _let_in(task: _Task, b: int, first: int, scores: Rows, best: Rows, ids: IntArray) -> None:
    """Let those of the classes from `first` on that are wanted into the k best of context b."""
    unwanted = task.unwanted[task.starts[b] : task.starts[b + 1]]
    absent = task.absent
    for j in range(len(scores)):
        if not (scores[j] <= best[0]):
            class_id = first + j
            if len(absent) > 0 and absent[class_id]:
                continue
            place = count_below(unwanted, class_id)
            if place < len(unwanted) and unwanted[place] == class_id:
                continue
            score = np.inf if np.isnan(scores[j]) else scores[j]
            _replace_worst(best, ids, score, class_id)


@njit
def _replace_worst(best: Rows, ids: IntArray, score: float, class_id: int) -> None:
    k = len(best)
    place = 0  # the root, which is the worst, goes: sift the new one down
    while 2 * place + 1 < k:
        child = 2 * place + 1
        if child + 1 < k and _worse(best[child + 1], ids[child + 1], best[child], ids[child]):
            child += 1
        if not _worse(best[child], ids[child], score, class_id):
            break
        best[place] = best[child]
        ids[place] = ids[child]
        place = child
    best[place] = score
    ids[place] = class_id


@njit
def _worse(score: float, class_id: int, other_score: float, other_id: int) -> bool:
    return score < other_score or (score == other_score and class_id > other_id)
