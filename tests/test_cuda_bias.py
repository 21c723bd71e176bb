"""The exact bias by sums on a device, against the processor's and an oracle."""

import naive
import numpy as np
import pytest

import samplesoft

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),  # the simulator's
]
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
