"""Problems at the limits of floating point, and their biases by enumeration of every outcome."""

from __future__ import annotations

import numpy as np
from mpmath import mp, mpf

from oracles import naive

LOST = mpf("1e-289")  # a bias below this has no digits in float64
SPECIAL = [0.0, -1.0, -30.0, -285.0, -700.0, -745.0, -800.0, -1e4, 1e4]


def enumerated(logits, label, q, m, scheme, dps=None):
    """Return the bias (n,), as mpf, with as many digits as it takes to subtract the softmax.

    With `dps` of them, errors of about ``10**-dps`` are left.
    """
    dps = int(2 * (max(logits) - min(logits)) / 2.3) + 700 if dps is None else dps
    with mp.workdps(dps):
        expected, _, _ = naive.enumerate_scheme(logits, label, q, m, scheme, dps)
        return [x - y for x, y in zip(expected, naive.softmax(logits), strict=True)]


def extreme(rng):
    """Return logits of up to ten thousand, a label, a proposal down to 1e-300, and m."""
    n, scale = int(rng.integers(2, 5)), 10.0 ** rng.uniform(-1.0, 3.5)
    logits = rng.normal(size=n) * scale if rng.random() < 0.7 else rng.choice(SPECIAL, n)
    depth = rng.choice([0, 1, 10, 100, 300])
    q = 10.0 ** (-depth * (rng.random(n) if rng.random() < 0.7 else rng.integers(0, 2, n)))
    return logits, int(rng.integers(n)), np.maximum(q / q.sum(), 1e-300), int(rng.integers(1, 4))


def ordinary(rng):
    """Return logits of a few nats, a label, a proposal, and m."""
    n = int(rng.integers(2, 7))
    q = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 3.0]))) + 1e-12
    logits = rng.normal(size=n) * rng.choice([0.3, 1.0, 3.0, 10.0])
    return logits, int(rng.integers(n)), q / q.sum(), int(rng.integers(1, 4))
