"""Reader of the text format of the Extreme Classification Repository."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft._validation import short_repr
from samplesoft.data.files import (
    MAX_LINE_CHARACTERS,
    MalformedLineError,
    open_lines,
    parse_whole_number,
)

# end of error messages about a line
_REMEDY = "; the format is that of the extreme classification repository"
_MAX_SIZE = 10**12  # max number of examples, features or labels
_MAX_FLOAT32 = 3.4028235e38
_INDEX_PATTERN = "[0-9]{1,18}"  # with at most 18 digits, numbers fit in 64 bits
# Values are printable ASCII characters except colons. Possessive quantifiers (``*+``, ``++``)
# prevent backtracking, which would need much memory for long lines.
_ENTRIES_PATTERN = re.compile(rf"(?:[ \t]++{_INDEX_PATTERN}+:[!-9;-~]++)*+[ \t]*+")
_LABELS_PATTERN = re.compile(rf"{_INDEX_PATTERN}(?:,{_INDEX_PATTERN})*+")


class SparseExamples(NamedTuple):
    """Sparse inputs of N examples, and their labels.

    Parameters
    ----------
    inputs : scipy.sparse.csr_array of float32, shape (N, v)
        Features.
    labels : scipy.sparse.csr_array of float64, shape (N, n)
        1 for each label of an example; rows may be empty.
    """

    inputs: sparse.csr_array
    labels: sparse.csr_array


def load_xml_repository(
    path: str | Path, *, longest_line: int = MAX_LINE_CHARACTERS
) -> SparseExamples:
    r"""Return the examples of a file in the format of the extreme classification repository.

    The first line holds the numbers of examples, features and labels. Each other line is an
    example, ``label,label,... feature:value feature:value ...``, with indices from 0. The line of
    an example without labels starts with a space. Data sets are published at
    http://manikvarma.org/downloads/XC/XMLRepository.html.

    Parameters
    ----------
    path : str or Path
        The file; ``.gz``, ``.xz`` and ``.bz2`` are unpacked.
    longest_line : int
        Maximum number of characters in a line.

    Returns
    -------
    SparseExamples
        Inputs and labels.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the examples do not fit in memory.
    ValueError
        If a line is malformed or too long; the message gives the line number.

    References
    ----------
    K. Bhatia et al., "The extreme classification repository: multi-label datasets and code", 2016.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.txt")
    ...     _ = path.write_text("2 3 4\n0,3 0:1.5 2:1\n 1:2\n")
    ...     inputs, labels = load_xml_repository(path)
    >>> inputs.toarray().tolist(), labels.toarray().tolist()
    ([[1.5, 0.0, 1.0], [0.0, 2.0, 0.0]], [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    # arrays take 4 or 8 bytes for each value, lists several times as much
    features = array("q")
    values = array("f")
    labels = array("q")
    feature_offsets = array("q", [0])
    label_offsets = array("q", [0])

    with open_lines(path, longest_line, _REMEDY) as lines:
        num_examples, num_features, num_labels = _parse_header(next(lines, ""))
        for line in lines:
            if len(feature_offsets) > num_examples:
                if line.strip():
                    raise MalformedLineError(f"got more points than the {num_examples} of line 1")
                continue

            label_words, entries = _labels_and_entries(line.rstrip("\r\n"))
            labels.extend(_parse_indices("label", label_words, num_labels))
            feature_words = [entry.partition(":")[0] for entry in entries]
            features.extend(_parse_indices("feature", feature_words, num_features))
            values.extend(map(_parse_value, entries))
            feature_offsets.append(len(features))
            label_offsets.append(len(labels))

    if len(feature_offsets) <= num_examples:
        raise ValueError(
            f"{str(path)!r} must hold the {num_examples} points of line 1, got "
            f"{len(feature_offsets) - 1}; it may be cut short."
        )

    return SparseExamples(
        _csr_matrix(np.array(values), features, feature_offsets, num_features),
        _csr_matrix(np.ones(len(labels)), labels, label_offsets, num_labels),
    )


def _parse_header(line: str) -> list[int]:
    """Return the numbers of examples, features and labels in the first line of a file."""
    numbers = list(map(parse_whole_number, line.split()))
    valid_numbers = [number for number in numbers if number is not None]
    if len(valid_numbers) != 3 or len(numbers) != 3:
        raise MalformedLineError("got no 'points features labels', three whole numbers")
    if not 1 <= min(valid_numbers) <= max(valid_numbers) <= _MAX_SIZE:
        raise MalformedLineError(
            f"got a number outside 1 to {_MAX_SIZE:,} in {short_repr(line.strip())}"
        )
    return valid_numbers


def _labels_and_entries(line: str) -> tuple[list[str], list[str]]:
    """Return the labels of a line, as text, and its entries ``feature:value``.

    Raises `MalformedLineError` if the line does not have this form.
    """
    label_text = line.partition(" ")[0].partition("\t")[0]
    if ":" in label_text:
        raise MalformedLineError(
            f"got {short_repr(label_text)} for labels; a line without any starts with a space"
        )
    if label_text and not _LABELS_PATTERN.fullmatch(label_text):
        raise MalformedLineError(f"got {short_repr(label_text)} for labels, as in '1,2'")

    # matching all entries at once is fast; only after an error, match word by word
    entry_text = line[len(label_text) :]
    if not _ENTRIES_PATTERN.fullmatch(entry_text):
        words = entry_text.split(" ")
        malformed = next(
            (w for w in words if w and not _ENTRIES_PATTERN.fullmatch(f" {w}")), entry_text.strip()
        )
        raise MalformedLineError(f"got {short_repr(malformed)} for a feature, as in '7:0.5'")

    return label_text.split(",") if label_text else [], entry_text.split()


def _parse_indices(kind: str, words: list[str], stop: int) -> list[int]:
    """Return the indices in `words`, which must be distinct and below `stop`.

    Otherwise raises `MalformedLineError`, in which `kind` says what the indices are.
    """
    indices = list(map(int, words))
    if indices and max(indices) >= stop:
        raise MalformedLineError(f"got {kind} {max(indices)}, and line 1 allows 0 to {stop - 1}")
    if len(set(indices)) < len(indices):
        raise MalformedLineError(f"got {kind} {Counter(indices).most_common(1)[0][0]} twice")
    return indices


def _parse_value(entry: str) -> float:
    """Return the value of an entry ``feature:value``.

    Raises `MalformedLineError` if it is not a number, or not finite in float32.
    """
    try:
        # `float` would accept underscores, as in 1_0
        value = float(entry.partition(":")[2].replace("_", "?"))
    except ValueError:
        raise MalformedLineError(
            f"got {short_repr(entry)} with a value that is no number"
        ) from None

    if not abs(value) <= _MAX_FLOAT32:  # true for NaN as well
        raise MalformedLineError("got a value that is not finite in float32")
    return value


def _csr_matrix(
    values: NDArray[Any], columns: array[int], offsets: array[int], width: int
) -> sparse.csr_array:
    """Return a CSR matrix with `width` columns, whose row i begins at ``offsets[i]``.

    Indices have 32 bits if possible, because some libraries require this.
    """
    index_dtype = np.int32 if max(len(columns), width) <= np.iinfo(np.int32).max else np.int64
    indices = np.array(columns, index_dtype)
    indptr = np.array(offsets, index_dtype)
    return sparse.csr_array((values, indices, indptr), shape=(len(offsets) - 1, width))
