"""Reader of interactions: text files with the list of items of each user."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from scipy import sparse

from samplesoft._memory import require_bytes
from samplesoft._validation import short_repr
from samplesoft.data.files import (
    MAX_LINE_CHARACTERS,
    MalformedLineError,
    open_lines,
    parse_whole_number,
)

# end of error messages about a line
_REMEDY = "; each line is 'user item item ...', of numbers counted from 0"
_MAX_ID = 10**9  # max index of a user or item


def load_interactions(
    path: str | Path, *, longest_line: int = MAX_LINE_CHARACTERS
) -> sparse.csr_array:
    r"""Return the user-item matrix of a file of lines ``user item item ...``.

    Users and items are indices from 0. This is the format of the Gowalla data [1]_.

    Parameters
    ----------
    path : str or Path
        The file; ``.gz``, ``.xz`` and ``.bz2`` are unpacked.
    longest_line : int
        Maximum number of characters in a line.

    Returns
    -------
    scipy.sparse.csr_array of float32, shape (users, items)
        1 for each item of a user, even if the file lists the item more than once.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If a row for each user up to the largest index does not fit in memory.
    ValueError
        If a line is malformed or too long; the message gives the line number.

    References
    ----------
    .. [1] X. He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
       Recommendation", SIGIR 2020; its repository publishes the data, split for training and test.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.txt")
    ...     _ = path.write_text("0 2 1\n2 0\n")
    ...     load_interactions(path).toarray().tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    # an array takes 8 bytes for each value, a list about 36
    users = array("q")
    items = array("q")
    num_users = 0
    seen: set[int] = set()

    with open_lines(path, longest_line, _REMEDY) as lines:
        for line in lines:
            indices = list(map(_parse_index, line.split()))
            if not indices:
                continue

            user, *its_items = indices
            if user in seen:
                raise MalformedLineError(f"got user {user} a second time")

            seen.add(user)
            users.extend([user] * len(its_items))
            items.extend(its_items)
            num_users = max(num_users, user + 1)

    if not len(items):
        raise ValueError(f"{str(path)!r} must hold lines 'user item item ...', got no item.")

    # the matrix has a row for each user index up to the largest, so that a single wrong index may
    # make a billion rows
    require_bytes(
        f"the rows of {num_users:,} users, up to the largest number in {str(path)!r},",
        8 * num_users + 32 * len(items),
        "number users and items from 0 without gaps",
    )

    rows, columns = (np.frombuffer(ids, np.int64) for ids in (users, items))
    shape = num_users, int(columns.max()) + 1
    matrix = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0  # an item that a line repeats counts once
    return matrix


def enlarged_to_shape(matrix: sparse.csr_array, shape: tuple[int, ...]) -> sparse.csr_array:
    """Return a copy of `matrix`, enlarged to `shape` by empty rows and columns."""
    result = matrix.copy()
    result.resize(*shape)  # type: ignore[arg-type]
    return result


def _parse_index(word: str) -> int:
    """Return the index in `word`; raise `MalformedLineError` if it is no index or too large."""
    number = parse_whole_number(word)
    if number is None:
        raise MalformedLineError(f"got {short_repr(word)}, which is no number")
    if number > _MAX_ID:
        raise MalformedLineError(f"got a number outside 0 to {_MAX_ID:,}")
    return number
