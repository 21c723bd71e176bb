"""Slow, independent oracles for the bias core; nothing here comes from samplesoft."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import factorial

import numpy as np
from mpmath import mp, mpf

SCHEMES = (
    "negatives",
    "masked",
    "reject",
    "candidate",
    "candidate_masked",
    "importance",
    "poisson",
    "jackknife",
    "jackknife_masked",
)
JACKKNIFED = {
    "jackknife": "negatives",
    "jackknife_masked": "masked",
}


def combination(m):
    """(number of draws, weight) of each mean in a jackknife; the weights add up to 1."""
    return [(m, m), (m - 1, 1 - m)]


def softmax(logits):
    """Probabilities (n,) as a list of mpf at the working precision."""
    logits = [o if isinstance(o, mpf) else mpf(float(o)) for o in logits]
    top = max(logits)
    e = [mp.exp(o - top) for o in logits]
    return [x / mp.fsum(e) for x in e]


def l1_error(got, exact):
    """Sum of |got - exact| for floats `got` and mpf `exact`, and the sum of |exact|, as mpf."""
    with mp.workdps(1700):
        wrong = mp.fsum(abs(mpf(float(x)) - y) for x, y in zip(got, exact, strict=True))
        return wrong, mp.fsum(abs(y) for y in exact)


def _normalise(q, skip=None):
    """`q` as mpf divided by its exact sum, `skip` left out."""
    q = [mpf(0) if j == skip else mpf(float(x)) for j, x in enumerate(q)]
    total = mp.fsum(q)
    return [x / total for x in q] if total else q


def _spec(logits, label, q, m, scheme):
    """(base mass, draw probabilities, weights of a draw), in units where sum(e) = 1."""
    p = softmax(logits)
    ratio = lambda e, x: e / x if x else mpf(0)  # noqa: E731
    if scheme == "poisson":
        pi = [mpf(0) if j == label else min(mpf(float(x)), mpf(1)) for j, x in enumerate(q)]
        return p[label], pi, [ratio(e, x) for e, x in zip(p, pi, strict=True)]
    if scheme in ("negatives", "reject"):  # for `reject`, m is the number of draws kept
        qn = _normalise(q, skip=label)
        return p[label], qn, [ratio(e, x) / m for e, x in zip(p, qn, strict=True)]
    q = _normalise(q)
    w = [ratio(e, x) / m for e, x in zip(p, q, strict=True)]
    corrected = w[label]
    base = {
        "importance": mpf(0),
        "masked": p[label],
        "candidate": corrected,
        "candidate_masked": corrected,
    }[scheme]
    if scheme in ("masked", "candidate_masked"):
        w[label] = mpf(0)
    return base, q, w


def _counts(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of `parts` nonnegative integers."""
    for bars in combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        yield tuple(edges[i + 1] - edges[i] - 1 for i in range(parts))


def _outcomes(logits, label, q, m, scheme):
    """Yield (probability, p' (n,), loss) for every outcome of the draws."""
    n = len(logits)
    log_p_label = mp.log(softmax(logits)[label])

    def outcome(chance, base, counts, w):
        mass = [c * x for c, x in zip(counts, w, strict=True)]
        mass[label] += base
        total = mp.fsum(mass)
        loss = mp.log(total) - (mp.log(base) if base else log_p_label)
        return chance, [x / total for x in mass], loss

    if scheme == "poisson":
        base, pi, w = _spec(logits, label, q, m, scheme)
        choices = [(0,) if j == label else (0, 1) for j in range(n)]
        for counts in product(*choices):
            chance = mp.fprod(x if c else 1 - x for c, x in zip(counts, pi, strict=True))
            yield outcome(chance, base, counts, w)
        return
    draw_from = q if scheme != "negatives" else [0 if j == label else q[j] for j in range(n)]
    probs = _normalise(draw_from)
    for counts in _counts(m, n):
        chance = mpf(factorial(m))
        for c, x in zip(counts, probs, strict=True):
            chance *= x**c / factorial(c)
        if not chance:
            continue
        kept = m - counts[label] if scheme == "reject" else m
        base, _, w = _spec(logits, label, q, max(kept, 1), scheme)
        yield outcome(chance, base, counts, w)


def _jackknifed(logits, label, q, m, scheme):
    """Yield (probability, jackknifed p' (n,)) for every outcome of m draws of `scheme`."""
    base, probs, w = _spec(logits, label, q, m, scheme)

    def shares(counts):
        mass = [c * x * m / sum(counts) for c, x in zip(counts, w, strict=True)]
        mass[label] += base
        return np.array(mass, dtype=object) / mp.fsum(mass)

    for counts in _counts(m, len(logits)):
        chance = mpf(factorial(m))
        for c, x in zip(counts, probs, strict=True):
            chance *= x**c / factorial(c)
        if not chance:
            continue
        p = m * shares(counts)
        for k, drawn in enumerate(counts):
            if drawn:
                less = [c - (j == k) for j, c in enumerate(counts)]
                p = p - (m - 1) * shares(less) * mpf(drawn) / m
        yield chance, p


def enumerate_scheme(logits, label, q, m, scheme, dps=50):
    """E[p'] (n,), E[loss] and E[p' p'^T] (n, n) over every outcome, as mpf object arrays."""
    with mp.workdps(dps):
        if scheme in JACKKNIFED:
            expected = loss = mpf(0)
            for draws, weight in combination(m):
                part = enumerate_scheme(logits, label, q, draws, JACKKNIFED[scheme], dps)
                expected, loss = expected + weight * part[0], loss + weight * part[1]
            return expected, loss, None
        first, loss, second = mpf(0), mpf(0), mpf(0)
        for chance, p, loss_here in _outcomes(logits, label, q, m, scheme):
            p = np.array(p, dtype=object)
            first = first + p * chance  # mpf * array makes an error message of the array first
            second = second + np.outer(p, p) * chance
            loss += chance * loss_here
        return first, loss, second


def gradient_moments(logits, label, q, m, class_embeddings, tau, scheme="negatives", dps=50):
    """Squared bias, variance and mean squared error of tau * (sum_i p'_i c_i - c_t)."""
    with mp.workdps(dps):
        if scheme in JACKKNIFED:
            outcomes = list(_jackknifed(logits, label, q, m, JACKKNIFED[scheme]))
            expected = sum(chance * p for chance, p in outcomes)
            second = sum(chance * np.outer(p, p) for chance, p in outcomes)
        else:
            expected, _, second = enumerate_scheme(logits, label, q, m, scheme, dps)
        c = np.vectorize(mpf, otypes=[object])(np.asarray(class_embeddings, dtype=float))
        b = (expected - np.array(softmax(logits), dtype=object)) @ c
        squared_bias = tau**2 * (b @ b)
        variance = tau**2 * np.sum((second - np.outer(expected, expected)) * (c @ c.T))
        return float(squared_bias), float(variance), float(squared_bias + variance)


# --- the one-dimensional integral, at any precision -------------------------------------------


def _trapezoid(f, low, high, dps):
    """Integrate the vector function `f` over [low, high], halving the step until converged."""
    count = int(mp.ceil((high - low) / mpf("0.5")))
    step = (high - low) / count
    total = sum(f(low + i * step) for i in range(count + 1))
    old = total * step
    while True:
        step /= 2
        total = total + sum(f(low + (2 * i + 1) * step) for i in range(count))
        count *= 2
        new = total * step
        wrong = sum(abs(new - old)[:-1]) <= mpf(10) ** (-dps // 2 - 3) * sum(abs(new[:-1]))
        close = abs(new[-1] - old[-1]) <= mpf(10) ** (-dps // 2 - 3) * abs(new[-1])
        # the error is squared with each halving; at the least step it is below 10^-dps anyway
        if (wrong and close) or step < mpf(3) / (dps + 10):
            return new
        old = new


def _falling(x):
    """exp(-x), or 0 where mpmath would take long over a huge exponent."""
    return mp.exp(-x) if x < 6000 + 5 * mp.dps else mpf(0)


def _integrals(p, base, probs, weights, m, label, poisson, dps):
    """E[p'] - p (n,) and, last, E[log S], for m draws (m real) or independent inclusion."""
    live = [j for j, (x, w) in enumerate(zip(probs, weights, strict=True)) if x and w]
    # chance of a draw of weight 0, a masked label
    blank = mp.fsum(x for j, x in enumerate(probs) if j not in live)
    if poisson:
        largest, smallest = base + mp.fsum(weights[j] for j in live), base
    else:
        largest = base + m * max(weights[j] for j in live)
        smallest = base if blank else base + m * min(weights[j] for j in live)
    largest, smallest = max(largest, 1), min(smallest, 1)
    low = -(dps + 10) * mp.log(10) - mp.log(largest)
    high = mp.log((mp.dps * mp.log(10) + mp.log(largest / smallest) + 10) / smallest)

    def f(x):
        u = mp.exp(x)
        decay = {j: _falling(u * weights[j]) for j in live}
        end = _falling(u)
        # int u p exp(-u) dx = p: the difference is taken here, so it keeps its digits
        out = np.array([-u * x * end for x in p] + [end], dtype=object)
        if poisson:
            factor = {j: 1 - probs[j] + probs[j] * decay[j] for j in live}
            everything = _falling(u * base) * mp.fprod(factor.values())
            for j in live:
                if factor[j]:  # 0 only where pi_j = 1 and decay_j has fallen off
                    out[j] += u * probs[j] * weights[j] * decay[j] * everything / factor[j]
        else:
            phi = blank + mp.fsum(probs[j] * decay[j] for j in live)
            everything = _falling(u * base - m * mp.log(phi)) if phi else mpf(0)
            for j in live if phi else ():
                out[j] += u * m * probs[j] * weights[j] * decay[j] * everything / phi
        out[label] += u * base * everything
        out[-1] -= everything
        return out

    return _trapezoid(f, low, high, dps)


def _binomial_nodes(m, chance, gauss=None):
    """(K, probability) pairs: every K that counts where few do, else a Gauss rule for the law.

    A small K is never left out: its bias may be larger by any number of orders. Large K only
    bring less bias, so those beyond all weight are.
    """
    if gauss is None:
        gauss = m * chance > 3000
    if not gauss:
        pairs, weight = [], (1 - chance) ** m
        for k in range(m + 1):
            pairs.append((k, weight))
            if not chance or (k > m * chance and weight < mpf(10) ** (-mp.dps - 10)):
                break
            if chance == 1:
                return [(m, mpf(1))]
            weight *= chance / (1 - chance) * (m - k) / (k + 1)
        return pairs
    size = 16 if m * chance > 1e6 else 40  # exact for polynomials of degree 2 size - 1
    jacobi = mp.zeros(size)
    for k in range(size):
        jacobi[k, k] = chance * (m - k) + k * (1 - chance)
        if k:
            jacobi[k, k - 1] = mp.sqrt(chance * (1 - chance) * k * (m - k + 1))
            jacobi[k - 1, k] = jacobi[k, k - 1]
    nodes, vectors = mp.eigsy(jacobi)
    return [(nodes[i], vectors[0, i] ** 2) for i in range(size)]


def _powers(pairs, log_x):
    """Sums of chance * x**K and of chance * K * x**K over the (K, chance) pairs."""
    total = first = mpf(0)
    step, last, power = _falling(-log_x), None, None
    for k, chance in pairs:
        whole = isinstance(k, int) and last == k - 1
        power = power * step if whole else _falling(-k * log_x)
        last = k
        total += chance * power
        first += k * chance * power
    return total, first


def _rejected(p, base, probs, ratios, m, keep, label, dps):
    """E[p'] - p (n,) and, last, E[L'] - L, summed over the number K of draws kept.

    For each K the integral is taken in v = u / K, so that all K share its nodes.
    """
    pairs = _binomial_nodes(m, keep)
    none = pairs.pop(0)[1] if pairs[0][0] == 0 else mpf(0)
    if not pairs:
        return np.array([*(-x for x in p), mp.log(p[label])], dtype=object) + np.array(
            [mpf(j == label) for j in range(len(p))] + [mpf(0)], dtype=object
        )
    live = [j for j, x in enumerate(probs) if x]
    largest = max(k for k, _ in pairs) * max(base + max(ratios[j] for j in live), 1)
    smallest = min(k for k, _ in pairs) * min(base + min(ratios[j] for j in live), 1)
    low = -(dps + 10) * mp.log(10) - mp.log(largest)
    high = mp.log((mp.dps * mp.log(10) + mp.log(largest / smallest) + 10) / smallest)

    def f(x):
        v = mp.exp(x)
        decay = {j: probs[j] * _falling(v * ratios[j]) for j in live}
        phi = mp.fsum(decay.values())
        end, end_first = _powers(pairs, -v)
        out = np.array([-v * end_first * x for x in p] + [end], dtype=object)
        if phi:
            total, first = _powers(pairs, mp.log(phi) - v * base)
            for j in live:
                out[j] += v * ratios[j] * decay[j] / phi * first
            out[label] += v * base * first
            out[-1] -= total
        return out

    out = _trapezoid(f, low, high, dps)
    out[:-1] -= none * p
    out[label] += none
    out[-1] += none * mp.log(p[label])
    return out


def laplace_mpmath(logits, label, q, m, scheme, dps=50):
    """E[p'] (n,), E[p'] - p (n,) and E[loss] - loss through 1/S = int exp(-u S) du, as mpf.

    The bias is right to about `dps` digits of its 1-norm, however small it is: the working
    precision is doubled until that holds, or until 1,000 digits say that the bias is zero.
    The step of the quadrature is fit for `dps` digits up to 50. For `reject` with more than 3000
    draws kept on average, a Gauss rule of 16 to 40 nodes stands for the law of their number.
    """
    if scheme in JACKKNIFED:
        digits = dps + 10
        while True:  # until what the two have in common leaves `dps` digits of the difference
            parts = [
                (weight, laplace_mpmath(logits, label, q, draws, JACKKNIFED[scheme], digits))
                for draws, weight in combination(m)
            ]
            with mp.workdps(4 * dps + 1500):
                out = tuple(sum(weight * part[i] for weight, part in parts) for i in range(3))
                plain, norm = parts[0][0] * sum(abs(parts[0][1][1])), sum(abs(out[1]))
                if norm >= mpf(10) ** (dps - digits) * plain or digits > 80:
                    return out
            digits *= 2
    digits = dps + 25
    while True:
        with mp.workdps(digits):
            p = np.array(softmax(logits), dtype=object)
            bias, loss_bias = _bias(p, logits, label, q, m, scheme, dps)
            largest = int(np.argmax(p))
            others = np.arange(len(p)) != largest
            bias[largest] = -mp.fsum(bias[others])
            norm = sum(abs(bias))
            if norm > mpf(10) ** (dps - digits) * sum(abs(bias[others]) + p[others]):
                return p + bias, bias, loss_bias
            if digits > 1000:
                return p + bias, bias, loss_bias
        digits *= 2


def _bias(p, logits, label, q, m, scheme, dps):
    """Bias (n,) and loss bias at the working precision."""
    if scheme == "reject":
        full = _normalise(q)
        keep = mp.fsum(x for j, x in enumerate(full) if j != label)
        base, probs, ratios = _spec(logits, label, q, 1, scheme)
        part = _rejected(p, base, probs, ratios, m, keep, label, dps)
        return part[:-1], part[-1]
    base, probs, weights = _spec(logits, label, q, m, scheme)
    part = _integrals(p, base, probs, weights, m, label, scheme == "poisson", dps)
    return part[:-1], part[-1] + (mp.log(p[label] / base) if base else 0)


# --- Monte Carlo in NumPy: the peer for draws per second --------------------------------------


def multinomial_numpy_monte_carlo(
    logits, label, q, m, num_trials, rng, *, batch=1000, stderr=False
):
    """Bias (n,) of `negatives` and its standard error, `batch` trials at a time.

    Without `stderr` the draws of a class within one trial need not be put together, which
    saves NumPy a sort; the second value is then None.
    """
    n = len(logits)
    qn = np.where(np.arange(n) == label, 0.0, q)
    qn = qn / qn.sum()
    e = np.exp(logits - np.max(logits))
    p = e / e.sum()
    w = np.divide(e, m * qn, out=np.zeros(n), where=qn > 0)
    cdf = np.cumsum(qn)
    cdf /= cdf[-1]
    first, second = np.zeros(n), np.zeros(n)
    for start in range(0, num_trials, batch):
        size = min(batch, num_trials - start)
        ids = np.searchsorted(cdf, rng.random((size, m)), side="right")
        mass = w[ids]
        total = e[label] + mass.sum(axis=1)
        mass /= total[:, None]
        ids = ids.ravel()
        mass = mass.ravel()
        if stderr:
            keys, inverse = np.unique(ids + n * np.repeat(np.arange(size), m), return_inverse=True)
            ids, mass = keys % n, np.bincount(inverse, mass)
            second += np.bincount(ids, mass**2, minlength=n)
            second[label] += ((e[label] / total) ** 2).sum()
        first += np.bincount(ids, mass, minlength=n)
        first[label] += (e[label] / total).sum()
    mean = first / num_trials
    if not stderr:
        return mean - p, None
    variance = np.maximum(second / num_trials - mean**2, 0.0) * num_trials / (num_trials - 1)
    return mean - p, np.sqrt(variance / num_trials)
