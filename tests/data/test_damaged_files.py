"""Files that are damaged, or expand to more than memory holds: refused in words, and early."""

import gzip
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
from archives import npy, write_archive, zeros

from samplesoft.data import (
    load_embeddings,
    load_interactions,
    load_logits,
    load_xml_repository,
    read_tokens,
)

LARGE = 200 << 20  # bytes of a line
ARRAY = 50 << 20  # bytes of an array
LOADERS = {
    "words": read_tokens,
    "xml": load_xml_repository,
    "interactions": load_interactions,
}
STARTS = {"xml": "1 2 3\n"}
GOOD = {"h": npy(np.ones((3, 4))), "class_embeddings": npy(np.eye(5, 4)), "labels": npy([0, 4, 2])}


def peak(call):
    """Return the exception of a call, and the most bytes that it has held."""
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, MemoryError)) as caught:
            call()
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """Return what 200 MB of one character are in gzip, after some text."""
    lump = gzip.compress(b"1" * (1 << 20), 1)

    def write(start):
        path = tmp_path_factory.mktemp("bomb") / "bomb.txt.gz"
        path.write_bytes(gzip.compress(start.encode()) + lump * (LARGE >> 20))
        return path

    return write


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("in_the_header", [False, True])
def test_a_line_without_an_end_is_refused_early(kind, in_the_header, bomb):
    start = "" if in_the_header else STARTS.get(kind, "0 1\n")
    error, most = peak(lambda: LOADERS[kind](bomb(start)))
    line = 1 if not start else 2
    limit = "1,000,000" if kind == "words" else "16,777,216 characters.*`longest_line`"
    assert re.search(rf"bomb\.txt\.gz', line {line}: got .*more than {limit}", str(error))
    assert most < 100 << 20


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize(
    ("kind", "start", "line"),
    [
        ("xml", "1 9 1", "0 1:1 2:2"),
        ("interactions", "1 2", "0 1 2 3 4 5"),
    ],
)
def test_the_limit_of_a_line_is_an_option(kind, start, line, end, tmp_path):
    path = tmp_path / "data"
    path.write_text(f"{start}\n{line}{end}")
    LOADERS[kind](path, longest_line=len(line))
    with pytest.raises(ValueError, match=f"more than {len(line) - 1} characters"):
        LOADERS[kind](path, longest_line=len(line) - 1)
    with pytest.raises(ValueError, match="`longest_line` must be at least 1"):
        LOADERS[kind](path, longest_line=0)


def test_a_text_of_one_long_line_is_read(tmp_path):
    path = tmp_path / "text8"
    words = [f"word{i}" for i in range(400_000)]
    for text, end in ((" ".join(words), []), ("\n " + " ".join(words) + " \n", ["<eos>"])):
        path.write_text(text)
        assert read_tokens(path) == [*end, *words, "<eos>"]


def test_many_short_lines_that_fill_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(gzip.compress((b"0 " * 500 + b"\n") * 18_000, 1))
    left = iter([8e9, 1.9e9])
    monkeypatch.setattr("samplesoft.data.files.available_bytes", lambda: next(left))
    with pytest.raises(MemoryError, match=r"lines\.txt\.gz' leaves 1\.9 GB of the 8 GB of memory"):
        read_tokens(path)


def test_counts_are_asked_of_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 10**6)
    path = tmp_path / "data"
    path.write_text("1000000000 5\n")
    with pytest.raises(MemoryError, match=r"1,000,000,001 users, .*data', need 8 GB, and 1 MB"):
        load_interactions(path)


MANY = "9" * 5000


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("xml", f"{MANY} 3 4\n", "line 1: got a number outside"),
        ("xml", f"1 3 4\n{MANY} 1:1\n", "line 2: got '999.* for labels"),
        ("xml", f"1 3 4\n0 {MANY}:1\n", "line 2: got '999.* for a feature"),
        ("xml", f"1 3 4\n0 1:{MANY}\n", "line 2: got a value that is not finite"),
        ("interactions", f"0 {MANY}\n", "line 1: got a number outside"),
        ("interactions", "0 " + "x" * 5000, "line 1: got 'x.*which is no number"),
    ],
)
def test_long_numbers_and_words(kind, text, message, tmp_path):
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"data', {message}") as caught:
        LOADERS[kind](path)
    assert len(str(caught.value)) < 600


def test_many_features_of_which_one_is_there_twice(tmp_path):
    path = tmp_path / "data"
    entries = " ".join(f"{i}:1" for i in [*range(1, 200_000), 0, 0])
    path.write_text(f"1 200000 1\n0 {entries}\n")
    with pytest.raises(ValueError, match="line 2: got feature 0 twice"):
        load_xml_repository(path)


def test_an_archive_without_the_arrays_is_not_expanded(tmp_path):
    path = tmp_path / "vectors.npz"
    write_archive(path, {"h": zeros(ARRAY), "other": zeros(ARRAY)})
    error, most = peak(lambda: load_embeddings(path))
    assert "add class_embeddings, labels" in str(error)
    assert most < 10 << 20


def test_arrays_are_asked_of_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: ARRAY)
    path = tmp_path / "vectors.npz"
    write_archive(path, GOOD | {"h": zeros(ARRAY)})
    error, most = peak(lambda: load_embeddings(path))
    assert re.search(r"the arrays of .*vectors\.npz' need 52\.4 MB", str(error))
    assert isinstance(error, MemoryError)
    assert most < 10 << 20
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 10)
    np.save(tmp_path / "o.npy", np.zeros(2))
    with pytest.raises(MemoryError, match=r"o\.npy' need 16 B"):
        load_logits(tmp_path / "o.npy", "0")


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"
HEADERS = {
    "a bracket that is not closed": "{'descr': (",
    "no dict": "3",
    "deep": "(" * 5000,
    "a type that is none": HEADER.format("'<f99'", "(3,)"),
    "Python objects": HEADER.format("'|O'", "(3,)"),
    "nothing": HEADER.format("'<U0'", "(3,)"),
    "more than there is": HEADER.format("'<f8'", f"({10**12},)"),
    "less than there is": HEADER.format("'<f8'", "(2,)"),
    "negative": HEADER.format("'<f8'", "(-1, -3)"),
    "many digits": HEADER.format("'<f8'", f"({MANY},)"),
    "two types": HEADER.format("'<f8, <f8'", "(3,)"),
    "long": HEADER.format("'<f8'", "(3,)") + " " * 20_000,
}


@pytest.mark.parametrize("kind", HEADERS)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0), (9, 9)])
@pytest.mark.filterwarnings("error")
def test_headers_of_arrays(kind, version, tmp_path):
    content = npy(np.zeros(3), HEADERS[kind].encode(), version)
    path = tmp_path / "o.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"o\.npy' must be a file of plain arrays"):
        load_logits(path, "0")
    write_archive(tmp_path / "v.npz", GOOD | {"h": content})
    with pytest.raises(ValueError, match=r"v\.npz' must be a file of plain arrays"):
        load_embeddings(tmp_path / "v.npz")


def test_a_header_that_is_long_is_not_expanded(tmp_path):
    path = tmp_path / "v.npz"
    content = np.lib.format.magic(2, 0) + (ARRAY - 1).to_bytes(4, "little")
    write_archive(path, GOOD | {"h": [content, *[b" " * (1 << 20)] * (ARRAY >> 20)]})
    error, most = peak(lambda: load_embeddings(path))
    assert "must be a file of plain arrays" in str(error)
    assert most < 10 << 20


@pytest.mark.parametrize(
    "options",
    [{"flags": 1}, {"method": zipfile.ZIP_BZIP2}, {"method": zipfile.ZIP_LZMA}],
    ids=["encrypted", "bzip2", "lzma"],
)
def test_archives_that_numpy_does_not_write(options, tmp_path):
    path = tmp_path / "v.npz"
    write_archive(path, GOOD, **options)
    with pytest.raises(ValueError, match=r"v\.npz' .*'h' is encrypted, or compressed as NumPy"):
        load_embeddings(path)


def test_an_array_that_is_there_twice(tmp_path):
    path = tmp_path / "v.npz"
    write_archive(path, GOOD)
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("h.npy", npy(np.zeros((3, 4))))
    with pytest.raises(ValueError, match="two arrays have the same name"):
        load_embeddings(path)
