"""The learning rate of linear softmax models by default, and schedules, by which it changes.

`samplesoft.training.loop.fit` gives a schedule to the optimizer, whose `learning_rate` is what it
was made with times the factor of its step. Nothing else changes a learning rate. (The recommender
has a default of its own, which was measured for its model.)
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from samplesoft._validation import as_choice, as_count

Schedule = Callable[[int], float]  # the factor of a step, counted from 1

# by the optimizer; others have none that suits most data
RATES = {"adagrad": 0.1, "adam": 0.003}
# for class vectors on the inputs themselves, of norm 1
RATES_OF_INPUTS = {"adagrad": 2.0, "adam": 0.2}


def default_learning_rate(optimizer: str, *, on_inputs: bool, row_norm: float = 1.0) -> float:
    """Return the learning rate for a linear softmax model; that of Adagrad where none is known.

    Weights of features that are rare see few steps, and must take large ones. With class vectors
    on the inputs scores grow with these, and so do gradients: the rate is divided by their mean
    norm, but not by less than that of the intercept's input, which is 1.
    """
    if on_inputs:
        return RATES_OF_INPUTS.get(optimizer, RATES_OF_INPUTS["adagrad"]) / max(1.0, row_norm)
    return RATES.get(optimizer, RATES["adagrad"])


def constant(step: int, num_steps: int) -> float:
    """Return 1."""
    return 1.0


def linear(step: int, num_steps: int) -> float:
    """Return a factor that falls from 1 in a line, and would be 0 after the last step."""
    return 1.0 - (step - 1) / num_steps


def cosine(step: int, num_steps: int) -> float:
    """Return a factor that falls from 1 by half a period of a cosine.

    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
    eq. 5, without restarts.
    """
    return 0.5 * (1.0 + cos(pi * (step - 1) / num_steps))


# The factor of a step, counted from 1 after the warm-up, of `num_steps` that follow the warm-up.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
}
ENDLESS = frozenset({"constant"})  # schedules that do not depend on the number of steps


def make_schedule(name: str, num_steps: int, warmup_steps: int = 0) -> Schedule:
    """Make a schedule.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`: ``"constant"``, or a decay by ``"linear"`` or ``"cosine"``.
    num_steps : int
        Steps in all, at least 1. After them the factor of a decay stays at that of the last step.
    warmup_steps : int
        So many steps at the beginning rise in a line: step t has the factor t / `warmup_steps`.

    Returns
    -------
    callable
        Returns the factor of a step, counted from 1. The first step after the warm-up has the
        factor 1, and the last one a factor above 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> schedule = make_schedule("linear", num_steps=6, warmup_steps=2)
    >>> [schedule(step) for step in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    factor = SCHEDULES[as_choice("schedule", name, SCHEDULES)]
    total = as_count("num_steps", num_steps)
    warmup = as_count("warmup_steps", warmup_steps, 0)
    after_warmup = max(total - warmup, 1)

    def schedule(step: int) -> float:
        if step <= warmup:
            return step / warmup
        if name not in ENDLESS:
            step = min(step, max(total, warmup + 1))
        return factor(step - warmup, after_warmup)

    return schedule
