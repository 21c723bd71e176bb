"""Checkpoints that somebody has made by hand, with a checksum that is right: refused in words."""

import json
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
from archives import about, npy, write_archive, zeros
from oracles.linear_task import LinearTask
from retrieval_files import small_run
from scipy.sparse import csr_array

from samplesoft.cli import main
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    load_parameters,
    read_checkpoint,
    read_examples,
    read_linear_softmax,
    read_log,
    train,
    write_checkpoint,
)

SOUND = {"format": 2, "config": {}, "values": {}}
WHOLE = {"about": about(SOUND), "array/x": npy(np.ones(3))}
MANY = "9" * 5000
RAW = {
    "an encrypted member": (WHOLE, {"flags": 1}, "is encrypted, or compressed"),
    "another compression": (WHOLE, {"method": zipfile.ZIP_LZMA}, "is encrypted, or compressed"),
    "no about": ({"array/x": npy(np.ones(3))}, {}, "'about'"),
    "deep JSON": (WHOLE | {"about": about("[" * 10**5 + "]" * 10**5)}, {}, "too deep in one"),
    "no JSON": (WHOLE | {"about": about("{")}, {}, "Expecting property name"),
    "no UTF-8": (WHOLE | {"about": npy(np.full(9, 255, np.uint8))}, {}, "decode"),
    "digits": (WHOLE | {"about": about(f'{{"format": {MANY}}}')}, {}, "4300 digits"),
    "NaN": (WHOLE | {"about": about(SOUND | {"values": {"x": np.nan}})}, {}, "NaN is no number"),
    "a list": (WHOLE | {"about": about([1, 2])}, {}, "list indices"),
    "no values": (WHOLE | {"about": about({"format": 2, "config": {}})}, {}, "'values'"),
    "another format": (WHOLE | {"about": about(SOUND | {"format": 10**70})}, {}, "format 1000.*"),
    "Python objects": (
        WHOLE | {"array/x": npy(np.ones(3), b"{'descr':'|O','fortran_order':False,'shape':(3,)}")},
        {},
        "Object arrays",
    ),
    "no array": (WHOLE | {"array/x": b"text"}, {}, "magic"),
}


@pytest.mark.parametrize("kind", RAW)
def test_archives_with_a_right_checksum(kind, tmp_path):
    members, options, message = RAW[kind]
    path = tmp_path / "c.npz"
    write_archive(path, members, checksum=True, **options)
    with pytest.raises(ValueError, match=rf"c\.npz' .*{message}.*; (take|use)"):
        read_checkpoint(path)


def test_a_sound_archive_is_read(tmp_path):
    write_archive(tmp_path / "c.npz", WHOLE, checksum=True)
    assert read_checkpoint(tmp_path / "c.npz").arrays["x"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("where", ["array/x", "about"])
def test_arrays_are_asked_of_the_memory(where, tmp_path, monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 10**7)
    path = tmp_path / "c.npz"
    write_archive(path, WHOLE | {where: zeros(50 << 20, "|u1")}, checksum=True)
    tracemalloc.start()
    with pytest.raises(MemoryError, match=r"c\.npz' need 52\.4 MB, and 10 MB are available"):
        read_checkpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def crafted(path, change):
    """Write a checkpoint anew, with what a function changes in its config, values and arrays."""
    checkpoint = read_checkpoint(path)
    change(checkpoint.config, checkpoint.values, checkpoint.arrays)
    write_checkpoint(path, checkpoint)


def put(where, *names):
    """Return a change: the last name is the value that the path of names before it gets."""

    def change(config, values, arrays):
        *way, last, value = names
        target = {"config": config, "values": values, "arrays": arrays}[where]
        for name in way:
            target = target[name]
        if value is None:
            del target[last]
        else:
            target[last] = value

    return change


SETTINGS = Settings(epochs=2, optimizer="momentum", learning_rate=0.01, checkpoint_every=4)
RESUMED = {
    "unknown": put("values", "more", 1),
    "a list as task": put("config", "task", [1]),
    "no task": put("config", "task", None),
    "no parameter": put("arrays", "parameters/w", None),
    "a parameter that is not finite": put("arrays", "parameters/b", np.float32([np.nan])),
    "no state": put("arrays", "state/carried", None),
    "no steps of the optimizer": put("arrays", "optimizer/steps", None),
    "steps that are none": put("arrays", "optimizer/steps", np.ones(2)),
    "state that is not finite": put("arrays", "optimizer/velocity/w", np.full(7, np.nan)),
    "state of text": put("arrays", "optimizer/velocity/w", np.array("text")),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(LinearTask(), SETTINGS, folder)
    return (folder / "checkpoint.npz").read_bytes()


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_is_not_resumed(kind, run, tmp_path):
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(run)
    crafted(path, RESUMED[kind])
    before, task = path.read_bytes(), LinearTask()
    with pytest.raises(ValueError, match=r"checkpoint\.npz'"):
        train(task, SETTINGS, tmp_path, resume=True)
    assert path.read_bytes() == before
    assert not task.parameters["w"].any()
    if "task" in kind:
        with pytest.raises(ValueError, match=r"checkpoint\.npz'"):
            load_parameters(path, LinearTask())


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    X = csr_array(np.eye(4, dtype=np.float32))
    settings = RetrievalSettings(
        loss="full", sampler=None, num_sampled=None, validation=0.0, embedding_dim=3
    )
    train(RetrievalTask(X, X, settings), Settings(epochs=1, learning_rate=0.1), folder)
    return (folder / "best.npz").read_bytes()


EXAMPLES = {
    "a list as task": put("config", "task", []),
    "a list as softmax": put("config", "task", "linear_softmax", [1]),
    "no tau": put("config", "task", "linear_softmax", "tau", None),
    "no class vectors": put("arrays", "parameters/softmax.class_embeddings", None),
    "no labels": put("arrays", "examples/labels", None),
    "labels": put("arrays", "examples/labels", np.full(4, 7)),
    "text": put("arrays", "examples/h", np.full((4, 3), "x")),
    "biases": put("arrays", "parameters/softmax.biases", np.ones((4, 2))),
    "step": put("values", "step", None),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_examples_of_a_checkpoint(kind, linear, tmp_path):
    path = tmp_path / "c.npz"
    path.write_bytes(linear)
    crafted(path, EXAMPLES[kind])
    with pytest.raises(ValueError, match=r"c\.npz' must hold"):
        read_examples(path)


LINEAR = {
    "a list": put("config", "task", "linear_softmax", [3]),
    "dimension": put("config", "task", "linear_softmax", "embedding_dim", 10**400),
    "no size": put("config", "task", "linear_softmax", "num_inputs", None),
    "a type": put("config", "task", "linear_softmax", "dtype", "<f99"),
    "tau": put("config", "task", "linear_softmax", "tau", -1),
    "no parameters": put("arrays", "parameters/softmax.class_embeddings", None),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_models_for_prediction(kind, linear, tmp_path, capsys):
    path = tmp_path / "best.npz"
    path.write_bytes(linear)
    crafted(path, LINEAR[kind])
    with pytest.raises(ValueError, match=r"best\.npz' (must hold|holds)"):
        read_linear_softmax(path)
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("1 4 4\n0 1:1\n")
    assert main(["predict", "--model", str(path), "--input", str(inputs)]) == 2
    assert re.search("best.npz' (must hold|holds)", capsys.readouterr().err)


def test_a_model_in_float64_takes_inputs_of_norm_1(linear, tmp_path):
    path = tmp_path / "best.npz"
    path.write_bytes(linear)

    def widen(config, values, arrays):
        config["task"]["linear_softmax"]["dtype"] = "float64"
        arrays.update({k: a.astype(float) for k, a in arrays.items() if "parameters" in k})

    before = read_linear_softmax(path).top_k(csr_array(np.eye(4)), 2)
    crafted(path, widen)
    after = read_linear_softmax(path).top_k(csr_array(np.eye(4)), 2)
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


def test_sizes_of_a_file_are_asked_of_the_memory(tmp_path, capsys):
    (tmp_path / "xc.txt").write_text(f"2 3 {10**12}\n0 1:1\n1 1:1\n")
    (tmp_path / "items.txt").write_text(f"0 {10**9 - 1} 5\n1 3 4\n")
    for kind in ("xc", "items"):
        args = ["train", kind, "--train", str(tmp_path / f"{kind}.txt"), "--out", str(tmp_path)]
        assert main(args) == 2
        wanted = r"vectors for .*`num_classes` = .* need .* [GT]B, and .*without gaps"
        assert re.search(wanted, capsys.readouterr().err)


@pytest.mark.parametrize(
    "line",
    ["{", "5", "[]", '{"loss": 1}', '{"step": 1, "loss": "x"}', f'{{"step": {MANY}}}', "\udcff"],
)
def test_logs(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 5}}\n{line}\n', errors="surrogateescape")
    with pytest.raises(ValueError, match=r"log\.jsonl', line 2: expected a JSON object of numbers"):
        read_log(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl"):
        read_log(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "[1]", f'{{"epochs": {MANY}}}', '{"model": "xc", "epochs": "x"}']
)
def test_options_of_a_run(text, tmp_path, capsys):
    train(LinearTask(), Settings(epochs=1, learning_rate=0.1), tmp_path)
    (tmp_path / "options.json").write_text(text)
    assert main(["train", "xc", "--out", str(tmp_path), "--resume"]) == 2
    assert re.search("options.json' must hold the options|`epochs` must", capsys.readouterr().err)


def test_a_line_without_figures_is_left_out_of_the_report(tmp_path, capsys):
    args = [*small_run(tmp_path), "--out", str(tmp_path / "run")]
    assert main([*args, "--epochs", "1"]) == 0
    with (tmp_path / "run" / "log.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 5, "validation_loss": 1.0}) + "\n")
    assert main([*args, "--resume"]) == 0
    assert capsys.readouterr().out.count("\n    1  ") == 2
