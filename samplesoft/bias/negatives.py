"""One example's negatives in logs: how far the proposal is from the softmax among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS


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


class NegativeSums(NamedTuple):
    """What all negatives of an example have in common."""

    num: int  # of classes, n
    top: float  # the largest logit of a negative
    total: float  # of exp(o - top) over the negatives
    mass: float  # of q over what may be drawn: never 1 - q_t, which loses digits
    delta: float  # the label's logit less `top`
    q_masked: float  # of the label, where a draw of it is one more class; else 0
    reach: float  # the largest size of the logs of a negative

    @property
    def log_total(self) -> float:
        """The log of `total`."""
        return math.log(self.total)

    @property
    def log_zt(self) -> float:
        """The log of the sum of the negatives' probabilities."""
        return -float(np.logaddexp(0.0, self.delta - self.log_total))

    @property
    def log_a(self) -> float:
        """The log of the label's probability."""
        return -float(np.logaddexp(0.0, self.log_total - self.delta))

    @property
    def rounding(self) -> float:
        """A bound on the error of the logs in float64."""
        reach = self.reach + abs(self.delta - self.log_total)
        return EPS * (64.0 + 4.0 * math.log2(self.num) + 2.0 * reach)

    def columns(self, logits: FloatArray, q: FloatArray) -> FloatArray:
        """Return `log_p` to `log_deviation` of `Negatives`, (4, k), of some negatives."""
        with np.errstate(all="ignore"):
            gap = np.maximum(logits - self.top, -1e300)  # so that huge logits stay finite
            weight = np.exp(gap)
            log_qn = np.log(q) - math.log(self.mass)
            qn = q / self.mass
            ratio = weight / qn / self.total
            # The quotient keeps all digits of ratio - 1; the difference of logs has no range limit.
            direct = (gap > -600.0) & (qn > 1e-300) & np.isfinite(ratio)
            log_ratio = np.where(direct, np.log(ratio), gap - log_qn - self.log_total)
            deviation = np.maximum(log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
        return np.stack([gap - self.log_total + self.log_zt, log_qn, log_ratio, deviation])

    @property
    def masked_column(self) -> FloatArray:
        """The same of the draws of the label that have no weight, (4, 1), or (4, 0)."""
        if not self.q_masked:
            return np.empty((4, 0))
        log_q = math.log(self.q_masked) - math.log(self.mass)
        return np.array([[-np.inf], [log_q], [-np.inf], [0.0]])


def make_negatives(
    logits: FloatArray, label: int, q: FloatArray, masked: bool = False
) -> Negatives:
    """Return the negatives of one checked example: `logits` (n,), `q` (n,) positive on them.

    Draws of the label are `masked`, or there are none.
    """
    keep = np.ones(logits.shape, dtype=np.bool_)
    keep[label] = False
    kept_logits, kept_q = logits[keep], q[keep]
    top, q_masked = float(kept_logits.max()), float(q[label]) if masked else 0.0
    mass = float(kept_q.sum()) + q_masked
    with np.errstate(all="ignore"):
        gap = np.maximum(kept_logits - top, -1e300)
        delta = float(np.clip(logits[label] - top, -1e300, 1e300))
        total = float(np.exp(gap).sum())
        reach = float(np.max(math.log(mass) - np.log(kept_q) - gap))
    sums = NegativeSums(logits.size, top, total, mass, delta, q_masked, reach)
    of_classes = sums.columns(kept_logits, kept_q), sums.masked_column
    log_p, log_qn, log_ratio, log_deviation = np.concatenate(of_classes, axis=1)
    log_chi2 = log_sum_exp(log_qn + 2.0 * log_deviation)
    scalars = {name: getattr(sums, name) for name in ("log_a", "log_zt", "rounding")}
    columns = log_p, log_qn, log_ratio, log_deviation
    names = "log_p", "log_qn", "log_ratio", "log_deviation"
    return Negatives(keep, **scalars, **dict(zip(names, columns, strict=True)), log_chi2=log_chi2)


def log_sum_exp(x: FloatArray) -> float:
    """Return ``log(sum(exp(x)))``; ``-inf`` where every entry is."""
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum())) if math.isfinite(top) else top
