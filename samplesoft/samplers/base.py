"""The base class `Sampler` of all proposal distributions, and its result `Draw`.

The public methods of `Sampler` check their arguments and call private hooks, which compute. A batch
may share one set of draws, which then come from the mean of the distributions of its contexts. In a
large batch, each group of similar contexts is first replaced by one representative context, so that
only a few distributions are evaluated. Draws and probabilities both refer to the representatives,
which depend on the contexts alone and not on the seed of the draws.
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
from samplesoft._random import mix64, stream_key, uniform_block
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
# a private method, such as `_log_prob`, that returns logarithms for (contexts, ids, exclude)
LogHook = Callable[[Rows, IntArray, IntArray], FloatArray]
NO_CLASS = -1  # stands for "no class" in internal arrays of class indices
_NO_EXCLUSION = np.array([NO_CLASS])
# largest batch whose contexts all take part in shared draws; a larger one is first divided into
# groups of similar contexts
_MAX_UNPOOLED_CONTEXTS = 32
_CONTEXTS_PER_GROUP = 20  # average number of contexts in a group of a large batch


@cache
def _cached_log(count: int) -> np.float64:
    """Return log(count) as a NumPy float64, so that its sum with float32 values is in float64."""
    return np.float64(np.log(count))


@dataclass(frozen=True, eq=False)
class Draw:
    """Sampled classes and the probability of each draw.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, m)
        Sampled classes; shape (1, m) for one set shared by the batch.
    log_q : ndarray of float64, shape (B, m)
        Natural logarithm of the probability of the class in one draw. If a class is excluded,
        probabilities are conditional on not drawing the excluded class.
    log_inclusion : ndarray of float64, shape (B, m), or None
        For draws without replacement, the natural logarithm of the probability that the m draws
        contain the class. If the sampler always includes some classes, the logarithm of the
        expected count of each class. Otherwise None.
    """

    ids: IntArray
    log_q: FloatArray  # exact, even if the sampler only approximates a softmax
    log_inclusion: FloatArray | None = None

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of the expected count of each class among the m draws, shape of `ids`.

        The value is `log_inclusion` if that is not None, and ``log(m q)`` otherwise.
        """
        if self.log_inclusion is not None:
            return self.log_inclusion
        if type(self.log_q) is np.ndarray:  # fast path for arrays on the CPU
            return self.log_q + _cached_log(self.ids.shape[1])
        log_counts = to_host(self.log_q) + np.log(self.ids.shape[1])
        return backend_of(self.log_q).to_device(log_counts)

    def to_host(self) -> Draw:
        """Return the draw with NumPy arrays; arrays on a GPU are copied to the host."""
        inclusion = None if self.log_inclusion is None else to_host(self.log_inclusion)
        return Draw(to_host(self.ids), to_host(self.log_q), inclusion)


class Sampler(ABC):
    """A distribution over classes for each context vector.

    To try your own sampler, derive from `DenseSampler` and write one method. Any class with the
    public methods and attributes of `Sampler` is accepted as a sampler, even if it does not derive
    from a class of the library. The next paragraph is for samplers in the library itself, which
    draw without computing all n probabilities.

    The public methods check their arguments and call private hooks, which a subclass implements:
    `_sample`, `_log_prob` and `_probs`, and `_prepare_update` if draws depend on class vectors.
    Hooks receive checked arguments. The array ``exclude`` (B,) holds the excluded class of each
    context, or `NO_CLASS`. The value ``key`` selects a random stream, so that draws depend on the
    seed and not on threads. With ``device="cuda"`` the arrays are on the device, and operations
    that differ between devices are methods of `samplesoft._device.Backend`. A `SoftmaxLayer` on a
    GPU also accepts samplers on the CPU, and copies their draws.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    dim : int or None
        Length d of context and class vectors; None if draws do not depend on them.
    dtype : numpy.dtype or None
        Type that vectors are converted to. None keeps float32 vectors and converts all others to
        float64.
    device : {"cpu", "cuda"}
        Device of the computation and of the results.

    Attributes
    ----------
    num_classes, dim, device
        As above.
    tau : float or None
        Inverse temperature of the logits ``tau h . c`` that the draws follow. None if the draws do
        not follow logits, but for example counts, or a kernel with a separate sharpness parameter.
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
    def _backend(self) -> Backend:
        """Array operations on the device of this sampler."""
        return backend(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle; raise an error for a sampler on a GPU."""
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
            Context vectors. A sampler that does not depend on context vectors only uses their
            number B; if `h` is None, B is the length of `exclude`, or 1.
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            One class for each context, such as its label, that is never drawn.
        shared : bool
            Draw one set for the whole batch, from the mean of the distributions of its contexts. A
            batch of more than 32 contexts is first clustered into max(32, B / 20) groups; each
            group is represented by its mean direction.
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
        # each draw is a function of this key and of its row and column in the result
        key = stream_key(rng)

        # a draw takes 8 bytes in `ids` and 8 in `log_q`
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
            Classes. One row (k,) serves all contexts; for one class per context, pass
            ``ids[:, None]``.

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
            ``log(m q)`` for draws with replacement, and the logarithm of the inclusion probability
            for draws without replacement.

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
        return probs if weights is None else self._backend.to_device(weights[None] @ to_host(probs))

    def update(self, ids: Any, class_embeddings: ArrayLike) -> None:
        """Replace vectors of classes; a no-op for samplers that do not depend on class vectors.

        Parameters
        ----------
        ids : array_like of int, shape (k,)
            Classes whose vectors have changed. If a class is repeated, its last vector counts.
        class_embeddings : array_like, shape (k, d)
            New vectors of these classes.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed; the sampler is then unchanged.
        """
        # An update of no classes is valid: return before the check of vectors, which refuses a
        # matrix without rows.
        classes = self._backend.ids("ids", ids, self.num_classes)
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
            # `_prepare_update` checks, and the function that it returns applies the update: an
            # update that raises changes nothing
            self._prepare_update(classes, rows)()

    def __repr__(self) -> str:
        """Return the class name, the number of classes, and `dim` and `tau` if they are set."""
        properties = [f"{self.num_classes:,} classes"]
        properties += [
            f"{name} {value}" for name in ("dim", "tau") if (value := getattr(self, name))
        ]
        return f"<{type(self).__name__}: {', '.join(properties)}>"

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:  # noqa: B027
        """Redraw the candidates, the only classes that draws of a batch may give.

        A `TwoPassSampler`, alone or in a combination, has candidates. Other samplers do nothing.

        Parameters
        ----------
        rng : int, numpy.random.Generator or None
            Seed of the candidates, which may equal the seed of the draws.
        """

    def observe(self, labels: Any) -> None:  # noqa: B027
        """Update learned class frequencies by observed labels; most samplers ignore the call.

        Parameters
        ----------
        labels : array_like of int, shape (k,)
            Observed classes; a class that was observed several times appears several times.
        """

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the sampler has learned, by name.

        Arrays that can be computed from the class vectors are left out.
        """
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the learned arrays of a sampler that was made with the same arguments.

        Parameters
        ----------
        state : mapping of str to ndarray
            The arrays that the method `state` returned.

        Raises
        ------
        TypeError, ValueError
            If the arrays are of another kind of sampler; this sampler is then unchanged.
        """
        if as_array_dict("state", state):
            raise ValueError(
                f"`state` must be empty for {type(self).__name__}, got {', '.join(state)}; it is "
                "that of another sampler."
            )

    def _evaluate_log_hook(
        self, hook: LogHook, h: ArrayLike | None, ids: Any, exclude: Any, shared: bool
    ) -> FloatArray:
        """Check the arguments, and return the logarithms (B, k) that `hook` computes from them.

        With `shared`, return the logarithm (1, k) of the mean over the contexts of the quantity
        whose logarithm `hook` computes.
        """
        contexts, excluded, weights = self._checked_arguments(h, exclude, shared)
        if weights is None:
            classes = self._backend.ids("ids", ids, self.num_classes, contexts.shape[0])
            return hook(contexts, self._backend.writable(classes), excluded)

        classes = self._backend.ids("ids", ids, self.num_classes, 1)
        # the mean over contexts needs the value of each class for every context
        repeated = self._backend.to_device(np.repeat(to_host(classes), contexts.shape[0], axis=0))
        return self._log_mean_exp(hook(contexts, repeated, excluded), weights)

    def _log_mean_exp(self, logs: FloatArray, weights: FloatArray) -> FloatArray:
        """Return ``log(weights @ exp(logs))`` (1, k) for `logs` (R, k) and `weights` (R,)."""
        # in logarithms, because the probabilities themselves may underflow
        weighted = to_host(logs) + np.log(weights)[:, None]
        return self._backend.to_device(np.logaddexp.reduce(weighted, axis=0, keepdims=True))

    def _checked_arguments(
        self, h: ArrayLike | None, exclude: Any, shared: bool
    ) -> tuple[Rows, IntArray, FloatArray | None]:
        """Check the arguments; return contexts (B, d), excluded classes (B,) and weights (B,).

        If `shared`, the contexts are the representatives of the batch, and one set of classes is
        drawn from the mixture of their distributions with these weights. The weights are None if
        draws are not shared, or if one context represents the batch.
        """
        if self.dim is None and shared is True and exclude is None and type(h) is np.ndarray:
            # fast path: the sampler ignores contexts, so that the first represents the batch
            if h.ndim == 2 and h.shape[0] and h.dtype.kind == "f" and self.device == "cpu":
                return h[:1], _NO_EXCLUSION, None

        if h is None and self.dim is None:
            # only the number of contexts matters: one for each excluded class
            contexts: Rows = np.empty((max(1, sum(as_array("exclude", exclude).shape[:1])), 0))
        else:
            contexts = self._checked_contexts(h)

        batch = contexts.shape[0]
        excluded = self._checked_excluded(exclude, batch)

        # a single context needs no average: `shared` has no effect, and `exclude` is allowed
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

        Similar contexts are grouped by k-means. The representative of a group has the mean
        direction and the mean norm of its contexts, and its weight is the fraction of the batch
        that is in the group. In a batch of up to 32 contexts, each represents itself. For a sampler
        that ignores contexts, the first context represents all.
        """
        batch = h.shape[0]
        if self.dim is None:
            return self._backend.take_rows(h, np.zeros(1, np.int64)), np.ones(1)
        if batch <= _MAX_UNPOOLED_CONTEXTS:
            return h, np.full(batch, 1.0 / batch)

        rows: Rows = to_host(h).astype(np.float64)
        max_abs = np.abs(rows).max()
        if max_abs > 0.0:
            rows /= max_abs  # so that squares neither overflow nor all underflow

        # Center before rounding to float32. Otherwise, if the contexts have a large common
        # component, the digits in which they differ would be rounded away.
        centered = rows - rows.mean(axis=0)
        max_abs_centered = np.abs(centered).max()
        if max_abs_centered > 0.0:
            centered /= max_abs_centered

        # k-means gets a fixed seed, because the distribution must not depend on the seed of draws
        groups = k_means(
            centered.astype(np.float32),
            max(_MAX_UNPOOLED_CONTEXTS, batch // _CONTEXTS_PER_GROUP),
            np.uint64(0),
        )
        order = np.argsort(groups, kind="stable")
        _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
        norms = np.sqrt((rows**2).sum(axis=1))

        # Scale the mean direction to the mean norm. The mean vector itself may be much shorter, and
        # its distribution of classes would be flatter than the distributions of the contexts.
        mean_norms = np.add.reduceat(norms[order], starts) / counts
        sums = np.add.reduceat(rows[order], starts)  # each sum has the mean direction of its group
        lengths = np.sqrt((sums**2).sum(axis=1))

        # if the vectors of a group sum to about 0, its first context represents it
        cancels = lengths <= 1e-6 * counts * mean_norms
        sums[cancels] = rows[order[starts[cancels]]]
        lengths[cancels] = norms[order[starts[cancels]]]

        factors = np.divide(mean_norms, lengths, out=np.zeros_like(lengths), where=lengths > 0.0)
        pooled = sums * (factors * max_abs)[:, None]
        return self._backend.float_rows("h", pooled.astype(h.dtype)), counts / batch

    def _checked_contexts(self, h: ArrayLike | None) -> Rows:
        """Return checked context vectors (B, d); a subclass may add requirements."""
        if h is None:
            raise TypeError(
                f"`h` must hold context vectors of shape (B, {self.dim}), got None; only "
                "samplers that ignore them accept None."
            )

        # a sampler that ignores contexts still raises if labels were passed as `h` by mistake
        if self.dim is None and self.device == "cpu":
            contexts = np.atleast_2d(as_array("h", h))
            if contexts.ndim != 2 or contexts.dtype.kind != "f" or 0 in np.shape(h)[:1]:
                raise ValueError(
                    "`h` must hold context vectors of shape (B, d), B > 0, or be None, got "
                    f"{contexts.dtype} of shape {np.shape(h)}; labels go to `exclude`."
                )
            return contexts

        return self._backend.float_rows("h", h, self.dim, self._dtype)

    def _checked_class_rows(self, class_embeddings: ArrayLike) -> Rows:
        """Return checked class vectors (k, d); a subclass may add requirements."""
        return self._backend.float_rows("class_embeddings", class_embeddings, self.dim, self._dtype)

    def _checked_excluded(self, exclude: Any, batch: int) -> IntArray:
        """Return checked excluded classes (batch,), all `NO_CLASS` if `exclude` is None."""
        if exclude is None:
            return self._backend.to_device(np.full(batch, NO_CLASS))

        labels: IntArray = self._backend.labels("exclude", exclude, self.num_classes, (batch,))
        # if the only class were excluded, probabilities would be 0 / 0
        if self.num_classes == 1:
            raise ValueError(
                "`exclude` must leave a class to draw, got the only one of 1 class; omit `exclude`."
            )

        # writable, because Numba would compile the kernels again for read-only arrays
        return self._backend.writable(labels)

    def _sample_shared(self, h: Rows, weights: FloatArray, m: int, key: np.uint64) -> Draw:
        """Draw one set (1, m) from the mixture of the distributions of contexts `h` (R, d).

        `weights` (R,) are the mixture weights. ``log_q`` of the result is the log-probability in
        the mixture.
        """
        arrays = self._backend
        # one random stream chooses the context of each draw, another one draws the classes
        choice_key = np.uint64(mix64(key, np.uint64(0)))
        draw_key = np.uint64(mix64(key, np.uint64(1)))

        ends = np.cumsum(weights[:-1])
        chosen = np.searchsorted(ends, uniform_block(choice_key, 1, m)[0], side="right")
        contexts, slots, counts = np.unique(chosen, return_inverse=True, return_counts=True)

        # draw k of the set is draw number turns[k] of the context that was chosen for it
        turns = np.empty(m, np.int64)
        turns[np.argsort(chosen, kind="stable")] = np.arange(m) - np.repeat(
            np.cumsum(counts) - counts, counts
        )

        # Every chosen context draws as many classes as the most frequently chosen context needs.
        # Surplus draws are discarded.
        chosen_contexts = arrays.take_rows(h, contexts)
        no_exclusion = self._checked_excluded(None, len(contexts))
        drawn = self._sample(chosen_contexts, int(counts.max()), no_exclusion, draw_key).ids
        ids = to_host(drawn)[slots, turns][None]

        no_exclusion = self._checked_excluded(None, h.shape[0])
        repeated = arrays.to_device(np.repeat(ids, h.shape[0], axis=0))
        log_q = self._log_prob(h, repeated, no_exclusion)
        return Draw(arrays.to_device(ids), self._log_mean_exp(log_q, weights))

    @abstractmethod
    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context of `h` (B, d), but never its class in `exclude` (B,)."""

    @abstractmethod
    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes `ids` (B, k).

        The log-probability of the excluded class in `exclude` (B,) is -inf.
        """

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        """Return the log of the expected count in m draws of each class of `ids` (B, k).

        This default, ``log(m q)``, is for draws with replacement.
        """
        return self._backend.to_device(to_host(self._log_prob(h, ids, exclude)) + np.log(m))

    @abstractmethod
    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes, 0 for classes in `exclude` (B,)."""

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log (B,) of the sum of unnormalised weights, without the excluded classes.

        A distributed layer chooses a shard in proportion to this sum. Samplers that do not support
        distributed layers do not implement it.
        """
        raise NotImplementedError

    def _prepare_update(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Check and compute an update of class vectors; return a function that applies it.

        All errors are raised here, and the returned function cannot fail, so that an update that
        raises changes nothing.
        """
        return lambda: None


def as_sampler(name: str, value: Any) -> Sampler:
    """Return the argument `name`, or raise a TypeError that lists the members it lacks."""
    members = ["num_classes", "dim", "device"]
    members += [key for key in vars(Sampler) if not key.startswith("_")]

    # a user's class need not derive from `Sampler`
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        got = type(value).__name__
        # the message lists the missing members, unless all are missing
        if len(missing) < len(members):
            got += f" without {', '.join(missing)}"
        raise TypeError(
            f"`{name}` must be a Sampler, got {got}; samplesoft.samplers has some, and "
            "samplesoft.samplers.DenseSampler is a base for your own."
        )

    return value  # type: ignore[no-any-return]
