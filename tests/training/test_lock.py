"""One process at a time in a folder: who comes second is refused, and writes nothing."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest
from oracles.linear_task import LinearTask
from retrieval_files import small_run
from run_files import assert_same_end

from samplesoft.cli import main
from samplesoft.training import Settings, lock, train
from samplesoft.training.lock import LOCK, locked

SETTINGS = Settings(epochs=2, learning_rate=0.05, log_every=2)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_second_one_is_refused_before_it_writes(tmp_path):
    with locked(tmp_path):
        before = contents(tmp_path)
        with pytest.raises(ValueError) as raised:
            train(LinearTask(), SETTINGS, tmp_path)
        assert contents(tmp_path) == before
    for words in (repr(str(tmp_path)), f"process {os.getpid()} on ", "choose another folder"):
        assert words in str(raised.value)
    assert "delete" not in str(raised.value)
    train(LinearTask(), SETTINGS, tmp_path)


def test_the_lock_of_a_machine_that_is_gone_can_be_deleted(tmp_path):
    first, second = ExitStack(), ExitStack()
    first.enter_context(locked(tmp_path))
    (tmp_path / LOCK).write_text(f"process 7 on not-{socket.gethostname()}\n")
    with pytest.raises(ValueError, match="gone for good, delete '.*lock'"), locked(tmp_path):
        pass
    (tmp_path / LOCK).unlink()
    second.enter_context(locked(tmp_path))
    first.close()  # it was not gone: the lock of another stays
    with pytest.raises(ValueError, match=f"process {os.getpid()} on "), locked(tmp_path):
        pass
    second.close()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def unable(descriptor):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", unable)
    with pytest.warns(RuntimeWarning, match="cannot be locked: No locks available; see to it"):
        train(LinearTask(), SETTINGS, tmp_path)


FORKED = """
import os, signal, sys, time
from samplesoft.training.lock import locked

begun, begins = os.pipe()
with locked(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.close(1)
        os.write(begins, b"!")
        sys.stdin.readline()
        os._exit(0)
    os.read(begun, 1)  # on a busy machine a child may begin after its parent has ended
    print(child, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("end", ["killed", "ended"])
def test_a_forked_child_does_not_keep_the_lock(end, tmp_path):
    """Such as a worker that goes on a while after its parent."""
    command = [sys.executable, "-c", FORKED, str(tmp_path), end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        if end == "ended":
            assert parent.stdout.readline() == "ended\n"
        else:
            parent.wait()
        os.kill(child, 0)  # it lives
        with locked(tmp_path):
            pass
        parent.communicate("go on\n" * 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_leaves_the_lock_of_its_parent(tmp_path):
    """A child that comes out of the body frees nothing, and can lock another folder."""
    status, child = 1, None
    try:
        with locked(tmp_path / "a"):
            child = os.fork()
            if child == 0:
                with locked(tmp_path / "b"):
                    pass
            else:
                assert os.waitpid(child, 0)[1] == 0
                with pytest.raises(ValueError, match="in use"), locked(tmp_path / "a"):
                    pass
        status = 0
    finally:
        if child == 0:
            os._exit(status)


def test_never_two_at_once(tmp_path):
    """Threads that come and go, each as a process of its own to the kernel."""
    inside, entered, wrong = [], [], []

    def come_and_go(number):
        while entered.count(number) < 40:  # however often it comes in vain
            try:
                with locked(tmp_path / "run"):
                    inside.append(number)
                    wrong.extend([] if inside == [number] else [list(inside)])
                    entered.append(number)
                    inside.remove(number)
            except ValueError:
                pass

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


TRAINING = """
import sys
from samplesoft.training import loop
from samplesoft.cli import main

original, calls = loop._run_steps, []

def waiting(*arguments):
    calls.append(1)
    if len(calls) == 2:
        print("waiting", flush=True)
        sys.stdin.readline()
    return original(*arguments)

loop._run_steps = waiting
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes(tmp_path, capsys):
    """The first is killed; another takes over, and a third cannot resume beside it."""
    small = small_run(tmp_path, "--epochs", "3")
    whole, out = (["--out", str(tmp_path / name)] for name in ("whole", "run"))
    assert main([*small, *whole]) == 0
    for options in ([], ["--resume"]):
        with subprocess.Popen(
            [sys.executable, "-c", TRAINING, *small, *out, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as first:
            for line in first.stdout:
                if line == "waiting\n":
                    break
            assert first.poll() is None
            before = contents(tmp_path / "run")
            capsys.readouterr()
            for attempt in ([*out, "--seed", "3"], [*out, "--resume", "--epochs", "9"]):
                assert main(["train", "xc", *attempt]) == 2
                message = capsys.readouterr().err
                assert f"in use for training by process {first.pid} on" in message
                assert message.count("\n") == 1
            assert contents(tmp_path / "run") == before
            if options:
                first.communicate("go on\n")
                assert first.returncode == 0
            else:
                first.send_signal(signal.SIGKILL)
    assert_same_end(tmp_path / "whole", tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        p.name for p in (tmp_path / "whole").iterdir()
    }
