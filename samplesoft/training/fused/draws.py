"""Drawn classes for a block of training steps, all drawn before the first step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.losses.base import Loss, Targets
from samplesoft.losses.candidates import checked_draw, require_replacement
from samplesoft.losses.sampled import LossKernel, SampledLoss
from samplesoft.losses.step import reject_corrections
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Draw
from samplesoft.training.fused.eligible import FULL_LOSSES, supported_base_loss

# largest number of draws plus examples in one call, unless a single step has more
_MAX_CALL_DRAWS = 1 << 18
_MAX_CALL_STEPS = 512


def steps_per_call(model: LinearSoftmax, batch_size: int) -> int:
    """Return the number of steps in a fused block, for which all classes are drawn at once.

    Parameters
    ----------
    model : LinearSoftmax
        The model.
    batch_size : int
        Examples of a step.

    Returns
    -------
    int
        Number of steps, at least 1.
    """
    loss = model.softmax.loss
    if isinstance(loss, SampledLoss) and not loss.draws_num_sampled:
        return 1  # the loss chooses the number of draws in each step
    num_draws = model.softmax.num_sampled or model.num_classes
    return max(1, min(_MAX_CALL_DRAWS // (num_draws + batch_size), _MAX_CALL_STEPS))


class StepDraws(NamedTuple):
    """The drawn classes of S steps, a set of m draws for each.

    For a loss over all classes there is one row with all n classes, which serves every step.
    """

    ids: IntArray  # (S, m) or (1, n): drawn classes
    log_counts: FloatArray  # (S, m) or (1, n): log expected count of each draw
    loss_kernel: LossKernel  # kernels of the loss for these draws

    def at_steps(self, steps: slice) -> StepDraws:
        """Return the draws of a slice of the steps."""
        if len(self.ids) == 1:
            return self
        return self._replace(ids=self.ids[steps], log_counts=self.log_counts[steps])


def draw_steps(model: LinearSoftmax, num_steps: int, seed: int, batch_size: int = 1) -> StepDraws:
    """Draw a set of classes for each of several steps.

    Parameters
    ----------
    model : LinearSoftmax
        The model, whose sampler draws. Its loss may change the number of draws.
    num_steps : int
        Number of steps S.
    seed : int
        Seed of the draws.
    batch_size : int
        Examples of a step, for losses whose number of draws depends on the batch.

    Returns
    -------
    StepDraws
        Draws (S, m). For a loss over all classes, one row (1, n) with each class once.
    """
    layer = model.softmax
    n = model.num_classes
    loss: Loss = layer.loss

    if not isinstance(loss, SampledLoss):
        # a loss over all classes: each class is drawn exactly once
        passes = supported_base_loss(loss)
        assert passes is not None
        return StepDraws(np.arange(n)[None], np.zeros((1, n)), FULL_LOSSES[passes])

    sampler = layer.sampler
    assert sampler is not None
    no_contexts = np.zeros((num_steps, 1))  # a placeholder for each step: draws ignore contexts

    def sample(num_draws: int, rng: Any) -> Draw:
        return sampler.sample(no_contexts, num_draws, rng=rng)

    # these losses use only the number of labels in a batch, so that zeros serve as labels
    targets = Targets(np.zeros(batch_size, np.int64))
    drawn = loss.draw(sample, layer.num_sampled, targets, n, seed)

    if loss.with_replacement:
        require_replacement(drawn, type(loss).__name__)
    ids, log_counts = checked_draw(drawn, num_steps, n)

    loss_kernel = loss._kernel_for_draw(drawn, n)
    # a loss that gives each draw a weight cannot merge the draws of a class
    if loss_kernel.weighs_draws:
        loss_kernel = loss_kernel._replace(adds_exponentials=False, merge=None)
    return StepDraws(ids, log_counts, loss_kernel)


def label_log_counts(
    model: LinearSoftmax, targets: Targets, ids: IntArray, batch_size: int
) -> FloatArray:
    """Return the corrections that the loss subtracts from the scores of the labels.

    There is one correction for each pair of an example and a label, (P,). If the loss has none, the
    result is zeros (1,). `ids` (S, m) are the draws of the steps, which have `batch_size` examples
    each.
    """
    layer = model.softmax
    labels = targets.labels
    loss: Loss = layer.loss

    if not isinstance(loss, SampledLoss) or not loss.needs_label_count or layer.sampler is None:
        return np.zeros(1)

    expected: FloatArray = layer.sampler.log_expected_count(
        None, labels[None], layer.num_sampled, shared=True
    )[0]
    if not loss.properties.divides_by_accepted:
        return expected

    # the loss discards accidental hits, which are draws of a label, and divides sums over the
    # remaining draws by their number
    num_hits = np.empty(len(labels), np.int64)
    # the index of the first pair of each step, followed by the number of pairs
    first_pairs = np.append(targets.offsets()[::batch_size], len(labels))

    for step, drawn in enumerate(np.sort(ids, axis=1)):
        step_pairs = slice(first_pairs[step], first_pairs[step + 1])
        hit_starts = np.searchsorted(drawn, labels[step_pairs], "left")
        hit_stops = np.searchsorted(drawn, labels[step_pairs], "right")
        num_hits[step_pairs] = hit_stops - hit_starts

    # the loss discards draws of all labels of an example, so add the counts of these labels
    if loss.mask_other_labels:
        num_hits = targets.rows(targets.per_example(num_hits))
        expected = targets.rows(np.logaddexp.reduceat(expected, targets.offsets()))

    corrections: FloatArray = reject_corrections(ids.shape[1], num_hits, expected)
    return corrections
