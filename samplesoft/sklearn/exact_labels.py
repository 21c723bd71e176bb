"""Exact label arrays from any container: distinct labels stay distinct, and padding stays cheap.

Labels are equal if Python's ``==`` says so: 2, 2.0 and ``np.uint64(2)`` are equal; 2**60 and
2**60 + 1 are different, although they are equal in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array, column_or_1d

from samplesoft._validation import (
    LONGEST_PADDED,
    IntArray,
    exact_integers,
    require_host_array,
    short_repr,
)

_TEXT = {str: "text", bytes: "bytes"}
_INTEGERS, _FLOATS, _BOOLS = (int, np.integer), (float, np.floating), (bool, np.bool_)
_MISSING = ("NoneType", "NAType", "NaTType")  # types of Python and pandas
_PADDED = ("String", "Utf8")  # dtypes of polars; its arrays are padded to the longest text
_MAX_EXACT_FLOAT = 2**53  # float64 represents all integers up to this one


def read_labels(name: str, y: Any, *, integral: bool = True) -> NDArray[Any]:
    """Return labels as an array (N,), one per example; errors call the argument `name`.

    Floats must be whole numbers unless `integral` is False. Integers of one NumPy type keep it;
    integers of several types, or in an object array, become int64 if they fit, else uint64, else
    objects. Text in a list is padded to the longest label, as in NumPy. It stays objects if a label
    is long, or ends in a null character, which cannot be told from padding.
    """
    content = unwrap(name, y)
    if isinstance(content, (list, tuple)):
        return _labels_of_list(name, content, integral, False)
    array = np.asarray(content)
    if array.dtype.kind == "T":  # NumPy's StringDType, which scikit-learn does not support
        return _labels_of_list(name, array.ravel().tolist(), integral, False)
    labels: NDArray[Any] = column_or_1d(array, warn=True)
    if labels.dtype == object:
        return _labels_of_list(name, labels.tolist(), integral, True)
    if labels.dtype.kind in "US":
        return _text_without_padding(labels)
    if labels.dtype.kind == "f":
        return _check_floats(name, labels, integral)
    if labels.dtype.kind not in "biuMm":
        _raise_unknown_type(name, labels.dtype)
    return labels


def unwrap(name: str, y: Any) -> Any:
    """Return the content of a series, dataframe or other container as an array or a list."""
    if type(y) is np.ndarray or isinstance(y, (list, tuple)) or not hasattr(y, "__array__"):
        return y
    require_host_array(name, y)
    if str(getattr(y, "dtype", "")) in _PADDED and hasattr(y, "to_list"):
        return y.to_list()
    # NumPy's conversion is exact; scikit-learn converts nullable integers to floats
    return np.asarray(y)


def ascending(labels: NDArray[Any]) -> NDArray[Any]:
    """Return distinct labels in ascending order."""
    if labels.dtype == object:
        return _as_objects(sorted(set(labels.tolist())))
    return np.unique(labels)


def class_indices(
    classes: NDArray[Any], labels: NDArray[Any], lookup: Callable[[], Mapping[Any, int]]
) -> IntArray:
    """Return the index of each label (N,) in the distinct classes (n,), or n if it is no class.

    `lookup` returns a dict from classes, as Python values, to indices. It is only called for labels
    that are not numbers.
    """
    n, kinds = len(classes), {classes.dtype.kind, labels.dtype.kind}
    if not n or not len(labels):
        return np.full(len(labels), n, np.int64)
    if kinds <= set("biuf"):
        if classes.dtype.kind == "b":
            classes = classes.astype(np.uint8)
        labels, same = _convert_exactly(labels, classes.dtype)
    elif len(kinds) == 1 and kinds <= set("Mm"):  # their Python values depend on the unit
        same = np.ones(len(labels), bool)
    else:
        indices = map(lookup().get, labels.tolist())
        return np.fromiter((n if i is None else i for i in indices), np.int64, len(labels))
    order = np.argsort(classes)  # column names may be in any order
    ids = order[np.minimum(np.searchsorted(classes, labels, sorter=order), n - 1)].astype(np.int64)
    ids[~(same & (classes[ids] == labels))] = n
    return ids


def python_value(label: Any) -> Any:
    """Return a label as a Python value, which compares and hashes equally for all types."""
    return label.item() if isinstance(label, np.generic) else label


def require_one_kind(name: str, labels: Iterable[Any]) -> None:
    """Raise ValueError for text mixed with other types, and for bools mixed with numbers."""
    # NumPy would convert all to text, or True to 1
    kinds = {
        next((_TEXT[text] for text in _TEXT if issubclass(kind, text)), kind.__name__)
        for kind in set(map(type, labels))
    }
    bools = {kind.__name__ for kind in _BOOLS}
    if len(kinds) > 1 and (kinds & set(_TEXT.values()) or (kinds & bools and kinds - bools)):
        first, second, *_ = sorted(kinds, key=lambda kind: (kind != "text", kind in bools, kind))
        raise ValueError(
            f"`{name}` must hold labels of one kind, got {first} and {second}; convert them, and "
            "leave out examples without a label, or give each a list of labels."
        )


def _labels_of_list(
    name: str, values: Sequence[Any], integral: bool, as_objects: bool
) -> NDArray[Any]:
    """Return the labels of a list; with `as_objects`, text becomes an object array."""
    require_one_kind(name, values)
    kinds = set(map(type, values))
    if any(kind.__name__ in _MISSING for kind in kinds):
        index = next(i for i, v in enumerate(values) if type(v).__name__ in _MISSING)
        raise ValueError(
            f"`{name}` must hold no missing labels, got {values[index]} at index {index}; leave "
            "out examples without a label, or give each a list of labels."
        )
    if _all_of(kinds, tuple(_TEXT)):
        return _as_objects(values) if as_objects else _text(values)
    if _all_of(kinds, _BOOLS):
        return np.array(values, dtype=bool)
    if _all_of(kinds, _INTEGERS):
        array = np.asarray(values)
        exact = array.dtype.kind in "iu" and not as_objects
        return array if exact else exact_integers(values)
    if _all_of(kinds, _INTEGERS + _FLOATS):
        return _numeric_labels(name, values, integral)
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind not in "Mm" and len(values):
        strange = (v for v in values if not isinstance(v, _INTEGERS + _FLOATS))
        _raise_unknown_type(name, next(strange, values[0]))
    labels: NDArray[Any] = column_or_1d(array)  # dates, or an empty list
    return labels


def _numeric_labels(name: str, values: Sequence[Any], integral: bool) -> NDArray[Any]:
    """Return numeric labels, at least one of them a float."""
    floats = np.asarray([value for value in values if isinstance(value, _FLOATS)])
    _check_floats(name, floats, integral)
    if len(floats) == len(values):
        return floats
    if (floats != np.trunc(floats)).any():
        return np.asarray(values, np.float64)
    exact = exact_integers(values)
    limit = _MAX_EXACT_FLOAT
    if exact.dtype != object and -limit <= exact.min() and exact.max() <= limit:
        return exact.astype(np.float64)
    return exact


def _check_floats(name: str, labels: NDArray[Any], integral: bool) -> NDArray[Any]:
    """Return float labels; raise ValueError unless they are finite and, if `integral`, integral."""
    check_array(labels, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name=name)
    is_fractional = labels != np.trunc(labels)
    if integral and is_fractional.any():
        _raise_unknown_type(name, labels[is_fractional][0])
    return labels


def _raise_unknown_type(name: str, label: Any) -> NoReturn:
    kind = "continuous" if isinstance(label, _FLOATS) else type(label).__name__
    # scikit-learn's estimator checks look for these first words
    raise ValueError(
        f"Unknown label type: {kind}. `{name}` must hold text, whole numbers or booleans, got "
        f"{short_repr(label)}; convert the labels."
    )


def _text(values: Sequence[Any]) -> NDArray[Any]:
    longest = max(map(len, values), default=0)
    # NumPy pads with nulls, so "a" and "a\0" would become one label
    end = values[0][:0] + ("\0" if isinstance(values[0], str) else b"\0")
    if longest > LONGEST_PADDED or any(value.endswith(end) for value in values):
        return _as_objects(values)
    return np.array(values)


def _text_without_padding(labels: NDArray[Any]) -> NDArray[Any]:
    """Return a text array; as objects if its labels are so long that padding would be costly."""
    size = np.dtype(f"{labels.dtype.kind}1").itemsize
    if labels.dtype.itemsize <= size * LONGEST_PADDED:
        return labels
    return _text(labels.tolist())


def _as_objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _all_of(kinds: set[type], allowed: tuple[type, ...]) -> bool:
    durations = {np.timedelta64}  # a subclass of np.integer
    return (
        bool(kinds) and not kinds & durations and all(issubclass(kind, allowed) for kind in kinds)
    )


def _convert_exactly(
    labels: NDArray[Any], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels converted to `dtype`, and a mask of those that the conversion leaves equal."""
    # NumPy compares int64 with uint64 in float64, where neighbours beyond 2**53 are equal
    if labels.dtype == dtype:
        return labels, np.ones(len(labels), bool)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = labels.astype(dtype)
        if labels.dtype.kind == "f":
            return converted, converted == labels
        integer = np.dtype(np.int64 if labels.dtype.kind == "i" else "u8")
        back, same = _convert_exactly(converted, integer)
        return converted, same & (back == labels)
    limits = np.iinfo(dtype)
    if labels.dtype.kind == "f":
        labels = labels.astype(np.result_type(labels, np.float64))
        # the largest integer is not representable as a float, but the next one is a power of two
        same = (labels >= float(limits.min)) & (labels < float(limits.max + 1))
        same &= labels == np.trunc(labels)
    else:
        labels = labels.astype(np.uint8) if labels.dtype.kind == "b" else labels
        same = (labels >= int(limits.min)) & (labels <= int(limits.max))
    return np.where(same, labels, np.zeros_like(labels)).astype(dtype), same
