"""The softmax layer: class vectors, a loss, and a sampler that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import Backend, backend
from samplesoft._device.arrays import DistantRows
from samplesoft._device.rows import union, unit_rows
from samplesoft._device.select import require_copyable, to_host
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_flag,
    as_named_arrays,
    copy_read_only_arrays,
)
from samplesoft.losses.base import Cache, Loss, SparseRows, Targets
from samplesoft.losses.sampled import SampledLoss, Seed
from samplesoft.metrics.evaluation import Evaluation, evaluate
from samplesoft.samplers.base import Draw, Rows, Sampler, as_sampler


def as_shared(value: bool | None, default: bool) -> bool:
    """Return a `shared` argument as a bool; None stands for `default`."""
    return default if value is None else as_flag("shared", value)


class SoftmaxLayer:
    """The last layer of a classifier: scores over n classes, and a loss on them.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors, float32 or float64; copied. Optimizers change the copy in `parameters`.
    loss : Loss
        Full or sampled, from `samplesoft.losses`. The layer works on its device, and keeps
        parameters and gradients there. The sampler may be on the processor all the same: what it
        looks at is then copied to it, and its draws are copied back.
    sampler : Sampler, optional
        Where negatives come from; needed for sampled losses. Any object with the methods of
        `Sampler` will do. If the loss normalises, the sampler sees vectors of norm 1, and
        must have been made from such.
    num_sampled : int, optional
        Number of draws m of an example, of which losses such as `MultilevelLoss` make more.
    biases : array_like, shape (n,), optional
        Class biases, trained with the vectors; a sampler does not see them.
    shared : bool, optional
        Draw one set of classes for the whole batch; by default where the sampler does not look at
        contexts, and the loss takes draws of the label, which it masks or corrects.
    update_every : int
        The sampler follows the class vectors after so many calls of `update`. In between, draws
        and their probabilities still agree: both come from the vectors of the last time.
    allow_other_tau : bool
        Take a sampler whose `tau` is not that of the loss. Draws and their probabilities agree
        then too, but draws follow another softmax than the one that is trained.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"class_embeddings"`` (n, d), and ``"biases"`` (n,) where there are some; Numba's device
        arrays where the loss is on a GPU.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or loss and sampler do not fit each other.

    Notes
    -----
    A step of training is

    1. `forward`: draws, without the labels if the loss is of scheme ``"negatives"``, and computes
       the loss; before, a two-pass sampler takes new candidates, and after it, a sampler that
       learns counts observes the labels, but those of examples of weight 0;
    2. `backward`: gives gradients, from which nothing may have changed since `forward`;
    3. the optimizer's ``step(layer.parameters, gradients)``;
    4. `update` with the ids of the rows that have a gradient.

    A sampler that was made from other class vectors than the layer's draws by those until it has
    been updated; call `refresh` first.

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
        if loss.on_tree != self._on_tree:  # the best classes and `evaluate` would be wrong
            raise ValueError(
                f"`loss` must not be over a tree for a {type(self).__name__}, got a "
                f"{type(loss).__name__}; take a samplesoft.models.HierarchicalSoftmax."
            )
        as_flag("allow_other_tau", allow_other_tau)
        self.loss = loss
        rows: Any = class_embeddings
        if not isinstance(class_embeddings, DistantRows):
            # copies: optimizers change them in place
            rows = self._arrays.copied(self._arrays.float_rows("class_embeddings", rows))
        self.parameters: dict[str, Rows] = {"class_embeddings": rows}
        if biases is not None:
            vector = self._arrays.vector("biases", to_host(biases), rows.shape[0], rows.dtype)
            self.parameters["biases"] = self._arrays.copied(vector)
        self.sampler = sampler
        self._sampled = loss if isinstance(loss, SampledLoss) else None
        self.num_sampled = 0
        self.shared = False
        self.update_every = as_count("update_every", update_every)
        self._changed: list[IntArray] = []  # ids of the calls of `update` that still wait
        if isinstance(loss, SampledLoss):
            self._check_sampler(loss, rows, allow_other_tau)
            # draws that follow a context are worth little for the others of its batch
            follows = self.sampler is not None and self.sampler.dim is not None
            # a set for the whole batch costs one draw and one product, where it follows nothing
            self.shared = as_shared(shared, not loss.excludes_label and not follows)
            if loss.excludes_label and self.shared:
                raise ValueError(
                    f"`shared` must be False with scheme={loss.scheme!r}, for one set cannot leave "
                    "out the label of each example; take a loss with scheme='masked'."
                )
            self.num_sampled = as_count("num_sampled", num_sampled, loss.properties.least_draws)
        elif sampler is not None or num_sampled is not None:
            raise ValueError(
                f"`sampler` and `num_sampled` must be None for {type(loss).__name__}, which draws "
                "nothing; leave them out, or take a sampled loss."
            )
        # asked once: a call of what does nothing costs each step as much as a small product
        self._draws_as_asked = getattr(type(loss), "draw", None) is SampledLoss.draw
        self._refreshes = _overrides(self.sampler, "refresh")
        self._observes = _overrides(self.sampler, "observe")

    @property
    def _arrays(self) -> Backend:
        return backend(self.loss.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made from."""
        require_copyable(self, self.loss.device)
        return self.__dict__

    def forward(
        self,
        h: ArrayLike,
        labels: Any,
        *,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, Cache]:
        """Draw negatives where the loss needs them, without the labels, and compute the loss.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels, as in `Loss.forward`.
        weights : array_like, shape (B,), optional
            Weights of the examples; a sampler does not observe the labels of those of weight 0.
        rng : int or numpy.random.Generator or None
            Seed of the draws.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats.
        cache : Cache
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        MemoryError
            If so many draws do not fit.
        """
        # checked before the draws: a refused call must not leave its mark on a sampler
        rows = self.parameters["class_embeddings"]
        biases = self.parameters["biases"] if "biases" in self.parameters else None
        batch = self.loss.check_batch(h, rows, labels, biases)
        draw, log_count = self._draw(batch.contexts, batch.targets, rng)
        result = self.loss.forward_batch(batch, draw, label_log_count=log_count, weights=weights)
        # after the loss, for a draw must not know the labels that it is corrected by
        if self._observes:
            self._observe(batch.targets, weights)
        return result

    def backward(self, cache: Cache) -> tuple[Rows, dict[str, SparseRows]]:
        """Compute gradients.

        Parameters
        ----------
        cache : Cache
            From `forward`.

        Returns
        -------
        dh : ndarray, shape (B, d)
            Derivatives in the contexts.
        gradients : dict of str to SparseRows
            Derivatives under the names of `parameters`.
        """
        copy_read_only_arrays(self.parameters)  # which are about to change
        of_loss = self.loss.backward(cache)
        gradients = {"class_embeddings": of_loss.dW}
        if of_loss.db is not None:
            gradients["biases"] = of_loss.db
        return of_loss.dh, gradients

    def update(self, ids: Any = None) -> None:
        """Let the sampler follow class vectors that have changed, every `update_every` calls.

        Parameters
        ----------
        ids : array_like of int, shape (k,), optional
            Classes whose vectors may have changed; all by default.

        Raises
        ------
        TypeError, ValueError
            If ids are malformed, or the sampler refuses the new vectors.
        """
        if self.sampler is None or self.sampler.dim is None:
            return
        n = self.class_embeddings.shape[0]
        classes = self._arrays.ids("ids", np.arange(n) if ids is None else ids, n)
        # a copy, for callers may use the buffer of ids again before the sampler is updated
        self._changed.append(self._arrays.copied(classes))
        if len(self._changed) >= self.update_every:
            # a tree changes its sums once for each class, however often it has moved since
            self._update_sampler(union(self._changed))

    def refresh(self) -> None:
        """Update the sampler with all class vectors; it then is as if just made from them."""
        if self.sampler is not None:
            self.sampler.load_state(self.sampler.state())
            if self.sampler.dim is not None:
                n = self.class_embeddings.shape[0]
                self._update_sampler(self._arrays.ids("ids", np.arange(n), n))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what the sampler has learned besides the class vectors."""
        return {} if self.sampler is None else self.sampler.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state`.

        Parameters
        ----------
        state : mapping of str to ndarray
            Of a layer made in the same way.

        Raises
        ------
        TypeError, ValueError
            If it is of another layer; this one is unchanged then.
        """
        if self.sampler is not None:
            self.sampler.load_state(state)
        elif as_named_arrays("state", state):
            raise ValueError(
                f"`state` must be empty without a sampler, got {', '.join(state)}; it is that of "
                "another layer."
            )

    def evaluate(self, h: ArrayLike, labels: Any, *, k: tuple[int, ...] = ()) -> Evaluation:
        """Compute the full-softmax loss and ranks of the labels, as `samplesoft.metrics.evaluate`.

        On the processor, to which vectors are copied from another device.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels.
        k : tuple of int
            Sizes of the lists of best classes to score.

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
        """Class vectors (n, d) as they are now."""
        return self.parameters["class_embeddings"]

    def _draw(
        self, contexts: Rows, targets: Targets, rng: Seed
    ) -> tuple[Draw | None, FloatArray | None]:
        """Return draws where the loss needs them, and what it must know of the labels in them."""
        loss, sampler = self._sampled, self.sampler
        if loss is None or sampler is None:
            return None, None
        if loss.excludes_label and targets.example_ids is not None:
            raise ValueError(
                f"`labels` must hold one label an example with scheme={loss.scheme!r}, "
                "got a matrix; take scheme='masked'."
            )
        exclude = self._for_sampler(targets.labels) if loss.excludes_label else None
        h = contexts if loss.device == "cpu" else self._for_sampler(contexts)

        if self._refreshes:  # a two-pass sampler takes new candidates, by the seed of the step
            sampler.refresh(rng)
        if self._draws_as_asked:
            draw = sampler.sample(h, self.num_sampled, exclude=exclude, shared=self.shared, rng=rng)
        else:

            def sample(num: int, seed: Seed) -> Draw:
                return sampler.sample(h, num, exclude=exclude, shared=self.shared, rng=seed)

            draw = loss.draw(sample, self.num_sampled, targets, sampler.num_classes, rng)
        log_count = self._label_log_count(contexts, targets) if loss.needs_label_count else None
        return draw, log_count

    def _observe(self, targets: Targets, weights: ArrayLike | None) -> None:
        """Tell the sampler of labels, but not of those of examples of weight 0, as padding is."""
        assert self.sampler is not None
        labels = targets.labels
        if self.loss.device != "cpu":
            labels = self._for_sampler(labels)
        if weights is not None:
            counted = targets.rows(np.asarray(to_host(weights))) != 0.0
            if not counted.all():
                labels = to_host(labels)[counted]
        self.sampler.observe(labels)

    def _label_log_count(self, contexts: Rows, targets: Targets) -> FloatArray:
        """Return the log expected count (P,) of each label in a draw for its example."""
        assert self.sampler is not None
        h, labels = self._for_sampler(contexts), self._for_sampler(targets.labels)
        counts_of, m = self.sampler.log_expected_count, self.num_sampled
        if targets.example_ids is None or self.shared:
            # of a shared set all labels at once, in one row; else each label for its own context
            ids = labels.reshape((1, -1) if self.shared else (-1, 1))
            return counts_of(h, ids, m, shared=self.shared).reshape(-1)
        # the sampler is asked once for each context: those with fewer labels repeat their last
        offsets = targets.offsets()
        last = np.append(offsets[1:], len(labels)) - 1
        width = int((last - offsets).max()) + 1
        places = np.minimum(offsets[:, None] + np.arange(width), last[:, None])
        log_counts = np.empty(len(labels))
        log_counts[places] = counts_of(h, labels[places], m)
        return log_counts

    def _update_sampler(self, ids: IntArray) -> None:
        assert self.sampler is not None
        rows = self._arrays.take_rows(self.class_embeddings, ids)
        # the sampler sees what the loss scores: vectors of norm 1 where it divides by norms
        if self.loss.normalize:
            rows, _ = unit_rows("class_embeddings", rows, ids)
        self.sampler.update(self._for_sampler(ids), self._for_sampler(rows))
        self._changed = []

    def _for_sampler(self, array: Any) -> Any:
        """Return an array where the sampler works, which may be beside the GPU of the loss."""
        assert self.sampler is not None
        return to_host(array) if self.sampler.device == "cpu" else array

    def _check_sampler(self, loss: SampledLoss, rows: Rows, allow_other_tau: bool) -> None:
        n, d = rows.shape
        self.sampler = as_sampler("sampler", self.sampler)
        if self.sampler.device not in ("cpu", loss.device):
            raise ValueError(
                f"`sampler` must work where the loss does, on {loss.device!r}, got one on "
                f"{self.sampler.device!r}; make both with the same device."
            )
        # one that does not look at contexts has no dimension
        if self.sampler.num_classes != n or self.sampler.dim not in (None, d):
            raise ValueError(
                f"`sampler` must be for {n} classes of dimension {d}, got "
                f"{self.sampler.num_classes} of dimension {self.sampler.dim}."
            )
        # samplers of users have no such attribute, and may work in any type
        dtype = getattr(self.sampler, "_dtype", None)
        if self.sampler.device != "cpu" and dtype is not None and dtype != rows.dtype:
            raise ValueError(
                f"`sampler` must be of {rows.dtype}, like `class_embeddings`, on "
                f"{self.sampler.device!r}, got {dtype}; make it from the same array."
            )
        # float32 may have rounded one of the two
        tau = self.sampler.tau
        if tau is not None and not (allow_other_tau or isclose(tau, loss.tau, rel_tol=1e-6)):
            raise ValueError(
                f"`sampler` must have the tau of the loss, {loss.tau}, got one with {tau}; make "
                "both with the same tau, or pass allow_other_tau=True."
            )
        if getattr(self.sampler, "certain", None) is not None and not loss.takes_certain:
            raise ValueError(
                f"`sampler` must have no certain classes with scheme={loss.scheme!r} of a "
                f"{type(loss).__name__}, got a {type(self.sampler).__name__}; take a "
                "SampledSoftmaxLoss with scheme='masked' or 'negatives'."
            )


def _overrides(sampler: Sampler | None, method: str) -> bool:
    """Tell whether there is a sampler whose method does something."""
    if sampler is None:
        return False
    return getattr(type(sampler), method, None) is not getattr(Sampler, method)
