"""Ways in which a file is damaged: bits, members of an archive, words of a text, values of JSON."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile

import archives
import numpy as np

WORDS = [
    "",
    "9" * 5000,
    "-1",
    "1e400",
    "1e308",
    "nan",
    "٣",
    "1:1",
    ",",
    "x" * 300,
    "0",
    str(10**12),
]
VALUES = [None, -1, 10**400, 10**12, 1.5, 1e308, "x", "", [], {}, [1], {"a": 1}, True, "<f99"]
ARRAYS = [
    np.array(7),
    np.empty((0, 3)),
    np.full((3, 4), np.nan),
    np.full(5, 1e308),
    np.array(["text", "of", "words"]),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.ones((1, 1, 1, 1), np.complex128),
    np.zeros(3, "M8[s]"),
    np.zeros(2, [("a", "f8"), ("b", "i4")]),
]
HEADERS = [
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
    b"{'descr': '<f8', 'fortran_order': True, 'shape': (-3, -4)}",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
    b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3L,)}",
    b"((((((((",
]
OPENERS = {".gz": gzip, ".xz": lzma, ".bz2": bz2}


def of_bytes(content, rng):
    """Flip bits, cut, insert, overwrite, or swap blocks, at one to three places."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        first, second = sorted(int(i) for i in rng.integers(0, len(content) + 1, 2))
        second = min(second, first + int(rng.integers(1, 200)))
        kind = rng.integers(6)
        if kind == 0 and first < len(content):
            content[first] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del content[first:]
        elif kind == 2:
            del content[first:second]
        elif kind == 3:
            content[first:first] = rng.bytes(int(rng.integers(1, 50)))
        elif kind == 4:
            content[first:second] = bytes([int(rng.choice([0, 32, 48, 57, 255]))]) * (
                second - first
            )
        else:
            size = second - first
            other = int(rng.integers(0, len(content) + 1))
            block = content[first:second]
            content[first:second] = content[other : other + size]
            content[other : other + size] = block
    return bytes(content)


def of_text(content, rng, ending):
    """Put strange words into a text, which is compressed again."""
    opener = OPENERS.get(ending)
    words = (opener.decompress(content) if opener else content).decode().split(" ")
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(words)))
        kept = "\n" if "\n" in words[place] and rng.random() < 0.7 else ""
        words[place] = kept.join([str(rng.choice(WORDS))] * (1 + len(kept)))
    text = " ".join(words).encode()
    return opener.compress(text) if opener else text


def of_lines(content, rng):
    """Put strange values into a line of JSON."""
    lines = content.decode().splitlines()
    place = int(rng.integers(len(lines)))
    lines[place] = json.dumps(of_json(json.loads(lines[place]), rng))
    return ("\n".join(lines) + "\n").encode()


def of_json(value, rng):
    """Return a value of JSON with one part replaced or left out."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return VALUES[rng.integers(len(VALUES))]
    copy = value.copy()
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[int(rng.integers(len(keys)))]
    if rng.random() < 0.2:
        del copy[key]
    else:
        copy[key] = of_json(value[key], rng)
    return copy


def of_array(content, rng):
    """Return another ``.npy`` file: of a strange array, with a strange header, or damaged."""
    kind = rng.integers(3)
    if kind == 0:
        return archives.npy(ARRAYS[rng.integers(len(ARRAYS))])
    if kind == 1:
        return archives.npy(np.ones(3), HEADERS[rng.integers(len(HEADERS))])
    return of_bytes(content, rng)


def of_members(path, content, rng, checksum):
    """Write an archive of which a member is damaged, strange, absent or new."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    name = list(members)[rng.integers(len(members))]
    if "about" in members and rng.random() < 0.5:
        about = json.loads(np.lib.format.read_array(io.BytesIO(members["about"])).tobytes())
        members["about"] = archives.about(of_json(about, rng))
    elif rng.random() < 0.2:
        members[name.swapcase()] = members.pop(name)
    else:
        members[name] = of_array(members[name], rng)
    method = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)[
        rng.choice(3, p=[0.6, 0.3, 0.1])
    ]
    flags = 1 if rng.random() < 0.02 else 0
    archives.write_archive(path, members, method, flags=flags, checksum=checksum)
