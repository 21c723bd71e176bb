"""Checks and conversions of public arguments.

Every error names the argument, what was expected, the value that was passed, and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST_COUNT = 10**15  # larger counts are rejected; float64 is exact for all counts up to this
# types that are not numbers: subclasses of integer types, and np.bool_
_NON_NUMBERS = (bool, np.bool_, np.timedelta64)
_INTEGERS = (int, np.integer)
# Texts with more characters than this are kept as objects. NumPy would pad all texts to the longest
# one: with 4 bytes per character, one label of 20,000 characters among ten thousand short labels
# would take 800 MB.
LONGEST_PADDED = 256
_ENTRIES_AT_A_TIME = 1 << 18  # number of entries that `is_finite` checks at a time
# Largest difference from 1 that is allowed for a sum of probabilities. Proposals in float32 over
# many classes sum to 1 only to about this accuracy.
SUM_TOLERANCE = 1e-4


def as_real_array(name: str, value: ArrayLike, ndim: tuple[int, ...]) -> FloatArray:
    """Return `value` as a finite, nonempty float64 array.

    Raises ValueError unless its number of dimensions is in `ndim`.
    """
    array = as_array(name, value)

    # bool, unsigned, int and float, but not complex numbers, text or dates
    if array.dtype.kind not in "buif":
        raise TypeError(
            f"`{name}` must hold real numbers, got dtype {array.dtype}; "
            "convert it with numpy.asarray(..., dtype=float)."
        )
    if array.ndim not in ndim:
        allowed = " or ".join(str(d) for d in ndim)
        raise ValueError(f"`{name}` must have {allowed} dimension(s), got shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"`{name}` must not be empty, got shape {array.shape}.")

    if array.dtype != np.float64 or not array.flags.c_contiguous:
        # values of a wider type may overflow to infinity, which `require_finite` rejects
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=np.float64)
    require_finite(name, array)
    return array


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return `value` as an array of any dtype; raise ValueError for ragged lists.

    Integers stay exact, even in lists of several integer types, and in object arrays, such as some
    dataframes return.
    """
    require_host_array(name, value)
    if isinstance(value, (list, tuple)) and _has_long_text(value):
        # texts are not padded in object arrays, which callers that need numbers reject like text
        value = np.array(value, dtype=object)

    try:
        array = native_byte_order(np.asarray(value))
    except ValueError as error:
        raise ValueError(f"`{name}` must be a rectangular array of numbers: {error}") from None
    if array.dtype == object or (array.dtype.kind == "f" and isinstance(value, (list, tuple))):
        return _with_exact_integers(value, array)
    return array


def _with_exact_integers(value: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the integers in `value` as int64 or uint64, or `array` if some are not integers.

    `array` is the array that NumPy makes of `value`. For a list of np.uint64 and int its dtype is
    float64, which rounds large integers. Integers beyond uint64 also give `array`.
    """
    first_entry = value
    while isinstance(first_entry, (list, tuple)) and first_entry:
        first_entry = first_entry[0]

    if isinstance(first_entry, float):  # the usual case, for which no other entry is inspected
        return array

    objects = array if array.dtype == object else np.array(value, dtype=object)
    entries = objects.ravel().tolist()
    kinds = set(map(type, entries))
    are_integers = all(issubclass(kind, _INTEGERS) for kind in kinds)
    if not kinds or not are_integers or kinds.intersection(_NON_NUMBERS):
        return array
    exact = exact_integers(entries)

    return array if exact.dtype == object else exact.reshape(array.shape)


def exact_integers(values: Sequence[Any]) -> NDArray[Any]:
    """Return Python or NumPy integers (k,) as int64 if they fit, else as uint64, else as objects.

    >>> exact_integers([5, np.uint64(2**63 + 1)])
    array([                  5, 9223372036854775809], dtype=uint64)
    """
    integers = list(map(int, values))
    smallest = min(integers, default=0)
    largest = max(integers, default=0)
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if limits.min <= smallest and largest <= limits.max:
            return np.array(integers, dtype)
    return np.array(integers, dtype=object)


def _has_long_text(values: Sequence[Any]) -> bool:
    """Return whether a nested list contains text of more than `LONGEST_PADDED` characters."""
    kinds = set(map(type, values))
    if kinds & {list, tuple}:
        return any(_has_long_text(row) for row in values if isinstance(row, (list, tuple)))
    return str in kinds and LONGEST_PADDED < max(
        len(text) for text in values if isinstance(text, str)
    )


def native_byte_order(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in native byte order, copied only if necessary."""
    # kernels reject arrays in another byte order, whose dtypes also differ from np.float32
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def convert_finite(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array` converted to `dtype`; raise ValueError for values that overflow in it."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    require_finite(name, converted, dtype)
    return converted


def as_float_rows(
    name: str,
    value: ArrayLike,
    dim: int | None = None,
    dtype: np.dtype[Any] | None = None,
) -> NDArray[Any]:
    """Return `value` as an array of finite rows (N, dim) in C order.

    If `dtype` is None, float32 stays float32 and other types become float64. If `dim` is None, rows
    may have any length. A one-dimensional array becomes one row.
    """
    if isinstance(value, np.ndarray) and value.dtype.newbyteorder("=") == np.float32:
        require_host_array(name, value)
        rows = np.atleast_2d(native_byte_order(value))
    else:
        rows = np.atleast_2d(as_real_array(name, value, (1, 2)))

    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")

    if dtype is not None and dtype != rows.dtype:
        return np.ascontiguousarray(convert_finite(name, rows, dtype))
    rows = np.ascontiguousarray(rows)
    require_finite(name, rows, rows.dtype)
    return rows


def as_ids(
    name: str, value: Any, num_classes: int, batch: int | None = None, *, of: str = "classes"
) -> IntArray:
    """Return class indices as int64, with the shape (k,), or (batch, k) if `batch` is not None.

    Raises ValueError unless each is in ``range(num_classes)``. If `batch` is not None, an array
    (k,) or (1, k) is repeated for each context. `of` names the indexed objects in errors.
    """
    array = as_array(name, value)
    if array.size == 0 and array.ndim == 1:  # NumPy converts an empty list to float64
        array = np.empty(0, np.int64)
    _require_integers(name, array, f"{of} are counted from 0")

    if batch is None and array.ndim != 1:
        raise ValueError(f"`{name}` must have shape (k,), got {array.shape}.")
    if batch is not None:
        if array.ndim not in (1, 2) or (array.ndim == 2 and len(array) not in (1, batch)):
            raise ValueError(f"`{name}` must have shape ({batch}, k) or (k,), got {array.shape}.")

        # The shape (batch,) is ambiguous, and a wrong guess would silently train on other classes.
        if array.ndim == 1 and batch > 1 and len(array) == batch:
            raise ValueError(
                f"`{name}` must have shape ({batch}, k), got {array.shape}, which may be one class "
                f"of each context or {batch} of all; write {name}[:, None] or {name}[None]."
            )
        array = np.broadcast_to(array, (batch, array.shape[-1]))

    return _as_class_indices(name, array, num_classes, of)


def as_class_set(name: str, value: Any, num_classes: int) -> IntArray:
    """Return class indices (k,) as int64, sorted; raise ValueError if one is repeated."""
    ids = np.sort(as_ids(name, value, num_classes))
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if len(repeated):
        raise ValueError(
            f"`{name}` must hold distinct classes, got {repeated[0]} twice; "
            "use numpy.unique of them."
        )
    return ids


def as_labels(
    name: str, value: Any, num_classes: int, batch_shape: tuple[int, ...], *, of: str = "classes"
) -> IntArray:
    """Return labels as int64 of shape `batch_shape`, each in ``range(num_classes)``.

    A single label is repeated for the whole batch. `of` names the possible labels in errors.
    """
    array = as_array(name, value)
    _require_integers(name, array, f"{of} are counted from 0")
    if array.shape not in (batch_shape, ()):
        raise ValueError(f"`{name}` must have shape {batch_shape}, got {array.shape}.")
    array = array if array.shape == batch_shape else np.broadcast_to(array, batch_shape)
    return _as_class_indices(name, array, num_classes, of)


def _require_integers(name: str, array: NDArray[Any], remedy: str) -> None:
    """Raise TypeError, with a remedy, unless the dtype of an array is an integer type."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold integers, got {array.dtype}; {remedy}.")


def _as_class_indices(
    name: str, array: NDArray[Any], num_classes: int, of: str = "classes"
) -> IntArray:
    """Return class indices as int64; raise ValueError unless all are in ``range(num_classes)``."""
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        bad = array[(array < 0) | (array >= num_classes)].flat[0]
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} {of}, got {bad}."
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def require_host_array(name: str, value: Any) -> None:
    """Raise TypeError for masked arrays and for arrays on a GPU."""
    if type(value) is np.ndarray:
        return

    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"`{name}` must be a plain array, got a masked array, whose mask would be ignored; "
            "leave out masked entries, or fill them with numpy.ma.filled."
        )

    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__cuda_ndarray__"):
        raise TypeError(
            f"`{name}` must be in the host's memory here, got an array on a GPU; copy it with "
            "samplesoft.to_host, or work with device='cuda'."
        )


def require_finite(name: str, array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> None:
    """Raise ValueError if an entry is not finite; the error names the first such entry.

    If `dtype` is not None, the error names it as the dtype to which the array was converted.
    """
    if not is_finite(array):
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        expected = "finite" if dtype is None else f"finite in {dtype}"
        raise ValueError(
            f"`{name}` must be {expected}, got {array[tuple(index)]} at index {index}; "
            "remove or replace NaN and infinite entries first."
        )


def is_finite(array: NDArray[Any]) -> bool:
    """Return whether all entries are finite; a large array is checked in blocks to save memory."""
    if array.size <= _ENTRIES_AT_A_TIME:
        return bool(np.isfinite(array).all())
    rows = max(1, _ENTRIES_AT_A_TIME // (array.size // len(array)))
    starts = range(0, len(array), rows)
    return all(np.isfinite(array[start : start + rows]).all() for start in starts)


def as_proposal(name: str, value: ArrayLike, num_classes: int) -> FloatArray:
    """Return proposal probabilities as a float64 array, shape (n,) or (B, n).

    Raises ValueError unless entries are nonnegative and each row sums to 1 to within 1e-4.
    """
    array = as_probabilities(name, value, num_classes, "divide it by its sum")

    # the error reports the sum of the row that deviates most
    totals = array.sum(axis=-1)
    worst = float(totals if array.ndim == 1 else totals[np.argmax(np.abs(totals - 1.0))])
    if abs(worst - 1.0) > SUM_TOLERANCE:
        raise ValueError(
            f"`{name}` must sum to 1 over the classes, got {worst:.6g}; divide it by its sum."
        )

    return array


def as_probabilities(
    name: str, value: ArrayLike, num_classes: int, remedy: str = "use inclusion probabilities"
) -> FloatArray:
    """Return probabilities in [0, 1] as a float64 array, shape (n,) or (B, n).

    The sum of a row is not checked. `remedy` is the advice in the error for entries above 1.
    """
    array = as_real_array(name, value, (1, 2))
    if array.shape[-1] != num_classes:
        raise ValueError(
            f"`{name}` must cover all {num_classes} classes in its last axis, "
            f"got shape {array.shape}."
        )

    if array.min() < 0.0:
        raise ValueError(f"`{name}` must hold probabilities, got {array.min()} < 0.")
    if array.max() > 1.0 + SUM_TOLERANCE:
        raise ValueError(f"`{name}` must hold probabilities, got {array.max()} > 1; {remedy}.")
    return array


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array`, or a writable copy in memory if it is read-only, as a mapped file may be."""
    return array if array.flags.writeable else np.array(array)  # np.array copies a memmap to memory


def make_arrays_writable(arrays: dict[str, Any]) -> None:
    """Replace the read-only NumPy arrays in the dict `arrays` by writable copies, in place.

    Call this before arrays are updated. A model that `joblib.load` has mapped from a file predicts
    from the mapped arrays, without a copy. Arrays on a GPU are not changed.
    """
    for name in arrays:
        array = arrays[name]
        if type(array) is np.ndarray and array.flags.writeable:
            continue  # the usual case
        if isinstance(array, np.ndarray):
            arrays[name] = writable(array)


def as_count(name: str, value: Any, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`."""
    if type(value) is int and minimum <= value <= LARGEST_COUNT:  # the usual case, checked first
        return value

    # reject True and False: they are ints in Python, but as counts they are almost always mistakes
    if isinstance(value, _NON_NUMBERS) or not isinstance(value, (int, np.integer)):
        raise TypeError(
            f"`{name}` must be an integer, got {type(value).__name__} {short_repr(value)}."
        )
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {short_repr(value)}.")
    if value > LARGEST_COUNT:
        raise ValueError(f"`{name}` must be at most {LARGEST_COUNT:.0e}, got {short_repr(value)}.")
    return int(value)


def as_positive(name: str, value: Any) -> float:
    """Return `value` as a finite float greater than 0."""
    return _as_float(name, value, "finite and greater than 0", lambda x: 0.0 < x < np.inf)


def as_nonnegative(name: str, value: Any, below: float = np.inf) -> float:
    """Return `value` as a float of at least 0 and less than `below`."""
    expected = f"at least 0 and less than {below}"
    return _as_float(name, value, expected, lambda x: 0.0 <= x < below)


def as_fraction(name: str, value: Any) -> float:
    """Return `value` as a float from 0 to 1."""
    return _as_float(name, value, "from 0 to 1", lambda x: 0.0 <= x <= 1.0)


def as_finite(name: str, value: Any) -> float:
    """Return `value` as a finite float."""
    return _as_float(name, value, "finite", np.isfinite)


def _as_float(name: str, value: Any, expected: str, is_valid: Callable[[float], Any]) -> float:
    """Return `value` as a float; raise ValueError unless ``is_valid(number)`` is true.

    `expected` describes valid numbers in the error. Values beyond the range of float64 become
    infinite before the check.
    """
    number_types = (int, float, np.integer, np.floating)
    if isinstance(value, _NON_NUMBERS) or not isinstance(value, number_types):
        raise TypeError(
            f"`{name}` must be a number, got {type(value).__name__} {short_repr(value)}."
        )

    try:
        with np.errstate(over="ignore"):  # a numpy.longdouble may overflow
            number = float(value)
    except OverflowError:
        number = np.inf if value > 0 else -np.inf

    if not is_valid(number):
        raise ValueError(f"`{name}` must be {expected}, got {short_repr(value)}.")
    return number


def short_repr(value: Any) -> str:
    """Return a value as text of at most 60 characters, for error messages.

    For an integer of thousands of digits, for which Python raises an error, the text tells its
    number of bits.
    """
    try:
        text = str(value) if isinstance(value, (int, float, np.number)) else repr(value)
    except ValueError:
        return f"an integer of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_array_dict(name: str, value: Any) -> dict[str, Any]:
    """Return a mapping from names to arrays as a dict; the arrays are not checked."""
    require_mapping(name, value)
    return dict(value)


def as_flag(name: str, value: Any) -> bool:
    """Return `value` as a bool; raise TypeError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {short_repr(value)}.")
    return bool(value)


def require_instance(name: str, value: Any, kind: type) -> None:
    """Raise TypeError if `value` is not an instance of `kind`, a class of this package."""
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be {kind.__name__}, got {type(value).__name__}; write "
            f"{kind.__name__}(...)."
        )


def require_mapping(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is a mapping whose keys are strings."""
    if type(value) is dict and {*map(type, value)} <= {str}:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(
            f"`{name}` must be a mapping from names, such as a dict, got {type(value).__name__}."
        )


def require_well_formed(name: str, matrix: Any) -> None:
    """Raise ValueError if a scipy CSR matrix has invalid indices or decreasing row offsets.

    SciPy does not check them when a matrix is made.
    """
    try:
        if (np.diff(matrix.indptr) < 0).any():  # scipy skips this check if the last offset is 0
            indptr = short_repr(matrix.indptr.tolist())
            raise ValueError(f"row starts must not fall, got {indptr}")
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be a well-formed CSR matrix, counted from 0: {error}."
        ) from None


def as_csr(name: str, value: Any) -> Any:
    """Return a scipy sparse matrix of real numbers as a new CSR array of float64.

    A one-dimensional sparse array becomes one row. Repeated entries are added in float64; repeated
    entries of a bool matrix become a single 1. Raises ValueError for invalid indices.
    """
    from scipy import sparse  # not at the top, because the import is slow

    is_sparse: bool = sparse.issparse(value)
    if (
        not is_sparse
        or value.ndim not in (1, 2)
        or value.dtype.kind not in "buif"
        or value.dtype == "f2"
    ):
        raise TypeError(
            f"`{name}` must be a scipy.sparse matrix of real numbers, but not of float16, got "
            f"{type(value).__name__} {short_repr(value)}; make one with scipy.sparse.csr_array."
        )

    # check first, because an index out of range would read other memory during the conversion
    if hasattr(value, "check_format"):
        require_well_formed(name, value)

    rows = as_two_dimensional(value)
    with np.errstate(over="ignore"):  # values of a wider type may overflow
        wide = integers_to_float64(rows)
        if wide.dtype == np.float32:
            wide = wide.astype(np.float64)
        matrix = sparse.csr_array(wide, dtype=np.float64, copy=wide is rows)

    require_well_formed(name, matrix)
    return matrix


def as_two_dimensional(value: Any) -> Any:
    """Return a one-dimensional scipy sparse array as one row; return other matrices unchanged."""
    # since SciPy 1.15, one row of a sparse array has one dimension, as in NumPy
    return value.reshape(1, -1) if value.ndim == 1 else value


def integers_to_float64(value: Any) -> Any:
    """Return a scipy sparse matrix of integers or bool as float64; return other dtypes unchanged.

    When SciPy converts a matrix to CSR, it adds repeated entries in the dtype of the matrix, so
    that 256 ones in uint8 would sum to 0. Repeated entries of a bool matrix become a single 1.
    """
    from scipy import sparse

    if value.dtype.kind not in "biu":
        return value

    wide = value.astype(np.float64)
    if value.dtype.kind == "b":  # repeated entries become a single 1
        wide = sparse.csr_array(wide)
        wide.sum_duplicates()
        wide.data = (wide.data != 0.0).astype(np.float64)
    return wide


def sum_repeated_entries(matrix: Any) -> Any:
    """Return a CSR matrix in which repeated entries are added; the same matrix if it has none."""
    if matrix.has_canonical_format:
        return matrix
    added = matrix.copy()
    added.sum_duplicates()
    # `sum_duplicates` also sorts the entries, which would change the last bits of sums over a row
    return added if added.nnz < matrix.nnz else matrix


def scale_by_power_of_two(weights: FloatArray) -> FloatArray:
    """Return weights, divided by the power of two for which the largest magnitude is in [0.5, 1).

    Use it for weights of which only the ratios matter. The sum of the result cannot overflow, and
    dividing by a power of two changes no digit.
    """
    scaled: FloatArray = np.ldexp(weights, -np.frexp(np.abs(weights).max())[1])
    return scaled


def as_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value`; raise ValueError unless it is one of the strings `choices`."""
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"`{name}` must be one of {', '.join(names)}; got {short_repr(value)}.")
    return value


def as_counts(
    name: str,
    value: ArrayLike,
    num_classes: int | None = None,
    remedy: str = "count the classes again",
) -> FloatArray:
    """Return class counts or weights as a float64 array (n,).

    Raises ValueError, with a remedy, unless they are nonnegative and not all 0.
    """
    array = as_real_array(name, value, (1,))

    if num_classes not in (None, len(array)):
        raise ValueError(
            f"`{name}` must have shape ({num_classes},), one for each class, got {array.shape}."
        )

    if array.min() < 0.0 or not array.any():
        raise ValueError(
            f"`{name}` must be at least 0 and not all 0, got a minimum of {array.min()} "
            f"and a maximum of {array.max()}; {remedy}."
        )
    return array
