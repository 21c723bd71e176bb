"""What every layer is: parameters, a forward pass with a cache, and a backward pass from it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from samplesoft._jit import chunks, thread_each
from samplesoft._random import mix64, uniform_block
from samplesoft._validation import as_positive, require_plain
from samplesoft.losses.base import SparseRows

Parameters = dict[str, NDArray[Any]]
ParameterGradients = dict[str, NDArray[Any] | SparseRows]

_CHUNK_NUMBERS = 1 << 20  # uniforms drawn at a time: memory for them, whatever the weights take


class Layer(Protocol):
    """A function of arrays with parameters, and its derivative.

    Attributes
    ----------
    parameters : dict of str to ndarray
        Weights by name. Optimizers change these arrays in place.
    """

    parameters: Parameters

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the output first and the cache last."""

    def backward(
        self, cache: Any, dy: NDArray[Any]
    ) -> tuple[NDArray[Any] | None, ParameterGradients]:
        """Return derivatives in the input and in the parameters, given those in the output.

        Parameters
        ----------
        cache : object
            From `forward`; parameters and arrays must not have changed since.
        dy : ndarray
            Derivatives in the output, of its shape and type.

        Returns
        -------
        dx : ndarray or None
            Derivatives in the input; None where it is ids or a sparse matrix.
        gradients : dict of str to (ndarray or SparseRows)
            Under the names of `parameters`. What is beyond the range of its type is not finite;
            optimizers refuse it.
        """


def as_float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` if it is float32 or float64."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(f"`dtype` must be float32 or float64: {error}.") from None
    if kind not in (np.float32, np.float64):
        raise TypeError(f"`dtype` must be float32 or float64, got {kind}.")
    return kind


def check_array(name: str, value: Any, shape: tuple[int | None, ...], dtype: np.dtype[Any]) -> None:
    """Require an array of type `dtype` and of `shape`, where None stands for any length but 0."""
    require_plain(name, value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"`{name}` must be a numpy array, got {type(value).__name__}.")
    wanted = tuple("*" if length is None else length for length in shape)
    if value.ndim != len(shape) or any(
        have != want if want is not None else have < 1
        for have, want in zip(value.shape, shape, strict=True)
    ):
        described = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"`{name}` must have shape ({described}), not empty, got {value.shape}.")
    if value.dtype != dtype:
        raise TypeError(
            f"`{name}` must be of the layer's type {dtype}, got {value.dtype}; "
            f"convert it with {name}.astype({dtype})."
        )


def check_changeable(argument: str, name: str, array: Any) -> None:
    """Require that the array `name` of a mapping is of floats and can be changed in place."""
    require_plain(f"{argument}[{name!r}]", array)
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"`{argument}` must hold arrays of float32 or float64, got "
            f"{getattr(array, 'dtype', type(array).__name__)} for {name!r}."
        )
    if not array.flags.carray:
        raise ValueError(
            f"`{argument}` must be C-contiguous and writable, to change in place, but {name!r} is "
            "not; copy it with numpy.array(..., order='C')."
        )


def check_finite(name: str, value: NDArray[Any]) -> None:
    """Require that no entry is NaN or infinite."""
    if not np.isfinite(value).all():
        raise ValueError(f"`{name}` must be finite, got NaN or infinity; remove or replace them.")


def check_products(y: NDArray[Any]) -> None:
    """Require that what a layer has computed is finite."""
    if not np.isfinite(y).all():
        raise ValueError(
            f"`x` must have products with the weights within the range of {y.dtype}, got some that "
            "are not finite; scale it down, or look at the weights."
        )


def as_init_scale(init_scale: float | None, size: int) -> float:
    """Return a positive `init_scale`, or 1 / sqrt(size) where it is None."""
    return size**-0.5 if init_scale is None else as_positive("init_scale", init_scale)


def uniform_weights(
    shape: tuple[int, ...], init_scale: float, dtype: np.dtype[Any], key: np.uint64
) -> NDArray[Any]:
    """Return weights of a shape, uniform in [-init_scale, init_scale] by the stream of a key.

    They are the same at any number of threads.
    """
    weights = np.empty(shape, dtype)
    flat = weights.reshape(-1)

    def fill(part: slice) -> None:
        stream = mix64(key, np.uint64(part.start))
        uniforms = uniform_block(np.uint64(stream), 1, part.stop - part.start)[0]
        flat[part] = init_scale * (2.0 * uniforms - 1.0)

    thread_each(fill, chunks(flat.size, _CHUNK_NUMBERS))
    return weights
