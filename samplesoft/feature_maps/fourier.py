"""Random Fourier features for the Gaussian kernel exp(-nu |x - y|^2 / 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._device.rows import squared_norms
from samplesoft._device.select import to_host
from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_choice, as_count, as_positive
from samplesoft.feature_maps.base import ROW_SUBJECT, FeatureMap, overflow_remedy
from samplesoft.feature_maps.frequencies import FREQUENCY_KINDS, checked_generator, draw_frequencies
from samplesoft.kernels.sincos import TERMS, cos_sin, cos_sin_rows

# largest allowed rounding error of a typical angle, in turns of 2 pi; longer rows, with larger
# errors, are refused
_MAX_ROUNDING_TURNS = 2.0**-7


class RandomFourierFeatures(FeatureMap):
    r"""Cosines and sines at random frequencies, for the kernel ``exp(-nu |x - y|^2 / 2)``.

    .. math:: \phi(u) = D^{-1/2} [\cos(w_1 u), ..., \cos(w_D u), \sin(w_1 u), ..., \sin(w_D u)]

    with ``w ~ N(0, nu I)``; Rawat et al. print ``N(0, I / nu)``, which gives another kernel. For
    unit vectors the kernel is ``exp(nu x . y)`` times the constant ``exp(-nu)``. Estimates are in
    [-1, 1] and may be negative.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    num_features : int
        Number of frequencies D; each gives a cosine and a sine, so F = 2 D.
    nu : float, default 1.0
        Sharpness of the kernel.
    frequencies : {"iid", "orthogonal", "structured"}, default "iid"
        Frequencies that are independent; orthogonal in blocks of d, which reduces the variance; or
        rows of products of Hadamard matrices and random signs. Structured frequencies take
        O(D log d) instead of O(D d) operations for each row on the CPU, but have a bias of at most
        about 0.6 / p, where p is the smallest power of 2 that is at least d and 64.
    rng : int, numpy.random.Generator or None, optional
        Seed of the frequencies.
    device : {"cpu", "cuda"}
        Device of the features.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range; and, from `transform`, if a row is so
        large that rounding errors of its angles would dominate the features.
    MemoryError
        If the features do not fit in memory.

    References
    ----------
    Rahimi and Recht (2007), "Random features for large-scale kernel machines"; Yu et al. (2016),
    "Orthogonal random features", sections 3 and 4; Rawat et al. (2019), "Sampled softmax with
    random Fourier features", eqs. 17 and 18.

    Examples
    --------
    >>> phi = RandomFourierFeatures(3, 2000, nu=2.0, rng=0)
    >>> x, y = [[1.0, 0.0, 0.0]], [[0.6, 0.8, 0.0]]
    >>> estimate = phi.transform(x) @ phi.transform(y).T
    >>> bool(abs(estimate - phi.kernel(x, y)) < 0.1)
    True
    """

    def __init__(
        self,
        dim: int,
        num_features: int,
        nu: float = 1.0,
        *,
        frequencies: str = "iid",
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        self.num_features = as_count("num_features", num_features)
        self.nu = as_positive("nu", nu)
        super().__init__(dim, 2 * self.num_features, float(np.exp(-2.0 * self.nu)), device)
        self.frequencies = as_choice("frequencies", frequencies, FREQUENCY_KINDS)
        generator = checked_generator(rng, self.num_features, self.dim)

        # angles are measured in turns, w x / (2 pi), so that subtraction of whole turns is exact
        turns = self.nu**0.5 / (2.0 * np.pi)

        # Largest squared norm of a row at which the rounding error of typical angles is at most
        # `_MAX_ROUNDING_TURNS`. The norm is clipped at 1e150, because its square must be finite.
        self._max_squared_norms = {
            np.dtype(t): min(_MAX_ROUNDING_TURNS / float(np.finfo(t).eps) / turns, 1e150) ** 2
            for t in (np.float32, np.float64)
        }

        self.turns = draw_frequencies(
            frequencies, self.dim, self.num_features, turns, generator, self.device
        )

    def _write(self, X: Any, out: Any) -> None:
        max_squared_norm = to_host(squared_norms(X)).max()
        if max_squared_norm > self._max_squared_norms[X.dtype]:
            raise ValueError(
                f"{ROW_SUBJECT} has norm {max_squared_norm**0.5:.3g}; its angles at nu = "
                f"{self.nu:g} are too large for {X.dtype}; {overflow_remedy(X.dtype)}."
            )
        self._backend.write_features(X, out, self._write_rows, self._projection_and_epilogue)

    def _write_rows(self, X: Any, out: Any) -> None:
        # Write angles in turns to the left half of `out`. Then replace them by their cosines, and
        # write their sines to the right half.
        self.turns.project(X, out[:, : self.num_features])
        cos_sin_rows(out, self.num_features**-0.5, *TERMS[out.dtype])

    def _projection_and_epilogue(self, X: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Return the frequencies (d, D), the function `write_fourier` and its parameters.

        A GPU computes features by a product with the frequencies and a call of the function for
        each entry of the product.
        """
        scale = X.dtype.type(self.num_features**-0.5)
        return self.turns[X.dtype], write_fourier, (scale, *TERMS[X.dtype])

    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        from scipy.spatial.distance import cdist  # imported here, to keep `import samplesoft` fast

        # cdist subtracts the vectors; the terms of |x|^2 + |y|^2 - 2 x . y would cancel if they are
        # close
        return np.exp(-(0.5 * self.nu * cdist(X, Y, "sqeuclidean")))


@njit
def write_fourier(out: Any, i: int, j: int, turns: Any, parameters: Any) -> None:
    """Write the cosine of an angle to ``out[i, j]``, and its sine to the right half of `out`.

    The angle `turns` is in turns of 2 pi. `parameters` are a factor, by which cosine and sine are
    multiplied, and the coefficients of `cos_sin`.
    """
    scale, half, nearest, cosine, sine = parameters
    c, s = cos_sin(turns, scale, half, nearest, cosine, sine)
    out[i, j] = c
    out[i, out.shape[1] // 2 + j] = s
