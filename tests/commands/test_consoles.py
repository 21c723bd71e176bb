"""Consoles that cannot print a name, pipes that close, disks that are full: files are written."""

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from retrieval_files import write_files

import samplesoft
from samplesoft._files import write_text
from samplesoft._progress import progress_line_without_terminal
from samplesoft.cli import main
from samplesoft.commands import options as options_module
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import read_log

NAME = "Žluťoučký 模型 🎉"
LOSS = """
import numpy as np

def loss(class_embeddings, h, labels, num_sampled, seed):
    o = h @ class_embeddings.T
    return np.logaddexp.reduce(o, axis=1) - o[np.arange(len(h)), labels]
"""
VERIFY = "--samplers uniform --num-sampled 2 --trials 2000".split()
TRAIN = "--epochs 1 --embedding-dim 2 --num-sampled 2 --validation 0 --sampler uniform".split()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp(NAME)
    rng = np.random.default_rng(0)
    h, c = rng.standard_normal((3, 4)), rng.standard_normal((6, 4))
    labels = np.array([0, 1, 2])
    np.savez(folder / "e.npz", h=h, class_embeddings=c, labels=labels, counts=np.arange(6) + 1)
    np.save(folder / "logits.npy", h @ c.T)
    (folder / "text.txt").write_text("the cat sat\nthe dog ran\n" * 50)
    (folder / "own_loss.py").write_text(LOSS)
    write_files(folder)
    X, y = np.eye(20), np.arange(20) % 3
    SampledSoftmaxClassifier(max_iter=1, random_state=0).fit(X, y).save(folder / "model.npz")
    (folder / "in.txt").write_text("2 20 3\n0 0:1\n1 1:1\n")
    return folder


def commands(folder):
    """Return the arguments of each command but for its outputs, with a name in each."""
    at = {name: str(folder / name) for name in os.listdir(folder)}
    few = "--samplers uniform --num-sampled 2 --seconds 0.5".split()
    return {
        "verify": ["verify", "--embeddings", at["e.npz"], *VERIFY],
        "verify logits": ["verify", "--logits", at["logits.npy"], "--labels", "0,1,2", *VERIFY],
        "verify corpus": ["verify", "--corpus", at["text.txt"], *VERIFY],
        "tune": ["tune", "--embeddings", at["e.npz"], *few],
        "check": ["check", "own_loss:loss", "--proposal", "uniform", "--calls", "4096"],
        "train xc": ["train", "xc", "--train", at["single-train.txt"], *TRAIN],
        "train items": ["train", "items", "--train", at["items-train.txt"], *TRAIN],
        "predict": ["predict", "--model", at["model.npz"], "--input", at["in.txt"]],
    }


def outputs(command, folder):
    """Return the options of all outputs of a command, and the files that they name."""
    wanted = {
        "verify": ("json", "html", "csv", "figure"),
        "tune": ("json", "html", "figure"),
        "check": ("json", "html", "figure"),
        "train": ("json",),
        "predict": ("output",),
    }[command.split()[0]]
    files = {
        name: folder / f"{NAME}-{name}.{'svg' if name == 'figure' else name}" for name in wanted
    }
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    if command.startswith("train"):
        options += ["--out", str(folder / NAME)]
    return options, files


def run(args, folder, encoding, **given):
    # without UTF-8 mode and coercion of the locale, which hide what consoles do
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "samplesoft", *args]
    return subprocess.run(
        command, capture_output=True, check=False, cwd=folder, env=environment, **given
    )


NAMES = [
    "verify",
    "train xc",
    "predict",
    "tune",
    "verify logits",
    "verify corpus",
    "check",
    "train items",
]


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "encoding, name",
    [("cp1252", name) for name in NAMES]
    + [("ascii", name) for name in ("verify", "train xc", "predict")],
)
def test_what_cannot_be_printed_is_replaced(encoding, name, files, tmp_path):
    options, written = outputs(name, tmp_path)
    done = run([*commands(files)[name], *options], files, encoding)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_size for path in written.values())
    for path in written.values():
        path.read_bytes().decode("utf-8")
    printed = done.stdout.decode(encoding)
    if name in ("verify", "verify logits", "verify corpus", "tune", "train xc"):
        assert r"\u6a21\u578b" in printed
    if "html" in written and name != "check":
        assert NAME in written["html"].read_text(encoding="utf-8")


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("command", ["verify", "predict", "train"])
def test_help_and_messages_of_such_names(command, encoding, tmp_path):
    assert run([command, "--help"], tmp_path, encoding).returncode == 0
    wrong = {
        "verify": ["verify", "--embeddings", f"{NAME}.npz"],
        "predict": ["predict", "--model", f"{NAME}.npz", "--input", NAME],
        "train": ["train", NAME],
    }
    done = run(wrong[command], tmp_path, encoding)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert rb"\u6a21\u578b" in done.stderr


class Console(io.TextIOWrapper):
    """A stream of a program around the command line, with an encoding of few letters."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="cp1252")


@pytest.mark.parametrize("kind", ["reconfigurable", "other"])
def test_streams_of_a_program_around_it_are_as_before(kind, files, tmp_path, monkeypatch):
    inner = Console()
    if kind == "other":  # without `reconfigure`, and as strict

        class Other:
            encoding, errors = "cp1252", "strict"
            write, flush = inner.write, inner.flush

            def isatty(self):
                return False

        stream = Other()
    else:
        stream = inner
    monkeypatch.setattr(sys, "stdout", stream)
    options, written = outputs("verify", tmp_path)
    assert main([*commands(files)["verify"], *options[:2]]) == 0
    inner.flush()
    assert rb"\u6a21\u578b" in inner.buffer.getvalue()
    assert stream.errors == "strict" and written["json"].exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_names_that_are_no_text_are_written_as_escapes(files, tmp_path):
    """As Python gives them: with lone surrogates, which UTF-8 does not have."""
    name = os.fsdecode(b"e-\xff.npz")
    (tmp_path / name).write_bytes((files / "e.npz").read_bytes())
    options, written = outputs("verify", tmp_path)
    assert main(["verify", "--embeddings", str(tmp_path / name), *VERIFY, *options]) == 0
    assert json.loads(written["json"].read_text(encoding="utf-8"))["settings"]["input"].endswith(
        "e-\udcff.npz"
    )
    assert r"e-\udcff.npz" in written["html"].read_text(encoding="utf-8")
    out = ["--out", str(tmp_path / os.fsdecode(b"run-\xff"))]
    assert main([*commands(files)["train xc"], *out]) == 0
    assert main(["train", "xc", *out, "--resume", "--epochs", "2"]) == 0
    assert read_log(tmp_path / out[1] / "log.jsonl")[-1]["epoch"] == 2


def test_text_is_the_same_bytes_on_all_systems(tmp_path):
    write_text(tmp_path / "a.txt", "ž\n\udcff\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "ž\n\\udcff\r\n".encode()


def test_files_are_there_before_anything_is_printed(files, tmp_path, monkeypatch):
    def broken(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(options_module, "show_report", broken)
    for name in ("verify", "train xc"):
        options, written = outputs(name, tmp_path)
        if name == "train xc":
            monkeypatch.setattr("samplesoft.commands.train.show_report", broken)
        assert main([*commands(files)[name], *options]) == 2
        assert all(path.stat().st_size for path in written.values())


@pytest.mark.thorough(but=1)
@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["verify", "predict", "tune", "train xc"])
def test_both_streams_into_a_pipe_that_is_closed(name, files, tmp_path):
    options, written = outputs(name, tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "samplesoft", *commands(files)[name], *options]
    done = subprocess.run(command, stdout=writer, stderr=writer, cwd=files, check=False)
    assert done.returncode == 0
    assert all(path.stat().st_size for path in written.values())
    wrong = [*command[:4], "--no-such-option"] if name != "predict" else [*command[:3], "predict"]
    assert subprocess.run(wrong, stdout=writer, stderr=writer, check=False).returncode == 2
    wrong = [*command, "--num-sampled", "0"] if name != "predict" else [*command, "--k", "999"]
    assert subprocess.run(wrong, stdout=writer, stderr=writer, check=False).returncode == 2
    os.close(writer)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full")
def test_stdout_on_a_full_disk_is_an_error(files):
    command = [sys.executable, "-m", "samplesoft", *commands(files)["predict"]]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_lines_of_progress_never_end_the_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Console())
    progress_line_without_terminal(True, NAME)
    sys.stderr.close()
    progress_line_without_terminal(True, NAME)


SOURCES = sorted(Path(samplesoft.__file__).parent.rglob("*.py"))
OF_THE_SYSTEM = {"_memory.py"}  # reads numbers in ASCII


def without_encoding(source):
    """Yield calls that open or read a text in whatever encoding the system has."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("open", "read_text", "write_text", "fdopen"):
            continue
        call = ast.unparse(node)
        owner = ast.unparse(getattr(node.func, "value", ast.Constant("")))
        of_archives = owner in ("os", "self._zip")  # numbers of files, and bytes
        own = name == "write_text" and owner == "''"  # of `samplesoft._files`, in UTF-8
        binary = any(f"b{end}" in call for end in "'+") and "encoding" not in call
        if "encoding=" not in call and not (of_archives or own or binary):
            yield call


def test_files_are_in_utf_8_whatever_the_system():
    found = {path.name: [*without_encoding(path.read_text(encoding="utf-8"))] for path in SOURCES}
    assert {name for name, calls in found.items() if calls} <= OF_THE_SYSTEM


def test_what_has_no_encoding_is_found():
    calls = "open(p)", "open(p, 'w')", "p.read_text()", "p.write_text('a')", "p.open('a')"
    for call in calls:
        assert [*without_encoding(call)] == [call]
    for call in (
        "open(p, 'rb')",
        "open(p, 'w+b')",
        "p.read_text(encoding='utf-8')",
        "os.open(p, 0)",
    ):
        assert not [*without_encoding(call)]
