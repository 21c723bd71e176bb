"""The mean of the exact bias over a random proposal, which is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_count
from samplesoft.bias.exact import exact_bias
from samplesoft.schemes import Scheme


@dataclass(frozen=True)
class SampledQBias:
    """Means over draws of a proposal, each with its exact bias.

    Attributes
    ----------
    mean_bias : ndarray, shape (n,) or (B, n)
        Estimated mean of ``E[p'] - p`` over q: the bias where q is drawn anew for each gradient.
    standard_error : ndarray, shape (n,) or (B, n)
        Its standard errors.
    mean_norm : float or ndarray, shape (B,)
        Estimated mean of the L1 norm of the bias of one q: where q is drawn once and kept.
    norm_error : float or ndarray, shape (B,)
        Its standard error.
    """

    mean_bias: FloatArray
    standard_error: FloatArray
    mean_norm: Any
    norm_error: Any


def sampled_q_bias(
    logits: ArrayLike,
    labels: Any,
    draw_q: Callable[[np.random.Generator], Any],
    num_sampled: int,
    *,
    num_draws: int = 100,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
    rng: int | np.random.Generator | None = None,
) -> SampledQBias:
    """Draw proposals, and average their exact biases.

    A sampler of random features, or one whose clusters start at random, is one proposal for each
    seed. Its bias is computed without sampling; what is sampled is the seed alone.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t.
    draw_q : callable
        Makes a q as `samplesoft.exact_bias` takes it, probabilities or a sampler, from a
        `numpy.random.Generator`.
    num_sampled, scheme, h
        As for `samplesoft.exact_bias`.
    num_draws : int
        How many proposals are drawn, at least 2.
    rng : int, numpy.random.Generator or None
        Seed of the generators.

    Returns
    -------
    SampledQBias
        The mean bias and the mean of its L1 norm, with standard errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or `samplesoft.exact_bias` refuses what `draw_q` makes.

    Warns
    -----
    RuntimeWarning
        As `samplesoft.exact_bias`.

    Notes
    -----
    The L1 norm of `mean_bias` is too large by about the sum of 0.8 `standard_error`, where
    that is not small beside it. A standard error says little while the mean comes from rare draws,
    as with few features: `samplesoft.positive_features_bias` needs no draws.

    Examples
    --------
    Features that are drawn once have a bias; drawn anew for each gradient, they have a smaller one.

    >>> import numpy as np
    >>> from samplesoft.samplers import RFSoftmaxSampler
    >>> classes, h = np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]]), np.array([1.0, 0.0])
    >>> def draw_q(rng):
    ...     return RFSoftmaxSampler(
    ...         classes, nu=1.0, num_features=100, leaf="kernel", leaf_size=1, rng=rng
    ...     )
    >>> found = sampled_q_bias(classes @ h, 0, draw_q, num_sampled=5, h=h, rng=0)
    >>> print(f"{found.mean_norm:.4f}, and {np.abs(found.mean_bias).sum():.4f}")
    0.0030, and 0.0006
    """
    if not callable(draw_q):
        raise TypeError(
            "`draw_q` must be a function that makes a proposal from a numpy.random.Generator, got "
            f"{type(draw_q).__name__}; write for example lambda rng: make_sampler(..., rng=rng)."
        )
    num = as_count("num_draws", num_draws, 2)
    parent = np.random.default_rng(int(as_key(rng)))
    norms: list[Any] = []
    mean: Any = 0.0
    square: Any = 0.0
    for count in range(1, num + 1):
        q = draw_q(parent.spawn(1)[0])
        bias = exact_bias(logits, labels, q, num_sampled, scheme=scheme, h=h).bias
        norms.append(np.abs(bias).sum(axis=-1))
        change = bias - mean  # Welford's sums: means of squares would cancel
        mean = mean + change / count
        square = square + change * (bias - mean)
    return SampledQBias(
        mean,
        np.sqrt(square / (num * (num - 1))),
        np.mean(norms, axis=0),
        np.std(norms, axis=0, ddof=1) / num**0.5,
    )
