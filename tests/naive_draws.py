"""Slow, independent oracles for samplers that look at vectors; nothing here is from samplesoft."""

from fractions import Fraction
from itertools import product

from mpmath import mp, mpf


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


def two_pass(h, vectors, candidates, tau=1.0, excluded=None):
    """Softmax among candidates, 0 elsewhere."""
    kept = [j for j in candidates if j != excluded]
    within = dict(zip(kept, softmax(h, [vectors[j] for j in kept], tau), strict=True))
    return [within.get(j, mpf(0)) for j in range(len(vectors))]


def two_pass_marginal(h, vectors, first, num_candidates, tau=1.0):
    """Probabilities over all candidate sets, by listing every sequence of first draws."""
    total = [mpf(0)] * len(vectors)
    for drawn in product(range(len(vectors)), repeat=num_candidates):
        chance = mp.fprod(mpf(first[j]) for j in drawn)
        given = two_pass(h, vectors, sorted(set(drawn)), tau)
        total = [t + chance * q for t, q in zip(total, given, strict=True)]
    return total
