"""Trials of sampled softmax on a device, against the processor's."""

import numpy as np
import pytest

import samplesoft

pytestmark = pytest.mark.gpu
SCHEMES = ["negatives", "reject", "candidate", "candidate_masked", "importance", "jackknife"]


def case(n):
    """Logits and a proposal."""
    rng = np.random.default_rng(n)
    return 2.0 * rng.normal(size=n), rng.dirichlet(np.ones(n))


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
