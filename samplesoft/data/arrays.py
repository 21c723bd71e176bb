"""Readers of NumPy's array files, which compare the array sizes with the available memory first."""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from numpy.lib import format as npy
from numpy.typing import NDArray

from samplesoft._files import retry_while_in_use
from samplesoft._memory import require_bytes
from samplesoft.data.files import file_not_found_error

# more bytes than any header, because NumPy refuses headers of more than 10,000 characters
_HEADER_BYTES = 1 << 14
_HEADER_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_ENCRYPTED_FLAG = 0x1  # bit in the flags of a zip member
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the compressions that NumPy writes


class ArrayArchive:
    """The arrays of an ``.npz`` file, read on demand."""

    def __init__(self, path: str | Path, stream: BinaryIO) -> None:
        self._path = path
        self._zip = zipfile.ZipFile(stream)
        members = self._zip.infolist()
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        # if two arrays have the same name, different programs may read different ones
        if len(self._members) < len(members):
            raise ValueError("two arrays have the same name")
        self.names = list(self._members)

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return a dict of the arrays `names`, after checking all headers and their total size.

        Raises MemoryError if the arrays do not fit in the available memory.
        """
        members = {name: self._members[name] for name in names}

        total = 0
        for name, member in members.items():
            if member.flag_bits & _ENCRYPTED_FLAG or member.compress_type not in _COMPRESSIONS:
                raise ValueError(f"{name!r} is encrypted, or compressed as NumPy does not")
            with self._zip.open(member) as stream:
                total += _array_bytes(stream, member.file_size)

        _require_memory(self._path, total)

        arrays = {}
        for name, member in members.items():
            with self._zip.open(member) as stream:
                arrays[name] = npy.read_array(stream, allow_pickle=False)

        return arrays


@contextmanager
def open_arrays(path: str | Path, expected: str, remedy: str) -> Iterator[BinaryIO]:
    """Open a file of NumPy arrays, as a context manager that yields the binary stream.

    The body must only read arrays, because any exception in it is taken for a damaged file, and
    raised as a ValueError. The message says that the file must be `expected`, and ends with the
    `remedy`. Only FileNotFoundError and MemoryError are not converted.
    """
    try:
        with warnings.catch_warnings(), _open_for_reading(path) as stream:
            warnings.simplefilter("ignore")  # hide warnings about headers that NumPy repairs
            yield stream
    except FileNotFoundError:
        raise file_not_found_error(path) from None
    except MemoryError:
        raise
    except Exception as error:  # NumPy and zipfile raise a dozen types of errors
        reason = str(error).rstrip(".")[:200] or type(error).__name__
        raise ValueError(f"{str(path)!r} must be {expected}: {reason}; {remedy}.") from None


def _open_for_reading(path: str | Path) -> BinaryIO:
    """Open a file for reading; if it exists, retry while it is in use.

    Windows refuses to open a file while another process replaces it.
    """
    if os.access(path, os.R_OK):
        return retry_while_in_use(lambda: open(path, "rb"))
    return open(path, "rb")


def read_array(path: str | Path, stream: BinaryIO) -> NDArray[Any]:
    """Return the array of the ``.npy`` file `path`, which is open as `stream`."""
    file_bytes = stream.seek(0, 2)
    stream.seek(0)
    _require_memory(path, _array_bytes(stream, file_bytes))
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def _array_bytes(stream: Any, num_bytes: int) -> int:
    """Return the size in bytes of the array in an ``.npy`` stream, according to its header.

    Raises ValueError if header and array together are not exactly `num_bytes` long.
    """
    # read a fixed number of bytes, because the length in the header may be damaged
    header = io.BytesIO(stream.read(_HEADER_BYTES))
    version = npy.read_magic(header)
    if version not in _HEADER_READERS:
        raise ValueError(f"its format has version {version}, which plain arrays do not need")

    shape, _, dtype = _HEADER_READERS[version](header)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"Object arrays and empty types cannot be loaded, got dtype {dtype}")

    array_bytes: int = math.prod(shape) * dtype.itemsize  # integers of Python do not overflow
    if min(shape, default=0) < 0 or header.tell() + array_bytes != num_bytes:
        raise ValueError(
            f"its header says {dtype} of shape {shape}, and {num_bytes - header.tell():,} "
            "bytes follow"
        )

    return array_bytes


def _require_memory(path: str | Path, num_bytes: int) -> None:
    """Raise MemoryError if arrays of `num_bytes` bytes do not fit in the available memory."""
    require_bytes(f"the arrays of {str(path)!r}", num_bytes, "give a smaller file, or free memory")
