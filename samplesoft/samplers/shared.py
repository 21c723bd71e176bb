"""One set of draws for a whole batch, from the mean of the distributions of its contexts.

A large batch is pooled first: groups of similar contexts are each stood for by one, so that a set
costs the distributions of a few contexts and not of all. What is drawn from, and its probabilities,
are those of the pooled batch, which is a function of the contexts alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._device.select import to_host
from samplesoft._random import mix64, uniform_block
from samplesoft._validation import FloatArray
from samplesoft.samplers.draw import Draw, Rows
from samplesoft.samplers.k_means import k_means

_LEAST = 32  # contexts that are not pooled
_GROUP = 20  # contexts of a large batch that one stands for, in the mean


def pool(sampler: Any, h: Rows) -> tuple[Rows, FloatArray]:
    """Return contexts (R, d) that stand for a batch (B, d), and their shares (R,) of it.

    Those of a group have its mean direction and its mean norm. A batch of up to 32 is as it was; a
    sampler that does not look at contexts gets one.
    """
    batch = h.shape[0]
    if sampler.dim is None:
        return sampler._arrays.take_rows(h, np.zeros(1, np.int64)), np.ones(1)
    if batch <= _LEAST:
        return h, np.full(batch, 1.0 / batch)
    rows: Rows = to_host(h).astype(np.float64)
    largest = np.abs(rows).max()
    if largest > 0.0:
        rows /= largest
    labels = k_means(rows.astype(np.float32), max(_LEAST, batch // _GROUP), np.uint64(0))
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    norms = np.sqrt((rows**2).sum(axis=1))
    sums = np.add.reduceat(rows[order], starts)
    wanted = np.add.reduceat(norms[order], starts) / counts
    found = np.sqrt((sums**2).sum(axis=1))
    lost = found <= 1e-6 * counts * wanted  # contexts that cancel: take one of them
    sums[lost], found[lost] = rows[order[starts[lost]]], norms[order[starts[lost]]]
    factors = np.divide(wanted, found, out=np.zeros_like(found), where=found > 0.0)
    pooled = sums * (factors * largest)[:, None]
    return sampler._arrays.float_rows("h", pooled.astype(h.dtype)), counts / batch


def sample_mean(sampler: Any, h: Rows, shares: FloatArray, m: int, key: np.uint64) -> Draw:
    """Draw (1, m) from the mean over contexts (R, d) by shares: each draw from one of them.

    ``log_q`` is the logarithm of the mean probability over all of them, on any device.
    """
    arrays = sampler._arrays
    choices, draws = np.uint64(mix64(key, np.uint64(0))), np.uint64(mix64(key, np.uint64(1)))
    ends = np.cumsum(shares[:-1])
    chosen = np.searchsorted(ends, uniform_block(choices, 1, m)[0], side="right")
    contexts, slots, counts = np.unique(chosen, return_inverse=True, return_counts=True)
    turns = np.empty(m, np.int64)  # draw k is number turns[k] of those of its context
    turns[np.argsort(chosen, kind="stable")] = np.arange(m) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    # as many for each chosen context as the one chosen most often needs; the others keep some
    some, nothing = arrays.take_rows(h, contexts), sampler._check_excluded(None, len(contexts))
    drawn = sampler._sample(some, int(counts.max()), nothing, draws).ids
    ids = arrays.take_numbers(drawn, slots, turns)
    nothing = sampler._check_excluded(None, h.shape[0])
    every = sampler._log_prob(h, arrays.repeat_row(ids, h.shape[0]), nothing)
    return Draw(ids, arrays.log_mean(every, shares))
