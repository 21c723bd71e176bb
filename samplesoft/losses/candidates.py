"""Validate draws, score labels and draws, and backpropagate to contexts and class vectors.

The vectors of the labels and of the drawn classes are copied into a block of rows. The cost of
norms, gradients and sums over duplicates depends on the size of that block, not on the number of
classes n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.arrays import RemoteRows
from samplesoft._jit import chunks, num_threads, thread_for_each
from samplesoft._limits import call_ignoring_overflow, ignoring_overflow
from samplesoft._validation import FloatArray, IntArray, as_array, require_host_array
from samplesoft.kernels.products import MAX_SINGLE_THREADED_WORK, product
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.step import (
    add_biases_and_mark_not_finite,
    add_label_context_gradients,
    are_valid_draws,
    class_gradients,
    context_gradients,
    gather_rows,
    list_candidates,
    nan_where_not_finite,
    score_labels,
    score_rows,
    score_shared_draws,
    shared_draw_gradients,
)
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme

_INT = np.dtype(np.int64)
_FLOAT = np.dtype(np.float64)
_NO_NORMS = np.empty(0)
_MIN_THREADED_MULTIPLICATIONS = 1 << 20  # with fewer multiplications, one thread does the work


def checked_draw(draw: Draw | None, batch_size: int, n: int) -> tuple[IntArray, FloatArray]:
    """Return validated drawn classes and their log expected counts, (B, m), or (1, m) if shared.

    Raises unless the draw has a row for each of `batch_size` contexts, or one row that they share,
    and all classes are in ``range(n)``.
    """
    ids, log_counts = ids_and_log_counts(draw, batch_size)
    # one fast pass over all draws; only if it fails, the invalid entry is searched for
    if not are_valid_draws(ids, log_counts, n):
        raise invalid_draw_error(ids, log_counts, n)
    return ids, log_counts


def ids_and_log_counts(draw: Draw | None, batch_size: int) -> tuple[IntArray, FloatArray]:
    """Return drawn classes and log expected counts, after a check of types and shapes only.

    Shapes are as for `checked_draw`, which also checks the values.
    """
    if type(draw) is not Draw and not isinstance(draw, Draw):
        raise missing_draw_error(draw)

    ids: Any = draw.ids
    log_q: Any = draw.log_q
    logs = log_q if draw.log_inclusion is None else draw.log_inclusion

    # samplers return these types, which need one test; other arrays are checked one by one
    is_from_sampler = type(ids) is type(log_q) is type(logs) is np.ndarray and ids.dtype == _INT
    if is_from_sampler and log_q.dtype == logs.dtype == _FLOAT:
        require_draw_shapes(ids.shape, logs.shape, batch_size)
        return ids, draw.log_expected_count

    fields = ("ids", ids, "iu"), ("log_q", log_q, "f"), ("log_inclusion", logs, "f")
    for name, array, kinds in fields:
        if type(array) not in (np.ndarray, np.memmap) or array.dtype.kind not in kinds:
            require_host_array(f"draw.{name}", array)
            raise TypeError(
                f"`draw.{name}` must be an array of {'integers' if name == 'ids' else 'floats'}, "
                f"got {getattr(array, 'dtype', type(array).__name__)}; use sampler.sample."
            )

    require_draw_shapes(ids.shape, logs.shape, batch_size)
    return np.asarray(ids, _INT), np.asarray(draw.log_expected_count, _FLOAT)


def missing_draw_error(value: Any) -> TypeError:
    """Return the error to raise for an argument `value` that is not a `Draw`."""
    return TypeError(
        f"`draw` must be a Draw, got {type(value).__name__}; sampled losses take one from "
        "sampler.sample(h, num_sampled, ...)."
    )


def require_replacement(draw: Draw, loss: str) -> None:
    """Raise if the draws are without replacement, which `loss` does not support."""
    if draw.log_inclusion is not None:
        raise ValueError(
            f"`draw` must be with replacement for {loss}, got probabilities of inclusion in "
            "distinct classes; use a sampler that may repeat a class."
        )


def require_draw_shapes(ids: tuple[int, ...], log_counts: tuple[int, ...], batch_size: int) -> None:
    """Raise unless both shapes are (batch_size, m), or (1, m) for draws that the batch shares."""
    if ids[1:] in ((), (0,)) or ids[2:] or ids[0] not in (1, batch_size):
        raise ValueError(
            f"`draw` must hold ids of shape ({batch_size}, m) or (1, m), got {ids}; draw for the "
            "same contexts."
        )
    if log_counts != ids:
        raise ValueError(
            f"`draw` must hold log-probabilities of the shape of its ids {ids}, got {log_counts}."
        )


def invalid_draw_error(ids: IntArray, log_counts: FloatArray, n: int) -> ValueError:
    """Return the error to raise for a draw that `are_valid_draws` rejects."""
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


def checked_label_counts(value: ArrayLike | None, targets: Targets, scheme: Scheme) -> FloatArray:
    """Return validated log expected counts (P,) of the pairs' labels in a draw, as float64.

    A log count of -inf means that the label cannot be drawn. Only schemes that divide by the number
    of accepted draws allow it.
    """
    num_pairs = len(targets.labels)
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

    # counts of a wider type may overflow in float64; they become infinite, and are rejected below
    with np.errstate(over="ignore"):
        counts = counts.astype(np.float64)

    if counts.shape != (num_pairs,):
        raise ValueError(f"`label_log_count` must have shape ({num_pairs},), got {counts.shape}.")

    is_valid = np.isfinite(counts) | ((counts == -np.inf) & scheme.divides_by_accepted)
    if not is_valid.all():
        worst = int(np.argmin(is_valid))
        raise ValueError(
            f"`label_log_count` must be finite, got {counts[worst]} for label "
            f"{targets.labels[worst]} of pair {worst}; where no draw can contain the label, as of "
            "a sampler that gives it q = 0, use scheme='masked', or mix the sampler with one that "
            "covers all classes."
        )

    return counts


@dataclass(slots=True, eq=False)
class CandidateScores:
    """Scores of labels and drawn classes, and the arrays that their gradients need.

    The block of class vectors has one row for each class that is a label or drawn. But if `shared`,
    it has one row for each label and then one row for each draw, so that the scores of the draws
    are a matrix product.
    """

    label_scores: FloatArray  # (P,): float64, but computed in the dtype of the vectors
    sampled_scores: Rows  # (B, m): one row for each example, whose pairs share it
    example_ids: IntArray  # (P,): example of each pair
    block: Rows  # (r, d): class vectors, divided by their norms if the loss normalises
    norms: FloatArray  # (r,): norms of the vectors before the division; (0,) if not normalised
    shared: bool  # whether all examples share one set of draws
    candidate_table: IntArray  # (5, P + number of draws + 1): see `list_candidates`
    num_unique: int  # number of distinct classes that are labels or drawn

    @property
    def label_indices(self) -> IntArray:
        """Index (P,) of each label among the distinct classes."""
        return self.candidate_table[2, : self.label_scores.shape[0]]

    @property
    def draw_indices(self) -> IntArray:
        """Index of each draw among the distinct classes, (B, m), or (1, m) if shared."""
        batch_size, m = self.sampled_scores.shape
        return self.candidate_table[2, self.label_scores.shape[0] : -1].reshape(
            1 if self.shared else batch_size, m
        )


@lru_cache(4)
def _cached_arange(size: int) -> IntArray:
    """Return the array ``arange(size)``, which is cached and must not be changed."""
    return np.arange(size)


def score_candidates(
    batch: Batch, ids: IntArray, log_counts: FloatArray, normalize: bool
) -> CandidateScores:
    """Return the scores of labels and of drawn classes `ids`, (B, m), or (1, m) if shared.

    `log_counts`, of the shape of `ids`, are the log expected counts of the draws; they are
    validated, but not subtracted. If the score of a draw is not finite, the label scores of its
    example are NaN.
    """
    z = batch.z
    labels = batch.targets.labels
    rows = batch.class_embeddings
    batch_size, d = z.shape
    num_sets, m = ids.shape
    num_pairs = labels.shape[0]
    n = rows.shape[0]

    example_ids = batch.targets.example_ids
    if example_ids is None:
        example_ids = _cached_arange(num_pairs)

    candidate_table = np.empty((5, num_pairs + num_sets * m + 1), np.int64)

    # For shared draws, the vectors are copied in the order of the draws, so that the scores are one
    # matrix product. Otherwise each class is copied once, and an example reads its draws' rows.
    is_remote = type(rows) is not np.ndarray and isinstance(rows, RemoteRows)
    if num_sets == 1 < batch_size and not is_remote:
        block = np.empty((num_pairs + m, d), z.dtype)
        norms = np.empty(num_pairs + m) if normalize else _NO_NORMS
        label_scores = np.empty(num_pairs)
        sampled_scores = np.empty((batch_size, m), z.dtype)
        biases = z[0, :0] if batch.biases is None else batch.biases
        if type(rows) is not np.ndarray:
            rows = np.asarray(rows)  # kernels do not accept memmaps

        # the kernel computes only small products; a large one runs in several threads below
        multiply = z.size * m <= MAX_SINGLE_THREADED_WORK
        num_unique = score_shared_draws(
            labels,
            example_ids,
            ids,
            log_counts,
            z,
            rows,
            biases,
            multiply,
            candidate_table,
            block,
            norms,
            label_scores,
            sampled_scores,
        )

        if num_unique < 0:
            raise invalid_draw_error(ids, log_counts, n)
        if normalize:
            _require_finite_norms(rows, norms, candidate_table[0, :-1])

        if not multiply:
            call_ignoring_overflow(product, z, block[num_pairs:].T, sampled_scores)
            add_biases_and_mark_not_finite(
                example_ids, candidate_table[0, :-1], biases, label_scores, sampled_scores
            )

        return CandidateScores(
            label_scores,
            sampled_scores,
            example_ids,
            block,
            norms,
            True,
            candidate_table,
            num_unique,
        )

    num_unique = list_candidates(labels, ids, log_counts, n, candidate_table)
    if num_unique < 0:
        raise invalid_draw_error(ids, log_counts, n)

    return _score_separate_draws(batch, ids, normalize, example_ids, candidate_table, num_unique)


def _score_separate_draws(
    batch: Batch,
    ids: IntArray,
    normalize: bool,
    example_ids: IntArray,
    candidate_table: IntArray,
    num_unique: int,
) -> CandidateScores:
    """Return the scores if draws are not shared, or if class vectors are on other machines.

    For the arguments see `CandidateScores`.
    """
    z = batch.z
    rows = batch.class_embeddings
    shared = len(ids) < len(batch.z)
    num_pairs = len(example_ids)
    d = z.shape[1]
    if isinstance(rows, RemoteRows):
        label_scores, sampled_scores = rows.scores(batch, ids)
        label_scores = label_scores.astype(np.float64)
        nan_where_not_finite(label_scores, sampled_scores, example_ids, 0, 0)

        return CandidateScores(
            label_scores,
            sampled_scores,
            example_ids,
            np.empty((0, d)),
            _NO_NORMS,
            shared,
            candidate_table,
            num_unique,
        )

    rows = np.asarray(rows)
    classes = candidate_table[1, :num_unique]
    block = np.empty((num_unique, d), z.dtype)
    norms = np.empty(num_unique if normalize else 0)

    thread_for_each(
        lambda chunk: gather_rows(classes[chunk], rows, normalize, block[chunk], norms[chunk]),
        _chunks_for_threads(num_unique, block.size),
    )
    _require_finite_norms(rows, norms, classes)

    label_scores = np.empty(num_pairs)
    sampled_scores = np.empty((z.shape[0], ids.shape[1]), z.dtype)
    scores = CandidateScores(
        label_scores, sampled_scores, example_ids, block, norms, False, candidate_table, num_unique
    )

    examples = np.arange(z.shape[0])
    draw_indices = scores.draw_indices
    score_labels(block, scores.label_indices, z, example_ids, 0, 0, num_pairs, label_scores)
    thread_for_each(
        lambda chunk: score_rows(
            z, examples[chunk], block, draw_indices[chunk], sampled_scores[chunk]
        ),
        _chunks_for_threads(z.shape[0], sampled_scores.size * d),
    )

    biases = z[0, :0] if batch.biases is None else batch.biases
    add_biases_and_mark_not_finite(
        example_ids, candidate_table[0, :-1], biases, label_scores, sampled_scores
    )
    return scores


def _require_finite_norms(rows: Rows, norms: FloatArray, classes: IntArray) -> None:
    """Raise if one of the norms (k,) of the vectors of `classes` is not finite."""
    if not np.isfinite(norms).all():
        unit_rows("class_embeddings", rows[classes], classes)  # raises, and names the class


def score_gradients(
    batch: Batch, scores: CandidateScores, d_labels: Rows, d_sampled: Rows, weights: FloatArray
) -> Gradients:
    """Return the gradients of the sum of the examples' losses, weighted by `weights` (B,).

    `d_labels` (P,) and `d_sampled` (B, m) are the derivatives of the losses in the scores.
    """
    z = batch.z
    rows = batch.class_embeddings
    classes = scores.candidate_table[1, : scores.num_unique]

    if type(rows) is not np.ndarray and isinstance(rows, RemoteRows):
        # the machines of the class vectors keep the gradient: its rows have the width 0
        remote_rows = SparseRows(classes, np.empty((scores.num_unique, 0), z.dtype))
        dz = call_ignoring_overflow(rows.gradients, batch, d_labels, d_sampled, weights)
        return Gradients(dz, remote_rows, None)

    block = scores.block
    example_ids = scores.example_ids
    candidate_table = scores.candidate_table
    norms = scores.norms
    dz = np.empty(z.shape, z.dtype)
    dW = np.empty((scores.num_unique, z.shape[1]), z.dtype)

    if scores.shared:
        draw_gradients = dW[:0]  # if empty, the kernel computes these gradients
        if z.size * d_sampled.shape[1] > MAX_SINGLE_THREADED_WORK:
            call_ignoring_overflow(product, d_sampled, block[d_labels.shape[0] :], dz)
            draw_gradients = _shared_class_gradients(d_sampled, z, weights)

        shared_draw_gradients(
            d_labels,
            d_sampled,
            z,
            weights,
            example_ids,
            block,
            norms,
            candidate_table,
            draw_gradients,
            dz,
            dW,
        )
    else:
        _separate_draw_gradients(scores, d_labels, d_sampled, z, weights, dz, dW)

    db = None
    if batch.biases is not None:
        db = SparseRows(classes, _bias_gradients(scores, d_labels, d_sampled, weights))

    return Gradients(dz, SparseRows(classes, dW), db)


@ignoring_overflow
def _shared_class_gradients(d_sampled: Rows, z: Rows, weights: FloatArray) -> Rows:
    """Return the gradients (m, d) in the vectors of shared draws, summed over weighted examples."""
    draw_gradients: Rows = product(d_sampled.T, weights.astype(z.dtype)[:, None] * z)
    return draw_gradients


@ignoring_overflow
def _bias_gradients(
    scores: CandidateScores, d_labels: Rows, d_sampled: Rows, weights: FloatArray
) -> Rows:
    """Return the gradients (k,) in the biases of the k classes that are labels or drawn.

    The gradient in a bias is the sum of the derivatives in the scores of its class. For the
    arguments see `score_gradients`.
    """
    weight_column = weights.astype(d_sampled.dtype)[:, None]
    if scores.shared:
        d_draw_scores = (d_sampled.T @ weight_column)[:, 0]
    else:
        d_draw_scores = (weight_column * d_sampled).ravel()

    d_label_scores = weight_column[scores.example_ids, 0] * d_labels
    candidate_gradients = np.concatenate([d_label_scores, d_draw_scores])

    # `bincount` sums in float64
    sums = np.bincount(scores.candidate_table[2, :-1], candidate_gradients, scores.num_unique)
    return sums.astype(d_sampled.dtype)


@ignoring_overflow
def _separate_draw_gradients(
    scores: CandidateScores,
    d_labels: Rows,
    d_sampled: Rows,
    z: Rows,
    weights: FloatArray,
    dz: Rows,
    dW: Rows,
) -> None:
    """Write the gradients in contexts and class vectors, for draws that examples do not share.

    `dz` (B, d) receives the gradients in the contexts, `dW` (k, d) the gradients in the vectors of
    the k classes that are labels or drawn. For the other arguments see `score_gradients`.
    """
    block = scores.block
    example_ids = scores.example_ids
    draw_indices = scores.draw_indices
    order = scores.candidate_table[3, :-1]
    offsets = scores.candidate_table[4, : scores.num_unique + 1]

    # the weights multiply the contexts (B, d), not the derivatives (B, m), which may be many more
    weight_column = weights.astype(z.dtype)[:, None]
    weighted_z = weight_column * z
    num_multiplications = d_sampled.size * z.shape[1]
    thread_for_each(
        lambda chunk: context_gradients(d_sampled[chunk], block, draw_indices[chunk], dz[chunk]),
        _chunks_for_threads(len(z), num_multiplications),
    )

    thread_for_each(
        lambda chunk: class_gradients(
            d_labels,
            d_sampled,
            weighted_z,
            example_ids,
            dW[:0],
            order,
            offsets[chunk.start :],
            dW[chunk],
        ),
        _chunks_for_threads(scores.num_unique, num_multiplications),
    )

    add_label_context_gradients(
        d_labels, block, scores.label_indices, example_ids, 0, 0, len(example_ids), dz
    )
    dz *= weight_column
    if scores.norms.shape[0]:
        unit_rows_backward(dW, block, scores.norms)


def _chunks_for_threads(size: int, num_multiplications: int) -> list[slice]:
    """Return slices that split ``range(size)`` among threads, or one slice if the work is small."""
    # `size` is 0 on a machine whose classes are neither labels nor drawn
    chunk_size = size
    if num_multiplications >= _MIN_THREADED_MULTIPLICATIONS:
        chunk_size = -(-size // (4 * num_threads()))
    return chunks(size, max(1, chunk_size))
