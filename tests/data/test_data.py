import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    load_embeddings,
    load_logits,
    ppmi_svd,
    read_tokens,
    stdlib_tokens,
)
from samplesoft.data.ppmi import _truncated_svd

PTB = Path(__file__).parents[3] / "shared" / "data" / "ptb"
needs_ptb = pytest.mark.skipif(not PTB.is_dir(), reason="the Penn Treebank text is not here")


@pytest.mark.parametrize(
    ("ending", "opener"),
    [("", open), (".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)],
)
def test_read_tokens_opens_what_the_ending_says(tmp_path, ending, opener):
    path = tmp_path / f"corpus.txt{ending}"
    with opener(path, "wb") as stream:
        stream.write("\ufeffnaïve  cat\r\n\nsat".encode())
    assert read_tokens(path) == ["naïve", "cat", "<eos>", "<eos>", "sat", "<eos>"]


def test_read_tokens_errors_name_file_and_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file.*absent\.txt.*check the path"):
        read_tokens(tmp_path / "absent.txt")
    with pytest.raises(ValueError, match="cannot be read"):
        read_tokens(tmp_path)
    for content in (b"", b"\n  \n"):
        empty = tmp_path / "empty.txt"
        empty.write_bytes(content)
        with pytest.raises(ValueError, match=r"empty\.txt' must hold words.*plain text"):
            read_tokens(empty)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt' must be UTF-8 text.*iconv"):
        read_tokens(latin)


def test_a_missing_file_is_named_where_the_working_folder_is_gone(monkeypatch):
    def is_gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "cwd", is_gone)
    with pytest.raises(FileNotFoundError, match=r"'absent\.txt'.* no longer exists"):
        read_tokens("absent.txt")


@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)]
)
def test_damaged_archives_are_named(tmp_path, ending, compress):
    path = tmp_path / f"corpus.{ending}"
    for content in (b"plain text", compress(b"some words " * 1000)[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"corpus\.{ending}' cannot be read.*whole file"):
            read_tokens(path)


def test_stdlib_tokens_are_repeatable_and_bounded():
    tokens = stdlib_tokens(max_tokens=20_000)
    assert len(tokens) == 20_000
    assert tokens == stdlib_tokens(max_tokens=20_000)
    assert {"import", "self", "(", "<eos>", "def"} <= set(tokens)
    assert not any(token.isspace() for token in set(tokens))


def test_stdlib_tokens_skips_tests_and_bears_any_encoding(tmp_path, monkeypatch):
    sources = {"b.py": b"x **= 3.5e2\n\n\n  y", "a.py": b"\xff ok->z", "test/c.py": b"no"}
    sources["site-packages/d.py"] = b"no"
    for name, content in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    expected = ["\ufffd", "ok", "->", "z", "<eos>", "x", "**=", "3.5e2", "<eos>", "y", "<eos>"]
    assert stdlib_tokens() == expected


def test_stdlib_tokens_missing_names_the_options(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match=r"--corpus.*--embeddings.*--logits"):
        stdlib_tokens()


def test_ppmi_by_hand():
    # Four pairs: 0 1, 1 0, 0 1, 1 2. Rank 3 is full, so the dot products are the PPMI, scaled.
    contexts, classes = ppmi_svd([0, 1, 0, 1, 2], num_classes=3, dim=4)
    after = np.array([1, 2, 1]) ** 0.75
    joint = np.array([[0, 2, 0], [1, 0, 1], [0, 0, 0]])
    with np.errstate(divide="ignore"):
        matrix = np.log(joint / joint.sum(axis=1, keepdims=True).clip(1) / (after / after.sum()))
    matrix = matrix.clip(0.0)
    dots = (contexts @ classes.T)[:2]
    scale = dots.sum(axis=1) / matrix[:2].sum(axis=1)
    np.testing.assert_allclose(dots, matrix[:2] * scale[:, None], atol=1e-12)


@pytest.mark.parametrize("num_classes", [7, 600])
def test_vectors_are_unit_and_repeatable(num_classes):
    ids = np.random.default_rng(0).zipf(1.3, 20_000) % (num_classes - 2)
    first = ppmi_svd(ids, num_classes, 16)
    again = ppmi_svd(ids, num_classes, 16)
    for vectors, same in zip(first, again, strict=True):
        assert vectors.shape == (num_classes, min(16, num_classes + 1))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-12)
        assert np.array_equal(vectors, same)
    contexts, classes = first
    # The last two never occur: nothing is known about them.
    np.testing.assert_allclose(contexts @ classes[-1], 0.0, atol=1e-12)
    np.testing.assert_array_equal(contexts[-1], contexts[-2])


@pytest.mark.parametrize("true_rank", [3, 700])
def test_truncated_svd_is_that_of_lapack(true_rank):
    rng = np.random.default_rng(0)
    n, rank = 700, 20
    dense = rng.standard_normal((n, true_rank)) * 0.95 ** np.arange(true_rank)
    dense = dense @ rng.standard_normal((true_rank, n))
    left, values, right = _truncated_svd(csr_array(dense), rank)
    kept = min(rank, true_rank)
    exact = np.linalg.svd(dense)
    np.testing.assert_allclose(values[:kept], exact[1][:kept], rtol=1e-3)
    best = (exact[0][:, :rank] * exact[1][:rank]) @ exact[2][:rank]
    difference = (left * values) @ right - best
    assert np.linalg.norm(difference) < 1e-2 * np.linalg.norm(dense)
    # Columns beyond the rank of the matrix are 0, not noise.
    assert not left[:, kept:].any()
    np.testing.assert_allclose(left[:, :kept].T @ left[:, :kept], np.eye(kept), atol=1e-8)
    np.testing.assert_allclose(right[:kept] @ right[:kept].T, np.eye(kept), atol=1e-8)


def test_ppmi_svd_errors():
    with pytest.raises(
        ValueError, match=r"`ids` must be 1-D and hold at least 2 words, got shape \(1,\)"
    ):
        ppmi_svd([0], 2, 4)
    with pytest.raises(ValueError, match=r"`ids` must lie in 0\.\.1"):
        ppmi_svd([0, 1, 2], 2, 4)
    with pytest.raises(ValueError, match="`dim` must be at least 2, got 1"):
        ppmi_svd([0, 1, 0], 2, 1)


def test_examples_are_what_came_next():
    tokens = "a b c d".split() * 50
    examples = examples_from_corpus(tokens, dim=8, num_examples=30, rng=1)
    assert examples.h.shape == (30, 5)
    logits = examples.h @ examples.class_embeddings.T
    np.testing.assert_array_equal(logits.argmax(axis=1), examples.labels)
    again = examples_from_corpus(tokens, dim=8, num_examples=30, rng=1)
    np.testing.assert_array_equal(again.labels, examples.labels)
    assert len(examples_from_corpus(tokens, num_examples=None).labels) == 199


def mean_label_probability(examples, tau):
    p = np.exp(tau * examples.h @ examples.class_embeddings.T)
    return float(np.mean(p[np.arange(len(p)), examples.labels] / p.sum(axis=1)))


def test_true_next_token_is_likelier_than_its_frequency_stdlib():
    examples = examples_from_corpus(stdlib_tokens(300_000), vocabulary_size=4000, rng=0)
    unigram = (examples.counts / examples.counts.sum())[examples.labels].mean()
    assert mean_label_probability(examples, tau=20.0) > 3.0 * unigram


@needs_ptb
def test_true_next_token_is_likelier_than_its_frequency_ptb():
    tokens = read_tokens(PTB / "ptb.train.txt.xz")
    assert len(tokens) == 929_589
    examples = examples_from_corpus(tokens, rng=0)
    assert examples.class_embeddings.shape == (10_000, 64)
    unigram = (examples.counts / examples.counts.sum())[examples.labels].mean()
    assert mean_label_probability(examples, tau=11.1) > 1.3 * unigram
    assert mean_label_probability(examples, tau=20.0) > 3.0 * unigram


def good():
    rng = np.random.default_rng(0)
    return {
        "h": rng.standard_normal((3, 4)),
        "class_embeddings": rng.standard_normal((5, 4)),
        "labels": np.array([0, 4, 2]),
    }


def test_npz_is_taken_as_it_is(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, **good(), counts=np.arange(5))
    loaded = load_embeddings(path)
    for name, value in {**good(), "counts": np.arange(5)}.items():
        np.testing.assert_array_equal(getattr(loaded, name), value)
    assert len(load_embeddings(path, num_examples=2, rng=0).h) == 2
    np.savez(path, **good())
    assert load_embeddings(path).counts is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": np.ones((3, 5))}, r"same dimension.*\(3, 5\).*\(5, 4\)"),
        ({"h": np.ones(3)}, "`h` must have 2 dimension"),
        ({"h": np.full((3, 4), np.nan)}, "`h` must be finite"),
        ({"h": np.array([["a"] * 4] * 3)}, "`h` must hold real numbers"),
        ({"h": np.array([[None] * 4] * 3)}, "Object arrays"),
        ({"labels": np.array([0, 5, 1])}, r"`labels` must lie in 0\.\.4 for 5 classes, got 5"),
        ({"labels": np.array([0, -1, 1])}, "`labels` must lie in"),
        ({"labels": np.array([0.0, 1.0, 1.0])}, "`labels` must hold integers"),
        ({"labels": np.array([0, 1])}, r"`labels` must have shape \(3,\), got \(2,\)"),
        ({"counts": np.ones(4)}, r"`counts` must have shape \(5,\)"),
        ({"counts": -np.ones(5)}, "`counts` must be at least 0"),
    ],
)
def test_malformed_npz(tmp_path, change, message):
    path = tmp_path / "vectors.npz"
    np.savez(path, **{**good(), **change})
    with pytest.raises(ValueError, match=message) as caught:
        load_embeddings(path)
    assert "vectors.npz" in str(caught.value)


def test_npz_that_is_none(tmp_path):
    path = tmp_path / "vectors.npz"
    with pytest.raises(FileNotFoundError, match=r"vectors\.npz"):
        load_embeddings(path)
    for content in (b"", b"no archive", b"PK\x03\x04 cut short"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"vectors\.npz' must be a file.*numpy\.savez"):
            load_embeddings(path)
    with path.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(ValueError, match=r"must be a file .*not a zip file.*numpy\.savez"):
        load_embeddings(path)
    np.savez(path, h=np.ones((2, 2)))
    with pytest.raises(ValueError, match="got of them h; add class_embeddings, labels"):
        load_embeddings(path)


def test_load_logits_and_labels(tmp_path):
    logits = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.save(tmp_path / "o.npy", logits)
    np.save(tmp_path / "t.npy", np.array([2, 0], np.int32))
    for labels in ("2, 0", tmp_path / "t.npy"):
        o, t = load_logits(tmp_path / "o.npy", labels)
        np.testing.assert_array_equal(o, logits)
        np.testing.assert_array_equal(t, [2, 0])
    np.save(tmp_path / "one.npy", logits[0])
    o, t = load_logits(tmp_path / "one.npy", "1")
    assert o.shape == (1, 3)
    assert t.tolist() == [1]


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (np.zeros((2, 3)), "1,3", ValueError, r"`labels` must lie in 0\.\.2 for 3 classes, got 3"),
        (np.zeros((2, 3)), "1", ValueError, r"`labels` must have shape \(2,\), got \(1,\)"),
        (np.zeros((2, 3)), "1,x", ValueError, "`labels` must be an .npy file or integers"),
        (np.zeros((2, 3)), "", ValueError, "`labels` must be an .npy file or integers"),
        (np.zeros((2, 3)), "1," + "9" * 5000, ValueError, r"`labels` must be an .npy.*got '1,9"),
        (np.zeros((2, 3)), "1," + "9" * 50, TypeError, "`labels` must hold integers, got object"),
        (np.zeros((2, 3)), "absent.npy", FileNotFoundError, r"absent\.npy"),
        (np.full((2, 3), np.inf), "1,1", ValueError, r"logits in .*o\.npy` must be finite"),
        (np.zeros((2, 3), complex), "1,1", TypeError, "must hold real numbers"),
        (np.zeros((2, 3, 1)), "1,1", ValueError, "dimension"),
        (np.array([None]), "1,1", ValueError, r"o\.npy' must be a file of plain arrays"),
    ],
)
def test_malformed_logits(tmp_path, logits, labels, error, message):
    np.save(tmp_path / "o.npy", logits)
    with pytest.raises(error, match=message):
        load_logits(tmp_path / "o.npy", labels)


def test_logits_that_are_no_array(tmp_path):
    np.savez(tmp_path / "o.npz", o=np.zeros(3))
    with pytest.raises(ValueError, match=r"o\.npz.*numpy\.save"):
        load_logits(tmp_path / "o.npz", "0")


def test_embeddings_are_checked_without_a_file():
    with pytest.raises(ValueError, match="`labels` must have shape"):
        Embeddings(np.ones((2, 3)), np.ones((4, 3)), 1)
