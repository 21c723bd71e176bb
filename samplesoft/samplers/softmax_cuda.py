"""Exact draws from the softmax on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import cast, filled, first_not_finite, repeat_row
from samplesoft._device.draws_cuda import in_parts, uniforms
from samplesoft._device.sort_ids_cuda import last_of_each
from samplesoft._jit import chunks
from samplesoft.kernels import product_cuda
from samplesoft.kernels.samplers import softmax_draw_cuda
from samplesoft.kernels.tree import leaf_cuda
from samplesoft.kernels.tree.records import SOFTMAX, Exclusion, TreeRules
from samplesoft.samplers.base import Draw

_LOGITS = 1 << 26  # numbers held at a time in the first pass


class CudaSoftmax:
    """What a `SoftmaxSampler` does, for arguments that have been checked and lie on the device.

    A block of `block_size` classes, whose vectors are rows (n, d), is drawn first, then a class
    inside it, as in a leaf of the kernel tree.
    """

    def __init__(self, rows: Any, tau: float, block_size: int) -> None:
        self._num_classes, self._tau = rows.shape[0], rows.dtype.type(tau)
        self._num_blocks = -(-self._num_classes // block_size)
        self._buckets = filled((self._num_blocks, rows.shape[1], block_size), rows.dtype.type(0))
        self._rules = TreeRules(self._num_classes, block_size, 1.0, SOFTMAX, 1.0)
        self._write(to_device(np.arange(self._num_classes)), rows)

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Return draws (B, m)."""
        u = uniforms(key, h.shape[0], m)
        ids, log_q = empty(u.shape, np.int64), empty(u.shape, np.float64)
        in_parts(self._draw, self._room(m), h, exclude, u, ids, log_q)
        return Draw(ids, log_q)

    def _draw(self, h: Any, exclude: Any, u: Any, ids: Any, log_q: Any) -> None:
        queries, masses, shares, log_totals = self._first_pass(h, exclude)
        blocks = empty(u.shape, np.int64)
        drawn = masses, shares, log_totals, u, blocks, log_q
        launch_threads(softmax_draw_cuda.choose_blocks, u.size, *drawn)
        products, weights, exclusion = self._second_pass(queries, blocks, exclude)
        visited = products, blocks, u, exclusion, self._rules, weights, ids, log_q
        launch_warps(leaf_cuda.pick, u.size, *visited)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return log-probabilities (B, k)."""
        log_q = empty(ids.shape, np.float64)
        in_parts(self._read, self._room(ids.shape[1]), h, ids, exclude, log_q)
        return log_q

    def _read(self, h: Any, ids: Any, exclude: Any, log_q: Any) -> None:
        queries, masses, _, log_totals = self._first_pass(h, exclude)
        blocks = empty(ids.shape, np.int64)
        flat = ids.reshape(-1), self._rules.leaf_size, blocks.reshape(-1)
        launch_threads(leaf_cuda.leaf_of, ids.size, *flat)
        launch_threads(softmax_draw_cuda.log_blocks, ids.size, masses, log_totals, blocks, log_q)
        products, weights, exclusion = self._second_pass(queries, blocks, exclude)
        visited = products, ids, exclusion, self._rules, weights, log_q
        launch_warps(leaf_cuda.add_log_in_leaf, ids.size, *visited)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return probabilities (B, n)."""
        probs = empty((h.shape[0], self._num_classes), np.float64)
        in_parts(self._fill, self._room(self._num_blocks), h, exclude, probs)
        return probs

    def _fill(self, h: Any, exclude: Any, probs: Any) -> None:
        queries, masses, _, log_totals = self._first_pass(h, exclude)
        blocks = repeat_row(to_device(np.arange(self._num_blocks)[None]), h.shape[0])
        log_q = empty(masses.shape, np.float64)
        launch_threads(softmax_draw_cuda.log_blocks, blocks.size, masses, log_totals, blocks, log_q)
        products, weights, exclusion = self._second_pass(queries, blocks, exclude)
        visited = products, log_q, exclusion, self._rules, weights, probs
        launch_warps(leaf_cuda.probs_in_leaves, log_q.size, *visited)

    def _room(self, num: int) -> int:
        """Return how many numbers work on `num` classes of an example takes."""
        room: int = 2 * self._num_blocks + 2 * num * self._rules.leaf_size
        return room

    def prepare(self, ids: Any, rows: Any) -> Callable[[], None]:
        """Return what makes an update happen."""
        return lambda: self._write(*last_of_each(ids, rows, self._num_classes))

    def _write(self, ids: Any, rows: Any) -> None:
        launch_threads(leaf_cuda.scatter, rows.size, ids, rows, self._buckets)

    def _first_pass(self, h: Any, exclude: Any) -> tuple[Any, Any, Any, Any]:
        """Return queries (B, d), masses (B, L), their running sums and the logarithms of all."""
        batch, size = h.shape[0], self._rules.leaf_size
        queries = cast(h, h.dtype, self._tau)
        masses, shares = (empty((batch, self._num_blocks), np.float64) for _ in range(2))
        at_once = min(self._num_blocks, max(1, _LOGITS // (batch * size)))
        room = empty(batch * at_once * size, h.dtype)
        for part in chunks(self._num_blocks, at_once):
            width = (part.stop - part.start) * size
            logits = room[: batch * width].reshape(batch, width)
            buckets = self._buckets[part]
            product_cuda.multiply(product_cuda.write, queries, buckets, logits, ())
            num = batch * (part.stop - part.start)
            summed = logits, part.start, size, self._num_classes, exclude, masses
            launch_warps(softmax_draw_cuda.sum_blocks, num, *summed)
        log_totals = empty(batch, np.float64)
        launch_warps(softmax_draw_cuda.add_up_blocks, batch, masses, shares, log_totals)
        row = first_not_finite(log_totals)
        if row is not None:
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got "
                f"{log_totals[row : row + 1].copy_to_host()[0]} for row {row}; scale the vectors "
                "down, or use float64."
            )
        return queries, masses, shares, log_totals

    def _second_pass(self, queries: Any, blocks: Any, exclude: Any) -> tuple[Any, Any, Exclusion]:
        """Return logits (B, k, size) of blocks (B, k), room for weights, and what is excluded.

        The masses of the blocks are without the excluded class: nothing is left to correct.
        """
        products = empty((*blocks.shape, self._rules.leaf_size), np.float64)
        visited = queries, self._buckets, blocks, products
        launch_warps(leaf_cuda.bucket_products, blocks.size, *visited)
        exclusion = Exclusion(exclude, filled((blocks.shape[0], 2), 0.0))
        return products, empty(products.shape, np.float64), exclusion
