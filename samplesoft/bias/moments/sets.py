"""Second moments of draws without replacement, eq. (B85)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.inputs import Example, Inputs
from samplesoft.bias.moments.squares import LEAST_SQUARE, reach_of, squared_norms
from samplesoft.bias.numerics.quadrature import estimate_error, rounding_at
from samplesoft.bias.without_replacement.race import Circles, ExponentialRace
from samplesoft.bias.without_replacement.race_kernels import log_growth, probabilities_of
from samplesoft.bias.without_replacement.set_bias import draws_of
from samplesoft.bias.without_replacement.terms import (
    Terms,
    changes,
    nodes_of,
    scales_of_sum,
    steps,
    weigh,
)

_SET_CLASSES = 2048  # at a time
_SET_LEFT_OUT = 1e-18  # by the ends of the nodes in t, and of the circles
_SET_GONE = 1e-19


# Draws without replacement


def set_square(example: Example, inputs: Inputs, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B85), or 0 where all classes are drawn."""
    logits, label, _ = example
    race, which = draws_of(example, inputs.num_sampled, inputs.scheme)
    known = np.append(which, label) if inputs.scheme.label_in_sum else which
    largest = float(squared_norms(centred[known]).max())
    if not isinstance(race, ExponentialRace) or largest == 0.0:
        return 0.0, 0.0
    divisors, coarse = np.ones((2, len(logits)))
    divisors[which], coarse[which] = race.inclusion
    weights = weigh(logits, label, inputs.scheme, divisors)
    terms = weights.terms(which[race.order], race.inclusion[0][race.order])
    unit = rounding_at(terms.largest_log)
    units = unit + np.minimum(np.abs(coarse / divisors - 1.0), 1.0) ** 1.5
    # beside the vectors stand 1, the square of whose sum is 1, and how far p' c may be off
    reach = units * reach_of(centred, weights.probs)
    columns = np.column_stack([centred, np.ones(len(reach)), reach])
    sums = _set_sums(race, terms, columns[which[race.order]], columns[label], largest)
    squares = sums.squares[:, 0] / sums.squares[:, 1]
    mse, moved = float(squares[0]), math.sqrt(abs(float(sums.squares[0, 2])))
    error = moved * (2.0 * math.sqrt(abs(mse)) + moved) + _SET_LEFT_OUT * largest
    error += (unit + race.noise + 2.0 * abs(float(sums.squares[0, 1]) - 1.0)) * sums.size
    for other in squares[1:]:
        error += estimate_error(abs(float(other) - mse), 0.0, abs(mse), 0.0)
    return mse, error


class _SetSums(NamedTuple):
    """E|sum_i p'_i c_i|**2 for vectors c side by side."""

    squares: FloatArray  # (3, 3) by all nodes, by half of those in u, and in t
    size: float  # of the terms of the first


def _set_sums(
    race: ExponentialRace,
    terms: Terms,
    vectors: FloatArray,
    own: FloatArray,
    largest: float,
) -> _SetSums:
    """Integrate over u, for classes of the `vectors` (N, d + 2) and of the first N `terms`.

    `own` (d + 2,) is that of the label, and `largest` the largest square of the first d columns.
    """
    squares = _add_blocks(vectors * vectors)
    sums, size, survival, left = np.zeros((3, 3)), 0.0, 1.0, 2
    saddles: list[FloatArray] = []
    scales = scales_of_sum(terms)
    for node in nodes_of(terms, *scales, steps):
        if changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, LARGEST_EXPONENT))
            circles = race.circles(decay[:-1], saddles)
            survival, base = 0.0, math.exp(-decay[-1])
            if circles is not None and base > 0.0:
                found = _set_terms(race, circles, decay[:-1], vectors, squares, decay[-1] * own)
                over_t = base * (race.scale @ found)
                survival = base * float(race.scale[0] @ circles.density)
                sums += node.weights[:, None] * over_t[[0, 0, 1], :3]
                size += float(node.weights[0] * over_t[0, 3])
        # what is left is of the order of survival times `largest`; relative to the sum it must be
        # nothing, for where one class has most of the mass the sum is of rare sets without it
        gone = survival * largest <= _SET_GONE * abs(sums[0, 0]) or survival < LEAST_SQUARE
        left = left - 1 if gone else 2
        if not left:
            break
    return _SetSums(sums, size)


def _add_blocks(columns: Any) -> Any:
    """Return the sums (K, 3) over the first d of columns (K, d + 2), and the other two."""
    return np.add.reduceat(columns, [0, columns.shape[1] - 2, columns.shape[1] - 1], axis=1)


def _set_terms(
    race: ExponentialRace,
    circles: Circles,
    decay: FloatArray,
    vectors: FloatArray,
    squares: FloatArray,
    own: FloatArray,
) -> FloatArray:
    """Return the terms of the three squares at each t, and the size of the first, (T, 4).

    `decay` (N,) is u w; `vectors` are (N, d + 2), `squares` (N, 3), and `own` (d + 2,) is u times
    the label's part of the sum.
    """
    # no circle where the density is 0
    there = circles.values[:, 0] ** 2 + circles.values[:, 1] ** 2 > 0.5
    terms = np.zeros((len(race.t), 4))

    def work(part: slice) -> None:
        time, point = np.nonzero(there[part])
        x, y, real, imag, rate, rate_y = circles.values[part][time, :, point].T
        at = race.t[part], circles.log_r[part], time, x, y
        first, second = np.zeros((4, len(x), len(own))), np.zeros((4, len(x), 3))
        for some in chunks(len(decay), _SET_CLASSES):
            bits = np.empty((8, len(x), some.stop - some.start))
            _write_bits(race.q[some], decay[some], circles.decay[some], *at, bits)
            first += bits[:4] @ vectors[some]
            second += bits[4:] @ squares[some]
        mean, last = first[::2] + 1j * first[1::2]
        scatter, last_scatter = second[::2] + 1j * second[1::2]
        mean += own
        term, hazard = (real + 1j * imag)[:, None], (rate + 1j * rate_y)[:, None]
        cross = 2.0 * _add_blocks(mean * last)
        value = hazard * (_add_blocks(mean * mean) + scatter) - cross + last_scatter
        size = np.abs(hazard) * (_add_blocks(np.abs(mean) ** 2) + np.abs(scatter))
        size += np.abs(cross) + np.abs(last_scatter)
        np.add.at(terms[part, :3], time, (term * value).real)
        np.add.at(terms[part, 3], time, (np.abs(term) * size)[:, 0])

    thread_each(work, chunks(len(race.t), max(4, _SET_CLASSES // len(decay))))
    return terms


@njit
def _write_bits(
    q: FloatArray,
    decay: FloatArray,
    less: FloatArray,
    t: FloatArray,
    log_r: FloatArray,
    time: IntArray,
    x: FloatArray,
    y: FloatArray,
    bits: FloatArray,
) -> None:
    """Write what classes give to the sums of (B85) at points x + i y of circles, (8, K, N).

    They are u w phi, q u w phi (1 - phi), (u w)**2 phi (1 - phi) and q (u w)**2 phi (1 - phi)
    (2 phi - 1), each in two rows. `decay` is u w, and `less` the decay that the circles have.
    """
    share, silent, number = np.empty(len(q)), np.empty(len(q)), -1
    for k in range(len(x)):
        if time[k] != number:
            number = time[k]
            for j in range(len(q)):
                log_odds = log_r[number] + log_growth(q[j] * t[number]) - less[j]
                share[j], silent[j] = probabilities_of(log_odds)
        for j in range(len(q)):
            w, rate = decay[j], q[j]
            u, v = silent[j] + share[j] * x[k], share[j] * y[k]
            inverse = 1.0 / (u * u + v * v)
            # phi, and phi (1 - phi)
            a = share[j] * (x[k] * u + y[k] * v) * inverse
            b = share[j] * (y[k] * u - x[k] * v) * inverse
            rest = silent[j] * inverse
            c, d = rest * (a * u + b * v), rest * (b * u - a * v)
            bits[0, k, j], bits[1, k, j] = w * a, w * b
            bits[2, k, j], bits[3, k, j] = rate * w * c, rate * w * d
            c, d = w * (w * c), w * (w * d)
            bits[4, k, j], bits[5, k, j] = c, d
            a, b = 2.0 * a - 1.0, 2.0 * b
            bits[6, k, j], bits[7, k, j] = rate * (c * a - d * b), rate * (c * b + d * a)
