"""Draws from one distribution for all examples on the device: the twins of `static`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samplesoft._cuda import cuda, for_device, kernel, thread_index
from samplesoft._random import mix64, uniform
from samplesoft.kernels.samplers import alias as alias_tables

alias_draw = for_device(alias_tables.alias_draw)


@kernel
def alias_rows(key: Any, tables: Any, top: int, exclude: Any, ids: Any) -> None:
    """Write draws with replacement into `ids` (B, m), a thread for each.

    From the first table, or the second one where class `top` is excluded, as `static.alias_rows`.
    """
    place, num = thread_index(), ids.shape[1]
    b, k = place // num, place % num
    if b >= ids.shape[0]:
        return
    row = np.uint64(mix64(key, np.uint64(b)))
    drawn = exclude[b]
    while drawn == exclude[b]:
        word = np.uint64(mix64(row, np.uint64(k)))
        if exclude[b] == top:
            drawn = alias_draw(word, *tables[1])
        else:
            drawn = alias_draw(word, *tables[0])
        k += num
    ids[b, place % num] = drawn


@kernel
def uniform_rows(key: Any, n: int, exclude: Any, ids: Any) -> None:
    """Write equally likely classes of ``range(n)`` into `ids` (B, m), a thread for each."""
    place, num = thread_index(), ids.shape[1]
    b, k = place // num, place % num
    if b >= ids.shape[0]:
        return
    left = n - 1 if exclude[b] >= 0 else n
    row = np.uint64(mix64(key, np.uint64(b)))
    drawn = np.int64(uniform(row, np.uint64(k)) * left)
    ids[b, k] = drawn + 1 if 0 <= exclude[b] <= drawn else drawn


@kernel
def log_weighted(log_q: Any, log_left: Any, ids: Any, exclude: Any, out: Any) -> None:
    """Write log-probabilities of classes (B, k), a thread for each.

    `log_q` (n,) holds those of all classes, `log_left` (n,) that of all but one.
    """
    place, num = thread_index(), ids.shape[1]
    b, k = place // num, place % num
    if b >= ids.shape[0]:
        return
    left = log_left[exclude[b]] if exclude[b] >= 0 else 0.0
    out[b, k] = log_q[ids[b, k]] - left if ids[b, k] != exclude[b] else -math.inf


@kernel
def log_uniform(log_q: float, log_left: float, ids: Any, exclude: Any, out: Any) -> None:
    """Write log-probabilities of equally likely classes (B, k), a thread for each."""
    place, num = thread_index(), ids.shape[1]
    b, k = place // num, place % num
    if b >= ids.shape[0]:
        return
    left = log_left if exclude[b] >= 0 else 0.0
    out[b, k] = log_q - left if ids[b, k] != exclude[b] else -math.inf


@kernel
def find_nothing_left(log_left: Any, exclude: Any, found: Any) -> None:
    """Look for an excluded class (B,) beside which there is no other, a thread for each."""
    i = thread_index()
    if i < exclude.shape[0] and exclude[i] >= 0 and log_left[exclude[i]] == -math.inf:
        cuda.atomic.min(found, 0, i)
