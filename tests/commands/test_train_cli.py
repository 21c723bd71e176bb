"""``samplesoft train``: what it writes, prints, and refuses."""

import errno
import json
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from retrieval_files import small_run, write_files
from run_files import assert_same_end

import samplesoft.commands.train as train_command
from samplesoft.cli import main
from samplesoft.commands.train_options import _RUN_OPTIONS, MODELS, _model_options
from samplesoft.reports.values import field_descriptions
from samplesoft.samplers.registry import SAMPLERS as SAMPLER_NAMES
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    read_checkpoint,
    read_linear_softmax,
)

FILES = {".lock", "checkpoint.npz", "best.npz", "log.jsonl", "options.json"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return arguments of a run of ten steps in an epoch, without --out."""
    return small_run(tmp_path_factory.mktemp("small"))


def xc(files, out, *options):
    data = ["--train", str(files / "xc-train.txt"), "--out", str(out)]
    return main(["train", "xc", *data, "--embedding-dim", "8", "--batch", "16", *options])


RESUME = ["train", "xc", "--resume", "--out"]


def test_what_a_run_writes_and_prints(files, tmp_path, capsys):
    out, results = tmp_path / "run", tmp_path / "results.json"
    test = ["--test", str(files / "xc-test.txt"), "--epochs", "2", "--json", str(results)]
    assert xc(files, out, *test) == 0
    text = capsys.readouterr().out
    for words in (
        "epoch  train loss",
        "Lowest validation loss in epoch",
        "precision@1",
        ", test ",
    ):
        assert words in text
    values = json.loads(results.read_text())
    assert [line["epoch"] for line in values["epochs"]] == [1, 2]
    assert values["config"]["sampler"] == "clusters"
    losses = [line["validation_loss"] for line in values["epochs"]]
    assert values["validation"]["loss"] == min(losses)
    assert 0.0 < values["test"]["precision_at_1"] <= 1.0
    assert {path.name for path in out.iterdir()} == FILES


@pytest.mark.parametrize(
    "options, tau, optimizer, rate",
    [
        (["--sampler", "unigram", "--num-sampled", "6"], 10.0, "adagrad", 0.1),
        (["--loss", "full", "--no-normalize"], 1.0, "adagrad", 0.1),
        (["--loss", "full", "--optimizer", "adam", "--tau", "3"], 3.0, "adam", 0.003),
        (["--loss", "full", "--learning-rate", "0.5"], 10.0, "adagrad", 0.5),
        (["--loss", "full-logistic"], 1.0, "adagrad", 0.1),
    ],
)
def test_defaults_follow_what_is_trained(options, tau, optimizer, rate, files, tmp_path):
    assert xc(files, tmp_path / "run", *options, "--epochs", "1") == 0
    config = read_checkpoint(tmp_path / "run" / "checkpoint.npz").config
    assert config["task"]["tau"] == config["task"]["linear_softmax"]["tau"] == tau
    assert config["training"]["optimizer"] == optimizer
    assert config["training"]["learning_rate"] == rate


@pytest.mark.parametrize("options", [["--loss", "full"], ["--num-sampled", "5"]])
def test_a_model_without_an_embedding_is_read_again(options, files, tmp_path, capsys):
    """Where classes are drawn, its numbers stand in one row in the file."""
    out = tmp_path / "run"
    data = ["--train", str(files / "xc-train.txt"), "--out", str(out), "--epochs", "2"]
    assert main(["train", "xc", *data, "--no-embedding", *options]) == 0
    parameters = read_checkpoint(out / "best.npz").arrays["parameters/softmax.weights"]
    model = read_linear_softmax(out / "best.npz").model
    np.testing.assert_array_equal(model.parameters["softmax.weights"].ravel(), parameters.ravel())
    capsys.readouterr()
    path = str(files / "xc-test.txt")
    assert main(["predict", "--model", str(out / "best.npz"), "--input", path]) == 0
    assert capsys.readouterr().out.count("\n") == 80


@pytest.mark.slow
def test_killed_process_resumes(files, tmp_path):
    options = ["--checkpoint-every", "3", "--seed", "1", "--epochs", "2", "--num-sampled", "4"]
    assert xc(files, tmp_path / "whole", *options) == 0
    command = [sys.executable, "-c", KILL, "train", "xc", "--train", str(files / "xc-train.txt")]
    command += ["--out", str(tmp_path / "parts"), "--embedding-dim", "8", "--batch", "16"]
    assert subprocess.run([*command, *options], check=False).returncode == -signal.SIGKILL
    assert xc(files, tmp_path / "parts", *options, "--resume") == 0
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


KILL = """
import os, signal, sys
import numpy as np
from samplesoft.cli import main
from samplesoft.commands.train_options import _RUN_OPTIONS, MODELS, _model_options

savez, calls = np.savez, []

def killed(stream, **arrays):
    calls.append(arrays)
    savez(stream, **arrays)
    if len(calls) == 5:
        stream.truncate(1000)
        os.kill(os.getpid(), signal.SIGKILL)

np.savez = killed
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("sampler", "method", "stops"),
    [("learned-unigram", "step", (12, 37)), ("unigram", "run_fused_steps", (5, 8))],
    ids=["step by step", "in calls"],
)
def test_resumed_run_ends_with_the_same_bits(
    sampler, method, stops, small, tmp_path, monkeypatch, capsys
):
    options = ["--checkpoint-every", "4", "--sampler", sampler, "--epochs", "5"]
    assert main([*small, "--out", str(tmp_path / "whole"), *options]) == 0
    original, calls = getattr(RetrievalTask, method), []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) in stops:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(RetrievalTask, method, interrupted)
    assert main([*small, "--out", str(tmp_path / "parts"), *options]) == 130
    assert "interrupted; continue with --out" in capsys.readouterr().err
    assert main([*RESUME, str(tmp_path / "parts")]) == 130
    assert "steps in an epoch, goes on in epoch" in capsys.readouterr().out
    assert main([*RESUME, str(tmp_path / "parts")]) == 0
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_the_most_frequent_labels_take_part_for_certain(small, tmp_path):
    assert (
        main([*small, "--out", str(tmp_path / "run"), "--epochs", "1", "--num-certain", "5"]) == 0
    )
    assert read_checkpoint(tmp_path / "run" / "best.npz").config["task"]["num_certain"] == 5


def test_divergence_exits_1(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(RetrievalTask, "validate", lambda self: {"loss": np.inf})
    assert main([*small, "--out", str(tmp_path / "run")]) == 1
    assert "training has diverged" in capsys.readouterr().err
    assert read_checkpoint(tmp_path / "run" / "checkpoint.npz").values["step"] == 0


def test_rate_that_is_far_too_high(small, tmp_path, capsys):
    options = ["--no-normalize", "--optimizer", "sgd", "--learning-rate", "1e20"]
    assert main([*small, "--out", str(tmp_path / "run"), *options]) == 1
    message = capsys.readouterr().err
    assert "epoch 1, after " in message and "training has diverged" in message
    assert "Train anew in another folder with a lower learning rate." in message


def test_first_step_that_fails_leaves_the_folder_free(small, tmp_path, monkeypatch, capsys):
    def fails(self, optimizer, epoch, first, last):
        raise ValueError("no")

    args = [*small, "--out", str(tmp_path / "run"), "--epochs", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalTask, "run_fused_steps", fails)
        assert main(args) == 2
    assert "epoch 1, after 0 of 10 steps: no" in capsys.readouterr().err
    assert main(args) == 0


def test_results_of_a_run_whose_files_are_missing(small, tmp_path, capsys):
    assert main([*small, "--out", str(tmp_path), "--epochs", "2"]) == 0
    (tmp_path / "log.jsonl").unlink()
    capsys.readouterr()
    assert main([*RESUME, str(tmp_path)]) == 0
    assert "the log of the epochs is missing" in capsys.readouterr().out
    (tmp_path / "best.npz").unlink()
    assert main([*RESUME, str(tmp_path)]) == 2
    assert "copy checkpoint.npz to that name" in capsys.readouterr().err


def test_json_in_a_folder_to_be_made(small, tmp_path):
    out = tmp_path / "new" / "run"
    options = ["--json", str(out / "results.json"), "--epochs", "1"]
    assert main([*small, "--out", str(out), *options]) == 0
    assert json.loads((out / "results.json").read_text())["best_epoch"] == 1


def test_full_disk_is_reported_in_one_line(small, tmp_path, monkeypatch, capsys):
    def full(stream, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert main([*small, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "checkpoint.npz' cannot be written: No space left on device; make room" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("name", SAMPLER_NAMES)
def test_options_without_effect_are_refused_and_others_are_not(name, files, tmp_path, capsys):
    useful = {
        "--nu": name.startswith("rff") or name == "mixture",
        "--num-features": name.startswith("rff") or name in ("mixture", "positive"),
        "--update-every": "uni" not in name and "uniform" not in name,
    }
    for option, is_useful in useful.items():
        common = ["--sampler", name, "--num-sampled", "4", "--epochs", "1", option, "2"]
        assert xc(files, tmp_path / option, *common) == (0 if is_useful else 2)
        assert (f"{option} has no effect with" in capsys.readouterr().err) is not is_useful


XC = ["train", "xc", "--train", "{f}/xc-train.txt", "--out", "{t}/a"]
BAD = {
    "model": (["train"], "required: model"),
    "out": (["train", "xc"], "--out"),
    "train": (["train", "xc", "--out", "{t}/a"], "--train must name a file, got none"),
    "no file": (["train", "xc", "--train", "{t}/absent", "--out", "{t}/a"], "no such file"),
    "loss": ([*XC, "--loss", "x"], "--loss: invalid choice"),
    "sampler": ([*XC, "--sampler", "x"], "--sampler"),
    "optimizer without a rate": ([*XC, "--optimizer", "sgd"], "--learning-rate must be given"),
    "sampler of full": (
        [*XC, "--loss", "full", "--nu", "2"],
        "--nu has no effect with --loss full",
    ),
    "dropout": ([*XC, "--dropout", "1"], "--dropout"),
    "norms": (
        [*XC, "--sampler", "rff", "--no-normalize"],
        "--normalize must be True with sampler='rff'",
    ),
    "norms of logistic scores": (
        [*XC, "--loss", "full-logistic", "--normalize"],
        "--normalize must be False with loss='full-logistic'",
    ),
    "resume": (["train", "xc", "--out", "{t}/a", "--resume"], "nothing to resume"),
    "m of full": (
        [*XC, "--loss", "full", "--num-sampled", "5"],
        "--num-sampled has no effect with",
    ),
    "epochs": ([*XC, "--epochs", "0"], "--epochs"),
    "rate": ([*XC, "--learning-rate", "-1"], "--learning-rate"),
    "json": ([*XC, "--json", "{t}/b/c.json"], "--json must name"),
    "a weight of negatives": (
        [*XC, "--negative-weight", "2"],
        "--negative-weight has no effect with --loss sampled-masked",
    ),
    "shared by full": ([*XC, "--loss", "full", "--shared"], "--shared has no effect with"),
    "penalty of an embedding": (
        [*XC, "--alpha", "1"],
        "--alpha has no effect with an embedding",
    ),
    "length of no embedding": (
        [*XC, "--no-embedding", "--embedding-dim", "3"],
        "--embedding-dim has no effect with --no-embedding",
    ),
    "two of full": (
        [*XC, "--loss", "full", "--nu", "2", "--update-every", "3"],
        "--nu, --update-every have no effect with",
    ),
    "one of jackknife": (
        [*XC, "--loss", "jackknife-masked", "--num-sampled", "1"],
        "--num-sampled must be at least 2",
    ),
    "certain classes of nce": (
        [*XC, "--loss", "nce", "--num-certain", "2"],
        "--num-certain must be 0 with loss='nce', got 2; take one of sampled, sampled-masked",
    ),
    "certain classes of full": (
        [*XC, "--loss", "full", "--num-certain", "2"],
        "--num-certain has no effect with",
    ),
    "all labels certain": (
        [*XC, "--num-certain", "999"],
        "`num_certain` must be less than the number of classes 10, got 999",
    ),
    "labels beyond the candidates": (
        [*XC, "--loss", "nce", "--sampler", "two-pass"],
        "--sampler must draw every class with loss='nce'",
    ),
    "empty out": (["train", "xc", "--out", ""], "--out: expected the name of a folder"),
    "empty scheduler": ([*XC, "--scheduler", ""], "--scheduler: expected the address of a sch"),
    "below a file": ([*XC[:-1], "{f}/xc-test.txt/a"], "xc-test.txt' is a file; choose another"),
    "json is out": ([*XC, "--json", "{t}/b/../a"], "--json must name a file of its own"),
    "json is the log": ([*XC, "--json", "{t}/a/log.jsonl"], "--json must name a file of its own"),
    "out is a file": ([*XC[:-1], "{f}/xc-test.txt"], "xc-test.txt"),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD)
def test_bad_input_exits_2_with_a_message(args, message, files, tmp_path, capsys):
    assert main([arg.format(f=files, t=tmp_path) for arg in args]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert not [*tmp_path.iterdir()]  # no folder of a run that did not begin


def test_a_run_that_begins_while_the_data_are_read_is_left_alone(small, tmp_path, monkeypatch):
    out, read = tmp_path / "run", train_command.make_task

    def meanwhile(*args):
        monkeypatch.undo()
        assert main([*small, "--out", str(out), "--epochs", "1"]) == 0
        return read(*args)

    monkeypatch.setattr(train_command, "make_task", meanwhile)
    assert main([*small, "--out", str(out), "--epochs", "2"]) == 2
    assert read_checkpoint(out / "checkpoint.npz").values["epoch"] == 1


def test_changed_settings_are_named_on_resuming(small, tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert main([*small, *out, "--epochs", "1"]) == 0
    assert main([*small, *out, "--epochs", "1"]) == 2
    assert "resume it, choose another folder, or delete them" in capsys.readouterr().err
    assert main(["train", "xc", *out, "--resume", "--num-sampled", "20", "--seed", "3"]) == 2
    message = capsys.readouterr().err
    assert "task.num_sampled = 3 (asked for: 20)" in message
    assert "task.seed = 0 (asked for: 3)" in message
    assert main(["train", "items", *out, "--resume"]) == 2
    assert "holds a run of samplesoft train xc" in capsys.readouterr().err


def test_epochs_are_saved(small, tmp_path):
    assert main([*small, "--out", str(tmp_path), "--epochs", "1"]) == 0
    assert main([*RESUME, str(tmp_path), "--epochs", "3"]) == 0
    assert main([*RESUME, str(tmp_path)]) == 0
    assert read_checkpoint(tmp_path / "checkpoint.npz").values["epoch"] == 3
    (tmp_path / "options.json").unlink()  # as of a run that was begun from Python
    assert main([*small, "--out", str(tmp_path), "--resume", "--epochs", "4"]) == 0
    (tmp_path / "options.json").write_text("[")
    assert main([*RESUME, str(tmp_path)]) == 2


@pytest.mark.parametrize("settings", [RetrievalSettings, Settings])
def test_the_docstring_says_what_each_field_is(settings):
    texts = field_descriptions(settings)
    assert list(texts) and texts.keys() == {field.name for field in fields(settings)}
    assert all(len(text) > 15 and not text.endswith(".") for text in texts.values())


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_each_setting_is_an_option_that_names_its_default(model):
    options = _model_options(model)
    assert {field.name for field in fields(RetrievalSettings)} == set(options) - {"no_embedding"}
    for field in fields(RetrievalSettings):
        text, default = options[field.name].help, field.default
        if field.name == "dropout":
            default = model.dropout
        if default is not None and not options[field.name].switch:
            assert f"(default {default})" in text, text
    for option in (*options.values(), *_RUN_OPTIONS.values()):
        assert len(option.help) > 15 and not option.help.endswith(".")


def test_help_is_printed():
    for model in ("xc", "items"):
        done = subprocess.run(
            [sys.executable, "-m", "samplesoft", "train", model, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "--checkpoint-every" in done.stdout and "None" not in done.stdout
        assert (
            "random frequencies of the rff samplers, and features of positive (default"
            in " ".join(done.stdout.split())
        )
