"""A linear layer for dense or sparse inputs, and the validation of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from samplesoft._jit import chunks, row_chunks, thread_for_each
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_memory
from samplesoft._random import mix64, stream_key, uniform_block
from samplesoft._validation import (
    IntArray,
    as_count,
    as_float_rows,
    as_two_dimensional,
    is_finite,
    make_arrays_writable,
    require_well_formed,
)
from samplesoft.kernels.products import product
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import group_equal_ids
from samplesoft.losses.base import SparseRows

Gradient = NDArray[Any] | SparseRows  # gradient of a parameter: an array, or only its nonzero rows

_CHUNK_VALUES = 1 << 17  # output values that a thread computes at a time
# sparse entries that are sorted at a time; more, if there would be more than `_MAX_PASSES` passes
_MAX_SORTED_ENTRIES = 1 << 18
_MAX_PASSES = 32  # largest number of passes over all entries; a pass sorts a range of columns
_CHUNK_UNIFORMS = 1 << 20  # random numbers that a thread draws at a time


class Linear:
    """A linear layer: inputs times weights, plus an intercept.

    Parameters
    ----------
    num_inputs : int
        Length v of an input.
    embedding_dim : int
        Length d of an output.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Seed of the parameters, which are uniform in +-1 / sqrt(d).

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``weights`` (v, d) and ``intercept`` (d,).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the weights would not fit.

    References
    ----------
    Joulin et al. (2017), Bag of Tricks for Efficient Text Classification, section 2: the matrix A.

    Notes
    -----
    For dense inputs the last bits may depend on the number of BLAS threads, except under
    ``with threadpoolctl.threadpool_limits(1, "blas"):``. For sparse inputs they do not.

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
        key = stream_key(rng)
        float_dtype = as_float_dtype(dtype)
        embedding_dim = as_count("embedding_dim", embedding_dim)
        shape = as_count("num_inputs", num_inputs), embedding_dim
        require_memory("num_inputs", shape[0], float_dtype.itemsize * shape[0] * shape[1])
        scale = embedding_dim**-0.5
        stream = np.uint64(mix64(key, np.uint64(1)))

        self.parameters = {
            # the key is hashed twice, so that a seed gives the same weights as in earlier versions
            "weights": uniform_weights(shape, scale, float_dtype, stream_key(int(key))),
            "intercept": uniform_weights((embedding_dim,), scale, float_dtype, stream),
        }

    def forward(self, x: Any) -> tuple[NDArray[Any], Any]:
        """Compute the outputs: inputs times weights, plus the intercept.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Finite inputs, in the dtype of the weights.

        Returns
        -------
        y : ndarray, shape (B, d)
            ``x @ weights + intercept``.
        cache : Any
            Intermediate results for `backward`.

        Raises
        ------
        TypeError, ValueError
            If `x` is malformed.
        """
        weights = self.parameters["weights"]
        x = checked_inputs(x, len(weights), weights.dtype)

        if isinstance(x, np.ndarray):
            with ignore_overflow():
                y = product(x, weights)
        else:
            # `x` is not transposed for the backward pass, which sorts the entries of `x` by column
            y = sparse_product(x, weights)

        y += self.parameters["intercept"]
        require_finite_outputs(y)
        return y, x

    def backward(self, cache: Any, dy: NDArray[Any]) -> tuple[None, dict[str, Gradient]]:
        """Return None, and the gradients by parameter name, given derivatives `dy` in the outputs.

        None stands for derivatives in the inputs, which nothing needs because inputs are data. The
        gradient of the weights is dense for dense inputs. For sparse inputs it has only the rows of
        the features that occur.
        """
        make_arrays_writable(self.parameters)  # the optimizer will update them
        weights = self.parameters["weights"]
        shape = (cache.shape[0], weights.shape[1])

        # check this, because compiled kernels would read beyond the end of a smaller array
        if dy.shape != shape or dy.dtype != weights.dtype:
            raise ValueError(
                f"`dy` must have shape {shape} and type {weights.dtype}, as the output, got "
                f"{dy.shape} of {dy.dtype}."
            )

        if isinstance(cache, np.ndarray):
            with ignore_overflow():  # optimizers reject infinity
                d_weights: Gradient = product(cache.T, dy)
        else:
            d_weights = _transposed_product(cache, np.ascontiguousarray(dy), len(weights))

        return None, {"weights": d_weights, "intercept": dy.sum(axis=0)}


def sparse_product(x: sparse.csr_array, weights: NDArray[Any]) -> NDArray[Any]:
    """Return the product (B, d) of a CSR matrix `x` (B, v) and weights (v, d).

    The cost is independent of v. Each row is summed by one thread, in the order of its entries, so
    that the result has the same bits for any number of threads.
    """
    y = np.empty((x.shape[0], weights.shape[1]), weights.dtype)

    def multiply_chunk(chunk: slice) -> None:
        starts = x.indptr[chunk.start : chunk.stop + 1]
        weighted_rows(starts, x.indices, x.data, weights, y[chunk])

    thread_for_each(multiply_chunk, row_chunks(y.shape, _CHUNK_VALUES))
    return y


def _transposed_product(x: sparse.csr_array, dy: NDArray[Any], num_inputs: int) -> SparseRows:
    """Return the rows of ``x.T @ dy`` (v, d) for the columns of `x` that have entries.

    Each row is computed by one thread.
    """
    if x.nnz <= _MAX_SORTED_ENTRIES:
        return _transposed_product_of_entries(x, slice(0, x.nnz), dy, num_inputs)

    # sorting takes five times the memory of the entries, so sort only a range of columns at a time
    counts = column_counts(x)
    entry_chunks = chunks(x.nnz, max(_MAX_SORTED_ENTRIES, num_inputs))
    num_occurring = int(np.count_nonzero(counts))
    ids = np.empty(num_occurring, np.int64)
    rows = np.empty((num_occurring, dy.shape[1]), dy.dtype)

    # limit the number of passes, because each scans all entries
    pass_of_column = (np.cumsum(counts) - counts) // max(_MAX_SORTED_ENTRIES, x.nnz // _MAX_PASSES)
    offsets = np.unique(pass_of_column, return_index=True)[1]

    num_done = 0
    for start, stop in zip(offsets, [*offsets[1:], num_inputs], strict=True):
        entries = [
            chunk.start + np.flatnonzero((start <= x.indices[chunk]) & (x.indices[chunk] < stop))
            for chunk in entry_chunks
        ]
        block = _transposed_product_of_entries(x, np.concatenate(entries), dy, num_inputs)
        new_rows = slice(num_done, num_done + len(block.ids))
        ids[new_rows] = block.ids
        rows[new_rows] = block.rows
        num_done = new_rows.stop

    return SparseRows(ids, rows)


def column_counts(matrix: Any) -> IntArray:
    """Return the number of entries (v,) in each column of a CSR matrix."""
    counts = np.zeros(matrix.shape[1], np.int64)
    # in chunks, because NumPy converts the indices to int64
    for chunk in chunks(matrix.nnz, max(_MAX_SORTED_ENTRIES, len(counts))):
        counts += np.bincount(matrix.indices[chunk], minlength=len(counts))
    return counts


def _transposed_product_of_entries(
    x: sparse.csr_array, entries: slice | IntArray, dy: NDArray[Any], num_inputs: int
) -> SparseRows:
    """Return the rows of ``x.T @ dy`` for the columns of `x` to which `entries` belong.

    `entries` are ascending indices of entries of `x`, and must contain all entries of a column or
    none.
    """
    # after sorting, the entries of a column are contiguous, and a row of the result is their sum
    ids, _, order, starts = group_equal_ids(x.indices[entries].astype(np.int64), num_inputs)

    example_ids: IntArray
    if isinstance(entries, slice):  # all entries
        example_ids = np.repeat(np.arange(len(dy)), np.diff(x.indptr))
    else:
        example_ids = np.searchsorted(x.indptr, entries, side="right") - 1
    example_ids = example_ids[order]
    values = x.data[entries][order]

    rows = np.empty((len(ids), dy.shape[1]), dy.dtype)

    def sum_chunk(chunk: slice) -> None:
        weighted_rows(starts[chunk.start : chunk.stop + 1], example_ids, values, dy, rows[chunk])

    thread_for_each(sum_chunk, row_chunks(rows.shape, _CHUNK_VALUES))
    return SparseRows(ids, rows)


def checked_inputs(x: Any, num_inputs: int, dtype: np.dtype[Any]) -> Any:
    """Return validated inputs (B, v) of type `dtype`: a C-contiguous array, or a CSR matrix."""
    if not sparse.issparse(x):
        return as_float_rows("x", x, num_inputs, dtype)
    return _checked_csr(x, num_inputs, dtype)


def checked_rows(x: Any, num_inputs: int, dtype: np.dtype[Any]) -> Any:
    """Return validated inputs (B, v) without copying them, for use with `select_rows`.

    Arrays keep their memory order and their dtype, and CSR matrices their dtype. `select_rows`
    converts a few rows at a time.
    """
    if not isinstance(x, np.ndarray) and sparse.issparse(x):
        x_dtype: Any = getattr(x, "dtype", None)
        return _checked_csr(x, num_inputs, None if x_dtype in (np.float32, np.float64) else dtype)

    is_plain = type(x) in (np.ndarray, np.memmap) and x.dtype in (np.float32, np.float64)
    if not is_plain or x.ndim != 2 or not x.size or x.shape[1] != num_inputs:
        return checked_inputs(x, num_inputs, dtype)

    for chunk in row_chunks(x.shape, _CHUNK_VALUES):
        with ignore_overflow():
            is_valid = np.isfinite(x[chunk].astype(dtype, copy=False)).all()
        if not is_valid:
            # this raises an error that names the first value that is not finite
            return checked_inputs(x, num_inputs, dtype)

    return np.asarray(x)


def select_rows(x: Any, chunk: slice, dtype: np.dtype[Any]) -> Any:
    """Return a slice of the rows of `x`, a result of `checked_rows`, as `dtype` in C order."""
    rows = x[chunk].astype(dtype, copy=False)
    return rows if sparse.issparse(rows) else np.ascontiguousarray(rows)


def _checked_csr(x: Any, num_inputs: int, dtype: np.dtype[Any] | None) -> Any:
    """Return a validated CSR matrix (B, v) of type `dtype`; if `dtype` is None, of any type."""
    if x.ndim == 1:
        x = sparse.csr_array(as_two_dimensional(x))

    # compiled kernels use the indices without checking them
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
    # the arrays of a SciPy matrix may be longer than its number of entries
    if not is_finite(x.data[: x.nnz]):
        raise ValueError("`x` must be finite, got NaN or infinity; remove or replace them.")
    return x


def as_float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype; raise TypeError unless it is float32 or float64."""
    try:
        float_dtype = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(f"`dtype` must be float32 or float64: {error}.") from None
    if float_dtype not in (np.float32, np.float64):
        raise TypeError(f"`dtype` must be float32 or float64, got {float_dtype}.")
    return float_dtype


def require_finite_outputs(y: NDArray[Any]) -> None:
    """Raise ValueError unless all outputs of a layer are finite."""
    if not np.isfinite(y).all():
        raise ValueError(
            f"`x` must have products with the weights within the range of {y.dtype}, got some that "
            "are not finite; scale it down, or look at the weights."
        )


def uniform_weights(
    shape: tuple[int, ...], init_scale: float, dtype: np.dtype[Any], key: np.uint64
) -> NDArray[Any]:
    """Return random weights that are uniform in [-init_scale, init_scale].

    The weights depend on `key`, and not on the number of threads.
    """
    # a chunk of random numbers, which are float64, takes 8 MB in each thread
    weights = np.empty(shape, dtype)
    flat = weights.reshape(-1)

    def fill_chunk(chunk: slice) -> None:
        # each chunk has a separate random stream, so that threads may compute them in any order
        stream = mix64(key, np.uint64(chunk.start))
        uniforms = uniform_block(np.uint64(stream), 1, chunk.stop - chunk.start)[0]
        flat[chunk] = init_scale * (2.0 * uniforms - 1.0)

    thread_for_each(fill_chunk, chunks(flat.size, _CHUNK_UNIFORMS))
    return weights
