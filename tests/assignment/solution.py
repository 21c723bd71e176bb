"""A solution of the assignment in ``notebooks/assignment``: NumPy alone, as students write it.

It stands among the tests, so that no archive for students has it.
"""

import numpy as np


def softmax_loss(scores, labels):
    """Task 1: the gradient is p, minus 1 at the label."""
    top = scores.max(axis=1, keepdims=True)
    log_sum = top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
    examples = np.arange(len(labels))
    gradient = np.exp(scores - log_sum)
    gradient[examples, labels] -= 1.0
    return log_sum[:, 0] - scores[examples, labels], gradient


def loss_over(W, h, labels, ids, log_counts):
    """Return losses and gradients where each draw is divided by its expected number of draws."""
    own = np.sum(h * W[labels], axis=1)
    drawn = np.einsum("bd,bmd->bm", h, W[ids]) - log_counts
    drawn[labels[:, None] == ids] = -np.inf
    top = np.maximum(own, drawn.max(axis=1))
    masses = np.exp(drawn - top[:, None])
    own_mass = np.exp(own - top)
    total = own_mass + masses.sum(axis=1)
    d_own = own_mass / total - 1.0
    d_drawn = masses / total[:, None]
    dh = d_own[:, None] * W[labels] + np.einsum("bm,bmd->bd", d_drawn, W[ids])
    dW = np.zeros(W.shape)
    np.add.at(dW, labels, d_own[:, None] * h)
    np.add.at(dW, ids, d_drawn[:, :, None] * h[:, None, :])
    return top + np.log(total) - own, dh, dW


def sampled_loss(W, h, labels, ids):
    """Task 2: each draw counts once."""
    return loss_over(W, h, labels, ids, np.zeros(ids.shape))


def corrected_loss(W, h, labels, q, m, rng):
    """Task 3: a class is drawn m q times on average."""
    ids = rng.choice(len(q), (len(h), m), p=q)
    return loss_over(W, h, labels, ids, np.log(m * q[ids]))


def alias_table(q):
    """Task 4: a class with less than a column is filled up by one that has more (Vose, 1991)."""
    n = len(q)
    left = n * q
    threshold = np.ones(n)  # columns that are never filled up are full but for rounding
    alias = np.arange(n)
    small = [i for i in range(n) if left[i] < 1.0]
    large = [i for i in range(n) if left[i] >= 1.0]
    while small and large:
        i, j = small.pop(), large[-1]
        threshold[i] = left[i]
        alias[i] = j
        left[j] -= 1.0 - left[i]
        if left[j] < 1.0:
            small.append(large.pop())
    return threshold, alias


def alias_draw(threshold, alias, u):
    """Task 4: what is left of the number after its column was taken is uniform again."""
    n = len(threshold)
    column = np.minimum((n * u).astype(np.int64), n - 1)
    return np.where(n * u - column < threshold[column], column, alias[column])


def exact_bias(scores, label, q, m):
    """Task 5: the trapezoidal rule in log u, which converges exponentially."""
    e = np.exp(scores - scores.max())
    e = e / e.sum()  # Z is 1
    base = e[label] / (m * q[label])
    r = np.where(np.arange(len(q)) == label, 0.0, e / q)
    largest, least = base + r.max(), base  # of S, up to a factor of m
    width = 0.04
    log_u = np.arange(-42.0 - np.log(max(1.0, largest)), 5.0 - np.log(min(1.0, least)), width)
    loss, of_base, of_draws = 0.0, 0.0, np.zeros(len(q))
    for u in np.exp(log_u):
        decay = np.exp(-u * r / m)
        transform = q @ decay
        rest = np.exp(-u * base) * transform ** (m - 1)
        loss += width * (np.exp(-u) - rest * transform)
        of_base += width * u * rest * transform
        of_draws += width * u * rest * decay
    mean = e * of_draws
    mean[label] = base * of_base
    return loss + np.log(m * q[label]), mean - e


def better_proposal(scores):
    """Task 6: the mean of c has sum of p^2 / q over the classes that are not the label.

    That is the sum of p^2 (1 - p) / q in the mean over labels, and least where q is the root of the
    mean of p^2 (1 - p).
    """
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True)
    root = np.sqrt(np.mean(p**2 * (1.0 - p), axis=0))
    return root / root.sum()
