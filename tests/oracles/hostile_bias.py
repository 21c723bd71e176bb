"""Biases of small problems by all outcomes, and problems at the ends of floats; nothing shared."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from mpmath import mp, mpf

DIGITS = 400
PLAIN = {"jackknife": "negatives", "jackknife_masked": "masked"}
DRAWS_LABEL = ("candidate", "importance")


def exact(logits, label, q, m, scheme, correction=None):
    """E[p'] - p (n,) and E[L'] - L as mpf, by visiting every outcome of the draws.

    `correction` is what draws are divided by, None for their own probabilities.
    """
    with mp.workdps(DIGITS):
        logits = [mpf(float(o)) for o in logits]
        q = [mpf(float(x)) for x in q]
        c = None if correction is None else [mpf(float(x)) for x in correction]
        top = max(logits)
        e = [mp.exp(o - top) for o in logits]
        z = mp.fsum(e)
        plain = PLAIN.get(scheme, scheme)
        bias, loss = [-x / z for x in e], -mp.log(z / e[label])
        for chance, ids, divisors in _outcomes(label, q, m, plain, c):
            shares, value = _of_draws(e, label, ids, plain, divisors)
            if scheme in PLAIN:
                parts = [
                    _of_draws(e, label, ids[:i] + ids[i + 1 :], plain, divisors) for i in range(m)
                ]
                means = [mp.fsum(p[j] for p, _ in parts) / m for j in range(len(e))]
                shares = [m * x - (m - 1) * y for x, y in zip(shares, means, strict=True)]
                value = m * value - (m - 1) * mp.fsum(x for _, x in parts) / m
            bias = [b + chance * x for b, x in zip(bias, shares, strict=True)]
            loss += chance * value
        return bias, loss


def _of_draws(e, label, ids, scheme, divisors):
    """p' (n,) and the loss of some draws."""
    name, distinct = scheme.removeprefix("distinct_"), scheme.startswith("distinct")
    kept = [j for j in ids if j != label or name in DRAWS_LABEL]
    count = {"reject": max(len(kept), 1), "poisson": 1}.get(name, 1 if distinct else len(ids))
    mass = [mpf(0)] * len(e)
    for j in kept:
        mass[j] += e[j] / (count * divisors[j])
    base = mpf(0) if name == "importance" else e[label]
    if name.startswith("candidate"):
        base /= (1 if distinct else len(ids)) * divisors[label]
    mass[label] += base
    total = mp.fsum(mass)
    return [x / total for x in mass], mp.log(total / (base or e[label]))


def _outcomes(label, q, m, scheme, c):
    """(chance, ids of the draws, what each class is divided by) of every outcome."""
    n, excludes = len(q), scheme in ("negatives", "distinct", "poisson")
    q = [mpf(0) if excludes and j == label else x for j, x in enumerate(q)]
    live = [j for j in range(n) if q[j]]
    if scheme == "poisson":
        for flags in product((0, 1), repeat=len(live)):
            pairs = list(zip(live, flags, strict=True))
            chance = mp.fprod(q[j] if f else 1 - q[j] for j, f in pairs)
            if chance:
                yield chance, tuple(j for j, f in pairs if f), c or q
    elif scheme.startswith("distinct"):
        chances = {}
        for order in permutations(live, m):
            chance = mpf(1)
            for place, j in enumerate(order):
                chance *= q[j] / mp.fsum(q[i] for i in live if i not in order[:place])
            key = frozenset(order)
            chances[key] = chances.get(key, mpf(0)) + chance
        pi = [mp.fsum(x for key, x in chances.items() if j in key) for j in range(n)]
        for key, chance in chances.items():
            yield chance, tuple(sorted(key)), c or pi
    else:
        total = mp.fsum(q)
        law = [x / total for x in q]
        divisors = law
        if scheme == "reject":
            others = mp.fsum(x for j, x in enumerate(q) if j != label)
            divisors = [x / others if others else x for x in q]
        for ids in product(live, repeat=m):
            yield mp.fprod(law[j] for j in ids), ids, c or divisors


def problem(rng, corrected, far=4.0):
    """Logits, a label, q, m and a correction or None, with extremes of each.

    Logits lie up to ``10**far`` apart. With a correction some q are 0.
    """
    n, scale = int(rng.integers(2, 5)), 10.0 ** rng.uniform(-1.0, far)
    logits = rng.normal(size=n) * scale
    if rng.random() < 0.3:
        logits = rng.choice([0.0, 1.0, -1.0, 30.0, -745.0, 745.0, 10.0**far, -(10.0**far)], n)
    depth = rng.choice([0, 1, 10, 100, 290])
    q = 10.0 ** (-depth * (rng.random(n) if rng.random() < 0.7 else rng.integers(0, 2, n)))
    q = np.maximum(q / q.sum(), 1e-290)
    label, correction = int(rng.integers(n)), None
    if corrected:
        q[rng.random(n) < 0.25] = 0.0
        q[int(rng.integers(n))] += 1.0
        q /= q.sum()
        kind = rng.integers(5)
        if kind == 0:
            correction = 10.0 ** rng.uniform(-300.0, 308.0, n)
        elif kind == 1:
            correction = np.full(n, rng.choice([1.0, 1e308, 1e-300, 0.5]))
        elif kind == 2:
            correction = 1.0 - rng.choice([0.0, 1e-12, 1e-15, 1e-8], n)
        elif kind == 3:
            correction = rng.uniform(0.1, 2.0, n)
        else:
            correction = np.maximum(q, 1e-300) * rng.choice([1.0, 1.0 - 1e-9, 2.0], n)
    return logits, label, q, int(rng.integers(1, 4)), correction
