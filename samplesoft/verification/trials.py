"""Compare the exact bias with Monte Carlo: z-scores, their limit, and which statistics are tested.

A mean over trials is close to normal unless most of its variance is due to a few rare trials. How
much a rare trial contributes follows from the distribution of S, whose inverse moments are
one-dimensional integrals. These predictions are accurate to about 10%, and only decide which
statistics are tested.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.exact import ExactBias
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.monte_carlo import simulate
from samplesoft.schemes import Scheme

ALPHA = 1e-4  # probability of one false alarm in a whole report, for normal statistics
# trials that are expected to draw from a bin: the skewness of a mean is then below 1/20
MIN_EXPECTED_HITS = 400
MAX_SKEWNESS = 1.0 / math.sqrt(MIN_EXPECTED_HITS)
_MIN_STDERR_RATIO = 0.1  # smallest ratio of observed to predicted standard error for a test
_ROUNDING = 1e-12  # relative rounding error of p' in a trial of many draws
_MAX_BINS = 128  # largest number of bins of classes, without the bin of the label
_ATOM_WIDTH = 0.1  # classes with log weights within this are merged in the distribution of S
_LOG_STEP = 0.3  # step of log u, with which the trapezoid rule is accurate to three digits


class ZScores(NamedTuple):
    """z-scores of the tested statistics, and the number of untested ones."""

    z: FloatArray  # Monte Carlo mean minus exact value, in standard errors
    num_untested: int  # statistics with too few effective draws to be close to normal

    @property
    def max_abs_z(self) -> float:
        """Largest ``|z|``; 0 if nothing was tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge_z_scores(parts: list[ZScores]) -> ZScores:
    """Concatenate the scores of several examples or blocks, and add up the untested counts."""
    return ZScores(np.concatenate([part.z for part in parts]), sum(p.num_untested for p in parts))


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the limit that any of `num_tests` normal ``|z|`` exceeds with probability `alpha`."""
    # two-sided, with Bonferroni's correction
    return -NormalDist().inv_cdf(alpha / (2.0 * max(num_tests, 1)))


def p_value(max_abs_z: float, num_tests: int) -> float:
    """Return the p-value of the largest ``|z|`` of `num_tests` statistics, Bonferroni-corrected."""
    return min(1.0, 2.0 * num_tests * NormalDist().cdf(-max_abs_z))


class Comparison(NamedTuple):
    """The exact bias b of one example, compared with Monte Carlo estimates e of b.

    The norms of b are estimated by ``sign(b_i) e_i`` for its largest coordinate i, and by
    ``sign(b) . e``. These are unbiased, because they are linear in e. Norms of e itself would be
    biased, because e is noisy.
    """

    logits: ZScores  # scores of sums of the gradient over bins of classes, and of both norms
    h: ZScores  # scores of the coordinates of the gradient in h; empty without vectors
    loss: ZScores  # score of the loss
    norms: FloatArray  # (2, 2): estimates of max |b_i| and of the L1 norm; their standard errors


def compare(
    inputs: Inputs,
    exact: ExactBias,
    example: int,
    jacobian: FloatArray | None,
    num_trials: int,
    key: np.uint64,
) -> Comparison:
    """Simulate one example of a batch, and compare its exact bias with the trials.

    `example` is the index in the batch, `jacobian` (n, d) holds the derivatives of the logits with
    respect to h, or is None, and `key` is the key of the random stream of the trials.
    """
    logits = inputs.logits[example]
    label = int(inputs.labels[example])
    q = inputs.q[example if len(inputs.q) > 1 else 0]
    m = inputs.num_sampled
    scheme = inputs.scheme
    p = exact.probs[example]
    bias = exact.bias[example]
    error = float(exact.error[example])
    draw_moments = predict_draw_moments(p, label, q, m, scheme)
    bins = bin_classes(label, draw_moments, num_trials)
    # directions whose products with the bias are its norms, see `Comparison`
    top = int(np.argmax(np.abs(bias)))
    norms = np.zeros((len(p), 2))
    norms[top, 0] = np.sign(bias[top])
    norms[:, 1] = np.sign(bias)
    directions = norms if jacobian is None else np.hstack([norms, jacobian])
    trials = simulate(logits, label, q, m, scheme, num_trials, key, bins, directions)

    p_bin, bias_bin, expected_bin = (
        np.bincount(bins, values).astype(np.float64) for values in (p, bias, p + bias)
    )
    # compare bins of classes, because single classes are drawn too rarely for a normal mean
    of_bins = _z_scores(
        num_trials,
        trials.bias - bias_bin,
        trials.stderr,
        error + _ROUNDING * p_bin,
        _predict_bin_moments(draw_moments, bins, expected_bin),
    )
    of_directions = (
        trials.projection_bias - bias @ directions,
        trials.projection_stderr,
        (error + _ROUNDING) * np.abs(directions).max(axis=0, initial=0.0),
        _predict_projection_moments(draw_moments, label, directions - (p + bias) @ directions),
    )
    of_norms, of_h = (
        _z_scores(num_trials, *(values[..., block] for values in of_directions))
        for block in (slice(2), slice(2, None))
    )
    of_loss = _z_scores(
        num_trials,
        np.array([trials.loss_bias - float(exact.loss_bias[example])]),
        np.array([trials.loss_stderr]),
        np.array([error + _ROUNDING * (1.0 + float(np.abs(logits).max()))]),
        _predict_loss_moments(draw_moments, label, q, p, m, scheme),
    )
    estimates = np.array([trials.projection_bias[:2], trials.projection_stderr[:2]])
    return Comparison(merge_z_scores([of_bins, of_norms]), of_h, of_loss, estimates)


def _z_scores(
    num_trials: int,
    difference: FloatArray,
    stderr: FloatArray,
    rounding: FloatArray,
    moments: FloatArray,
) -> ZScores:
    """Return the z-scores of those of P statistics that can be tested.

    All arrays are (P,): the differences of means from exact values, their standard errors, and
    bounds on their rounding. Differences within rounding have the score 0. `moments` (2, P) are
    approximate second and third central moments of the statistics in one trial.
    """
    beyond_rounding = np.sign(difference) * np.maximum(np.abs(difference) - rounding, 0.0)
    z = np.divide(
        beyond_rounding,
        stderr,
        out=np.where(beyond_rounding == 0.0, 0.0, np.inf),
        where=stderr > 0.0,
    )
    z[beyond_rounding == 0.0] = 0.0
    second, third = moments
    skewness = np.divide(third, second**1.5, out=np.zeros_like(second), where=second > 0.0)
    testable = skewness / math.sqrt(num_trials) <= MAX_SKEWNESS
    # a standard error far below its prediction means that no rare trial occurred
    testable &= (beyond_rounding == 0.0) | (
        stderr >= _MIN_STDERR_RATIO * np.sqrt(second / num_trials)
    )
    return ZScores(z[testable], int((~testable).sum()))


class DrawMoments(NamedTuple):
    """Predicted moments of the draws in a trial of one example, and of their effect on p'.

    p' is the softmax over the label and the draws, in which a draw has its weight divided by S.
    """

    count_variances: FloatArray  # (n,): variance of the number of draws of each class
    hit_probs: FloatArray  # (n,): probability that a trial draws the class
    mean_fractions: FloatArray  # (n,): mean of the weight of one draw of the class, divided by S
    added_moments: FloatArray  # (2, n): second and third moments that draws of a class add to p'
    common_moments: FloatArray  # (2,): variance and third absolute moment of (1/S) / E[1/S]
    base_fraction: float  # mean of the term that the label always has in S, divided by S


def predict_draw_moments(
    p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> DrawMoments:
    """Return `DrawMoments` for one example with softmax `p` (n,) and proposal `q` (n,).

    Draws are independent, and ``S**-k = int u**(k - 1) exp(-u S) du / (k - 1)!``. So the mean of
    ``S**-k`` is an integral over a power of the Laplace transform of the weight of one draw.
    """
    # draw probabilities, 0 for the label if it is excluded or masked
    drawn = q.copy()
    if not scheme.draws_label:
        drawn[label] = 0.0
    if scheme.excludes_label and not scheme.independent and drawn.any():
        drawn /= drawn.sum()
    drawn = np.minimum(drawn, 1.0)
    # with independent inclusion each class is drawn at most once; otherwise there are m draws
    num = 1 if scheme.independent else m
    weights = np.divide(p, num * drawn, out=np.zeros_like(p), where=drawn > 0.0)
    base = float(p[label]) if scheme.label_in_sum else 0.0
    if scheme.corrects_label:
        base /= m * float(q[label])
    # 1 - (1 - q)^m loses the digits of a small q: take -expm1(m log1p(-q))
    with np.errstate(divide="ignore"):
        hits = -np.expm1(num * np.log1p(-drawn))
    # variance of the binomial number of draws of each class
    rates = num * drawn * (1.0 - drawn)

    used = np.flatnonzero((weights > 0.0) & np.isfinite(weights))
    # of one draw's weight divided by S: mean, root mean square, and cube root of the mean cube
    fractions = np.zeros((3, len(p)))
    if not len(used):
        return DrawMoments(rates, hits, fractions[0], fractions[1:], np.zeros(2), 1.0)
    # the cost of the integrals below is proportional to the number of different weights: merge
    # classes of nearly equal weight into a few hundred atoms
    keys = np.rint(np.log(weights[used]) / _ATOM_WIDTH)[:, None]
    if scheme.independent:  # the classes of an atom must also agree in q and 1 - q
        inside = drawn[used, None]
        keys = np.hstack(
            [keys, np.rint(np.log([inside, 1.0 - inside + 1e-18])[:, :, 0].T / _ATOM_WIDTH)]
        )
    _, first, atom_of, count = np.unique(
        keys, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    atom_of = atom_of.ravel()
    mass = np.bincount(atom_of, drawn[used]) / count
    atoms = np.exp(np.clip(keys[first, 0] * _ATOM_WIDTH, -LARGEST_EXPONENT, LARGEST_EXPONENT))
    # the integrand is concentrated where u S is about 1, for the likely range of S
    least = max(base + (0.0 if scheme.label_in_sum else atoms.min()), 1e-300)
    log_u = np.arange(
        -7.0 - math.log(base + float(num * mass @ (count * atoms)) + atoms.max()),
        5.0 - math.log(least),
        _LOG_STEP,
    )
    u = np.exp(np.minimum(log_u, LARGEST_EXPONENT))
    log_one = _log_laplace_transform(u, atoms, mass, count, scheme)
    inverse = _inverse_moments(u, log_one * (num if num > 1 else 1), np.array([base]))[:, 0]
    # given that one draw is of the class, the other draws are random
    log_others = log_one * (num - 1) if not scheme.independent else log_one
    moments = _inverse_moments(u, log_others, base + atoms)
    orders = np.array([[1.0], [2.0], [3.0]])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        parts = np.minimum(atoms * moments ** (1.0 / orders), 1.0)
        # moments of (1/S) / E[1/S]; the third is bounded by its terms, which may cancel
        second = inverse[1] / inverse[0] ** 2
        third = inverse[2] / inverse[0] ** 3
        variance = max(second - 1.0, 0.0)
        cube = abs(third - 3.0 * second + 2.0) + variance**1.5
    if not math.isfinite(cube):  # without a label's term, 1/S may have no moments
        variance = 1.0
        cube = 1e6
    fractions[:, used] = parts[:, atom_of]
    added = rates * np.stack([fractions[1] ** 2, fractions[2] ** 3])
    common = np.array([variance, cube])
    return DrawMoments(rates, hits, fractions[0], added, common, min(base * float(inverse[0]), 1.0))


def _log_laplace_transform(
    u: FloatArray, atoms: FloatArray, mass: FloatArray, count: IntArray, scheme: Scheme
) -> FloatArray:
    """Return the log of the Laplace transform at `u`: of one draw, or of all draws if independent.

    `atoms` are the distinct weights, `mass` their probabilities per class, and `count` their
    numbers of classes.
    """
    # 1 - exp(-u r) loses the digits of a small u r: take -expm1(-u r); exp(-745) underflows to 0
    drops = -np.expm1(-np.minimum(np.outer(u, atoms), 745.0))
    mean_drops = mass * drops if scheme.independent else drops @ (mass * count)
    logs: FloatArray = np.log1p(-np.minimum(mean_drops, 1.0 - 1e-16))
    return logs @ count if scheme.independent else logs


def _inverse_moments(u: FloatArray, log_transform: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the means of ``(shift + S)**-k`` for k = 1, 2, 3 and each shift, (3, len(shift)).

    `log_transform` is the log of the Laplace transform of S at the nodes `u`.
    """
    # u**(k - 1) du = u**k d(log u)
    log_u = np.log(u)[:, None]
    log_decay = log_transform[:, None] - np.minimum(np.outer(u, shift), 1e4)
    with np.errstate(over="ignore", under="ignore"):
        sums = [np.exp(k * log_u + log_decay).sum(axis=0) for k in (1, 2, 3)]
    return _LOG_STEP * np.stack([sums[0], sums[1], sums[2] / 2.0])


def bin_classes(label: int, draw_moments: DrawMoments, num_trials: int) -> IntArray:
    """Group classes of similar weight into bins; return the bin of each class, (n,) int64.

    At least `MIN_EXPECTED_HITS` trials are expected to draw from a bin, if all trials together
    suffice for that. Bin 0 contains only the label.
    """
    expected = num_trials * draw_moments.hit_probs
    expected[label] = 0.0
    # sort by weight, because one heavy, rare class would dominate the variance of a mixed bin
    order = np.argsort(-draw_moments.mean_fractions, kind="stable")
    order = order[order != label]
    # a bin ends when it has enough expected trials; the remaining classes join the last bin
    filled = np.cumsum(expected[order])
    size = max(MIN_EXPECTED_HITS, filled[-1] / _MAX_BINS)
    starts = [0]
    reached = 0.0
    while filled[-1] - reached >= 2.0 * size:  # enough for this bin and another
        start = int(np.searchsorted(filled, reached + size)) + 1
        reached = float(filled[start - 1])
        if filled[-1] - reached < size:
            break
        starts.append(start)
    sizes = np.diff([*starts, len(order)])
    bins = np.zeros(len(expected), dtype=np.int64)
    bins[order] = np.repeat(np.arange(1, len(starts) + 1), sizes)
    return bins


def _predict_projection_moments(
    draw_moments: DrawMoments, label: int, centered: FloatArray
) -> FloatArray:
    """Predict the second and third absolute central moments (2, P) of ``p' @ directions``.

    `centered` (n, P) are the directions minus their means under the expected p'.
    """
    # second and third central moments of independent draws add up
    size = np.abs(centered)
    of_label = draw_moments.base_fraction * size[label]
    square = size * size
    added = [
        draw_moments.added_moments[0] @ square,
        draw_moments.added_moments[1] @ (square * size),
    ]
    return np.stack(added) + _common_factor_moments(draw_moments, of_label)


def _predict_bin_moments(
    draw_moments: DrawMoments, bins: IntArray, expected: FloatArray
) -> FloatArray:
    """Predict the second and third moments (2, k) of the sum of p' in each of k bins.

    `expected` (k,) is the mean of this sum.
    """
    added = [np.bincount(bins, moment) for moment in draw_moments.added_moments]
    return np.stack(added) + _common_factor_moments(draw_moments, np.abs(expected))


def _common_factor_moments(draw_moments: DrawMoments, magnitudes: FloatArray) -> FloatArray:
    """Return the moments (2, k) that the common factor 1/S adds to values with `magnitudes`."""
    return draw_moments.common_moments[:, None] * np.stack([magnitudes**2, magnitudes**3])


def _predict_loss_moments(
    draw_moments: DrawMoments, label: int, q: FloatArray, p: FloatArray, m: int, scheme: Scheme
) -> FloatArray:
    """Predict the second and third moments of the loss in a trial, (2, 1)."""
    total = draw_moments.count_variances.sum()
    # if the number of draws is fixed, their mean contribution has no variance
    fixed_number = not scheme.independent and total > 0.0
    mean = (
        draw_moments.count_variances @ draw_moments.mean_fractions / total if fixed_number else 0.0
    )
    effects = np.abs(draw_moments.mean_fractions - mean)
    second = draw_moments.count_variances @ effects**2
    third = draw_moments.count_variances @ effects**3
    if scheme.has_random_count:
        # probability of a trial without negatives, in which S is the label's term and the loss is 0
        none = float(q[label]) ** m
        if scheme.independent:
            none = float(np.prod(1.0 - np.minimum(np.delete(q, label), 1.0)))
        size = -math.log(max(float(p[label]), 1e-300))
        second = second + none * size**2
        third = third + none * size**3
    return np.array([[second], [third]])
