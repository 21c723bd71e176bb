"""Samplers that combine other samplers: mixtures, always-included classes, and two passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.select import require_cpu
from samplesoft._files import with_prefixes, without_prefix
from samplesoft._memory import require_memory
from samplesoft._random import mix64, stream_key, uniform_block
from samplesoft._temperature import as_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array_dict,
    as_class_set,
    as_count,
    as_float_rows,
    as_ids,
    as_positive,
    writable,
)
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler, as_sampler
from samplesoft.samplers.bigram import BigramSampler
from samplesoft.samplers.dense import inverse_cdf
from samplesoft.samplers.softmax import SoftmaxSampler

# Attributes that must be equal if both samplers of a mixture have them. For each: the requirement
# in words, the relative tolerance, and the remedy.
_SHARED_PROPERTIES = {
    "num_classes": ("have the same number of classes", 0.0, "draw from the same classes"),
    "dim": ("take vectors of the same dimension", 0.0, "make both from the same class vectors"),
    # with different tau, one of the samplers would not follow the softmax of the loss
    "tau": ("have the same tau", 1e-6, "make both with that of the loss"),
}


class CertainSampler(Sampler):
    r"""Include certain classes in every draw, and add draws from a sampler over the other classes.

    A few frequent classes often have most of the mass of a softmax. If a set H of these classes is
    always included, the sampled sum is

    .. math:: S = e_t + \sum_{j \in H,\, j \ne t} e_j
        + \frac1m \sum_{i=1}^m \frac{e_{s_i}}{q_{s_i}},

    with the label t and m draws from a proposal q over the other classes, so that only the sum over
    the other classes is estimated. One matrix product computes the scores of H for a whole batch.

    Parameters
    ----------
    tail : Sampler
        Sampler over the *other* classes alone: its class k is the k-th class that is not always
        included. A sampler that depends on class vectors is built from the vectors of the other
        classes, ``numpy.delete(class_embeddings, certain, axis=0)``. The object is used, not
        copied.
    certain : array_like of int, shape (k,)
        Always-included classes, at least one.

    Attributes
    ----------
    tail : Sampler
        The parameter `tail`.
    certain : ndarray of int64, shape (k,)
        Always-included classes, sorted.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or `tail` is on a GPU.

    Notes
    -----
    A draw of m has k + m classes: first the k always-included classes, with expected count 1, then
    m draws of the tail, with the expected counts that the tail reports. Schemes ``"negatives"`` and
    ``"masked"`` of `samplesoft.losses.SampledSoftmaxLoss` support such draws, and
    `samplesoft.exact_bias` with this sampler as q returns its bias. If the excluded class is one of
    the k always-included classes, its column holds a copy of the first draw of the tail, and each
    of the two columns has half the weight. The method `log_expected_count` ignores the copy.

    `log_prob` and `probs` describe one draw of the tail: always-included classes have probability
    0. `samplesoft.samplers.make_certain_sampler` makes a `CertainSampler` of the most frequent
    classes and a named tail.

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
        _require_composable("tail", tail, "certain classes", "put all of them into `certain`")

        # total number of classes, which bounds the indices in `certain`
        n = tail.num_classes + np.size(certain)
        try:
            self.certain = as_class_set("certain", certain, n)
        except ValueError as error:
            raise ValueError(
                f"{error} There are {tail.num_classes:,} classes in `tail`, and as many more as "
                "`certain` has: make the tail of the classes that are not certain."
            ) from None

        if not len(self.certain):
            raise ValueError("`certain` must hold a class, got none; use `tail` itself.")

        super().__init__(n, tail.dim)
        self.tail = tail
        self.tau = tail.tau

        # the tail decides whether draws are with replacement
        self.replace = getattr(tail, "replace", True)

        # the class at each tail index, and the tail index of each class (`NO_CLASS` if it has none)
        self._tail_classes = np.delete(np.arange(n), self.certain)
        self._tail_index = np.full(n, NO_CLASS)
        self._tail_index[self._tail_classes] = np.arange(tail.num_classes)

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Redraw the candidate classes of the tail, if it has any."""
        self.tail.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Pass labels to the tail, except always-included classes, which the tail does not have."""
        tail_index = self._tail_index[as_ids("labels", labels, self.num_classes)]
        self.tail.observe(tail_index[tail_index >= 0])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the tail."""
        return self.tail.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the tail that `state` returned."""
        self.tail.load_state(state)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        excluded = self._excluded_tail_index(exclude)
        tail_draw = self.tail._sample(self.tail._checked_contexts(h), m, excluded, key)
        draw = self._prepend_certain(tail_draw)
        ids = draw.ids
        log_counts = draw.log_expected_count

        # If the excluded class is always included, its column repeats the first draw of the tail.
        # The expected count of both columns is doubled, so that each has half the weight.
        rows, columns = np.nonzero(ids[:, : len(self.certain)] == exclude[:, None])
        tail_column = len(self.certain)  # column of the first draw of the tail
        log_counts[rows, tail_column] += np.log(2.0)

        for values in (ids, draw.log_q, log_counts):
            values[rows, columns] = values[rows, tail_column]
        return draw

    def _sample_shared(self, h: Rows, weights: FloatArray, m: int, key: np.uint64) -> Draw:
        return self._prepend_certain(
            self.tail._sample_shared(self.tail._checked_contexts(h), weights, m, key)
        )

    def _prepend_certain(self, tail_draw: Draw) -> Draw:
        """Return a draw (B, k + m): k always-included classes, and then the draws of the tail.

        The draw `tail_draw` (B, m) has class indices of the tail, which are replaced by class
        indices of this sampler.
        """
        require_memory("certain", len(self.certain), 24.0 * len(tail_draw.ids) * len(self.certain))
        padding = ((0, 0), (len(self.certain), 0))  # columns of the always-included classes
        ids = np.pad(self._tail_classes[tail_draw.ids], padding)
        ids[:, : len(self.certain)] = self.certain
        log_q = np.pad(tail_draw.log_q, padding, constant_values=-np.inf)
        return Draw(ids, log_q, np.pad(tail_draw.log_expected_count, padding))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        # always-included classes are not in the tail: class 0 of the tail is evaluated in their
        # place, and its value is replaced by -inf
        contexts = self.tail._checked_contexts(h)
        tail_ids = np.maximum(self._tail_index[ids], 0)
        log_q = self.tail._log_prob(contexts, tail_ids, self._excluded_tail_index(exclude))
        return np.where(self._tail_index[ids] < 0, -np.inf, log_q)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        contexts = self.tail._checked_contexts(h)
        tail_ids = np.maximum(self._tail_index[ids], 0)
        counts = self.tail._log_expected_count(
            contexts, tail_ids, m, self._excluded_tail_index(exclude)
        )

        # an always-included class is once in every draw: log(1) = 0
        counts = np.where(self._tail_index[ids] < 0, 0.0, counts)

        # the tail has set its own excluded classes to -inf; an excluded class that is always
        # included is set here
        return np.where(ids == exclude[:, None], -np.inf, counts)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        probs = np.zeros((len(h), self.num_classes))
        contexts = self.tail._checked_contexts(h)
        probs[:, self._tail_classes] = self.tail._probs(
            contexts, self._excluded_tail_index(exclude)
        )
        return probs

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        # the tail has no vectors of always-included classes
        in_tail = self._tail_index[ids] >= 0
        if not in_tail.any():
            return lambda: None
        tail_rows = self.tail._checked_class_rows(rows[in_tail])
        return self.tail._prepare_update(self._tail_index[ids[in_tail]], tail_rows)

    def _excluded_tail_index(self, exclude: IntArray) -> IntArray:
        """Return the tail index (B,) of each excluded class, or `NO_CLASS` if it has none."""
        excluded = np.where(exclude >= 0, self._tail_index[exclude], NO_CLASS)
        if self.tail.num_classes == 1 and (excluded >= 0).any():
            raise ValueError(
                f"`exclude` must leave a class to draw beside the certain ones, got "
                f"{self._tail_classes[0]}, the only other; leave `exclude` out, or make fewer "
                "certain."
            )
        return excluded


class MixtureSampler(Sampler):
    """Draw from one of two samplers: from `first` with probability `weight`, else from `second`.

    Let `first` follow the model closely, and let `second` reach every class. The importance weights
    of the mixture are then bounded: they are at most the importance weights of `second` alone,
    divided by ``1 - weight``.

    Parameters
    ----------
    first, second : Sampler
        Samplers over the same classes, with replacement. The objects are used, not copied.
    weight : float
        Probability that a draw comes from `first`, between 0 and 1, both exclusive.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the two samplers do not fit together.

    Notes
    -----
    The probability of a class is the weighted mean of its probabilities under both samplers. With
    an excluded class, q is the mixture of the two conditional distributions, with the same weight.
    This is the distribution of the draws. Conditioning the mixture itself would instead weight each
    sampler by the mass that remains in it after exclusion.

    `update` changes both samplers or, if one refuses the vectors, neither.

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
        self._samplers = {"first": first, "second": second}
        for name, sampler in self._samplers.items():
            _require_composable(name, sampler, "a mixture", "make one of a mixture")
            if not getattr(sampler, "replace", True):
                raise _without_replacement_error(name, sampler)

        shared: dict[str, Any] = {}
        for attribute, (requirement, tolerance, remedy) in _SHARED_PROPERTIES.items():
            values = [getattr(sampler, attribute) for sampler in (first, second)]
            values = [value for value in values if value is not None]
            if len(values) == 2 and not isclose(*values, rel_tol=tolerance):
                raise ValueError(
                    f"`first` and `second` must {requirement}, got {values[0]} and {values[1]}; "
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
        """Redraw the candidate classes of both samplers, if they have any."""
        for sampler in self._samplers.values():
            sampler.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Update the class frequencies that both samplers learn, by observed labels."""
        for sampler in self._samplers.values():
            sampler.observe(labels)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the states of both samplers, with the prefixes "first/" and "second/"."""
        return with_prefixes(
            {name: sampler.state() for name, sampler in self._samplers.items()}, "/"
        )

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the states of both samplers that `state` returned."""
        state = as_array_dict("state", state)
        unknown_keys = [key for key in state if not key.startswith(("first/", "second/"))]
        if unknown_keys:
            raise ValueError(f"`state` must be that of a mixture, got {', '.join(unknown_keys)}.")

        first_state = self.first.state()
        self.first.load_state(without_prefix("first", state, "/"))
        try:
            self.second.load_state(without_prefix("second", state, "/"))
        except (TypeError, ValueError):
            # restore both states or neither
            self.first.load_state(first_state)
            raise

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        choice, *keys = (np.uint64(mix64(key, np.uint64(i))) for i in range(3))
        ids = []
        for (name, sampler), sampler_key in zip(self._samplers.items(), keys, strict=True):
            draw = sampler._sample(sampler._checked_contexts(h), m, exclude, sampler_key)
            if draw.log_inclusion is not None:
                raise _without_replacement_error(name, sampler)
            ids.append(draw.ids)

        # both samplers draw m classes, so that the draws do not depend on which of them are used
        mixed = np.where(uniform_block(choice, len(h), m) < self.weight, *ids)
        return Draw(mixed, self._log_prob(h, mixed, exclude))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        first, second = (
            sampler._log_prob(sampler._checked_contexts(h), ids, exclude)
            for sampler in self._samplers.values()
        )

        # a sum in logarithms, because one of the probabilities may be 0 or underflow
        log_q: FloatArray = np.logaddexp(
            np.log(self.weight) + first, np.log1p(-self.weight) + second
        )
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        first, second = (
            sampler._probs(sampler._checked_contexts(h), exclude)
            for sampler in self._samplers.values()
        )
        return self.weight * first + (1.0 - self.weight) * second

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        # both samplers check the update before one of them changes
        component_commits = [
            sampler._prepare_update(ids, sampler._checked_class_rows(rows))
            for sampler in self._samplers.values()
            if sampler.dim is not None
        ]

        def commit() -> None:
            for commit_component in component_commits:
                commit_component()

        return commit


def _require_composable(name: str, sampler: Any, whole: str, remedy: str) -> None:
    """Raise if `sampler` cannot be a component of another sampler, `whole`.

    A component is a `Sampler` on the CPU whose contexts are vectors or None, and which has no
    always-included classes. `name` (of the sampler), `whole` and `remedy` are words of the message.
    """
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"`{name}` must be a Sampler, got {type(sampler).__name__}; samplesoft.samplers has "
            "some."
        )

    require_cpu(f"`{name}` of {whole}", sampler.device)
    _require_vector_contexts(name, sampler)
    # draws of a CertainSampler have more than m columns, and can neither be mixed nor extended
    if isinstance(sampler, CertainSampler):
        raise ValueError(f"`{name}` must have no certain classes, got a CertainSampler; {remedy}.")


def _require_vector_contexts(name: str, sampler: Any) -> None:
    """Raise for a `BigramSampler`, whose contexts are indices of states and not vectors."""
    if isinstance(sampler, BigramSampler):
        raise TypeError(
            f"`{name}` must draw by context vectors or by none, got a BigramSampler, which draws "
            "by numbers of states; draw from it by hand."
        )


def _without_replacement_error(name: str, sampler: Sampler) -> ValueError:
    """Return the error for a component `name` of a mixture that draws without replacement."""
    return ValueError(
        f"`{name}` must draw with replacement, got a {type(sampler).__name__} that does not; make "
        "it with replace=True."
    )


class TwoPassSampler(Sampler):
    r"""Draw from the softmax over candidates that another sampler has drawn for the whole batch.

    Parameters
    ----------
    candidates : Sampler
        Sampler that draws the candidates. It must not depend on context vectors.
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    num_candidates : int
        Number of draws from `candidates`. A class that is drawn repeatedly is one candidate.
    tau : float, optional
        Inverse temperature of the softmax over the candidates, 1 by default.
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
        If the candidates do not fit in memory.

    Notes
    -----
    Call `refresh` once for each batch. All probabilities are conditional on the current set S:
    :math:`q(i | h, S) = e^{\tau h c_i} / \sum_{j \in S} e^{\tau h c_j}` in S, and 0 elsewhere. The
    unconditional probability is :math:`q(i | h) = E_S [1\{i \in S\} q(i | h, S)]`, a sum over up
    to :math:`2^n` sets, which no two-pass sampler computes. Importance weights from q given S
    estimate sums over S correctly, but not sums over all classes. In a mixture with a sampler that
    reaches every class, as in the example, they also estimate sums over all classes correctly.

    If the excluded class is the only candidate, S is empty without this class. `sample`, `log_prob`
    and `probs` then use the distribution of `candidates` without the class.

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
        # any object with the public methods of `Sampler` is accepted
        as_sampler("candidates", candidates)
        require_cpu("`candidates` of a two-pass sampler", candidates.device)
        _require_vector_contexts("candidates", candidates)
        if candidates.dim is not None:
            raise ValueError(
                "`candidates` must not look at context vectors, for its draws serve all contexts, "
                f"got {type(candidates).__name__} over vectors of dimension {candidates.dim}; "
                "use a sampler such as UnigramSampler."
            )

        # the vectors of all classes, because any class may become a candidate
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
        """Draw a new set of candidates."""
        # a separate random stream: with the same seed as a call of `sample`, the draws would
        # otherwise depend on the candidates
        key = int(mix64(stream_key(rng), np.uint64(1)))
        drawn = self.candidates.sample(None, self.num_candidates, rng=key)
        self.candidate_ids: IntArray = np.unique(drawn.ids)
        self._candidate_softmax = SoftmaxSampler(self._rows[self.candidate_ids], tau=self.tau)

    def observe(self, labels: Any) -> None:
        """Update the class frequencies that the sampler of the candidates learns, by labels."""
        self.candidates.observe(labels)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the sampler of the candidates."""
        return self.candidates.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the sampler of the candidates that `state` returned."""
        self.candidates.load_state(state)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        excluded, has_none = self._excluded_candidate_index(exclude)
        # Contexts that exclude the only candidate draw it here, so that the draws of other contexts
        # do not change. Their draws are replaced below.
        draw = self._candidate_softmax._sample(h, m, excluded, key)
        ids = self.candidate_ids[draw.ids]
        log_q = draw.log_q

        if has_none.any():
            q = self._probs_without_only_candidate()
            ids[has_none] = inverse_cdf(q, uniform_block(key, len(h), m)[has_none])
            log_q[has_none] = np.log(q[ids[has_none]])
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        excluded, has_none = self._excluded_candidate_index(exclude)
        indices = self._candidate_index(ids)
        log_q = self._candidate_softmax._log_prob(h, np.maximum(indices, 0), excluded)
        log_q[indices == NO_CLASS] = -np.inf
        if has_none.any():
            with np.errstate(divide="ignore"):
                log_q[has_none] = np.log(self._probs_without_only_candidate()[ids[has_none]])
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        excluded, has_none = self._excluded_candidate_index(exclude)
        probs = np.zeros((len(h), self.num_classes))
        probs[:, self.candidate_ids] = self._candidate_softmax._probs(h, excluded)
        if has_none.any():
            probs[has_none] = self._probs_without_only_candidate()
        return probs

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        indices = self._candidate_index(ids)
        # the softmax has the vectors of candidates only; `refresh` reads the others from `_rows`
        is_candidate = indices != NO_CLASS
        update_softmax = self._candidate_softmax._prepare_update(
            indices[is_candidate], rows[is_candidate]
        )
        self._rows = writable(self._rows)

        def commit() -> None:
            self._rows[ids] = rows
            update_softmax()

        return commit

    def _candidate_index(self, ids: IntArray) -> IntArray:
        """Return the index of each class of `ids` in `candidate_ids`, or `NO_CLASS`."""
        indices = np.searchsorted(self.candidate_ids, ids)
        # the index of a class above the last candidate would be out of bounds
        indices = np.minimum(indices, len(self.candidate_ids) - 1)
        return np.where(self.candidate_ids[indices] == ids, indices, NO_CLASS)

    def _excluded_candidate_index(self, exclude: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return each excluded class's index in `candidate_ids`, and if it is the only candidate.

        Both arrays have shape (B,). The index is `NO_CLASS` if the excluded class is not a
        candidate, or is the only candidate.
        """
        indices = self._candidate_index(exclude)
        has_none = (indices != NO_CLASS) & (len(self.candidate_ids) == 1)
        return np.where(has_none, NO_CLASS, indices), has_none

    def _probs_without_only_candidate(self) -> FloatArray:
        """Return the probabilities (n,) under `candidates` when the only candidate is excluded."""
        return self.candidates.probs(None, exclude=self.candidate_ids).ravel()
