"""The training loop: exact resumption, early stopping, divergence, kills at any moment."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracles.linear_task import LinearTask
from run_files import assert_same_end, log_values

from samplesoft.training.checkpoint import read_checkpoint
from samplesoft.training.run_folder import load_parameters, read_log, train
from samplesoft.training.settings import Settings


def settings(**changes):
    options = {"epochs": 4, "optimizer": "momentum", "learning_rate": 0.05, "log_every": 2}
    return Settings(**{**options, "checkpoint_every": 4, **changes})


class Stop(BaseException):
    """Ends a run as a signal does, and not as an error of the task."""


class Stopping(LinearTask):
    """Stops for good at one call of one method."""

    def __init__(self, method, call, **options):
        super().__init__(**options)
        original, calls = getattr(self, method), []

        def stops(*args):
            calls.append(args)
            if len(calls) == call:
                raise Stop
            return original(*args)

        setattr(self, method, stops)


@pytest.mark.parametrize(
    "method, call",
    [
        ("step", 1),
        ("step", 3),  # before the first checkpoint inside an epoch
        ("step", 5),  # just after it
        ("step", 7),
        ("after_step", 9),  # the last step of an epoch: parameters have changed, nothing is saved
        ("validate", 2),
        ("step", 30),
        ("examples", 7),  # while a checkpoint is made
        ("refresh", 4),
    ],
)
def test_resumed_run_ends_with_the_same_bits(method, call, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(LinearTask(), settings(), whole)
    with pytest.raises(Stop):
        train(Stopping(method, call), settings(), parts)
    task = LinearTask()
    train(task, settings(), parts, resume=True)
    assert_same_end(whole, parts)
    saved = read_checkpoint(whole / "checkpoint.npz").arrays["parameters/w"]
    assert task.parameters["w"].tobytes() == saved.tobytes()


def test_interrupted_twice_and_with_other_ends(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(LinearTask(), settings(epochs=6), whole)
    with pytest.raises(Stop):
        train(Stopping("step", 7), settings(epochs=1), parts)
    with pytest.raises(Stop):
        train(Stopping("step", 13), settings(epochs=6), parts, resume=True)
    with pytest.raises(Stop):
        train(Stopping("step", 1), settings(epochs=6), parts, resume=True)
    train(LinearTask(), settings(epochs=3), parts, resume=True)
    train(LinearTask(), settings(epochs=6), parts, resume=True)
    assert_same_end(whole, parts)


def test_comparison_sees_what_drifts(tmp_path):
    """A task whose sums are not made anew must fail, or the tests above prove nothing."""

    class Drifting(Stopping):
        def refresh(self):
            if not self.before.any():  # only when it starts
                super().refresh()

    train(Drifting("step", 0), settings(), tmp_path / "whole")
    with pytest.raises(Stop):
        train(Drifting("step", 30), settings(), tmp_path / "parts")
    train(Drifting("step", 0), settings(), tmp_path / "parts", resume=True)
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    script = Path(__file__).parents[1] / "kill_training.py"
    command = [sys.executable, str(script), str(tmp_path), "0", "40"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, drafts, _ = map(int, done.stdout.split())
    assert killed > 10
    assert drafts > 0  # some died while they wrote
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    names = {path.name for path in (tmp_path / "killed").iterdir()}
    assert names == {"checkpoint.npz", "best.npz", "log.jsonl", ".lock"}


def test_keyboard_interrupt_leaves_whole_files(tmp_path, monkeypatch):
    train(LinearTask(), settings(), tmp_path / "whole")
    savez = np.savez
    calls = []

    def interrupted(stream, **arrays):
        calls.append(arrays)
        savez(stream, **arrays)
        if len(calls) == 4:
            stream.truncate(100)
            raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(LinearTask(), settings(), tmp_path / "parts")
    assert not [path for path in (tmp_path / "parts").iterdir() if ".draft" in path.name]
    train(LinearTask(), settings(), tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    "cause, found", [(KeyboardInterrupt, KeyboardInterrupt), (None, SystemError)]
)
def test_keyboard_interrupt_of_a_compiled_function(cause, found, tmp_path):
    """Python calls it a SystemError where a function returns although Ctrl-C has come."""

    class Interrupted(LinearTask):
        def step(self, epoch, index):
            raise SystemError("returned a result with an exception set") from cause

    with pytest.raises(found):
        train(Interrupted(), settings(), tmp_path)


def test_learns_and_keeps_the_best(tmp_path):
    task = LinearTask()
    at = train(task, settings(epochs=12), tmp_path)
    lines = [line for line in read_log(tmp_path / "log.jsonl") if "validation_loss" in line]
    losses = [line["validation_loss"] for line in lines]
    assert losses[-1] < 0.1 * losses[0]
    assert at.best_loss == min(losses)
    assert at.best_epoch == 1 + int(np.argmin(losses))
    best = LinearTask()
    load_parameters(tmp_path / "best.npz", best)
    assert best.validate()["loss"] == min(losses)


def test_log_lines(tmp_path):
    train(LinearTask(), settings(epochs=2, log_every=4), tmp_path)
    lines = read_log(tmp_path / "log.jsonl")
    assert [(line["epoch"], line["step"]) for line in lines] == [
        *((1, 4), (1, 8), (1, 9)),
        *((2, 13), (2, 17), (2, 18)),
    ]
    assert set(lines[2]) - set(lines[1]) == {"validation_loss", "validation_bias"}
    for line in lines:
        assert line["learning_rate"] == 0.05
        assert line["examples_per_second"] > 0.0


def test_train_loss_is_the_mean_of_the_epoch(tmp_path):
    losses = []

    class Recording(LinearTask):
        def step(self, epoch, index):
            loss, gradients = super().step(epoch, index)
            losses.append(loss)
            return loss, gradients

    train(Recording(), settings(epochs=2, log_every=4), tmp_path)
    lines = read_log(tmp_path / "log.jsonl")
    np.testing.assert_allclose(lines[1]["train_loss"], np.mean(losses[:8]), rtol=1e-12)
    np.testing.assert_allclose(lines[5]["train_loss"], np.mean(losses[9:]), rtol=1e-12)


def test_a_schedule_changes_the_learning_rate(tmp_path):
    task = LinearTask()

    def falling(step):
        return 0.25 ** max((step - 1) // task.num_steps - 1, 0)

    train(task, settings(epochs=4, optimizer="sgd"), tmp_path, schedule=falling)
    lines = [r for r in read_log(tmp_path / "log.jsonl") if "validation_loss" in r]
    assert [line["learning_rate"] for line in lines] == [0.05, 0.05, 0.0125, 0.003125]


class Worsening(LinearTask):
    """Validates worse and worse after the second epoch."""

    losses = [3.0, 2.0, 2.5, 2.0, 2.1, 1.0]

    def __init__(self):
        super().__init__()
        self.epochs = np.zeros(1, np.int64)

    def validate(self):
        self.epochs = self.epochs + 1
        return {"loss": self.losses[int(self.epochs[0]) - 1]}

    def state(self):
        return {**super().state(), "epochs": self.epochs}

    def load_state(self, state):
        super().load_state(state)
        self.epochs = state["epochs"]


@pytest.mark.parametrize("patience, epochs", [(1, 3), (2, 4), (3, 5), (4, 6), (None, 6)])
def test_early_stopping(patience, epochs, tmp_path):
    at = train(Worsening(), settings(epochs=6, patience=patience), tmp_path)
    assert at.epoch == epochs
    assert at.best_epoch == (2 if epochs < 6 else 6)
    assert read_checkpoint(tmp_path / "best.npz").values["epoch"] == at.best_epoch
    again = train(Worsening(), settings(epochs=6, patience=patience), tmp_path, resume=True)
    assert again == at
    assert len(log_values(tmp_path)) == 5 * epochs


AFTER_6 = "epoch 2, after 6 of 9 steps"


class Diverging(LinearTask):
    def __init__(self, where, call):
        super().__init__()
        self.where, self.call = where, call

    def step(self, epoch, index):
        loss, gradients = super().step(epoch, index)
        if (epoch, index) == self.call:
            if self.where == "loss":
                loss = math.nan
            elif self.where == "gradient":
                gradients["w"][2] = np.inf
            elif self.where == "refused":
                raise ValueError("`h` must be finite, got nan.")
        return loss, gradients

    def validate(self):
        figures = super().validate()
        return {**figures, "loss": math.inf} if self.where == "validation" else figures


@pytest.mark.parametrize(
    "where, error, words",
    [
        (
            "loss",
            FloatingPointError,
            [AFTER_6, "loss is nan", "Train anew in another folder", "learning rate"],
        ),
        ("gradient", FloatingPointError, [AFTER_6, "'w'", "diverged"]),
        ("refused", ValueError, [AFTER_6, "`h` must be finite"]),
        ("validation", FloatingPointError, ["epoch 1, after 9 of 9", "validation loss is inf"]),
    ],
)
def test_divergence_names_the_step_and_spares_the_checkpoint(where, error, words, tmp_path):
    with pytest.raises(error) as raised:
        train(Diverging(where, (1, 6)), settings(), tmp_path)
    assert all(word in str(raised.value) for word in words), raised.value
    saved = read_checkpoint(tmp_path / "checkpoint.npz")
    assert saved.values["step"] == (8 if where == "validation" else 13)
    assert all(np.isfinite(array).all() for array in saved.arrays.values())


def test_parameters_that_overflow_are_not_saved(tmp_path):
    class Overflowing(LinearTask):
        def after_step(self, gradients):
            self.parameters["b"][0] = np.inf

        def step(self, epoch, index):
            return 0.0, {"w": np.zeros(7, np.float32)}

    with pytest.raises(FloatingPointError, match="parameter 'b'"):
        train(Overflowing(), settings(), tmp_path)
    assert read_checkpoint(tmp_path / "checkpoint.npz").values["step"] == 0


def test_a_run_is_never_overwritten(tmp_path):
    train(LinearTask(), settings(epochs=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="already holds checkpoint.npz, best.npz, log.jsonl"):
        train(LinearTask(), settings(epochs=1), tmp_path)
    with pytest.raises(ValueError, match=r"task.seed = 0 \(asked for: 1\)"):
        train(LinearTask(seed=1), settings(), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"training.learning_rate = 0.05 \(asked for: 0.1\)"):
        train(LinearTask(), settings(learning_rate=0.1), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"training.checkpoint_every = 4"):
        train(LinearTask(), settings(checkpoint_every=None), tmp_path, resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_to_resume(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        train(LinearTask(), settings(), tmp_path / "absent", resume=True)
    assert not (tmp_path / "absent").exists()


def test_damaged_checkpoint_is_refused_and_the_best_can_take_its_place(tmp_path):
    train(LinearTask(), settings(), tmp_path / "whole")
    train(LinearTask(), settings(), tmp_path / "hurt")
    path = tmp_path / "hurt" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-200])
    task = LinearTask()
    with pytest.raises(ValueError, match="cut short.* such as best.npz for checkpoint.npz"):
        train(task, settings(), tmp_path / "hurt", resume=True)
    assert not task.parameters["w"].any()
    path.write_bytes((tmp_path / "hurt" / "best.npz").read_bytes())
    train(task, settings(), tmp_path / "hurt", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "hurt")


@pytest.mark.parametrize(
    "options, name",
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"optimizer": "adamw"}, "optimizer"),
        ({"optimizer_options": {"beta": 3}}, "optimizer_options"),
        ({"optimizer_options": {"momentum": -3}}, "optimizer_options"),
        ({"patience": 0}, "patience"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"log_every": 0}, "log_every"),
    ],
)
def test_malformed_settings(options, name):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        settings(**options)


def test_settings_are_plain_json():
    config = settings(optimizer_options={"momentum": 0.5}).config()
    assert json.loads(json.dumps(config)) == config
    assert "epochs" not in config and "patience" not in config


def test_first_step_that_fails_leaves_no_run(tmp_path):
    with pytest.raises(ValueError, match="after 0 of 9 steps"):
        train(Diverging("refused", (0, 0)), settings(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    train(LinearTask(), settings(epochs=1), tmp_path)


def test_overflow_in_a_step_is_divergence(tmp_path):
    class Overflowing(LinearTask):
        def step(self, epoch, index):
            loss, gradients = super().step(epoch, index)
            self.carried = np.float32(1e38) * self.carried * np.float32(1e38)
            return min(loss, 1.0), gradients

    with pytest.raises(FloatingPointError, match="training has diverged: overflow"):
        train(Overflowing(), settings(), tmp_path)
