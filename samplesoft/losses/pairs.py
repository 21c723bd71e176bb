"""From scores of labels and draws to losses and derivatives, pair by pair.

An example with L labels makes L pairs, all with its m draws. `each_pair` computes the terms of a
loss on a row of 1 + m logits for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from samplesoft._jit import thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_logits import correct, share_out_slopes
from samplesoft.kernels.losses.label_draws import find_labels, leave_out
from samplesoft.losses.scores import CandidateScores
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Draw, Rows

Kernel = Callable[..., None]

CHUNK_NUMBERS = 1 << 16
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
    owners: IntArray  # (P,): example of each
    shares: FloatArray  # (P,): weight of the loss of each in that of its example
    draw: Draw  # where the draws come from


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


def each_pair(pairs: Pairs, terms: Kernel, *more: FloatArray) -> Results:
    """Compute `terms` of a row of all draws for each pair, and of its rows of `more` (P, ...)."""
    targets, drawn, found = pairs.targets, pairs.drawn, pairs.found
    owners, labels, shares = pairs.owners, targets.labels, pairs.shares
    if found is not None or pairs.rules.own:
        labels = np.full_like(labels, _NO_LABEL)  # no draw is left out by its label alone
    results = no_results(pairs)

    def work(job: list[slice]) -> None:
        for part in job:
            logits: FloatArray = np.empty((part.stop - part.start, 1 + drawn.shape[1]))
            of_part = pairs.own[part], drawn, owners[part], pairs.ids, pairs.log_counts
            sound = correct(*of_part, labels[part], logits, results.hits[part])
            if found is not None:
                leave_out(logits, part.start, owners[part], found.pairs, *pairs.rules[:2])
            terms(logits, results.losses[part], *(rows[part] for rows in more))
            if not sound:
                finite = np.isfinite(drawn[owners[part]]).all(axis=1)
                results.losses[part][~(finite & np.isfinite(pairs.own[part]))] = np.nan
            d_own, d_drawn = results.d_own[part], results.d_drawn
            share_out_slopes(logits, shares[part], owners[part], d_own, d_drawn)

    thread_each(work, _jobs(targets, max(1, CHUNK_NUMBERS // (1 + drawn.shape[1]))))
    return results if found is None else results._replace(hits=found.hits)


def no_results(pairs: Pairs) -> Results:
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
