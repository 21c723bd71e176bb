"""The plain twin of the losses in numbers of many digits, by name, and what checks gradients.

All oracles take scores, the label, ids of draws, their expected counts, and that of the label.
"""

from itertools import product

import numpy as np
from mpmath import mp, mpf

from samplesoft.losses import plain

CHANCE = 0.3  # of the level of the draws below


def block_of(m):
    """Draws of a block where there are m: a quarter, a half, or all before all classes."""
    return m // 4 if m % 4 == 0 else m // 2 if m % 2 == 0 else m


def weighing(scores, ids):
    """The draws whose score is not -inf, which is what is left out."""
    return [j for j in ids if scores[j] > -mp.inf]


def full(scores, label, ids, counts, own):
    return plain.full(scores, label, mp)


def full_logistic(scores, label, ids, counts, own):
    return plain.full_logistic(scores, label, mp)


def negatives(scores, label, ids, counts, own):
    return plain.sampled(scores, label, ids, counts, mp)


def importance(scores, label, ids, counts, own):
    return plain.importance(scores, label, ids, counts, mp)


def reject(scores, label, ids, counts, own):
    return plain.reject(scores, label, ids, counts, own, mp)


def candidate(scores, label, ids, counts, own):
    return plain.candidate(scores, label, ids, counts, own, mp)


def candidate_masked(scores, label, ids, counts, own):
    return plain.candidate_masked(scores, label, ids, counts, own, mp)


def jackknife(scores, label, ids, counts, own):
    return plain.jackknife(scores, label, ids, counts, mp)


def multilevel(scores, label, ids, counts, own):
    block = block_of(len(ids))
    return plain.multilevel(scores, label, ids, counts, block, mpf(CHANCE), mp)


def bilateral(scores, label, ids, counts, own, weight="1.2"):
    return plain.bilateral(scores, label, ids, counts, mpf(float(weight)), mp)


def nce(scores, label, ids, counts, own):
    return plain.nce(scores, label, ids, counts, own, mp)


def negative_sampling(scores, label, ids, counts, own):
    return plain.negative_sampling(scores, label, ids, mp)


def negative_sampling_masked(scores, label, ids, counts, own):
    return plain.negative_sampling(scores, label, [j for j in ids if j != label], mp)


def gbce(scores, label, ids, counts, own, calibration="0.75"):
    return plain.gbce(scores, label, ids, mpf(calibration), mp)


def bpr(scores, label, ids, counts, own):
    return plain.bpr(scores, label, weighing(scores, ids), mp)


def warp(scores, label, ids, counts, own):
    return mpf(plain.warp(scores, label, weighing(scores, ids)))


def one_vs_each(scores, label, ids, counts, own):
    return plain.one_vs_each(scores, label, ids, counts, mp)


def moving_average(scores, label, ids, counts, own):
    """Of new examples; `test_log_sums` has others."""
    average, _ = plain.moving_average(scores, label, ids, counts, None, mpf("0.5"), mp)
    return mp.log(average)


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
    "moving-average": moving_average,
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
