"""Classes that are in every draw, beside those that another sampler draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.select import require_cpu
from samplesoft._memory import require_room
from samplesoft._validation import FloatArray, IntArray, as_class_set, as_ids, require_instance
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler


class CertainSampler(Sampler):
    r"""Put some classes into every draw, and let a sampler over the others draw the rest.

    A few frequent classes often have most of the mass of a softmax. In a sum that holds them for
    certain,

    .. math:: S = e_t + \sum_{j \in H,\, j \ne t} e_j
        + \frac1m \sum_{i=1}^m \frac{e_{s_i}}{q_{s_i}},

    with the label t, the certain classes H, and m draws from a proposal q over the others, only the
    rest is estimated. Shared by a batch, their scores are one matrix product.

    Parameters
    ----------
    tail : Sampler
        Over the *other* classes alone: class k of this sampler is the k-th class that is not
        certain. One that looks at class vectors is made of those of the other classes,
        ``numpy.delete(class_embeddings, certain, axis=0)``. It is used, not copied.
    certain : array_like of int, shape (k,)
        Classes that are in every draw, at least one.

    Attributes
    ----------
    tail : Sampler
        As given.
    certain : ndarray of int64, shape (k,)
        As given, sorted.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or works on another device than the processor.

    Notes
    -----
    A draw of m has k + m classes: the certain ones, of expected count 1, and m draws of the tail
    with their own expected counts. Schemes ``"negatives"`` and ``"masked"`` of
    `samplesoft.losses.SampledSoftmaxLoss` take it as it is; `samplesoft.exact_bias`, given this
    sampler as q, has the bias. Where an excluded class is a certain one, the first draw of the tail
    stands in its place too, and both count half: `log_expected_count` is that of the m draws, to
    which this one is added.

    `log_prob` and `probs` speak of one draw of the tail: they are those of q, 0 for certain
    classes. `samplesoft.samplers.make_certain_sampler` makes one by the name of its tail, for the
    most frequent classes.

    Examples
    --------
    >>> from samplesoft.samplers.static import UniformSampler
    >>> sampler = CertainSampler(UniformSampler(3), [4, 0])  # of five classes
    >>> draw = sampler.sample(None, 3, rng=0)
    >>> draw.ids
    array([[0, 4, 3, 2, 3]])
    >>> np.exp(draw.log_expected_count)
    array([[1., 1., 1., 1., 1.]])
    >>> sampler.probs(None).round(3)
    array([[0.   , 0.333, 0.333, 0.333, 0.   ]])
    """

    def __init__(self, tail: Sampler, certain: Any) -> None:
        require_instance("tail", tail, Sampler)
        require_cpu("`tail` of certain classes", tail.device)
        if isinstance(tail, CertainSampler):
            raise ValueError(
                "`tail` must have no certain classes, got a CertainSampler; put all of them into "
                "`certain`."
            )
        n = tail.num_classes + np.size(certain)
        try:
            self.certain = as_class_set("certain", certain, n)
        except ValueError as error:
            raise ValueError(
                f"{error} There are {tail.num_classes:,} classes in `tail`, and as many more as "
                "`certain` has: make the tail of the classes that are not certain."
            ) from None
        if not len(self.certain):
            raise ValueError("`certain` must hold a class, got none; take `tail` itself.")
        super().__init__(n, tail.dim)
        self.tail, self.tau = tail, tail.tau
        self.replace = getattr(tail, "replace", True)
        self._rest = np.delete(np.arange(n), self.certain)
        self._places = np.full(n, NO_CLASS)  # among the classes of the tail
        self._places[self._rest] = np.arange(tail.num_classes)

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Let the tail draw anew what serves many draws."""
        self.tail.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Let the tail learn from those labels that are not certain."""
        places = self._places[as_ids("labels", labels, self.num_classes)]
        self.tail.observe(places[places >= 0])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the tail."""
        return self.tail.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state of the tail."""
        self.tail.load_state(state)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        self._require_room(len(h))
        left_out = self._left_out(exclude)
        drawn = self.tail._sample(self.tail._check_contexts(h), m, left_out, key)
        draw = self._beside(drawn)
        ids, log_counts = draw.ids, draw.log_expected_count
        rows, heads = np.nonzero(ids[:, : len(self.certain)] == exclude[:, None])
        first = len(self.certain)  # of the tail
        log_counts[rows, first] += np.log(2.0)
        for values in (ids, draw.log_q, log_counts):
            values[rows, heads] = values[rows, first]
        return draw

    def _sample_mean(self, h: Rows, shares: FloatArray, m: int, key: np.uint64) -> Draw:
        self._require_room(1)
        return self._beside(self.tail._sample_mean(self.tail._check_contexts(h), shares, m, key))

    def _beside(self, drawn: Draw) -> Draw:
        """Return the certain classes beside draws of the tail."""
        k = ((0, 0), (len(self.certain), 0))
        ids = np.pad(self._rest[drawn.ids], k)
        ids[:, : len(self.certain)] = self.certain
        log_q = np.pad(drawn.log_q, k, constant_values=-np.inf)
        return Draw(ids, log_q, np.pad(drawn.log_expected_count, k))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._of_tail(self.tail._log_prob, -np.inf, h, ids, exclude)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        def of_tail(h: Rows, places: IntArray, left_out: IntArray) -> FloatArray:
            return self.tail._log_expected_count(h, places, m, left_out)

        counts = self._of_tail(of_tail, 0.0, h, ids, exclude)
        return np.where(ids == exclude[:, None], -np.inf, counts)

    def _of_tail(
        self,
        function: Callable[[Rows, IntArray, IntArray], FloatArray],
        of_certain: float,
        h: Rows,
        ids: IntArray,
        exclude: IntArray,
    ) -> FloatArray:
        """Return (B, k) what a function of the tail says of classes, and a number for certain ones.

        It is asked of its class 0 in the place of these.
        """
        places, contexts = self._places[ids], self.tail._check_contexts(h)
        found = function(contexts, np.maximum(places, 0), self._left_out(exclude))
        return np.where(places < 0, of_certain, found)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        probs = np.zeros((len(h), self.num_classes))
        contexts = self.tail._check_contexts(h)
        probs[:, self._rest] = self.tail._probs(contexts, self._left_out(exclude))
        return probs

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        changed = self._places[ids] >= 0
        if not changed.any() or self.dim is None:
            return lambda: None
        own = self.tail._check_class_rows(rows[changed])
        return self.tail._prepare(self._places[ids[changed]], own)

    def _left_out(self, exclude: IntArray) -> IntArray:
        """Return the classes (B,) that of the tail that it must leave out, if any."""
        left_out = np.where(exclude >= 0, self._places[exclude], NO_CLASS)
        if self.tail.num_classes == 1 and (left_out >= 0).any():
            raise ValueError(
                f"`exclude` must leave a class to draw beside the certain ones, got "
                f"{self._rest[0]}, the only other; leave `exclude` out, or make fewer certain."
            )
        return left_out

    def _require_room(self, sets: int) -> None:
        """Raise MemoryError where the certain classes of so many draws do not fit."""
        require_room("certain", len(self.certain), 24.0 * sets * len(self.certain))
