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
    """Probabilities through cells, each level a list of cells and each cell a list of classes."""
    vectors, tau = [[mpf(float(x)) for x in row] for row in vectors], mpf(tau)
    h = [mpf(float(x)) for x in h]

    def estimate(cell):
        """The size of a cell times the exponential of two cumulants of the logits in it."""
        columns = list(zip(*(vectors[j] for j in cell), strict=True))
        means = [mp.fsum(column) / len(cell) for column in columns]
        squares = [
            mp.fsum((x - mean) ** 2 for x in column) / len(cell)
            for column, mean in zip(columns, means, strict=True)
        ]
        first = mp.fsum(a * b for a, b in zip(h, means, strict=True))
        second = mp.fsum(a * a * b for a, b in zip(h, squares, strict=True))
        return len(cell) * mp.exp(tau * first + tau**2 * second / 2)

    def descend(parts, depth):
        """Probabilities among the classes of `parts`, and the share of their mass that is left."""
        if depth == len(levels):
            logits = {
                j: tau * mp.fsum(a * b for a, b in zip(h, vectors[j], strict=True)) for j in parts
            }
            masses = {j: mp.exp(x) for j, x in logits.items()}
            left = {j: mpf(0) if j == excluded else x for j, x in masses.items()}
            total, kept = mp.fsum(masses.values()), mp.fsum(left.values())
            return {j: x / kept if kept else x for j, x in left.items()}, kept / total
        inside = [c for c in levels[depth] if set(c) <= set(parts)]
        found = [descend(list(cell), depth + 1) for cell in inside]
        masses = [estimate(cell) for cell in inside]
        left = [mass * share for mass, (_, share) in zip(masses, found, strict=True)]
        kept = mp.fsum(left)
        probs = {
            j: q * mass / kept if kept else mpf(0)
            for mass, (within, _) in zip(left, found, strict=True)
            for j, q in within.items()
        }
        return probs, kept / mp.fsum(masses)

    with mp.workdps(40):
        probs, _ = descend(list(range(len(vectors))), 0)
        return [probs[j] for j in range(len(vectors))]


def two_pass_marginal(h, vectors, first, num_candidates, tau=1.0):
    """Probabilities over all candidate sets, by listing every sequence of first draws."""
    total = [mpf(0)] * len(vectors)
    for drawn in product(range(len(vectors)), repeat=num_candidates):
        chance = mp.fprod(mpf(first[j]) for j in drawn)
        given = two_pass(h, vectors, sorted(set(drawn)), tau)
        total = [t + chance * q for t, q in zip(total, given, strict=True)]
    return total
