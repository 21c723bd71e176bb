"""Compare the exact bias with Monte Carlo: z-scores, their limit, and which statistics are tested.

A trial is one random set of draws, with the sum S. A mean over trials is close to normal unless
most of its variance is due to a few rare trials. How much a rare trial contributes is predicted
from the means of ``S**-k``, which are one-dimensional integrals. The predictions are accurate to
about 10%, and only decide which statistics are tested.
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

# probability that a report says "disagrees" by chance, if all its statistics are normal
ALPHA = 1e-4
# Classes are put into bins from which at least this number of trials is expected to draw, so that
# the skewness of a bin's mean is below 1/20.
MIN_EXPECTED_HITS = 400
# largest predicted skewness of a mean over trials; means with a larger one are not tested
MAX_SKEWNESS = 1.0 / math.sqrt(MIN_EXPECTED_HITS)
# smallest ratio of the observed to the predicted standard error; below it, rare trials did not
# occur, and the mean is not tested
_MIN_STDERR_RATIO = 0.1
# relative rounding error of p', the softmax over label and draws, in a trial of many draws
_ROUNDING = 1e-12
# largest number of bins of classes, without the bin of the label
_MAX_BINS = 128
_ATOM_WIDTH = 0.1  # classes whose log weights round to the same multiple of this are merged
# step of log u in integrals; the trapezoid rule then has three correct digits
_LOG_STEP = 0.3


class ZScores(NamedTuple):
    """The z-scores of the tested statistics, and the number of statistics that were not tested."""

    z: FloatArray  # Monte Carlo mean minus exact value, in standard errors
    num_untested: int  # statistics with too few effective draws to be close to normal

    @property
    def max_abs_z(self) -> float:
        """Largest ``|z|``; 0 if nothing was tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge_z_scores(scores: list[ZScores]) -> ZScores:
    """Concatenate the z-scores of several examples or blocks; add up their untested statistics."""
    return ZScores(
        np.concatenate([score.z for score in scores]), sum(score.num_untested for score in scores)
    )


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the limit for the largest of `num_tests` normal ``|z|``.

    The largest ``|z|`` exceeds the limit with a probability of at most `alpha`.
    """
    # each of the two tails of each test gets an equal fraction of alpha (Bonferroni's correction)
    return -NormalDist().inv_cdf(alpha / (2.0 * max(num_tests, 1)))


def p_value(max_abs_z: float, num_tests: int) -> float:
    """Return the p-value of the largest ``|z|`` of `num_tests` statistics, Bonferroni-corrected."""
    return min(1.0, 2.0 * num_tests * NormalDist().cdf(-max_abs_z))


class Comparison(NamedTuple):
    """The exact bias b of one example, compared with its Monte Carlo estimate e.

    The maximum norm of b is estimated by ``sign(b_i) e_i``, where i is the largest coordinate of b,
    and the L1 norm by ``sign(b) . e``. These estimates are linear in e, and so unbiased. Norms of e
    itself would be biased, because e is noisy.
    """

    logits: ZScores  # z of the gradient in the logits, summed over bins, and of both norms
    h: ZScores  # z of the coordinates of the gradient in h; empty without vectors
    loss: ZScores  # z of the loss
    # (2, 2): row 0 has the estimates of max |b_i| and of the L1 norm, row 1 their standard errors
    norms: FloatArray


def compare(
    inputs: Inputs,
    exact: ExactBias,
    example: int,
    jacobian: FloatArray | None,
    num_trials: int,
    key: np.uint64,
) -> Comparison:
    """Simulate one example of a batch, and compare its exact bias with the trials.

    `example` is its index in the batch. `jacobian` (n, d) holds the derivatives of the logits with
    respect to h; with None, the gradient in h is not compared. `key` is the key of the random
    stream of the trials.
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

    # the products of these two directions with the bias are its norms, see `Comparison`
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
    """Return the z-scores of P statistics, and the number of statistics that cannot be tested.

    `difference` (P,) are the means over trials minus the exact values, `stderr` (P,) their standard
    errors, and `rounding` (P,) bounds on their rounding errors. A difference within its rounding
    has z = 0. `moments` (2, P) are the predicted second and third central moments of the statistics
    in one trial.
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

    # If the standard error is far below its prediction, the rare trials that make the variance did
    # not occur: do not test, unless the difference is within rounding.
    testable &= (beyond_rounding == 0.0) | (
        stderr >= _MIN_STDERR_RATIO * np.sqrt(second / num_trials)
    )

    return ZScores(z[testable], int((~testable).sum()))


class PredictedDrawMoments(NamedTuple):
    """Predicted moments of the draws in one trial of an example, and of their effect on p'.

    p' is the softmax over the label and the draws: their weights, divided by S, the sum of these
    weights.
    """

    count_variances: FloatArray  # (n,): variance of the number of draws of each class
    hit_probs: FloatArray  # (n,): probability that a trial draws the class
    mean_fractions: FloatArray  # (n,): mean of (weight of one draw of the class) / S
    # (2, n): what draws of the class add to the second and third central moments of a sum of p'
    added_moments: FloatArray
    common_moments: FloatArray  # (2,): variance and third absolute moment of (1/S) / E[1/S]
    base_fraction: float  # mean of (term that the label always has in S) / S


def predict_draw_moments(
    p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> PredictedDrawMoments:
    """Return `PredictedDrawMoments` for one example with softmax `p` (n,) and proposal `q` (n,).

    ``S**-k = int u**(k - 1) exp(-u S) du / (k - 1)!``, and draws are independent. So the mean of
    ``S**-k`` is an integral that contains the Laplace transform of the weight of one draw, to the
    power m.
    """
    # a label that is excluded or masked gets draw probability 0
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

    # With r = (weight of one draw of the class) / S, the rows are E r, (E r**2)**(1/2) and
    # (E r**3)**(1/3).
    fractions = np.zeros((3, len(p)))
    if not len(used_ids):
        return PredictedDrawMoments(
            count_variances, hit_probs, fractions[0], fractions[1:], np.zeros(2), 1.0
        )

    # Merge classes of nearly equal weight into atoms, a few hundred groups with one weight each,
    # because the cost of the integrals below is proportional to the number of weights.
    keys = np.rint(np.log(weights[used_ids]) / _ATOM_WIDTH)[:, None]

    # with independent inclusion, the classes of an atom must also have nearly equal q and 1 - q
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

    # the integrand is large where u S is about 1: take u from 1 / (largest S) to 1 / (smallest S)
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

    # one draw is fixed, with the weight of each atom in turn, and the other draws are random
    log_others = log_one * (num_draws - 1) if not scheme.independent else log_one
    moments = _inverse_moments(u, log_others, base_mass + atoms)
    orders = np.array([[1.0], [2.0], [3.0]])

    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        atom_fractions = np.minimum(atoms * moments ** (1.0 / orders), 1.0)

        # Variance of (1/S) / E[1/S], and a third moment that is not too small even if the terms of
        # the exact one cancel.
        second = inverse_moments[1] / inverse_moments[0] ** 2
        third = inverse_moments[2] / inverse_moments[0] ** 3
        variance = max(second - 1.0, 0.0)
        third_moment = abs(third - 3.0 * second + 2.0) + variance**1.5

    # If S has no fixed term of the label, 1/S may have infinite moments. The third moment is then
    # set so large that means which depend on it are not tested.
    if not math.isfinite(third_moment):
        variance = 1.0
        third_moment = 1e6

    fractions[:, used_ids] = atom_fractions[:, atom_ids]
    added_moments = count_variances * np.stack([fractions[1] ** 2, fractions[2] ** 3])
    common_moments = np.array([variance, third_moment])

    return PredictedDrawMoments(
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
    """Return the log of the Laplace transform of the weight of one draw, at the nodes `u`.

    With independent inclusion it is the transform of the sum of the weights of all draws. An atom
    is a group of classes with nearly equal weights: `atoms` holds its weight, `mass` the mean draw
    probability of its classes, and `class_counts` their number.
    """
    # 1 - exp(-u r) loses the digits of a small u r: use -expm1(-u r). exp(-745) underflows to 0.
    drops = -np.expm1(-np.minimum(np.outer(u, atoms), 745.0))
    mean_drops = mass * drops if scheme.independent else drops @ (mass * class_counts)
    logs: FloatArray = np.log1p(-np.minimum(mean_drops, 1.0 - 1e-16))
    return logs @ class_counts if scheme.independent else logs


def _inverse_moments(u: FloatArray, log_transform: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the means (3, len(shift)) of ``(shift + X)**-k`` for k = 1, 2, 3 and each shift.

    X is a random sum, and `log_transform` the log of its Laplace transform at the nodes `u`.
    """
    # the nodes have equal steps of log u, and u**(k - 1) du = u**k d(log u)
    log_u = np.log(u)[:, None]
    log_decay = log_transform[:, None] - np.minimum(np.outer(u, shift), 1e4)
    with np.errstate(over="ignore", under="ignore"):
        sums = [np.exp(k * log_u + log_decay).sum(axis=0) for k in (1, 2, 3)]
    return _LOG_STEP * np.stack([sums[0], sums[1], sums[2] / 2.0])


def bin_classes(label: int, draw_moments: PredictedDrawMoments, num_trials: int) -> IntArray:
    """Group classes of similar weight into bins; return the bin of each class (n,), int64.

    At least `MIN_EXPECTED_HITS` trials are expected to draw from each bin; if the trials are too
    few for two such bins, all classes are in one. The label alone is in bin 0.
    """
    expected_hits = num_trials * draw_moments.hit_probs
    expected_hits[label] = 0.0

    # Sort classes by weight: in a bin of unequal weights, one rare class with a large weight would
    # dominate the variance.
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
    draw_moments: PredictedDrawMoments, label: int, centered: FloatArray
) -> FloatArray:
    """Predict the second and third absolute central moments (2, P) of ``p' @ directions``.

    `centered` (n, P) are the directions minus their means ``E[p'] @ directions``.
    """
    # the second and third central moments of a sum of independent draws are sums over the draws
    magnitudes = np.abs(centered)
    label_magnitudes = draw_moments.base_fraction * magnitudes[label]
    squares = magnitudes * magnitudes

    added_moments = [
        draw_moments.added_moments[0] @ squares,
        draw_moments.added_moments[1] @ (squares * magnitudes),
    ]
    return np.stack(added_moments) + _common_factor_moments(draw_moments, label_magnitudes)


def _predict_bin_moments(
    draw_moments: PredictedDrawMoments, bins: IntArray, expected: FloatArray
) -> FloatArray:
    """Predict the second and third central moments (2, k) of the sum of p' over each of k bins.

    `expected` (k,) are the means of these sums.
    """
    added_moments = [np.bincount(bins, moment) for moment in draw_moments.added_moments]
    return np.stack(added_moments) + _common_factor_moments(draw_moments, np.abs(expected))


def _common_factor_moments(
    draw_moments: PredictedDrawMoments, magnitudes: FloatArray
) -> FloatArray:
    """Return what the variation of 1/S adds to the second and third moments of k values.

    1/S is a common factor of the values, whose absolute values are about `magnitudes` (k,).
    """
    return draw_moments.common_moments[:, None] * np.stack([magnitudes**2, magnitudes**3])


def _predict_loss_moments(
    draw_moments: PredictedDrawMoments,
    label: int,
    q: FloatArray,
    p: FloatArray,
    m: int,
    scheme: Scheme,
) -> FloatArray:
    """Predict the second and third central moments (2, 1) of the loss in a trial."""
    total_variance = draw_moments.count_variances.sum()

    # if the number of draws is fixed, the effect that all draws have in common adds no variance
    has_fixed_count = not scheme.independent and total_variance > 0.0
    mean_effect = 0.0
    if has_fixed_count:
        mean_effect = draw_moments.count_variances @ draw_moments.mean_fractions / total_variance

    effects = np.abs(draw_moments.mean_fractions - mean_effect)
    second = draw_moments.count_variances @ effects**2
    third = draw_moments.count_variances @ effects**3
    if scheme.has_random_count:
        # if no negative is drawn, S is only the label's term, and the loss is 0
        empty_prob = float(q[label]) ** m
        if scheme.independent:
            empty_prob = float(np.prod(1.0 - np.minimum(np.delete(q, label), 1.0)))

        label_loss = -math.log(max(float(p[label]), 1e-300))
        second = second + empty_prob * label_loss**2
        third = third + empty_prob * label_loss**3

    return np.array([[second], [third]])
