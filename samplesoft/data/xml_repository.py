"""Examples in the text format of the extreme classification repository."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft._validation import shown
from samplesoft.data.digits import whole_number
from samplesoft.data.files import LONGEST_LINE, open_lines

_LARGEST = 10**12
_NUMBER = "[0-9]{1,18}"
# values are printed ASCII but for colons; nothing is tried in a second way, which costs memory
_ENTRIES = re.compile(rf"(?:[ \t]++{_NUMBER}+:[!-9;-~]++)*+[ \t]*+")
_LABELS = re.compile(rf"{_NUMBER}(?:,{_NUMBER})*+")


class SparseExamples(NamedTuple):
    """Inputs and their labels.

    Parameters
    ----------
    inputs : scipy.sparse.csr_array of float32, shape (N, v)
        Features.
    labels : scipy.sparse.csr_array of float64, shape (N, n)
        Ones; rows may be empty.
    """

    inputs: sparse.csr_array
    labels: sparse.csr_array


def load_xml_repository(path: str | Path, *, longest_line: int = LONGEST_LINE) -> SparseExamples:
    r"""Read a file of the extreme classification repository.

    The first line is ``points features labels``, each other one ``l,l,l f:v f:v f:v`` with numbers
    from 0; where a point has no label, the line starts with a space. Data sets are published at
    http://manikvarma.org/downloads/XC/XMLRepository.html.

    Parameters
    ----------
    path : str or Path
        The file; ``.gz``, ``.xz`` and ``.bz2`` are read as they are.
    longest_line : int
        Most characters of a line.

    Returns
    -------
    SparseExamples
        Inputs and labels.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the examples would not fit.
    ValueError
        If a line is malformed or too long, with its number.

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
    features, values, labels = array("q"), array("f"), array("q")
    feature_starts, label_starts = array("q", [0]), array("q", [0])
    with open_lines(path, longest_line) as lines:
        num, width, num_labels = _read_header(path, next(lines, ""))
        for line_number, line in enumerate(lines, 2):
            if len(feature_starts) > num:
                if line.strip():
                    raise _malformed(path, line_number, f"more points than the {num} of line 1")
                continue
            names, entries = _split(path, line_number, line.rstrip("\r\n"))
            own = [int(name) for name in names]
            numbers = [int(entry.partition(":")[0]) for entry in entries]
            _check(path, line_number, "label", own, num_labels)
            _check(path, line_number, "feature", numbers, width)
            labels.extend(own)
            features.extend(numbers)
            values.extend(_values(path, line_number, entries))
            feature_starts.append(len(features))
            label_starts.append(len(labels))
    if len(feature_starts) <= num:
        raise ValueError(
            f"{str(path)!r} must hold the {num} points of line 1, got {len(feature_starts) - 1}; "
            "it may be cut short."
        )
    return SparseExamples(
        _matrix(_as_array(values), features, feature_starts, width),
        _matrix(np.ones(len(labels)), labels, label_starts, num_labels),
    )


def _read_header(path: str | Path, line: str) -> tuple[int, int, int]:
    words = line.split()
    num, width, num_labels = map(whole_number, words) if len(words) == 3 else 3 * (None,)
    if num is None or width is None or num_labels is None:
        raise _malformed(path, 1, "no 'points features labels', three whole numbers")
    if not 1 <= min(num, width, num_labels) <= max(num, width, num_labels) <= _LARGEST:
        raise _malformed(path, 1, f"a number outside 1 to {_LARGEST:,} in {shown(line.strip())}")
    return num, width, num_labels


def _split(path: str | Path, line_number: int, line: str) -> tuple[list[str], list[str]]:
    """Return the labels and the entries of a line."""
    head = line.partition(" ")[0].partition("\t")[0]
    if ":" in head:
        raise _malformed(
            path, line_number, f"{shown(head)} for labels; a line without any starts with a space"
        )
    if head and not _LABELS.fullmatch(head):
        raise _malformed(path, line_number, f"{shown(head)} for labels, as in '1,2'")
    rest = line[len(head) :]
    if not _ENTRIES.fullmatch(rest):
        words = rest.split(" ")
        bad = next((w for w in words if w and not _ENTRIES.fullmatch(f" {w}")), rest.strip())
        raise _malformed(path, line_number, f"{shown(bad)} for a feature, as in '7:0.5'")
    return head.split(",") if head else [], rest.split()


def _check(path: str | Path, line_number: int, what: str, numbers: list[int], stop: int) -> None:
    if not numbers:
        return
    if max(numbers) >= stop:
        raise _malformed(
            path, line_number, f"{what} {max(numbers)}, and line 1 allows 0 to {stop - 1}"
        )
    if len(set(numbers)) < len(numbers):
        twice = Counter(numbers).most_common(1)[0][0]
        raise _malformed(path, line_number, f"{what} {twice} twice")


def _values(path: str | Path, line_number: int, entries: list[str]) -> list[float]:
    values = []
    for entry in entries:
        text = entry.partition(":")[2]
        try:
            values.append(float(text.replace("_", "?")))  # Python would allow 1_0
        except ValueError:
            raise _malformed(
                path, line_number, f"{shown(entry)} with a value that is no number"
            ) from None
    if not all(abs(value) <= 3.4028235e38 for value in values):
        raise _malformed(path, line_number, "a value that is not finite in float32")
    return values


def _matrix(
    values: NDArray[Any], columns: array[int], starts: array[int], width: int
) -> sparse.csr_array:
    """Return a matrix whose indices have 32 bits if they can, which some libraries insist on."""
    small = max(len(columns), width) <= np.iinfo(np.int32).max
    indices, indptr = (
        _as_array(part).astype(np.int32 if small else np.int64) for part in (columns, starts)
    )
    return sparse.csr_array((values, indices, indptr), shape=(len(starts) - 1, width))


def _as_array(numbers: array[int] | array[float]) -> NDArray[Any]:
    kind = np.float32 if numbers.typecode == "f" else np.int64
    return np.frombuffer(numbers, kind) if len(numbers) else np.empty(0, kind)


def _malformed(path: str | Path, line_number: int, got: str) -> ValueError:
    return ValueError(
        f"{str(path)!r}, line {line_number}: got {got}; the format is that of the extreme "
        "classification repository."
    )
