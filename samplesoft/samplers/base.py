"""The base of all samplers of the library: public methods that check, hooks that compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.arrays import ARRAYS, HostArrays
from samplesoft._device.select import as_device, require_copyable, twin
from samplesoft._memory import require_room
from samplesoft._random import as_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_flag,
    as_named_arrays,
)
from samplesoft.samplers.draw import NO_CLASS, Draw, Rows
from samplesoft.samplers.shared import pool, sample_mean

__all__ = ["Draw", "Rows", "Sampler"]


class Sampler(ABC):
    """A distribution over classes for each context vector.

    To try a sampler of your own, derive from `DenseSampler` and write its one method. What follows
    is for those of the library, which draw without computing all n probabilities.

    The public methods check their arguments once and call the hooks below, which trust them:
    `_sample`, `_log_prob` and `_probs`, and `_prepare` where draws depend on class vectors. In a
    hook, ``exclude`` (B,) holds the excluded class of each context, or `NO_CLASS` where there is
    none; ``key`` is the key of a random stream, so that draws depend on the seed and not on
    threads. With ``device="cuda"`` the arrays are on the device: kernels for them are in
    ``kernels/samplers/x_cuda.py``, and what launches them in ``samplers/x_cuda.py``, as
    `samplers.static_cuda` shows.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    dim : int or None
        Length d of context and class vectors; None if draws do not depend on them.
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
        self._arrays: HostArrays = twin(device, ARRAYS)

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
            Context vectors. A sampler whose draws do not depend on them takes B from their
            number; where they are None, from that of `exclude`; else B = 1.
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            A class for each context that is never drawn, such as its label.
        shared : bool
            Draw one set for the whole batch, from the mean of its distributions. Of more than 32
            contexts, groups of similar ones are each stood for by one of their mean direction: 32
            of them, or one for each 20 contexts if that is more.
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
        MemoryError
            If so many draws do not fit.
        """
        contexts, excluded = self._check(h, exclude)
        m = as_count("num_sampled", num_sampled)
        key = as_key(rng)
        require_room("num_sampled", m, 16.0 * m * contexts.shape[0])
        contexts, excluded, shares = self._pooled(contexts, excluded, exclude, shared)
        if shares is None:
            return self._sample(contexts, m, excluded, key)
        return self._sample_mean(contexts, shares, m, key)

    def log_prob(
        self, h: ArrayLike | None, ids: Any, *, exclude: Any = None, shared: bool = False
    ) -> FloatArray:
        """Return the log-probability of given classes.

        Parameters
        ----------
        h, exclude, shared
            As in `sample`. The log-probability of an excluded class is -inf.
        ids : array_like of int, shape (B, k) or (k,)
            Classes; one row serves all contexts. For one class of each, write ``ids[:, None]``.

        Returns
        -------
        ndarray of float64, shape (B, k), or (1, k) if `shared`
            Natural logarithms.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        return self._of_classes(self._log_prob, h, ids, exclude, shared)

    def log_expected_count(
        self,
        h: ArrayLike | None,
        ids: Any,
        num_sampled: int,
        *,
        exclude: Any = None,
        shared: bool = False,
    ) -> FloatArray:
        """Return how often `num_sampled` draws contain given classes in the mean, as logarithms.

        Parameters
        ----------
        h, num_sampled, exclude, shared
            As in `sample`. The value of an excluded class is -inf.
        ids : array_like of int, shape (B, k) or (k,)
            Classes, as in `log_prob`.

        Returns
        -------
        ndarray of float64, shape (B, k), or (1, k) if `shared`
            ``log(m q)`` with replacement, the log-probability of inclusion without.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        m = as_count("num_sampled", num_sampled)

        def count(contexts: Rows, classes: IntArray, excluded: IntArray) -> FloatArray:
            return self._log_expected_count(contexts, classes, m, excluded)

        return self._of_classes(count, h, ids, exclude, shared)

    def probs(
        self, h: ArrayLike | None, *, exclude: Any = None, shared: bool = False
    ) -> FloatArray:
        """Return the probability of every class.

        Parameters
        ----------
        h, exclude, shared
            As in `sample`.

        Returns
        -------
        ndarray of float64, shape (B, n), or (1, n) if `shared`
            Each row sums to 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        MemoryError
            If so many probabilities do not fit.
        """
        contexts, excluded = self._check(h, exclude)
        contexts, excluded, shares = self._pooled(contexts, excluded, exclude, shared)
        batch = contexts.shape[0]
        require_room("h", batch, 8.0 * batch * self.num_classes)
        probs = self._probs(contexts, excluded)
        return probs if shares is None else self._arrays.mean(probs, shares)

    def update(self, ids: Any, class_embeddings: ArrayLike) -> None:
        """Follow changed class vectors; a sampler that does not depend on them ignores this.

        Parameters
        ----------
        ids : array_like of int, shape (k,)
            Classes whose vectors have changed. Of a class named twice, the last vector counts.
        class_embeddings : array_like, shape (k, d)
            Their new vectors.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed; the sampler is unchanged then.
        """
        classes = self._arrays.ids("ids", ids, self.num_classes)
        if not classes.shape[0]:
            if not hasattr(class_embeddings, "shape"):
                class_embeddings = as_array("class_embeddings", class_embeddings)
            if 0 in class_embeddings.shape:
                return
        rows = self._check_class_rows(class_embeddings)
        if rows.shape[0] != classes.shape[0]:
            raise ValueError(
                f"`class_embeddings` must have one row for each of `ids`, got shapes {rows.shape} "
                f"and {classes.shape}."
            )
        self._prepare(classes, rows)()

    def __repr__(self) -> str:
        """Return the class, and what the sampler is for."""
        facts = [f"{self.num_classes:,} classes"]
        facts += [f"{name} {value}" for name in ("dim", "tau") if (value := getattr(self, name))]
        return f"<{type(self).__name__}: {', '.join(facts)}>"

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:  # noqa: B027
        """Draw anew what serves all draws of a batch, such as candidates; most samplers have none.

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
            If it is of another sampler; this one is unchanged then.
        """
        if as_named_arrays("state", state):
            raise ValueError(
                f"`state` must be empty for {type(self).__name__}, got {', '.join(state)}; it is "
                "that of another sampler."
            )

    def _of_classes(
        self,
        function: Callable[[Rows, IntArray, IntArray], FloatArray],
        h: ArrayLike | None,
        ids: Any,
        exclude: Any,
        shared: bool,
    ) -> FloatArray:
        """Check arguments, and call a hook that returns logarithms; of their mean if `shared`."""
        contexts, excluded = self._check(h, exclude)
        contexts, excluded, shares = self._pooled(contexts, excluded, exclude, shared)
        if shares is None:
            classes = self._arrays.ids("ids", ids, self.num_classes, contexts.shape[0])
            return function(contexts, classes, excluded)
        classes = self._arrays.ids("ids", ids, self.num_classes, 1)
        every = self._arrays.repeat_row(classes, contexts.shape[0])
        return self._arrays.log_mean(function(contexts, every, excluded), shares)

    def _pooled(
        self, contexts: Rows, excluded: IntArray, exclude: Any, shared: bool
    ) -> tuple[Rows, IntArray, FloatArray | None]:
        """Return checked contexts and excluded classes; if `shared`, what stands for the batch.

        These come with their shares, or None where one context serves or nothing is shared.
        """
        if not as_flag("shared", shared) or contexts.shape[0] == 1:
            return contexts, excluded, None
        if exclude is not None:
            raise ValueError(
                "`exclude` must be None with shared=True, for one set cannot leave out a class "
                f"of each of {contexts.shape[0]} examples, got {np.size(exclude)}; mask "
                "hits of the label in the loss."
            )
        contexts, shares = pool(self, contexts)
        nothing = self._check_excluded(None, contexts.shape[0])
        return contexts, nothing, shares if contexts.shape[0] > 1 else None

    def _check(self, h: ArrayLike | None, exclude: Any) -> tuple[Rows, IntArray]:
        """Check contexts and excluded classes."""
        if h is None and self.dim is None:
            contexts: Rows = np.empty((max(1, sum(as_array("exclude", exclude).shape[:1])), 0))
        else:
            contexts = self._check_contexts(h)
        return contexts, self._check_excluded(exclude, contexts.shape[0])

    def _check_contexts(self, h: ArrayLike | None) -> Rows:
        """Check context vectors; a subclass may ask more of them."""
        if h is None:
            raise TypeError(
                f"`h` must hold context vectors of shape (B, {self.dim}), got None; only "
                "samplers that do not look at them take None."
            )
        if self.dim is None and self.device == "cpu":
            contexts = np.atleast_2d(as_array("h", h))
            if contexts.ndim != 2 or contexts.dtype.kind != "f" or 0 in np.shape(h)[:1]:
                raise ValueError(
                    "`h` must hold context vectors of shape (B, d), B > 0, or be None, got "
                    f"{contexts.dtype} of shape {np.shape(h)}; labels go to `exclude`."
                )
            return contexts
        return self._arrays.float_rows("h", h, self.dim, self._dtype)

    def _check_class_rows(self, class_embeddings: ArrayLike) -> Rows:
        """Check class vectors; a subclass may ask more of them."""
        return self._arrays.float_rows("class_embeddings", class_embeddings, self.dim, self._dtype)

    def _check_excluded(self, exclude: Any, batch: int) -> IntArray:
        if exclude is None:
            return self._arrays.filled(batch, NO_CLASS)
        labels: IntArray = self._arrays.labels("exclude", exclude, self.num_classes, (batch,))
        if self.num_classes == 1:
            raise ValueError(
                "`exclude` must leave a class to draw, got the only one of 1 class; "
                "leave `exclude` out."
            )
        return labels

    def _sample_mean(self, h: Rows, shares: FloatArray, m: int, key: np.uint64) -> Draw:
        """Draw one set from the mean over contexts (R, d) by their shares (R,)."""
        return sample_mean(self, h, shares, m, key)

    @abstractmethod
    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""

    @abstractmethod
    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return log-probabilities (B, k)."""

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        """Return logarithms (B, k); override where draws are without replacement."""
        return self._arrays.plus(self._log_prob(h, ids, exclude), np.log(m))

    @abstractmethod
    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return probabilities (B, n)."""

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Check and compute an update, and return a function that applies it and cannot fail."""
        return lambda: None
