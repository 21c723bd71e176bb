"""Files that another program holds, writers that share a path, and drafts of writers that died."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from oracles.linear_task import LinearTask
from retrieval_files import small_run
from run_files import assert_same_end
from scipy.sparse import csr_array

from samplesoft import _files
from samplesoft._files import FileInUse, atomic_write, write_text
from samplesoft.cli import main
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.reports.figures import save_figure, titled_figure
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import (
    Checkpoint,
    Settings,
    read_checkpoint,
    read_log,
    run_folder,
    train,
    write_checkpoint,
)

SETTINGS = Settings(epochs=4, learning_rate=0.05, log_every=2, checkpoint_every=4)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(_files, "_RETRY_PAUSES_SECONDS", (0.0,) * 4, raising=False)


def held(monkeypatch, refused):
    """Let `os.replace` refuse as Windows does where `refused` holds for a target and its call."""
    replace, calls = os.replace, []

    def refusing(source, target):
        name = Path(target).name
        calls.append(name)
        if refused(name, calls.count(name)):
            raise PermissionError(errno.EACCES, "Access is denied", str(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    return calls


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_model(path):
    X, y = np.eye(6), np.arange(6) % 3
    SampledSoftmaxClassifier(max_iter=1, random_state=0).fit(X, y).save(path)


def write_recommender(path):
    taken = csr_array(np.ones((6, 8)))
    model = SampledSoftmaxRecommender(embedding_dim=2, max_iter=1, random_state=0)
    model.fit(taken).save(path)


def write_predictions(path):
    folder = path.parent.parent
    if not (folder / "model.npz").exists():
        write_model(folder / "model.npz")
        (folder / "in.txt").write_text("2 6 3\n0 0:1\n1 1:1\n")
    args = ["--model", str(folder / "model.npz"), "--input", str(folder / "in.txt")]
    assert main(["predict", *args, "--output", str(path)]) == 0


WRITERS = {
    "model.npz": write_model,
    "recommender.npz": write_recommender,
    "checkpoint.npz": lambda path: write_checkpoint(path, Checkpoint({}, {}, {"a": np.ones(3)})),
    "report.html": lambda path: write_text(path, "<p>"),
    "report.png": lambda path: save_figure(titled_figure("as it is", (2, 2))[0], path),
    "predictions.jsonl": write_predictions,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_held_for_a_moment_is_written(name, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / name
    WRITERS[name](path)
    calls = held(monkeypatch, lambda name, call: call <= 6)
    WRITERS[name](path)
    assert calls == [name] * 7
    assert names(path.parent) == [name]


def test_a_file_that_stays_held_is_as_it_was_and_the_draft_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_text(path, "old")
    start = time.perf_counter()
    with monkeypatch.context() as patch:
        held(patch, lambda name, call: True)
        with pytest.raises(FileInUse, match="denied; another program may hold it") as raised:
            write_text(path, "new")
    assert 0.5 < time.perf_counter() - start < 10.0
    assert path.read_text() == "old"
    assert repr(str(raised.value.draft)) in str(raised.value)
    assert raised.value.draft.read_text() == "new"
    write_text(path, "newer")
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("which", ["best.npz", "checkpoint.npz", "both"])
@pytest.mark.parametrize("start, end", [(2, 12), (2, 13), (3, 13), (3, 23)])
def test_training_goes_on_and_puts_checkpoints_in_place_later(
    which, start, end, quick, tmp_path, monkeypatch
):
    train(LinearTask(), SETTINGS, tmp_path / "whole")
    names_held = {"both": ("best.npz", "checkpoint.npz")}.get(which, (which,))
    calls = held(monkeypatch, lambda name, call: name in names_held and start <= call < end)
    with pytest.warns(RuntimeWarning, match="cannot be replaced: .* the next checkpoint tries"):
        train(LinearTask(), SETTINGS, tmp_path / "held")
    assert all(calls.count(name) >= end for name in {*calls} & {*names_held})
    assert_same_end(tmp_path / "whole", tmp_path / "held")
    assert names(tmp_path / "held") == names(tmp_path / "whole")


def test_the_pair_of_checkpoints_stays_one_of_which_a_run_goes_on(quick, tmp_path, monkeypatch):
    """The best is held: the other one must not name an epoch that the best is not of."""
    train(LinearTask(), SETTINGS, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(line):
        if line["epoch"] == 3:
            raise Stop

    with monkeypatch.context() as patch:
        held(patch, lambda name, call: name == "best.npz" and call > 1)
        with pytest.warns(RuntimeWarning, match="best.npz"), pytest.raises(Stop):
            train(LinearTask(), SETTINGS, tmp_path / "held", progress=stop)
    best, last = (read_checkpoint(tmp_path / "held" / f"{x}.npz") for x in ("best", "checkpoint"))
    assert best.values["best_epoch"] == last.values["best_epoch"]
    train(LinearTask(), SETTINGS, tmp_path / "held", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "held")
    assert names(tmp_path / "held") == names(tmp_path / "whole")


@pytest.mark.parametrize("which", [("checkpoint.npz",), ("best.npz", "checkpoint.npz")])
def test_a_run_whose_end_is_refused_says_where_it_is(which, quick, tmp_path, monkeypatch):
    train(LinearTask(), SETTINGS, tmp_path / "whole")
    with monkeypatch.context() as patch:
        held(patch, lambda name, call: name == which[0] and call > 1)
        with (
            pytest.warns(RuntimeWarning, match="training goes on"),
            pytest.raises(PermissionError, match="rename .*draft.npz' to ") as raised,
        ):
            train(LinearTask(), SETTINGS, tmp_path / "held")
    words = str(raised.value).split("'")
    for name in which:  # as the message says
        os.replace(words[words.index(name) - 2], tmp_path / "held" / name)
    assert_same_end(tmp_path / "whole", tmp_path / "held")
    assert names(tmp_path / "held") == names(tmp_path / "whole")


def test_a_run_that_cannot_begin_is_refused_at_once(quick, tmp_path, monkeypatch):
    held(monkeypatch, lambda name, call: True)
    with pytest.raises(PermissionError, match="checkpoint.npz' cannot be replaced"):
        with pytest.warns(RuntimeWarning):
            train(LinearTask(), SETTINGS, tmp_path)


def test_the_command_ends_with_the_place_of_the_draft(quick, tmp_path, monkeypatch, capsys):
    held(monkeypatch, lambda name, call: name == "checkpoint.npz" and call > 2)
    with pytest.warns(RuntimeWarning, match="training goes on"):
        assert main([*small_run(tmp_path), "--out", str(tmp_path / "run"), "--epochs", "2"]) == 2
    message = capsys.readouterr().err
    assert "draft.npz' to 'checkpoint.npz'" in message and "Traceback" not in message


def test_a_log_that_is_held_for_a_while_has_all_its_lines(quick, tmp_path, monkeypatch):
    train(LinearTask(), SETTINGS, tmp_path / "whole")
    calls = []

    def refusing(path, *args, **options):
        calls.append(path)
        if 3 < len(calls) < 30:
            raise PermissionError(errno.EACCES, "Access is denied")
        return open(path, *args, **options)

    monkeypatch.setattr(run_folder, "open", refusing, raising=False)
    with pytest.warns(RuntimeWarning, match="the next line brings"):
        train(LinearTask(), SETTINGS, tmp_path / "held")
    assert_same_end(tmp_path / "whole", tmp_path / "held")
    assert len(read_log(tmp_path / "held" / "log.jsonl")) == len(set(calls)) * len(calls) - 26


@pytest.mark.parametrize("kind", ["checkpoint", "text"])
def test_writers_that_share_a_path(kind, tmp_path):
    """The last one wins, and a reader meets whole files alone."""
    path, wrong, read, over = tmp_path / "a.npz", [], [], threading.Event()

    def write(number):
        for turn in range(20):
            try:
                if kind == "text":
                    write_text(path, json.dumps([number] * 50_000))
                else:
                    arrays = {"a": np.full(50_000, number)}
                    write_checkpoint(path, Checkpoint({"by": number}, {"turn": turn}, arrays))
            except Exception as error:
                wrong.append(error)

    def check():
        if kind == "text":
            values = json.loads(path.read_text())
            assert len(values) == 50_000 and len(set(values)) == 1
        else:
            found = read_checkpoint(path)
            assert (found.arrays["a"] == found.config["by"]).all()

    def reader():
        while not over.is_set():
            try:
                check()
                read.append(1)
            except Exception as error:
                wrong.append(error)

    write_text(path, json.dumps([-1] * 50_000))
    if kind == "checkpoint":
        write_checkpoint(path, Checkpoint({"by": -1}, {}, {"a": np.full(50_000, -1)}))
    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    looking = threading.Thread(target=reader)
    for thread in (*threads, looking):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    looking.join()
    assert not wrong and read
    check()
    assert names(tmp_path) == ["a.npz"]


def test_shards_of_two_writers_are_not_mixed(tmp_path):
    """One writes all between two shards of the other; what the list names is of one of them."""
    from samplesoft.distributed.layer import ShardedSoftmaxLayer
    from samplesoft.losses import SampledSoftmaxLoss
    from samplesoft.optimizers import SGD
    from samplesoft.training import checkpoint, read_shards, write_shards

    layers = [
        ShardedSoftmaxLayer(
            np.full((6, 2), value),
            SampledSoftmaxLoss(),
            "uniform",
            2,
            optimizer=SGD(0.1),
            workers=3,
        )
        for value in (1.0, 2.0)
    ]
    written, begun = checkpoint.write_checkpoint, []

    def between(path, what):
        written(path, what)
        if not begun:
            begun.append(path)
            write_shards(tmp_path, layers[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_checkpoint", between)
        write_shards(tmp_path, layers[0])
    rows, _ = read_shards(tmp_path).part(0, 6)
    assert (rows == 1.0).all()
    write_shards(tmp_path, layers[1])
    rows, _ = read_shards(tmp_path).part(0, 6)
    assert (rows == 2.0).all()


KILLED = """
import os, signal, sys
from samplesoft._files import write_text

def die(*_):
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

os.replace = die
write_text(sys.argv[1], "draft")
"""
ALIVE = """
import sys
from samplesoft._files import atomic_write

with atomic_write(sys.argv[1]) as draft:
    draft.write_text("of another")
    print(draft, flush=True)
    sys.stdin.readline()
"""


def test_the_draft_of_a_process_that_was_killed_goes_at_the_next_save(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode != 0
    assert len(names(tmp_path)) == 2 and path.read_text() == "old"
    write_text(path, "new")
    assert names(tmp_path) == ["a.json"] and path.read_text() == "new"


def test_the_draft_of_a_process_that_lives_stays(tmp_path):
    path = tmp_path / "a.json"
    with subprocess.Popen(
        [sys.executable, "-c", ALIVE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        draft = Path(other.stdout.readline().strip())
        write_text(path, "mine")
        assert draft.exists()
        other.communicate("go on\n")
    assert other.returncode == 0
    assert names(tmp_path) == ["a.json"] and path.read_text() == "of another"


def test_whose_drafts_go(tmp_path):
    """Numbers of processes come again, as 1 does in containers, and mean nothing elsewhere."""
    here = f"{crc32(os.fsencode(_files.socket.gethostname())):08x}"
    elsewhere = f"{int(here, 16) ^ 1:08x}"
    stay = [
        f".a.{os.getppid()}-{here}-0123abcd.draft.txt",
        f".a.99999999-{elsewhere}-0123abcd.draft.txt",
    ]
    go = [
        f".a.99999999-{here}-0123abcd.draft.txt",
        f".a.{os.getpid()}-{here}-0123abcd.draft.txt",  # of one that had this number before
        f".a.{os.getpid()}.draft.txt",  # of an older version
        f".a.99999999-{elsewhere}-4567abcd.draft.txt",  # of yesterday
    ]
    for name in (*stay, *go):
        (tmp_path / name).write_text("draft")
    yesterday = time.time() - 90_000
    os.utime(tmp_path / go[-1], (yesterday, yesterday))
    with atomic_write(tmp_path / "a.txt") as mine:  # and another thread's, as it were
        mine.write_text("mine")
        write_text(tmp_path / "a.txt", "other")
        assert mine.exists()
    assert names(tmp_path) == sorted([*stay, "a.txt"])
    assert (tmp_path / "a.txt").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_in_the_middle_of_a_save(tmp_path):
    """The child's save leaves the parent's draft alone, and has one of its own."""
    path = tmp_path / "a.json"
    with atomic_write(path) as draft:
        draft.write_text("parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                write_text(path, "child")
                status = 0 if draft.exists() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert path.read_text() == "child"
    assert names(tmp_path) == ["a.json"] and path.read_text() == "parent"


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_draft(at, tmp_path, monkeypatch):
    path = tmp_path / "c.npz"
    write_checkpoint(path, Checkpoint({}, {}, {"a": np.ones(3)}))
    before = path.read_bytes()

    def full(*args, **_):
        if at == "write":
            args[0].write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    owner, name = {"write": (np, "savez")}.get(at, (os, at))
    monkeypatch.setattr(owner, name, full)
    with pytest.raises(OSError, match="'.*c.npz' cannot be written: No space left on device"):
        write_checkpoint(path, Checkpoint({}, {}, {"a": np.zeros(3)}))
    assert path.read_bytes() == before and names(tmp_path) == ["c.npz"]


def test_a_file_system_that_cannot_flush_a_folder(tmp_path, monkeypatch):
    fsync = os.fsync

    def refusing(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("name", ["m" * 250 + ".json", "ž" * 120 + ".json", "a." + "b" * 240])
def test_names_as_long_as_the_system_takes_them(name, tmp_path):
    path = tmp_path / name
    write_text(path, "old")
    write_text(path, "new")
    assert names(tmp_path) == [name]
