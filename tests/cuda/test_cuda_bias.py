"""The exact bias by sums on a device, against the processor's and an oracle."""

import numpy as np
import pytest
from oracles import naive

import samplesoft

pytestmark = pytest.mark.gpu
SCHEMES = ["negatives", "reject", "candidate", "candidate_masked", "importance", "jackknife"]


def case(n):
    """Logits and a proposal; of many classes with ratios on few Chebyshev panels."""
    rng = np.random.default_rng(n)
    if n < 50:
        return 2.0 * rng.normal(size=n), rng.dirichlet(np.ones(n))
    return 0.2 * rng.uniform(-1, 1, size=n), np.full(n, 1.0 / n)


@pytest.mark.parametrize(
    ("n", "scheme"), [(3, scheme) for scheme in SCHEMES] + [(60, "negatives"), (60, "candidate")]
)
def test_the_bias_is_that_of_the_processor(n, scheme):
    logits, q = case(n)  # each class an atom, or panels
    here = samplesoft.exact_bias(logits, 1, q, 5, scheme=scheme)
    there = samplesoft.exact_bias(logits, 1, q, 5, scheme=scheme, device="cuda")
    size = np.abs(here.bias).sum()
    assert np.abs(there.bias - here.bias).sum() < 1e-12 * size
    assert abs(there.loss_bias - here.loss_bias) < 1e-13
    assert there.error < 1e-11 * size


def test_against_enumeration():
    logits, q = case(3)
    there = samplesoft.exact_bias(logits, 0, q, 2, device="cuda")
    expected = np.array(naive.enumerate_scheme(logits, 0, q, 2, "negatives")[0], float)
    np.testing.assert_allclose(there.expected_probs, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("spread", [1e-8, 30.0])
def test_extreme_logits(spread):
    logits, q = spread * np.linspace(-1, 1, 5), np.full(5, 0.2)
    here = samplesoft.exact_bias(logits, 3, q, 3)
    there = samplesoft.exact_bias(logits, 3, q, 3, device="cuda")
    size = np.abs(here.bias).sum()
    assert np.abs(there.bias - here.bias).sum() <= 1e-11 * size


def test_what_has_no_kernels_says_so():
    with pytest.raises(ValueError, match="'cpu' for scheme='poisson'"):
        samplesoft.exact_bias([0.0, 1.0], 0, [0.5, 0.5], 1, scheme="poisson", device="cuda")


@pytest.mark.parametrize("scheme", [*SCHEMES, "poisson"])
def test_trials_are_those_of_the_processor(scheme):
    logits, q = case(5)
    given = {"num_trials": 30, "scheme": scheme, "rng": 3}
    here = samplesoft.monte_carlo_bias(logits, 1, q, 3, **given)
    there = samplesoft.monte_carlo_bias(logits, 1, q, 3, **given, device="cuda")
    for name in ("bias", "stderr", "loss_bias", "loss_stderr"):
        a, b = getattr(here, name), getattr(there, name)
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-14, err_msg=name)


def test_trials_that_do_not_fit_side_by_side(monkeypatch):
    from samplesoft.bias import trials_cuda

    logits, q = case(5)
    given = {"num_trials": 20, "rng": 3, "device": "cuda"}
    at_once = samplesoft.monte_carlo_bias([logits] * 2, [0, 1], q, 3, **given)
    monkeypatch.setattr(trials_cuda, "_VALUES", 40)
    in_parts = samplesoft.monte_carlo_bias([logits] * 2, [0, 1], q, 3, **given)
    np.testing.assert_allclose(in_parts.bias, at_once.bias, atol=1e-15)
    np.testing.assert_allclose(in_parts.loss_stderr, at_once.loss_stderr, rtol=1e-12)
