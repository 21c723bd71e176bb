"""Draws from two proposals, against all outcomes, and `exact_bias` where the two are one."""

import doctest
import itertools

import mixed_bias as module
import numpy as np
import pytest
from mixed_bias import mixed_bias
from mpmath import mp, mpf
from oracles.naive_losses import mixed_means

from samplesoft import exact_bias
from samplesoft.samplers import SoftmaxSampler, UniformSampler

LOGITS = np.array([0.5, -1.0, 2.0, 0.1])
Q, U = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.0, 0.7])


def test_the_example_in_its_documentation():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("label", range(4))
@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
@pytest.mark.parametrize(("m", "more"), [(2, 3), (4, 1)])
def test_means_are_those_over_all_draws(label, scheme, m, more):
    mean, loss = mixed_means(LOGITS, label, (Q, m), (U, more), scheme == "candidate_masked")
    found = mixed_bias(LOGITS, label, Q, m, U, more, scheme=scheme)
    assert np.abs(found.expected_probs - mean).sum() <= found.error < 2e-13
    full = np.logaddexp.reduce(LOGITS) - LOGITS[label]
    assert full + found.loss_bias == pytest.approx(loss, rel=1e-12)
    twin = mixed_bias(LOGITS, label, U, m, Q, more, scheme=scheme)
    assert np.abs(twin.expected_probs - mean).sum() > 1e-3


@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_two_groups_from_one_proposal_are_one_group(scheme, spread):
    rng = np.random.default_rng(0)
    logits, q = spread * rng.normal(size=(3, 200)), rng.dirichlet(np.ones(200))
    labels = logits.argsort(axis=1)[np.arange(3), [0, 100, -1]]
    found = mixed_bias(logits, labels, q, 100, q, 28, scheme=scheme)
    exact = exact_bias(logits, labels, q, 128, scheme=scheme)
    assert (np.abs(found.bias - exact.bias).sum(axis=1) <= found.error).all()
    np.testing.assert_allclose(found.loss_bias, exact.loss_bias, rtol=1e-9, atol=1e-12)


def test_samplers_and_extreme_logits():
    logits = [0.0, 3000.0, -3000.0]
    found = mixed_bias(logits, 2, UniformSampler(3), 4, UniformSampler(3), 2)
    exact = exact_bias(logits, 2, np.ones(3) / 3, 6, scheme="masked")
    assert np.abs(found.bias - exact.bias).sum() <= found.error < 1e-9


@pytest.mark.parametrize("gap", [0.0, 5.0, 100.0, 1128.3, 3000.0])
def test_the_error_of_the_loss_grows_with_the_gap_of_the_logits(gap):
    logits, q, u = [0.0, gap, gap - 1.0], [0.2, 0.5, 0.3], [0.1, 0.4, 0.5]
    found = mixed_bias(logits, 0, q, 1, u, 1)
    with mp.workdps(60):
        first, second = ([mpf(x) / mp.fsum(map(mpf, law)) for x in law] for law in (q, u))
        e = [mp.exp(mpf(o)) for o in logits]
        w = [0, *(e[j] / (first[j] + second[j]) for j in (1, 2))]
        outcomes = itertools.product(range(3), repeat=2)
        loss = mp.fsum(first[i] * second[j] * mp.log(e[0] + w[i] + w[j]) for i, j in outcomes)
        error = abs(found.loss_bias - (loss - mp.log(mp.fsum(e))))
    assert error <= found.loss_error <= 1e-12 * (1.0 + gap)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": [0.5, 0.5]}, "`extra` must cover all 4 classes"),
        ({"extra": [0.5] * 4}, "`extra` must sum to 1"),
        ({"extra": np.ones((2, 4)) / 4}, "`extra` must be one proposal"),
        ({"q": [0.5, 0.5, 0.0, 0.0]}, "got 0 at class 2"),
        ({"q": SoftmaxSampler(np.eye(4))}, "`h` must hold context vectors"),
        ({"num_extra": 0}, "`num_extra` must be at least 1"),
        ({"scheme": "negatives"}, "`scheme` must be one of"),
        ({"labels": 4}, "`labels`"),
    ],
)
def test_bad_arguments(change, words):
    given = {"logits": LOGITS, "labels": 0, "q": Q, "num_sampled": 3, "extra": U, "num_extra": 2}
    with pytest.raises((TypeError, ValueError), match=words):
        mixed_bias(**given | change)
