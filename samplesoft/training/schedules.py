"""The learning rate: what it is by default, and by which factor it is multiplied in each step.

This is the only place with a rule for it. `samplesoft.training.loop.fit` gives the schedule to the
optimizer, whose `learning_rate` is what it was made with times the factor of its step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from samplesoft._validation import as_choice, as_count

Schedule = Callable[[int], float]  # the factor of a step, counted from 1

# of a linear softmax model, by the optimizer; for others there is none that suits most data
RATES = {"adagrad": 0.1, "adam": 0.01}
RATES_OF_INPUTS = {"adagrad": 2.0}  # for class vectors on the inputs themselves, of norm 1


def default_learning_rate(optimizer: str, *, on_inputs: bool, row_norm: float = 1.0) -> float:
    """Return the learning rate that suits a linear softmax model.

    Weights of features that are rare see few steps, and must take large ones. With class vectors
    on the inputs scores grow with these, and so do gradients: the rate is divided by their mean
    norm, but not by less than that of the intercept's input, which is 1.
    """
    if on_inputs:
        return RATES_OF_INPUTS.get(optimizer, RATES_OF_INPUTS["adagrad"]) / max(1.0, row_norm)
    return RATES.get(optimizer, RATES["adagrad"])


def constant(progress: float) -> float:
    """Return 1."""
    return 1.0


def linear(progress: float) -> float:
    """Return what falls from 1 to 0 in a line."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """Return what falls from 1 to 0 as half a period of a cosine.

    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
    eq. 5, without restarts.
    """
    return 0.5 * (1.0 + cos(pi * progress))


# factors by the share of the steps after the warm-up that have been taken, from 0 to below 1
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
}


def make_schedule(name: str, num_steps: int, warmup_steps: int = 0) -> Schedule:
    """Make a schedule.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`: ``"constant"``, or a decay by ``"linear"`` or ``"cosine"``.
    num_steps : int
        Steps in all, at least 1. After them the factor stays at that of the last step.
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
    decaying_steps = max(total - warmup, 1)

    def schedule(step: int) -> float:
        if step <= warmup:
            return step / warmup
        taken = min(step, total) - warmup - 1
        return factor(max(taken, 0) / decaying_steps)

    return schedule
