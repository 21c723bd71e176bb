"""Sampled softmax on a CUDA device, for one label an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from samplesoft._cuda import (
    empty,
    first_found,
    launch_groups,
    launch_threads,
    on_device,
    to_device,
)
from samplesoft._device import on_host
from samplesoft._gpu.arrays import DeviceArrays, cast, filled, shaped_rows, take_rows
from samplesoft._gpu.groups import group
from samplesoft.kernels import checks_cuda
from samplesoft.kernels import sampled_loss_cuda as kernels
from samplesoft.losses.base import Batch, Cache, read_weights, total_weight
from samplesoft.losses.draws import no_draw, read_label_count, require_shapes
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.targets import Targets
from samplesoft.losses.vectors import no_norm, read_biases
from samplesoft.sampler import Draw


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


class CudaSampledSoftmax:
    """What a `SampledSoftmaxLoss` does with arrays on the device.

    Parameters
    ----------
    loss : SampledSoftmaxLoss
        Its settings.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def read(self, h: Any, class_embeddings: Any, labels: Any, biases: Any) -> Batch:
        """Check the arguments of a forward pass, and normalise contexts."""
        if on_device(class_embeddings):  # too many to read them all at each step
            rows = shaped_rows("class_embeddings", class_embeddings)
        else:
            rows = DeviceArrays.float_rows("class_embeddings", class_embeddings)
        n, d = rows.shape
        contexts = DeviceArrays.float_rows("h", h, d, rows.dtype)
        if hasattr(labels, "tocsr"):
            raise TypeError(
                "`labels` must hold one label an example with device='cuda', got a matrix; "
                "compute on the processor, or expand the batch to pairs."
            )
        checked = DeviceArrays.labels("labels", labels, n, (contexts.shape[0],))
        offsets = biases
        if biases is not None and not on_device(biases):
            offsets = to_device(read_biases(biases, n, rows.dtype))
        norms = None
        if self._loss.normalize:
            contexts, norms = unit_rows("h", cast(contexts, contexts.dtype))
        z = contexts if self._loss.tau == 1.0 else cast(contexts, contexts.dtype, self._loss.tau)
        return Batch(contexts, norms, z, rows, Targets(checked), offsets)

    def forward_batch(
        self, batch: Batch, draw: Draw | None, label_log_count: Any, weights: Any
    ) -> tuple[Any, Cache]:
        """Compute the loss of arguments that `read` has checked."""
        size, scheme = batch.z.shape[0], self._loss.treatment
        ids, log_q = _read_draw(draw, size, batch.class_embeddings.shape[0])
        m, shared = ids.shape[1], ids.shape[0] == 1 < size
        counts = self._label_counts(label_log_count, size)
        saved = self._scored(batch, ids, shared)
        losses, hits = empty(size, np.float64), empty(size, np.int64)
        log_m = float(np.log(m)) if scheme.corrects else 0.0
        treated = scheme.adjusts_label, scheme.hits == "counted", scheme.hits == "kept"
        given = saved.slopes, ids, log_q, log_m, batch.targets.labels, counts, *treated
        launch_groups(kernels.softmax_rows, size, *given, self._loss.absolute, losses, hits)
        if self._loss.excludes_label:
            pair = first_found(launch_threads, checks_cuda.find_outside, size, hits, 1)
            if pair is not None:
                raise self._loss.contains_label(on_host(batch.targets.labels), pair)
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
        launch_groups(kernels.context_sums, dz.shape[0], *placed)
        grouped = saved.slopes, batch.z, saved.order, saved.starts, saved.shared, weights
        launch_groups(kernels.class_sums, d_block.shape[0], *grouped, d_block, d_biases)
        if saved.norms is not None:
            launch_groups(
                kernels.unit_gradient, d_block.shape[0], d_block, saved.block, saved.norms
            )
        dh = dz if self._loss.tau == 1.0 else cast(dz, dtype, self._loss.tau)
        if batch.norms is not None:
            launch_groups(kernels.unit_gradient, dh.shape[0], dh, batch.contexts, batch.norms)
        db = None if batch.biases is None else SparseRows(saved.classes, d_biases)
        return Gradients(dh, SparseRows(saved.classes, d_block), db)

    def _scored(self, batch: Batch, ids: Any, shared: bool) -> _Saved:
        size, m, dtype = batch.z.shape[0], ids.shape[1], batch.z.dtype
        candidates = empty(size + m if shared else size * (1 + m), np.int64)
        joined = batch.targets.labels, ids, shared, candidates
        launch_threads(kernels.join, candidates.size, *joined)
        classes, places, order, starts = group(candidates, batch.class_embeddings.shape[0])
        block, norms = take_rows(batch.class_embeddings, classes), None
        if self._loss.normalize:
            block, norms = unit_rows("class_embeddings", block, classes)
        biases = empty(0, dtype)
        if batch.biases is not None:
            biases = take_rows(batch.biases.reshape(-1, 1), classes).reshape(-1)
        scores = empty((size, 1 + m), dtype)
        scored = batch.z, block, biases, places, shared, scores
        launch_groups(kernels.score, scores.size, *scored)
        return _Saved(scores, block, norms, classes, places, order, starts, shared)

    def _label_counts(self, value: Any, size: int) -> Any:
        if not self._loss.needs_label_count:
            return empty(0, np.float64)
        if value is None or not on_device(value):
            labels = Targets(np.zeros(size, np.int64))
            return to_device(read_label_count(value, labels, self._loss.scheme))
        if value.shape != (size,):
            raise ValueError(f"`label_log_count` must have shape ({size},), got {value.shape}.")
        if self._loss.scheme != "reject":
            place = first_found(launch_threads, checks_cuda.find_not_finite, size, value)
            if place is not None:
                raise ValueError(
                    "`label_log_count` must be finite, got "
                    f"{value[place : place + 1].copy_to_host()[0]} for example {place}; where no "
                    "draw can contain the label, take scheme='masked', or mix the proposal with "
                    "one that covers all classes."
                )
        return value

    def _reduced(self, batch: Batch, losses: Any, weights: Any) -> tuple[Any, Any]:
        """Return the value, and its derivatives (B,) in the losses."""
        size = losses.shape[0]
        if weights is None:
            per_example = filled(size, 1.0)
        else:
            given = weights.copy_to_host() if on_device(weights) else weights
            per_example = to_device(read_weights(given, size))
        sums = empty(2, np.float64)
        launch_groups(kernels.weighted_sum, 1, losses, per_example, sums)
        value, total = map(float, sums.copy_to_host())
        if not np.isfinite(value):
            self._explain(batch, losses)
        if self._loss.reduction == "mean":
            scale = 1.0 / total_weight(total)
            return value * scale, cast(per_example, np.float64, scale)
        if self._loss.reduction == "sum":
            return value, per_example
        weighted = cast(losses, np.float64)
        launch_threads(kernels.multiply, size, weighted, per_example)
        return weighted, per_example

    def _explain(self, batch: Batch, losses: Any) -> None:
        rows = batch.class_embeddings
        place = first_found(
            launch_threads, checks_cuda.find_not_finite, rows.size, rows.reshape(-1)
        )
        if place is not None:
            raise ValueError(
                f"`class_embeddings` must be finite, got row {place // rows.shape[1]} that is not; "
                "training may have diverged: lower the learning rate, or clip gradients."
            )
        raise self._loss.not_finite(losses.copy_to_host(), rows.dtype)


def _read_draw(draw: Draw | None, batch: int, n: int) -> tuple[Any, Any]:
    """Check drawn classes (B, m) or (1, m) and their log-probabilities."""
    if not isinstance(draw, Draw):
        raise no_draw(draw)
    ids = draw.ids if on_device(draw.ids) else to_device(draw.ids)
    log_q = draw.log_q if on_device(draw.log_q) else to_device(draw.log_q)
    if draw.log_inclusion is not None:
        raise ValueError(
            "`draw` must be with replacement with device='cuda', got one without; compute on the "
            "processor."
        )
    require_shapes(ids.shape, log_q.shape, batch)
    DeviceArrays.ids("draw.ids", ids, n, ids.shape[0])
    place = first_found(launch_threads, checks_cuda.find_not_finite, log_q.size, log_q.reshape(-1))
    if place is not None:
        where = [place // ids.shape[1], place % ids.shape[1]]
        raise ValueError(
            f"`draw` must hold finite log-probabilities, got one that is not at index {where}: "
            "what was drawn has a probability above 0."
        )
    return ids, log_q


def unit_rows(name: str, rows: Any, ids: Any = None) -> tuple[Any, Any]:
    """Divide rows (N, d) by their norms (N,), in place; `ids` is what they are called."""
    norms = empty(rows.shape[0], np.float64)
    launch_groups(kernels.divide_by_norms, rows.shape[0], rows, norms)
    row = first_found(launch_threads, checks_cuda.find_not_positive, norms.shape[0], norms)
    if row is not None:
        named = row if ids is None else int(ids[row : row + 1].copy_to_host()[0])
        raise no_norm(name, float(norms[row : row + 1].copy_to_host()[0]), named)
    return rows, norms
