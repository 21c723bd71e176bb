"""The exact bias of a Metropolis-Hastings chain that replaces draws from the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_array, as_count, as_labels, as_proposal
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.numerics.summation import log_softmax
from samplesoft.kernels.independence import after_steps, make_chain

# largest |log(p / q)| at which q - p is computed as q (1 - p / q), which has more correct digits
_MAX_NEAR_LOG_RATIO = 0.5


@dataclass(frozen=True)
class ChainBias:
    """The distribution of a chain after given numbers of steps, compared with the softmax.

    Attributes
    ----------
    bias : ndarray, shape (n,) or (B, n), or for K numbers of steps (K, n) or (B, K, n)
        The distribution minus the softmax, with full relative precision however small it is. It
        sums to 0.
    distribution : ndarray, of the shape of `bias`
        The distribution of the state after the last step.
    probs : ndarray, shape (n,) or (B, n)
        The softmax p.
    rate : float or ndarray, shape (B,)
        ``1 - 1 / max(p / q)``: each further step multiplies the bias by at most this factor.
    """

    bias: FloatArray
    distribution: FloatArray
    probs: FloatArray
    rate: Any


def metropolis_bias(
    logits: ArrayLike, q: Any, num_steps: Any, *, start: Any = None, h: ArrayLike | None = None
) -> ChainBias:
    """Compute exactly how far Metropolis-Hastings is from the softmax after T steps.

    A step proposes a class j from q, independently of the state i, and accepts it with probability
    ``min(1, w_j / w_i)``, ``w = p / q``. This does not need Z. The gradient of the loss, with the
    state in place of a draw from the softmax, has the bias ``jacobian.T @ bias``.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal, above 0 on every class, as for `samplesoft.exact_bias`.
    num_steps : int or array_like of int, shape (K,)
        Numbers T of steps, at least 0. The cost does not depend on T.
    start : int, array_like, optional
        Initial state: a class, one class for each example as integers (B,), or a distribution
        (n,) or (B, n). The default is q, a first proposal that is always accepted.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors, where `q` is a sampler that uses them.

    Returns
    -------
    ChainBias
        The bias, the distribution, the softmax, and the rate.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or q is 0 on a class.

    Notes
    -----
    The eigenvalues of the chain are its rejection probabilities, one for each class, and the
    distribution after T steps has a closed form in their T-th powers [2]_, [3]_. It costs
    O(n log n) to sort the classes by w, and O(n) for each T, however large. The softmax is not
    subtracted from the distribution: the powers multiply ``start - p``. In tests the bias was right
    to 1e-13 of its L1 norm, even where that norm was 1e-40. The error is larger only where q or
    `start` is near p, because q, `start` and p are rounded.

    T steps cost as much as T + 1 draws of sampled softmax with their logits. The bias of the draws
    falls like 1/T, the bias of the chain like ``rate ** T``. For 1,000 normal logits of standard
    deviation 2 and uniform q, where w is at most 48, 99 steps leave an L1 norm of 0.030, and 999
    steps 8e-11; as many draws of scheme ``importance`` leave 0.108 and 0.012. But a chain yields
    one state, so that the gradient has the variance of a single draw. Use it where q is good and
    bias matters more than variance.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Quick training of probabilistic neural nets by importance
       sampling", AISTATS 2003, and "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", 2008: chains with a fixed proposal.
    .. [2] J. S. Liu, "Metropolized independent sampling with comparisons to rejection sampling and
       importance sampling", Statistics and Computing 6, 1996: the eigenvalues.
    .. [3] R. L. Smith and L. Tierney, "Exact transition probabilities for the independence
       Metropolis sampler", technical report, University of North Carolina, 1996.

    Examples
    --------
    >>> from samplesoft.bias.chain import metropolis_bias
    >>> result = metropolis_bias([0.0, 1.0, 2.0], [0.4, 0.3, 0.3], [0, 1, 20])
    >>> result.bias.round(5)
    array([[ 0.30997,  0.05527, -0.36524],
           [ 0.11526,  0.08527, -0.20053],
           [ 0.     ,  0.     , -0.     ]])
    >>> f"{result.bias[2, 2] / result.bias[1, 2]:.2e}, {result.rate ** 19:.2e}"
    '1.13e-05, 1.13e-05'
    """
    inputs = check_inputs(logits, 0, q, 1, "importance", h)
    steps = as_array("num_steps", num_steps)
    counts = [as_count("num_steps", step, 0) for step in steps.ravel()]

    rows = []
    shape = (*steps.shape, inputs.logits.shape[1])
    start_distributions = _start_distributions(start, inputs)
    for (o, _, q_row), distribution in zip(inputs.rows(), start_distributions, strict=True):
        log_p = log_softmax(o)
        log_q = np.log(q_row / q_row.sum())

        # log p near 0 loses digits, so it is computed from the sum of the other classes
        heaviest = int(log_p.argmax())
        if log_p[heaviest] > -_MAX_NEAR_LOG_RATIO:
            log_p[heaviest] = np.log1p(-np.exp(np.delete(log_p, heaviest)).sum())

        chain = make_chain(log_p, log_q)
        p = np.exp(log_p)
        with np.errstate(divide="ignore"):
            log_ratio = log_p - np.log(distribution)

        # distribution - p cancels if both are similar: use distribution * -expm1(log of the ratio)
        clipped = np.clip(log_ratio, -_MAX_NEAR_LOG_RATIO, _MAX_NEAR_LOG_RATIO)
        gap_by_log_ratio = -distribution * np.expm1(clipped)
        gap = np.where(np.abs(log_ratio) < _MAX_NEAR_LOG_RATIO, gap_by_log_ratio, distribution - p)

        biases = [after_steps(chain, gap, count, True) for count in counts]
        distributions = [after_steps(chain, distribution, count) for count in counts]
        rate = np.exp(chain.log_rejection[-1])
        rows.append((np.reshape(biases, shape), np.reshape(distributions, shape), p, rate))

    return ChainBias(*inputs.columns(rows))


def _start_distributions(start: Any, inputs: Inputs) -> FloatArray:
    """Check `start`, and return the initial distributions (B, n) of the chains."""
    batch, n = inputs.logits.shape
    outer = (batch,) if inputs.is_batch else ()

    if start is None:
        distributions = inputs.q
    elif as_array("start", start).dtype.kind in "iu":
        labels = np.atleast_1d(as_labels("start", start, n, outer))
        return np.asarray(labels[:, None] == np.arange(n), np.float64)
    else:
        distributions = as_proposal("start", start, n)
        if distributions.shape not in ((n,), (*outer, n)):
            expected = f"({n},) or {(*outer, n)}"
            raise ValueError(
                f"`start` must have shape {expected} as a distribution, got {distributions.shape}."
            )

    return np.broadcast_to(distributions / distributions.sum(axis=-1, keepdims=True), (batch, n))
