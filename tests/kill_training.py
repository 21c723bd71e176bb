"""Train in child processes that kill themselves at given moments; run by test_training.py.

A moment is a number of lines that have run in the training loop, in the writing of files, or in
the standard library below it. Arguments: a folder, the seed of the moments, their number.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from oracles.linear_task import LinearTask

from samplesoft.training.checkpoint import read_checkpoint
from samplesoft.training.run_folder import read_log, train
from samplesoft.training.settings import Settings

SETTINGS = Settings(epochs=4, optimizer="adam", learning_rate=0.1, checkpoint_every=4, log_every=2)
TRACED = ("training", "_files.py", "zipfile", "npyio", "format.py", "linear_task")


def run(folder):
    return train(LinearTask(), SETTINGS, folder, resume=Path(folder, "checkpoint.npz").exists())


def count_lines(folder, deadly):
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not any(part in frame.f_code.co_filename for part in TRACED):
            return None
        lines += event == "line"
        if lines == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    run(folder)
    sys.settrace(None)
    return lines


def child(folder, deadly):
    """Return whether a child came to the end of the training before it killed itself."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            count_lines(folder, deadly)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0


def main(folder, seed, kills):
    most = count_lines(f"{folder}/whole", deadly=-1)
    rng = np.random.default_rng(int(seed))
    killed = drafts = 0
    killed_folder = Path(folder, "killed")
    for _ in range(int(kills)):
        done = child(killed_folder, int(rng.integers(1, most // 5)))
        killed += not done
        if killed_folder.exists():
            names = {path.name for path in killed_folder.iterdir()}
            left = {name for name in names if ".draft" in name}
            drafts += len(left)
            paths = {name.split(".")[1] for name in left}
            assert len(paths) == len(left), names  # those of earlier kills have been removed
            for name in names & {"checkpoint.npz", "best.npz"}:
                read_checkpoint(killed_folder / name)
            if "log.jsonl" in names:
                read_log(killed_folder / "log.jsonl")
    run(killed_folder)
    print(killed, drafts, most)


if __name__ == "__main__":
    main(*sys.argv[1:])
