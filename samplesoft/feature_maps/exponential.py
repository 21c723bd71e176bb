"""Random features for the exponential kernel exp(tau x . y): positive and Maclaurin features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.rows import largest_in_rows, squared_norms
from samplesoft._jit import njit, row_chunks
from samplesoft._validation import FloatArray, as_choice, as_count, as_positive
from samplesoft.feature_maps.base import (
    ROW_SUBJECT,
    FeatureMap,
    inner_products,
    overflow_remedy,
    require_finite,
)
from samplesoft.feature_maps.frequencies import (
    FREQUENCY_KINDS,
    DenseFrequencies,
    checked_generator,
    draw_frequencies,
    random_signs,
)

# maximum number of products with random signs in memory at a time, in addition to the features
_MAX_CHUNK_PRODUCTS = 1 << 22


class PositiveRandomFeatures(FeatureMap):
    r"""Exponentials of random projections, for the kernel ``k(x, y) = exp(tau x.y)``.

    .. math:: \phi_j(u) = D^{-1/2} \exp(\sqrt\tau w_j u - \tau |u|^2 / 2), \qquad w_j \sim N(0, I)

    Estimates are never negative. Their relative variance, ``(exp(tau |x + y|^2) - 1) / D`` for
    independent frequencies, is largest if the kernel is large: 5e8 / D for two equal unit vectors
    at tau = 5. For unit vectors the exponents are near -tau / 2, so that features underflow in
    float32 for tau above about 150, and in float64 for tau above about 1300.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    num_features : int
        Number of frequencies D, which is also the number of features F.
    tau : float, default 1.0
        Inverse temperature.
    frequencies : {"iid", "orthogonal"}, default "iid"
        Frequencies that are independent, or orthogonal in blocks of d, which reduces the variance.
    rng : int, numpy.random.Generator or None, optional
        Seed of the frequencies.
    device : {"cpu", "cuda"}
        Device of the features.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range; and, from `transform`, if a feature
        of a row overflows or all features of a row underflow to 0.
    MemoryError
        If the features do not fit in memory.

    References
    ----------
    Choromanski et al. (2021), "Rethinking attention with Performers", lemmas 1 and 2.

    Examples
    --------
    >>> phi = PositiveRandomFeatures(3, 2000, tau=0.5, rng=0)
    >>> x, y = [[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]]
    >>> estimate = phi.transform(x) @ phi.transform(y).T
    >>> bool(abs(estimate - phi.kernel(x, y)) < 0.2)
    True
    """

    def __init__(
        self,
        dim: int,
        num_features: int,
        tau: float = 1.0,
        *,
        frequencies: str = "iid",
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        self.tau = as_positive("tau", tau)
        self.num_features = as_count("num_features", num_features)
        super().__init__(dim, self.num_features, float(np.exp(-self.tau)), device)

        # "structured" frequencies are not offered: they have a fixed norm, so that the mean of the
        # exponentials would differ from the mean for Gaussian frequencies
        self.frequencies = as_choice("frequencies", frequencies, FREQUENCY_KINDS[:2])
        generator = checked_generator(rng, self.num_features, self.dim)
        self.projections = draw_frequencies(
            frequencies, self.dim, self.num_features, self.tau**0.5, generator, self.device
        )

    def _write(self, X: Any, out: Any) -> None:
        self._backend.write_features(X, out, self._write_rows, self._projection_and_epilogue)
        # on the CPU, `_write_rows` has checked the features
        if self.device != "cpu":
            self._require_in_range(largest_in_rows(out))

    def _write_rows(self, X: Any, out: Any) -> None:
        with np.errstate(all="ignore"):
            self.projections.project(X, out)
            # exp(a - b) is computed as one exponential, because exp(a) alone might overflow
            shifts = 0.5 * (self.tau * squared_norms(X) + np.log(self.num_features))
            out -= shifts[:, None]
            np.exp(out, out=out)
        self._require_in_range(out.max(axis=1))

    def _projection_and_epilogue(self, X: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Return the frequencies (d, D), the function `write_positive` and its parameters.

        A GPU computes features by a product with the frequencies and a call of the function for
        each entry.
        """
        number = X.dtype.type
        half_tau = number(0.5 * self.tau)
        half_log = number(0.5 * np.log(self.num_features))
        return self.projections[X.dtype], write_positive, (squared_norms(X), half_tau, half_log)

    def _require_in_range(self, max_features: NDArray[Any]) -> None:
        """Raise ValueError if the features of a row overflow, or are all 0.

        `max_features` (N,) holds the largest feature of each row.
        """
        if not np.all((max_features > 0.0) & (max_features < np.inf)):
            problem = "overflow" if np.any(max_features == np.inf) else "are all 0"
            raise ValueError(
                f"positive features of {ROW_SUBJECT} {problem} in {max_features.dtype}: with tau = "
                f"{self.tau:g} the row is too large; lower tau, or "
                f"{overflow_remedy(max_features.dtype)}."
            )

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return np.exp(self.tau * inner_products(X, Y))


class RandomMaclaurinFeatures(FeatureMap):
    r"""Products of random projections, for the kernel ``k(x, y) = exp(tau x.y)``.

    .. math:: \phi_j(u) = (a_N 2^{N + 1} / F)^{1/2} \prod_{k=1}^N w_{jk} u

    Each feature has a random degree N, with probability ``2^-(N + 1)``. ``a_N = tau^N / N!`` is a
    Maclaurin coefficient, and the entries of w are random signs. Estimates may be negative.

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
        If an argument has the wrong type or is out of range; and, from `transform`, if a feature
        overflows.
    MemoryError
        If the features do not fit in memory.

    References
    ----------
    Kar and Karnick (2012), "Random feature maps for dot product kernels", algorithm 1 with p = 2.

    Examples
    --------
    >>> phi = RandomMaclaurinFeatures(3, 2000, tau=0.5, rng=0)
    >>> x, y = [[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]]
    >>> estimate = phi.transform(x) @ phi.transform(y).T
    >>> bool(abs(estimate - phi.kernel(x, y)) < 0.2)
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
        generator = checked_generator(rng, self.num_features, self.dim)

        # Sorted by decreasing degree, so that the features with a k-th factor are the first ones.
        # Degrees start at 0, but NumPy's geometric distribution starts at 1.
        degrees = np.sort(generator.geometric(0.5, num_features) - 1)[::-1]

        # computed in logarithms, because N! overflows from N = 171 on
        log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, degrees[0] + 1)))])
        log_squares = degrees * (np.log(2.0) + np.log(self.tau)) - log_factorials[degrees]

        with np.errstate(over="ignore"):  # `_write` raises an error for infinite features
            self._scale = np.exp(0.5 * (log_squares + np.log(2.0 / num_features)))

        self._factors = []
        for degree in range(1, degrees[0] + 1):
            # factor number `degree`, for all features of this degree or a higher one
            num_columns = int((degrees >= degree).sum())
            signs = random_signs((num_columns, self.dim), generator)
            self._factors.append((num_columns, DenseFrequencies(signs)))

    def _write(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        for chunk in row_chunks((len(out), self.num_features), _MAX_CHUNK_PRODUCTS):
            rows = X[chunk]
            features = out[chunk]
            products = np.empty_like(features)

            with np.errstate(over="ignore", invalid="ignore"):
                # multiply by one factor at a time; factor k applies to the features of degree k or
                # higher, which are the first `num_columns` columns
                features[:] = self._scale
                for num_columns, signs in self._factors:
                    signs.project(rows, products[:, :num_columns])
                    features[:, :num_columns] *= products[:, :num_columns]

            require_finite(features)

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return np.exp(self.tau * inner_products(X, Y))


@njit
def write_positive(out: Any, i: int, j: int, projection: Any, parameters: Any) -> None:
    """Write the positive feature ``out[i, j]``, computed from the product of row and frequency.

    `projection` is this product. `parameters` are the squared norms of the rows (N,), tau / 2, and
    log(D) / 2.
    """
    squares, factor, constant = parameters
    out[i, j] = math.exp(projection - (factor * squares[i] + constant))
