"""The base class of feature maps: public methods that check arguments, and hooks that compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import Backend, backend
from samplesoft._device.select import as_device
from samplesoft._validation import FloatArray, as_count, as_float_rows


class FeatureMap(ABC):
    """A map phi to features whose dot products estimate a kernel: ``E[phi(x).phi(y)] = k(x, y)``.

    The random numbers of a map are drawn once, when it is created. The same seed gives the same
    features, in float32 up to rounding. To add a map, write a subclass with the methods `_write`
    and `_kernel`, which get checked arguments, and add it to ``FEATURE_MAPS``; one test suite
    covers all entries. To try out a map, it is enough to pass a function from rows (k, d) to
    features (k, F) to a sampler or a tree.

    Parameters
    ----------
    dim : int
        Length d of the vectors.
    feature_dim : int
        Length F of their features.
    floor : float
        Minimum of the kernel over two unit vectors.
    device : {"cpu", "cuda"}
        Device of the features. With "cuda", `_write` gets device arrays; see
        `RandomFourierFeatures` for an example.

    Attributes
    ----------
    dim, feature_dim, floor, device
        As above.
    closed_form : tuple of (str, float), or None
        The arguments ``leaf`` and ``scale`` with which a `KernelTree` computes the same kernel from
        the vectors, without features; None if it cannot.
    """

    closed_form: tuple[str, float] | None = None

    def __init__(self, dim: int, feature_dim: int, floor: float, device: str = "cpu") -> None:
        self.dim = as_count("dim", dim)
        self.feature_dim = feature_dim
        self.floor = floor
        self.device = as_device(device)

    @property
    def _backend(self) -> Backend:
        return backend(self.device)

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the features of each row.

        Parameters
        ----------
        X : array_like, shape (N, d) or (d,)
            Vectors, in any memory order; one vector counts as one row. With ``device="cuda"``
            also an array on the device, of any library, in C order.

        Returns
        -------
        ndarray, shape (N, F)
            Features: float32 if `X` is a float32 array, else float64; on the device of the map.

        Raises
        ------
        TypeError, ValueError
            If `X` is malformed, does not have d columns, or is so large that features overflow.
        """
        rows = self._backend.float_rows("X", X, self.dim)
        # Features have the dtype of the rows. With float32, trees take half the memory, and the
        # probabilities of draws are still exact, because both use the same rounded features.
        out: NDArray[Any] = self._backend.empty((rows.shape[0], self.feature_dim), rows.dtype)
        self._write(rows, out)
        return out

    def __call__(self, X: ArrayLike) -> NDArray[Any]:
        """Return the features of each row, as `transform` does."""
        return self.transform(X)

    def kernel(self, X: ArrayLike, Y: ArrayLike) -> FloatArray:
        """Return the kernel that the features estimate, in float64.

        Parameters
        ----------
        X, Y : array_like, shapes (N, d) and (M, d), or (d,)
            Vectors.

        Returns
        -------
        ndarray of float64, shape (N, M)
            ``k(x, y)``; inf where it is too large for a float64.

        Raises
        ------
        TypeError, ValueError
            If `X` or `Y` is malformed or does not have d columns, or if inner products overflow.
        """
        with np.errstate(over="ignore"):
            # computed on the CPU for each device, because the formula only serves to check features
            x, y = (as_float_rows(n, v, self.dim) for n, v in (("X", X), ("Y", Y)))
            return self._kernel(x.astype(np.float64, copy=False), y.astype(np.float64, copy=False))

    @abstractmethod
    def _write(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of `X` (N, d) to `out` (N, F).

        Both arrays have the same dtype, and are on the device of the map.
        """

    @abstractmethod
    def _kernel(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """Return the kernel (N, M) of `X` (N, d) and `Y` (M, d)."""


# the subject of error messages about an input vector
ROW_SUBJECT = "a row of `X` (of `h` or `class_embeddings`, for a sampler)"


def require_finite(out: NDArray[Any]) -> None:
    """Raise ValueError if a feature is infinite or NaN, because the rows were too large."""
    # features are checked instead of rows, because each map would have to derive a limit for rows
    if not np.isfinite(out).all():
        raise ValueError(
            f"features of {ROW_SUBJECT} overflow {out.dtype}; {overflow_remedy(out.dtype)}."
        )


def overflow_remedy(dtype: np.dtype[Any]) -> str:
    """Return the advice in error messages about rows that are too large for `dtype`."""
    remedy = "scale the rows to norm 1"
    return remedy + ", or pass float64" if dtype == np.float32 else remedy


def inner_products(X: FloatArray, Y: FloatArray) -> FloatArray:
    """Return the inner products (N, M) of the rows of `X` (N, d) with those of `Y` (M, d).

    Raises ValueError if a product overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        dots: FloatArray = X @ Y.T
    # if terms of an inner product overflow, the result is inf, -inf or NaN, depending on the CPU
    if not np.isfinite(dots).all():
        raise ValueError(
            "`X` and `Y` must have inner products within the range of float64, got some beyond it; "
            "scale the rows down."
        )
    return dots
