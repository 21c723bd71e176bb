"""A linear layer whose input may be sparse, and what arrays of layers must be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from samplesoft._jit import chunks, row_chunks, thread_each
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_memory
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._validation import (
    IntArray,
    as_count,
    as_float_rows,
    copy_read_only_arrays,
    in_two_dimensions,
    is_finite,
    require_well_formed,
)
from samplesoft.kernels.products import product
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import equal_runs
from samplesoft.losses.base import SparseRows

Gradient = NDArray[Any] | SparseRows  # of a parameter, of all its rows or of a few

_CHUNK_NUMBERS = 1 << 17  # numbers of output that a thread computes at a time
_SORTED, _PASSES = 1 << 18, 32  # entries that are sorted at once, and times for more, at most
_DRAWN_NUMBERS = 1 << 20  # uniforms drawn at a time: memory for them, whatever the weights take


class Linear:
    """Rows times weights, plus an intercept.

    Parameters
    ----------
    num_inputs : int
        Number of inputs v.
    embedding_dim : int
        Length d of an output.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Source of the parameters, which start uniform in +-1 / sqrt(d).

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``weights`` (v, d) and ``intercept`` (d,), the output for a row without entries.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many weights do not fit.

    References
    ----------
    Joulin et al. (2017), Bag of Tricks for Efficient Text Classification, section 2: the matrix A.

    Notes
    -----
    For dense inputs the last bits may change with the number of threads that BLAS uses, unless
    under ``with threadpoolctl.threadpool_limits(1, "blas"):``; for sparse ones they do not.

    Examples
    --------
    >>> layer = Linear(3, 2, dtype=np.float64, rng=0)
    >>> layer.parameters["intercept"][:] = 0.5
    >>> y, cache = layer.forward(sparse.csr_array(np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])))
    >>> y[1]
    array([0.5, 0.5])
    >>> dx, gradients = layer.backward(cache, np.ones_like(y))
    >>> gradients["weights"].ids, gradients["weights"].rows, gradients["intercept"]
    (array([1]), array([[2., 2.]]), array([2., 2.]))
    """

    def __init__(
        self,
        num_inputs: int,
        embedding_dim: int,
        *,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        key, kind = as_key(rng), as_float_dtype(dtype)
        embedding_dim = as_count("embedding_dim", embedding_dim)
        shape = as_count("num_inputs", num_inputs), embedding_dim
        require_memory("num_inputs", shape[0], kind.itemsize * shape[0] * shape[1])
        scale, stream = embedding_dim**-0.5, np.uint64(mix64(key, np.uint64(1)))
        self.parameters = {
            # the key is hashed once more, or every seed would have other weights than before
            "weights": uniform_weights(shape, scale, kind, as_key(int(key))),
            "intercept": uniform_weights((embedding_dim,), scale, kind, stream),
        }

    def forward(self, x: Any) -> tuple[NDArray[Any], Any]:
        """Multiply by the weights and add the intercept.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs, finite, of the type of the weights.

        Returns
        -------
        y : ndarray, shape (B, d)
            ``x @ weights + intercept``.
        cache : Any
            For `backward`.

        Raises
        ------
        TypeError, ValueError
            If `x` is malformed.
        """
        weights = self.parameters["weights"]
        x = check_inputs(x, len(weights), weights.dtype)
        if isinstance(x, np.ndarray):
            with ignore_overflow():
                y = product(x, weights)
        else:
            # the transpose of x is never made: the backward pass sorts its entries by column
            y = sparse_product(x, weights)
        y += self.parameters["intercept"]
        check_products(y)
        return y, x

    def backward(self, cache: Any, dy: NDArray[Any]) -> tuple[None, dict[str, Gradient]]:
        """Return None, for inputs are data, and the gradient; of sparse inputs, sparse rows."""
        copy_read_only_arrays(self.parameters)  # which are about to change
        weights = self.parameters["weights"]
        # a dense input has a dense gradient of all rows, a sparse one of the rows that occur
        shape = (cache.shape[0], weights.shape[1])
        if dy.shape != shape or dy.dtype != weights.dtype:  # kernels would read beyond its end
            raise ValueError(
                f"`dy` must have shape {shape} and type {weights.dtype}, as the output, got "
                f"{dy.shape} of {dy.dtype}."
            )
        if isinstance(cache, np.ndarray):
            with ignore_overflow():  # optimizers refuse what overflows
                of_weights: Gradient = product(cache.T, dy)
        else:
            of_weights = _transposed_product(cache, np.ascontiguousarray(dy), len(weights))
        return None, {"weights": of_weights, "intercept": dy.sum(axis=0)}


def sparse_product(x: sparse.csr_array, weights: NDArray[Any]) -> NDArray[Any]:
    """Return sparse rows (B, v) times weights (v, d), at a cost that does not depend on v.

    Rows are divided among threads; each is a sum in the order of its entries, as SciPy's is.
    """
    y = np.empty((x.shape[0], weights.shape[1]), weights.dtype)

    def multiply(part: slice) -> None:
        starts = x.indptr[part.start : part.stop + 1]
        weighted_rows(starts, x.indices, x.data, weights, y[part])

    thread_each(multiply, row_chunks(y.shape, _CHUNK_NUMBERS))
    return y


def _transposed_product(x: sparse.csr_array, dy: NDArray[Any], num_inputs: int) -> SparseRows:
    """Return ``x.T @ dy`` in the inputs that occur; no two threads write to the same row."""
    if x.nnz <= _SORTED:
        return _of_entries(x, slice(0, x.nnz), dy, num_inputs)
    # sorted entries take five times a matrix: those of some columns at a time
    counts = column_counts(x)
    parts = chunks(x.nnz, max(_SORTED, num_inputs))
    occurring = int(np.count_nonzero(counts))
    ids, rows = np.empty(occurring, np.int64), np.empty((occurring, dy.shape[1]), dy.dtype)
    # each time all entries are looked through, so that there are not many times
    before = (np.cumsum(counts) - counts) // max(_SORTED, x.nnz // _PASSES)
    offsets = np.unique(before, return_index=True)[1]
    done = 0
    for first, last in zip(offsets, [*offsets[1:], num_inputs], strict=True):
        places = [
            part.start + np.flatnonzero((first <= x.indices[part]) & (x.indices[part] < last))
            for part in parts
        ]
        found = _of_entries(x, np.concatenate(places), dy, num_inputs)
        some = slice(done, done + len(found.ids))
        ids[some], rows[some], done = found.ids, found.rows, some.stop
    return SparseRows(ids, rows)


def column_counts(matrix: Any) -> IntArray:
    """Return how many entries each column (v,) of a CSR matrix has."""
    counts = np.zeros(matrix.shape[1], np.int64)
    for part in chunks(matrix.nnz, max(_SORTED, len(counts))):  # of which NumPy makes int64
        counts += np.bincount(matrix.indices[part], minlength=len(counts))
    return counts


def _of_entries(
    x: sparse.csr_array, places: slice | IntArray, dy: NDArray[Any], num_inputs: int
) -> SparseRows:
    """Return ``x.T @ dy`` for entries at some places, which are all of some columns, and rise."""
    # sorting brings the entries of a column together; each column is then one sum
    ids, _, order, starts = equal_runs(x.indices[places].astype(np.int64), num_inputs)
    example_ids: IntArray
    if isinstance(places, slice):  # all; the example of each
        example_ids = np.repeat(np.arange(len(dy)), np.diff(x.indptr))
    else:
        example_ids = np.searchsorted(x.indptr, places, side="right") - 1
    example_ids, values = example_ids[order], x.data[places][order]
    rows = np.empty((len(ids), dy.shape[1]), dy.dtype)

    def add(part: slice) -> None:
        weighted_rows(starts[part.start : part.stop + 1], example_ids, values, dy, rows[part])

    thread_each(add, row_chunks(rows.shape, _CHUNK_NUMBERS))
    return SparseRows(ids, rows)


def check_inputs(x: Any, num_inputs: int, dtype: np.dtype[Any]) -> Any:
    """Return inputs (B, v), an array or a CSR matrix, once they are sound and of type `dtype`."""
    if not sparse.issparse(x):
        return as_float_rows("x", x, num_inputs, dtype)
    return _checked_csr(x, num_inputs, dtype)


def check_rows(x: Any, num_inputs: int, dtype: np.dtype[Any]) -> Any:
    """Return inputs (B, v) that are sound, for callers that bring some rows at a time to a type.

    An array stays in its order and type, and a CSR matrix in its type: no copy is made of all.
    """
    if not isinstance(x, np.ndarray) and sparse.issparse(x):
        kind: Any = getattr(x, "dtype", None)
        return _checked_csr(x, num_inputs, None if kind in (np.float32, np.float64) else dtype)
    plain = type(x) in (np.ndarray, np.memmap) and x.dtype in (np.float32, np.float64)
    if not plain or x.ndim != 2 or not x.size or x.shape[1] != num_inputs:
        return check_inputs(x, num_inputs, dtype)
    for part in row_chunks(x.shape, _CHUNK_NUMBERS):
        with ignore_overflow():
            sound = np.isfinite(x[part].astype(dtype, copy=False)).all()
        if not sound:
            return check_inputs(x, num_inputs, dtype)  # which names the first one
    return np.asarray(x)


def some_rows(x: Any, part: slice, dtype: np.dtype[Any]) -> Any:
    """Return some rows of `check_rows`, of type `dtype`, an array in C order."""
    rows = x[part].astype(dtype, copy=False)
    return rows if sparse.issparse(rows) else np.ascontiguousarray(rows)


def _checked_csr(x: Any, num_inputs: int, dtype: np.dtype[Any] | None) -> Any:
    """Return a CSR matrix (B, v) once it is sound, and of type `dtype` if that is given."""
    if x.ndim == 1:
        x = sparse.csr_array(in_two_dimensions(x))
    # kernels follow its indices without a look
    if getattr(x, "format", None) != "csr":
        raise TypeError(
            f"`x` must be a scipy.sparse CSR matrix, got {type(x).__name__}; "
            "make one with scipy.sparse.csr_array(x)."
        )
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] != num_inputs:
        raise ValueError(f"`x` must have shape (B, {num_inputs}), not empty, got {x.shape}.")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(
            f"`x` must be of the layer's type {dtype}, got {x.dtype}; "
            f"convert it with x.astype({dtype})."
        )
    require_well_formed("x", x)
    # scipy allows room behind the last entry, which is not part of the matrix
    if not is_finite(x.data[: x.nnz]):
        raise ValueError("`x` must be finite, got NaN or infinity; remove or replace them.")
    return x


def as_float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` if it is float32 or float64."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(f"`dtype` must be float32 or float64: {error}.") from None
    if kind not in (np.float32, np.float64):
        raise TypeError(f"`dtype` must be float32 or float64, got {kind}.")
    return kind


def check_products(y: NDArray[Any]) -> None:
    """Require that what a layer has computed is finite."""
    if not np.isfinite(y).all():
        raise ValueError(
            f"`x` must have products with the weights within the range of {y.dtype}, got some that "
            "are not finite; scale it down, or look at the weights."
        )


def uniform_weights(
    shape: tuple[int, ...], init_scale: float, dtype: np.dtype[Any], key: np.uint64
) -> NDArray[Any]:
    """Return weights of a shape, uniform in [-init_scale, init_scale] by the stream of a key.

    They are the same at any number of threads.
    """
    # uniforms are float64, eight bytes each; in chunks they take 8 MB a thread
    weights = np.empty(shape, dtype)
    flat = weights.reshape(-1)

    def fill(part: slice) -> None:
        # a stream for each chunk, by its place: the weights are the same at any number of threads
        stream = mix64(key, np.uint64(part.start))
        uniforms = uniform_block(np.uint64(stream), 1, part.stop - part.start)[0]
        flat[part] = init_scale * (2.0 * uniforms - 1.0)

    thread_each(fill, chunks(flat.size, _DRAWN_NUMBERS))
    return weights
