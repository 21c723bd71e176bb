"""The exact bias of sampled softmax for one example, as plain code: to be read, not to be used.

For example, take three classes with logits 0, 1, 2, the first of which is the label. The softmax is
p = (0.09, 0.24, 0.67). One draw from the other two classes, each with probability 1/2, gives the
sum S = e^0 + 2 e^1 or e^0 + 2 e^2, and the sampled softmax p' = (0.16, 0.84, 0) or
(0.06, 0, 0.94). The mean of p' is (0.11, 0.42, 0.47), and the bias is (0.02, 0.18, -0.20). The mean
of S is the full sum Z, but the means of log S and 1 / S are not log Z and 1 / Z.

`p'_j` is the mass of class j in S, divided by S. The gradient of the loss log S - o_t in the logits
is p' minus 1 at the label, so that the bias of p' is the bias of the gradient.

A. The definition: the mean over all n^m outcomes of the draws.
B. One integral instead of the mean, for draws that are not the label.
C. Other schemes, which differ in the base mass of S, and the weight and probability of a draw.
D. Second moments, with one more power of u in the integral.
E. Draws without replacement, as a race of exponential clocks.
F. A running estimate in place of S: a product of one integrand at many scales.

Equations (B..) are in ``README.md`` in this folder. About 11 decimals are right, if the ratios
exp(logits) / q are within a factor of 1e10 of each other. `samplesoft.exact_bias` has full
precision. (`samplesoft.check_loss` uses `mixture`, for losses that are not registered schemes.)
"""

import math
from itertools import combinations, product

import numpy as np

STEP = 0.02  # of log u; for equal ratios, the trapezoid rule has the error exp(-pi^2 / STEP), (B24)


def softmax(logits):
    """Return p = exp(o) / sum exp(o) (n,); all functions below scale exp(o) to have the sum 1."""
    e = np.exp(logits - np.max(logits))  # cannot overflow
    return e / e.sum()


def exclude_label(q, label):
    """Return the distribution (n,) of a draw from `q`, given that it is not the label."""
    others = np.where(np.arange(len(q)) == label, 0.0, q)
    return others / (others.sum() or 1.0)


def ratios(e, dist):
    """Return the ratios e / dist (n,), with 0 for classes that are never drawn."""
    return np.divide(e, dist, out=np.zeros(len(e)), where=dist > 0.0)


def quadrature_nodes(largest, smallest):
    """Return nodes u (K,) over which exp(-u S) falls from 1 to 0, for S in [smallest, largest]."""
    start = -math.log(max(largest, 1.0)) - 34.0
    stop = math.log(800.0 / min(smallest, 1.0))
    return np.exp(np.arange(start, stop, STEP))


# A. the definition --------------------------------------------------------------------------------
def bias_by_enumeration(logits, label, q, m):
    """Return E[p'] - p (n,) and E[L'] - L, as means over all outcomes of m draws of negatives."""
    p = softmax(logits)
    dist = exclude_label(q, label)
    mean_p = np.zeros(len(p))
    mean_loss = 0.0
    for ids in product(np.flatnonzero(dist), repeat=m):
        masses = np.where(np.arange(len(p)) == label, p, 0.0)
        for j in ids:
            masses[j] += p[j] / (m * dist[j])  # exp(o_j - log(m q_j))
        probability = np.prod(dist[list(ids)])
        mean_p += probability * masses / masses.sum()
        mean_loss += probability * math.log(masses.sum() / p[label])
    return mean_p - p, mean_loss + math.log(p[label])


# B. one integral ----------------------------------------------------------------------------------
def bias_of_negatives(logits, label, q, m):
    """Return E[p'] - p (n,) and E[L'] - L, as integrals over u, for m draws of negatives.

    1 / S is the integral of exp(-u S) du, (B2), and log S is Frullani's integral, (B7). Draws are
    independent, so that the mean of exp(-u S) is a product of means T, (B3). Given that one draw is
    j, exp(-u r_j / m) replaces one factor T, and m q_j r_j / m is e_j, (B4).
    """
    e = softmax(logits)
    dist = exclude_label(q, label)
    r = ratios(e, dist)
    u = quadrature_nodes(e[label] + r.max(), e[label] + r[dist > 0.0].min())

    decay = np.exp(-np.outer(u, r / m))
    transform = decay @ dist  # T
    others = np.exp(-u * e[label]) * transform ** (m - 1)

    mean_p = e * ((STEP * u * others) @ decay)  # du = u d(log u)
    mean_p[label] = e[label] * (STEP * u * others) @ transform
    return mean_p - e, STEP * np.sum(np.exp(-u) - others * transform)


# C. other schemes ---------------------------------------------------------------------------------
def mixture(products, base, u, step, expm1=np.expm1):
    """Return the terms of E[log S] at the nodes `u` (K,), E[base / S], and E[masses / S] (n,).

    E[log S] is the integral of exp(-u) - E exp(-u S) over log u, (B7). S is `base` plus the weights
    of all draws, and masses are the sums of these weights for each class. `step` is that of log u.

    `products` is a mixture of distributions of the draws: pairs (probability, factors). A factor
    (dist (n,), weights (n,), times) describes `times` independent draws, each of which is class j
    with probability dist_j and then adds w_j. With the remaining probability a draw adds nothing.
    For each distribution, the mean of exp(-u S) is a product of T = sum_j dist_j exp(-u w_j), (B3).
    For the mass of class j, the exponential of a draw of j replaces one factor T, as in (B4).

    For small u, T is close to 1, and 1 - T, on which E[log S] depends, would lose its digits. So
    T - 1 is summed directly, by `expm1`.
    """
    change = np.zeros_like(u)
    base_share = masses = 0.0
    for probability, factors in products:
        log_product = -u * base
        terms = []
        for dist, weights, times in factors:
            decay_less_1 = expm1(np.outer(-u, weights))
            t_less_1 = np.maximum(decay_less_1 @ dist, np.nextafter(-1.0, 0.0))
            log_product = log_product + times * np.log1p(t_less_1)
            terms.append((times * dist * weights, u / (1.0 + t_less_1), 1.0 + decay_less_1))

        change += probability * np.expm1(log_product)
        product_of_all = probability * step * np.exp(log_product)
        base_share += float(product_of_all @ u) * base
        for counts, u_over_t, decay in terms:
            masses = masses + counts * ((product_of_all * u_over_t) @ decay)

    return step * (np.expm1(-u) - change), base_share, masses


def bias(logits, label, q, m, scheme):
    """Return E[p'] - p (n,) and E[L'] - L for any scheme except those without replacement."""
    e = softmax(logits)
    q = np.asarray(q, dtype=float)
    name = scheme.removesuffix("_masked")

    # the label's mass in S, and exp of the label's logit in the loss
    base = exp_label_logit = e[label]
    if name == "candidate":
        base = exp_label_logit = e[label] / (m * q[label])
    if name == "importance":
        base = 0.0

    q_label = q[label]
    if scheme in ("negatives", "jackknife", "reject"):
        q = exclude_label(q, label)
    elif scheme not in ("candidate", "importance"):  # an accidental hit has weight 0
        q = np.where(np.arange(len(e)) == label, 0.0, q)
    r = ratios(e, q)

    products = [(1.0, [(q, r / m, m)])]
    if name == "jackknife":  # (B13)
        products = [(m, products[0][1]), (1 - m, [(q, r / (m - 1), m - 1)])]
    if scheme == "reject":  # K accepted draws, a binomial number, (B10)
        probs = [math.comb(m, k) * (1.0 - q_label) ** k * q_label ** (m - k) for k in range(m + 1)]
        products = [(p, [(q, r / max(k, 1), k)]) for k, p in enumerate(probs) if p > 0.0]
    if scheme == "poisson":  # class j is in S with probability q_j, independently, (B26)
        products = [(1.0, [(q * is_j, r, 1) for is_j in np.eye(len(e))])]

    u = quadrature_nodes(base + max(m * r.max(), r.sum()), base or r[q > 0.0].min())
    log_terms, label_share, mean_p = mixture(products, base, u, STEP)
    mean_p[label] += label_share
    return mean_p - e, log_terms.sum() - math.log(exp_label_logit) + math.log(e[label])


# D. second moments --------------------------------------------------------------------------------
def mean_square(logits, label, q, m, vectors):
    """Return E |sum_j p'_j c_j - sum_j p_j c_j|^2 for class vectors c = `vectors` (n, d).

    The m draws are not the label (scheme ``negatives``). 1 / S^2 is the integral of u exp(-u S) du.
    In the square, a product of two different draws has two exponentials in place of factors T, and
    the square of one draw has one exponential: (B28).
    """
    e = softmax(logits)
    dist = exclude_label(q, label)
    c = vectors - e @ vectors  # centred, so that sum_j p_j c_j = 0
    r = ratios(e, dist)
    u = quadrature_nodes(e[label] + r.max(), e[label] + r[dist > 0.0].min())

    decay = np.exp(-np.outer(u, r / m))
    psi = decay / (decay @ dist)[:, None]
    theta = np.exp(-u * e[label]) * (decay @ dist) ** m

    drawn = (psi * e * (dist > 0.0)) @ c
    same = (psi * e * r) @ np.sum(c**2, axis=1) - np.sum(drawn**2, axis=1)
    square = np.sum((e[label] * c[label] + drawn) ** 2, axis=1) + same / m
    return float((STEP * u * u * theta) @ square)


# E. draws without replacement ---------------------------------------------------------------------
def set_probabilities(q, m):
    """Yield every set of m classes, and the probability that m draws without replacement give it.

    Give each class j a clock that rings after an exponential time of rate q_j. The first m classes
    to ring have the distribution of such draws, because exponential clocks have no memory: among
    the clocks that have not rung, j is next with probability q_j divided by the sum of their rates.
    Condition on the time t at which the last class of the set rings: the other classes of the set
    have rung before t, and all classes outside the set ring after t.
    """
    q = np.asarray(q, dtype=float)
    t = np.exp(np.arange(-34.0 - math.log(q.max()), math.log(800.0 / q.min()), STEP))
    rung = -np.expm1(-np.outer(t, q))
    t_last = q * np.exp(-np.outer(t, q))  # densities of the time at which each clock rings

    for chosen in combinations(range(len(q)), m):
        late = np.exp(-t * (np.sum(q) - np.sum(q[list(chosen)])))
        density = np.zeros(len(t))
        for last in chosen:
            before = [j for j in chosen if j != last]
            density += t_last[:, last] * rung[:, before].prod(axis=1)
        yield chosen, float((STEP * t) @ (density * late))


# F. a running estimate ---------------------------------------------------------------------------
def bias_of_moving_average(logits, label, q, m, gamma):
    """Return the bias (n,) of the gradient in the logits, if U replaces S, in the long run.

    U <- (1 - gamma) U + gamma S at each visit. So U is a sum of gamma (1 - gamma)^i S_i over the
    visits, i = 0 being the newest, and E exp(-y U) is the product of E exp(-u S) at the scales
    u = y gamma (1 - gamma)^i, (B89). In log u they are equidistant: with a step that divides their
    distance, each product is the product `lag` nodes before, times one factor. The gradient of
    class j is its mass in the newest S, divided by U.
    """
    e = softmax(logits)
    dist = exclude_label(q, label)
    r = ratios(e, dist)
    distance = -math.log(1.0 - gamma)
    lag = math.ceil(distance / STEP)
    step = distance / lag
    start = -math.log(e[label] + r.max()) - 34.0
    stop = math.log(800.0 / (e[label] + r[dist > 0.0].min()))
    u = np.exp(np.arange(start, stop, step))  # y gamma

    decay = np.exp(-np.outer(u, r / m))
    transform = decay @ dist  # T
    log_product = -u * e[label] + m * np.log(transform)
    for k in range(len(u)):  # the visits before; at the first nodes they give exp(-(1 - gamma) y)
        log_product[k] += log_product[k - lag] if k >= lag else -u[k] * (1.0 - gamma) / gamma

    weights = step * (u / gamma) * np.exp(log_product) / transform  # dy = y d(log y)
    gradient = e * (weights @ decay)
    gradient[label] = 0.0
    gradient[label] = -gradient.sum()
    e[label] -= 1.0
    return gradient - e
