"""Layers whose input is sparse: ids, or the rows of a sparse matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from samplesoft._jit import row_chunks, thread_each
from samplesoft._memory import require_room
from samplesoft._random import as_key
from samplesoft._validation import IntArray, as_array, as_count, as_ids, require_well_formed
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import add_runs, equal_runs
from samplesoft.losses.base import SparseRows
from samplesoft.models.module import (
    ParameterGradients,
    Parameters,
    as_float_dtype,
    as_init_scale,
    check_array,
    check_finite,
    check_products,
    uniform_weights,
)

_CHUNK_NUMBERS = 1 << 17  # numbers of output that a thread computes at a time


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
        self.parameters = _weights("num_embeddings", shape, init_scale, dtype, rng)

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
        ids, _, order, starts = equal_runs(cache.ravel(), len(weights))
        rows = np.empty((len(ids), dim), weights.dtype)

        def add(part: slice) -> None:
            add_runs(values, order, starts, part.start, rows[part])

        _each_part(rows, add)
        return None, {"weights": SparseRows(ids, rows)}


class _Entries(NamedTuple):
    """A matrix (B, v) in compressed rows."""

    starts: NDArray[Any]
    columns: NDArray[Any]
    values: NDArray[Any]


class SparseLinear:
    """Sparse rows times weights: a layer whose cost does not depend on the number of inputs.

    Parameters
    ----------
    num_inputs : int
        Number of inputs v.
    embedding_dim : int
        Length d of an output.
    init_scale : float, optional
        Weights start uniform in [-init_scale, init_scale]; 1 / sqrt(d) if None.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Source of the weights.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``weights`` (v, d).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many weights do not fit.

    References
    ----------
    Joulin et al. (2017), Bag of Tricks for Efficient Text Classification, section 2: the matrix A.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> layer = SparseLinear(4, 2, dtype=np.float64, rng=0)
    >>> x = csr_array(np.array([[0.0, 3.0, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]]))
    >>> y, cache = layer.forward(x)
    >>> dx, gradients = layer.backward(cache, np.ones_like(y))
    >>> gradients["weights"].ids, gradients["weights"].rows.tolist()
    (array([1, 3]), [[5.0, 5.0], [1.0, 1.0]])
    """

    def __init__(
        self,
        num_inputs: int,
        embedding_dim: int,
        *,
        init_scale: float | None = None,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        shape = as_count("num_inputs", num_inputs), as_count("embedding_dim", embedding_dim)
        self.parameters = _weights("num_inputs", shape, init_scale, dtype, rng)

    def forward(self, x: Any) -> tuple[NDArray[Any], _Entries]:
        """Multiply by the weights.

        Parameters
        ----------
        x : scipy.sparse.csr_array or csr_matrix, shape (B, v)
            Inputs, finite, of the type of the weights. Rows may be empty.

        Returns
        -------
        y : ndarray, shape (B, d)
            ``x @ weights``.
        cache : tuple of ndarray
            The entries of `x`.

        Raises
        ------
        TypeError
            If `x` is not a CSR matrix, or of another type.
        ValueError
            If `x` has the wrong shape, is not a well-formed CSR matrix, or is not finite.
        """
        weights = self.parameters["weights"]
        entries = check_csr(x, weights)
        y = np.empty((len(entries.starts) - 1, weights.shape[1]), weights.dtype)

        def multiply(part: slice) -> None:
            starts = entries.starts[part.start : part.stop + 1]
            weighted_rows(starts, entries.columns, entries.values, weights, y[part])

        _each_part(y, multiply)
        check_products(y)
        return y, entries

    def backward(self, cache: _Entries, dy: NDArray[Any]) -> tuple[None, ParameterGradients]:
        """Return None, as it would not be sparse, and the gradient in the inputs that occur."""
        weights = self.parameters["weights"]
        batch = len(cache.starts) - 1
        check_array("dy", dy, (batch, weights.shape[1]), weights.dtype)
        dy = np.ascontiguousarray(dy)
        ids, _, order, starts = equal_runs(cache.columns.astype(np.int64), len(weights))
        owners = np.repeat(np.arange(batch), np.diff(cache.starts))[order]
        values = cache.values[order]
        rows = np.empty((len(ids), weights.shape[1]), weights.dtype)

        def add(part: slice) -> None:
            weighted_rows(starts[part.start : part.stop + 1], owners, values, dy, rows[part])

        _each_part(rows, add)
        return None, {"weights": SparseRows(ids, rows)}


def _each_part(rows: NDArray[Any], work: Any) -> None:
    """Call ``work(part)`` for parts of `rows` (N, d), on all threads."""
    thread_each(work, row_chunks(rows.shape, _CHUNK_NUMBERS))


def _weights(
    name: str,
    shape: tuple[int, int],
    init_scale: float | None,
    dtype: DTypeLike,
    rng: int | np.random.Generator | None,
) -> Parameters:
    scale, kind, key = as_init_scale(init_scale, shape[1]), as_float_dtype(dtype), as_key(rng)
    require_room(name, shape[0], kind.itemsize * shape[0] * shape[1])
    return {"weights": uniform_weights(shape, scale, kind, key)}


def check_csr(x: Any, weights: NDArray[Any]) -> _Entries:
    """Check `x`, for its indices are followed without a look."""
    if getattr(x, "format", None) != "csr":
        raise TypeError(
            f"`x` must be a scipy.sparse CSR matrix, got {type(x).__name__}; "
            "make one with scipy.sparse.csr_array(x)."
        )
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] != len(weights):
        raise ValueError(f"`x` must have shape (B, {len(weights)}), not empty, got {x.shape}.")
    if x.dtype != weights.dtype:
        raise TypeError(
            f"`x` must be of the layer's type {weights.dtype}, got {x.dtype}; "
            f"convert it with x.astype({weights.dtype})."
        )
    require_well_formed("x", x)
    used = x.indptr[-1]
    check_finite("x", x.data[:used])
    return _Entries(x.indptr, x.indices[:used], x.data[:used])
