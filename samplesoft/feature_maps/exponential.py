"""Random features of the exponential kernel exp(tau x . y): positive and Maclaurin features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.rows import largest_in_rows, squared_norms
from samplesoft._jit import njit, row_chunks
from samplesoft._validation import FloatArray, as_choice, as_count, as_positive
from samplesoft.feature_maps.base import (
    ROW,
    FeatureMap,
    inner_products,
    require_finite,
    shrink,
)
from samplesoft.feature_maps.frequencies import (
    KINDS,
    Dense,
    draw_frequencies,
    generator_of,
    random_signs,
)

_MAX_CHUNK_PRODUCTS = 1 << 22  # products in memory at a time, in addition to the result


class PositiveRandomFeatures(FeatureMap):
    r"""Exponentials of random projections, for ``k(x, y) = exp(tau x.y)``.

    .. math:: \phi_j(u) = D^{-1/2} \exp(\sqrt\tau w_j u - \tau |u|^2 / 2), \qquad w_j \sim N(0, I)

    Estimates are never negative. Their relative variance, ``(exp(tau |x + y|^2) - 1) / D`` for
    independent frequencies, is largest where the kernel is: 5e8 / D for two equal unit vectors at
    tau = 5. For unit vectors the exponents are about tau / 2 below 0, so that float32 underflows
    from about tau = 150 on, and float64 from about tau = 1300 on.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    num_features : int
        Number of frequencies D, which is F.
    tau : float, default 1.0
        Inverse temperature.
    frequencies : {"iid", "orthogonal"}, default "iid"
        Independent, or in orthogonal blocks of d, with a smaller variance.
    rng : int, numpy.random.Generator or None, optional
        Seed of the frequencies.
    device : {"cpu", "cuda"}
        Device of the features.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its type or out of its range; and, from `transform`, if all
        features of a row underflow to 0 or one overflows.
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
        # structured frequencies have fixed norms, with other exponential moments than a Gaussian
        self.frequencies = as_choice("frequencies", frequencies, KINDS[:2])
        size = self.dim, self.num_features
        generator = generator_of(rng, self.num_features, self.dim)
        self.projections = draw_frequencies(
            frequencies, *size, self.tau**0.5, generator, self.device
        )

    def _write(self, X: Any, out: Any) -> None:
        self._arrays.write_features(X, out, self._write_rows, self._of_products)
        if self.device != "cpu":  # rows have not been checked yet
            self._require_in_range(largest_in_rows(out))

    def _write_rows(self, X: Any, out: Any) -> None:
        with np.errstate(all="ignore"):
            self.projections.project(X, out)
            # one exponential of the difference: exp(a) exp(-b) might overflow in exp(a)
            shifts = 0.5 * (self.tau * squared_norms(X) + np.log(self.num_features))
            out -= shifts[:, None]
            np.exp(out, out=out)
        self._require_in_range(out.max(axis=1))

    def _of_products(self, X: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        number = X.dtype.type
        shift = number(0.5 * self.tau), number(0.5 * np.log(self.num_features))
        return self.projections[X.dtype], write_positive, (squared_norms(X), *shift)

    def _require_in_range(self, largest: NDArray[Any]) -> None:
        """Raise ValueError if a row's largest feature overflows or is 0."""
        if not np.all((largest > 0.0) & (largest < np.inf)):
            problem = "overflow" if np.any(largest == np.inf) else "are all 0"
            raise ValueError(
                f"positive features of {ROW} {problem} in {largest.dtype}: with tau = {self.tau:g} "
                f"the row is too large; lower tau, or {shrink(largest.dtype)}."
            )

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return np.exp(self.tau * inner_products(X, Y))


class RandomMaclaurinFeatures(FeatureMap):
    r"""Products of random projections, for ``k(x, y) = exp(tau x.y)``.

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
        generator = generator_of(rng, self.num_features, self.dim)
        # highest degrees first, so that each further factor applies to fewer features.
        # (NumPy's geometric counts trials and starts at 1, where N starts at 0)
        degrees = np.sort(generator.geometric(0.5, num_features) - 1)[::-1]
        # in logarithms, because tau^N and N! overflow from N = 171 on
        log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, degrees[0] + 1)))])
        log_squares = degrees * (np.log(2.0) + np.log(self.tau)) - log_factorials[degrees]
        with np.errstate(over="ignore"):  # `_write` raises for infinite features
            self._scale = np.exp(0.5 * (log_squares + np.log(2.0 / num_features)))
        self._factors = []
        for degree in range(1, degrees[0] + 1):  # signs for all features of at least this degree
            size = (int((degrees >= degree).sum()), self.dim)
            # in float64 and float32, drawn once
            self._factors.append((size[0], Dense(random_signs(size, generator))))

    def _write(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        for chunk in row_chunks((len(out), self.num_features), _MAX_CHUNK_PRODUCTS):
            rows = X[chunk]
            features = out[chunk]
            products = np.empty_like(features)
            with np.errstate(over="ignore", invalid="ignore"):
                # factor by factor: factor k is for the features of degree k or more
                features[:] = self._scale
                for num, signs in self._factors:
                    signs.project(rows, products[:, :num])
                    features[:, :num] *= products[:, :num]
            require_finite(features)

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        return np.exp(self.tau * inner_products(X, Y))


@njit
def write_positive(out: Any, i: int, j: int, projection: Any, parameters: Any) -> None:
    """Write an exponential, shifted by half the squared norm of its row and a constant."""
    squares, factor, constant = parameters
    out[i, j] = math.exp(projection - (factor * squares[i] + constant))
