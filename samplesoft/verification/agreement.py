"""Monte Carlo against the exact bias: z-scores, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.monte_carlo import simulate
from samplesoft.schemes import Scheme
from samplesoft.verification.tails import (
    MAX_SKEWNESS,
    Predicted,
    bin_classes,
    predict_bins,
    predict_loss,
    predict_projections,
    predict_tails,
)

ALPHA = 1e-4  # chance of one false alarm in a whole report, for normal statistics
_LEAST_STDERR = 0.1  # of the predicted standard error
_ROUNDING = 1e-12  # relative rounding error of p' in a trial of many draws


@dataclass(frozen=True)
class Scores:
    """z-scores of the statistics that were tested, and the number of those that were not."""

    z: FloatArray  # Monte Carlo mean minus exact value, in standard errors
    num_untested: int  # with too few effective draws to be close to normal

    @property
    def max_abs_z(self) -> float:
        """Largest |z|; 0 if nothing was tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge(parts: list[Scores]) -> Scores:
    """Join the statistics of several examples."""
    return Scores(np.concatenate([part.z for part in parts]), sum(p.num_untested for p in parts))


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the |z| that one of `num_tests` normal statistics exceeds with chance `alpha`."""
    return -NormalDist().inv_cdf(alpha / (2.0 * max(num_tests, 1)))


def p_value(max_abs_z: float, num_tests: int) -> float:
    """Return the p-value of the largest |z| of `num_tests` statistics, by Bonferroni."""
    return min(1.0, 2.0 * num_tests * NormalDist().cdf(-max_abs_z))


@dataclass(frozen=True)
class Comparison:
    """Monte Carlo of one example compared with its exact bias b.

    The norms are ``sign(b_i) b_i`` for the largest coordinate i of b, and ``sign(b) . b``. As both
    are linear in b, their estimates are unbiased, which the norm of a noisy estimate is not.
    """

    logits: Scores  # of bins of classes, and of the norms
    h: Scores  # of its coordinates
    loss: Scores
    max_bias: tuple[float, float]  # estimate and standard error
    l1_bias: tuple[float, float]


def compare(
    logits: FloatArray,
    label: int,
    q: FloatArray,
    m: int,
    scheme: Scheme,
    p: FloatArray,
    exact: tuple[FloatArray, float, float],
    jacobian: FloatArray | None,
    num_trials: int,
    key: np.uint64,
) -> Comparison:
    """Simulate one example, with softmax p (n,), and compare it with its exact bias.

    `exact` holds the bias (n,), the loss bias, and the numerical error of the former in L1;
    `jacobian` (n, d) the derivatives of the logits in h; the others are those of `simulate`.
    """
    bias, loss_bias, error = exact
    tails = predict_tails(p, label, q, m, scheme)
    expected = p + bias
    bins = bin_classes(label, tails, num_trials)
    top = int(np.argmax(np.abs(bias)))
    norms = np.zeros((len(p), 2))
    norms[top, 0] = np.sign(bias[top])
    norms[:, 1] = np.sign(bias)
    directions = norms if jacobian is None else np.hstack([norms, jacobian])
    got = simulate(logits, label, q, m, scheme, num_trials, key, bins, directions)

    p_bin = _sum_bins(bins, p)
    binned = _z_scores(
        got.bias,
        _sum_bins(bins, bias),
        got.stderr,
        error + _ROUNDING * p_bin,
        predict_bins(tails, bins, _sum_bins(bins, expected), num_trials),
    )
    sizes = np.abs(directions).max(axis=0, initial=0.0)
    exactly = bias @ directions
    rounding = (error + _ROUNDING) * sizes
    predicted = predict_projections(tails, label, directions - expected @ directions, num_trials)
    mean, stderr = got.projection_bias, got.projection_stderr
    norm_scores, h_scores = (
        _z_scores(mean[part], exactly[part], stderr[part], rounding[part], predicted[part])
        for part in (slice(2), slice(2, None))
    )
    loss = _z_scores(
        np.array([got.loss_bias]),
        np.array([loss_bias]),
        np.array([got.loss_stderr]),
        np.array([error + _ROUNDING * (1.0 + float(np.abs(logits).max()))]),
        predict_loss(tails, label, q, p, m, scheme, num_trials),
    )
    return Comparison(
        merge([binned, norm_scores]),
        h_scores,
        loss,
        (float(mean[0]), float(stderr[0])),
        (float(mean[1]), float(stderr[1])),
    )


def _z_scores(
    estimate: FloatArray,
    exact: FloatArray,
    stderr: FloatArray,
    rounding: FloatArray,
    predicted: Predicted,
) -> Scores:
    """Return z-scores, 0 where a difference is within rounding."""
    difference = estimate - exact
    apart = np.sign(difference) * np.maximum(np.abs(difference) - rounding, 0.0)
    z = np.divide(apart, stderr, out=np.where(apart == 0.0, 0.0, np.inf), where=stderr > 0.0)
    z[apart == 0.0] = 0.0
    normal = predicted.skewness <= MAX_SKEWNESS
    # a standard error far below the predicted one: the rare trials that cause it are missing
    normal &= (apart == 0.0) | (stderr >= _LEAST_STDERR * predicted.stderr)
    return Scores(z[normal], int((~normal).sum()))


def _sum_bins(bins: IntArray, values: FloatArray) -> FloatArray:
    return np.bincount(bins, values).astype(np.float64)
