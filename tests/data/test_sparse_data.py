"""Files of sparse examples and of interactions: what is read, and what is refused where."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplesoft.data import load_interactions, load_xml_repository

BIBTEX = Path(__file__).parents[3] / "shared" / "data" / "bibtex" / "bibtex_train.txt.xz"
GOWALLA = BIBTEX.parents[1] / "gowalla" / "train.txt.xz"


def write(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_blank_labels_blank_features_and_odd_spaces(tmp_path):
    text = "5 4 3\n0,2 0:1 3:-2.5e-1\n 1:2\n1\n\n2  2:3 \t0:4 \r\n\n"
    inputs, labels = load_xml_repository(write(tmp_path, text))
    assert inputs.toarray().tolist() == [
        [1.0, 0.0, 0.0, -0.25],
        [0.0, 2.0, 0.0, 0.0],
        [0.0] * 4,
        [0.0] * 4,
        [4.0, 0.0, 3.0, 0.0],
    ]
    assert labels.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert inputs.dtype == np.float32


@pytest.mark.parametrize("how", [gzip.open, lzma.open], ids=["gz", "xz"])
def test_compressed_files(tmp_path, how):
    path = tmp_path / f"data.{'gz' if how is gzip.open else 'xz'}"
    with how(path, "wt") as stream:
        stream.write("1 2 3\n0 0:1\n")
    assert load_xml_repository(path).inputs.shape == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: got no 'points features labels'"),
        ("2 3\n", "line 1: got no 'points features labels'"),
        ("2 -3 4\n", "line 1: got no 'points"),
        ("0 3 4\n", "line 1: got a number outside 1"),
        ("1 3 4\n0 3:1\n", "line 2: got feature 3, and line 1 allows 0 to 2"),
        ("1 3 4\n4 1:1\n", "line 2: got label 4, and line 1 allows 0 to 3"),
        ("2 3 4\n0 1:1\n1 1:1 1:2\n", "line 3: got feature 1 twice"),
        ("1 3 4\n0,0 1:1\n", "line 2: got label 0 twice"),
        ("1 3 4\n0, 1:1\n", "line 2: got '0,' for labels"),
        ("1 3 4\nx 1:1\n", "line 2: got 'x' for labels"),
        ("1 3 4\n1:1 2:1\n", "line 2: got '1:1' for labels; a line without any starts"),
        ("1 3 4\n0 1\n", "line 2: got '1' for a feature"),
        ("1 3 4\n0 1:2:3\n", "line 2: got '1:2:3' for a feature"),
        ("1 3 4\n0 -1:2\n", "line 2: got '-1:2' for a feature"),
        ("1 3 4\n0 1:a\n", "line 2: got '1:a' with a value that is no number"),
        ("1 3 4\n0 1:1_0\n", "line 2: got '1:1_0' with a value that is no number"),
        ("1 3 4\n0 1:٣\n", "line 2: got '1:٣' for a feature"),
        ("1 3 4\n0 0:1\x1c1:1\n", "line 2: got .* for a feature"),
        ("1 99999999999999999999 4\n", "line 1: got a number outside"),
        ("1 3 4\n0 1:nan\n", "line 2: got a value that is not finite"),
        ("1 3 4\n0 1:1e39\n", "line 2: got a value that is not finite"),
        ("1 3 4\n0 1:1\n0 1:1\n", "line 3: got more points than the 1"),
        ("3 3 4\n0 1:1\n0 1:1\n", "must hold the 3 points of line 1, got 2"),
    ],
)
def test_malformed_lines_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_xml_repository(write(tmp_path, text))


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 6)),
            st.dictionaries(st.integers(0, 8), st.floats(-10, 10, width=32)),
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read(tmp_path_factory, rows):
    lines = [f"{len(rows)} 9 7"]
    for labels, entries in rows:
        features = " ".join(f"{f}:{v!r}" for f, v in entries.items())
        lines.append(",".join(map(str, labels)) + " " + features)
    path = tmp_path_factory.mktemp("xc") / "data.txt"
    path.write_text("\n".join(lines) + "\n")
    inputs, targets = load_xml_repository(path)
    for i, (labels, entries) in enumerate(rows):
        assert set(np.flatnonzero(targets.toarray()[i])) == labels
        for f, v in entries.items():
            assert inputs[i, f] == np.float32(v)


def test_interactions(tmp_path):
    zeros = "0" * 5000
    found = load_interactions(write(tmp_path, f"3 1 {zeros}4 1\n{zeros}\n\n1 2\n"))
    assert found.shape == (4, 5)
    assert found.toarray()[3].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert found.nnz == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1 a\n", "line 2: got 'a', which is no number"),
        ("0 1_0\n", "line 1: got '1_0', which is no number"),
        ("0 1.5\n", "line 1: got '1.5', which is no number"),
        ("0 -1\n", "line 1: got '-1', which is no number"),
        ("0 1\n0 2\n", "line 2: got user 0 a second time"),
        ("0 99999999999999999999\n", "line 1: got a number outside"),
        ("0\n", "got no item"),
        ("", "got no item"),
    ],
)
def test_malformed_interactions(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_interactions(write(tmp_path, text))


@pytest.mark.skipif(not BIBTEX.exists(), reason="needs Bibtex")
def test_bibtex():
    inputs, labels = load_xml_repository(BIBTEX)
    assert inputs.shape == (4880, 1836)
    assert labels.shape == (4880, 159)
    assert labels[[0]].indices.tolist() == [3, 23, 61, 63, 76]


@pytest.mark.skipif(not GOWALLA.exists(), reason="needs Gowalla")
def test_gowalla():
    found = load_interactions(GOWALLA)
    assert (found.shape, found.nnz) == ((29858, 40981), 810128)
