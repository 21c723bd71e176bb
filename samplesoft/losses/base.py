"""What every loss is: a forward pass that returns a cache, and a backward pass from it.

Also what goes in, labels as pairs of an example and a label, and what comes out, gradients that are
zero outside a few rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._device import backend, cpu
from samplesoft._device.select import to_host
from samplesoft._jit import njit
from samplesoft._limits import call_quietly
from samplesoft._temperature import as_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_csr,
    as_flag,
    as_labels,
    as_real_array,
    scale_by_power_of_two,
)
from samplesoft.losses.vectors import require_finite_rows, unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows

REDUCTIONS = ("mean", "sum", "none")
LABEL_REDUCTIONS = ("pal-n", "pal", "ova")
_INT = np.dtype(np.int64)


class SparseRows(NamedTuple):
    """A gradient that is zero outside a few rows.

    Parameters
    ----------
    ids : ndarray of int64, shape (k,)
        Rows of the parameter, ascending and each once.
    rows : ndarray, shape (k, d) or (k,)
        Gradient of those rows; of shape (k,) where the parameter is a vector.
    """

    ids: IntArray
    rows: NDArray[Any]

    def to_host(self) -> SparseRows:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        return SparseRows(to_host(self.ids), to_host(self.rows))


@dataclass(frozen=True, eq=False)
class Gradients:
    """Derivatives of a loss of shape-(B, d) contexts and shape-(n, d) class vectors.

    Parameters
    ----------
    dh : ndarray, shape (B, d)
        With respect to the contexts.
    dW : SparseRows
        With respect to the class vectors: k rows of d.
    db : SparseRows or None
        With respect to the class biases, k numbers; None where there are none.
    d_log_sums : ndarray of float64, shape (B,), or None
        With respect to the numbers of the examples of a `DoubleSumLoss`.
    """

    dh: NDArray[Any]
    dW: SparseRows
    db: SparseRows | None
    d_log_sums: FloatArray | None = None

    def to_host(self) -> Gradients:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        db = None if self.db is None else self.db.to_host()
        return Gradients(to_host(self.dh), self.dW.to_host(), db, self.d_log_sums)


@dataclass(frozen=True, eq=False)
class Targets:
    """The P (example, label) pairs of a batch, in the order of the examples."""

    labels: IntArray
    example_ids: IntArray | None = (
        None  # (P,): example of each pair, rising; None where each has one
    )
    label_weights: FloatArray | None = None  # (P,): weights in the loss of an example
    starts: IntArray | None = None  # (B,): first pair of each example

    def rows(self, values: Any) -> Any:
        """Return the row of each pair, for `values` with one row for each example."""
        return values if self.example_ids is None else values[self.example_ids]

    def per_example(self, values: Any) -> Any:
        """Return the sums over the pairs of each example, for `values` with one row for each."""
        if self.example_ids is None:
            return values
        return np.add.reduceat(values, self.offsets(), axis=0)

    def offsets(self) -> IntArray:
        """Return the place (B,) of the first pair of each example."""
        return np.arange(len(self.labels)) if self.starts is None else self.starts


@dataclass(frozen=True, eq=False)
class Batch:
    """Checked arguments of a forward pass.

    Parameters
    ----------
    contexts : ndarray, shape (B, d)
        Contexts, divided by their norms if the loss normalises.
    norms : ndarray of float64, shape (B,), or None
        Those norms.
    z : ndarray, shape (B, d)
        Contexts times tau.
    class_embeddings : ndarray, shape (n, d)
        Class vectors as given.
    targets : Targets
        Labels.
    biases : ndarray, shape (n,), or None
        Class biases.
    log_sums : ndarray of float64, shape (B,), or None
        Numbers of the examples of a `DoubleSumLoss`, which `forward` may have raised.
    """

    contexts: Rows
    norms: FloatArray | None
    z: Rows
    class_embeddings: Rows
    targets: Targets
    biases: Rows | None
    log_sums: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Cache:
    """What `Loss.backward` needs from `Loss.forward`; valid until the arguments change.

    Attributes
    ----------
    batch : Batch
        The arguments.
    weights : ndarray, shape (B,)
        Derivative of the value in the loss of each example.
    saved : object
        What the loss keeps for itself.
    """

    batch: Batch
    weights: FloatArray
    saved: Any


class Loss(ABC):
    r"""A loss of context vectors, class vectors and labels.

    Scores are :math:`o_{bj} = \tau \, h_b \cdot c_j + \text{bias}_j`. A new loss on drawn
    classes implements one method of `samplesoft.losses.sampled.SampledLoss`, any other `_forward`
    and `_backward`; both enter the registry in `samplesoft.losses`.

    Parameters
    ----------
    tau : float, optional
        Inverse temperature; by default 10 if `normalize`, else 1.
    normalize : bool
        Divide context and class vectors by their Euclidean norms first. A vector of zeros, such as
        a padding row, stays as it is: its logits are 0, and so is its gradient. So vectors that
        are to be learned start at random.
    absolute : bool
        Put ``|o|`` in place of o: absolute softmax.
    reduction : {"mean", "sum", "none"}
        The value is the mean of the examples' losses by their weights, their weighted sum, or
        the weighted losses (B,); `backward` then gives the gradient of their sum.
    label_reduction : {"pal-n", "pal", "ova"}
        What the loss of an example with several labels is; see Notes.
    mask_other_labels : bool
        Leave the other labels of an example out of the negatives of a label. By default they are
        negatives like any class.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Several labels are reduced to one each, in one of three ways of Menon et al. [2]_. With enough
    data each leads to the best lists by one measure, and none to the best by both:

    ==========  =================================================  ==============
    reduction   loss of an example                                 best lists by
    ==========  =================================================  ==============
    ``pal-n``   pick all labels, normalised: the mean of the       recall at k
                losses of its labels, by their weights
    ``pal``     pick all labels: their sum, by their weights       precision at k
    ``ova``     one versus all: a logistic loss for each label,    precision at k
                and for each negative once, not for each label
    ==========  =================================================  ==============

    That is a matter of the limit. A linear model of a few thousand examples need not follow: try
    both.

    ``ova`` is for losses that are sums of a logistic loss of the label and one of each draw: noise
    contrastive estimation and negative sampling. A softmax has no loss of a class on its own. Draws
    of any label of an example are then treated as draws of the label are with one.

    With `mask_other_labels` labels of an example do not compete with each other, and [2]_ says
    nothing of what is best then; draws of the label itself are treated as without. In ``ova``,
    where no label has negatives of its own, it leaves out all draws of labels.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018,
       section 3.3: absolute softmax.
    .. [2] A. K. Menon et al., "Multilabel reductions: what is my loss optimising?", NeurIPS 2019,
       sections 3 and 4.
    """

    device = "cpu"
    is_binary: ClassVar[bool] = False  # a sum of logistic losses of the label and of each draw
    on_tree: ClassVar[bool] = False  # of vectors of the nodes of a tree, and not of the classes
    # False where passes compute in kernels, which never warn; else warnings are kept from callers
    _warns: ClassVar[bool] = True

    def __init__(
        self,
        *,
        tau: float | None = None,
        normalize: bool = False,
        absolute: bool = False,
        reduction: str = "mean",
        label_reduction: str = "pal-n",
        mask_other_labels: bool = False,
    ) -> None:
        self.normalize = as_flag("normalize", normalize)
        self.tau = as_tau(tau, unit_vectors=self.normalize)
        self.absolute = as_flag("absolute", absolute)
        self.reduction = as_choice("reduction", reduction, REDUCTIONS)
        self.label_reduction = as_choice("label_reduction", label_reduction, LABEL_REDUCTIONS)
        self.mask_other_labels = as_flag("mask_other_labels", mask_other_labels)
        if label_reduction == "ova" and not self.is_binary:
            raise ValueError(
                f"`label_reduction` must not be 'ova' for {type(self).__name__}, which is no sum "
                "of losses of one class each; take 'pal', which is for precision too, or a NCELoss "
                "or NegativeSamplingLoss."
            )

    def forward(
        self,
        h: ArrayLike,
        class_embeddings: ArrayLike,
        labels: Any,
        draw: Draw | None = None,
        *,
        label_log_count: ArrayLike | None = None,
        biases: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Any, Cache]:
        """Compute the loss.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors; computed with in the type of `class_embeddings`.
        class_embeddings : array_like, shape (n, d)
            Class vectors, float32 or float64.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels. With several for an example, values of the matrix are their weights, and its
            loss is made from those of its labels by `label_reduction`.
        draw : Draw, optional
            Classes drawn for each example, or one set for all; for losses that are sampled.
        label_log_count : array_like, shape (P,), optional
            Logarithm of the expected number of times that a draw contains the label of each of
            the P pairs of example and label, from `Sampler.log_expected_count`; for losses that
            adjust the label's score or refuse draws of it.
        biases : array_like, shape (n,), optional
            Class biases.
        weights : array_like, shape (B,), optional
            Weights of the examples.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats.
        cache : Cache
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        batch = self.check_batch(h, class_embeddings, labels, biases)
        return self.forward_batch(batch, draw, label_log_count=label_log_count, weights=weights)

    def check_batch(
        self, h: Any, class_embeddings: Any, labels: Any, biases: ArrayLike | None
    ) -> Batch:
        """Check the arguments of `forward`, and normalise contexts; for callers that draw."""
        arrays = backend(self.device)
        # as in most steps; what is not sound is told below
        if self.device == "cpu" and _are_sound(h, class_embeddings, labels):
            contexts, rows, targets = h, class_embeddings, Targets(labels)
        else:
            rows = arrays.shaped_rows("class_embeddings", class_embeddings)
            contexts = arrays.float_rows("h", h, rows.shape[1], rows.dtype)
            targets = self._check_labels(labels, contexts.shape[0], rows.shape[0])
        offsets = None
        if biases is not None:
            offsets = arrays.vector("biases", biases, rows.shape[0], rows.dtype)
        norms = None
        if self.normalize:  # a copy, for the caller's array stays as it is
            contexts, norms = unit_rows("h", arrays.copied(contexts))
        z = contexts if self.tau == 1.0 else arrays.times(contexts, self.tau)
        return Batch(contexts, norms, z, rows, targets, offsets)

    def _check_labels(self, labels: Any, size: int, n: int) -> Targets:
        """Return the labels of a batch, below n."""
        if self.device == "cpu":
            return check_targets(labels, size, n, self.label_reduction)
        if sparse.issparse(labels):
            raise TypeError(
                "`labels` must hold one label an example with device='cuda', got a matrix; "
                "compute on the processor, or expand the batch to pairs."
            )
        return Targets(backend(self.device).labels("labels", labels, n, (size,)))

    def forward_batch(
        self,
        batch: Batch,
        draw: Draw | None,
        *,
        label_log_count: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Any, Cache]:
        """Compute the loss, as `forward` does, of arguments that `check_batch` has checked."""
        per_example = checked_weights(weights, batch.z.shape[0], self.reduction, batch.z.dtype)
        # what is not finite is refused, without a warning before
        if self._warns:
            losses, saved = call_quietly(self._forward, batch, draw, label_log_count)
        else:
            losses, saved = self._forward(batch, draw, label_log_count)
        # in float64 whatever the vectors are: float32 sums of long batches lose what training gains
        total = float(losses.dot(per_example))  # finite only where all losses are
        if not -np.inf < total < np.inf:
            if not np.isfinite(losses).all():
                # class vectors are looked at here only: to read all of them costs more than a step
                require_finite_rows(to_host(batch.class_embeddings))
                raise _not_finite(losses, batch.z.dtype)
            raise ValueError(
                f"the weighted sum of the losses must be finite, got {total}; scale `weights`, or "
                "`h` and `class_embeddings`, down."
            )
        value = losses * per_example if self.reduction == "none" else total
        return value, Cache(batch, per_example, saved)

    def backward(self, cache: Cache) -> Gradients:
        """Compute the gradient of what `forward` returned, or of its sum.

        Parameters
        ----------
        cache : Cache
            From `forward`. The arrays that `forward` was given must not have changed.

        Returns
        -------
        Gradients
            ``dh`` (B, d), and sparse rows of class vectors and biases, each class once. What is
            beyond the range of their type is not finite; optimizers refuse it.
        """
        batch, arrays = cache.batch, backend(self.device)
        if self._warns:
            gradients = call_quietly(self._backward, batch, cache.saved, cache.weights)
        else:
            gradients = self._backward(batch, cache.saved, cache.weights)
        if self.tau == 1.0 and batch.norms is None:
            return gradients
        dh = gradients.dh if self.tau == 1.0 else arrays.times(gradients.dh, self.tau)  # z = tau h
        if batch.norms is not None:
            dh = unit_rows_backward(dh, batch.contexts, batch.norms)
        return Gradients(dh, gradients.dW, gradients.db, gradients.d_log_sums)

    @abstractmethod
    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        """Return the loss (B,) of each example, and what the backward pass needs."""

    @abstractmethod
    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        """Return gradients of the weighted sum of losses; ``dh`` holds that in ``batch.z``."""


def _are_sound(h: Any, rows: Any, labels: Any) -> bool:
    """Tell whether contexts, class vectors and labels (B,) can be computed with as they are.

    Numbers of class vectors are not looked at.
    """
    if not type(h) is type(rows) is type(labels) is np.ndarray:
        return False
    fits = (
        h.ndim == rows.ndim == 2
        and h.shape[1] == rows.shape[1] != 0
        and labels.shape == h.shape[:1] != (0,)
        and h.dtype == rows.dtype in (np.float32, np.float64)
        and labels.dtype == _INT
        and h.flags.c_contiguous & rows.flags.c_contiguous & labels.flags.c_contiguous
    )
    return fits and is_sound(h, labels, rows.shape[0])


@njit
def is_sound(h: Rows, labels: IntArray, n: int) -> bool:
    """Tell whether all contexts are finite, and all labels in ``range(n)``."""
    bad = 0
    for b in range(len(h)):
        for f in range(h.shape[1]):
            bad += 0 if abs(h[b, f]) < np.inf else 1
    for label in labels:
        bad += 0 if 0 <= label < n else 1
    return bad == 0


def _not_finite(losses: FloatArray, dtype: np.dtype[Any]) -> ValueError:
    """Return the error for losses (B,) that are not all finite."""
    worst = int(np.argmin(np.isfinite(losses)))
    return ValueError(
        f"the loss of example {worst} must be finite, got {losses[worst]}; its scores or "
        f"log-probabilities leave the range of {dtype}: scale `h` and `class_embeddings` down, "
        "lower `tau`, or use float64."
    )


def checked_weights(
    weights: ArrayLike | None, batch: int, reduction: str, dtype: np.dtype[Any]
) -> FloatArray:
    """Return the weights (B,) of the examples in the value; for a mean their sum is 1."""
    if weights is None:  # nothing to check in most steps
        return np.zeros(batch) + (1.0 / batch if reduction == "mean" else 1.0)
    per_example = cpu.vector("weights", to_host(weights), batch, np.dtype(np.float64))
    if reduction == "mean":
        per_example = scale_by_power_of_two(per_example)  # in which the sum is finite
        total = float(per_example.sum())
        if not 0.0 < total < np.inf:
            raise ValueError(
                f"`weights` must have a finite sum greater than 0 for a mean, got {total}; give an "
                'example a positive weight, or use reduction="sum".'
            )
        per_example = per_example / total
    # weights multiply gradients, which are products of numbers up to the root of the largest
    limit, largest = float(np.finfo(dtype).max) ** 0.5, float(np.abs(per_example).max())
    if largest > limit:
        raise ValueError(
            f"`weights` must be at most {limit:.2g} in size for gradients in {dtype}, got "
            f'{largest:g}; divide them by a number, or use reduction="mean".'
        )
    return per_example


def check_targets(labels: Any, batch: int, num_classes: int, reduction: str = "pal-n") -> Targets:
    """Return the pairs of labels (B,), or of a sparse matrix (B, n) with several for an example.

    Shares are the values of the matrix, for reduction "pal-n" divided by their sums; for "ova"
    they must be 1.
    """
    if not sparse.issparse(labels):
        _require_one_kind(labels)
        if not isinstance(labels, np.ndarray):
            labels = as_array("labels", labels)
        if labels.ndim != 1:
            raise ValueError(
                f"`labels` must have shape ({batch},), got {labels.shape}; several labels of "
                "an example come as a scipy.sparse matrix (B, n)."
            )
        return Targets(as_labels("labels", labels, num_classes, (batch,)))
    matrix = as_csr("labels", labels)  # a copy, for it is put in order
    if matrix.shape != (batch, num_classes):
        raise ValueError(
            f"`labels` must have shape {(batch, num_classes)} as a matrix, got {matrix.shape}."
        )
    # Labels of an example rise, each stands once, and none has weight 0: kernels rely on it.
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    counts = np.diff(matrix.indptr)
    if not counts.all():
        raise ValueError(
            f"`labels` must have a label in each row, got none in row {int(np.argmin(counts))}; "
            "leave such examples out."
        )
    values = as_real_array("labels", matrix.data, (1,))
    if values.min() < 0.0:
        raise ValueError(f"`labels` must hold weights of at least 0, got {values.min()}.")
    if reduction == "ova" and (values != 1.0).any():
        raise ValueError(
            "`labels` must hold ones with label_reduction='ova', for which a class is a label or "
            f"is none, got {values[values != 1.0][0]}; take 'pal' for labels of other weights."
        )
    example_ids = np.repeat(np.arange(batch), counts)
    starts, places = matrix.indptr[:-1].astype(np.int64), matrix.indices.astype(np.int64)
    if reduction != "pal-n":
        return Targets(places, example_ids, values, starts)
    # by the largest first: a sum of weights near the end of the range would be infinite
    values = values / np.maximum.reduceat(values, matrix.indptr[:-1])[example_ids]
    totals = np.add.reduceat(values, matrix.indptr[:-1])
    return Targets(places, example_ids, values / totals[example_ids], starts)


def _require_one_kind(labels: Any) -> None:
    """Raise for a list of numbers and something else, all of which NumPy would make one kind."""
    if not isinstance(labels, list | tuple):
        return
    kinds = {type(label) for label in labels}  # Python's and NumPy's integers go together
    other = [kind.__name__ for kind in kinds if not issubclass(kind, int | np.integer | bool)]
    if len(kinds) > 1 and (other or kinds & {bool, np.bool_}):
        raise TypeError(
            "`labels` must hold integers, class indices counted from 0, got a "
            f"{type(labels).__name__} of {' and '.join(sorted(kind.__name__ for kind in kinds))}; "
            "make all of them integers."
        )
