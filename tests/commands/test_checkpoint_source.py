"""``verify`` and ``tune`` on what ``train xc``, ``train items`` and a classifier have written."""

import argparse
import json

import numpy as np
import pytest
from oracles.linear_task import LinearTask
from retrieval_files import write_files

from samplesoft.cli import main
from samplesoft.commands.source import load_source
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.training import Settings, train

SMALL = ["--embedding-dim", "8", "--batch", "16", "--epochs", "2", "--loss", "full"]
QUICK = ["--trials", "1500", "--num-sampled", "5"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("data"))
    for kind, options in (("xc", ["--tau", "4"]), ("items", ["--no-normalize"])):
        data = ["--train", str(folder / f"{kind}-train.txt"), "--out", str(folder / kind)]
        assert main(["train", kind, *data, *SMALL, *options]) == 0
    return folder


@pytest.fixture(scope="module")
def classifier(files):
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    from samplesoft.sklearn import SampledSoftmaxClassifier

    X, Y = load_xml_repository(files / "single-train.txt")
    names = np.array([f"class {c}" for c in range(10)])[Y.indices]
    clf = SampledSoftmaxClassifier(embedding_dim=8, max_iter=5, random_state=0).fit(X, names)
    clf.save(files / "classifier.npz")
    return files / "classifier.npz"


def source(checkpoint, given=None, examples=1000, seed=0):
    names = ("logits", "labels", "embeddings", "corpus", "tau")
    return load_source(
        argparse.Namespace(
            **dict.fromkeys(names), checkpoint=checkpoint, input=given, examples=examples, seed=seed
        )
    )


def predictions(model, given, tmp_path):
    out = tmp_path / "out.jsonl"
    assert (
        main(["predict", "--model", str(model), "--input", str(given), "--output", str(out)]) == 0
    )
    return [json.loads(line) for line in out.read_text().splitlines()]


def assert_best(logits, line):
    """Check that the best logits are those that ``predict`` has found."""
    np.testing.assert_allclose(logits[line["classes"]], line["scores"], atol=1e-4)
    rest = np.delete(logits, line["classes"])
    assert rest.max() <= min(line["scores"]) + 1e-4


@pytest.mark.parametrize("kind", ["xc", "items"])
def test_verify_runs_on_what_the_checkpoint_holds(kind, files, tmp_path, capsys):
    out = tmp_path / "report.json"
    args = ["verify", "--checkpoint", str(files / kind / "best.npz"), *QUICK, "--json", str(out)]
    assert main([*args, "--samplers", "uniform,unigram,quadratic"]) == 0
    report = json.loads(out.read_text())
    assert {row["wrt"] for row in report["rows"]} == {"logits", "h", "class_embeddings"}
    assert report["settings"]["tau"] == (4.0 if kind == "xc" else 1.0)


def test_logits_of_a_file_are_those_of_predict(files, tmp_path):
    model, given = files / "xc" / "best.npz", files / "xc-train.txt"
    found, labels = source(model, given), load_xml_repository(given).labels
    lines = [line for line in predictions(model, given, tmp_path) if line["row"] != 7]
    assert len(found.logits) == len(lines) == 299  # one has no label
    for logits, label, line in zip(found.logits, found.labels, lines, strict=True):
        assert_best(logits, line)
        assert label in labels[[line["row"]]].indices
    data = load_xml_repository(given).labels
    np.testing.assert_array_equal(found.counts, data.sum(axis=0))
    assert not np.array_equal(source(model, given, seed=1).labels, found.labels)
    assert len(source(model, given, examples=4).logits) == 4


def test_a_users_label_is_left_out_of_the_items(files, tmp_path):
    model, given = files / "items" / "best.npz", files / "items-train.txt"
    found, taken = source(model, given), load_interactions(given)
    others = tmp_path / "others.txt"
    rows = [set(taken[[user]].indices.tolist()) for user in range(200)]
    for own, label in zip(rows, found.labels, strict=True):
        own.remove(label)
    text = [f"{user} " + " ".join(map(str, own)) for user, own in enumerate(rows)]
    others.write_text("\n".join(text) + "\n")
    for logits, own, line in zip(
        found.logits, rows, predictions(model, others, tmp_path), strict=True
    ):
        logits[list(own)] = -np.inf
        assert_best(logits, line)


def test_a_classifiers_file_needs_an_input(classifier, files, tmp_path, capsys):
    for command in ("verify", "tune"):
        assert main([command, "--checkpoint", str(classifier)]) == 2
        assert "got none; name a file of examples with --input" in capsys.readouterr().err
    given = files / "single-train.txt"
    found = source(classifier, given)
    labels = load_xml_repository(given).labels
    np.testing.assert_array_equal(found.labels, labels.indices)
    np.testing.assert_array_equal(found.counts, labels.sum(axis=0))
    names = [f"class {c}" for c in range(10)]
    for logits, line in zip(found.logits, predictions(classifier, given, tmp_path), strict=True):
        assert_best(logits, {**line, "classes": [names.index(name) for name in line["classes"]]})
    shared = ["--checkpoint", str(classifier), "--input", str(given), "--samplers", "unigram"]
    assert main(["verify", *shared, *QUICK]) == 0
    assert "single-train.txt" in capsys.readouterr().out
    assert main(["tune", *shared, "--num-sampled", "5", "--examples", "20"]) == 0


def test_absolute_scores_have_no_vectors(files, tmp_path):
    data = ["--train", str(files / "xc-train.txt"), "--out", str(tmp_path / "run")]
    assert main(["train", "xc", *data, *SMALL, "--loss", "full-absolute"]) == 0
    for given in (None, files / "xc-test.txt"):
        found = source(tmp_path / "run" / "best.npz", given)
        assert found.embeddings is None and (found.logits >= 0.0).all()
        assert found.counts is not None


def test_what_is_refused(files, tmp_path, capsys):
    model, given = str(files / "xc" / "best.npz"), str(files / "xc-test.txt")
    texts = {"wide": "1 21 10\n0 1:1\n", "labels": "1 20 11\n0 1:1\n", "none": "1 20 10\n 1:1\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    train(LinearTask(), Settings(epochs=1, learning_rate=0.1), tmp_path / "other")
    other = str(tmp_path / "other" / "best.npz")
    for options, message in [
        (["--input", given], "--input needs --checkpoint with it"),
        (["--checkpoint", model, "--tau", "3"], "--tau has no effect with --checkpoint"),
        (["--checkpoint", model, "--input", str(tmp_path / "wide")], "must have the 20 columns"),
        (["--checkpoint", model, "--input", str(tmp_path / "labels")], "must have the 10 labels"),
        (
            ["--checkpoint", model, "--input", str(tmp_path / "none")],
            "labels of some examples, got 1 without",
        ),
        (["--checkpoint", model, "--input", str(tmp_path / "absent")], "no such file"),
        (["--checkpoint", other, "--input", given], "that ranks classes for sparse inputs"),
    ]:
        for command in ("verify", "tune"):
            assert main([command, *options]) == 2
            assert message in capsys.readouterr().err
