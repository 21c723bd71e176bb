"""Slow, independent oracles for samplers; nothing here comes from samplesoft."""

from functools import cache
from math import exp, log

import numpy as np
from mpmath import mp, mpf
from scipy import stats

from oracles import naive_draws, tree_cases


def conditional(weights, excluded=None):
    """Probabilities of one draw, as mpf; `excluded` is never drawn."""
    w = [mpf(0) if j == excluded else mpf(float(x)) for j, x in enumerate(weights)]
    total = mp.fsum(w)
    return [x / total for x in w]


def zipf(n):
    """TensorFlow's formula for its log-uniform sampler."""
    return [(log(k + 2) - log(k + 1)) / log(n + 1) for k in range(n)]


def unigram(counts, power):
    least = min(c for c in counts if c > 0)
    return conditional([(c if c > 0 else least / 2) ** power for c in counts])


def sequences(weights, m, excluded=None):
    """Probability of every ordered sample of m, drawn in turn without replacement."""
    w = [mpf(0) if j == excluded else mpf(float(x)) for j, x in enumerate(weights)]
    found = {}

    def draw(taken, prob):
        if len(taken) == m:
            found[taken] = prob
            return
        rest = mp.fsum(x for j, x in enumerate(w) if j not in taken)
        for j, x in enumerate(w):
            if j not in taken and x > 0:
                draw((*taken, j), prob * x / rest)

    draw((), mpf(1))
    return found


def inclusion_by_sets(weights, m, excluded=None):
    """Inclusion probabilities by a recursion over all sets of classes not yet drawn."""
    w = [mpf(0) if j == excluded else mpf(float(x)) for j, x in enumerate(weights)]
    n = len(w)
    rest = {}

    @cache
    def mass(left):
        return mp.fsum(w[j] for j in range(n) if left >> j & 1)

    rest[sum(1 << j for j in range(n) if w[j] > 0)] = mpf(1)
    for _ in range(m):
        following = {}
        for left, prob in rest.items():
            for j in range(n):
                if left >> j & 1:
                    after = left & ~(1 << j)
                    following[after] = following.get(after, mpf(0)) + prob * w[j] / mass(left)
        rest = following
    pi = [mp.fsum(prob for left, prob in rest.items() if not left >> j & 1) for j in range(n)]
    return [mpf(0) if w[j] == 0 else pi[j] for j in range(n)]


def inclusion_by_clocks(weights, m, nodes=6000):
    """Inclusion probabilities (n,) from the Poisson-binomial law, by plain recursion in floats.

    A trapezoid sum in log t over all times in which anything happens.
    """
    w = np.asarray(weights, dtype=np.float64)
    w = w / w.sum()
    x = np.linspace(-45.0 - np.log(w.max()), 5.0 - np.log(w.min()), nodes)
    t = np.exp(x)
    pi = np.zeros(len(w))
    for i in range(len(w)):
        law = np.zeros((m, nodes))  # of how many others have rung, up to m - 1
        law[0] = 1.0
        for j in range(len(w)):
            if j != i:
                p = -np.expm1(-w[j] * t)
                law[1:] = law[1:] * (1.0 - p) + law[:-1] * p
                law[0] *= 1.0 - p
        terms = w[i] * t * np.exp(-w[i] * t) * law.sum(axis=0)
        pi[i] = np.trapezoid(terms, x)
    return pi


def chi_square(counts, probs):
    """p-value of counts against probabilities; bins of fewer than 5 expected are merged.

    A count where the probability is 0 gives 0.
    """
    counts, probs = np.asarray(counts, dtype=float), np.asarray(probs, dtype=float)
    if counts[probs == 0.0].any():
        return 0.0
    order = np.argsort(probs)[::-1]
    counts, expected = counts[order], counts.sum() * probs[order]
    large = int((expected >= 5.0).sum())
    if expected[large:].sum() < 5.0:
        large -= 1
    observed = np.append(counts[:large], counts[large:].sum())
    wanted = np.append(expected[:large], expected[large:].sum())
    if len(wanted) == 1:
        return 1.0
    statistic = ((observed - wanted) ** 2 / wanted)[wanted > 0.0].sum()
    return float(stats.chi2.sf(statistic, len(wanted) - 1))


# by the names of the registry: probabilities of all classes for one context, from the sampler (only
# for what it has drawn at random: features, candidates), the context, a SamplerInputs, and the
# excluded class or None


def _uniform(sampler, h, inputs, excluded):
    return conditional([1.0] * len(inputs.counts), excluded)


def _log_uniform(sampler, h, inputs, excluded):
    law = zipf(len(inputs.counts))
    before = [
        sum(d > c or (d == c and j < i) for j, d in enumerate(inputs.counts))
        for i, c in enumerate(inputs.counts)
    ]
    return conditional([law[rank] for rank in before], excluded)


def _unigram(sampler, h, inputs, excluded):
    return conditional([c**inputs.power for c in inputs.counts], excluded)


def _learned_unigram(sampler, h, inputs, excluded):
    return conditional([(c + 1.0) ** inputs.power for c in inputs.counts], excluded)


def _softmax(sampler, h, inputs, excluded):
    return naive_draws.softmax(h, inputs.class_embeddings, inputs.tau, excluded)


def _quadratic(sampler, h, inputs, excluded):
    alpha = inputs.alpha * inputs.tau**2
    return naive_draws.quadratic(h, inputs.class_embeddings, alpha, excluded)


def _tree(sampler, h, inputs, excluded, **settings):
    phi, rows = sampler.feature_map.transform, inputs.class_embeddings
    settings = {"leaf_size": sampler.tree.leaf_size, **settings}
    q = tree_cases.probabilities(
        h, rows, phi(h)[0], phi(rows), exclude=excluded, scale=inputs.tau, **settings
    )
    return [tree_cases.real(x) for x in q]


def _rff(sampler, h, inputs, excluded):
    floor = exp(-2.0 * inputs.nu)
    return _tree(sampler, h, inputs, excluded, leaf_size=1, floor=floor)


def _rff_softmax_leaf(sampler, h, inputs, excluded):
    floor = exp(-2.0 * inputs.nu)
    return _tree(sampler, h, inputs, excluded, kind="softmax", floor=floor)


def _positive(sampler, h, inputs, excluded):
    return _tree(sampler, h, inputs, excluded, floor=exp(-inputs.tau))


def _clusters(sampler, h, inputs, excluded):
    cells = [[list(map(int, cell)) for cell in level] for level in sampler.cells()]
    return naive_draws.clusters(h, inputs.class_embeddings, cells, inputs.tau, excluded)


def _lsh(sampler, h, inputs, excluded):
    rows, share = inputs.class_embeddings, sampler.uniform_share
    return naive_draws.lsh(h, rows, sampler.directions, share, excluded)


def _two_pass(sampler, h, inputs, excluded):
    candidates = sampler.candidate_ids
    return naive_draws.two_pass(h, inputs.class_embeddings, candidates, inputs.tau, excluded)


def _mixture(sampler, h, inputs, excluded):
    first = _rff_softmax_leaf(sampler.first, h, inputs, excluded)
    return naive_draws.mixture(first, _unigram(sampler.second, h, inputs, excluded), 0.5)


def metropolis_law(logits, q, steps, start=None):
    """Law after some steps of independent Metropolis-Hastings, by its matrix, and the softmax.

    It starts at a class, or from a law; from q if that is None.
    """
    q, n = conditional(q), len(q)
    p = naive_draws.normalised([mp.exp(x if isinstance(x, mpf) else float(x)) for x in logits])
    matrix = mp.zeros(n)
    for i in range(n):
        for j in range(n):
            if i != j:
                matrix[i, j] = q[j] * min(mpf(1), (p[j] * q[i]) / (q[j] * p[i]))
        matrix[i, i] = 1 - mp.fsum(matrix[i, j] for j in range(n) if j != i)
    if start is None:
        law = q
    else:
        law = conditional(start if np.ndim(start) else np.arange(n) == start)
    after = mp.matrix([law]) * matrix**steps
    return [after[0, j] for j in range(n)], p


def _metropolis(sampler, h, inputs, excluded):
    with mp.workdps(60):
        logits = [mpf(inputs.tau) * naive_draws.inner(h, c) for c in inputs.class_embeddings]
        q = [mpf(float(c)) ** mpf(inputs.power) for c in inputs.counts]
        return naive_draws.normalised(metropolis_law(logits, q, 10)[0], excluded)


ORACLES = {
    "uniform": _uniform,
    "log-uniform": _log_uniform,
    "unigram": _unigram,
    "learned-unigram": _learned_unigram,
    "streaming-unigram": _learned_unigram,
    "softmax": _softmax,
    "quadratic": _quadratic,
    "rff": _rff,
    "rff:orthogonal": _rff,
    "rff:structured": _rff,
    "rff+softmax-leaf": _rff_softmax_leaf,
    "positive": _positive,
    "clusters": _clusters,
    "lsh": _lsh,
    "metropolis": _metropolis,
    "two-pass": _two_pass,
    "mixture": _mixture,
}
