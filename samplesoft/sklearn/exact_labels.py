"""Conversion of labels in any container to arrays, such that distinct labels stay distinct.

Labels are equal if they are equal in Python: 2, 2.0 and ``np.uint64(2)`` are one label; 2**60 and
2**60 + 1 are two labels, although they are equal in float64.
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

_TEXT_KINDS = {str: "text", bytes: "bytes"}
_INTEGERS = (int, np.integer)
_FLOATS = (float, np.floating)
_BOOLS = (bool, np.bool_)
_MISSING_TYPES = ("NoneType", "NAType", "NaTType")  # types of missing values, of Python and pandas
# text dtypes of polars, whose conversion to NumPy pads all texts to the length of the longest
_POLARS_TEXT_DTYPES = ("String", "Utf8")
_MAX_EXACT_FLOAT = 2**53  # float64 represents all integers up to this one exactly


def read_labels(name: str, y: Any, *, integral: bool = True) -> NDArray[Any]:
    """Return the labels `y` as an array (N,), one label per example.

    Floats must be whole numbers unless `integral` is False. Integers of one NumPy type keep this
    type. Integers of several types, or in an object array, become int64 if they fit, else uint64,
    else objects. Text in a list becomes a text array of NumPy, which pads all labels to the longest
    one. It becomes an array of objects instead if a label is long, or if a label ends in a null
    character, which NumPy would take for padding. `name` is the name of the argument in errors.
    """
    content = unwrap_container(name, y)
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


def unwrap_container(name: str, y: Any) -> Any:
    """Return `y` as an array or a list if it is a series, dataframe or other container.

    Arrays, lists, tuples, and objects without ``__array__`` are returned unchanged.
    """
    if type(y) is np.ndarray or isinstance(y, (list, tuple)) or not hasattr(y, "__array__"):
        return y
    require_host_array(name, y)
    if str(getattr(y, "dtype", "")) in _POLARS_TEXT_DTYPES and hasattr(y, "to_list"):
        return y.to_list()
    # the conversion of scikit-learn would turn nullable integers into floats
    return np.asarray(y)


def sorted_distinct(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct labels (n,) among `labels` (N,), in ascending order."""
    if labels.dtype == object:
        return _object_array(sorted(set(labels.tolist())))
    return np.unique(labels)


def class_indices(
    classes: NDArray[Any], labels: NDArray[Any], lookup: Callable[[], Mapping[Any, int]]
) -> IntArray:
    """Return the index in `classes` (n,) of each of `labels` (N,), or n if it is not a class.

    `classes` must be distinct. `lookup` is a function that returns a dict from classes, as Python
    values, to their indices. It is only called if labels are neither numbers nor dates.
    """
    n = len(classes)
    kinds = {classes.dtype.kind, labels.dtype.kind}
    if not n or not len(labels):
        return np.full(len(labels), n, np.int64)

    if kinds <= set("biuf"):
        if classes.dtype.kind == "b":
            classes = classes.astype(np.uint8)
        labels, is_exact = _convert_exactly(labels, classes.dtype)
    # dates of one kind are compared as arrays, because their Python values depend on the unit
    elif len(kinds) == 1 and kinds <= set("Mm"):
        is_exact = np.ones(len(labels), bool)
    else:
        indices = map(lookup().get, labels.tolist())
        return np.fromiter((n if i is None else i for i in indices), np.int64, len(labels))

    order = np.argsort(classes)  # classes that are column names may be in any order
    ids = order[np.minimum(np.searchsorted(classes, labels, sorter=order), n - 1)].astype(np.int64)
    ids[~(is_exact & (classes[ids] == labels))] = n
    return ids


def python_value(label: Any) -> Any:
    """Return a label as a Python value, so that equal labels of different types hash equally."""
    return label.item() if isinstance(label, np.generic) else label


def require_one_kind(name: str, labels: Iterable[Any]) -> None:
    """Raise ValueError if text is mixed with other types, or bools are mixed with numbers."""
    # NumPy would convert mixed labels: all of them to text, or True to 1
    kinds = {
        next(
            (_TEXT_KINDS[text_type] for text_type in _TEXT_KINDS if issubclass(kind, text_type)),
            kind.__name__,
        )
        for kind in set(map(type, labels))
    }
    bools = {kind.__name__ for kind in _BOOLS}

    if len(kinds) > 1 and (kinds & set(_TEXT_KINDS.values()) or (kinds & bools and kinds - bools)):
        first_kind, second_kind, *_ = sorted(
            kinds, key=lambda kind: (kind != "text", kind in bools, kind)
        )
        raise ValueError(
            f"`{name}` must hold labels of one kind, got {first_kind} and {second_kind}; convert "
            "them, and leave out examples without a label, or give each a list of labels."
        )


def _is_missing(label: Any, nan_is_missing: bool) -> bool:
    """Return whether a label is missing."""
    if type(label).__name__ in _MISSING_TYPES:
        return True
    return nan_is_missing and isinstance(label, _FLOATS) and label != label


def _labels_of_list(
    name: str, values: Sequence[Any], integral: bool, as_objects: bool
) -> NDArray[Any]:
    """Return the labels in a list as an array (N,); see `read_labels` for the types.

    With `as_objects`, text becomes an array of objects, and integers do not keep their type.
    """
    kinds = set(map(type, values))
    has_text = any(issubclass(kind, tuple(_TEXT_KINDS)) for kind in kinds)
    has_floats = any(issubclass(kind, _FLOATS) for kind in kinds)
    nan_is_missing = has_text and has_floats  # pandas marks missing text by NaN
    if nan_is_missing or any(kind.__name__ in _MISSING_TYPES for kind in kinds):
        index = next((i for i, v in enumerate(values) if _is_missing(v, nan_is_missing)), None)
        if index is not None:
            raise ValueError(
                f"`{name}` must hold no missing labels, got {values[index]} at index {index}; "
                "leave out examples without a label, or give each a list of labels."
            )
    require_one_kind(name, values)

    if _are_all_subclasses(kinds, tuple(_TEXT_KINDS)):
        return _object_array(values) if as_objects else _text_array(values)
    if _are_all_subclasses(kinds, _BOOLS):
        return np.array(values, dtype=bool)
    if _are_all_subclasses(kinds, _INTEGERS):
        array = np.asarray(values)
        keeps_type = array.dtype.kind in "iu" and not as_objects
        return array if keeps_type else exact_integers(values)
    if _are_all_subclasses(kinds, _INTEGERS + _FLOATS):
        return _numeric_labels(name, values, integral)

    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind not in "Mm" and len(values):
        unsupported = (v for v in values if not isinstance(v, _INTEGERS + _FLOATS))
        _raise_unknown_type(name, next(unsupported, values[0]))
    labels: NDArray[Any] = column_or_1d(array)  # dates, or an empty list
    return labels


def _numeric_labels(name: str, values: Sequence[Any], integral: bool) -> NDArray[Any]:
    """Return numeric labels, of which at least one is a float, as an array (N,).

    If all labels are whole numbers, and float64 cannot represent all of them, the result contains
    integers.
    """
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
    """Return float labels unchanged; raise ValueError if one is not finite.

    With `integral`, also raise ValueError if a label is not a whole number.
    """
    check_array(labels, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name=name)
    is_fractional = labels != np.trunc(labels)
    if integral and is_fractional.any():
        _raise_unknown_type(name, labels[is_fractional][0])
    return labels


def _raise_unknown_type(name: str, label: Any) -> NoReturn:
    """Raise ValueError for a label of an unsupported type, or a float that is no whole number."""
    kind = "continuous" if isinstance(label, _FLOATS) else type(label).__name__
    # the message must begin with "Unknown label type", which scikit-learn's estimator checks expect
    raise ValueError(
        f"Unknown label type: {kind}. `{name}` must hold text, whole numbers or booleans, got "
        f"{short_repr(label)}; convert the labels."
    )


def _text_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return text labels as a text array (N,), or as an object array if padding would do harm.

    Padding is costly if a label is long, and ambiguous if a label ends in a null character.
    """
    max_length = max(map(len, values), default=0)
    # NumPy pads with null characters, so "a" and "a\0" would become one label
    null_character = values[0][:0] + ("\0" if isinstance(values[0], str) else b"\0")
    if max_length > LONGEST_PADDED or any(value.endswith(null_character) for value in values):
        return _object_array(values)
    return np.array(values)


def _text_without_padding(labels: NDArray[Any]) -> NDArray[Any]:
    """Return a text array (N,), or an array of objects if padding would make labels very long."""
    character_bytes = np.dtype(f"{labels.dtype.kind}1").itemsize
    if labels.dtype.itemsize <= character_bytes * LONGEST_PADDED:
        return labels
    return _text_array(labels.tolist())


def _object_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return an object array (N,) of the values, which may themselves be sequences."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _are_all_subclasses(kinds: set[type], allowed: tuple[type, ...]) -> bool:
    """Return whether `kinds` is not empty and holds only subclasses of the `allowed` types."""
    durations = {np.timedelta64}  # excluded, although it is a subclass of np.integer
    return (
        bool(kinds) and not kinds & durations and all(issubclass(kind, allowed) for kind in kinds)
    )


def _convert_exactly(
    labels: NDArray[Any], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels (N,) converted to `dtype`, and a mask (N,) of the exact conversions.

    In the result, labels that cannot be converted exactly have meaningless values.
    """
    # a comparison with == is not enough: NumPy compares int64 with uint64 in float64, where
    # different integers above 2**53 may be equal
    if labels.dtype == dtype:
        return labels, np.ones(len(labels), bool)

    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = labels.astype(dtype)
        if labels.dtype.kind == "f":
            return converted, converted == labels
        integer = np.dtype(np.int64 if labels.dtype.kind == "i" else "u8")
        back, is_exact = _convert_exactly(converted, integer)
        return converted, is_exact & (back == labels)

    limits = np.iinfo(dtype)
    if labels.dtype.kind == "f":
        labels = labels.astype(np.result_type(labels, np.float64))
        # compared with limits.max + 1, a power of two, because limits.max may not be a float64
        is_exact = (labels >= float(limits.min)) & (labels < float(limits.max + 1))
        is_exact &= labels == np.trunc(labels)
    else:
        if labels.dtype.kind == "b":
            labels = labels.astype(np.uint8)
        is_exact = (labels >= int(limits.min)) & (labels <= int(limits.max))

    return np.where(is_exact, labels, np.zeros_like(labels)).astype(dtype), is_exact
