"""The bias by all outcomes of the draws, with rational probabilities, in balls of 400 bits.

Shares no code with ``samplesoft.bias.certified`` except `Problem`, the record of its inputs.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations, product
from math import factorial, prod

from samplesoft.bias.certified.bias import Problem
from samplesoft.schemes import SCHEMES, exact_schemes

BITS = 400
NAMES = (*exact_schemes(), *exact_schemes(distinct=True))
PLAIN = {"jackknife": "negatives", "jackknife_masked": "masked"}


def ball(value):
    import flint

    value = Fraction(value)
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def counts_that_sum_to(total, num_classes):
    if num_classes == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in counts_that_sum_to(total - first, num_classes - 1):
            yield first, *rest


def outcomes(problem):
    """Yield the exact probability of each outcome, and how often it has each class."""
    scheme, label, q, m = problem.scheme, problem.label, problem.q, problem.num_sampled
    if scheme.independent:
        others = [j for j in range(len(q)) if j != label]
        for flags in product((0, 1), repeat=len(others)):
            pairs = list(zip(flags, others, strict=True))
            probability = prod(q[j] if flag else 1 - q[j] for flag, j in pairs)
            yield probability, {j: 1 for flag, j in pairs if flag}
        return

    ids = [j for j in range(len(q)) if q[j] > 0 and not (scheme.excludes_label and j == label)]
    total = sum(q[j] for j in ids)
    probs = [q[j] / total for j in ids]
    if scheme.distinct:
        for chosen in combinations(range(len(ids)), m):
            probability = Fraction(0)
            for order in permutations(chosen):
                left = Fraction(1)
                of_order = Fraction(1)
                for i in order:
                    of_order *= probs[i] / left
                    left -= probs[i]
                probability += of_order
            yield probability, {ids[i]: 1 for i in chosen}
        return

    for counts in counts_that_sum_to(m, len(ids)):
        probability = Fraction(factorial(m))
        for count, prob in zip(counts, probs, strict=True):
            probability *= prob**count / factorial(count)
        yield probability, {j: count for j, count in zip(ids, counts, strict=True) if count}


def bias_by_outcomes(problem):
    """Return E[p'] - p (n,) and E[L'] - L as balls, at the working precision."""
    scheme, label, q, m = problem.scheme, problem.label, problem.q, problem.num_sampled
    if scheme.jackknife:
        plain = replace(problem, scheme=SCHEMES[PLAIN[scheme.name]])
        more, loss_more = bias_by_outcomes(plain)
        fewer, loss_fewer = bias_by_outcomes(replace(plain, num_sampled=m - 1))
        bias = [x * m - y * (m - 1) for x, y in zip(more, fewer, strict=True)]
        return bias, loss_more * m - loss_fewer * (m - 1)

    exps = [ball(o - max(problem.logits)).exp() for o in problem.logits]
    e = [x / sum(exps) for x in exps]
    found = list(outcomes(problem))
    zero = 0 * e[0]

    divisors = [prob / sum(q) for prob in q]
    label_count = m * divisors[label]
    if scheme.distinct:
        divisors = [sum(p for p, counts in found if j in counts) for j in range(len(q))]
        label_count = divisors[label]
    elif scheme.independent:
        divisors = q
    elif scheme.excludes_label or scheme.divides_by_accepted:
        divisors = [prob / (sum(q) - q[label]) for prob in q]
    base = {"none": zero, "plain": e[label]}.get(scheme.base)
    if base is None:
        base = e[label] / ball(label_count)

    mean = [zero] * len(q)
    mean_log = zero
    for probability, counts in found:
        kept = {j: c for j, c in counts.items() if j != label or scheme.draws_label}
        number = 1 if scheme.distinct or scheme.independent else m
        if scheme.divides_by_accepted:
            number = sum(kept.values()) or 1
        masses = {j: e[j] * c / ball(number * divisors[j]) for j, c in kept.items()}
        total = sum(masses.values(), start=base)
        mean[label] += ball(probability) * base / total
        for j, mass in masses.items():
            mean[j] += ball(probability) * mass / total
        mean_log += ball(probability) * total.log()
    label_mass = base if scheme.corrects_label else e[label]
    loss_bias = mean_log - label_mass.log() + e[label].log()
    return [x - y for x, y in zip(mean, e, strict=True)], loss_bias


def random_problem(rng: random.Random, name: str) -> Problem:
    """Return a problem of 2 to 8 classes: short decimals, ties, random floats, q to 1e-12."""
    scheme = SCHEMES[name]
    n = rng.randint(2, 8)
    kind = rng.randint(0, 3)
    if kind == 0:
        logits = [Fraction(rng.randint(-9, 9), rng.choice((1, 2, 10))) for _ in range(n)]
    elif kind == 1:
        logits = [Fraction(rng.gauss(0, 1) * rng.choice((0.1, 1, 5, 30))) for _ in range(n)]
    elif kind == 2:
        logits = [Fraction(rng.choice((-1, 0, 1, 2))) for _ in range(n)]
    else:
        logits = [Fraction(rng.gauss(0, 1) + rng.choice((0, 0, 40, -40))) for _ in range(n)]

    kind = rng.randint(0, 3)
    if kind == 0:
        q = [Fraction(1, n)] * n
    elif kind == 1:
        q = [Fraction(rng.randint(1, 20), 100) for _ in range(n)]
    elif kind == 2:
        q = [Fraction(rng.random() ** 6 + 1e-9) for _ in range(n)]
    else:
        q = [Fraction(10) ** -rng.randint(0, 12) for _ in range(n)]
    if scheme.independent:
        q = [min(prob, Fraction(1)) for prob in q]
    elif rng.random() < 0.5:
        q = [prob / sum(q) for prob in q]

    label = rng.randrange(n)
    if scheme.excludes_label and rng.random() < 0.2:
        q[label] = Fraction(0)
    m = rng.randint(2, 4 if n < 6 else 3)
    if not scheme.jackknife and rng.random() < 0.3:
        m = 1
    if scheme.distinct:
        m = min(m, n - 1)
    return Problem(logits, label, q, m, scheme)
