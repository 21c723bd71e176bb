"""Theorem 1 of Rawat et al. (2019) as printed, in leading order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_count, as_positive, require_plain
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.jacobian import check_jacobian, contract, times_power, with_room
from samplesoft.bias.negatives import Negatives, log_sum_exp, make_negatives

Scalar = Any  # a float for one example, an ndarray (B,) for a batch


class Theorem1Terms(NamedTuple):
    """What Theorem 1 needs of the logits and the proposal, before any parameter is named.

    The bounds do not change when a constant is added to the logits, but the quantities of
    eq. 12 do. They are given here for logits shifted so that the partition function Z is 1:
    ``e^{o_j}`` becomes the probability p_j, and Z_t is 1 - p_t. To return to the printed units
    multiply `second_moment` by Z^2, and `max_gap`, `deviation` and `negative_probs` by Z.
    Everywhere q is the proposal given "not the label". Scalars are (B,) for a batch.
    """

    second_moment: Scalar  # sum_j p_j^2 / q_j over the negatives, the first quantity of eq. 12
    max_gap: Scalar  # max_{j, j'} |p_j / q_j - p_j' / q_j'| over the negatives, the second
    deviation: FloatArray  # (n,) or (B, n): |Z_t - p_k / q_k|, the third; 0 at the label
    ub1: Scalar  # m UB_1 of eq. 11: the variance second_moment - Z_t^2, without the subtraction
    ub2: Scalar  # UB_2 of eq. 11: max_gap Z_t / (1 + second_moment)
    lb_sum: Scalar  # sum_k p_k |Z_t - p_k / q_k|, which eq. 10 multiplies by -M / m
    # (n,) or (B, n): p_j, 0 at the label; the weights of g, and g itself for the logits
    negative_probs: FloatArray

    def bounds(
        self, g: ArrayLike, grad_bound: Scalar, num_sampled: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the printed (LB, UB), each (P,) or (B, P), for a given `g`, of any P parameters.

        `g` is ``sum_j p_j d o_j`` over the negatives (`negative_probs` where the parameters are
        the logits), `grad_bound` is M, at least as large as every coordinate of every ``d o_i``.
        """
        m = as_count("num_sampled", num_sampled)
        require_plain("g", g)
        weights = np.asarray(g, dtype=np.float64)
        column = np.shape(self.ub1) + (1,)
        ub1, ub2, lb_sum = (np.reshape(x, column) / m for x in (self.ub1, self.ub2, self.lb_sum))
        bound = np.reshape(np.broadcast_to(grad_bound, np.shape(self.ub1)), column)
        unit = int(np.frexp(max(np.abs(weights).max(), bound.max()))[1])  # so that no term is inf
        weights, bound = np.ldexp(weights, -unit), np.ldexp(bound, -unit)
        with np.errstate(over="ignore", invalid="ignore"):
            # An overflowed UB_1 times g = 0 is still 0.
            signed = np.where(weights == 0.0, 0.0, ub1 * weights)
            upper = signed + 2.0 * bound * ub2
            lower = np.broadcast_to(0.0 - bound * lb_sum, upper.shape)
        return times_power(lower, unit), times_power(upper, unit)


@dataclass(frozen=True)
class Theorem1Bounds:
    """The printed bounds on the bias of a gradient, and what they are made of.

    Attributes
    ----------
    lower, upper : ndarray, shape (P,) or (B, P)
        LB of eq. 10 and UB of eq. 11 without their o(1/m) terms, in units of the gradient.
    g : ndarray, shape (P,) or (B, P)
        ``sum_j p_j d o_j`` over the negatives: the printed g divided by Z.
    grad_bound : float or ndarray (B,)
        M.
    sign_condition : bool or ndarray of bool (B,)
        Whether g >= 0 in every coordinate. UB multiplies g by an upper bound, which needs it.
    terms : Theorem1Terms
        The three quantities of eq. 12 and the scalar parts of both bounds.
    """

    lower: FloatArray
    upper: FloatArray
    g: FloatArray
    grad_bound: Scalar
    sign_condition: Any
    terms: Theorem1Terms

    @property
    def second_moment(self) -> Scalar:
        """``sum_j p_j^2 / q_j``, the first quantity of eq. 12 where Z = 1."""
        return self.terms.second_moment

    @property
    def max_gap(self) -> Scalar:
        """``max |p_j / q_j - p_j' / q_j'|``, the second quantity of eq. 12 where Z = 1."""
        return self.terms.max_gap

    @property
    def deviation(self) -> FloatArray:
        """``|Z_t - p_k / q_k|``, the third quantity of eq. 12 where Z = 1."""
        return self.terms.deviation


def theorem1_terms(
    logits: ArrayLike, labels: Any, q: Any, *, h: ArrayLike | None = None
) -> Theorem1Terms:
    """Return the parts of Theorem 1, eqs. 10 to 12, that depend on logits and proposal only.

    The arguments are those of `theorem1_bounds`: scalars for one example, arrays (B,) for a batch.
    """
    return theorem1_terms_of(check_inputs(logits, labels, q, 1, h=h))


def theorem1_terms_of(inputs: Inputs) -> Theorem1Terms:
    """Return `theorem1_terms` of arguments that are checked, at any number of draws."""
    return Theorem1Terms(*inputs.columns(_terms(make_negatives(*row)) for row in inputs.rows()))


def _terms(negatives: Negatives) -> Theorem1Terms:
    """Return the terms of one example."""
    log_zt, log_ratio = negatives.log_zt, negatives.log_ratio
    log_p, log_deviation = negatives.log_p, negatives.log_deviation
    # sum_j q_j r_j^2 = Z_t^2 (1 + chi2), because the mean of r under q is Z_t.
    log_second = 2.0 * log_zt + float(np.logaddexp(0.0, negatives.log_chi2))
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        low, high = log_ratio.min(), log_ratio.max()
        log_gap = log_zt + high + np.log(-np.expm1(low - high))
        log_ub2 = log_gap + log_zt - np.logaddexp(0.0, log_second)
        return Theorem1Terms(
            second_moment=float(np.exp(log_second)),
            max_gap=float(np.exp(log_gap)),
            deviation=negatives.fill(0.0, np.exp(log_zt + log_deviation)),
            ub1=float(np.exp(2.0 * log_zt + negatives.log_chi2)),
            ub2=float(np.exp(log_ub2)),
            lb_sum=float(np.exp(log_zt + log_sum_exp(log_p + log_deviation))),
            negative_probs=negatives.fill(0.0, np.exp(log_p)),
        )


def theorem1_bounds(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    jacobian: ArrayLike,
    grad_bound: float | None = None,
    *,
    h: ArrayLike | None = None,
) -> Theorem1Bounds:
    """Return the printed bounds of Theorem 1 on the bias of a gradient.

    The o(1/m) terms of eqs. 10 and 11 are dropped, as they must be to compute anything, so the
    bounds are of leading order. They are reported for comparison and are not guaranteed: the
    bias can lie outside them, also in the limit of many draws, where g has negative coordinates
    and sometimes where it has none. `theorem1_corrected` always holds, and `finite_sample_bounds`.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, h
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, positive on every negative, or an object with a method
        ``probs(h)``; it is conditioned on not being the label.
    num_sampled : int
        Number of draws m, at least 1.
    jacobian : array_like, shape (n, P) or (B, n, P)
        Derivatives of the logits in P parameters; (n, P) serves all examples. For very many
        parameters use `theorem1_terms` and its method `bounds`.
    grad_bound : float, optional
        M, a bound on every ``|jacobian|`` entry; by default the largest of each example.

    Returns
    -------
    Theorem1Bounds
        `lower`, `upper`, `g` (P,) or (B, P), `sign_condition`, and the quantities of eq. 12 as
        `second_moment`, `max_gap`, `deviation`, in units where Z = 1. A bound beyond the range of
        float64 is infinite.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, or `grad_bound` is smaller
        than an entry of `jacobian`.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 1, eqs. 9 to 12.

    Examples
    --------
    An example in which the theorem fails although g >= 0: m times the bias tends to 73.96.

    >>> import numpy as np
    >>> from samplesoft.bias.asymptotic import asymptotic_bias
    >>> logits, q, jacobian = [0.0, 0.0, 0.0], [0.0, 0.999, 0.001], np.array([[1.0], [1.0], [0.0]])
    >>> printed = theorem1_bounds(logits, 0, q, num_sampled=1000, jacobian=jacobian)
    >>> print(f"{1000 * printed.upper[0]:.2f}", printed.sign_condition)
    40.88 True
    >>> print(f"{(asymptotic_bias(logits, 0, q) @ jacobian)[0]:.2f}")
    73.96
    """
    m = as_count("num_sampled", num_sampled)
    terms = theorem1_terms(logits, labels, q, h=h)
    jac = check_jacobian(jacobian, terms.negative_probs.shape)
    bound = check_grad_bound(grad_bound, jac, np.shape(terms.ub1))
    small, excess = with_room(jac)
    g = times_power(contract(terms.negative_probs, small), excess)
    lower, upper = terms.bounds(g, bound, m)
    sign = np.all(g >= 0.0, axis=-1)
    return Theorem1Bounds(lower, upper, g, bound, bool(sign) if sign.ndim == 0 else sign, terms)


def check_grad_bound(
    grad_bound: float | None, jacobian: FloatArray, shape: tuple[int, ...]
) -> Scalar:
    """Return M as a float, or (B,): by default the largest entry of each example's `jacobian`.

    ValueError if `grad_bound` is not positive, or smaller than an entry.
    """
    largest = np.max(np.abs(jacobian), axis=(-2, -1))
    if grad_bound is None:
        return np.broadcast_to(largest, shape).copy()[()]
    bound = as_positive("grad_bound", grad_bound)
    if bound < largest.max():
        raise ValueError(
            f"`grad_bound` must be at least the largest |jacobian| entry {largest.max():.6g}, "
            f"got {bound:.6g}; leave it out to use that entry."
        )
    return bound
