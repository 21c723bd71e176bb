"""Exact draws from the softmax of the model, one block of classes at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.arrays import ARRAYS
from samplesoft._device.select import as_device, twin
from samplesoft._jit import chunks, row_chunks, thread_each
from samplesoft._random import uniform_block
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, writable
from samplesoft.kernels.samplers import softmax_draw
from samplesoft.samplers.base import Draw, EngineSampler, Rows

_CONTEXTS = 32  # rows of one matrix product
_LOGITS = 1 << 17  # numbers in its result: they stay in the cache while they are summed
_DRAWS = 1 << 9  # draws in one task of a thread


class SoftmaxSampler(EngineSampler):
    r"""The softmax of the full model, ``q(i) = exp(tau h . c_i) / sum_j exp(tau h . c_j)``.

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
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

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
        self,
        class_embeddings: ArrayLike,
        *,
        tau: float | None = None,
        block_size: int = 128,
        device: str = "cpu",
    ) -> None:
        arrays = twin(as_device(device), ARRAYS)
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype, device)
        self.tau = as_tau(tau, unit_vectors=False)
        self.block_size = min(as_count("block_size", block_size), self.num_classes)
        engine = twin(device, "samplesoft.samplers.softmax:Softmax")
        self._engine = engine(rows, self.tau, self.block_size)


class HostSoftmax:
    """What a `SoftmaxSampler` with class vectors (n, d) does, for checked arguments."""

    def __init__(self, rows: Rows, tau: float, block_size: int) -> None:
        self.num_classes, self.tau, self.block_size = len(rows), tau, block_size
        num_blocks = -(-self.num_classes // self.block_size)
        self._blocks = np.zeros((num_blocks, rows.shape[1], self.block_size), rows.dtype)
        self.prepare(np.arange(self.num_classes), rows)()

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        queries, masses = self._first_pass(h, exclude)
        uniforms = uniform_block(key, len(h), m)
        order = np.argsort(uniforms, axis=1)
        ids, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice) -> None:
            softmax_draw.draw(
                queries[part],
                self._blocks,
                masses[part],
                exclude[part],
                uniforms[part],
                order[part],
                self.num_classes,
                ids[part],
                log_q[part],
            )

        thread_each(draw, row_chunks((len(h), m), _DRAWS))
        return Draw(ids, log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        queries, masses = self._first_pass(h, exclude)
        log_q = np.empty(ids.shape)

        def look_up(part: slice) -> None:
            softmax_draw.log_prob(
                queries[part],
                self._blocks,
                masses[part],
                exclude[part],
                ids[part],
                np.argsort(ids[part], axis=1),
                self.num_classes,
                log_q[part],
            )

        thread_each(look_up, row_chunks(ids.shape, _DRAWS))
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        every = np.tile(np.arange(self.num_classes), (len(h), 1))
        log_q = self.log_prob(h, every, exclude)
        return np.exp(log_q, out=log_q)

    def prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen."""
        self._blocks = writable(self._blocks)

        def commit() -> None:
            self._blocks[ids // self.block_size, :, ids % self.block_size] = rows

        return commit

    def _first_pass(self, h: Rows, exclude: IntArray) -> tuple[Rows, FloatArray]:
        """Return queries (B, d), and the log of the sum of exp(logit) of each block (B, L)."""
        queries = times_tau(h, self.tau)
        masses = np.empty((len(h), len(self._blocks)))
        step = max(1, _LOGITS // (min(len(h), _CONTEXTS) * self.block_size))
        parts = [
            (contexts, blocks)
            for blocks in chunks(len(self._blocks), step)
            for contexts in chunks(len(h), _CONTEXTS)
        ]

        def add_up(part: tuple[slice, slice]) -> None:
            contexts, blocks = part
            masses[part] = self._log_sums(queries[contexts], exclude[contexts], blocks)

        thread_each(add_up, parts)
        greatest = masses.max(axis=1)
        if not np.isfinite(greatest).all():
            row = int(np.flatnonzero(~np.isfinite(greatest))[0])
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got {greatest[row]} for row "
                f"{row}; scale the vectors down, or use float64."
            )
        return queries, masses

    def _log_sums(self, queries: Rows, exclude: IntArray, blocks: slice) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits = np.matmul(queries, self._blocks[blocks])  # (blocks, contexts, block_size)
            if blocks.stop == len(self._blocks):
                logits[-1, :, self.num_classes - (blocks.stop - 1) * self.block_size :] = -np.inf
            own = exclude // self.block_size - blocks.start
            here = np.flatnonzero((own >= 0) & (own < len(logits)))
            logits[own[here], here, exclude[here] % self.block_size] = -np.inf
            greatest = logits.max(axis=2)
            greatest[greatest == -np.inf] = 0.0  # a block of the excluded class alone
            logits -= greatest[:, :, None]
            sums = np.exp(logits, out=logits).sum(axis=2)
            log_sums: FloatArray = greatest.T + np.log(sums.T, dtype=np.float64)
        return log_sums
