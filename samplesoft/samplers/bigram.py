"""Classes by what came before: bigrams, smoothed by how often classes occur at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import njit, row_chunks, thread_each
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_counts,
    as_csr,
    as_ids,
    as_named_arrays,
    as_positive,
    as_real_array,
    as_share,
    scale_by_power_of_two,
)
from samplesoft.samplers.base import Draw, Rows, Sampler, as_sampler
from samplesoft.samplers.frequency import unigram_weights

_TASK_DRAWS = 1 << 14  # in one task of a thread
_LARGEST_COUNT_RATIO = 1e100  # ratio of counts: products of two such stay within float64


class _Table(NamedTuple):
    """Classes that followed each state, and all classes as one state more.

    Of state s they are ``ids[starts[s] : starts[s + 1]]``, rising, with the sums of counts up to
    each in `below`, and from each on in `above`, so that a sum without one is of positive numbers.
    """

    starts: IntArray  # (S + 2,)
    ids: IntArray
    counts: FloatArray
    below: FloatArray
    above: FloatArray
    shares: FloatArray  # (S, 2): of the bigrams in the mixture, and of the unigram


class BigramSampler(Sampler):
    r"""Classes by the state that they follow, such as the previous word.

    With the count :math:`c(s, w)` of class w after state s, and the unigram :math:`u`,

    .. math:: q(w \mid s) = \lambda_s \frac{c(s, w)}{c(s)} + (1 - \lambda_s)\, u(w), \qquad
        \lambda_s = \frac{c(s)}{c(s) + d(s)},

    where d(s) is the number of different classes that followed s [2]_: a state with many of them
    leaves room for others. The unit of c in this is its least count above 0. After a state that was
    never seen, q is the unigram.

    Parameters
    ----------
    counts : scipy sparse matrix, shape (S, n)
        How often each class followed each state, in any unit: at least 0, not all 0, and of those
        above 0 the greatest at most 1e100 times the least.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **States in place of vectors.** What other samplers call contexts `h` are numbers of states
    here, integers of shape (B,). A `SoftmaxLayer` knows none; draw by hand, and give the draws to
    the loss, as below. One set for a batch is from the mean over its states.

    **q is exact**, and so is exclusion: a label is left out of both parts of the mixture, whose
    masses without it are sums of positive numbers. A draw costs O(log n).

    **When to use it.** Where the state is known and vectors are dear, or not trained yet. On text
    the bias is half of that with the unigram, and five times that with `ClusterSampler`: measured
    in docs/benchmarks.md, section "Bigrams".

    [1]_ adapts the bigrams to the model while it is trained, as `adapt` does here. Counts are good
    from the start, and of a trained model little is left to gain.

    **Shares of the bigrams** need no held-out text: expectation maximisation on some came to no
    lower perplexity of q than the shares above.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.
    .. [2] I. Witten and T. Bell, "The zero-frequency problem", IEEE Transactions on Information
       Theory, 1991: method C.

    Examples
    --------
    >>> from scipy import sparse
    >>> words = np.array([0, 1, 2, 0, 1, 0, 2])  # of a text
    >>> pairs = (np.ones(6), (words[:-1], words[1:]))
    >>> sampler = BigramSampler(sparse.coo_array(pairs, shape=(3, 3)))
    >>> sampler.probs([0, 2]).round(3)
    array([[0.133, 0.533, 0.333],
           [0.667, 0.167, 0.167]])

    In a step of training, draws are made by the words before:

    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> h, class_embeddings, before, labels = np.eye(2), np.ones((3, 2)), [0, 1], [1, 2]
    >>> draw = sampler.sample(before, 4, exclude=labels, rng=0)
    >>> value, cache = SampledSoftmaxLoss().forward(h, class_embeddings, labels, draw)
    """

    def __init__(self, counts: Any) -> None:
        matrix = as_csr("counts", counts)  # a copy
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
        if values.max() > _LARGEST_COUNT_RATIO * values.min():
            raise ValueError(
                f"`counts` must be at most {_LARGEST_COUNT_RATIO:g} times the least above 0, "
                "got numbers from "
                f"{matrix.data.min()} to {matrix.data.max()}; set the smallest to 0."
            )
        matrix.data = values
        of_classes: FloatArray = np.bincount(matrix.indices, values, n).astype(np.float64)
        unigram = unigram_weights(of_classes, 1.0)
        starts = np.append(matrix.indptr.astype(np.int64), len(values) + n)
        ids = np.concatenate([matrix.indices.astype(np.int64), np.arange(n)])
        values = np.concatenate([values, unigram])
        below = np.empty_like(values)
        above = np.empty_like(values)
        # by numbers of observations, whatever the unit is: the least count is taken for one
        totals = np.asarray(matrix.sum(axis=1)).reshape(-1) / matrix.data.min()
        seen = np.column_stack([totals, np.diff(matrix.indptr)])
        seen[seen[:, 1] == 0, 1] = 1.0  # of a state that was never seen all is of the unigram
        shares = seen / seen.sum(axis=1, keepdims=True)  # both, for 1 - share may have no digits
        self._table = _Table(starts, ids, values, below, above, shares)
        self._sum(np.arange(self.num_states + 1))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the counts of the bigrams, which `adapt` moves."""
        return {"counts": self._bigrams.copy()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the counts of a `state`, of a sampler made of the same bigrams."""
        if set(as_named_arrays("state", state)) != {"counts"}:
            raise ValueError(f"`state` must hold counts, got {', '.join(state) or 'nothing'}.")
        counts = as_counts("state['counts']", state["counts"])
        if counts.shape != self._bigrams.shape:
            raise ValueError(
                f"`state` must be of {len(self._bigrams)} bigrams, got {len(counts)}; it is that "
                "of another sampler."
            )
        self._bigrams[:] = counts
        self._sum(np.arange(self.num_states))

    @property
    def _bigrams(self) -> FloatArray:
        """The counts without those of the unigram, to be written to."""
        return self._table.counts[: self._table.starts[self.num_states]]

    def _sum(self, states: IntArray) -> None:
        """Add up the counts of states anew; the unigram is the one after the last."""
        table = self._table
        _add_up(table.starts, table.counts, table.below, table.above, states)

    def adapt(self, h: ArrayLike, ids: Any, scores: ArrayLike, *, rate: float = 0.01) -> None:
        r"""Move the bigrams of drawn classes towards the model, as after a step of training.

        Let A be the distinct classes that were drawn for an example in state s, of those that have
        ever followed s. Their part of the bigram's mass goes to the softmax of their logits o,

        .. math:: c(s, w) \leftarrow (1 - r)\, c(s, w) + r\, c(s, A)\,
            \frac{e^{o_w}}{\sum_{v \in A} e^{o_v}}, \qquad w \in A,

        with the rate r. The sum over A stays what it was.

        Parameters
        ----------
        h : array_like of int, shape (B,)
            Numbers of states.
        ids : array_like of int, shape (B, m) or (1, m)
            Classes, such as `Draw.ids` and the label. Of those that come twice the first counts.
        scores : array_like, shape (B, m)
            Their logits o by the model.
        rate : float
            From 0, which changes nothing, to 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.

        Notes
        -----
        **The formula is ours**, in the spirit of [1]_. Examples are taken in their order, each with
        the counts that the last one has left; logits of contexts that share a state are averaged so
        over about 1 / r examples. Bigrams that are in proportion to the model stay so in the mean.

        **What stays**: the shares of bigrams and unigram in q, the unigram, and the set of bigrams.
        A class that has never followed a state has none there, and gets none: it goes on to be
        drawn by the unigram. Draws that were made before keep their ``log_q``, which is that of
        the sampler at the time.

        **What it brings** is little, a fiftieth of the bias of a trained model of text: counts of
        the text that a model learns already say what it does on average after a word, and the
        classes that never followed it, which adapt to nothing, make most of the bias. Measured in
        docs/benchmarks.md, section "Bigrams".

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
        states = self._check_contexts(h)
        drawn = as_ids("ids", ids, self.num_classes, len(states))
        o = as_real_array("scores", scores, (2,))
        share = as_share("rate", rate)
        if o.shape != drawn.shape:
            raise ValueError(
                f"`scores` must have the shape of `ids`, {drawn.shape}, got {o.shape}; give one "
                "logit for each class."
            )
        order = np.argsort(drawn, axis=1, kind="stable")
        drawn = np.take_along_axis(drawn, order, axis=1)
        o = np.take_along_axis(o, order, axis=1)
        _move(self._table, states, drawn, o, share)
        self._sum(np.unique(states))

    def _check(
        self, h: ArrayLike | None, exclude: Any, shared: bool
    ) -> tuple[Rows, IntArray, FloatArray | None]:
        if h is None:  # which a sampler without a dimension takes else
            raise TypeError("`h` must hold numbers of states, integers of shape (B,), got None.")
        return super()._check(h, exclude, shared)

    def _check_contexts(self, h: ArrayLike | None) -> Rows:
        states = as_ids("h", h, self.num_states, of="states")
        if not len(states):
            raise ValueError("`h` must hold the number of a state at least, got none.")
        return states

    def _pool(self, h: Rows) -> tuple[Rows, FloatArray]:
        states, counts = np.unique(h, return_counts=True)
        return states, counts / len(h)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        ids = np.empty((len(h), m), np.int64)
        log_q = np.empty((len(h), m))
        uniforms = uniform_block(key, len(h), m)

        def draw(part: slice) -> None:
            _draw(self._table, h[part], exclude[part], uniforms[part], ids[part])
            _write_log_q(self._table, h[part], exclude[part], ids[part], log_q[part])

        thread_each(draw, row_chunks(ids.shape, _TASK_DRAWS))
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = np.empty((len(h), ids.shape[1]))
        _write_log_q(self._table, h, exclude, ids, log_q)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        every = np.broadcast_to(np.arange(self.num_classes), (len(h), self.num_classes))
        return np.exp(self._log_prob(h, every, exclude))


def effective_sample_size(scores: ArrayLike, log_q: ArrayLike) -> FloatArray:
    r"""Return how many draws from the softmax the weighted draws of each example are worth.

    It is :math:`(\sum_i w_i)^2 / \sum_i w_i^2` for the weights :math:`w = e^o / q` of the draws:
    m where q is the softmax, and 1 where one draw outweighs all others.

    Parameters
    ----------
    scores : array_like, shape (B, m)
        Logits o of the drawn classes.
    log_q : array_like, shape (B, m) or (1, m)
        Logarithms of their probabilities in a draw, up to a constant: ``draw.log_q``.

    Returns
    -------
    ndarray of float64, shape (B,)
        Effective sample sizes, from 1 to m.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    `sample_until` draws until it is large enough.

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
    """Draw in blocks, until the draws of each example are worth enough of the softmax.

    Parameters
    ----------
    sampler : Sampler
        What to draw from, with replacement.
    h : array_like, shape (B, d) or (d,), or None
        Contexts, or what else ``sampler.sample`` takes for them.
    score : callable
        ``score(ids)`` returns the logits (B, k) of classes (B, k), a block of draws.
    least : float
        `effective_sample_size` that is enough, greater than 0 and at most `most`.
    block : int
        Draws of each example in a block.
    most : int
        Draws of each example after which it ends in any case; it cuts the last block short.
    exclude : int or array_like of int, shape (B,), optional
        A class for each context that is never drawn, such as its label.
    rng : int or numpy.random.Generator or None
        Seed of the draws. Each block has a stream of its own.

    Returns
    -------
    Draw
        ``ids`` and ``log_q`` (B, m). All examples have as many draws as the last one needs.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, draws are without replacement, or `score` returns no logits.

    Notes
    -----
    A rule of Bengio and Senécal [1]_, and a good one for the variance; but a number of draws that
    depends on the draws is a bias more. Even weights end it, early where no rare one is among them:
    the estimated sum comes out too small where the rare weights are great, and too large where they
    are small.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.

    Examples
    --------
    Draws that are worth 20 of the softmax for each of two examples, or 64 draws:

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
    key = as_key(rng)
    if as_positive("least", least) > most:
        raise ValueError(
            f"`least` must be at most `most`, {most}, which so many draws of the softmax itself "
            f"are worth, got {least}; raise `most`."
        )
    blocks: list[tuple[IntArray, FloatArray, FloatArray]] = []
    drawn = 0
    worth = 0.0
    while drawn < most and worth < least:
        seed = int(mix64(key, np.uint64(len(blocks))))
        m = min(block, most - drawn)
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
        drawn += m
        worth = effective_sample_size(logits, log_q).min()
    return Draw(ids, log_q)


@njit
def _add_up(
    starts: IntArray, counts: FloatArray, below: FloatArray, above: FloatArray, states: IntArray
) -> None:
    """Write, in rows of states, the sums of counts up to each and from each on, both with it."""
    for s in states:
        total = 0.0
        for k in range(starts[s], starts[s + 1]):
            total += counts[k]
            below[k] = total
        total = 0.0
        for k in range(starts[s + 1] - 1, starts[s] - 1, -1):
            total += counts[k]
            above[k] = total


@njit
def _move(table: _Table, states: IntArray, ids: IntArray, scores: FloatArray, rate: float) -> None:
    """Move counts of classes (B, k), which rise in a row, towards the softmax of their scores."""
    counts = table.counts
    places = np.empty(ids.shape[1], np.int64)
    for b in range(len(states)):
        greatest = -np.inf
        mass = 0.0
        total = 0.0
        for k in range(len(places)):
            again = k > 0 and ids[b, k] == ids[b, k - 1]
            places[k] = -1 if again else _find(table, states[b], ids[b, k])
            if places[k] >= 0:
                greatest = max(greatest, scores[b, k])
                mass += counts[places[k]]
        for k in range(len(places)):
            total += math.exp(scores[b, k] - greatest) if places[k] >= 0 else 0.0
        for k in range(len(places)):
            if places[k] >= 0:
                share = math.exp(scores[b, k] - greatest) / total
                counts[places[k]] = (1.0 - rate) * counts[places[k]] + rate * share * mass


@njit
def _find(table: _Table, s: int, j: int) -> int:
    """Return the place of class j in the row of a state, or -1."""
    low = table.starts[s]
    high = table.starts[s + 1]
    while low < high:
        middle = (low + high) // 2
        if table.ids[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low if low < table.starts[s + 1] and table.ids[low] == j else -1


@njit
def _masses(table: _Table, s: int, excluded: int) -> tuple[float, float, int]:
    """Return the sum of a row, that without the excluded class, and the place of that class."""
    first = table.starts[s]
    last = table.starts[s + 1]
    if first == last:
        return 0.0, 0.0, -1
    total = table.below[last - 1]
    place = _find(table, s, excluded) if excluded >= 0 else -1
    if place < 0:
        return total, total, -1
    rest = table.below[place - 1] if place > first else 0.0
    return total, rest + (table.above[place + 1] if place + 1 < last else 0.0), place


@njit
def _parts(table: _Table, s: int, excluded: int) -> tuple[float, float, float, float]:
    """Return the mass of bigrams and of the unigram without a class, and what a count has of each.

    A class with counts a and b in the two has the mass ``a * of_bigram + b * of_unigram``.
    """
    share, rest_share = table.shares[s]
    total, rest, _ = _masses(table, s, excluded)
    every, others, _ = _masses(table, len(table.shares), excluded)
    of_bigram = share / total if total > 0.0 else 0.0
    of_unigram = rest_share / every
    return rest * of_bigram, others * of_unigram, of_bigram, of_unigram


@njit
def _pick(table: _Table, s: int, excluded: int, u: float) -> int:
    """Return the class of a row in which a uniform falls, other than the excluded one."""
    _, rest, place = _masses(table, s, excluded)
    first = table.starts[s]
    last = table.starts[s + 1]
    target = u * rest
    if place >= 0:
        before = table.below[place - 1] if place > first else 0.0
        if target < before:
            last = place
        else:
            target += table.below[place] - before
            first = place + 1
    low = first
    high = last - 1  # the last one takes what rounding leaves
    while low < high:
        middle = (low + high) // 2
        if table.below[middle] > target:
            high = middle
        else:
            low = middle + 1
    return int(table.ids[low])


@njit
def _draw(
    table: _Table, states: IntArray, exclude: IntArray, uniforms: FloatArray, ids: IntArray
) -> None:
    """Draw classes (B, m) by uniforms."""
    for b in range(len(states)):
        s = states[b]
        bigram, unigram, _, _ = _parts(table, s, exclude[b])
        for k in range(ids.shape[1]):
            target = uniforms[b, k] * (bigram + unigram)
            if target < bigram:
                ids[b, k] = _pick(table, s, exclude[b], target / bigram)
            else:
                every = len(table.shares)
                ids[b, k] = _pick(table, every, exclude[b], (target - bigram) / unigram)


@njit
def _write_log_q(
    table: _Table, states: IntArray, exclude: IntArray, ids: IntArray, log_q: FloatArray
) -> None:
    """Write the log-probabilities (B, k) of classes; that of an excluded class is -inf."""
    unigram = table.counts[table.starts[len(table.shares)] :]
    for b in range(len(states)):
        s = states[b]
        bigram, others, of_bigram, of_unigram = _parts(table, s, exclude[b])
        for k in range(ids.shape[1]):
            j = ids[b, k]
            place = _find(table, s, j)
            mass = unigram[j] * of_unigram
            mass += table.counts[place] * of_bigram if place >= 0 else 0.0
            if j == exclude[b]:
                log_q[b, k] = -np.inf
            else:
                log_q[b, k] = math.log(mass) - math.log(bigram + others)
