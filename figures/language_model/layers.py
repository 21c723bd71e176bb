"""Layers of a language model beside its LSTM: vectors of words, and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from samplesoft._jit import njit, row_chunks, thread_for_each
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_memory
from samplesoft._random import stream_key, uniform_block
from samplesoft._validation import (
    IntArray,
    as_array,
    as_count,
    as_flag,
    as_ids,
    as_nonnegative,
    as_positive,
    require_host_array,
)
from samplesoft.kernels.sort_ids import group_equal_ids
from samplesoft.losses import SparseRows
from samplesoft.models.linear import as_float_dtype, uniform_weights

Parameters = dict[str, NDArray[Any]]
ParameterGradients = dict[str, NDArray[Any] | SparseRows]

_CHUNK_NUMBERS = 1 << 17  # numbers of output that a thread computes at a time


def as_init_scale(init_scale: float | None, size: int) -> float:
    """Return a positive `init_scale`, or 1 / sqrt(size) where it is None."""
    return size**-0.5 if init_scale is None else as_positive("init_scale", init_scale)


def check_finite(name: str, value: NDArray[Any]) -> None:
    """Require that no entry is NaN or infinite."""
    if not np.isfinite(value).all():
        raise ValueError(f"`{name}` must be finite, got NaN or infinity; remove or replace them.")


def check_array(name: str, value: Any, shape: tuple[int | None, ...], dtype: np.dtype[Any]) -> None:
    """Require an array of type `dtype` and of `shape`, where None stands for any length but 0."""
    require_host_array(name, value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"`{name}` must be a numpy array, got {type(value).__name__}.")
    wanted = tuple("*" if length is None else length for length in shape)
    if value.ndim != len(shape) or any(
        have != want if want is not None else have < 1
        for have, want in zip(value.shape, shape, strict=True)
    ):
        described = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"`{name}` must have shape ({described}), not empty, got {value.shape}.")
    if value.dtype != dtype:
        raise TypeError(
            f"`{name}` must be of the layer's type {dtype}, got {value.dtype}; "
            f"convert it with {name}.astype({dtype})."
        )


class Embedding:
    """A vector for each id.

    Parameters
    ----------
    num_embeddings : int
        Number of ids n.
    embedding_dim : int
        Length d of a vector.
    init_scale : float, optional
        Weights start uniform in [-init_scale, init_scale]; 1 / sqrt(d) if None.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Source of the weights.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``weights`` (n, d).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many weights do not fit.

    References
    ----------
    Bengio et al. (2003), A Neural Probabilistic Language Model, section 2: the mapping C.

    Examples
    --------
    >>> import numpy as np
    >>> embedding = Embedding(5, 2, rng=0)
    >>> y, cache = embedding.forward([[4, 1, 4]])
    >>> y.shape
    (1, 3, 2)
    >>> dx, gradients = embedding.backward(cache, np.ones_like(y))
    >>> gradients["weights"].ids, gradients["weights"].rows.tolist()
    (array([1, 4]), [[1.0, 1.0], [2.0, 2.0]])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_scale: float | None = None,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        columns = as_count("embedding_dim", embedding_dim)
        shape = as_count("num_embeddings", num_embeddings), columns
        scale, kind, key = (
            as_init_scale(init_scale, columns),
            as_float_dtype(dtype),
            stream_key(rng),
        )
        require_memory("num_embeddings", shape[0], kind.itemsize * shape[0] * columns)
        self.parameters = {"weights": uniform_weights(shape, scale, kind, key)}

    def forward(self, x: ArrayLike) -> tuple[NDArray[Any], IntArray]:
        """Look up vectors.

        Parameters
        ----------
        x : array_like of int, any shape
            Ids in ``range(n)``.

        Returns
        -------
        y : ndarray, shape (*x.shape, d)
            Their vectors.
        cache : ndarray of int64
            The ids.

        Raises
        ------
        TypeError
            If `x` does not hold integers.
        ValueError
            If `x` is empty, or an id is out of range.
        """
        weights = self.parameters["weights"]
        array = as_array("x", x)
        if array.size == 0:
            raise ValueError(f"`x` must not be empty, got shape {array.shape}.")
        ids = as_ids("x", array.ravel(), len(weights)).reshape(array.shape)
        return weights[ids], ids

    def backward(self, cache: IntArray, dy: NDArray[Any]) -> tuple[None, ParameterGradients]:
        """Return None, as ids have no derivative, and the gradient in the ids that occur."""
        weights = self.parameters["weights"]
        dim = weights.shape[1]
        check_array("dy", dy, (*cache.shape, dim), weights.dtype)
        values = np.ascontiguousarray(dy).reshape(-1, dim)
        ids, _, order, starts = group_equal_ids(cache.ravel(), len(weights))
        rows = np.empty((len(ids), dim), weights.dtype)

        def add(part: slice) -> None:
            add_runs(values, order, starts, part.start, rows[part])

        thread_for_each(add, row_chunks(rows.shape, _CHUNK_NUMBERS))
        return None, {"weights": SparseRows(ids, rows)}


@njit
def add_runs(
    values: NDArray[Any], order: IntArray, starts: IntArray, first: int, sums: NDArray[Any]
) -> None:
    """Write the sums (runs, d) of the rows `values` (K, d) in runs ``first, first + 1, ...``.

    `order` and `starts` are from `group_equal_ids`.
    """
    for g in range(len(sums)):
        total = sums[g]
        # the first is written, not added: sums need not be cleared before
        total[:] = values[order[starts[first + g]]]
        for place in order[starts[first + g] + 1 : starts[first + g + 1]]:
            row = values[place]
            for i in range(len(total)):
                total[i] += row[i]


class Dropout:
    """Set each number to 0 with probability `rate`, and divide the others by ``1 - rate``.

    Parameters
    ----------
    rate : float
        Probability in [0, 1).

    Attributes
    ----------
    rate : float
        As above.
    parameters : dict
        Empty.

    Raises
    ------
    TypeError, ValueError
        If `rate` is not a number in [0, 1).

    References
    ----------
    Srivastava et al. (2014), Dropout: A Simple Way to Prevent Neural Networks from Overfitting,
    section 10, for dividing during training.

    Examples
    --------
    >>> import numpy as np
    >>> y, cache = Dropout(0.5).forward(np.ones((2, 4)), rng=0, training=True)
    >>> y
    array([[2., 0., 2., 0.],
           [2., 2., 2., 2.]])
    """

    def __init__(self, rate: float) -> None:
        self.rate = as_nonnegative("rate", rate, below=1.0)
        self.parameters: Parameters = {}

    def forward(
        self,
        x: NDArray[Any],
        *,
        rng: int | np.random.Generator | None = None,
        training: bool = False,
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return `x` with some numbers dropped, or `x` itself outside training.

        Parameters
        ----------
        x : ndarray of float32 or float64, shape (..., d)
            Input.
        rng : int or numpy.random.Generator or None
            Source of the mask: the same seed gives the same mask.
        training : bool
            Whether to drop.

        Returns
        -------
        y : ndarray, shape (..., d)
            Output.
        cache : ndarray, shape (..., d), or None
            The factor of each number; None where there is none.

        Raises
        ------
        TypeError, ValueError
            If `x` or `rng` is of another type, or what goes on is not finite.
        """
        if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64):
            kind = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"`x` must be an array of float32 or float64, got {kind}.")
        require_host_array("x", x)
        if not as_flag("training", training) or self.rate == 0.0:
            check_finite("x", x)
            return x, None
        width = x.shape[-1] if x.ndim else 1
        uniforms = uniform_block(stream_key(rng), x.size // max(width, 1), width).reshape(x.shape)
        factors = (uniforms >= self.rate) * x.dtype.type(1.0 / (1.0 - self.rate))
        with ignore_overflow():
            y = x * factors
        check_finite("x", y)
        return y, factors

    def backward(
        self, cache: NDArray[Any] | None, dy: NDArray[Any]
    ) -> tuple[NDArray[Any], ParameterGradients]:
        """Return the derivatives in the input, and no gradients."""
        if cache is None:
            return dy, {}
        check_array("dy", dy, cache.shape, cache.dtype)
        return dy * cache, {}
