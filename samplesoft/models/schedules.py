"""Schedules: functions from the epoch to a factor of the learning rate.

A new one is a function of the epoch, counted from 0, and its options by keyword, with a line in
`SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cos, floor, pi, pow, sqrt
from typing import Any

from samplesoft._validation import as_choice, as_nonnegative, as_positive

Schedule = Callable[[float], float]


def constant(epoch: float) -> float:
    """Return 1."""
    return 1.0


def zaremba(epoch: float, *, hold: float = 4, decay: float = 2.0) -> float:
    """Return 1 in the first `hold` epochs, and divide by `decay` at the start of each that follows.

    The small model of [1]_ has ``hold=4, decay=2``, the medium one 6 and 1.2, the large one 14 and
    1.15. Within an epoch the factor stays, also where the epoch is a fraction.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329, section 4.1.
    """
    late = max(floor(epoch) + 1 - as_positive("hold", hold), 0.0)
    return pow(as_positive("decay", decay), -late)


def exponential(epoch: float, *, decay: float) -> float:
    """Divide by `decay` in the course of each epoch."""
    return pow(as_positive("decay", decay), -epoch)


def inverse_sqrt(epoch: float, *, warmup: float = 1.0) -> float:
    """Rise in a line to 1 at the end of `warmup` epochs, then fall as their inverse root.

    With t the number of epochs at the end of this one, the lesser of ``t / warmup`` and
    ``sqrt(warmup / t)``; the shape of Vaswani et al., NeurIPS 2017, equation 3.
    """
    share = (epoch + 1.0) / as_positive("warmup", warmup)
    return min(share, 1.0 / sqrt(share))


def linear(epoch: float, *, epochs: float) -> float:
    """Fall in a line from 1 at the start to 0 after `epochs`."""
    return max(1.0 - epoch / as_positive("epochs", epochs), 0.0)


def cosine(epoch: float, *, epochs: float) -> float:
    """Fall in half a wave from 1 at the start to 0 after `epochs`.

    Loshchilov and Hutter, ICLR 2017, equation 5, without restarts.
    """
    return 0.5 + 0.5 * cos(pi * min(epoch / as_positive("epochs", epochs), 1.0))


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "zaremba": zaremba,
    "exponential": exponential,
    "inverse-sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


def make_schedule(name: str, **options: Any) -> Schedule:
    """Return a schedule with its options, which are checked at once.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`.
    **options : float
        What the function takes beside the epoch.

    Returns
    -------
    callable
        From an epoch, whole or not, counted from 0, to a factor of the learning rate.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or an option is malformed, missing or unknown.

    Examples
    --------
    >>> schedule = make_schedule("zaremba", hold=2)
    >>> [schedule(epoch) for epoch in range(4)]
    [1.0, 1.0, 0.5, 0.25]
    """
    schedule = partial(_factor, SCHEDULES[as_choice("name", name, SCHEDULES)], options)
    schedule(0)
    return schedule


def _factor(schedule: Callable[..., float], options: dict[str, Any], epoch: float) -> float:
    """Return the factor at an epoch, which is checked."""
    try:
        return schedule(as_nonnegative("epoch", epoch), **options)
    except OverflowError:
        raise ValueError(
            f"`epoch` must have a factor within the range of float64, got {epoch}; lower it."
        ) from None
