"""Second moments for draws without replacement, eq. (B85), by the race of exponential clocks.

`samplesoft.bias.without_replacement.race` explains the race, and the nodes in t and on circles.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit, thread_for_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.inputs import Example, Inputs
from samplesoft.bias.moments.squares import MIN_SQUARE, rounding_scales, squared_norms
from samplesoft.bias.numerics.quadrature import estimate_error, relative_term_error
from samplesoft.bias.without_replacement.race import Circles, ExponentialRace
from samplesoft.bias.without_replacement.race_kernels import log_ring_odds, ring_probabilities
from samplesoft.bias.without_replacement.set_bias import set_distribution
from samplesoft.bias.without_replacement.terms import (
    SumTerms,
    double_exponential_node,
    integrand_changes,
    log_mean_and_scale,
    make_weights,
    quadrature_nodes,
)

_CLASSES_PER_CHUNK = 2048

# relative error, because the nodes in t and the points on circles end before the integrand is 0
_TRUNCATION = 1e-18

# the sum over the nodes in u stops when the remaining nodes would add less than this fraction of it
_CONVERGED = 1e-19


def gradient_mse_of_sets(
    example: Example, inputs: Inputs, centred: FloatArray
) -> tuple[float, float]:
    """Return ``E|sum_i p'_i c_i|**2`` and its error, eq. (B85), for draws without replacement.

    `centred` (n, d) are class vectors of mean 0 under the softmax. If all classes are drawn, p' is
    not random, and the result is (0, 0).
    """
    logits, label, _ = example
    race, drawn = set_distribution(example, inputs.num_sampled, inputs.scheme)
    sum_classes = np.append(drawn, label) if inputs.scheme.label_in_sum else drawn
    largest = float(squared_norms(centred[sum_classes]).max())
    if not isinstance(race, ExponentialRace) or largest == 0.0:
        return 0.0, 0.0

    divisors, coarse_divisors = np.ones((2, len(logits)))
    divisors[drawn], coarse_divisors[drawn] = race.inclusion
    weights = make_weights(logits, label, inputs.scheme, divisors)

    terms = weights.terms(drawn[race.order], race.inclusion[0][race.order])
    unit = relative_term_error(terms.max_log_magnitude)
    units = unit + np.minimum(np.abs(coarse_divisors / divisors - 1.0), 1.0) ** 1.5

    # Two columns are added to the vectors: ones, as a check, because (sum_i p'_i)**2 is 1; and
    # error bounds of the vectors.
    vector_errors = units * rounding_scales(centred, weights.probs)
    columns = np.column_stack([centred, np.ones(len(vector_errors)), vector_errors])
    sums = _integrate_over_u(race, terms, columns[drawn[race.order]], columns[label], largest)

    squares = sums.squares[:, 0] / sums.squares[:, 1]
    mse = float(squares[0])
    root_of_error = math.sqrt(abs(float(sums.squares[0, 2])))
    error = root_of_error * (2.0 * math.sqrt(abs(mse)) + root_of_error) + _TRUNCATION * largest
    check_error = 2.0 * abs(float(sums.squares[0, 1]) - 1.0)
    error += (unit + race.relative_error + check_error) * sums.magnitude
    for coarse_square in squares[1:]:
        error += estimate_error(abs(float(coarse_square) - mse), 0.0, abs(mse), 0.0)

    return mse, error


class _ExpectedSquares(NamedTuple):
    """Expected squared norms of ``sum_i p'_i c_i`` for three groups of columns of the vectors c.

    The groups are the d columns of the class vectors, a column of ones, and a column of errors.
    """

    # (3, 3): one column for each group. Row 0 is computed by all nodes, row 1 by every second node
    # in u, and row 2 by every second node in t.
    squares: FloatArray

    magnitude: float  # sum of the magnitudes of the terms of squares[0, 0]


def _integrate_over_u(
    race: ExponentialRace,
    terms: SumTerms,
    vectors: FloatArray,
    label_vector: FloatArray,
    largest: float,
) -> _ExpectedSquares:
    """Return the expected squares for N classes that can be drawn, as integrals over u.

    `vectors` (N, d + 2) have the three groups of columns of `_ExpectedSquares`. `terms` are the
    terms of the N classes, followed by the label's fixed term. `label_vector` (d + 2,) is the row
    of the label, and `largest` the largest squared norm of the first d columns.
    """
    squares = _sum_column_groups(vectors * vectors)

    sums = np.zeros((3, 3))
    magnitude = 0.0
    survival = 1.0
    nodes_left = 2

    saddles: list[FloatArray] = []
    scales = log_mean_and_scale(terms)
    for node in quadrature_nodes(terms, *scales, double_exponential_node):
        if integrand_changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, LARGEST_EXPONENT))
            circles = race.make_circles(decay[:-1], saddles)

            survival = 0.0
            base = math.exp(-decay[-1])
            if circles is not None and base > 0.0:
                integrands = _integrands_at_times(
                    race, circles, decay[:-1], vectors, squares, decay[-1] * label_vector
                )
                integrals = base * (race.t_weights @ integrands)
                survival = base * float(race.t_weights[0] @ circles.density)
                sums += node.weights[:, None] * integrals[[0, 0, 1], :3]
                magnitude += float(node.weights[0] * integrals[0, 3])

        # The remaining nodes add about survival * largest. This is compared with the sum itself,
        # which is far below `largest` if one class has most of the mass: then only the sets without
        # this class matter.
        converged = survival * largest <= _CONVERGED * abs(sums[0, 0]) or survival < MIN_SQUARE
        nodes_left = nodes_left - 1 if converged else 2
        if not nodes_left:
            break

    return _ExpectedSquares(sums, magnitude)


def _sum_column_groups(columns: Any) -> Any:
    """Return the sum of the first d of `columns` (K, d + 2), and the other two columns: (K, 3)."""
    return np.add.reduceat(columns, [0, columns.shape[1] - 2, columns.shape[1] - 1], axis=1)


def _integrands_at_times(
    race: ExponentialRace,
    circles: Circles,
    decay: FloatArray,
    vectors: FloatArray,
    squares: FloatArray,
    label_vector: FloatArray,
) -> FloatArray:
    """Return the integrands at each time t for the three groups of columns, (T, 4).

    The fourth column is the sum of the magnitudes of the terms of the first column. `decay` (N,) is
    u times the weights w of the classes. `vectors` (N, d + 2) has a row for each class, and
    `squares` (N, 3) the squares of its entries, summed within each group of columns. `label_vector`
    (d + 2,) is the row of the label, times u times the label's fixed term.
    """
    # points that are not used are stored as 0: all points of a circle with density 0, and the
    # points beyond the last one of a circle
    is_used = circles.point_values[:, 0] ** 2 + circles.point_values[:, 1] ** 2 > 0.5
    terms = np.zeros((len(race.t), 4))

    def add_terms_of_times(times: slice) -> None:
        time, point = np.nonzero(is_used[times])
        x, y, real, imag, rate, rate_y = circles.point_values[times][time, :, point].T
        circle_points = race.t[times], circles.log_radius[times], time, x, y

        first = np.zeros((4, len(x), len(label_vector)))
        second = np.zeros((4, len(x), 3))
        for block in chunks(len(decay), _CLASSES_PER_CHUNK):
            class_terms = np.empty((8, len(x), block.stop - block.start))
            _write_class_terms(
                race.q[block], decay[block], circles.decay[block], *circle_points, class_terms
            )
            first += class_terms[:4] @ vectors[block]
            second += class_terms[4:] @ squares[block]

        mean, last = first[::2] + 1j * first[1::2]
        scatter, last_scatter = second[::2] + 1j * second[1::2]
        mean += label_vector

        term = (real + 1j * imag)[:, None]
        hazard = (rate + 1j * rate_y)[:, None]
        cross = 2.0 * _sum_column_groups(mean * last)

        values = hazard * (_sum_column_groups(mean * mean) + scatter) - cross + last_scatter
        magnitude = np.abs(hazard) * (_sum_column_groups(np.abs(mean) ** 2) + np.abs(scatter))
        magnitude += np.abs(cross) + np.abs(last_scatter)

        np.add.at(terms[times, :3], time, (term * values).real)
        np.add.at(terms[times, 3], time, (np.abs(term) * magnitude)[:, 0])

    thread_for_each(
        add_terms_of_times, chunks(len(race.t), max(4, _CLASSES_PER_CHUNK // len(decay)))
    )
    return terms


@njit
def _write_class_terms(
    q: FloatArray,
    decay: FloatArray,
    shift: FloatArray,
    t: FloatArray,
    log_radius: FloatArray,
    time: IntArray,
    x: FloatArray,
    y: FloatArray,
    out: FloatArray,
) -> None:
    """Write the terms of N classes in the sums of (B85) to `out` (8, K, N), at K circle points.

    The terms are u w phi, q u w phi (1 - phi), (u w)**2 phi (1 - phi) and
    q (u w)**2 phi (1 - phi) (2 phi - 1), each as a row of real parts and a row of imaginary parts.
    phi is the complex counterpart of the probability that the class is in the set.

    `x` and `y` (K,) are the points x + i y on the unit circle, and `time` (K,) their indices in `t`
    and `log_radius`. `decay` (N,) is u w, and `shift` (N,) is `Circles.decay`.
    """
    hit_prob = np.empty(len(q))
    miss_prob = np.empty(len(q))
    previous_time = -1
    for k in range(len(x)):
        if time[k] != previous_time:
            previous_time = time[k]
            for j in range(len(q)):
                log_odds = log_radius[time[k]] + log_ring_odds(q[j] * t[time[k]]) - shift[j]
                hit_prob[j], miss_prob[j] = ring_probabilities(log_odds)

        for j in range(len(q)):
            w = decay[j]
            rate = q[j]
            u = miss_prob[j] + hit_prob[j] * x[k]
            v = hit_prob[j] * y[k]
            inverse = 1.0 / (u * u + v * v)

            # phi = a + i b, and phi (1 - phi) = c + i d
            a = hit_prob[j] * (x[k] * u + y[k] * v) * inverse
            b = hit_prob[j] * (y[k] * u - x[k] * v) * inverse
            inverse_miss = miss_prob[j] * inverse
            c = inverse_miss * (a * u + b * v)
            d = inverse_miss * (b * u - a * v)
            out[0, k, j] = w * a
            out[1, k, j] = w * b

            out[2, k, j] = rate * w * c
            out[3, k, j] = rate * w * d
            c = w * (w * c)
            d = w * (w * d)
            out[4, k, j] = c
            out[5, k, j] = d
            a = 2.0 * a - 1.0
            b = 2.0 * b
            out[6, k, j] = rate * (c * a - d * b)
            out[7, k, j] = rate * (c * b + d * a)
