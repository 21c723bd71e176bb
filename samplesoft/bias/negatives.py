"""The negatives of one example in logs: how far the proposal is from the softmax among them."""

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

    p is the softmax, qn the proposal given "not the label" and ``r_j = p_j / qn_j``. All values are
    logs, so that no product overflows or underflows. Where accidental hits are masked, qn is the
    proposal, and a hit counts as one more class, the last, with p = 0.
    """

    keep: NDArray[np.bool_]  # (n,) False at the label; the arrays below are (n - 1,), or one more
    log_a: float  # log of the label's probability
    log_zt: float  # log of Z_t, the sum of the negatives' probabilities
    log_p: FloatArray
    log_qn: FloatArray
    log_ratio: FloatArray  # log(r_j / Z_t); the mean of r_j / Z_t under qn is 1
    log_deviation: FloatArray  # log|r_j / Z_t - 1|; its sign is that of `log_ratio`
    # log of sum_j qn_j (r_j / Z_t - 1)^2 = Var(r) / Z_t^2, which is the log of 0 for the softmax
    log_chi2: float
    rounding: float  # bound on the float64 error of `log_ratio`, `log_p`, `log_a` and `log_zt`

    def fill(self, label_value: float, values: FloatArray) -> FloatArray:
        """Return (n,) with `label_value` at the label and the first n - 1 `values` elsewhere."""
        out = np.full(self.keep.shape, label_value)
        out[self.keep] = values[: len(out) - 1]
        return out


class NegativeSums(NamedTuple):
    """Sums over the negatives of an example, from which the logs of each negative follow."""

    num: int  # number n of classes
    top: float  # the largest logit of a negative
    total: float  # sum of exp(o - top) over the negatives
    mass: float  # sum of q over the classes of draws; 1 - q_t would lose digits
    delta: float  # the label's logit minus `top`
    q_masked: float  # q of the label, where accidental hits are masked; else 0
    reach: float  # largest magnitude of the logs of a negative

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
        """Return `log_p`, `log_qn`, `log_ratio` and `log_deviation`, (4, k), of k negatives."""
        with np.errstate(all="ignore"):
            gap = np.maximum(logits - self.top, -1e300)  # so that huge logits stay finite
            weight = np.exp(gap)
            log_qn = np.log(q) - math.log(self.mass)
            qn = q / self.mass
            ratio = weight / qn / self.total
            # log r as a difference of logs loses digits where r is near 1; as the log of a quotient
            # it overflows or underflows far out: take the quotient wherever it is in range
            direct = (gap > -600.0) & (qn > 1e-300) & np.isfinite(ratio)
            log_ratio = np.where(direct, np.log(ratio), gap - log_qn - self.log_total)
            deviation = np.maximum(log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
        return np.stack([gap - self.log_total + self.log_zt, log_qn, log_ratio, deviation])

    @property
    def masked_column(self) -> FloatArray:
        """Columns of the class of masked accidental hits, (4, 1); (4, 0) if there are none."""
        if not self.q_masked:
            return np.empty((4, 0))
        log_q = math.log(self.q_masked) - math.log(self.mass)
        return np.array([[-np.inf], [log_q], [-np.inf], [0.0]])


def make_negatives(
    logits: FloatArray, label: int, q: FloatArray, masked: bool = False
) -> Negatives:
    """Return the negatives of one checked example: `logits` (n,), `q` (n,) positive on them.

    `masked` says that accidental hits occur and are masked; if False, draws exclude the label.
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
    """Return ``log(sum(exp(x)))``, which is -inf if every entry is."""
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum())) if math.isfinite(top) else top
