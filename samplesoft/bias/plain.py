"""The exact bias in plain NumPy: the equations of ``README.md`` beside this file, as they stand.

`samplesoft.exact_bias` computes the same with every digit, for millions of classes and at any range
of logits. What it has beyond this file is three centres in place of one (section 4), Chebyshev
panels (5), a grid and an error that fit the problem (6), and the jackknife by parts (7).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.inputs import check_inputs
from samplesoft.schemes import Scheme

# Of log v: the trapezoid rule errs by exp(-pi**2 / _STEP) where ratios are alike, see below (B24).
# A tenth of what that asks for, for ratios that are spread widely and for every scheme.
_STEP = 0.02


class PlainBias(NamedTuple):
    """The exact bias, of one example or of a batch.

    Attributes
    ----------
    bias : ndarray, shape (n,) or (B, n)
        E[p'] - p.
    loss_bias : float or ndarray, shape (B,)
        E[L'] - L, in nats.
    """

    bias: FloatArray
    loss_bias: Any


def plain_bias(
    logits: ArrayLike, labels: Any, q: Any, num_sampled: int, *, scheme: str = "negatives"
) -> PlainBias:
    """Compute the exact bias of sampled softmax, to be read rather than to be used.

    Parameters
    ----------
    logits, labels, q, num_sampled, scheme
        As for `samplesoft.exact_bias`; ratios exp(logits) / q within a factor of 1e10 or so.

    Returns
    -------
    PlainBias
        The bias with some 11 digits behind the point, the loss bias with an error of about 1e-15 m.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or q is 0 on a class that the scheme draws.

    References
    ----------
    ``samplesoft/bias/README.md``, equations (B1) to (B13), (B24) and (B26).

    Examples
    --------
    >>> from samplesoft.bias.plain import plain_bias
    >>> plain_bias([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5).bias.round(4)
    array([ 0.0035,  0.0323, -0.0359])
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme)
    rows = [_plain_bias(*row, inputs.num_sampled, inputs.scheme) for row in inputs.rows()]
    return PlainBias(*inputs.columns(rows))


def _plain_bias(
    logits: FloatArray, t: int, q: FloatArray, m: int, scheme: Scheme
) -> tuple[FloatArray, float]:
    e = np.exp(logits - logits.max())
    e /= e.sum()  # units in which Z = 1, and the softmax itself
    if scheme.jackknife:  # m b_m - (m - 1) b_(m - 1), (B13)
        once = replace(scheme, jackknife=False)
        whole, fewer = (_plain_bias(logits, t, q, k, once) for k in (m, m - 1))
        return m * whole[0] - (m - 1) * fewer[0], m * whole[1] - (m - 1) * fewer[1]
    if scheme.independent:
        return _included(e, t, q)
    q = q / q.sum()
    # what is drawn with a ratio, and the chance of a draw that adds nothing
    drawn, weightless = q, 0.0
    if not scheme.draws_label:
        drawn, weightless = np.where(np.arange(len(e)) == t, 0.0, q), float(q[t])
    if scheme.divides_by_kept and not drawn.any():  # p' is 1 at the label, and the loss 0
        return (np.arange(len(e)) == t) - e, float(np.log(e[t]))
    if scheme.excludes_label or scheme.divides_by_kept:
        drawn, weightless = drawn / drawn.sum(), 0.0  # given "not the label"
    r = np.divide(e, drawn, out=np.zeros_like(e), where=drawn > 0.0)  # the ratios, (B1)
    base = e[t] / (m * q[t]) if scheme.corrects_label else float(scheme.label_in_sum) * e[t]

    # T itself falls like the least ratio, or, where draws may have no weight, not at all
    least = 0.0 if weightless else r[drawn > 0.0].min()
    v = _nodes(r.max() + base, least if scheme.label_is_a_draw else base + least)
    decay = np.exp(-v * r)  # T psi, (B4)
    transform = decay @ drawn + weightless  # T, (B3)
    of_base = np.exp(-v[:, 0] * base)
    theta = of_base * transform  # (B3)
    # E over T, (B4): times `decay`, which is T psi, it is E psi without 0 / 0 where T underflows
    e_over_t = m * theta ** (m - 1) * of_base
    power, limit, none = theta**m, np.exp(-m * v[:, 0]), 0.0  # of (B7)
    if scheme.divides_by_kept:  # the mean over K, (B10)
        hit, kept = q[t], 1.0 - q[t]
        e_over_t = m * kept * of_base * (hit + kept * theta) ** (m - 1)
        power, none = (hit + kept * theta) ** m, hit**m
        limit = (hit + kept * np.exp(-v[:, 0])) ** m
    if scheme.label_is_a_draw:
        e_over_t = m * transform ** (m - 1)  # the base mass is in the ratios, (B12)
    weight = _STEP * v[:, 0] * e_over_t  # E / T dv, for dv = v dx
    # the integral is that of Frullani for log S, with exp(-m v) as the limit, (B7)
    loss = -_STEP * float(np.sum(power - limit)) + none * float(np.log(e[t]))
    if scheme.corrects_label:  # L' is measured from the corrected logit
        loss += float(np.log(m * q[t]))

    of_ref = decay[:, _median(r, np.where(drawn > 0.0, e, 0.0))]  # below (B6)
    flows = np.where(drawn > 0.0, e * (weight @ (decay - of_ref[:, None])), 0.0)  # f, (B6)
    if not scheme.label_in_sum:
        return flows - e * flows.sum(), loss  # (B9)
    if scheme.label_is_a_draw:
        joined = decay * np.exp(-v * r[t]) - of_ref[:, None]
        bias = e * (weight @ joined) - e * flows.sum()  # (B12)
        bias[t] -= bias.sum()
        return bias, loss
    if scheme.corrects_label:
        surplus = e[t] * float(weight @ of_ref) - base * float(weight @ transform)
        bias = flows - e * (flows.sum() - surplus)  # (B11)
        bias[t] = -(1.0 - e[t]) * surplus - e[t] * flows.sum()
        return bias, loss
    label_flow = base * float(weight @ (transform - of_ref))  # above (B8)
    bias = flows - e * (flows.sum() + label_flow)  # (B8)
    bias[t] = (1.0 - e[t]) * label_flow - e[t] * flows.sum()
    bias -= none * e  # K = 0: p' is 1 on the label, below (B10)
    bias[t] += none
    return bias, loss


def _included(e: FloatArray, t: int, q: FloatArray) -> tuple[FloatArray, float]:
    """Return the same where class j is in S with probability q_j, independently of the others."""
    pi = np.minimum(q, 1.0)
    pi[t] = 1.0  # the label is in for certain
    w = e / pi
    v = _nodes(max(float(w.max()), 1.0), e[t])
    decay = np.exp(-v * w)
    factors = 1.0 - pi + pi * decay  # of each class, (B26)
    # psi is 1 for what is in for certain, also where exp(-v w) has underflowed
    psi = np.divide(decay, factors, out=np.ones_like(decay), where=pi < 1.0)
    product = factors.prod(axis=1)  # E exp(-v S)
    of_ref = psi[:, _median((1.0 - pi) * w, e)]  # which orders psi for small v
    flows = e * (_STEP * v[:, 0] * product @ (psi - of_ref[:, None]))  # (B6)
    loss = -_STEP * float(np.sum(product - np.exp(-v[:, 0])))  # (B7)
    return flows - e * flows.sum(), loss  # (B9)


def _median(values: FloatArray, weights: FloatArray) -> int:
    """Return the number of a weighted median, for which nothing cancels in the sums of flows."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return int(order[np.searchsorted(below, 0.5 * below[-1])])


def _nodes(fastest: float, slowest: float) -> FloatArray:
    """Return v (K, 1), evenly spaced in log v; (B24) cuts the ends off more sharply."""
    # on the left exp(-34) of the loss is left out, and of flows its square; exp(-800) is 0
    start, stop = -np.log(max(fastest, 1.0)) - 34.0, np.log(800.0 / min(slowest, 1.0))
    return np.exp(np.arange(start, stop, _STEP))[:, None]
