"""Sampled softmax on a CUDA device: the counterpart of `losses.sampled`, for one label per example.

Functions have the same names as in `losses.candidates` and `losses.step`: candidates are grouped by
class and scored, losses and derivatives are computed, and gradients are summed for contexts and for
classes. A warp computes one score, the loss of one example, or the gradient of one row. Each sum
has a fixed order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    empty,
    kernel,
    lane,
    launch_threads,
    launch_warps,
    thread_index,
    to_device,
    warp_index,
    warp_max,
    warp_sum,
)
from samplesoft._device.cuda import (
    contiguous,
    first_index_not_finite,
    first_index_outside,
    group_equal_ids,
    take_rows,
)
from samplesoft._device.rows import unit_rows, unit_rows_backward
from samplesoft._device.select import on_device, to_host
from samplesoft._validation import FloatArray
from samplesoft.kernels.lanes_cuda import warp_dot
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.candidates import (
    checked_draw,
    checked_label_counts,
    missing_draw_error,
    require_draw_shapes,
)
from samplesoft.losses.sampled import label_derivative, loss_from_masses
from samplesoft.losses.step import reject_correction
from samplesoft.samplers.base import Draw


class Draws(NamedTuple):
    """Draws, labels, and how accidental hits (draws of the label) are treated; see `Scheme`."""

    ids: Any  # (B, m), or (1, m) if shared
    log_q: Any
    log_m: float  # log of the number of draws m; 0 if draws are not corrected
    labels: Any  # (B,)
    label_log_counts: Any  # (B,): log expected counts of the labels; (0,) if not needed
    corrects_label: bool
    divides_by_accepted: bool
    keeps_hits: bool
    absolute: bool


class Candidates(NamedTuple):
    """Labels and draws, numbered as in `list_candidates`, with the class of each candidate.

    A block of class vectors has one row for each of the k classes that occur.
    """

    rows: Any  # row of each candidate in the block
    order: Any  # candidates, sorted by class
    offsets: Any  # (k,): index in `order` of the first candidate of each class
    # if True, the candidates are B labels and then m draws; otherwise, for each example, its label
    # and then its m draws
    shared: bool


@dataclass(frozen=True, eq=False)
class _ForwardArrays:
    """Arrays of the forward pass that the backward pass needs in addition to the batch."""

    d_scores: Any  # (B, 1 + m): derivatives in the scores of label and draws
    block: Any  # (k, d): vectors of the classes that are labels or drawn
    norms: Any  # (k,): norms of the vectors; None if the loss does not normalise
    classes: Any  # (k,): the classes, ascending
    candidates: Candidates


class CudaPasses:
    """The forward and the backward pass of a `SampledSoftmaxLoss` on a CUDA device."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def forward(
        self, batch: Batch, draw: Draw | None, label_log_count: Any
    ) -> tuple[FloatArray, _ForwardArrays]:
        """Return the losses (B,), in host memory, and the arrays that `backward` needs."""
        loss = self._loss
        labels = batch.targets.labels
        batch_size = batch.z.shape[0]
        ids, log_q = _checked_draw(draw, batch_size, batch.class_embeddings.shape[0])

        draws = Draws(
            ids=ids,
            log_q=log_q,
            log_m=math.log(ids.shape[1]) if loss.properties.corrects_draws else 0.0,
            labels=labels,
            label_log_counts=self._label_log_counts(batch, label_log_count),
            corrects_label=loss.properties.corrects_label,
            divides_by_accepted=loss.properties.divides_by_accepted,
            keeps_hits=loss.properties.draws_label,
            absolute=loss.absolute,
        )

        saved = self._score_candidates(batch, ids)
        losses = empty(batch_size, np.float64)
        num_hits = empty(batch_size, np.int64)
        launch_warps(softmax_rows, batch_size, saved.d_scores, draws, losses, num_hits)

        if loss.excludes_label:
            pair = first_index_outside(num_hits, 0, 0)
            if pair is not None:
                raise loss.label_in_draw_error(to_host(labels), pair)

        # copying B losses to the host takes no longer than computing their sum on the device
        return losses.copy_to_host(), saved

    def backward(self, batch: Batch, saved: _ForwardArrays, weights: FloatArray) -> Gradients:
        """Return the gradients in z (contexts times tau), in class vectors and in biases.

        They are gradients of the sum of the losses, weighted by `weights` (B,).
        """
        dtype = batch.z.dtype
        num_classes = saved.block.shape[0]
        d_scores = saved.d_scores
        candidates = saved.candidates
        typed_weights = to_device(weights.astype(dtype))

        dz = empty(batch.z.shape, dtype)
        d_block = empty(saved.block.shape, dtype)
        d_biases = empty(0 if batch.biases is None else num_classes, dtype)

        launch_warps(
            context_gradients, dz.shape[0], d_scores, saved.block, candidates, typed_weights, dz
        )
        launch_warps(
            class_gradients,
            num_classes,
            d_scores,
            batch.z,
            candidates,
            typed_weights,
            d_block,
            d_biases,
        )
        if saved.norms is not None:
            unit_rows_backward(d_block, saved.block, saved.norms)

        db = None if batch.biases is None else SparseRows(saved.classes, d_biases)
        return Gradients(dz, SparseRows(saved.classes, d_block), db)

    def _score_candidates(self, batch: Batch, ids: Any) -> _ForwardArrays:
        """Return the arrays of the forward pass, with scores in `d_scores`.

        `softmax_rows` then overwrites the scores by derivatives.
        """
        batch_size = batch.z.shape[0]
        m = ids.shape[1]
        dtype = batch.z.dtype
        shared = ids.shape[0] == 1 < batch_size

        listed = empty(batch_size + m if shared else batch_size * (1 + m), np.int64)
        launch_threads(list_candidates, listed.size, batch.targets.labels, ids, shared, listed)
        classes, rows, order, offsets = group_equal_ids(listed, batch.class_embeddings.shape[0])
        candidates = Candidates(rows, order, offsets, shared)

        block = take_rows(batch.class_embeddings, classes)
        norms = None
        if self._loss.normalize:
            block, norms = unit_rows("class_embeddings", block, classes)

        biases = empty(0, dtype)
        if batch.biases is not None:
            biases = take_rows(batch.biases.reshape(-1, 1), classes).reshape(-1)

        scores = empty((batch_size, 1 + m), dtype)
        launch_warps(score_candidates, scores.size, batch.z, block, biases, candidates, scores)
        return _ForwardArrays(scores, block, norms, classes, candidates)

    def _label_log_counts(self, batch: Batch, value: Any) -> Any:
        if not self._loss.needs_label_count:
            return empty(0, np.float64)
        if on_device(value) and tuple(value.shape) == (batch.z.shape[0],):
            counts = contiguous("label_log_count", value, np.float64)
            if self._loss.properties.divides_by_accepted or first_index_not_finite(counts) is None:
                return counts
        targets = Targets(to_host(batch.targets.labels))
        return to_device(checked_label_counts(to_host(value), targets, self._loss.properties))


def _checked_draw(draw: Draw | None, batch_size: int, n: int) -> tuple[Any, Any]:
    """Return validated drawn classes, (B, m) or (1, m), and their log q, on the device."""
    if not isinstance(draw, Draw):
        raise missing_draw_error(draw)

    if not on_device(draw.ids):
        checked_draw(draw, batch_size, n)

    ids, log_q = (
        contiguous(f"draw.{name}", value, dtype) if on_device(value) else to_device(value)
        for name, value, dtype in (("ids", draw.ids, np.int64), ("log_q", draw.log_q, np.float64))
    )
    if draw.log_inclusion is not None:
        raise ValueError(
            "`draw` must be with replacement with device='cuda', got one without; compute on the "
            "processor."
        )

    require_draw_shapes(ids.shape, log_q.shape, batch_size)
    if first_index_outside(ids, 0, n - 1) is not None or first_index_not_finite(log_q) is not None:
        checked_draw(draw.to_host(), batch_size, n)  # raises

    return ids, log_q


@kernel
def list_candidates(labels: Any, ids: Any, shared: bool, out: Any) -> None:
    """Write the candidates, labels (B,) and drawn classes, to `out`; each thread writes one.

    If the draws are `shared`, `out` gets B labels and then m draws; otherwise, for each example,
    its label and then its m draws.
    """
    i = thread_index()
    m = ids.shape[1]
    if i >= out.shape[0]:
        return

    if shared:
        batch_size = labels.shape[0]
        out[i] = labels[i] if i < batch_size else ids[0, i - batch_size]
    else:
        b = i // (1 + m)
        k = i % (1 + m)
        out[i] = labels[b] if k == 0 else ids[b, k - 1]


@device_function
def row_of_candidate(b: int, k: int, shape: tuple[int, int], candidates: Any) -> Any:
    """Return the row of the block that holds the class vector of the score (b, k).

    `shape` is (B, 1 + m), the shape of the scores. Column 0 is the label, column k is draw k - 1.
    """
    if not candidates.shared:
        return candidates.rows[b * shape[1] + k]
    return candidates.rows[b if k == 0 else shape[0] + k - 1]


@kernel
def score_candidates(z: Any, block: Any, biases: Any, candidates: Any, scores: Any) -> None:
    """Write scores (B, 1 + m) of labels and draws, one warp per score; `biases` may be empty."""
    num_scores = scores.shape[1]
    b = warp_index() // num_scores
    k = warp_index() % num_scores
    if b >= scores.shape[0]:
        return
    row = row_of_candidate(b, k, scores.shape, candidates)
    product = warp_dot(z[b], block[row])
    if lane() == 0:
        scores[b, k] = product + biases[row] if biases.shape[0] else product


@device_function
def sign(x: float) -> float:
    """Return the sign of x: 1, -1, or 0 for x = 0."""
    return 1.0 if x > 0.0 else -1.0 if x < 0.0 else 0.0


@device_function
def draw_logit(score: float, draws: Any, b: int, k: int, log_count: float) -> Any:
    """Return the logit of draw k for example b: the score minus log q minus `log_count`.

    `log_count` is the log of the number of draws, corrected if the scheme divides by the number of
    accepted draws. The logit of an accidental hit is -inf, unless ``draws.keeps_hits``.
    """
    row = b if draws.ids.shape[0] > 1 else 0
    if draws.ids[row, k] == draws.labels[b] and not draws.keeps_hits:
        return -math.inf
    return (abs(score) if draws.absolute else score) - draws.log_q[row, k] - log_count


@kernel
def softmax_rows(scores: Any, draws: Any, losses: Any, num_hits: Any) -> None:
    """Write the loss (B,) and the number of accidental hits (B,) of each example.

    One warp computes one example. Overwrites the scores (B, 1 + m) by derivatives. The formulas are
    the same as in `losses.sampled.softmax_kernel`.
    """
    b = warp_index()
    m = draws.ids.shape[1]
    if b >= scores.shape[0]:
        return

    row = b if draws.ids.shape[0] > 1 else 0
    hit_count = 0
    num_not_finite = 0 if abs(scores[b, 0]) < math.inf else 1

    for k in range(lane(), m, WARP_SIZE):
        hit_count += 1 if draws.ids[row, k] == draws.labels[b] else 0
        num_not_finite += 0 if abs(scores[b, 1 + k]) < math.inf else 1

    hit_count = warp_sum(hit_count)
    num_not_finite = warp_sum(num_not_finite)

    log_count = draws.log_m
    if draws.divides_by_accepted:
        log_count -= reject_correction(m, hit_count, draws.label_log_counts[b])

    label_score = float(scores[b, 0])
    label_logit = abs(label_score) if draws.absolute else label_score
    if draws.corrects_label:
        label_logit -= draws.label_log_counts[b]

    max_logit = label_logit
    # the max, the sum and the derivatives take three passes over the scores, each of which computes
    # the logits again, because a row of logits does not fit into registers
    for k in range(lane(), m, WARP_SIZE):
        max_logit = max(max_logit, draw_logit(float(scores[b, 1 + k]), draws, b, k, log_count))
    max_logit = warp_max(max_logit)

    drawn_mass = 0.0
    for k in range(lane(), m, WARP_SIZE):
        logit = draw_logit(float(scores[b, 1 + k]), draws, b, k, log_count)
        drawn_mass += math.exp(logit - max_logit)

    drawn_mass = warp_sum(drawn_mass)

    label_mass = math.exp(label_logit - max_logit)
    for k in range(lane(), m, WARP_SIZE):
        score = float(scores[b, 1 + k])
        logit = draw_logit(score, draws, b, k, log_count)
        probability = math.exp(logit - max_logit) / (label_mass + drawn_mass)
        scores[b, 1 + k] = probability * sign(score) if draws.absolute else probability

    if lane() == 0:
        derivative = label_derivative(label_mass, drawn_mass)
        scores[b, 0] = derivative * sign(label_score) if draws.absolute else derivative
        loss = loss_from_masses(label_mass, drawn_mass, max_logit - label_logit)
        losses[b] = loss if num_not_finite == 0 else math.nan
        num_hits[b] = hit_count


@kernel
def context_gradients(d_scores: Any, block: Any, candidates: Any, weights: Any, dz: Any) -> None:
    """Write the gradients (B, d) in the contexts; one warp computes one context."""
    b = warp_index()
    batch_size, num_scores = d_scores.shape
    if b >= batch_size:
        return

    # each lane sums over the draws for its features, so that the sum has a fixed order
    for f in range(lane(), dz.shape[1], WARP_SIZE):
        total = dz.dtype.type(0)
        for k in range(num_scores):
            row = row_of_candidate(b, k, d_scores.shape, candidates)
            total += d_scores[b, k] * block[row, f]
        dz[b, f] = total * weights[b]


@kernel
def class_gradients(
    d_scores: Any, z: Any, candidates: Any, weights: Any, d_block: Any, d_biases: Any
) -> None:
    """Write the gradients in the rows of the block (k, d), and in the biases, (k,) or (0,).

    One warp per class sums over the candidates of the class, in the order of the examples.
    """
    g = warp_index()
    batch_size, num_scores = d_scores.shape
    if g >= d_block.shape[0]:
        return

    # no atomic operations are needed, because one warp sums all candidates of a class
    offsets = candidates.offsets
    start = offsets[g]
    stop = offsets[g + 1] if g + 1 < offsets.shape[0] else candidates.order.shape[0]

    # if there are biases, they are one more column, whose feature is always 1
    for f in range(lane(), d_block.shape[1] + (1 if d_biases.shape[0] else 0), WARP_SIZE):
        is_bias = f == d_block.shape[1]
        total = d_block.dtype.type(0)

        for i in range(start, stop):
            candidate = candidates.order[i]
            # by default, the label of one example
            example_start = candidate
            example_stop = candidate + 1
            k = 0

            if not candidates.shared:
                example_start = candidate // num_scores
                example_stop = candidate // num_scores + 1
                k = candidate % num_scores
            elif candidate >= batch_size:  # a draw that all examples share
                example_start = 0
                example_stop = batch_size
                k = candidate - batch_size + 1

            for b in range(example_start, example_stop):
                derivative = d_scores[b, k] * weights[b]
                total += derivative if is_bias else derivative * z[b, f]

        if is_bias:
            d_biases[g] = total
        else:
            d_block[g, f] = total
