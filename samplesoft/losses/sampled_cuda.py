"""Sampled softmax on a CUDA device, for one label an example."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import (
    CudaArrays,
    cast,
    contiguous,
    copied,
    filled,
    first_not_finite,
    first_outside,
    shaped_rows,
    take_rows,
)
from samplesoft._device.select import on_device, to_host
from samplesoft._device.sort_ids_cuda import equal_runs
from samplesoft.kernels.losses import sampled_loss_cuda as kernels
from samplesoft.losses.base import Batch, Cache, check_weights, total_weight
from samplesoft.losses.draws import check_draw, check_label_count, no_draw, require_shapes
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.targets import Targets
from samplesoft.losses.vectors import check_biases, no_norm
from samplesoft.samplers.base import Draw


@dataclass(frozen=True, eq=False)
class _Saved:
    """What the backward pass needs beside the batch."""

    slopes: Any  # (B, 1 + m): derivatives in the scores
    block: Any  # (k, d): vectors of the classes that occur
    norms: Any  # (k,), or None
    classes: Any  # (k,)
    places: Any  # of the classes of each score in the block
    order: Any
    starts: Any
    shared: bool


class CudaPasses:
    """The passes of a `SampledSoftmaxLoss` on the device."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def check_batch(self, h: Any, class_embeddings: Any, labels: Any, biases: Any) -> Batch:
        """Check the arguments of a forward pass, and normalise contexts."""
        if on_device(class_embeddings):  # too many to read them all at each step
            rows = shaped_rows("class_embeddings", class_embeddings)
        else:
            rows = CudaArrays.float_rows("class_embeddings", class_embeddings)
        n, d = rows.shape
        contexts = CudaArrays.float_rows("h", h, d, rows.dtype)
        if hasattr(labels, "tocsr"):
            raise TypeError(
                "`labels` must hold one label an example with device='cuda', got a matrix; "
                "compute on the processor, or expand the batch to pairs."
            )
        checked = CudaArrays.labels("labels", labels, n, (contexts.shape[0],))
        offsets = biases
        if on_device(biases):
            offsets = contiguous("biases", biases, rows.dtype)
            if offsets.shape != (n,):
                raise ValueError(f"`biases` must have shape ({n},), got {offsets.shape}.")
        elif biases is not None:
            offsets = to_device(check_biases(biases, n, rows.dtype))
        norms = None
        if self._loss.normalize:
            contexts, norms = unit_rows("h", copied(contexts))
        z = contexts if self._loss.tau == 1.0 else cast(contexts, contexts.dtype, self._loss.tau)
        return Batch(contexts, norms, z, rows, Targets(checked), offsets)

    def forward_batch(
        self, batch: Batch, draw: Draw | None, *, label_log_count: Any, weights: Any
    ) -> tuple[Any, Cache]:
        """Compute the loss of arguments that `check_batch` has checked."""
        size, scheme = batch.z.shape[0], self._loss.facts
        ids, log_q = _check_draw(draw, size, batch.class_embeddings.shape[0])
        m, shared = ids.shape[1], ids.shape[0] == 1 < size
        counts = self._label_counts(batch, label_log_count)
        saved = self._scored(batch, ids, shared)
        losses, hits = empty(size, np.float64), empty(size, np.int64)
        log_m = float(np.log(m)) if scheme.corrects_draws else 0.0
        treated = scheme.corrects_label, scheme.divides_by_kept, scheme.draws_label
        given = saved.slopes, ids, log_q, log_m, batch.targets.labels, counts, *treated
        launch_warps(kernels.softmax_rows, size, *given, self._loss.absolute, losses, hits)
        if self._loss.excludes_label:
            pair = first_outside(hits, 0, 0)
            if pair is not None:
                raise self._loss.contains_label(to_host(batch.targets.labels), pair)
        value, per_example = self._reduced(batch, losses, weights)
        return value, Cache(batch, per_example, saved)

    def backward(self, cache: Cache) -> Gradients:
        """Compute gradients from what `forward_batch` returned."""
        batch, saved = cache.batch, cache.saved
        dtype = batch.z.dtype
        weights = cast(cache.weights, dtype)
        dz, d_block = empty(batch.z.shape, dtype), empty(saved.block.shape, dtype)
        d_biases = empty(0 if batch.biases is None else saved.classes.shape[0], dtype)
        placed = saved.slopes, saved.block, saved.places, saved.shared, weights, dz
        launch_warps(kernels.context_sums, dz.shape[0], *placed)
        runs = saved.slopes, batch.z, saved.order, saved.starts, saved.shared, weights
        launch_warps(kernels.class_sums, d_block.shape[0], *runs, d_block, d_biases)
        if saved.norms is not None:
            launch_warps(kernels.unit_gradient, d_block.shape[0], d_block, saved.block, saved.norms)
        dh = dz if self._loss.tau == 1.0 else cast(dz, dtype, self._loss.tau)
        if batch.norms is not None:
            launch_warps(kernels.unit_gradient, dh.shape[0], dh, batch.contexts, batch.norms)
        db = None if batch.biases is None else SparseRows(saved.classes, d_biases)
        return Gradients(dh, SparseRows(saved.classes, d_block), db)

    def _scored(self, batch: Batch, ids: Any, shared: bool) -> _Saved:
        size, m, dtype = batch.z.shape[0], ids.shape[1], batch.z.dtype
        candidates = empty(size + m if shared else size * (1 + m), np.int64)
        joined = batch.targets.labels, ids, shared, candidates
        launch_threads(kernels.join, candidates.size, *joined)
        classes, places, order, starts = equal_runs(candidates, batch.class_embeddings.shape[0])
        block, norms = take_rows(batch.class_embeddings, classes), None
        if self._loss.normalize:
            block, norms = unit_rows("class_embeddings", block, classes)
        biases = empty(0, dtype)
        if batch.biases is not None:
            biases = take_rows(batch.biases.reshape(-1, 1), classes).reshape(-1)
        scores = empty((size, 1 + m), dtype)
        scored = batch.z, block, biases, places, shared, scores
        launch_warps(kernels.score, scores.size, *scored)
        return _Saved(scores, block, norms, classes, places, order, starts, shared)

    def _label_counts(self, batch: Batch, value: Any) -> Any:
        size = batch.z.shape[0]
        if not self._loss.needs_label_count:
            return empty(0, np.float64)
        if on_device(value) and tuple(value.shape) == (size,):
            counts = contiguous("label_log_count", value, np.float64)
            if self._loss.facts.divides_by_kept or first_not_finite(counts) is None:
                return counts
        return to_device(
            check_label_count(to_host(value), _on_host(batch).targets, self._loss.facts)
        )

    def _reduced(self, batch: Batch, losses: Any, weights: Any) -> tuple[Any, Any]:
        """Return the value, and its derivatives (B,) in the losses."""
        size = losses.shape[0]
        if weights is None:
            per_example = filled(size, 1.0)
        else:
            per_example = to_device(check_weights(to_host(weights), size, self._loss.reduction))
        sums = empty(2, np.float64)
        launch_warps(kernels.weighted_sum, 1, losses, per_example, sums)
        value, total = map(float, sums.copy_to_host())
        if not np.isfinite(value):
            self._loss.explain(_on_host(batch), to_host(losses))
        if self._loss.reduction == "mean":
            scale = 1.0 / total_weight(total)
            return value * scale, cast(per_example, np.float64, scale)
        if self._loss.reduction == "sum":
            return value, per_example
        weighted = copied(losses)
        launch_threads(kernels.multiply, size, weighted, per_example)
        return weighted, per_example


def _on_host(batch: Batch) -> Batch:
    """Return what checks of the processor need of a batch, to say what is wrong with it."""
    return replace(batch, class_embeddings=to_host(batch.class_embeddings))


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


def unit_rows(name: str, rows: Any, ids: Any = None) -> tuple[Any, Any]:
    """Divide rows (N, d) by their norms (N,), in place; `ids` is what they are called."""
    norms = empty(rows.shape[0], np.float64)
    launch_warps(kernels.divide_by_norms, rows.shape[0], rows, norms)
    range_of = np.finfo(np.float64)
    row = first_outside(norms, range_of.smallest_subnormal, range_of.max)
    if row is not None:
        named = row if ids is None else int(ids[row : row + 1].copy_to_host()[0])
        raise no_norm(name, float(norms[row : row + 1].copy_to_host()[0]), named)
    return rows, norms
