"""Exact variance of the multilevel loss and of its gradient, which have no bias, and their cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from samplesoft.bias.bounds import require_bounds
from samplesoft.bias.draw_law import make_draw_law
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.level_gradients import gradient_levels
from samplesoft.bias.level_losses import loss_levels
from samplesoft.bias.levels import expected_draws
from samplesoft.bias.moments import check_vectors
from samplesoft.schemes import Scheme, last_level


@dataclass(frozen=True)
class MultilevelMoments:
    """The multilevel loss and its gradient in h, whose means are those of the full softmax.

    Attributes
    ----------
    variance : float or ndarray, shape (B,)
        ``E|gradient - full gradient|**2``, in the units of the squared gradient in h.
    loss_variance : float or ndarray, shape (B,)
        ``E(loss - full loss)**2``, in nats squared; nan where sums may differ by a factor of more
        than about exp(150).
    num_draws : float
        Expected number of classes that are looked at for an example, its label aside: draws, and on
        the last level all others.
    """

    variance: Any
    loss_variance: Any
    num_draws: float


def multilevel_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
) -> MultilevelMoments:
    """Compute the exact variance of a `MultilevelLoss` and of its gradient in h, and their cost.

    The loss, in `samplesoft.losses.multilevel`, takes a random number of draws, at least two
    blocks of m = `num_sampled`, and has no bias whatever q is.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number m of draws of a block, at least 1. All draws are 4.4 m in the mean for large n.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.
    scheme : str or samplesoft.schemes.Scheme
        ``negatives`` or ``masked``; the others are refused.

    Returns
    -------
    MultilevelMoments
        Both variances, each a float or (B,), and the expected number of draws.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the scheme is another.

    Notes
    -----
    Section 19 of ``samplesoft/bias/README.md`` has the integrals. The variance is finite for every
    q, but grows with the largest ``e^{o_j} / q_j`` where that of plain sampled softmax has a bound.

    References
    ----------
    J. H. Blanchet and P. W. Glynn, "Unbiased Monte Carlo for optimization and functions of
    expectations via multi-level randomization", Winter Simulation Conference, 2015; the second
    moments follow from ``1/(S S') = int int exp(-u S - v S') du dv``.

    Examples
    --------
    >>> import numpy as np
    >>> import samplesoft
    >>> example = np.linspace(-1.0, 1.0, 100), 0, np.full(100, 0.01)
    >>> vectors = np.random.default_rng(0).normal(size=(100, 2))
    >>> moments = samplesoft.multilevel_moments(*example, 5, vectors)
    >>> round(moments.variance, 3), round(moments.num_draws, 1)
    (0.217, 19.4)
    >>> round(samplesoft.exact_gradient_moments(*example, 19, vectors).mse, 3)
    0.126
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h)
    require_bounds(inputs.scheme)
    m, n = inputs.num_sampled, inputs.logits.shape[1]
    vectors, scale = check_vectors(class_embeddings, n, tau)
    last = last_level(m, n)
    rows = []
    for row in inputs.rows():
        law = make_draw_law(*row, m, inputs.scheme)
        variance = scale * gradient_levels(law, vectors, last).variance()
        rows.append((variance, loss_levels(law, last).variance()))
    others = n - inputs.scheme.excludes_label
    variance, loss_variance = inputs.columns(rows)
    return MultilevelMoments(variance, loss_variance, expected_draws(m, last, others))
