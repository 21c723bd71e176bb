"""From scores of labels and draws to losses and derivatives, with the draws of an example once.

What `samplesoft.losses.pairs.each_pair` computes, for losses in which the pairs of an example can
share the work on its draws. Draws of its labels stand apart from the others, unless they have the
same weight for all of its pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.merged_draws import pair_rows, set_apart, share_out_merged
from samplesoft.losses.pairs import CHUNK_NUMBERS, Kernel, Pairs, Results, no_results

_PART_NUMBERS = 1 << 12  # of rows that are all as long as the longest of them


class Block(NamedTuple):
    """Some examples, and their draws."""

    examples: slice
    ends: IntArray  # (b + 1,): their pairs are from one to the next
    logits: FloatArray  # (b, m): of the draws, -inf for those that stand apart or have no weight
    found: IntArray  # (b, m), or (b, 0) where none stands apart: of which pair's label a draw is
    apart: FloatArray  # (b, h): logits of draws that stand apart
    places: IntArray  # (b, h): which draws they are, or -1
    counts: IntArray  # (b,): how many


def by_examples(pairs: Pairs, compute: Callable[[Block, Results], None]) -> Results:
    """Let `compute` write the results of some examples at a time."""
    targets, drawn, rules, found = pairs.targets, pairs.drawn, pairs.rules, pairs.found
    assert found is not None
    size, m = drawn.shape
    every = np.append(targets.firsts(), len(targets.labels))
    counts = targets.per_example(found.hits) if rules.own != rules.others else np.zeros(size, int)
    results = no_results(pairs)._replace(hits=found.hits)

    def work(part: slice) -> None:
        shape = part.stop - part.start, int(counts[part].max())
        of_draws = found.pairs[part, : 0 if rules.own and rules.others else m]
        log_counts = pairs.log_counts[part] if len(pairs.ids) > 1 else pairs.log_counts
        logits, apart, places = np.empty((shape[0], m)), np.empty(shape), np.empty(shape, np.int64)
        sound = set_apart(drawn[part], log_counts, of_draws, logits, apart, places)
        ends = every[part.start : part.stop + 1]
        compute(Block(part, ends, logits, of_draws, apart, places, counts[part]), results)
        if not sound:
            finite = np.isfinite(drawn[part]).all(axis=1)
            results.losses[ends[0] : ends[-1]][~np.repeat(finite, np.diff(ends))] = np.nan

    thread_each(work, chunks(size, max(1, CHUNK_NUMBERS // m)))
    results.losses[~np.isfinite(pairs.own)] = np.nan
    return results


def merged_draws(pairs: Pairs, terms: Kernel, merge: Kernel) -> Results:
    """Compute `terms` of short rows, in which a logit that `merge` makes stands for most draws."""

    def compute(block: Block, results: Results) -> None:
        first, ends = block.examples.start, block.ends
        merged = np.empty(len(block.logits))
        merge(block.logits, merged)
        for part in _parts(block):
            here = slice(ends[part.start], ends[part.stop])
            owners = pairs.owners[here] - first
            rows = np.empty((len(owners), 2 + int(block.counts[part].max())))
            columns = block.apart, block.places, *pairs.rules[:2]
            pair_rows(here.start, pairs.own[here], owners, block.found, merged, *columns, rows)
            if pairs.rules.once:
                rows[1:][owners[1:] == owners[:-1], 1:] = -np.inf
            terms(rows, results.losses[here])
            written = results.d_own[here], results.d_drawn[block.examples]
            shares = pairs.shares[here]
            share_out_merged(rows, shares, owners, block.logits, block.places, *written)

    return by_examples(pairs, compute)


def _parts(block: Block) -> list[slice]:
    """Split examples into runs whose rows are about `_PART_NUMBERS` numbers."""
    numbers = np.cumsum(np.diff(block.ends) * (2 + block.counts)) // _PART_NUMBERS
    cuts = [0, *(1 + np.flatnonzero(np.diff(numbers))).tolist(), len(block.counts)]
    return [slice(a, b) for a, b in pairwise(cuts)]
