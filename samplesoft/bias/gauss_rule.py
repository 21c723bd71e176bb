"""Gauss's rule of the law of a draw, carried to that of a sum of draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray

_EPS = float(np.finfo(np.float64).eps)
_LOST = 1e-9  # relative error of a polynomial that is not used


class JacobiMatrix(NamedTuple):
    """Recurrence of the orthogonal polynomials of a law of mean 0: ``slopes[0]`` is 0.

    ``p_k+1 = (y - slopes[k]) p_k - norms[k] p_k-1``, with K slopes and K norms, ``norms[0]`` 1.
    """

    slopes: FloatArray
    norms: FloatArray
    error: float  # estimate, relative, in L2 of the law, of the last polynomial
    limit: int  # the rows that a sum with this law may have

    def rule(self) -> tuple[FloatArray, FloatArray]:
        """Return nodes and weights, both (K,)."""
        off = np.sqrt(self.norms[1:])
        nodes, vectors = np.linalg.eigh(np.diag(self.slopes) + np.diag(off, 1) + np.diag(off, -1))
        return nodes, vectors[0] ** 2


def jacobi_matrix(y: FloatArray, weights: FloatArray, size: int, error: float) -> JacobiMatrix:
    """Return the matrix of a law on points y of mean 0, by Stieltjes' procedure.

    It has less than `size` rows where the law has less points, and where rounding leaves no more
    digits; then what is made of it can have no more. `error` is that of y, relative in L2.
    """
    slopes, norms = [0.0], [1.0]
    before, now = np.zeros_like(y), np.ones_like(y)
    lengths, errors = [1.0, 1.0], [0.0, error]  # of `before` and `now`
    for _ in range(1, size):
        product = y * now
        reach = math.sqrt(float(weights @ product**2)) + abs(slopes[-1]) * lengths[1]
        before, now = now, product - slopes[-1] * now - norms[-1] * before
        length = math.sqrt(float(weights @ now**2))
        back = norms[-1] * lengths[0] if len(norms) > 1 else 0.0
        moved = (errors[1] + 4.0 * _EPS) * reach + (errors[0] + 4.0 * _EPS) * back
        if not moved < _LOST * length:
            break
        lengths, errors = [lengths[1], length], [errors[1], moved / length]
        norms.append((length / lengths[0]) ** 2)
        slopes.append(float((weights * now) @ (y * now)) / length**2)
    limit = size if len(norms) == min(size, len(y)) else len(norms)
    return JacobiMatrix(np.array(slopes), np.array(norms), errors[1], limit)


def sum_of_draws(one: JacobiMatrix, draws: int) -> JacobiMatrix:
    """Return the matrix of the sum of `draws` draws.

    A rule on K nodes has the first 2 K - 1 moments of its law, and so has the sum of two rules
    those of the sum. All weights are positive: nothing cancels.
    """
    total = one
    for bit in bin(draws)[3:]:
        total = _add(total, total)
        if bit == "1":
            total = _add(total, one)
    return total


def _add(first: JacobiMatrix, second: JacobiMatrix) -> JacobiMatrix:
    (y, v), (z, w) = first.rule(), second.rule()
    points, weights = np.add.outer(y, z).ravel(), np.outer(v, w).ravel()
    root = math.sqrt(float(weights @ points**2)) or 1.0
    rounding = 8.0 * _EPS * float(np.abs(points).max()) / root
    found = jacobi_matrix(points, weights, min(first.limit, second.limit), rounding)
    return found._replace(error=found.error + first.error + second.error * (first is not second))
