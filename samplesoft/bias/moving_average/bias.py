"""The exact bias of a loss that divides by a moving average of its sums over sampled classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._moving_average import as_log_sums, as_moving_average
from samplesoft._validation import FloatArray
from samplesoft.bias.exact import ExactBias, exact_bias_of
from samplesoft.bias.inputs import Example, Inputs, check_inputs, require_digits
from samplesoft.bias.moving_average.long_run import BiasParts, long_run_bias
from samplesoft.bias.numerics.summation import EPS, LARGEST_FLOAT, softmax_and_other_mass
from samplesoft.bias.with_replacement.draws import make_draws
from samplesoft.schemes import Scheme

_SCHEMES = ("negatives", "masked")
_MIN_RATE = 1e-100  # smallest weight of the new draws; the square of a smaller one underflows


@dataclass(frozen=True)
class MovingAverageBias:
    """The exact bias of the gradient of a moving average, and its two parts.

    The mean gradient in the logits is ``(1 + relative_step)`` times the gradient of the full
    softmax, plus `turning_bias`.

    Attributes
    ----------
    bias : ndarray, shape (n,) or (B, n)
        The mean gradient in the logits minus the gradient of the full softmax. It sums to 0 over
        the classes.
    relative_step : float or ndarray, shape (B,)
        Relative change of the length of a step. A learning rate can make up for it, if it is the
        same for all examples.
    turning_bias : ndarray, shape (n,) or (B, n)
        The rest of the bias, which changes the direction of the step. It is 0 at the label, and
        sums to 0 over the classes.
    probs : ndarray, shape (n,) or (B, n)
        The full softmax p.
    error : float or ndarray, shape (B,)
        Estimated numerical error of `bias` in the L1 norm: quadrature and rounding.
    """

    bias: FloatArray
    relative_step: Any
    turning_bias: FloatArray
    probs: FloatArray
    error: Any


def moving_average_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    gamma: float | None = None,
    alpha: float | None = None,
    log_sums: Any = None,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> MovingAverageBias:
    r"""Compute the exact bias of a `samplesoft.losses.MovingAverageLoss`.

    Its state U moves to :math:`(1 - \gamma) U + \gamma S / e_t`, with S the sum of sampled softmax,
    e = exp(o), and t the label. The gradient in the logits is :math:`S / (e_t U)` times the
    gradient of sampled softmax, with the new U. Its mean is exact given the state before the visit,
    or in the long run, after many visits at the same logits.

    Parameters
    ----------
    logits, labels, q, num_sampled, h
        As for `samplesoft.exact_bias`.
    gamma : float, optional
        Weight of the new draws, in (0, 1]; by default 0.5, unless `alpha` is given.
    alpha : float, optional
        Step size of SCENT, in place of `gamma`: gamma is :math:`\alpha U / (1 + \alpha U)`.
    log_sums : float or array_like, shape (B,), optional
        State u = log U of each example before the visit, in nats; -inf for a new example. By
        default the bias is that of the long run.
    scheme : {"negatives", "masked"}
        As for `samplesoft.exact_bias`.

    Returns
    -------
    MovingAverageBias
        The bias, the part of it that changes only the length of a step, and the part that turns it.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, q is 0 on a class that the scheme draws, the integral has too
        many nodes, at a gamma below about 2e-5 in the long run, or the new draws have a weight
        below 1e-100.

    Notes
    -----
    **Given the state**, S is divided by :math:`\gamma (S + e_t U (1 - \gamma) / \gamma)`: the old
    state acts as an always-included class with this mass, and the bias is `exact_bias` with one
    more class. For SCENT the mass is :math:`e_t / \alpha`, whatever the state.

    **In the long run**, U is a sum over all visits of independent terms. Its Laplace transform is a
    product, and the bias is again one integral. The cost is that of `exact_bias`, times about
    0.1 / gamma for a gamma below 0.1. For SCENT, 1 / U is a linear recursion, and the mean
    gradient is the mean of :math:`e_j N_j / (m q_j) / (S + e_t / \alpha)`, divided by the mean of
    :math:`S / (S + e_t / \alpha)`.

    As gamma / m tends to 0, the bias tends to gamma / m times a limit: `turning_bias` to that of
    sampled softmax with m / gamma draws. ``docs/theory/moving-average.md`` has the proofs, and
    section 25 of ``samplesoft/bias/README.md`` the numerics.

    The logits are fixed in the long run. While they change in training, U lags behind. Pass the
    states as they are for the bias with this lag, most of which is in `relative_step`.

    Losses without the label in their sum, as published code has them, are the case of a label of
    very low probability: lower its logit by 30, and count `log_sums` and `alpha` from there.

    References
    ----------
    Z. Yuan et al., ICML 2022, arXiv 2202.12387: SogCLR, whose gradient is that for a constant
    gamma. X. Wei et al., arXiv 2602.02877, 2026: SCENT.

    Examples
    --------
    >>> from samplesoft.bias import moving_average_bias
    >>> logits, q = [0.0, 1.0, 2.0], [0.2, 0.4, 0.4]
    >>> for gamma in 1.0, 0.1:
    ...     result = moving_average_bias(logits, 0, q, 5, gamma=gamma)
    ...     print(result.bias.round(4), round(result.relative_step, 4))
    [ 0.0035  0.0323 -0.0359] -0.0039
    [ 0.0019  0.0025 -0.0044] -0.002

    A state that is twice the true sum halves the step, nearly:

    >>> import numpy as np
    >>> u = np.log(2.0 * np.exp(logits).sum())
    >>> result = moving_average_bias(logits, 0, q, 5, gamma=0.1, log_sums=u)
    >>> round(result.relative_step, 4), round(float(abs(result.turning_bias).sum()), 4)
    (-0.4747, 0.0017)
    """
    inputs = check_moving_average_inputs(logits, labels, q, num_sampled, scheme, h)
    gamma, alpha = as_moving_average(gamma, alpha)
    states = check_states(log_sums, inputs)
    rows = []
    for example, state in zip(centred_examples(inputs), states, strict=True):
        probs, parts = bias_of_example(example, state, inputs, gamma, alpha)
        bias = parts.turning_bias + parts.relative_step * softmax_gradient(example, probs)
        rows.append((bias, parts.relative_step, parts.turning_bias, probs, parts.error))
    return MovingAverageBias(*inputs.columns(rows))


def check_moving_average_inputs(
    logits: ArrayLike, labels: Any, q: Any, num_sampled: Any, scheme: str, h: ArrayLike | None
) -> Inputs:
    """Return the checked inputs of a function on moving averages."""
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h, require=_require_plain_scheme)
    require_digits(inputs)
    return inputs


def _require_plain_scheme(scheme: Scheme) -> None:
    if scheme.name not in _SCHEMES:
        raise ValueError(
            f"`scheme` must be one of {', '.join(_SCHEMES)} for a moving average, got "
            f"{scheme.name!r}; take samplesoft.exact_bias for a loss without a state."
        )


def check_states(log_sums: Any, inputs: Inputs) -> FloatArray:
    """Return the states (B,) of the examples, or NaN for all of them if `log_sums` is None."""
    num_examples = len(inputs.labels)
    if log_sums is None:
        return np.full(num_examples, np.nan)
    states = as_log_sums("log_sums", np.atleast_1d(log_sums))
    if len(states) != num_examples:
        raise ValueError(
            f"`log_sums` must have shape ({num_examples},), a number for each example, got "
            f"{np.shape(log_sums)}."
        )
    return states


def softmax_gradient(example: Example, probs: FloatArray) -> FloatArray:
    """Return the gradient (n,) of the full softmax loss in the logits, given `probs` (n,)."""
    gradient = probs.copy()
    gradient[example[1]] = -softmax_and_other_mass(example[0], example[1])[2]
    return gradient


def centred_examples(inputs: Inputs) -> Iterator[Example]:
    """Yield the examples with logits (n,) relative to the largest, which have smaller errors."""
    for logits, label, q in inputs.rows():
        with np.errstate(over="ignore"):
            yield np.maximum(logits - logits.max(), -LARGEST_FLOAT), label, q


def bias_of_example(
    example: Example, state: float, inputs: Inputs, gamma: float | None, alpha: float | None
) -> tuple[FloatArray, BiasParts]:
    """Return the softmax (n,) and the bias of one example in two parts.

    `state` is u before the visit, or NaN for the long run.
    """
    is_long_run = math.isnan(state)
    if np.isneginf(state) or gamma == 1.0:  # sampled softmax itself
        row = exact_bias_of_example(example, inputs)
        return row.probs, _in_parts(example, row.bias, 1.0, 0.0, row.error)
    if is_long_run and alpha is None:
        assert gamma is not None
        draws = make_draws(*example, inputs.num_sampled, inputs.scheme)
        if draws.other_mass == 0.0:
            return draws.probs, BiasParts(0.0, np.zeros_like(draws.probs), 0.0)
        return draws.probs, long_run_bias(draws, gamma)

    memory = with_memory(example, state, gamma, alpha)
    row = exact_bias_of_example(memory.example, memory.inputs(inputs))
    _, probs, others = softmax_and_other_mass(example[0], example[1])
    # the rounding of the mass of the old state changes every p'' by as much, relatively
    rounding = memory.rounding * float(np.abs(row.bias).sum())
    if is_long_run:
        # E[p'_j] = E[p''_j] / (1 - E[p''_0]), where p'' contains the old state as class 0
        factor = 1.0 / (memory.fraction_of_classes - row.bias[-1])
        lag = float(row.bias[-1]) * factor
        return probs, _in_parts(
            example, row.bias[:-1], factor, lag, factor * (row.error + rounding)
        )
    error = (row.error + rounding) / memory.gamma + memory.lag_error * others
    factor = 1.0 / memory.gamma
    return probs, _in_parts(example, row.bias[:-1], factor, memory.relative_lag, error)


def exact_bias_of_example(example: Example, inputs: Inputs) -> ExactBias:
    """Return the exact bias of sampled softmax for one example."""
    return exact_bias_of(inputs_of_example(example, inputs))


def inputs_of_example(example: Example, inputs: Inputs) -> Inputs:
    """Return `inputs` with one example in place of theirs."""
    logits, label, q = example
    return replace(inputs, logits=logits[None], labels=np.array([label]), q=q[None], is_batch=False)


def _in_parts(
    example: Example, bias: FloatArray, factor: float, relative_step: float, error: float
) -> BiasParts:
    """Return the parts of `factor` times `bias` (n,), plus `relative_step` times the softmax.

    The bias is that of p' of the classes other than the label; its entry at the label is not used.
    """
    logits, label, _ = example
    log_probs, probs, others = softmax_and_other_mass(logits, label)
    of_others = factor * bias
    of_others[label] = 0.0
    if others == 0.0:
        return BiasParts(0.0, np.zeros_like(bias), error)
    change = float(of_others.sum()) / others
    turning = of_others - probs * change
    turning[label] = 0.0
    # p has a relative error of about |log p| EPS
    sizes = probs * (8.0 - np.maximum(log_probs, -LARGEST_EXPONENT))
    rounding = EPS * float(sizes.sum()) * (abs(change) + 2.0 * abs(relative_step))
    rounding += 8.0 * EPS * float(np.abs(of_others).sum())
    return BiasParts(
        relative_step=relative_step + change, turning_bias=turning, error=2.0 * error + rounding
    )


class Memory(NamedTuple):
    """One example with one more class, always included, whose mass is the share of the old state.

    After a visit U is gamma (S + that mass) / e_t.
    """

    example: Example  # the classes, followed by the old state
    gamma: float  # of this visit; NaN in the long run of SCENT
    relative_lag: float  # E[U] at p' = p is 1 / (1 + relative_lag) times the full sum
    lag_error: float  # rounding error of `relative_lag`
    rounding: float  # relative rounding error of the mass of the old state
    fraction_of_classes: float  # full sum / (full sum + mass of the old state)

    def inputs(self, inputs: Inputs) -> Inputs:
        """Return the inputs of a bias function whose certain class is the old state."""
        return replace(inputs, certain=np.array([len(self.example[0]) - 1]))


def with_memory(example: Example, state: float, gamma: float | None, alpha: float | None) -> Memory:
    """Return an example with its old state as one more class.

    `state` is u before the visit; it is NaN in the long run of SCENT, whose mass does not depend on
    it.
    """
    logits, label, q = example
    # the log of the full sum over exp(o_t), from differences of logits, which are small numbers
    with np.errstate(over="ignore"):
        log_sum = float(np.logaddexp.reduce(logits - logits[label]))
    log_ratio = state - log_sum  # of the old U and the full sum
    if alpha is not None:
        # gamma = alpha U / (1 + alpha U), so that U (1 - gamma) / gamma is 1 / alpha
        log_mass = -math.log(alpha)  # over exp(o_t)
        log_gamma = -_softplus(-math.log(alpha) - state)
        log_stay = -_softplus(math.log(alpha) + state)
    else:
        assert gamma is not None
        log_gamma = math.log(gamma)
        log_stay = math.log1p(-gamma)
        log_mass = state + log_stay - log_gamma

    fraction = math.exp(-_softplus(log_mass - log_sum))
    weight = fraction if math.isnan(state) else math.exp(log_gamma)
    if not weight > _MIN_RATE:
        raise ValueError(
            "`gamma`, or `alpha` times exp(`log_sums`), is the weight of the new draws, which must "
            f"be above {_MIN_RATE:g}, got {weight:g}; smaller ones lose digits: take a larger one."
        )

    # The mean of U is (gamma + (1 - gamma) x) times the full sum, with x the ratio of the old U and
    # the full sum. 1 / (gamma + (1 - gamma) x) - 1 would cancel near x = 1: take
    # (1 - gamma) (1 - x) / (gamma + (1 - gamma) x).
    log_mean = log_gamma + _softplus(log_stay + log_ratio - log_gamma)
    if log_ratio < 1.0:
        lag = -math.exp(log_stay - log_mean) * math.expm1(log_ratio)
    else:
        lag = math.expm1(-log_mean)

    # rounding of the log of the ratio, and of the logit of the old state
    unit = EPS * (8.0 + abs(state) + abs(log_sum))
    slope = math.exp(min(log_stay + log_ratio - 2.0 * log_mean, LARGEST_EXPONENT))
    extra_logit = float(logits[label]) + log_mass
    return Memory(
        example=(np.append(logits, extra_logit), label, np.append(q, 0.0)),
        gamma=math.exp(log_gamma),
        relative_lag=lag,
        lag_error=2.0 * unit * (slope + abs(lag)),
        rounding=EPS * (8.0 + abs(extra_logit) + abs(log_mass)),
        fraction_of_classes=fraction,
    )


def _softplus(x: float) -> float:
    """Return log(1 + exp(x)), which is NaN where x is."""
    return math.nan if math.isnan(x) else float(np.logaddexp(0.0, x))
