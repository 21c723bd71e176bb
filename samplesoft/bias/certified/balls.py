"""Balls: real numbers with a proved bound on their error, as python-flint computes them.

Every operation on balls returns a ball that contains the result for every choice of real numbers in
its operands. So what is computed from exact inputs by balls is a theorem about those inputs, at any
working precision; a higher precision makes the ball smaller.
"""

from __future__ import annotations

import copyreg
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, short_repr

_ROUNDING_BITS = 128  # so that ends have few bits more than float64 when they are rounded
NUM_TERMS = 16  # power series in v are used up to this power, which bounds the remainder

Ball = Any  # flint.arb
BallOrSeries = (
    Any  # flint.arb, or flint.arb_series: a power series in v whose coefficients are balls
)

_precision_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked process, for a thread that held it is not there."""
    global _precision_lock
    _precision_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def import_flint() -> Any:
    """Return the module ``flint``; raise ImportError if it is missing or too old."""
    try:
        import flint
    except ImportError as error:
        raise ImportError(
            "certified results need python-flint 0.9 or later; pip install python-flint."
        ) from error

    version = tuple(int(part) for part in flint.__version__.split(".")[:2])
    if version < (0, 9):
        raise ImportError(
            f"certified results need python-flint 0.9 or later, got {flint.__version__}, whose "
            "negation of balls is wrong; upgrade it."
        )
    return flint


@contextmanager
def working_precision(bits: int) -> Iterator[Any]:
    """Compute with `bits` bits inside the block, which gets the module ``flint``.

    The precision of python-flint is one number for all threads. So only one thread at a time is in
    such a block; balls that other code computes meanwhile have this precision, too.
    """
    flint = import_flint()
    copyreg.pickle(flint.arb, _as_integers)  # balls are sent to the processes of executors
    with _precision_lock, flint.ctx.workprec(bits):
        cap = flint.ctx.cap
        flint.ctx.cap = NUM_TERMS + 1
        try:
            yield flint
        finally:
            flint.ctx.cap = cap


def as_rationals(name: str, values: Any) -> list[Fraction]:
    """Return the exact values of a sequence of numbers: floats, fractions, decimals or texts.

    Raises TypeError or ValueError with the argument's `name` if an entry is not a finite number.
    """
    if isinstance(values, str):
        raise TypeError(
            f"`{name}` must be a sequence of numbers, got the text {short_repr(values)}; give one "
            "number or text for each class."
        )
    if hasattr(values, "probs"):
        raise TypeError(
            f"`{name}` must be a sequence of numbers, got a {type(values).__name__}; give its "
            "probabilities, probs(h)."
        )
    try:
        entries = values.tolist() if hasattr(values, "tolist") else list(values)
        return [as_rational(f"{name}[{i}]", entry) for i, entry in enumerate(entries)]
    except TypeError:
        if not hasattr(values, "__len__"):
            raise TypeError(
                f"`{name}` must be a sequence of numbers, got {short_repr(values)}."
            ) from None
        raise


def as_rational(name: str, value: Any) -> Fraction:
    """Return the exact value of one number, as `as_rationals` does."""
    try:
        number = value.item() if isinstance(value, np.generic) else value
        # decimals with exponents of millions would take seconds
        if isinstance(number, (str, Decimal)) and "/" not in str(number):
            if not math.isfinite(float(number)) or (float(number) == 0.0 and not _is_zero(number)):
                raise OverflowError
        exact = Fraction(number)
        float(exact)  # raises OverflowError for what is far beyond float64
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(
            f"`{name}` must be a finite number in the range of float64, got {short_repr(value)}."
        ) from None
    except TypeError:
        raise TypeError(
            f"`{name}` must be a number: a float, a Fraction, a Decimal, or a text such as '0.1', "
            f"got {short_repr(value)}."
        ) from None
    return exact


def _is_zero(number: Any) -> bool:
    """Return whether a decimal, or a text of one, is exactly 0."""
    return Decimal(number).is_zero()


def ball_of(value: Fraction) -> Ball:
    """Return a ball that contains a rational number, at the working precision."""
    flint = import_flint()
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def floats_below(balls: list[Ball]) -> FloatArray:
    """Return the lower ends of balls, rounded down to float64, (n,).

    A ball that is not a number excludes nothing: its end is minus infinity.
    """
    with working_precision(_ROUNDING_BITS):
        return np.array([_float_below(ball) for ball in balls])


def floats_above(balls: list[Ball]) -> FloatArray:
    """Return the upper ends of balls, rounded up to float64, (n,)."""
    with working_precision(_ROUNDING_BITS):
        return np.array([-_float_below(-ball) + 0.0 for ball in balls])  # + 0.0: not -0.0


def _float_below(ball: Ball) -> float:
    """Return a float64 that is at most the lower end of a ball."""
    end = ball.lower()
    if ball.is_nan() or end.is_nan():
        return -math.inf
    value = float(end)
    while not type(ball)(value) <= end:  # the conversion rounds to the nearest float64
        value = math.nextafter(value, -math.inf)
    return value


def certain_digits(ball: Ball) -> int:
    """Return how many leading decimal digits of the numbers in `ball` agree, about; at least 0."""
    if ball.is_nan() or ball.contains(0):
        return 0
    return max(int(ball.rel_accuracy_bits() * math.log10(2.0)), 0)


def ball_from_integers(middle: tuple[int, int], radius: tuple[int, int]) -> Ball:
    """Return a ball, given midpoint and radius as (mantissa, exponent)."""
    return import_flint().arb(middle, radius)


def _as_integers(ball: Ball) -> tuple[Any, Any]:
    """Return what the pickle of a ball consists of: a function, and its arguments."""
    ends = (ball.mid().man_exp(), ball.rad().man_exp())
    return ball_from_integers, tuple((int(mantissa), int(exponent)) for mantissa, exponent in ends)
