"""The usual mistakes in a sampled loss, as functions that turn a right estimator into a wrong one.

To add a mistake, add an entry to `FAULTS` with a description; a remedy; `where`, which tells in
which estimators the mistake can be made; and `ways`, the functions that make it. Each function is
``lambda right: replace(right, field=...)`` with a field of `Estimator`. `check_loss` then tries the
mistake alone and together with each other mistake, and names it in reports. To test it, add a loss
with the mistake to ``tests/checking/twins.py``. Two mistakes that replace the same field of
`Estimator` concern the same step of the loss, and are not tried together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.estimators import DrawLogProbs, Estimator, ExpectedCounts, Weighting
from samplesoft.checking.problems import REPLICAS

AND = " + "  # joins the names of two mistakes


@dataclass(frozen=True)
class FittedFault:
    """A mistake with an unknown constant, which is fitted to the observed means.

    Attributes
    ----------
    apply : callable
        Returns the estimator with the mistake, given the right estimator and the constant.
    grid : ndarray
        Values of the constant that are tried first; the best value is then refined.
    describe : callable
        Returns the text that describes a value of the constant in reports.
    """

    apply: Callable[[Estimator, float], Estimator]
    grid: FloatArray
    describe: Callable[[float], str]


def _always(right: Estimator) -> bool:
    """Return True, as the `where` of a mistake that can be made in any estimator."""
    return True


@dataclass(frozen=True)
class Fault:
    """A usual mistake in a sampled loss.

    Attributes
    ----------
    description, remedy : str
        What is wrong, and how to correct it.
    where : callable
        Takes a right estimator, and returns whether the mistake can be made in it.
    ways : tuple of callable
        Functions from the right estimator to a wrong one, one for each form of the mistake. A
        mistake with neither `ways` nor `fitted` cannot be described by an estimator alone; its
        candidates are made in `known`, `fitted`, `families` or `batches` of this package.
    fitted : tuple of FittedFault
        Forms of the mistake that have an unknown constant.
    in_gradients : bool
        Whether the mistake is made when the gradients of the examples are added up. The means
        then follow from those of the right estimator, and the mistake is tried after others.
    """

    description: str
    remedy: str
    where: Callable[[Estimator], bool] = _always
    ways: tuple[Callable[[Estimator], Estimator], ...] = ()
    fitted: tuple[FittedFault, ...] = ()
    in_gradients: bool = False

    def applied_to(self, right: Estimator) -> list[Estimator]:
        """Return wrong estimators, one for each of `ways`; none if the mistake cannot be made."""
        return [way(right) for way in self.ways] if self.where(right) else []


def changed_fields(right: Estimator, wrong: Estimator) -> dict[str, Any]:
    """Return the names and values of the wrong estimator's fields that differ from the right."""
    values = {
        field.name: (getattr(wrong, field.name), getattr(right, field.name))
        for field in fields(right)
    }
    return {name: value for name, (value, before) in values.items() if value != before}


def combine_faults(right: Estimator, one: Estimator, other: Estimator) -> Estimator | None:
    """Return `right` with the mistakes of two wrong estimators; None if they share a field."""
    first_changes = changed_fields(right, one)
    second_changes = changed_fields(right, other)
    return (
        None
        if first_changes.keys() & second_changes
        else replace(right, **first_changes | second_changes)
    )


# wrong functions for `Estimator.log_expected_counts` ----------------------------------------------


def _counts_with_shifted_q(by: int) -> ExpectedCounts:
    """Return a function for log(m q) that takes for class j the q of class ``j - by``."""

    def log_counts(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
        log_q = np.roll(drawn.log_proposal, by, axis=1)
        # NaN if the mistake has no effect, as for uniform q, or if the loss is infinite because a
        # class that can be drawn gets q = 0
        is_same = np.array_equal(log_q, drawn.log_proposal)
        if is_same or (np.isneginf(log_q) & (drawn.log_one_draw > -np.inf)).any():
            log_q = np.full_like(log_q, np.nan)
        return log_q, drawn.log_num_draws

    return log_counts


def _counts_with_other_m(change: int) -> ExpectedCounts:
    """Return a function for ``log((m + change) q)``; it returns NaN if m + change is 0."""

    def log_counts(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
        m = round(float(np.exp(drawn.log_num_draws))) + change
        return drawn.log_one_draw, float(np.log(m)) if m > 0 else np.nan

    return log_counts


def _counts_given_not_label(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return ``log(q / (1 - q_t))`` and ``log m``, where q_t is the q of the label."""
    label_log_q = drawn.log_proposal[np.arange(len(drawn.labels)), drawn.labels]
    return drawn.log_proposal - np.log(-np.expm1(label_log_q))[:, None], drawn.log_num_draws


def _counts_with_clipped_q(log_least: float) -> ExpectedCounts:
    """Return a function for log(m q) in which log q is at least `log_least`."""
    return lambda drawn: (np.maximum(drawn.log_one_draw, log_least), drawn.log_num_draws)


def _counts_with_constant_added(log_added: float) -> ExpectedCounts:
    """Return a function for ``log(m (q + exp(log_added)))``."""
    return lambda drawn: (np.logaddexp(drawn.log_one_draw, log_added), drawn.log_num_draws)


# Unknown constants of mistakes are fitted; the values below are tried first.
# logs of the number at which q is clipped, or which is added to q
_LOG_LEAST = np.log(10.0) * np.linspace(-9.0, -0.5, 18)
# numbers that are subtracted from the logits of accidental hits
_PENALTIES = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))
_LOGITS = np.linspace(-30.0, 6.0, 19)  # constant logits of accidental hits
_MARGINS = np.linspace(0.05, 1.25, 9)  # margins of cosines, and of angles in radians


# The most frequent mistakes come first: if several fit equally well, the report names the first.
FAULTS: dict[str, Fault] = {
    "log_q_added": Fault(
        "log q is added to the logits of draws instead of subtracted from them",
        "Subtract log(m q) from the logits of draws: classes that are drawn often must get less "
        "weight.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(right, correction=lambda log_q, log_m: -(log_q + log_m)),
            lambda right: replace(right, correction=lambda log_q, log_m: -log_q),
            lambda right: replace(right, correction=lambda log_q, log_m: -log_q + log_m),
        ),
    ),
    "uncorrected": Fault(
        "logits of draws are not corrected for their sampling probabilities",
        "Subtract log(m q) from the logit of each draw.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(
                right, correction=lambda log_q, log_m: np.zeros_like(log_q), divides_by_count=False
            ),
        ),
    ),
    "log_m_left_out": Fault(
        "log m is left out of the correction",
        "Subtract log q + log m, the log of the expected number of draws, not log q alone.",
        where=lambda right: right.corrects_repeated_draws,
        ways=(
            lambda right: replace(
                right,
                log_expected_counts=lambda drawn: (drawn.log_one_draw, 0.0),
                divides_by_count=False,
            ),
        ),
    ),
    "logarithm_missed": Fault(
        "q or m q is subtracted instead of its logarithm",
        "Subtract log(m q). See whether the sampler returns the expected counts m q or their "
        "logarithms.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(
                right, correction=lambda log_q, log_m: np.exp(log_q + log_m), divides_by_count=False
            ),
            lambda right: replace(
                right, correction=lambda log_q, log_m: np.exp(log_q), divides_by_count=False
            ),
        ),
    ),
    "other_logarithm": Fault(
        "a logarithm to base 10 or 2 is subtracted",
        "Subtract the natural logarithm of m q.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(
                right, correction=lambda log_q, log_m: (log_q + log_m) / np.log(10.0)
            ),
            lambda right: replace(
                right, correction=lambda log_q, log_m: (log_q + log_m) / np.log(2.0)
            ),
        ),
    ),
    "q_shifted": Fault(
        "the q of the next or the previous class is subtracted",
        "Compare how ids and q are numbered: a class for padding or for unknown words may be in "
        "only one of them.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(right, log_expected_counts=_counts_with_shifted_q(1)),
            lambda right: replace(right, log_expected_counts=_counts_with_shifted_q(-1)),
        ),
    ),
    "q_not_conditioned": Fault(
        "the label is excluded from the draws without dividing q by 1 - q_t (q_t is the q of the "
        "label)",
        "If no draw can be the label, subtract log(m q / (1 - q_t)).",
        where=lambda right: right.corrects_repeated_draws and right.excludes_label,
        ways=(
            lambda right: replace(
                right, log_expected_counts=lambda drawn: (drawn.log_proposal, drawn.log_num_draws)
            ),
        ),
    ),
    "q_renormalised": Fault(
        "q is divided by 1 - q_t (q_t is the q of the label), although the label can be drawn",
        "Subtract log(m q), where q is the distribution of the draws. Leave out accidental hits "
        "after that.",
        where=lambda right: (
            right.corrects_draws and right.sums_repeated_draws and not right.excludes_label
        ),
        ways=(lambda right: replace(right, log_expected_counts=_counts_given_not_label),),
    ),
    "inclusion_of_repeated": Fault(
        "draws with replacement are corrected by the probability that a class is drawn at least "
        "once",
        "If draws may repeat a class, subtract log(m q). The probability 1 - (1 - q)^m is for sets "
        "in which no class is repeated.",
        where=lambda right: right.corrects_repeated_draws and not right.counts_accepted_draws,
        ways=(
            lambda right: replace(
                right, log_expected_counts=lambda drawn: (drawn.log_inclusion, 0.0)
            ),
        ),
    ),
    "distinct_as_repeated": Fault(
        "draws without replacement are corrected by log(m q)",
        "Subtract the log of the probability that the class is in the set of draws (its inclusion "
        "probability). Samplers without replacement return it.",
        where=lambda right: right.corrects_distinct_draws,
        ways=(
            lambda right: replace(
                right, log_expected_counts=lambda drawn: (drawn.log_one_draw, drawn.log_num_draws)
            ),
        ),
    ),
    "temperature_after": Fault(
        "the correction is multiplied by the inverse temperature",
        "Multiply h . c by tau first, then subtract log(m q).",
        where=lambda right: right.corrects_draws,
        ways=(lambda right: replace(right, multiplies_correction_by_tau=True),),
    ),
    "hits_kept": Fault(
        "draws of the label (accidental hits) are not left out",
        "Set the logit to -inf wherever a draw is the label of its example.",
        where=lambda right: right.masks_hits,
        ways=(lambda right: replace(right, hits="kept"),),
    ),
    "label_uncorrected": Fault(
        "the label's logit is not corrected like the logits of the draws",
        "Subtract log(m q_t) from the label's logit too, or leave out draws of the label.",
        where=lambda right: right.corrects_label,
        ways=(lambda right: replace(right, label_correction=0.0),),
    ),
    "label_corrected_twice": Fault(
        "the label's logit is corrected twice",
        "Subtract log(m q_t) from the label's logit once.",
        where=lambda right: right.corrects_label,
        ways=(lambda right: replace(right, label_correction=2.0),),
    ),
    "label_twice": Fault(
        "the label's logit is in the sum twice",
        "Include the label's logit in the sum once, in addition to the logits of the draws.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, label_weight=2.0),),
    ),
    "label_left_out": Fault(
        "the label's logit is not in the sum",
        "Include the label's logit in the sum, in addition to the logits of the draws.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, label_weight=0.0),),
    ),
    "label_bias_twice": Fault(
        "the bias of the label is added to its logit more than once",
        "Add the bias of each class to its logit once, before you subtract the label's logit.",
        ways=(
            lambda right: replace(right, label_bias_factor=2),
            lambda right: replace(right, label_bias_factor=3),
        ),
    ),
    "one_hit_left_out": Fault(
        "only one of several draws of the label is left out",
        "Set the logit of every draw of the label to -inf. A map from classes to positions has "
        "only one position of each class.",
        where=lambda right: right.masks_hits and right.is_log_of_sum,
        ways=(lambda right: replace(right, hits="kept", reduction="one hit less"),),
    ),
    "hits_of_other_rows": Fault(
        "draws of the label of another example are left out, not draws of the example's label",
        "Compare the draws of each example with the label of the same example.",
        where=lambda right: right.masks_hits,
        ways=(
            lambda right: replace(right, hits="next"),
            lambda right: replace(right, hits="previous"),
            lambda right: replace(right, hits="first"),
        ),
    ),
    "hits_of_any_row": Fault(
        "draws of the labels of all examples are left out, not only draws of the example's label",
        "Leave out only draws of the label of the same example. Labels of other examples are "
        "negatives like all other classes.",
        where=lambda right: right.masks_hits,
        ways=(lambda right: replace(right, hits="any"),),
    ),
    "counted_twice": Fault(
        "one draw is in the sum twice",
        "Find the draw whose logit is added to the sum a second time.",
        where=lambda right: right.is_log_of_sum,
        ways=(lambda right: replace(right, reduction="twice"),),
    ),
    "duplicates_dropped": Fault(
        "a class that is drawn several times is counted once",
        "Keep repeated draws: the correction log(m q) is the log of the expected number of draws "
        "of a class.",
        where=lambda right: right.sums_repeated_draws,
        ways=(lambda right: replace(right, draws="once"),),
    ),
    "m_off_by_one": Fault(
        "the m of the correction differs by one from the number of draws",
        "Set m to the number of draws in the sum, not counting the label.",
        where=lambda right: right.corrects_repeated_draws and not right.counts_accepted_draws,
        ways=(
            lambda right: replace(right, log_expected_counts=_counts_with_other_m(1)),
            lambda right: replace(right, log_expected_counts=_counts_with_other_m(-1)),
            lambda right: replace(right, extra_draws=1),
            lambda right: replace(right, extra_draws=-1),
        ),
    ),
    "detached_negatives": Fault(
        "no gradient flows through the logits of the draws",
        "Let the gradient flow through the logits of the draws too: do not detach them.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, detaches_draws=True),),
    ),
    "divided_by_batch": Fault(
        "losses or gradients are divided by the size of the batch",
        "Return the loss of each example, and the gradient of the sum of the losses, not of their "
        "mean.",
        ways=(
            lambda right: replace(right, divides_gradient_by_batch=True),
            lambda right: replace(
                right, divides_loss_by_batch=True, divides_gradient_by_batch=True
            ),
            lambda right: replace(right, divides_loss_by_batch=True),
        ),
    ),
    "weights_of_first": Fault(
        "the gradients of all examples are multiplied by the weight of the first example",
        "Multiply the gradient of each example by the weight of this example, before you add up "
        "the gradients.",
        ways=(
            lambda right: replace(right, weighting=Weighting("own", "first", "first")),
            lambda right: replace(right, weighting=Weighting("own", "own", "first")),
        ),
        in_gradients=True,
    ),
    "weights_ignored": Fault(
        "losses or gradients are not multiplied by the weights of their examples",
        "Multiply the loss and the gradient of each example by the weight of this example, before "
        "you add up the gradients.",
        ways=(
            lambda right: replace(right, weighting=Weighting("none", "none", "none")),
            lambda right: replace(right, weighting=Weighting("own", "none", "none")),
            lambda right: replace(right, weighting=Weighting("own", "own", "none")),
        ),
        in_gradients=True,
    ),
    "labels_counted_once": Fault(
        "in the gradient of the class vectors, a label that several examples share is counted once",
        "Add up the rows of equal labels, for example with numpy.subtract.at(dW, labels, h): "
        "`dW[labels] -= h` subtracts only one of them.",
        ways=(lambda right: replace(right, weighting=Weighting(label_fraction=1.0 / REPLICAS)),),
        in_gradients=True,
    ),
    "gradient_scaled": Fault(
        "the gradient is a constant times the gradient of these losses",
        "Return the gradient of the sum of the losses. Look for a mean over two parts of the loss, "
        "or a mean over the workers of a distributed run.",
    ),
    "dependent_draws": Fault(
        "the draws of an example are not independent: the means are right, but the standard "
        "deviation of single losses is not",
        "Look for draws that are used again, for example the same set twice, or one draw in "
        "several positions. Draws without replacement have a smaller standard deviation.",
    ),
    "in_batch_count": Fault(
        "the m of the correction is not the number of other labels in the batch",
        "Set m = B - 1 for a batch of B examples.",
    ),
    "corrected_apart": Fault(
        "the labels of the batch and the additional draws are corrected separately, each kind by "
        "its expected count alone",
        "Subtract log((B - 1) q + m u) from the logits of both, where u is the distribution of the "
        "m additional draws.",
    ),
    "other_proposal": Fault(
        "draws follow another proposal than the argument `proposal`",
        "Pass the proposal of the loss to `check_loss`. If the loss draws from one proposal and "
        "corrects by another, correct by the one from which it draws.",
    ),
    "class_never_drawn": Fault(
        "the first or the last class is never drawn, although its q is above 0",
        "Draw from the whole range of classes: the upper end of randint is often exclusive. If the "
        "class is left out on purpose, for example as padding, pass a proposal with q = 0 for it.",
    ),
    "other_temperature": Fault(
        "the inverse temperature differs from the argument `tau`",
        "Pass the `tau` of the loss to `check_loss`, or multiply h . c by `tau` in the loss.",
    ),
    "finite_mask": Fault(
        "draws of the label are masked by a finite number, so that they keep some weight",
        "Set the logit to -inf wherever a draw is the label of its example.",
        where=lambda right: right.masks_hits and right.is_log_of_sum,
        fitted=(
            FittedFault(
                apply=lambda right, penalty: replace(right, hit_penalty=penalty),
                grid=_PENALTIES,
                describe=lambda penalty: f"{penalty:.2g} is subtracted from their logits",
            ),
            FittedFault(
                apply=lambda right, logit: replace(right, hit_constant=logit),
                grid=_LOGITS,
                describe=lambda logit: f"their logit is {logit:.2g}",
            ),
        ),
    ),
    "q_clipped": Fault(
        "q is clipped from below before its logarithm is taken",
        "Subtract log(m q) without clipping q: the q of a class that has been drawn is above 0.",
        where=lambda right: right.corrects_repeated_draws and right.is_log_of_sum,
        fitted=(
            FittedFault(
                apply=lambda right, log_least: replace(
                    right, log_expected_counts=_counts_with_clipped_q(log_least)
                ),
                grid=_LOG_LEAST,
                describe=lambda log_least: f"q is at least {np.exp(log_least):.2g}",
            ),
        ),
    ),
    "epsilon_in_log": Fault(
        "a number is added to q before its logarithm is taken",
        "Subtract log(m q) and add nothing to q: the q of a class that has been drawn is above 0.",
        where=lambda right: right.corrects_repeated_draws and right.is_log_of_sum,
        fitted=(
            FittedFault(
                apply=lambda right, log_added: replace(
                    right, log_expected_counts=_counts_with_constant_added(log_added)
                ),
                grid=_LOG_LEAST,
                describe=lambda log_added: f"log(q + {np.exp(log_added):.2g})",
            ),
        ),
    ),
    "label_margin": Fault(
        "the label's logit is reduced by a margin, as in CosFace and ArcFace",
        "Set the margin to 0 to check the rest of the loss. With a margin, the loss does not "
        "estimate the softmax loss of the logits.",
        where=lambda right: right.draws == "all" or right.has_label_in_sum,
        fitted=(
            FittedFault(
                apply=lambda right, margin: replace(right, label_margin=margin),
                grid=_MARGINS,
                describe=lambda margin: f"tau (h . c - {margin:.3g})",
            ),
            FittedFault(
                apply=lambda right, angle: replace(right, label_angle=angle),
                grid=_MARGINS,
                describe=lambda angle: f"tau cos(angle + {angle:.3g})",
            ),
        ),
    ),
    "probability_capped": Fault(
        "a number is added to the probability, or the probability is clipped, before its logarithm "
        "is taken",
        "Compute the log-probabilities as logits minus their logsumexp, and add nothing. With the "
        "number, the gradient vanishes where the label's logit is far below the others.",
    ),
    "label_smoothing": Fault(
        "part of the target probability is spread over the draws (label smoothing)",
        "Set label smoothing to 0 to check the rest of the loss. With it, the loss estimates the "
        "loss of a smoothed target.",
    ),
    "smoothed_hits": Fault(
        "label smoothing averages the logits of masked draws too",
        "Leave masked draws out of the mean in the label smoothing.",
    ),
}

# mistakes that only losses with a memory have; their candidates are made in `memory`
MEMORY_FAULTS: dict[str, Fault] = {
    "log_sums_ignored": Fault(
        "the running estimates `log_sums` have no effect",
        "Divide the gradient by the running estimate, not by the sum over the draws.",
    ),
    "other_rate": Fault(
        "the running estimate moves at another rate than was passed",
        "Pass the `gamma` or `alpha` of the loss to `check_loss`, or see whether 1 - gamma stands "
        "at the old estimate. The alpha of a mean over n classes is n times that of a sum.",
    ),
    "new_from_zero": Fault(
        "the running estimate of a new example is gamma times its first sum",
        "At the first visit of an example, set its estimate to the sum over its draws.",
    ),
    "mean_over_draws": Fault(
        "the sum over the draws is a mean: it is divided by m, not by m q",
        "Divide the term of each draw by m q. If the running estimate is of a mean over n classes, "
        "subtract log n from `log_sums` first.",
    ),
    "gradient_through_log_sums": Fault(
        "the gradient flows through the running estimate too",
        "Detach the running estimate from the gradient: it is a constant divisor.",
    ),
    "gradient_times_gamma": Fault(
        "the gradient is multiplied by gamma",
        "Divide the gradient by the new estimate alone, without a factor of gamma.",
    ),
    "gradient_over_gamma": Fault(
        "the gradient is divided by gamma",
        "Divide the gradient by the new estimate alone, without a factor of gamma.",
    ),
    "other_value": Fault(
        "the gradient fits, and the value is neither u + S/U - 1, S/U nor log U",
        "The gradient is right. Return one of these values, with u and U of the sum: if the state "
        "is of a mean over n classes, add log n to it. A value that only carries the gradient does "
        "no harm.",
    ),
}
ALL_FAULTS = ChainMap(FAULTS, MEMORY_FAULTS)
