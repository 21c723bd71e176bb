"""Certified results: inside the balls lies what all outcomes give, and nothing else is claimed."""

import json
import math
import os
import pickle
import random
import subprocess
import sys
import threading
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

flint = pytest.importorskip("flint", reason="python-flint is not installed")

from oracles import hard_problems  # noqa: E402
from oracles.rational_enumeration import (  # noqa: E402
    BITS,
    NAMES,
    ball,
    bias_by_outcomes,
    random_problem,
)

import samplesoft  # noqa: E402
from samplesoft.bias import theorems  # noqa: E402
from samplesoft.bias.certified import (  # noqa: E402
    balls,
    certified_bias,
    certified_finite_sample_bounds,
    certified_label_bounds,
    certified_theorem1,
    certified_theorem2,
    integral,
)
from samplesoft.bias.certified.bias import bias_balls  # noqa: E402
from samplesoft.schemes import SCHEMES  # noqa: E402

ORDINARY = ([0.5, 1.0, -2.0, 0.0], 1, [0.1, 0.2, 0.3, 0.4], 3)


def has_all(computed, problem):
    """Return whether balls contain what the outcomes give, which is far more precise."""
    with flint.ctx.workprec(BITS):
        bias, loss_bias = bias_by_outcomes(problem)
        pairs = [*zip(computed.bias, bias, strict=True), (computed.loss_bias, loss_bias)]
        assert all(truth.rad() < 1e-90 for _, truth in pairs)
        return all(found.is_finite() and found.overlaps(truth) for found, truth in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_every_outcome_is_inside(name):
    rng = random.Random(name)
    for _ in range(20):
        problem = random_problem(rng, name)
        assert has_all(bias_balls(problem, 113), problem), problem


def test_a_wrong_problem_is_outside():
    problem = random_problem(random.Random(1), "negatives")
    other = replace(problem, logits=[problem.logits[0] + Fraction(1, 10**30), *problem.logits[1:]])
    assert not has_all(bias_balls(problem, 113), other)


@pytest.mark.parametrize("bits", [32, 64, 300])
def test_few_bits_make_wide_balls_and_no_wrong_ones(bits):
    rng = random.Random(bits)
    for name in ("negatives", "reject", "poisson"):
        problem = random_problem(rng, name)
        assert has_all(bias_balls(problem, bits), problem)


@pytest.mark.parametrize("name", NAMES)
def test_the_float64_ends_enclose_the_balls(name):
    logits, label, q, m = ORDINARY
    proved = certified_bias(*ORDINARY, scheme=name)
    problem = balls_problem(name)
    with flint.ctx.workprec(BITS):
        bias, loss_bias = bias_by_outcomes(problem)
        for low, truth, high in zip(proved.lower, bias, proved.upper, strict=True):
            assert not (flint.arb(low) > truth or truth > flint.arb(high))
        l1 = sum(abs(b) for b in bias)
        assert not (flint.arb(proved.loss_lower) > loss_bias)
        assert not (loss_bias > flint.arb(proved.loss_upper))
        assert not (flint.arb(proved.l1_lower) > l1 or l1 > flint.arb(proved.l1_upper))
    has_bias = name != "distinct"  # which draws all negatives here
    assert (proved.digits >= 15) == has_bias
    assert not has_bias or (proved.upper - proved.lower).max() <= 4 * np.spacing(
        np.abs(proved.upper).max()
    )


def balls_problem(name):
    logits, label, q, m = ORDINARY
    from samplesoft.bias.certified.bias import Problem

    exact = [Fraction(x) for x in logits], label, [Fraction(x) for x in q], m
    return Problem(*exact, SCHEMES[name])


# --- rounding, and the classic faults of layers over balls ---------------------------------------


def test_a_ball_that_is_no_number_excludes_nothing():
    for nothing in (flint.arb.nan(), flint.arb(0, "inf")):
        assert balls.floats_below([nothing])[0] == -math.inf
        assert balls.floats_above([nothing])[0] == math.inf
        assert balls.certain_digits(nothing) == 0


@pytest.mark.parametrize("value", ["1e-400", "-1e-400", "1e400", "-1e400", "0.1", "0", "1"])
def test_ends_are_rounded_outwards(value):
    with flint.ctx.workprec(200):
        number = ball(Fraction(value))
        low, high = balls.floats_below([number])[0], balls.floats_above([number])[0]
        assert flint.arb(low) <= number or low == -math.inf
        assert number <= flint.arb(high) or high == math.inf
        assert (low == high) == (Fraction(value).denominator == 1 and len(value) == 1)


def test_a_long_sum_has_the_error_of_all_its_terms():
    """Naive layers round a sum of n terms once, and are wrong by n / 2 units."""
    with flint.ctx.workprec(53):
        third = ball(Fraction(1, 3))
        total = sum([third] * 3000, start=0 * third)
    with flint.ctx.workprec(200):
        assert total.contains(ball(1000))
        assert total.rad() > flint.arb(2) ** -43


def test_the_rule_has_the_error_that_is_claimed():
    """At one s after another: more than half of kappa is used, and never more than all."""
    used = 0.0
    with flint.ctx.workprec(300):
        step = 1.25
        y = 2 * flint.arb.pi() / step
        kappa = 4 * (flint.arb.pi() * y / (flint.arb.pi() * y).sinh()).sqrt()
        nodes = [(flint.arb(step) * k).exp() for k in range(-200, 12)]
        for s in np.geomspace(0.3, 3.0, 40):
            rule = step * sum(v * (-v * s).exp() for v in nodes)
            error = abs(rule * s - 1)
            assert error < kappa
            used = max(used, float(error / kappa))
    assert 0.4 < used


def mixture(v):
    """Return the mean of exp(-v S), for S = 1/2 with probability 1/4 and else 2."""
    return (v * flint.arb(-0.5)).exp() * flint.arb(0.25) + (v * flint.arb(-2)).exp() * flint.arb(
        0.75
    )


@pytest.mark.parametrize(("first", "last"), [(-8.0, 2.0), (1.1, 5.0), (0.9, 2.0)])
def test_what_is_beyond_the_ends_is_in_the_ball(first, last):
    """Ends at which the sums beyond them are large; without their bounds the truth is outside."""
    with balls.working_precision(200):
        step = 0.0625
        grid = integral.grid_between(step, int(first / step), int(last / step), flint.arb(0.5))
        values = [mixture(v) for v in grid.nodes]
        series = integral._coefficients(mixture(flint.arb_series([0, 1])))
        mean = flint.arb(0.25) / flint.arb(0.5) + flint.arb(0.75) / 2
        log = flint.arb(0.25) * flint.arb(0.5).log() + flint.arb(0.75) * flint.arb(2).log()
        of_1 = integral._coefficients((-flint.arb_series([0, 1])).exp())
        values_of_1 = [(-v).exp() for v in grid.nodes]

        def means(grid, series, of_1):
            difference = grid.log_part(of_1, values_of_1) - grid.log_part(series, values)
            return grid.mean_inverse(series, values), difference

        for found, truth in zip(means(grid, series, of_1), (mean, log), strict=True):
            assert found.overlaps(truth) and found.rad() < 0.5
        if last < 3.0 and first < 0.0:
            cut = replace(grid, right_sum=flint.arb(0))
            assert not means(cut, series, of_1)[0].overlaps(mean)
        if first > 0.0 and last > 3.0:
            zero = flint.arb(0)
            inverse, _ = means(grid, [*series[:-1], zero], [*of_1[:-1], zero])
            assert not inverse.overlaps(mean)


@pytest.mark.parametrize("name", ["negatives", "candidate", "reject", "poisson"])
def test_rounding_alone_is_in_the_ball(name, monkeypatch):
    """The rule has an error of 2^-300, and the arithmetic some 64 bits."""
    monkeypatch.setattr("samplesoft.bias.certified.bias._SPARE_BITS", -236)
    rng = random.Random(name)
    for _ in range(5):
        problem = random_problem(rng, name)
        found = bias_balls(problem, 300)
        assert has_all(found, problem)
        assert max(x.rad() for x in found.bias) > 1e-25


def test_a_pickle_keeps_a_ball():
    with balls.working_precision(300):
        for number in (ball(Fraction(1, 3)), flint.arb(1, "1e-30"), flint.arb(0), -flint.arb.pi()):
            same = pickle.loads(pickle.dumps(number))
            assert same.mid() == number.mid()
            assert number.rad() <= same.rad() <= 1.0001 * number.rad()


def test_a_rational_is_in_its_ball():
    with flint.ctx.workprec(53):
        found = balls.ball_of(Fraction(1, 3))
    with flint.ctx.workprec(300):
        assert found.contains(ball(Fraction(1, 3))) and found.rad() > 0


def test_digits_that_are_not_certain_are_not_counted():
    for digits in (5, 20, 100):
        with flint.ctx.workprec(400):
            number = flint.arb(1, f"1e-{digits}")
            assert digits - 2 <= balls.certain_digits(number) <= digits


# --- arguments ------------------------------------------------------------------------------------


def test_numbers_are_taken_as_they_are():
    texts = certified_bias(["0.1", "0.2"], 0, ["0.1", "0.9"], 2)
    decimals = certified_bias(
        [Decimal("0.1"), Decimal("0.2")], 0, [Decimal("0.1"), Fraction(9, 10)], 2
    )
    floats = certified_bias(np.array([0.1, 0.2]), 0, np.array([0.1, 0.9]), 2, scheme="masked")
    single = certified_bias(
        np.array([0.1, 0.2], np.float32), 0, np.array([0.1, 0.9], np.float32), 2, scheme="masked"
    )
    assert (texts.lower == decimals.lower).all()
    assert abs(single.lower - floats.lower).max() > 1e-10  # other numbers


def test_a_batch_is_one_after_another():
    logits, _, q, m = ORDINARY
    both = certified_bias([logits, logits[::-1]], [1, 2], q, m)
    first, second = (
        certified_bias(o, label, q, m) for o, label in ((logits, 1), (logits[::-1], 2))
    )
    assert (both.lower == [first.lower, second.lower]).all()
    assert (both.l1_upper == [first.l1_upper, second.l1_upper]).all()
    assert both.digits.shape == (2,)


def test_digits_are_reached_or_the_end_is_said():
    assert certified_bias(*ORDINARY, digits=100).digits >= 100
    without_bias = certified_bias([0, 0, 0], 0, ["0.5", "0.25", "0.25"], 4)
    assert without_bias.digits == 0 and without_bias.bits > 500
    assert without_bias.l1_upper < 1e-190


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_executors_change_no_bit(pool, monkeypatch):
    monkeypatch.setattr(integral, "_GROUPS_PER_TASK", 3)
    rng = np.random.default_rng(0)
    arguments = rng.normal(size=10), 4, rng.dirichlet(np.ones(10)), 5
    with pool(2) as executor:
        shared = certified_bias(*arguments, executor=executor)
    alone = certified_bias(*arguments)
    assert (shared.lower == alone.lower).all() and (shared.upper == alone.upper).all()


def test_the_precision_of_others_is_given_back():
    before = flint.ctx.prec, flint.ctx.cap
    certified_bias(*ORDINARY)
    with pytest.raises(ValueError, match="`q`"):
        certified_bias(*ORDINARY[:2], [0.5, 0.5, -0.1, 0.1], 2)
    assert (flint.ctx.prec, flint.ctx.cap) == before


def test_threads_take_turns():
    results = {}

    def work(digits):
        results[digits] = certified_bias(*ORDINARY, digits=digits)

    threads = [threading.Thread(target=work, args=(digits,)) for digits in (15, 40, 80, 120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for digits, result in results.items():
        alone = certified_bias(*ORDINARY, digits=digits)
        assert (result.lower == alone.lower).all() and result.digits == alone.digits


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": [0.0, math.nan, 1.0, 2.0]}, ValueError, r"`logits\[1\]` must be a finite"),
        ({"logits": ["0", "x", "1", "2"]}, ValueError, r"`logits\[1\]` must be a finite number"),
        ({"logits": [0, 10**400, 1, 2]}, ValueError, r"`logits\[1\]` .* range of float64"),
        ({"logits": [0, 1j, 1, 2]}, TypeError, r"`logits\[1\]` must be a number"),
        ({"logits": 3.0}, TypeError, "`logits` must be a sequence of numbers"),
        ({"logits": "1.5 2"}, TypeError, "`logits` must be a sequence of numbers, got the text"),
        ({"logits": [[0.0, 1.0], [0.0]]}, ValueError, "`logits` must have rows of the same length"),
        ({"q": [0.5, 0.5, -0.1, 0.1]}, ValueError, "`q`"),
        ({"q": samplesoft.samplers.UniformSampler(4)}, TypeError, r"probs\(h\)"),
        ({"labels": 9}, ValueError, "`labels`"),
        ({"num_sampled": 0}, ValueError, "`num_sampled`"),
        ({"scheme": "kept"}, ValueError, "`scheme`"),
        ({"digits": 1000}, ValueError, "`digits` must be at most 300"),
        ({"executor": 3}, TypeError, "`executor`"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    names = ("logits", "labels", "q", "num_sampled")
    arguments = dict(zip(names, ORDINARY, strict=True)) | change
    with pytest.raises(error, match=message):
        certified_bias(**arguments)


@pytest.mark.parametrize("logits", [[0, 1e100, 1], [1e100, 0, 1], [0, -1e300, 1]])
@pytest.mark.parametrize("scheme", ["negatives", "masked", "reject", "jackknife"])
def test_logits_beyond_any_sum_are_refused_or_right(logits, scheme):
    q = ["0.2", "0.4", "0.4"]
    try:
        proved = certified_bias(logits, 0, q, 2, scheme=scheme)
    except ValueError as error:
        assert "within an hour" in str(error)
        return
    # label 0 has all of the mass, or class 1 none, which leaves two outcomes: 1 / S by hand
    if max(logits) > 1.0:
        truth = 0.0
    else:
        shares = {"negatives": (0.25, 0.5, 0.25), "jackknife": (0.0, 1.0, 0.0)}
        shares |= {"masked": (0.36, 0.48, 0.16), "reject": (0.04 + 0.16 + 0.16, 0.32, 0.32)}
        sums = {"masked": (1.0, 1 + 1.25 * math.e, 1 + 2.5 * math.e)}
        s = sums.get(scheme, (1.0, 1 + math.e, 1 + 2 * math.e))
        truth = sum(w / x for w, x in zip(shares[scheme], s, strict=True)) - 1 / (1 + math.e)
    assert proved.lower[0] - 1e-15 <= truth <= proved.upper[0] + 1e-15


def test_inclusion_above_1_counts_as_1():
    above = certified_bias([0, 1, -1], 0, ["0.5", "1.00005", "0.5"], 1, scheme="poisson")
    at_1 = certified_bias([0, 1, -1], 0, ["0.5", "1", "0.5"], 1, scheme="poisson")
    assert (above.lower == at_1.lower).all()


def test_a_negative_number_that_rounds_to_0_is_refused():
    with pytest.raises(ValueError, match="`q` must be at least 0"):
        certified_bias([0, 1, 2], 0, [Fraction(-1, 10**400), "0.5", "0.5"], 2)


def test_another_number_of_terms_is_noticed(monkeypatch):
    monkeypatch.setattr(balls, "NUM_TERMS", 3)
    with pytest.raises(RuntimeError, match=r"ctx\.cap"):
        certified_bias(*ORDINARY)


def test_a_sum_other_than_0_is_noticed(monkeypatch):
    from samplesoft.bias.certified import bias

    means = bias.means_over_draws

    def wrong(*arguments):
        found = means(*arguments)
        return replace(found, inverse=found.inverse + 1)

    monkeypatch.setattr(bias, "means_over_draws", wrong)
    with pytest.raises(ArithmeticError, match="sum to 0"):
        certified_bias(*ORDINARY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_while_another_thread_computes():
    script = """
import os, threading
from samplesoft.bias.certified import balls, certified_bias
held, end = threading.Event(), threading.Event()
def hold():
    with balls.working_precision(64):
        held.set()
        end.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    certified_bias([0, 1, 2], 0, ["0.2", "0.4", "0.4"], 3)
    os._exit(0)
status = os.waitpid(child, 0)[1]
end.set()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    warned = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", script], timeout=120, env=warned)
    assert done.returncode == 0


def test_processes_of_any_kind_return_balls(monkeypatch):
    arguments = ([0.0, 1.0, 2.0], 0, ["0.2", "0.4", "0.4"], 3)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        shared = certified_bias(*arguments, executor=executor)
    assert (shared.lower == certified_bias(*arguments).lower).all()


def test_too_many_sets_or_classes_are_refused():
    n = 60
    with pytest.raises(ValueError, match="500,000 sets of draws"):
        certified_bias(np.zeros(n), 0, np.full(n, 1 / n), 30, scheme="distinct")
    with pytest.raises(ValueError, match="within an hour.*hours on one core"):
        integral._require_time(10**7, 300, 113)


def test_classes_beyond_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 5000)
    with pytest.raises(MemoryError, match="`logits` must leave room in the memory"):
        certified_bias(*ORDINARY)


@pytest.mark.parametrize("version", [None, "0.8.0"])
def test_without_flint_the_remedy_is_named(version, monkeypatch):
    fake = None if version is None else types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "flint", fake)
    with pytest.raises(ImportError, match=r"python-flint 0\.9"):
        certified_bias(*ORDINARY)
    with pytest.raises(ImportError, match=r"python-flint 0\.9"):
        samplesoft.verify(ORDINARY[0], 1, {"q": ORDINARY[2]}, 3, certified=True)


def test_equal_classes_share_their_exponentials(monkeypatch):
    sizes = []
    means = integral.means_over_draws

    def spy(draws, groups, *rest):
        sizes.append(len(groups))
        return means(draws, groups, *rest)

    monkeypatch.setattr("samplesoft.bias.certified.bias.means_over_draws", spy)
    logits = np.repeat([0.0, 1.0, 2.0], 40)
    proved = certified_bias(logits, 0, np.full(120, 1 / 120), 7)
    assert sizes == [3]
    bias = samplesoft.exact_bias(logits, 0, np.full(120, 1 / 120), 7).bias
    assert np.maximum(proved.lower - bias, bias - proved.upper).max() < 1e-15


# --- theorems -------------------------------------------------------------------------------------


def example(rng, n=6):
    logits = rng.normal(size=n)
    q = rng.dirichlet(np.ones(n))
    return logits, int(rng.integers(n)), q, int(rng.integers(1, 50))


@pytest.mark.parametrize("corrected", [False, True])
def test_theorem1_agrees_with_float64(corrected):
    rng = np.random.default_rng(corrected)
    for _ in range(10):
        logits, label, q, m = example(rng)
        jacobian = rng.normal(size=(6, 3))
        claim = certified_theorem1(logits, label, q, m, jacobian, corrected=corrected)
        known = theorems.theorem1_corrected if corrected else theorems.theorem1_bounds
        bounds = known(logits, label, q, m, jacobian)
        bias = samplesoft.exact_bias(logits, label, q, m).bias @ jacobian
        np.testing.assert_allclose(claim.lower_bound.lower, bounds.lower, rtol=1e-11)
        np.testing.assert_allclose(claim.upper_bound.upper, bounds.upper, rtol=1e-11)
        np.testing.assert_allclose(claim.value.lower, bias, rtol=1e-9)
        inside = (bounds.lower <= bias) & (bias <= bounds.upper)
        assert claim.holds == tuple(inside.tolist())


def test_theorem1_in_the_limit_agrees_with_float64():
    rng = np.random.default_rng(3)
    for _ in range(10):
        logits, label, q, m = example(rng)
        claim = certified_theorem1(logits, label, q, m, limit=True)
        bounds = theorems.theorem1_bounds(logits, label, q, 1, np.eye(6))
        limit = samplesoft.asymptotic_bias(logits, label, q)
        np.testing.assert_allclose(claim.value.upper, limit, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(claim.upper_bound.lower, bounds.upper, rtol=1e-11)
        by_identity = certified_theorem1(logits, label, q, m, np.eye(6, dtype=int), limit=True)
        assert by_identity.holds == claim.holds


def test_printed_theorems_are_refuted_and_corrected_ones_proved():
    for logits, q, jacobian in (
        (["0", "0", "0"], ["0", "0.999", "0.001"], [[1], [1], [0]]),
        ([2, 0, 0], ["0", "0.9", "0.1"], [[-1], [-1], [1]]),
    ):
        arguments = logits, 0, q, 1000, jacobian
        assert certified_theorem1(*arguments).holds == (False,)
        assert certified_theorem1(*arguments, limit=True).holds == (False,)
        assert certified_theorem1(*arguments, corrected=True).holds == (True,)


@pytest.mark.parametrize("side", ["upper", "upper-shift", "lower"])
def test_the_certificate_says_the_same(side):
    file = Path(__file__).parents[2] / "docs" / "theory" / "counterexample.json"
    claim = json.loads(file.read_text(encoding="utf-8"))["claims"][f"theorem-1-{side}"]
    instance = claim["instance"]
    jacobian = np.array(instance["derivatives"], dtype=object).T.tolist()
    m = int(instance["num_sampled"])
    arguments = instance["logits"], int(instance["label"]), instance["proposal"], m, jacobian
    for limit, value, bound in (
        (False, "bias", "bound"),
        (True, "limit_of_m_bias", "limit_of_m_bound"),
    ):
        found = certified_theorem1(*arguments, limit=limit)
        ours = found.lower_bound if side == "lower" else found.upper_bound
        for intervals, name in ((found.value, value), (ours, bound)):
            for k, (low, high) in enumerate(claim["intervals"][name]):
                assert intervals.lower[k] <= float(high) and float(low) <= intervals.upper[k]
        assert False in found.holds


def test_theorem2_agrees_with_float64():
    rng = np.random.default_rng(4)
    for _ in range(10):
        cosine = rng.uniform(-1, 1, size=5)
        estimates = np.exp(2.0 * cosine) * rng.uniform(0.5, 1.5, size=5)
        found = theorems.theorem2_ratio(cosine, 1, estimates, tau=4.0, nu=2.0)
        gammas = {False: found.printed_gamma, True: found.corrected_gamma}
        printed = {}
        for factor in (0.99, 1.01):
            gamma = min(gammas[False] * factor, 0.99)
            claim = certified_theorem2(cosine, 1, tau=4, nu=2, gamma=gamma, estimates=estimates)
            printed[factor] = all(claim.holds)
            np.testing.assert_allclose(claim.value.lower, found.ratio, rtol=1e-12)
        assert printed == {0.99: False, 1.01: True} or gammas[False] > 0.97

        claim = certified_theorem2(cosine, 1, tau=4, nu=2, gamma=0.3, corrected=True)
        known = theorems.theorem2_corrected(cosine, 1, tau=4.0, nu=2.0, num_features=9, gamma=0.3)
        np.testing.assert_allclose(claim.lower_bound.lower, known.lower, rtol=1e-12)
        np.testing.assert_allclose(claim.upper_bound.upper, known.upper, rtol=1e-12)


def test_label_bounds_hold_and_a_smaller_one_does_not():
    rng = np.random.default_rng(5)
    for _ in range(20):
        logits, label, q, m = example(rng)
        claim = certified_label_bounds(logits, label, q, m, "0.3")
        assert claim.holds == (True,)
        bias = samplesoft.exact_bias(logits, label, q, m).bias[label]
        np.testing.assert_allclose(claim.value.upper[0], bias, rtol=1e-9)

        e = np.exp(logits) / np.exp(logits).sum()
        probs = np.where(np.arange(6) == label, 0.0, q) / (1.0 - q[label])
        r = np.divide(e, probs, out=np.zeros(6), where=probs > 0.0)
        a, d, z = e[label], 0.3, probs @ r
        variance = probs @ (r - z) ** 2
        skewness = probs @ (r - z) ** 3 / variance
        lower = a * variance / (m + skewness - variance)
        upper = a * variance / ((1 - d) * (m + variance / d)) + np.exp(
            -m * d**2 / (2 * probs @ r**2)
        )
        np.testing.assert_allclose(claim.lower_bound.lower[0], lower, rtol=1e-9)
        np.testing.assert_allclose(claim.upper_bound.upper[0], upper, rtol=1e-9)


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_finite_sample_bounds_are_proved(scheme):
    rng = np.random.default_rng(6)
    for _ in range(10):
        logits, label, q, m = example(rng)
        assert all(certified_finite_sample_bounds(logits, label, q, m, scheme=scheme).holds)


def test_wrong_finite_sample_bounds_are_refuted(monkeypatch):
    from samplesoft.bias.certified import theorems as certified

    right = samplesoft.finite_sample_bounds(*ORDINARY)
    width = right.upper - right.lower
    wrong = replace(right, lower=right.upper + width, upper=right.upper + 2 * width)
    monkeypatch.setattr(certified, "finite_sample_bounds", lambda *_, **__: wrong)
    assert set(certified_finite_sample_bounds(*ORDINARY).holds) == {False}


@pytest.mark.parametrize("settings", [{}, {"corrected": True}, {"limit": True}])
def test_a_ratio_equal_to_the_mean_leaves_claims_decided(settings):
    """The centred ratio of a class is then a ball around exactly 0."""
    claim = certified_theorem1([0] * 4, 0, ["0", "1/3", "4/9", "2/9"], 2, **settings)
    assert claim.holds == (True,) * 4
    for side in (claim.value, claim.lower_bound, claim.upper_bound):
        assert np.isfinite(side.lower).all() and np.isfinite(side.upper).all()
    assert certified_label_bounds([0] * 4, 0, ["0", "1/3", "4/9", "2/9"], 2, "0.5").holds == (True,)


def test_what_is_equal_is_not_decided():
    """The bias is 0, and so are both ends: no precision tells balls around 0 apart."""
    claim = certified_theorem1([0, 0, 0], 0, ["0.5", "0.25", "0.25"], 2)
    assert None in claim.holds and False not in claim.holds


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: certified_theorem1(*ORDINARY, [[1]] * 3), ValueError, "`jacobian` must have P"),
        (lambda: certified_theorem1(*ORDINARY, [[1], [1, 2], [1], [1]]), ValueError, "1, 2"),
        (
            lambda: certified_theorem1(*ORDINARY, corrected=True, limit=True),
            ValueError,
            "`limit` must be False",
        ),
        (lambda: certified_label_bounds(*ORDINARY, "1.5"), ValueError, "between 0 and 1"),
        (
            lambda: certified_theorem2([2, 0], 0, tau=1, nu=1, gamma="0.1"),
            ValueError,
            "`cosine` must hold",
        ),
        (
            lambda: certified_theorem2([1, 0], 0, tau=1, nu=0, gamma="0.1"),
            ValueError,
            "greater than 0",
        ),
        (
            lambda: certified_theorem2([1, 0], 0, tau=1, nu=1, gamma="0.1", estimates=[1, 0]),
            ValueError,
            "other than 0",
        ),
        (
            lambda: certified_theorem2(
                [1, 0, 0], 0, tau=1, nu=1, gamma="0.1", estimates=[1, 1, -1]
            ),
            ValueError,
            "must not sum to 0",
        ),
        (
            lambda: certified_theorem1([[0, 1]] * 2, [0, 1], ["0.5", "0.5"], 2),
            ValueError,
            "one example",
        ),
    ],
)
def test_bad_claims_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- verify ---------------------------------------------------------------------------------------


def test_a_proved_error_is_rounded_up():
    from samplesoft.verification.report import _rounded_up

    assert _rounded_up(1.0099e-17) == "1.1e-17"
    for value in np.random.default_rng(0).lognormal(-30.0, 5.0, size=200):
        assert Decimal(value) <= Decimal(_rounded_up(value)) <= Decimal(value) * Decimal("1.11")


def test_verify_says_what_is_proved():
    logits, label, q, m = ORDINARY
    report = samplesoft.verify(logits, label, {"q": q}, m, certified=True, num_trials=50, rng=0)
    row = report.rows[0]
    assert 0.0 < row.certified_error < 1e-14
    assert (row.certified_finite_inside, row.certified_finite_outside) == (4, 0)
    assert row.certified_printed_outside == row.outside_printed
    assert row.certified_printed_inside == 4 - row.outside_printed
    assert "Proved for the logits: the exact bias is right to" in report.verdict
    assert "proved" in report.to_text()
    assert "the bounds for every m: proved in 4 of 4 coordinates" in report.verdict
    undecided = samplesoft.verify([0.0] * 4, 0, {"q": [0.25] * 4}, 3, certified=True, num_trials=9)
    assert "Theorem 1 as printed: open in 4 of 4 coordinates" in undecided.verdict
    plain = samplesoft.verify(logits, label, {"q": q}, m, num_trials=50, rng=0)
    assert "Proved" not in plain.verdict and plain.rows[0].certified_error is None


# --- the highest judge ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1])
def test_fresh_hard_problems(seed):
    for problem in hard_problems.fresh_problems(seed, 30):
        hard_problems.judge(problem, hard_problems.certified_answer(problem))


def test_frozen_answers_are_those_of_today():
    for problem, answer, _ in hard_problems.frozen_problems()[:: 300 // 15]:
        today = hard_problems.certified_answer(problem)
        assert (today.lower <= answer.upper).all() and (answer.lower <= today.upper).all()
