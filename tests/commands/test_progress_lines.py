"""What ``train`` and ``verify`` print while they work, and what a killed pipe keeps of it."""

import os
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
from retrieval_files import small_run

from samplesoft._jit import COMPILES
from samplesoft.training import read_checkpoint, read_log

pytestmark = pytest.mark.slow
SAMPLESOFT = [sys.executable, "-m", "samplesoft"]
TIME = r"[\d.]+ (s|min)"
COMPILING = "compiling kernels, which later runs find on disk\n"
# on stderr, where a part takes seconds or a kernel is not on disk
ROW = r"- \S+, m = \d+: L1 bias \S+ in logits, .*\n"
SLOW = rf"((.+: (.+, )?{TIME}(, about {TIME} left)?\n)|{COMPILING}|{ROW})*"


@pytest.fixture(autouse=True)
def buffered(monkeypatch):
    """Let Python collect what goes into a pipe, as it does by default: lines must be flushed."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def logits(tmp_path):
    """Return arguments of ``verify``: a small input in several parts."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "logits.npy", rng.standard_normal((3, 200)))
    args = ["verify", "--logits", str(tmp_path / "logits.npy"), "--labels", "0,1,2"]
    return [*args, "--num-sampled", ",".join(map(str, range(2, 9))), "--trials", "2000"]


def test_training_prints_each_epoch(tmp_path):
    command = [*SAMPLESOFT, *small_run(tmp_path), "--out", str(tmp_path / "run"), "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(SLOW, done.stderr)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("- xc in ")
    assert re.match(r"- \d+ classes, \d+ examples; sampled-masked, ", lines.pop(1))
    records = [r for r in read_log(tmp_path / "run" / "log.jsonl") if "validation_loss" in r]
    for epoch, (line, record) in enumerate(zip(lines[1:4], records, strict=True), start=1):
        assert line.startswith(f"- epoch {epoch}: train loss {record['train_loss']:.4f}, ")
        assert f"validation loss {record['validation_loss']:.4f}" in line
        left = "" if epoch == 3 else rf", about {TIME} left"
        assert re.search(rf", precision@1 [\d.]+, {TIME}{left}$", line)
    assert lines[4] == ""
    assert lines[5].startswith("epoch  train loss")


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
@pytest.mark.parametrize("command", [pytest.param("train", marks=pytest.mark.thorough), "verify"])
def test_commands_say_once_that_kernels_are_compiled(command, tmp_path, logits):
    args = small_run(tmp_path) if command == "train" else logits
    args = [*args, "--out", str(tmp_path / "run"), "--epochs", "1"] if command == "train" else args
    without_kernels = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        [*SAMPLESOFT, *args], capture_output=True, text=True, check=True, env=without_kernels
    )
    assert done.stderr.count(COMPILING) == 1
    assert re.fullmatch(SLOW, done.stderr)


KILL = """
import os, signal, sys
from samplesoft.cli import main
from {module} import {owner}

original, calls = {owner}.{name}, []

def killed(*args, **options):
    calls.append(args)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **options)

{owner}.{name} = killed
sys.exit(main(sys.argv[1:]))
"""


def killed(args, **place):
    """Return stdout and stderr of a process that is killed in a call of a function."""
    command = [sys.executable, "-c", KILL.format(**place), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    return done.stdout, done.stderr


def test_killed_training_has_printed_each_epoch_that_ended(tmp_path):
    args = [*small_run(tmp_path), "--out", str(tmp_path / "run"), "--epochs", "9"]
    place = {"module": "samplesoft.training", "owner": "RetrievalTask", "name": "run_fused_steps"}
    printed, _ = killed(args, **place, call=4)
    first, resolved, *lines = printed.splitlines(keepends=True)
    assert all(line.endswith("\n") for line in (first, resolved, *lines))
    assert [re.match(r"- epoch (\d+): ", line)[1] for line in lines] == ["1", "2", "3"]
    assert read_checkpoint(tmp_path / "run" / "checkpoint.npz").values["epoch"] == 3


def test_killed_verification_has_printed_each_part_that_ended(logits):
    place = {"module": "samplesoft.verification", "owner": "verify", "name": "compare"}
    printed, progress = killed(logits, **place, call=9)
    assert printed.startswith("- input: logits of ")
    assert len(printed.splitlines()) == 1
    lines = re.findall(ROW, progress)
    assert len(lines) == 2  # of 3 examples each
    for m, line in enumerate(lines, start=2):
        assert re.fullmatch(rf"- uniform, m = {m}: L1 bias \S+ in logits, .*\n", line)


@pytest.mark.parametrize("which", ["train", "verify"])
def test_reader_that_leaves_ends_neither_the_work_nor_the_lines(which, logits, tmp_path):
    out, result = tmp_path / "run", tmp_path / "result.json"
    args = (
        logits if which == "verify" else [*small_run(tmp_path), "--out", str(out), "--epochs", "30"]
    )
    args = [*args, "--json", str(result)]
    with subprocess.Popen(
        [*SAMPLESOFT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("- ")
        process.stdout.close()
        assert re.fullmatch(SLOW, process.stderr.read())
    assert process.returncode == 0
    assert result.exists()


@pytest.mark.parametrize("args", [["--help"], ["train", "xc", "--help"], ["--version"]])
def test_reader_that_leaves_before_the_help_is_no_error(args):
    with subprocess.Popen(
        [*SAMPLESOFT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["1>&-", "2>&-"])
def test_output_that_is_closed_is_no_error(closed, tmp_path):
    command = [*SAMPLESOFT, *small_run(tmp_path), "--out", str(tmp_path / "run"), "--epochs", "2"]
    shell = f"exec {shlex.join(command)} {closed}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.count("- epoch") == (2 if closed == "2>&-" else 0)
    assert read_checkpoint(tmp_path / "run" / "checkpoint.npz").values["epoch"] == 2


def test_a_terminal_has_bars_and_no_lines(tmp_path):
    termios = pytest.importorskip("termios")
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    command = [*SAMPLESOFT, *small_run(tmp_path), "--out", str(tmp_path / "run"), "--epochs", "2"]
    with subprocess.Popen(command, stdout=writer, stderr=writer) as process:
        os.close(writer)
        shown = b""
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
    os.close(reader)
    assert process.returncode == 0
    assert b"- epoch" not in shown
    assert b"\repoch 2:" in shown and b"step/s" in shown
    assert b"epoch  train loss" in shown
