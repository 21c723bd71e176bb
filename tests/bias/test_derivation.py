"""The equations of samplesoft/bias/README.md as they stand there, in plain NumPy."""

import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias import plain as twin
from samplesoft.schemes import SCHEMES, exact_schemes

HOME = Path(samplesoft.__file__).parent
README = (HOME / "bias" / "README.md").read_text()
LOGITS, Q, T, M = np.array([0.3, 1.2, -0.7, 0.1]), np.array([0.1, 0.3, 0.4, 0.2]), 2, 5
E = np.exp(LOGITS) / np.exp(LOGITS).sum()
A, OTHERS = E[T], np.arange(4) != T
QN = np.where(OTHERS, Q, 0.0) / Q[OTHERS].sum()
REFERENCE = 1
X = np.arange(-30.0, 6.0, 0.01)
V = np.exp(X)[:, None]
DV = 0.01 * np.exp(X)


def ratio(q):
    return np.divide(E, q, out=np.zeros(4), where=q > 0)


def plain(flow, label_flow):  # (B8)
    bias = flow - E * (flow.sum() + label_flow)
    bias[T] = (1 - A) * label_flow - A * flow.sum()
    return bias


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.parametrize("m", [2, 5, 60])
def test_the_plain_integral_is_the_exact_bias(scheme, m):
    """`samplesoft.bias.plain` has equations (B1) to (B13) and (B26) as they stand."""
    for n, spread in ((2, 1.0), (3, 8.0), (4, 0.3), (30, 8.0), (100, 2.0)):
        rng = np.random.default_rng(n)
        logits, q = spread * rng.normal(size=n), rng.dirichlet(np.full(n, 2.0))
        exact = exact_bias(logits, 1, q, m, scheme=scheme)
        found, loss = twin.bias(logits, 1, q, m, scheme)
        room = 1e-11 * (m if SCHEMES[scheme].jackknife else 1.0)
        assert np.abs(found - exact.bias).sum() < room
        assert loss == pytest.approx(exact.loss_bias, rel=1e-11, abs=room)


def test_the_plain_integral_where_no_draw_is_kept():
    """All draws are the label: the loss is 0 and p' is 1 there."""
    found, loss = twin.bias([0.0, 1.0, 2.0], 0, [1.0, 0.0, 0.0], 3, "reject")
    exact = exact_bias([0.0, 1.0, 2.0], 0, [1.0, 0.0, 0.0], 3, scheme="reject")
    np.testing.assert_allclose(found, exact.bias, atol=1e-15)
    assert loss == pytest.approx(exact.loss_bias, rel=1e-14)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_definition_is_the_integral(m):
    by_hand = twin.bias_by_enumeration(LOGITS, T, Q, m)
    by_integral = twin.bias_of_negatives(LOGITS, T, Q, m)
    exact = exact_bias(LOGITS, T, Q, m)
    for found, loss in (by_hand, by_integral):
        np.testing.assert_allclose(found, exact.bias, atol=1e-12)
        assert loss == pytest.approx(exact.loss_bias, abs=1e-12)
    other, _ = twin.bias_of_negatives(LOGITS, T, Q, m + 1)  # WRONG: one draw more
    assert np.abs(other - exact.bias).max() > 1e-3


def test_the_example_of_the_twin():
    found, _ = twin.bias_by_enumeration([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 1)
    np.testing.assert_allclose(found, [0.02, 0.18, -0.20], atol=0.005)


def test_the_plain_second_moment():
    c = np.array([[1.0, 0.2], [0.1, -1.0], [0.5, 2.0], [-0.3, 0.4]])
    exact = exact_gradient_moments(LOGITS, T, Q, M, c).mse
    assert twin.mean_square(LOGITS, T, Q, M, c) == pytest.approx(exact, abs=1e-11)
    p, law, mean = E, QN, 0.0
    for first in np.flatnonzero(law):
        for second in np.flatnonzero(law):
            masses = np.where(OTHERS, 0.0, p)
            for j in (first, second):
                masses[j] += p[j] / (2 * law[j])
            away = masses / masses.sum() @ c - p @ c
            mean += law[first] * law[second] * (away @ away)
    assert twin.mean_square(LOGITS, T, Q, 2, c) == pytest.approx(mean, rel=1e-11)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_race_of_clocks_gives_draws_without_replacement(m):
    found = dict(twin.set_probabilities(Q, m))
    in_turn = {}
    for order in permutations(range(4), m):
        chance = 1.0
        for place, j in enumerate(order):
            chance *= Q[j] / (1.0 - Q[list(order[:place])].sum())
        key = tuple(sorted(order))
        in_turn[key] = in_turn.get(key, 0.0) + chance
    assert found == pytest.approx(in_turn, abs=1e-12)
    inclusion = [sum(x for chosen, x in found.items() if j in chosen) for j in range(4)]
    exact = exact_bias(LOGITS, T, Q, m, scheme="distinct_candidate")
    np.testing.assert_allclose(inclusion, exact.inclusion, atol=1e-12)
    mean = np.zeros(4)
    for chosen, chance in found.items():
        masses = np.where(OTHERS, 0.0, E / inclusion)
        for j in chosen:
            masses[j] += E[j] / inclusion[j]
        mean += chance * masses / masses.sum()
    np.testing.assert_allclose(mean - E, exact.bias, atol=1e-11)


def test_the_jackknife_by_parts():
    def kernel(s):  # (B14)
        return np.exp(-(M - 1) * s) * np.expm1(-s)

    def kernel_slope(s):  # its derivative, (B70)
        return np.exp(-(M - 1) * s) * (-M * np.expm1(-s) - 1)

    v, r = V[:, 0], ratio(QN)
    t = np.exp(-V * r) @ QN
    psi, s = np.exp(-V * r) / t[:, None], v * A - np.log(t)
    mean = psi @ (QN * r)  # tilted
    away = r - mean[:, None]
    variance, third = (psi * QN * away**2).sum(axis=1), (psi * QN * away**3).sum(axis=1)
    slope = A + mean  # ds/dv
    weight = DV * kernel(s)
    parts = 1 / slope**2, 3 * variance / slope**3, 3 * variance**2 / slope**4 - third / slope**3

    def integral(d, d1, d2):  # (B15)
        return (weight * parts[0]) @ d2 + (weight * parts[1]) @ d1 + (weight * parts[2]) @ d

    first, second = -away * psi, (away**2 - variance[:, None]) * psi
    part = [x - x[:, [REFERENCE]] for x in (psi, first, second)]
    flow = np.where(OTHERS, E * integral(*part), 0.0)
    lead = (r[REFERENCE] - mean) * psi[:, REFERENCE]  # (B16)
    bend = (variance - (r[REFERENCE] - mean) ** 2) * psi[:, REFERENCE]
    label_flow = A * integral(1 - psi[:, REFERENCE], lead, bend)
    gap, vs = np.log(t) + v * mean, v * slope
    balance = 2 * gap + v**2 * variance
    curve = balance / vs + (3 + gap / s) * gap / s * gap / vs  # (B17)
    known = v > 1e-3  # (gap and balance cancel below, where this adds 1e-12)
    loss = -0.01 * np.sum((kernel(s) / vs * curve)[known])
    exact = exact_bias(LOGITS, T, Q, M, scheme="jackknife")
    np.testing.assert_allclose(plain(flow, label_flow), exact.bias, atol=1e-9)
    assert loss == pytest.approx(exact.loss_bias, abs=1e-6)
    for terms in (
        kernel_slope(s) - kernel_slope(v),
        (-kernel_slope(s) * gap / s)[v > 1e-7],
    ):  # (B70)
        assert 0.01 * np.sum(terms) == pytest.approx(exact.loss_bias, abs=1e-6)
    far = v**2 * variance - vs + vs**3 / s**2  # (B71)
    np.testing.assert_allclose(far[known], (curve * vs)[known], atol=1e-9)


def test_the_second_moment():
    r, c = ratio(QN), np.array([[1.0, 0.2], [0.1, -1.0], [0.5, 2.0], [-0.3, 0.4]])
    c = c - E @ c
    t = np.exp(-V * r) @ QN
    theta, psi = np.exp(-V[:, 0] * A) * t, np.exp(-V * r) / t[:, None]
    drawn = (psi * np.where(OTHERS, E, 0.0)) @ c
    change = A * c[T] + drawn
    square = (psi * np.where(OTHERS, E * r, 0.0)) @ (c**2).sum(axis=1) - (drawn**2).sum(axis=1)
    mse = DV @ (M**2 * V[:, 0] * theta**M * ((change**2).sum(axis=1) + square / M))  # (B28)
    assert mse == pytest.approx(exact_gradient_moments(LOGITS, T, Q, M, c).mse, abs=1e-11)


def test_the_second_moment_of_independent_inclusion():
    pi, c = np.where(OTHERS, Q, 0.0), np.array([[1.0, 0.2], [0.1, -1.0], [0.5, 2.0], [-0.3, 0.4]])
    c = c - E @ c
    w = ratio(pi)
    factors = 1 - pi + pi * np.exp(-V * w)
    density, psi = np.exp(-V[:, 0] * A) * factors.prod(axis=1), np.exp(-V * w) / factors
    mean = A * c[T] + (psi * np.where(OTHERS, E, 0.0)) @ c
    own = (np.where(OTHERS, E * w * (1 - pi), 0.0) / factors * psi) @ (c**2).sum(axis=1)
    mse = DV @ (V[:, 0] * density * ((mean**2).sum(axis=1) + own))  # (B78)
    found = exact_gradient_moments(LOGITS, T, Q, M, c, scheme="poisson")
    assert mse == pytest.approx(found.mse, abs=1e-11)


def test_what_the_code_cites_is_there():
    there = set(re.findall(r"\\tag\{(B\d+)\}", README))
    assert len(there) == README.count("\\tag{")
    for path in [*HOME.glob("bias/**/*.py"), *HOME.glob("kernels/*.py")]:
        cited = set(re.findall(r"\((B\d+)\)", path.read_text()))
        assert cited <= there, f"{path.name} cites {cited - there}"
    assert set(re.findall(r"\((B\d+)\)", README)) <= there
    names = re.findall(r"`((?:\w+/)*\w+\.py)`", README.split("## 1.")[0])
    assert len(names) > 30
    for name in names:
        found = [place for place in (HOME / "bias", HOME, HOME.parent) if (place / name).exists()]
        assert found or list(HOME.glob(f"bias/*/{name}")), name


def test_the_functions_and_records_on_the_fast_path_are_there():
    """Those that the table of stops names, each in the file that the row has named before it."""
    rows = [row for row in README.splitlines() if re.match(r"\| \d+ \|", row)]
    assert len(rows) == 10
    source = ""
    for row in rows:
        for file, name in re.findall(r"`([\w/]+\.py)`|`([A-Z_a-z.]+)`", row.split("|")[3]):
            path = HOME / "bias" / file if (HOME / "bias" / file).exists() else HOME / file
            source = path.read_text() if file else source
            last = name.split(".")[-1]
            assert file or re.search(rf"(?:def|class) {last}\b", source), name
