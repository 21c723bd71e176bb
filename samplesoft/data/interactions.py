"""Lists of what users have taken."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from scipy import sparse

from samplesoft.data.files import open_text

_LARGEST = 10**9


def load_interactions(path: str | Path) -> sparse.csr_array:
    r"""Read lines ``user item item ...`` of numbers from 0, such as Gowalla's in [1]_.

    Parameters
    ----------
    path : str or Path
        The file; ``.gz``, ``.xz`` and ``.bz2`` are read as they are.

    Returns
    -------
    scipy.sparse.csr_array of float32, shape (users, items)
        1 where a user has taken an item, however often it is listed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is malformed, with its number.

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
    users, items, num_users = array("q"), array("q"), 0
    seen: set[int] = set()
    with open_text(path) as stream:
        for line_number, line in enumerate(stream, 1):
            words = line.split()
            if not words:
                continue
            for word in words:
                if not (word.isascii() and word.isdecimal()):
                    raise _malformed(path, line_number, f"{word!r}, which is no number")
            user, *taken = map(int, words)
            if max(user, *taken, user) > _LARGEST:
                raise _malformed(path, line_number, f"a number outside 0 to {_LARGEST:,}")
            if user in seen:
                raise _malformed(path, line_number, f"user {user} a second time")
            seen.add(user)
            users.extend([user] * len(taken))
            items.extend(taken)
            num_users = max(num_users, user + 1)
    if not len(items):
        raise ValueError(f"{str(path)!r} must hold lines 'user item item ...', got no item.")
    rows, columns = (np.frombuffer(numbers, np.int64) for numbers in (users, items))
    shape = num_users, int(columns.max()) + 1
    matrix = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def padded(matrix: sparse.csr_array, shape: tuple[int, ...]) -> sparse.csr_array:
    """Return `matrix` with empty rows and columns added, up to `shape`."""
    found = matrix.copy()
    found.resize(*shape)  # type: ignore[arg-type]
    return found


def _malformed(path: str | Path, line_number: int, got: str) -> ValueError:
    return ValueError(
        f"{str(path)!r}, line {line_number}: got {got}; each line is 'user item item ...', of "
        "numbers counted from 0."
    )
