"""Learning rate schedules, and the default learning rate of linear softmax models.

`samplesoft.training.loop.fit` sets the schedule of the optimizer. The learning rate of a step is
then the optimizer's base rate times the factor that the schedule returns for the step. The
recommender does not use the defaults in this module, but others that were measured for its model.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, sqrt

from samplesoft._validation import as_choice, as_count

Schedule = Callable[[int], float]  # returns the factor of a step; steps are counted from 1

# The largest number of epochs, if held-out examples determine when training ends, and with early
# stopping.
MAX_CHOSEN_EPOCHS = 30

# Default learning rates by optimizer. Other optimizers get the rate of Adagrad, because for them no
# single rate suits most data.
RATES = {"adagrad": 0.1, "adam": 0.003}
# Sum of squared gradients with which Adagrad begins in models with an embedding. Without it, the
# first step of each entry has the size of the learning rate, so that the vector of a word that
# occurs in a single example is as long as the vector of a frequent word.
INITIAL_ACCUMULATOR = 1e-5
# Default learning rates of models without an embedding, on inputs of norm 1.
DEFAULT_RATES_ON_INPUTS = {"adagrad": 2.0, "adam": 0.2}


def default_learning_rate(optimizer: str, *, on_inputs: bool, row_norm: float = 1.0) -> float:
    """Return the default learning rate of a linear softmax model.

    `on_inputs` is true for a model without an embedding. Such a model has a larger rate, because
    the weights of rare features are updated in few steps. Its scores and gradients are proportional
    to the inputs, so that its rate is divided by the mean norm of the inputs, `row_norm`, if this
    norm is above 1.
    """
    if on_inputs:
        rate = DEFAULT_RATES_ON_INPUTS.get(optimizer, DEFAULT_RATES_ON_INPUTS["adagrad"])
        return rate / max(1.0, row_norm)
    return RATES.get(optimizer, RATES["adagrad"])


def constant(step: int, num_steps: int) -> float:
    """Return the factor 1 for every step."""
    return 1.0


def linear(step: int, num_steps: int) -> float:
    """Return a factor that decreases linearly from 1, and would reach 0 one step after the last."""
    return 1.0 - (step - 1) / num_steps


def cosine(step: int, num_steps: int) -> float:
    """Return a factor that decreases from 1 along half a period of a cosine.

    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
    eq. 5, without restarts.
    """
    return 0.5 * (1.0 + cos(pi * (step - 1) / num_steps))


def inverse_sqrt(step: int, num_steps: int) -> float:
    """Return a factor that decreases from 1 to 1 / sqrt(31), first quickly and then slowly.

    It is 1 / sqrt(1 + e) after e of 30 epochs, so that training may well end before all steps.
    """
    return 1.0 / sqrt(1.0 + MAX_CHOSEN_EPOCHS * (step - 1) / num_steps)


# Functions (step, num_steps) that return the factor of a step; both arguments count only the steps
# after the warm-up. A new schedule also needs a value in `tests/training/test_schedules.py`.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse-sqrt": inverse_sqrt,
}
ENDLESS = frozenset({"constant"})  # schedules that do not use the total number of steps


def make_schedule(name: str, num_steps: int, warmup_steps: int = 0) -> Schedule:
    """Return a schedule: a function that returns the factor of the learning rate in a step.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`: ``"constant"``, ``"linear"``, ``"cosine"`` or ``"inverse-sqrt"``.
    num_steps : int
        Total number of steps, at least 1. Later steps have the factor of this last step.
    warmup_steps : int
        Length of a linear warm-up: step t has the factor t / `warmup_steps`.

    Returns
    -------
    callable
        Takes the number of a step, counted from 1, and returns its factor. The factor is 1 in the
        first step after the warm-up, and above 0 in the last step.

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
