"""The usual mistakes in a sampled loss, as functions that turn a right estimator into a wrong one.

A new mistake is an entry of `FAULTS` with a description; a remedy; `where`, which tells in which
estimators the mistake can be made; and `ways`, the functions that make it. Each function is
``lambda right: replace(right, field=...)`` with a field of `Estimator`. `check_loss` then tries the
mistake alone and together with each other mistake, and names it in reports. A test of the mistake
needs a loss with it in ``tests/checking/twins.py``. Two mistakes that replace the same field
concern the same step of the loss, and are not tried together.
"""

from __future__ import annotations

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
        Constants that are tried first; the best one is then refined.
    describe : callable
        Returns the description of a constant for reports.
    """

    apply: Callable[[Estimator, float], Estimator]
    grid: FloatArray
    describe: Callable[[float], str]


def _always(right: Estimator) -> bool:
    """Return True: the mistake can be made in any estimator."""
    return True


@dataclass(frozen=True)
class Fault:
    """A usual mistake in a sampled loss.

    Attributes
    ----------
    description, remedy : str
        What is wrong, and how to correct it.
    where : callable
        Returns whether the mistake can be made in a right estimator.
    ways : tuple of callable
        Functions that return a wrong estimator for the right one. A mistake without `ways` and
        without `fitted` cannot be described by an estimator alone; its candidates are made in
        `known`, `fitted`, `families` or `batches` of this package.
    fitted : tuple of FittedFault
        Forms of the mistake that have an unknown constant.
    in_gradients : bool
        Whether the mistake is in the summation of the examples' gradients. Its means then follow
        from the means of the right estimator, and it is tried after other mistakes.
    """

    description: str
    remedy: str
    where: Callable[[Estimator], bool] = _always
    ways: tuple[Callable[[Estimator], Estimator], ...] = ()
    fitted: tuple[FittedFault, ...] = ()
    in_gradients: bool = False

    def applied_to(self, right: Estimator) -> list[Estimator]:
        """Return one estimator for each way to make the mistake; empty if it cannot be made."""
        return [way(right) for way in self.ways] if self.where(right) else []


def changed_fields(right: Estimator, wrong: Estimator) -> dict[str, Any]:
    """Return the fields in which a wrong estimator differs from the right one, with its values."""
    values = {f.name: (getattr(wrong, f.name), getattr(right, f.name)) for f in fields(right)}
    return {name: value for name, (value, before) in values.items() if value != before}


def combine_faults(right: Estimator, one: Estimator, other: Estimator) -> Estimator | None:
    """Return the estimator with two mistakes; None if both replace the same field."""
    first, second = changed_fields(right, one), changed_fields(right, other)
    return None if first.keys() & second else replace(right, **first | second)


# wrong functions for `Estimator.log_expected_counts` ----------------------------------------------


def _counts_with_shifted_q(by: int) -> ExpectedCounts:
    """Return a function for log(m q) in which class j has the q of class j - by."""

    def log_counts(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
        log_q = np.roll(drawn.log_proposal, by, axis=1)
        # NaN if the mistake has no effect (uniform q) or makes the loss infinite (q = 0 of a draw)
        is_same = np.array_equal(log_q, drawn.log_proposal)
        if is_same or (np.isneginf(log_q) & (drawn.log_one_draw > -np.inf)).any():
            log_q = np.full_like(log_q, np.nan)
        return log_q, drawn.log_num_draws

    return log_counts


def _counts_with_other_m(change: int) -> ExpectedCounts:
    """Return a function for log((m + change) q), which is NaN if m + change is 0."""

    def log_counts(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
        m = round(float(np.exp(drawn.log_num_draws))) + change
        return drawn.log_one_draw, float(np.log(m)) if m > 0 else np.nan

    return log_counts


def _counts_given_not_label(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return the two terms of ``log(m q / (1 - q_t))``, where q_t is the q of the label."""
    of_label = drawn.log_proposal[np.arange(len(drawn.labels)), drawn.labels]
    return drawn.log_proposal - np.log(-np.expm1(of_label))[:, None], drawn.log_num_draws


def _counts_with_clipped_q(log_least: float) -> ExpectedCounts:
    """Return a function for log(m q) with log q clipped at `log_least` from below."""
    return lambda drawn: (np.maximum(drawn.log_one_draw, log_least), drawn.log_num_draws)


def _counts_with_constant_added(log_added: float) -> ExpectedCounts:
    """Return a function for ``log(m (q + exp(log_added)))``."""
    return lambda drawn: (np.logaddexp(drawn.log_one_draw, log_added), drawn.log_num_draws)


# grids of unknown constants
_LOG_LEAST = np.log(10.0) * np.linspace(-9.0, -0.5, 18)  # log of a minimum of q, or added to q
_PENALTIES = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))  # subtracted from logits of hits
_LOGITS = np.linspace(-30.0, 6.0, 19)  # logits of masked hits
_MARGINS = np.linspace(0.05, 1.25, 9)  # margins of cosines, and of angles in radians


# If several mistakes fit equally well, the report names the first of them: the most frequent one.
FAULTS: dict[str, Fault] = {
    "log_q_added": Fault(
        "log q is added, not subtracted",
        "Subtract log(m q) from the logits of draws: what is drawn often must weigh less.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(right, correction=lambda log_q, log_m: -(log_q + log_m)),
            lambda right: replace(right, correction=lambda log_q, log_m: -log_q),
            lambda right: replace(right, correction=lambda log_q, log_m: -log_q + log_m),
        ),
    ),
    "uncorrected": Fault(
        "logits are not corrected for how they were drawn",
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
        "q or m q is subtracted, without its logarithm",
        "Subtract log(m q); a sampler may return the expected counts m q themselves.",
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
        "Take the natural logarithm of m q.",
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
        "q of other classes is subtracted, shifted by one",
        "Look at how ids and q are numbered: a class for padding or 'unknown' may be in one only.",
        where=lambda right: right.corrects_draws,
        ways=(
            lambda right: replace(right, log_expected_counts=_counts_with_shifted_q(1)),
            lambda right: replace(right, log_expected_counts=_counts_with_shifted_q(-1)),
        ),
    ),
    "q_not_conditioned": Fault(
        "the label is excluded from the draws, but q is not divided by 1 - q of the label",
        "Subtract log(m q / (1 - q_t)) where no draw can be the label.",
        where=lambda right: right.corrects_repeated_draws and right.excludes_label,
        ways=(
            lambda right: replace(
                right, log_expected_counts=lambda drawn: (drawn.log_proposal, drawn.log_num_draws)
            ),
        ),
    ),
    "q_renormalised": Fault(
        "q is divided by 1 - q of the label, though the label is drawn like any other class",
        "Subtract log(m q), with q as it is drawn from; hits are left out after that.",
        where=lambda right: (
            right.corrects_draws and right.sums_repeated_draws and not right.excludes_label
        ),
        ways=(lambda right: replace(right, log_expected_counts=_counts_given_not_label),),
    ),
    "inclusion_of_repeated": Fault(
        "draws may repeat a class, but are corrected by the chance that a set holds it",
        "Subtract log(m q) where draws may repeat; 1 - (1 - q)^m is for sets without repeats.",
        where=lambda right: right.corrects_repeated_draws and not right.counts_accepted_draws,
        ways=(
            lambda right: replace(
                right, log_expected_counts=lambda drawn: (drawn.log_inclusion, 0.0)
            ),
        ),
    ),
    "distinct_as_repeated": Fault(
        "draws are without replacement, but are corrected by log(m q)",
        "Subtract the log of the chance that a class is in the set, which a sampler without "
        "replacement gives.",
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
        "draws of the label are not left out",
        "Give draws that are the label of their example the logit -inf.",
        where=lambda right: right.masks_hits,
        ways=(lambda right: replace(right, hits="kept"),),
    ),
    "label_uncorrected": Fault(
        "the label's logit is not corrected as those of the draws are",
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
        "the label is in the sum twice",
        "Put the label's own logit into the sum once, beside those of the draws.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, label_weight=2.0),),
    ),
    "label_left_out": Fault(
        "the label's own logit is not in the sum",
        "Put the label's own logit into the sum, beside those of the draws.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, label_weight=0.0),),
    ),
    "label_bias_twice": Fault(
        "the bias of the label is in its logit twice",
        "Add the bias of a class to its logit once, before the label's is taken off.",
        ways=(
            lambda right: replace(right, label_bias_factor=2),
            lambda right: replace(right, label_bias_factor=3),
        ),
    ),
    "one_hit_left_out": Fault(
        "of several draws of the label only one is left out",
        "Give each draw of the label the logit -inf: a map from classes to places holds one place.",
        where=lambda right: right.masks_hits and right.is_log_of_sum,
        ways=(lambda right: replace(right, hits="kept", reduction="one hit less"),),
    ),
    "hits_of_other_rows": Fault(
        "draws of another example's label are left out, and the example's own are not",
        "Compare each example's draws with its own label.",
        where=lambda right: right.masks_hits,
        ways=(
            lambda right: replace(right, hits="next"),
            lambda right: replace(right, hits="previous"),
            lambda right: replace(right, hits="first"),
        ),
    ),
    "hits_of_any_row": Fault(
        "draws of any example's label are left out, not of the example's own alone",
        "Compare each example's draws with its own label: those of others are draws like any.",
        where=lambda right: right.masks_hits,
        ways=(lambda right: replace(right, hits="any"),),
    ),
    "counted_twice": Fault(
        "one draw is in the sum twice",
        "Look for a draw that is joined to the others once more.",
        where=lambda right: right.is_log_of_sum,
        ways=(lambda right: replace(right, reduction="twice"),),
    ),
    "duplicates_dropped": Fault(
        "a class that is drawn several times counts once",
        "Keep repeated draws: log(m q) is the log of how often a class is drawn.",
        where=lambda right: right.sums_repeated_draws,
        ways=(lambda right: replace(right, draws="once"),),
    ),
    "m_off_by_one": Fault(
        "the number of draws and the m of the correction differ by one",
        "Take for m the number of draws that are in the sum, without the label.",
        where=lambda right: right.corrects_repeated_draws and not right.counts_accepted_draws,
        ways=(
            lambda right: replace(right, log_expected_counts=_counts_with_other_m(1)),
            lambda right: replace(right, log_expected_counts=_counts_with_other_m(-1)),
            lambda right: replace(right, extra_draws=1),
            lambda right: replace(right, extra_draws=-1),
        ),
    ),
    "detached_negatives": Fault(
        "the gradient leaves out the draws",
        "Let the gradient flow through the logits of the draws too.",
        where=lambda right: right.has_label_in_sum,
        ways=(lambda right: replace(right, detaches_draws=True),),
    ),
    "divided_by_batch": Fault(
        "losses or gradients are divided by the size of the batch",
        "Return the loss of each example, and the gradient of their sum, not of their mean.",
        ways=(
            lambda right: replace(right, divides_gradient_by_batch=True),
            lambda right: replace(
                right, divides_loss_by_batch=True, divides_gradient_by_batch=True
            ),
            lambda right: replace(right, divides_loss_by_batch=True),
        ),
    ),
    "weights_of_first": Fault(
        "gradients are multiplied by the weight of the first example, not each by its own",
        "Multiply the gradient of each example by its weight before it is added to the others.",
        ways=(
            lambda right: replace(right, weighting=Weighting("own", "first", "first")),
            lambda right: replace(right, weighting=Weighting("own", "own", "first")),
        ),
        in_gradients=True,
    ),
    "weights_ignored": Fault(
        "losses or gradients are not multiplied by the weights of their examples",
        "Multiply the gradient of each example by its weight before it is added to the others.",
        ways=(
            lambda right: replace(right, weighting=Weighting("none", "none", "none")),
            lambda right: replace(right, weighting=Weighting("own", "none", "none")),
            lambda right: replace(right, weighting=Weighting("own", "own", "none")),
        ),
        in_gradients=True,
    ),
    "labels_counted_once": Fault(
        "in the gradient of the class vectors a label that several examples share counts once",
        "Add up the rows of equal labels, as numpy.add.at does and `dW[labels] -= h` does not.",
        ways=(lambda right: replace(right, weighting=Weighting(label_fraction=1.0 / REPLICAS)),),
        in_gradients=True,
    ),
    "gradient_scaled": Fault(
        "the gradient is a constant times that of the losses",
        "Return the gradient of the sum of the losses. Look for a mean over two halves of the "
        "loss, or over the workers of a group.",
    ),
    "dependent_draws": Fault(
        "draws of an example are not independent: the means are right, but single losses spread "
        "otherwise",
        "Look for draws that are used again, such as one set twice, or one draw for several "
        "places. Draws without replacement spread less.",
    ),
    "in_batch_count": Fault(
        "the m of the correction is not the number of the other labels in the batch",
        "Take m = B - 1 for a batch of B.",
    ),
    "corrected_apart": Fault(
        "the labels of the batch and the draws beside are each corrected by their own count",
        "Subtract log((B - 1) q + m u) from the logits of both, where m draws are from u.",
    ),
    "other_proposal": Fault(
        "draws are by another proposal than the one that was given",
        "Give `check_loss` the proposal of the loss; where only the draws are by another, correct "
        "by that one.",
    ),
    "class_never_drawn": Fault(
        "the first or the last class is never drawn, though its q is above 0",
        "Draw from the whole range: the upper end of randint is often exclusive. If a class is "
        "left out on purpose, as padding is, give `check_loss` a proposal with q = 0 there.",
    ),
    "other_temperature": Fault(
        "the inverse temperature is another than `tau`",
        "Give `check_loss` the `tau` of the loss, or put `tau` before h . c.",
    ),
    "finite_mask": Fault(
        "draws of the label are masked by a finite number, which leaks",
        "Give draws that are the label of their example the logit -inf.",
        where=lambda right: right.masks_hits and right.is_log_of_sum,
        fitted=(
            FittedFault(
                apply=lambda right, penalty: replace(right, hit_penalty=penalty),
                grid=_PENALTIES,
                describe=lambda penalty: f"their logits less {penalty:.2g}",
            ),
            FittedFault(
                apply=lambda right, logit: replace(right, hit_constant=logit),
                grid=_LOGITS,
                describe=lambda logit: f"the logit {logit:.2g}",
            ),
        ),
    ),
    "q_clipped": Fault(
        "q is clipped from below before its logarithm is taken",
        "Subtract log(m q) as it is: q of what has been drawn is above 0.",
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
        "Subtract log(m q) as it is: q of what has been drawn is above 0.",
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
        "a margin is taken off the label's logit, as in CosFace and ArcFace",
        "Set the margin to 0 to have the rest of the loss checked: with one it estimates no "
        "softmax loss of the logits.",
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
        "a number is added to the probability, or it is clipped, before its logarithm is taken",
        "Compute log-probabilities, logits less their logsumexp, and add nothing: such a loss has "
        "no gradient where the label is far behind.",
    ),
    "label_smoothing": Fault(
        "part of the target is spread over the draws (label smoothing)",
        "Leave label smoothing out, or take the loss for one of a smoothed target.",
    ),
    "smoothed_hits": Fault(
        "label smoothing averages the logits of masked draws",
        "Leave draws that are masked out of the mean that label smoothing takes.",
    ),
}
