"""Problems for second moments, and how far a result is from its oracle."""

import numpy as np
import pytest
from hypothesis import strategies as st


@st.composite
def hard_cases(draw):
    """Logits up to hundreds apart; proposals near the softmax, skewed, or with a rare class."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    logits = draw(st.sampled_from([1e-8, 0.3, 2.0, 10.0, 30.0, 100.0, 240.0])) * rng.normal(size=n)
    c = rng.normal(size=(n, 3)) + draw(st.sampled_from([0.0, 100.0]))
    kind = draw(st.sampled_from(["any", "near", "rare"]))
    q = rng.dirichlet(np.ones(n))
    if kind == "near":
        q = np.exp(np.maximum(logits - logits.max(), -600.0))
        q *= 1.0 + 10.0 ** -rng.integers(1, 17) * rng.normal(size=n)
    elif kind == "rare":
        q = q ** rng.choice([5.0, 50.0])
    q = np.maximum(q, 1e-300)
    return logits, int(rng.integers(n)), q / q.sum(), m, c


def powered_case(seed, spread, power):
    """Return logits, label, q, m and class vectors; q is a power of any law, at least 1e-300."""
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 5), int(rng.integers(2, 6))
    logits, q, c = spread * rng.normal(size=n), rng.dirichlet(np.ones(n)), rng.normal(size=(n, 3))
    q = np.maximum(q**power, 1e-300)
    return logits, int(rng.integers(n)), q / q.sum(), m, c


def assert_has_digits(result, exact):
    """Require ten digits of the squared bias, and all that the variance has beside it."""
    squared_bias, variance, mse = exact
    assert result.squared_bias == pytest.approx(squared_bias, rel=1e-10, abs=1e-28)
    assert result.mse == pytest.approx(mse, rel=1e-12, abs=1e-28)
    assert result.variance == pytest.approx(variance, abs=1e-12 * mse + 1e-28)


def largest_miss(result, exact):
    """Return how far squared bias, variance and mean squared error are off at most."""
    parts = result.squared_bias, result.variance, result.mse
    return max(abs(x - y) for x, y in zip(parts, exact, strict=True))
