"""Checks at the public boundary: every error names the argument, what came and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST_COUNT = 10**15  # float64 still tells m from m - 1
_NO_NUMBERS = (bool, np.bool_, np.timedelta64)  # though the first and the last are of such classes
_INTEGERS = (int, np.integer)
# Characters of a text that NumPy may pad others to, a kilobyte for each: beside one label of 20,000
# characters ten thousand short ones would take 800 MB.
LONGEST_PADDED = 256
_NUMBERS_AT_A_TIME = 1 << 18  # numbers that are looked at
SUM_TOLERANCE = 1e-4  # float32 proposals over many classes sum to one only about this well


def as_real_array(name: str, value: ArrayLike, ndim: tuple[int, ...]) -> FloatArray:
    """Return `value` as a finite float64 array with one of the allowed numbers of dimensions."""
    # bool, unsigned, int, float: neither complex numbers nor text nor dates
    array = as_array(name, value)
    if array.dtype.kind not in "buif":
        raise TypeError(
            f"`{name}` must hold real numbers, got dtype {array.dtype}; "
            "convert it with numpy.asarray(..., dtype=float)."
        )
    if array.ndim not in ndim:
        wanted = " or ".join(str(d) for d in ndim)
        raise ValueError(f"`{name}` must have {wanted} dimension(s), got shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"`{name}` must not be empty, got shape {array.shape}.")
    if array.dtype != np.float64 or not array.flags.c_contiguous:
        with np.errstate(over="ignore"):  # of a wider type, refused next
            array = np.ascontiguousarray(array, dtype=np.float64)
    require_finite(name, array)
    return array


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return an array of any type; ValueError if lists are of different lengths.

    Integers stay integers, of whatever kinds a list of them is, and as objects, as some dataframes
    have them.
    """
    require_plain(name, value)
    if isinstance(value, (list, tuple)) and _has_long_text(value):
        value = np.array(value, dtype=object)  # which callers refuse, as they do short text
    try:
        array = native(np.asarray(value))
    except ValueError as error:
        raise ValueError(f"`{name}` must be a rectangular array of numbers: {error}") from None
    if array.dtype == object or (array.dtype.kind == "f" and isinstance(value, (list, tuple))):
        return _with_exact_integers(value, array)
    return array


def _with_exact_integers(value: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the array of a value, or if it is of integers one of type int64 or uint64."""
    # NumPy makes float64 of np.uint64(1) beside 1, which rounds ids, or would be refused as floats
    first = value
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, float):  # as in most lists, of which no entry has to be looked at then
        return array
    objects = array if array.dtype == object else np.array(value, dtype=object)
    entries = objects.ravel().tolist()
    kinds = set(map(type, entries))
    are_integers = all(issubclass(kind, _INTEGERS) for kind in kinds)
    if not kinds or not are_integers or kinds.intersection(_NO_NUMBERS):
        return array
    exact = exact_integers(entries)
    return array if exact.dtype == object else exact.reshape(array.shape)


def exact_integers(values: Sequence[Any]) -> NDArray[Any]:
    """Return integers of Python or NumPy as int64, else uint64, or as objects beyond both.

    >>> exact_integers([5, np.uint64(2**63 + 1)])
    array([                  5, 9223372036854775809], dtype=uint64)
    """
    numbers = list(map(int, values))
    least = min(numbers, default=0)
    largest = max(numbers, default=0)
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if limits.min <= least and largest <= limits.max:
            return np.array(numbers, dtype)
    return np.array(numbers, dtype=object)


def _has_long_text(values: Sequence[Any]) -> bool:
    """Return whether a list has a text that NumPy would pad all entries to, at a cost."""
    kinds = set(map(type, values))
    if kinds & {list, tuple}:
        return any(_has_long_text(row) for row in values if isinstance(row, (list, tuple)))
    return str in kinds and LONGEST_PADDED < max(
        len(text) for text in values if isinstance(text, str)
    )


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the byte order of this machine, copied if it comes in another."""
    # float32 of another machine is not equal to float32, and no kernel takes it
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def as_type(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of another type; ValueError where a number is not finite in that type."""
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
    """Return `value` as finite rows (N, `dim`) in C order.

    They are of type `dtype`, or where none is given float32 if they were, else float64.
    """
    # float32 stays, at half the memory; all else becomes float64
    if isinstance(value, np.ndarray) and value.dtype.newbyteorder("=") == np.float32:
        require_plain(name, value)
        rows = np.atleast_2d(native(value))
    else:
        rows = np.atleast_2d(as_real_array(name, value, (1, 2)))
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
    if dtype is not None and dtype != rows.dtype:
        return np.ascontiguousarray(as_type(name, rows, dtype))
    rows = np.ascontiguousarray(rows)
    require_finite(name, rows, rows.dtype)
    return rows


def as_ids(
    name: str, value: Any, num_classes: int, batch: int | None = None, *, of: str = "classes"
) -> IntArray:
    """Return class indices as int64: (k,), or (batch, k) where a batch is given.

    `of` says what they are indices of, if not of classes.
    """
    array = as_array(name, value)
    if array.size == 0 and array.ndim == 1:  # a list of nothing has no integers to show
        array = np.empty(0, np.int64)
    _require_integers(name, array, f"{of} are counted from 0")
    if batch is None and array.ndim != 1:
        raise ValueError(f"`{name}` must have shape (k,), got {array.shape}.")
    if batch is not None:
        if array.ndim not in (1, 2) or (array.ndim == 2 and len(array) not in (1, batch)):
            raise ValueError(f"`{name}` must have shape ({batch}, k) or (k,), got {array.shape}.")
        # the two readings differ, and a wrong guess would train without a word
        if array.ndim == 1 and batch > 1 and len(array) == batch:
            raise ValueError(
                f"`{name}` must have shape ({batch}, k), got {array.shape}, which may be one class "
                f"of each context or {batch} of all; write {name}[:, None] or {name}[None]."
            )
        array = np.broadcast_to(array, (batch, array.shape[-1]))
    return _as_classes(name, array, num_classes, of)


def as_class_set(name: str, value: Any, num_classes: int) -> IntArray:
    """Return distinct class indices (k,) as int64, sorted."""
    ids = np.sort(as_ids(name, value, num_classes))
    twice = ids[1:][ids[1:] == ids[:-1]]
    if len(twice):
        raise ValueError(
            f"`{name}` must hold distinct classes, got {twice[0]} twice; take numpy.unique of them."
        )
    return ids


def as_labels(
    name: str, value: Any, num_classes: int, batch_shape: tuple[int, ...], *, of: str = "classes"
) -> IntArray:
    """Return labels as int64 of shape `batch_shape`, each in ``range(num_classes)``.

    `of` says what they are, if not classes.
    """
    array = as_array(name, value)
    _require_integers(name, array, f"{of} are counted from 0")
    if array.shape not in (batch_shape, ()):
        raise ValueError(f"`{name}` must have shape {batch_shape}, got {array.shape}.")
    array = array if array.shape == batch_shape else np.broadcast_to(array, batch_shape)
    return _as_classes(name, array, num_classes, of)


def _require_integers(name: str, array: NDArray[Any], remedy: str) -> None:
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold integers, got {array.dtype}; {remedy}.")


def _as_classes(name: str, array: NDArray[Any], num_classes: int, of: str = "classes") -> IntArray:
    """Return integers as int64, each in ``range(num_classes)``."""
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        bad = array[(array < 0) | (array >= num_classes)].flat[0]
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} {of}, got {bad}."
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def require_plain(name: str, value: Any) -> None:
    """Raise for an array on a GPU, and for one of whose entries some are masked."""
    if type(value) is np.ndarray:
        return
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"`{name}` must be a plain array, got a masked array, whose mask would be ignored; "
            "leave out what is masked, or fill it with numpy.ma.filled."
        )
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__cuda_ndarray__"):
        raise TypeError(
            f"`{name}` must be in the host's memory here, got an array on a GPU; copy it with "
            "samplesoft.to_host, or work with device='cuda'."
        )


def require_finite(name: str, array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> None:
    """Raise ValueError at the first entry that is not finite, after a conversion to `dtype`."""
    if not is_finite(array):
        # the first one is enough to find the cause
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        wanted = "finite" if dtype is None else f"finite in {dtype}"
        raise ValueError(
            f"`{name}` must be {wanted}, got {array[tuple(where)]} at index {where}; "
            "remove or replace NaN and infinite entries first."
        )


def is_finite(array: NDArray[Any]) -> bool:
    """Tell whether all numbers are finite, without an array of as many flags."""
    if array.size <= _NUMBERS_AT_A_TIME:
        return bool(np.isfinite(array).all())
    rows = max(1, _NUMBERS_AT_A_TIME // (array.size // len(array)))
    starts = range(0, len(array), rows)
    return all(np.isfinite(array[start : start + rows]).all() for start in starts)


def as_proposal(name: str, value: ArrayLike, num_classes: int) -> FloatArray:
    """Return proposal probabilities as float64 (n,) or (B, n): nonnegative, each row sums to 1."""
    array = as_probabilities(name, value, num_classes, "divide it by its sum")
    # the worst row is named, of a batch that may have thousands
    totals = array.sum(axis=-1)
    worst = float(totals if array.ndim == 1 else totals[np.argmax(np.abs(totals - 1.0))])
    if abs(worst - 1.0) > SUM_TOLERANCE:
        raise ValueError(
            f"`{name}` must sum to 1 over the classes, got {worst:.6g}; divide it by its sum."
        )
    return array


def as_probabilities(
    name: str, value: ArrayLike, num_classes: int, remedy: str = "take chances of inclusion"
) -> FloatArray:
    """Return float64 (n,) or (B, n) with entries in [0, 1]; no condition on their sum."""
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
    """Return an array, or a copy of one that only can be read, as one mapped from a file."""
    return array if array.flags.writeable else np.array(array)  # and no numpy.memmap


def copy_read_only_arrays(arrays: dict[str, Any]) -> None:
    """Put copies in place of those arrays of a dict that only can be read, before they change.

    A model that `joblib.load` has mapped from a file predicts from there, and is copied once it is
    trained. Arrays on a GPU stay as they are.
    """
    for name in arrays:
        array = arrays[name]
        if type(array) is np.ndarray and array.flags.writeable:
            continue  # as in most steps
        if isinstance(array, np.ndarray):
            arrays[name] = writable(array)


def as_count(name: str, value: Any, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`."""
    if type(value) is int and minimum <= value <= LARGEST_COUNT:  # as in most steps
        return value
    # True is an int to Python, and here nearly always a slip
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, (int, np.integer)):
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
    return _as_number(name, value, "finite and greater than 0", lambda x: 0.0 < x < np.inf)


def as_nonnegative(name: str, value: Any, below: float = np.inf) -> float:
    """Return `value` as a float of at least 0 and less than `below`."""
    wanted = f"at least 0 and less than {below}"
    return _as_number(name, value, wanted, lambda x: 0.0 <= x < below)


def as_share(name: str, value: Any) -> float:
    """Return `value` as a float from 0 to 1."""
    return _as_number(name, value, "from 0 to 1", lambda x: 0.0 <= x <= 1.0)


def as_finite(name: str, value: Any) -> float:
    """Return `value` as a finite float."""
    return _as_number(name, value, "finite", np.isfinite)


def _as_number(name: str, value: Any, wanted: str, holds: Callable[[float], Any]) -> float:
    """Return `value` as a float that is as `wanted`; it is infinite beyond the range of float64."""
    numbers = (int, float, np.integer, np.floating)
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, numbers):
        raise TypeError(
            f"`{name}` must be a number, got {type(value).__name__} {short_repr(value)}."
        )
    try:
        with np.errstate(over="ignore"):  # of a numpy.longdouble
            number = float(value)
    except OverflowError:
        number = np.inf if value > 0 else -np.inf
    if not holds(number):
        raise ValueError(f"`{name}` must be {wanted}, got {short_repr(value)}.")
    return number


def short_repr(value: Any) -> str:
    """Return a value for a message, shortened; Python prints no integers of many digits."""
    try:
        text = str(value) if isinstance(value, (int, float, np.number)) else repr(value)
    except ValueError:
        return f"an integer of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_named_arrays(name: str, value: Any) -> dict[str, Any]:
    """Return a mapping of names to arrays as a dict, without a look at the arrays."""
    require_mapping(name, value)
    return dict(value)


def as_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, and not merely true or false."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {short_repr(value)}.")
    return bool(value)


def require_instance(name: str, value: Any, kind: type) -> None:
    """Raise TypeError if `value` is not of a class of the library."""
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be {kind.__name__}, got {type(value).__name__}; write "
            f"{kind.__name__}(...)."
        )


def require_mapping(name: str, value: Any) -> None:
    """Raise TypeError if `value` is not a mapping whose keys are names."""
    if type(value) is dict and {*map(type, value)} <= {str}:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(
            f"`{name}` must be a mapping from names, such as a dict, got {type(value).__name__}."
        )


def require_well_formed(name: str, matrix: Any) -> None:
    """Raise for a scipy CSR matrix whose indices must not be followed, which scipy lets pass."""
    try:
        if (np.diff(matrix.indptr) < 0).any():  # scipy does not look where the last one is 0
            starts = short_repr(matrix.indptr.tolist())
            raise ValueError(f"row starts must not fall, got {starts}")
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be a well-formed CSR matrix, counted from 0: {error}."
        ) from None


def as_csr(name: str, value: Any) -> Any:
    """Return a scipy sparse matrix of real numbers as a new, well-formed CSR array of float64.

    A sparse array of one dimension is one row. Repeated entries add up in float64; those of a bool
    matrix are one entry, of 1.
    """
    from scipy import sparse  # here, to keep the import fast

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
    # an index out of range would read foreign memory in the conversion
    if hasattr(value, "check_format"):  # before a conversion, which follows the indices
        require_well_formed(name, value)
    rows = in_two_dimensions(value)
    with np.errstate(over="ignore"):  # of a wider type
        wide = in_wide_type(rows)
        if wide.dtype == np.float32:
            wide = wide.astype(np.float64)
        matrix = sparse.csr_array(wide, dtype=np.float64, copy=wide is rows)
    require_well_formed(name, matrix)
    return matrix


def in_two_dimensions(value: Any) -> Any:
    """Return a scipy sparse array of one dimension as one row; others as they are."""
    # since SciPy 1.15 one row of a sparse array has one dimension, as of an array of NumPy
    return value.reshape(1, -1) if value.ndim == 1 else value


def in_wide_type(value: Any) -> Any:
    """Return a scipy sparse matrix of integers or bool as one of float64; others as they are.

    Repeated entries add up; those of a bool matrix are one entry, of 1. SciPy adds them up when it
    converts to CSR, in the type of the matrix: 256 entries of 1 in uint8 would be 0.
    """
    from scipy import sparse

    if value.dtype.kind not in "biu":
        return value
    wide = value.astype(np.float64)
    if value.dtype.kind == "b":  # True or True is True
        wide = sparse.csr_array(wide)
        wide.sum_duplicates()
        wide.data = (wide.data != 0.0).astype(np.float64)
    return wide


def without_repeats(matrix: Any) -> Any:
    """Return a CSR matrix whose repeated entries are added up; one without any as it is."""
    if matrix.has_canonical_format:
        return matrix
    added = matrix.copy()
    added.sum_duplicates()
    # it sorts as well, which without need would change the last bits of sums over a row
    return added if added.nnz < matrix.nnz else matrix


def scale_by_power_of_two(weights: FloatArray) -> FloatArray:
    """Return weights of which ratios count alone, with the same digits and a sum that is finite."""
    # a power of two changes no digit
    scaled: FloatArray = np.ldexp(weights, -np.frexp(np.abs(weights).max())[1])
    return scaled


def as_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
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
    """Return float64 (n,) of class counts in any unit, or of weights: nonnegative, not all 0."""
    array = as_real_array(name, value, (1,))
    if num_classes not in (None, len(array)):
        raise ValueError(
            f"`{name}` must have shape ({num_classes},), one for each class, got {array.shape}."
        )
    if array.min() < 0.0 or not array.any():
        raise ValueError(
            f"`{name}` must be at least 0 and not all 0, got a least of {array.min()} "
            f"and a greatest of {array.max()}; {remedy}."
        )
    return array
