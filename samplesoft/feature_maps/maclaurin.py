"""Random Maclaurin features of the exponential kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import row_chunks
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_count, as_positive
from samplesoft.feature_maps.base import FeatureMap, inner_products, require_finite, squared_norms
from samplesoft.feature_maps.frequencies import HostDense, random_signs, require_frequencies

_PRODUCTS = 1 << 22  # numbers held beside the result


class RandomMaclaurinFeatures(FeatureMap):
    r"""Products of random projections, for ``k(x, y) = exp(tau x . y)``.

    .. math:: \phi_j(u) = (a_N 2^{N + 1} / F)^{1/2} \prod_{k=1}^N w_{jk} u

    with a degree N of probability ``2^-(N + 1)`` for each feature, the Maclaurin coefficient
    ``a_N = tau^N / N!``, and entries of w that are +-1. Estimates may be negative.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    num_features : int
        Number of features F.
    tau : float, default 1.0
        Inverse temperature.
    rng : int, numpy.random.Generator or None, optional
        Seed of the degrees and the signs.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its type or out of its range.
    MemoryError
        If so many features do not fit.

    References
    ----------
    Kar and Karnick (2012), "Random feature maps for dot product kernels", algorithm 1 with p = 2.

    Examples
    --------
    >>> phi = RandomMaclaurinFeatures(3, 2000, tau=0.5, rng=0)
    >>> x, y = [[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]]
    >>> estimate = phi.transform(x) @ phi.transform(y).T
    >>> bool(abs(estimate - phi.kernel(x, y)) < 4 * phi.variance(x, y) ** 0.5)
    True
    """

    def __init__(
        self,
        dim: int,
        num_features: int,
        tau: float = 1.0,
        *,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.tau = as_positive("tau", tau)
        self.num_features = as_count("num_features", num_features)
        super().__init__(dim, self.num_features, floor=float(np.exp(-self.tau)))
        require_frequencies(self.num_features, self.dim)
        generator = np.random.default_rng(int(as_key(rng)))
        # the highest degrees come first, so that each further factor goes to fewer features
        # (as geometric counts tries up to a success, its least is 1, where that of N is 0)
        degrees = np.sort(generator.geometric(0.5, num_features) - 1)[::-1]
        log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, degrees[0] + 1)))])
        log_squares = degrees * (np.log(2.0) + np.log(self.tau)) - log_factorials[degrees]
        with np.errstate(over="ignore"):  # features that are too large are refused
            self._scale = np.exp(0.5 * (log_squares + np.log(2.0 / num_features)))
        self._factors = []
        for degree in range(1, degrees[0] + 1):  # the signs of all features of this degree or more
            size = (int((degrees >= degree).sum()), self.dim)
            self._factors.append((size[0], HostDense(random_signs(size, generator))))

    def _write(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        for part in row_chunks((len(out), self.num_features), _PRODUCTS):
            rows, features = X[part], out[part]
            products = np.empty_like(features)
            with np.errstate(over="ignore", invalid="ignore"):
                features[:] = self._scale
                for num, signs in self._factors:
                    signs.project(rows, products[:, :num])
                    features[:, :num] *= products[:, :num]
            require_finite(features)

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return np.exp(self.tau * inner_products(X, Y))

    def _variance(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        from scipy.special import i0  # here, to keep the import fast

        # E[(w . x)^2 (w . y)^2], the factor that each degree puts on the second moment of a
        # feature; the sum over the degrees of (2 tau^2 square)^N / N!^2 is a Bessel function
        square = squared_norms(X)[:, None] * squared_norms(Y)
        square += 2.0 * inner_products(X, Y) ** 2 - 2.0 * (X**2 @ (Y**2).T)
        moment = 2.0 * i0(self.tau * np.sqrt(8.0 * np.maximum(square, 0.0)))
        variance: FloatArray = (moment - self._kernel(X, Y) ** 2) / self.num_features
        return variance
