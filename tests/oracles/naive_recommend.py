"""Slow, dense versions of what a recommender computes, and data for it."""

import numpy as np
from scipy import sparse


def planted(users=60, items=30, groups=3, each=6, seed=0):
    """Users who take items of their group only: a matrix (users, items) of ones."""
    rng = np.random.default_rng(seed)
    taken = np.zeros((users, items), np.float32)
    size = items // groups
    for u in range(users):
        taken[u, u % groups * size + rng.permutation(size)[:each]] = 1.0
    return sparse.csr_array(taken)


def unit(rows):
    return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))


def user_vectors(weights, intercept, histories):
    found = []
    for history in histories.astype(float):
        norm = np.sqrt(history @ history)
        found.append((history / norm if norm else history) @ weights + intercept)
    return unit(np.array(found))


def graph(taken):
    """Interactions divided by the roots of the sums of their row and of their column."""
    found = np.zeros(taken.shape)
    for u, i in zip(*taken.nonzero(), strict=True):
        found[u, i] = taken[u, i] / np.sqrt(taken[u].sum() * taken[:, i].sum())
    return found


def best(scores, number, left_out=()):
    """The best of one row of scores as a list of pairs, those of equal score in their order."""
    left = [(-s, j) for j, s in enumerate(scores) if j not in set(left_out)]
    found = [(j, -s) for s, j in sorted(left)[:number]]
    return found + [(-1, -np.inf)] * (number - len(found))
