"""The base class `Sampler` of all proposal distributions, and its result `Draw`.

The public methods of `Sampler` check arguments, and hooks compute. If a batch shares one set of
draws, they come from the mean of the distributions of its contexts. A large batch is pooled first:
groups of similar contexts are replaced by one representative each, so that a set costs the
distributions of a few contexts. The draws and their probabilities are those of the pooled batch,
which is a function of the contexts alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import Backend, backend, backend_of
from samplesoft._device.select import as_device, require_copyable, to_host
from samplesoft._memory import require_memory
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_array_dict,
    as_count,
    as_flag,
)
from samplesoft.samplers.k_means import k_means

Rows = NDArray[Any]  # float32 or float64 vectors, one in each row
LogHook = Callable[[Rows, IntArray, IntArray], FloatArray]  # (contexts, classes, excluded classes)
NO_CLASS = -1  # "no class" in internal arrays of classes
_NO_EXCLUSION = np.array([NO_CLASS])
_MAX_UNPOOLED_CONTEXTS = 32  # contexts of a shared set up to which they are not pooled
_CONTEXTS_PER_GROUP = 20  # mean size of the groups of a large batch


@cache
def _cached_log(count: int) -> np.float64:
    """Return the logarithm of a count as a NumPy scalar, which promotes float32 to float64."""
    return np.float64(np.log(count))


@dataclass(frozen=True, eq=False)
class Draw:
    """Sampled classes and the probability of each draw.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, m)
        Sampled classes; shape (1, m) for one set shared by the batch.
    log_q : ndarray of float64, shape (B, m)
        Natural logarithm of the probability of this class in one draw, in the distribution that
        was drawn from: without the excluded class if there is one.
    log_inclusion : ndarray of float64, shape (B, m), or None
        Natural logarithm of the probability that the set of m contains this class, for draws
        without replacement; of its expected count, if some classes are always included; else None.
    """

    ids: IntArray
    log_q: FloatArray  # exact for the distribution drawn from, not for an ideal one
    log_inclusion: FloatArray | None = None

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of the expected count of each class in a draw of m.

        It is ``log(m q)`` with replacement, and `log_inclusion` otherwise.
        """
        if self.log_inclusion is not None:
            return self.log_inclusion
        if type(self.log_q) is np.ndarray:  # the common case
            return self.log_q + _cached_log(self.ids.shape[1])
        log_counts = to_host(self.log_q) + np.log(self.ids.shape[1])
        return backend_of(self.log_q).to_device(log_counts)

    def to_host(self) -> Draw:
        """Return the draw in NumPy arrays, copied if they are on a GPU."""
        inclusion = None if self.log_inclusion is None else to_host(self.log_inclusion)
        return Draw(to_host(self.ids), to_host(self.log_q), inclusion)


class Sampler(ABC):
    """A distribution over classes for each context vector.

    To try a sampler of your own, derive from `DenseSampler` and write its one method. A class with
    the public methods and attributes of this one is accepted wherever a sampler is, even without a
    base class of the library. The rest of this text is for samplers of the library, which draw
    without computing all n probabilities.

    The public methods check their arguments once and call the hooks below, which trust them:
    `_sample`, `_log_prob` and `_probs`, and `_prepare_update` if draws depend on class vectors. In
    a hook, ``exclude`` (B,) holds the excluded class of each context, or `NO_CLASS`; ``key`` is the
    key of a random stream, so that draws depend on the seed and not on threads. With
    ``device="cuda"`` the arrays are on the device, and operations that differ between devices are
    methods of `samplesoft._device.Backend`. A `SoftmaxLayer` on a GPU accepts samplers on the CPU
    too, and copies their draws.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    dim : int or None
        Length d of context and class vectors; None if draws do not depend on them.
    dtype : numpy.dtype or None
        Type that vectors are converted to; None keeps float32 and converts the rest to float64.
    device : {"cpu", "cuda"}
        Device of the computation and of the results.

    Attributes
    ----------
    num_classes, dim, device
        As above.
    tau : float or None
        Inverse temperature of the logits ``tau h . c`` that the draws follow. None if there is
        none, as for counts, or for a kernel with its own sharpness.
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

    @property
    def _arrays(self) -> Backend:
        return backend(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; raise for a sampler on a GPU."""
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
            Context vectors. A sampler that does not depend on them only uses their number B; if `h`
            is None, B is the length of `exclude`, or 1.
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            A class for each context that is never drawn, such as its label.
        shared : bool
            Draw one set for the whole batch, from the mean of its distributions. A batch of more
            than 32 contexts is first clustered into max(32, B / 20) groups; each group is
            represented by its mean direction.
        rng : int or numpy.random.Generator or None
            Seed of the draws. The same seed gives the same draws at any number of threads.

        Returns
        -------
        Draw
            ``ids`` and ``log_q`` of shape (B, m), or (1, m) if `shared`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or no class is left to draw.
        MemoryError
            If the draws do not fit in memory.
        """
        contexts, excluded, weights = self._checked_arguments(h, exclude, shared)
        m = as_count("num_sampled", num_sampled)
        # one key for the call: each draw is a function of the key, its row and its column
        key = as_key(rng)
        # ids and log_q, 8 bytes each, checked before either is allocated
        require_memory("num_sampled", m, 16.0 * m * contexts.shape[0])
        if weights is None:
            return self._sample(contexts, m, excluded, key)
        return self._sample_shared(contexts, weights, m, key)

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
        return self._evaluate_log_hook(self._log_prob, h, ids, exclude, shared)

    def log_expected_count(
        self,
        h: ArrayLike | None,
        ids: Any,
        num_sampled: int,
        *,
        exclude: Any = None,
        shared: bool = False,
    ) -> FloatArray:
        """Return the logarithm of the expected count of given classes in `num_sampled` draws.

        Parameters
        ----------
        h, num_sampled, exclude, shared
            As in `sample`. The value of an excluded class is -inf.
        ids : array_like of int, shape (B, k) or (k,)
            Classes, as in `log_prob`.

        Returns
        -------
        ndarray of float64, shape (B, k), or (1, k) if `shared`
            ``log(m q)`` with replacement, the log-inclusion-probability without.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        m = as_count("num_sampled", num_sampled)
        return self._evaluate_log_hook(
            lambda rows, classes, excluded: self._log_expected_count(rows, classes, m, excluded),
            h,
            ids,
            exclude,
            shared,
        )

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
            If the probabilities do not fit in memory.
        """
        contexts, excluded, weights = self._checked_arguments(h, exclude, shared)
        batch = contexts.shape[0]
        require_memory("h", batch, 8.0 * batch * self.num_classes)
        probs = self._probs(contexts, excluded)
        return probs if weights is None else self._arrays.to_device(weights[None] @ to_host(probs))

    def update(self, ids: Any, class_embeddings: ArrayLike) -> None:
        """Update class vectors; a sampler that does not depend on them ignores this.

        Parameters
        ----------
        ids : array_like of int, shape (k,)
            Classes whose vectors have changed. If a class is repeated, its last vector counts.
        class_embeddings : array_like, shape (k, d)
            Their new vectors.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed; the sampler is then unchanged.
        """
        # an empty update is valid, although a matrix without rows is malformed elsewhere
        classes = self._arrays.ids("ids", ids, self.num_classes)
        if not classes.shape[0]:
            if not hasattr(class_embeddings, "shape"):
                class_embeddings = as_array("class_embeddings", class_embeddings)
            if 0 in class_embeddings.shape:
                return
        rows = self._checked_class_rows(class_embeddings)
        if rows.shape[0] != classes.shape[0]:
            raise ValueError(
                f"`class_embeddings` must have one row for each of `ids`, got shapes {rows.shape} "
                f"and {classes.shape}."
            )
        if self.dim is not None:
            # two steps, so that a refused update changes nothing
            self._prepare_update(classes, rows)()

    def __repr__(self) -> str:
        """Return the class name, the number of classes and, if there are any, `dim` and `tau`."""
        properties = [f"{self.num_classes:,} classes"]
        properties += [
            f"{name} {value}" for name in ("dim", "tau") if (value := getattr(self, name))
        ]
        return f"<{type(self).__name__}: {', '.join(properties)}>"

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:  # noqa: B027
        """Redraw candidates that all draws of a batch share; most samplers have none.

        Parameters
        ----------
        rng : int, numpy.random.Generator or None
            Seed; it may equal the seed of the draws.
        """

    def observe(self, labels: Any) -> None:  # noqa: B027
        """Learn from labels; most samplers do not.

        Parameters
        ----------
        labels : array_like of int, shape (k,)
            Observed classes, each as often as it occurs.
        """

    def state(self) -> dict[str, NDArray[Any]]:
        """Return learned arrays that do not follow from class vectors; often none."""
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state` of a sampler that was made in the same way.

        Parameters
        ----------
        state : mapping of str to ndarray
            From `state`.

        Raises
        ------
        TypeError, ValueError
            If the state is of another sampler; this one is then unchanged.
        """
        if as_array_dict("state", state):
            raise ValueError(
                f"`state` must be empty for {type(self).__name__}, got {', '.join(state)}; it is "
                "that of another sampler."
            )

    def _evaluate_log_hook(
        self, hook: LogHook, h: ArrayLike | None, ids: Any, exclude: Any, shared: bool
    ) -> FloatArray:
        """Evaluate a hook that returns logarithms on checked arguments; if `shared`, average it."""
        contexts, excluded, weights = self._checked_arguments(h, exclude, shared)
        if weights is None:
            classes = self._arrays.ids("ids", ids, self.num_classes, contexts.shape[0])
            return hook(contexts, self._arrays.writable(classes), excluded)
        classes = self._arrays.ids("ids", ids, self.num_classes, 1)
        # the mean of probabilities, not of logarithms: evaluate all classes for each context
        repeated = self._arrays.to_device(np.repeat(to_host(classes), contexts.shape[0], axis=0))
        return self._log_mean_exp(hook(contexts, repeated, excluded), weights)

    def _log_mean_exp(self, logs: FloatArray, weights: FloatArray) -> FloatArray:
        """Return log(weights @ exp(logs)) (1, k) of logs (R, k) and weights `weights` (R,)."""
        # in logarithms, because the probabilities themselves may underflow
        weighted = to_host(logs) + np.log(weights)[:, None]
        return self._arrays.to_device(np.logaddexp.reduce(weighted, axis=0, keepdims=True))

    def _checked_arguments(
        self, h: ArrayLike | None, exclude: Any, shared: bool
    ) -> tuple[Rows, IntArray, FloatArray | None]:
        """Return checked contexts and excluded classes, and weights of the contexts, or None.

        If `shared`, contexts are those of the pooled batch. Weights are None if one context is
        enough or nothing is shared.
        """
        if self.dim is None and shared is True and exclude is None and type(h) is np.ndarray:
            # the sampler ignores contexts: one is enough for the shared draws of a batch
            if h.ndim == 2 and h.shape[0] and h.dtype.kind == "f" and self.device == "cpu":
                return h[:1], _NO_EXCLUSION, None
        if h is None and self.dim is None:
            # only the number of contexts is used: that of the labels
            contexts: Rows = np.empty((max(1, sum(as_array("exclude", exclude).shape[:1])), 0))
        else:
            contexts = self._check_contexts(h)
        batch = contexts.shape[0]
        excluded = self._checked_excluded(exclude, batch)
        # the mean over one context is its own distribution, which may have an excluded class
        if not as_flag("shared", shared) or batch == 1:
            return contexts, excluded, None
        if exclude is not None:
            raise ValueError(
                "`exclude` must be None with shared=True, for one set cannot leave out a class "
                f"of each of {batch} examples, got {np.size(exclude)}; mask hits of the label in "
                "the loss."
            )
        contexts, weights = self._representatives(contexts)
        pooled = contexts.shape[0]
        return contexts, self._checked_excluded(None, pooled), weights if pooled > 1 else None

    def _representatives(self, h: Rows) -> tuple[Rows, FloatArray]:
        """Return representatives (R, d) of a batch (B, d), and their weights (R,).

        The representative of a group has its mean direction and mean norm. Batches of up to 32 are
        returned unchanged; a sampler that does not use contexts gets one.
        """
        batch = h.shape[0]
        if self.dim is None:
            return self._arrays.take_rows(h, np.zeros(1, np.int64)), np.ones(1)
        if batch <= _MAX_UNPOOLED_CONTEXTS:
            return h, np.full(batch, 1.0 / batch)
        rows: Rows = to_host(h).astype(np.float64)
        largest = np.abs(rows).max()
        if largest > 0.0:
            rows /= largest  # so that squares neither overflow nor all underflow
        # centered before they are rounded to float32: a large common component would take the
        # digits in which the contexts differ
        centered = rows - rows.mean(axis=0)
        max_abs = np.abs(centered).max()
        if max_abs > 0.0:
            centered /= max_abs
        # a fixed seed, because the distribution must not depend on the seed of the draws
        groups = k_means(
            centered.astype(np.float32),
            max(_MAX_UNPOOLED_CONTEXTS, batch // _CONTEXTS_PER_GROUP),
            np.uint64(0),
        )
        order = np.argsort(groups, kind="stable")
        _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
        norms = np.sqrt((rows**2).sum(axis=1))
        # mean direction, scaled to the mean norm: the mean vector is shorter, its distribution
        # flatter
        mean_norms = np.add.reduceat(norms[order], starts) / counts
        sums = np.add.reduceat(rows[order], starts)  # direction of each group
        lengths = np.sqrt((sums**2).sum(axis=1))
        # contexts cancel: represent the group by one
        cancels = lengths <= 1e-6 * counts * mean_norms
        sums[cancels] = rows[order[starts[cancels]]]
        lengths[cancels] = norms[order[starts[cancels]]]
        factors = np.divide(mean_norms, lengths, out=np.zeros_like(lengths), where=lengths > 0.0)
        pooled = sums * (factors * largest)[:, None]
        return self._arrays.float_rows("h", pooled.astype(h.dtype)), counts / batch

    def _check_contexts(self, h: ArrayLike | None) -> Rows:
        """Check context vectors; a subclass may restrict them further."""
        if h is None:
            raise TypeError(
                f"`h` must hold context vectors of shape (B, {self.dim}), got None; only "
                "samplers that do not look at them take None."
            )
        # this sampler ignores contexts, but labels passed by mistake are caught
        if self.dim is None and self.device == "cpu":
            contexts = np.atleast_2d(as_array("h", h))
            if contexts.ndim != 2 or contexts.dtype.kind != "f" or 0 in np.shape(h)[:1]:
                raise ValueError(
                    "`h` must hold context vectors of shape (B, d), B > 0, or be None, got "
                    f"{contexts.dtype} of shape {np.shape(h)}; labels go to `exclude`."
                )
            return contexts
        return self._arrays.float_rows("h", h, self.dim, self._dtype)

    def _checked_class_rows(self, class_embeddings: ArrayLike) -> Rows:
        """Check class vectors; a subclass may restrict them further."""
        return self._arrays.float_rows("class_embeddings", class_embeddings, self.dim, self._dtype)

    def _checked_excluded(self, exclude: Any, batch: int) -> IntArray:
        if exclude is None:
            return self._arrays.to_device(np.full(batch, NO_CLASS))
        labels: IntArray = self._arrays.labels("exclude", exclude, self.num_classes, (batch,))
        # the probability would be 0 / 0
        if self.num_classes == 1:
            raise ValueError(
                "`exclude` must leave a class to draw, got the only one of 1 class; "
                "leave `exclude` out."
            )
        # kernels would be compiled again for a read-only array
        return self._arrays.writable(labels)

    def _sample_shared(self, h: Rows, weights: FloatArray, m: int, key: np.uint64) -> Draw:
        """Draw (1, m) from the mixture of the distributions of contexts (R, d).

        `weights` (R,) are the weights of the mixture. ``log_q`` is the log-probability in the
        mixture.

        ``log_q`` is the logarithm of the mean probability over all of them, on any device.
        """
        arrays = self._arrays
        # two streams: the context of each draw, and the draws of the contexts
        choice_key = np.uint64(mix64(key, np.uint64(0)))
        draw_key = np.uint64(mix64(key, np.uint64(1)))
        ends = np.cumsum(weights[:-1])
        chosen = np.searchsorted(ends, uniform_block(choice_key, 1, m)[0], side="right")
        contexts, slots, counts = np.unique(chosen, return_inverse=True, return_counts=True)
        turns = np.empty(m, np.int64)  # draw k is draw turns[k] of its context
        turns[np.argsort(chosen, kind="stable")] = np.arange(m) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        # each chosen context draws as many as the most frequent one needs; the rest is discarded
        chosen_contexts = arrays.take_rows(h, contexts)
        no_exclusion = self._checked_excluded(None, len(contexts))
        drawn = self._sample(chosen_contexts, int(counts.max()), no_exclusion, draw_key).ids
        ids = to_host(drawn)[slots, turns][None]
        no_exclusion = self._checked_excluded(None, h.shape[0])
        log_q = self._log_prob(
            h, arrays.to_device(np.repeat(ids, h.shape[0], axis=0)), no_exclusion
        )
        return Draw(arrays.to_device(ids), self._log_mean_exp(log_q, weights))

    @abstractmethod
    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""

    @abstractmethod
    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return log-probabilities (B, k)."""

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        """Return log-expected-counts (B, k); override for draws without replacement."""
        return self._arrays.to_device(to_host(self._log_prob(h, ids, exclude)) + np.log(m))

    @abstractmethod
    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return probabilities (B, n)."""

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return logarithms (B,) of the sum of the weights of all classes; only for shards."""
        raise NotImplementedError

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Check and compute an update, and return a function that applies it and cannot fail."""
        return lambda: None


def as_sampler(name: str, value: Any) -> Sampler:
    """Return the argument `name` if it is a sampler; the TypeError names missing members."""
    members = ["num_classes", "dim", "device"]
    members += [key for key in vars(Sampler) if not key.startswith("_")]
    # a user's class need not derive from `Sampler`
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        got = type(value).__name__
        # for an object that is no sampler at all, a list of all methods would not help
        if len(missing) < len(members):
            got += f" without {', '.join(missing)}"
        raise TypeError(
            f"`{name}` must be a Sampler, got {got}; samplesoft.samplers has some, and "
            "samplesoft.samplers.DenseSampler is a base for your own."
        )
    return value  # type: ignore[no-any-return]
