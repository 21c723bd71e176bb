"""Logs of the softmax, the proposal and their ratios for the negatives of one example.

The negatives are all classes except the label.
"""

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
    """Softmax, proposal and their ratio r for the negatives of one example, as logs.

    p is the softmax, so that the partition function Z is 1; qn is the proposal given "not the
    label", and ``r_j = p_j / qn_j``. All values are logs, so that no product overflows or
    underflows. The arrays have n - 1 entries, one for each negative.

    If accidental hits are masked, qn is the proposal itself. A hit then counts as an additional
    class with p = 0, which is the n-th entry of the arrays.
    """

    is_negative: NDArray[np.bool_]  # (n,) False at the label
    log_a: float  # log of the label's softmax probability
    log_zt: float  # log of Z_t, the sum of the negatives' softmax probabilities
    log_p: FloatArray
    log_qn: FloatArray
    log_ratio: FloatArray  # log(r_j / Z_t); the mean of r_j / Z_t under qn is 1
    log_deviation: FloatArray  # log|r_j / Z_t - 1|; `log_ratio` has the sign of r_j / Z_t - 1

    # log of sum_j qn_j (r_j / Z_t - 1)^2 = Var(r) / Z_t^2; -inf if qn is the softmax
    log_chi2: float

    # bound on the rounding errors of `log_ratio`, `log_p`, `log_a` and `log_zt`
    log_error_bound: float

    def fill_classes(self, label_value: float, values: FloatArray) -> FloatArray:
        """Return an array (n,) with `label_value` at the label, and `values` at the negatives.

        Only the first n - 1 of the `values` are used.
        """
        out = np.full(self.is_negative.shape, label_value)
        out[self.is_negative] = values[: len(out) - 1]
        return out


class NegativeSums(NamedTuple):
    """Sums over the negatives of an example, from which the logs of each negative are computed."""

    num_classes: int  # n, the label included
    max_logit: float  # the largest logit of a negative
    exp_sum: float  # sum of exp(o - max_logit) over the negatives, for logits o
    q_sum: float  # sum of q over the classes that are drawn; 1 - q_t would lose digits
    label_gap: float  # the label's logit minus `max_logit`
    q_masked: float  # q of the label if accidental hits are masked, otherwise 0
    max_log_magnitude: float  # largest magnitude of a log that is part of a log ratio

    @property
    def log_exp_sum(self) -> float:
        """Log of the sum of exp(o - max_logit) over the negatives."""
        return math.log(self.exp_sum)

    @property
    def log_zt(self) -> float:
        """Log of the sum of the negatives' softmax probabilities."""
        return -float(np.logaddexp(0.0, self.label_gap - self.log_exp_sum))

    @property
    def log_a(self) -> float:
        """Log of the label's softmax probability."""
        return -float(np.logaddexp(0.0, self.log_exp_sum - self.label_gap))

    @property
    def log_error_bound(self) -> float:
        """Bound on the absolute rounding error of the logs of this record and of `compute_logs`."""
        max_log_magnitude = self.max_log_magnitude + abs(self.label_gap - self.log_exp_sum)
        return EPS * (64.0 + 4.0 * math.log2(self.num_classes) + 2.0 * max_log_magnitude)

    def compute_logs(self, logits: FloatArray, q: FloatArray) -> FloatArray:
        """Return four logs (4, k) of k negatives with `logits` and `q` (k,).

        The rows are `log_p`, `log_qn`, `log_ratio` and `log_deviation` of `Negatives`.
        """
        with np.errstate(all="ignore"):
            gap = np.maximum(logits - self.max_logit, -1e300)  # finite even for huge logits
            exp_gap = np.exp(gap)
            log_qn = np.log(q) - math.log(self.q_sum)

            qn = q / self.q_sum
            ratio = exp_gap / qn / self.exp_sum

            # As a difference of logs, log r loses digits if r is near 1. As the log of a quotient,
            # it may overflow or underflow. So use the quotient wherever it is in range.
            is_in_range = (gap > -600.0) & (qn > 1e-300) & np.isfinite(ratio)
            log_ratio = np.where(is_in_range, np.log(ratio), gap - log_qn - self.log_exp_sum)

            deviation = np.maximum(log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))

        return np.stack([gap - self.log_exp_sum + self.log_zt, log_qn, log_ratio, deviation])

    @property
    def masked_hit_logs(self) -> FloatArray:
        """The four logs of masked accidental hits, as one class (4, 1); (4, 0) without such hits.

        The logs are those of `compute_logs`.
        """
        if not self.q_masked:
            return np.empty((4, 0))
        log_q = math.log(self.q_masked) - math.log(self.q_sum)
        return np.array([[-np.inf], [log_q], [-np.inf], [0.0]])


def make_negatives(
    logits: FloatArray, label: int, q: FloatArray, masked: bool = False
) -> Negatives:
    """Return the logs for the negatives of one checked example with `logits` and `q` (n,).

    q must be positive at the negatives. If `masked`, draws may be the label, and these accidental
    hits are masked; otherwise draws exclude the label.
    """
    is_negative = np.ones(logits.shape, dtype=np.bool_)
    is_negative[label] = False

    kept_logits = logits[is_negative]
    kept_q = q[is_negative]
    max_logit = float(kept_logits.max())
    q_masked = float(q[label]) if masked else 0.0
    q_sum = float(kept_q.sum()) + q_masked

    with np.errstate(all="ignore"):
        gap = np.maximum(kept_logits - max_logit, -1e300)
        label_gap = float(np.clip(logits[label] - max_logit, -1e300, 1e300))
        exp_sum = float(np.exp(gap).sum())
        max_log_magnitude = float(np.max(math.log(q_sum) - np.log(kept_q) - gap))

    sums = NegativeSums(
        logits.size, max_logit, exp_sum, q_sum, label_gap, q_masked, max_log_magnitude
    )
    columns = sums.compute_logs(kept_logits, kept_q), sums.masked_hit_logs
    log_p, log_qn, log_ratio, log_deviation = np.concatenate(columns, axis=1)

    return Negatives(
        is_negative=is_negative,
        log_a=sums.log_a,
        log_zt=sums.log_zt,
        log_p=log_p,
        log_qn=log_qn,
        log_ratio=log_ratio,
        log_deviation=log_deviation,
        log_chi2=log_sum_exp(log_qn + 2.0 * log_deviation),
        log_error_bound=sums.log_error_bound,
    )


def log_sum_exp(x: FloatArray) -> float:
    """Return ``log(sum(exp(x)))`` for `x` (k,); it is -inf if all entries are -inf."""
    largest = float(x.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(x - largest).sum()))
