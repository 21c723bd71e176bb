"""The softmax layer, which combines class vectors, a loss, and a sampler of negatives."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import Backend, backend
from samplesoft._device.arrays import RemoteRows
from samplesoft._device.rows import union, unit_rows
from samplesoft._device.select import require_copyable, to_host
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array_dict,
    as_count,
    as_flag,
    make_arrays_writable,
)
from samplesoft.losses.base import Cache, Loss, SparseRows, Targets
from samplesoft.losses.sampled import SampledLoss, Seed
from samplesoft.metrics.evaluation import Evaluation, evaluate
from samplesoft.samplers.base import Draw, Rows, Sampler, as_sampler


def as_shared(value: bool | None, default: bool) -> bool:
    """Return the argument `shared` as a bool; if it is None, return `default`."""
    return default if value is None else as_flag("shared", value)


class SoftmaxLayer:
    """The last layer of a classifier: scores over n classes, and a loss on them.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors, float32 or float64; copied. Optimizers change the copy in `parameters`.
    loss : Loss
        A full or sampled loss from `samplesoft.losses`. Parameters and gradients are on the device
        of the loss. If the sampler is on the CPU while the loss is on a GPU, class vectors and
        draws are copied between them.
    sampler : Sampler, optional
        Sampler of negatives; required for sampled losses. Any object with the methods of `Sampler`
        is accepted. If the loss normalises vectors, the layer passes vectors of norm 1 to the
        sampler, which must have been made from such vectors.
    num_sampled : int, optional
        Number of draws m for each example, or for the batch if `shared`. Some losses, such as
        `MultilevelLoss`, draw more.
    biases : array_like, shape (n,), optional
        Class biases, trained with the vectors; samplers ignore them.
    shared : bool, optional
        Draw one set of classes for the whole batch. By default True if the sampler is independent
        of contexts, and the loss accepts draws of the label, which it masks or corrects.
    update_every : int
        Number of calls of `update` after which the sampler is updated. In between it draws from the
        proposal of the last update, with the probabilities of that proposal.
    allow_other_tau : bool
        Accept a sampler with another `tau` than the loss. The probabilities of draws are still
        right, but the proposal approximates another softmax than the one that is trained.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"class_embeddings"`` (n, d), and ``"biases"`` (n,) if the layer has them. They are Numba
        device arrays if the loss is on a GPU.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or loss and sampler are incompatible.

    Notes
    -----
    A training step consists of four calls:

    1. `forward` draws classes and computes the loss. If the loss has scheme ``"negatives"``, labels
       are excluded from the draws. A two-pass sampler first draws new candidates. A sampler that
       learns class counts observes the labels after the loss has been computed, except those of
       examples of weight 0;
    2. `backward` computes gradients; parameters must not have changed since `forward`;
    3. the optimizer's ``step(layer.parameters, gradients)`` changes the parameters;
    4. `update` tells the sampler the ids of the class vectors that have changed.

    If the sampler was made from other class vectors than those of the layer, call `refresh` before
    the first step.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> from samplesoft.optimizers import make_optimizer
    >>> from samplesoft.samplers import UniformSampler
    >>> rng = np.random.default_rng(0)
    >>> layer = SoftmaxLayer(rng.normal(size=(6, 2)), SampledSoftmaxLoss(), UniformSampler(6), 3)
    >>> loss, cache = layer.forward([[1.0, 0.0]], [4], rng=0)
    >>> dh, gradients = layer.backward(cache)
    >>> make_optimizer("sgd", 0.1).step(layer.parameters, gradients)
    >>> layer.update(gradients["class_embeddings"].ids)
    """

    _on_tree = False

    def __init__(
        self,
        class_embeddings: ArrayLike,
        loss: Loss,
        sampler: Sampler | None = None,
        num_sampled: int | None = None,
        *,
        biases: ArrayLike | None = None,
        shared: bool | None = None,
        update_every: int = 1,
        allow_other_tau: bool = False,
    ) -> None:
        if not isinstance(loss, Loss):
            raise TypeError(
                f"`loss` must be a Loss, got {type(loss).__name__}; make one with "
                "samplesoft.losses.make_loss(name)."
            )
        if loss.on_tree != self._on_tree:  # otherwise top-k lists and `evaluate` would be wrong
            raise ValueError(
                f"`loss` must not be over a tree for a {type(self).__name__}, got a "
                f"{type(loss).__name__}; take a samplesoft.models.HierarchicalSoftmax."
            )
        as_flag("allow_other_tau", allow_other_tau)

        self.loss = loss
        rows: Any = class_embeddings
        if not isinstance(class_embeddings, RemoteRows):
            # copy them, because optimizers change them in place
            rows = self._backend.copied(self._backend.float_rows("class_embeddings", rows))
        self.parameters: dict[str, Rows] = {"class_embeddings": rows}

        if biases is not None:
            vector = self._backend.vector("biases", to_host(biases), rows.shape[0], rows.dtype)
            self.parameters["biases"] = self._backend.copied(vector)

        self.sampler = sampler
        self._sampled_loss = loss if isinstance(loss, SampledLoss) else None
        self.num_sampled = 0
        self.shared = False
        self.update_every = as_count("update_every", update_every)

        # class ids from the calls of `update` since the sampler was last updated
        self._pending_ids: list[IntArray] = []

        if isinstance(loss, SampledLoss):
            self._check_sampler(loss, rows, allow_other_tau)
            # by default, draws that depend on a context are not shared by the batch: they are poor
            # proposals for the other contexts
            follows_contexts = self.sampler is not None and self.sampler.dim is not None
            # other draws are shared, because the scores of one set need only one matrix product
            self.shared = as_shared(shared, not loss.excludes_label and not follows_contexts)

            if loss.excludes_label and self.shared:
                raise ValueError(
                    f"`shared` must be False with scheme={loss.scheme!r}, because one set cannot "
                    "exclude the label of each example; use a loss with scheme='masked'."
                )

            self.num_sampled = as_count("num_sampled", num_sampled, loss.properties.min_draws)
        elif sampler is not None or num_sampled is not None:
            raise ValueError(
                f"`sampler` and `num_sampled` must be None for {type(loss).__name__}, which draws "
                "nothing; omit them, or use a sampled loss."
            )

        # determined once, because in each step calls of methods that do nothing would take as long
        # as a small matrix product
        self._draws_num_sampled = isinstance(loss, SampledLoss) and loss.draws_num_sampled
        self._refreshes = _overrides_method(self.sampler, "refresh")
        self._observes = _overrides_method(self.sampler, "observe")

    @property
    def _backend(self) -> Backend:
        """Operations on arrays on the device of the loss."""
        return backend(self.loss.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copies and pickles; raise if the layer is on a GPU."""
        require_copyable(self, self.loss.device)
        return self.__dict__

    def forward(
        self,
        h: ArrayLike,
        labels: Any,
        *,
        log_sums: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, Cache]:
        """Draw classes if the loss is sampled, and compute the loss.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels, as in `Loss.forward`.
        log_sums : array_like, shape (B,), optional
            The number u of each example, for losses that keep one, such as `MovingAverageLoss`;
            not changed in place. The new numbers are ``cache.batch.log_sums``. By default all
            examples of a `MovingAverageLoss` are new; other such losses need the argument.
        weights : array_like, shape (B,), optional
            Weights of the examples' losses. Samplers do not observe labels of examples of weight 0.
        rng : int or numpy.random.Generator or None
            Seed of the draws.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats.
        cache : Cache
            Intermediate results for `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        MemoryError
            If the draws would not fit.
        """
        # validate before drawing, so that a call that raises an error does not change the sampler
        rows = self.parameters["class_embeddings"]
        biases = self.parameters["biases"] if "biases" in self.parameters else None
        batch = self.loss.check_batch(h, rows, labels, biases)
        batch = self.loss.with_log_sums(batch, log_sums)
        draw, log_count = self._draw(batch.contexts, batch.targets, rng)
        result = self.loss.forward_batch(batch, draw, label_log_count=log_count, weights=weights)

        # observe labels after drawing, because draws must not depend on the labels of the batch
        if self._observes:
            self._observe_labels(batch.targets, weights)
        return result

    def backward(self, cache: Cache) -> tuple[Rows, dict[str, SparseRows]]:
        """Compute the gradients of the loss.

        Parameters
        ----------
        cache : Cache
            Result of `forward`.

        Returns
        -------
        dh : ndarray, shape (B, d)
            Derivatives in the contexts.
        gradients : dict of str to SparseRows
            Gradients under the names of `parameters`.
        """
        make_arrays_writable(self.parameters)  # the optimizer will update them
        loss_gradients = self.loss.backward(cache)
        gradients = {"class_embeddings": loss_gradients.dW}
        if loss_gradients.db is not None:
            gradients["biases"] = loss_gradients.db
        return loss_gradients.dh, gradients

    def update(self, ids: Any = None) -> None:
        """Record which class vectors have changed, and update the sampler if it is due.

        The sampler is updated at every `update_every`-th call.

        Parameters
        ----------
        ids : array_like of int, shape (k,), optional
            Classes whose vectors may have changed; by default all.

        Raises
        ------
        TypeError, ValueError
            If ids are malformed, or the sampler rejects the new vectors.
        """
        if self.sampler is None or self.sampler.dim is None:
            return
        n = self.class_embeddings.shape[0]
        classes = self._backend.ids("ids", np.arange(n) if ids is None else ids, n)
        # copy the ids, because callers may overwrite their array before the sampler is updated
        self._pending_ids.append(self._backend.copied(classes))
        if len(self._pending_ids) >= self.update_every:
            # take the union, so that a class that has changed several times is updated once
            self._update_sampler(union(self._pending_ids))

    def refresh(self) -> None:
        """Rebuild the sampler from all class vectors."""
        if self.sampler is not None:
            self.sampler.load_state(self.sampler.state())
            if self.sampler.dim is not None:
                n = self.class_embeddings.shape[0]
                self._update_sampler(self._backend.ids("ids", np.arange(n), n))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the sampler, without state that is computed from class vectors."""
        return {} if self.sampler is None else self.sampler.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the sampler.

        Parameters
        ----------
        state : mapping of str to ndarray
            Result of `state`, from a layer with the same arguments.

        Raises
        ------
        TypeError, ValueError
            If `state` is from a different layer. The sampler is then unchanged.
        """
        if self.sampler is not None:
            self.sampler.load_state(state)
        elif as_array_dict("state", state):
            raise ValueError(
                f"`state` must be empty without a sampler, got {', '.join(state)}; it is that of "
                "another layer."
            )

    def evaluate(self, h: ArrayLike, labels: Any, *, k: tuple[int, ...] = ()) -> Evaluation:
        """Compute the full-softmax loss and the top-k accuracy on given examples.

        This calls `samplesoft.metrics.evaluate`, which runs on the CPU. Vectors on a GPU are
        copied.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels.
        k : tuple of int
            Lengths k of the lists of best classes for which accuracies are computed.

        Returns
        -------
        Evaluation
            Loss, perplexity, top-k accuracy and precision at k.
        """
        biases = self.parameters.get("biases")
        return evaluate(
            to_host(h),
            to_host(self.class_embeddings),
            to_host(labels),
            tau=self.loss.tau,
            normalize=self.loss.normalize,
            absolute=self.loss.absolute,
            biases=None if biases is None else to_host(biases),
            k=k,
        )

    @property
    def class_embeddings(self) -> Rows:
        """The class vectors (n, d), an entry of `parameters`."""
        return self.parameters["class_embeddings"]

    def _draw(
        self, contexts: Rows, targets: Targets, rng: Seed
    ) -> tuple[Draw | None, FloatArray | None]:
        """Draw classes; return the draws, and the log of the expected count of each label (P,).

        The expected count is the expected number of draws of the label. Each result is None if the
        loss does not use it.
        """
        loss = self._sampled_loss
        sampler = self.sampler
        if loss is None or sampler is None:
            return None, None
        if loss.excludes_label and targets.example_ids is not None:
            raise ValueError(
                f"`labels` must hold one label an example with scheme={loss.scheme!r}, "
                "got a matrix; take scheme='masked'."
            )
        exclude = self._to_sampler_device(targets.labels) if loss.excludes_label else None
        h = contexts if loss.device == "cpu" else self._to_sampler_device(contexts)

        if self._refreshes:  # a two-pass sampler first draws new candidates
            sampler.refresh(rng)
        if self._draws_num_sampled:
            draw = sampler.sample(h, self.num_sampled, exclude=exclude, shared=self.shared, rng=rng)
        else:

            def sample(num_draws: int, seed: Seed) -> Draw:
                return sampler.sample(h, num_draws, exclude=exclude, shared=self.shared, rng=seed)

            draw = loss.draw(sample, self.num_sampled, targets, sampler.num_classes, rng)

        log_count = self._label_log_count(contexts, targets) if loss.needs_label_count else None
        return draw, log_count

    def _observe_labels(self, targets: Targets, weights: ArrayLike | None) -> None:
        """Let the sampler observe the labels, except those of examples of weight 0 (padding)."""
        assert self.sampler is not None
        labels = targets.labels
        if self.loss.device != "cpu":
            labels = self._to_sampler_device(labels)

        if weights is not None:
            counted = targets.rows(np.asarray(to_host(weights))) != 0.0
            if not counted.all():
                labels = to_host(labels)[counted]

        self.sampler.observe(labels)

    def _label_log_count(self, contexts: Rows, targets: Targets) -> FloatArray:
        """Return the log expected count of each label (P,) among the m draws for its example."""
        assert self.sampler is not None
        h = self._to_sampler_device(contexts)
        labels = self._to_sampler_device(targets.labels)
        log_expected_count = self.sampler.log_expected_count
        m = self.num_sampled

        if targets.example_ids is None or self.shared:
            # with shared draws all labels are in one row; else each is in the row of its context
            ids = labels.reshape((1, -1) if self.shared else (-1, 1))
            return log_expected_count(h, ids, m, shared=self.shared).reshape(-1)

        # The labels of a context are in one row. Shorter rows repeat the context's last label.
        offsets = targets.offsets()
        last_pairs = np.append(offsets[1:], len(labels)) - 1
        width = int((last_pairs - offsets).max()) + 1
        columns = np.minimum(offsets[:, None] + np.arange(width), last_pairs[:, None])

        log_counts = np.empty(len(labels))
        log_counts[columns] = log_expected_count(h, labels[columns], m)
        return log_counts

    def _update_sampler(self, ids: IntArray) -> None:
        """Pass the current vectors of the classes `ids` to the sampler."""
        assert self.sampler is not None
        rows = self._backend.take_rows(self.class_embeddings, ids)
        # if the loss normalises vectors, the sampler must also get vectors of norm 1
        if self.loss.normalize:
            rows, _ = unit_rows("class_embeddings", rows, ids)
        self.sampler.update(self._to_sampler_device(ids), self._to_sampler_device(rows))
        self._pending_ids = []

    def _to_sampler_device(self, array: Any) -> Any:
        """Return `array` on the device of the sampler; copy it only from a GPU to the CPU."""
        assert self.sampler is not None
        return to_host(array) if self.sampler.device == "cpu" else array

    def _check_sampler(self, loss: SampledLoss, rows: Rows, allow_other_tau: bool) -> None:
        """Raise unless the sampler is compatible with the loss and the class vectors `rows`."""
        n, d = rows.shape
        self.sampler = as_sampler("sampler", self.sampler)
        if self.sampler.device not in ("cpu", loss.device):
            raise ValueError(
                f"`sampler` must work where the loss does, on {loss.device!r}, got one on "
                f"{self.sampler.device!r}; make both with the same device."
            )

        # the dimension of a sampler is None if it is independent of contexts
        if self.sampler.num_classes != n or self.sampler.dim not in (None, d):
            raise ValueError(
                f"`sampler` must be for {n} classes of dimension {d}, got "
                f"{self.sampler.num_classes} of dimension {self.sampler.dim}."
            )

        # a custom sampler without this attribute must accept any dtype
        dtype = getattr(self.sampler, "_dtype", None)
        if self.sampler.device != "cpu" and dtype is not None and dtype != rows.dtype:
            raise ValueError(
                f"`sampler` must be of {rows.dtype}, like `class_embeddings`, on "
                f"{self.sampler.device!r}, got {dtype}; make it from the same array."
            )

        # compare with a tolerance, because one of the two may have been rounded to float32
        tau = self.sampler.tau
        if tau is not None and not (allow_other_tau or isclose(tau, loss.tau, rel_tol=1e-6)):
            raise ValueError(
                f"`sampler` must have the tau of the loss, {loss.tau}, got one with {tau}; make "
                "both with the same tau, or pass allow_other_tau=True."
            )

        if getattr(self.sampler, "certain", None) is not None and not loss.allows_always_included:
            raise ValueError(
                f"`sampler` must have no certain classes with scheme={loss.scheme!r} of a "
                f"{type(loss).__name__}, got a {type(self.sampler).__name__}; take a "
                "SampledSoftmaxLoss with scheme='masked' or 'negatives'."
            )


def _overrides_method(sampler: Sampler | None, method: str) -> bool:
    """Return whether there is a sampler whose class overrides the given method of `Sampler`."""
    if sampler is None:
        return False
    return getattr(type(sampler), method, None) is not getattr(Sampler, method)
