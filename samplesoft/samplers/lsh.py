"""The LSH sampler: uniform draws from hash buckets that hold similar classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit, njit_sum, row_chunks, thread_for_each
from samplesoft._memory import require_bytes, require_memory
from samplesoft._random import mix64, stream_key, uniform
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
_MAX_BITS = 16  # maximum number of bits in a hash code, which is stored as uint16
# smallest allowed fraction of uniform draws; even with 10**15 classes, it keeps probabilities in
# float64 above 0
_MIN_UNIFORM_SHARE = 1e-100
_TASK_STEPS = 1 << 20  # inner loop steps in one task of a thread


class _HashTables(NamedTuple):
    """L hash tables of the n classes, and one more table whose only bucket holds all classes.

    Class i has the hash code ``codes[i, t]`` in table t. The bucket of code c has the classes
    ``members[t, offsets[t, c] : offsets[t, c + 1]]``, in increasing order. In the last table all
    codes are 0.
    """

    codes: Codes  # (n, L + 1)
    offsets: Int32Array  # (L + 1, 2**K + 1)
    members: Int32Array  # (L + 1, n)


class _BucketMixture(NamedTuple):
    """The proposal of each of B contexts: a mixture of uniform draws from one bucket per table.

    The bucket of a table is the one with the hash code of the context. Without an excluded class,
    the masses of all buckets of a context sum to 1.
    """

    codes: Codes  # (B, L + 1): codes of the contexts
    exclude: IntArray  # (B,): excluded classes, or -1
    # (B, L + 1): mass of each class in the bucket, 0 if the bucket is empty
    class_mass: FloatArray
    # (B, L + 1): cumulative sums, over the tables, of bucket masses; the excluded class is not
    # counted
    cumulative_mass: FloatArray


class LSHSampler(Sampler):
    r"""Draw uniformly from hash buckets of similar classes, by locality-sensitive hashing.

    Each of L hash tables divides the classes into buckets by a code of K bits, the signs of the
    inner products of a class vector with K random directions (SimHash). A draw chooses a random
    table, and then a random class from the bucket with the code of the context. A fixed fraction of
    the draws is uniform over all classes, and so is a draw whose bucket is empty.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64. Only the hash tables are stored, 6 L bytes for
        each class.
    num_tables : int
        Number of tables L. Memory and the time of updates and draws grow with L.
    num_bits : int, optional
        Number of bits K of a code, 1 to 16; ``0.4 log2(n)`` by default, rounded and at least 1.
    uniform_share : float
        Fraction of uniform draws, from 1e-100 to 1. Importance weights are at most the importance
        weights of uniform draws, divided by this fraction.
    rng : int, numpy.random.Generator or None
        Seed of the directions.

    Attributes
    ----------
    num_tables, num_bits, uniform_share
        As above.
    directions : ndarray, shape (L, K, d)
        Random directions in the dtype of the class vectors. The absolute values of each direction
        sum to 1. Bit k of the code in table t is 1 if the inner product with ``directions[t, k]``
        is positive.

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

    **Exclusion is exact.** An excluded class is removed from each bucket. A bucket is drawn in
    proportion to the mass of its remaining classes, and then one of these classes is drawn. The
    remaining classes are counted, so that nothing is subtracted from a mass.

    **Only angles matter.** Bits do not depend on norms. One more coordinate could extend all class
    vectors to the same norm [4]_, so that the angle is a function of the inner product. This was
    measured and rejected: if norms vary by a factor of ``exp(0.3 N(0, 1))``, it raised the bias
    from 0.04 to 0.11 (uniform draws: 0.27), because it brings the angles closer together.

    **Updates** hash the changed classes and sort all tables again, in O(n L).

    **When to use it.** Use it for quick draws if a tenth of the bias of uniform draws is
    acceptable. It has less bias than random features and takes a tenth of their time.
    `ClusterSampler` has at most a twentieth of the bias and takes five times as long. More than
    about 128 tables gain little, and the bias does not vanish as L grows, because the tables
    estimate a power of the angle, not the softmax. In a trained language model with tau = 11
    (``figures/wrong_corrections.py``) the bias was 0.18, compared with 0.06 for draws by counts.
    Updates are slower than updates of clusters. The page of benchmarks has the measurements.

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
                f"`num_bits` must be at most {_MAX_BITS}, got {num_bits}; use more tables instead."
            )

        self.uniform_share = as_positive("uniform_share", uniform_share)
        if not _MIN_UNIFORM_SHARE <= self.uniform_share <= 1.0:
            raise ValueError(
                f"`uniform_share` must lie from {_MIN_UNIFORM_SHARE:g} to 1, got "
                f"{uniform_share}; it bounds the importance weights."
            )

        num_bytes = self.num_tables * (6.0 * self.num_classes + 4.0 * 2**self.num_bits)
        # memory of the directions in float64, and of their copy in the dtype of the vectors
        num_bytes += 16.0 * self.num_tables * self.num_bits * rows.shape[1]
        subject = f"{self.num_tables} tables of {self.num_classes:,} classes"
        require_bytes(subject, num_bytes, "lower `num_tables` or `num_bits`")

        generator = np.random.default_rng(int(stream_key(rng)))
        shape = (self.num_tables, self.num_bits, rows.shape[1])
        directions = generator.standard_normal(shape)

        # scaled so that projections do not overflow; only the signs of projections are used
        directions /= np.abs(directions).sum(axis=2, keepdims=True)
        self.directions = directions.astype(rows.dtype)

        self._tables = self._build_tables(self._hash_codes(rows))

    def collision_log_prob(
        self, h: ArrayLike, class_embeddings: ArrayLike, *, num_tables: int | None = None
    ) -> FloatArray:
        """Return the log-probability, over random directions, that hashing finds each class.

        This is **not** the log-probability of a draw, which is `log_prob`. If the angle between a
        class and a context is ``a``, they have the same bit with probability p = 1 - a / pi. With K
        bits, the probability that the class is in the bucket of the context in at least one of T
        random tables, or is drawn uniformly (with probability ``uniform_share / n``), is

            1 - (1 - p**K)**T * (1 - uniform_share / n),

        which is positive for every class.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,)
            Context vectors.
        class_embeddings : array_like, shape (k, d)
            Class vectors; all n of them if the result is for `samplesoft.exact_bias`.
        num_tables : int, optional
            Number of tables T, by default L. Spring and Shrivastava sample from the union of the
            buckets of all L tables. For a single draw, which uses one table, pass 1.

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
        A loss that corrects draws from fixed tables by this probability, instead of q, is biased at
        any m. The reasons are that the tables are the same in all draws, and that the probability
        ignores the sizes of buckets. ``samplesoft.exact_bias(..., correction=np.exp(...))`` returns
        the bias. For 10,000 word vectors of the Penn Treebank and the normalised probability as the
        correction, the L1 norm of the bias was 1.3 to 1.5 with all L tables and 1.1 to 1.3 with one
        table, both at m = 100 and at m = 10,000. With the correction by q it was 0.011 and 0.0001.

        References
        ----------
        Charikar (2002), section 3: the probability p. Spring and Shrivastava (2017): the
        probability for L tables. Chen et al. (2019): the probability for one table.

        Examples
        --------
        >>> sampler = LSHSampler(np.eye(2), num_tables=2, num_bits=1, uniform_share=0.2, rng=0)
        >>> np.exp(sampler.collision_log_prob([1.0, 0.0], np.eye(2))).round(3)
        array([[1.   , 0.775]])
        """
        num_tables_used = (
            self.num_tables if num_tables is None else as_count("num_tables", num_tables)
        )

        contexts = self._checked_contexts(h).astype(np.float64)
        rows = self._checked_class_rows(class_embeddings).astype(np.float64)
        require_memory("h", len(contexts), 32.0 * len(contexts) * len(rows))

        for vectors in (contexts, rows):
            divide_by_norms(vectors, np.empty(len(vectors)))

        cosines = product(contexts, rows.T)
        # a zero vector has code 0 in every table, so that two zero vectors always collide
        cosines[np.ix_(~contexts.any(axis=1), ~rows.any(axis=1))] = 1.0

        # clipped, because rounding may move a cosine above 1
        p = 1.0 - np.arccos(np.clip(cosines, -1.0, 1.0)) / np.pi

        with np.errstate(divide="ignore"):  # log(0) for p = 1
            log_missed = num_tables_used * np.log1p(-(p**self.num_bits))
            log_missed += np.log1p(-self.uniform_share / self.num_classes)

        log_found: FloatArray = np.log(-np.expm1(log_missed))
        return log_found

    def _hash_codes(self, rows: Rows) -> Codes:
        """Return the hash codes (N, L + 1) of rows (N, d) in all L + 1 tables.

        The last column, for the table whose only bucket holds all classes, is 0.
        """
        codes = np.zeros((len(rows), self.num_tables + 1), np.uint16)
        directions = self.directions.reshape(-1, rows.shape[1])

        def write_chunk(chunk: slice) -> None:
            workspace = np.empty((1, round_up_to_8(len(directions))), rows.dtype)
            _write_codes(directions, self.num_bits, rows[chunk], workspace, codes[chunk])

        thread_for_each(write_chunk, row_chunks((len(rows), directions.size), _TASK_STEPS))
        return codes

    def _build_tables(self, codes: Codes) -> _HashTables:
        """Return the hash tables of classes whose hash codes are `codes` (n, L + 1)."""
        offsets = np.empty((codes.shape[1], 2**self.num_bits + 1), np.int32)
        members = np.empty(codes.shape[::-1], np.int32)

        def sort_table(t: int) -> None:
            _sort_by_code(np.ascontiguousarray(codes[:, t]), offsets[t], members[t])

        thread_for_each(sort_table, range(len(offsets)))
        return _HashTables(codes, offsets, members)

    def _bucket_mixture(self, h: Rows, exclude: IntArray) -> _BucketMixture:
        """Return the proposals of contexts `h` (B, d) without their excluded classes (B,)."""
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

        thread_for_each(draw_chunk, row_chunks((len(h), m * self.num_tables), _TASK_STEPS))
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
    """Write the hash codes of rows (N, d) in L tables to the first L columns of `codes` (N, L + 1).

    A code has K bits, one for each direction, which is 1 if the inner product with the row is
    positive. `directions` has shape (L K, d). `workspace` (1, L K or more) is overwritten.
    """
    # one row at a time, so that the codes of a context do not depend on the rest of the batch
    for b in range(len(rows)):
        products(directions, 0, len(directions), rows, b, -1, workspace, 0)

        for t in range(len(directions) // num_bits):
            code = 0
            for k in range(t * num_bits, (t + 1) * num_bits):
                code = 2 * code + (1 if workspace[0, k] > 0.0 else 0)
            codes[b, t] = code


@njit
def _sort_by_code(codes: Codes, offsets: Int32Array, members: Int32Array) -> None:
    """Write the bucket offsets of one hash table, and its members sorted by their `codes` (n,)."""
    # A counting sort. First, compute the end of each bucket. Then insert the classes from the last
    # to the first, each into the slot before the last inserted class of the same bucket.
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
    """Write the fields `class_mass` and `cumulative_mass` of a mixture from its other fields."""
    codes, _, class_mass, cumulative_mass = mixture
    num_tables = codes.shape[1] - 1

    for b in range(len(codes)):
        total = 0.0
        uniform_mass = uniform_share

        for t in range(num_tables + 1):
            _, bucket_size, num_excluded = _bucket_range(tables, mixture, b, t)
            mass = (1.0 - uniform_share) / num_tables if t < num_tables else uniform_mass
            uniform_mass += mass if bucket_size == 0 else 0.0
            class_mass[b, t] = mass / bucket_size if bucket_size > 0 else 0.0

            # subtract the number of excluded classes, which is exact, instead of their mass
            total += class_mass[b, t] * (bucket_size - num_excluded)
            cumulative_mass[b, t] = total


@njit
def _bucket_range(
    tables: _HashTables, mixture: _BucketMixture, b: int, t: int
) -> tuple[int, int, int]:
    """Return, for the bucket of context b in table t: start, size and number of excluded classes.

    The start is an index in ``tables.members[t]``. The number of excluded classes, which draws must
    skip, is 0 or 1.
    """
    code = mixture.codes[b, t]
    excluded = mixture.exclude[b]
    start = tables.offsets[t, code]
    stop = tables.offsets[t, code + 1]
    num_excluded = 1 if excluded >= 0 and tables.codes[excluded, t] == code else 0
    return start, stop - start, num_excluded


@njit
def _draw_classes(
    tables: _HashTables, mixture: _BucketMixture, key: np.uint64, first_context: int, ids: IntArray
) -> None:
    """Write draws to `ids` (B, m); row b uses the stream of context ``first_context + b``."""
    for b in range(len(ids)):
        stream = mix64(key, np.uint64(first_context + b))
        cumulative_mass = mixture.cumulative_mass[b]

        for k in range(ids.shape[1]):
            # with side="right", a target that equals the end of a bucket draws from the next bucket
            # with a positive mass
            target = uniform(stream, np.uint64(2 * k)) * cumulative_mass[-1]
            t = min(
                np.searchsorted(cumulative_mass, target, side="right"), len(cumulative_mass) - 1
            )

            start, bucket_size, num_excluded = _bucket_range(tables, mixture, b, t)
            slot = start + int(uniform(stream, np.uint64(2 * k + 1)) * (bucket_size - num_excluded))
            # the slots of a bucket are sorted by class: from the excluded class on, take the next
            # slot
            if num_excluded and tables.members[t, slot] >= mixture.exclude[b]:
                slot += 1

            ids[b, k] = tables.members[t, slot]


@njit_sum
def _write_log_q(
    tables: _HashTables, mixture: _BucketMixture, ids: IntArray, log_q: FloatArray
) -> None:
    """Write the log-probabilities of classes `ids` (B, k) to `log_q`; excluded classes get -inf."""
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
    """Write the probabilities of all classes to `q` (B, n), which must be 0 initially."""
    for b in range(len(q)):
        for t in range(len(tables.offsets)):
            start, bucket_size, _ = _bucket_range(tables, mixture, b, t)
            for slot in range(start, start + bucket_size):
                q[b, tables.members[t, slot]] += (
                    mixture.class_mass[b, t] / mixture.cumulative_mass[b, -1]
                )

        if mixture.exclude[b] >= 0:
            q[b, mixture.exclude[b]] = 0.0
