"""Exact features of the quadratic kernel alpha (x . y)^2 + 1."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_count, as_positive
from samplesoft.feature_maps.base import FeatureMap, inner_products, require_finite


class QuadraticFeatures(FeatureMap):
    """Products of all pairs of entries, which give ``k(x, y) = alpha (x.y)^2 + 1`` exactly.

    The products x_i x_j and x_j x_i are merged into one feature, multiplied by the square root of
    2, so that there are F = d (d + 1) / 2 + 1 features.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    alpha : float, default 100.0
        Weight of the squared dot product.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range; and, from `transform`, if a feature
        overflows.

    References
    ----------
    Blanc and Rendle (2018), "Adaptive sampled softmax with kernel based sampling", section 3.3.
    Their kernel is a function of the logit tau x . y, so their alpha is `alpha` / tau^2.

    Examples
    --------
    >>> phi = QuadraticFeatures(2, alpha=3.0)
    >>> x, y = phi.transform([[1.0, 2.0], [3.0, -1.0]])
    >>> float(round(x @ y, 12)), float(phi.kernel([1.0, 2.0], [3.0, -1.0])[0, 0])
    (4.0, 4.0)
    """

    def __init__(self, dim: int, alpha: float = 100.0) -> None:
        dim = as_count("dim", dim)
        super().__init__(dim, dim * (dim + 1) // 2 + 1, floor=1.0)
        self.alpha = as_positive("alpha", alpha)
        self.closed_form = ("quadratic", self.alpha)

    def _write(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        self._backend.write_features(X, out, self._write_rows, None)

    def _write_rows(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        write_quadratic_features(X, self.alpha**0.5, out)
        require_finite(out)

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return self.alpha * inner_products(X, Y) ** 2 + 1.0


@njit
def write_quadratic_features(X: NDArray[Any], root: float, out: NDArray[Any]) -> None:
    """Write the quadratic features of each row x of `X` (N, d) to `out` (N, d (d + 1) / 2 + 1).

    With r = `root`, the square root of alpha, the features of x are ``r x_i^2``,
    ``sqrt(2) r x_i x_j`` for i < j, and a final 1.
    """
    number = out.dtype.type  # type of constants, so that float32 products are not in float64
    diagonal = number(root)
    off_diagonal = number(root * 2.0**0.5)
    dim = X.shape[1]

    for n in range(X.shape[0]):
        start = 0

        for i in range(dim):
            row = X[n, i:]
            features = out[n, start : start + dim - i]
            factor = off_diagonal * row[0]
            for j in range(1, dim - i):
                features[j] = factor * row[j]

            features[0] = diagonal * row[0] * row[0]
            start += dim - i
        out[n, start] = number(1.0)  # gives the 1 in alpha (x . y)^2 + 1
