"""The exact bias of sampled softmax, of one example: to be read, not to be used.

Three classes with logits 0, 1, 2, of which the first is the label. The softmax is p = (0.09, 0.24,
0.67). One draw among the others, each with the chance 1/2, gives the sum S = e^0 + 2 e^1 or e^0 + 2
e^2, and the softmax p' = (0.16, 0.84, 0) or (0.06, 0, 0.94). The mean of p' is (0.11, 0.42, 0.47),
and the bias (0.02, 0.18, -0.20). The mean of S is the full sum; those of log S and 1 / S are not.

`p'_j` is what class j has in S, over S. The derivatives of the loss log S - o_t in the logits are
p' less 1 at the label, so that the bias of p' is that of the gradient.

1. The definition: the mean over all outcomes of the draws. There are n^m.
2. One integral in its place, for draws that are not the label.
3. Other schemes: what S has for certain, what a draw adds, how likely it is.
4. Second moments, from one power of u more.
5. Draws without replacement, by a race of clocks.

Equations (B..) are those of ``README.md`` beside this file. `samplesoft.exact_bias` computes the
same with every digit, for millions of classes and logits of any size: it subtracts nothing from
what is near it, and its nodes fit the problem. Here some 11 digits behind the point are right, for
ratios exp(logits) / q within a factor of 1e10 or so.
"""

import math
from itertools import combinations, product

import numpy as np

STEP = 0.02  # of log u: the trapezoid rule errs by exp(-pi^2 / STEP) where ratios are alike, (B24)


def softmax(logits):
    """Return p = exp(o) / sum exp(o); from here on exp(o) is in units in which its sum is 1."""
    e = np.exp(logits - np.max(logits))  # which cannot overflow
    return e / e.sum()


def without(q, label):
    """Return the distribution of a draw given that it is not the label."""
    others = np.where(np.arange(len(q)) == label, 0.0, q)
    return others / others.sum()


def nodes(largest, least):
    """Return u (K,) from where nothing has decayed to where all has, for S between two numbers."""
    start, stop = -math.log(max(largest, 1.0)) - 34.0, math.log(800.0 / min(least, 1.0))
    return np.exp(np.arange(start, stop, STEP))


# 1. the definition --------------------------------------------------------------------------------


def bias_by_enumeration(logits, label, q, m):
    """Return E[p'] - p (n,) and E[L'] - L for m draws that are not the label, over all n^m."""
    p, law = softmax(logits), without(q, label)
    mean_p, mean_loss = np.zeros(len(p)), 0.0
    for ids in product(np.flatnonzero(law), repeat=m):
        chance = np.prod(law[list(ids)])
        masses = np.zeros(len(p))
        masses[label] = p[label]
        for j in ids:
            masses[j] += p[j] / (m * law[j])  # o_j - log(m q_j), as a factor
        mean_p += chance * masses / masses.sum()
        mean_loss += chance * math.log(masses.sum() / p[label])
    return mean_p - p, mean_loss + math.log(p[label])


# 2. one integral ----------------------------------------------------------------------------------


def bias_of_negatives(logits, label, q, m):
    """Return the same by 1 / S = integral of exp(-u S) du, (B2), and Frullani's for log S, (B7).

    Draws are independent, so that the mean of exp(-u S) is a product of means, (B3). One draw of j
    leaves exp(-u r_j / m) in the place of one factor T, and m q_j r_j / m is e_j, (B4).
    """
    e, law = softmax(logits), without(q, label)
    r = np.divide(e, law, out=np.zeros(len(e)), where=law > 0.0)
    u = nodes(e[label] + r.max(), e[label] + r[law > 0.0].min())
    decay = np.exp(-np.outer(u, r / m))
    transform = decay @ law  # T
    rest = np.exp(-u * e[label]) * transform ** (m - 1)
    mean_p = e * ((STEP * u * rest) @ decay)  # du = u d(log u)
    mean_p[label] = e[label] * (STEP * u * rest) @ transform
    return mean_p - e, STEP * np.sum(np.exp(-u) - rest * transform)


# 3. other schemes ---------------------------------------------------------------------------------


def bias_of_draws(logits, label, law, weights, m, base, own):
    """Return the same where S = base + the weights (n,) of m draws by `law` (n,).

    What the law lacks of 1 are draws that add nothing. The loss is log S - log own.
    """
    e, drawn = softmax(logits), law > 0.0
    nothing = 1.0 - law.sum() if law.sum() < 1.0 - 1e-12 else 0.0
    least = 0.0 if nothing else m * weights[drawn].min()
    u = nodes(base + m * weights.max(), base + least)
    decay = np.exp(-np.outer(u, weights))
    transform = decay @ law + nothing
    rest = np.exp(-u * base) * transform ** (m - 1)
    mean_p = m * law * weights * ((STEP * u * rest) @ decay)
    mean_p[label] += base * (STEP * u * rest) @ transform
    log_sum = STEP * np.sum(np.exp(-u) - rest * transform)
    return mean_p - e, log_sum - math.log(own) + math.log(e[label])


def bias(logits, label, q, m, scheme):
    """Return the bias of a scheme with replacement, of its jackknife, or of `poisson`."""
    e, q = softmax(logits), np.asarray(q, dtype=float)
    if scheme.startswith("jackknife"):  # (B13)
        plain = "masked" if scheme.endswith("masked") else "negatives"
        whole, fewer = (bias(logits, label, q, k, plain) for k in (m, m - 1))
        return tuple(m * a - (m - 1) * b for a, b in zip(whole, fewer, strict=True))
    if scheme == "poisson":
        return bias_of_inclusion(logits, label, q)
    if scheme == "reject":  # of K draws that are kept, as many as not, (B10)
        mean = np.array([*-e, math.log(e[label])]) * q[label] ** m  # K = 0: p' is 1 at the label
        mean[label] += q[label] ** m
        for k in range(1, m + 1):
            chance = math.comb(m, k) * (1.0 - q[label]) ** k * q[label] ** (m - k)
            if chance:
                mean += chance * np.append(*bias_of_negatives(logits, label, q, k))
        return mean[:-1], mean[-1]
    corrects, draws_label = scheme.startswith("candidate"), scheme in ("candidate", "importance")
    law = without(q, label) if scheme == "negatives" else q.copy()
    divisors = m * law
    if not draws_label:  # a hit has no weight
        law[label] = 0.0
    weights = np.divide(e, divisors, out=np.zeros(len(e)), where=law > 0.0)
    own = e[label] / (m * q[label]) if corrects else e[label]
    base = 0.0 if scheme == "importance" else own
    return bias_of_draws(logits, label, law, weights, m, base, own)


def bias_of_inclusion(logits, label, pi):
    """Return the bias where each class j is in S with the chance pi_j, for itself: (B26)."""
    e, pi = softmax(logits), np.where(np.arange(len(pi)) == label, 0.0, pi)
    w = np.divide(e, pi, out=np.zeros(len(e)), where=pi > 0.0)
    u = nodes(e[label] + w.sum(), e[label])
    decay = np.exp(-np.outer(u, w))
    factors = 1.0 - pi + pi * decay
    product_of_all = np.exp(-u * e[label]) * factors.prod(axis=1)
    share = np.divide(decay, factors, out=np.zeros_like(decay), where=factors > 0.0)
    mean_p = e * ((STEP * u * product_of_all) @ share)
    mean_p[label] = e[label] * (STEP * u * product_of_all).sum()
    return mean_p - e, STEP * np.sum(np.exp(-u) - product_of_all)


# 4. second moments --------------------------------------------------------------------------------


def mean_square(logits, label, q, m, vectors):
    """Return E |sum_j p'_j c_j - sum_j p_j c_j|^2 for draws that are not the label.

    1 / S^2 is the integral of u exp(-u S) du. Of two draws both leave their exponential, and where
    they are one draw, only once: (B28).
    """
    e, law = softmax(logits), without(q, label)
    c = vectors - e @ vectors  # so that the sum over p is 0
    r = np.divide(e, law, out=np.zeros(len(e)), where=law > 0.0)
    u = nodes(e[label] + r.max(), e[label] + r[law > 0.0].min())
    decay = np.exp(-np.outer(u, r / m))
    psi = decay / (decay @ law)[:, None]
    theta = np.exp(-u * e[label]) * (decay @ law) ** m
    drawn = (psi * e * (law > 0.0)) @ c
    same = (psi * e * r) @ np.sum(c**2, axis=1) - np.sum(drawn**2, axis=1)
    square = np.sum((e[label] * c[label] + drawn) ** 2, axis=1) + same / m
    return float((STEP * u * u * theta) @ square)


# 5. draws without replacement ---------------------------------------------------------------------


def set_probabilities(q, m):
    """Yield every set of m classes that are drawn in turn, each with its probability.

    Give each class a clock that rings after an exponential time with the rate q_j. The first m to
    ring are such draws, for clocks forget: of those that have not rung, j is next with q_j over
    the sum. If the last of the set rings at t, the others rang before, and the rest did not.
    """
    q = np.asarray(q, dtype=float)
    t = np.exp(np.arange(-34.0 - math.log(q.max()), math.log(800.0 / q.min()), STEP))
    rung = -np.expm1(-np.outer(t, q))
    t_last = q * np.exp(-np.outer(t, q))  # densities of a ring at t
    for chosen in combinations(range(len(q)), m):
        late = np.exp(-t * (np.sum(q) - np.sum(q[list(chosen)])))
        density = np.zeros(len(t))
        for last in chosen:
            before = [j for j in chosen if j != last]
            density += t_last[:, last] * rung[:, before].prod(axis=1)
        yield chosen, float((STEP * t) @ (density * late))
