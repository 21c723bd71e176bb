"""Progress on stderr: lines, and on a terminal a bar."""

import io
import re
import sys
import time

import numpy as np
import pytest
from retrieval_files import small_run

from samplesoft import _progress
from samplesoft._jit import COMPILES, njit, report_compilation
from samplesoft._progress import (
    TimeEstimate,
    progress_bar,
    progress_line_without_terminal,
    progress_phase,
)
from samplesoft.cli import main
from samplesoft.training import RetrievalTask

TIME = r"[\d.]+ s"


@pytest.fixture
def soon(monkeypatch):
    """Let the first line come after 20 ms, and the others 100 ms apart."""
    monkeypatch.setattr(_progress, "_FIRST_LINE_SECONDS", 0.02)
    monkeypatch.setattr(_progress, "_PAUSE_SECONDS", 0.1)


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the time that it is."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_line_comes_while_the_work_stands_still(soon, capsys):
    with progress_phase(True, "reading"):
        time.sleep(0.3)
    found = lines(capsys)
    assert all(re.fullmatch(rf"reading: {TIME}", line) for line in found)
    assert 2 <= len(found) <= 4  # after 20, 120 and 220 ms
    time.sleep(0.1)
    assert not lines(capsys)


def test_the_clock_of_a_bar_goes_on_while_the_work_stands_still(soon, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(True, desc="fit", total=5, unit="round"):
        shown = terminal.tell()
        time.sleep(0.2)
        assert terminal.tell() > shown
    closed = terminal.tell()
    time.sleep(0.1)
    assert terminal.tell() == closed


def test_quick_work_and_work_that_is_not_to_be_shown_have_no_lines(soon, capsys):
    with progress_phase(False, "reading"), progress_bar(False, desc="fit", total=1) as bar:
        bar.update()
        progress_line_without_terminal(False, "no")
        time.sleep(0.05)
    with progress_phase(True, "reading"):
        pass
    assert not lines(capsys)


def test_pauses_are_short_for_minutes_and_then_double_up_to_the_longest(monkeypatch):
    pauses = []
    monkeypatch.setattr(_progress, "_NUM_STEADY_LINES", 3)
    bar = progress_bar(True, desc="fit")
    monkeypatch.setattr(bar, "_closed", bar)
    bar.wait = lambda pause: pauses.append(pause) or len(pauses) == 10
    bar._write_lines()
    assert pauses == [1.0, 2.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_a_line_says_how_far_it_is_and_how_long_it_takes(clock, capsys):
    with progress_bar(True, each=True, desc="fit", total=2000, initial=500, unit="step") as bar:
        clock[0] += 10.0
        bar.set_postfix(loss=0.5)
        bar.update(500)  # of the 1,500 that were left
        clock[0] += 190.0
        bar.update(1000)
    assert lines(capsys) == [
        "fit: step 1,000 of 2,000, loss 0.5, 10 s, about 20 s left",
        "fit: step 2,000 of 2,000, loss 0.5, 3 min",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0.0 s"), (9.4, "9.4 s"), (9.6, "10 s"), (119.0, "119 s"), (150.0, "2 min")]
    + [(7100.0, "118 min"), (7200.0, "2.0 h"), (200_000.0, "55.6 h")],
)
def test_times_in_words(clock, seconds, words):
    pace = TimeEstimate()
    clock[0] += seconds
    assert pace.describe(7) == words


def test_a_stream_that_is_closed_is_no_error(soon, monkeypatch, tmp_path):
    with (tmp_path / "file").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_phase(True, "reading"):
            stream.close()
            time.sleep(0.1)  # an error in the thread would be a warning, and so an error here
    monkeypatch.setattr(sys, "stderr", None)
    with progress_phase(True, "reading"):
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("method", "start"),
    [
        ("__init__", "preparing "),
        ("examples", "checkpoint: "),
        ("run_fused_steps", "epoch 1: step "),
        ("validate", "epoch 1, validation: "),
        ("evaluate", "evaluating the best epoch: "),
    ],
)
def test_each_part_of_training_shows_that_it_is_alive(
    method, start, soon, monkeypatch, capsys, tmp_path
):
    def slow(*args, **options):
        time.sleep(0.1)
        return original(*args, **options)

    original = getattr(RetrievalTask, method)
    monkeypatch.setattr(RetrievalTask, method, slow)
    small = small_run(tmp_path)
    args = [*small, "--test", small[3], "--out", str(tmp_path / "run"), "--epochs", "1"]
    assert main(args) == 0
    assert any(line.startswith(start) for line in lines(capsys))


def new_kernel():
    @njit
    def double(x):
        return x + x

    @njit
    def four_times(x):
        return double(double(x))

    return four_times


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_says_once_that_kernels_are_compiled(monkeypatch, terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    kernel = new_kernel()
    monkeypatch.setattr(kernel._cache, "load_overload", lambda *_: None)
    with report_compilation(False):
        kernel(1)
    assert stream.getvalue() == ""
    with report_compilation(True):
        kernel(1)  # is compiled already
        assert stream.getvalue() == ""
        kernel(1.0)
        kernel(1j)
    kernel(np.ones(2))
    assert stream.getvalue() == "compiling kernels, which later runs find on disk\n"
