"""Values that a call should not be given, some of them made from a valid one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
from scipy import sparse

NUMBERS = [np.nan, np.inf, -np.inf, 1e308, -1e308, 1.7e308, 1e-320, 1e200, 1e39, 1e16, 1e5]
NUMBERS += [10**400, 2**63, 2**63 - 1, 10**15, 300, 7, 2, 1, 0, -1, 0.5, 1e-9]
OTHERS = [
    None,
    True,
    "",
    "cpu",
    "softmax",
    "nan",
    "1",
    b"1",
    1j,
    [],
    [[]],
    (),
    {},
    {"a": 1},
]
OTHERS += [[1, [2, 3]], [[1.0, 2.0], [3.0]], [None], ["a", "b"], {1, 2}, range(3), slice(2)]
OTHERS += [datetime(2000, 1, 1), np.timedelta64(3), np.datetime64("2000"), np.array("a")]
OTHERS += [np.float16(0.5), np.float32(2.0), np.longdouble("1e400"), np.uint8(3), np.bool_(True)]
OTHERS += [np.array(2.0), np.array(3), np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0)), np.ones(3)]
OTHERS += [np.ones((2, 3)), np.ones((6, 3)), np.ones((2, 2, 2)), np.arange(6), np.full(6, 2**63)]
OTHERS += [np.ones(2, complex), np.array([None, 1]), np.array(["1", "2"]), np.zeros(2, "M8[D]")]
OTHERS += [np.zeros(2, [("a", float)]), np.ma.masked_array([1.0, 2.0], [True, False])]
OTHERS += [sparse.csr_array(np.eye(2)), sparse.coo_array(np.eye(4, 6)), sparse.csc_array((2, 6))]
TYPES = ["f2", "f4", "g", "D", "O", "?", "u8", "i1", "i4", ">f8", "M8[s]", "U8", "S8"]


class Subclass(np.ndarray):
    """An array of another class."""


def changed(value: Any, rng: np.random.Generator) -> Any:
    """Return something hostile in place of a valid value."""
    kind = rng.random()
    if isinstance(value, dict) and value and kind < 0.7:
        return _changed_dict(value, rng)
    if isinstance(value, tuple) and hasattr(value, "_fields") and kind < 0.7:  # a named one
        field = pick(value._fields, rng)
        return value._replace(**{field: changed(getattr(value, field), rng)})
    if sparse.issparse(value) and kind < 0.7:
        return _changed_matrix(value, rng)
    array = np.asarray(value) if isinstance(value, (np.ndarray, list)) else np.array(None)
    if array.ndim and kind < 0.7:
        numeric = array.size and array.dtype.kind in "fiu"
        return _changed_array(array, rng) if numeric else value[:1]
    if rng.random() < 0.05:
        return (x for x in [1, 2, 3])
    return pick(NUMBERS if kind < 0.85 else OTHERS, rng)


def pick(values: Any, rng: np.random.Generator) -> Any:
    """Return one of the values."""
    return values[rng.integers(len(values))]


def _changed_dict(value: dict[Any, Any], rng: np.random.Generator) -> dict[Any, Any]:
    key = pick(list(value), rng)
    rest = {name: part for name, part in value.items() if name != key}
    return pick(
        [{**value, key: changed(value[key], rng)}, rest, {**rest, "other": value[key]}], rng
    )


def _changed_matrix(value: Any, rng: np.random.Generator) -> Any:
    matrix = sparse.csr_array(value, copy=True)
    which = rng.integers(7)
    if which == 0:
        data = _changed_array(matrix.data, rng)
        fits = isinstance(data, np.ndarray) and data.shape == matrix.data.shape
        matrix.data = data if fits else matrix.data[:-1]
    elif which == 1:
        matrix.indices[rng.integers(matrix.nnz)] = pick([-1, 6, 99, 2**31 - 1], rng)
    elif which == 2:
        matrix.indptr[rng.integers(len(matrix.indptr))] = pick([-1, 0, 9, 2**31 - 1], rng)
    elif which == 3:
        return matrix.astype(pick(["f4", "i8", "?", "D", "u1"], rng))
    elif which == 4:
        return pick([matrix.tocoo(), matrix.tocsc(), matrix.T, matrix.toarray(), matrix[:0]], rng)
    elif which == 5:
        return pick([matrix[:1], matrix[:, :2], sparse.csr_matrix(matrix), 0 * matrix], rng)
    else:
        return matrix * pick([1e308, 1e-320, np.nan, -1.0, 1e30], rng)
    return matrix


def _changed_array(array: np.ndarray[Any, Any], rng: np.random.Generator) -> Any:
    """Return the values in another form, other values in this form, or another shape."""
    array, which = array.copy(), rng.integers(10)
    with np.errstate(all="ignore"):
        if which < 3:
            floats = array.dtype.kind == "f"
            number = pick([x for x in NUMBERS if floats or isinstance(x, int)], rng)
            numbers = array.astype(object)
            numbers.flat[slice(None) if which == 0 else rng.integers(array.size)] = number
            try:
                return numbers.astype(array.dtype)
            except OverflowError:
                return numbers.tolist()
        if which == 3:
            return array.astype(pick(TYPES, rng)) if array.ndim else array
        if which == 4 and array.dtype.kind == "f":
            return array * pick([1e308, 1e-320, 1e30, -1.0, 1e5, 1e-5], rng)
    if which == 5:
        return pick(
            [array[:0], array[:1], array[..., :1], array[None], array.ravel(), array.T], rng
        )
    if which == 6:
        return np.ma.masked_array(array, np.arange(array.size).reshape(array.shape) == 0)
    if which == 7:
        array.flags.writeable = False
        return pick([array, array.view(Subclass), array.tolist(), tuple(array.tolist())], rng)
    if which == 8:
        wide = np.repeat(array, 2, axis=-1)
        return pick([wide[..., ::2], array[::-1], np.asfortranarray(array)], rng)
    return pick([array.astype("f4"), array.astype(array.dtype.newbyteorder())], rng)
