"""The losses as their sources write them, of one example and its draws: to be read, not to be used.

An example has scores o_0, ..., o_(n-1), one for each class, and a label t. Five classes:

    class             0      1      2      3      4
    score  o         0.5   -1.0    2.0    0.0    1.0       what the model says
    q                0.4    0.1    0.2    0.2    0.1       how likely one draw is
    m q, for m = 3   1.2    0.3    0.6    0.6    0.3       how often a class is drawn, as the mean

The full softmax loss needs all classes: log(e^0.5 + e^-1 + e^2 + e^0 + e^1) - o_t. Let the label be
0 and let 2, 4 and 2 be drawn. They stand for all the others, each divided by its expected number of
draws: log(e^0.5 + e^2 / 0.6 + e^1 / 0.3 + e^2 / 0.6) - 0.5. The mean of that sum over all draws is
the full sum. The mean of its logarithm is not the full logarithm; the difference is the bias.

Functions take the `scores` (n,), the `label`, the `ids` of the draws and, where the loss asks for
them, the expected numbers of draws m q: `counts` of the classes drawn, and `own` of the label.
Numbers may be floats, with `lib=math`, or those of mpmath, as in the tests, which take 50 digits.

`samplesoft.losses` computes the same for batches, where exp does not overflow, and with gradients.
"""

import math


def others(label, ids, counts):
    """Return the draws that are not the label, each with its count."""
    return [(j, c) for j, c in zip(ids, counts, strict=True) if j != label]


# the full softmax, and samples of it --------------------------------------------------------------


def full(scores, label, lib=math):
    """Return -log p_t for p = exp(o) / sum exp(o)."""
    return lib.log(lib.fsum(lib.exp(o) for o in scores)) - scores[label]


def sampled(scores, label, ids, counts, lib=math):
    """Return the loss with the label and corrected draws in the sum.

    Rawat et al. (2019), eqs. 5 to 8: o_j - log(m q_j) is the corrected score. Draws of the label
    (accidental hits) are left out, if there are any.
    """
    drawn = [lib.exp(scores[j]) / c for j, c in others(label, ids, counts)]
    return lib.log(lib.exp(scores[label]) + lib.fsum(drawn)) - scores[label]


def sampled_gradient(scores, label, ids, counts, lib=math):
    """Return the gradient (n,) of `sampled` in the scores.

    The derivative of log S in o_k is what class k has in S, over S; that of -o_t is -1 at t.
    """
    masses = [0 * o for o in scores]
    masses[label] = lib.exp(scores[label])
    for j, c in others(label, ids, counts):
        masses[j] += lib.exp(scores[j]) / c  # once for each time that it was drawn
    total = lib.fsum(masses)
    gradient = [mass / total for mass in masses]
    gradient[label] -= 1
    return gradient


def importance(scores, label, ids, counts, lib=math):
    """Return the loss with draws alone in the sum, hits too. Bengio and Senecal (2008)."""
    drawn = [lib.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True)]
    return lib.log(lib.fsum(drawn)) - scores[label]


def reject(scores, label, ids, counts, own, lib=math):
    """Return the loss where draws of the label are thrown away, as if they had not been made.

    The k that are left are draws by q_j / (1 - q_t), so that k times it is their count. As c is
    num q_j and own is num q_t, that is k c / (num - own).
    """
    kept, num = others(label, ids, counts), len(ids)
    drawn = [lib.exp(scores[j]) / (len(kept) * c / (num - own)) for j, c in kept]
    return lib.log(lib.exp(scores[label]) + lib.fsum(drawn)) - scores[label]


def candidate(scores, label, ids, counts, own, lib=math):
    """Return the loss with the label corrected as draws are, hits too. Jean et al. (2015)."""
    drawn = [lib.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True)]
    mass = lib.exp(scores[label]) / own
    return lib.log(mass + lib.fsum(drawn)) - lib.log(mass)


def candidate_masked(scores, label, ids, counts, own, lib=math):
    """Return the same without draws of the label: TensorFlow's `remove_accidental_hits`."""
    kept = others(label, ids, counts)
    return candidate(scores, label, [j for j, _ in kept], [c for _, c in kept], own, lib)


def bilateral(scores, label, ids, counts, weight, lib=math):
    """Return weight * log of the draws' sum - o_t, or 0 without draws. Wu et al. (2024)."""
    drawn = [lib.exp(scores[j]) / c for j, c in others(label, ids, counts)]
    return weight * lib.log(lib.fsum(drawn)) - scores[label] if drawn else 0


# with less bias, or none --------------------------------------------------------------------------


def jackknife(scores, label, ids, counts, lib=math):
    """Return num L - (num - 1) * the mean of L without each draw in turn. Quenouille (1956).

    Of a bias a / num + b / num^2 + ... it leaves no a.
    """
    num, without = len(ids), []
    for i in range(num):
        fewer = [c * (num - 1) / num for c in [*counts[:i], *counts[i + 1 :]]]
        without.append(sampled(scores, label, [*ids[:i], *ids[i + 1 :]], fewer, lib))
    return num * sampled(scores, label, ids, counts, lib) - (num - 1) * lib.fsum(without) / num


def multilevel(scores, label, ids, counts, block, probability, lib=math):
    """Return the mean loss of blocks of draws, plus (whole - its halves) / probability.

    Blanchet and Glynn (2015), section 2. The number of draws is itself drawn, with this
    `probability`: blocks times 2, 4, 8, ... Their mean differences add up to the full loss less
    that of a block, so that there is no bias. An odd number of draws is compared with the full loss
    at once.
    """
    num = len(ids)

    def loss(first, last):
        part = [c * (last - first) / num for c in counts[first:last]]
        return sampled(scores, label, ids[first:last], part, lib)

    blocks = [loss(first, first + block) for first in range(0, num, block)]
    if num % 2 == 0:
        more = loss(0, num) - (loss(0, num // 2) + loss(num // 2, num)) / 2
    else:  # the ratio of the sampled sum and the full one has the mean 1
        ratio = lib.exp(loss(0, num) - full(scores, label, lib))
        more = ratio - 1 - lib.log(ratio)
    return lib.fsum(blocks) / len(blocks) + more / probability


# a logistic loss for each class -------------------------------------------------------------------


def softplus(x, lib=math):
    """Return log(1 + e^x), which is -log sigma(-x): a logistic loss."""
    return lib.log(1 + lib.exp(x))


def full_logistic(scores, label, lib=math):
    """Return the loss of a logistic regression for every class. Menon et al. (2019), section 3."""
    rest = [softplus(o, lib) for j, o in enumerate(scores) if j != label]
    return softplus(-scores[label], lib) + lib.fsum(rest)


def nce(scores, label, ids, counts, own, lib=math):
    """Return -log of the probability that the label is data, and each draw is noise.

    Gutmann and Hyvarinen (2010), section 2: data with e^o / (e^o + count).
    """
    noise = [lib.log(c / (lib.exp(scores[j]) + c)) for j, c in zip(ids, counts, strict=True)]
    return -lib.log(lib.exp(scores[label]) / (lib.exp(scores[label]) + own)) - lib.fsum(noise)


def negative_sampling(scores, label, ids, lib=math):
    """Return a logistic loss of the label and of each draw, hits too. Mikolov et al. (2013)."""
    return softplus(-scores[label], lib) + lib.fsum(softplus(scores[j], lib) for j in ids)


def gbce(scores, label, ids, calibration, lib=math):
    """Return that of others than hits, with sigma(o_t)^beta. Petrov and Macdonald (2023)."""
    # one number of `lib`, so that the quotient has its digits
    rate = lib.fsum([len(ids)]) / len(scores)  # alpha, the share of classes that are drawn
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    drawn = [softplus(scores[j], lib) for j in ids if j != label]
    return beta * softplus(-scores[label], lib) + lib.fsum(drawn)


# pairs of the label and a draw --------------------------------------------------------------------


def bpr(scores, label, ids, lib=math):
    """Return the mean of log(1 + e^(o_j - o_t)). Rendle et al. (2009), section 4.1."""
    pairs = [softplus(scores[j] - scores[label], lib) for j in ids if j != label]
    return lib.fsum(pairs) / max(1, len(pairs))


def warp(scores, label, ids, margin=1):
    """Return the hinge of the first draw within the margin, times what its rank costs.

    Weston et al. (2011), algorithm 1, of uniform draws: the whole part of (n - 1) / trials is the
    rank, and costs 1 + 1/2 + ... + 1/rank.
    """
    drawn = [j for j in ids if j != label]
    for trials, j in enumerate(drawn, start=1):
        hinge = margin + scores[j] - scores[label]
        if hinge > 0:
            rank = (len(scores) - 1) // trials
            return sum(hinge / k for k in range(1, rank + 1))
    return 0


def one_vs_each(scores, label, ids, counts, lib=math):
    """Return the sum of log(1 + e^(o_j - o_t)) / count. Titsias (2016), section 2."""
    pairs = [softplus(scores[j] - scores[label], lib) / c for j, c in others(label, ids, counts)]
    return lib.fsum(pairs)
