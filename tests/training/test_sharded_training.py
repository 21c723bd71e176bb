"""``samplesoft train`` with class vectors on workers: the files of a run in memory."""

from contextlib import nullcontext

import numpy as np
import pytest
from retrieval_files import write_files
from run_files import assert_same_end

from samplesoft import _executors
from samplesoft.cli import main
from samplesoft.commands import train as command
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.distributed.worker import Shard
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    load_parameters,
    read_checkpoint,
    read_linear_softmax,
    train,
)
from samplesoft.training.linear_task import with_unit_rows
from samplesoft.training.run_folder import RunFiles

SMALL = {"embedding_dim": 8, "batch_size": 16, "num_sampled": 5, "seed": 1}
FLAGS = ["--embedding-dim", "8", "--batch", "16", "--num-sampled", "5", "--epochs", "2"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


def task_of(files, workers, kind="xc", **options):
    settings = RetrievalSettings(**{**SMALL, **options})
    if kind == "items":
        taken = load_interactions(files / "items-train.txt")
        return RetrievalTask(taken, taken, settings, leave_out=True, workers=workers)
    data = load_xml_repository(files / "xc-train.txt")
    return RetrievalTask(data.inputs, data.labels, settings, workers=workers)


def how(epochs=2, optimizer="adagrad"):
    often = {"checkpoint_every": 7, "log_every": 5}
    return Settings(epochs=epochs, optimizer=optimizer, learning_rate=0.1, **often)


def same_numbers(first, second):
    one, two = (read_checkpoint(folder / "checkpoint.npz").arrays for folder in (first, second))
    return all(array.tobytes() == two[name].tobytes() for name, array in one.items())


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    [
        ("xc", "adagrad", {}),
        ("items", "adam", {"dropout": 0.5}),
        ("xc", "sgd", {"sampler": "rff", "num_features": 32, "nu": 2.0, "update_every": 3}),
        ("xc", "momentum", {"loss": "gbce", "sampler": "quadratic", "label_reduction": "ova"}),
        ("xc", "adam", {"loss": "nce", "sampler": "quadratic", "normalize": False}),
    ],
)
def test_one_worker_ends_with_the_bits_of_none(kind, optimizer, options, files, tmp_path):
    for name, workers in (("memory", None), ("shard", 1), ("shards", 2)):
        train(task_of(files, workers, kind, **options), how(2, optimizer), tmp_path / name)
    assert_same_end(tmp_path / "memory", tmp_path / "shard")
    assert not same_numbers(tmp_path / "memory", tmp_path / "shards")  # others are seen


def test_static_draws_are_those_of_steps_one_by_one(files, tmp_path, monkeypatch):
    """In memory many such steps are one compiled call, which draws from other streams."""
    train(task_of(files, 1, sampler="unigram"), how(), tmp_path / "shard")
    monkeypatch.setattr(RetrievalTask, "fused_block_end", lambda *_: None)
    train(task_of(files, None, sampler="unigram"), how(), tmp_path / "memory")
    assert_same_end(tmp_path / "memory", tmp_path / "shard")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("before", [None, 3])
def test_any_number_of_workers_goes_on(before, optimizer, files, tmp_path):
    train(task_of(files, before), how(1, optimizer), tmp_path)
    written = read_checkpoint(tmp_path / "checkpoint.npz").arrays
    for workers in (None, 1, 2, 5):
        task, settings = task_of(files, workers), how(1, optimizer)
        made = task.start(make_optimizer(optimizer, settings.learning_rate))
        config = {"task": task.config(), "training": settings.config()}
        files_of_run = RunFiles(tmp_path, config, None, 1, nullcontext)
        at = files_of_run.load(task, made)
        files_of_run.save(task, made, at)
        found = read_checkpoint(tmp_path / "checkpoint.npz").arrays
        assert found.keys() == written.keys()
        for name, array in written.items():
            assert found[name].tobytes() == array.tobytes(), name
    assert train(task_of(files, 2), how(2, optimizer), tmp_path, resume=True).epoch == 2


def test_a_resumed_run_ends_with_the_same_bits(files, tmp_path, monkeypatch):
    train(task_of(files, 2), how(), tmp_path / "whole")
    original, calls = RetrievalTask.step, []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) in (5, 12, 30):  # before the first checkpoint in an epoch, within, later
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(RetrievalTask, "step", interrupted)
    for turn in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(task_of(files, 2), how(), tmp_path / "parts", resume=turn > 0)
    task = task_of(files, 2)
    train(task, how(), tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    # the same task again, whose vectors are on workers already
    assert train(task, how(3), tmp_path / "parts", resume=True).epoch == 3


def test_validation_is_that_of_all_classes(files, tmp_path):
    task = task_of(files, 3)
    train(task, how(), tmp_path)
    load_parameters(tmp_path / "best.npz", task)
    data = load_xml_repository(files / "xc-test.txt")
    kept = np.flatnonzero(np.diff(data.labels.indptr))
    inputs, labels = data.inputs[kept], data.labels[kept]
    arrays = read_checkpoint(tmp_path / "best.npz").arrays
    weights, intercept, rows = (
        arrays[f"parameters/{name}"].astype(float)
        for name in ("embedding.weights", "embedding.intercept", "softmax.class_embeddings")
    )
    losses = []
    for b, h in enumerate(with_unit_rows(inputs) @ weights + intercept):
        scores = 10.0 * (rows @ h) / np.linalg.norm(h) / np.linalg.norm(rows, axis=1)
        wanted = scores[labels[[b]].indices]
        losses.append(np.mean(np.log(np.exp(scores).sum()) - wanted))
    found = task.evaluate(inputs, labels)
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found["precision_at_1"] > 0.9  # it has learned
    ids, _ = read_linear_softmax(tmp_path / "best.npz").top_k(inputs, 3)
    np.testing.assert_array_equal(ids, task.model.top_k(with_unit_rows(inputs), 3)[0])


@pytest.fixture
def two_shards(monkeypatch):
    """Let every address be that of two shards in this process."""
    monkeypatch.setattr(command, "open_dask_client", lambda address: nullcontext(address and 2))


@pytest.mark.usefixtures("two_shards")
def test_a_lost_worker_is_an_error_that_says_resume(files, tmp_path, monkeypatch, capsys):
    steps, step = [], Shard.step

    def lost(self, *args):
        steps.append(self)
        return len(steps) < 9 and step(self, *args)

    arguments = ["train", "xc", "--train", str(files / "xc-train.txt"), *FLAGS]
    arguments += ["--checkpoint-every", "2", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "step", lost)
        assert main([*arguments, "--scheduler", "tcp://x:1"]) == 2
    error = capsys.readouterr().err
    assert "the worker of classes 0 to 4 was lost" in error
    assert "resume if there is a checkpoint, with any number of workers" in error
    assert main(["train", "xc", "--out", str(tmp_path / "run"), "--resume"]) == 0


@pytest.mark.usefixtures("two_shards")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--no-embedding"], "--embedding-dim must be a number for class vectors on workers"),
        (["--loss", "full"], "--loss must be one of sampled-masked"),
        (["--loss", "hierarchical"], "--loss must be one of sampled-masked"),
        (["--sampler", "softmax"], "--sampler must be one of uniform, unigram, clusters, rff"),
        (["--num-certain", "2"], "--num-certain must be 0 for class vectors on workers, got 2"),
    ],
)
def test_what_workers_cannot_do_is_refused(options, words, tmp_path, capsys):
    data = ["--train", str(tmp_path / "missing.txt"), "--out", str(tmp_path / "run")]
    assert main(["train", "xc", *data, "--scheduler", "tcp://x:1", *options]) == 2
    assert words in capsys.readouterr().err  # before the data are read


@pytest.mark.parametrize("kind", ["xc", "items"])
@pytest.mark.parametrize("where", ["threads", "processes", "nowhere", "tcp://127.0.0.1:1"])
def test_addresses_that_are_none(kind, where, files, tmp_path, monkeypatch, capsys):
    if where not in _executors.SCHEDULERS:
        pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
    monkeypatch.setattr(_executors, "_CONNECT_SECONDS", 0.3)
    data = ["--train", str(files / f"{kind}-train.txt"), "--out", str(tmp_path / "run")]
    assert main(["train", kind, *data, "--scheduler", where]) == 2
    error = capsys.readouterr().err
    assert "--scheduler must be the address of a scheduler of Dask" in error and where in error
    remedy = "leave it out to train on the threads" in error
    assert remedy == (where in _executors.SCHEDULERS)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def one_worker():
    """Return the address of a Dask cluster of one worker in this process."""
    distributed = pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
    how = {"processes": False, "protocol": "tcp://", "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, **how) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xc", "items"])
def test_the_command_on_a_worker_writes_the_same_files(kind, one_worker, files, tmp_path, capsys):
    data = ["--train", str(files / f"{kind}-train.txt"), "--test", str(files / f"{kind}-test.txt")]
    run = ["train", kind, *data, *FLAGS, "--out"]
    assert main([*run, str(tmp_path / "memory")]) == 0
    printed = capsys.readouterr().out.splitlines()[-6:]
    assert main([*run, str(tmp_path / "cluster"), "--scheduler", one_worker]) == 0
    assert_same_end(tmp_path / "memory", tmp_path / "cluster")
    untimed = [line for line in printed if " steps in " not in line]
    assert set(untimed) <= set(capsys.readouterr().out.splitlines())
    text = (tmp_path / "cluster" / "options.json").read_text()
    assert "scheduler" not in text  # a place, which a resumed run may leave
    resume = ["train", kind, "--out", str(tmp_path / "cluster"), "--resume", "--epochs", "3"]
    assert main(resume) == 0
    assert main(["train", kind, *resume[2:-1], "4", "--scheduler", one_worker]) == 0


@pytest.mark.slow
def test_two_processes_give_the_bits_of_two_shards_here(local_cluster, files, tmp_path):
    for name, workers in (("here", 2), ("there", local_cluster)):
        train(task_of(files, workers), how(1, "adam"), tmp_path / name)
        train(task_of(files, workers), how(2, "adam"), tmp_path / name, resume=True)
    assert_same_end(tmp_path / "here", tmp_path / "there")
