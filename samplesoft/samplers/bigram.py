"""The bigram sampler: draws by counts after the previous state, mixed with overall counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit, row_chunks, thread_for_each
from samplesoft._random import mix64, stream_key, uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array_dict,
    as_count,
    as_counts,
    as_csr,
    as_fraction,
    as_ids,
    as_positive,
    as_real_array,
    scale_by_power_of_two,
)
from samplesoft.samplers.base import Draw, Rows, Sampler, as_sampler
from samplesoft.samplers.frequency import unigram_weights

_TASK_DRAWS = 1 << 14  # number of draws in one task of a thread
# largest allowed ratio of the largest count to the smallest positive count; the product of two such
# ratios is finite
_MAX_COUNT_RATIO = 1e100


class _CountTable(NamedTuple):
    """Counts of the classes that follow each of S states, as a sparse matrix with a row per state.

    An additional last row, number S, holds the unigram: a weight for each class by its count over
    all states. Row s has the classes ``ids[offsets[s] : offsets[s + 1]]``, in increasing order, and
    the counts at the same indices of `counts`. To leave one class out of the sum of a row, a prefix
    sum and a suffix sum are added, so that nothing is subtracted.
    """

    offsets: IntArray  # (S + 2,): start of each row, and the final end
    ids: IntArray  # (N,): classes of all rows
    counts: FloatArray  # (N,)
    prefix_sums: FloatArray  # (N,): sum from the start of the row to this entry, inclusive
    suffix_sums: FloatArray  # (N,): sum from this entry, inclusive, to the end of the row
    mixture_weights: FloatArray  # (S, 2): weights of bigram and unigram in q


class BigramSampler(Sampler):
    r"""Draw classes by how often they followed the current state, such as the previous word.

    With the count :math:`c(s, w)` of class w after state s, and the unigram :math:`u`,

    .. math:: q(w \mid s) = \lambda_s \frac{c(s, w)}{c(s)} + (1 - \lambda_s)\, u(w), \qquad
        \lambda_s = \frac{c(s)}{c(s) + d(s)},

    where d(s) is the number of different classes that followed s [2]_. A state that was followed
    by many different classes thus gives more weight to the unigram. In the weights, counts are
    divided by the smallest positive count. For a state that was never seen, q is the unigram.

    Parameters
    ----------
    counts : scipy sparse matrix, shape (S, n)
        Count of each class after each state, in any unit: at least 0, not all 0, with a largest
        count of at most 1e100 times the smallest positive one.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **States instead of vectors.** The contexts `h` are indices of states, integers of shape (B,). A
    `SoftmaxLayer` does not support states; draw explicitly, and pass the draws to the loss, as in
    the example. If a batch shares one set of draws, the set comes from the mean of the
    distributions of its states.

    **q is exact**, and so is exclusion: the excluded class is removed from the bigram and from the
    unigram, and the remaining masses are sums of positive numbers. A draw costs O(log n).

    **When to use it.** Use it if the state is known, and vectors are expensive or not trained yet.
    In a language model of the Penn Treebank its bias was half the bias of the unigram, and five
    times the bias of `ClusterSampler`. The page of benchmarks has the measurements.

    Bengio and Senécal [1]_ adapt the bigrams to the model during training, as the method `adapt`
    does. Counts are good from the start, and adaptation gains little for a trained model.

    **The mixture weights** need no held-out text. They are as good as weights that expectation
    maximisation fits on held-out text.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.
    .. [2] I. Witten and T. Bell, "The zero-frequency problem", IEEE Transactions on Information
       Theory, 1991: method C.

    Examples
    --------
    >>> from scipy import sparse
    >>> words = np.array([0, 1, 2, 0, 1, 0, 2])  # a text, as word indices
    >>> pairs = (np.ones(6), (words[:-1], words[1:]))
    >>> sampler = BigramSampler(sparse.coo_array(pairs, shape=(3, 3)))
    >>> sampler.probs([0, 2]).round(3)
    array([[0.133, 0.533, 0.333],
           [0.667, 0.167, 0.167]])

    In a training step, draws depend on the previous words:

    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> h, class_embeddings, before, labels = np.eye(2), np.ones((3, 2)), [0, 1], [1, 2]
    >>> draw = sampler.sample(before, 4, exclude=labels, rng=0)
    >>> value, cache = SampledSoftmaxLoss().forward(h, class_embeddings, labels, draw)
    """

    def __init__(self, counts: Any) -> None:
        matrix = as_csr("counts", counts)  # a copy, which is modified below
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        if not matrix.nnz or not (np.isfinite(matrix.data).all() and matrix.data.min() > 0.0):
            got = f"numbers from {matrix.data.min()}" if matrix.nnz else "none above 0"
            raise ValueError(
                f"`counts` must be finite and at least 0, and some greater, got {got}; count how "
                "often each class follows each state."
            )

        self.num_states, n = matrix.shape
        super().__init__(n)
        values = scale_by_power_of_two(matrix.data)
        if values.max() > _MAX_COUNT_RATIO * values.min():
            raise ValueError(
                f"`counts` must be at most {_MAX_COUNT_RATIO:g} times the smallest above 0, "
                "got numbers from "
                f"{matrix.data.min()} to {matrix.data.max()}; set the smallest to 0."
            )
        matrix.data = values

        class_counts: FloatArray = np.bincount(matrix.indices, values, n).astype(np.float64)
        unigram = unigram_weights(class_counts, 1.0)
        offsets = np.append(matrix.indptr.astype(np.int64), len(values) + n)
        ids = np.concatenate([matrix.indices.astype(np.int64), np.arange(n)])
        values = np.concatenate([values, unigram])
        prefix_sums = np.empty_like(values)
        suffix_sums = np.empty_like(values)

        # number of observations of each state, where the smallest count is taken as one observation
        totals = np.asarray(matrix.sum(axis=1)).reshape(-1) / matrix.data.min()
        pseudo_counts = np.column_stack([totals, np.diff(matrix.indptr)])

        # a state that was never seen gives all weight to the unigram
        pseudo_counts[pseudo_counts[:, 1] == 0, 1] = 1.0
        # both weights are stored, because 1 - weight would lose digits
        mixture_weights = pseudo_counts / pseudo_counts.sum(axis=1, keepdims=True)

        self._table = _CountTable(offsets, ids, values, prefix_sums, suffix_sums, mixture_weights)
        self._update_cumulative_sums(np.arange(self.num_states + 1))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the counts of all bigrams, which `adapt` changes, under the key "counts"."""
        return {"counts": self._bigram_counts.copy()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the counts that `state` returned for a sampler with the same bigrams."""
        if set(as_array_dict("state", state)) != {"counts"}:
            raise ValueError(f"`state` must hold counts, got {', '.join(state) or 'nothing'}.")

        counts = as_counts("state['counts']", state["counts"])
        if counts.shape != self._bigram_counts.shape:
            raise ValueError(
                f"`state` must be of {len(self._bigram_counts)} bigrams, got {len(counts)}; it is "
                "that of another sampler."
            )

        self._bigram_counts[:] = counts
        self._update_cumulative_sums(np.arange(self.num_states))

    @property
    def _bigram_counts(self) -> FloatArray:
        """A view of the counts of the bigrams, without the unigram."""
        return self._table.counts[: self._table.offsets[self.num_states]]

    def _update_cumulative_sums(self, states: IntArray) -> None:
        """Recompute the prefix and suffix sums of the rows `states`; row S is the unigram."""
        table = self._table
        _write_cumulative_sums(
            table.offsets, table.counts, table.prefix_sums, table.suffix_sums, states
        )

    def adapt(self, h: ArrayLike, ids: Any, scores: ArrayLike, *, rate: float = 0.01) -> None:
        r"""Move the bigram counts of drawn classes towards the model, after a training step.

        Let A be the distinct classes that were drawn for an example in state s and have a bigram
        count after s. A fraction r of their counts is redistributed in proportion to the softmax of
        their logits o,

        .. math:: c(s, w) \leftarrow (1 - r)\, c(s, w) + r\, c(s, A)\,
            \frac{e^{o_w}}{\sum_{v \in A} e^{o_v}}, \qquad w \in A,

        where r is the rate. The sum of the counts over A does not change.

        Parameters
        ----------
        h : array_like of int, shape (B,)
            Indices of states.
        ids : array_like of int, shape (B, m) or (1, m)
            Classes, such as `Draw.ids` and the label. If a class is repeated, its first logit
            counts.
        scores : array_like, shape (B, m)
            Logits o of these classes in the model.
        rate : float
            Fraction r of the counts that is redistributed, from 0 (no change) to 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.

        Notes
        -----
        **The formula is ours**, in the spirit of [1]_. Examples are processed in order, each with
        the counts that the previous example has left. The counts of a state thus follow an average
        of the model over about the last 1 / r examples with this state. Counts that are in
        proportion to the probabilities of the model stay so on average.

        **What does not change**: the weights of bigrams and unigram in q, the unigram, and the set
        of bigrams. A class that has never followed a state is still drawn from the unigram only.
        The ``log_q`` of an earlier draw stays valid, because it is the probability at the time of
        the draw.

        **The gain is small.** For a trained language model, a pass over the text at a rate of 0.01
        reduced the bias by 2%. The counts of the training text already describe the average
        prediction of the model after a word. The bias comes mostly from classes that never followed
        the word, which are not adapted. The page of benchmarks has the measurements.

        References
        ----------
        .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of
           a neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.

        Examples
        --------
        Class 0 was followed by class 1 twice and by class 2 twice; the model now prefers class 2:

        >>> from scipy import sparse
        >>> sampler = BigramSampler(sparse.csr_array([[0, 2, 2], [1, 1, 0]]))
        >>> sampler.probs([0]).round(3)
        array([[0.056, 0.5  , 0.444]])
        >>> sampler.adapt([0], [[2, 1, 2]], [[1.0, 0.0, 1.0]], rate=0.5)
        >>> sampler.probs([0]).round(3)
        array([[0.056, 0.423, 0.521]])
        """
        states = self._checked_contexts(h)
        classes = as_ids("ids", ids, self.num_classes, len(states))
        o = as_real_array("scores", scores, (2,))
        fraction = as_fraction("rate", rate)

        if o.shape != classes.shape:
            raise ValueError(
                f"`scores` must have the shape of `ids`, {classes.shape}, got {o.shape}; pass one "
                "logit for each class."
            )

        order = np.argsort(classes, axis=1, kind="stable")
        classes = np.take_along_axis(classes, order, axis=1)
        o = np.take_along_axis(o, order, axis=1)
        _move_towards_softmax(self._table, states, classes, o, fraction)
        self._update_cumulative_sums(np.unique(states))

    def _checked_arguments(
        self, h: ArrayLike | None, exclude: Any, shared: bool
    ) -> tuple[Rows, IntArray, FloatArray | None]:
        if h is None:  # the base class allows None for a sampler without vectors
            raise TypeError("`h` must contain indices of states, integers of shape (B,), got None.")
        return super()._checked_arguments(h, exclude, shared)

    def _checked_contexts(self, h: ArrayLike | None) -> Rows:
        states = as_ids("h", h, self.num_states, of="states")
        if not len(states):
            raise ValueError("`h` must contain at least one index of a state, got none.")
        return states

    def _representatives(self, h: Rows) -> tuple[Rows, FloatArray]:
        states, counts = np.unique(h, return_counts=True)
        return states, counts / len(h)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        ids = np.empty((len(h), m), np.int64)
        log_q = np.empty((len(h), m))
        uniforms = uniform_block(key, len(h), m)

        def draw_chunk(chunk: slice) -> None:
            _draw_classes(self._table, h[chunk], exclude[chunk], uniforms[chunk], ids[chunk])
            _write_log_q(self._table, h[chunk], exclude[chunk], ids[chunk], log_q[chunk])

        thread_for_each(draw_chunk, row_chunks(ids.shape, _TASK_DRAWS))
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = np.empty((len(h), ids.shape[1]))
        _write_log_q(self._table, h, exclude, ids, log_q)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        all_classes = np.broadcast_to(np.arange(self.num_classes), (len(h), self.num_classes))
        return np.exp(self._log_prob(h, all_classes, exclude))


def effective_sample_size(scores: ArrayLike, log_q: ArrayLike) -> FloatArray:
    r"""Return the effective sample size of the importance-weighted draws of each example.

    The effective sample size :math:`(\sum_i w_i)^2 / \sum_i w_i^2`, with the importance weights
    :math:`w = e^o / q`, is the number of draws from the softmax itself that would be as good. It is
    m if q is the softmax, and 1 if one draw outweighs all others.

    Parameters
    ----------
    scores : array_like, shape (B, m)
        Logits o of the drawn classes.
    log_q : array_like, shape (B, m) or (1, m)
        Log-probabilities of the draws, up to a constant: ``draw.log_q``.

    Returns
    -------
    ndarray of float64, shape (B,)
        Effective sample sizes, each from 1 to m.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    `sample_until` draws until the effective sample size is large enough.

    References
    ----------
    A. Kong, J. S. Liu and W. H. Wong, "Sequential imputations and Bayesian missing data problems",
    JASA 1994.

    Examples
    --------
    >>> effective_sample_size([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]], [[-1.0, -1.0, -1.0]]).round(3)
    array([3., 1.])
    """
    o = as_real_array("scores", scores, (2,))
    logs = as_real_array("log_q", log_q, (2,))
    if 0 in o.shape or logs.shape not in (o.shape, (1, o.shape[1])):
        raise ValueError(
            f"`log_q` must have the shape of `scores`, (B, m), or (1, m), got {logs.shape} for "
            f"{o.shape}; neither may be empty."
        )

    x = o - logs
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    sizes: FloatArray = weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)
    return sizes


def sample_until(
    sampler: Sampler,
    h: ArrayLike | None,
    score: Callable[[IntArray], ArrayLike],
    least: float,
    *,
    block: int = 32,
    most: int = 1024,
    exclude: Any = None,
    rng: int | np.random.Generator | None = None,
) -> Draw:
    """Draw in blocks until the effective sample size of each example is large enough.

    Parameters
    ----------
    sampler : Sampler
        Sampler with replacement.
    h : array_like, shape (B, d) or (d,), or None
        Contexts, as in ``sampler.sample``.
    score : callable
        ``score(ids)`` returns the logits (B, k) of the drawn classes ``ids`` (B, k) of one block.
    least : float
        Smallest sufficient `effective_sample_size`, greater than 0 and at most `most`.
    block : int
        Number of draws for each example in a block.
    most : int
        Maximum number of draws for each example; the last block has fewer draws if necessary.
    exclude : int or array_like of int, shape (B,), optional
        One class for each context, such as its label, that is never drawn.
    rng : int or numpy.random.Generator or None
        Seed of the draws. Each block has a separate random stream.

    Returns
    -------
    Draw
        ``ids`` and ``log_q`` (B, m). All examples have the same m.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, draws are without replacement, or `score` returns no logits.

    Notes
    -----
    This rule of Bengio and Senécal [1]_ controls the variance. But it adds bias, because the number
    of draws depends on the draws: nearly equal weights end the loop, and so it ends early if no
    rare class is drawn. The estimated sum is then too small if the weights of rare classes are
    large, and too large if these weights are small.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.

    Examples
    --------
    Draw until each of two examples has an effective sample size of at least 20, or 64 draws:

    >>> from samplesoft.samplers import UniformSampler
    >>> sampler, h = UniformSampler(50), np.ones((2, 1))
    >>> logits = np.linspace([0.0, 0.0], [2.0, 4.0], 50).T
    >>> def score(ids):
    ...     return np.take_along_axis(logits, ids, axis=1)
    >>> draw = sample_until(sampler, h, score, 20.0, block=8, most=64, rng=0)
    >>> draw.ids.shape, effective_sample_size(score(draw.ids), draw.log_q).round(1)
    ((2, 48), array([36.4, 20.2]))
    """
    as_sampler("sampler", sampler)
    block = as_count("block", block)
    most = as_count("most", most)
    key = stream_key(rng)
    if as_positive("least", least) > most:
        raise ValueError(
            f"`least` must be at most `most`, {most}, the effective size of so many draws from "
            f"the softmax itself, got {least}; raise `most`."
        )

    blocks: list[tuple[IntArray, FloatArray, FloatArray]] = []
    num_drawn = 0
    min_sample_size = 0.0

    while num_drawn < most and min_sample_size < least:
        seed = int(mix64(key, np.uint64(len(blocks))))
        m = min(block, most - num_drawn)
        draw = sampler.sample(h, m, exclude=exclude, rng=seed).to_host()
        if draw.log_inclusion is not None:
            raise ValueError(
                "`sampler` must draw with replacement, got draws with probabilities of inclusion, "
                "which hold for one block; make it with replace=True."
            )

        scores = as_real_array("score", score(draw.ids), (2,))
        if scores.shape != draw.ids.shape:
            raise ValueError(
                f"`score` must return logits of shape {draw.ids.shape}, one for each class that "
                f"it is given, got {scores.shape}."
            )

        blocks.append((draw.ids, draw.log_q, scores))
        ids, log_q, logits = map(np.hstack, zip(*blocks, strict=True))
        num_drawn += m
        min_sample_size = effective_sample_size(logits, log_q).min()

    return Draw(ids, log_q)


@njit
def _write_cumulative_sums(
    offsets: IntArray,
    counts: FloatArray,
    prefix_sums: FloatArray,
    suffix_sums: FloatArray,
    states: IntArray,
) -> None:
    """Write the prefix and suffix sums of the counts of `states`; see `_CountTable`."""
    for s in states:
        total = 0.0
        for k in range(offsets[s], offsets[s + 1]):
            total += counts[k]
            prefix_sums[k] = total

        total = 0.0
        for k in range(offsets[s + 1] - 1, offsets[s] - 1, -1):
            total += counts[k]
            suffix_sums[k] = total


@njit
def _move_towards_softmax(
    table: _CountTable, states: IntArray, ids: IntArray, scores: FloatArray, rate: float
) -> None:
    """Move the counts of classes towards the softmax of their scores, in place; see `adapt`.

    The classes `ids` (B, k) are sorted in each row, so that repeated classes are adjacent. `scores`
    (B, k) are their logits. `states` (B,) are the states of the examples.
    """
    counts = table.counts
    indices = np.empty(ids.shape[1], np.int64)

    for b in range(len(states)):
        max_score = -np.inf
        mass = 0.0
        total = 0.0

        for k in range(len(indices)):
            is_repeat = k > 0 and ids[b, k] == ids[b, k - 1]
            indices[k] = -1 if is_repeat else _index_in_row(table, states[b], ids[b, k])
            if indices[k] >= 0:
                max_score = max(max_score, scores[b, k])
                mass += counts[indices[k]]

        for k in range(len(indices)):
            total += math.exp(scores[b, k] - max_score) if indices[k] >= 0 else 0.0

        for k in range(len(indices)):
            if indices[k] >= 0:
                prob = math.exp(scores[b, k] - max_score) / total
                counts[indices[k]] = (1.0 - rate) * counts[indices[k]] + rate * prob * mass


@njit
def _index_in_row(table: _CountTable, s: int, j: int) -> int:
    """Return the index of class j of row s in `table.ids`, by binary search; -1 if it is absent."""
    low = table.offsets[s]
    high = table.offsets[s + 1]
    while low < high:
        middle = (low + high) // 2
        if table.ids[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low if low < table.offsets[s + 1] and table.ids[low] == j else -1


@njit
def _row_sums(table: _CountTable, s: int, excluded: int) -> tuple[float, float, int]:
    """Return the sum of row s, the sum without the class `excluded`, and the index of that class.

    The index, in `table.ids`, is -1 if the class is not in the row. If `excluded` is negative, no
    class is excluded.
    """
    start = table.offsets[s]
    stop = table.offsets[s + 1]
    if start == stop:
        return 0.0, 0.0, -1

    total = table.prefix_sums[stop - 1]

    index = _index_in_row(table, s, excluded) if excluded >= 0 else -1
    if index < 0:
        return total, total, -1
    sum_before = table.prefix_sums[index - 1] if index > start else 0.0
    sum_after = table.suffix_sums[index + 1] if index + 1 < stop else 0.0
    return total, sum_before + sum_after, index


@njit
def _masses_and_mass_per_count(
    table: _CountTable, s: int, excluded: int
) -> tuple[float, float, float, float]:
    """Return the masses of the bigram and of the unigram in q, and the mass per count in each.

    The masses are those of state s, without the class `excluded`. A class with count a in the
    bigram and count b in the unigram has the mass ``a * mass_per_bigram + b * mass_per_unigram``.
    """
    bigram_weight, unigram_weight = table.mixture_weights[s]
    bigram_sum, remaining_bigram_sum, _ = _row_sums(table, s, excluded)
    unigram_sum, remaining_unigram_sum, _ = _row_sums(table, len(table.mixture_weights), excluded)

    mass_per_bigram = bigram_weight / bigram_sum if bigram_sum > 0.0 else 0.0
    mass_per_unigram = unigram_weight / unigram_sum

    return (
        remaining_bigram_sum * mass_per_bigram,
        remaining_unigram_sum * mass_per_unigram,
        mass_per_bigram,
        mass_per_unigram,
    )


@njit
def _draw_from_row(table: _CountTable, s: int, excluded: int, u: float) -> int:
    """Return a class of row s, drawn by inversion of the uniform u, but never class `excluded`."""
    _, remaining_sum, index = _row_sums(table, s, excluded)
    start = table.offsets[s]
    stop = table.offsets[s + 1]

    target = u * remaining_sum
    if index >= 0:
        sum_before = table.prefix_sums[index - 1] if index > start else 0.0
        if target < sum_before:
            stop = index
        else:
            target += table.prefix_sums[index] - sum_before
            start = index + 1

    low = start
    # if rounding moves the target beyond the sum of the row, the last class is drawn
    high = stop - 1
    while low < high:
        middle = (low + high) // 2
        if table.prefix_sums[middle] > target:
            high = middle
        else:
            low = middle + 1

    return int(table.ids[low])


@njit
def _draw_classes(
    table: _CountTable, states: IntArray, exclude: IntArray, uniforms: FloatArray, ids: IntArray
) -> None:
    """Write classes drawn after `states` (B,) by inversion of `uniforms` (B, m) to `ids` (B, m)."""
    for b in range(len(states)):
        s = states[b]
        bigram_mass, unigram_mass, _, _ = _masses_and_mass_per_count(table, s, exclude[b])

        for k in range(ids.shape[1]):
            target = uniforms[b, k] * (bigram_mass + unigram_mass)
            if target < bigram_mass:
                ids[b, k] = _draw_from_row(table, s, exclude[b], target / bigram_mass)
            else:
                unigram_state = len(table.mixture_weights)
                ids[b, k] = _draw_from_row(
                    table, unigram_state, exclude[b], (target - bigram_mass) / unigram_mass
                )


@njit
def _write_log_q(
    table: _CountTable, states: IntArray, exclude: IntArray, ids: IntArray, log_q: FloatArray
) -> None:
    """Write the log-probabilities of classes `ids` (B, k) to `log_q`, -inf for excluded classes."""
    unigram = table.counts[table.offsets[len(table.mixture_weights)] :]

    for b in range(len(states)):
        s = states[b]
        bigram_mass, unigram_mass, mass_per_bigram, mass_per_unigram = _masses_and_mass_per_count(
            table, s, exclude[b]
        )

        for k in range(ids.shape[1]):
            j = ids[b, k]
            index = _index_in_row(table, s, j)
            mass = unigram[j] * mass_per_unigram
            mass += table.counts[index] * mass_per_bigram if index >= 0 else 0.0

            if j == exclude[b]:
                log_q[b, k] = -np.inf
            else:
                log_q[b, k] = math.log(mass) - math.log(bigram_mass + unigram_mass)
