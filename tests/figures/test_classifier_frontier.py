"""figures/classifier_frontier.py runs on few digits, and what is committed of it."""

import ast
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scripts import run_script

pytest.importorskip("sklearn")
import classifier_frontier as frontier  # noqa: E402
import classifier_peers as peers  # noqa: E402
import classifier_sets as sets  # noqa: E402
from tables import read_csv  # noqa: E402

FIGURES = Path(__file__).parents[2] / "figures"


def run(folder, methods, *options):
    given = "--output", folder, "--data", "digits;USPS", "--methods", ";".join(methods)
    return run_script(FIGURES / "classifier_frontier.py", *given, "--share", 0.3, *options)


@pytest.mark.slow
def test_it_keeps_the_rows_of_other_methods(tmp_path):
    printed = run(
        tmp_path, ["LinearSVC", "Ridge", "SGDClassifier", "fastText hs", "omikuji Bonsai"]
    )
    assert "USPS is left out: no --usps" in printed
    without_words = importlib.util.find_spec("fasttext") is not None
    reason = "the inputs are no words" if without_words else "fasttext is not installed"
    assert f"digits: fastText hs is left out: {reason}" in printed
    before = read_csv(tmp_path / "classifier_frontier.csv")
    printed = run(tmp_path, list(frontier.METHODS)[:3], "--seeds", 2)
    assert "samplesoft, full softmax is left out: the defaults are the full softmax" in printed
    rows = read_csv(tmp_path / "classifier_frontier.csv")
    assert all(row in rows for row in before)
    ours = [row for row in rows if row not in before]
    assert [row["seed"] for row in ours] == [0, 1, "mean", 0, 0, 0, 0]
    for row in rows:
        assert row["examples"] == 431 and row["classes"] == 10 and row["seconds"] > 0.0
        assert 0.1 < row["precision_at_1"] <= 1.0
        assert row["precision_at_5"] <= 0.2 + 1e-9
    mean = ours[2]
    assert mean["precision_at_1"] == pytest.approx(
        np.mean([row["precision_at_1"] for row in ours[:2]]), abs=1e-3
    )
    assert mean["best_peer_at_1"].split(",")[0] in {row["method"] for row in before}
    assert f"{mean['points_at_1']:+.2f} points" in printed
    assert (tmp_path / "classifier_frontier.png").read_bytes().startswith(b"\x89PNG")


def run_row(method, setting, seed, seconds, *precisions):
    names = [f"precision_at_{k}" for k in (1, 3, 5)]
    row = dict.fromkeys(frontier.FIELDS) | {"data": "lines", "classes": 7, "method": method}
    row |= {"setting": setting, "seed": seed, "seconds": seconds}
    return row | dict(zip(names, precisions, strict=True))


def test_the_table_compares_with_the_best_peer():
    runs = [
        run_row("Ridge", "alpha=1", None, 8.0, 0.25, 0.25, 0.5),
        run_row("samplesoft", "defaults", 0, 1.0, 0.25, 0.25, 0.25),
        run_row("samplesoft", "defaults", 1, 3.0, 0.75, 0.25, 0.25),
        run_row("samplesoft, max_iter", "max_iter=1", 0, 1.0, 0.875, 0.875, 0.875),
        run_row("LinearSVC", "defaults", None, 4.0, 0.375, 0.25, 0.25),
    ]
    rows = frontier.table(runs)
    assert [row["seed"] for row in rows] == [0, 1, "mean", 0, None, None]
    mean = rows[2]
    assert (mean["seconds"], mean["precision_at_1"], mean["sd_of_precision_at_3"]) == (2, 0.5, 0)
    assert mean["sd_of_precision_at_1"] == pytest.approx(np.sqrt(0.125))
    assert mean["best_peer_at_1"] == "LinearSVC, defaults"
    assert (mean["points_at_1"], mean["time_ratio_at_1"]) == (12.5, 0.5)
    assert mean["best_peer_at_5"] == "Ridge, alpha=1"
    assert (mean["points_at_5"], mean["time_ratio_at_5"]) == (-25.0, 0.25)
    assert frontier.table(frontier.runs_of(rows)) == rows
    assert "+12.50 points, 0.50 of the time, LinearSVC, defaults" in frontier.comparison(rows)
    titles = [axis.get_title() for axis in frontier.draw(rows).axes]
    assert titles == ["lines (7 classes)"]


def test_precision_is_that_of_loops():
    rng = np.random.default_rng(0)
    labels = rng.random((6, 9)) < 0.3
    ids = np.array([rng.permutation(9)[:5] for _ in range(6)])
    ids[2, 1:] = -1
    found = frontier.precision(ids, sparse.csr_array(labels.astype(np.float32)))
    for k in (1, 3, 5):
        right = sum(
            bool(id_ >= 0 and own[id_])
            for own, row in zip(labels, ids, strict=True)
            for id_ in row[:k]
        )
        assert found[f"precision_at_{k}"] == pytest.approx(right / (6 * k))


@pytest.mark.parametrize("dense", [False, True])
def test_no_test_example_is_one_of_training(dense):
    rng = np.random.default_rng(1)
    X = (rng.random((400, 6)) < 0.4).astype(np.float32)  # of which some are zero
    labels = sets.single_labels(rng.integers(0, 120, 400))
    data = sets.split(
        sets.Data(None, X if dense else sparse.csr_array(X), labels), sets.Sources(share=0.5)
    )
    assert not set(data.train) & set(data.test) and len(data.train) <= 160 and data.single
    seen = {tuple(X[i]) for i in data.train}
    assert len(data.test) > 0 and not seen & {tuple(X[i]) for i in data.test}
    assert tuple(np.zeros(6)) not in seen
    assert (data.labels[data.train].sum(axis=0) > 0).all()  # of labels of other examples none
    kept = labels.toarray()[np.concatenate([data.train, data.test])]
    columns = kept.sum(axis=0) > 0
    rows = data.labels.toarray()[np.concatenate([data.train, data.test])]
    np.testing.assert_array_equal(rows, kept[:, columns])


def test_labels_of_lists():
    lists = [["b", "a", "b"], ["c"], ["a", "c"], []]
    expected = [[1, 0], [0, 1], [1, 1], [0, 0]]
    np.testing.assert_array_equal(sets.several_labels(lists, min_count=2).toarray(), expected)
    assert sets.frequent(["x", "y", "x"], min_count=2) == [0, 2]
    X = sparse.csr_array(np.array([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    assert sets.words_of_columns(X) == ["w1 w2", ""]


CODE = '''
import a.b, c as d
from e.f import g
from . import h

def outer(x):
    """Return what is important."""
    def inner():
        return first.second(x)
    if x:
        import i
    return inner
'''


def test_code_is_read():
    assert list(sets.imported(CODE)) == ["a.b", "c", "e.f", "i"]
    assert "import" not in sets.IMPORT.sub("", CODE).replace("important", "")
    tree = ast.parse(CODE)
    assert [node.name for node in sets.outer_functions(tree)] == ["outer"]
    assert sets.names_in(tree) == {"x", "first", "second", "inner"}
    assert set(sets.called(tree)) == {"second"}
    names = [getattr(node, "name", None) for node in sets.statements(tree)]
    assert [name for name in names if name] == ["outer", "inner"]
    assert sets.parsed("def (") is None


@pytest.mark.parametrize("name", ["USPS", "Bibtex", "Penn Treebank"])
def test_a_set_without_its_folder_is_left_out(name):
    with pytest.raises(sets.LeftOut, match="no --"):
        sets.data_set(name, sets.Sources())


def test_penn_treebank(tmp_path):
    """The columns of a word before are its own, by its distance."""
    (tmp_path / "ptb.train.txt").write_text("a b c d\nb a\n" * 9, encoding="utf-8")
    data = sets.SETS["Penn Treebank"](sets.Sources(ptb=tmp_path))
    tokens = ["a", "b", "c", "d", "<eos>", "b", "a", "<eos>"] * 9
    names = sorted(set(tokens))
    expected = set()
    for i in range(3, len(tokens)):
        before = [names.index(tokens[i - k]) + (k - 1) * 5 for k in (1, 2, 3)]
        expected.add((tuple(sorted(before)), tokens[i]))
    found = {
        (tuple(row.indices.tolist()), names[label])
        for row, label in zip(data.X, data.labels.indices, strict=True)
    }
    assert found == expected


def test_one_vs_rest_is_refused_if_slow(monkeypatch):
    labels = sets.single_labels(np.arange(12))
    fitted = []
    peers.refuse_if_slow(labels, fitted.append)
    assert [targets.sum() for targets in fitted] == [1, 1, 1, 1]
    monkeypatch.setattr(peers, "MAX_ESTIMATE", 0.0)
    with pytest.raises(sets.LeftOut, match="it would take about"):
        peers.refuse_if_slow(labels, fitted.append)
    monkeypatch.setattr(peers, "MAX_ONE_VS_REST", 11)
    with pytest.raises(sets.LeftOut, match="more than 11 classes"):
        peers.refuse_if_slow(labels, fitted.append)


def test_silence(capfd):
    print("before")
    with peers.silence():
        os.write(1, b"within")  # as compiled code does
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"


def test_every_method_has_a_style():
    assert list(frontier.METHODS) == list(dict.fromkeys(frontier.METHODS))
    assert set(frontier.STYLES) == set(frontier.METHODS)


def test_committed():
    """Each data set has a row of the defaults, and its comparison is that of its rows."""
    rows = read_csv(FIGURES / "classifier_frontier.csv")
    names = {row["data"] for row in rows}
    assert len(names) >= 8
    assert {row["data"] for row in rows if row["method"] == "samplesoft"} == names
    for row in rows:
        assert row["seconds"] > 0.0 and 0.0 < row["precision_at_1"] <= 1.0
        if row.get("best_peer_at_1"):
            best = max(
                other["precision_at_1"]
                for other in rows
                if other["data"] == row["data"] and not other["method"].startswith("samplesoft")
            )
            assert row["points_at_1"] == pytest.approx(
                100 * (row["precision_at_1"] - best), abs=0.02
            )
    ahead = {row["data"] for row in rows if row.get("points_at_1") and row["points_at_1"] > 0.5}
    assert {"modules, dense", "characters", "lines", "glyphs"} <= ahead  # as the page says
