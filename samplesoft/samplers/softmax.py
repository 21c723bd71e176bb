"""The softmax sampler: exact draws from the softmax of the model, in blocks of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import chunks, njit, row_chunks, thread_each
from samplesoft._limits import FAR
from samplesoft._random import uniform_block
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_float_rows, writable
from samplesoft.kernels.weights import exp_weights, search_cumulative
from samplesoft.samplers.base import Draw, Rows, Sampler

Real = NDArray[Any]  # float32 or float64
_PRODUCT_ROWS = 32  # contexts in one matrix product
_PRODUCT_LOGITS = 1 << 17  # logits of one matrix product, which stay in the cache until summed
_TASK_DRAWS = 1 << 9  # draws in one task of a thread


class _FirstPassResults(NamedTuple):
    """Results of the first pass that the second pass needs."""

    blocks: Real  # (L, d, block_size): classes are columns, contiguous in memory
    num_classes: int  # the last block may be partly filled
    queries: Real  # (B, d): tau h
    # (B, L): log of the sum of exp(logit) over a block without the excluded class, up to a constant
    # for each context
    log_masses: FloatArray
    exclude: IntArray  # (B,)

    def for_contexts(self, rows: slice) -> _FirstPassResults:
        """Return the results for a slice of the contexts."""
        queries = self.queries[rows]
        log_masses = self.log_masses[rows]
        exclude = self.exclude[rows]
        return self._replace(queries=queries, log_masses=log_masses, exclude=exclude)


class SoftmaxSampler(Sampler):
    r"""The softmax of the full model, ``q(i) = exp(tau h.c_i) / sum_j exp(tau h.c_j)``.

    It is the only proposal without bias in sampled softmax, and computes all n logits for each
    context. They are not stored: a first pass keeps the log-sum of each block of classes, and a
    second pass computes the logits of a block again if a draw falls into it.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64, which is also the precision of the logits;
        copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    block_size : int
        Classes in a block. The sums take B * n / block_size values, and each draw computes
        `block_size` logits again.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.

    Notes
    -----
    **q is exact.** The probability of a class is the probability of its block times its probability
    within the block. `sample`, `log_prob` and `probs` use the same values, which equal the softmax
    up to the rounding of logits: about ``1e-7 * |logit|`` relative for float32, ``1e-16 * |logit|``
    for float64. Sums over blocks come from matrix products, whose last bits may depend on the batch
    and on the number of BLAS threads, unless under
    ``with threadpoolctl.threadpool_limits(1, "blas"):``.

    **Exclusion is exact.** An excluded class is not part of the sums; nothing is subtracted.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018, Theorem 2.1.

    Examples
    --------
    >>> import numpy as np
    >>> sampler = SoftmaxSampler(np.log([[1.0], [2.0], [5.0]]))
    >>> sampler.probs([1.0]).round(3)
    array([[0.125, 0.25 , 0.625]])
    >>> draw = sampler.sample([1.0], 4, exclude=2, rng=0)
    >>> bool(np.all(draw.ids != 2)), np.exp(draw.log_q[draw.ids == 1][:1]).round(3)
    (True, array([0.667]))
    """

    def __init__(
        self, class_embeddings: ArrayLike, *, tau: float | None = None, block_size: int = 128
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype)
        self.tau = as_tau(tau, unit_vectors=False)
        self.block_size = min(as_count("block_size", block_size), self.num_classes)
        num_blocks = -(-self.num_classes // self.block_size)
        self._blocks = np.zeros((num_blocks, rows.shape[1], self.block_size), rows.dtype)
        self._prepare_update(np.arange(self.num_classes), rows)()

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        ids = np.empty((len(h), m), np.int64)
        return Draw(ids, self._draw_or_evaluate(h, ids, exclude, uniform_block(key, len(h), m)))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._draw_or_evaluate(h, ids, exclude, None)

    def _draw_or_evaluate(
        self, h: Rows, ids: IntArray, exclude: IntArray, uniforms: FloatArray | None
    ) -> FloatArray:
        """Return log-probabilities of classes `ids` (B, k); `uniforms`, if given, draw these."""
        first_pass = self._first_pass_log_sums(h, exclude)
        log_q = np.empty(ids.shape)

        def draw_chunk(chunk: slice) -> None:
            u = None if uniforms is None else uniforms[chunk]
            # sorted, so that each block is visited once
            order = np.argsort(ids[chunk] if u is None else u, axis=1)
            _draw_or_evaluate_in_blocks(
                first_pass.for_contexts(chunk), u, order, ids[chunk], log_q[chunk]
            )

        thread_each(draw_chunk, row_chunks(ids.shape, _TASK_DRAWS))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        log_q = self._log_prob(h, np.tile(np.arange(self.num_classes), (len(h), 1)), exclude)
        return np.exp(log_q, out=log_q)

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        self._blocks = writable(self._blocks)
        # NumPy keeps the last vector of a repeated class
        index = ids // self.block_size, slice(None), ids % self.block_size
        return partial(setitem, self._blocks, index, rows)

    def _first_pass_log_sums(self, h: Rows, exclude: IntArray) -> _FirstPassResults:
        """Compute all logits of contexts (B, d), and return the log-sums of the blocks."""
        assert self.tau is not None
        queries = times_tau(h, self.tau)
        log_masses = np.empty((len(h), len(self._blocks)))
        shifts = np.zeros(len(h))
        # blocks in one product, so that logits stay in the cache until they are summed
        step = max(1, _PRODUCT_LOGITS // (min(len(h), _PRODUCT_ROWS) * self.block_size))
        tasks = [
            (contexts, blocks)
            for blocks in chunks(len(self._blocks), step)
            for contexts in chunks(len(h), _PRODUCT_ROWS)
        ]

        def write_log_masses(task: tuple[slice, slice]) -> None:
            contexts, blocks = task
            log_masses[task] = self._log_sums_of_blocks(
                queries[contexts], exclude[contexts], blocks, shifts[contexts]
            )

        thread_each(write_log_masses, tasks)
        max_logits = log_masses.max(axis=1)
        # the message names the context only, because just sums of blocks are known here
        if not np.isfinite(max_logits).all():
            row = int(np.flatnonzero(~np.isfinite(max_logits))[0])
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got {max_logits[row]} for "
                f"row {row}; scale the vectors down, or use float64."
            )
        is_large = np.abs(max_logits) > FAR
        if is_large.any():
            # log(sum) = max + log(sum exp(logit - max)): next to so large a max the second term,
            # which says how many classes are near the max, is lost. Repeat with logits less the
            # max.
            shifts[is_large] = max_logits[is_large]
            thread_each(write_log_masses, tasks)
        return _FirstPassResults(self._blocks, self.num_classes, queries, log_masses, exclude)

    def _log_sums_of_blocks(
        self, queries: Rows, exclude: IntArray, blocks: slice, shifts: FloatArray
    ) -> FloatArray:
        """Return log(sum(exp(logit - shift))) (contexts, blocks) of each block for each context."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits = np.matmul(queries, self._blocks[blocks])  # (blocks, contexts, block_size)
            if blocks.stop == len(self._blocks):  # the last columns are padding
                logits[-1, :, self.num_classes - (blocks.stop - 1) * self.block_size :] = -np.inf
            excluded_block = exclude // self.block_size - blocks.start
            rows = np.flatnonzero((excluded_block >= 0) & (excluded_block < len(logits)))
            logits[excluded_block[rows], rows, exclude[rows] % self.block_size] = -np.inf
            max_logits = logits.max(axis=2)
            max_logits[max_logits == -np.inf] = 0.0  # a block that holds the excluded class alone
            logits -= max_logits[:, :, None]  # so that exponentials do not overflow
            sums = np.exp(logits, out=logits).sum(axis=2)
            shifted_max = max_logits.T - shifts[:, None]
            log_sums: FloatArray = shifted_max + np.log(sums.T, dtype=np.float64)
        return log_sums


@njit
def _draw_or_evaluate_in_blocks(
    first_pass: _FirstPassResults,
    uniforms: FloatArray | None,
    order: IntArray,
    ids: IntArray,
    log_q: FloatArray,
) -> None:
    """Write the log-probability of each class (B, k), given or drawn by `uniforms`.

    `order` (B, k) sorts each row of the uniforms or, without them, of the ids. The probability of a
    class is the product of the probability of its block and its probability within the block, as
    used in the draw: they agree whatever the rounding of the masses.
    """
    # compiled twice, with and without uniforms: Numba prunes the branches of the other case
    blocks, num_classes, queries, log_masses, exclude = first_pass
    num_blocks, _, width = blocks.shape
    block_weights = np.empty((1, num_blocks))
    weights = np.empty((1, width))
    logits = np.empty(width, blocks.dtype)
    for b in range(len(queries)):
        block_weights[0] = log_masses[b]
        total, max_log_mass = exp_weights(block_weights, block_weights, 0, num_blocks, -1)
        block = 0
        cumulative = 0.0
        current_block = -1
        total_in_block = 0.0
        max_logit = 0.0
        for k in order[b]:
            if uniforms is not None:
                target = uniforms[b, k] * total
                block, cumulative = search_cumulative(
                    block_weights, 0, num_blocks, target, block, cumulative
                )
            elif ids[b, k] == exclude[b]:
                log_q[b, k] = -np.inf
                continue
            else:
                block = ids[b, k] // width
            first = block * width
            size = min(width, num_classes - first)
            if block != current_block:  # compute the logits of this block again
                total_in_block, max_logit = _write_block_weights(
                    blocks[block], queries[b], size, exclude[b] - first, logits, weights
                )
                current_block = block
            if uniforms is not None:  # the rescaled uniform draws within the block
                c, _ = search_cumulative(
                    weights,
                    0,
                    size,
                    total_in_block * (target - cumulative) / block_weights[0, block],
                    0,
                    0.0,
                )
                ids[b, k] = first + c
            log_block_prob = log_masses[b, block] - max_log_mass - math.log(total)
            logit = float(logits[ids[b, k] - first])
            log_q[b, k] = log_block_prob + (logit - max_logit - math.log(total_in_block))


@njit
def _write_block_weights(
    block: Real, query: Real, size: int, excluded: int, logits: Real, weights: FloatArray
) -> tuple[float, float]:
    """Write the logits of a block, and ``exp(logit - max_logit)`` for all but `excluded`.

    Returns the sum of the latter, and ``max_logit``.
    """
    # the inner loop runs over classes, which are contiguous, and is vectorised
    logits[:size] = 0
    for i in range(len(query)):
        for c in range(size):
            logits[c] += block[i, c] * query[i]
    for c in range(size):
        weights[0, c] = float(logits[c])
    return exp_weights(weights, weights, 0, size, excluded)
