"""The bias of sampled softmax in balls: an interval for each number, which is proved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from samplesoft._executors import as_executor
from samplesoft._memory import require_bytes
from samplesoft._validation import FloatArray, as_count
from samplesoft.bias.certified.balls import (
    Ball,
    as_rationals,
    ball_of,
    certain_digits,
    floats_above,
    floats_below,
    import_flint,
    working_precision,
)
from samplesoft.bias.certified.integral import (
    Draws,
    Group,
    Poisson,
    Replacement,
    means_over_draws,
)
from samplesoft.bias.inputs import check_inputs, require_digits
from samplesoft.schemes import Scheme

_MAX_BITS = 1024  # precision at which the search for certain digits ends
_MAX_DIGITS = 300
_BITS_PER_DIGIT = math.log2(10.0)
_SPARE_BITS = 64  # of the arithmetic, beyond the error of the integral
_FIRST_SPARE_BITS = 32  # of the first attempt at the integral, for digits that a subtraction loses
_BYTES_PER_CLASS = 2000
_MAX_SETS = 500_000  # of draws without replacement; about a minute


@dataclass(frozen=True)
class CertifiedBias:
    """Proved bounds on the bias of sampled softmax and of its loss, for inputs as they are given.

    Each bound is a float64 that was rounded outwards.

    Attributes
    ----------
    lower, upper : ndarray, shape (n,) or (B, n)
        Bounds on E[p'] - p, the bias of the gradient in the logits.
    loss_lower, loss_upper : float or ndarray, shape (B,)
        Bounds on E[L'] - L, in nats.
    l1_lower, l1_upper : float or ndarray, shape (B,)
        Bounds on the L1 norm of the bias.
    digits : int or ndarray of int, shape (B,)
        Number of leading decimal digits of the L1 norm that are certain before rounding to float64;
        0 if the bias may be 0.
    bits : int or ndarray of int, shape (B,)
        Precision of the last computation, in bits.
    """

    lower: FloatArray
    upper: FloatArray
    loss_lower: Any
    loss_upper: Any
    l1_lower: Any
    l1_upper: Any
    digits: Any
    bits: Any


@dataclass(frozen=True)
class Problem:
    """One example with exact inputs: real numbers, not float64."""

    logits: list[Fraction]
    label: int
    q: list[Fraction]
    num_sampled: int
    scheme: Scheme


@dataclass(frozen=True)
class BiasBalls:
    """The bias of one example in balls."""

    bias: list[Ball]
    loss_bias: Ball
    l1: Ball


def certified_bias(
    logits: Any,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str = "negatives",
    digits: int = 15,
    executor: Executor | None = None,
) -> CertifiedBias:
    """Compute intervals that provably contain the bias, for the given numbers as they are.

    `exact_bias` estimates its error; here rounding and the error of the integral are bounded by
    ball arithmetic, so that the result is a theorem. The inputs are taken as exact real numbers: a
    float64 stands for its binary fraction, and ``Fraction(1, 3)``, ``Decimal("0.1")`` and the texts
    ``"0.1"`` and ``"1/3"`` for themselves.

    Parameters
    ----------
    logits : sequence of numbers, shape (n,), or array_like, shape (B, n)
        Finite logits.
    labels : int or array_like of int, shape (B,)
        The true class.
    q : sequence of numbers, shape (n,), or array_like, shape (B, n)
        The proposal. It must sum to 1 up to 1e-4, and is divided by its exact sum; ``negatives``
        and ``reject`` condition it on "not the label". For ``poisson``: inclusion probabilities.
    num_sampled : int
        Number m of draws.
    scheme : str
        As for `samplesoft.exact_bias`. The ``distinct`` schemes list all sets of draws, at most
        500,000.
    digits : int
        The precision is doubled until this many leading digits of the L1 norm are certain, or 1,024
        bits are reached. At most 300.
    executor : concurrent.futures.Executor, optional
        Shares out the classes. Only processes are faster than one thread.

    Returns
    -------
    CertifiedBias
        Lower and upper bounds, and how many digits are certain.

    Raises
    ------
    ImportError
        Without python-flint 0.9 or later.
    TypeError, ValueError
        If an argument is malformed, q is 0 on a class that the scheme draws, or the computation
        would take more than an hour.

    Notes
    -----
    On one core it takes about 1 s for 1,000 classes, and 10 s for 10,000. The method is in
    ``samplesoft/bias/certified/integral.py``. The working precision of python-flint is one number
    for all threads, and is set meanwhile. Threads that call this function take turns.

    References
    ----------
    F. Johansson, "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic", IEEE
    Transactions on Computers, 2017.

    Examples
    --------
    >>> from fractions import Fraction
    >>> third = Fraction(1, 3)
    >>> result = certified_bias([0, 1, 2], 0, [third, third, third], num_sampled=5)
    >>> print(result.lower[0], result.upper[0], result.digits)
    0.003522381390501169 0.0035223813905011694 24
    """
    import_flint()
    num_digits = as_count("digits", digits)
    if num_digits > _MAX_DIGITS:
        raise ValueError(
            f"`digits` must be at most {_MAX_DIGITS}, got {digits}; bounds are float64 anyway."
        )
    problems, is_batch = as_problems(logits, labels, q, num_sampled, scheme)
    workers = as_executor(executor)
    rows = [_certified(problem, num_digits, workers) for problem in problems]
    if not is_batch:
        return rows[0]
    return CertifiedBias(
        **{name: np.array([getattr(row, name) for row in rows]) for name in vars(rows[0])}
    )


def as_problems(
    logits: Any, labels: Any, q: Any, num_sampled: int, scheme: str
) -> tuple[list[Problem], bool]:
    """Return the examples with exact inputs, and whether they are a batch.

    Raises TypeError or ValueError as `exact_bias` does, for the inputs rounded to float64; and
    MemoryError if balls for all classes do not fit.
    """
    logit_rows, is_batch = _exact_rows("logits", logits)
    q_rows, _ = _exact_rows("q", q)
    rounded_logits = [[float(o) for o in row] for row in logit_rows]
    rounded_q = [[float(prob) for prob in row] for row in q_rows]
    inputs = check_inputs(
        rounded_logits if is_batch else rounded_logits[0],
        labels,
        rounded_q if len(q_rows) > 1 else rounded_q[0],
        num_sampled,
        scheme,
        takes_distinct=True,
    )
    require_digits(inputs)
    for row in q_rows:
        if min(row) < 0:  # a negative number may be rounded to 0
            raise ValueError(f"`q` must be at least 0, got {float(min(row))}.")
    if inputs.scheme.independent:  # as in exact_bias, rounding may have left a little more than 1
        q_rows = [[min(prob, Fraction(1)) for prob in row] for row in q_rows]
    problems = [
        Problem(
            logits=row,
            label=int(inputs.labels[i]),
            q=q_rows[i if len(q_rows) > 1 else 0],
            num_sampled=inputs.num_sampled,
            scheme=inputs.scheme,
        )
        for i, row in enumerate(logit_rows)
    ]
    return problems, is_batch


def _exact_rows(name: str, values: Any) -> tuple[list[list[Fraction]], bool]:
    """Return the exact values of the rows of one or two axes, and whether there are two."""
    try:
        is_batch = not hasattr(values, "probs") and np.ndim(values) == 2
    except ValueError:
        raise ValueError(f"`{name}` must have rows of the same length.") from None
    size = np.size(values)
    require_bytes(
        f"`{name}` must leave room in the memory, got {size:,} numbers: balls for these",
        size * _BYTES_PER_CLASS,
        "take fewer, or exact_bias",
    )
    rows = values if is_batch else [values]
    return [as_rationals(name, row) for row in rows], is_batch


def _certified(problem: Problem, digits: int, executor: Executor | None) -> CertifiedBias:
    """Return bounds for one example, at the precision that `digits` certain digits need."""
    for bits in rising_bits(int(digits * _BITS_PER_DIGIT) + _FIRST_SPARE_BITS):
        balls = bias_balls(problem, bits, executor)
        found = certain_digits(balls.l1)
        if found >= digits:
            break

    scalars = [balls.loss_bias, balls.l1]
    loss_lower, l1_lower = floats_below(scalars).tolist()
    loss_upper, l1_upper = floats_above(scalars).tolist()
    return CertifiedBias(
        lower=floats_below(balls.bias),
        upper=floats_above(balls.bias),
        loss_lower=loss_lower,
        loss_upper=loss_upper,
        l1_lower=max(l1_lower, 0.0),
        l1_upper=l1_upper,
        digits=found,
        bits=bits,
    )


def rising_bits(first: int) -> Iterator[int]:
    """Yield the precision `first`, and then twice the last one, up to `_MAX_BITS`."""
    bits = first
    yield bits
    while 2 * bits <= _MAX_BITS:
        bits *= 2
        yield bits


def bias_balls(problem: Problem, bits: int, executor: Executor | None = None) -> BiasBalls:
    """Return the bias of one example in balls; the integral has an error of about 2^-bits."""
    precision = bits + _SPARE_BITS + problem.num_sampled.bit_length()
    # exp(o) of a logit o loses the bits of its integer part
    precision += int(max(problem.logits) - min(problem.logits)).bit_length()
    with working_precision(precision):
        probs = softmax_balls(problem.logits)
    expected = _expected(problem, probs, bits, precision, executor)
    if problem.scheme.jackknife:
        fewer = replace(problem, num_sampled=problem.num_sampled - 1)
        with_fewer = _expected(fewer, probs, bits, precision, executor)
        with working_precision(precision):
            expected = _jackknife(expected, with_fewer, problem.num_sampled)

    with working_precision(precision):
        bias = [mean - p for mean, p in zip(expected.probs, probs, strict=True)]
        if not sum(bias).contains(0):
            raise ArithmeticError(
                "the certified bias does not sum to 0, so that it cannot be right; please report "
                f"this with the input: {problem}."
            )
        l1 = sum(abs(b) for b in bias)
        return BiasBalls(bias=bias, loss_bias=expected.loss_bias, l1=l1)


def softmax_balls(logits: list[Fraction]) -> list[Ball]:
    """Return the softmax of exact logits, at the working precision."""
    largest = max(logits)
    exps = [ball_of(o - largest).exp() for o in logits]
    total = sum(exps)
    return [e / total for e in exps]


@dataclass(frozen=True)
class _Expected:
    """Means over all draws of one example, in balls."""

    probs: list[Ball]  # E[p'], (n,)
    loss_bias: Ball  # E[L'] - L


def _jackknife(expected: _Expected, with_fewer: _Expected, m: int) -> _Expected:
    """Return m times the means of m draws less m - 1 times those of m - 1 draws, (B13)."""
    pairs = zip(expected.probs, with_fewer.probs, strict=True)
    return _Expected(
        probs=[more * m - fewer * (m - 1) for more, fewer in pairs],
        loss_bias=expected.loss_bias * m - with_fewer.loss_bias * (m - 1),
    )


def _expected(
    problem: Problem, probs: list[Ball], bits: int, precision: int, executor: Executor | None
) -> _Expected:
    """Return the means over all draws, for a scheme that is not a jackknife."""
    with working_precision(precision):
        q = [ball_of(prob) for prob in problem.q]
        zero = 0 * probs[0]
        other_prob = sum(q[: problem.label] + q[problem.label + 1 :], start=zero)
        if problem.scheme.distinct:
            return _expected_over_sets(problem, probs, q)
        if problem.scheme.divides_by_accepted and other_prob == 0:  # no draw is accepted
            all_on_label = [zero] * len(probs)
            all_on_label[problem.label] = zero + 1
            return _Expected(all_on_label, probs[problem.label].log())
        draws, groups, members = _draws_of(problem, probs, q, other_prob)

    means = means_over_draws(draws, groups, bits, precision, executor)

    with working_precision(precision):
        expected = [zero] * len(probs)
        for group, indices, inverse in zip(groups, members, means.inverse_given, strict=True):
            for j in indices:
                expected[j] = group.mass * inverse
        expected[problem.label] += draws.base * means.inverse
        loss_bias = means.log
        if problem.scheme.corrects_label:
            loss_bias += (probs[problem.label] / draws.base).log()
        if problem.scheme.divides_by_accepted:  # without an accepted draw, p' is 1 on the label
            no_draw = (q[problem.label] / (q[problem.label] + other_prob)) ** problem.num_sampled
            expected[problem.label] += no_draw
            loss_bias += no_draw * probs[problem.label].log()
        return _Expected(expected, loss_bias)


def _draws_of(
    problem: Problem, probs: list[Ball], q: list[Ball], other_prob: Ball
) -> tuple[Draws, list[Group], list[list[int]]]:
    """Return the distribution of the draws, the groups of equal classes, and their indices.

    `q` (n,) need not sum to 1; `other_prob` is the sum over all classes but the label.
    """
    scheme, label = problem.scheme, problem.label
    zero = 0 * other_prob
    total = q[label] + other_prob

    base = probs[label]
    if scheme.corrects_label:
        base = base * total / (q[label] * problem.num_sampled)
    if not scheme.label_in_sum:
        base = zero
    divisor = total
    if scheme.excludes_label or scheme.divides_by_accepted:
        divisor = other_prob
    if scheme.independent:
        divisor = zero + 1

    by_value: dict[tuple[Fraction, Fraction], list[int]] = {}
    for j, pair in enumerate(zip(problem.logits, problem.q, strict=True)):
        if j != label or scheme.draws_label:
            by_value.setdefault(pair, []).append(j)
    members = list(by_value.values())
    groups = []
    for indices in members:
        mass = probs[indices[0]]
        prob = q[indices[0]] / divisor
        groups.append(Group(size=len(indices), mass=mass, prob=prob, ratio=mass / prob))

    if scheme.independent:
        return Poisson(base), groups, members
    draws = Replacement(
        base=base,
        num_draws=problem.num_sampled,
        weightless=q[label] / total if scheme.hits == "masked" else zero,
        accepted=other_prob / total if scheme.divides_by_accepted else None,
    )
    return draws, groups, members


def _expected_over_sets(problem: Problem, probs: list[Ball], q: list[Ball]) -> _Expected:
    """Return the means over all sets of draws without replacement."""
    scheme, label = problem.scheme, problem.label
    drawn = [j for j in range(len(q)) if problem.q[j] > 0]
    if scheme.excludes_label:
        drawn = [j for j in drawn if j != label]
    _require_few_sets(len(drawn), problem.num_sampled)
    sets = _set_probabilities([q[j] for j in drawn], problem.num_sampled)

    zero = 0 * probs[0]
    inclusion = [zero] * len(q)
    for chosen, probability in sets.items():
        for i in chosen:
            inclusion[drawn[i]] += probability

    base = zero
    if scheme.label_in_sum:
        base = probs[label]
    if scheme.corrects_label:
        base = base / inclusion[label]
    weights = [probs[j] / inclusion[j] if j != label or scheme.draws_label else zero for j in drawn]

    expected = [zero] * len(q)
    mean_log = zero
    for chosen, probability in sets.items():
        total = sum((weights[i] for i in chosen), start=base)
        share = probability / total
        expected[label] += base * share
        for i in chosen:
            expected[drawn[i]] += weights[i] * share
        mean_log += probability * total.log()
    if scheme.corrects_label:
        mean_log += inclusion[label].log()
    return _Expected(expected, mean_log)


def _require_few_sets(num_classes: int, num_draws: int) -> None:
    """Raise ValueError if there are too many sets of at most `num_draws` classes to list."""
    count = sum(math.comb(num_classes, size) for size in range(num_draws + 1))
    if count > _MAX_SETS:
        raise ValueError(
            f"`num_sampled` must leave at most {_MAX_SETS:,} sets of draws without replacement, "
            f"which a certificate lists, got {count:,} ({num_draws} draws from {num_classes} "
            "classes); take fewer draws, or exact_bias."
        )


def _set_probabilities(probs: list[Ball], num_draws: int) -> dict[tuple[int, ...], Ball]:
    """Return the probability of each set of `num_draws` indices, drawn without replacement.

    The last draw of a set may be any j in it. Given the other draws A, it is j with the probability
    ``q_j / (sum of q over all classes that are not in A)``. `probs` (n,) are the q_j.
    """
    zero = 0 * probs[0]
    sets: dict[tuple[int, ...], Ball] = {(): zero + 1}
    for size in range(1, num_draws + 1):
        quotients = {}
        for chosen, probability in sets.items():
            rest = sum((q for j, q in enumerate(probs) if j not in chosen), start=zero)
            quotients[chosen] = probability / rest
        sets = {
            chosen: sum(
                (
                    quotients[chosen[:i] + chosen[i + 1 :]] * probs[last]
                    for i, last in enumerate(chosen)
                ),
                start=zero,
            )
            for chosen in combinations(range(len(probs)), size)
        }
    return sets
