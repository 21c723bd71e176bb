"""The losses as in their papers, for one example and its draws: to be read, not to be used.

An example has scores o_0, ..., o_(n-1), one for each class, and a label t. Five classes:

    class             0      1      2      3      4
    score  o         0.5   -1.0    2.0    0.0    1.0       output of the model
    q                0.4    0.1    0.2    0.2    0.1       probability of one draw
    m q, for m = 3   1.2    0.3    0.6    0.6    0.3       expected count in m draws

The full softmax loss needs all classes: log(e^0.5 + e^-1 + e^2 + e^0 + e^1) - o_t. Let the label be
0 and the draws 2, 4 and 2. The draws represent all other classes, each divided by its expected
count: log(e^0.5 + e^2 / 0.6 + e^1 / 0.3 + e^2 / 0.6) - 0.5. The mean of that sum over all draws is
the full sum. The mean of its logarithm is not the full logarithm; the difference is the bias.

Functions take the `scores` (n,), the `label` and the `ids` of the draws. Some also take expected
counts m q: `counts` of the draws, and `label_count` of the label. Draws of the label are accidental
hits, or hits for short. Values are floats for `lib=math`, or mpmath numbers, as in the tests, which
use 50 digits.

`samplesoft.losses` computes the same for batches, without overflow, and with gradients.
"""

import math


def draws_without_label(label, ids, counts):
    """Return (class, expected count) for each draw that is not the label."""
    return [(j, c) for j, c in zip(ids, counts, strict=True) if j != label]


# the full softmax, and samples of it --------------------------------------------------------------


def full(scores, label, lib=math):
    """Return -log p_t for p = exp(o) / sum exp(o)."""
    return lib.log(lib.fsum(lib.exp(o) for o in scores)) - scores[label]


def sampled(scores, label, ids, counts, lib=math):
    """Return the sampled softmax loss: label and corrected draws are in the sum.

    Rawat et al. (2019), eqs. 5 to 8: o_j - log(m q_j) is the corrected score. Accidental hits are
    left out.
    """
    drawn = [lib.exp(scores[j]) / c for j, c in draws_without_label(label, ids, counts)]
    return lib.log(lib.exp(scores[label]) + lib.fsum(drawn)) - scores[label]


def sampled_gradient(scores, label, ids, counts, lib=math):
    """Return the gradient (n,) of `sampled` in the scores.

    The derivative of log S in o_k is the mass of class k over S. The derivative of -o_t is -1 at t.
    """
    masses = [0 * o for o in scores]
    masses[label] = lib.exp(scores[label])
    for j, c in draws_without_label(label, ids, counts):
        masses[j] += lib.exp(scores[j]) / c  # once for each time that it was drawn
    total = lib.fsum(masses)
    gradient = [mass / total for mass in masses]
    gradient[label] -= 1
    return gradient


def importance(scores, label, ids, counts, lib=math):
    """Return the loss whose sum has only draws, hits included. Bengio and Senecal (2008)."""
    drawn = [lib.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True)]
    return lib.log(lib.fsum(drawn)) - scores[label]


def reject(scores, label, ids, counts, label_count, lib=math):
    """Return the loss that discards draws of the label.

    The k accepted draws have distribution q_j / (1 - q_t) and expected count k q_j / (1 - q_t).
    With c = m q_j and label_count = m q_t, that is k c / (m - label_count).
    """
    m = len(ids)
    accepted = draws_without_label(label, ids, counts)
    drawn = [lib.exp(scores[j]) / (len(accepted) * c / (m - label_count)) for j, c in accepted]
    return lib.log(lib.exp(scores[label]) + lib.fsum(drawn)) - scores[label]


def candidate(scores, label, ids, counts, label_count, lib=math):
    """Return the loss that corrects label and draws, hits included. Jean et al. (2015)."""
    drawn = [lib.exp(scores[j]) / c for j, c in zip(ids, counts, strict=True)]
    mass = lib.exp(scores[label]) / label_count
    return lib.log(mass + lib.fsum(drawn)) - lib.log(mass)


def candidate_masked(scores, label, ids, counts, label_count, lib=math):
    """Return the loss `candidate` without hits: TensorFlow's `remove_accidental_hits`."""
    draws = draws_without_label(label, ids, counts)
    return candidate(scores, label, [j for j, _ in draws], [c for _, c in draws], label_count, lib)


def bilateral(scores, label, ids, counts, weight, lib=math):
    """Return weight * log(sum of the draws) - o_t; 0 if all draws are hits. Wu et al. (2024)."""
    drawn = [lib.exp(scores[j]) / c for j, c in draws_without_label(label, ids, counts)]
    return weight * lib.log(lib.fsum(drawn)) - scores[label] if drawn else 0


# with less bias, or none --------------------------------------------------------------------------


def jackknife(scores, label, ids, counts, lib=math):
    """Return m L - (m - 1) * mean of L_i, where L_i leaves out draw i. Quenouille (1956).

    L is the loss `sampled` of m draws. This removes the first term of its bias, a/m + b/m^2 + ...
    """
    m = len(ids)
    losses = []  # the L_i
    for i in range(m):
        counts_without_i = [c * (m - 1) / m for c in [*counts[:i], *counts[i + 1 :]]]
        losses.append(sampled(scores, label, [*ids[:i], *ids[i + 1 :]], counts_without_i, lib))
    return m * sampled(scores, label, ids, counts, lib) - (m - 1) * lib.fsum(losses) / m


def multilevel(scores, label, ids, counts, block, probability, lib=math):
    """Return the mean loss of blocks of draws, plus a difference divided by its probability.

    Blanchet and Glynn (2015), section 2. The difference is the loss of all draws minus the mean
    loss of two halves. The number of blocks is random, 2, 4, 8, ...; `probability` is the
    probability of the number that was drawn. The expected differences sum to the full loss minus
    the expected loss of a block: there is no bias. For an odd number of draws, the difference is
    from the full loss.
    """
    m = len(ids)

    def loss(start, stop):
        block_counts = [c * (stop - start) / m for c in counts[start:stop]]
        return sampled(scores, label, ids[start:stop], block_counts, lib)

    blocks = [loss(start, start + block) for start in range(0, m, block)]
    if m % 2 == 0:
        correction = loss(0, m) - (loss(0, m // 2) + loss(m // 2, m)) / 2
    else:  # full loss - loss of all draws + (ratio - 1), where ratio - 1 has mean 0
        ratio = lib.exp(loss(0, m) - full(scores, label, lib))
        correction = ratio - 1 - lib.log(ratio)
    return lib.fsum(blocks) / len(blocks) + correction / probability


def moving_average(scores, label, ids, counts, average, gamma, lib=math):
    """Return the new average U, and the gradient (n,) divided by it. Yuan et al. (2022): SogCLR.

    S is the sum over label and draws, over e^o_t: the loss `sampled` is log S, and the gradient of
    log S is divided by S. Here S is divided by a running average U instead, which is None for a new
    example. SCENT, Wei et al. (2026), has gamma = alpha U / (1 + alpha U) with the old U.
    """
    total = lib.exp(sampled(scores, label, ids, counts, lib))
    average = total if average is None else (1 - gamma) * average + gamma * total
    gradient = sampled_gradient(scores, label, ids, counts, lib)
    return average, [total / average * derivative for derivative in gradient]


# a logistic loss for each class -------------------------------------------------------------------


def softplus(x, lib=math):
    """Return the logistic loss log(1 + e^x) = -log sigma(-x)."""
    return lib.log(1 + lib.exp(x))


def full_logistic(scores, label, lib=math):
    """Return the loss of a logistic regression for every class. Menon et al. (2019), section 3."""
    negatives = [softplus(o, lib) for j, o in enumerate(scores) if j != label]
    return softplus(-scores[label], lib) + lib.fsum(negatives)


def nce(scores, label, ids, counts, label_count, lib=math):
    """Return -log of the probability that the label is data, and each draw is noise.

    Gutmann and Hyvarinen (2010), section 2: the probability of data is e^o / (e^o + count).
    """
    noise = [lib.log(c / (lib.exp(scores[j]) + c)) for j, c in zip(ids, counts, strict=True)]
    return -lib.log(lib.exp(scores[label]) / (lib.exp(scores[label]) + label_count)) - lib.fsum(
        noise
    )


def negative_sampling(scores, label, ids, lib=math):
    """Return the sum of logistic losses of label and draws, with hits. Mikolov et al. (2013)."""
    return softplus(-scores[label], lib) + lib.fsum(softplus(scores[j], lib) for j in ids)


def gbce(scores, label, ids, calibration, lib=math):
    """Return negative sampling without hits, with sigma(o_t)^beta. Petrov and Macdonald (2023)."""
    # `fsum` converts the count to a number of `lib`, so that the quotient has its precision
    rate = lib.fsum([len(ids)]) / len(scores)  # alpha, expected count of a class
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    drawn = [softplus(scores[j], lib) for j in ids if j != label]
    return beta * softplus(-scores[label], lib) + lib.fsum(drawn)


# pairs of the label and a draw --------------------------------------------------------------------


def bpr(scores, label, ids, lib=math):
    """Return the mean over draws of log(1 + e^(o_j - o_t)). Rendle et al. (2009), section 4.1."""
    pairs = [softplus(scores[j] - scores[label], lib) for j in ids if j != label]
    return lib.fsum(pairs) / max(1, len(pairs))


def warp(scores, label, ids, margin=1):
    """Return the hinge of the first draw within the margin, times the weight of its rank.

    Weston et al. (2011), algorithm 1, for uniform draws: if the draw is the N-th, hits not counted,
    the estimated rank is floor((n - 1) / N), and its weight is 1 + 1/2 + ... + 1/rank.
    """
    drawn = [j for j in ids if j != label]
    for trials, j in enumerate(drawn, start=1):
        hinge = margin + scores[j] - scores[label]
        if hinge > 0:
            rank = (len(scores) - 1) // trials
            return sum(hinge / k for k in range(1, rank + 1))
    return 0


def one_vs_each(scores, label, ids, counts, lib=math):
    """Return the sum over draws of log(1 + e^(o_j - o_t)) / count. Titsias (2016), section 2."""
    pairs = [
        softplus(scores[j] - scores[label], lib) / c
        for j, c in draws_without_label(label, ids, counts)
    ]
    return lib.fsum(pairs)
