"""From scores of labels and draws to losses and derivatives, by pairs or by examples.

An example with L labels makes L pairs, all with its m draws. `each_pair` computes the terms of a
loss on a row of 1 + m logits for each pair. `merged_draws` does the work on the draws once for each
example, for losses that need no more of them than their merged logit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_logits import correct, share_out_slopes
from samplesoft.kernels.losses.label_draws import find_labels, leave_out
from samplesoft.kernels.losses.merged_draws import pair_rows, set_apart, share_out_merged
from samplesoft.losses.scores import CandidateScores
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Rows

Kernel = Callable[[FloatArray, FloatArray], None]

_CHUNK_NUMBERS = 1 << 16
_PART_NUMBERS = 1 << 12  # of rows that are all as long as the longest of them
_NO_LABEL = -1


class Rules(NamedTuple):
    """Which draws have weight for a pair."""

    own: bool  # those of its label
    others: bool  # those of other labels of its example
    once: bool = False  # draws have weight for the first pair of an example alone


class LabelDraws(NamedTuple):
    """Which draws are labels of their example."""

    pairs: IntArray  # (B, m): of whose label a draw is, or -1
    hits: IntArray  # (P,): how many draws are of the label of a pair


@dataclass(frozen=True, eq=False)
class Pairs:
    """The P pairs of a batch."""

    targets: Targets
    own: FloatArray  # (P,): logits of the labels
    drawn: Rows  # (B, m): scores of the draws
    ids: IntArray  # (B, m) or (1, m)
    log_counts: FloatArray  # (B, m) or (1, m)
    found: LabelDraws | None  # where examples have several labels
    rules: Rules

    @property
    def shares(self) -> FloatArray:
        """Weights (P,) of the losses of pairs in that of their example."""
        given = self.targets.shares
        return np.ones(len(self.own)) if given is None else given


class Results(NamedTuple):
    """What comes of the pairs."""

    losses: FloatArray  # (P,)
    hits: IntArray  # (P,): draws of the label
    d_own: Rows  # (P,): derivatives of what each example loses
    d_drawn: Rows  # (B, m)


def find_label_draws(scores: CandidateScores, targets: Targets) -> LabelDraws:
    """Look up all draws among the labels of their examples."""
    size, m = scores.drawn.shape
    labels, draws = np.split(scores.places, [len(targets.labels)])
    found = LabelDraws(np.empty((size, m), np.int64), np.empty(len(labels), np.int64))
    find_labels(labels, scores.owners, draws.reshape(-1, m), len(scores.classes), *found)
    return found


def each_pair(pairs: Pairs, terms: Kernel) -> Results:
    """Compute `terms` of a row of all draws for each pair."""
    targets, drawn, found = pairs.targets, pairs.drawn, pairs.found
    owners = targets.rows(np.arange(len(drawn)))
    labels, shares = targets.labels, pairs.shares
    if found is not None or pairs.rules.own:
        labels = np.full_like(labels, _NO_LABEL)  # no draw is left out by its label alone
    results = _no_results(pairs)

    def work(job: list[slice]) -> None:
        for part in job:
            logits: FloatArray = np.empty((part.stop - part.start, 1 + drawn.shape[1]))
            of_part = pairs.own[part], drawn, owners[part], pairs.ids, pairs.log_counts
            sound = correct(*of_part, labels[part], logits, results.hits[part])
            if found is not None:
                leave_out(logits, part.start, owners[part], found.pairs, *pairs.rules[:2])
            terms(logits, results.losses[part])
            if not sound:
                finite = np.isfinite(drawn[owners[part]]).all(axis=1)
                results.losses[part][~(finite & np.isfinite(pairs.own[part]))] = np.nan
            d_own, d_drawn = results.d_own[part], results.d_drawn
            share_out_slopes(logits, shares[part], owners[part], d_own, d_drawn)

    thread_each(work, _jobs(targets, max(1, _CHUNK_NUMBERS // (1 + drawn.shape[1]))))
    return results if found is None else results._replace(hits=found.hits)


def merged_draws(pairs: Pairs, terms: Kernel, merge: Kernel) -> Results:
    """Compute `terms` of short rows, in which the logit that `merge` makes stands for most draws.

    Draws of labels stand apart in a row, unless they have the same weight for all pairs.
    """
    targets, drawn, rules, found = pairs.targets, pairs.drawn, pairs.rules, pairs.found
    assert found is not None
    size, m = drawn.shape
    owners, shares = targets.rows(np.arange(size)), pairs.shares
    ends = np.append(targets.firsts(), len(targets.labels))
    counts = targets.per_example(found.hits) if rules.own != rules.others else np.zeros(size, int)
    results = _no_results(pairs)._replace(hits=found.hits)

    def work(block: slice) -> None:
        num, height = block.stop - block.start, int(counts[block].max())
        of_all = found.pairs[block, : 0 if rules.own and rules.others else m]
        corrections = pairs.log_counts[block] if len(pairs.ids) > 1 else pairs.log_counts
        logits, apart = np.empty((num, m)), np.empty((num, height))
        places, merged = np.empty((num, height), np.int64), np.empty(num)
        scores = drawn[block]
        sound = set_apart(scores, corrections, of_all, logits, apart, places)
        merge(logits, merged)
        for part in _parts(ends[block.start : block.stop + 1], counts[block]):
            of_pairs = slice(ends[block.start + part.start], ends[block.start + part.stop])
            own = pairs.own[of_pairs]
            whose = owners[of_pairs] - block.start
            rows = np.empty((len(own), 2 + int(counts[block][part].max())))
            pair_rows(of_pairs.start, own, whose, of_all, merged, apart, places, *rules[:2], rows)
            if rules.once:
                rows[1:][whose[1:] == whose[:-1], 1:] = -np.inf
            terms(rows, results.losses[of_pairs])
            if not sound:
                finite = np.isfinite(scores[whose]).all(axis=1) & np.isfinite(own)
                results.losses[of_pairs][~finite] = np.nan
            d_own, d_drawn = results.d_own[of_pairs], results.d_drawn[block]
            share_out_merged(rows, shares[of_pairs], whose, logits, places, d_own, d_drawn)

    thread_each(work, chunks(size, max(1, _CHUNK_NUMBERS // m)))
    return results


def _no_results(pairs: Pairs) -> Results:
    """Return room for the results."""
    size = len(pairs.own)
    d_own, d_drawn = np.empty(size, pairs.drawn.dtype), np.zeros_like(pairs.drawn)
    return Results(np.empty(size), np.empty(size, np.int64), d_own, d_drawn)


def _jobs(targets: Targets, most: int) -> list[list[slice]]:
    """Split the pairs into parts of at most `most`, those of an example all in one job."""
    ends = np.append(targets.firsts(), len(targets.labels))
    cuts = np.unique([*ends[np.searchsorted(ends, range(0, ends[-1], most))], ends[-1]])
    return [
        [slice(first, min(first + most, b)) for first in range(a, b, most)]
        for a, b in pairwise(cuts.tolist())
    ]


def _parts(ends: IntArray, counts: IntArray) -> list[slice]:
    """Split examples into runs whose rows are about `_PART_NUMBERS` numbers.

    Rows of example b are ``ends[b + 1] - ends[b]``, with `counts` (b,) draws apart.
    """
    numbers = np.cumsum(np.diff(ends) * (2 + counts)) // _PART_NUMBERS
    cuts = [0, *(1 + np.flatnonzero(np.diff(numbers))).tolist(), len(counts)]
    return [slice(a, b) for a, b in pairwise(cuts)]
