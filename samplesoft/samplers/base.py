"""What every sampler is: draws with their exact log-probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.select import arrays_on, as_device, device_of, require_copyable, to_host
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
)

Rows = NDArray[Any]  # float32 or float64 vectors, one in each row
NOTHING = -1  # in `exclude` of a private method: this example excludes no class


@dataclass(frozen=True, eq=False)
class Draw:
    """Sampled classes and the probability of each draw.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, m)
        Sampled classes; shape (1, m) for one set shared by the batch.
    log_q : ndarray of float64, shape (B, m)
        Natural logarithm of the probability that one draw gives this class, in the distribution
        that was drawn from: that without the excluded class where one was excluded.
    log_inclusion : ndarray of float64, shape (B, m), or None
        Where draws are without replacement, the natural logarithm of the probability that the
        set of m contains this class; else None.
    """

    ids: IntArray
    log_q: FloatArray
    log_inclusion: FloatArray | None = None

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of how often a draw of m contains each class in the mean.

        That is ``log(m q)`` with replacement, and the log-probability of inclusion without.
        """
        if self.log_inclusion is not None:
            return self.log_inclusion
        log_counts: FloatArray = arrays_on(device_of(self.log_q)).plus(
            self.log_q, np.log(self.ids.shape[1])
        )
        return log_counts

    def to_host(self) -> Draw:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        inclusion = None if self.log_inclusion is None else to_host(self.log_inclusion)
        return Draw(to_host(self.ids), to_host(self.log_q), inclusion)


class Sampler(ABC):
    """A distribution over classes for each context vector.

    A new sampler implements `_sample`, `_log_prob` and `_probs`, whose arguments are checked, and
    `_prepare` if it looks at the class vectors; then it enters the registry in
    `samplesoft.samplers`. With ``device="cuda"`` the arguments of these methods are device arrays:
    kernels for them are in ``kernels/x_cuda.py``, and what launches them in
    ``samplers/x_cuda.py``, as `samplers.static_cuda` shows.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    dim : int or None
        Length d of context and class vectors; None if the sampler does not look at them.
    dtype : numpy.dtype or None
        Type that vectors are turned into; None for float32 as it comes and float64 for the rest.
    device : {"cpu", "cuda"}
        Where it computes, and where what it returns stays.

    Attributes
    ----------
    num_classes, dim, device
        As above.
    tau : float or None
        Inverse temperature of the logits ``tau h . c`` that the draws follow; None where there is
        none, as for counts, or for a kernel with a sharpness of its own.
    """

    tau: float | None = None

    def __init__(
        self,
        num_classes: int,
        dim: int | None = None,
        dtype: np.dtype[Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self.num_classes = num_classes
        self.dim = dim
        self._dtype = dtype
        self.device = as_device(device)
        self._arrays = arrays_on(device)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made from."""
        require_copyable(self, self.device)
        return self.__dict__

    def sample(
        self,
        h: ArrayLike | None,
        num_sampled: int,
        *,
        exclude: Any = None,
        shared: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> Draw:
        """Draw `num_sampled` classes for each context.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,), or None
            Context vectors. A sampler that does not look at them takes B from their number; where
            they are None from that of `exclude`, else B = 1.
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            A class for each context that is never drawn, such as its label.
        shared : bool
            Draw one set for the whole batch, from the mean of its distributions.
        rng : int or numpy.random.Generator or None
            Seed of the draws. The same seed gives the same draws at any number of threads.

        Returns
        -------
        Draw
            ``ids`` and ``log_q`` of shape (B, m), or (1, m) if `shared`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or nothing is left to draw.
        """
        contexts, excluded = self._read(h, exclude)
        m = as_count("num_sampled", num_sampled)
        key = as_key(rng)
        if not shared or contexts.shape[0] == 1:
            return self._sample(contexts, m, excluded, key)
        if exclude is not None:
            raise ValueError(
                "`exclude` must be None with shared=True, for one set cannot leave out a class "
                f"of each of {contexts.shape[0]} examples, got {np.size(exclude)}; mask "
                "hits of the label in the loss."
            )
        return self._sample_shared(contexts, m, key)

    def log_prob(self, h: ArrayLike | None, ids: Any, *, exclude: Any = None) -> FloatArray:
        """Return the log-probability of given classes.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,), or None
            Context vectors, as in `sample`.
        ids : array_like of int, shape (B, k) or (k,)
            Classes; one row serves all contexts. For one class of each, write ``ids[:, None]``.
        exclude : int or array_like of int, shape (B,), optional
            Classes that are not drawn; their log-probability is -inf.

        Returns
        -------
        ndarray of float64, shape (B, k)
            Natural logarithms.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        contexts, excluded = self._read(h, exclude)
        classes = self._arrays.ids("ids", ids, self.num_classes, contexts.shape[0])
        return self._log_prob(contexts, classes, excluded)

    def log_expected_count(
        self, h: ArrayLike | None, ids: Any, num_sampled: int, *, exclude: Any = None
    ) -> FloatArray:
        """Return how often `num_sampled` draws contain given classes in the mean, as logarithms.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,), or None
            Context vectors, as in `sample`.
        ids : array_like of int, shape (B, k) or (k,)
            Classes, as in `log_prob`.
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            Classes that are not drawn; their value is -inf.

        Returns
        -------
        ndarray of float64, shape (B, k)
            ``log(m q)`` with replacement, the log-probability of inclusion without.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        m = as_count("num_sampled", num_sampled)
        contexts, excluded = self._read(h, exclude)
        classes = self._arrays.ids("ids", ids, self.num_classes, contexts.shape[0])
        return self._log_expected_count(contexts, classes, m, excluded)

    def probs(self, h: ArrayLike | None, *, exclude: Any = None) -> FloatArray:
        """Return the probability of every class.

        Parameters
        ----------
        h : array_like, shape (B, d) or (d,), or None
            Context vectors, as in `sample`.
        exclude : int or array_like of int, shape (B,), optional
            Classes that are not drawn.

        Returns
        -------
        ndarray of float64, shape (B, n)
            Each row sums to 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        return self._probs(*self._read(h, exclude))

    def update(self, ids: Any, class_embeddings: ArrayLike) -> None:
        """Tell the sampler of new class vectors; one that does not look at them ignores it.

        Parameters
        ----------
        ids : array_like of int, shape (k,)
            Classes whose vectors have changed. Of a class named twice, the last vector counts.
        class_embeddings : array_like, shape (k, d)
            Their new vectors.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed; nothing has changed then.
        """
        classes = self._arrays.ids("ids", ids, self.num_classes)
        if not classes.shape[0] and 0 in np.shape(class_embeddings):
            return
        rows = self._class_rows(class_embeddings)
        if rows.shape[0] != classes.shape[0]:
            raise ValueError(
                f"`class_embeddings` must have one row for each of `ids`, got shapes {rows.shape} "
                f"and {classes.shape}."
            )
        self._prepare(classes, rows)()

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:  # noqa: B027
        """Draw anew what serves many draws; most samplers have no such thing.

        Parameters
        ----------
        rng : int, numpy.random.Generator or None
            Seed; that of the draws themselves may be the same.
        """

    def observe(self, labels: Any) -> None:  # noqa: B027
        """Learn from labels; most samplers do not.

        Parameters
        ----------
        labels : array_like of int, shape (k,)
            Observed classes, each as often as it occurs.
        """

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what has been learned and does not follow from class vectors; often nothing."""
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state` of a sampler made in the same way.

        Parameters
        ----------
        state : mapping of str to ndarray
            From `state`.

        Raises
        ------
        TypeError, ValueError
            If it is of another sampler; nothing has changed then.
        """
        if state:
            raise ValueError(
                f"`state` must be empty for {type(self).__name__}, got {', '.join(state)}; it is "
                "that of another sampler."
            )

    def _read(self, h: ArrayLike | None, exclude: Any) -> tuple[Rows, IntArray]:
        """Check contexts and excluded classes."""
        if h is None and self.dim is None:
            contexts: Rows = np.empty((max(1, sum(np.shape(exclude)[:1])), 0))
        else:
            contexts = self._contexts(h)
        return contexts, self._excluded(exclude, contexts.shape[0])

    def _contexts(self, h: ArrayLike | None) -> Rows:
        """Check context vectors; override to ask more of them."""
        if h is None:
            raise TypeError(
                f"`h` must hold context vectors of shape (B, {self.dim}), got None; only "
                "samplers that do not look at them take None."
            )
        if self.dim is None and self.device == "cpu":
            contexts = np.atleast_2d(np.asarray(h))
            if contexts.ndim != 2 or contexts.dtype.kind != "f" or len(contexts) == 0:
                raise ValueError(
                    "`h` must hold context vectors of shape (B, d), or be None, got "
                    f"{contexts.dtype} of shape {np.shape(h)}; labels go to `exclude`."
                )
            return contexts
        rows: Rows = self._arrays.float_rows("h", h, self.dim, self._dtype)
        return rows

    def _class_rows(self, class_embeddings: ArrayLike) -> Rows:
        """Check class vectors; override to ask more of them."""
        rows: Rows = self._arrays.float_rows(
            "class_embeddings", class_embeddings, self.dim, self._dtype
        )
        return rows

    def _excluded(self, exclude: Any, batch: int) -> IntArray:
        if exclude is None:
            nobody: IntArray = self._arrays.filled(batch, NOTHING)
            return nobody
        labels: IntArray = self._arrays.labels("exclude", exclude, self.num_classes, (batch,))
        if self.num_classes == 1:
            raise ValueError(
                "`exclude` must leave a class to draw, got the only one of 1 class; "
                "leave `exclude` out."
            )
        return labels

    def _sample_shared(self, h: Rows, m: int, key: np.uint64) -> Draw:
        """Draw from the mean over the batch: each draw from a context of its own."""
        if self.device == "cuda":
            from samplesoft._device.draws_cuda import sample_shared

            return Draw(*sample_shared(self, h, m, key))
        stream, rest = np.uint64(mix64(key, np.uint64(0))), np.uint64(mix64(key, np.uint64(1)))
        owner = (uniform_block(stream, 1, m)[0] * len(h)).astype(np.int64)
        order = np.argsort(owner, kind="stable")
        contexts, counts = np.unique(owner, return_counts=True)
        drawn = self._sample(h[contexts], counts.max(), np.full(len(contexts), NOTHING), rest).ids
        ids = np.empty((1, m), np.int64)
        ids[0, order] = drawn[np.arange(counts.max()) < counts[:, None]]
        every = self._log_prob(h, np.repeat(ids, len(h), axis=0), np.full(len(h), NOTHING))
        return Draw(ids, np.logaddexp.reduce(every, axis=0, keepdims=True) - np.log(len(h)))

    @abstractmethod
    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw for checked arguments; `exclude` (B,) holds `NOTHING` where nothing is excluded."""

    @abstractmethod
    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return log-probabilities (B, k)."""

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        """Return logarithms (B, k); override where draws are without replacement."""
        log_counts: FloatArray = self._arrays.plus(self._log_prob(h, ids, exclude), np.log(m))
        return log_counts

    @abstractmethod
    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return probabilities (B, n)."""

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen, having raised whatever there is to raise."""
        return lambda: None
