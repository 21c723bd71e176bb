"""The equations of samplesoft/bias/README.md as they stand there, in plain NumPy."""

import re
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias import left_out

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


def transform(q, r, weightless=0.0):
    return np.exp(-V * r) @ q + weightless


def agree(bias, scheme, loss_bias=None):
    exact = exact_bias(LOGITS, T, Q, M, scheme=scheme)
    np.testing.assert_allclose(bias, exact.bias, atol=1e-11)
    if loss_bias is not None:
        assert loss_bias == pytest.approx(exact.loss_bias, abs=1e-11)


def flows(density, psi, drawn):
    return np.where(drawn, E * (DV * density @ (psi - psi[:, [REFERENCE]])), 0.0)


def plain(flow, label_flow):  # (B8)
    bias = flow - E * (flow.sum() + label_flow)
    bias[T] = (1 - A) * label_flow - A * flow.sum()
    return bias


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_a_plain_base_mass(scheme):
    q, weightless = (QN, 0.0) if scheme == "negatives" else (np.where(OTHERS, Q, 0.0), Q[T])
    r = ratio(q)
    t = transform(q, r, weightless)
    theta, psi = np.exp(-V[:, 0] * A) * t, np.exp(-V * r) / t[:, None]
    density = M * theta**M
    label_flow = A * (DV * density @ (1 - psi[:, REFERENCE]))
    loss = -np.sum(0.01 * (theta**M - np.exp(-M * V[:, 0])))  # (B7)
    agree(plain(flows(density, psi, OTHERS), label_flow), scheme, loss)


def test_draws_that_are_kept():
    r = ratio(QN)
    t = transform(QN, r)
    theta, psi, kept = np.exp(-V[:, 0] * A) * t, np.exp(-V * r) / t[:, None], 1 - Q[T]
    density = M * kept * theta * (Q[T] + kept * theta) ** (M - 1)  # (B10)
    label_flow = A * (DV * density @ (1 - psi[:, REFERENCE]))
    none = Q[T] ** M
    bias = plain(flows(density, psi, OTHERS), label_flow) - none * E
    bias[T] += none
    limit = (Q[T] + kept * np.exp(-V[:, 0])) ** M
    loss = -np.sum(0.01 * ((Q[T] + kept * theta) ** M - limit)) + none * np.log(A)
    agree(bias, "reject", loss)


def test_no_base_mass():
    r = ratio(Q)
    t = transform(Q, r)
    flow = flows(M * t**M, np.exp(-V * r) / t[:, None], E > 0)
    agree(flow - E * flow.sum(), "importance")  # (B9)


def test_a_corrected_base_mass():
    q, base = np.where(OTHERS, Q, 0.0), A / (M * Q[T])
    r = ratio(q)
    t = transform(q, r, Q[T])
    density, psi = M * (np.exp(-V[:, 0] * base) * t) ** M, np.exp(-V * r) / t[:, None]
    flow = flows(density, psi, OTHERS)
    surplus = A * (DV * density @ psi[:, REFERENCE]) - base * (DV @ density)
    bias = flow - E * (flow.sum() - surplus)  # (B11)
    bias[T] = -(1 - A) * surplus - A * flow.sum()
    agree(bias, "candidate_masked")


def test_a_base_mass_that_is_a_draw():
    r = ratio(Q)
    t = transform(Q, r)
    density, psi = M * t**M, np.exp(-V * r) / t[:, None]
    total = flows(density, psi, E > 0).sum()
    joined = psi * np.exp(-V * r[T]) - psi[:, [REFERENCE]]
    bias = E * (DV * density @ joined) - E * total  # (B12)
    bias[T] = 0.0
    bias[T] = -bias.sum()
    agree(bias, "candidate")


def test_the_jackknife_by_parts():
    def kernel(s):  # (B14)
        return np.exp(-(M - 1) * s) * np.expm1(-s)

    def kernel_slope(s):  # its derivative, (B70)
        return np.exp(-(M - 1) * s) * (-M * np.expm1(-s) - 1)

    v, r = V[:, 0], ratio(QN)
    t = transform(QN, r)
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


def test_independent_inclusion():
    pi = np.where(OTHERS, Q, 0.0)
    decay = np.exp(-V * ratio(pi))
    factors = 1 - pi + pi * decay  # (B26); that of the label is 1
    density, psi = np.exp(-V[:, 0] * A) * factors.prod(axis=1), decay / factors
    flow = flows(density, psi, E > 0)
    agree(flow - E * flow.sum(), "poisson")


def test_the_second_moment():
    r, c = ratio(QN), np.array([[1.0, 0.2], [0.1, -1.0], [0.5, 2.0], [-0.3, 0.4]])
    c = c - E @ c
    t = transform(QN, r)
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


@pytest.mark.parametrize(("first", "second"), [(0.3, 2.0), (1.1, 1.3), (1e-4, 0.5), (0.7, 90.0)])
def test_draws_that_are_left_out(first, second):
    """What (B76) and (B77) put under the integral gives back the functions of U."""
    v, rest, near, far = V[:, 0], 0.8, V * first, V * second
    once, twice = left_out.once(far)[:, 0], left_out.twice(far)[:, 0]
    pair = left_out.pair_sums(
        np.hstack([near, far]), np.eye(2)[0], np.eye(2)[[1] * len(v)], np.zeros((2, 2)),
        np.eye(3)[[1] * len(v)],
    )  # fmt: skip
    back = lambda kernel: DV @ (np.exp(-v * rest) * v * kernel)  # noqa: E731
    own, total = rest + second, rest + first + second
    assert back(once) == pytest.approx(second / (rest * own**2), rel=1e-11)
    assert back(twice) == pytest.approx((second / (rest * own)) ** 2, rel=1e-11)
    apart = second / (total**2 * (rest + first))
    assert back(np.exp(-near[:, 0]) * once) == pytest.approx(apart, rel=1e-11)
    both = first * second / (total**2 * (rest + first) * own)
    # l = (0, 1) and q = (1, 0): only pairs of the two, in either order
    assert back(pair) == pytest.approx(2 * both, rel=1e-11)
    assert back(pair * np.exp(-1e-6 * v)) != pytest.approx(2 * both, rel=1e-11)


def test_what_the_code_cites_is_there():
    there = set(re.findall(r"\\tag\{(B\d+)\}", README))
    assert len(there) == README.count("\\tag{")
    for path in [*HOME.glob("bias/*.py"), *HOME.glob("kernels/*.py")]:
        cited = set(re.findall(r"\((B\d+)\)", path.read_text()))
        assert cited <= there, f"{path.name} cites {cited - there}"
    assert set(re.findall(r"\((B\d+)\)", README)) <= there
    for name in re.findall(r"`((?:kernels/)?\w+\.py)`", README.split("## 1.")[0]):
        assert (HOME / "bias" / name).exists() or (HOME / name).exists(), name
