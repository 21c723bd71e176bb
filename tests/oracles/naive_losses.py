"""Slow, independent oracles for losses: formulas over numbers of many digits, nothing vectorised.

`counts` are expected counts of the drawn classes, `own_count` that of the label.
"""

from itertools import product

import numpy as np
from mpmath import mp, mpf


def full(scores, label, ids, counts, own_count):
    return mp.log(mp.fsum(mp.exp(o) for o in scores)) - scores[label]


def negatives(scores, label, ids, counts, own_count):
    """Also with draws of the label left out."""
    kept = [mp.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True) if j != label]
    return mp.log(mp.exp(scores[label]) + mp.fsum(kept)) - scores[label]


def importance(scores, label, ids, counts, own_count):
    every = [mp.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True)]
    return mp.log(mp.fsum(every)) - scores[label]


def reject(scores, label, ids, counts, own_count):
    m, kept = len(ids), [(j, c) for j, c in zip(ids, counts, strict=True) if j != label]
    given_kept = [mp.exp(scores[j]) / (len(kept) * c / (m - own_count)) for j, c in kept]
    return mp.log(mp.exp(scores[label]) + mp.fsum(given_kept)) - scores[label]


def candidate(scores, label, ids, counts, own_count, masked=False):
    own = mp.exp(scores[label]) / own_count
    drawn = [
        mp.exp(scores[j]) / c
        for j, c in zip(ids, counts, strict=True)
        if not (masked and j == label)
    ]
    return mp.log(own + mp.fsum(drawn)) - mp.log(own)


def candidate_masked(scores, label, ids, counts, own_count):
    return candidate(scores, label, ids, counts, own_count, masked=True)


def bilateral(scores, label, ids, counts, own_count, weight="1.2"):
    """A weight for the log-sum-exp of the draws of others; nothing is lost where there are none."""
    kept = [mp.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True) if j != label]
    return mpf(float(weight)) * mp.log(mp.fsum(kept)) - scores[label] if kept else mpf(0)


def jackknife(scores, label, ids, counts, own_count):
    """Go by the definition: the loss of m draws, and those of m - 1 with each draw left out."""
    m = len(ids)
    left_out = [
        negatives(
            scores,
            label,
            [j for k, j in enumerate(ids) if k != i],
            [c * (m - 1) / m for k, c in enumerate(counts) if k != i],
            own_count,
        )
        for i in range(m)
    ]
    whole = negatives(scores, label, ids, counts, own_count)
    return m * whole - mpf(m - 1) / m * mp.fsum(left_out)


CHANCE = 0.3  # of the level of the draws below


def block_of(m):
    """Draws of a block where there are m: a quarter, a half, or all before all classes."""
    return m // 4 if m % 4 == 0 else m // 2 if m % 2 == 0 else m


def multilevel(scores, label, ids, counts, own_count):
    """Go by the definition: losses of parts of the draws, in which those weigh more."""

    def loss(first, last):
        part = [c * (last - first) / m for c in counts[first:last]]
        return negatives(scores, label, ids[first:last], part, own_count)

    m, block = len(ids), block_of(len(ids))
    blocks = [loss(first, first + block) for first in range(0, m, block)]
    if m % 2:
        ratio = mp.exp(loss(0, m) - full(scores, label, ids, counts, own_count))
        more = ratio - 1 - mp.log(ratio)
    else:
        more = loss(0, m) - (loss(0, m // 2) + loss(m // 2, m)) / 2
    return mp.fsum(blocks) / len(blocks) + more / mpf(CHANCE)


def _softplus(x):
    return mp.log(1 + mp.exp(x))


def nce(scores, label, ids, counts, own_count):
    """Probability that a class is data: exp(o) / (exp(o) + expected count of noise)."""
    data = mp.exp(scores[label]) / (mp.exp(scores[label]) + own_count)
    noise = [c / (mp.exp(scores[j]) + c) for j, c in zip(ids, counts, strict=True)]
    return -mp.log(data) - mp.fsum(mp.log(x) for x in noise)


def negative_sampling(scores, label, ids, counts, own_count):
    return _softplus(-scores[label]) + mp.fsum(_softplus(scores[j]) for j in ids)


def negative_sampling_masked(scores, label, ids, counts, own_count):
    others = [j for j in ids if j != label]
    return negative_sampling(scores, label, others, counts, own_count)


def gbce(scores, label, ids, counts, own_count, calibration="0.75"):
    """The formula of the paper, in which a class is drawn m / n times."""
    alpha, t = mpf(len(ids)) / len(scores), mpf(calibration)
    beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha)
    sigma = [1 / (1 + mp.exp(-o)) for o in scores]
    rest = mp.fsum(mp.log(1 / (1 + mp.exp(scores[j]))) for j in ids if j != label)
    return -mp.log(sigma[label] ** beta) - rest


def bpr(scores, label, ids, counts, own_count):
    others = [j for j in ids if j != label and scores[j] > -mp.inf]
    pairs = [_softplus(scores[j] - scores[label]) for j in others]
    return mp.fsum(pairs) / max(1, len(pairs))


def warp(scores, label, ids, counts, own_count):
    """Go through the draws, as algorithm 1 of the paper."""
    others = [j for j in ids if j != label and scores[j] > -mp.inf]
    for trials, j in enumerate(others, start=1):
        if 1 + scores[j] - scores[label] > 0:
            rank = (len(scores) - 1) // trials
            return mp.harmonic(rank) * (1 + scores[j] - scores[label])
    return mpf(0)


def one_vs_each(scores, label, ids, counts, own_count):
    """Of each draw, how hard it is to tell the label from it, times how rare it is."""
    pairs = zip(ids, counts, strict=True)
    return mp.fsum(_softplus(scores[j] - scores[label]) / c for j, c in pairs if j != label)


def full_logistic(scores, label, ids, counts, own_count):
    """One versus all: of every class, a logistic regression."""
    rest = [o for j, o in enumerate(scores) if j != label]
    return _softplus(-scores[label]) + mp.fsum(_softplus(o) for o in rest)


ORACLES = {  # of the losses by their names
    "full": full,
    "full-absolute": full,
    "full-logistic": full_logistic,
    "sampled": negatives,
    "sampled-masked": negatives,
    "sampled-reject": reject,
    "sampled-candidate": candidate,
    "sampled-candidate-masked": candidate_masked,
    "sampled-absolute": negatives,
    "importance": importance,
    "jackknife": jackknife,
    "jackknife-masked": jackknife,
    "multilevel": multilevel,
    "multilevel-masked": multilevel,
    "nce": nce,
    "negative-sampling": negative_sampling,
    "negative-sampling-masked": negative_sampling_masked,
    "gbce": gbce,
    "bpr": bpr,
    "warp": warp,
    "bilateral": bilateral,
    "one-vs-each": one_vs_each,
}


def exact(values):
    """An array of floats as an object array of mpf."""
    return np.vectorize(lambda x: mpf(float(x)), otypes=[object])(np.asarray(values, dtype=float))


def scores(h, class_embeddings, biases=None, tau=1.0, normalize=False, absolute=False):
    """Scores (n,) of one context, for arrays of mpf."""
    unit = (lambda x: x / mp.sqrt(x @ x)) if normalize else lambda x: x
    found = [mpf(tau) * (unit(h) @ unit(c)) for c in class_embeddings]
    if biases is not None:
        found = [o + b for o, b in zip(found, biases, strict=True)]
    return [abs(o) for o in found] if absolute else found


def derivative(function, arguments, step="1e-25"):
    """Gradients of `function` in each of its arguments, arrays of mpf, by central differences."""
    step, gradients = mpf(step), []
    for k, argument in enumerate(arguments):
        gradient = np.empty(argument.shape, object)
        for place in np.ndindex(argument.shape):
            ends = []
            for sign in (1, -1):
                moved = [np.array(a) for a in arguments]
                moved[k][place] += sign * step
                ends.append(function(*moved))
            gradient[place] = (ends[0] - ends[1]) / (2 * step)
        gradients.append(gradient.astype(float))
    return gradients


def every_draw(q, m):
    """Yield all n**m sequences of draws from q (n,), and their probabilities."""
    support = [j for j, x in enumerate(q) if x > 0]
    for ids in product(support, repeat=m):
        yield ids, np.prod([q[j] for j in ids])


def mixed_means(logits, label, of_q, of_u, corrected):
    """Return the means of p' (n,) and of the loss, over all draws of two proposals together.

    Each of the two is (probabilities, number of draws). Draws of the label have no weight.
    """
    (q, m), (u, more), n = of_q, of_u, len(logits)
    counts, mean, mean_loss = m * q + more * u, np.zeros(n), 0.0
    own = np.exp(logits[label]) / (counts[label] if corrected else 1.0)
    for first in product(range(n), repeat=m):
        for second in product(range(n), repeat=more):
            chance = q[list(first)].prod() * u[list(second)].prod()
            masses = np.zeros(n)
            for j in first + second:
                masses[j] += np.exp(logits[j]) / counts[j]
            masses[label] = own
            mean += chance * masses / masses.sum()
            mean_loss += chance * np.log(masses.sum() / own)
    return mean, mean_loss
