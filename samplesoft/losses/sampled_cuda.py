"""Sampled softmax on a CUDA device, for one label an example: the twin of `sampled` and below.

A warp computes a score, the loss of an example, or the gradient of a row; each sum has one order.
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
    equal_runs,
    first_not_finite,
    first_outside,
    take_rows,
)
from samplesoft._device.rows import unit_rows, unit_rows_backward
from samplesoft._device.select import on_device, to_host
from samplesoft._validation import FloatArray
from samplesoft.kernels.lanes_cuda import warp_dot
from samplesoft.losses.base import Batch, Gradients, SparseRows, Targets
from samplesoft.losses.candidates import check_draw, check_label_count, no_draw, require_shapes
from samplesoft.losses.sampled import log_ratio
from samplesoft.losses.step import gain_of_kept
from samplesoft.samplers.base import Draw


class Draws(NamedTuple):
    """What was drawn, and how draws of the label are treated, as in `schemes.Scheme`."""

    ids: Any  # (B, m), or (1, m) for all
    log_q: Any
    log_m: float  # 0 where draws are not corrected
    labels: Any  # (B,)
    label_counts: Any  # (B,), or (0,) where they are not asked for
    corrects_label: bool
    divides_by_kept: bool
    keeps_label: bool
    absolute: bool


class Places(NamedTuple):
    """Where the classes of scores (B, 1 + m) stand; `join` lays their classes out in one list."""

    rows: Any  # row of the block for each of that list
    order: Any  # the list by class
    starts: Any  # (k,): where each class begins in `order`
    shared: bool  # the list has labels (B,) and one set (m,); else B times a label and its draws


@dataclass(frozen=True, eq=False)
class _Saved:
    """What the backward pass needs beside the batch."""

    slopes: Any  # (B, 1 + m): derivatives in the scores
    block: Any  # (k, d): vectors of the classes that occur
    norms: Any  # (k,), or None
    classes: Any  # (k,)
    places: Places


class CudaPasses:
    """The passes of a `SampledSoftmaxLoss` on the device."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def forward(
        self, batch: Batch, draw: Draw | None, label_log_count: Any
    ) -> tuple[FloatArray, _Saved]:
        """Return the losses (B,) on the processor, where they are weighted, and what is saved."""
        loss, labels, size = self._loss, batch.targets.labels, batch.z.shape[0]
        ids, log_q = _check_draw(draw, size, batch.class_embeddings.shape[0])
        draws = Draws(
            ids,
            log_q,
            math.log(ids.shape[1]) if loss.facts.corrects_draws else 0.0,
            labels,
            self._label_counts(batch, label_log_count),
            loss.facts.corrects_label,
            loss.facts.divides_by_kept,
            loss.facts.draws_label,
            loss.absolute,
        )
        saved = self._scored(batch, ids)
        losses, hits = empty(size, np.float64), empty(size, np.int64)
        launch_warps(softmax_rows, size, saved.slopes, draws, losses, hits)
        if loss.excludes_label:
            pair = first_outside(hits, 0, 0)
            if pair is not None:
                raise loss.contains_label(to_host(labels), pair)
        return losses.copy_to_host(), saved  # (B,): a copy waits no longer than for their sum

    def backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        """Compute gradients in contexts times tau, in class vectors and in biases."""
        dtype, num = batch.z.dtype, saved.block.shape[0]
        factors = to_device(weights.astype(dtype))
        dz, d_block = empty(batch.z.shape, dtype), empty(saved.block.shape, dtype)
        d_biases = empty(0 if batch.biases is None else num, dtype)
        slopes, places = saved.slopes, saved.places
        launch_warps(context_sums, dz.shape[0], slopes, saved.block, places, factors, dz)
        launch_warps(class_sums, num, slopes, batch.z, places, factors, d_block, d_biases)
        if saved.norms is not None:
            unit_rows_backward(d_block, saved.block, saved.norms)
        db = None if batch.biases is None else SparseRows(saved.classes, d_biases)
        return Gradients(dz, SparseRows(saved.classes, d_block), db)

    def _scored(self, batch: Batch, ids: Any) -> _Saved:
        size, m, dtype = batch.z.shape[0], ids.shape[1], batch.z.dtype
        shared = ids.shape[0] == 1 < size
        listed = empty(size + m if shared else size * (1 + m), np.int64)
        launch_threads(join, listed.size, batch.targets.labels, ids, shared, listed)
        classes, rows, order, starts = equal_runs(listed, batch.class_embeddings.shape[0])
        places = Places(rows, order, starts, shared)
        block, norms = take_rows(batch.class_embeddings, classes), None
        if self._loss.normalize:
            block, norms = unit_rows("class_embeddings", block, classes)
        biases = empty(0, dtype)
        if batch.biases is not None:
            biases = take_rows(batch.biases.reshape(-1, 1), classes).reshape(-1)
        scores = empty((size, 1 + m), dtype)
        launch_warps(score, scores.size, batch.z, block, biases, places, scores)
        return _Saved(scores, block, norms, classes, places)

    def _label_counts(self, batch: Batch, value: Any) -> Any:
        if not self._loss.needs_label_count:
            return empty(0, np.float64)
        if on_device(value) and tuple(value.shape) == (batch.z.shape[0],):
            counts = contiguous("label_log_count", value, np.float64)
            if self._loss.facts.divides_by_kept or first_not_finite(counts) is None:
                return counts
        targets = Targets(to_host(batch.targets.labels))
        return to_device(check_label_count(to_host(value), targets, self._loss.facts))


def _check_draw(draw: Draw | None, batch: int, n: int) -> tuple[Any, Any]:
    """Check drawn classes (B, m) or (1, m) and their log-probabilities."""
    if not isinstance(draw, Draw):
        raise no_draw(draw)
    if not on_device(draw.ids):
        check_draw(draw, batch, n)
    ids, log_q = (
        contiguous(f"draw.{name}", value, dtype) if on_device(value) else to_device(value)
        for name, value, dtype in (("ids", draw.ids, np.int64), ("log_q", draw.log_q, np.float64))
    )
    if draw.log_inclusion is not None:
        raise ValueError(
            "`draw` must be with replacement with device='cuda', got one without; compute on the "
            "processor."
        )
    require_shapes(ids.shape, log_q.shape, batch)
    if first_outside(ids, 0, n - 1) is not None or first_not_finite(log_q) is not None:
        check_draw(draw.to_host(), batch, n)  # says what is
    return ids, log_q


@kernel
def join(labels: Any, ids: Any, shared: bool, out: Any) -> None:
    """Write labels (B,) and drawn classes into `out`: (B, 1 + m) numbers, or (B + m) if shared."""
    place, num = thread_index(), ids.shape[1]
    if place >= out.shape[0]:
        return
    if shared:
        batch = labels.shape[0]
        out[place] = labels[place] if place < batch else ids[0, place - batch]
    else:
        b, k = place // (1 + num), place % (1 + num)
        out[place] = labels[b] if k == 0 else ids[b, k - 1]


@device_function
def row_of(b: int, k: int, shape: tuple[int, int], places: Any) -> Any:
    """Return the row of the block with the class of score (b, k) of a matrix of `shape`."""
    if not places.shared:
        return places.rows[b * shape[1] + k]
    return places.rows[b if k == 0 else shape[0] + k - 1]


@kernel
def score(z: Any, block: Any, biases: Any, places: Any, scores: Any) -> None:
    """Write scores (B, 1 + m) of labels and draws, a warp for each; `biases` may be empty."""
    num = scores.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= scores.shape[0]:
        return
    row = row_of(b, k, scores.shape, places)
    product = warp_dot(z[b], block[row])
    if lane() == 0:
        scores[b, k] = product + biases[row] if biases.shape[0] else product


@device_function
def sign(x: float) -> float:
    """Return 1, -1, or 0 for 0."""
    return 1.0 if x > 0.0 else -1.0 if x < 0.0 else 0.0


@device_function
def logit(x: float, draws: Any, b: int, k: int, shift: float) -> Any:
    """Return the corrected logit of draw k for example b with the score x; -inf if left out."""
    row = b if draws.ids.shape[0] > 1 else 0
    if draws.ids[row, k] == draws.labels[b] and not draws.keeps_label:
        return -math.inf
    return (abs(x) if draws.absolute else x) - draws.log_q[row, k] - shift


@kernel
def softmax_rows(scores: Any, draws: Any, losses: Any, hits: Any) -> None:
    """Write the loss (B,) of each example and how many draws are of its label; a warp for each.

    Scores (B, 1 + m) become derivatives.
    """
    b, m = warp_index(), draws.ids.shape[1]
    if b >= scores.shape[0]:
        return
    row = b if draws.ids.shape[0] > 1 else 0
    num_hits, unsound = 0, 0 if abs(scores[b, 0]) < math.inf else 1
    for k in range(lane(), m, WARP_SIZE):
        num_hits += 1 if draws.ids[row, k] == draws.labels[b] else 0
        unsound += 0 if abs(scores[b, 1 + k]) < math.inf else 1
    num_hits, unsound = warp_sum(num_hits), warp_sum(unsound)
    shift = draws.log_m
    if draws.divides_by_kept:
        shift -= gain_of_kept(m, num_hits, draws.label_counts[b])
    own = abs(float(scores[b, 0])) if draws.absolute else float(scores[b, 0])
    if draws.corrects_label:
        own -= draws.label_counts[b]
    greatest = own
    for k in range(lane(), m, WARP_SIZE):
        greatest = max(greatest, logit(float(scores[b, 1 + k]), draws, b, k, shift))
    greatest = warp_max(greatest)
    # three passes over scores in place of one over stored logits: there is no room for a row
    drawn = 0.0
    for k in range(lane(), m, WARP_SIZE):
        drawn += math.exp(logit(float(scores[b, 1 + k]), draws, b, k, shift) - greatest)
    drawn = warp_sum(drawn)
    weight = math.exp(own - greatest)
    for k in range(lane(), m, WARP_SIZE):
        x = float(scores[b, 1 + k])
        slope = math.exp(logit(x, draws, b, k, shift) - greatest) / (weight + drawn)
        scores[b, 1 + k] = slope * sign(x) if draws.absolute else slope
    if lane() == 0:
        slope = -drawn / (weight + drawn)
        scores[b, 0] = slope * sign(float(scores[b, 0])) if draws.absolute else slope
        losses[b] = log_ratio(weight, drawn, greatest - own) if unsound == 0 else math.nan
        hits[b] = num_hits


@kernel
def context_sums(d_scores: Any, block: Any, places: Any, weights: Any, dz: Any) -> None:
    """Write the gradient (B, d) in the contexts, a warp for each."""
    b, (batch, num) = warp_index(), d_scores.shape
    if b >= batch:
        return
    # a lane for each feature: the sum over draws has one order, whatever runs beside it
    for f in range(lane(), dz.shape[1], WARP_SIZE):
        total = dz.dtype.type(0)
        for k in range(num):
            total += d_scores[b, k] * block[row_of(b, k, d_scores.shape, places), f]
        dz[b, f] = total * weights[b]


@kernel
def class_sums(
    d_scores: Any, z: Any, places: Any, weights: Any, d_block: Any, d_biases: Any
) -> None:
    """Write the gradient (k, d) in the rows of the block, and in biases (k,), if there are any.

    A warp for each class, which adds in the order of the examples.
    """
    i, (batch, num) = warp_index(), d_scores.shape
    if i >= d_block.shape[0]:
        return
    # all places of a class belong to one warp, so that nothing is added atomically
    start = places.starts[i]
    stop = places.starts[i + 1] if i + 1 < places.starts.shape[0] else places.order.shape[0]
    # one more column than features, for the bias, whose feature is 1
    for f in range(lane(), d_block.shape[1] + (1 if d_biases.shape[0] else 0), WARP_SIZE):
        bias = f == d_block.shape[1]
        total = d_block.dtype.type(0)
        for at in range(start, stop):
            place = places.order[at]
            first, last, k = place, place + 1, 0
            if not places.shared:
                first, last, k = place // num, place // num + 1, place % num
            elif place >= batch:  # one draw of all examples
                first, last, k = 0, batch, place - batch + 1
            for b in range(first, last):
                slope = d_scores[b, k] * weights[b]
                total += slope if bias else slope * z[b, f]
        if bias:
            d_biases[i] = total
        else:
            d_block[i, f] = total
