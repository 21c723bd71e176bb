"""The LSH sampler: draws from the buckets of hash tables that hold similar classes."""

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
from samplesoft.kernels.products import product, products, round_up_to_8
from samplesoft.kernels.rows import divide_by_norms
from samplesoft.samplers.base import Draw, Rows, Sampler

Codes = NDArray[np.uint16]
Int32Array = NDArray[np.int32]
_MAX_BITS = 16  # of a code
_MIN_UNIFORM_SHARE = 1e-100  # even for 10**15 classes, probabilities are above 0 in float64
_TASK_STEPS = 1 << 20  # inner steps in a task of a thread


class _HashTables(NamedTuple):
    """The hash tables: class i has code ``codes[i, t]`` in table t.

    Bucket c of table t is ``members[t, offsets[t, c] : offsets[t, c + 1]]``, in increasing order.
    After the L tables comes one of 0 bits: its only bucket holds all classes.
    """

    codes: Codes  # (n, L + 1)
    offsets: Int32Array  # (L + 1, 2**K + 1)
    members: Int32Array  # (L + 1, n)


class _BucketMixture(NamedTuple):
    """The distribution of contexts: a mixture of one bucket in each table.

    `class_mass` (B, L + 1) is the mass of one class in a bucket. `cumulative_mass` (B, L + 1) are the
    cumulative masses of buckets without the excluded class.
    """

    codes: Codes  # (B, L + 1): codes of the contexts
    exclude: IntArray  # (B,)
    class_mass: FloatArray
    cumulative_mass: FloatArray


class LSHSampler(Sampler):
    r"""Uniform draws from buckets of similar classes, by locality-sensitive hashing.

    Each of L hash tables divides the classes into buckets by K bits, the signs of their products
    with K random directions (SimHash). A draw takes a random table, and a random class from the
    bucket of the context in that table. A fixed fraction of the draws, and draws from empty
    buckets, are uniform over all classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64. Only codes are stored, 6 L bytes for each class.
    num_tables : int
        Number of tables L. Memory and the time of updates and draws grow with L.
    num_bits : int, optional
        Bits K of a code, 1 to 16; ``0.4 log2(n)`` by default, rounded and at least 1.
    uniform_share : float
        Fraction of uniform draws, from 1e-100 to 1. Importance weights are at most those of uniform
        draws divided by this fraction.
    rng : int, numpy.random.Generator or None
        Seed of the directions.

    Attributes
    ----------
    num_tables, num_bits, uniform_share
        As above.
    directions : ndarray, shape (L, K, d)
        The directions in the dtype of the vectors, each with absolute values that sum to 1. Bit k
        of table t is 1 if the product with ``directions[t, k]`` is positive.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tables do not fit in the available memory.

    Notes
    -----
    **q is exact, given the tables.** With the bucket :math:`B_t` of the context in table t, and the
    uniform fraction s, a draw gives class i with probability

    .. math:: q_i = \frac{s}{n} + \frac{1 - s}{L} \sum_{t = 1}^{L} \begin{cases}
        [i \in B_t] / |B_t| & |B_t| > 0 \\ 1 / n & \text{else.} \end{cases}

    The papers use the probability that a class is found over random hash functions,
    `collision_log_prob`, which is a different quantity.

    **Exclusion is exact.** An excluded class is removed from each bucket. A bucket is drawn by the
    mass of its remaining classes, and then one of these. Nothing is subtracted from a mass.

    **Only angles count.** Bits do not depend on norms. Extending class vectors to equal norm by
    another coordinate [4]_ would turn the inner product into an angle. This was measured and
    rejected: with norms spread by a factor of ``exp(0.3 N(0, 1))`` it raised the bias from 0.04 to
    0.11 (uniform draws: 0.27), because it brings the angles closer together.

    **Updates** hash the changed classes and sort all tables again, in O(n L).

    **When to use it.** For quick draws if a tenth of the bias of uniform draws is acceptable. It
    has less bias than random features and takes a tenth of their time. `ClusterSampler` has at most
    a twentieth of its bias and takes five times as long. More than about 128 tables gain little,
    and the bias does not vanish as L grows, because the tables estimate a power of the angle, not
    the softmax. In a trained language model with tau = 11 (``figures/wrong_corrections.py``) its
    bias was 0.18, and that of draws by counts 0.06. Updates are slower than those of clusters. The
    page of benchmarks has the measurements.

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
        if self.num_bits > _MAX_BITS:
            raise ValueError(
                f"`num_bits` must be at most {_MAX_BITS}, got {num_bits}; take more tables instead."
            )
        self.uniform_share = as_positive("uniform_share", uniform_share)
        if not _MIN_UNIFORM_SHARE <= self.uniform_share <= 1.0:
            raise ValueError(
                f"`uniform_share` must lie from {_MIN_UNIFORM_SHARE:g} to 1, got "
                f"{uniform_share}; it bounds the importance weights."
            )
        num_bytes = self.num_tables * (6.0 * self.num_classes + 4.0 * 2**self.num_bits)
        # directions, in float64 and then in the dtype of the vectors
        num_bytes += 16.0 * self.num_tables * self.num_bits * rows.shape[1]
        subject = f"{self.num_tables} tables of {self.num_classes:,} classes"
        require_bytes(subject, num_bytes, "lower `num_tables` or `num_bits`")
        generator = np.random.default_rng(int(as_key(rng)))
        shape = self.num_tables, self.num_bits, rows.shape[1]
        directions = generator.standard_normal(shape)
        # 1-norm 1, so that projections do not overflow; signs stay the same
        directions /= np.abs(directions).sum(axis=2, keepdims=True)
        self.directions = directions.astype(rows.dtype)
        self._tables = self._build_tables(self._hash_codes(rows))

    def collision_log_prob(
        self, h: ArrayLike, class_embeddings: ArrayLike, *, num_tables: int | None = None
    ) -> FloatArray:
        """Return the log-probability that a random set of hash tables finds the classes.

        This is **not** the probability of a draw, `log_prob`. With the angle a between a class and
        a context, a bit agrees with probability p = 1 - a / pi. With K bits a table, the
        probability that a class is in the bucket of the context in at least one of T tables, or is
        drawn uniformly (with probability `uniform_share`), is

            1 - (1 - p**K)**T * (1 - uniform_share / n),

        which is positive for every class.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        class_embeddings : array_like, shape (k, d)
            Class vectors; all n for `samplesoft.exact_bias`.
        num_tables : int, optional
            Number of tables T: by default all L, whose buckets together are the sample of Spring
            and Shrivastava; 1 for the table of a single draw.

        Returns
        -------
        ndarray of float64, shape (B, k)
            Natural logarithms, at most 0 and never -inf.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        MemoryError
            If the result does not fit in memory.

        Notes
        -----
        Draws from fixed tables that are corrected by it are biased at any m, because the tables do
        not change while draws are averaged, and it ignores the sizes of buckets.
        ``samplesoft.exact_bias(..., correction=np.exp(...))`` gives the bias. For 10,000 word
        vectors of the Penn Treebank and this correction, normalised, the L1 norm was 1.3 to 1.5
        with all L tables and 1.1 to 1.3 with one, at m = 100 and at m = 10,000; corrected by q it
        was 0.011 and 0.0001.

        References
        ----------
        Charikar (2002), section 3: p. Spring and Shrivastava (2017): the probability for L tables.
        Chen et al. (2019): that for one table.

        Examples
        --------
        >>> sampler = LSHSampler(np.eye(2), num_tables=2, num_bits=1, uniform_share=0.2, rng=0)
        >>> np.exp(sampler.collision_log_prob([1.0, 0.0], np.eye(2))).round(3)
        array([[1.   , 0.775]])
        """
        num_tables_used = (
            self.num_tables if num_tables is None else as_count("num_tables", num_tables)
        )
        contexts = self._check_contexts(h).astype(np.float64)
        rows = self._checked_class_rows(class_embeddings).astype(np.float64)
        require_memory("h", len(contexts), 32.0 * len(contexts) * len(rows))
        for vectors in (contexts, rows):
            divide_by_norms(vectors, np.empty(len(vectors)))
        cosines = product(contexts, rows.T)
        # all zero vectors have the same code in every table, and always collide
        cosines[np.ix_(~contexts.any(axis=1), ~rows.any(axis=1))] = 1.0
        # rounding may move a cosine above 1
        p = 1.0 - np.arccos(np.clip(cosines, -1.0, 1.0)) / np.pi
        with np.errstate(divide="ignore"):  # p = 1
            log_missed = num_tables_used * np.log1p(-(p**self.num_bits))
            log_missed += np.log1p(-self.uniform_share / self.num_classes)
        log_found: FloatArray = np.log(-np.expm1(log_missed))
        return log_found

    def _hash_codes(self, rows: Rows) -> Codes:
        """Return the codes (N, L + 1) of rows (N, d)."""
        codes = np.zeros((len(rows), self.num_tables + 1), np.uint16)
        directions = self.directions.reshape(-1, rows.shape[1])

        def write_chunk(chunk: slice) -> None:
            workspace = np.empty((1, round_up_to_8(len(directions))), rows.dtype)
            _write_codes(directions, self.num_bits, rows[chunk], workspace, codes[chunk])

        thread_each(write_chunk, row_chunks((len(rows), directions.size), _TASK_STEPS))
        return codes

    def _build_tables(self, codes: Codes) -> _HashTables:
        """Return the hash tables of classes with codes (n, L + 1)."""
        offsets = np.empty((codes.shape[1], 2**self.num_bits + 1), np.int32)
        members = np.empty(codes.shape[::-1], np.int32)

        def sort_table(t: int) -> None:
            _sort_by_code(np.ascontiguousarray(codes[:, t]), offsets[t], members[t])

        thread_each(sort_table, range(len(offsets)))
        return _HashTables(codes, offsets, members)

    def _bucket_mixture(self, h: Rows, exclude: IntArray) -> _BucketMixture:
        codes = self._hash_codes(h)
        mixture = _BucketMixture(codes, exclude, np.empty(codes.shape), np.empty(codes.shape))
        _write_masses(self._tables, self.uniform_share, mixture)
        return mixture

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        mixture = self._bucket_mixture(h, exclude)
        ids = np.empty((len(h), m), np.int64)
        log_q = np.empty((len(h), m))

        def draw_chunk(chunk: slice) -> None:
            chunk_mixture = _BucketMixture(*(array[chunk] for array in mixture))  # type: ignore[arg-type]
            _draw_classes(self._tables, chunk_mixture, key, chunk.start, ids[chunk])
            _write_log_q(self._tables, chunk_mixture, ids[chunk], log_q[chunk])

        thread_each(draw_chunk, row_chunks((len(h), m * self.num_tables), _TASK_STEPS))
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = np.empty(ids.shape)
        _write_log_q(self._tables, self._bucket_mixture(h, exclude), ids, log_q)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        q = np.zeros((len(h), self.num_classes))
        _add_probs(self._tables, self._bucket_mixture(h, exclude), q)
        return q

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        codes = self._tables.codes.copy()
        codes[ids] = self._hash_codes(rows)  # NumPy keeps the last vector of a repeated class
        return partial(setattr, self, "_tables", self._build_tables(codes))


@njit
def _write_codes(
    directions: Rows, num_bits: int, rows: Rows, workspace: Rows, codes: Codes
) -> None:
    """Write the codes (N, L + 1) of rows (N, d), signs of K products each; not the last column."""
    # one row at a time, so that the codes of a context do not depend on its batch
    for b in range(len(rows)):
        products(directions, 0, len(directions), rows, b, -1, workspace, 0)
        for t in range(len(directions) // num_bits):
            code = 0
            for k in range(t * num_bits, (t + 1) * num_bits):
                code = 2 * code + (1 if workspace[0, k] > 0.0 else 0)
            codes[b, t] = code


@njit
def _sort_by_code(codes: Codes, offsets: Int32Array, members: Int32Array) -> None:
    """Sort classes by their codes (n,) in one table; stable."""
    # counting sort: ends of buckets, then classes from the last on, each one slot lower
    offsets[:] = 0
    for i in range(len(codes)):
        offsets[codes[i]] += 1
    for c in range(len(offsets) - 1):
        offsets[c + 1] += offsets[c]
    for i in range(len(codes) - 1, -1, -1):
        offsets[codes[i]] -= 1
        members[offsets[codes[i]]] = i


@njit
def _write_masses(tables: _HashTables, uniform_share: float, mixture: _BucketMixture) -> None:
    """Write the masses `class_mass` and `cumulative_mass` of a mixture."""
    codes, _, class_mass, cumulative_mass = mixture
    num_tables = codes.shape[1] - 1
    for b in range(len(codes)):
        total = 0.0
        uniform_mass = uniform_share
        for t in range(num_tables + 1):
            _, size, skip = _bucket_range(tables, mixture, b, t)
            mass = (1.0 - uniform_share) / num_tables if t < num_tables else uniform_mass
            uniform_mass += mass if size == 0 else 0.0
            class_mass[b, t] = mass / size if size > 0 else 0.0
            # remaining classes are counted: no mass is subtracted
            total += class_mass[b, t] * (size - skip)
            cumulative_mass[b, t] = total


@njit
def _bucket_range(
    tables: _HashTables, mixture: _BucketMixture, b: int, t: int
) -> tuple[int, int, int]:
    """Return the start and size of the bucket of context b in table t, and whether to skip a class.

    The third value is 1 if the bucket holds the excluded class, else 0.
    """
    code = mixture.codes[b, t]
    excluded = mixture.exclude[b]
    begin = tables.offsets[t, code]
    end = tables.offsets[t, code + 1]
    skip = 1 if excluded >= 0 and tables.codes[excluded, t] == code else 0
    return begin, end - begin, skip


@njit
def _draw_classes(
    tables: _HashTables, mixture: _BucketMixture, key: np.uint64, first: int, ids: IntArray
) -> None:
    """Draw classes (B, m) for contexts `first`, `first + 1`, ...."""
    for b in range(len(ids)):
        stream = mix64(key, np.uint64(first + b))
        cumulative_mass = mixture.cumulative_mass[b]
        for k in range(ids.shape[1]):
            # side="right": skips buckets without mass
            target = uniform(stream, np.uint64(2 * k)) * cumulative_mass[-1]
            t = min(
                np.searchsorted(cumulative_mass, target, side="right"), len(cumulative_mass) - 1
            )
            begin, size, skip = _bucket_range(tables, mixture, b, t)
            slot = begin + int(uniform(stream, np.uint64(2 * k + 1)) * (size - skip))
            # members increase: from the excluded class on, skip one slot
            if skip and tables.members[t, slot] >= mixture.exclude[b]:
                slot += 1
            ids[b, k] = tables.members[t, slot]


@njit_sum
def _write_log_q(
    tables: _HashTables, mixture: _BucketMixture, ids: IntArray, log_q: FloatArray
) -> None:
    """Write log-probabilities (B, k) of classes."""
    codes = tables.codes
    context_codes, exclude, class_mass, cumulative_mass = mixture
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            i = ids[b, k]
            mass = 0.0
            for t in range(codes.shape[1]):
                mass += class_mass[b, t] if codes[i, t] == context_codes[b, t] else 0.0
            log_q[b, k] = -math.inf if i == exclude[b] else math.log(mass / cumulative_mass[b, -1])


@njit
def _add_probs(tables: _HashTables, mixture: _BucketMixture, q: FloatArray) -> None:
    """Add the probabilities of all classes to `q` (B, n), which is 0 before."""
    for b in range(len(q)):
        for t in range(len(tables.offsets)):
            begin, size, _ = _bucket_range(tables, mixture, b, t)
            for slot in range(begin, begin + size):
                q[b, tables.members[t, slot]] += (
                    mixture.class_mass[b, t] / mixture.cumulative_mass[b, -1]
                )
        if mixture.exclude[b] >= 0:
            q[b, mixture.exclude[b]] = 0.0
