"""The certificate against Rawat et al.: it is proved, made again, and no changed one is proved."""

import ast
import copy
import json
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

import samplesoft
from samplesoft.bias.theorems import theorem1_bounds, theorem2_ratio

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "docs" / "theory" / "check_certificate.py"
FILE = ROOT / "docs" / "theory" / "counterexample.json"
TEXT = FILE.read_text(encoding="utf-8")
CLAIMS = json.loads(TEXT)["claims"]
THEOREM_1 = [name for name in CLAIMS if name.startswith("theorem-1")]
needs_flint = pytest.mark.usefixtures("flint")


@pytest.fixture(scope="module")
def flint():
    return pytest.importorskip("flint", minversion="0.9", reason="python-flint is not installed")


@pytest.fixture(scope="module")
def check(flint):
    return runpy.run_path(str(CHECKER))["check"]


def run_checker(*paths, **environment):
    command = [sys.executable, str(CHECKER), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, env=environment or None)


# what is true ------------------------------------------------------------------------------------


@needs_flint
def test_the_committed_file_is_proved():
    done = run_checker(FILE)
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ") for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["proved", name] for name in CLAIMS]
    assert "limit_of_m_bias -0.0988 < limit_of_m_bound -0.0926" in done.stdout
    assert run_checker().stdout == done.stdout  # the file beside the script


@needs_flint
def test_the_script_writes_the_committed_file(tmp_path):
    printed = run_script(ROOT / "figures" / "counterexample.py", "--output", tmp_path)
    assert len(printed.splitlines()) == len(CLAIMS)
    assert (tmp_path / "counterexample.json").read_text(encoding="utf-8") == TEXT


def test_the_checker_imports_python_flint_and_the_standard_library_alone():
    tree = ast.parse(CHECKER.read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    modules += [alias.name for node in imports for alias in node.names]
    assert set(modules) - {"flint"} <= set(sys.stdlib_module_names)


def middles(name, key):
    """Return the middles of the intervals of a claim."""
    return np.array([np.mean([float(x) for x in ends]) for ends in CLAIMS[name]["intervals"][key]])


def test_intervals_are_tight():
    for claim in CLAIMS.values():
        for intervals in claim["intervals"].values():
            for lower, upper in intervals:
                assert float(lower) <= float(upper)
                if max(abs(float(lower)), abs(float(upper))) > 1e-19:
                    assert 2e-20 <= 1e-15 * abs(float(lower))


@pytest.mark.parametrize("name", THEOREM_1)
def test_the_library_agrees_on_theorem_1(name):
    instance = CLAIMS[name]["instance"]
    logits = np.array(instance["logits"], float)
    q = np.array(instance["proposal"], float)
    jacobian = np.array(instance["derivatives"], float).T
    m = int(instance["num_sampled"])
    printed = theorem1_bounds(logits, int(instance["label"]), q, m, jacobian)
    bound = printed.lower if "lower" in name else printed.upper
    bias = samplesoft.exact_bias(logits, 0, q, m).gradient_bias(jacobian)
    many = 10**9 * samplesoft.exact_bias(logits, 0, q, 10**9).gradient_bias(jacobian)
    limit = samplesoft.asymptotic_bias(logits, 0, q) @ jacobian
    g = printed.g * np.exp(logits).sum()
    np.testing.assert_allclose(middles(name, "g"), g, rtol=1e-13)
    np.testing.assert_allclose(middles(name, "bias"), bias, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(middles(name, "bound"), bound, rtol=1e-13)
    np.testing.assert_allclose(middles(name, "limit_of_m_bias"), limit, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(middles(name, "limit_of_m_bias"), many, rtol=1e-6, atol=1e-14)
    np.testing.assert_allclose(middles(name, "limit_of_m_bound"), m * bound, rtol=1e-13)


@pytest.mark.parametrize("name", ["equation-20-one-negative", "equation-20-exact-kernel"])
def test_the_library_agrees_on_theorem_2(name):
    instance = CLAIMS[name]["instance"]
    tau, nu, gamma = (float(instance[key]) for key in ("tau", "nu", "gamma"))
    cosine = np.array(["1", *instance["cosines"]], float)  # the label's is not used
    found = theorem2_ratio(cosine, 0, np.exp(nu * cosine), tau=tau, nu=nu)
    np.testing.assert_allclose(middles(name, "ratio"), found.ratio, rtol=1e-13)
    np.testing.assert_allclose(middles(name, "least_gamma"), [found.printed_gamma], rtol=1e-13)
    upper = found.printed_center * (1 + 4 * gamma)
    np.testing.assert_allclose(middles(name, "upper_bound"), upper, rtol=1e-13)


def test_the_library_agrees_on_frequencies_and_negative_estimates():
    # 200,000 cosines have a standard error of at most 0.0023
    nu, square = (float(x) for x in CLAIMS["equation-17-frequencies"]["instance"].values())
    w = np.random.default_rng(0).normal(scale=nu**-0.5, size=200_000)
    mean = np.cos(w * square**0.5).mean()
    assert mean == pytest.approx(
        middles("equation-17-frequencies", "mean_of_estimate")[0], abs=0.01
    )

    h, classes, w = (
        np.array(x, float) for x in CLAIMS["equation-19-negative"]["instance"].values()
    )
    estimates = np.cos((classes - h) @ w)
    np.testing.assert_allclose(
        middles("equation-19-negative", "q"), estimates / estimates.sum(), rtol=1e-13
    )


# what is refused ---------------------------------------------------------------------------------


def is_refused(check, certificate):
    text = certificate if isinstance(certificate, str) else json.dumps(certificate)
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)) as refused:
        check(text)
    return str(refused.value)


def changed_digits(positions, rng=None):
    """Yield the file with another digit at each of the positions: a random one, or every other."""
    for position in positions:
        others = [x for x in "0123456789" if x != TEXT[position]]
        for digit in [rng.choice(others)] if rng else others:
            yield TEXT[:position] + digit + TEXT[position + 1 :]


DIGITS = [match.start() for match in re.finditer(r"\d", TEXT)]


def test_a_changed_digit_is_refused(check):
    """Fifty digits at random places: of names, sentences, instances, and ends of intervals."""
    rng = random.Random(0)
    for text in changed_digits(rng.sample(DIGITS, 50), rng):
        is_refused(check, text)


def test_every_changed_digit_of_an_instance_is_refused(check):
    for instance in re.finditer(r'"instance": \{.*?\n      \}', TEXT, re.DOTALL):
        places = [place for place in DIGITS if instance.start() < place < instance.end()]
        assert places
        for text in changed_digits(places):
            is_refused(check, text)


@pytest.mark.slow
@pytest.mark.thorough
def test_every_changed_digit_is_refused(check):
    for text in changed_digits(DIGITS):
        is_refused(check, text)


def paths(tree, path=()):
    """Yield the path of every text in nested dicts and lists."""
    if isinstance(tree, str):
        yield path
    else:
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, branch in pairs:
            yield from paths(branch, (*path, key))


def with_value(path, value):
    """Return a copy of the certificate with another value at a path."""
    certificate = json.loads(TEXT)
    branch = certificate
    for key in path[:-1]:
        branch = branch[key]
    branch[path[-1]] = value
    return certificate


def value_at(path):
    branch = json.loads(TEXT)
    for key in path:
        branch = branch[key]
    return branch


TEXTS = list(paths(json.loads(TEXT)))


@pytest.mark.parametrize(
    "value",
    [
        *("nan", "inf", "-inf", "1e0", "", " 0", "0 ", "00", "-0", "+1", "1.", ".5", "1/2", "١"),
        *("0.0", "9" * 30, None, True, 0, 1.5, float("nan"), float("inf"), [], {}, ["0"]),
    ],
    ids=repr,
)
def test_a_value_that_is_no_decimal_is_refused(check, value):
    for path in random.Random(repr(value)).sample(TEXTS, 20):
        is_refused(check, with_value(path, value))


@pytest.mark.parametrize("name", CLAIMS)
def test_other_intervals_are_refused(check, name):
    for key, intervals in CLAIMS[name]["intervals"].items():
        for k, (lower, upper) in enumerate(intervals):
            path = "claims", name, "intervals", key, k
            wide = [f"{float(lower) - 1:.20f}", f"{float(upper) + 1:.20f}"]
            for ends in ([lower], [lower, upper, upper], wide, [lower, lower], lower):
                if ends != [lower, upper]:
                    assert "intervals has to be" in is_refused(check, with_value(path, ends))
            if lower != upper:
                is_refused(check, with_value(path, [upper, lower]))
                further = [move(lower, -1), move(upper, 1)]
                for ends in (further, [further[0], upper], [lower, further[1]], ["0", "0"]):
                    is_refused(check, with_value(path, ends))
        is_refused(check, with_value(("claims", name, "intervals", key), intervals[:-1]))
        is_refused(check, with_value(("claims", name, "intervals", key), intervals * 2))


def move(end, units):
    """Return an end of an interval, moved by units of its last decimal."""
    moved = int(end.replace(".", "")) + units
    digits = str(abs(moved)).rjust(21, "0")
    return f"{'-' if moved < 0 else ''}{digits[:-20]}.{digits[-20:]}"


def test_removed_added_and_exchanged_parts_are_refused(check):
    whole = json.loads(TEXT)
    is_refused(check, {"claims": whole["claims"]})
    is_refused(check, {**whole, "more": "0"})
    is_refused(check, {**whole, "claims": {}})
    for name, claim in CLAIMS.items():
        others = {key: one for key, one in CLAIMS.items() if key != name}
        is_refused(check, {**whole, "claims": others})
        is_refused(check, {**whole, "claims": {**CLAIMS, f"{name}-2": claim}})
        for place in ((), ("instance",), ("intervals",), ("holds_in",)):
            path = "claims", name, *place
            for key in value_at(path):
                parts = {k: part for k, part in value_at(path).items() if k != key}
                is_refused(check, with_value(path, parts))
            is_refused(check, with_value(path, {**value_at(path), "more": ["0"]}))
        for other in others:
            is_refused(check, with_value(("claims", name), CLAIMS[other]))


def test_changed_relations_are_refused(check):
    for name, claim in CLAIMS.items():
        for relation, where in claim["holds_in"].items():
            path = "claims", name, "holds_in"
            rest = {key: one for key, one in claim["holds_in"].items() if key != relation}
            for sign in ("<", ">", "<=", ">=", "=="):
                changed = re.sub("[<>]=?", sign, relation)
                if changed != relation:
                    is_refused(check, with_value(path, {**rest, changed: where}))
            for other in ([], ["7"], [*where, where[0]]):
                is_refused(check, with_value((*path, relation), other))


def test_a_key_that_stands_twice_is_refused(check):
    for key in ("about", "claims", "instance", "logits", "bias"):
        twice = TEXT.replace(f'"{key}":', f'"{key}": "0", "{key}":', 1)
        assert "twice" in is_refused(check, twice)


def test_other_texts_are_refused(check):
    for text in ("", "{}", "[]", "0", "null", TEXT + "0", TEXT[:-10], TEXT.replace("{", "[", 1)):
        is_refused(check, text)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("theorem-1-upper", "proposal", ["0", "0.5", "0.5"]),
        ("theorem-1-upper", "proposal", ["0", "0.99", "0.02"]),
        ("theorem-1-upper", "proposal", ["0.01", "0.98", "0.01"]),
        ("theorem-1-upper", "proposal", ["0", "1.5", "-0.5"]),
        ("theorem-1-upper", "num_sampled", "1"),
        ("theorem-1-upper", "num_sampled", "11"),
        ("theorem-1-upper", "num_sampled", "1.5"),
        ("theorem-1-upper", "label", "3"),
        ("theorem-1-upper", "label", "-1"),
        ("theorem-1-upper", "derivatives", [["-1", "0", "0"]]),
        ("theorem-1-upper", "derivatives", ["100"]),
        ("theorem-1-upper-shift", "derivatives", [["1", "1", "1"]]),
        ("theorem-1-upper-shift", "derivatives", [["-1", "-1", "0"]]),
        ("theorem-1-lower", "derivatives", [["1", "1", "1"]]),
        ("theorem-1-lower", "proposal", ["0", "0.5", "0.5"]),
        ("equation-20-one-negative", "gamma", "0.5"),
        ("equation-20-one-negative", "gamma", "-0.4"),
        ("equation-20-one-negative", "nu", "2"),
        ("equation-20-one-negative", "cosines", ["-2"]),
        ("equation-20-one-negative", "cosines", ["-1", "-1"]),
        ("equation-20-exact-kernel", "gamma", "0.5"),
        ("equation-17-frequencies", "nu", "1"),
        ("equation-17-frequencies", "nu", "0"),
        ("equation-19-negative", "frequency", ["0", "0"]),
        ("equation-19-negative", "context", ["1", "1"]),
    ],
)
def test_instances_that_refute_nothing_are_refused(check, name, key, value):
    """They are refused for what they are, before a number of theirs is compared."""
    reason = is_refused(check, with_value(("claims", name, "instance", key), value))
    assert "has to be" not in reason


# python-flint ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ImportError", "python-flint is missing"),
        ("__version__ = '0.8.0'; arb = ctx = fmpq = None", "python-flint 0.8.0 is too old"),
    ],
)
def test_a_missing_or_old_python_flint_is_named(tmp_path, code, message):
    (tmp_path / "flint.py").write_text(code)
    done = run_checker(FILE, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert message in done.stderr


@needs_flint
def test_a_refused_file_gives_the_reason(tmp_path):
    certificate = copy.deepcopy(json.loads(TEXT))
    certificate["claims"]["theorem-1-lower"]["instance"]["proposal"][1] = "0.5"
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(certificate))
    done = run_checker(path)
    assert done.returncode == 1
    assert "q does not add up to 1" in done.stderr
    assert not done.stdout
    assert run_checker(tmp_path / "nowhere.json").returncode == 1
