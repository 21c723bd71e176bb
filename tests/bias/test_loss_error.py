"""The loss bias and its error estimate against all outcomes, and where digits were lost before."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import naive

from samplesoft import exact_bias
from samplesoft.schemes import exact_schemes


def true_loss_bias(logits, label, q, m, scheme):
    """The mean over all outcomes, with digits for any logits that follow."""
    with mp.workdps(400):
        _, loss, _ = naive.enumerate_scheme(logits, label, q, m, scheme, dps=400)
        return loss + mp.log(naive.softmax(logits)[label])


def problems(seed, number):
    """Logits, label, q and m of small problems: mild and wild, far from the softmax and near."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        n, spread = int(rng.integers(3, 5)), rng.choice([0.3, 2.0, 20.0, 300.0])
        logits = rng.normal(size=n) * spread
        near = np.exp(logits - logits.max()) * np.exp(1e-6 * rng.normal(size=n)) + 1e-250
        q = (rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-30.0, 0.0, n), near)[i % 3]
        yield logits, int(rng.integers(n)), q / q.sum(), int(rng.integers(2, 4))


@pytest.mark.parametrize("scheme", exact_schemes())
@pytest.mark.filterwarnings("ignore:the bias of scheme")  # of the bias, not the loss
def test_the_estimate_bounds_the_error_and_is_small(scheme):
    for logits, label, q, m in problems(7, 12):
        result = exact_bias(logits, label, q, m, scheme=scheme)
        want = true_loss_bias(logits, label, q, m, scheme)
        error = abs(mpf(float(result.loss_bias)) - want)
        assert error <= mpf(float(result.loss_error)) + mpf("1e-300")
        if scheme not in naive.JACKKNIFED:
            assert error <= 1e-10 * abs(want) + mpf("1e-300")


def test_an_estimate_that_is_off_is_seen():
    logits, label, q, m = next(problems(7, 1))
    result = exact_bias(logits, label, q, m, scheme="masked")
    other = exact_bias(logits, label, q, m, scheme="negatives")
    assert abs(result.loss_bias - other.loss_bias) > 1e6 * (result.loss_error + other.loss_error)


@pytest.mark.parametrize("rest", [1e-3, 1e-9, 1e-15])
def test_classes_close_to_certain_keep_the_digits_of_the_loss(rest):
    logits, pi = [0.3, -1.0, 2.0, 0.7], [0.5, 1.0 - rest, 1.0 - 3.0 * rest, 1.0 - rest]
    result = exact_bias(logits, 0, pi, 1, scheme="poisson")
    want = true_loss_bias(logits, 0, pi, 1, "poisson")
    assert abs(mpf(result.loss_bias) / want - 1) < 1e-12


def test_a_label_that_leads_keeps_the_digits_of_the_loss():
    logits, q = [40.0, 0.0, 1.0], [0.9 - 1e-12, 0.1, 1e-12]
    for scheme in ("candidate", "candidate_masked"):
        result = exact_bias(logits, 0, q, 3, scheme=scheme)
        want = true_loss_bias(logits, 0, q, 3, scheme)
        assert abs(mpf(result.loss_bias) / want - 1) < 1e-12


def test_draws_of_a_masked_label_leave_the_loss_its_digits():
    """A rest of 1e-5 of two parts that are near 1, for the label's corrected mass is small."""
    logits, q, m = [12.0, 0.0], [1.0 - 1e-13, 1e-13], 150
    result = exact_bias(logits, 0, q, m, scheme="candidate_masked")
    want = true_loss_bias(logits, 0, q, m, "candidate_masked")
    assert abs(mpf(result.loss_bias) / want - 1) < 1e-14
    assert abs(mpf(result.loss_bias) - want) < result.loss_error < 1e-13 * abs(want)


def test_draws_that_are_nearly_all_of_the_label():
    """One negative: then the loss is known by the chance that no draw is kept."""
    m, rare = 10**9, 1e-9
    result = exact_bias([0.0, 1.0], 0, [1.0 - rare, rare], m, scheme="reject")
    with mp.workdps(40):
        q = [mpf(1.0 - rare), mpf(rare)]
        none = (q[0] / (q[0] + q[1])) ** m
        label = 1 / (1 + mp.e)
        assert abs(mpf(result.bias[0]) / (none * (1 - label)) - 1) < 1e-14
        assert abs(mpf(result.loss_bias) / (none * mp.log(label)) - 1) < 1e-14


def test_a_batch_and_certain_classes_have_it_too():
    logits = np.random.default_rng(0).normal(size=(3, 6))
    q = np.full(6, 1 / 6)
    result = exact_bias(logits, [0, 1, 2], q, 4, certain=[0, 5])
    assert result.loss_error.shape == (3,)
    assert (result.loss_error < 1e-12 * np.abs(result.loss_bias)).all()


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize("heaviest", [28.0, 45.0, 58.0])
def test_one_draw_of_classes_on_panels_one_of_which_outweighs_all(heaviest, scheme):
    """The loss bias is a small part of the transform, and no difference of sums over classes."""
    rng = np.random.default_rng(2)
    n, label = 1200, 5
    logits = 0.7 * rng.normal(size=n)
    logits[3] = heaviest
    q = np.exp(logits - heaviest + 0.3 * rng.normal(size=n))
    q /= q.sum()
    with mp.workdps(50):
        p, chances = naive.softmax(logits), [mpf(float(x)) for x in q]
        missed = chances[label] if scheme == "masked" else mpf(0)
        total = missed + mp.fsum(x for j, x in enumerate(chances) if j != label)
        own = p[label]
        wanted = missed / total * mp.log(own) + mp.fsum(
            x / total * mp.log(own + p[j] * total / x) for j, x in enumerate(chances) if j != label
        )
        result = exact_bias(logits, label, q, 1, scheme=scheme)
        error = abs(result.loss_bias - wanted)
    assert error < 1e-11 * abs(wanted)
    assert error < 3.0 * result.loss_error


# --- errors that were claimed too small --------------------------------------------------------


def assert_errors_are_covered(logits, label, q, m, scheme):
    result = exact_bias(logits, label, q, m, scheme=scheme)
    mean, loss, _ = naive.enumerate_scheme(logits, label, q, m, scheme, dps=600)
    with mp.workdps(600):
        p = naive.softmax(logits)
        bias = [x - y for x, y in zip(mean, p, strict=True)]
        error, norm = naive.l1_error(result.bias, bias)
        assert error <= mpf(float(result.error)) <= 1e-8 * norm
        loss_bias = loss + mp.log(p[label])
        assert abs(result.loss_bias - loss_bias) <= result.loss_error <= 1e-8 * abs(loss_bias)


@pytest.mark.parametrize("scheme", ["negatives", "masked", "reject", "importance", "jackknife"])
def test_a_proposal_that_is_the_rounded_softmax(scheme):
    """Its bias is made of the rounding of q, of which 28 digits of a ratio show the first few."""
    for seed in range(9):
        logits = 2.0 * np.random.default_rng(seed).normal(size=3 + seed % 3)
        q = np.exp(logits) / np.exp(logits).sum()
        assert_errors_are_covered(logits, 0, q, 3, scheme)


@pytest.mark.parametrize(
    ("logits", "q", "m"),
    [
        (
            [236.84632693942834, -241.0859622826097, 242.4348777590292],
            [0.0003207224864136813, 9.188085990178147e-211, 0.9996792775135864],
            3,
        ),
        (
            [245.01844036202215, -240.267480073403, 237.80959244229095],
            [0.9965709391901567, 1.0263669810750129e-211, 0.003429060809843385],
            3,
        ),
    ],
)
def test_ratios_near_1_of_large_logs(logits, q, m):
    """The logs of e and of q are near -480, and their rounding is in a ratio that is near 1."""
    assert_errors_are_covered(logits, 1, q, m, "candidate")
