"""Clipping of all gradients of a model by their common norm."""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp, inf, isfinite, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, njit_sum, thread_for_each, thread_map
from samplesoft._validation import as_positive, require_mapping
from samplesoft.losses.base import SparseRows
from samplesoft.optimizers.updates import require_updatable

Array = NDArray[Any]
Given = TypeVar("Given", bound=Mapping[str, Array | SparseRows])

_PART = 1 << 18  # numbers below which threads cost more than they save


def clip_by_global_norm(gradients: Given, max_norm: float) -> tuple[Given, float]:
    """Scale gradients **in place** so that their common norm is at most `max_norm`.

    Parameters
    ----------
    gradients : mapping of str to ndarray or SparseRows
        Of each parameter; C-contiguous float32 or float64 that share no memory.
    max_norm : float
        Greatest norm that is left; greater than 0.

    Returns
    -------
    gradients : mapping of str to ndarray or SparseRows
        The same object. Its arrays are multiplied by ``max_norm / norm`` where the norm is
        greater, and untouched where it is not.
    norm : float
        The Euclidean norm of all gradients together before that, computed in float64.

    Raises
    ------
    TypeError, ValueError
        If `max_norm` is not positive, or an array is malformed or not finite; no gradient has
        changed then.

    References
    ----------
    .. [1] R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
       networks", ICML 2013, algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> gradients = {"w": np.array([3.0, 0.0]), "b": SparseRows(np.array([7]), np.array([4.0]))}
    >>> _, norm = clip_by_global_norm(gradients, 1.0)
    >>> norm, gradients["w"], gradients["b"].rows
    (5.0, array([0.6, 0. ]), array([0.8]))
    """
    max_norm = as_positive("max_norm", max_norm)
    require_mapping("gradients", gradients)
    arrays = {name: _as_flat(name, gradient) for name, gradient in gradients.items()}
    parts = [flat[part] for flat in arrays.values() for part in chunks(flat.size, _PART)]
    norm = _norm(parts, 1.0)
    if not 1e-150 < norm < 1e150:  # squares may have left float64, or an entry is not finite
        norm = _norm(parts, _scale(arrays))
        if norm == inf:
            raise ValueError("`gradients` must have a norm that is finite in float64; scale them.")
    if norm > max_norm:
        factor = max_norm / norm
        thread_for_each(lambda part: multiply(part, factor), parts)
    return gradients, norm


def _norm(parts: list[Array], scale: float) -> float:
    return sqrt(sum(thread_map(lambda part: sum_squares(part, scale), parts))) / scale


def _scale(arrays: Mapping[str, Array]) -> float:
    """Return a power of two that brings the largest entry near 1, if all are finite."""
    largest = 0.0
    for name, flat in arrays.items():
        peak = float(np.abs(flat).max(initial=0.0))
        if not isfinite(peak):
            raise ValueError(
                f"`gradients` must be finite, got {peak} for {name!r}; look for the first step "
                "that is too large."
            )
        largest = max(largest, peak)
    return 2.0 ** min(-frexp(largest)[1], 1000)


def _as_flat(name: str, gradient: Array | SparseRows) -> Array:
    array = gradient.rows if isinstance(gradient, SparseRows) else gradient
    require_updatable("gradients", name, array)
    return np.asarray(array).reshape(-1)


@njit_sum
def sum_squares(values: Array, scale: float) -> float:
    """Return the sum of the squares of ``scale * values`` (k,) in float64."""
    total = 0.0
    for i in range(len(values)):
        scaled = scale * np.float64(values[i])
        total += scaled * scaled
    return total


@njit
def multiply(values: Array, factor: float) -> None:
    """Multiply `values` (k,) by a float64 that may be too small for their type."""
    for i in range(len(values)):
        values[i] = np.float64(values[i]) * factor
