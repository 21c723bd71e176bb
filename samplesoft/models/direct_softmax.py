"""A softmax on the inputs themselves: the linear model without a bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from samplesoft._names import prefixed
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_float_rows, require_instance
from samplesoft.models.dropout import Dropout
from samplesoft.models.encoders import check_csr
from samplesoft.models.feature_layer import FeatureLayer, with_intercept
from samplesoft.models.linear_softmax import Gradient, LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.module import as_float_dtype
from samplesoft.samplers.base import Rows

_PENALTY = 0.003  # of all classes together, by default


class DirectSoftmax(LinearSoftmax):
    """Class scores ``tau * (x . c_j + b_j)``: `LinearSoftmax` for an `embedding_dim` of None.

    Parameters
    ----------
    num_inputs, num_classes, settings, counts, dtype, rng
        As for `LinearSoftmax`. Parameters are zeros at first; random are dropout and draws.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``softmax.weights``: of each feature, a number for each class, and last the intercepts, as
        in `FeatureLayer.weights`.
    softmax : FeatureLayer
        Loss, sampler and class vectors.

    Raises
    ------
    MemoryError
        If the parameters would not fit.
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> from samplesoft.models import make_optimizer
    >>> settings = LinearSoftmaxSettings(
    ...     loss="full", sampler=None, num_sampled=None, embedding_dim=None
    ... )
    >>> model, optimizer = DirectSoftmax(4, 4, settings), make_optimizer("adagrad", 1.0)
    >>> x, labels = sparse.csr_array(np.eye(4, dtype=np.float32)), np.array([1, 2, 3, 0])
    >>> for step in range(10):
    ...     loss, gradients = model.step(x, labels, rng=step)
    ...     optimizer.step(model.parameters, gradients)
    >>> ids, scores = model.top_k(x, 1)
    >>> ids.ravel()
    array([1, 2, 3, 0])
    """

    softmax: FeatureLayer
    _rows_at_a_time = 64  # with few features that occur

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        *,
        counts: ArrayLike | None = None,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        require_instance("settings", settings, LinearSoftmaxSettings)
        self.settings, self.dtype = settings, as_float_dtype(dtype)
        settings.require_room(num_inputs, num_classes, self.dtype)
        sampler = None
        if settings.sampler is not None:  # which does not look at class vectors
            sampler = settings.make_sampler(np.zeros((num_classes, 1)), counts, int(as_key(rng)))
        self.softmax = FeatureLayer(
            num_inputs,
            num_classes,
            settings.make_loss(num_classes, num_inputs, "sum"),
            sampler,
            settings.num_sampled,
            shared=settings.shared,
            alpha=_PENALTY / num_classes if settings.alpha is None else settings.alpha,
            dtype=self.dtype,
        )
        self._dropout = Dropout(settings.dropout)
        self._name_parameters()

    def _name_parameters(self) -> None:
        self.parameters = {"softmax.weights": self.softmax.weights}

    @property
    def num_inputs(self) -> int:
        """Columns v of an input."""
        return int(self.softmax.parameters["class_embeddings"].shape[1]) - 1

    def check_inputs(self, x: Any) -> Any:
        """Return inputs (B, v) whose rows can be taken."""
        of_features = self.softmax.parameters["class_embeddings"][0, :-1]
        if sparse.issparse(x):
            check_csr(x, of_features)
            return x
        return as_float_rows("x", x, len(of_features), self.dtype)

    def _gradients(
        self, x: Any, labels: Any, weights: FloatArray, draws: int
    ) -> tuple[float, dict[str, Gradient]]:
        loss, saved = self.softmax.forward(x, labels, weights=weights, rng=draws)
        _, gradients = self.softmax.backward(saved)
        return float(loss), prefixed({"softmax": gradients})

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Do nothing: the sampler does not follow class vectors."""

    def embed(self, x: Any) -> Rows:
        """Return inputs (B, v) as dense contexts (B, v + 1), with a one for the intercept."""
        x = self.check_inputs(x)
        dense = x if isinstance(x, np.ndarray) else x.toarray()
        return with_intercept(dense, dense.shape[1])[0]

    def _scored(self, x: Any, rows: Rows) -> tuple[Rows, Rows]:
        contexts, features = with_intercept(x, self.num_inputs)
        return contexts, np.ascontiguousarray(np.take(rows.T, features, axis=0).T)


def make_linear_softmax(
    num_inputs: int, num_classes: int, settings: LinearSoftmaxSettings, **options: Any
) -> LinearSoftmax:
    """Make a `LinearSoftmax`, or for an `embedding_dim` of None a `DirectSoftmax`.

    Parameters
    ----------
    num_inputs, num_classes, settings, **options
        As for `LinearSoftmax`.

    Returns
    -------
    LinearSoftmax
        The model.

    Raises
    ------
    MemoryError
        If the parameters would not fit.
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> settings = LinearSoftmaxSettings(embedding_dim=None, sampler="uniform")
    >>> type(make_linear_softmax(4, 4, settings)).__name__
    'DirectSoftmax'
    """
    require_instance("settings", settings, LinearSoftmaxSettings)
    model = DirectSoftmax if settings.embedding_dim is None else LinearSoftmax
    return model(num_inputs, num_classes, settings, **options)
