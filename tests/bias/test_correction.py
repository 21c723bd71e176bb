"""Draws that are corrected by other probabilities than theirs: exact bias against all outcomes."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from samplesoft import exact_bias
from samplesoft.losses import InBatchLoss
from samplesoft.samplers import UnigramSampler
from samplesoft.schemes import SCHEMES, certain_schemes, exact_schemes

LOGITS, LABEL = np.array([0.4, -1.1, 2.0, 0.3]), 2
Q, CORRECTION = np.array([0.4, 0.1, 0.2, 0.3]), np.array([0.3, 0.25, 0.4, 0.05])


def by_hand(logits, label, q, m, c, scheme, certain=()):
    """Return E[p'] - p and E[L'] - L by visiting all outcomes, in 40 digits."""
    with mp.workdps(40):
        n, own = len(q), {label, *certain}
        e, c = [mp.exp(mpf(float(o))) for o in logits], [mpf(float(x)) for x in c]
        q = [mpf(float(x)) for x in q]
        jackknife = scheme.startswith("jackknife")
        scheme = {"jackknife": "negatives", "jackknife_masked": "masked"}.get(scheme, scheme)
        if scheme == "negatives":
            q = [mpf(0) if j in own else x for j, x in enumerate(q)]
        q = q if scheme == "poisson" else [x / mp.fsum(q) for x in q]

        def of_draws(ids):
            kept = [j for j in ids if j not in own or scheme in ("candidate", "importance")]
            count = {"reject": max(len(kept), 1), "poisson": 1}.get(scheme, len(ids))
            mass = [mpf(0)] * n
            for j in kept:
                mass[j] += e[j] / (count * c[j])
            base = e[label]
            if scheme.startswith("candidate"):
                base = e[label] / (len(ids) * c[label])
            if scheme != "importance":
                mass[label] += base
            for j in set(certain) - {label}:
                mass[j] += e[j]
            total = mp.fsum(mass)
            return [x / total for x in mass], mp.log(total / base)

        def of_outcome(ids):
            if not jackknife:
                return of_draws(ids)
            parts = [of_draws(ids[:i] + ids[i + 1 :]) for i in range(m)]
            whole = of_draws(ids)
            mean = [mp.fsum(p[i] for p, _ in parts) / m for i in range(n)]
            loss = m * whole[1] - (m - 1) * mp.fsum(x for _, x in parts) / m
            return [m * w - (m - 1) * x for w, x in zip(whole[0], mean, strict=True)], loss

        if scheme == "poisson":
            others = [j for j in range(n) if j != label]
            outcomes = []
            for flags in product((0, 1), repeat=len(others)):
                pairs = list(zip(others, flags, strict=True))
                chance = mp.fprod(q[j] if f else 1 - q[j] for j, f in pairs)
                outcomes.append((chance, tuple(j for j, f in pairs if f)))
        else:
            outcomes = [(mp.fprod(q[j] for j in i), i) for i in product(range(n), repeat=m)]
        z = mp.fsum(e)
        bias, loss = [-x / z for x in e], -mp.log(z / e[label])
        for chance, ids in outcomes:
            if chance:
                probs, value = of_outcome(ids)
                bias = [b + chance * x for b, x in zip(bias, probs, strict=True)]
                loss += chance * value
        return np.array([float(b) for b in bias]), float(loss)


def check(logits, label, q, m, c, scheme, certain=()):
    exact = exact_bias(logits, label, q, m, scheme=scheme, correction=c, certain=certain or None)
    bias, loss = by_hand(logits, label, q, m, c, scheme, certain)
    assert np.abs(exact.bias - bias).sum() <= max(2.0 * exact.error, 1e-15)
    assert abs(exact.loss_bias - loss) <= max(2.0 * exact.loss_error, 1e-14)
    assert exact.error <= 1e-11 + 1e-11 * np.abs(bias).sum()
    return exact


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("label", [2, 1])
@pytest.mark.parametrize("scheme", exact_schemes())
def test_equals_enumeration(scheme, label, m):
    m = max(m, SCHEMES[scheme].min_draws)
    exact = check(LOGITS, label, Q, m, CORRECTION, scheme)
    right = exact_bias(LOGITS, label, Q, m, scheme=scheme)
    if (scheme, m) != ("importance", 1):  # where p' is 1 on the draw, whatever its weight
        assert abs(exact.bias - right.bias).max() > 1e-3


@pytest.mark.parametrize("scheme", exact_schemes())
def test_the_right_correction_changes_nothing(scheme):
    q = Q
    if scheme in ("negatives", "reject", "jackknife"):
        q = Q / np.delete(Q, LABEL).sum()
    exact = exact_bias(LOGITS, LABEL, Q, 5, scheme=scheme, correction=q)
    right = exact_bias(LOGITS, LABEL, Q, 5, scheme=scheme)
    np.testing.assert_allclose(exact.bias, right.bias, rtol=1e-12, atol=exact.error)
    assert exact.loss_bias == pytest.approx(right.loss_bias, abs=2.0 * exact.loss_error)


@pytest.mark.parametrize("scheme", certain_schemes())
def test_certain_classes_are_not_corrected(scheme):
    check(LOGITS, LABEL, Q, 2, CORRECTION, scheme, certain=(0,))


@pytest.mark.parametrize("scheme", ["negatives", "masked", "importance", "poisson", "jackknife"])
def test_classes_that_are_never_drawn(scheme):
    q, c = np.array([0.5, 0.0, 0.2, 0.3]), np.array([0.3, 0.0, 0.4, 0.05])
    exact = check(LOGITS, LABEL, q, 3, c, scheme)
    assert exact.bias[1] == -exact.probs[1]
    with pytest.raises(ValueError, match="`q` must be greater than 0"):
        exact_bias(LOGITS, LABEL, q, 3, scheme=scheme if scheme != "poisson" else "masked")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-20.0, 20.0), min_size=4, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
    st.lists(st.floats(1e-4, 1e2), min_size=4, max_size=4),
    st.integers(0, 3),
    st.sampled_from(exact_schemes()),
)
def test_any_numbers(logits, q, c, label, scheme):
    check(np.array(logits), label, np.array(q) / sum(q), 2, np.array(c), scheme)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_extremes(offset):
    logits = np.array([1e4, -1e4, 0.0, 9990.0]) + offset
    for c in ([1e-300, 1.0, 1.0, 1.0], [1e300, 1.0, 1.0, 1e-300]):
        exact = exact_bias(logits, 2, [0.25] * 4, 3, correction=c)
        assert np.isfinite(exact.bias).all() and np.isfinite(exact.loss_bias)
        assert abs(exact.bias.sum()) < 1e-12


def test_small_errors_of_the_correction_keep_their_digits():
    """With m = 10**12 the bias is that of the correction alone, to first order in its error."""
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    off = 1e-9 * np.array([1.0, -2.0, 0.0, 3.0])
    q = Q / np.delete(Q, LABEL).sum()
    exact = exact_bias(LOGITS, LABEL, Q, 10**15, correction=q * np.exp(-off))
    first = p * (off - p @ off)
    np.testing.assert_allclose(exact.bias, first, rtol=1e-5)


def test_info_nce_is_sampled_softmax_without_a_correction():
    """The mean loss of a batch, over all batches of three labels, for contexts that are fixed."""
    probs, vectors = np.array([0.5, 0.3, 0.2]), np.eye(3)
    h = np.array([0.7, -0.2, 1.1])
    exact = exact_bias(vectors @ h, 1, probs, 2, scheme="masked", correction=np.full(3, 0.5))
    mean = 0.0
    for others in product(range(3), repeat=2):
        loss = np.logaddexp.reduce([h[1], *(h[j] for j in others if j != 1)]) - h[1]
        mean += probs[list(others)].prod() * loss
    full = np.logaddexp.reduce(h) - h[1]
    assert exact.loss_bias == pytest.approx(mean - full, rel=1e-12)
    # which the correction of the in-batch loss mends: its own bias is far smaller
    assert InBatchLoss(UnigramSampler([5, 3, 2], power=1.0)).scheme == "masked"
    corrected = exact_bias(vectors @ h, 1, probs, 2, scheme="masked")
    assert abs(corrected.loss_bias) < abs(exact.loss_bias)


def test_a_batch_and_its_correction():
    logits = np.stack([LOGITS, -LOGITS])
    both = exact_bias(logits, [2, 0], Q, 4, correction=np.stack([CORRECTION, Q]))
    for i, c in enumerate([CORRECTION, Q]):
        one = exact_bias(logits[i], [2, 0][i], Q, 4, correction=c)
        np.testing.assert_array_equal(both.bias[i], one.bias)
        assert both.loss_bias[i] == one.loss_bias


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        ([0.5, 0.5], "does not match `logits`"),
        ([0.5, 0.0, 0.3, 0.2], "greater than 0, and at least 2.2e-308, on every class"),
        ([0.5, -0.1, 0.3, 0.2], "greater than 0, and at least 2.2e-308, on every class"),
        ([0.5, 1e-309, 0.3, 0.2], "greater than 0, and at least 2.2e-308, on every class"),
        ([0.5, np.nan, 0.3, 0.2], "must be finite"),
    ],
)
def test_bad_corrections(correction, message):
    with pytest.raises(ValueError, match=message):
        exact_bias(LOGITS, LABEL, Q, 2, correction=correction)
