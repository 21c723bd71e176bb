"""Context and class vectors: checked, divided by their norms, and the gradient of that."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import row_chunks, thread_each
from samplesoft._validation import FloatArray, IntArray, as_float_rows, as_real_array, as_type
from samplesoft.kernels.rows import divide_by_norms, unit_gradient
from samplesoft.samplers.base import Rows

_CHUNK_NUMBERS = 1 << 18  # of a chunk for a thread


def check_class_embeddings(value: Any) -> Rows:
    """Return class vectors (n, d) in C order; large arrays are not read for finiteness here."""
    # a step touches a few rows of n; to read all of them would cost more than the step
    if (
        isinstance(value, np.ndarray)
        and not isinstance(value, np.ma.MaskedArray)
        and value.dtype in (np.float32, np.float64)
        and value.ndim == 2
        and value.size
        and value.flags.c_contiguous
    ):
        return value
    return as_float_rows("class_embeddings", value)


def require_finite_rows(rows: Rows, first: int = 0) -> None:
    """Raise for class vectors (r, d) that are not finite; `first` is the class of the first."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):  # one pass and no array; look at each where it overflows
            return
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"`class_embeddings` must be finite, got row {first + int(finite.argmin())} that is "
            "not; training may have diverged: lower the learning rate, or clip gradients."
        )


def check_biases(value: ArrayLike, num_classes: int, dtype: np.dtype[Any]) -> Rows:
    """Return class biases (n,) of a type."""
    biases = as_real_array("biases", value, (1,))
    if len(biases) != num_classes:
        raise ValueError(f"`biases` must have shape ({num_classes},), got {biases.shape}.")
    return as_type("biases", biases, dtype)


def unit_rows(name: str, rows: Rows, ids: IntArray | None = None) -> tuple[Rows, FloatArray]:
    """Divide rows (N, d) by their norms in place; return them, and the norms (N,) that they had.

    Errors call the rows by `ids` (N,), where those are given, of the argument `name`.
    """
    norms = np.empty(len(rows))  # float64, for rows of float32 too
    _each_chunk(rows, lambda part: divide_by_norms(rows[part], norms[part]))
    good = (norms > 0.0) & np.isfinite(norms)  # others were left as they are
    if not good.all():
        worst = int(np.argmin(good))
        raise no_norm(name, norms[worst], worst if ids is None else int(ids[worst]))
    return rows, norms


def no_norm(name: str, norm: float, row: int) -> ValueError:
    """Return the error for a row that cannot be normalised."""
    return ValueError(
        f"`{name}` must have rows of a finite norm greater than 0 to be normalised, got {norm} for "
        f"row {row}; start from random vectors, or use normalize=False."
    )


def unit_rows_backward(d_unit: Rows, unit: Rows, norms: FloatArray) -> Rows:
    """Turn derivatives in the normalised rows, in place, into those in the rows."""
    _each_chunk(unit, lambda part: unit_gradient(d_unit[part], unit[part], norms[part]))
    return d_unit


def _each_chunk(rows: Rows, work: Any) -> None:
    thread_each(work, row_chunks(rows.shape, _CHUNK_NUMBERS))
