"""Oracles of moving averages: the long run in mpmath, all histories of a few visits, simulation."""

from itertools import product

import numpy as np
from mpmath import mp, mpf
from numba import njit

DIGITS = 40


def masses_of(logits, label, q, m, scheme):
    """Return the distribution of a draw, and the mass of one draw of each class, over exp(o_t)."""
    q = [mpf(float(x)) for x in q]
    others = sum(x for j, x in enumerate(q) if j != label)
    total = others if scheme == "negatives" else sum(q)
    dist = [x / total for x in q]
    if scheme == "negatives":
        dist[label] = mpf(0)
    o = [mpf(float(x)) for x in logits]
    mass = [
        mp.exp(x - o[label]) / (m * d) if j != label and d else mpf(0)
        for j, (x, d) in enumerate(zip(o, dist, strict=True))
    ]
    return dist, mass


def softmax_gradient(logits, label):
    """Return the gradient of the softmax loss in the logits."""
    e = [mp.exp(mpf(float(x)) - mpf(float(logits[label]))) for x in logits]
    total = sum(e)
    others = sum(x for j, x in enumerate(e) if j != label)
    return [x / total if j != label else -others / total for j, x in enumerate(e)]


def long_run(logits, label, q, m, gamma, scheme="negatives"):
    """Return the mean gradient in the logits minus that of the softmax, by quadrature."""
    with mp.workdps(DIGITS):
        dist, mass = masses_of(logits, label, q, m, scheme)
        gamma = mpf(gamma)
        drawn = [j for j, d in enumerate(dist) if d and j != label]

        def transform(u):  # of the mass of one draw
            return dist[label] + sum(dist[j] * mp.exp(-u * mass[j]) for j in drawn)

        def log_phi(u):  # log E exp(-u S), S = 1 + the masses of m draws
            return -u + m * mp.log(transform(u))

        full = 1 + sum(m * dist[j] * mass[j] for j in drawn)

        def log_before(y):  # log E exp(-y (1 - gamma) U), of all visits but the newest
            total, weight = mpf(0), y * gamma * (1 - gamma)
            while weight * max(mass) > mpf(10) ** -(DIGITS // 2):
                total += log_phi(weight)
                weight *= 1 - gamma
            # what is left, to second order
            spread = m * (
                sum(dist[j] * mass[j] ** 2 for j in drawn)
                - sum(dist[j] * mass[j] for j in drawn) ** 2
            )
            return total - weight / gamma * full + weight**2 / (1 - (1 - gamma) ** 2) * spread / 2

        def integrand(x):
            y = mp.exp(x)
            u = y * gamma
            common = y * mp.exp(-u + log_before(y)) * transform(u) ** (m - 1)
            return [
                m * dist[j] * mass[j] * mp.exp(-u * mass[j]) * common if dist[j] else mpf(0)
                for j in range(len(dist))
            ]

        step = mpf(1) / 8
        first = -mp.log(full) - 60
        last = mp.log(120)
        num = int((last - first) / step)
        means = [mpf(0)] * len(dist)
        for k in range(num):
            for j, value in enumerate(integrand(first + k * step)):
                means[j] += step * value
        means[label] = -sum(x for j, x in enumerate(means) if j != label)
        gradient = softmax_gradient(logits, label)
        return np.array([float(a - b) for a, b in zip(means, gradient, strict=True)])


def given_the_state(logits, label, q, m, log_sum, gamma=None, alpha=None, scheme="negatives"):
    """Return the bias over all draws from the state u, in mpmath."""
    with mp.workdps(DIGITS):
        dist, mass = masses_of(logits, label, q, m, scheme)
        old = mp.exp(mpf(log_sum))
        rate = mpf(gamma) if alpha is None else mpf(alpha) * old / (1 + mpf(alpha) * old)
        mean = [mpf(0)] * len(dist)
        for ids in product([j for j, d in enumerate(dist) if d], repeat=m):
            new = (1 - rate) * old + rate * (1 + sum(mass[j] for j in ids))
            chance = mp.fprod(dist[j] for j in ids)
            for j in ids:
                mean[j] += chance * mass[j] / new
        mean[label] = -sum(x for j, x in enumerate(mean) if j != label)
        return [a - b for a, b in zip(mean, softmax_gradient(logits, label), strict=True)]


def next_u(u, s, gamma, alpha):
    """Return U after a visit."""
    rate = gamma if alpha is None else alpha * u / (1.0 + alpha * u)
    return (1.0 - rate) * u + rate * s


def all_histories(logits, label, q, m, u, visits, gamma=None, alpha=None, scheme="negatives"):
    """Return the mean gradient of the last of some visits, from the state U = u, by enumeration.

    Also the states before the last visit, and their probabilities.
    """
    dist, mass = (np.array(x, float) for x in masses_of(logits, label, q, m, scheme))
    outcomes = list(product(np.flatnonzero(dist), repeat=m))
    states = [(1.0, u)]
    for _ in range(visits - 1):
        states = [
            (p * dist[list(ids)].prod(), next_u(v, 1.0 + mass[list(ids)].sum(), gamma, alpha))
            for p, v in states
            for ids in outcomes
        ]
    mean = np.zeros(len(dist))
    for p, v in states:
        for ids in outcomes:
            chance = p * dist[list(ids)].prod()
            new = next_u(v, 1.0 + mass[list(ids)].sum(), gamma, alpha)
            for j in ids:
                mean[j] += chance * mass[j] / new
    mean[label] = -(mean.sum() - mean[label])
    return mean, states


@njit
def _simulate(cdf, mass, m, gamma, alpha, u, burn, visits, seed):
    np.random.seed(seed)  # noqa: NPY002 - the only generator that can be seeded in a kernel
    total = np.zeros(len(mass))
    one = np.zeros(len(mass))
    for visit in range(burn + visits):
        one[:] = 0.0
        s = 1.0
        for _ in range(m):
            x = np.random.random() * cdf[-1]  # noqa: NPY002
            j = np.searchsorted(cdf, x, side="right")
            one[j] += mass[j]
            s += mass[j]
        rate = gamma if alpha <= 0.0 else alpha * u / (1.0 + alpha * u)
        u = (1.0 - rate) * u + rate * s
        if visit >= burn:
            for j in range(len(mass)):
                total[j] += one[j] / u
    return total / visits


def simulate(logits, label, q, m, gamma=None, alpha=None, scheme="negatives", chains=64, **kw):
    """Return mean gradients of independent chains in the long run, (chains, n)."""
    dist, mass = (np.array(x, float) for x in masses_of(logits, label, q, m, scheme))
    full = 1.0 + (m * dist * mass).sum()
    visits, seed = kw.get("visits", 20_000), kw.get("seed", 0)
    rows = []
    for chain in range(chains):
        rate, step = (gamma, 0.0) if alpha is None else (0.0, alpha)
        burn = int(60 / gamma) if alpha is None else int(60 * (1.0 + 1.0 / (alpha * full)))
        row = _simulate(
            np.cumsum(dist), mass, m, rate, step, full, burn, visits, seed * chains + chain
        )
        row[label] = -(row.sum() - row[label])
        rows.append(row)
    return np.array(rows)
