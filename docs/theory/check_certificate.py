"""Proves again every claim of ``counterexample.json`` against Rawat et al. (2019) as printed.

It needs python-flint and the standard library, and nothing of samplesoft::

    python docs/theory/check_certificate.py

The numbers of an instance are exact. A number that is computed from them is a ball of 200 bits,
which contains the true value. In the file it stands as an interval: the value rounded to 20
decimals, minus and plus one unit of the last decimal. So every digit is determined, and a file
with any other digit is refused. The exit status is 0 if every claim is proved, and 1 if not.
"""

import json
import operator
import re
import sys
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

try:
    import flint
    from flint import arb, ctx, fmpq
except ImportError:
    sys.exit("python-flint is missing: pip install 'python-flint>=0.9'")
if tuple(int(part) for part in flint.__version__.split(".")[:2]) < (0, 9):
    sys.exit(f"python-flint {flint.__version__} is too old: pip install 'python-flint>=0.9'")

FILE_NAME = "counterexample.json"
BITS = 200
UNIT = 10**20  # units of the last decimal in 1
DECIMAL = re.compile(r"0|-?(0\.[0-9]*[1-9]|[1-9][0-9]*(\.[0-9]*[1-9])?)")  # in one spelling only


def require(condition, reason):
    """Refuse the file unless the condition is proved."""
    if not condition:
        raise ValueError(reason)


def number(text):
    """Return the exact value of a decimal of an instance."""
    require(isinstance(text, str) and DECIMAL.fullmatch(text), f"{text!r} is not a plain decimal")
    return Fraction(text)


def numbers(texts):
    """Return the exact values of a list of decimals."""
    require(isinstance(texts, list), f"{texts!r} is not a list")
    return [number(text) for text in texts]


def vectors(rows):
    """Return the exact values of a list of lists of decimals."""
    require(isinstance(rows, list), f"{rows!r} is not a list")
    return [numbers(row) for row in rows]


def ball(exact):
    """Return a ball that contains an exact number."""
    return arb(fmpq(exact.numerator, exact.denominator))


def interval(x):
    """Return the two decimals that the file has to give for a ball."""
    if x.is_zero():
        return ["0", "0"]
    nearest = (x * UNIT + 0.5).floor().unique_fmpz()
    require(nearest is not None, "a number has too few certain digits")
    ends = [int(nearest) - 1, int(nearest) + 1]
    require(ends[0] < x * UNIT < ends[1], "a number is not inside its interval")
    return [f"{'-' if k < 0 else ''}{abs(k) // UNIT}.{abs(k) % UNIT:020}" for k in ends]


# what each kind of claim computes ----------------------------------------------------------------


def theorem_1(side, *, logits, label, proposal, derivatives, num_sampled):
    """Return g, the bias and the printed bound of eqs. 9 to 11, without o(1/m), by coordinate.

    The bias and the bound are also given times m, in the limit of many draws.
    """
    e = [ball(x).exp() for x in numbers(logits)]
    q = numbers(proposal)
    coordinates = vectors(derivatives)
    require(all(len(x) == len(e) for x in [q, *coordinates]), "lengths differ")
    require(number(label) in range(len(e)), "the label is not a class")
    require(number(num_sampled) in range(1, 11), "the number of draws is not 1, 2, ... or 10")
    t = int(label)
    m = int(num_sampled)
    negatives = [j for j in range(len(e)) if j != t]
    require(q[t] == 0 and min(q[j] for j in negatives) > 0, "q is not positive on the negatives")
    require(sum(q) == 1, "q does not add up to 1")

    q = [ball(x) for x in q]
    a = e[t]
    Z = sum(e)
    Z_t = Z - a
    r = {j: e[j] / q[j] for j in negatives}
    rho = sum(e[j] * r[j] for j in negatives)
    V = rho - Z_t**2
    gap = arb(0)
    for j, k in product(negatives, negatives):
        gap = gap.max(abs(r[j] - r[k]))
    M = ball(max(abs(x) for row in coordinates for x in row))  # the least M: the closest bounds

    found = {"g": [], "limit_of_m_bias": [], "limit_of_m_bound": [], "bias": [], "bound": []}
    for row in coordinates:
        d = [ball(x) for x in row]
        g = sum(e[j] * d[j] for j in negatives)
        if side == "upper":
            bound = V / Z**3 * g + 2 * M * Z_t * gap / (Z**2 + rho)
        else:
            bound = -M * sum(e[j] * abs(Z_t - r[j]) for j in negatives) / Z**2

        # eq-limit-beta of theorem-1.md, where Z is 1; for any Z this is divided by Z^2 below
        limit = V / Z * (a * d[t] + g) - sum(e[j] * (r[j] - Z_t) * d[j] for j in negatives)

        # the bias, over all draws
        mean = arb(0)
        for draws in product(negatives, repeat=m):
            probability = prod(q[j] for j in draws)
            S = a + sum(r[j] for j in draws) / m
            mean += probability * (a * d[t] + sum(r[j] * d[j] for j in draws) / m) / S
        bias = mean - (a * d[t] + g) / Z

        for name, x in zip(found, [g, limit / Z**2, bound, bias, bound / m], strict=True):
            found[name].append(x)
    return found


def theorem_1_shift(*, derivatives, **others):
    """Return `theorem_1` for the upper bound and equal derivatives, which have no bias."""
    require(all(len(set(row)) == 1 for row in derivatives), "the derivatives are not equal")
    return theorem_1("upper", derivatives=derivatives, **others)


def equation_20(num_negatives, *, cosines, tau, nu, gamma):
    """Return the ratio of eq. 20 by negative, its printed bounds, and the least gamma they need."""
    x = numbers(cosines)
    tau, nu, gamma = number(tau), number(nu), number(gamma)
    require(len(x) == num_negatives, "the number of negatives is another one")
    require(max(abs(cosine) for cosine in x) <= 1, "a cosine is larger than 1")
    require(0 < nu < tau and gamma > 0, "nu, tau or gamma is out of range")

    kernel = [ball(nu * cosine).exp() for cosine in x]
    e = [ball(tau * cosine).exp() for cosine in x]
    center = [ball((tau - nu) * cosine).exp() for cosine in x]
    quotient = sum(kernel) / sum(e)  # of the two normalisers
    return {
        "ratio": [e[i] / (kernel[i] / sum(kernel)) / sum(e) for i in range(len(x))],
        "lower_bound": [ball(1 - 2 * gamma) * y for y in center],
        "upper_bound": [ball(1 + 4 * gamma) * y for y in center],
        "least_gamma": [((1 - quotient) / 2).max((quotient - 1) / 4)],
    }


def equation_17(*, nu, squared_distance):
    """Return the mean of a cosine whose frequency is normal with I / nu, and the kernel."""
    nu, square = number(nu), number(squared_distance)
    require(nu > 0 and square > 0, "nu or the distance is not positive")
    mean = ball(-square / nu / 2).exp()
    return {"mean_of_estimate": [mean], "kernel": [ball(-square * nu / 2).exp()]}


def equation_19(*, context, negatives, frequency):
    """Return the estimates of the kernel from one frequency, and q as printed."""
    h = numbers(context)
    classes = vectors(negatives)
    w = numbers(frequency)
    for vector in (h, *classes):
        require(len(vector) == len(w), "lengths differ")
        require(sum(x**2 for x in vector) == 1, "the norm of a vector is not 1")
    angles = [sum(w[k] * (c[k] - h[k]) for k in range(len(w))) for c in classes]
    estimates = [ball(angle).cos() for angle in angles]
    require(sum(estimates) > 0, "the sum of the estimates is not positive")
    return {"estimate": estimates, "q": [x / sum(estimates) for x in estimates]}


# for each claim: a sentence, what computes it, and what has to hold in all or any coordinates
ABOUT = "Claims of Rawat et al. (2019) that fail as printed; certificate.md explains the numbers."
ABOVE = {"g >= 0": all, "limit_of_m_bias > limit_of_m_bound": any, "bias > bound": any}
BELOW = {"g >= 0": all, "limit_of_m_bias < limit_of_m_bound": any, "bias < bound": any}
CLAIMS = {
    "theorem-1-upper": (
        "Theorem 1: with g >= 0 in every coordinate, the bias is above the upper bound, for m "
        "draws without o(1/m), and in the limit of m times both, where o(1/m) vanishes.",
        partial(theorem_1, "upper"),
        ABOVE,
    ),
    "theorem-1-upper-shift": (
        "Theorem 1: with g < 0, and equal derivatives, which have no bias, the upper bound is "
        "negative, for m draws without o(1/m), and in the limit of m times it, where o(1/m) "
        "vanishes.",
        theorem_1_shift,
        {"g < 0": all, "limit_of_m_bias > limit_of_m_bound": all, "bias > bound": all},
    ),
    "theorem-1-lower": (
        "Theorem 1: the bias is below the lower bound, for m draws without o(1/m), and in the "
        "limit of m times both, where o(1/m) vanishes.",
        partial(theorem_1, "lower"),
        BELOW,
    ),
    "equation-20-one-negative": (
        "Theorem 2: with one negative, q is 1 for every number of features, and the ratio of "
        "eq. 20 is above its upper bound.",
        partial(equation_20, 1),
        {"ratio > upper_bound": all},
    ),
    "equation-20-exact-kernel": (
        "Theorem 2: with q proportional to the kernel itself, the limit of many features, the "
        "ratio of eq. 20 is below its lower bound for all three negatives.",
        partial(equation_20, 3),
        {"ratio < lower_bound": all},
    ),
    "equation-17-frequencies": (
        "Eq. 17: with frequencies of the printed variance 1 / nu, the mean of the estimate in "
        "eq. 18 is not the kernel.",
        equation_17,
        {"mean_of_estimate > kernel": all},
    ),
    "equation-19-negative": (
        "Eq. 19: with some frequencies, this one and all near it, the probability q of a class "
        "is negative.",
        equation_19,
        {"q < 0": any},
    ),
}
# a relation, and the one that has to be proved if it does not hold
SIGNS = {
    ">": (operator.gt, operator.le),
    "<": (operator.lt, operator.ge),
    ">=": (operator.ge, operator.lt),
}


def recompute(name, instance):
    """Return the whole entry of a claim, computed from its instance."""
    statement, compute, needed = CLAIMS[name]
    found = compute(**instance)
    relations = {}
    for relation, quantifier in needed.items():
        left, sign, right = relation.split()
        holds, fails = SIGNS[sign]
        truths = []
        for k, x in enumerate(found[left]):
            y = found[right][k] if right in found else 0
            truths.append(holds(x, y))
            require(truths[k] or fails(x, y), f"{relation} is undecided")
        require(quantifier(truths), f"{relation} does not hold")
        relations[relation] = [str(k) for k, true in enumerate(truths) if true]
    intervals = {key: [interval(x) for x in balls] for key, balls in found.items()}
    return {
        "statement": statement,
        "instance": instance,
        "intervals": intervals,
        "holds_in": relations,
    }


def without_duplicates(pairs):
    """Return the dict of a JSON object; refuse one that has a key twice."""
    require(len(dict(pairs)) == len(pairs), "a key stands there twice")
    return dict(pairs)


def check(text):
    """Prove every claim of a certificate again and return the claims; refuse any other text."""
    certificate = json.loads(text, object_pairs_hook=without_duplicates)
    require(certificate.keys() == {"about", "claims"}, "unknown or missing keys")
    require(certificate["about"] == ABOUT, "about is another text")
    require(certificate["claims"].keys() == CLAIMS.keys(), "unknown or missing claims")
    with ctx.workprec(BITS):
        for name, claim in certificate["claims"].items():
            expected = recompute(name, claim["instance"])
            require(claim.keys() == expected.keys(), f"{name}: unknown or missing keys")
            for key in expected:
                require(claim[key] == expected[key], f"{name}: {key} has to be {expected[key]}")
    return certificate["claims"]


def shown(ends):
    """Return an interval as one short decimal, to be looked at."""
    return f"{round(float(ends[0]), 4) + 0.0:.4f}"


def summary(claim):
    """Return each relation but those of g, with the numbers of the first coordinate it holds in."""
    parts = []
    for relation, coordinates in claim["holds_in"].items():
        left, sign, right = relation.split()
        if left != "g":
            k = int(coordinates[0])
            text = f"{left} {shown(claim['intervals'][left][k])} {sign} {right}"
            if right in claim["intervals"]:
                text += f" {shown(claim['intervals'][right][k])}"
            parts.append(text)
    return "; ".join(parts)


def main():
    """Check the file that the command line names, by default the one beside this script."""
    if len(sys.argv) > 2:
        sys.exit("usage: python check_certificate.py [counterexample.json]")
    path = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).with_name(FILE_NAME)
    try:
        proved = check(path.read_text(encoding="utf-8"))
    except Exception as error:  # whatever is wrong with a file, it is not proved
        sys.exit(f"refused: {type(error).__name__}: {error}")
    for name, claim in proved.items():
        print(f"proved: {name}: {summary(claim)}")


if __name__ == "__main__":
    main()
