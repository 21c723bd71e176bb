"""Labels as they are, whatever carries them: no two become one, and none is padded at a cost.

Labels are the same where Python says so with ``==``: 2, 2.0 and ``np.uint64(2)`` are, 2**60 and
2**60 + 1 are not, though they are in float64.
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
    require_plain,
    short_repr,
)

_TEXT = {str: "text", bytes: "bytes"}
_INTEGERS, _FLOATS, _BOOLS = (int, np.integer), (float, np.floating), (bool, np.bool_)
_MISSING = ("NoneType", "NAType", "NaTType")  # of Python and of pandas
_PADDED = ("String", "Utf8")  # of polars, whose arrays are padded to the longest text
_TOLD_APART = 2**53  # up to which float64 holds all integers


def read_labels(name: str, y: Any, *, whole: bool = True) -> NDArray[Any]:
    """Return labels (N,), one of each example; errors call the argument `name`.

    Floats must be whole numbers, unless told otherwise, since others are hardly labels.
    Integers of one type stay of it; of several, or as objects, they are int64, else uint64, else
    objects. Text of a list is padded to the longest label, as NumPy does, but stays objects where
    that is long, or where the padding would not be told from the text.
    """
    given = unpacked(name, y)
    if isinstance(given, (list, tuple)):
        return _of_values(name, given, whole, False)
    array = np.asarray(given)
    if array.dtype.kind == "T":  # text of any length, of which scikit-learn knows nothing
        return _of_values(name, array.ravel().tolist(), whole, False)
    labels: NDArray[Any] = column_or_1d(array, warn=True)
    if labels.dtype == object:
        return _of_values(name, labels.tolist(), whole, True)
    if labels.dtype.kind in "US":
        return _unpadded(labels)
    if labels.dtype.kind == "f":
        return _checked_floats(name, labels, whole)
    if labels.dtype.kind not in "biuMm":
        _refuse(name, labels.dtype)
    return labels


def unpacked(name: str, y: Any) -> Any:
    """Return what a series, a dataframe or another carrier holds, as an array or a list."""
    if type(y) is np.ndarray or isinstance(y, (list, tuple)) or not hasattr(y, "__array__"):
        return y
    require_plain(name, y)
    if str(getattr(y, "dtype", "")) in _PADDED and hasattr(y, "to_list"):
        return y.to_list()
    # NumPy's conversion is exact, while scikit-learn makes floats of nullable integers
    return np.asarray(y)


def ascending(labels: NDArray[Any]) -> NDArray[Any]:
    """Return distinct labels in ascending order."""
    if labels.dtype == object:
        return _as_objects(sorted(set(labels.tolist())))
    return np.unique(labels)


def places(
    classes: NDArray[Any], labels: NDArray[Any], lookup: Callable[[], Mapping[Any, int]]
) -> IntArray:
    """Return where labels (N,) stand among distinct classes (n,), n for those that do not.

    `lookup` returns the place of each class as Python has it; it is not called for numbers.
    """
    n, kinds = len(classes), {classes.dtype.kind, labels.dtype.kind}
    if not n or not len(labels):
        return np.full(len(labels), n, np.int64)
    if kinds <= set("biuf"):
        if classes.dtype.kind == "b":
            classes = classes.astype(np.uint8)
        labels, same = _in_type(labels, classes.dtype)
    elif len(kinds) == 1 and kinds <= set("Mm"):  # of which Python's values depend on the unit
        same = np.ones(len(labels), bool)
    else:
        found = map(lookup().get, labels.tolist())
        return np.fromiter((n if i is None else i for i in found), np.int64, len(labels))
    order = np.argsort(classes)  # labels are in it, names of columns may not be
    ids = order[np.minimum(np.searchsorted(classes, labels, sorter=order), n - 1)].astype(np.int64)
    ids[~(same & (classes[ids] == labels))] = n
    return ids


def python_value(label: Any) -> Any:
    """Return a label as Python has it, which equals and hashes as labels of all types do."""
    return label.item() if isinstance(label, np.generic) else label


def require_one_kind(name: str, labels: Iterable[Any]) -> None:
    """Raise ValueError for text beside something else, and for bool beside numbers."""
    # of which NumPy would make one kind: text, or 1 of True
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


def _of_values(name: str, values: Sequence[Any], whole: bool, as_objects: bool) -> NDArray[Any]:
    """Return the labels of a list, text `as_objects` or if it can be as NumPy has it."""
    require_one_kind(name, values)
    kinds = set(map(type, values))
    if any(kind.__name__ in _MISSING for kind in kinds):
        index = next(i for i, v in enumerate(values) if type(v).__name__ in _MISSING)
        raise ValueError(
            f"`{name}` must hold no missing labels, got {values[index]} at index {index}; leave "
            "out examples without a label, or give each a list of labels."
        )
    if _are(kinds, tuple(_TEXT)):
        return _as_objects(values) if as_objects else _text(values)
    if _are(kinds, _BOOLS):
        return np.array(values, dtype=bool)
    if _are(kinds, _INTEGERS):
        array = np.asarray(values)
        exact = array.dtype.kind in "iu" and not as_objects
        return array if exact else exact_integers(values)
    if _are(kinds, _INTEGERS + _FLOATS):
        return _numbers(name, values, whole)
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind not in "Mm" and len(values):
        strange = (v for v in values if not isinstance(v, _INTEGERS + _FLOATS))
        _refuse(name, next(strange, values[0]))
    labels: NDArray[Any] = column_or_1d(array)  # dates, or nothing
    return labels


def _numbers(name: str, values: Sequence[Any], whole: bool) -> NDArray[Any]:
    """Return labels of which some are floats."""
    floats = np.asarray([value for value in values if isinstance(value, _FLOATS)])
    _checked_floats(name, floats, whole)
    if len(floats) == len(values):
        return floats
    if (floats != np.trunc(floats)).any():
        return np.asarray(values, np.float64)
    exact = exact_integers(values)
    if exact.dtype != object and -_TOLD_APART <= exact.min() and exact.max() <= _TOLD_APART:
        return exact.astype(np.float64)
    return exact


def _checked_floats(name: str, labels: NDArray[Any], whole: bool) -> NDArray[Any]:
    """Return floats if they are finite, and whole numbers where these are wanted."""
    check_array(labels, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name=name)
    broken = labels != np.trunc(labels)
    if whole and broken.any():
        _refuse(name, labels[broken][0])
    return labels


def _refuse(name: str, label: Any) -> NoReturn:
    kind = "continuous" if isinstance(label, _FLOATS) else type(label).__name__
    # the first words are scikit-learn's, by which its checks know the error
    raise ValueError(
        f"Unknown label type: {kind}. `{name}` must hold text, whole numbers or booleans, got "
        f"{short_repr(label)}; convert the labels."
    )


def _text(values: Sequence[Any]) -> NDArray[Any]:
    longest = max(map(len, values), default=0)
    # a null at the end is what NumPy pads by, so that "a" and "a\0" would be one label
    end = values[0][:0] + ("\0" if isinstance(values[0], str) else b"\0")
    if longest > LONGEST_PADDED or any(value.endswith(end) for value in values):
        return _as_objects(values)
    return np.array(values)


def _unpadded(labels: NDArray[Any]) -> NDArray[Any]:
    """Return text as objects if it is so long that padding predictions would cost much."""
    size = np.dtype(f"{labels.dtype.kind}1").itemsize
    if labels.dtype.itemsize <= size * LONGEST_PADDED:
        return labels
    return _text(labels.tolist())


def _as_objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _are(kinds: set[type], wanted: tuple[type, ...]) -> bool:
    times = {np.timedelta64}  # an integer by its class
    return bool(kinds) and not kinds & times and all(issubclass(kind, wanted) for kind in kinds)


def _in_type(labels: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return numbers in another type, and where they are what they were."""
    # NumPy would compare int64 with uint64 in float64, in which neighbours beyond 2**53 are equal
    if labels.dtype == dtype:
        return labels, np.ones(len(labels), bool)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = labels.astype(dtype)
        if labels.dtype.kind == "f":
            return converted, converted == labels
        back, same = _in_type(converted, np.dtype(np.int64 if labels.dtype.kind == "i" else "u8"))
        return converted, same & (back == labels)
    limits = np.iinfo(dtype)
    if labels.dtype.kind == "f":
        labels = labels.astype(np.result_type(labels, np.float64))
        # the largest integer is no float, but the one after it is a power of two
        same = (labels >= float(limits.min)) & (labels < float(limits.max + 1))
        same &= labels == np.trunc(labels)
    else:
        labels = labels.astype(np.uint8) if labels.dtype.kind == "b" else labels
        same = (labels >= int(limits.min)) & (labels <= int(limits.max))
    return np.where(same, labels, np.zeros_like(labels)).astype(dtype), same
