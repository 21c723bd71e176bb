"""From scores of labels and draws to losses and derivatives, for pairs of an example and a label.

An example with L labels makes L pairs, all with its m draws. A loss computes its terms from a row
of logits for each pair: the label's, and one for each draw. Where one logit can stand for many
draws in a loss, the *merged* logit, rows are short: the label, the few draws that pairs of an
example treat differently, which stand *apart*, and what is merged of all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import exp_to
from samplesoft.losses.base import Targets
from samplesoft.losses.candidates import Floats, Scores
from samplesoft.samplers.base import Rows

Kernel = Callable[..., None]

CHUNK_NUMBERS = 1 << 16  # logits that a thread computes at a time: they stay in its cache
_LEAST = 5e-324  # what `exp_to` gives for all that is too small


class Pairs(NamedTuple):
    """The P pairs of a batch, and which draws have weight for them."""

    own: FloatArray  # (P,): logits of the labels
    drawn: Rows  # (B, m): scores of the draws
    ids: IntArray  # (B, m) or (1, m)
    log_counts: FloatArray  # (B, m) or (1, m): what scores of draws lose
    targets: Targets
    owners: IntArray  # (P,): example of each
    label_of: IntArray | None  # (B, m): the pair whose label a draw is, or -1; for several labels
    keeps_own: bool  # whether draws of its label have weight for a pair
    keeps_others: bool  # whether those of the other labels of its example have
    once: bool  # draws have weight for the first pair of an example alone


class Results(NamedTuple):
    """What comes of the pairs."""

    losses: FloatArray  # (P,): times the shares that pairs have in the loss of their example
    hits: IntArray  # (P,): draws of the label, where examples have one
    d_own: Rows  # (P,): derivatives of what each example loses
    d_drawn: Rows  # (B, m)


def label_draws(scores: Scores) -> tuple[IntArray, IntArray]:
    """Return the pair (B, m) of its example whose label a draw is, or -1; and hits (P,) of each."""
    (size, m), pairs = scores.drawn.shape, len(scores.own)
    labels, draws = scores.places[:pairs], scores.places[pairs:].reshape(-1, m)
    label_of, hits = np.empty((size, m), np.int64), np.empty(pairs, np.int64)
    find_labels(labels, scores.owners, draws, len(scores.classes), label_of, hits)
    return label_of, hits


def pair_terms(pairs: Pairs, terms: Kernel, merge: Kernel | None) -> Results:
    """Compute `terms` of a row of logits for each pair; short rows if the loss can `merge` draws.

    The loss of a pair is NaN where a score is not finite, even of a draw without weight.
    """
    size, dtype = len(pairs.own), pairs.drawn.dtype
    d_own, d_drawn = np.empty(size, dtype), np.zeros(pairs.drawn.shape, dtype)
    results = Results(np.empty(size), np.zeros(size, np.int64), d_own, d_drawn)
    shares = np.ones(size) if pairs.targets.shares is None else pairs.targets.shares
    if pairs.label_of is not None and merge is not None:
        sound = _merged(pairs, shares, terms, merge, results)
    else:
        sound = _each_draw(pairs, shares, terms, results)
    if not sound:
        finite = np.logical_and.reduce(np.isfinite(pairs.drawn), axis=1)
        results.losses[~(finite[pairs.owners] & np.isfinite(pairs.own))] = np.nan
    return results._replace(losses=results.losses * shares)


def _each_draw(pairs: Pairs, shares: FloatArray, terms: Kernel, results: Results) -> bool:
    """Let rows hold all draws; tell whether all scores are finite."""
    drawn, owners, label_of = pairs.drawn, pairs.owners, pairs.label_of
    labels = pairs.targets.labels
    if label_of is not None or pairs.keeps_own:
        labels = np.full_like(labels, -1)  # no draw is left out by its label alone
    later = np.append(False, owners[1:] == owners[:-1]) if pairs.once else owners
    unsound = []

    def work(job: list[slice]) -> None:
        for part in job:
            logits: FloatArray = np.empty((part.stop - part.start, 1 + drawn.shape[1]))
            draws = drawn, owners[part], pairs.ids, pairs.log_counts
            if not correct(pairs.own[part], *draws, labels[part], logits, results.hits[part]):
                unsound.append(part)
            if label_of is not None:
                rules = pairs.keeps_own, pairs.keeps_others
                leave_out(logits, part.start, owners[part], label_of, *rules)
            if pairs.once:
                logits[later[part], 1:] = -np.inf
            terms(logits, results.losses[part])
            d_own, d_drawn = results.d_own[part], results.d_drawn
            share_out_slopes(logits, shares[part], owners[part], d_own, d_drawn)

    thread_each(work, _jobs(pairs.targets, max(1, CHUNK_NUMBERS // (1 + drawn.shape[1]))))
    return not unsound


def _jobs(targets: Targets, most: int) -> list[list[slice]]:
    """Split the pairs into parts of at most `most`, those of an example all in one job."""
    if targets.starts is None:
        return [[part] for part in chunks(len(targets.labels), most)]
    ends = np.append(targets.starts, len(targets.labels))
    cuts = np.unique([*ends[np.searchsorted(ends, range(0, ends[-1], most))], ends[-1]])
    return [
        [slice(first, min(first + most, b)) for first in range(a, b, most)]
        for a, b in pairwise(cuts.tolist())
    ]


def _merged(
    pairs: Pairs, shares: FloatArray, terms: Kernel, merge: Kernel, results: Results
) -> bool:
    """Let rows hold the label, draws that stand apart and a merged logit; as `_each_draw`."""
    drawn, label_of = pairs.drawn, pairs.label_of
    assert label_of is not None
    size, m = drawn.shape
    ends = np.append(pairs.targets.firsts(), len(pairs.own))
    all_kept = pairs.keeps_own and pairs.keeps_others
    stand_apart = pairs.keeps_own != pairs.keeps_others  # else they are alike to all pairs
    unsound = []

    def work(some: slice) -> None:
        here = slice(ends[some.start], ends[some.stop])
        owners, pair = pairs.owners[here] - some.start, np.arange(here.start, here.stop)
        if not np.isfinite(drawn[some]).all():  # of draws without weight too: training diverges
            unsound.append(some)
        logits = drawn[some] - pairs.log_counts[some if len(pairs.ids) > 1 else slice(1)]
        # logits of draws of labels, and the pair whose label each is, as wide as the most of them
        apart, whose = np.empty((len(logits), 0)), np.empty((len(logits), 0), np.int64)
        if not all_kept:
            examples, draws = np.nonzero(label_of[some] >= 0)
            if stand_apart:  # column c has the c-th of each example, as far as there is one
                column = np.arange(len(examples)) - np.searchsorted(examples, examples)
                apart = np.full((len(logits), column.max(initial=-1) + 1), -np.inf)
                whose = np.full(apart.shape, -1)
                apart[examples, column] = logits[examples, draws]
                whose[examples, column] = label_of[some][examples, draws]
            logits[examples, draws] = -np.inf
        merged = np.empty(len(logits))
        merge(logits, merged)  # of logits the derivatives of `merged` are left
        # a pair has either the draws of its own label or those of the others, where they differ
        kept = (whose[owners] == pair[:, None]) == pairs.keeps_own
        rows = np.column_stack(
            [pairs.own[here], np.where(kept, apart[owners], -np.inf), merged[owners]]
        )
        if pairs.once:  # one versus all: the first pair of an example brings its draws
            rows[1:][owners[1:] == owners[:-1], 1:] = -np.inf
        terms(rows, results.losses[here])
        rows *= shares[here, None]
        results.d_own[here] = rows[:, 0]
        slopes = np.add.reduceat(rows[:, 1:], ends[some] - here.start, axis=0)  # of each example
        d_drawn = results.d_drawn[some]
        np.multiply(logits, slopes[:, -1:], out=d_drawn, casting="same_kind")
        if stand_apart:
            d_drawn[examples, draws] = slopes[examples, column]

    thread_each(work, chunks(size, max(1, CHUNK_NUMBERS // m)))
    return not unsound and bool(np.isfinite(pairs.own).all())


@njit
def find_labels(
    label_places: IntArray,
    owners: IntArray,
    draw_places: IntArray,
    num: int,
    label_of: IntArray,
    hits: IntArray,
) -> None:
    """Write which of the pairs of its example each draw is the label of.

    `label_places` (P,) and `draw_places`, (B, m) or (1, m) for all, are classes in ``range(num)``,
    `owners` (P,) the examples of the labels, rising. `label_of` (B, m) gets the place of the pair,
    or -1, and `hits` (P,) how many draws are the label of a pair. The labels of an example differ.
    """
    mark = np.full(num, -1)  # of the example at hand: which pair a class is the label of
    hits[:] = 0
    first = 0
    for b in range(len(label_of)):
        last = first
        while last < len(owners) and owners[last] == b:
            mark[label_places[last]] = last
            last += 1
        classes = draw_places[b if len(draw_places) > 1 else 0]
        for k in range(len(classes)):
            p = mark[classes[k]]
            label_of[b, k] = p
            if p >= 0:
                hits[p] += 1
        for p in range(first, last):  # only what was written, not all of `mark`
            mark[label_places[p]] = -1
        first = last


@njit
def correct(
    own: Floats,
    drawn: Floats,
    owners: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    labels: IntArray,
    logits: FloatArray,
    hits: IntArray,
) -> bool:
    """Write logits (P, 1 + m): scores, those of draws less the logs of their expected counts.

    `own` (P,) are the logits of the `labels` (P,), and go to column 0. `drawn` (B, m) are those of
    the draws of each example, of which pair p has row ``owners[p]``; `ids` and `log_counts` are
    (B, m), or (1, m) for all. A draw of its pair's label gets -inf, no weight, and `hits` (P,)
    count these; negative labels keep them. Return whether all scores are finite, also of such
    draws.
    """
    unsound = 0  # counted, for a branch would keep loops from being vector instructions
    for p in range(len(own)):
        row = owners[p] if len(ids) > 1 else 0
        classes, corrections, out, scores = ids[row], log_counts[row], logits[p], drawn[owners[p]]
        out[0] = own[p]
        unsound += not abs(own[p]) < np.inf
        found = 0
        for k in range(len(classes)):
            score = scores[k]
            unsound += not abs(score) < np.inf
            out[k + 1] = score - corrections[k]
            found += classes[k] == labels[p]
        hits[p] = found
        if found:  # seldom, and so not in the loop above, which is vector instructions
            for k in range(len(classes)):
                if classes[k] == labels[p]:
                    out[k + 1] = -np.inf
    return unsound == 0


@njit
def leave_out(
    logits: FloatArray, start: int, owners: IntArray, label_of: IntArray, own: bool, others: bool
) -> None:
    """Set the logits (P, 1 + m) of pairs from `start` on to -inf for draws without weight.

    `owners` (P,) are the examples of these pairs, `label_of` (B, m) is from `find_labels`. A draw
    of the pair's label has weight where `own` says so, of another label of its example where
    `others` does, and one of no label always.
    """
    for i in range(len(logits)):
        b, row = owners[i], logits[i]
        for k in range(label_of.shape[1]):
            whose = label_of[b, k]
            if whose >= 0 and not (own if whose == start + i else others):
                row[1 + k] = -np.inf


@njit
def share_out_slopes(
    slopes: FloatArray, shares: FloatArray, owners: IntArray, d_own: Floats, d_drawn: Floats
) -> None:
    """Write the derivatives of what each example loses, from those of its pairs.

    `slopes` (P, 1 + m) are derivatives of the losses of the pairs in their logits, `shares` (P,)
    the weights of these losses, `owners` (P,) their examples, each in one run. `d_own` (P,) are
    written, and sums, made in float64, added to `d_drawn` (B, m).
    """
    width = slopes.shape[1] - 1
    total = np.empty(width)  # float64, for labels of an example pull at a draw in turn
    first = 0
    while first < len(owners):
        b, last = owners[first], first
        total[:] = 0.0
        while last < len(owners) and owners[last] == b:
            row, share = slopes[last], shares[last]
            d_own[last] = share * row[0]
            for k in range(width):
                total[k] += share * row[1 + k]
            last += 1
        for k in range(width):
            d_drawn[b, k] += total[k]
        first = last


@njit
def gain_of_kept(m: int, hits: int, label_count: float) -> float:
    """Return what the logits of draws gain where `hits` of the m are of the label, and left out.

    The draws that are left are divided by their number, not by m, and their law is q given that
    it is not the label. A softmax is the same where the label's logit loses it.
    """
    # expm1: a label that is hardly ever drawn leaves nearly all of the m draws expected
    expected = -m * math.expm1(min(label_count - math.log(m), 0.0))
    return math.log(expected / (m - hits)) if expected > 0.0 and hits < m else 0.0


@njit
def gains_of_kept(m: int, hits: IntArray, label_counts: FloatArray, gains: FloatArray) -> None:
    """Write `gain_of_kept` (P,) for each of `hits` (P,) and `label_counts` (P,)."""
    for p in range(len(gains)):
        gains[p] = gain_of_kept(m, hits[p], label_counts[p])


@njit
def weigh(x: FloatArray) -> None:
    """Replace each of `x`, at most 0, by its exponential; what is too small has no weight."""
    exp_to(x, len(x))
    for i in range(len(x)):
        x[i] = x[i] if x[i] > _LEAST else 0.0


@njit
def log_ratio(own: float, drawn: float, above: float) -> float:
    """Return ``log((own + drawn) / e)`` where e is ``exp(-above)``, and `own` if that is not 0."""
    if own > drawn:  # a small loss keeps its digits
        return math.log1p(drawn / own)
    return above + math.log(own + drawn)
