"""Ctrl-C, SIGTERM and SIGKILL at random moments of the commands, and two processes in one folder.

Each run is interrupted up to four times, at moments from the start of its process to its end, and
then goes on to the end, where it must have the bits of one that nothing has interrupted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
from run_files import assert_same_end

from samplesoft.training import read_checkpoint, read_log

FIELDS = ("command", "signal", "tries", "finished_before", "before_samplesoft", "wrong_exit")
FIELDS += ("tracebacks", "other_words", "unreadable", "unequal", "left_files")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
INTERRUPTS = 4  # of one run
LATEST = 0.8  # of the time of a whole run, as parts take less
SEVERAL = ["--epochs", "12", "--checkpoint-every", "3"]


def commands(folder: Path) -> dict[str, list[str]]:
    """Return commands by name, with small data for them in `folder`; each writes to ``{out}``."""
    rng = np.random.default_rng(0)
    (folder / "text").mkdir()
    for part, lines in (("train", 150), ("valid", 10), ("test", 10)):
        words = [" ".join(f"w{word}" for word in row) for row in rng.integers(0, 30, (lines, 6))]
        (folder / "text" / f"my.{part}.txt").write_text("\n".join(words) + "\n")
    items = [f"{user} {' '.join(map(str, rng.integers(0, 30, 5)))}" for user in range(200)]
    (folder / "items.txt").write_text("\n".join(items) + "\n")
    examples = [f"{rng.integers(20)} {rng.integers(40)}:1.5 {40 + i % 9}:0.5" for i in range(200)]
    (folder / "xc.txt").write_text("\n".join(["200 50 20", *examples]) + "\n")
    small = ["--embedding-dim", "8", "--num-sampled", "5", *SEVERAL]
    out = ["--out", "{out}"]
    verify = ["--corpus", str(folder / "text"), "--samplers", "uniform,rff", "--trials", "20000"]
    return {
        "train xc": ["train", "xc", "--train", str(folder / "xc.txt"), *small, *out],
        "train items": ["train", "items", "--train", str(folder / "items.txt"), *small, *out],
        "verify": ["verify", *verify, "--json", "{out}/report.json"],
        "predict": [
            *("predict", "--model", str(folder / "train-items" / "best.npz")),
            *("--input", str(folder / "items.txt"), "--output", "{out}/lines.json"),
        ],
    }


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each command and signal, and one for two processes at once."""
    rng, found = random.Random(seed), {}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wholes = {}
        for command, args in commands(folder).items():
            wholes[command] = whole = Whole(args, folder / command.replace(" ", "-"))
            whole.make()
        for number, what in enumerate(cycle([*wholes, "two at once"])):
            if time.monotonic() > end:
                break
            out = folder / str(number)
            sent = SIGNALS[number // (len(wholes) + 1) % len(SIGNALS)]
            if what == "two at once":
                row = found.setdefault((what, "none"), Counter())
                two_at_once(wholes["train xc"], out, rng, row)
            else:
                row = found.setdefault((what, sent.name), Counter())
                interrupted(wholes[what], out, sent, rng, row)
    for (what, sent), row in sorted(found.items()):
        yield {"command": what, "signal": sent, **{field: row[field] for field in FIELDS[2:]}}


class Whole:
    """A command, and what it leaves when nothing interrupts it."""

    def __init__(self, args: list[str], out: Path) -> None:
        self.args, self.out = args, out
        self.trains = args[0] == "train"

    def make(self) -> None:
        """Run it twice, the first time to compile what has to be, and take its time."""
        for out in (self.out.with_suffix(".first"), self.out):
            start = time.monotonic()
            process = self.start(out)
            words = process.communicate()[1]
            assert process.returncode == 0, words
            self.seconds = time.monotonic() - start

    def start(self, out: Path, *more: str) -> subprocess.Popen[str]:
        if not self.trains:
            out.mkdir(exist_ok=True)
        args = [arg.format(out=out) for arg in (*self.args, *more)]
        return subprocess.Popen(
            [sys.executable, "-m", "samplesoft", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def go_on(self, out: Path) -> subprocess.Popen[str]:
        """Start it anew, or from its checkpoint if there is one."""
        return self.start(out, *(["--resume"] if (out / "checkpoint.npz").exists() else []))

    def check_files(self, out: Path, row: Counter[str]) -> None:
        """Count a folder with a file that is not whole."""
        try:
            for path in out.glob("[!.]*"):
                if path.suffix == ".npz":
                    read_checkpoint(path)
                elif path.suffix == ".jsonl":
                    read_log(path)
                elif self.trains:
                    json.loads(path.read_text(encoding="utf-8"))
                elif path.read_bytes() != (self.out / path.name).read_bytes():
                    raise ValueError(f"{path} is not whole")
        except ValueError as error:
            note(row, "unreadable", error)

    def check_end(self, out: Path, row: Counter[str]) -> None:
        """Run to the end, and count a folder that is not as that of the whole run."""
        process = self.go_on(out)
        words = process.communicate()[1]
        try:
            assert process.returncode == 0, words
            if self.trains:
                assert_same_end(out, self.out)
        except (AssertionError, OSError, ValueError) as error:
            note(row, "unequal", out, error)
        self.check_files(out, row)
        if sorted(os.listdir(out)) != sorted(os.listdir(self.out)):
            note(row, "left_files", out, os.listdir(out))


def interrupted(
    whole: Whole, out: Path, sent: signal.Signals, rng: random.Random, row: Counter[str]
) -> None:
    """Interrupt a run several times, and let it end."""
    for _ in range(INTERRUPTS):
        process = whole.go_on(out)
        time.sleep(rng.uniform(0.0, LATEST * whole.seconds))
        listened = listens(process)
        process.send_signal(sent)
        words = process.communicate()[1]
        row["tries"] += 1
        if process.returncode == 0:
            row["finished_before"] += 1
            count_words(words, "", row, out)
            break
        elif sent == signal.SIGKILL:
            row["wrong_exit"] += process.returncode != -signal.SIGKILL
            count_words(words, "", row, out)
        elif process.returncode != 130 and not listened:
            row["before_samplesoft"] += 1
        else:
            if process.returncode != 130:
                note(row, "wrong_exit", out, process.returncode, words)
            count_words(words, "samplesoft: interrupted", row, out)
        whole.check_files(out, row)
    whole.check_end(out, row)


def two_at_once(whole: Whole, out: Path, rng: random.Random, row: Counter[str]) -> None:
    """Start two processes in one folder, first anew and then to resume; one is refused.

    Two that resume may also come one after the other.
    """
    refusals = ("is in use for training by", "already holds checkpoint.npz")
    for more, codes in ((["--epochs", "9"], ([0, 2],)), (["--resume"], ([0, 2], [0, 0]))):
        processes = []
        for _ in range(2):
            processes.append(whole.start(out, *more))
            time.sleep(rng.uniform(0.0, 0.2 * whole.seconds))
        words = "".join(process.communicate()[1] for process in processes)
        found = sorted(process.returncode for process in processes)
        row["tries"] += 1
        if found not in codes:
            note(row, "wrong_exit", out, found, words)
        if found == [0, 2] and not any(refusal in words for refusal in refusals):
            note(row, "other_words", out, words)
        whole.check_files(out, row)
    whole.check_end(out, row)


def count_words(words: str, expected: str, row: Counter[str], out: Path) -> None:
    """Count tracebacks, and other words on stderr than one line that begins as expected."""
    if "Traceback" in words:
        note(row, "tracebacks", out, words)
    if not words.startswith(expected) or words.count("\n") != bool(expected):
        note(row, "other_words", out, words)


def note(row: Counter[str], field: str, *what: object) -> None:
    """Count what is wrong, and show it."""
    row[field] += 1
    print(field, *what, file=sys.stderr, flush=True)


def listens(process: subprocess.Popen[str]) -> bool:
    """Tell whether the program hears SIGTERM, which Python does not, or is so far that it should.

    It is so far when it loads NumPy.
    """
    proc = Path("/proc", str(process.pid))
    try:
        loaded, status = (proc / "maps").read_text(), (proc / "status").read_text()
    except OSError:  # not Linux, or it has ended
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return "numpy" in loaded or bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
