"""A linear layer whose input may be sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from samplesoft._limits import quiet
from samplesoft._random import as_key, mix64
from samplesoft._validation import as_count, as_float_rows
from samplesoft.models.encoders import SparseLinear, check_csr
from samplesoft.models.module import (
    ParameterGradients,
    as_float_dtype,
    check_array,
    check_products,
    uniform_weights,
)


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
        self._sparse = SparseLinear(num_inputs, embedding_dim, dtype=kind, rng=int(key))
        scale, stream = embedding_dim**-0.5, np.uint64(mix64(key, np.uint64(1)))
        intercept = uniform_weights((embedding_dim,), scale, kind, stream)
        self.parameters = {**self._sparse.parameters, "intercept": intercept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the weights again, which some kinds of copies part."""
        self.__dict__.update(state)
        self._sparse.parameters["weights"] = self.parameters["weights"]

    def check_inputs(self, x: Any) -> Any:
        """Return inputs (B, v) whose rows can be taken, for callers that look at them first."""
        weights = self.parameters["weights"]
        if sparse.issparse(x):
            check_csr(x, weights)
            return x
        return as_float_rows("x", x, len(weights), weights.dtype)

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
        y: NDArray[Any]
        cache: Any
        if sparse.issparse(x):
            y, cache = self._sparse.forward(x)
        else:
            cache = as_float_rows("x", x, len(weights), weights.dtype)
            with quiet():
                y = cache @ weights
        y += self.parameters["intercept"]
        check_products(y)
        return y, cache

    def backward(self, cache: Any, dy: NDArray[Any]) -> tuple[None, ParameterGradients]:
        """Return None, for inputs are data, and the gradient; of sparse inputs, sparse rows."""
        weights = self.parameters["weights"]
        if isinstance(cache, np.ndarray):
            check_array("dy", dy, (len(cache), weights.shape[1]), weights.dtype)
            with quiet():  # optimizers refuse what overflows
                gradients: ParameterGradients = {"weights": cache.T @ dy}
        else:
            _, gradients = self._sparse.backward(cache, dy)
        return None, {**gradients, "intercept": dy.sum(axis=0)}
