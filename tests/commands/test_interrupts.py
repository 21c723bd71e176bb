"""Ctrl-C and SIGTERM: exit status 130, one line of advice, and a run that goes on as if nothing."""

import os
import signal
import subprocess
import sys

import pytest
from retrieval_files import small_run
from run_files import assert_same_end, log_values

from samplesoft.cli import main

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
EVERY = ["--epochs", "4", "--checkpoint-every", "4"]

PROGRAM = """
import ctypes, os, signal, sys
from samplesoft import __main__

def interrupt():
    signal.raise_signal({number})

def at_call(owner, name, call, before=lambda *_, **__: None):
    original, calls = getattr(owner, name), []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == call:
            before(*args, **options)
            interrupt()
        return original(*args, **options)

    setattr(owner, name, interrupted)

{moment}
sys.exit(__main__.main())
"""


def at_call(place, call, before="lambda *_, **__: None"):
    """Return the code of an interrupt at a call of a function, such as "module:Class.name"."""
    module, path = place.split(":")
    owner, _, name = f"module.{path}".rpartition(".")
    return f"import {module} as module\nat_call({owner}, {name!r}, {call}, {before})"


STARTING = """
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "numba":
            interrupt()

sys.meta_path.insert(0, Finder)
"""
IN_A_KERNEL = """
import numba
from samplesoft.training import retrieval
raise_signal = ctypes.CDLL(None)["raise"]
raise_signal.argtypes, raise_signal.restype = [ctypes.c_int], ctypes.c_int

@numba.njit(nogil=True)
def kernel(x):
    return raise_signal({number}) + x.sum()

take = retrieval.RetrievalTask.take

def interrupted(self, *args):
    kernel(self.parameters["embedding.intercept"])
    return take(self, *args)

retrieval.RetrievalTask.take = interrupted
"""
HALF_A_LINE = """lambda path, _: open(path, "a").write('{"epoch": 2, "st')"""
TASK = "samplesoft.training.retrieval:RetrievalTask"
TRAIN = {
    "importing": (STARTING, "interrupted"),
    "preparing": (
        at_call(f"{TASK}.__init__", 1),
        "before the first",
    ),
    "first epoch": (
        at_call(f"{TASK}.take", 2),
        "--out {out} --resume",
    ),
    "kernel": (IN_A_KERNEL, "--out {out} --resume"),
    "log": (at_call("samplesoft.training.run_folder:append_line", 2, HALF_A_LINE), "--resume"),
    "checkpoint": (
        at_call("numpy:savez", 5, "lambda stream, **_: stream.write(b'half')"),
        "--resume",
    ),
    "report": (at_call("samplesoft.commands.train:show_report", 1), "--resume"),
}


def interrupted(args, moment, number, **options):
    """Run the program with a signal at a moment, and return what it has printed."""
    code = PROGRAM.replace("{moment}", moment).replace("{number}", str(int(number)))
    process = [sys.executable, "-c", code, *args]
    done = subprocess.run(process, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 130, done.stderr
    return done


@pytest.fixture(autouse=True)
def listening(monkeypatch):
    """Let the programs hear Ctrl-C even if these tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*small_run(folder), "--out", str(folder / "run"), *EVERY]) == 0
    return folder / "run"


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("moment", TRAIN)
def test_training_goes_on_to_the_same_bits(moment, whole, tmp_path):
    out = tmp_path / "run"
    number = signal.SIGINT if list(TRAIN).index(moment) % 2 else signal.SIGTERM
    code, advice = TRAIN[moment]
    small = small_run(whole.parent)
    done = interrupted([*small, "--out", str(out), *EVERY], code, number)
    assert advice.format(out=out) in done.stderr
    *progress, last, end = done.stderr.split("\n")  # of kernels that are compiled meanwhile
    assert last.startswith("samplesoft: interrupted") and end == ""
    assert all(line.startswith(("preparing ", "checkpoint: ", "epoch ")) for line in progress)
    if (out / "checkpoint.npz").exists():
        assert "--resume" in done.stderr
        assert main(["train", "xc", "--out", str(out), "--resume"]) == 0
    else:
        assert main([*small, "--out", str(out), *EVERY]) == 0
    assert_same_end(whole, out)
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}  # no drafts
    if moment not in ("importing", "preparing"):
        assert done.stdout.startswith("- xc in ")
    if moment == "report":
        assert done.stdout.count("- epoch ") == 4 == log_values(out)[-1]["epoch"]


@pytest.mark.slow
def test_verification_has_printed_its_parts(tmp_path):
    (tmp_path / "words.txt").write_text("the cat sat on the mat\n" * 50)
    args = ["--corpus", str(tmp_path / "words.txt"), "--samplers", "uniform", "--trials", "100"]
    moment = at_call("samplesoft.verification.verify:compare", 1)
    done = interrupted(["verify", *args, "--num-sampled", "2"], moment, signal.SIGINT)
    *progress, last, end = done.stderr.split("\n")  # of kernels that are compiled meanwhile
    assert (last, end) == ("samplesoft: interrupted", "")
    assert not any(line.startswith(("samplesoft", "Traceback")) for line in progress)
    assert done.stdout.startswith("- input: ") and done.stdout.count("\n") == 1


@pytest.mark.slow
def test_predictions_that_are_made_are_not_lost(tmp_path):
    items, out = tmp_path / "items.txt", tmp_path / "run"
    items.write_text("".join(f"{user} {user % 7} {(user + 1) % 7} 8\n" for user in range(40)))
    args = ["--train", str(items), "--out", str(out), "--epochs", "1", "--num-sampled", "2"]
    assert main(["train", "items", *args]) == 0
    args = ["predict", "--model", str(out / "best.npz"), "--input", str(items)]
    done = interrupted(args, at_call("json:dumps", 7), signal.SIGTERM)
    assert done.stderr == "samplesoft: interrupted\n"
    assert done.stdout.endswith("}\n") and done.stdout.count("\n") == 6


@pytest.mark.slow
def test_on_a_terminal_the_advice_has_a_line_of_its_own(tmp_path):
    termios = pytest.importorskip("termios")
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    moment = at_call(f"{TASK}.validate", 1)
    code = PROGRAM.replace("{moment}", moment).replace("{number}", "2")
    args = [*small_run(tmp_path), "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    while b"--resume" not in shown:
        shown += os.read(reader, 65536)
    os.close(reader)
    assert process.wait() == 130
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    assert lines[-1 if lines[-1] else -2].startswith("samplesoft: interrupted; continue with")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "code, status, words",
    [
        ("signal.raise_signal(number)", 130, "samplesoft: interrupted\n"),
        ("set_interrupt_advice(lambda: 1 / 0); signal.raise_signal(number)", 130, ""),
        # a second one, while the first waits or speaks
        (
            "set_interrupt_advice(lambda: signal.raise_signal(number)); "
            "signal.raise_signal(number)",
            130,
            "",
        ),
        ("sys.stderr = None; signal.raise_signal(number)", 130, ""),
        ("print('kept', end=''); signal.raise_signal(number)", 130, "samplesoft: interrupted\n"),
        ("ignore_interrupts(); signal.raise_signal(number)", 0, ""),
    ],
)
def test_end(code, status, words, number):
    start = "import signal, sys; from samplesoft._interrupts import *; end_at_interrupts()"
    command = [sys.executable, "-c", f"{start}; number = {int(number)}; {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, words)
    assert done.stdout == ("kept" if "kept" in code else "")


def test_a_program_in_the_background_of_a_script_goes_on():
    """There SIGINT is ignored from the start, and stays so."""
    code = "import signal; from samplesoft._interrupts import end_at_interrupts as end; end(); "
    code += "signal.raise_signal(signal.SIGINT); print('on')"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "on\n"
