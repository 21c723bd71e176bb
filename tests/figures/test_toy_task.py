"""The toy task of CNTK's tutorial 207 follows the tutorial, resumes, and refuses bad settings."""

import doctest

import numpy as np
import pytest
import toy_task
from run_files import assert_same_end
from toy_task import LEARNING_RATE, MOMENTUM, TOY_LOSSES, ToySettings, ToyTask

from samplesoft.cli import main
from samplesoft.losses.registry import LOSSES
from samplesoft.training import Settings, read_checkpoint, read_examples, read_log, train

SETTINGS = Settings(
    10,
    "momentum",
    LEARNING_RATE * (1.0 - MOMENTUM),
    optimizer_options={"momentum": MOMENTUM},
    checkpoint_every=4,
)


def test_examples_of_docstrings():
    assert doctest.testmod(toy_task).failed == 0


@pytest.mark.thorough
def test_toy_follows_the_tutorial(tmp_path):
    """CNTK printed 3.07, 2.46 and 1.71 nats after 25, 45 and 95 batches."""
    losses = []
    for seed in range(5):
        train(ToyTask(ToySettings(seed=seed)), SETTINGS, tmp_path / str(seed))
        lines = read_log(tmp_path / str(seed) / "log.jsonl")
        losses.append([line["validation_loss"] for line in lines if "validation_loss" in line])
    by_batch = np.mean(losses, axis=0)  # after 10, 20, ... 100 batches
    np.testing.assert_allclose(np.interp(25, [20, 30], by_batch[1:3]), 3.067, atol=0.25)
    np.testing.assert_allclose(np.interp(45, [40, 50], by_batch[3:5]), 2.459, atol=0.25)
    np.testing.assert_allclose(np.interp(95, [90, 100], by_batch[8:]), 1.707, atol=0.25)


@pytest.mark.parametrize("options", [{}, {"data": "zipf", "proposal": "zipf"}])
def test_resumed_toy_ends_with_the_same_bits(options, tmp_path, monkeypatch):
    train(ToyTask(ToySettings(**options)), SETTINGS, tmp_path / "whole")
    step, calls = ToyTask.step, []

    def interrupted(self, epoch, index):
        calls.append(index)
        if len(calls) == 37:
            raise KeyboardInterrupt
        return step(self, epoch, index)

    monkeypatch.setattr(ToyTask, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(ToyTask(ToySettings(**options)), SETTINGS, tmp_path / "parts")
    train(ToyTask(ToySettings(**options)), SETTINGS, tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_toy_data_follow_their_distribution():
    for data, weights in (("uniform", np.ones(50)), ("zipf", 1 / (np.arange(50) + 5))):
        task = ToyTask(ToySettings(data=data, test_size=20_000))
        expected = 20_000 * weights / weights.sum()
        chi_square = ((np.bincount(task.test, minlength=50) - expected) ** 2 / expected).sum()
        assert chi_square < 85.4  # 49 degrees of freedom, 0.001
        wrong = np.bincount(task.test[task.test < 49], minlength=50)
        assert ((wrong - expected) ** 2 / expected).sum() > 85.4


def test_examples_give_the_logits_of_the_model(tmp_path):
    """Of a layer with biases, which are one more coordinate of the class vectors."""
    task = ToyTask(ToySettings())
    train(task, SETTINGS, tmp_path / "run")
    found = read_examples(tmp_path / "run" / "checkpoint.npz")
    parameters = read_checkpoint(tmp_path / "run" / "checkpoint.npz").arrays
    labels = task.test[:300]
    expected = task.projection[labels] @ parameters["parameters/softmax.class_embeddings"].T
    expected = expected + parameters["parameters/softmax.biases"]
    logits = found.tau * found.embeddings.h @ found.embeddings.class_embeddings.T
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert found.embeddings.labels.tolist() == labels.tolist()
    args = ["--trials", "1500", "--num-sampled", "5", "--samplers", "uniform", "--examples", "2"]
    assert main(["verify", "--checkpoint", str(tmp_path / "run" / "checkpoint.npz"), *args]) == 0


@pytest.mark.parametrize(
    "options, name",
    [
        ({"num_classes": 5}, "num_sampled"),
        ({"loss": "full"}, "num_sampled"),
        ({"data": "x"}, "data"),
        ({"embedding_dim": 0}, "embedding_dim"),
        *(({"loss": name}, "loss") for name in sorted(set(LOSSES) - set(TOY_LOSSES))),
    ],
)
def test_malformed_settings_of_the_toy_task(options, name):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        ToySettings(**options)


@pytest.mark.parametrize("loss", TOY_LOSSES)
def test_losses_of_the_toy_task(loss, tmp_path):
    options = {"loss": loss, "num_sampled": 10 if LOSSES[loss].draws else None}
    at = train(ToyTask(ToySettings(**options)), Settings(1, learning_rate=0.001), tmp_path)
    assert at.step == 10
