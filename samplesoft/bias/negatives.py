"""One example's negatives in logs: how far the proposal is from the softmax among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Negatives:
    """The negatives of one example, in units where the partition function Z is 1.

    With p the softmax, qn the proposal given "not the label" and ``r_j = p_j / qn_j``, all
    that the bias depends on is held as logs, so that no product can overflow or vanish. Where draws
    may be the label and then have no weight, qn is the proposal, and such a draw is one more class,
    the last, with p = 0.
    """

    keep: NDArray[np.bool_]  # (n,) False at the label; the arrays below are (n - 1,), or one more
    log_a: float  # of the label's probability
    log_zt: float  # of the sum Z_t of the negatives' probabilities
    log_p: FloatArray
    log_qn: FloatArray
    log_ratio: FloatArray  # log(r_j / Z_t), whose mean ratio under qn is 1
    log_deviation: FloatArray  # log|r_j / Z_t - 1|; its sign is that of `log_ratio`
    log_chi2: float  # of sum_j qn_j (r_j / Z_t - 1)^2 = Var(r) / Z_t^2, 0 if qn is the softmax
    rounding: float  # bound on the float64 error of `log_ratio`, `log_p`, `log_a` and `log_zt`

    def fill(self, label_value: float, values: FloatArray) -> FloatArray:
        """Return (n,) with `label_value` at the label and the first n - 1 `values` elsewhere."""
        out = np.full(self.keep.shape, label_value)
        out[self.keep] = values[: len(out) - 1]
        return out


def make_negatives(
    logits: FloatArray, label: int, q: FloatArray, masked: bool = False
) -> Negatives:
    """Return the negatives of one checked example: `logits` (n,), `q` (n,) positive on them.

    Draws of the label are `masked`, or there are none.
    """
    keep = np.ones(logits.shape, dtype=np.bool_)
    keep[label] = False
    kept_logits, kept_q = logits[keep], q[keep]
    top = float(kept_logits.max())
    mass = float(kept_q.sum())  # never 1 - q_t, which loses digits when q_t is near 1
    if masked:
        mass += float(q[label])
    with np.errstate(all="ignore"):
        # The clips keep the difference of two huge finite logits finite.
        gap = np.maximum(kept_logits - top, -1e300)
        delta = float(np.clip(logits[label] - top, -1e300, 1e300))
        weight = np.exp(gap)
        total = float(weight.sum())
        log_total = math.log(total)
        log_qn = np.log(kept_q) - math.log(mass)
        qn = kept_q / mass
        ratio = weight / qn / total
        # The quotient keeps all digits of ratio - 1; the difference of logs has no range limit.
        direct = (gap > -600.0) & (qn > 1e-300) & np.isfinite(ratio)
        log_ratio = np.where(direct, np.log(ratio), gap - log_qn - log_total)
        log_deviation = np.maximum(log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
    reach = float(np.max(np.abs(gap) + np.abs(log_qn))) + abs(delta - log_total)
    log_p = gap - log_total
    if masked and q[label] > 0.0:
        log_p = np.append(log_p, -np.inf)
        log_qn = np.append(log_qn, math.log(q[label]) - math.log(mass))
        log_ratio, log_deviation = np.append(log_ratio, -np.inf), np.append(log_deviation, 0.0)
    delta -= log_total
    log_zt = -float(np.logaddexp(0.0, delta))
    n = logits.size
    return Negatives(
        keep=keep,
        log_a=-float(np.logaddexp(0.0, -delta)),
        log_zt=log_zt,
        log_p=log_p + log_zt,
        log_qn=log_qn,
        log_ratio=log_ratio,
        log_deviation=log_deviation,
        log_chi2=log_sum_exp(log_qn + 2.0 * log_deviation),
        rounding=EPS * (64.0 + 4.0 * math.log2(n) + 2.0 * reach),
    )


def log_sum_exp(x: FloatArray) -> float:
    """Return ``log(sum(exp(x)))``; ``-inf`` where every entry is."""
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum())) if math.isfinite(top) else top
