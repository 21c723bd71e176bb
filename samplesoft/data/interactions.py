"""Lists of what users have taken."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from scipy import sparse

from samplesoft._memory import require_bytes
from samplesoft._validation import short_repr
from samplesoft.data.files import LONGEST_LINE, Malformed, open_lines, whole_number

_REMEDY = "; each line is 'user item item ...', of numbers counted from 0"
_LARGEST = 10**9


def load_interactions(path: str | Path, *, longest_line: int = LONGEST_LINE) -> sparse.csr_array:
    r"""Read lines ``user item item ...`` of numbers from 0.

    Gowalla's data [1]_ are such lines.

    Parameters
    ----------
    path : str or Path
        The file; ``.gz``, ``.xz`` and ``.bz2`` are read as they are.
    longest_line : int
        Most characters of a line.

    Returns
    -------
    scipy.sparse.csr_array of float32, shape (users, items)
        1 where a user has taken an item, however often it is listed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If a row for each user up to the largest number would not fit.
    ValueError
        If a line is malformed or too long, with its number.

    References
    ----------
    .. [1] X. He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
       Recommendation", SIGIR 2020; its repository publishes the split.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.txt")
    ...     _ = path.write_text("0 2 1\n2 0\n")
    ...     load_interactions(path).toarray().tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    users = array("q")  # 8 bytes a number, not 28
    items = array("q")
    num_users = 0
    seen: set[int] = set()
    with open_lines(path, longest_line, _REMEDY) as lines:
        for line in lines:
            numbers = list(map(_number, line.split()))
            if not numbers:
                continue
            user, *taken = numbers
            if user in seen:
                raise Malformed(f"got user {user} a second time")
            seen.add(user)
            users.extend([user] * len(taken))
            items.extend(taken)
            num_users = max(num_users, user + 1)
    if not len(items):
        raise ValueError(f"{str(path)!r} must hold lines 'user item item ...', got no item.")
    # a row for each number up to the largest: one user 999,999,999 makes a billion of them
    require_bytes(
        f"the rows of {num_users:,} users, up to the largest number in {str(path)!r},",
        8 * num_users + 32 * len(items),
        "number users and items from 0 without gaps",
    )
    rows, columns = (np.frombuffer(numbers, np.int64) for numbers in (users, items))
    shape = num_users, int(columns.max()) + 1
    matrix = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0  # however often an item was listed
    return matrix


def padded(matrix: sparse.csr_array, shape: tuple[int, ...]) -> sparse.csr_array:
    """Return `matrix` with empty rows and columns added, up to `shape`."""
    found = matrix.copy()
    found.resize(*shape)  # type: ignore[arg-type]
    return found


def _number(word: str) -> int:
    number = whole_number(word)
    if number is None:
        raise Malformed(f"got {short_repr(word)}, which is no number")
    if number > _LARGEST:
        raise Malformed(f"got a number outside 0 to {_LARGEST:,}")
    return number
