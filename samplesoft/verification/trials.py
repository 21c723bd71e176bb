"""Monte Carlo against the exact bias: z-scores, their limit, and the choice of statistics.

A mean over trials is close to normal unless its variance comes from few, rare trials. The
contribution of a rare trial follows from the distribution of S, whose inverse moments are
one-dimensional integrals. These predictions are accurate to about 10%. They only decide which
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
MIN_EXPECTED_HITS = 400  # trials that draw from a bin: then the skewness of a mean is below 1/20
MAX_SKEWNESS = 1.0 / math.sqrt(MIN_EXPECTED_HITS)
_MIN_STDERR_RATIO = 0.1  # observed over predicted standard error
_ROUNDING = 1e-12  # relative rounding error of p' in a trial of many draws
_MAX_BINS = 128
_ATOM_WIDTH = 0.1  # classes whose log weights agree to this are one atom of the distribution of S
_LOG_STEP = 0.3  # in log u: the trapezoid rule is accurate to three digits


class Scores(NamedTuple):
    """z-scores of the tested statistics, and the number of untested ones."""

    z: FloatArray  # Monte Carlo mean minus exact value, in standard errors
    num_untested: int  # statistics with too few effective draws to be close to normal

    @property
    def max_abs_z(self) -> float:
        """Largest ``|z|``; 0 if nothing was tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge_scores(parts: list[Scores]) -> Scores:
    """Concatenate the scores of several examples or blocks."""
    return Scores(np.concatenate([part.z for part in parts]), sum(p.num_untested for p in parts))


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the limit that any of `num_tests` normal ``|z|`` exceeds with probability `alpha`."""
    # two-sided, with Bonferroni's correction
    return -NormalDist().inv_cdf(alpha / (2.0 * max(num_tests, 1)))


def p_value(max_abs_z: float, num_tests: int) -> float:
    """Return the p-value of the largest ``|z|`` of `num_tests` statistics, by Bonferroni."""
    return min(1.0, 2.0 * num_tests * NormalDist().cdf(-max_abs_z))


class Comparison(NamedTuple):
    """Monte Carlo of one example compared with its exact bias b.

    The norms are ``sign(b_i) b_i`` for the largest coordinate i of b, and ``sign(b) . b``. With the
    signs of the exact b, both are linear in the estimate, and so unbiased. The norm of a noisy
    estimate would be biased.
    """

    logits: Scores  # of bins of classes, and of the norms
    h: Scores  # of the coordinates of h
    loss: Scores
    norms: FloatArray  # (2, 2): estimates of the largest |b_i| and the L1 norm, standard errors


def compare(
    inputs: Inputs,
    exact: ExactBias,
    example: int,
    jacobian: FloatArray | None,
    num_trials: int,
    key: np.uint64,
) -> Comparison:
    """Simulate one example of a batch and compare it with its exact bias.

    `jacobian` (n, d) holds the derivatives of the logits with respect to h.
    """
    logits = inputs.logits[example]
    label = int(inputs.labels[example])
    q = inputs.q[example if len(inputs.q) > 1 else 0]
    m = inputs.num_sampled
    scheme = inputs.scheme
    p = exact.probs[example]
    bias = exact.bias[example]
    error = float(exact.error[example])
    tails = predict_tails(p, label, q, m, scheme)
    bins = bin_classes(label, tails, num_trials)
    # linear forms with the value of the norm: the norm of the estimate itself is biased upwards
    top = int(np.argmax(np.abs(bias)))
    norms = np.zeros((len(p), 2))
    norms[top, 0] = np.sign(bias[top])
    norms[:, 1] = np.sign(bias)
    directions = norms if jacobian is None else np.hstack([norms, jacobian])
    trials = simulate(logits, label, q, m, scheme, num_trials, key, bins, directions)

    p_bin, bias_bin, expected_bin = (
        np.bincount(bins, values).astype(np.float64) for values in (p, bias, p + bias)
    )
    # single classes are drawn too rarely for a normal mean: compare bins of classes
    of_bins = _z_scores(
        num_trials,
        trials.bias - bias_bin,
        trials.stderr,
        error + _ROUNDING * p_bin,
        _moments_of_bins(tails, bins, expected_bin),
    )
    of_directions = (
        trials.projection_bias - bias @ directions,
        trials.projection_stderr,
        (error + _ROUNDING) * np.abs(directions).max(axis=0, initial=0.0),
        _moments_of_projections(tails, label, directions - (p + bias) @ directions),
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
        _moments_of_loss(tails, label, q, p, m, scheme),
    )
    estimates = np.array([trials.projection_bias[:2], trials.projection_stderr[:2]])
    return Comparison(merge_scores([of_bins, of_norms]), of_h, of_loss, estimates)


def _z_scores(
    num_trials: int,
    difference: FloatArray,
    stderr: FloatArray,
    rounding: FloatArray,
    moments: FloatArray,
) -> Scores:
    """Return the z-scores of differences from exact values; 0 for differences within rounding.

    `moments` (2, P) are approximate second and third moments of P statistics in one trial.
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
    # a standard error far below the prediction means that the rare trials did not occur
    testable &= (beyond_rounding == 0.0) | (
        stderr >= _MIN_STDERR_RATIO * np.sqrt(second / num_trials)
    )
    return Scores(z[testable], int((~testable).sum()))


class Tails(NamedTuple):
    """Moments of the contributions of one draw, and of 1/S, to p' in a trial of one example."""

    rates: FloatArray  # (n,): variance of the number of draws of each class in a trial
    hits: FloatArray  # (n,): probability that a trial draws the class
    fraction: FloatArray  # (n,): mean of the weight of one draw over S
    moments: FloatArray  # (2, n): second and third moments that all draws of a class add to p'
    common: FloatArray  # (2,): approximate variance and third absolute moment of 1/S over its mean
    base: float  # mean of the base mass over S


def predict_tails(p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Tails:
    """Return `Tails` for one example with softmax `p` (n,) and proposal `q` (n,).

    As in the exact bias, ``S**-k = int u**(k - 1) exp(-u S) du / (k - 1)!`` and the draws are
    independent. So the mean of ``S**-k`` is an integral over a power of one Laplace transform.
    """
    # draw probabilities of classes with weight: without the label if it is excluded or masked
    drawn = q.copy()
    if not scheme.draws_label:
        drawn[label] = 0.0
    if scheme.excludes_label and not scheme.independent and drawn.any():
        drawn /= drawn.sum()
    drawn = np.minimum(drawn, 1.0)
    # with independent inclusion each class is one draw; otherwise there are m equal draws
    num = 1 if scheme.independent else m
    weights = np.divide(p, num * drawn, out=np.zeros_like(p), where=drawn > 0.0)
    base = float(p[label]) if scheme.label_in_sum else 0.0
    if scheme.corrects_label:
        base /= m * float(q[label])
    # 1 - (1 - q)^m loses the digits of a small q: take -expm1(m log1p(-q))
    with np.errstate(divide="ignore"):
        hits = -np.expm1(num * np.log1p(-drawn))
    # variance of a binomial count
    rates = num * drawn * (1.0 - drawn)

    used = np.flatnonzero((weights > 0.0) & np.isfinite(weights))
    # mean, root mean square, and cube root of the mean cube of one draw's weight over S
    fractions = np.zeros((3, len(p)))
    if not len(used):
        return Tails(rates, hits, fractions[0], fractions[1:], np.zeros(2), 1.0)
    # S depends on the weights only: merge classes of nearly equal weight into some hundred atoms,
    # to which the cost of the integrals below is proportional
    keys = np.rint(np.log(weights[used]) / _ATOM_WIDTH)[:, None]
    if scheme.independent:  # the classes of an atom must agree in q and 1 - q, too
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
    log_one = _log_transform(u, atoms, mass, count, scheme)
    inverse = _inverse_moments(u, log_one * (num if num > 1 else 1), np.array([base]))[:, 0]
    # one draw is fixed to the class, the others are random
    log_others = log_one * (num - 1) if not scheme.independent else log_one
    moments = _inverse_moments(u, log_others, base + atoms)
    orders = np.array([[1.0], [2.0], [3.0]])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        parts = np.minimum(atoms * moments ** (1.0 / orders), 1.0)
        # moments of 1/S over its mean; the third is bounded by its terms, which may cancel
        second = inverse[1] / inverse[0] ** 2
        third = inverse[2] / inverse[0] ** 3
        variance = max(second - 1.0, 0.0)
        cube = abs(third - 3.0 * second + 2.0) + variance**1.5
    if not math.isfinite(cube):  # without base mass, S can be as small as the weight of one draw
        variance = 1.0
        cube = 1e6
    fractions[:, used] = parts[:, atom_of]
    added = rates * np.stack([fractions[1] ** 2, fractions[2] ** 3])
    common = np.array([variance, cube])
    return Tails(rates, hits, fractions[0], added, common, min(base * float(inverse[0]), 1.0))


def _log_transform(
    u: FloatArray, atoms: FloatArray, mass: FloatArray, count: IntArray, scheme: Scheme
) -> FloatArray:
    """Return the log of the Laplace transform of one draw; of all classes if `independent`."""
    # 1 - exp(-u r) loses the digits of a small u r: take -expm1(-u r); exp(-745) underflows to 0
    drops = -np.expm1(-np.minimum(np.outer(u, atoms), 745.0))
    mean_drops = mass * drops if scheme.independent else drops @ (mass * count)
    logs: FloatArray = np.log1p(-np.minimum(mean_drops, 1.0 - 1e-16))
    return logs @ count if scheme.independent else logs


def _inverse_moments(u: FloatArray, log_transform: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the means of ``(shift + S)**-k`` for k = 1, 2, 3, (3, number of shifts)."""
    # u**(k - 1) du = u**k d(log u)
    log_u = np.log(u)[:, None]
    log_decay = log_transform[:, None] - np.minimum(np.outer(u, shift), 1e4)
    with np.errstate(over="ignore", under="ignore"):
        sums = [np.exp(k * log_u + log_decay).sum(axis=0) for k in (1, 2, 3)]
    return _LOG_STEP * np.stack([sums[0], sums[1], sums[2] / 2.0])


def bin_classes(label: int, tails: Tails, num_trials: int) -> IntArray:
    """Merge classes of similar weight until `MIN_EXPECTED_HITS` trials are expected to draw a bin.

    Returns the bin of each class, (n,) int64; bin 0 contains only the label.
    """
    expected = num_trials * tails.hits
    expected[label] = 0.0
    # in order of weight: one heavy, rare class would dominate the variance of a mixed bin
    order = np.argsort(-tails.fraction, kind="stable")
    order = order[order != label]
    # a bin ends when it has enough hits; the last classes, too few for a bin, join the last one
    filled = np.cumsum(expected[order])
    size = max(MIN_EXPECTED_HITS, filled[-1] / _MAX_BINS)
    starts = [0]
    reached = 0.0
    while filled[-1] - reached >= 2.0 * size:  # enough is left for another bin
        start = int(np.searchsorted(filled, reached + size)) + 1
        reached = float(filled[start - 1])
        if filled[-1] - reached < size:
            break
        starts.append(start)
    sizes = np.diff([*starts, len(order)])
    bins = np.zeros(len(expected), dtype=np.int64)
    bins[order] = np.repeat(np.arange(1, len(starts) + 1), sizes)
    return bins


def _moments_of_projections(tails: Tails, label: int, centered: FloatArray) -> FloatArray:
    """Predict the second and third absolute central moments (2, P) of ``p' @ directions``.

    `centered` (n, P) are the directions minus their means under the expected p'.
    """
    # second and third central moments of independent draws are additive
    size = np.abs(centered)
    of_label = tails.base * size[label]
    square = size * size
    added = [tails.moments[0] @ square, tails.moments[1] @ (square * size)]
    return np.stack(added) + _common_moments(tails, of_label)


def _moments_of_bins(tails: Tails, bins: IntArray, expected: FloatArray) -> FloatArray:
    """Predict the moments (2, k) of the mass of each of k bins; `expected` (k,) is E[p']."""
    added = [np.bincount(bins, moment) for moment in tails.moments]
    return np.stack(added) + _common_moments(tails, np.abs(expected))


def _common_moments(tails: Tails, size: FloatArray) -> FloatArray:
    """Return the moments that the common factor 1/S adds to values of the given size."""
    return tails.common[:, None] * np.stack([size**2, size**3])


def _moments_of_loss(
    tails: Tails, label: int, q: FloatArray, p: FloatArray, m: int, scheme: Scheme
) -> FloatArray:
    """Predict the moments of the loss, (2, 1)."""
    total = tails.rates.sum()
    # with a fixed number of draws, their mean contribution adds no variance
    fixed_number = not scheme.independent and total > 0.0
    mean = tails.rates @ tails.fraction / total if fixed_number else 0.0
    effects = np.abs(tails.fraction - mean)
    second = tails.rates @ effects**2
    third = tails.rates @ effects**3
    if scheme.random_count:
        # the probability of a trial without negatives, where S is the label's mass and the loss 0
        none = float(q[label]) ** m
        if scheme.independent:
            none = float(np.prod(1.0 - np.minimum(np.delete(q, label), 1.0)))
        size = -math.log(max(float(p[label]), 1e-300))
        second = second + none * size**2
        third = third + none * size**3
    return np.array([[second], [third]])
