"""The softmax sampler: exact draws from the softmax of the model, by blocks of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import chunks, njit, row_chunks, thread_for_each
from samplesoft._limits import FAR
from samplesoft._random import uniform_block
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_float_rows, writable
from samplesoft.kernels.weights import exp_weights, search_cumulative
from samplesoft.samplers.base import Draw, Rows, Sampler

Real = NDArray[Any]  # float32 or float64
_PRODUCT_ROWS = 32  # number of contexts in one matrix product
# number of logits in one matrix product, so small that they stay in the cache until they are summed
_PRODUCT_LOGITS = 1 << 17
_TASK_DRAWS = 1 << 9  # number of draws in one task of a thread


class _FirstPassResults(NamedTuple):
    """Log-masses of L blocks of classes for B contexts, and the arrays for draws within a block."""

    # (L, d, block_size): class vectors as columns, so that classes are contiguous
    blocks: Real
    num_classes: int  # columns of the last block for which there is no class are unused
    queries: Real  # (B, d): tau h
    # (B, L): log of the sum of exp(logit) over the classes of the block that are not excluded, plus
    # a constant for each context
    log_masses: FloatArray
    exclude: IntArray  # (B,): excluded classes, or -1

    def for_contexts(self, rows: slice) -> _FirstPassResults:
        """Return the results for a slice of the contexts."""
        queries = self.queries[rows]
        log_masses = self.log_masses[rows]
        exclude = self.exclude[rows]
        return self._replace(queries=queries, log_masses=log_masses, exclude=exclude)


class SoftmaxSampler(Sampler):
    r"""Draw from the softmax of the model, ``q(i) = exp(tau h.c_i) / sum_j exp(tau h.c_j)``.

    The softmax is the only proposal without bias in sampled softmax. It takes all n logits for each
    context, which are not stored. A first pass keeps the log of the sum of exponentials in each
    block of classes, and a second pass computes the logits of a block again if a draw falls into
    the block.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. The logits have the same precision.
    tau : float, optional
        Inverse temperature, 1 by default.
    block_size : int
        Number of classes in a block. The block sums take B * n / block_size values of memory, and
        each draw computes `block_size` logits again.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed. `sample`, `log_prob` and `probs` also raise if logits overflow.

    Notes
    -----
    **q is exact.** The probability of a class is the probability of its block times its probability
    within the block. `sample`, `log_prob` and `probs` use the same values, which equal the softmax
    up to the rounding of logits: a relative error of about ``1e-7 * |logit|`` for float32, and of
    ``1e-16 * |logit|`` for float64. Block sums come from matrix products, whose last bits may
    depend on the batch and on the number of BLAS threads. To exclude this, use a block
    ``with threadpoolctl.threadpool_limits(1, "blas"):``.

    **Exclusion is exact.** The block sums leave out an excluded class; nothing is subtracted.

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
        """Return the log-probabilities (B, k) of classes that are given, or that are drawn here.

        If `uniforms` is None, the classes are given by `ids` (B, k). Otherwise they are drawn by
        inversion of `uniforms` (B, k), and written to `ids`.
        """
        first_pass = self._first_pass_log_sums(h, exclude)
        log_q = np.empty(ids.shape)

        def draw_chunk(chunk: slice) -> None:
            u = None if uniforms is None else uniforms[chunk]
            # sorted, so that the logits of each block are computed only once
            order = np.argsort(ids[chunk] if u is None else u, axis=1)
            _draw_or_evaluate_in_blocks(
                first_pass.for_contexts(chunk), u, order, ids[chunk], log_q[chunk]
            )

        thread_for_each(draw_chunk, row_chunks(ids.shape, _TASK_DRAWS))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        log_q = self._log_prob(h, np.tile(np.arange(self.num_classes), (len(h), 1)), exclude)
        return np.exp(log_q, out=log_q)

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        self._blocks = writable(self._blocks)
        # NumPy keeps the last vector of a repeated class
        index = (ids // self.block_size, slice(None), ids % self.block_size)
        return partial(setitem, self._blocks, index, rows)

    def _first_pass_log_sums(self, h: Rows, exclude: IntArray) -> _FirstPassResults:
        """Compute all logits of contexts `h` (B, d), and return the log-masses of the blocks."""
        assert self.tau is not None
        queries = times_tau(h, self.tau)
        log_masses = np.empty((len(h), len(self._blocks)))
        shifts = np.zeros(len(h))

        # number of blocks in one product, limited so that logits stay in the cache
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

        thread_for_each(write_log_masses, tasks)
        max_logits = log_masses.max(axis=1)

        # the message cannot name a class, because only block sums are known
        if not np.isfinite(max_logits).all():
            row = int(np.flatnonzero(~np.isfinite(max_logits))[0])
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got {max_logits[row]} for "
                f"row {row}; scale the vectors down, or use float64."
            )

        is_large = np.abs(max_logits) > FAR
        if is_large.any():
            # A log-mass is max + log(sum exp(logit - max)). If the maximum is very large, the
            # second term is rounded away, and with it how many classes are near the maximum. So
            # compute the log-masses again from logits minus the maximum of the context.
            shifts[is_large] = max_logits[is_large]
            thread_for_each(write_log_masses, tasks)

        return _FirstPassResults(self._blocks, self.num_classes, queries, log_masses, exclude)

    def _log_sums_of_blocks(
        self, queries: Rows, exclude: IntArray, blocks: slice, shifts: FloatArray
    ) -> FloatArray:
        """Return ``log(sum(exp(logit - shift)))`` over each block, for each context.

        The result has the shape (contexts, blocks). `queries` (contexts, d), `exclude` (contexts,)
        and `shifts` (contexts,) have one row for each context; `blocks` is a slice of the blocks.
        Sums leave out excluded classes.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits = np.matmul(queries, self._blocks[blocks])  # (blocks, contexts, block_size)
            if blocks.stop == len(self._blocks):  # unused columns of the last block
                logits[-1, :, self.num_classes - (blocks.stop - 1) * self.block_size :] = -np.inf

            excluded_block = exclude // self.block_size - blocks.start
            rows = np.flatnonzero((excluded_block >= 0) & (excluded_block < len(logits)))
            logits[excluded_block[rows], rows, exclude[rows] % self.block_size] = -np.inf

            max_logits = logits.max(axis=2)
            max_logits[max_logits == -np.inf] = 0.0  # the only class of the block is excluded
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
    """Write log-probabilities of classes that are given, or that are drawn here, to `log_q` (B, k).

    If `uniforms` is None, the classes are given by `ids` (B, k). Otherwise they are drawn by
    inversion of `uniforms` (B, k), and written to `ids`. `order` (B, k) sorts each row of the
    uniforms, or of the given classes. Log-probabilities are computed from the same rounded block
    masses and weights as the draws, so that they are exact for the draws.
    """
    # Numba compiles this twice, with and without uniforms, and removes the unused branches
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

            start = block * width
            num_in_block = min(width, num_classes - start)
            if block != current_block:  # compute the logits of the block
                total_in_block, max_logit = _write_block_weights(
                    blocks[block], queries[b], num_in_block, exclude[b] - start, logits, weights
                )
                current_block = block

            if uniforms is not None:
                # draw within the block, by what the uniform exceeds the masses of earlier blocks
                c, _ = search_cumulative(
                    weights,
                    0,
                    num_in_block,
                    total_in_block * (target - cumulative) / block_weights[0, block],
                    0,
                    0.0,
                )
                ids[b, k] = start + c

            log_block_prob = log_masses[b, block] - max_log_mass - math.log(total)
            logit = float(logits[ids[b, k] - start])
            log_q[b, k] = log_block_prob + (logit - max_logit - math.log(total_in_block))


@njit
def _write_block_weights(
    block: Real, query: Real, num_in_block: int, excluded: int, logits: Real, weights: FloatArray
) -> tuple[float, float]:
    """Write the logits of the classes of a block, and their weights ``exp(logit - max_logit)``.

    `block` (d, block_size) has `num_in_block` classes in its first columns. The class in column
    `excluded`, if there is one, has weight 0. Returns the sum of the weights, and ``max_logit``,
    the maximum without the excluded class.
    """
    # the inner loop is vectorised, because it runs over classes, which are contiguous
    logits[:num_in_block] = 0
    for i in range(len(query)):
        for c in range(num_in_block):
            logits[c] += block[i, c] * query[i]
    for c in range(num_in_block):
        weights[0, c] = float(logits[c])
    return exp_weights(weights, weights, 0, num_in_block, excluded)
