"""Schedules of the learning rate, in every loop that trains."""

from math import cos, pi

import numpy as np
import pytest
from scipy import sparse

from samplesoft.optimizers import OPTIMIZERS, SGD, make_optimizer
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import SCHEDULES, Callback, Settings, fit, make_schedule, read_log, train
from samplesoft.training.linear_task import LinearTask
from samplesoft.training.task import Task

RNG = np.random.default_rng(0)
X = sparse.csr_array((RNG.random((90, 12)) < 0.3).astype(np.float32))
Y = RNG.integers(0, 5, 90)


class Counting(Task):
    """A task that notes the learning rate of each step: its parameter falls by that."""

    num_steps, num_examples = 4, 1

    def __init__(self):
        self.parameters = {"w": np.zeros(1)}

    def step(self, epoch, index):
        return 0.0, {"w": -np.ones(1)}

    def config(self):
        return {}

    def validate(self):
        return {"loss": 1.0}


def rates(schedule, epochs=2, **options):
    """Return the learning rates of all steps, by what the parameter has gained."""
    task, seen = Counting(), []

    def noted(gradients):
        seen.append(task.parameters["w"][0])

    task.after_step = noted
    fit(task, SGD(2.0), epochs=epochs, schedule=schedule, **options)
    return np.diff(seen, prepend=0.0) / 2.0


@pytest.mark.parametrize("warmup", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("name", SCHEDULES)
def test_factors_by_hand(name, warmup):
    found = rates(make_schedule(name, 8, warmup))
    for step, factor in enumerate(found, start=1):
        if step <= warmup:
            wanted = step / warmup
        else:
            share = (step - warmup - 1) / (8 - warmup)
            wanted = {
                "constant": 1.0,
                "linear": 1.0 - share,
                "cosine": (1 + cos(pi * share)) / 2,
                "inverse-sqrt": 1 / np.sqrt(1 + 30 * share),
            }[name]
        assert factor == pytest.approx(wanted, rel=1e-12)
    assert (found > 0.0).all()  # no step is wasted


def test_after_the_last_step_the_factor_stays():
    schedule = make_schedule("linear", 4)
    assert schedule(4) == schedule(100) == 0.25


def test_a_schedule_of_ones_own():
    np.testing.assert_allclose(rates(lambda step: 1.0 / step), 1.0 / np.arange(1, 9))


def test_a_schedule_begins_with_each_fit_and_leaves_the_optimizer_as_it_was():
    task, optimizer = Counting(), SGD(1.0)
    for begin in (0.0, 2.5):  # 1 + 0.75 + 0.5 + 0.25
        fit(task, optimizer, epochs=1, schedule=make_schedule("linear", 4))
        assert task.parameters["w"][0] == begin + 2.5
        assert optimizer.schedule is None and optimizer.learning_rate == 1.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_one_call_have_the_rates_of_steps_one_by_one(name, monkeypatch):
    """A call of many compiled steps takes the rate of each from the same place."""
    kinds = {"loss": "sampled-masked", "num_sampled": 3, "optimizer": name, "learning_rate": 0.05}
    how = {**kinds, "schedule": "cosine", "warmup": 0.3, "max_iter": 3, "batch_size": 16}
    one = SampledSoftmaxClassifier(8, random_state=0, **how).fit(X, Y)
    assert one.resolved_.step_by_step is None

    def one_by_one(task, *_):
        task._draws_like_fused = True  # with the same draws
        return None

    with monkeypatch.context() as patch:
        patch.setattr(LinearTask, "fused_block_end", one_by_one)
        steps = SampledSoftmaxClassifier(8, random_state=0, **how).fit(X, Y)
    for key, array in one.model_.parameters.items():
        np.testing.assert_allclose(array, steps.model_.parameters[key], rtol=2e-3, atol=2e-5)
    plain = SampledSoftmaxClassifier(8, random_state=0, **kinds, max_iter=3, batch_size=16)
    other = plain.fit(X, Y).model_.parameters["softmax.class_embeddings"]
    assert not np.allclose(one.model_.parameters["softmax.class_embeddings"], other, rtol=2e-3)


def test_a_classifier_knows_how_many_steps_there_are():
    """Those that calibrate are learned later; the last step must still be the last."""
    how = {"num_sampled": 3, "max_iter": 5, "batch_size": 7, "validation_fraction": 0.2}
    for calibrate in (False, True):
        clf = SampledSoftmaxClassifier(8, random_state=0, calibrate=calibrate, **how).fit(X, Y)
        assert clf._learner.optimizer.steps == clf.resolved_.num_steps


def test_a_recommender_takes_a_schedule():
    how = {"embedding_dim": 4, "num_sampled": 3, "max_iter": 3, "random_state": 0}
    constant, decayed = (
        SampledSoftmaxRecommender(schedule=name, warmup=0.2, **how).fit(X).item_factors
        for name in ("constant", "linear")
    )
    assert not np.allclose(constant, decayed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "step"}, "`schedule` must be one of constant, linear, cosine"),
        ({"warmup": 1.0}, "`warmup` must be at least 0 and less than 1"),
        ({"warmup": -0.1}, "`warmup` must be at least 0 and less than 1"),
    ],
)
@pytest.mark.parametrize("kind", [SampledSoftmaxClassifier, SampledSoftmaxRecommender])
def test_malformed_schedules(kind, options, message):
    arguments = (X, Y) if kind is SampledSoftmaxClassifier else (X,)
    with pytest.raises(ValueError, match=message):
        kind(**options).fit(*arguments)
    with pytest.raises(ValueError, match="`warmup_steps`"):
        make_schedule("linear", 3, -1)


def test_the_log_has_the_rate_of_each_step(tmp_path):
    settings = Settings(2, learning_rate=2.0, schedule="linear", warmup_steps=2, log_every=1)
    train(Counting(), settings, tmp_path)
    found = [line["learning_rate"] for line in read_log(tmp_path / "log.jsonl")]
    schedule = make_schedule("linear", 8, 2)
    assert found == [2.0 * schedule(step) for step in range(1, 9)]


def test_a_run_that_decays_is_resumed_with_as_many_epochs(tmp_path):
    task, how = Counting(), {"learning_rate": 2.0, "schedule": "cosine"}
    train(task, Settings(2, patience=1, **how), tmp_path)
    with pytest.raises(ValueError, match="epochs"):
        train(Counting(), Settings(3, **how), tmp_path, resume=True)
    constant = {"learning_rate": 2.0}
    train(Counting(), Settings(1, **constant), tmp_path / "constant")
    assert train(Counting(), Settings(3, **constant), tmp_path / "constant", resume=True).epoch == 3


def test_copies_of_an_optimizer_have_no_schedule():
    from copy import deepcopy
    from pickle import dumps, loads

    optimizer = make_optimizer("adam", 0.1)
    optimizer.schedule = lambda step: 0.5  # which no pickle takes
    for copy in (deepcopy(optimizer), loads(dumps(optimizer))):
        assert copy.schedule is None and copy.learning_rate == 0.1
    assert optimizer.learning_rate == 0.05


def test_the_loop_takes_a_name():
    for name in SCHEDULES:
        wanted = rates(make_schedule(name, 8, 3))
        np.testing.assert_array_equal(rates(name, warmup_steps=3), wanted)
        half = rates(name, warmup_steps=1, max_steps=5)
        np.testing.assert_array_equal(half, rates(make_schedule(name, 5, 1))[:5])
    with pytest.raises(ValueError, match="`schedule` must be one of"):
        rates("staircase")


@pytest.mark.parametrize("factor", [np.inf, np.nan, -0.5])
def test_a_factor_that_is_none_is_refused_before_the_step(factor):
    task, optimizer = Counting(), SGD(1.0)
    with pytest.raises(ValueError, match="`schedule` must return .* for step 3"):
        fit(task, optimizer, epochs=2, schedule=lambda step: factor if step == 3 else 1.0)
    assert task.parameters["w"][0] == 2.0 and optimizer.steps == 2
    how = {"num_sampled": 3, "max_iter": 2, "batch_size": 16, "random_state": 0}
    clf = SampledSoftmaxClassifier(8, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCHEDULES, "bad", lambda step, num_steps: factor if step > 2 else 1.0)
        with pytest.raises(ValueError, match="`schedule` must return .* for step 3"):
            clf.set_params(schedule="bad").fit(X, Y)


def test_a_run_with_a_function_is_resumed_with_it(tmp_path):
    halves, how = (lambda step: 0.5**step), {"learning_rate": 2.0}
    train(Counting(), Settings(1, **how), tmp_path, schedule=halves)
    with pytest.raises(ValueError, match="schedule"):
        train(Counting(), Settings(2, **how), tmp_path, resume=True)
    train(Counting(), Settings(2, **how), tmp_path, resume=True, schedule=halves)
    assert read_log(tmp_path / "log.jsonl")[-1]["learning_rate"] == 2.0 * 0.5**8


class Noting(Callback):
    """Notes the epochs, and stops after one of them."""

    def __init__(self, last):
        self.last, self.epochs = last, []

    def after_epoch(self, task, optimizer, progress):
        self.epochs.append(progress.epoch)
        assert task.model.parameters["softmax.class_embeddings"].any()
        progress.stop = progress.epoch == self.last


@pytest.mark.parametrize("kind", [SampledSoftmaxClassifier, SampledSoftmaxRecommender])
def test_callbacks_of_ones_own(kind):
    arguments = (X, Y) if kind is SampledSoftmaxClassifier else (X,)
    noting = Noting(3)
    model = kind(8, num_sampled=3, max_iter=5, random_state=0)
    assert model.fit(*arguments, callbacks=[noting]).n_iter_ == 3
    assert noting.epochs == [1, 2, 3]
    for wrong in (noting, [print]):
        with pytest.raises(TypeError, match="`callbacks` must"):
            model.fit(*arguments, callbacks=wrong)
