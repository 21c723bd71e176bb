"""The pages of theory: what they name exists, and equations hold that they do not compute."""

import re
from itertools import permutations, product
from math import factorial
from pathlib import Path

import numpy as np
import pytest

from samplesoft import asymptotic_bias, exact_bias
from samplesoft.metrics import TargetRanks, correct_metric, rank_metric, sampled_rank_distribution


def read(path):
    return path.read_text(encoding="utf-8")


def defined(paths):
    """Return names of functions, classes and fields."""
    pattern = re.compile(r"\b(?:def|class) (\w+)|^    (\w+): ", re.MULTILINE)
    return {name for path in paths for pair in pattern.findall(read(path)) for name in pair}


ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "theory"
PAGES = sorted(FOLDER.glob("*.md"))
TEXT = {path.name: read(path) for path in PAGES}
PROVED = [path for path in PAGES if "{prf:theorem}" in TEXT[path.name]]
PUBLIC = defined((ROOT / "samplesoft").rglob("*.py"))
WHOLE = "\n".join(TEXT.values())
each_page = pytest.mark.parametrize("path", PROVED, ids=lambda path: path.stem)


def once(pattern):
    """Return what the pattern finds in all pages, of which no two are equal."""
    found = re.findall(pattern, WHOLE, flags=re.MULTILINE)
    assert len(found) == len(set(found)) > 5
    return set(found)


def test_equations_and_theorems_that_are_named_exist():
    equations = once(r"^\$\$ \((eq-[\w-]+)\)$")
    statements = once(r"^:label: ([\w-]+)$")
    assert set(re.findall(r"\{eq\}`([^`]+)`", WHOLE)) <= equations
    assert set(re.findall(r"\{prf:ref\}`([^`]+)`", WHOLE)) <= statements


def test_sources_are_cited_and_known():
    keys = re.findall(r"^@\w+\{(\w+),$", read(FOLDER / "references.bib"), re.MULTILINE)
    assert keys == sorted(set(keys))
    cited = {key for group in re.findall(r"\{cite\}`([^`]+)`", WHOLE) for key in group.split(",")}
    assert cited == set(keys)


@each_page
def test_each_statement_has_a_proof_and_stands_in_the_table(path):
    """A proof follows each statement, or the sentence that says where it is."""
    text = TEXT[path.name]
    kinds = "theorem|lemma|proposition|corollary"
    parts = re.split(rf"^:::\{{prf:(?:{kinds})\}}", text, flags=re.MULTILINE)[1:]
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    for part in parts:
        (label,) = re.findall(r"^:label: ([\w-]+)$", part, flags=re.MULTILINE)
        assert "{prf:proof}" in part or "The proof is in [section" in part, label
        if label.startswith("thm-"):
            assert f"{{prf:ref}}`{label}`" in table, label


@each_page
def test_functions_and_tests_in_the_table_exist(path):
    rows = [line.split("|")[1:-1] for line in TEXT[path.name].splitlines() if line[:1] == "|"]
    header = rows.index([" statement ", " function ", " test ", " to read on "])
    for _, functions, tests, _ in rows[header + 2 :]:
        scripts = [ROOT / name for name in re.findall(r"`(figures/\w+\.py)`", functions)]
        known = defined(scripts) if scripts else PUBLIC
        named = re.findall(r"`\.?([a-zA-Z]\w+)(?:\(.*?\))?`", functions)
        assert set(named) <= known
        for place in re.findall(r"`(tests/[\w/.]+)`", tests):
            assert (ROOT / place).exists(), place


# equations that no block of the pages computes as they stand --------------------------------------

LOGITS, Q, M = np.array([0.0, 1.0, -1.0, 2.0]), np.array([0.4, 0.1, 0.3, 0.2]), 2
E = np.exp(LOGITS) / np.exp(LOGITS).sum()
U = np.exp(np.arange(-45.0, 6.0, 0.1))  # nodes of the trapezoid rule on log u and on log x
DU = 0.1 * U


def coefficient(factors, power):
    """Return the coefficient of z^power in the product of a + z b, over factors (a, b)."""
    found = np.ones(1)
    for a, b in factors:
        found = np.convolve(found, [a, b])
    return found[power] if power < len(found) else 0.0


def test_two_integrals_of_draws_without_replacement():
    """{eq}`eq-clocks` at one u, and {eq}`eq-clocks-class`, of draws that may be the label."""
    mass = exact_bias(LOGITS, 0, Q, M, scheme="distinct_importance")
    weights, k = E / mass.inclusion, 3
    orders = list(permutations(range(4), M))
    chances = [Q[i] * Q[j] / (1 - Q[i]) for i, j in orders]
    by_orders = sum(
        c * np.exp(-weights[list(o)].sum()) for c, o in zip(chances, orders, strict=True)
    )
    transform = share = 0.0
    for x, dx in zip(U, DU, strict=True):
        a = np.exp(-Q * x)
        b = (1 - a) * np.exp(-weights)
        for last in range(4):
            others = [(a[j], b[j]) for j in range(4) if j != last]
            transform += dx * Q[last] * a[last] * coefficient(others, M)
    assert transform == pytest.approx(by_orders, rel=1e-10)
    few = U > 1e-6  # what is left out is smaller than the tolerance
    for x, dx in zip(U[few][::4], 4 * DU[few][::4], strict=True):
        a = np.exp(-Q * x)
        for u, du in zip(U[few][::5], 5 * DU[few][::5], strict=True):
            b = (1 - a) * np.exp(-u * weights)
            for last in {0, 1, 2}:
                others = [(a[j], b[j]) for j in range(4) if j not in (k, last)]
                share += dx * du * Q[last] * a[last] * b[k] * coefficient(others, M - 1)
    assert weights[k] * share == pytest.approx(mass.expected_probs[k], rel=1e-4)


def test_the_chance_of_a_set_and_of_its_number_of_tries():
    """{eq}`eq-tries`, by all sequences of four draws of which the last is the third class."""
    found = np.zeros(4)  # by the last class
    for ids in product((0, 1, 3), repeat=4):
        if set(ids) == {0, 1, 3} and ids[-1] not in ids[:-1]:
            found[ids[-1]] += Q[list(ids)].prod()
    for last in (0, 1, 3):
        first, second = (Q[j] for j in (0, 1, 3) if j != last)
        powers = [np.array([0.0, q, q**2 / 2, q**3 / 6]) for q in (first, second)]
        by_series = factorial(3) * Q[last] * np.convolve(*powers)[3]
        assert by_series == pytest.approx(found[last], rel=1e-12)


def test_independent_inclusion():
    """{eq}`eq-poisson`, of the label 0."""
    pi = np.array([1.0, 0.5, 0.9, 0.2])
    exact = exact_bias(LOGITS, 0, pi, 1, scheme="poisson")
    w = E / pi
    factors = 1 - pi + pi * np.exp(-U[:, None] * w)
    for j in (1, 2, 3):
        others = factors[:, [k for k in (1, 2, 3) if k != j]].prod(axis=1)
        found = E[j] * (DU * np.exp(-U * (E[0] + w[j])) * others).sum()
        assert found == pytest.approx(exact.expected_probs[j], rel=1e-10)


def test_correction_of_sampled_metrics_solves_its_equations():
    """The normal equations, and a metric that is linear in the rank, which needs no correction."""
    n, m, gamma = 12, 4, 0.3
    distribution = sampled_rank_distribution(TargetRanks(np.arange(1, n + 1), n), m)
    metric, p = rank_metric("ndcg", 3, np.arange(1, n + 1)), np.full(n, 1 / n)
    squares = distribution.T @ (p[:, None] * distribution)
    ridge = np.diag(distribution.T @ p)
    c = np.linalg.solve((1 - gamma) * squares + gamma * ridge, distribution.T @ (p * metric))
    np.testing.assert_allclose(correct_metric(metric, m, gamma=gamma).values, c, rtol=1e-9)
    assert np.linalg.matrix_rank(distribution) == m + 1  # all polynomials of degree m are means
    linear = 1 - np.arange(m + 1) / m
    np.testing.assert_allclose(distribution @ linear, 1 - np.arange(n) / (n - 1))


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_corrected_for_any_shift(seed):
    """{eq}`eq-identity` in the limit, {eq}`eq-corrected` and {eq}`eq-corrected-g` at random."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(3, 9)), int(rng.choice([1, 3, 50]))
    logits, q, d = 2 * rng.normal(size=n), rng.dirichlet(np.ones(n)), rng.uniform(-1, 1, n)
    e, others = np.exp(logits) / np.exp(logits).sum(), np.arange(n) > 0
    r = np.where(others, e * (1 - q[0]) / q, 0.0)
    a, c = e[0], r - (1 - e[0])
    g, v = e[others] @ d[others], e[others] @ c[others]
    beta, bound = exact_bias(logits, 0, q, m).bias @ d, np.abs(d).max()
    assert abs(beta) <= 2 * bound / m * (e * np.maximum(c, 0))[others].sum() * (1 + 1e-9)
    gap, rho = np.ptp(r[others]), e[others] @ r[others]
    rest = v * np.sqrt(3 * v / m + gap**2 / m**2) + np.sqrt(rho * v) * gap / m
    for shift in (0.0, v, rng.normal()):
        reach = bound * ((e * np.abs(c - shift))[others].sum() + a * v + rest)
        assert abs(m * beta - (v - shift) * g) <= reach * (1 + 1e-9)
    limit = asymptotic_bias(logits, 0, q) @ d
    assert limit == pytest.approx(v * (a * d[0] + g) - (e * c * d)[others].sum(), abs=1e-10 * rho)
