"""Drawn classes: checked, scored beside the labels, and gradients carried back to both vectors.

The classes that occur stand in a block of rows, so that norms, gradients and sums over duplicates
cost what the block costs, and never what n classes cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.arrays import DistantRows
from samplesoft._jit import chunks, num_threads, thread_each
from samplesoft._limits import call_quietly, quietly
from samplesoft._validation import FloatArray, IntArray, as_array, require_plain
from samplesoft.kernels.products import ALONE, product
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.step import (
    add_labels,
    are_drawable,
    class_sums,
    complete_scores,
    context_sums,
    gather,
    list_candidates,
    nan_where_not_finite,
    score_labels,
    score_rows,
    score_set,
    set_gradients,
)
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme

_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)
_NO_NORMS = np.empty(0)
_ONE_THREAD = 1 << 20  # multiplications below which a second thread does not pay


def check_draw(draw: Draw | None, batch: int, n: int) -> tuple[IntArray, FloatArray]:
    """Return classes, (B, m) or (1, m) for all, and logarithms of how often a draw contains each.

    The draw must be for `batch` contexts or one for all, of classes below `n`.
    """
    ids, log_counts = as_arrays(draw, batch)
    if not are_drawable(ids, log_counts, n):  # one pass; what is wrong is sought only then
        raise not_drawable(ids, log_counts, n)
    return ids, log_counts


def as_arrays(draw: Draw | None, batch: int) -> tuple[IntArray, FloatArray]:
    """Return the arrays of `check_draw`, of which the numbers are not looked at."""
    if type(draw) is not Draw and not isinstance(draw, Draw):
        raise no_draw(draw)
    ids: Any = draw.ids
    log_q: Any = draw.log_q
    logs = log_q if draw.log_inclusion is None else draw.log_inclusion
    # as from a sampler; the others are looked at one after another
    usual = type(ids) is type(log_q) is type(logs) is np.ndarray and ids.dtype == _INT
    if usual and log_q.dtype == logs.dtype == _FLOAT:
        require_shapes(ids.shape, logs.shape, batch)
        return ids, draw.log_expected_count
    named = ("ids", ids, "iu"), ("log_q", log_q, "f"), ("log_inclusion", logs, "f")
    for name, array, kinds in named:
        if type(array) not in (np.ndarray, np.memmap) or array.dtype.kind not in kinds:
            require_plain(f"draw.{name}", array)
            raise TypeError(
                f"`draw.{name}` must be an array of {'integers' if name == 'ids' else 'floats'}, "
                f"got {getattr(array, 'dtype', type(array).__name__)}; take it from sampler.sample."
            )
    require_shapes(ids.shape, logs.shape, batch)
    return np.asarray(ids, _INT), np.asarray(draw.log_expected_count, _FLOAT)


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
    if ids[1:] in ((), (0,)) or ids[2:] or ids[0] not in (1, batch):
        raise ValueError(
            f"`draw` must hold ids of shape ({batch}, m) or (1, m), got {ids}; draw for the same "
            "contexts."
        )
    if log_counts != ids:
        raise ValueError(
            f"`draw` must hold log-probabilities of the shape of its ids {ids}, got {log_counts}."
        )


def not_drawable(ids: IntArray, log_counts: FloatArray, n: int) -> ValueError:
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
            f"{targets.labels[worst]} of pair {worst}; where no draw can contain the label, as of "
            "a sampler that gives it q = 0, take scheme='masked', or mix the sampler with one that "
            "covers all classes."
        )
    return counts


@dataclass(slots=True, eq=False)
class Scores:
    """Scores of labels and drawn classes, and what their gradients need.

    The block of class vectors has a row for each class that occurs; where one set of draws serves
    all examples, a row for each label and then for each draw, for a product of matrices.
    """

    own: FloatArray  # (P,): of the labels, computed in the type of the vectors
    drawn: Rows  # (B, m): of the draws of each example, which all of its pairs have
    example_ids: IntArray  # (P,): example of each pair
    block: Rows  # (r, d)
    norms: FloatArray  # (r,): that the vectors had, where the loss normalises; else (0,)
    shared: bool
    # (5, P + draws + 1): the classes, as `list_candidates` writes them. Its first row ends with how
    # many of them are a label and drawn as well, be it for another example.
    listed: IntArray
    num: int  # of classes that occur

    @property
    def label_places(self) -> IntArray:
        """Places (P,) of the labels among the classes."""
        return self.listed[2, : self.own.shape[0]]

    @property
    def draw_places(self) -> IntArray:
        """Places of the draws among the classes, (B, m) or (1, m)."""
        size, m = self.drawn.shape
        return self.listed[2, self.own.shape[0] : -1].reshape(1 if self.shared else size, m)


@lru_cache(4)
def _in_turn(size: int) -> IntArray:
    """Return ``range(size)``, which nobody changes: batches are mostly as large as the last."""
    return np.arange(size)


def score_candidates(
    batch: Batch, ids: IntArray, log_counts: FloatArray, normalize: bool
) -> Scores:
    """Score labels and drawn classes `ids`, (B, m) or one set (1, m) for all examples.

    The draws, and the logarithms of how often they are expected, of the same shape, must be as
    `check_draw` says. The score of a label is NaN where one of a draw of its example is not finite.
    """
    z, labels, rows = batch.z, batch.targets.labels, batch.class_embeddings
    (size, d), (sets, m), (pairs,), n = z.shape, ids.shape, labels.shape, rows.shape[0]
    example_ids = (
        _in_turn(pairs) if batch.targets.example_ids is None else batch.targets.example_ids
    )
    listed = np.empty((5, pairs + sets * m + 1), np.int64)
    # One set for all: scores of draws are one product of matrices, for which their vectors stand
    # in order. Else an example reads the rows of its own draws, and a class has one row.
    distant = type(rows) is not np.ndarray and isinstance(rows, DistantRows)
    if sets == 1 < size and not distant:
        block = np.empty((pairs + m, d), z.dtype)
        norms = np.empty(pairs + m) if normalize else _NO_NORMS
        own, drawn = np.empty(pairs), np.empty((size, m), z.dtype)
        if type(rows) is not np.ndarray:
            rows = np.asarray(rows)  # kernels take no memmap
        biases = z[0, :0] if batch.biases is None else batch.biases
        multiply = z.size * m <= ALONE
        num = score_set(
            labels,
            example_ids,
            ids,
            log_counts,
            z,
            rows,
            biases,
            multiply,
            listed,
            block,
            norms,
            own,
            drawn,
        )
        if num < 0:
            raise not_drawable(ids, log_counts, n)
        if normalize:
            _require_norms(rows, norms, listed[0, :-1])
        if not multiply:
            call_quietly(product, z, block[pairs:].T, drawn)
            complete_scores(example_ids, listed[0, :-1], biases, own, drawn)
        return Scores(own, drawn, example_ids, block, norms, True, listed, num)
    num = list_candidates(labels, ids, log_counts, n, listed)
    if num < 0:
        raise not_drawable(ids, log_counts, n)
    return _score_each(batch, ids, normalize, example_ids, listed, num)


def _score_each(
    batch: Batch, ids: IntArray, normalize: bool, example_ids: IntArray, listed: IntArray, num: int
) -> Scores:
    """Score draws (B, m) of each example, or classes whose vectors others keep."""
    z, rows, shared = batch.z, batch.class_embeddings, len(ids) < len(batch.z)
    pairs, d = len(example_ids), z.shape[1]
    if isinstance(rows, DistantRows):
        own, drawn = rows.scores(batch, ids)
        own = own.astype(np.float64)
        nan_where_not_finite(own, drawn, example_ids, 0, 0)
        return Scores(own, drawn, example_ids, np.empty((0, d)), _NO_NORMS, shared, listed, num)
    rows, classes = np.asarray(rows), listed[1, :num]
    block, norms = np.empty((num, d), z.dtype), np.empty(num if normalize else 0)
    thread_each(
        lambda part: gather(classes[part], rows, normalize, block[part], norms[part]),
        _parts(num, block.size),
    )
    _require_norms(rows, norms, classes)
    own, drawn = np.empty(pairs), np.empty((z.shape[0], ids.shape[1]), z.dtype)
    scores = Scores(own, drawn, example_ids, block, norms, False, listed, num)
    examples, places = np.arange(z.shape[0]), scores.draw_places
    score_labels(block, scores.label_places, z, example_ids, 0, 0, pairs, own)
    thread_each(
        lambda part: score_rows(z, examples[part], block, places[part], drawn[part]),
        _parts(z.shape[0], drawn.size * d),
    )
    biases = z[0, :0] if batch.biases is None else batch.biases
    complete_scores(example_ids, listed[0, :-1], biases, own, drawn)
    return scores


def _require_norms(rows: Rows, norms: FloatArray, classes: IntArray) -> None:
    """Raise for norms (k,) that are not finite, of the vectors of some classes."""
    if not np.isfinite(norms).all():
        unit_rows("class_embeddings", rows[classes], classes)  # says which


def score_gradients(
    batch: Batch, scores: Scores, d_own: Rows, d_drawn: Rows, weights: FloatArray
) -> Gradients:
    """Return the gradient of a weighted sum over the examples.

    From derivatives of what each loses in its `own` (P,) and `drawn` (B, m) scores, and its weight
    (B,).
    """
    z, rows, classes = batch.z, batch.class_embeddings, scores.listed[1, : scores.num]
    if type(rows) is not np.ndarray and isinstance(rows, DistantRows):
        # rows of the gradient stay beside those of the vectors
        kept = SparseRows(classes, np.empty((scores.num, 0), z.dtype))
        dz = call_quietly(rows.gradients, batch, d_own, d_drawn, weights)
        return Gradients(dz, kept, None)
    block, example_ids, listed, norms = (
        scores.block,
        scores.example_ids,
        scores.listed,
        scores.norms,
    )
    dz, dW = np.empty(z.shape, z.dtype), np.empty((scores.num, z.shape[1]), z.dtype)
    if scores.shared:
        of_draws = dW[:0]  # none yet
        if z.size * d_drawn.shape[1] > ALONE:
            call_quietly(product, d_drawn, block[d_own.shape[0] :], dz)
            of_draws = _of_draws(d_drawn, z, weights)
        set_gradients(
            d_own, d_drawn, z, weights, example_ids, block, norms, listed, of_draws, dz, dW
        )
    else:
        _add_each(scores, d_own, d_drawn, z, weights, dz, dW)
    db = None
    if batch.biases is not None:
        db = SparseRows(classes, _in_biases(scores, d_own, d_drawn, weights))
    return Gradients(dz, SparseRows(classes, dW), db)


@quietly
def _of_draws(d_drawn: Rows, z: Rows, weights: FloatArray) -> Rows:
    """Return what one set of draws brings to the vectors of its classes (m, d)."""
    of_draws: Rows = product(d_drawn.T, weights.astype(z.dtype)[:, None] * z)
    return of_draws


@quietly
def _in_biases(scores: Scores, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Rows:
    """Return the gradient (k,) in biases, each the vector of a feature that is 1 in all contexts.

    The arguments are as in `score_gradients`.
    """
    column = weights.astype(d_drawn.dtype)[:, None]
    d_draws = (d_drawn.T @ column)[:, 0] if scores.shared else (column * d_drawn).ravel()
    of_places = np.concatenate([column[scores.example_ids, 0] * d_own, d_draws])
    sums = np.bincount(scores.listed[2, :-1], of_places, scores.num)  # in float64
    return sums.astype(d_drawn.dtype)


@quietly
def _add_each(
    scores: Scores, d_own: Rows, d_drawn: Rows, z: Rows, weights: FloatArray, dz: Rows, dW: Rows
) -> None:
    """Write gradients in contexts (B, d) and in classes (k, d), of draws of each example."""
    block, example_ids, places = scores.block, scores.example_ids, scores.draw_places
    order, starts = scores.listed[3, :-1], scores.listed[4, : scores.num + 1]
    # the weight of an example is a factor of all that it adds: it goes into z once, not into each
    # derivative
    column = weights.astype(z.dtype)[:, None]
    weighted, work = column * z, d_drawn.size * z.shape[1]
    thread_each(
        lambda part: context_sums(d_drawn[part], block, places[part], dz[part]),
        _parts(len(z), work),
    )
    thread_each(
        lambda part: class_sums(
            d_own, d_drawn, weighted, example_ids, dW[:0], order, starts[part.start :], dW[part]
        ),
        _parts(scores.num, work),
    )
    add_labels(d_own, block, scores.label_places, example_ids, 0, 0, len(example_ids), dz)
    dz *= column
    if scores.norms.shape[0]:
        unit_rows_backward(dW, block, scores.norms)


def _parts(size: int, work: int) -> list[slice]:
    """Split ``range(size)`` for the threads, where there is work for several."""
    # of a shard without a label and a draw there are none
    part = size if work < _ONE_THREAD else -(-size // (4 * num_threads()))
    return chunks(size, max(1, part))
