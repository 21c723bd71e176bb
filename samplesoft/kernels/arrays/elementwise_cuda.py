"""Small work on device arrays: numbers written, drawn, moved and averaged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samplesoft._cuda import WARP_SIZE, kernel, lane, thread_index, warp_index, warp_max, warp_sum
from samplesoft._random import mix64, uniform


@kernel
def fill(out: Any, value: Any) -> None:
    """Write `value` everywhere in `out` (N,), a thread for each number."""
    i = thread_index()
    if i < out.shape[0]:
        out[i] = value


@kernel
def fill_uniforms(key: Any, out: Any) -> None:
    """Write what `_random.uniform_block` returns to `out` (B, m), a thread for each number."""
    place, num = thread_index(), out.shape[1]
    b, k = place // num, place % num
    if b < out.shape[0]:
        out[b, k] = uniform(np.uint64(mix64(key, np.uint64(b))), np.uint64(k))


@kernel
def take_rows(rows: Any, places: Any, out: Any) -> None:
    """Write ``rows[places]`` into `out` (k, d), a thread for each number."""
    place, width = thread_index(), out.shape[1]
    i, f = place // width, place % width
    if i < out.shape[0]:
        out[i, f] = rows[places[i], f]


@kernel
def take_numbers(numbers: Any, rows: Any, columns: Any, out: Any) -> None:
    """Write ``numbers[rows, columns]`` into `out` (1, k), a thread for each number."""
    i = thread_index()
    if i < out.shape[1]:
        out[0, i] = numbers[rows[i], columns[i]]


@kernel
def repeat_row(row: Any, out: Any) -> None:
    """Write a row (1, k) into every row of `out` (B, k), a thread for each number."""
    place, num = thread_index(), out.shape[1]
    b, k = place // num, place % num
    if b < out.shape[0]:
        out[b, k] = row[0, k]


@kernel
def log_mean(logs: Any, shares: Any, out: Any) -> None:
    """Write the log of the mean of exp over columns of (R, k) by `shares` (R,) to `out` (1, k)."""
    k = warp_index()
    if k >= logs.shape[1]:
        return
    greatest = -math.inf
    for b in range(lane(), logs.shape[0], WARP_SIZE):
        greatest = max(greatest, logs[b, k])
    greatest = warp_max(greatest)
    total = 0.0
    for b in range(lane(), logs.shape[0], WARP_SIZE):
        total += shares[b] * math.exp(logs[b, k] - greatest)
    total = warp_sum(total)
    if lane() == 0:
        out[0, k] = greatest + math.log(total)


@kernel
def add(values: Any, number: float, out: Any) -> None:
    """Write ``values + number`` into `out` (N,), a thread for each."""
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] + number


@kernel
def cast(values: Any, factor: float, out: Any) -> None:
    """Write ``values * factor`` into `out` (N,), of a type of its own, a thread for each."""
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] * factor


@kernel
def exponentiate(values: Any) -> None:
    """Replace each of `values` (N,) by its exponential, a thread for each number."""
    i = thread_index()
    if i < values.shape[0]:
        values[i] = math.exp(values[i])
