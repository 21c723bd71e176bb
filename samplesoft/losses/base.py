"""Base class of losses, with a forward and a backward pass, and the records that they exchange.

`Batch` and `Targets` hold the validated inputs, `Cache` the results that the backward pass needs,
`Gradients` and `SparseRows` the gradients, which are zero outside a few rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._device import backend, cpu
from samplesoft._device.select import to_host
from samplesoft._jit import njit
from samplesoft._limits import call_ignoring_overflow
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
        Indices of rows of the parameter, ascending and distinct.
    rows : ndarray, shape (k, d) or (k,)
        Gradient of these rows; of shape (k,) if the parameter is a vector.
    """

    ids: IntArray
    rows: NDArray[Any]

    def to_host(self) -> SparseRows:
        """Return the gradient in NumPy arrays, copied from the GPU if necessary."""
        return SparseRows(to_host(self.ids), to_host(self.rows))


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of a loss in contexts (B, d), class vectors (n, d), and other inputs.

    Parameters
    ----------
    dh : ndarray, shape (B, d)
        Gradient in the contexts.
    dW : SparseRows
        Gradient in the class vectors, with rows (k, d).
    db : SparseRows or None
        Gradient in the class biases, with values (k,); None without biases.
    d_log_sums : ndarray of float64, shape (B,), or None
        Gradient in the `log_sums` of a `DoubleSumLoss` or `SafeKLLoss`; None for other losses.
    """

    dh: NDArray[Any]
    dW: SparseRows
    db: SparseRows | None
    d_log_sums: FloatArray | None = None

    def to_host(self) -> Gradients:
        """Return the gradients in NumPy arrays, copied from the GPU if necessary."""
        db = None if self.db is None else self.db.to_host()
        return Gradients(to_host(self.dh), self.dW.to_host(), db, self.d_log_sums)


@dataclass(frozen=True, eq=False)
class Targets:
    """The P (example, label) pairs of a batch, in the order of the examples."""

    labels: IntArray
    # (P,): index of each pair's example, ascending; None if each example has one pair
    example_ids: IntArray | None = None
    label_weights: FloatArray | None = None  # (P,): weights of the pairs in an example's loss
    starts: IntArray | None = None  # (B,): index of the first pair of each example

    def rows(self, values: Any) -> Any:
        """Return an array (P, ...) that repeats the `values` (B, ...) of examples for each pair."""
        return values if self.example_ids is None else values[self.example_ids]

    def per_example(self, values: Any) -> Any:
        """Return the sums (B, ...) of `values` (P, ...) over the pairs of each example."""
        if self.example_ids is None:
            return values
        return np.add.reduceat(values, self.offsets(), axis=0)

    def offsets(self) -> IntArray:
        """Return the index (B,) of the first pair of each example."""
        return np.arange(len(self.labels)) if self.starts is None else self.starts


@dataclass(frozen=True, eq=False)
class Batch:
    """Checked arguments of a forward pass.

    Parameters
    ----------
    contexts : ndarray, shape (B, d)
        Contexts, divided by their norms if the loss normalises.
    norms : ndarray of float64, shape (B,), or None
        Norms of the contexts before the division; None if the loss does not normalise.
    z : ndarray, shape (B, d)
        Contexts times tau.
    class_embeddings : ndarray, shape (n, d)
        Class vectors, not normalised.
    targets : Targets
        Labels.
    biases : ndarray, shape (n,), or None
        Class biases.
    log_sums : ndarray of float64, shape (B,), or None
        The `log_sums` that a loss of `samplesoft.losses.log_sums` has used: its argument, which
        `forward` may have changed, in a copy. None for other losses.
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
    """State that `Loss.forward` passes to `Loss.backward`.

    It is invalid once the arguments of `forward` have been changed in place.

    Attributes
    ----------
    batch : Batch
        The validated arguments of `forward`.
    weights : ndarray, shape (B,)
        Derivative of the value with respect to each example's loss.
    saved : object
        Intermediate results of the loss.
    """

    batch: Batch
    weights: FloatArray
    saved: Any


class Loss(ABC):
    r"""Base class of losses, which are functions of context vectors, class vectors and labels.

    Scores are :math:`o_{bj} = \tau \, h_b \cdot c_j + \text{bias}_j`. A new loss on drawn
    classes implements one method of `samplesoft.losses.sampled.SampledLoss`. Any other loss
    implements `_forward` and `_backward`. Register both kinds in `samplesoft.losses`.

    Parameters
    ----------
    tau : float, optional
        Inverse temperature; by default 10 if `normalize`, else 1.
    normalize : bool
        Divide context and class vectors by their Euclidean norms first. A zero vector, such as a
        padding row, is left unchanged: its logits and its gradient are 0. Vectors that are trained
        should therefore start from random values.
    absolute : bool
        Replace scores o by ``|o|``: absolute softmax.
    reduction : {"mean", "sum", "none"}
        The value is the weighted mean of the examples' losses, their weighted sum, or the array
        (B,) of weighted losses. For ``"none"``, `backward` returns the gradient of their sum.
    label_reduction : {"pal-n", "pal", "ova"}
        How the loss of an example with several labels is reduced; see Notes.
    mask_other_labels : bool
        Exclude the other labels of an example from the negatives of a label. By default they are
        negatives like any class.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Menon et al. [2]_ describe three reductions of several labels to one. With enough data, each
    gives the best lists of k classes by one measure, and none is best by both:

    ==========  =================================================  ==============
    reduction   loss of an example                                 best lists by
    ==========  =================================================  ==============
    ``pal-n``   pick all labels, normalised: the weighted mean     recall at k
                of the losses of its labels
    ``pal``     pick all labels: the weighted sum of these losses  precision at k
    ``ova``     one versus all: a logistic loss for each label,    precision at k
                and for each negative once, not for each label
    ==========  =================================================  ==============

    These statements are asymptotic. A linear model with a few thousand examples may behave
    differently: try both.

    ``ova`` is for losses that are sums of a logistic loss of the label and one of each draw: noise
    contrastive estimation and negative sampling. A softmax does not decompose into losses of single
    classes. With ``ova``, draws of any label of an example are treated like draws of the label.

    With `mask_other_labels` the labels of an example do not compete with each other, a case that
    [2]_ does not cover. The option does not change how draws of the label itself are treated. For
    ``ova``, whose labels share their negatives, it excludes the draws of all labels.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018,
       section 3.3: absolute softmax.
    .. [2] A. K. Menon et al., "Multilabel reductions: what is my loss optimising?", NeurIPS 2019,
       sections 3 and 4.
    """

    device = "cpu"
    # whether the loss is a sum of logistic losses, one of the label and one of each draw
    is_binary: ClassVar[bool] = False
    # whether the class vectors of the loss are the vectors of the nodes of a tree
    on_tree: ClassVar[bool] = False
    # whether the passes compute in NumPy, whose overflow warnings must be suppressed; compiled
    # kernels never warn
    _may_warn: ClassVar[bool] = True

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
            Context vectors, converted to the dtype of `class_embeddings`.
        class_embeddings : array_like, shape (n, d)
            Class vectors, float32 or float64.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels. Values of the matrix are the weights of several labels, whose losses are
            combined by `label_reduction`.
        draw : Draw, optional
            Classes drawn for each example, or one shared set; for sampled losses.
        label_log_count : array_like, shape (P,), optional
            Log expected count of the label in a draw, for each of the P pairs of example and label,
            from `Sampler.log_expected_count`; for losses that correct the label's score or discard
            accidental hits.
        biases : array_like, shape (n,), optional
            Class biases.
        weights : array_like, shape (B,), optional
            Weights of the examples.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats.
        cache : Cache
            The argument of `backward`.

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
        """Return the validated arguments of `forward`, with contexts of norm 1 if `normalize`.

        Callers that draw classes themselves pass the result to `forward_batch`.
        """
        arrays = backend(self.device)
        # the usual arguments are used as they are; all others are converted, or rejected
        if self.device == "cpu" and _needs_no_conversion(h, class_embeddings, labels):
            contexts = h
            rows = class_embeddings
            targets = Targets(labels)
        else:
            rows = arrays.shaped_rows("class_embeddings", class_embeddings)
            contexts = arrays.float_rows("h", h, rows.shape[1], rows.dtype)
            targets = self._check_labels(labels, contexts.shape[0], rows.shape[0])

        offsets = None
        if biases is not None:
            offsets = arrays.vector("biases", biases, rows.shape[0], rows.dtype)

        norms = None
        if self.normalize:  # in a copy, so that the caller's array does not change
            contexts, norms = unit_rows("h", arrays.copied(contexts))

        z = contexts if self.tau == 1.0 else arrays.times(contexts, self.tau)
        return Batch(contexts, norms, z, rows, targets, offsets)

    def with_log_sums(self, batch: Batch, log_sums: ArrayLike | None) -> Batch:
        """Return a batch from `check_batch` with a checked copy of `log_sums` (B,).

        Raises if they do not fit the loss; most losses have none, see `samplesoft.losses.log_sums`.
        """
        sums = self.checked_log_sums(log_sums, batch.targets)
        return batch if sums is None else replace(batch, log_sums=sums)

    def checked_log_sums(self, log_sums: ArrayLike | None, targets: Targets) -> FloatArray | None:
        """Return a checked copy of `log_sums` (B,); None for a loss that has none."""
        if log_sums is not None:
            raise TypeError(
                f"`log_sums` must be None for {type(self).__name__}, which keeps no number for an "
                f"example, got {type(log_sums).__name__}; leave it out, or use a MovingAverageLoss."
            )
        return None

    def _check_labels(self, labels: Any, batch_size: int, n: int) -> Targets:
        """Return the (example, label) pairs of a batch; raise unless all labels are below n."""
        if self.device == "cpu":
            return checked_targets(labels, batch_size, n, self.label_reduction)
        if sparse.issparse(labels):
            raise TypeError(
                "`labels` must hold one label an example with device='cuda', got a matrix; "
                "compute on the processor, or expand the batch to pairs."
            )
        return Targets(backend(self.device).labels("labels", labels, n, (batch_size,)))

    def forward_batch(
        self,
        batch: Batch,
        draw: Draw | None,
        *,
        label_log_count: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Any, Cache]:
        """Compute the loss as `forward` does, for a batch from `check_batch`."""
        per_example = weights_for_reduction(
            weights, batch.z.shape[0], self.reduction, batch.z.dtype
        )
        # overflow warnings are suppressed, because losses that are not finite raise an error below
        if self._may_warn:
            losses, saved = call_ignoring_overflow(self._forward, batch, draw, label_log_count)
        else:
            losses, saved = self._forward(batch, draw, label_log_count)

        # a float64 sum for any dtype, because float32 sums would lose small improvements
        total = float(losses.dot(per_example))  # not finite if a loss is not finite
        if not -np.inf < total < np.inf:
            if not np.isfinite(losses).all():
                # class vectors are validated only here, because reading all costs more than a step
                require_finite_rows(to_host(batch.class_embeddings))
                raise _losses_not_finite_error(losses, batch.z.dtype)
            raise ValueError(
                f"the weighted sum of the losses must be finite, got {total}; scale `weights`, or "
                "`h` and `class_embeddings`, down."
            )

        value = losses * per_example if self.reduction == "none" else total
        return value, Cache(batch, per_example, saved)

    def backward(self, cache: Cache) -> Gradients:
        """Compute the gradient of the value of `forward`, or of its sum for reduction "none".

        Parameters
        ----------
        cache : Cache
            From `forward`, whose arguments must not have changed since.

        Returns
        -------
        Gradients
            The gradients ``dh`` (B, d) in contexts, and sparse rows for class vectors and biases,
            each class once. Gradients that overflow their dtype are not finite; optimizers reject
            them.
        """
        batch = cache.batch
        arrays = backend(self.device)
        if self._may_warn:
            gradients = call_ignoring_overflow(self._backward, batch, cache.saved, cache.weights)
        else:
            gradients = self._backward(batch, cache.saved, cache.weights)

        if self.tau == 1.0 and batch.norms is None:
            return gradients
        dh = gradients.dh  # gradient in z = tau h, to be multiplied by tau
        if self.tau != 1.0:
            dh = arrays.times(dh, self.tau)
        if batch.norms is not None:
            dh = unit_rows_backward(dh, batch.contexts, batch.norms)

        return Gradients(dh, gradients.dW, gradients.db, gradients.d_log_sums)

    @abstractmethod
    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        """Return the loss (B,) of each example, and the state for the backward pass."""

    @abstractmethod
    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        """Return the gradients of the sum of the examples' losses, weighted by `weights` (B,).

        Their ``dh`` is the gradient in ``batch.z``, contexts times tau. `saved` is the second value
        that `_forward` returned.
        """


def _needs_no_conversion(h: Any, rows: Any, labels: Any) -> bool:
    """Whether contexts, class vectors and labels (B,) are valid arrays that need no conversion.

    The values of the class vectors are not checked.
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
    return fits and is_valid_batch(h, labels, rows.shape[0])


@njit
def is_valid_batch(h: Rows, labels: IntArray, n: int) -> bool:
    """Whether all contexts are finite, and all labels in ``range(n)``."""
    num_invalid = 0
    for b in range(len(h)):
        for f in range(h.shape[1]):
            num_invalid += 0 if abs(h[b, f]) < np.inf else 1
    for label in labels:
        num_invalid += 0 if 0 <= label < n else 1
    return num_invalid == 0


def _losses_not_finite_error(losses: FloatArray, dtype: np.dtype[Any]) -> ValueError:
    """Return the error to raise for losses (B,) that are not all finite."""
    worst = int(np.argmin(np.isfinite(losses)))
    return ValueError(
        f"the loss of example {worst} must be finite, got {losses[worst]}; its scores or "
        f"log-probabilities leave the range of {dtype}: scale `h` and `class_embeddings` down, "
        "lower `tau`, or use float64."
    )


def weights_for_reduction(
    weights: ArrayLike | None, batch_size: int, reduction: str, dtype: np.dtype[Any]
) -> FloatArray:
    """Return validated weights (B,) of the examples; for reduction "mean", divided by their sum."""
    if weights is None:  # all examples have the same weight
        weight = 1.0 / batch_size if reduction == "mean" else 1.0
        return np.zeros(batch_size) + weight

    per_example = cpu.vector("weights", to_host(weights), batch_size, np.dtype(np.float64))
    if reduction == "mean":
        per_example = scale_by_power_of_two(per_example)  # so that the sum is finite
        total = float(per_example.sum())
        if not 0.0 < total < np.inf:
            raise ValueError(
                f"`weights` must have a finite sum greater than 0 for a mean, got {total}; give an "
                'example a positive weight, or use reduction="sum".'
            )
        per_example = per_example / total

    # Weights multiply gradients. If neither exceeds the square root of the largest float, the
    # products do not overflow.
    limit = float(np.finfo(dtype).max) ** 0.5
    largest = float(np.abs(per_example).max())
    if largest > limit:
        raise ValueError(
            f"`weights` must be at most {limit:.2g} in size for gradients in {dtype}, got "
            f'{largest:g}; divide them by a number, or use reduction="mean".'
        )

    return per_example


def checked_targets(
    labels: Any, batch_size: int, num_classes: int, reduction: str = "pal-n"
) -> Targets:
    """Return the (example, label) pairs of labels (B,), or of a sparse matrix of labels (B, n).

    The values of the matrix are the weights of the labels. For reduction "pal-n" each row is
    divided by its sum; for "ova" all values must be 1. Raises TypeError or ValueError if labels are
    malformed.
    """
    if not sparse.issparse(labels):
        _require_one_type(labels)
        if not isinstance(labels, np.ndarray):
            labels = as_array("labels", labels)
        if labels.ndim != 1:
            raise ValueError(
                f"`labels` must have shape ({batch_size},), got {labels.shape}; pass several "
                "labels of an example as a scipy.sparse matrix (B, n)."
            )
        return Targets(as_labels("labels", labels, num_classes, (batch_size,)))

    # a copy, because the entries are sorted in place below
    matrix = as_csr("labels", labels)
    if matrix.shape != (batch_size, num_classes):
        raise ValueError(
            f"`labels` must have shape {(batch_size, num_classes)} as a matrix, got {matrix.shape}."
        )

    # kernels require that labels of an example are distinct and ascending, with weights above 0
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    counts = np.diff(matrix.indptr)
    if not counts.all():
        raise ValueError(
            f"`labels` must have a label in each row, got none in row {int(np.argmin(counts))}; "
            "remove such examples."
        )

    values = as_real_array("labels", matrix.data, (1,))
    if values.min() < 0.0:
        raise ValueError(f"`labels` must hold weights of at least 0, got {values.min()}.")
    if reduction == "ova" and (values != 1.0).any():
        raise ValueError(
            "`labels` must hold ones with label_reduction='ova', for which a class is a label or "
            f"is none, got {values[values != 1.0][0]}; take 'pal' for labels of other weights."
        )

    example_ids = np.repeat(np.arange(batch_size), counts)
    starts = matrix.indptr[:-1].astype(np.int64)
    classes = matrix.indices.astype(np.int64)
    if reduction != "pal-n":
        return Targets(classes, example_ids, values, starts)

    # first divide each row by its maximum, because the sum of very large weights would overflow
    values = values / np.maximum.reduceat(values, matrix.indptr[:-1])[example_ids]
    totals = np.add.reduceat(values, matrix.indptr[:-1])
    return Targets(classes, example_ids, values / totals[example_ids], starts)


def _require_one_type(labels: Any) -> None:
    """Raise if `labels` is a list of mixed types, which NumPy would silently convert to one."""
    if not isinstance(labels, list | tuple):
        return

    # integers of Python and of NumPy may be mixed
    kinds = {type(label) for label in labels}
    other_names = [kind.__name__ for kind in kinds if not issubclass(kind, int | np.integer | bool)]
    if len(kinds) > 1 and (other_names or kinds & {bool, np.bool_}):
        raise TypeError(
            "`labels` must hold integers, class indices counted from 0, got a "
            f"{type(labels).__name__} of {' and '.join(sorted(kind.__name__ for kind in kinds))}; "
            "make all of them integers."
        )
