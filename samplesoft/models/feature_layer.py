"""A softmax layer directly on sparse inputs, whose class vectors have a weight for each feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._jit import njit
from samplesoft._validation import IntArray, as_csr, as_real_array, make_arrays_writable
from samplesoft.losses.base import Cache, Loss, SparseRows, Targets, checked_targets
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Rows, Sampler


class FeatureLayer(SoftmaxLayer):
    """A softmax layer with scores ``x . c_j + b_j`` of sparse inputs x, and an L2 penalty.

    A step reads and changes only the weights of features that occur in the batch, and of classes
    that are labels or drawn. The loss gets a smaller problem, with only these features and classes.
    The weights of a feature are contiguous in memory, so that a step on all classes processes whole
    rows.

    Parameters
    ----------
    num_features, num_classes : int
        Number v of columns of an input, and number n of classes.
    loss : Loss
        A loss that does not normalise vectors.
    sampler : Sampler, optional
        A sampler that is independent of contexts.
    num_sampled, shared
        As for `SoftmaxLayer`.
    alpha : float
        Factor of the L2 penalty: ``alpha / 2`` times the sum of the squares of all weights except
        b. A step adds the gradient of the penalty only for the weights that it uses. It divides
        the gradient by the frequencies with which steps use the weight's feature and class, so that
        the average over all steps is the gradient of the whole penalty.
    dtype : dtype
        float32 or float64.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"weights"`` (v + 1, n), initially zeros; the last row is b. If classes are drawn, the
        array is flattened, because gradients are then of single weights.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the sampler follows class vectors.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        loss: Loss,
        sampler: Sampler | None,
        num_sampled: int | None,
        *,
        shared: bool | None,
        alpha: float,
        dtype: Any,
    ) -> None:
        if sampler is not None and sampler.dim is not None:
            raise ValueError(
                f"`sampler` must not look at inputs, got a {type(sampler).__name__} for vectors of "
                f"{sampler.dim} numbers; use one such as 'unigram', or set an `embedding_dim`."
            )

        super().__init__(
            np.zeros((num_classes, 1), dtype), loss, sampler, num_sampled, shared=shared
        )
        self.num_features = num_features
        self.num_classes = num_classes
        self.alpha = alpha

        # the weights of a feature are contiguous: a step on all classes processes whole rows
        shape = (num_features + 1, num_classes)
        weights = np.zeros(shape if sampler is None else shape[0] * shape[1], dtype)
        self.parameters = {"weights": weights}

        # Number of all steps, of the steps that used each class, and of the steps that used each
        # feature. They are counted only for a penalty. float64 counts exactly up to 2**53.
        sizes = {"steps": 1, "of_class": num_classes, "of_feature": num_features + 1}
        self._counters = {name: np.zeros(size) for name, size in sizes.items() if alpha}

    @property
    def class_embeddings(self) -> Rows:
        """Class vectors (n, v + 1), a view of the weights; the last column is b."""
        return self.parameters["weights"].reshape(-1, self.num_classes).T

    def forward(  # type: ignore[override]
        self,
        h: Any,
        labels: Any,
        *,
        log_sums: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, FeatureCache]:
        """Draw classes if the loss is sampled, and compute the loss.

        Parameters
        ----------
        h : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs, in the dtype of the class vectors.
        labels, log_sums, weights, rng
            As for `SoftmaxLayer.forward`.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats, without the penalty.
        cache : FeatureCache
            Intermediate results for `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        targets = checked_targets(labels, h.shape[0], self.num_classes, self.loss.label_reduction)
        contexts, features = with_intercept(h, self.num_features)

        # restrict the problem to the K labels and drawn classes, with new indices 0, ..., K - 1
        draw, log_count = self._draw(contexts, targets, rng)
        classes = np.arange(self.num_classes)
        local_labels = labels
        if draw is not None:
            classes = np.union1d(draw.ids, targets.labels)
            draw = replace(draw, ids=np.searchsorted(classes, draw.ids))
            local_labels = _local_labels(labels, targets, classes)
        block = self._copy_weights(features, classes)
        batch = self.loss.check_batch(contexts, np.ascontiguousarray(block.T), local_labels, None)
        batch = self.loss.with_log_sums(batch, log_sums)
        value, cache = self.loss.forward_batch(
            batch, draw, label_log_count=log_count, weights=weights
        )

        if self._observes:
            self._observe_labels(targets, weights)
        return value, FeatureCache(cache, classes, features, block)

    def backward(  # type: ignore[override]
        self, cache: FeatureCache
    ) -> tuple[None, dict[str, SparseRows]]:
        """Return None, and the gradient of loss plus penalty under the name of the parameter.

        None stands for derivatives in the inputs, which nothing needs because inputs are data. The
        gradient has rows of ``"weights"``, or single entries of the flattened array if classes are
        drawn.
        """
        make_arrays_writable(self.parameters)
        make_arrays_writable(self._counters)
        block_gradient = self.loss.backward(cache.loss_cache).dW
        features = cache.features
        classes = cache.classes[block_gradient.ids]
        gradient = np.ascontiguousarray(block_gradient.rows.T)

        if self.alpha:
            all_classes = len(block_gradient.ids) == len(cache.classes)
            block = cache.block if all_classes else cache.block[:, block_gradient.ids]
            _add_penalty_gradient(block, *self._penalty_factors(features, classes), gradient)

        # without draws, whole rows of the weights change
        if self.sampler is None:
            return None, {"weights": SparseRows(features, gradient)}

        # indices into the flattened weights; they are ascending, as optimizers require
        indices = np.add.outer(features * self.num_classes, classes)
        return None, {"weights": SparseRows(indices.reshape(-1), gradient.reshape(-1))}

    def _copy_weights(self, features: IntArray, classes: IntArray) -> Rows:
        """Return a copy (f, k) of the weights of the given features (f,) and classes (k,)."""
        # for all classes, copying whole rows is faster than indexing each entry
        by_feature = self.class_embeddings.T
        if len(classes) == self.num_classes:
            return np.take(by_feature, features, axis=0)
        return by_feature[features[:, None], classes]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the sampler, and the step counts that the penalty uses."""
        return {**super().state(), **self._counters}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state, given the result of `state`; raise if it is from another layer."""
        sampler_state = dict(state)
        counters = {}
        # validate all shapes before the sampler changes
        for name, counter in self._counters.items():
            counter_state = as_real_array(f"state[{name!r}]", sampler_state.pop(name, []), (1,))
            counters[name] = counter_state.copy()
            if counters[name].shape != counter.shape:
                raise ValueError(
                    f"`state` must have {name!r} of shape {counter.shape}, got "
                    f"{counters[name].shape}; it is that of another layer."
                )

        super().load_state(sampler_state)
        self._counters = counters

    def _penalty_factors(self, features: IntArray, classes: IntArray) -> tuple[Rows, Rows]:
        """Count a step; return factors (f,) of features and (k,) of classes for the penalty.

        The gradient of the penalty in a weight is the weight times the factors of its feature and
        of its class. A step uses a weight if it uses both.
        """
        # with the factor 1 / frequency of the steps that use a weight, the average of the gradient
        # over all steps is the gradient of the whole penalty
        steps = self._counters["steps"]
        steps += 1.0

        inverse_frequencies = []
        for name, ids in (("of_feature", features), ("of_class", classes)):
            counter = self._counters[name]
            counter[ids] += 1.0
            inverse_frequencies.append(
                (steps / counter[ids]).astype(self.parameters["weights"].dtype)
            )

        inverse_frequencies[0] *= self.alpha
        inverse_frequencies[0][-1] = 0.0  # no penalty on the intercept
        return inverse_frequencies[0], inverse_frequencies[1]


@njit
def _add_penalty_gradient(
    weights: Rows, row_factors: Rows, column_factors: Rows, gradient: Rows
) -> None:
    """Add ``row_factors[i] * column_factors[j] * weights[i, j]`` to a gradient (f, k)."""
    for i in range(len(gradient)):
        row_factor = row_factors[i]
        weight = weights[i]
        out = gradient[i]
        for j in range(len(out)):
            out[j] += row_factor * column_factors[j] * weight[j]


class FeatureCache(NamedTuple):
    """Intermediate results that `FeatureLayer.forward` passes to `backward`."""

    loss_cache: Cache  # cache of the loss, computed with these classes and features only
    classes: IntArray  # (k,): classes that the step uses, ascending
    features: IntArray  # (f,): features that the step uses, ascending
    block: Rows  # (f, k): weights of these features and classes


def with_intercept(x: Any, num_features: int) -> tuple[Rows, IntArray]:
    """Return dense contexts (B, f) for inputs (B, v), and the feature (f,) of each column.

    For sparse inputs, columns without entries are omitted. The last column is ones, for the
    intercept, which is feature v.
    """
    ones = np.ones((x.shape[0], 1), x.dtype)
    if isinstance(x, np.ndarray):
        return np.hstack([x, ones]), np.arange(num_features + 1)

    features, columns = np.unique(np.asarray(x.indices), return_inverse=True)
    occurring = sparse.csr_array((x.data, columns, x.indptr), (x.shape[0], len(features)))
    contexts = np.hstack([occurring.toarray(), ones])
    return contexts, np.append(features, num_features).astype(np.int64)


def _local_labels(labels: Any, targets: Targets, classes: IntArray) -> Any:
    """Return the labels as indices into the ascending `classes` (k,).

    The result is an array or a CSR matrix, like `labels`.
    """
    if targets.example_ids is None:
        return np.searchsorted(classes, targets.labels)
    matrix = as_csr("labels", labels)
    indices = np.searchsorted(classes, matrix.indices)
    return sparse.csr_array((matrix.data, indices, matrix.indptr), (matrix.shape[0], len(classes)))
