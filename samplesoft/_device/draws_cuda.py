"""What samplers on a CUDA device share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import filled, take_rows
from samplesoft._jit import chunks
from samplesoft._random import mix64, uniform_block
from samplesoft.kernels.arrays import elementwise_cuda as arrays


def uniforms(key: np.uint64, batch: int, num: int) -> Any:
    """Return what `uniform_block` does, (batch, num)."""
    out = empty((batch, num), np.float64)
    launch_threads(arrays.fill_uniforms, out.size, key, out)
    return out


_NUMBERS = 1 << 26  # numbers about a batch held at a time


def in_parts(each: int, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arrays (B, ...) for some examples at a time, each of which takes `each` numbers."""
    batch = arrays[0].shape[0]
    some = max(1, _NUMBERS // each)
    if some >= batch:
        yield arrays
        return
    for part in chunks(batch, some):
        yield tuple(array[part] for array in arrays)


def sample_shared(sampler: Any, h: Any, m: int, key: np.uint64) -> tuple[Any, Any]:
    """Draw ids and log_q (1, m) from the mean over the batch, as `Sampler._sample_shared`."""
    stream, rest = np.uint64(mix64(key, np.uint64(0))), np.uint64(mix64(key, np.uint64(1)))
    owner = (uniform_block(stream, 1, m)[0] * h.shape[0]).astype(np.int64)
    contexts, slots, counts = np.unique(owner, return_inverse=True, return_counts=True)
    order = np.argsort(owner, kind="stable")
    turns = np.empty(m, np.int64)
    turns[order] = np.arange(m) - np.repeat(np.cumsum(counts) - counts, counts)
    some = take_rows(h, to_device(contexts))
    drawn = sampler._sample(some, int(counts.max()), filled(len(contexts), -1), rest).ids
    ids = empty((1, m), np.int64)
    launch_threads(arrays.take_numbers, m, drawn, to_device(slots), to_device(turns), ids)
    return ids, mean_log_prob(sampler, h, ids)


def mean_log_prob(sampler: Any, h: Any, ids: Any) -> Any:
    """Return the log-probability (1, k) of classes (1, k) in the mean over contexts (B, d)."""
    each, log_q = empty((h.shape[0], ids.shape[1]), np.int64), empty(ids.shape, np.float64)
    launch_threads(arrays.repeat_row, each.size, ids, each)
    every = sampler._log_prob(h, each, filled(h.shape[0], -1))
    launch_warps(arrays.log_mean, ids.shape[1], every, log_q)
    return log_q
