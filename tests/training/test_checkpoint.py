"""Checkpoints and logs: what is written comes back, and what is damaged is refused."""

import json
import os
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from samplesoft._files import atomic_write, write_text
from samplesoft.training.checkpoint import (
    Checkpoint,
    array_group,
    copy_arrays,
    read_checkpoint,
    require_config,
    write_checkpoint,
)
from samplesoft.training.run_folder import append_line, read_log, remove_lines_after_step

CONFIG = {"model": {"dim": 3, "name": "a"}, "rates": [0.1, None, True]}
VALUES = {"epoch": 2, "loss": 0.1 + 0.2, "best": None}


def arrays():
    rng = np.random.default_rng(0)
    return {
        "parameters/w": rng.standard_normal((5, 3)).astype(np.float32),
        "parameters/file": rng.standard_normal(4),
        "state/steps": np.array(7),
        "state/odd": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "state/empty": np.zeros((0, 2)),
        "state/special": np.array([0.0, -0.0, 5e-324, np.inf, np.nan]),
    }


@pytest.fixture
def path(tmp_path):
    write_checkpoint(tmp_path / "c.npz", Checkpoint(CONFIG, VALUES, arrays()))
    return tmp_path / "c.npz"


def test_what_is_written_comes_back_to_the_bit(path):
    found = read_checkpoint(path)
    assert found.config == CONFIG
    assert found.values == VALUES
    assert found.arrays.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()
    assert array_group("parameters", found.arrays).keys() == {"w", "file"}


def test_numpy_reads_it_too(path):
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["array/parameters/w"], arrays()["parameters/w"])


def test_same_content_gives_the_same_bytes(path):
    before = path.read_bytes()
    write_checkpoint(path, read_checkpoint(path))
    assert path.read_bytes() == before


def test_cut_short_at_any_place(path):
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 97), *range(len(whole) - 100, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"c.npz' must be a whole checkpoint"):
            read_checkpoint(path)
    path.write_bytes(whole + b" ")
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        read_checkpoint(path)


def test_any_byte_that_changed(path):
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 128):
            changed = bytearray(whole)
            changed[place] ^= bit
            path.write_bytes(changed)
            with pytest.raises(ValueError, match="take another copy"):
                read_checkpoint(path)


def test_other_files(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match="must be a whole checkpoint of samplesoft"):
        read_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError, match="absent.npz"):
        read_checkpoint(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match="must be a whole checkpoint.*directory"):
        read_checkpoint(tmp_path)


def test_other_format(path, monkeypatch):
    monkeypatch.setattr("samplesoft.training.checkpoint.FORMAT", 3)
    write_checkpoint(path, Checkpoint(CONFIG, VALUES, arrays()))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"c.npz' is a checkpoint of format 3, and .* reads .* 2"):
        read_checkpoint(path)


def test_nothing_is_pickled(path):
    objects = {"a": np.array([{}, []], dtype=object)}
    before = path.read_bytes()
    with pytest.raises(TypeError, match="'a' of a checkpoint must hold numbers"):
        write_checkpoint(path, Checkpoint({}, {}, objects))
    for bad in (float("nan"), {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            write_checkpoint(path, Checkpoint({}, {"loss": bad}, {}))
    assert path.read_bytes() == before
    with zipfile.ZipFile(path) as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())
        about = np.lib.format.read_array(archive.open("about.npy"), allow_pickle=False)
    assert json.loads(about.tobytes()) == {"format": 2, "config": CONFIG, "values": VALUES}


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({**CONFIG, "model": {"dim": 4, "name": "a"}}, r"model.dim = 3 \(asked for: 4\)"),
        ({**CONFIG, "extra": 1}, r"extra = nothing \(asked for: 1\)"),
        ({"model": CONFIG["model"]}, r"rates = \[0.1, None, True\] \(asked for: nothing\)"),
        (
            {**CONFIG, "model": {"dim": 2, "name": "b"}},
            r"model.dim = 3 \(asked for: 2\), model.name = 'a' \(asked for: 'b'\)",
        ),
    ],
)
def test_all_settings_that_differ_are_named(wanted, message):
    with pytest.raises(ValueError, match=f"'x.npz' was written with {message}; give"):
        require_config("x.npz", CONFIG, wanted)


def test_config_is_compared_as_json():
    require_config("x.npz", {"a": [1, 2], "b": 0.1}, {"a": (1, 2), "b": 0.1})


@pytest.mark.parametrize(
    "found, message",
    [
        ({"a": np.zeros(2)}, "holds nothing as 'b' where the model has float64 of shape"),
        ({"a": np.zeros(2), "b": np.zeros((2, 1))}, r"float64 of shape \(2, 1\) as 'b'"),
        ({"a": np.zeros(2), "b": np.zeros(3, np.float32)}, r"float32 of shape \(3,\) as 'b'"),
        (
            {"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)},
            r"float64 of shape \(1,\) as 'c' where the model has nothing",
        ),
    ],
)
def test_other_arrays_are_refused_and_nothing_is_overwritten(found, message):
    into = {"a": np.ones(2), "b": np.ones(3)}
    with pytest.raises(ValueError, match=f"'x.npz' holds .*{message}|'x.npz' {message}"):
        copy_arrays("x.npz", found, into)
    assert into["a"].all() and into["b"].all()


def test_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def fails(stream, **_):
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="no space left"):
        write_checkpoint(path, Checkpoint({}, {}, {}))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["c.npz"]


KILLED = """
import os, signal, sys
import numpy as np
from samplesoft.training.checkpoint import Checkpoint, write_checkpoint

def half(stream, **arrays):
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)

np.savez = half
write_checkpoint(sys.argv[1], Checkpoint({}, {}, {}))
"""


def test_killed_inside_the_write(path):
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    (draft,) = (p for p in path.parent.iterdir() if p != path)
    assert draft.read_bytes() == b"half"
    write_checkpoint(path, read_checkpoint(path))
    assert path.read_bytes() == before
    assert not draft.exists()


def test_drafts_of_living_writers_and_other_files_stay(tmp_path):
    path = tmp_path / "a[1].json"
    names = [
        f".a[1].{os.getppid()}.draft.json",  # of a process that lives
        ".a[1].notes.draft.json",
        ".a[1].json",
        ".a1.99999999.draft.json",  # another stem
        f".a[1].{'9' * 30}.json",
    ]
    for name in names:
        (tmp_path / name).write_text("kept")
    (tmp_path / f".a[1].{'9' * 30}.draft.json").write_text("removed")
    write_text(path, "new")
    assert {p.name for p in tmp_path.iterdir()} == {*names, path.name}


def test_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    with atomic_write(tmp_path / "a") as draft:
        draft.write_text("text")
    assert done == ["fsync", "replace", "fsync"]


LINES = '{"step": 5}\n{"step": 10, "loss": 1.0}\n{"step": 15}\n'


@pytest.mark.parametrize(
    "content, step, left",
    [
        ("", 0, 0),
        (LINES, 0, 0),
        (LINES, 4, 0),
        (LINES, 5, 1),
        (LINES, 10, 2),
        (LINES, 14, 2),
        (LINES, 15, 3),
        (LINES, 99, 3),
        (LINES + '{"step": 2', 99, 3),
        (LINES + '{"step": 20}', 99, 3),  # whole but for its end: the writer was cut off
        (LINES[:-1], 99, 2),
        (LINES + "\0\0\0", 99, 3),
    ],
)
def test_log_is_cut_back(content, step, left, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    remove_lines_after_step(path, step)
    assert len(read_log(path)) == left
    append_line(path, {"step": 100, "loss": 0.5})
    assert read_log(path)[left:] == [{"step": 100, "loss": 0.5}]
    assert path.read_text().startswith("".join(LINES.splitlines(keepends=True)[:left]))


@pytest.mark.parametrize("line", ["{", "5", '{"loss": 1}', '{"step": null}'])
def test_log_with_a_strange_line_is_left_alone(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f"{LINES}{line}\n{LINES}")
    with pytest.raises(ValueError, match="line 4: expected a JSON object of numbers with a step"):
        remove_lines_after_step(path, 99)
    assert path.read_text() == f"{LINES}{line}\n{LINES}"


def test_log_refuses_what_is_not_json(tmp_path):
    remove_lines_after_step(tmp_path / "log.jsonl", 0)
    with pytest.raises(ValueError):
        append_line(tmp_path / "log.jsonl", {"step": 1, "loss": float("nan")})
    assert read_log(tmp_path / "log.jsonl") == []
