"""Which Monte Carlo statistics are close to normal, predicted from the proposal.

A mean over trials is close to normal unless its variance comes from few, rare trials. How much a
rare trial contributes follows from the distribution of S, whose inverse moments are
one-dimensional integrals. The predictions are good to about 10%: they decide which statistics are
tested, and have no part in any result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.schemes import Scheme

HITS = 400  # trials that are expected to hit a bin; the skewness of a mean is below 1/20 then
MAX_SKEWNESS = 1.0 / math.sqrt(HITS)
_MAX_BINS = 128
_ATOM = 0.1  # classes whose log weights agree to 0.1 are one atom of the distribution of S
_STEP = 0.3  # of log u: the trapezoid rule is good to three digits


@dataclass(frozen=True)
class Tails:
    """Moments of the contributions of one draw, and of 1/S, to a trial of one example."""

    rates: FloatArray  # (n,): variance of the number of draws of each class in a trial
    hits: FloatArray  # (n,): probability that a trial draws the class
    # (3, n): mean, root mean square, and cube root of the mean cube of one draw's share of p'
    shares: FloatArray
    common: tuple[float, float]  # about variance and third absolute moment of 1/S over its mean
    base: float  # mean share of p' that the base mass has


@dataclass(frozen=True)
class Predicted:
    """Approximate skewness and standard errors of P means over the trials, each (P,)."""

    skewness: FloatArray
    stderr: FloatArray

    def __getitem__(self, part: slice) -> Predicted:
        return Predicted(self.skewness[part], self.stderr[part])


def predict_tails(p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Tails:
    """Return `Tails` for one example: `p` the softmax (n,), `q` the proposal (n,).

    As in the exact bias, ``S**-k = int u**(k - 1) exp(-u S) du / (k - 1)!`` and the draws are
    independent, so the mean of ``S**-k`` is an integral over a power of one Laplace transform.
    """
    drawn = q.copy()
    if not scheme.draws_label:
        drawn[label] = 0.0
    if scheme.excludes_label and not scheme.independent and drawn.any():
        drawn /= drawn.sum()
    drawn = np.minimum(drawn, 1.0)
    num = 1 if scheme.independent else m
    weights = np.divide(p, num * drawn, out=np.zeros_like(p), where=drawn > 0.0)
    base = float(p[label]) if scheme.label_in_sum else 0.0
    if scheme.corrects_label:
        base /= m * float(q[label])
    with np.errstate(divide="ignore"):
        hits = -np.expm1(num * np.log1p(-drawn))
    rates = num * drawn * (1.0 - drawn)

    used = np.flatnonzero((weights > 0.0) & np.isfinite(weights))
    shares = np.zeros((3, len(p)))
    if not len(used):
        return Tails(rates, hits, shares, (0.0, 0.0), 1.0)
    keys = np.rint(np.log(weights[used]) / _ATOM)[:, None]
    if scheme.independent:  # then classes of an atom agree in q and 1 - q too
        inside = drawn[used, None]
        keys = np.hstack([keys, np.rint(np.log([inside, 1.0 - inside + 1e-18])[:, :, 0].T / _ATOM)])
    _, first, atom_of, count = np.unique(
        keys, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    atom_of = atom_of.ravel()
    mass = np.bincount(atom_of, drawn[used]) / count
    atoms = np.exp(np.clip(keys[first, 0] * _ATOM, -LARGEST_EXPONENT, LARGEST_EXPONENT))
    least = max(base + (0.0 if scheme.label_in_sum else atoms.min()), 1e-300)
    log_u = np.arange(
        -7.0 - math.log(base + float(num * mass @ (count * atoms)) + atoms.max()),
        5.0 - math.log(least),
        _STEP,
    )
    u = np.exp(np.minimum(log_u, LARGEST_EXPONENT))
    log_one = _log_transform(u, atoms, mass, count, scheme)
    inverse = _inverse_moments(u, log_one * (num if num > 1 else 1), np.array([base]))[:, 0]
    rest = log_one * (num - 1) if not scheme.independent else log_one
    moments = _inverse_moments(u, rest, base + atoms)
    orders = np.array([[1.0], [2.0], [3.0]])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        parts = np.minimum(atoms * moments ** (1.0 / orders), 1.0)
        second, third = inverse[1] / inverse[0] ** 2, inverse[2] / inverse[0] ** 3
        variance = max(second - 1.0, 0.0)
        cube = abs(third - 3.0 * second + 2.0) + variance**1.5
    if not math.isfinite(cube):  # no base mass: S can be as small as a single draw
        variance, cube = 1.0, 1e6
    shares[:, used] = parts[:, atom_of]
    return Tails(rates, hits, shares, (variance, cube), min(base * float(inverse[0]), 1.0))


def _log_transform(
    u: FloatArray, atoms: FloatArray, mass: FloatArray, count: IntArray, scheme: Scheme
) -> FloatArray:
    """Return the log of the Laplace transform of one draw, or of all if they are independent."""
    falls = -np.expm1(-np.minimum(np.outer(u, atoms), 745.0))
    if scheme.independent:
        together: FloatArray = np.log1p(-np.minimum(mass * falls, 1.0 - 1e-16)) @ count
        return together
    log_one: FloatArray = np.log1p(-np.minimum(falls @ (mass * count), 1.0 - 1e-16))
    return log_one


def _inverse_moments(u: FloatArray, log_transform: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the means of ``(shift + S)**-k`` for k = 1, 2, 3, shape (3, number of shifts)."""
    log_u = np.log(u)[:, None]
    log_decay = log_transform[:, None] - np.minimum(np.outer(u, shift), 1e4)
    with np.errstate(over="ignore", under="ignore"):
        sums = [np.exp(k * log_u + log_decay).sum(axis=0) for k in (1, 2, 3)]
    moments: FloatArray = _STEP * np.stack([sums[0], sums[1], sums[2] / 2.0])
    return moments


def bin_classes(label: int, tails: Tails, num_trials: int) -> IntArray:
    """Merge classes of similar weight until a bin is expected to be hit in `HITS` trials.

    Returns the bin of each class, (n,) int64; bin 0 is the label's alone.
    """
    expected = num_trials * tails.hits
    expected[label] = 0.0
    # in order of weight, as one heavy and rare class would be the whole variance of its bin
    order = np.argsort(-tails.shares[0], kind="stable")
    order = order[order != label]
    filled = np.cumsum(expected[order])
    size = max(HITS, filled[-1] / _MAX_BINS)
    starts = [0]
    reached = 0.0
    while filled[-1] - reached >= 2.0 * size:  # leaves enough for another bin
        start = int(np.searchsorted(filled, reached + size)) + 1
        reached = float(filled[start - 1])
        if filled[-1] - reached < size:
            break
        starts.append(start)
    sizes = np.diff([*starts, len(order)])
    bins = np.zeros(len(expected), dtype=np.int64)
    bins[order] = np.repeat(np.arange(1, len(starts) + 1), sizes)
    return bins


def predict_projections(
    tails: Tails, label: int, centered: FloatArray, num_trials: int
) -> Predicted:
    """Predict the means of ``p' @ directions``, whatever their signs.

    `centered` (n, P) are the directions minus their means under the expected p'.
    """
    size = np.abs(centered)
    square = size * size
    variance, cube = tails.common
    own = tails.base * size[label]
    second = (tails.rates * tails.shares[1] ** 2) @ square + variance * own**2
    third = (tails.rates * tails.shares[2] ** 3) @ (square * size) + cube * own**3
    return _predicted(second, third, num_trials)


def predict_bins(tails: Tails, bins: IntArray, expected: FloatArray, num_trials: int) -> Predicted:
    """Predict the mean mass of each bin; `expected`, (number of bins,), is E[p']."""
    variance, cube = tails.common
    size = np.abs(expected)
    second = np.bincount(bins, tails.rates * tails.shares[1] ** 2) + variance * size**2
    third = np.bincount(bins, tails.rates * tails.shares[2] ** 3) + cube * size**3
    return _predicted(second, third, num_trials)


def predict_loss(
    tails: Tails, label: int, q: FloatArray, p: FloatArray, m: int, scheme: Scheme, num_trials: int
) -> Predicted:
    """Predict the mean loss, shape (1,)."""
    shares = tails.shares[0]
    total = tails.rates.sum()
    fixed_number = not scheme.independent and total > 0.0
    mean = tails.rates @ shares / total if fixed_number else 0.0
    effects = np.abs(shares - mean)
    second, third = tails.rates @ effects**2, tails.rates @ effects**3
    if scheme.random_count:
        none = float(q[label]) ** m  # a trial of the label's draws only: loss 0
        if scheme.independent:
            none = float(np.prod(1.0 - np.minimum(np.delete(q, label), 1.0)))
        size = -math.log(max(float(p[label]), 1e-300))
        second, third = second + none * size**2, third + none * size**3
    return _predicted(np.array([second]), np.array([third]), num_trials)


def _predicted(second: FloatArray, third: FloatArray, num_trials: int) -> Predicted:
    ratio = np.divide(third, second**1.5, out=np.zeros_like(second), where=second > 0.0)
    return Predicted(ratio / math.sqrt(num_trials), np.sqrt(second / num_trials))
