"""No command writes over what it reads, or writes two things to one file, whatever names it has."""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from retrieval_files import small_run, write_files

from samplesoft.cli import build_parser, main
from samplesoft.commands import COMMANDS, files
from samplesoft.commands.files import InputFile, OutputFile, OutputFolder
from samplesoft.sklearn import SampledSoftmaxClassifier

LOSS = """
from helper_of_mine import uniform

def loss(class_embeddings, h, labels, num_sampled, seed):
    raise AssertionError("the work has begun")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go to a folder with one input of each kind."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    h, c = rng.standard_normal((3, 4)), rng.standard_normal((6, 4))
    np.savez("e.npz", h=h, class_embeddings=c, labels=[0, 1, 2], counts=np.arange(6) + 1)
    np.save("logits.npy", h @ c.T)
    np.save("labels.npy", np.arange(3))
    Path("text.txt").write_text("the cat sat\nthe dog ran\n" * 50)
    Path("in.txt").write_text("2 20 3\n0 0:1\n1 1:1\n")
    write_files(tmp_path)
    X, y = np.eye(20), np.arange(20) % 3
    SampledSoftmaxClassifier(max_iter=1, random_state=0).fit(X, y).save("m.npz")
    Path("helper_of_mine.py").write_text("uniform = 1\n")
    Path("loss_of_mine.py").write_text(LOSS)
    return tmp_path


PREDICT = {"model": "m.npz", "input": "in.txt"}
# arguments with the files of the options that read, and the options that write
READING = {
    "predict": (["predict"], PREDICT, ["output"]),
    "verify embeddings": (["verify"], {"embeddings": "e.npz"}, ["json", "html", "csv", "figure"]),
    "verify corpus": (["verify"], {"corpus": "text.txt"}, ["json", "csv"]),
    "verify logits": (["verify"], {"logits": "logits.npy", "labels": "labels.npy"}, ["json"]),
    "verify checkpoint": (["verify"], {"checkpoint": "m.npz", "input": "in.txt"}, ["html"]),
    "tune embeddings": (["tune"], {"embeddings": "e.npz"}, ["json", "html", "figure"]),
    "tune corpus": (["tune"], {"corpus": "text.txt"}, ["json"]),
    "tune checkpoint": (["tune"], {"checkpoint": "m.npz", "input": "in.txt"}, ["json"]),
    "train xc": (
        ["train", "xc", "--out", "run"],
        {"train": "xc-train.txt", "test": "xc-test.txt"},
        ["json"],
    ),
    "train items": (
        ["train", "items", "--out", "run"],
        {"train": "items-train.txt", "test": "items-test.txt"},
        ["json"],
    ),
}
CASES = [
    (name, reader, writer)
    for name, (_, inputs, outputs) in READING.items()
    for reader in inputs
    for writer in outputs
]


def arguments(name, **others):
    words, inputs, _ = READING[name]
    return [*words, *(w for n, path in (inputs | others).items() for w in (f"--{n}", str(path)))]


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(args, here, capsys, *words, status=2):
    before = contents(here)
    assert main(args) == status
    message = capsys.readouterr().err
    for word in words:
        assert word in message, message
    assert contents(here) == before
    assert not Path("run").exists()


@pytest.mark.parametrize("name, reader, writer", CASES)
def test_an_output_that_is_an_input_is_refused(name, reader, writer, here, capsys):
    path = READING[name][1][reader]
    if writer == "figure":  # whose name has one of three endings
        os.rename(path, "a.png")
        path = "a.png"
    options = {reader: path, writer: path}
    refused(arguments(name, **options), here, capsys, f"--{writer} would", f"--{reader} reads")


def link(source, kind):
    """Return another name of a file."""
    if kind == "absolute":
        return os.path.abspath(source)
    if kind == "roundabout":
        os.mkdir("sub")
        return f"./sub/../{source}"
    other = f"other-{os.path.basename(source)}"
    try:
        if kind == "hard link":
            os.link(source, other)
        elif kind == "symlink":
            os.symlink(source, other)
        else:  # of a folder
            os.symlink(".", "linked")
            other = os.path.join("linked", source)
    except OSError:
        pytest.skip("no such links here")
    return other


@pytest.mark.parametrize("kind", ["absolute", "roundabout", "hard link", "symlink", "folder"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name, reader, writer", [CASES[0], CASES[2], CASES[-1]])
def test_other_names_of_an_input(name, reader, writer, turned, kind, here, capsys):
    path = READING[name][1][reader]
    names = [path, link(path, kind)]
    inner, outer = names[::-1] if turned else names
    options = {reader: inner, writer: outer}
    refused(arguments(name, **options), here, capsys, f"--{writer}", f"--{reader}")


@pytest.mark.parametrize("kind", ["same", "absolute", "roundabout", "symlink", "folder", "inside"])
@pytest.mark.parametrize("name", ["verify embeddings", "tune embeddings"])
def test_two_outputs_to_one_file_that_is_not_there_yet(name, kind, here, capsys):
    os.mkdir("b")
    os.mkdir("b/c")
    if kind in ("symlink", "folder"):
        try:
            os.symlink("b/a", "b/link")
            os.symlink("b", "linked")
            os.remove("b/link")
            os.symlink("a", "b/link")
        except OSError:
            pytest.skip("no links here")
    other = {
        "same": "b/a",
        "absolute": os.path.abspath("b/a"),
        "roundabout": "./b/c/../a",
        "symlink": "b/link",
        "folder": "linked/a",
        "inside": "b/a/x",
    }[kind]
    args = arguments(name, json="b/a", html=other)
    refused(args, here, capsys, "--json and --html must name two files")


@pytest.mark.parametrize("ignores", [False, True])
def test_letters_that_a_file_system_does_not_tell_apart(ignores, here, capsys, monkeypatch):
    monkeypatch.setattr(files, "_ignores_case", lambda folder: ignores)
    args = arguments("verify embeddings", json="Straße.txt", html="STRASSE.TXT")
    if ignores:
        refused(args, here, capsys, "--json and --html must name two files")
    else:
        args += ["--samplers", "uniform", "--num-sampled", "2", "--trials", "2000"]
        assert main(args) == 0
        assert Path("Straße.txt").exists() and Path("STRASSE.TXT").exists()


def test_whether_a_file_system_tells_letters_apart(tmp_path):
    (tmp_path / "a").write_text("")
    assert files._ignores_case(str(tmp_path)) == (tmp_path / "A").exists()
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["options.json", "log.jsonl", ".lock"])
def test_a_run_does_not_write_over_its_data(name, here, capsys):
    os.rename("xc-train.txt", name)
    args = ["train", "xc", "--train", name, "--out", "."]
    refused(args, here, capsys, "--out would overwrite what --train reads")


def test_a_run_that_is_resumed_does_not_write_over_its_data(here, capsys):
    args = small_run(here, "--epochs", "1")
    assert main([*args, "--out", "whole"]) == 0
    data = args[args.index("--train") + 1]
    resumed = ["train", "xc", "--out", "whole", "--resume", "--epochs", "2"]
    refused([*resumed, "--json", data], here, capsys, "--json would", "--train reads")
    model = ["--json", "whole/best.npz"]
    refused([*resumed, *model], here, capsys, "--json must name a file of its own")


@pytest.mark.parametrize("path", ["run", "run/best.npz", "./run/x/../options.json", "run/.lock"])
def test_results_do_not_write_over_the_run(path, here, capsys):
    args = arguments("train xc", json=path)
    refused(args, here, capsys, "--json must name a file of its own", "--out")


def test_a_run_in_what_is_to_be_a_file(here, capsys):
    args = ["train", "xc", "--train", "xc-train.txt", "--out", "run/in", "--json", "run"]
    refused(args, here, capsys, "--json must name a file of its own", "--out")


@pytest.mark.parametrize("name", ["loss_of_mine.py", "helper_of_mine.py"])
def test_check_does_not_write_over_modules(name, here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for module in ("loss_of_mine", "helper_of_mine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    args = ["check", "loss_of_mine:loss", "--proposal", "uniform", "--json", name]
    refused(args, here, capsys, f"--json would overwrite the source of the module '{name[:-3]}'")


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("kind", ["folder", "absent", "below a file", "long", "device", "empty"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(kind, name, here, capsys):
    path = {
        "folder": str(here),
        "absent": "absent/a.json",
        "below a file": "in.txt/a.json",
        "long": "a" * 300,
        "device": os.devnull,
        "empty": "",
    }[kind]
    if kind == "device" and not Path(path).is_char_device():
        pytest.skip("no device with a name of its own")
    writer = READING[name][2][0]
    expected = "expected the name" if kind == "empty" else f"--{writer} must name a file"
    refused(arguments(name, **{writer: path}), here, capsys, expected)


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="permissions")
def test_a_folder_and_a_file_that_may_not_be_changed(here, capsys):
    os.mkdir("closed", 0o500)
    refused(arguments("predict", output="closed/a"), here, capsys, "--output must name a file")
    Path("kept").write_text("")
    os.chmod("kept", 0o400)
    refused(arguments("predict", output="kept"), here, capsys, "may not be changed")


def test_what_is_neither_is_written(here):
    assert main(arguments("predict", output="out.jsonl")) == 0
    assert main(arguments("predict", output="out.jsonl")) == 0  # over what it has written before
    assert len(Path("out.jsonl").read_text().splitlines()) == 2
    assert not [p for p in here.iterdir() if "draft" in p.name]


@pytest.mark.parametrize("command", [*COMMANDS, "train xc", "train items"])
def test_every_option_of_a_file_says_what_becomes_of_it(command):
    """So that the next one is checked too."""
    words = command.split()
    parser = build_parser(words)
    for word in words:
        subparsers = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = next(subparsers).choices[word]
    for action in parser._actions:
        if action.metavar in ("FILE", "PATH"):
            assert action.type in (InputFile, OutputFile), action.option_strings
        if action.metavar == "DIR":
            assert issubclass(action.type, OutputFolder)
