"""Samplers made of others: a mixture of two, certain classes beside one, and two passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.select import require_cpu
from samplesoft._files import prefixed, unprefixed
from samplesoft._memory import require_memory
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._temperature import as_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_class_set,
    as_count,
    as_float_rows,
    as_ids,
    as_named_arrays,
    as_positive,
    writable,
)
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler, as_sampler
from samplesoft.samplers.bigram import BigramSampler
from samplesoft.samplers.dense import invert
from samplesoft.samplers.softmax import SoftmaxSampler

# what the parts of a mixture must agree in, if both have it; to which tolerance; the remedy
_SHARED = {
    "num_classes": ("have the same number of classes", 0.0, "draw from the same classes"),
    "dim": ("take vectors of the same dimension", 0.0, "make both from the same class vectors"),
    # a tau that differs would make one of the parts follow another softmax than the loss
    "tau": ("have the same tau", 1e-6, "make both with that of the loss"),
}


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
    >>> from samplesoft.samplers import UniformSampler
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
        _require_part("tail", tail, "certain classes", "put all of them into `certain`")
        # only then is it known which classes there are, so that `certain` is checked against that
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
        self.tail = tail
        self.tau = tail.tau
        # as the tail draws; who needs draws with replacement asks for it
        self.replace = getattr(tail, "replace", True)
        # classes of the tail, and where each class is among them
        self._rest = np.delete(np.arange(n), self.certain)
        self._places = np.full(n, NO_CLASS)  # among the classes of the tail
        self._places[self._rest] = np.arange(tail.num_classes)

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Let the tail draw anew what serves many draws."""
        self.tail.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Let the tail learn from those labels that are not certain."""
        # certain classes are in every draw however frequent they are: the tail learns of the others
        places = self._places[as_ids("labels", labels, self.num_classes)]
        self.tail.observe(places[places >= 0])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the tail."""
        return self.tail.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state of the tail."""
        self.tail.load_state(state)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        left_out = self._left_out(exclude)
        drawn = self.tail._sample(self.tail._check_contexts(h), m, left_out, key)
        draw = self._beside(drawn)
        ids = draw.ids
        log_counts = draw.log_expected_count
        # where a certain class is excluded, the first draw of the tail comes twice, each for half
        rows, heads = np.nonzero(ids[:, : len(self.certain)] == exclude[:, None])
        first = len(self.certain)  # of the tail
        log_counts[rows, first] += np.log(2.0)
        for values in (ids, draw.log_q, log_counts):
            values[rows, heads] = values[rows, first]
        return draw

    def _sample_mean(self, h: Rows, shares: FloatArray, m: int, key: np.uint64) -> Draw:
        return self._beside(self.tail._sample_mean(self.tail._check_contexts(h), shares, m, key))

    def _beside(self, drawn: Draw) -> Draw:
        """Return the certain classes beside draws of the tail; MemoryError if they do not fit."""
        require_memory("certain", len(self.certain), 24.0 * len(drawn.ids) * len(self.certain))
        before = ((0, 0), (len(self.certain), 0))  # columns for the certain classes
        ids = np.pad(self._rest[drawn.ids], before)
        ids[:, : len(self.certain)] = self.certain
        log_q = np.pad(drawn.log_q, before, constant_values=-np.inf)
        return Draw(ids, log_q, np.pad(drawn.log_expected_count, before))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        # certain classes have no place in the tail: it is asked of its class 0 instead
        contexts = self.tail._check_contexts(h)
        asked = np.maximum(self._places[ids], 0)
        log_q = self.tail._log_prob(contexts, asked, self._left_out(exclude))
        return np.where(self._places[ids] < 0, -np.inf, log_q)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        contexts = self.tail._check_contexts(h)
        asked = np.maximum(self._places[ids], 0)
        counts = self.tail._log_expected_count(contexts, asked, m, self._left_out(exclude))
        counts = np.where(self._places[ids] < 0, 0.0, counts)  # once in every draw
        # the tail knows of its own excluded classes, but not of a certain one
        return np.where(ids == exclude[:, None], -np.inf, counts)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        probs = np.zeros((len(h), self.num_classes))
        contexts = self.tail._check_contexts(h)
        probs[:, self._rest] = self.tail._probs(contexts, self._left_out(exclude))
        return probs

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        # vectors of certain classes are of no use here: the loss has their scores
        changed = self._places[ids] >= 0
        if not changed.any():
            return lambda: None
        tail_rows = self.tail._check_class_rows(rows[changed])
        return self.tail._prepare_update(self._places[ids[changed]], tail_rows)

    def _left_out(self, exclude: IntArray) -> IntArray:
        """Return the classes (B,) of the tail that it must leave out, or `NO_CLASS`."""
        left_out = np.where(exclude >= 0, self._places[exclude], NO_CLASS)
        if self.tail.num_classes == 1 and (left_out >= 0).any():
            raise ValueError(
                f"`exclude` must leave a class to draw beside the certain ones, got "
                f"{self._rest[0]}, the only other; leave `exclude` out, or make fewer certain."
            )
        return left_out


class MixtureSampler(Sampler):
    """Each draw comes from `first` with probability `weight`, else from `second`.

    A narrow proposal that follows the model, mixed with a broad one that reaches every class,
    keeps the importance weights bounded: they are at most those of `second` alone divided by
    ``1 - weight``.

    Parameters
    ----------
    first, second : Sampler
        Over the same classes; they are used, not copied. Their draws are with replacement.
    weight : float
        Probability of `first`, between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the two do not fit together.

    Notes
    -----
    The probability of a class is the exact mixture of the two, so that each draw costs the
    probability of its class under both. With an excluded class, q is the mixture of the two
    conditional distributions, with the same weight: what is drawn, and not the mixture conditioned
    afterwards, which would weigh the two by the mass that each has left.

    `update` goes to both, once both have found the vectors fit.

    References
    ----------
    .. [1] A. Owen and Y. Zhou, "Safe and Effective Importance Sampling", JASA 95, 2000.

    Examples
    --------
    >>> from samplesoft.samplers import SoftmaxSampler, UniformSampler
    >>> narrow = SoftmaxSampler([[5.0], [0.0], [0.0], [0.0]])
    >>> MixtureSampler(narrow, UniformSampler(4), 0.8).probs([1.0]).round(3)
    array([[0.834, 0.055, 0.055, 0.055]])
    """

    def __init__(self, first: Sampler, second: Sampler, weight: float = 0.5) -> None:
        self._parts = {"first": first, "second": second}
        for name, sampler in self._parts.items():
            _require_part(name, sampler, "a mixture", "make one of a mixture")
            if not getattr(sampler, "replace", True):
                raise _draws_distinct(name, sampler)
        shared: dict[str, Any] = {}
        for attribute, (wanted, tolerance, remedy) in _SHARED.items():
            values = [getattr(sampler, attribute) for sampler in (first, second)]
            values = [value for value in values if value is not None]
            if len(values) == 2 and not isclose(*values, rel_tol=tolerance):
                raise ValueError(
                    f"`first` and `second` must {wanted}, got {values[0]} and {values[1]}; "
                    f"{remedy}."
                )
            shared[attribute] = values[0] if values else None
        self.weight = as_positive("weight", weight)
        if self.weight >= 1.0:
            raise ValueError(
                f"`weight` must be less than 1, got {weight}; use `first` without a mixture."
            )
        super().__init__(shared["num_classes"], shared["dim"])
        self.first = first
        self.second = second
        self.tau = shared["tau"]

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Let both samplers draw anew what serves many draws."""
        for sampler in self._parts.values():
            sampler.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Let both samplers learn from labels."""
        for sampler in self._parts.values():
            sampler.observe(labels)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the states of both samplers."""
        return prefixed({name: sampler.state() for name, sampler in self._parts.items()}, "/")

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the states of both samplers."""
        state = as_named_arrays("state", state)
        foreign = [key for key in state if not key.startswith(("first/", "second/"))]
        if foreign:
            raise ValueError(f"`state` must be that of a mixture, got {', '.join(foreign)}.")
        before = self.first.state()
        self.first.load_state(unprefixed("first", state, "/"))
        try:
            self.second.load_state(unprefixed("second", state, "/"))
        except (TypeError, ValueError):
            self.first.load_state(before)  # both or none
            raise

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        choice, *keys = (np.uint64(mix64(key, np.uint64(i))) for i in range(3))
        ids = []
        for (name, sampler), own_key in zip(self._parts.items(), keys, strict=True):
            draw = sampler._sample(sampler._check_contexts(h), m, exclude, own_key)
            if draw.log_inclusion is not None:
                raise _draws_distinct(name, sampler)
            ids.append(draw.ids)
        # both draw all m, so that those of one do not depend on how often the other is chosen
        mixed = np.where(uniform_block(choice, len(h), m) < self.weight, *ids)
        return Draw(mixed, self._log_prob(h, mixed, exclude))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        first, second = (
            sampler._log_prob(sampler._check_contexts(h), ids, exclude)
            for sampler in self._parts.values()
        )
        # in logarithms, where either probability may be 0 or underflow
        log_q: FloatArray = np.logaddexp(
            np.log(self.weight) + first, np.log1p(-self.weight) + second
        )
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        first, second = (
            sampler._probs(sampler._check_contexts(h), exclude) for sampler in self._parts.values()
        )
        return self.weight * first + (1.0 - self.weight) * second

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        # both check before either changes
        commits = [
            sampler._prepare_update(ids, sampler._check_class_rows(rows))
            for sampler in self._parts.values()
            if sampler.dim is not None
        ]

        def commit() -> None:
            for commit_one in commits:
                commit_one()

        return commit


def _require_part(name: str, part: Any, whole: str, remedy: str) -> None:
    """Raise for what a sampler made of others cannot draw from."""
    if not isinstance(part, Sampler):
        raise TypeError(
            f"`{name}` must be a Sampler, got {type(part).__name__}; samplesoft.samplers has some."
        )
    require_cpu(f"`{name}` of {whole}", part.device)
    _require_vectors(name, part)
    # its draws have more than m columns, which neither mix nor come beside others
    if isinstance(part, CertainSampler):
        raise ValueError(f"`{name}` must have no certain classes, got a CertainSampler; {remedy}.")


def _require_vectors(name: str, part: Any) -> None:
    """Raise for a sampler whose contexts are no vectors."""
    if isinstance(part, BigramSampler):
        raise TypeError(
            f"`{name}` must draw by context vectors or by none, got a BigramSampler, which draws "
            "by numbers of states; draw from it by hand."
        )


def _draws_distinct(name: str, sampler: Sampler) -> ValueError:
    return ValueError(
        f"`{name}` must draw with replacement, got a {type(sampler).__name__} that does not; make "
        "it with replace=True."
    )


class TwoPassSampler(Sampler):
    r"""The softmax among candidates that another sampler has drawn for the whole batch.

    Parameters
    ----------
    candidates : Sampler
        Draws the candidates; one that does not look at context vectors.
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    num_candidates : int
        Draws from `candidates`; those drawn more than once count once.
    tau : float, optional
        Inverse temperature of the softmax among the candidates, 1 by default.
    rng : int, numpy.random.Generator or None
        Seed of the first set of candidates.

    Attributes
    ----------
    candidate_ids : ndarray of int64, shape (K,)
        The distinct candidates in ascending order.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many candidates do not fit.

    Notes
    -----
    Call `refresh` once for each batch. All probabilities are **given the set** S that stands:
    :math:`q(i | h, S) = e^{\tau h c_i} / \sum_{j \in S} e^{\tau h c_j}` in S, else 0. The
    probability over all sets is :math:`q(i | h) = E_S [1\{i \in S\} q(i | h, S)]`, a sum over up
    to :math:`2^n` of them, which no sampler of this kind computes. Weights by q given S make a
    correct estimate of sums over S, not over all classes; mixed with a sampler that reaches every
    class, as in the example, they do for all.

    Where an excluded class is the only candidate, nothing of S is left. Draws then are by the
    probabilities of `candidates` without that class, and so `log_prob` and `probs` say.

    References
    ----------
    .. [1] Y. Bai, S. Goldman and L. Zhang, "TAPAS: Two-pass Approximate Adaptive Sampling for
       Softmax", arXiv:1707.03073, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import MixtureSampler, UniformSampler
    >>> vectors = np.log([[1.0], [2.0], [3.0], [4.0]])
    >>> sampler = TwoPassSampler(UniformSampler(4), vectors, num_candidates=2, rng=0)
    >>> within = sampler.probs([1.0])[0]
    >>> bool(np.all((within > 0.0) == np.isin(np.arange(4), sampler.candidate_ids)))
    True
    >>> everywhere = MixtureSampler(sampler, UniformSampler(4), 0.9)
    >>> bool(everywhere.probs([1.0]).min() > 0.02)
    True
    >>> sampler.refresh(rng=1)
    """

    def __init__(
        self,
        candidates: Sampler,
        class_embeddings: ArrayLike,
        *,
        num_candidates: int,
        tau: float | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        # any class with the methods will do, for they are called as a user calls them
        as_sampler("candidates", candidates)
        require_cpu("`candidates` of a two-pass sampler", candidates.device)
        _require_vectors("candidates", candidates)
        if candidates.dim is not None:
            raise ValueError(
                "`candidates` must not look at context vectors, for its draws serve all contexts, "
                f"got {type(candidates).__name__} over vectors of dimension {candidates.dim}; "
                "use a sampler such as UnigramSampler."
            )
        # all rows, since the next candidates may be any of them
        self._rows = as_float_rows("class_embeddings", class_embeddings).copy()
        if len(self._rows) != candidates.num_classes:
            raise ValueError(
                f"`class_embeddings` must have a row for each of the {candidates.num_classes} "
                f"classes of `candidates`, got shape {self._rows.shape}."
            )
        super().__init__(len(self._rows), self._rows.shape[1], self._rows.dtype)
        self.candidates = candidates
        self.num_candidates = as_count("num_candidates", num_candidates)
        require_memory("num_candidates", self.num_candidates, 16.0 * self.num_candidates)
        self.tau = as_tau(tau, unit_vectors=False)
        self.refresh(rng)

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Draw a new set of candidates by a seed."""
        # on a stream of its own: with the seed of a sample, the draws would follow the candidates
        key = int(mix64(as_key(rng), np.uint64(1)))
        drawn = self.candidates.sample(None, self.num_candidates, rng=key)
        self.candidate_ids: IntArray = np.unique(drawn.ids)
        self._softmax = SoftmaxSampler(self._rows[self.candidate_ids], tau=self.tau)

    def observe(self, labels: Any) -> None:
        """Let the sampler of the candidates learn from labels."""
        self.candidates.observe(labels)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the sampler of the candidates."""
        return self.candidates.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state of the sampler of the candidates."""
        self.candidates.load_state(state)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        excluded, bare = self._excluded_places(exclude)
        # those without a candidate left draw here too, so that the others keep their draws
        draw = self._softmax._sample(h, m, excluded, key)
        ids = self.candidate_ids[draw.ids]
        log_q = draw.log_q
        if bare.any():
            q = self._of_one_pass()
            ids[bare] = invert(q, uniform_block(key, len(h), m)[bare])
            log_q[bare] = np.log(q[ids[bare]])
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        excluded, bare = self._excluded_places(exclude)
        places = self._places(ids)
        log_q = self._softmax._log_prob(h, np.maximum(places, 0), excluded)
        log_q[places == NO_CLASS] = -np.inf
        if bare.any():
            with np.errstate(divide="ignore"):
                log_q[bare] = np.log(self._of_one_pass()[ids[bare]])
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        excluded, bare = self._excluded_places(exclude)
        probs = np.zeros((len(h), self.num_classes))
        probs[:, self.candidate_ids] = self._softmax._probs(h, excluded)
        if bare.any():
            probs[bare] = self._of_one_pass()
        return probs

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        places = self._places(ids)
        # the softmax holds candidates alone; the rest waits in _rows for the next `refresh`
        known = places != NO_CLASS
        among = self._softmax._prepare_update(places[known], rows[known])
        self._rows = writable(self._rows)

        def commit() -> None:
            self._rows[ids] = rows
            among()

        return commit

    def _places(self, ids: IntArray) -> IntArray:
        """Return the place of each class among the candidates, or `NO_CLASS`."""
        places = np.searchsorted(self.candidate_ids, ids)
        # a class beyond the last candidate would be placed outside
        places = np.minimum(places, len(self.candidate_ids) - 1)
        return np.where(self.candidate_ids[places] == ids, places, NO_CLASS)

    def _excluded_places(self, exclude: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the places (B,) that the second pass leaves out, and who has no candidate left."""
        places = self._places(exclude)
        bare = (places != NO_CLASS) & (len(self.candidate_ids) == 1)
        return np.where(bare, NO_CLASS, places), bare

    def _of_one_pass(self) -> FloatArray:
        """Return the probabilities (n,) of the first pass without its only candidate."""
        return self.candidates.probs(None, exclude=self.candidate_ids).ravel()
