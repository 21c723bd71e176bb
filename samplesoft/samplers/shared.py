"""One set of draws for a whole batch, from the mean of its distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._random import mix64, uniform_block
from samplesoft._validation import FloatArray, IntArray
from samplesoft.samplers.draw import NO_CLASS, Draw, Rows


def sample_shared(sampler: Any, h: Rows, m: int, key: np.uint64) -> Draw:
    """Draw (1, m) from the mean over contexts (B, d): each draw from one context chosen at random.

    ``log_q`` is the logarithm of the mean probability over all contexts, on any device.
    """
    arrays, batch = sampler._arrays, h.shape[0]
    choices, draws = np.uint64(mix64(key, np.uint64(0))), np.uint64(mix64(key, np.uint64(1)))
    chosen = (uniform_block(choices, 1, m)[0] * batch).astype(np.int64)
    contexts, slots, counts = np.unique(chosen, return_inverse=True, return_counts=True)
    turns = np.empty(m, np.int64)  # draw k is number turns[k] of those of its context
    turns[np.argsort(chosen, kind="stable")] = np.arange(m) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    # as many for each chosen context as the one chosen most often needs; the others keep some
    some, excluded = arrays.take_rows(h, contexts), arrays.filled(len(contexts), NO_CLASS)
    drawn = sampler._sample(some, int(counts.max()), excluded, draws).ids
    ids = arrays.take_numbers(drawn, slots, turns)
    return Draw(ids, mean_log_prob(sampler, h, ids))


def mean_log_prob(sampler: Any, h: Rows, ids: IntArray) -> FloatArray:
    """Return the log-probability (1, k) of classes (1, k) in the mean over contexts (B, d)."""
    arrays, batch = sampler._arrays, h.shape[0]
    every = sampler._log_prob(h, arrays.repeat_row(ids, batch), arrays.filled(batch, NO_CLASS))
    log_q: FloatArray = arrays.log_mean(every)
    return log_q
