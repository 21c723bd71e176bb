"""Exact draws from the softmax of the model, one block of classes at a time."""

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
from samplesoft.kernels.weights import exp_weights, find
from samplesoft.samplers.base import Draw, Rows, Sampler

Real = NDArray[Any]  # float32 or float64
_PRODUCT_ROWS = 32  # rows of one matrix product
_PRODUCT_LOGITS = 1 << 17  # numbers in its result: they stay in the cache while they are summed
_TASK_DRAWS = 1 << 9  # draws in one task of a thread


class _FirstPass(NamedTuple):
    """What the second pass needs of the first one."""

    blocks: Real  # (L, d, size): columns are classes, so that a loop over them runs along memory
    num_classes: int  # the last block may have fewer than `size`
    queries: Real  # (B, d): tau h
    # (B, L): log of the sum of exp(logit) of a block, the excluded one left out; up to a number of
    # the context
    masses: FloatArray
    exclude: IntArray  # (B,)

    def of(self, rows: slice) -> _FirstPass:
        """Return the same for some contexts."""
        queries = self.queries[rows]
        masses = self.masses[rows]
        exclude = self.exclude[rows]
        return self._replace(queries=queries, masses=masses, exclude=exclude)


class SoftmaxSampler(Sampler):
    r"""The softmax of the full model, ``q(i) = exp(tau h.c_i) / sum_j exp(tau h.c_j)``.

    The one proposal that leaves sampled softmax without bias, at the price of all n logits for
    each context. They are never held at once: a first pass keeps the sum of each block of
    classes, and a second computes the logits of a block again where a draw falls into it.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64, which is the precision of the logits; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    block_size : int
        Classes in a block. Memory is of B * n / block_size numbers, and each draw computes
        `block_size` logits again.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.

    Notes
    -----
    **q is exact.** The probability of a class is that of its block times its own inside the block;
    `sample`, `log_prob` and `probs` use the same numbers, which follow the softmax to the rounding
    of logits: about ``1e-7 * |logit|`` relative for float32, ``1e-16 * |logit|`` for float64. Sums
    over blocks are rounded by a matrix product, whose last bits may depend on the batch that a
    context comes in, and on the number of threads of BLAS, unless under
    ``with threadpoolctl.threadpool_limits(1, "blas"):``.

    **Exclusion is exact.** An excluded class is left out of the sums; nothing is subtracted.

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
        return Draw(ids, self._second_pass(h, ids, exclude, uniform_block(key, len(h), m)))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._second_pass(h, ids, exclude, None)

    def _second_pass(
        self, h: Rows, ids: IntArray, exclude: IntArray, uniforms: FloatArray | None
    ) -> FloatArray:
        """Return log-probabilities of classes (B, k), which uniforms draw into `ids` if given."""
        first_pass = self._first_pass(h, exclude)
        log_q = np.empty(ids.shape)

        def visit(part: slice) -> None:
            u = None if uniforms is None else uniforms[part]
            # in this order each block is visited once
            order = np.argsort(ids[part] if u is None else u, axis=1)
            _visit_blocks(first_pass.of(part), u, order, ids[part], log_q[part])

        thread_each(visit, row_chunks(ids.shape, _TASK_DRAWS))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        log_q = self._log_prob(h, np.tile(np.arange(self.num_classes), (len(h), 1)), exclude)
        return np.exp(log_q, out=log_q)

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        self._blocks = writable(self._blocks)
        # of a class named twice, NumPy keeps the last
        places = ids // self.block_size, slice(None), ids % self.block_size
        return partial(setitem, self._blocks, places, rows)

    def _first_pass(self, h: Rows, exclude: IntArray) -> _FirstPass:
        """Compute all logits of contexts (B, d), and keep the mass of each block."""
        assert self.tau is not None
        queries = times_tau(h, self.tau)
        masses = np.empty((len(h), len(self._blocks)))
        shifts = np.zeros(len(h))
        # blocks at a time, for products that stay in the cache until they are summed
        step = max(1, _PRODUCT_LOGITS // (min(len(h), _PRODUCT_ROWS) * self.block_size))
        parts = [
            (contexts, blocks)
            for blocks in chunks(len(self._blocks), step)
            for contexts in chunks(len(h), _PRODUCT_ROWS)
        ]

        def add_up(part: tuple[slice, slice]) -> None:
            contexts, blocks = part
            masses[part] = self._log_sums(
                queries[contexts], exclude[contexts], blocks, shifts[contexts]
            )

        thread_each(add_up, parts)
        greatest = masses.max(axis=1)
        # the context is named, not the class: sums of blocks are all that is known here
        if not np.isfinite(greatest).all():
            row = int(np.flatnonzero(~np.isfinite(greatest))[0])
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got {greatest[row]} for row "
                f"{row}; scale the vectors down, or use float64."
            )
        far = np.abs(greatest) > FAR
        if far.any():
            # a sum of exponentials about 1 is lost in such a logit, and with it how many classes of
            # a block are as good as the best: once more, less that
            shifts[far] = greatest[far]
            thread_each(add_up, parts)
        return _FirstPass(self._blocks, self.num_classes, queries, masses, exclude)

    def _log_sums(
        self, queries: Rows, exclude: IntArray, blocks: slice, shifts: FloatArray
    ) -> FloatArray:
        """Return the log of the sum of exp(logit - shift) of each block for each context."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits = np.matmul(queries, self._blocks[blocks])  # (blocks, contexts, block_size)
            if blocks.stop == len(self._blocks):  # whose last columns are no classes
                logits[-1, :, self.num_classes - (blocks.stop - 1) * self.block_size :] = -np.inf
            excluded_block = exclude // self.block_size - blocks.start
            here = np.flatnonzero((excluded_block >= 0) & (excluded_block < len(logits)))
            logits[excluded_block[here], here, exclude[here] % self.block_size] = -np.inf
            greatest = logits.max(axis=2)
            greatest[greatest == -np.inf] = 0.0  # a block of the excluded class alone
            logits -= greatest[:, :, None]  # so that no exponential overflows
            sums = np.exp(logits, out=logits).sum(axis=2)
            tops = greatest.T - shifts[:, None]
            log_sums: FloatArray = tops + np.log(sums.T, dtype=np.float64)
        return log_sums


@njit
def _visit_blocks(
    first_pass: _FirstPass,
    uniforms: FloatArray | None,
    order: IntArray,
    ids: IntArray,
    log_q: FloatArray,
) -> None:
    """Write the log-probability of each class (B, k), drawn by a uniform or, if None, given.

    `order` (B, k) sorts the uniforms, or else the ids, of each row. The probability of a class is
    that of its block times its own inside the block, both as they are used here, so that
    probabilities are those of the draws whatever the rounding of the masses.
    """
    # compiled twice: Numba leaves out the branches of the other case
    blocks, num_classes, queries, masses, exclude = first_pass
    num_blocks, _, width = blocks.shape
    shares = np.empty((1, num_blocks))
    weights = np.empty((1, width))
    logits = np.empty(width, blocks.dtype)
    for b in range(len(queries)):
        shares[0] = masses[b]
        total, heaviest = exp_weights(shares, shares, 0, num_blocks, -1)
        block = 0
        below = 0.0
        here = -1
        within = 0.0
        greatest = 0.0
        for k in order[b]:
            if uniforms is not None:
                target = uniforms[b, k] * total
                block, below = find(shares, 0, num_blocks, target, block, below)
            elif ids[b, k] == exclude[b]:
                log_q[b, k] = -np.inf
                continue
            else:
                block = ids[b, k] // width
            first = block * width
            size = min(width, num_classes - first)
            if block != here:  # logits are computed again, in the block alone
                within, greatest = _visit(
                    blocks[block], queries[b], size, exclude[b] - first, logits, weights
                )
                here = block
            if uniforms is not None:  # what is left of the uniform decides inside the block
                c, _ = find(weights, 0, size, within * (target - below) / shares[0, block], 0, 0.0)
                ids[b, k] = first + c
            log_share = masses[b, block] - heaviest - math.log(total)
            logit = float(logits[ids[b, k] - first])
            log_q[b, k] = log_share + (logit - greatest - math.log(within))


@njit
def _visit(
    block: Real, query: Real, size: int, excluded: int, logits: Real, weights: FloatArray
) -> tuple[float, float]:
    """Write the logits of a block, and for all but `excluded` exp(logit) divided by the greatest.

    Returns the sum of what is written last, and the greatest logit, which they are divided by.
    """
    # along the classes, side by side in memory, so that the loop runs in vectors
    logits[:size] = 0
    for i in range(len(query)):
        for c in range(size):
            logits[c] += block[i, c] * query[i]
    for c in range(size):
        weights[0, c] = float(logits[c])
    return exp_weights(weights, weights, 0, size, excluded)
