"""The exact bias of many classes, where ratios are compressed onto Chebyshev panels."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import frozen, laplace_loops, naive

from samplesoft import exact_bias, monte_carlo_bias
from samplesoft.bias import poisson
from samplesoft.bias.with_replacement import integral
from samplesoft.bias.with_replacement import nodes as transform
from samplesoft.bias.with_replacement.laplace import AtomIntegrals, NodeSums
from samplesoft.kernels import panels
from samplesoft.schemes import SCHEMES, exact_schemes


def instance(n, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n) * spread, rng.dirichlet(np.full(n, 0.5)) * 0.9 + 0.1 / n


def relative_error(got, exact):
    return float(np.abs(got - exact).sum() / np.abs(exact).sum())


# --- the plain trapezoid rule, whose cost is classes times nodes ------------------------------


def plain_bias(logits, label, q, m, scheme, dtype, step):
    """E[p'] - p by the formulas as they stand, with the subtraction left to the end."""
    facts = SCHEMES[scheme]
    assert facts.has_exact_bias
    if facts.jackknife:
        one = naive.JACKKNIFED[scheme]
        return sum(
            dtype(weight) * plain_bias(logits, label, q, k, one, dtype, step)
            for k, weight in naive.combination(m)
        )
    n = len(logits)
    logits, q = logits.astype(dtype), q.astype(dtype)
    e = np.exp(logits - logits.max())
    e /= e.sum()
    others = np.arange(n) != label
    keep, draws = dtype(1), m
    if facts.independent:
        q, draws = np.where(others, q, 0), 1
    elif facts.excludes_label or facts.divides_by_accepted:
        keep = q[others].sum() / q.sum()
        q = np.where(others, q, 0) / q[others].sum()
        draws = 1 if facts.divides_by_accepted else m  # r = e / qn, and u = K v
    else:
        q = q / q.sum()
    w = np.divide(e, draws * q, out=np.zeros(n, dtype), where=q > 0)
    base = {"none": dtype(0), "plain": e[label], "corrected": w[label]}[facts.base]
    if not facts.draws_label:
        w = np.where(others, w, 0)
    largest = base + (w.sum() if facts.independent else m * w.max())
    smallest = base + (0 if facts.independent else w[w > 0].min())
    x = np.arange(-4.3, float(np.log(60 * largest / smallest)) + step, step, dtype=dtype)
    u = np.exp(x - np.exp(-x)) / largest
    du = step * (1 + np.exp(-x)) * u
    out = np.zeros(n, dtype)
    for v, dv in zip(u, du, strict=True):
        decay = np.exp(-v * w)
        if facts.independent:
            factor = 1 - q + q * decay
            everything = np.exp(np.log(factor).sum() - v * base)
            out += dv * everything * q * w * decay / factor
        elif facts.divides_by_accepted:
            theta = np.exp(-v * base) * (q @ decay)
            first = m * keep * theta * (1 - keep + keep * theta) ** (m - 1)
            everything = first
            out += dv * first * q * w * decay / (q @ decay)
        else:
            phi = q @ decay
            everything = np.exp(-v * base) * phi**m
            out += dv * np.exp(-v * base) * phi ** (m - 1) * m * q * w * decay
        out[label] += dv * base * everything
    if facts.divides_by_accepted:
        out[label] += (1 - keep) ** m
    return (out - e).astype(float)


@pytest.mark.parametrize("m", [2, 20])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_equals_the_plain_trapezoid_rule(scheme, m):
    logits, q = instance(5000, seed=m)
    result = exact_bias(logits, 7, q, m, scheme=scheme)
    want = plain_bias(logits, 7, q, m, scheme, np.longdouble, 0.1)
    assert abs(want.sum()) < 1e-13  # the rule itself is exact
    assert relative_error(result.bias, want) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["negatives", "candidate_masked", "importance"])
def test_equals_the_plain_trapezoid_rule_for_200_000_classes(scheme):
    logits, q = instance(200_000, spread=4.0)
    result = exact_bias(logits, 11, q, 100, scheme=scheme)
    want = plain_bias(logits, 11, q, 100, scheme, np.float64, 0.2)
    assert relative_error(result.bias, want) < 1e-11


@pytest.mark.parametrize("scheme", [s for s in exact_schemes() if s != "poisson"])
def test_compressed_equals_uncompressed(monkeypatch, scheme):
    logits, q = instance(3000, spread=1.0)
    for m in (3, 1000, 10**9):
        compressed = exact_bias(logits, 5, q, m, scheme=scheme)
        with monkeypatch.context() as patch:
            patch.setattr(panels, "WIDTH", 1e-6)  # more panels than classes
            plain = exact_bias(logits, 5, q, m, scheme=scheme)
        assert compressed.error != plain.error
        assert relative_error(compressed.bias, plain.bias) < 1e-11
        assert compressed.loss_bias == pytest.approx(plain.loss_bias, rel=1e-9, abs=1e-20)


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_compressed_inclusion_equals_uncompressed(monkeypatch, spread):
    logits, q = instance(20_000, spread=spread)
    p = np.exp(logits - logits.max())
    rare = 10.0 ** np.random.default_rng(1).uniform(-12.0, 0.0, len(p))
    for pi in (np.minimum(300.0 * q, 1.0), np.minimum(30.0 * p / p.sum(), 1.0), rare):
        compressed = exact_bias(logits, 5, pi, 1, scheme="poisson")
        with monkeypatch.context() as patch:
            patch.setattr(poisson, "_MAX_CELL_DECAY", 1e-300)  # every class by itself
            plain = exact_bias(logits, 5, pi, 1, scheme="poisson")
        assert not np.array_equal(compressed.bias, plain.bias)
        assert relative_error(compressed.bias, plain.bias) < 1e-13
        assert compressed.loss_bias == pytest.approx(plain.loss_bias, rel=1e-12)


def test_a_wider_panel_would_not_do(monkeypatch):
    logits, q = instance(20_000)
    pi = np.minimum(300.0 * q, 1.0)
    good = exact_bias(logits, 5, pi, 1, scheme="poisson").bias
    monkeypatch.setattr(poisson, "_INTERPOLATION_ERROR", 1e-4)  # fewer nodes in l
    assert relative_error(exact_bias(logits, 5, pi, 1, scheme="poisson").bias, good) > 1e-10


def test_equal_classes_do_not_add_up_their_rounding():
    n = 50_000
    pi = np.full(n, 300 / n)
    result = exact_bias(np.zeros(n), 7, pi, 1, scheme="poisson")
    want = plain_bias(np.zeros(n), 7, pi, 1, "poisson", np.longdouble, 0.2)
    assert abs(result.bias[7] / want[7] - 1.0) < 3e-13


def test_equal_ratios_do_not_add_up_their_rounding():
    half = 30_000
    logits = np.concatenate([[0.0], np.full(half, 0.3), np.full(half, -0.7)])
    q = np.full(len(logits), 1.0 / len(logits))
    result = exact_bias(logits, 0, q, 100)
    few = np.array([0.0, 0.3 + np.log(half), np.log(half) - 0.7])
    want = exact_bias(few, 0, np.array([1.0, half, half]) / len(logits), 100)  # no panels there
    assert abs(result.bias[0] / want.bias[0] - 1.0) < 3e-13


# --- the sums beside plain loops --------------------------------------------------------------


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("scheme", ["negatives", "candidate", "reject", "jackknife"])
@pytest.mark.parametrize("n", [30, 1500])
def test_far_atoms_left_out_change_nothing(monkeypatch, scheme, n):
    rng = np.random.default_rng(n)
    logits = rng.uniform(-700.0, 700.0, n) if n < 100 else rng.uniform(-60.0, 60.0, n)
    q = 10.0 ** rng.uniform(-300.0 if n < 100 else -25.0, 0.0, n)
    q /= q.sum()
    got = exact_bias(logits, 3, q, 100, scheme=scheme)
    sums, integrals = laplace_loops.sums_at_nodes, laplace_loops.integrals_at_atoms
    monkeypatch.setattr(transform, "node_sums", lambda *given: NodeSums(*sums(*given[:4])))
    monkeypatch.setattr(
        integral, "atom_integrals", lambda *given: AtomIntegrals(*integrals(*given))
    )
    want = exact_bias(logits, 3, q, 100, scheme=scheme)
    assert relative_error(got.bias, want.bias) < 1e-12
    assert got.loss_bias == pytest.approx(want.loss_bias, rel=1e-11)


# --- a class split into equal copies ----------------------------------------------------------


COPIES = 4096  # a power of two: q / COPIES is exact
FEW = np.array([0.3, -1.0, 2.0, 0.7, 12.0])
FEW_Q = np.array([0.25, 0.25, 0.125, 0.25, 0.125])


def assert_merged_exact(logits, q, m, scheme):
    """Class 0 is the label; the others are split into copies of the same ratio."""
    copies = np.array([1] + [COPIES] * (len(logits) - 1))
    result = exact_bias(
        np.repeat(logits, copies), 0, np.repeat(q / copies, copies), m, scheme=scheme
    )
    starts = np.cumsum(copies) - copies
    merged = np.add.reduceat(result.bias, starts)
    with mp.workdps(80):
        whole = [mpf(float(o)) + mp.log(int(k)) for o, k in zip(logits, copies, strict=True)]
    bias, loss_bias = frozen.laplace(whole, 0, q, m, scheme, dps=15)
    error, norm = naive.l1_error(merged, bias)
    assert error <= 1e-10 * norm
    assert abs(result.loss_bias - loss_bias) <= 1e-9 * (abs(loss_bias) + norm)
    for start, k in zip(starts, copies, strict=True):  # equal classes have equal biases
        assert np.ptp(result.bias[start : start + k]) == 0.0


@pytest.mark.parametrize("m", [2, 100, 10**9])
@pytest.mark.parametrize("scheme", [s for s in exact_schemes() if s != "poisson"])
def test_classes_split_into_copies(scheme, m):
    assert_merged_exact(FEW, FEW_Q, m, scheme)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12])
def test_copies_with_a_proposal_close_to_the_softmax(gap):
    logits = np.array([1.0, 0.0, gap, -gap])
    q = np.array([0.25, 0.25, 0.25, 0.25])
    for m in (2, 10**6):
        assert_merged_exact(logits, q, m, "negatives")


@pytest.mark.parametrize("spread", [40.0, 100.0])
def test_copies_with_spread_logits(spread):
    for m in (3, 10**9):
        assert_merged_exact(
            np.array([0.0, spread, 0.5 - spread, 1.0]), FEW_Q[:4] / 0.875, m, "negatives"
        )


def test_copies_with_a_rare_class():
    q = np.array([0.5, 2.0**-40, 0.5 - 2.0**-40])
    for m in (3, 10**4, 10**9):
        assert_merged_exact(np.array([8.0, 0.0, 0.5]), q, m, "negatives")


# --- Monte Carlo, threads ---------------------------------------------------------------------


@pytest.mark.parametrize("scheme", exact_schemes())
def test_agrees_with_monte_carlo_on_1000_classes(scheme):
    logits, q = instance(1000, spread=1.5)
    if scheme == "poisson":
        q = np.minimum(30 * q, 1.0)
    exact = exact_bias(logits, 3, q, 30, scheme=scheme)
    got = monte_carlo_bias(logits, 3, q, 30, num_trials=20_000, scheme=scheme, rng=1)
    often = got.stderr > 0.0
    # classes drawn in few trials have no normal law: they are put together
    often &= np.minimum(q, 1.0) * 30 * 20_000 > 1000
    z = (got.bias - exact.bias)[often] / got.stderr[often]
    assert often.sum() > 50
    limit = NormalDist().inv_cdf(1 - 1e-4 / (2 * often.sum() * len(exact_schemes())))
    assert np.abs(z).max() < limit
    assert abs(got.loss_bias - exact.loss_bias) < limit * got.loss_stderr
    assert abs(got.bias[3] - exact.bias[3]) < limit * got.stderr[3]
    # and the comparison can tell a bias of 0 from this one, unless it is debiased
    assert scheme in naive.JACKKNIFED or np.abs(exact.bias[often] / got.stderr[often]).max() > limit


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.parametrize("n", [40, 150_000])
def test_threads_do_not_change_a_bit(threads, scheme, n):
    logits, q = instance(n)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(exact_bias(logits, 1, q, 50, scheme=scheme))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].bias, other.bias)
        assert results[0].loss_bias == other.loss_bias
        assert results[0].error == other.error
