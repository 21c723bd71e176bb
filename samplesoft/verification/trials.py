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

# probability of one false alarm in a whole report, for normal statistics
ALPHA = 1e-4
# trials that are expected to draw from a bin: the skewness of a mean is then below 1/20
MIN_EXPECTED_HITS = 400
MAX_SKEWNESS = 1.0 / math.sqrt(MIN_EXPECTED_HITS)
# smallest observed over predicted standard error for a test
_MIN_STDERR_RATIO = 0.1
# relative rounding error of p' in a trial of many draws
_ROUNDING = 1e-12
# largest number of bins of classes, without the bin of the label
_MAX_BINS = 128
_ATOM_WIDTH = 0.1  # classes whose log weights differ by less are merged
# step of log u: the trapezoid rule is accurate to three digits
_LOG_STEP = 0.3


class ZScores(NamedTuple):
    """z-scores of the tested statistics, and the number of untested ones."""

    z: FloatArray  # Monte Carlo mean minus exact value, in standard errors
    num_untested: int  # statistics with too few effective draws to be close to normal

    @property
    def max_abs_z(self) -> float:
        """Largest ``|z|``; 0 if nothing was tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge_z_scores(scores: list[ZScores]) -> ZScores:
    """Concatenate the scores of several examples or blocks, and add up the untested counts."""
    return ZScores(
        np.concatenate([score.z for score in scores]), sum(score.num_untested for score in scores)
    )


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the limit for the largest of `num_tests` normal ``|z|``.

    The largest ``|z|`` exceeds the limit with probability `alpha`.
    """
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

    logits: ZScores  # scores of sums of the gradient over bins, and of both norms
    h: ZScores  # scores of the coordinates of the gradient in h; empty without vectors
    loss: ZScores  # score of the loss
    norms: FloatArray  # (2, 2): estimates of max |b_i| and L1 norm; standard errors


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
    largest = int(np.argmax(np.abs(bias)))
    norms = np.zeros((len(p), 2))
    norms[largest, 0] = np.sign(bias[largest])
    norms[:, 1] = np.sign(bias)
    directions = norms if jacobian is None else np.hstack([norms, jacobian])

    trials = simulate(logits, label, q, m, scheme, num_trials, key, bins, directions)

    p_bin, bias_bin, expected_bin = (
        np.bincount(bins, values).astype(np.float64) for values in (p, bias, p + bias)
    )

    # compare bins of classes, because single classes are drawn too rarely for a normal mean
    bin_scores = _z_scores(
        num_trials,
        trials.bias - bias_bin,
        trials.stderr,
        error + _ROUNDING * p_bin,
        _predict_bin_moments(draw_moments, bins, expected_bin),
    )

    direction_statistics = (
        trials.projection_bias - bias @ directions,
        trials.projection_stderr,
        (error + _ROUNDING) * np.abs(directions).max(axis=0, initial=0.0),
        _predict_projection_moments(draw_moments, label, directions - (p + bias) @ directions),
    )

    norm_scores, h_scores = (
        _z_scores(num_trials, *(values[..., block] for values in direction_statistics))
        for block in (slice(2), slice(2, None))
    )

    loss_score = _z_scores(
        num_trials,
        np.array([trials.loss_bias - float(exact.loss_bias[example])]),
        np.array([trials.loss_stderr]),
        np.array([error + _ROUNDING * (1.0 + float(np.abs(logits).max()))]),
        _predict_loss_moments(draw_moments, label, q, p, m, scheme),
    )
    estimates = np.array([trials.projection_bias[:2], trials.projection_stderr[:2]])

    return Comparison(merge_z_scores([bin_scores, norm_scores]), h_scores, loss_score, estimates)


def _z_scores(
    num_trials: int,
    difference: FloatArray,
    stderr: FloatArray,
    rounding: FloatArray,
    moments: FloatArray,
) -> ZScores:
    """Return the z-scores of P statistics, without the statistics that cannot be tested.

    All arrays are (P,): the differences of means from exact values, their standard errors, and
    bounds on their rounding errors. Differences within rounding have the score 0. `moments` (2, P)
    are approximate second and third central moments of the statistics in one trial.
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

    # if the standard error is far below its prediction, no rare trial occurred: do not test
    testable &= (beyond_rounding == 0.0) | (
        stderr >= _MIN_STDERR_RATIO * np.sqrt(second / num_trials)
    )

    return ZScores(z[testable], int((~testable).sum()))


class DrawMoments(NamedTuple):
    """Predicted moments of the draws in a trial of one example, and of their effect on p'.

    p' is the softmax over the label and the draws: their weights, divided by the sum S.
    """

    count_variances: FloatArray  # (n,): variance of the number of draws of each class
    hit_probs: FloatArray  # (n,): probability that a trial draws the class
    mean_fractions: FloatArray  # (n,): mean of the weight of one draw, divided by S
    added_moments: FloatArray  # (2, n): second and third moments added by draws of a class
    common_moments: FloatArray  # (2,): variance and third absolute moment of (1/S) / E[1/S]
    base_fraction: float  # mean of the label's fixed term in S, divided by S


def predict_draw_moments(
    p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> DrawMoments:
    """Return `DrawMoments` for one example with softmax `p` (n,) and proposal `q` (n,).

    Draws are independent, and ``S**-k = int u**(k - 1) exp(-u S) du / (k - 1)!``. So the mean of
    ``S**-k`` is an integral over a power of the Laplace transform of the weight of one draw.
    """
    # the label has draw probability 0 if it is excluded or masked
    draw_probs = q.copy()
    if not scheme.draws_label:
        draw_probs[label] = 0.0
    if scheme.excludes_label and not scheme.independent and draw_probs.any():
        draw_probs /= draw_probs.sum()
    draw_probs = np.minimum(draw_probs, 1.0)

    # with independent inclusion each class is drawn at most once; otherwise there are m draws
    num_draws = 1 if scheme.independent else m
    weights = np.divide(p, num_draws * draw_probs, out=np.zeros_like(p), where=draw_probs > 0.0)

    base_mass = float(p[label]) if scheme.label_in_sum else 0.0
    if scheme.corrects_label:
        base_mass /= m * float(q[label])

    # 1 - (1 - q)^m loses the digits of a small q: use -expm1(m log1p(-q))
    with np.errstate(divide="ignore"):
        hit_probs = -np.expm1(num_draws * np.log1p(-draw_probs))

    # variance of the binomial number of draws of each class
    count_variances = num_draws * draw_probs * (1.0 - draw_probs)
    used_ids = np.flatnonzero((weights > 0.0) & np.isfinite(weights))

    # rows: mean, root mean square, and cube root of the mean cube of one draw's weight over S
    fractions = np.zeros((3, len(p)))
    if not len(used_ids):
        return DrawMoments(
            count_variances, hit_probs, fractions[0], fractions[1:], np.zeros(2), 1.0
        )

    # merge classes of nearly equal weight into a few hundred atoms, because the cost of the
    # integrals below is proportional to the number of different weights
    keys = np.rint(np.log(weights[used_ids]) / _ATOM_WIDTH)[:, None]

    # with independent inclusion, the classes of an atom must also agree in q and 1 - q
    if scheme.independent:
        inclusion = draw_probs[used_ids, None]
        keys = np.hstack(
            [keys, np.rint(np.log([inclusion, 1.0 - inclusion + 1e-18])[:, :, 0].T / _ATOM_WIDTH)]
        )

    _, first_ids, atom_ids, class_counts = np.unique(
        keys, axis=0, return_index=True, return_inverse=True, return_counts=True
    )

    atom_ids = atom_ids.ravel()
    mass = np.bincount(atom_ids, draw_probs[used_ids]) / class_counts
    atoms = np.exp(np.clip(keys[first_ids, 0] * _ATOM_WIDTH, -LARGEST_EXPONENT, LARGEST_EXPONENT))

    # the integrand is concentrated where u S is about 1, for the likely range of S
    min_sum = max(base_mass + (0.0 if scheme.label_in_sum else atoms.min()), 1e-300)
    log_u = np.arange(
        -7.0 - math.log(base_mass + float(num_draws * mass @ (class_counts * atoms)) + atoms.max()),
        5.0 - math.log(min_sum),
        _LOG_STEP,
    )

    u = np.exp(np.minimum(log_u, LARGEST_EXPONENT))
    log_one = _log_laplace_transform(u, atoms, mass, class_counts, scheme)
    inverse_moments = _inverse_moments(
        u, log_one * (num_draws if num_draws > 1 else 1), np.array([base_mass])
    )[:, 0]

    # given that one draw is of the class, the other draws are random
    log_others = log_one * (num_draws - 1) if not scheme.independent else log_one
    moments = _inverse_moments(u, log_others, base_mass + atoms)
    orders = np.array([[1.0], [2.0], [3.0]])

    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        atom_fractions = np.minimum(atoms * moments ** (1.0 / orders), 1.0)

        # moments of (1/S) / E[1/S]; the third is bounded by its terms, which may cancel
        second = inverse_moments[1] / inverse_moments[0] ** 2
        third = inverse_moments[2] / inverse_moments[0] ** 3
        variance = max(second - 1.0, 0.0)
        third_moment = abs(third - 3.0 * second + 2.0) + variance**1.5

    # without a label's term, 1/S may have no moments
    if not math.isfinite(third_moment):
        variance = 1.0
        third_moment = 1e6

    fractions[:, used_ids] = atom_fractions[:, atom_ids]
    added_moments = count_variances * np.stack([fractions[1] ** 2, fractions[2] ** 3])
    common_moments = np.array([variance, third_moment])

    return DrawMoments(
        count_variances,
        hit_probs,
        fractions[0],
        added_moments,
        common_moments,
        min(base_mass * float(inverse_moments[0]), 1.0),
    )


def _log_laplace_transform(
    u: FloatArray, atoms: FloatArray, mass: FloatArray, class_counts: IntArray, scheme: Scheme
) -> FloatArray:
    """Return the log of the Laplace transform, at `u`, of the weight of one draw.

    With independent inclusion it is the transform of the sum of the weights of all draws. `atoms`
    are the distinct weights, `mass` their probabilities per class, and `class_counts` their numbers
    of classes.
    """
    # 1 - exp(-u r) loses the digits of a small u r: use -expm1(-u r). exp(-745) underflows to 0.
    drops = -np.expm1(-np.minimum(np.outer(u, atoms), 745.0))
    mean_drops = mass * drops if scheme.independent else drops @ (mass * class_counts)
    logs: FloatArray = np.log1p(-np.minimum(mean_drops, 1.0 - 1e-16))
    return logs @ class_counts if scheme.independent else logs


def _inverse_moments(u: FloatArray, log_transform: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the means (3, len(shift)) of ``(shift + S)**-k`` for k = 1, 2, 3 and each shift.

    `log_transform` is the log of the Laplace transform of S at the nodes `u`.
    """
    # u**(k - 1) du = u**k d(log u)
    log_u = np.log(u)[:, None]
    log_decay = log_transform[:, None] - np.minimum(np.outer(u, shift), 1e4)
    with np.errstate(over="ignore", under="ignore"):
        sums = [np.exp(k * log_u + log_decay).sum(axis=0) for k in (1, 2, 3)]
    return _LOG_STEP * np.stack([sums[0], sums[1], sums[2] / 2.0])


def bin_classes(label: int, draw_moments: DrawMoments, num_trials: int) -> IntArray:
    """Group classes of similar weight into bins; return the bin of each class (n,), int64.

    At least `MIN_EXPECTED_HITS` trials are expected to draw from a bin, if all trials together
    suffice for that. Bin 0 contains only the label.
    """
    expected_hits = num_trials * draw_moments.hit_probs
    expected_hits[label] = 0.0

    # sort by weight, because one heavy, rare class would dominate the variance of a mixed bin
    order = np.argsort(-draw_moments.mean_fractions, kind="stable")
    order = order[order != label]

    # a bin ends when it has enough expected trials; the remaining classes join the last bin
    cumulative_hits = np.cumsum(expected_hits[order])
    min_hits = max(MIN_EXPECTED_HITS, cumulative_hits[-1] / _MAX_BINS)
    starts = [0]
    binned_hits = 0.0

    while cumulative_hits[-1] - binned_hits >= 2.0 * min_hits:  # enough for this bin and another
        start = int(np.searchsorted(cumulative_hits, binned_hits + min_hits)) + 1
        binned_hits = float(cumulative_hits[start - 1])
        if cumulative_hits[-1] - binned_hits < min_hits:
            break

        starts.append(start)

    bin_sizes = np.diff([*starts, len(order)])
    bins = np.zeros(len(expected_hits), dtype=np.int64)
    bins[order] = np.repeat(np.arange(1, len(starts) + 1), bin_sizes)

    return bins


def _predict_projection_moments(
    draw_moments: DrawMoments, label: int, centered: FloatArray
) -> FloatArray:
    """Predict the second and third absolute central moments (2, P) of ``p' @ directions``.

    `centered` (n, P) are the directions minus their means under the expected p'.
    """
    # second and third central moments of independent draws add up
    magnitudes = np.abs(centered)
    label_magnitudes = draw_moments.base_fraction * magnitudes[label]
    squares = magnitudes * magnitudes

    added_moments = [
        draw_moments.added_moments[0] @ squares,
        draw_moments.added_moments[1] @ (squares * magnitudes),
    ]
    return np.stack(added_moments) + _common_factor_moments(draw_moments, label_magnitudes)


def _predict_bin_moments(
    draw_moments: DrawMoments, bins: IntArray, expected: FloatArray
) -> FloatArray:
    """Predict the second and third moments (2, k) of the sum of p' in each of k bins.

    `expected` (k,) is the mean of this sum.
    """
    added_moments = [np.bincount(bins, moment) for moment in draw_moments.added_moments]
    return np.stack(added_moments) + _common_factor_moments(draw_moments, np.abs(expected))


def _common_factor_moments(draw_moments: DrawMoments, magnitudes: FloatArray) -> FloatArray:
    """Return the moments (2, k) that the common factor 1/S adds to values with `magnitudes`."""
    return draw_moments.common_moments[:, None] * np.stack([magnitudes**2, magnitudes**3])


def _predict_loss_moments(
    draw_moments: DrawMoments, label: int, q: FloatArray, p: FloatArray, m: int, scheme: Scheme
) -> FloatArray:
    """Predict the second and third central moments (2, 1) of the loss in a trial."""
    total_variance = draw_moments.count_variances.sum()

    # if the number of draws is fixed, the mean effect of a draw adds no variance
    has_fixed_count = not scheme.independent and total_variance > 0.0
    mean_effect = 0.0
    if has_fixed_count:
        mean_effect = draw_moments.count_variances @ draw_moments.mean_fractions / total_variance

    effects = np.abs(draw_moments.mean_fractions - mean_effect)
    second = draw_moments.count_variances @ effects**2
    third = draw_moments.count_variances @ effects**3
    if scheme.has_random_count:
        # without negatives S is the label's term, and the loss is 0
        empty_prob = float(q[label]) ** m
        if scheme.independent:
            empty_prob = float(np.prod(1.0 - np.minimum(np.delete(q, label), 1.0)))

        label_loss = -math.log(max(float(p[label]), 1e-300))
        second = second + empty_prob * label_loss**2
        third = third + empty_prob * label_loss**3

    return np.array([[second], [third]])
