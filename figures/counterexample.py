"""Searches for the plainest instances at which claims of Rawat et al. (2019) fail as printed.

Writes ``docs/theory/counterexample.json``, a certificate: the instances, with every number that a
refutation needs as an interval that contains the true value. ``docs/theory/check_certificate.py``
proves the file again by another route: it goes through all draws, where this script computes the
bias as an integral (section 2 of ``samplesoft/bias/README.md``) with a proved error. Needs
python-flint; takes a few seconds::

    python figures/counterexample.py
"""

from __future__ import annotations

import argparse
import json
import math
import re
import runpy
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from flint import acb, arb, ctx, fmpq

FOLDER = Path(__file__).parents[1] / "docs" / "theory"
BITS = 256
DECIMALS = 20
LARGEST_LOGIT = 4
MOST_DRAWS = 4
MARGIN = 1e-9  # what a search in floating point takes for a violation; balls then prove it

UNIT_VECTORS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # derivatives, if the parameters are the logits
SIGNS = sorted(product((-1, 0, 1), repeat=3), key=lambda d: sum(map(abs, d)))

Instance = dict[str, Any]
Balls = dict[str, list[arb]]
Derivatives = tuple[tuple[int, ...], ...]


def main() -> None:
    """Search, prove, and write the certificate."""
    parser = argparse.ArgumentParser(description="Write the certificate of counterexamples.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the file")
    args = parser.parse_args()

    # the words are those of the checker, the numbers are computed here
    checker = runpy.run_path(str(FOLDER / "check_certificate.py"))
    claims = {}
    with ctx.workprec(BITS):
        for name, claim in make_claims().items():
            statement, _, relations = checker["CLAIMS"][name]
            found = claim.compute(claim.instance)
            claims[name] = {
                "statement": statement,
                "instance": claim.instance,
                "intervals": {key: list(map(interval, balls)) for key, balls in found.items()},
                "holds_in": {relation: holds_in(relation, found) for relation in relations},
            }
            print(f"{name}: {claim.instance}")
    text = json.dumps({"about": checker["ABOUT"], "claims": claims}, indent=2)
    one_line = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", join_lines, text)
    (args.output / "counterexample.json").write_text(one_line + "\n", encoding="utf-8")


class Claim(NamedTuple):
    """An instance, and the function that computes the numbers of the claim from it."""

    instance: Instance
    compute: Callable[[Instance], Balls]


def make_claims() -> dict[str, Claim]:
    """Return all claims by name; those against Theorem 1 are searched for."""
    return {
        "theorem-1-upper": Claim(search("upper", [UNIT_VECTORS]), upper_bound),
        "theorem-1-upper-shift": Claim(search("shift", [((-1, -1, -1),)]), upper_bound),
        "theorem-1-lower": Claim(search("lower", [(d,) for d in SIGNS if any(d)]), lower_bound),
        "equation-20-one-negative": Claim(
            {"cosines": ["-1"], "tau": "2", "nu": "1", "gamma": "0.4"}, equation_20
        ),
        "equation-20-exact-kernel": Claim(
            {"cosines": ["0.5", "0", "-0.5"], "tau": "8", "nu": "2", "gamma": "0.4"}, equation_20
        ),
        "equation-17-frequencies": Claim({"nu": "2", "squared_distance": "1"}, equation_17),
        "equation-19-negative": Claim(
            {
                "context": ["1", "0"],
                "negatives": [["0", "1"], ["-1", "0"]],
                "frequency": ["1", "1"],
            },
            equation_19,
        ),
    }


# the search, in floating point -------------------------------------------------------------------


def search(side: str, choices: list[Derivatives]) -> Instance:
    """Return the first instance at which a bound fails for m draws, and in the limit.

    Three classes are the fewest with a bias, as a single negative is always drawn. The label is the
    first of them. Fewer draws come first, then smaller logits, then fewer decimals of q.
    """
    for m, logits, rare, derivatives in instances(choices):
        if is_refuted(side, m, logits, float(rare), derivatives):
            return {
                "logits": list(map(str, logits)),
                "label": "0",
                "proposal": ["0", decimal(1 - rare), decimal(rare)],
                "derivatives": [list(map(str, d)) for d in derivatives],
                "num_sampled": str(m),
            }
    raise LookupError("no instance in the grid")


def instances(
    choices: list[Derivatives],
) -> Iterator[tuple[int, tuple[int, ...], Fraction, Derivatives]]:
    """Yield numbers of draws, logits, proposals of the last class and derivatives, plainest first.

    The second class is never drawn less often than the last, which is no loss, because the classes
    can be exchanged.
    """
    tenths = [Fraction(k, 10) for k in range(1, 6)]
    hundredths = [Fraction(k, 100) for k in range(1, 50) if k % 10]
    all_logits = product(range(LARGEST_LOGIT + 1), repeat=3)
    by_sum = sorted((o for o in all_logits if min(o) == 0), key=lambda o: (sum(o), max(o)))
    for m in range(1, MOST_DRAWS + 1):
        for logits in by_sum:
            for rare in tenths + hundredths:
                for derivatives in choices:
                    yield m, logits, rare, derivatives


def is_refuted(
    side: str, m: int, logits: tuple[int, ...], rare: float, derivatives: Derivatives
) -> bool:
    """Return whether a printed bound fails in a coordinate, for m draws and in the limit."""
    a, *e = map(math.exp, logits)
    Z = a + sum(e)
    Z_t = Z - a
    q = 1.0 - rare, rare
    r = e[0] / q[0], e[1] / q[1]
    rho = e[0] * r[0] + e[1] * r[1]
    V = rho - Z_t**2
    ub2 = 2.0 * Z_t * abs(r[0] - r[1]) / (Z**2 + rho)
    spread = sum(x * abs(y - Z_t) for x, y in zip(e, r, strict=True)) / Z**2

    refuted = False
    for label, *d in derivatives:
        largest = max(abs(x) for row in derivatives for x in row)
        g = e[0] * d[0] + e[1] * d[1]
        if (g >= 0.0) == (side == "shift"):
            return False

        limit = V / Z * (a * label + g)
        limit -= sum(x * (y - Z_t) * z for x, y, z in zip(e, r, d, strict=True))
        limit /= Z**2
        bias = -(a * label + g) / Z
        for k in range(m + 1):  # draws of the last class
            probability = math.comb(m, k) * q[0] ** (m - k) * q[1] ** k
            masses = a, (m - k) * r[0] / m, k * r[1] / m
            X = sum(x * y for x, y in zip(masses, (label, *d), strict=True))
            bias += probability * X / sum(masses)
        if side == "lower":
            refuted |= max(limit, m * bias) < -largest * spread - MARGIN
        else:
            bound = V / Z**3 * g + largest * ub2
            refuted |= min(limit, m * bias) > bound + MARGIN
    return refuted


# the proof, in balls -----------------------------------------------------------------------------


def upper_bound(instance: Instance) -> Balls:
    """Return the numbers of a claim against the upper bound of Theorem 1."""
    terms = theorem_1_terms(instance)
    gap = abs(terms.r[0] - terms.r[1])
    second_moment = inner(terms.q, [x * x for x in terms.r])
    ub2 = gap * terms.Z_t / (terms.Z**2 + second_moment)
    return theorem_1(
        instance, terms, [terms.V / terms.Z**3 * x + 2 * terms.M * ub2 for x in terms.g]
    )


def lower_bound(instance: Instance) -> Balls:
    """Return the numbers of a claim against the lower bound of Theorem 1."""
    terms = theorem_1_terms(instance)
    deviations = [x * abs(x - terms.Z_t) for x in terms.r]
    bound = -terms.M * inner(terms.q, deviations) / terms.Z**2
    return theorem_1(instance, terms, [bound] * len(terms.g))


class Terms(NamedTuple):
    """The quantities of Theorem 1, for two negatives and the label as the first class."""

    e: list[arb]
    q: list[arb]
    r: list[arb]
    Z: arb
    Z_t: arb
    V: arb
    M: arb
    g: list[arb]
    derivatives: list[list[arb]]


def theorem_1_terms(instance: Instance) -> Terms:
    """Return the quantities of Theorem 1; those with an index are of the negatives."""
    a, *e = (exact(o).exp() for o in instance["logits"])
    q = [exact(x) for x in instance["proposal"][1:]]
    r = [x / y for x, y in zip(e, q, strict=True)]
    rows = instance["derivatives"]
    derivatives = [[exact(x) for x in row] for row in rows]
    return Terms(
        e=e,
        q=q,
        r=r,
        Z=a + sum(e),
        Z_t=sum(e),
        V=sum(x * (y - sum(e)) ** 2 for x, y in zip(q, r, strict=True)),
        M=arb(max(abs(int(x)) for row in rows for x in row)),
        g=[inner(e, row[1:]) for row in derivatives],
        derivatives=derivatives,
    )


def theorem_1(instance: Instance, terms: Terms, bounds: list[arb]) -> Balls:
    """Return g, and by coordinate the bias and a bound: of m draws, and times m in the limit.

    The bias of a coordinate is the sum of the biases of the classes, each times a derivative.
    """
    e, q, r, Z, V = terms.e, terms.q, terms.r, terms.Z, terms.V
    a = Z - terms.Z_t
    m = int(instance["num_sampled"])
    limits = [a * V / Z**3]
    biases = [a * (mean_of_inverse(a, q, r, m, m) - 1 / Z)]
    for x, y in zip(e, r, strict=True):
        limits.append(x * (V / Z - (y - terms.Z_t)) / Z**2)
        biases.append(x * (mean_of_inverse(a + y / m, q, r, m - 1, m) - 1 / Z))
    return {
        "g": terms.g,
        "limit_of_m_bias": [inner(limits, row) for row in terms.derivatives],
        "limit_of_m_bound": bounds,
        "bias": [inner(biases, row) for row in terms.derivatives],
        "bound": [bound / m for bound in bounds],
    }


def mean_of_inverse(base: arb, q: list[arb], r: list[arb], num_draws: int, num_sampled: int) -> arb:
    """Return the mean of 1 / S, where S is `base` and the ratios of draws, over `num_sampled`.

    It is the integral of ``exp(-u base) (sum_j q_j exp(-u r_j / num_sampled))^num_draws`` over
    u > 0. The integrand is entire, and at most ``exp(-u least)`` with the least value of S, which
    bounds what lies beyond the end of the integral.
    """

    def integrand(u: acb, analytic: bool) -> acb:
        transform = sum(x * (-u * y / num_sampled).exp() for x, y in zip(q, r, strict=True))
        return (-u * base).exp() * transform**num_draws

    least = (base + num_draws * arb.min(*r) / num_sampled).lower()
    end = arb(math.ceil(BITS / float(least)))
    tail = (-end * least).exp() / least
    return acb.integral(integrand, 0, end).real + arb(0).union(tail)


def equation_20(instance: Instance) -> Balls:
    """Return the numbers of a claim against eq. 20: softmax over proposal, by negative.

    The proposal is the Gaussian kernel of the distance between unit vectors, normalised.
    """
    cosines = [exact(x) for x in instance["cosines"]]
    tau, nu, gamma = (exact(instance[key]) for key in ("tau", "nu", "gamma"))
    kernel = [(-nu * (2 - 2 * x) / 2).exp() for x in cosines]
    q = [x / sum(kernel) for x in kernel]
    z_t = sum((tau * x).exp() for x in cosines)
    ratios = [(tau * x).exp() / y / z_t for x, y in zip(cosines, q, strict=True)]
    centers = [((tau - nu) * x).exp() for x in cosines]
    relative = ratios[0] / centers[0]  # the same for all negatives
    return {
        "ratio": ratios,
        "lower_bound": [x - 2 * gamma * x for x in centers],
        "upper_bound": [x + 4 * gamma * x for x in centers],
        "least_gamma": [((1 - relative) / 2).max((relative - 1) / 4)],
    }


def equation_17(instance: Instance) -> Balls:
    """Return the mean cosine for frequencies of the printed variance, and the kernel."""
    nu, square = exact(instance["nu"]), exact(instance["squared_distance"])

    def integrand(x: acb, analytic: bool) -> acb:
        return (x * (square / nu).sqrt()).cos() * (-x * x / 2).exp()

    # beyond the ends the density is less than exp(-x), as x is more than 2 there
    end = arb(BITS)
    beyond = 2 * (-end).exp()
    mean = acb.integral(integrand, -end, end).real + arb(0, beyond)
    mean /= (2 * arb.pi()).sqrt()
    return {"mean_of_estimate": [mean], "kernel": [(-nu * square / 2).exp()]}


def equation_19(instance: Instance) -> Balls:
    """Return products of the features of eq. 17, for one frequency, and q, their shares."""
    w = [exact(x) for x in instance["frequency"]]

    def features(vector: list[str]) -> list[arb]:
        angle = inner(w, [exact(x) for x in vector])
        return [angle.cos(), angle.sin()]

    of_context = features(instance["context"])
    estimates = [inner(features(c), of_context) for c in instance["negatives"]]
    return {"estimate": estimates, "q": [x / sum(estimates) for x in estimates]}


def inner(x: list[arb], y: list[arb]) -> arb:
    """Return the inner product of two vectors."""
    return sum((a * b for a, b in zip(x, y, strict=True)), arb(0))


def exact(text: str) -> arb:
    """Return a ball that contains a decimal."""
    value = Fraction(text)
    return arb(fmpq(value.numerator, value.denominator))


# the file ----------------------------------------------------------------------------------------


def interval(x: arb) -> list[str]:
    """Return the value rounded to 20 decimals, minus and plus one unit of the last decimal.

    A number that is exactly 0 is an interval of length 0, so that g >= 0 can be read from it.
    """
    if x.is_zero():
        return ["0", "0"]
    lower, upper = (Fraction(str(end.fmpq())) * 10**DECIMALS for end in (x.lower(), x.upper()))
    if round(lower) != round(upper):
        raise ArithmeticError(f"{x} has too few certain digits")
    return [fixed(round(lower) - 1), fixed(round(lower) + 1)]


def fixed(units: int) -> str:
    """Return an integer number of units of the last decimal, as a decimal."""
    digits = str(abs(units)).rjust(DECIMALS + 1, "0")
    return "-" * (units < 0) + digits[:-DECIMALS] + "." + digits[-DECIMALS:]


def decimal(value: Fraction) -> str:
    """Return a short decimal without trailing zeros."""
    return f"{float(value):g}"


def holds_in(relation: str, found: Balls) -> list[str]:
    """Return the indices at which a relation such as "bias > bound" holds."""
    left, sign, right = relation.split()
    others = found.get(right, [arb(0)] * len(found[left]))
    tests = {">": arb.__gt__, "<": arb.__lt__, ">=": arb.__ge__}
    pairs = zip(found[left], others, strict=True)
    return [str(k) for k, (x, y) in enumerate(pairs) if tests[sign](x, y)]


def join_lines(match: re.Match[str]) -> str:
    """Return a list of strings on one line."""
    return "[" + re.sub(r",\s+", ", ", match[1]) + "]"


if __name__ == "__main__":
    main()
