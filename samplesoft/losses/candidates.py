"""Drawn classes: checked, scored beside the labels, and gradients carried back to both vectors.

The classes that occur stand in a block of rows, so that norms, gradients and sums over duplicates
cost what the block costs, and never what n classes cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.arrays import DistantRows
from samplesoft._jit import chunks, num_threads, thread_each
from samplesoft._validation import FloatArray, IntArray, as_array, require_plain
from samplesoft.kernels.products import product
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.step import (
    add_labels,
    are_drawable,
    class_sums,
    context_sums,
    list_candidates,
    score_rows,
)
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme

_ONE_THREAD = 1 << 20  # multiplications below which a second thread does not pay


def check_draw(draw: Draw | None, batch: int, n: int) -> tuple[IntArray, FloatArray]:
    """Return classes, (B, m) or (1, m) for all, and logarithms of how often a draw contains each.

    The draw must be for `batch` contexts or one for all, of classes below `n`.
    """
    if not isinstance(draw, Draw):
        raise no_draw(draw)
    ids, log_q = draw.ids, draw.log_q
    logs = log_q if draw.log_inclusion is None else draw.log_inclusion
    named = ("ids", ids, "iu"), ("log_q", log_q, "f"), ("log_inclusion", logs, "f")
    for name, array, kinds in named:
        if type(array) not in (np.ndarray, np.memmap) or array.dtype.kind not in kinds:
            require_plain(f"draw.{name}", array)
            raise TypeError(
                f"`draw.{name}` must be an array of {'integers' if name == 'ids' else 'floats'}, "
                f"got {getattr(array, 'dtype', type(array).__name__)}; take it from sampler.sample."
            )
    require_shapes(ids.shape, logs.shape, batch)
    ids = np.asarray(ids, np.int64)
    log_counts = np.asarray(draw.log_expected_count, np.float64)
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
    if ids[1:] in ((), (0,)) or ids[2:] or ids[0] not in (1, batch):
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
            f"{targets.labels[worst]} of pair {worst}; where no draw can contain the label, as of "
            "a sampler that gives it q = 0, take scheme='masked', or mix the sampler with one that "
            "covers all classes."
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

    def draw_rows(self) -> IntArray:
        """Return the rows (B, m) of the block where the draws of each example stand."""
        return self.places[len(self.own) :].reshape(self.drawn.shape)


def score_candidates(batch: Batch, ids: IntArray, normalize: bool) -> Scores:
    """Score labels and drawn classes `ids`, (B, m) or one set (1, m) for all examples."""
    z, labels, owners = batch.z, batch.targets.labels, batch.targets.owners
    pairs, (size, d), m = labels.shape[0], z.shape, ids.shape[1]
    every = np.arange(pairs)
    owners = every if owners is None else owners
    listed = np.empty((5, pairs + ids.size + 1), np.int64)
    num = list_candidates(labels, ids, batch.class_embeddings.shape[0], listed)
    candidates, places, order = listed[0, :-1], listed[2, :-1], listed[3, :-1]
    runs = listed[1, :num], places, order, listed[4, : num + 1]
    # One set for all: scores of draws are one product of matrices, for which their vectors stand
    # in order. Else an example reads the rows of its own draws, and a class has one row.
    shared = ids.shape[0] == 1 < size
    distant: Any = batch.class_embeddings
    if isinstance(distant, DistantRows):
        own, drawn = distant.scores(batch, ids)
        return Scores(own, drawn, owners, np.empty((0, d)), None, every, shared, *runs)
    rows = candidates if shared else runs[0]
    block, norms = batch.class_embeddings.take(rows, axis=0), None
    if normalize:
        block, norms = unit_rows("class_embeddings", block, rows)
    label_rows = every if shared else places[:pairs]
    own, drawn = np.empty(pairs, z.dtype), np.empty((size, m), z.dtype)
    score_rows(z, owners, block, label_rows[:, None], own[:, None])
    scores = Scores(own, drawn, owners, block, norms, label_rows, shared, *runs)
    if shared:
        product(z, block[pairs:].T, drawn)
    else:
        examples, rows = np.arange(size), scores.draw_rows()
        thread_each(
            lambda part: score_rows(z, examples[part], block, rows[part], drawn[part]),
            _parts(size, drawn.size * d),
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
    distant: Any = batch.class_embeddings
    if isinstance(distant, DistantRows):
        # rows of the gradient stay beside those of the vectors
        kept = SparseRows(scores.classes, np.empty((scores.classes.shape[0], 0), batch.z.dtype))
        return Gradients(distant.gradients(batch, d_own, d_drawn, weights), kept, None)
    block, owners, order, starts = scores.block, scores.owners, scores.order, scores.starts
    z, pairs, classes = batch.z, d_own.shape[0], scores.classes
    # the weight of an example is a factor of all that it adds: it goes into z once, not into each
    # derivative
    column = weights.astype(z.dtype)[:, None]
    weighted = column * z
    dW = np.empty((classes.shape[0], z.shape[1]), z.dtype)
    if scores.shared:
        dz, of_draws = product(d_drawn, block[pairs:]), product(d_drawn.T, weighted)
        class_sums(d_own, d_drawn, weighted, owners, of_draws, order, starts, dW)
    else:
        dz, places = np.empty_like(z), scores.draw_rows()
        work = d_drawn.size * z.shape[1]
        thread_each(
            lambda part: context_sums(d_drawn[part], block, places[part], dz[part]),
            _parts(len(z), work),
        )
        thread_each(
            lambda part: class_sums(
                d_own, d_drawn, weighted, owners, dW[:0], order, starts[part.start :], dW[part]
            ),
            _parts(len(classes), work),
        )
    add_labels(d_own, block, scores.label_rows, owners, column, dz)
    if scores.norms is not None:
        # a class may stand in several rows of the block, all of them the same
        rows = order[starts[:-1]] if scores.shared else slice(None)
        unit_rows_backward(dW, block[rows], scores.norms[rows])
    db = None  # a bias is the vector of a feature that is 1 in every context
    if batch.biases is not None:
        d_draws = (d_drawn.T @ column)[:, 0] if scores.shared else (column * d_drawn).ravel()
        of_places = np.concatenate([column[owners, 0] * d_own, d_draws])
        sums = np.bincount(scores.places, of_places, len(classes))  # in float64
        db = SparseRows(classes, sums.astype(z.dtype))
    return Gradients(dz, SparseRows(classes, dW), db)


def _parts(size: int, work: int) -> list[slice]:
    """Split ``range(size)`` for the threads, where there is work for several."""
    # of a shard without a label and a draw there are none
    part = size if work < _ONE_THREAD else -(-size // (4 * num_threads()))
    return chunks(size, max(1, part))
