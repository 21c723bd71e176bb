"""Drawn classes: checked, scored beside the labels, and gradients carried back to both vectors.

The classes that occur stand in a block of rows, so that norms, gradients and sums over duplicates
cost what the block costs, and never what n classes cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_each
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray, IntArray, as_array, require_plain
from samplesoft.kernels.rows import row_dot
from samplesoft.kernels.sort_ids import add_runs, equal_runs
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call

_ONE_THREAD = 1 << 20  # multiplications below which a second thread does not pay


def check_draw(draw: Draw | None, batch: int, n: int) -> tuple[IntArray, FloatArray]:
    """Return classes, (B, m) or (1, m) for all, and logarithms of how often a draw contains each.

    The draw must be for `batch` contexts or one for all, of classes below `n`.
    """
    if not isinstance(draw, Draw):
        raise no_draw(draw)
    logs = draw.log_q if draw.log_inclusion is None else draw.log_inclusion
    arrays = {"ids": draw.ids, "log_q": draw.log_q, "log_inclusion": draw.log_inclusion}
    for name, array in arrays.items():
        kinds = "iu" if name == "ids" else "f"
        if array is None and name == "log_inclusion":
            continue
        if type(array) is not np.ndarray or array.dtype.kind not in kinds:
            require_plain(f"draw.{name}", array)
            raise TypeError(
                f"`draw.{name}` must be an array of {'integers' if name == 'ids' else 'floats'}, "
                f"got {getattr(array, 'dtype', type(array).__name__)}; take it from sampler.sample."
            )
    require_shapes(draw.ids.shape, logs.shape, batch)
    ids = draw.ids.astype(np.int64, copy=False)
    log_counts = draw.log_expected_count.astype(np.float64, copy=False)
    if not are_drawable(ids, log_counts, n):  # one pass; what is wrong is sought only then
        raise _explained(ids, log_counts, n)
    return ids, log_counts


def no_draw(value: Any) -> TypeError:
    """Return the error for something that is not a draw."""
    return TypeError(
        f"`draw` must be a Draw, got {type(value).__name__}; sampled losses take one from "
        "sampler.sample(h, num_sampled, ...)."
    )


def require_replacement(draw: Draw, loss: str) -> None:
    """Raise for draws without replacement, which a loss of that name cannot do with."""
    if draw.log_inclusion is not None:
        raise ValueError(
            f"`draw` must be with replacement for {loss}, got probabilities of inclusion in "
            "distinct classes; use a sampler that may repeat a class."
        )


def require_shapes(ids: tuple[int, ...], log_counts: tuple[int, ...], batch: int) -> None:
    """Raise for a draw that is not for `batch` contexts, or one for all."""
    if len(ids) != 2 or ids[1] == 0 or ids[0] not in (1, batch):
        raise ValueError(
            f"`draw` must hold ids of shape ({batch}, m) or (1, m), got {ids}; draw for the same "
            "contexts."
        )
    if log_counts != ids:
        raise ValueError(
            f"`draw` must hold log-probabilities of the shape of its ids {ids}, got {log_counts}."
        )


def _explained(ids: IntArray, log_counts: FloatArray, n: int) -> ValueError:
    """Return the error for a draw that `are_drawable` refuses."""
    if ids.min() < 0 or ids.max() >= n:
        return ValueError(
            f"`draw` must hold classes in 0..{n - 1}, got {ids.min()}..{ids.max()}; the sampler "
            "was made for other classes."
        )
    row, k = np.argwhere(~np.isfinite(log_counts))[0].tolist()
    return ValueError(
        f"`draw` must hold finite log-probabilities, got {log_counts[row, k]} for class "
        f"{ids[row, k]} at index {[row, k]}: what was drawn has a probability above 0."
    )


def check_label_count(value: ArrayLike | None, targets: Targets, scheme: Scheme) -> FloatArray:
    """Return the logarithms (P,) of how many draws of each pair's label are expected, as float64.

    A label that cannot be drawn, -inf, is for schemes that divide by the draws that are kept.
    """
    size = len(targets.labels)
    if value is None:
        raise TypeError(
            f"`label_log_count` must be given with scheme={scheme.name!r}: the log expected "
            "count of each label in a draw; use sampler.log_expected_count."
        )
    counts = as_array("label_log_count", value)
    if counts.dtype.kind not in "iuf":
        raise TypeError(
            f"`label_log_count` must hold real numbers, got {counts.dtype}; use "
            "sampler.log_expected_count."
        )
    with np.errstate(over="ignore"):  # of a wider type, refused next
        counts = counts.astype(np.float64)
    if counts.shape != (size,):
        raise ValueError(f"`label_log_count` must have shape ({size},), got {counts.shape}.")
    good = np.isfinite(counts) | ((counts == -np.inf) & scheme.divides_by_kept)
    if not good.all():
        worst = int(np.argmin(good))
        raise ValueError(
            f"`label_log_count` must be finite, got {counts[worst]} for label "
            f"{targets.labels[worst]} of pair {worst}; where no draw can contain the label, take "
            "scheme='masked', or mix the proposal with one that covers all classes."
        )
    return counts


class Scores(NamedTuple):
    """Scores of labels and drawn classes, and what their gradients need.

    The block of class vectors has a row for each class that occurs; where one set of draws serves
    all examples, a row for each label and then for each draw, for a product of matrices.
    """

    own: Rows  # (P,): of the labels
    drawn: Rows  # (B, m): of the draws of each example, which all of its pairs have
    owners: IntArray  # (P,): example of each pair
    block: Rows  # (r, d)
    norms: FloatArray | None  # (r,): that the vectors had, where the loss normalises
    label_rows: IntArray  # (P,): where the labels stand in the block
    shared: bool
    classes: IntArray  # (k,): those that occur, rising
    places: IntArray  # (P + draws,): of labels, then of draws, among `classes`
    order: IntArray  # (P + draws,): labels and draws by their classes
    starts: IntArray  # (k + 1,): where those of each class begin in `order`


def score_candidates(batch: Batch, ids: IntArray, normalize: bool) -> Scores:
    """Score labels and drawn classes `ids`, (B, m) or one set (1, m) for all examples."""
    z, labels = batch.z, batch.targets.labels
    owners = batch.targets.rows(np.arange(len(z)))
    candidates = np.concatenate([labels, ids.ravel()])
    runs = equal_runs(candidates, len(batch.class_embeddings))
    # One set for all: scores of draws are one product of matrices, for which their vectors stand
    # in order. Else an example reads the rows of its own draws, and a class has one row.
    shared = len(ids) == 1 < len(z)
    rows = candidates if shared else runs[0]
    block, norms = batch.class_embeddings.take(rows, axis=0), None
    if normalize:
        block, norms = unit_rows("class_embeddings", block, rows)
    label_rows = np.arange(len(labels)) if shared else runs[1][: len(labels)]
    own, drawn = np.empty(len(labels), z.dtype), np.empty((len(z), ids.shape[1]), z.dtype)
    label_scores(z, owners, block, label_rows, own)
    scores = Scores(own, drawn, owners, block, norms, label_rows, shared, *runs)
    with quiet():  # losses that are not finite are refused
        if shared:
            np.matmul(z, block[len(labels) :].T, out=drawn)
        else:
            places = _draw_rows(scores)
            thread_each(
                lambda part: score_rows(z[part], block, places[part], drawn[part]),
                _example_parts(scores),
            )
        if batch.biases is not None:
            own += batch.biases[labels]
            drawn += batch.biases[ids]
    return scores


def score_gradients(
    batch: Batch, scores: Scores, d_own: Rows, d_drawn: Rows, weights: FloatArray
) -> Gradients:
    """Return the gradient of a weighted sum over the examples.

    From derivatives of what each loses in its `own` (P,) and `drawn` (B, m) scores, and its weight
    (B,).
    """
    block, owners, order, starts = scores.block, scores.owners, scores.order, scores.starts
    z, pairs = batch.z, len(d_own)
    # the weight of an example is a factor of all that it adds: it goes into z once, not into each
    # derivative
    column = weights.astype(z.dtype)[:, None]
    weighted = column * z
    d_block = np.empty_like(block)
    if scores.shared:
        scaled_rows(d_own, weighted, owners, d_block[:pairs])
        np.matmul(d_drawn.T, weighted, out=d_block[pairs:])
        dz = d_drawn @ block[pairs:]
    else:
        dz = np.zeros_like(z)
        _sum_own_draws(scores, d_own, d_drawn, weighted, dz, d_block)
    label_sums(d_own, z, block, scores.label_rows, owners, dz)
    dz *= column
    if scores.norms is not None:
        unit_rows_backward(d_block, block, scores.norms)
    dW = d_block
    if scores.shared:  # a class may stand in several rows of the block
        dW = np.empty((len(scores.classes), d_block.shape[1]), d_block.dtype)
        add_runs(d_block, order, starts, 0, dW)
    db = None  # a bias is the vector of a feature that is 1 in every context
    if batch.biases is not None:
        d_draws = (d_drawn.T @ column)[:, 0] if scores.shared else (column * d_drawn).ravel()
        every = np.concatenate([column[owners, 0] * d_own, d_draws])
        db = SparseRows(scores.classes, group_totals(every, order, starts))
    return Gradients(dz, SparseRows(scores.classes, dW), db)


def _sum_own_draws(
    scores: Scores, d_own: Rows, d_drawn: Rows, weighted: Rows, dz: Rows, d_block: Rows
) -> None:
    """Write gradients in contexts (B, d) by the draws, and in the block, on all threads."""
    places = _draw_rows(scores)

    def sum_contexts(part: slice) -> None:
        context_sums(d_drawn[part], scores.block, places[part], dz[part])

    def sum_classes(part: slice) -> None:
        runs = scores.owners, scores.order, scores.starts, part.start
        class_sums(d_own, d_drawn, weighted, *runs, d_block[part])

    parts = _example_parts(scores)
    jobs: list[tuple[Callable[[slice], None], slice]] = [(sum_contexts, part) for part in parts]
    # classes are cut so that each part has about as many labels and draws
    cuts = [len(scores.order) * part.stop // len(dz) for part in parts]
    ends = [0, *np.searchsorted(scores.starts[:-1], cuts)]
    jobs += [(sum_classes, slice(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    thread_each(lambda job: job[0](job[1]), jobs)


def _draw_rows(scores: Scores) -> IntArray:
    """Return the rows (B, m) of the block where the draws of each example stand."""
    return scores.places[len(scores.own) :].reshape(scores.drawn.shape)


def _example_parts(scores: Scores) -> list[slice]:
    """Split the examples for the threads, where there is work for several."""
    size = len(scores.drawn)
    work = scores.drawn.size * scores.block.shape[1]
    return chunks(size, size if work < _ONE_THREAD else -(-size // (4 * num_threads())))


@njit
def are_drawable(ids: IntArray, log_counts: FloatArray, n: int) -> bool:
    """Tell whether all `ids` (P, m) lie in ``range(n)`` and all `log_counts` (P, m) are finite."""
    bad = 0
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            bad += not (0 <= ids[b, k] < n and abs(log_counts[b, k]) < np.inf)
    return bad == 0


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
    total = np.empty(dz.shape[1])  # float64: many draws pull at a context, mostly against others
    for b in range(len(rows)):
        total[:] = 0.0
        for k in range(rows.shape[1]):
            if d_scores[b, k] != 0.0:  # draws that are left out cost nothing
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
    flat = d_drawn.ravel()  # place p of a draw is draw p % m of example p // m
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
