"""Classes drawn from the buckets of hash tables, in which similar ones meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit, njit_sum, row_chunks, thread_each
from samplesoft._memory import require_bytes, require_memory
from samplesoft._random import as_key, mix64, uniform
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_float_rows,
    as_positive,
)
from samplesoft.kernels.products import product, products, whole_eights
from samplesoft.kernels.rows import divide_by_norms
from samplesoft.samplers.base import Draw, Rows, Sampler

Codes = NDArray[np.uint16]
Places = NDArray[np.int32]
_MOST_BITS = 16  # of a code
_LEAST_SHARE = 1e-100  # of which even a class of 10**15 has a probability in float64
_TASK_STEPS = 1 << 20  # steps of a task of a thread, or so


class _Tables(NamedTuple):
    """The classes by their codes: class i has code ``codes[i, t]`` in table t.

    Bucket c of table t are ``members[t, starts[t, c] : starts[t, c + 1]]``, in rising order. After
    the L tables comes one of no bits: its only bucket are all classes.
    """

    codes: Codes  # (n, L + 1)
    starts: Places  # (L + 1, 2**K + 1)
    members: Places  # (L + 1, n)


class _Mixture(NamedTuple):
    """What contexts draw from: a bucket in each table.

    `each` (B, L + 1) is the mass of a class in a bucket, and `ends` (B, L + 1) are the masses of
    buckets without the excluded class, summed up.
    """

    codes: Codes  # (B, L + 1) of the contexts
    exclude: IntArray  # (B,)
    each: FloatArray
    ends: FloatArray


class LSHSampler(Sampler):
    r"""A class at random from a bucket of similar classes, by locality-sensitive hashing.

    Each of L hash tables has the classes in buckets by K bits: the signs of their products with K
    random directions (SimHash). A draw takes a table at random, and a class at random from the
    bucket into which the context falls in it. A fixed share of the draws, and those that meet an
    empty bucket, are uniform over all classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; what is kept of them are codes, 6 L bytes for
        each class.
    num_tables : int
        Tables L. Memory and the time of updates grow with L, and that of draws too.
    num_bits : int, optional
        Bits K of a code, 1 to 16; ``0.4 log2(n)`` by default, rounded and at least 1.
    uniform_share : float
        Share of the draws that are uniform, from 1e-100 to 1. An importance weight is at most that
        of uniform draws divided by it.
    rng : int, numpy.random.Generator or None
        Seed of the directions.

    Attributes
    ----------
    num_tables, num_bits, uniform_share
        As above.
    directions : ndarray, shape (L, K, d)
        The directions, each scaled to a sum of absolute values of 1, in the type of the vectors.
        Bit k of table t is 1 where the product with ``directions[t, k]`` is above 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tables would not fit in the memory that is left.

    Notes
    -----
    **q is exact, given the tables.** With the bucket :math:`B_t` of the context in table t, and a
    share s, a draw gives class i with probability

    .. math:: q_i = \frac{s}{n} + \frac{1 - s}{L} \sum_{t = 1}^{L} \begin{cases}
        [i \in B_t] / |B_t| & |B_t| > 0 \\ 1 / n & \text{else.} \end{cases}

    The papers start from the probability that a class is found over random hash functions,
    `collision_log_prob`, which is another number: see there.

    **Exclusion is exact.** An excluded class is left out of each bucket: a bucket is drawn by the
    mass of the classes that it keeps, and then one of these. Nothing is subtracted from a mass.

    **Angles alone.** Bits do not see how long a vector is. To make the inner product an angle,
    class vectors can be extended to one length by another coordinate [4]_. That was measured, and
    is left out: for words below with norms spread by a factor of ``exp(0.3 N(0, 1))`` it raised
    the bias from 0.04 to 0.11 (uniform draws: 0.27), because it brings the angles closer together.

    **Updates** hash the changed classes, and sort all tables anew, in O(n L).

    **When to take it.** L1 norm of `samplesoft.exact_bias` for m = 100 and tau = 10, the mean over
    32 examples, and the time of 100 draws for an example of a batch of 128, on one thread. Vectors
    of words, d = 64 and norm 1, are from the Penn Treebank (PTB) and from Python's library:

    ======================  ================  ================  ================
    sampler                 PTB, n = 10,000   Python, 10,000    Python, 41,369
    ======================  ================  ================  ================
    uniform                 0.139    0.8 us   0.113    0.8 us   0.302    0.8 us
    unigram                 0.054    1.4 us   0.062    1.4 us   0.149    1.5 us
    LSH, L = 16             0.028    5.8 us   0.023    5.7 us   0.049    6.7 us
    LSH, L = 64             0.011     11 us   0.011     13 us   0.020     14 us
    LSH, L = 256            0.008     60 us   0.009     59 us   0.016     69 us
    LSH, uniform_share 0.1  0.022     12 us   0.025     12 us   0.034     16 us
    LSH, num_bits 10        0.033      9 us   0.022     10 us   0.035     18 us
    random features, 1024   0.021    172 us   0.016    188 us   0.034    268 us
    clusters                0.0003    65 us   0.0003    65 us   0.001     78 us
    ======================  ================  ================  ================

    So it has less bias than random features (with leaves of 64 classes, in which the softmax
    draws), and a tenth of their time. `ClusterSampler` has a twentieth of its bias and less, in
    five times its time: take that, unless draws must be quick and a bias of a tenth of that of
    uniform draws will do. More than some 128 tables gain little, and a bias does not go to 0 with
    their number: what tables tell is a power of the angle, not the softmax. Nor are such contexts
    the only ones: in a language model trained with tau = 11, ``figures/wrong_corrections.py``,
    draws by counts have a bias of 0.06, and these 0.18. With vectors that change it is slower than
    clusters: 2,000 new vectors of 41,369 take 15 to 30 ms, theirs 2 to 6.

    References
    ----------
    .. [1] M. S. Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002,
       section 3: SimHash.
    .. [2] R. Spring and A. Shrivastava, "A new unbiased and efficient class of LSH-based samplers
       and estimators for partition function computation in log-linear models", 2017.
    .. [3] B. Chen, Y. Xu and A. Shrivastava, "Fast and accurate stochastic gradient estimation",
       NeurIPS 2019: one table at random, and a uniform element of its bucket.
    .. [4] B. Neyshabur and N. Srebro, "On symmetric and asymmetric LSHs for inner product search",
       ICML 2015: Simple-LSH.

    Examples
    --------
    >>> vectors = np.random.default_rng(0).normal(size=(1000, 8))
    >>> sampler = LSHSampler(vectors, rng=0)
    >>> sampler.num_bits, bool(sampler.probs(vectors[:3]).argmax(axis=1).tolist() == [0, 1, 2])
    (4, True)
    >>> draw = sampler.sample(vectors[:3], 5, exclude=[0, 1, 2], rng=0)
    >>> wanted = np.take_along_axis(sampler.probs(vectors[:3], exclude=[0, 1, 2]), draw.ids, 1)
    >>> bool(np.allclose(np.exp(draw.log_q), wanted))
    True
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        num_tables: int = 64,
        num_bits: int | None = None,
        uniform_share: float = 0.5,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype)
        self.num_tables = as_count("num_tables", num_tables)
        if num_bits is None:
            num_bits = max(1, round(0.4 * math.log2(self.num_classes)))
        self.num_bits = as_count("num_bits", num_bits)
        if self.num_bits > _MOST_BITS:
            raise ValueError(
                f"`num_bits` must be at most {_MOST_BITS}, got {num_bits}; take more "
                "tables instead."
            )
        self.uniform_share = as_positive("uniform_share", uniform_share)
        if not _LEAST_SHARE <= self.uniform_share <= 1.0:
            raise ValueError(
                f"`uniform_share` must lie from {_LEAST_SHARE:g} to 1, got {uniform_share}; it "
                "bounds the importance weights."
            )
        needed = self.num_tables * (6.0 * self.num_classes + 4.0 * 2**self.num_bits)
        # directions, in the type of the vectors and before that in float64
        needed += 16.0 * self.num_tables * self.num_bits * rows.shape[1]
        what = f"{self.num_tables} tables of {self.num_classes:,} classes"
        require_bytes(what, needed, "lower `num_tables` or `num_bits`")
        generator = np.random.default_rng(int(as_key(rng)))
        shape = self.num_tables, self.num_bits, rows.shape[1]
        directions = generator.standard_normal(shape)
        # of 1-norm 1, which changes no sign: no projection overflows
        directions /= np.abs(directions).sum(axis=2, keepdims=True)
        self.directions = directions.astype(rows.dtype)
        self._tables = self._sorted(self._codes(rows))

    def collision_log_prob(
        self, h: ArrayLike, class_embeddings: ArrayLike, *, num_tables: int | None = None
    ) -> FloatArray:
        """Return how likely classes are found over random hash functions: what papers correct by.

        **Not** the probability of a draw, which is `log_prob`. With the angle a of a class and a
        context, a bit is the same in both with probability p = 1 - a / pi. With K bits a table, a
        class is in the bucket of the context in one of T tables, or else hit by a draw that is
        uniform with probability `uniform_share`, with probability

            1 - (1 - p**K)**T * (1 - uniform_share / n),

        which is above 0 for every class.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        class_embeddings : array_like, shape (k, d)
            Vectors of classes, of all n for `samplesoft.exact_bias`.
        num_tables : int, optional
            Tables T: by default all L, whose buckets together are the sample of Spring and
            Shrivastava; 1 for the one table of a draw.

        Returns
        -------
        ndarray of float64, shape (B, k)
            Natural logarithms, at most 0 and never -inf.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        MemoryError
            If so many numbers do not fit.

        Notes
        -----
        Draws from given tables that are corrected by it are biased at any m, for the tables stay
        as they are while draws are averaged; and it leaves out the sizes of the buckets.
        ``samplesoft.exact_bias(..., correction=np.exp(...))`` says by how much. On the words of
        the table above, n = 10,000, corrected by it over its sum the bias is 1.3 to 1.5 in the L1
        norm for all L tables and 1.1 to 1.3 for one, at m = 100 and at m = 10,000; by q it is
        0.011 and 0.0001.

        References
        ----------
        Charikar (2002), section 3, for p; Spring and Shrivastava (2017) for the probability of L
        tables; Chen et al. (2019) for that of one.

        Examples
        --------
        >>> sampler = LSHSampler(np.eye(2), num_tables=2, num_bits=1, uniform_share=0.2, rng=0)
        >>> np.exp(sampler.collision_log_prob([1.0, 0.0], np.eye(2))).round(3)
        array([[1.   , 0.775]])
        """
        num = self.num_tables if num_tables is None else as_count("num_tables", num_tables)
        contexts = self._check_contexts(h).astype(np.float64)
        rows = self._check_class_rows(class_embeddings).astype(np.float64)
        require_memory("h", len(contexts), 32.0 * len(contexts) * len(rows))
        for vectors in (contexts, rows):
            divide_by_norms(vectors, np.empty(len(vectors)))
        cosines = product(contexts, rows.T)
        # vectors of zeros have one code, the same in every table: two of them always collide
        cosines[np.ix_(~contexts.any(axis=1), ~rows.any(axis=1))] = 1.0
        # rounding may bring a cosine beyond 1
        p = 1.0 - np.arccos(np.clip(cosines, -1.0, 1.0)) / np.pi
        with np.errstate(divide="ignore"):  # of a class that is found for certain
            missed = num * np.log1p(-(p**self.num_bits))
            missed += np.log1p(-self.uniform_share / self.num_classes)
        log_found: FloatArray = np.log(-np.expm1(missed))
        return log_found

    def _codes(self, rows: Rows) -> Codes:
        """Return the codes (N, L + 1) of rows (N, d)."""
        codes = np.zeros((len(rows), self.num_tables + 1), np.uint16)
        directions = self.directions.reshape(-1, rows.shape[1])

        def write(part: slice) -> None:
            room = np.empty((1, whole_eights(len(directions))), rows.dtype)
            _hash(directions, self.num_bits, rows[part], room, codes[part])

        thread_each(write, row_chunks((len(rows), directions.size), _TASK_STEPS))
        return codes

    def _sorted(self, codes: Codes) -> _Tables:
        """Return the tables of classes with codes (n, L + 1)."""
        starts = np.empty((codes.shape[1], 2**self.num_bits + 1), np.int32)
        members = np.empty(codes.shape[::-1], np.int32)

        def sort(t: int) -> None:
            _sort(np.ascontiguousarray(codes[:, t]), starts[t], members[t])

        thread_each(sort, range(len(starts)))
        return _Tables(codes, starts, members)

    def _mixture(self, h: Rows, exclude: IntArray) -> _Mixture:
        codes = self._codes(h)
        mixture = _Mixture(codes, exclude, np.empty(codes.shape), np.empty(codes.shape))
        _weigh(self._tables, self.uniform_share, mixture)
        return mixture

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        mixture = self._mixture(h, exclude)
        ids = np.empty((len(h), m), np.int64)
        log_q = np.empty((len(h), m))

        def draw(part: slice) -> None:
            own = _Mixture(*(array[part] for array in mixture))  # type: ignore[arg-type]
            _draw(self._tables, own, key, part.start, ids[part])
            _write_log_q(self._tables, own, ids[part], log_q[part])

        thread_each(draw, row_chunks((len(h), m * self.num_tables), _TASK_STEPS))
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = np.empty(ids.shape)
        _write_log_q(self._tables, self._mixture(h, exclude), ids, log_q)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        q = np.zeros((len(h), self.num_classes))
        _add_up(self._tables, self._mixture(h, exclude), q)
        return q

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        codes = self._tables.codes.copy()
        codes[ids] = self._codes(rows)  # of a class named twice, NumPy keeps the last
        return partial(setattr, self, "_tables", self._sorted(codes))


@njit
def _hash(directions: Rows, num_bits: int, rows: Rows, room: Rows, codes: Codes) -> None:
    """Write the codes (N, L + 1) of rows (N, d), but for the last: K signs of products each."""
    # a row at a time: a context has the same codes in every batch
    for b in range(len(rows)):
        products(directions, 0, len(directions), rows, b, -1, room, 0)
        for t in range(len(directions) // num_bits):
            code = 0
            for k in range(t * num_bits, (t + 1) * num_bits):
                code = 2 * code + (1 if room[0, k] > 0.0 else 0)
            codes[b, t] = code


@njit
def _sort(codes: Codes, starts: Places, members: Places) -> None:
    """Sort classes by their codes (n,) in a table, those of a code in rising order."""
    # a counting sort: where buckets end, and from the last class on one place down for each
    starts[:] = 0
    for i in range(len(codes)):
        starts[codes[i]] += 1
    for c in range(len(starts) - 1):
        starts[c + 1] += starts[c]
    for i in range(len(codes) - 1, -1, -1):
        starts[codes[i]] -= 1
        members[starts[codes[i]]] = i


@njit
def _weigh(tables: _Tables, share: float, mixture: _Mixture) -> None:
    """Write the masses of a mixture."""
    own, _, each, ends = mixture
    last = own.shape[1] - 1
    for b in range(len(own)):
        total = 0.0
        of_all = share
        for t in range(last + 1):
            _, size, skip = _bucket(tables, mixture, b, t)
            mass = (1.0 - share) / last if t < last else of_all
            of_all += mass if size == 0 else 0.0
            each[b, t] = mass / size if size > 0 else 0.0
            # the classes that are left are counted: no mass is subtracted
            total += each[b, t] * (size - skip)
            ends[b, t] = total


@njit
def _bucket(tables: _Tables, mixture: _Mixture, b: int, t: int) -> tuple[int, int, int]:
    """Return where the bucket of context b begins in table t, and its size.

    The third number is 1 where it holds the excluded class, else 0.
    """
    code = mixture.codes[b, t]
    excluded = mixture.exclude[b]
    begin = tables.starts[t, code]
    end = tables.starts[t, code + 1]
    skip = 1 if excluded >= 0 and tables.codes[excluded, t] == code else 0
    return begin, end - begin, skip


@njit
def _draw(tables: _Tables, mixture: _Mixture, key: np.uint64, first: int, ids: IntArray) -> None:
    """Draw classes (B, m) for contexts, which are numbered from `first` on."""
    for b in range(len(ids)):
        stream = mix64(key, np.uint64(first + b))
        ends = mixture.ends[b]
        for k in range(ids.shape[1]):
            # on the right: a bucket without mass begins where the next one does
            target = uniform(stream, np.uint64(2 * k)) * ends[-1]
            t = min(np.searchsorted(ends, target, side="right"), len(ends) - 1)
            begin, size, skip = _bucket(tables, mixture, b, t)
            place = begin + int(uniform(stream, np.uint64(2 * k + 1)) * (size - skip))
            # members rise, so that those from the excluded class on are one place further
            if skip and tables.members[t, place] >= mixture.exclude[b]:
                place += 1
            ids[b, k] = tables.members[t, place]


@njit_sum
def _write_log_q(tables: _Tables, mixture: _Mixture, ids: IntArray, log_q: FloatArray) -> None:
    """Write log-probabilities (B, k) of classes."""
    codes = tables.codes
    own, exclude, each, ends = mixture
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            i = ids[b, k]
            mass = 0.0
            for t in range(codes.shape[1]):
                mass += each[b, t] if codes[i, t] == own[b, t] else 0.0
            log_q[b, k] = -math.inf if i == exclude[b] else math.log(mass / ends[b, -1])


@njit
def _add_up(tables: _Tables, mixture: _Mixture, q: FloatArray) -> None:
    """Add the probabilities of all classes to `q` (B, n), which is 0."""
    for b in range(len(q)):
        for t in range(len(tables.starts)):
            begin, size, _ = _bucket(tables, mixture, b, t)
            for place in range(begin, begin + size):
                q[b, tables.members[t, place]] += mixture.each[b, t] / mixture.ends[b, -1]
        if mixture.exclude[b] >= 0:
            q[b, mixture.exclude[b]] = 0.0
