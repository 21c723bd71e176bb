"""Language-model batches against a plain reading of the rule, and corpora in folders."""

import bz2
import gzip
import lzma

import numpy as np
import pytest

from samplesoft.data.batches import Windows
from samplesoft.data.corpus import find_part, read_corpus


def naive(ids, batch, steps, keep_short):
    """Cut a list into rows, walk them in steps, pair each token with the next of its row."""
    length = len(ids) // batch
    rows = [ids[b * length : (b + 1) * length] for b in range(batch)]
    windows = []
    for start in range(0, length - 1, steps):
        inputs = [row[start : start + steps][: length - 1 - start] for row in rows]
        targets = [row[start + 1 : start + 1 + steps] for row in rows]
        if len(targets[0]) == steps or keep_short:
            windows.append((inputs, targets))
    return windows


@pytest.mark.parametrize("keep_short", [True, False])
@pytest.mark.parametrize("batch, steps", [(1, 1), (1, 5), (3, 4), (4, 3), (7, 2), (20, 1)])
@pytest.mark.parametrize("size", [40, 41, 59, 60, 61, 100])
def test_windows(size, batch, steps, keep_short):
    ids = np.random.default_rng(size).integers(0, 1000, size)
    windows = Windows(ids, batch, steps, keep_short=keep_short)
    expected = naive(ids.tolist(), batch, steps, keep_short)
    assert len(windows) == len(expected)
    for (inputs, targets), (a, b) in zip(windows, expected, strict=True):
        assert inputs.shape == targets.shape
        assert inputs.T.tolist() == a
        assert targets.T.tolist() == b


def test_one_row_predicts_every_token_but_the_first():
    ids = np.arange(23)
    windows = Windows(ids, 1, 5, keep_short=True)
    assert np.concatenate([targets[:, 0] for _, targets in windows]).tolist() == [*range(1, 23)]


@pytest.mark.parametrize("size, batch, steps, keep", [(9, 5, 1, True), (11, 3, 3, False)])
def test_text_too_short(size, batch, steps, keep):
    needed = batch * 2 if keep else batch * (steps + 1)
    with pytest.raises(ValueError, match=f"at least {needed} tokens .* got {size}"):
        Windows(np.arange(size), batch, steps, keep_short=keep)
    assert len(Windows(np.arange(needed), batch, steps, keep_short=keep)) == 1


def test_window_out_of_range():
    windows = Windows(np.arange(10), 1, 3, keep_short=False)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            windows[index]


TEXTS = {"train": "the cat sat\nthe dog sat\n", "valid": "the cat\n", "test": "a dog\nthe end\n"}


def write(folder, names):
    for part, name in names.items():
        opener = {"gz": gzip, "xz": lzma, "bz2": bz2}.get(name.rsplit(".", 1)[-1])
        with (opener.open if opener else open)(folder / name, "wt") as stream:
            stream.write(TEXTS[part])


def test_corpus_from_files_of_any_compression(tmp_path):
    write(tmp_path, {"train": "my.train.txt.gz", "valid": "valid.txt.xz", "test": "test-1.txt.bz2"})
    (tmp_path / "train.md").write_text("not a text")
    (tmp_path / "README").write_text("train")
    corpus = read_corpus(tmp_path, vocabulary_size=4)
    assert corpus.vocabulary.words == ("<eos>", "<unk>", "sat", "the")
    assert corpus.train.tolist() == [3, 1, 2, 0, 3, 1, 2, 0]
    assert corpus.valid.tolist() == [3, 1, 0]
    assert corpus.test.tolist() == [1, 1, 0, 3, 1, 0]


def test_one_text_is_split_by_lines(tmp_path):
    path = tmp_path / "text.txt.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("".join(f"word{line % 7} a b\n" for line in range(25)))
    corpus = read_corpus(path)
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [84, 8, 8]
    words = corpus.vocabulary.words
    assert [words[i] for i in corpus.valid[::4]] == ["word0", "word1"]
    (tmp_path / "short.txt").write_text("a b\na b\n")
    with pytest.raises(ValueError, match="must have at least 3 lines to be split"):
        read_corpus(tmp_path / "short.txt")
    (tmp_path / "short.txt").write_text("a b\na b\nb\n")
    assert read_corpus(tmp_path / "short.txt").test.size == 2


def test_missing_and_ambiguous_parts(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_corpus(tmp_path / "absent")
    write(tmp_path, {"train": "train.txt", "test": "test.txt"})
    with pytest.raises(FileNotFoundError, match=r"a text named \*valid\* .* got none"):
        read_corpus(tmp_path)
    write(tmp_path, {"valid": "valid.txt"})
    write(tmp_path, {"train": "train.txt.gz"})
    with pytest.raises(ValueError, match=r"one text named \*train\*, got train.txt, train.txt.gz"):
        read_corpus(tmp_path)
    assert find_part(tmp_path, "valid").name == "valid.txt"
