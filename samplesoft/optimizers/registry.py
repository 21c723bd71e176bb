"""Registry of optimizers by name."""

from __future__ import annotations

from typing import Any

from samplesoft._validation import as_choice
from samplesoft.optimizers.adagrad import Adagrad
from samplesoft.optimizers.adam import Adam
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.momentum import Momentum
from samplesoft.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
}


def make_optimizer(name: str, learning_rate: float, **options: Any) -> Optimizer:
    """Make an optimizer by its name in `OPTIMIZERS`.

    Parameters
    ----------
    name : str
        A key of `OPTIMIZERS`.
    learning_rate : float
        Size of a step; finite and at least 0.
    **options : float or bool
        Further arguments of its class.

    Returns
    -------
    Optimizer
        A new optimizer.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or its class rejects the learning rate or an option.

    Examples
    --------
    >>> make_optimizer("momentum", 0.1, nesterov=True).nesterov
    True
    """
    return OPTIMIZERS[as_choice("name", name, OPTIMIZERS)](learning_rate, **options)
