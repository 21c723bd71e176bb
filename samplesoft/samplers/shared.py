"""One set of draws for a whole batch, from the mean of its distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._random import mix64, uniform_block
from samplesoft.samplers.draw import NO_CLASS, Draw, Rows


def sample_shared(sampler: Any, h: Rows, m: int, key: np.uint64) -> Draw:
    """Draw (1, m) from the mean over contexts: each draw from one context chosen at random.

    Parameters
    ----------
    sampler : Sampler
        On the processor.
    h : ndarray, shape (B, d)
        Context vectors, checked.
    m : int
        Number of draws.
    key : numpy.uint64
        Key of the random stream.

    Returns
    -------
    Draw
        ``log_q`` is the logarithm of the mean probability over all contexts.
    """
    choices, draws = np.uint64(mix64(key, np.uint64(0))), np.uint64(mix64(key, np.uint64(1)))
    chosen = (uniform_block(choices, 1, m)[0] * len(h)).astype(np.int64)
    order = np.argsort(chosen, kind="stable")
    contexts, counts = np.unique(chosen, return_counts=True)
    # as many for each chosen context as the one chosen most often needs; the others keep some
    drawn = sampler._sample(h[contexts], counts.max(), np.full(len(contexts), NO_CLASS), draws).ids
    ids = np.empty((1, m), np.int64)
    ids[0, order] = drawn[np.arange(counts.max()) < counts[:, None]]
    every = sampler._log_prob(h, np.repeat(ids, len(h), axis=0), np.full(len(h), NO_CLASS))
    return Draw(ids, np.logaddexp.reduce(every, axis=0, keepdims=True) - np.log(len(h)))
