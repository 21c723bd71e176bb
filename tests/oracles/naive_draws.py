"""Slow, independent oracles for samplers that look at vectors; clusters by their plain twin."""

from fractions import Fraction
from itertools import product

from mpmath import mp, mpf

from samplesoft.samplers.clusters import plain


def inner(x, y):
    """Inner product of two vectors of floats, as mpf without rounding."""
    total = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)), 0)
    return mpf(Fraction(total).numerator) / Fraction(total).denominator


def normalised(weights, excluded=None):
    """Weights divided by their sum, without those of `excluded`."""
    kept = [mpf(0) if j == excluded else w for j, w in enumerate(weights)]
    total = mp.fsum(kept)
    return [w / total for w in kept]


def softmax(h, vectors, tau=1.0, excluded=None):
    """Probabilities of the classes by the definition."""
    with mp.workdps(60):
        return normalised([mp.exp(mpf(tau) * inner(h, c)) for c in vectors], excluded)


def quadratic(h, vectors, alpha, excluded=None):
    """Probabilities in proportion to ``alpha (h . c)**2 + 1``."""
    return normalised([mpf(alpha) * inner(h, c) ** 2 + 1 for c in vectors], excluded)


def mixture(first, second, weight):
    """Probabilities of a draw that comes from `first` with probability `weight`."""
    return [weight * a + (1 - weight) * b for a, b in zip(first, second, strict=True)]


def lsh(h, vectors, directions, share, excluded=None):
    """Probabilities of a class at random in the bucket of a table, or with a share of them all."""

    def code(x, table):
        return [inner(x, direction) > 0 for direction in table]

    n, share = len(vectors), mpf(share)
    masses = [share / n] * n
    for table in directions:
        mine = code(h, table)
        bucket = [j for j, c in enumerate(vectors) if code(c, table) == mine] or list(range(n))
        for j in bucket:
            masses[j] += (1 - share) / len(directions) / len(bucket)
    return normalised(masses, excluded)


def two_pass(h, vectors, candidates, tau=1.0, excluded=None):
    """Softmax among candidates, 0 elsewhere."""
    kept = [j for j in candidates if j != excluded]
    within = dict(zip(kept, softmax(h, [vectors[j] for j in kept], tau), strict=True))
    return [within.get(j, mpf(0)) for j in range(len(vectors))]


def clusters(h, vectors, levels, tau=1.0, excluded=None):
    """Probabilities by the plain twin, through cells: levels of lists of classes."""
    with mp.workdps(40):
        h, *vectors = [[mpf(float(x)) for x in row] for row in (h, *vectors)]
        return plain.class_probabilities(h, vectors, levels, mpf(tau), excluded, mp)


def two_pass_marginal(h, vectors, first, num_candidates, tau=1.0):
    """Probabilities over all candidate sets, by listing every sequence of first draws."""
    total = [mpf(0)] * len(vectors)
    for drawn in product(range(len(vectors)), repeat=num_candidates):
        chance = mp.fprod(mpf(first[j]) for j in drawn)
        given = two_pass(h, vectors, sorted(set(drawn)), tau)
        total = [t + chance * q for t, q in zip(total, given, strict=True)]
    return total
