"""``samplesoft train xc``, ``train items`` and ``predict``: files, figures, resuming, refusals."""

import json

import numpy as np
import pytest
from retrieval_files import write_files
from scipy import sparse

from samplesoft.cli import main
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.models import LinearSoftmaxSettings
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    linear_task,
    read_checkpoint,
    read_linear_softmax,
    read_log,
    train,
)
from samplesoft.training.linear_task import LinearTask, with_unit_rows

SMALL = ["--embedding-dim", "8", "--batch", "16", "--epochs", "3"]
DRAWS = ["--sampler", "rff+softmax-leaf", "--num-sampled", "6", "--num-features", "16"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


def run(kind, files, out, *options, test=True):
    names = ["--train", str(files / f"{kind}-train.txt")]
    names += ["--test", str(files / f"{kind}-test.txt")] * test
    return main(["train", kind, *names, "--out", str(out), *SMALL, *options])


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("kind", ["xc", "items"])
@pytest.mark.parametrize(
    "options",
    [["--loss", "full"], ["--loss", "hierarchical"], DRAWS],
    ids=["full", "tree", "sampled"],
)
def test_what_is_learned_written_and_printed(kind, options, files, tmp_path, capsys):
    out, results = tmp_path / "run", tmp_path / "results.json"
    assert run(kind, files, out, "--json", str(results), "--epochs", "12", *options) == 0
    printed = capsys.readouterr()
    found = json.loads(results.read_text())
    headline = "recall_at_20" if kind == "items" else "precision_at_1"
    assert found["test"][headline] > 0.85, found["test"]
    assert found["validation"][headline] == pytest.approx(
        found["epochs"][found["best_epoch"] - 1][f"validation_{headline}"]
    )
    assert f"test {found['test'][headline]:.4f}" in printed.out
    if kind == "xc":
        assert found["num_unlabeled"] == 1
    log = read_log(out / "log.jsonl")
    assert sum("validation_loss" in line for line in log) == 12


@pytest.mark.parametrize(
    ("options", "shared", "tau"),
    [([], False, 10.0), (["--shared"], True, 10.0)]
    + [(["--loss", "full", "--no-normalize"], False, 1.0)],
)
def test_defaults_follow_the_other_options(options, shared, tau, files, tmp_path):
    draws = [] if "full" in options else DRAWS
    assert run("items", files, tmp_path, "--epochs", "1", *draws, *options, test=False) == 0
    config = read_checkpoint(tmp_path / "best.npz").config["task"]
    assert (config["shared"], config["tau"], config["dropout"]) == (shared, tau, 0.5)


@pytest.mark.parametrize(
    ("options", "reduction", "masked"),
    [
        ([], "pal-n", True),
        (["--label-reduction", "pal", "--no-mask-other-labels"], "pal", False),
        (["--label-reduction", "ova", "--loss", "nce"], "ova", True),
    ],
)
def test_what_several_labels_are(options, reduction, masked, files, tmp_path):
    assert run("xc", files, tmp_path, *DRAWS, *options, test=False) == 0
    task = read_checkpoint(tmp_path / "best.npz").config["task"]
    assert (task["label_reduction"], task["mask_other_labels"]) == (reduction, masked)


UNIFORM = ["--sampler", "uniform", "--num-sampled", "6"]


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    ("kind", "options"),
    [("xc", DRAWS), ("items", DRAWS), ("xc", ["--loss", "hierarchical"])]
    + [("items", [*UNIFORM, "--loss", loss]) for loss in ("bpr", "warp", "gbce")],
    ids=str,
)
def test_a_run_that_was_resumed_ends_with_the_same_bits(kind, options, files, tmp_path):
    assert run(kind, files, tmp_path / "whole", *options) == 0
    assert run(kind, files, tmp_path / "parts", *options, "--epochs", "1") == 0
    assert main(["train", kind, "--out", str(tmp_path / "parts"), "--resume", "--epochs", "3"]) == 0
    one, two = (
        read_checkpoint(tmp_path / name / "checkpoint.npz").arrays for name in ("whole", "parts")
    )
    assert {k: a.tobytes() for k, a in one.items()} == {k: a.tobytes() for k, a in two.items()}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_trains(name, files, tmp_path):
    data = load_xml_repository(files / "xc-train.txt")
    settings = RetrievalSettings(
        sampler=name, num_sampled=5, num_features=16, embedding_dim=4, dropout=0.0
    )
    at = train(
        RetrievalTask(*data, settings),
        Settings(epochs=3, optimizer="adagrad", learning_rate=0.1),
        tmp_path / "run",
    )
    losses = [
        x["validation_loss"]
        for x in read_log(tmp_path / "run" / "log.jsonl")
        if "validation_loss" in x
    ]
    assert at.epoch == 3
    assert losses[-1] < 1.6  # even scores have log 10 = 2.3


@pytest.mark.parametrize("loss", ["full", "hierarchical"])
@pytest.mark.parametrize("kind", ["xc", "items"])
def test_predictions(kind, loss, files, tmp_path, capsys):
    assert run(kind, files, tmp_path / "run", "--loss", loss, "--epochs", "10") == 0
    capsys.readouterr()
    model, given = str(tmp_path / "run" / "best.npz"), str(files / f"{kind}-train.txt")
    output = tmp_path / "out.jsonl"
    asked = ["predict", "--model", model, "--input", given, "--k", "2"]
    assert main([*asked, "--output", str(output)]) == 0
    assert capsys.readouterr().out == ""
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert text == output.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["user" if kind == "items" else "row"] for line in lines] == list(range(len(lines)))
    trained = read_linear_softmax(model)
    with pytest.raises(ValueError, match=r"read it with samplesoft\.training\.read_linear_softmax"):
        SampledSoftmaxRecommender.load(model)
    if kind == "xc":
        data = load_xml_repository(given)
        labels = [set(data.labels[[i]].indices) for i in range(len(lines))]
        hits = [line["classes"][0] in own for line, own in zip(lines, labels, strict=True) if own]
        inputs = data.inputs
    else:
        inputs = load_interactions(given)
        hits = [line["classes"][0] // 6 == line["user"] % 5 for line in lines]
        for line in lines:
            assert not set(line["classes"]) & set(inputs[[line["user"]]].indices.tolist())
    assert np.mean(hits) > 0.9
    _, scores = trained.top_k(inputs, 2)
    np.testing.assert_allclose([line["scores"] for line in lines], scores, atol=1e-6)
    assert all(line["scores"] == sorted(line["scores"], reverse=True) for line in lines)


def test_what_predict_refuses(files, tmp_path, capsys):
    assert run("xc", files, tmp_path / "run", "--loss", "full", test=False) == 0
    model, other = str(tmp_path / "run" / "best.npz"), tmp_path / "other.txt"
    other.write_text("1 21 10\n0 1:1\n")
    cut = tmp_path / "cut.npz"
    cut.write_bytes((tmp_path / "run" / "best.npz").read_bytes()[:-5])
    given = str(files / "xc-test.txt")
    for options, message in [
        (["--model", model, "--input", str(other)], "--input must have the 20 columns"),
        (["--model", model, "--input", given, "--k", "11"], "--k must be at most 10"),
        (["--model", str(cut), "--input", given], "must be a whole checkpoint"),
        (["--model", model, "--input", str(tmp_path / "none.txt")], "no such file"),
        (["--model", model, "--input", given, "--output", str(tmp_path)], "--output"),
    ]:
        assert main(["predict", *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loss", "full", "--sampler", "rff"], "--sampler has no effect with"),
        (["--no-normalize", "--sampler", "rff"], "--normalize must be True with"),
        (["--optimizer", "momentum"], "--learning-rate must be given"),
        (["--loss", "jackknife"], "invalid choice"),
        (["--label-reduction", "ova"], "must not be 'ova' for SampledSoftmaxLoss"),
        (["--validation", "1.0"], "expected a number from 0 to below 1"),
    ],
)
def test_options_that_are_refused(options, message, files, tmp_path, capsys):
    assert run("xc", files, tmp_path / "run", *options) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("*.*z"))


def test_files_that_do_not_fit_each_other(files, tmp_path, capsys):
    other = tmp_path / "test.txt"
    other.write_text("1 20 11\n0 1:1\n")
    given = ["train", "xc", "--train", str(files / "xc-train.txt"), "--out", str(tmp_path / "run")]
    assert main([*given, "--test", str(other)]) == 2
    assert "--test must have the 10 labels of --train, got 11" in capsys.readouterr().err
    assert main(["train", "xc", "--out", str(tmp_path / "run")]) == 2
    assert "--train must name a file" in capsys.readouterr().err


def test_validation_is_not_trained_on():
    labels = sparse.csr_array(np.ones((100, 3)))
    x = sparse.csr_array(np.eye(100, dtype=np.float32))
    task = RetrievalTask(x, labels, RetrievalSettings(validation=0.2, num_features=8))
    held = set(task._validation[0].indices.tolist())
    assert len(held) == 20
    assert not held & set(task.rows.tolist())


def test_validation_of_items_hides_some_and_knows_some():
    rng = np.random.default_rng(0)
    taken = sparse.csr_array((rng.random((60, 30)) < 0.2).astype(np.float32))
    settings = RetrievalSettings(validation=0.5, num_features=8)
    task = RetrievalTask(taken, taken, settings, leave_out=True)
    known, hidden = (matrix.toarray() for matrix in task._validation)
    assert not (known * hidden).any()
    assert 0.15 < hidden.sum() / (known + hidden).sum() < 0.35
    rows = (known + hidden)[hidden.any(axis=1)]
    assert (known[hidden.any(axis=1)].sum(axis=1) > 0).all()
    assert {tuple(row) for row in rows} <= {tuple(row) for row in taken.toarray()}


def test_rows_of_norm_one_at_the_limits_of_float32():
    big, tiny = np.float32(3e38), np.float32(1e-40)
    x = sparse.csr_array(np.array([[big, big], [tiny, 0.0], [0.0, 0.0]], np.float32))
    wanted = [[0.5**0.5, 0.5**0.5], [1.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(with_unit_rows(x).toarray(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (np.eye(3), np.eye(4), "a row for each of the 3 inputs"),
        (np.eye(3), np.zeros((3, 2)), "labels of some examples"),
    ],
)
def test_data_that_is_refused(x, labels, message):
    with pytest.raises(ValueError, match=message):
        RetrievalTask(sparse.csr_array(x), sparse.csr_array(labels), RetrievalSettings())


def test_the_sampler_is_made_anew_whenever_steps_have_doubled(monkeypatch):
    monkeypatch.setattr(linear_task, "_FIRST_REFRESH_STEPS", 4)
    x = sparse.csr_array(np.eye(6))
    settings = RetrievalSettings(sampler="unigram", num_sampled=2, batch_size=2, validation=0.0)
    task, anew = RetrievalTask(x, x, settings), []
    monkeypatch.setattr(task.model.softmax, "refresh", lambda: anew.append(step + 1))
    for step in range(40):  # in epochs of 3
        _, gradients = task.step(*divmod(step, task.num_steps))
        task.after_step(gradients)
    assert anew == [4, 8, 16, 32]


def test_labels_for_tune_are_one_of_each_example():
    rng = np.random.default_rng(0)
    labels = sparse.csr_array(rng.random((500, 9)) < 0.3, dtype=float)
    labels = labels[np.diff(labels.indptr) > 0]
    x = sparse.csr_array(rng.random((labels.shape[0], 4)), dtype=np.float32)
    steps = LinearTask(4, 9, LinearSoftmaxSettings(sampler="unigram"), np.ones(9), 0)
    found = steps.tune_inputs(x, labels)
    rows = np.arange(labels.shape[0])
    assert np.all(labels.toarray()[rows, found["labels"]] == 1.0)
    assert np.any(labels.toarray()[rows, np.roll(found["labels"], 1)] == 0.0)  # a wrong twin
    place = np.array([np.sum(labels[[k]].indices < found["labels"][k]) for k in rows])
    pairs = np.bincount(place[np.diff(labels.indptr) == 2], minlength=2)  # each as often
    assert len(pairs) == 2 and pairs.min() > 0.35 * pairs.sum()
    np.testing.assert_array_equal(found["h"], steps.model.embed(x))


@pytest.mark.parametrize("leave_out", [False, True])
def test_examples_without_labels_are_absent(leave_out):
    rng = np.random.default_rng(0)
    labels = sparse.csr_array((rng.random((150, 12)) < 0.3).astype(float))
    labels = labels[np.flatnonzero(np.diff(labels.indptr))]
    num = labels.shape[0]
    places = np.arange(num) * 3
    spread = sparse.csr_array((np.ones(num), (places, np.arange(num))), shape=(3 * num, num))
    inputs = labels if leave_out else sparse.csr_array(rng.random((num, 7)))
    more = spread @ labels if leave_out else sparse.csr_array(rng.random((3 * num, 7)) * 1e3)
    if not leave_out:
        more = sparse.csr_array(more.toarray())
        dense = more.toarray()
        dense[places] = inputs.toarray()
        more = sparse.csr_array(dense)
    settings = RetrievalSettings(embedding_dim=8, num_sampled=5, batch_size=16, sampler="unigram")
    part = RetrievalTask(inputs, labels, settings, leave_out=leave_out)
    whole = RetrievalTask(more, spread @ labels, settings, leave_out=leave_out)
    assert (whole.num_unlabeled, whole.num_steps) == (2 * num, part.num_steps)
    for index in range(2):
        first, second = whole.step(0, index), part.step(0, index)
        assert first[0] == second[0]
    assert whole.validate() == part.validate()
