"""Problems for second moments, and how far a result is from its oracle."""

import numpy as np
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


def largest_miss(result, exact):
    """Return how far squared bias, variance and mean squared error are off at most."""
    parts = result.squared_bias, result.variance, result.mse
    return max(abs(x - y) for x, y in zip(parts, exact, strict=True))
