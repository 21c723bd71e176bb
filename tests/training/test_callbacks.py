"""The loop of training and its callbacks: averages, scores, the best epoch, and when to stop."""

import numpy as np
import pytest

from samplesoft.optimizers import SGD
from samplesoft.training import Callback, Task, fit
from samplesoft.training.callbacks import Average, EarlyStop, KeepBest, Score


def rounds(number, dtype=np.float32):
    """Parameters of a model after some rounds."""
    rng = np.random.default_rng(0)
    shapes = {"weights": (5, 2), "intercept": (2,)}
    return [
        {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        for _ in range(number)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_late_rounds_weigh_more(dtype):
    found = rounds(6, dtype)
    average = Average(found[0])
    for parameters in found:
        average.add(parameters)
    t = np.arange(1.0, 7.0)
    for weights, same in ((t * (t + 1) * (t + 2), True), (t**0, False)):
        for name, array in average.parameters.items():
            assert array.dtype == dtype
            wanted = np.average([p[name] for p in found], axis=0, weights=weights)
            tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12}
            assert np.allclose(array, wanted, **tolerance) is same


def test_the_average_stands_for_the_parameters_for_a_while():
    before, now = rounds(2)
    average = Average(before)
    kept = {name: array.copy() for name, array in now.items()}
    with pytest.raises(RuntimeError), average.in_place_of(now):
        for name, array in now.items():
            np.testing.assert_array_equal(array, before[name])
        raise RuntimeError
    for name, array in now.items():
        np.testing.assert_array_equal(array, kept[name])


class Scored(Task):
    """A task whose one parameter counts its epochs, and what `score` makes of them."""

    num_steps, num_examples = 2, 3

    def __init__(self, scores):
        self.parameters = {"w": np.zeros(1)}
        self.scores = iter(scores)

    def step(self, epoch, index):
        return float(index), {"w": np.full(1, -0.5)}

    def score(self):
        return next(self.scores)


@pytest.mark.parametrize(("tolerance", "epochs"), [(0.0, 5), (0.2, 3)])
def test_the_last_of_the_best_is_kept_even_if_it_is_no_rise(tolerance, epochs):
    task = Scored([0.3, 0.2, 0.4, 0.4, 0.1, 0.1])
    score = Score(task.score, tolerance=tolerance)
    at = fit(task, SGD(1.0), epochs=6, callbacks=[score, KeepBest(), EarlyStop(2)])
    # the rise from 0.3 to 0.4 counts where it is more than the tolerance
    assert at.epoch == epochs
    assert task.parameters["w"][0] == {0.0: 4.0, 0.2: 3.0}[tolerance]
    assert at.history[0] == {"train_loss": 0.5, "loss": -0.3}


def test_the_end_of_averaged_epochs_is_the_average_of_the_best():
    task, scores = Scored([0.1, 0.5, 0.2]), []
    average = Average(task.parameters)

    def score():
        scores.append(task.parameters["w"][0])
        return task.score()

    callbacks = [average, Score(score, average=average), KeepBest(average)]
    fit(task, SGD(1.0), epochs=3, callbacks=callbacks)
    # weights of the t-th epoch are t (t + 1) (t + 2): 6, 24, 60
    np.testing.assert_allclose(scores, [1.0, 54 / 30, (6 + 48 + 180) / 90])
    np.testing.assert_allclose(task.parameters["w"], 54 / 30)


def test_a_callback_is_left_after_an_error():
    told = []

    class Told(Callback):
        def __exit__(self, *error):
            told.append(error[0])

        def after_steps(self, task, optimizer, at):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(Scored([]), SGD(1.0), epochs=1, callbacks=[Told(), Callback()])
    assert told == [RuntimeError]


@pytest.mark.parametrize("max_steps", [0, 1, 2, 3, 9])
def test_steps_may_be_limited(max_steps):
    at = fit(Scored([]), SGD(1.0), epochs=3, max_steps=max_steps)
    done = min(max_steps, 6)
    assert (at.step, at.epoch) == (done, done // 2)
