"""The softmax of quantised class vectors, by an inverted multi-index of two codebooks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, row_chunks, thread_each
from samplesoft._limits import quiet
from samplesoft._memory import require_bytes
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_float_rows, writable
from samplesoft.kernels.clusters.kmeans import move_centers
from samplesoft.kernels.samplers import midx_draw
from samplesoft.samplers.draw import NO_CLASS, Draw, Rows, last_of_each
from samplesoft.samplers.engine import EngineSampler
from samplesoft.samplers.k_means import k_means, require_distances

_Work = Callable[[slice, FloatArray, FloatArray, IntArray], None]
_CONTEXTS = 32  # in a task of a thread
_SCORES = 1 << 20  # of codewords that are held at a time
_FEW = 64  # codewords of few classes


class MidxSampler(EngineSampler):
    r"""The softmax of class vectors that are rounded to codewords: an inverted multi-index (MIDX).

    K-means quantises the first and the second half of all class vectors, each by a codebook of its
    own. The classes with the same pair of codewords are a cell. A draw takes a first codeword, a
    second one, and each class of their cell with equal probability.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    num_codewords : int, optional
        Codewords K of a codebook, at most n. By default 64, and for more than 1,200 classes
        ``6 n**(1/3)``.
    rng : int, numpy.random.Generator or None
        Seed of the codebooks.

    Attributes
    ----------
    num_codewords : int
        As above.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.
    MemoryError
        If the index would not fit in the memory that is left.

    Notes
    -----
    **Mass of a cell.** With codewords :math:`u_k` and :math:`v_l` of the halves, and :math:`n_{kl}`
    classes in a cell, a draw has

    .. math:: q(k, l) \propto n_{kl} \, e^{\tau h \cdot (u_k, v_l)}, \qquad
        q(j) = \frac{q(k, l)}{n_{kl}} \propto e^{\tau h \cdot (u_k, v_l)} .

    So q is the softmax of the quantised vectors. The masses of all k, summed over l, are a product
    with the matrix of the :math:`n_{kl}`, (K, K); in the row of a k that is drawn the masses of
    its cells are computed.

    **How far q is from the softmax p.** With the errors
    :math:`r_j = \tau h \cdot (c_j - (u_k, v_l))` of the logits,
    :math:`|\log q_j / p_j| \le 2 \max_i |r_i|`.

    **Codewords.** In the papers K is set by hand. A context costs about K (d + K) multiplications;
    with ``6 n**(1/3)``, the number of cells that a `ClusterSampler` forms at the top, that grows
    like ``n**(2/3)``, and draws take about as long as from that sampler.

    **q is exact.** The probability of a class is the product of the shares that are used on the
    way to it. Rounding of the products with codewords may depend on the batch that a context comes
    in. **Exclusion is exact.** An excluded class is left out of its cell, whose row is summed up
    anew.

    **Updates** move codewords, each of which is the mean of its classes; a class keeps its pair.
    Pairs that have become stale cost bias of the loss, and nothing else. An update of all classes
    quantises them anew, which the authors do once an epoch.

    References
    ----------
    .. [1] J. Chen, D. Lian, B. Jin, X. Huang, K. Zheng and E. Chen, "Fast Variational AutoEncoder
       with Inverted Multi-Index for Collaborative Filtering", WWW 2022.
    .. [2] J. Chen, J. Zhang, X. Huang, Y. Yang, D. Lian and E. Chen, "Adaptive Sampled Softmax with
       Inverted Multi-Index: Methods, Theory and Applications", 2025, arXiv:2501.08563. Here is the
       product quantisation with uniform draws in a cell; there is also a residual one.

    Examples
    --------
    >>> vectors = np.random.default_rng(0).normal(size=(1000, 2))
    >>> sampler = MidxSampler(vectors, rng=0)
    >>> softmax = np.exp(vectors @ vectors[0])
    >>> softmax /= softmax.sum()
    >>> float(abs(sampler.probs(vectors[0]) - softmax).sum()) < 0.05
    True
    >>> float(abs(sampler.probs(vectors[0]) - 0.001).sum()) < 0.05  # draws are far from uniform
    False
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        tau: float | None = None,
        num_codewords: int | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype)
        self.tau = as_tau(tau, unit_vectors=False)
        if num_codewords is None:
            num_codewords = max(_FEW, round(6.0 * self.num_classes ** (1 / 3)))
        self.num_codewords = min(as_count("num_codewords", num_codewords), self.num_classes)
        require_bytes(
            f"an index of {self.num_classes:,} classes",
            2.0 * rows.nbytes + 32.0 * self.num_classes + 32.0 * self.num_codewords**2,
            "use float32, fewer codewords or fewer classes",
        )
        self._engine = HostMidx(rows, self.tau, self.num_codewords, as_key(rng))

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, the codewords, the cells and the places of the classes."""
        size: int = self._engine.nbytes
        return size

    @property
    def codes(self) -> IntArray:
        """The first and the second codeword of each class, (n, 2)."""
        codes: IntArray = self._engine.codes.copy()
        return codes


class HostMidx:
    """What a `MidxSampler` with class vectors (n, d) does, for checked arguments."""

    def __init__(self, rows: Rows, tau: float, num_codewords: int, key: np.uint64) -> None:
        require_distances(float(np.abs(rows).max()), rows.dtype)
        self.tau, self._num_codewords, self._key = tau, num_codewords, key
        self._rows = rows.copy()
        middle = (rows.shape[1] + 1) // 2
        self._halves = slice(0, middle), slice(middle, rows.shape[1])
        codes, self._words = [], list[FloatArray]()
        for i, half in enumerate(self._halves):
            part = np.ascontiguousarray(rows[:, half])
            nearest = k_means(part, num_codewords, np.uint64(mix64(key, np.uint64(i))))
            used, own = np.unique(nearest, return_inverse=True)
            words = np.empty((len(used), part.shape[1]))
            move_centers(part, own, words)
            codes.append(own)
            self._words.append(words)
        self.codes = np.stack(codes, axis=1)
        shape = len(self._words[0]), len(self._words[1])
        cells = np.ravel_multi_index((codes[0], codes[1]), shape)
        counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        starts = (np.cumsum(counts) - counts.ravel()).reshape(shape)
        with np.errstate(divide="ignore"):
            self._cells = midx_draw.Cells(counts.astype(np.float64), np.log(counts), starts)
        self._order = np.argsort(cells, kind="stable")
        self._places = np.empty(len(rows), np.int64)
        self._places[self._order] = np.arange(len(rows))

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, the codewords, the cells and their places."""
        own = self._rows, self.codes, self._order, self._places
        return int(sum(array.nbytes for array in (*own, *self._words, *self._cells)))

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        uniforms = uniform_block(key, len(h), m)
        places, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice, shares: FloatArray, second: FloatArray, asked: IntArray) -> None:
            given = shares, second, asked, uniforms[part], np.argsort(uniforms[part], axis=1)
            midx_draw.draw(self._cells, *given, places[part], log_q[part])

        self._share_out(draw, h, exclude)
        return Draw(self._order[places], log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        log_q = np.empty(ids.shape)

        def look_up(part: slice, shares: FloatArray, second: FloatArray, asked: IntArray) -> None:
            codes = self.codes[ids[part]]
            given = shares, second, asked, codes, np.argsort(codes[:, :, 0], axis=1)
            midx_draw.log_prob(self._cells, *given, log_q[part])

        self._share_out(look_up, h, exclude)
        log_q[ids == exclude[:, None]] = -np.inf
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        every = np.broadcast_to(np.arange(len(self._rows)), (len(h), len(self._rows)))
        log_q = self.log_prob(h, every, exclude)
        return np.exp(log_q, out=log_q)

    def prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen; one of all classes quantises them anew."""
        ids, rows = last_of_each(ids, rows)
        require_distances(float(np.abs(rows).max()), rows.dtype)
        if len(ids) == len(self._rows):
            anew = HostMidx(rows, self.tau, self._num_codewords, self._key)
            return lambda: self.__dict__.update(anew.__dict__)
        change = rows.astype(np.float64) - self._rows[ids]
        moved = []
        for axis, (half, words) in enumerate(zip(self._halves, self._words, strict=True)):
            sizes = self._cells.counts.sum(axis=1 - axis)
            own = self.codes[ids, axis]
            moved.append(words.copy())
            np.add.at(moved[axis], own, change[:, half] / sizes[own, None])
        self._rows = writable(self._rows)

        def commit() -> None:
            self._rows[ids] = rows
            self._words = moved

        return commit

    def _share_out(self, work: _Work, h: Rows, exclude: IntArray) -> None:
        """Call `work` on threads for parts of the contexts.

        It gets the part, log shares of rows, scores of second codewords, and codes and places
        (B, 3) of excluded classes. The products with codewords and with the numbers of classes are
        taken before, for their own threads must not meet these.
        """
        excluded = np.column_stack([self.codes[exclude], self._places[exclude]])
        excluded[exclude == NO_CLASS] = NO_CLASS
        for some in row_chunks((len(h), self._num_codewords), _SCORES):
            first, second = self._scores(h[some], some.start)
            greatest, asked = second.max(axis=1), excluded[some]
            shares = np.exp(second - greatest[:, None]) @ self._cells.counts.T

            def serve(part: slice) -> None:
                given = first[part], second[part], greatest[part], asked[part]  # noqa: B023
                midx_draw.weigh_rows(self._cells, *given, shares[part])  # noqa: B023
                at = slice(some.start + part.start, some.start + part.stop)  # noqa: B023
                work(at, shares[part], second[part], asked[part])  # noqa: B023

            thread_each(serve, chunks(len(shares), _CONTEXTS))

    def _scores(self, h: Rows, start: int) -> list[FloatArray]:
        """Return tau h . u for the codewords of both codebooks; `start` is the row of the first."""
        with quiet():
            queries = times_tau(h, self.tau)
            scores = [
                (queries[:, half] @ words.T.astype(h.dtype)).astype(np.float64)
                for half, words in zip(self._halves, self._words, strict=True)
            ]
            largest = np.abs(scores[0]).max(axis=1) + np.abs(scores[1]).max(axis=1)
        bad = ~(largest < np.finfo(h.dtype).max / 4)  # so that differences are finite
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"`h` must have logits within the range of {h.dtype}, got up to {largest[row]:.3g} "
                f"for row {start + row}; scale the vectors down, or use float64."
            )
        return scores
