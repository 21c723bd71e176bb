"""A slow kernel tree in exact arithmetic, and one draw at a time; nothing comes from samplesoft."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

from mpmath import mp, mpf

DIGITS = 50


def inner(x, y):
    """Inner product of two vectors of floats, without rounding."""
    return sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)), 0)


def split(num_leaves):
    """How many leaves go left: the largest power of two below their number."""
    left = 1
    while 2 * left < num_leaves:
        left *= 2
    return left


def nodes(num_leaves, first=0):
    """Yield (first, middle, last) of every node with two halves, parents before children."""
    if num_leaves > 1:
        left = split(num_leaves)
        yield first, first + left, first + num_leaves
        yield from nodes(left, first)
        yield from nodes(num_leaves - left, first + left)


def is_clipped(values, leaf_size, floor):
    """Whether the mass of some half of a node over classes of these kernel values is clipped."""
    n, floor = len(values), Fraction(floor)
    for edges in nodes(-(-n // leaf_size)):
        first, middle, last = (min(n, edge * leaf_size) for edge in edges)
        for start, stop in ((first, middle), (middle, last)):
            if sum(values[start:stop]) < floor * (stop - start):
                return True
    return False


def real(x):
    """A float or a fraction as mpf."""
    x = Fraction(x)
    return mpf(x.numerator) / x.denominator


def weights(kind, values, products, scale, floor):
    """Weights of the classes of a leaf, from their kernel values and their products with h."""
    if kind == "kernel":
        return [real(max(v, Fraction(floor))) for v in values]
    if kind == "quadratic":
        return [real(Fraction(scale) * x * x + 1) for x in products]
    return [mp.exp(real(Fraction(scale) * x)) for x in products]


def probabilities(
    h, class_rows, phi, features, *, leaf_size, kind="kernel", scale=1.0, floor=1e-9, exclude=None
):
    """Probabilities (n,) of one context as a list of mpf, by recursion over leaves."""
    with mp.workdps(DIGITS):
        values = [inner(phi, row) for row in features]
        products = [inner(h, row) for row in class_rows]
        n, least = len(values), Fraction(floor)
        q = [mpf(0)] * n

        def descend(classes, num_leaves, reached):
            if num_leaves == 1:
                inside = weights(
                    kind, [values[c] for c in classes], [products[c] for c in classes], scale, floor
                )
                for c, w in zip(classes, inside, strict=True):
                    q[c] = reached * w / mp.fsum(inside)
                return
            left = split(num_leaves)
            halves = classes[: left * leaf_size], classes[left * leaf_size :]
            clipped = [max(sum(values[c] for c in half), least * len(half)) for half in halves]
            for half, mass, leaves in zip(halves, clipped, (left, num_leaves - left), strict=True):
                descend(half, leaves, reached * real(mass / sum(clipped)))

        descend(range(n), -(-n // leaf_size), mpf(1))
        return q if exclude is None else leave_out(q, exclude)


def leave_out(q, label):
    """Probabilities given that `label` is not drawn: the others, divided by their sum."""
    with mp.workdps(DIGITS):
        others = [mpf(0) if c == label else mpf(x) for c, x in enumerate(q)]
        rest = mp.fsum(others)
        return [x / rest for x in others]


def branches(q, leaf_size):
    """The probability of going left at every node of a tree with class probabilities `q`."""
    before = [0, *accumulate(q)]
    shares = []
    for edges in nodes(-(-len(q) // leaf_size)):
        first, middle, last = (before[min(len(q), edge * leaf_size)] for edge in edges)
        shares.append((middle - first) / (last - first))
    return shares


def draw(u, q, leaf_size):
    """The class that one uniform leads to, halving the leaves and stretching what is left of it.

    A branch has the probability that `q` (n,) gives to the classes below it.
    """
    u, n = Fraction(float(u)), len(q)
    before = [Fraction(0), *accumulate(Fraction(float(x)) for x in q)]
    first, num_leaves = 0, -(-n // leaf_size)

    def mass(start, stop):
        return before[min(n, stop * leaf_size)] - before[min(n, start * leaf_size)]

    while num_leaves > 1:
        left = split(num_leaves)
        share = mass(first, first + left) / mass(first, first + num_leaves)
        if u < share:
            u, num_leaves = u / share, left
        else:
            u, first, num_leaves = (u - share) / (1 - share), first + left, num_leaves - left
    start, stop = first * leaf_size, min(n, (first + 1) * leaf_size)
    target = before[start] + u * (before[stop] - before[start])
    return next(c for c in range(start, stop) if before[c + 1] > target)
