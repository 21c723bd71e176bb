"""The sum of exponentials that bounds E[1/S]: its error, what it leaves out, how close it is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from samplesoft import exact_bias, finite_sample_bounds
from samplesoft.bias.bounds import finite, gaps


def trapezoid(points, chances, step, shift):
    """Return the gap E[1/S] - 1/E[S] of a law on points, and by how much the rule misses it."""
    with mp.workdps(40):
        points, chances = ([mpf(float(x)) for x in some] for some in (points, chances))
        chances = [c / mp.fsum(chances) for c in chances]
        mean = mp.fsum(c * s for c, s in zip(chances, points, strict=True))
        gap = mp.fsum(c / s for c, s in zip(chances, points, strict=True)) - 1 / mean
        first, last = -60 - mp.log(max(points)), mp.log(100 / min(points))
        total = mpf(0)
        for k in range(int((last - first) / step)):
            u = mp.exp(first + step * (k + shift))
            mass = mp.fsum(c * mp.exp(-u * s) for c, s in zip(chances, points, strict=True))
            total += u * (mass - mp.exp(-u * mean))
        return float(gap), float(step * total - gap)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-6.0, 6.0), min_size=2, max_size=4, unique=True),
    st.lists(st.floats(-6.0, 0.0), min_size=4, max_size=4),
    st.sampled_from([0.6, 1.0, 1.5]),
    st.floats(0.0, 1.0),
)
def test_the_error_of_the_rule_is_bounded_for_every_law(logs, powers, step, shift):
    chances = 10.0 ** np.array(powers[: len(logs)])
    gap, error = trapezoid(np.exp(logs), chances, step, shift)
    assert abs(error) <= gaps.trapezoid_error(step) * gap * (1.0 + 1e-9) + 1e-25


def test_the_bound_on_the_error_is_not_idle():
    """A hundredth of it would be wrong."""
    worst = 0.0
    for shift in np.arange(0.0, 1.0, 0.1):
        gap, error = trapezoid([1.0, 3.0], [0.5, 0.5], 1.5, shift)
        worst = max(worst, abs(error) / gap / gaps.trapezoid_error(1.5))
    assert 0.01 < worst <= 1.0


def long_tails(seed):
    """Return logits, a proposal and vectors of 500 classes; in turn normal, t, near and skewed."""
    rng = np.random.default_rng(seed)
    n, kind = 500, seed % 4
    logits = rng.standard_t(3, size=n) * 1.5 if kind == 1 else rng.normal(size=n) * (2 + seed % 3)
    logits = np.clip(logits, -30.0, 30.0)
    q = np.ones(n)
    if kind == 2:
        q = np.exp(logits + 2.0 * rng.normal(size=n))
    elif kind == 3:
        q = 1.0 / np.arange(1.0, n + 1.0) ** 1.5
    return logits, q / q.sum(), rng.normal(size=(n, 8))


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_are_close_with_long_tails(scheme):
    for seed in range(6):
        logits, q, vectors = long_tails(seed)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        for multiple in (3, 25, 75, 10**6):
            m = int(multiple * (p**2 / q).sum()) + 1
            exact = exact_bias(logits, 0, q, m, scheme=scheme)
            found = finite_sample_bounds(logits, 0, q, m, scheme=scheme)
            room = 1e-14 * np.abs(exact.bias).sum()
            assert (found.lower <= exact.bias + room).all()
            assert (exact.bias - room <= found.upper).all()
            close = 1e-6 * np.abs(exact.bias).sum()
            assert (found.upper - found.lower).sum() <= close
            assert found.upper[0] - found.lower[0] <= 1e-6 * exact.bias[0]
            lower, upper = found.gradient(vectors)
            gradient = exact.bias @ vectors
            assert (upper - lower).sum() <= 1e-6 * np.abs(gradient).sum()


@pytest.mark.parametrize(
    "part", ["_sum_beyond_last_node", "trapezoid_error", "_sum_before_first_node"]
)
def test_without_a_part_of_what_is_left_out_they_fail(part, monkeypatch):
    """Few nodes and a coarse step: a label of hardly any mass, a step of 1, a late first node."""
    outside, inside = 0, 0
    whole, left_out = gaps.make_transform_bounds, getattr(gaps, part)

    def twin(*args):
        transform = whole(*args)
        kept = np.arange(len(transform.v))
        if part == "_sum_before_first_node":
            kept = kept[70:]
        if part == "trapezoid_error":
            kept = kept[::7]
        if part == "_sum_beyond_last_node":
            kept = kept[:90]
        arrays = {
            name: getattr(transform, name)[kept]
            for name in (
                "v",
                "excess_low",
                "excess_high",
                "log_transform_low",
                "log_transform_high",
            )
        }
        step = transform.step * (7 if part == "trapezoid_error" else 1)
        return transform._replace(**arrays, step=step)

    def none(*args):
        return 0.0 if wrong else left_out(*args)

    monkeypatch.setattr(finite, "make_transform_bounds", twin)
    monkeypatch.setattr(gaps, part, none)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits, q = 2.0 * rng.normal(size=6), rng.dirichlet(np.ones(6))
        bias = exact_bias(logits, 0, q, 5).bias
        for wrong in (False, True):
            found = finite_sample_bounds(logits, 0, q, 5)
            out = int((bias > found.upper + 1e-12).sum() + (bias < found.lower - 1e-12).sum())
            inside, outside = (inside, outside + out) if wrong else (inside + out, outside)
    assert inside == 0 < outside


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_laws_of_few_points(scheme):
    one_large = np.zeros(2000)
    one_large[5] = np.log(2000.0) / 2.0
    skewed = np.array([8.2e-2, 4.6e-1, 1.1e-6, 4.6e-1])
    for logits, label, q in (
        (one_large, 0, np.full(2000, 1 / 2000)),
        (np.array([0.0, 0.0, -4.5, 5.0]), 3, skewed / skewed.sum()),
    ):
        for m in (2, 5, 47, 1000):
            exact = exact_bias(logits, label, q, m, scheme=scheme)
            found = finite_sample_bounds(logits, label, q, m, scheme=scheme)
            assert (found.lower <= exact.bias + exact.error).all()
            assert (exact.bias - exact.error <= found.upper).all()


def instance(seed, n, spread):
    """Return (logits, q, a, r, qn) of an example whose label is class 0, in units where Z is 1."""
    rng = np.random.default_rng(seed)
    logits, q = spread * rng.normal(size=n), rng.dirichlet(np.ones(n)) * 0.9 + 0.1 / n
    p = np.exp(logits) / np.exp(logits).sum()
    qn = q[1:] / q[1:].sum()
    return logits, q, p[0], p[1:] / qn, qn


def test_the_theorem_in_closed_terms():
    """Eq. (B41), and a twin without the chance, which fails."""
    failures = 0
    for seed in range(60):
        logits, q, a, r, qn = instance(seed, n=5, spread=3.0)
        y = r - qn @ r
        v, rho = qn @ y**2, qn @ r**2
        slope = qn @ y**3 / v
        for m, d in itertools.product((1, 5, 40), (0.2, 0.5, 0.9)):
            b = exact_bias(logits, 0, q, m).bias[0]
            first = a * v / ((1.0 - d) * (m + v / d))
            assert a * v / (m + slope - v) <= b * (1.0 + 1e-10)
            assert b <= first + np.exp(-m * d**2 / (2.0 * rho)) + 1e-12
            failures += b > first
    assert failures > 10
