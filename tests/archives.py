"""Archives of arrays that no writer makes: large, encrypted, compressed in other ways, lying."""

import hashlib
import io
import json
import struct
import zipfile

import numpy as np

MARK = b"\nsamplesoft sha256 "  # before the checksum of a checkpoint


def npy(array, header=None, version=(1, 0)):
    """Return the bytes of an ``.npy`` file, or with a header of one's own."""
    if header is None:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asarray(array), version)
        return stream.getvalue()
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return np.lib.format.magic(*version) + length + header + np.asarray(array).tobytes()


def zeros(num_bytes, dtype="<f8"):
    """Return the bytes of an ``.npy`` file of zeros, few at a time."""
    shape = (num_bytes // np.dtype(dtype).itemsize,)
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    yield npy(np.empty(0), header)
    for _ in range(num_bytes >> 20):
        yield bytes(1 << 20)


def write_archive(path, members, method=zipfile.ZIP_DEFLATED, *, flags=0, checksum=False):
    """Write an archive of bytes or of parts of bytes by name, with the checksum of a checkpoint."""
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        for name, content in members.items():
            with archive.open(f"{name}.npy", "w") as stream:
                for part in [content] if isinstance(content, bytes) else content:
                    stream.write(part)
    whole = bytearray(path.read_bytes())
    if flags:
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = -1
            while (at := whole.find(mark, at + 1)) >= 0:
                whole[at + offset] |= flags
    if checksum:
        whole += MARK + hashlib.sha256(whole).hexdigest().encode()
    path.write_bytes(whole)


def about(text):
    """Return the member ``about`` of a checkpoint: JSON, or text as it is."""
    text = text if isinstance(text, str) else json.dumps(text)
    return npy(np.frombuffer(text.encode(), np.uint8))
