"""The classes that are drawn for a block of steps, all before the first of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.losses.base import Loss, Targets
from samplesoft.losses.candidates import check_draw, require_replacement
from samplesoft.losses.sampled import SampledLoss, Terms
from samplesoft.losses.step import reject_corrections
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Draw
from samplesoft.training.fused.eligible import FULL_LOSSES, draws_as_asked, passes_of

_CALL_DRAWS = 1 << 18  # draws and examples of the steps of a call
_CALL_STEPS = 512


def steps_at_once(model: LinearSoftmax, batch_size: int) -> int:
    """Return for how many steps draws are made at a time.

    Parameters
    ----------
    model : LinearSoftmax
        The model.
    batch_size : int
        Examples of a step.

    Returns
    -------
    int
        Number of steps S, at least 1.
    """
    loss = model.softmax.loss
    if isinstance(loss, SampledLoss) and not draws_as_asked(loss):
        return 1  # it decides on their number in each step
    num_draws = model.softmax.num_sampled or model.num_classes
    return max(1, min(_CALL_DRAWS // (num_draws + batch_size), _CALL_STEPS))


class DrawsOfSteps(NamedTuple):
    """A set of drawn classes for each step; or all classes in one row, for each step."""

    ids: IntArray  # (S, m) or (1, n)
    log_counts: FloatArray  # of the same shape: log expected counts, which scores lose
    terms: Terms  # of the loss, for these draws

    def of(self, steps: slice) -> DrawsOfSteps:
        """Return those of some steps."""
        if len(self.ids) == 1:
            return self
        return self._replace(ids=self.ids[steps], log_counts=self.log_counts[steps])


def draws_of_steps(
    model: LinearSoftmax, num_steps: int, seed: int, batch_size: int = 1
) -> DrawsOfSteps:
    """Draw for some steps at once: a set of classes for each.

    Parameters
    ----------
    model : LinearSoftmax
        Whose sampler draws as many classes as its loss asks for.
    num_steps : int
        Number of steps S.
    seed : int
        Seed of the draws.
    batch_size : int
        Examples of a step, for losses whose number of draws depends on it.

    Returns
    -------
    DrawsOfSteps
        Draws (S, m); for a loss over all classes, each class once in one row (1, n).
    """
    layer = model.softmax
    n = model.num_classes
    loss: Loss = layer.loss
    if not isinstance(loss, SampledLoss):
        # a loss over all classes: each class is a draw that is made once
        passes = passes_of(loss)
        assert passes is not None
        return DrawsOfSteps(np.arange(n)[None], np.zeros((1, n)), FULL_LOSSES[passes])
    sampler = layer.sampler
    assert sampler is not None
    each = np.zeros((num_steps, 1))  # a set for each step, of which no context is a part

    def sample(num: int, rng: Any) -> Draw:
        return sampler.sample(each, num, rng=rng)

    # the losses that are compiled ask for the number of labels in a batch alone
    targets = Targets(np.zeros(batch_size, np.int64))
    drawn = loss.draw(sample, layer.num_sampled, targets, n, seed)
    if loss.with_replacement:
        require_replacement(drawn, type(loss).__name__)
    ids, log_counts = check_draw(drawn, num_steps, n)
    terms = loss._terms_of(drawn, n)
    if terms.weighs_draws:  # each of which has a weight of its own
        terms = terms._replace(adds_exponentials=False, merge=None)
    return DrawsOfSteps(ids, log_counts, terms)


def label_log_counts(
    model: LinearSoftmax, targets: Targets, ids: IntArray, batch_size: int
) -> FloatArray:
    """Return what the scores of the labels lose (P,), or (1,) zeros if that is nothing.

    `ids` (S, m) are the draws of each step of `batch_size` examples.
    """
    layer = model.softmax
    labels = targets.labels
    loss: Loss = layer.loss
    if not isinstance(loss, SampledLoss) or not loss.needs_label_count or layer.sampler is None:
        return np.zeros(1)
    expected: FloatArray = layer.sampler.log_expected_count(
        None, labels[None], layer.num_sampled, shared=True
    )[0]
    if not loss.properties.divides_by_kept:
        return expected
    # draws of the label are left out, and the others divided by their number
    num_hits = np.empty(len(labels), np.int64)
    first_pairs = np.append(targets.offsets()[::batch_size], len(labels))  # of steps
    for step, drawn in enumerate(np.sort(ids, axis=1)):
        of_step = slice(first_pairs[step], first_pairs[step + 1])
        starts = np.searchsorted(drawn, labels[of_step], "left")
        stops = np.searchsorted(drawn, labels[of_step], "right")
        num_hits[of_step] = stops - starts
    if loss.mask_other_labels:  # no draw of any label of the example is kept
        num_hits = targets.rows(targets.per_example(num_hits))
        expected = targets.rows(np.logaddexp.reduceat(expected, targets.offsets()))
    gains: FloatArray = reject_corrections(ids.shape[1], num_hits, expected)
    return gains
