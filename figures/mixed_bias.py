"""The exact bias where negatives come from two proposals, as with mixed negatives of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from samplesoft._device.select import to_host
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, as_choice, as_count, as_proposal, as_real_array
from samplesoft.bias.exact import ExactBias
from samplesoft.bias.inputs import check_inputs, probs_of
from samplesoft.bias.numerics.quadrature import ExampleBias, relative_term_error_of_logs
from samplesoft.bias.numerics.summation import log_softmax
from samplesoft.schemes import SCHEMES, Scheme, select

_STEP = 0.1  # of log x
_LEFT, _RIGHT = 40.0, 4.0  # beyond the fastest and the slowest change
_TERMS = 1 << 20  # of classes times nodes at once
_ROUNDING = 1e-13


def mixed_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    extra: Any,
    num_extra: int,
    *,
    scheme: str = "masked",
) -> ExactBias:
    r"""Compute exactly what a sampled softmax with draws from two proposals does to the gradient.

    It is the mean of `samplesoft.losses.InBatchLoss` with an ``extra`` sampler: the other labels of
    a batch of B are B - 1 draws from `q`, and more are drawn from `extra`.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t.
    q, extra : array_like, shape (n,), or sampler
        The two proposals; a class may have probability 0 in one of them. Samplers must not look at
        contexts.
    num_sampled, num_extra : int
        Numbers of draws m from `q` and U from `extra`, at least 1.
    scheme : {"masked", "candidate_masked"}
        Whether the label's logit stays as it is, or is corrected as those of the draws are. Draws
        of the label have no weight.

    Returns
    -------
    ExactBias
        The bias and the loss bias. Its `error` is absolute: a bias below 1e-13 has no digits.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a class has probability 0 in both proposals.

    Notes
    -----
    Each draw of class j weighs ``e_j / (m q_j + U u_j)``, whichever group it comes from. The groups
    are independent, so ``E exp(-x S)`` is a product of powers of two Laplace transforms: section 13
    of ``samplesoft/bias/README.md``.

    Examples
    --------
    >>> from mixed_bias import mixed_bias
    >>> logits, counts = [0.0, 1.0, 2.0], [0.6, 0.3, 0.1]
    >>> found = mixed_bias(logits, 0, counts, 5, [1 / 3, 1 / 3, 1 / 3], 5)
    >>> found.bias.round(4)
    array([ 0.0161,  0.0428, -0.0589])
    """
    facts = SCHEMES[as_choice("scheme", scheme, select("masked", "candidate_masked"))]
    m, more = as_count("num_sampled", num_sampled), as_count("num_extra", num_extra)
    n = as_real_array("logits", to_host(logits), (1, 2)).shape[-1]
    laws = [_law(name, value, n, facts) for name, value in (("q", q), ("extra", extra))]
    both = (m * laws[0] + more * laws[1]) / (m + more)
    inputs = check_inputs(logits, labels, both, m + more, scheme)
    rows = [_row(o, t, laws, (m, more), facts) for o, t, _ in inputs.rows()]
    return ExactBias(*inputs.columns(rows))


def _law(name: str, value: Any, n: int, scheme: Scheme) -> FloatArray:
    """Return the probabilities (n,) of a proposal."""
    probs = probs_of(value, None, np.zeros(1, np.int64), n, scheme, name)
    law = np.atleast_2d(as_proposal(name, probs, n))
    if len(law) != 1:
        raise ValueError(f"`{name}` must be one proposal for all examples, got shape {law.shape}.")
    normalised: FloatArray = law[0] / law[0].sum()
    return normalised


def _row(
    logits: FloatArray, label: int, laws: list[FloatArray], numbers: tuple[int, int], scheme: Scheme
) -> ExampleBias:
    """Return the exact bias of one example, eqs. (B34) and (B35)."""
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    counts = [k * law for k, law in zip(numbers, laws, strict=True)]
    total = np.where(counts[0] + counts[1] > 0.0, counts[0] + counts[1], 1.0)  # 0: at the label
    log_w = log_probs - np.log(total)
    log_w[label] = -np.inf
    own_count = float(np.log(total[label])) if scheme.corrects_label else 0.0
    log_base = float(log_probs[label]) - own_count
    ends = -max(float(log_w.max()), log_base, 0.0) - _LEFT, -min(log_base, 0.0) + _RIGHT
    # whole numbers of steps: those of np.arange are off by the rounding of its first two numbers
    first, last = math.floor(ends[0] / _STEP), math.ceil(ends[1] / _STEP)
    nodes = np.arange(first, last + 1, dtype=np.float64) * _STEP
    means, log_sums = np.zeros((2, len(logits))), np.zeros(2)  # of all nodes, and every second one
    loss_size = 0.0
    chunk = max(_TERMS // len(logits), 2) // 2 * 2
    for start in range(0, len(nodes), chunk):
        x = nodes[start : start + chunk]
        falls = -_exp(x[:, None] + log_w)
        logs = [_log_mean(falls, law) for law in laws]
        log_all = numbers[0] * logs[0] + numbers[1] * logs[1] - _exp(x + log_base)
        terms = np.zeros_like(falls)
        for count, log_one in zip(counts, logs, strict=True):
            rest = (log_all - log_one + x)[:, None]  # without one of these draws
            terms += count / total * np.exp(log_probs + falls + rest)
        terms[:, label] = np.exp(log_all + log_base + x)
        means[0] += _STEP * terms.sum(axis=0)
        means[1] += 2.0 * _STEP * terms[::2].sum(axis=0)
        drops = np.expm1(-_exp(x)) - np.expm1(log_all)
        log_sums += _STEP * drops.sum(), 2.0 * _STEP * drops[::2].sum()
        # an exponential takes the rounding of its exponent too
        exponents = np.maximum(log_all, -LARGEST_EXPONENT)
        loss_size += _STEP * float((np.abs(drops) - np.exp(exponents) * exponents).sum())
    coarse = float(np.abs(means[0] - means[1]).sum())
    loss = float(log_sums[0]) + own_count
    unit = max(relative_term_error_of_logs(log_probs, np.log(total)), _ROUNDING)
    loss_error = abs(float(log_sums[0] - log_sums[1])) ** 1.5
    loss_error += unit * (1.0 + abs(own_count) + loss_size)
    return ExampleBias(means[0] - probs, probs, loss, coarse**1.5 + unit, loss_error)


def _exp(exponents: FloatArray) -> FloatArray:
    return np.exp(np.minimum(exponents, LARGEST_EXPONENT))


def _log_mean(exponents: FloatArray, law: FloatArray) -> FloatArray:
    """Return the logarithms of means of exp(exponents), (k, n) by a law (n,)."""
    small = np.expm1(exponents) @ law
    with np.errstate(divide="ignore"):
        far: FloatArray = logsumexp(exponents, axis=1, b=law)
    return np.where(small > -0.5, np.log1p(np.maximum(small, -0.5)), far)
