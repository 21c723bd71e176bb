"""Two passes: a large cheap set of candidates, then the exact softmax among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import require_cpu
from samplesoft._memory import require_room
from samplesoft._random import as_key, mix64
from samplesoft._temperature import as_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_float_rows, writable
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler, SamplerProtocol, as_sampler
from samplesoft.samplers.softmax import SoftmaxSampler


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
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if the only candidate
        is excluded.
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

    References
    ----------
    .. [1] Y. Bai, S. Goldman and L. Zhang, "TAPAS: Two-pass Approximate Adaptive Sampling for
       Softmax", arXiv:1707.03073, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers.mixture import MixtureSampler
    >>> from samplesoft.samplers.static import UniformSampler
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
        candidates: SamplerProtocol,
        class_embeddings: ArrayLike,
        *,
        num_candidates: int,
        tau: float | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        as_sampler("candidates", candidates)
        require_cpu("`candidates` of a two-pass sampler", candidates.device)
        if candidates.dim is not None:
            raise ValueError(
                "`candidates` must not look at context vectors, for its draws serve all contexts, "
                f"got {type(candidates).__name__} over vectors of dimension {candidates.dim}; "
                "use a sampler such as UnigramSampler."
            )
        self._rows = as_float_rows("class_embeddings", class_embeddings).copy()
        if len(self._rows) != candidates.num_classes:
            raise ValueError(
                f"`class_embeddings` must have a row for each of the {candidates.num_classes} "
                f"classes of `candidates`, got shape {self._rows.shape}."
            )
        super().__init__(len(self._rows), self._rows.shape[1], self._rows.dtype)
        self.candidates = candidates
        self.num_candidates = as_count("num_candidates", num_candidates)
        require_room("num_candidates", self.num_candidates, 16.0 * self.num_candidates)
        self.tau = as_tau(tau, unit_vectors=False)
        self.refresh(rng)

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Draw a new set of candidates by a seed."""
        # on a stream of its own: with the seed of a sample, the draws would follow the candidates
        key = int(mix64(as_key(rng), np.uint64(1)))
        drawn = self.candidates.sample(None, self.num_candidates, rng=key)
        self.candidate_ids: IntArray = np.unique(drawn.ids)
        self._softmax = SoftmaxSampler(self._rows[self.candidate_ids], tau=self.tau)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        draw = self._softmax._sample(h, m, self._excluded_places(exclude), key)
        return Draw(self.candidate_ids[draw.ids], draw.log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        places = self._places(ids)
        within = np.maximum(places, 0)
        log_q = self._softmax._log_prob(h, within, self._excluded_places(exclude))
        return np.where(places == NO_CLASS, -np.inf, log_q)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        probs = np.zeros((len(h), self.num_classes))
        probs[:, self.candidate_ids] = self._softmax._probs(h, self._excluded_places(exclude))
        return probs

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        places = self._places(ids)
        known = places != NO_CLASS
        among = self._softmax._prepare(places[known], rows[known])
        self._rows = writable(self._rows)

        def commit() -> None:
            self._rows[ids] = rows
            among()

        return commit

    def _places(self, ids: IntArray) -> IntArray:
        """Return the place of each class among the candidates, or `NO_CLASS`."""
        places = np.searchsorted(self.candidate_ids, ids)
        places = np.minimum(places, len(self.candidate_ids) - 1)
        return np.where(self.candidate_ids[places] == ids, places, NO_CLASS)

    def _excluded_places(self, exclude: IntArray) -> IntArray:
        places = self._places(exclude)
        if len(self.candidate_ids) == 1 and places.max() >= 0:
            raise ValueError(
                f"`exclude` must leave a candidate to draw, got class {self.candidate_ids[0]}, the "
                "only one of the set; raise `num_candidates`, or call refresh()."
            )
        return places
