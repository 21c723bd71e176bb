"""The Laplace sums for classes that are included independently of each other."""

from __future__ import annotations

import math

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray


@njit
def _log_factor(pi: float, y: float) -> tuple[float, float]:
    """Return log (1 - pi + pi exp(-y)), the log of f in (B26), and the same plus pi y."""
    drop = math.expm1(-y)
    z = pi * drop
    value = math.log1p(z) if z > -0.5 else math.log((1.0 - pi) + pi * math.exp(-y))
    if y > 0.1:
        return value, value + pi * y
    # log(1 + z) + pi y = [log(1 + z) - z] + pi [exp(-y) - 1 + y], both by their series
    second, power = 0.0, 1.0
    for k in range(2, 16):  # (log1p(z) - z) / z**2
        second += (-power if k % 2 == 0 else power) / k
        power *= z
    total, term = 0.0, 0.5 * y * y
    for k in range(3, 16):  # exp(-y) - 1 + y
        total += term
        term *= -y / k
    return value, z * z * second + pi * total


@njit
def log_products(x: FloatArray, log_w: FloatArray, pi: FloatArray, out: FloatArray) -> None:
    """Write log prod_k (1 - pi_k + pi_k exp(-u w_k)) and that plus u sum pi w into `out` (K, 2).

    `x` (K,) is log u; classes with pi = 0 are passed over.
    """
    for k in range(len(x)):
        total = excess = 0.0
        for j in range(len(pi)):
            if pi[j] > 0.0:
                y = math.exp(min(x[k] + log_w[j], LARGEST_EXPONENT))
                value, above = _log_factor(pi[j], y)
                total += value
                excess += above
        out[k, 0] = total
        out[k, 1] = excess


@njit
def class_integrals(
    x: FloatArray,
    weights: FloatArray,
    log_w: FloatArray,
    pi: FloatArray,
    log_w_ref: float,
    pi_ref: float,
    deviation: FloatArray,
    out: FloatArray,
) -> None:
    """Integrate u e_j (psi_j - psi_ref) over the nodes log u, `x` (K,), for each class, eq. (B27).

    With E = exp(-u w) and f = 1 - pi + pi E, psi = E / f, and psi_j - psi_ref is [(1 - pi_j) (E_j
    - E_ref) + (pi_ref - pi_j) (E_ref - 1) E_j] / (f_j f_ref). The reference with ``pi_ref = 0`` is
    the label, whose psi is 1. `deviation` (n,) is w_j / w_ref - 1. `out` (3, n) gets the integral,
    the same from every second node, and the sum of absolute terms.
    """
    for j in range(len(pi)):
        full = half = size = 0.0
        if 0.0 < pi[j] < 1.0 or (pi[j] == 1.0 and pi_ref > 0.0):
            for k in range(len(x)):
                if weights[k] == 0.0:
                    continue
                y = math.exp(min(x[k] + log_w[j], LARGEST_EXPONENT))
                e = math.exp(-y)
                f = (1.0 - pi[j]) + pi[j] * e
                if pi_ref == 0.0:
                    term = (1.0 - pi[j]) * math.expm1(-y) / f
                else:
                    y_ref = math.exp(min(x[k] + log_w_ref, LARGEST_EXPONENT))
                    e_ref = math.exp(-y_ref)
                    f_ref = (1.0 - pi_ref) + pi_ref * e_ref
                    if f_ref == 0.0 or f == 0.0:
                        continue
                    away = y_ref * deviation[j]
                    change = e_ref * math.expm1(-away) if abs(away) < 1.0 else e - e_ref
                    term = (1.0 - pi[j]) * change + (pi_ref - pi[j]) * math.expm1(-y_ref) * e
                    term /= f * f_ref
                term *= weights[k] * pi[j] * y
                full += term
                size += abs(term)
                if k % 2 == 0:
                    half += 2.0 * term
        out[0, j] = full
        out[1, j] = half
        out[2, j] = size
