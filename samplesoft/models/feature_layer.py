"""A softmax layer on sparse inputs themselves: class vectors have a number for each feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from samplesoft._jit import njit
from samplesoft._validation import IntArray, as_csr, as_real_array, copy_read_only_arrays
from samplesoft.losses.base import Cache, Loss, SparseRows, Targets, check_targets
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Rows, Sampler


class FeatureLayer(SoftmaxLayer):
    """Scores ``x . c_j + b_j`` of sparse inputs, and a loss on them with an L2 penalty.

    A step reads and changes numbers of class vectors for features that occur in the batch, of
    classes that are labels or drawn. The loss sees nothing else: contexts of those features, and
    vectors of those classes. In memory the numbers of a feature lie side by side, so that a step on
    all classes goes through rows of them.

    Parameters
    ----------
    num_features, num_classes : int
        Columns v of an input, and classes n.
    loss : Loss
        A loss of vectors that are not divided by their norms.
    sampler : Sampler, optional
        One that does not look at contexts.
    num_sampled, shared
        As for `SoftmaxLayer`.
    alpha : float
        The penalty is half of this times the sum of the squares of all numbers but ``b``. A step
        adds it for the numbers that it changes, more the less often they are: in the mean over the
        steps, the gradient is that of the whole penalty.
    dtype : dtype
        float32 or float64.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"weights"``, zeros at first: of each feature a number for each class, and last the b. Of
        shape (v + 1, n), or without a second axis if classes are drawn, for then gradients are of
        single numbers.

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
                f"{sampler.dim} numbers; take one such as 'unigram', or an `embedding_dim`."
            )
        super().__init__(
            np.zeros((num_classes, 1), dtype), loss, sampler, num_sampled, shared=shared
        )
        self.num_features, self.num_classes, self.alpha = num_features, num_classes, alpha
        # numbers of a feature side by side: a step on all classes goes through whole rows
        shape = (num_features + 1, num_classes)
        numbers = np.zeros(shape if sampler is None else shape[0] * shape[1], dtype)
        self.parameters = {"weights": numbers}
        # steps, and of how many a class and a feature were part; float64 counts exactly up to 2^53
        sizes = {"steps": 1, "of_class": num_classes, "of_feature": num_features + 1}
        self._counters = {name: np.zeros(size) for name, size in sizes.items() if alpha}

    @property
    def class_embeddings(self) -> Rows:
        """Class vectors (n, v + 1), a view of the numbers; the last column holds the b."""
        return self.parameters["weights"].reshape(-1, self.num_classes).T

    def forward(  # type: ignore[override]
        self,
        h: Any,
        labels: Any,
        *,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, FeatureCache]:
        """Draw negatives where the loss needs them, and compute the loss.

        Parameters
        ----------
        h : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs, of the type of the class vectors.
        labels, weights, rng
            As for `SoftmaxLayer.forward`.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss in nats, without the penalty.
        cache : FeatureCache
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        targets = check_targets(labels, h.shape[0], self.num_classes, self.loss.label_reduction)
        contexts, features = with_intercept(h, self.num_features)

        # the loss sees a small problem, of the classes that are labels or drawn, numbered again
        draw, log_count = self._draw(contexts, targets, rng)
        classes, seen = np.arange(self.num_classes), labels
        if draw is not None:
            classes = np.union1d(draw.ids, targets.labels)
            draw = replace(draw, ids=np.searchsorted(classes, draw.ids))
            seen = _renumbered(labels, targets, classes)
        block = self._block(features, classes)
        batch = self.loss.check_batch(contexts, np.ascontiguousarray(block.T), seen, None)
        value, cache = self.loss.forward_batch(
            batch, draw, label_log_count=log_count, weights=weights
        )
        if self._observes:
            self._observe(targets, weights)
        return value, FeatureCache(cache, classes, features, block)

    def backward(  # type: ignore[override]
        self, cache: FeatureCache
    ) -> tuple[None, dict[str, SparseRows]]:
        """Return None, for inputs are data, and the gradient of the loss and of the penalty.

        That is of rows or of numbers of `weights`.
        """
        copy_read_only_arrays(self.parameters)
        copy_read_only_arrays(self._counters)
        of_rows, features = self.loss.backward(cache.of_loss).dW, cache.features
        classes, gradient = cache.classes[of_rows.ids], np.ascontiguousarray(of_rows.rows.T)
        if self.alpha:
            all_classes = len(of_rows.ids) == len(cache.classes)
            block = cache.block if all_classes else cache.block[:, of_rows.ids]
            _add_penalty(block, *self._penalty(features, classes), gradient)
        # all classes: whole rows of features change; else single numbers
        if self.sampler is None:
            return None, {"weights": SparseRows(features, gradient)}
        # places in a matrix that is much larger than the block; they rise, as optimizers ask
        places = np.add.outer(features * self.num_classes, classes)
        return None, {"weights": SparseRows(places.reshape(-1), gradient.reshape(-1))}

    def _block(self, features: IntArray, classes: IntArray) -> Rows:
        """Return a copy of the weights (f, k) of some features in some classes."""
        # whole rows, without an index for each number
        by_feature = self.class_embeddings.T
        if len(classes) == self.num_classes:
            return np.take(by_feature, features, axis=0)
        return by_feature[features[:, None], classes]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what the sampler has learned, and how often numbers have changed."""
        return {**super().state(), **self._counters}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state`."""
        rest, loaded = dict(state), {}
        # all shapes are checked before the sampler changes
        for name, counter in self._counters.items():
            loaded[name] = as_real_array(f"state[{name!r}]", rest.pop(name, []), (1,)).copy()
            if loaded[name].shape != counter.shape:
                raise ValueError(
                    f"`state` must have {name!r} of shape {counter.shape}, got "
                    f"{loaded[name].shape}; it is that of another layer."
                )
        super().load_state(rest)
        self._counters = loaded

    def _penalty(self, features: IntArray, classes: IntArray) -> tuple[Rows, Rows]:
        """Return factors (f,) and (k,) whose products are those of the numbers in its gradient.

        A number is part of a step where both its class and its feature are.
        """
        # a number is part of one step in `seldom`: it makes up for the steps without it
        steps = self._counters["steps"]
        steps += 1.0
        seldom = []
        for name, ids in (("of_feature", features), ("of_class", classes)):
            counter = self._counters[name]
            counter[ids] += 1.0
            seldom.append((steps / counter[ids]).astype(self.parameters["weights"].dtype))
        seldom[0] *= self.alpha
        seldom[0][-1] = 0.0  # the intercept
        return seldom[0], seldom[1]


@njit
def _add_penalty(weights: Rows, of_rows: Rows, of_columns: Rows, gradient: Rows) -> None:
    """Add ``of_rows[i] * of_columns[j] * weights[i, j]`` to a gradient (k, d)."""
    for i in range(len(gradient)):
        row, weight, out = of_rows[i], weights[i], gradient[i]
        for j in range(len(out)):
            out[j] += row * of_columns[j] * weight[j]


class FeatureCache(NamedTuple):
    """What `FeatureLayer.backward` needs."""

    of_loss: Cache
    classes: IntArray  # (k,)
    features: IntArray  # (f,)
    block: Rows  # (f, k): the weights that the loss saw


def with_intercept(x: Any, num_features: int) -> tuple[Rows, IntArray]:
    """Return contexts (B, f) of the features that occur in inputs (B, v), and those features (f,).

    The last is the intercept's, number v, with ones.
    """
    ones = np.ones((x.shape[0], 1), x.dtype)
    if isinstance(x, np.ndarray):
        return np.hstack([x, ones]), np.arange(num_features + 1)
    # only columns that occur become dense
    features, places = np.unique(np.asarray(x.indices), return_inverse=True)
    some = sparse.csr_array((x.data, places, x.indptr), (x.shape[0], len(features)))
    return np.hstack([some.toarray(), ones]), np.append(features, num_features).astype(np.int64)


def _renumbered(labels: Any, targets: Targets, classes: IntArray) -> Any:
    """Return labels by their places among `classes` (k,), rising."""
    if targets.example_ids is None:
        return np.searchsorted(classes, targets.labels)
    matrix = as_csr("labels", labels)
    places = np.searchsorted(classes, matrix.indices)
    return sparse.csr_array((matrix.data, places, matrix.indptr), (matrix.shape[0], len(classes)))
