"""Losses on the label and a few drawn classes; the first of them is sampled softmax.

`SampledLoss._forward` is the path of a step: draws are checked, scored beside the labels, corrected
for how they were drawn, and a loss makes its terms of the logits. An example with L labels makes L
pairs, all with its m draws, and a row of logits for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device, twin
from samplesoft._jit import njit, row_chunks, thread_each
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.kernels.exponential import exp_to
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.base import Batch, Gradients, Loss, Targets
from samplesoft.losses.candidates import (
    Floats,
    check_draw,
    check_label_count,
    require_replacement,
    score_candidates,
    score_gradients,
)
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select

Kernel = Callable[..., None]
Seed = int | np.random.Generator | None
Sample = Callable[[int, Seed], Draw]  # so many draws for the contexts of a batch

CHUNK_NUMBERS = 1 << 16  # logits that a thread computes at a time: they stay in its cache
_LEAST = 5e-324  # what `exp_to` gives for all that is too small


class SampledLoss(Loss):
    """A loss on the label's logit and those of the drawn classes.

    A new one implements `_terms`, and names its `schemes`; where it is a softmax, its bias is that
    of its scheme, or `why_no_bias` says why not. One that decides on the number of its draws
    overrides `draw`. With several labels an example, `_terms` is given a row for each of them, with
    all draws, which takes time by the number of labels. A loss for which one logit can stand for
    many draws may implement ``_merge(logits, merged)`` too, and draws then cost what they cost with
    one label: see `merge_exponentials`.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; the first of them by default.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Attributes
    ----------
    schemes : dict of str to Scheme
        Those that the loss makes sense with, its default first.
    is_softmax : bool
        Whether the loss of an example is an estimate of that of the full softmax.
    with_replacement : bool
        Whether draws must be independent, and so may not be of distinct or of certain classes.
    why_no_bias : str
        Why the bias of a softmax is not that of its scheme; empty where it is.
    scheme : str
        How draws are treated.
    facts : Scheme
        What is known of that scheme.
    excludes_label : bool
        Whether draws must be made with ``exclude=labels``.
    needs_label_count : bool
        Whether `forward` must be given `label_log_count`.
    bias_scheme : str or None
        The scheme under which `samplesoft.exact_bias` gives the bias of this loss; None where
        no exact bias is known, as for logistic losses.
    """

    schemes: ClassVar[dict[str, Scheme]]
    is_softmax: ClassVar[bool] = False
    with_replacement: ClassVar[bool] = False
    why_no_bias: ClassVar[str] = ""
    offset = 0.0  # added to all scores

    # `_merge(logits, merged)` computes logits (B,) that stand for the rows of logits (B, m) of
    # draws in the loss, and replaces rows by their derivatives.
    _merge: Kernel | None = None

    def __init__(self, *, scheme: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        name = self.default_scheme() if scheme is None else scheme
        self.scheme = as_choice("scheme", name, self.schemes)
        self.facts = facts = self.schemes[self.scheme]
        self.excludes_label = facts.excludes_label
        self.needs_label_count = facts.needs_label_count
        has_bias = self.is_softmax and facts.has_exact_bias and not self.why_no_bias
        self.bias_scheme = facts.name if has_bias else None

    @classmethod
    def default_scheme(cls) -> str:
        """Return the first of `schemes`."""
        return next(iter(cls.schemes))

    @property
    def takes_certain(self) -> bool:
        """Whether classes may be in every draw for certain."""
        return self.facts.loss_takes_certain and not self.with_replacement

    def draw(
        self, sample: Sample, num_sampled: int, targets: Targets, num_classes: int, rng: Seed
    ) -> Draw:
        """Draw what the loss needs; as many as asked for, unless the loss decides on their number.

        Parameters
        ----------
        sample : callable
            ``sample(num, rng)`` returns a `Draw` of so many for the contexts of the batch.
        num_sampled : int
            Number of draws m that was asked for.
        targets : Targets
            Labels of the batch.
        num_classes : int
            Number of classes n.
        rng : int, numpy.random.Generator or None
            Seed of the draws, and of what else is random.

        Returns
        -------
        Draw
            For `forward`.
        """
        return sample(num_sampled, rng)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        targets, facts = batch.targets, self.facts
        ids, log_counts = check_draw(draw, len(batch.z), len(batch.class_embeddings))
        assert draw is not None
        if self.with_replacement:
            require_replacement(draw, type(self).__name__)
        terms = self._terms_of(draw)
        if self.needs_label_count:
            label_count = check_label_count(label_log_count, targets, facts)

        # Scores of the labels (P,) and of the draws (B, m), and which draws are labels.
        scores = score_candidates(batch, ids, self.normalize)
        own, drawn = scores.own, scores.drawn
        if self.absolute:
            own, drawn = np.abs(own), np.abs(drawn)
        once = self.label_reduction == "ova"
        keeps_own, keeps_others = facts.draws_label, not self.mask_other_labels
        if once:  # all labels of an example are its own
            keeps_own = keeps_others = keeps_own and keeps_others
        # which draws are labels: asked only where some are not kept, as where draws exclude them
        if keeps_own and keeps_others:
            label_of, hits = np.full((1, ids.shape[1]), -1), np.zeros(len(own), np.int64)
        else:
            labels, draws = scores.places[: len(own)], scores.places[len(own) :].reshape(ids.shape)
            label_of, hits = find_labels(labels, scores.owners, draws, len(scores.classes))
        if self.excludes_label and hits.any():
            raise self.contains_label(targets.labels, int(hits.argmax()))
        hits_of_examples = targets.per_example(hits)

        # Logits: what a draw stands for is its weight divided by how often it is expected.
        # In float64: of float32 the logarithm of a small probability would lose digits.
        own = np.add(own, self.offset, dtype=np.float64)
        if not facts.corrects_draws:
            log_counts = np.zeros_like(log_counts)
        if self.offset != 0.0:  # so that scores of draws gain it too
            log_counts = log_counts - self.offset
        if facts.corrects_label:
            own -= label_count
        elif facts.divides_by_kept:
            if self.mask_other_labels:  # no draw of any label is kept
                hits = targets.rows(hits_of_examples)
                label_count = targets.rows(np.logaddexp.reduceat(label_count, targets.firsts()))
            own -= gains_of_kept(ids.shape[1], hits, label_count)  # as if all draws gained it

        # Terms of the loss, and their derivatives in the scores.
        shares = np.ones(len(own)) if targets.shares is None else targets.shares
        rules = keeps_own, keeps_others, once
        marks = label_of, hits_of_examples
        pairs = Pairs(own, drawn, log_counts, *marks, scores.owners, shares, *rules)
        # where an example has several labels, one logit may stand for most of its draws
        merge = None if targets.owners is None else self._merge
        losses, d_own, d_drawn = pair_terms(pairs, targets.firsts(), terms, merge)
        if self.absolute:  # from derivatives in |o| to those in o
            d_own *= np.sign(scores.own)
            d_drawn *= np.sign(scores.drawn)
        return targets.per_example(losses), (scores, d_own, d_drawn)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        scores, d_own, d_drawn = saved
        return score_gradients(batch, scores, d_own, d_drawn, weights)

    def _terms_of(self, draw: Draw) -> Kernel:
        """Return `_terms`; a loss whose terms need more of the draw than logits overrides it."""
        return self._terms

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Compute losses (P,) of corrected logits (P, 1 + m), and replace these by derivatives.

        The label's logit is in column 0. A logit of -inf is a draw without weight.
        """
        raise NotImplementedError

    def contains_label(self, labels: IntArray, pair: int) -> ValueError:
        """Return the error for a draw that must not contain the label."""
        return ValueError(
            f"`draw` must not contain the label with scheme={self.scheme!r}, got class "
            f"{labels[pair]} for pair {pair}; draw with exclude=labels, or take scheme='masked'."
        )


class SampledSoftmaxLoss(SampledLoss):
    """Softmax over the label and the drawn classes, corrected for how they were drawn.

    Parameters
    ----------
    scheme : str
        ``"negatives"``, ``"masked"`` and ``"reject"`` follow the importance convention: the
        label's score is not adjusted, and the loss of each example tends to the full softmax loss
        as m grows. ``"negatives"`` takes draws that exclude the label; ``"masked"`` leaves out
        all draws of the label; ``"reject"`` also divides by the number of draws that are left.
        ``"candidate"`` and ``"candidate_masked"`` adjust the label's score too, as CNTK and
        TensorFlow do: the gradient of one example is biased at every m, while its mean over the
        data is 0 at the true model. With hits masked that holds where draws are distinct and
        equally likely, and else nearly. Compare models by the full softmax loss, not by these.
    device : {"cpu", "cuda"}
        Where it computes; on a GPU for draws with replacement and one label an example.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.
    .. [2] S. Jean et al., "On using very large target vocabulary for neural machine translation",
       ACL 2015: the candidate convention.
    .. [3] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eq. 5.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> rng = np.random.default_rng(0)
    >>> h, class_embeddings = rng.normal(size=(2, 3)), rng.normal(size=(5, 3))
    >>> labels = np.array([4, 1])
    >>> draw = UniformSampler(5).sample(h, 3, exclude=labels, rng=0)
    >>> loss = SampledSoftmaxLoss()
    >>> value, cache = loss.forward(h, class_embeddings, labels, draw)
    >>> ids, rows = loss.backward(cache).dW
    >>> ids  # labels and draws
    array([1, 2, 3, 4])
    """

    schemes: ClassVar[dict[str, Scheme]] = select(
        "negatives", "masked", "reject", "candidate", "candidate_masked"
    )
    is_softmax = True

    def __init__(self, *, scheme: str = "negatives", device: str = "cpu", **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.device = as_device(device)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        if self.device == "cpu":
            return super()._forward(batch, draw, label_log_count)
        passes = twin(self.device, "samplesoft.losses.sampled:Passes")(self)
        losses, saved = passes.forward(batch, draw, label_log_count)
        return losses, (passes, saved)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        if self.device == "cpu":
            return super()._backward(batch, saved, weights)
        passes, of_passes = saved
        gradients: Gradients = passes.backward(batch, of_passes, weights)
        return gradients

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        softmax_terms(logits, losses)

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        merge_exponentials(logits, merged)


class Pairs(NamedTuple):
    """The P pairs of an example and a label, all of which have its m draws.

    A draw of its own label has weight for a pair where `keeps_own`, one of another label of its
    example where `keeps_others`, and one of no label always.
    """

    own: FloatArray  # (P,): logits of the labels
    drawn: Rows  # (B, m): scores of the draws
    log_counts: FloatArray  # (B, m) or (1, m): what scores of draws lose
    label_of: IntArray  # (B, m): the pair whose label a draw is, or -1; (1, m) if all are -1
    hits: IntArray  # (B,): how many draws of an example are labels of it
    owners: IntArray  # (P,): example of each
    shares: FloatArray  # (P,): what each weighs in the loss of its example
    keeps_own: bool
    keeps_others: bool
    once: bool  # draws have weight for the first pair of an example alone


def pair_terms(
    pairs: Pairs, firsts: IntArray, terms: Kernel, merge: Kernel | None
) -> tuple[FloatArray, Rows, Rows]:
    """Compute `terms` of a row of logits for each pair: of its label, and of each draw.

    `firsts` (B,) are the first pairs of the examples. Returns losses (P,), times `shares`, and the
    derivatives of what each example loses in scores of labels (P,) and of draws (B, m). The loss of
    a pair is NaN where a score is not finite, even of a draw without weight.
    """
    if merge is None:
        losses, d_own, d_drawn = _row_terms(pairs, firsts, terms)
    else:
        losses, d_own, d_drawn = _merged_terms(pairs, firsts, terms, merge)
    finite = np.isfinite(pairs.drawn)
    if not (finite.all() and np.isfinite(pairs.own).all()):
        rows = np.logical_and.reduce(finite, axis=1)
        losses[~(rows[pairs.owners] & np.isfinite(pairs.own))] = np.nan
    return losses * pairs.shares, d_own, d_drawn


def _row_terms(pairs: Pairs, firsts: IntArray, terms: Kernel) -> tuple[FloatArray, Rows, Rows]:
    """Compute as `pair_terms`, of a row of all draws for each pair."""
    drawn, losses = pairs.drawn, np.empty(len(pairs.own))
    d_own, d_drawn = np.empty(len(losses), drawn.dtype), np.zeros(drawn.shape, drawn.dtype)
    most = max(1, CHUNK_NUMBERS // (1 + drawn.shape[1]))  # pairs at a time

    def work(job: slice) -> None:
        for first in range(job.start, job.stop, most):
            part = slice(first, min(first + most, job.stop))
            logits = np.empty((part.stop - first, 1 + drawn.shape[1]))
            pair_logits(pairs, first, logits)
            terms(logits, losses[part])
            share_out_slopes(logits, pairs.shares[part], pairs.owners[part], d_own[part], d_drawn)

    # the pairs of an example are all in one job, for they add to the same derivatives
    jobs = [slice(0, len(losses))]
    if len(losses) > most:
        ends = np.append(firsts, len(losses))
        cuts = np.unique([*ends[np.searchsorted(ends, range(0, ends[-1], most))], ends[-1]])
        jobs = [slice(a, b) for a, b in pairwise(cuts.tolist())]
    thread_each(work, jobs)
    return losses, d_own, d_drawn


def _merged_terms(
    pairs: Pairs, firsts: IntArray, terms: Kernel, merge: Kernel
) -> tuple[FloatArray, Rows, Rows]:
    """Compute as `pair_terms`, where one logit can stand for all draws that are no label's.

    A row then has few numbers: the label's logit, those of the draws that are labels of the
    example, which its pairs may treat differently, and the merged one.
    """
    drawn, label_of = pairs.drawn, pairs.label_of
    logits = drawn - pairs.log_counts
    # column c has the c-th draw of a label of each example, as far as there is one
    examples, draws = np.nonzero(label_of >= 0)
    column = np.arange(len(examples)) - np.searchsorted(examples, examples)
    few = np.full((len(drawn), column.max(initial=-1) + 2), -np.inf)
    whose = np.full(few.shape, -1)
    few[examples, column] = logits[examples, draws]
    whose[examples, column] = label_of[examples, draws]
    logits[examples, draws] = -np.inf
    thread_each(  # which leaves derivatives of the merged logit in place of logits
        lambda part: merge(logits[part], few[part, -1]), row_chunks(logits.shape, CHUNK_NUMBERS)
    )
    none_expected = np.zeros((1, few.shape[1]))  # for that is in the logits already
    short = pairs._replace(drawn=few, log_counts=none_expected, label_of=whose)
    losses, d_own, d_few = _row_terms(short, firsts, terms)
    d_drawn = np.multiply(logits, d_few[:, -1:], out=np.empty_like(drawn), casting="same_kind")
    d_drawn[examples, draws] = d_few[examples, column]
    return losses, d_own.astype(drawn.dtype), d_drawn


@njit
def softmax_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``logsumexp(logits) - logits[0]`` of each row, and turn rows into its gradient.

    Column 0 of the logits (P, 1 + m) is the label's, and finite.
    """
    for b in range(len(logits)):
        row = logits[b]
        top = greatest(row)
        losses[b] = top - row[0]  # until the sum is known, how far the label is below the top
        for k in range(len(row)):
            row[k] -= top
    weigh(logits.reshape(-1))  # long rows leave few numbers that do not fill a vector
    for b in range(len(logits)):
        row = logits[b]
        own, drawn = row[0], total(row[1:])
        losses[b] = log_ratio(own, drawn, losses[b])
        scale = 1.0 / (own + drawn)
        for k in range(1, len(row)):
            row[k] *= scale
        row[0] = -drawn / (own + drawn)  # p - 1 without the rounding of a p near 1


@njit
def merge_exponentials(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose exponential is that of all of a row, which becomes its slopes.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    for b in range(len(logits)):
        row = logits[b]
        merged[b] = greatest(row)
        if merged[b] != -np.inf:
            for k in range(len(row)):
                row[k] -= merged[b]
    # The slope of the merged logit in a draw is the draw's share of the mass.
    weigh(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        mass = total(row)
        if mass > 0.0:
            merged[b] += np.log(mass)
            for k in range(len(row)):
                row[k] /= mass


@njit
def find_labels(
    label_places: IntArray, owners: IntArray, draw_places: IntArray, num: int
) -> tuple[IntArray, IntArray]:
    """Return which of the pairs of its example each draw is the label of.

    `label_places` (P,) and `draw_places`, (B, m) or (1, m) for all, are classes in ``range(num)``,
    `owners` (P,) the examples of the labels, rising; each has one. Returns the places (B, m) of the
    pairs, or -1, in one row for all where no draw is a label, and how many draws are the label of a
    pair (P,). The labels of an example differ.
    """
    size, hits = owners[-1] + 1, np.zeros(len(owners), np.int64)
    found = 1  # hits, counted before their places where that is quicker
    if len(draw_places) == 1:
        is_label = np.zeros(num, np.bool_)
        for place in label_places:
            is_label[place] = True
        found = 0
        for place in draw_places[0]:
            found += is_label[place]
    elif len(owners) == size:  # one label each: comparisons, which are vector instructions
        found = 0
        for b in range(size):
            classes = draw_places[b]
            for k in range(len(classes)):
                found += classes[k] == label_places[b]
    if found == 0:  # as a rule of many classes: nothing to write for each draw
        return np.full((1, draw_places.shape[1]), -1), hits
    label_of = np.empty((size, draw_places.shape[1]), np.int64)
    mark = np.full(num, -1)  # which pair of an example a class is the label of
    first = 0
    for b in range(size):
        classes = draw_places[b if len(draw_places) > 1 else 0]
        last = first
        while last < len(owners) and owners[last] == b:
            mark[label_places[last]] = last
            last += 1
        for k in range(len(classes)):
            p = mark[classes[k]]
            label_of[b, k] = p
            if p >= 0:
                hits[p] += 1
        for p in range(first, last):  # only what was written, not all of `mark`
            mark[label_places[p]] = -1
        first = last
    return label_of, hits


@njit
def pair_logits(pairs: Pairs, start: int, logits: FloatArray) -> None:
    """Write logits (N, 1 + m) of pairs from `start` on: of the label, then of each draw.

    A draw that has no weight for a pair gets -inf.
    """
    for i in range(len(logits)):
        p = start + i
        b, row = pairs.owners[p], logits[i]
        scores = pairs.drawn[b]
        corrections = pairs.log_counts[b if len(pairs.log_counts) > 1 else 0]
        row[0] = pairs.own[p]
        for k in range(len(scores)):
            row[1 + k] = scores[k] - corrections[k]
        later = pairs.once and p > 0 and pairs.owners[p - 1] == b
        if later:
            row[1:] = -np.inf
        elif pairs.hits[b] > 0:  # seldom, so not in the loop above, which is vector instructions
            label_of = pairs.label_of[b]
            for k in range(len(scores)):
                kept = pairs.keeps_own if label_of[k] == p else pairs.keeps_others
                if label_of[k] >= 0 and not kept:
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
def gains_of_kept(m: int, hits: IntArray, label_counts: FloatArray) -> FloatArray:
    """Return `gain_of_kept` (P,) for each of `hits` (P,) and `label_counts` (P,)."""
    gains = np.empty(len(hits))
    for p in range(len(gains)):
        gains[p] = gain_of_kept(m, hits[p], label_counts[p])
    return gains


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
