"""`Estimator`, a description of a sampled loss, and `SampledSum`, its random sum on a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.without_replacement.sets import (
    Sets,
    by_tries,
    distinct_of_iid_draws,
    first_different,
    independent,
)
from samplesoft.checking.problems import Problem
from samplesoft.schemes import SCHEMES, Scheme

BY_TRIES = "draws are corrected by the number of tries, as in TensorFlow"
OF_ALL = "the sum includes classes that are never drawn"


class DrawLogProbs(NamedTuple):
    """Log-probabilities of the classes, from which the corrections of their logits are computed.

    Attributes
    ----------
    log_one_draw : ndarray, shape (E, n)
        Log-probability that one draw is a class; conditional on "not the label" if the label is
        excluded or its draws are rejected.
    log_proposal : ndarray, shape (E, n)
        Log of the proposal q.
    log_inclusion : ndarray, shape (E, n)
        Log-probability that a class is among the draws.
    log_num_draws : float
        Log of the number of draws m; 0 if the sum over draws is divided by the number of accepted
        draws, so that m is not in the correction.
    labels : ndarray of int, shape (E,)
        The labels.
    """

    log_one_draw: FloatArray
    log_proposal: FloatArray
    log_inclusion: FloatArray
    log_num_draws: float
    labels: IntArray


# Returns the log of the expected number of draws of each class as two terms, which are to be added:
# an array (E, n) such as log q, and a number such as log m.
ExpectedCounts = Callable[[DrawLogProbs], tuple[FloatArray, float]]
# Takes these two terms, and returns the correction (E, n) that is subtracted from the logits.
Correction = Callable[[FloatArray, float], FloatArray]


def log_counts_of_repeated(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return log q and log m: independent draws contain a class m q times on average."""
    return drawn.log_one_draw, drawn.log_num_draws


def log_counts_of_set(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return the log of the expected count of each class in a drawn set, and 0 as second term.

    A set contains a class at most once, so that the expected count is the inclusion probability.
    """
    return drawn.log_inclusion, 0.0


def right_correction(log_q: FloatArray, log_num_draws: float) -> FloatArray:
    """Return the right correction log(m q), by eq. 5 of Rawat et al. (2019)."""
    return log_q + log_num_draws


class Weighting(NamedTuple):
    """Which weights multiply the losses, the gradients in h, and those in class vectors.

    Each of the three is ``"own"``, the weight of the example itself, which is right; ``"first"``,
    the weight of the first example; or ``"none"``. `label_fraction` multiplies the term that the
    label adds to the gradient in its class vector; it should be 1.
    """

    losses: str = "own"
    in_h: str = "own"
    in_classes: str = "own"
    label_fraction: float = 1.0


OWN_WEIGHTS = Weighting()


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """A sampled loss, described by the steps that compute it from its draws.

    A fault is a mistake that replaces some of the steps. Calling the estimator with a problem, a
    number of draws and the size of the batch returns the random sums S of the loss, see
    `SampledSum`. The loss is log S minus the label's logit.

    Attributes
    ----------
    name, estimand : str
        The name of the loss, and a sentence about what it estimates, which starts with "it".
    draws : str
        ``"repeated"`` for independent draws; ``"distinct"`` for draws without replacement;
        ``"once"`` for independent draws of which each class counts once; ``"independent"`` for
        independent inclusion of each class; ``"all"`` for the full softmax; and ``""`` for labels
        of the batch, or if there is no closed form.
    extra_draws : int
        Number of draws minus the m of the correction log(m q); 0 if the loss is right.
    log_expected_counts : callable
        Computes the log of the expected number of draws of each class, as two terms to be added.
    correction : callable
        Computes from these two terms the correction that is subtracted from the logits.
    corrects_draws : bool
        Whether the logits of draws are corrected.
    divides_by_count : bool
        Whether the sum over draws is divided by the number of accepted draws, which are not hits.
        It is used only if `hits` is ``"counted"``.
    multiplies_correction_by_tau : bool
        Whether the correction is multiplied by tau, which is a mistake.
    label_correction : float
        The correction of the label's logit, as a multiple of the correction that the logit of a
        draw of the same class gets.
    label_weight : float
        Factor of the label's term in the sum.
    label_bias_factor : int
        How many times the label's bias is added to its logit.
    label_margin, label_angle : float
        Margins for cosines. The label's logit is ``tau * (cos(angle) - label_margin)``, or
        ``tau * cos(angle + label_angle)`` with angles in radians.
    hits : str
        Treatment of accidental hits, which are draws of the label: ``"absent"``, ``"masked"``,
        ``"counted"`` or ``"kept"`` as in `samplesoft.schemes.Scheme`. With ``"next"``,
        ``"previous"`` or ``"first"`` the label of that row is masked instead, and with ``"any"``
        the labels of all rows.
    hit_penalty, hit_constant : float or None
        Number that is subtracted from the logits of masked hits; and constant logit of masked hits.
        If both are None, masked hits have the logit -inf, which is right.
    reduction : str
        ``"sum"``: the loss is log S minus the label's logit. ``"jackknife"``: the jackknife of this
        loss. ``"logistic"``: a sum of logistic losses, one for the label and one for each draw.
        ``"twice"``: the first draw is in S twice. ``"one hit less"``: all hits except one are in S.
    detaches_draws : bool
        Whether no gradient flows through the logits of draws.
    divides_loss_by_batch, divides_gradient_by_batch : bool
        Whether the loss, or its gradient, is divided by the size of the batch.
    weighting : Weighting
        How losses and gradients of the examples are weighted.
    corrects_by_tries : bool
        Whether the correction of draws without replacement uses the number of tries, as in
        TensorFlow: classes are drawn with replacement until m different ones are found.
    sums_all_classes : bool
        Whether the full softmax includes classes with q = 0, which are never drawn.
    """

    name: str
    estimand: str
    draws: str = "repeated"
    extra_draws: int = 0
    log_expected_counts: ExpectedCounts = log_counts_of_repeated
    correction: Correction = right_correction
    corrects_draws: bool = True
    divides_by_count: bool = True
    multiplies_correction_by_tau: bool = False
    label_correction: float = 0.0
    label_weight: float = 1.0
    label_bias_factor: int = 1
    label_margin: float = 0.0
    label_angle: float = 0.0
    hits: str = "masked"
    hit_penalty: float | None = None
    hit_constant: float | None = None
    reduction: str = "sum"
    detaches_draws: bool = False
    divides_loss_by_batch: bool = False
    divides_gradient_by_batch: bool = False
    weighting: Weighting = OWN_WEIGHTS
    corrects_by_tries: bool = False
    sums_all_classes: bool = False

    # properties that decide which faults apply ----------------------------------------------------

    @property
    def has_draws(self) -> bool:
        """Whether the loss draws classes, and its mean has a closed form."""
        return self.draws not in ("all", "")

    @property
    def counts_accepted_draws(self) -> bool:
        """Whether accidental hits are rejected: the number of accepted draws is then random."""
        return self.hits == "counted"

    @property
    def excludes_label(self) -> bool:
        """Whether the label is never drawn: draws follow q conditional on "not the label"."""
        return self.hits == "absent"

    @property
    def corrects_repeated_draws(self) -> bool:
        """Whether draws are independent, and their logits are corrected."""
        return self.corrects_draws and self.draws == "repeated"

    @property
    def corrects_distinct_draws(self) -> bool:
        """Whether draws are without replacement, corrected, and hits are not rejected."""
        return self.corrects_draws and self.draws == "distinct" and not self.counts_accepted_draws

    @property
    def corrects_label(self) -> bool:
        """Whether the label's logit is corrected like the logits of draws."""
        return self.corrects_draws and self.label_correction > 0.0

    @property
    def sums_repeated_draws(self) -> bool:
        """Whether S is a sum over independent draws, without jackknife and random divisor."""
        is_plain = self.reduction != "jackknife" and not self.counts_accepted_draws
        return self.draws == "repeated" and is_plain

    @property
    def is_log_of_sum(self) -> bool:
        """Whether the loss is the log of a sum over independent draws, not a logistic loss."""
        return self.sums_repeated_draws and self.reduction != "logistic"

    @property
    def masks_hits(self) -> bool:
        """Whether accidental hits are masked, so that they have no weight in the sum."""
        return self.hits == "masked"

    @property
    def has_label_in_sum(self) -> bool:
        """Whether S always contains a term for the label, even if the label is not drawn."""
        return self.has_draws and self.label_weight > 0.0 and self.reduction != "logistic"

    # the random sums ------------------------------------------------------------------------------

    def __call__(self, problem: Problem, num_sampled: int, batch: int) -> list[SampledSum]:
        """Return the random sums S of the loss on a problem, each with its probability.

        Most losses have one sum. If the correction uses the number of tries, there is one sum for
        each number. If a drawn label is removed from a set, there are two sums: one if the label is
        not drawn, and one if it is. The list is empty if the loss is undefined on this problem, or
        if a fault has no effect on it.
        """
        if not self.draws or (self.label_bias_factor > 1 and problem.biases is None):
            return []
        if (self.label_margin or self.label_angle) and not problem.has_unit_vectors:
            return []  # margins are defined for cosines

        loss_factor = 1.0 / batch if self.divides_loss_by_batch else 1.0
        gradient_factor = 1.0 / batch if self.divides_gradient_by_batch else 1.0
        if self.draws == "all":
            full_softmax = full_sum(problem, self.sums_all_classes)
            label_logits, label_derivative = self._label_logits_with_margin(
                problem, full_softmax.label_logit
            )
            full_softmax = replace(
                full_softmax,
                log_label_mass=label_logits,
                label_logit=label_logits + self._extra_label_bias(problem),
                label_derivative=label_derivative,
                loss_factor=loss_factor,
                gradient_factor=gradient_factor,
            )
            return [full_softmax]

        m = num_sampled
        num_draws = num_sampled + self.extra_draws
        min_draws = 2 if self.reduction == "jackknife" else 1
        if min(m, num_draws) < min_draws or (
            self.multiplies_correction_by_tau and problem.tau == 1.0
        ):
            return []

        labels = problem.labels
        rows = np.arange(len(problem.labels))
        _, label_derivative = self._label_logits_with_margin(problem, problem.logits[rows, labels])
        with np.errstate(divide="ignore"):  # log 0 for classes that are never drawn
            log_q = np.log(problem.q)

        log_draw_probs = log_q
        excludes_label = self.excludes_label and self.draws != "independent"

        # make the probabilities of a draw conditional on "not the label"
        if self.counts_accepted_draws or excludes_label:
            log_draw_probs = log_q - np.log(-np.expm1(log_q[rows, labels]))[:, None]
            log_draw_probs[rows, labels] = -np.inf

        # probabilities of the draws; if hits are drawn and then rejected, draws follow q itself
        probs = np.exp(log_draw_probs if excludes_label else log_q)

        # If hits are removed from a drawn set, S has one distribution for sets with the label and
        # another for sets without it.
        conditioned_label = (
            labels if self.counts_accepted_draws and self.draws == "distinct" else None
        )
        divides_by_count = (
            self.counts_accepted_draws and conditioned_label is None and self.divides_by_count
        )
        reduction = "kept" if divides_by_count and self.reduction == "sum" else self.reduction
        sums = []
        cases = self._set_distributions(probs, num_draws, conditioned_label)

        for probability, sets, tries in cases:
            inclusion = -np.expm1(
                (m if tries is None else tries) * np.log1p(-np.exp(log_draw_probs))
            )

            # as in TensorFlow: if m tries gave m different classes, the expected count is m q
            if tries is not None:
                inclusion = np.where(tries == m, m * np.exp(log_draw_probs), inclusion)

            num_draws_in_sum = num_draws
            draw_probs = probs
            if sets is not None:
                num_draws_in_sum = 1
                draw_probs = np.array([sets_of_example.inclusion for sets_of_example in sets])
                inclusion = draw_probs if self.draws == "distinct" and tries is None else inclusion

            if self.draws == "independent":
                draw_probs[rows, labels] = 0.0

            with np.errstate(divide="ignore"):
                log_inclusion = np.log(inclusion)

            # if the sum is divided by the number of accepted draws, m is not in the correction
            log_num_draws = 0.0 if divides_by_count else float(np.log(m))
            drawn = DrawLogProbs(log_draw_probs, log_q, log_inclusion, log_num_draws, labels)
            label_logit, log_label_mass, logits = self.label_and_draw_logits(problem, drawn)

            # the loss is undefined if a correction is NaN, or if S may be 0
            may_be_empty = self.draws == "independent" or bool(
                (draw_probs[logits == -np.inf] > 0.0).any()
            )
            if np.isnan(logits).any() or (np.isneginf(log_label_mass).any() and may_be_empty):
                return []

            sums.append(
                SampledSum(
                    reduction=reduction,
                    labels=labels,
                    probs=draw_probs,
                    logits=logits,
                    log_label_mass=log_label_mass,
                    label_logit=label_logit,
                    num_draws=num_draws_in_sum,
                    label_derivative=label_derivative,
                    loss_factor=loss_factor,
                    gradient_factor=gradient_factor,
                    has_constant_hits=self.hit_constant is not None,
                    detaches_draws=self.detaches_draws,
                    set_distributions=sets,
                    probability=probability,
                )
            )

        return sums

    def label_and_draw_logits(
        self, problem: Problem, drawn: DrawLogProbs
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the logits of labels and draws, after all corrections and masks.

        Returns the label's logit (E,), which is subtracted from log S; the log (E,) of the label's
        term in S; and the logits (E, n) that draws of each class have. The entry of the label in
        the last is the logit of an accidental hit.
        """
        labels = problem.labels
        rows = np.arange(len(problem.labels))
        x = problem.logits.copy()
        log_label_mass, _ = self._label_logits_with_margin(problem, x[rows, labels])
        label_logit = log_label_mass + self._extra_label_bias(problem)
        if self.corrects_draws:
            correction = self.correction(*self.log_expected_counts(drawn))
            correction = correction * (problem.tau if self.multiplies_correction_by_tau else 1.0)
            x -= np.where(np.isinf(correction), 0.0, correction)  # inf for classes never drawn
            if self.label_correction:
                label_correction = self.label_correction * correction[rows, labels]
                log_label_mass = log_label_mass - label_correction
                label_logit = label_logit - label_correction

        if self.label_weight:
            log_label_mass = log_label_mass + np.log(self.label_weight)
        else:  # the label is in S only if it is drawn
            log_label_mass = np.full_like(label_logit, -np.inf)

        masked_labels = {
            "next": np.roll(labels, -1),
            "previous": np.roll(labels, 1),
            "first": labels[0],
        }

        # the mistake of masking the label of another row, which is another example: see `Observer`
        if self.hits in masked_labels:
            x[rows, masked_labels[self.hits]] = -np.inf
        elif self.hits == "any":
            x[:, labels] = -np.inf
        elif self.hits != "kept":
            x[rows, labels] = self._logit_of_hits(x[rows, labels])

        return label_logit, log_label_mass, x

    def _logit_of_hits(self, unmasked: FloatArray) -> FloatArray | float:
        """Return the logit of masked hits, which is -inf unless a fault replaces it."""
        if self.hit_penalty is not None:
            return unmasked - self.hit_penalty
        return -np.inf if self.hit_constant is None else self.hit_constant

    def _label_logits_with_margin(
        self, problem: Problem, logits: FloatArray
    ) -> tuple[FloatArray, FloatArray | float]:
        """Apply the margin of the loss to the logits (E,) of the labels.

        Returns the logits with margin, and their derivatives in the logits without it.
        """
        if self.label_angle:
            biases = 0.0 if problem.biases is None else problem.biases[problem.labels]
            angles = np.arccos(np.clip((logits - biases) / problem.tau, -1.0, 1.0))
            derivative = np.sin(angles + self.label_angle) / np.sin(angles)
            return problem.tau * np.cos(angles + self.label_angle) + biases, derivative
        return logits - problem.tau * self.label_margin, 1.0

    def _extra_label_bias(self, problem: Problem) -> FloatArray | float:
        """Return the labels' biases (E,) times ``label_bias_factor - 1``, or 0 without biases."""
        if problem.biases is None:
            return 0.0
        extra_bias: FloatArray = (self.label_bias_factor - 1) * problem.biases[problem.labels]
        return extra_bias

    def _set_distributions(
        self, probs: FloatArray, num_draws: int, given_label: IntArray | None
    ) -> Sequence[tuple[FloatArray | float, tuple[Sets, ...] | None, FloatArray | None]]:
        """Return the distribution of the drawn set, as a list of cases with their probabilities.

        A case is (probability, one distribution of the set for each of the E examples, number of
        tries (E, 1)). Usually there is one case. With `given_label` (E,) there are two: sets
        without the label, and sets that contain it. If the correction uses the number of tries
        until the set is full, there is a case for each number; otherwise the number is None. For
        repeated draws, which `probs` (E, n) describes, the distributions are None. The list is
        empty if draws without replacement have at most `num_draws` classes with a positive
        probability, or if there are too many numbers of tries.
        """
        if self.draws == "repeated":
            return [(1.0, None, None)]
        if self.draws == "distinct" and num_draws >= (probs > 0.0).sum(axis=1).min():
            return []

        keys = [row.tobytes() for row in np.ascontiguousarray(probs)]
        if self.corrects_by_tries:
            return _set_distributions_by_tries([by_tries(key, num_draws) for key in keys])

        kinds = {
            "once": distinct_of_iid_draws,
            "distinct": first_different,
            "independent": independent,
        }
        distributions = tuple(kinds[self.draws](key, num_draws) for key in keys)
        if given_label is None:
            return [(1.0, distributions, None)]

        cases: list[tuple[FloatArray, tuple[Sets, ...], None]] = []
        for contains_label in (False, True):
            conditioned = [
                distribution.given(int(t), contains_label)
                for distribution, t in zip(distributions, given_label, strict=True)
            ]
            weights, sets = zip(*conditioned, strict=True)
            cases.append((np.array(weights), sets, None))

        return cases


def _set_distributions_by_tries(
    found: list[tuple[tuple[int, float, Sets], ...]],
) -> list[tuple[FloatArray, tuple[Sets, ...], FloatArray]]:
    """Return the distribution of the drawn set as a list of cases.

    A case is as in `Estimator._set_distributions`. `found` holds, for each example, the tuples that
    `by_tries` returns: (number of tries, weight, distribution of the set). If an example has none,
    because too many numbers of tries or classes are possible, the result is an empty list.
    """
    if not all(found):
        return []
    cases = []
    for index in range(max(map(len, found))):  # examples with fewer numbers get probability 0
        tries, weights, sets = zip(
            *(example_cases[min(index, len(example_cases) - 1)] for example_cases in found),
            strict=True,
        )
        has_index = np.array([index < len(example_cases) for example_cases in found])
        cases.append((has_index * np.array(weights), tuple(sets), np.array(tries)[:, None]))
    return cases


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledSum:
    """The random sum S of the loss ``log S - label_logit``, for each of E examples.

    S is ``exp(log_label_mass)`` plus the sum of ``exp(logits[i])`` over the drawn classes i.

    Attributes
    ----------
    reduction : str
        The `reduction` of the `Estimator`, or ``"kept"``: the sum over draws is divided by the
        number of draws with a finite logit.
    labels : ndarray of int, shape (E,)
        The labels.
    probs : ndarray, shape (E, n)
        Probability of each class: that one draw is this class; or, with `set_distributions`, that
        the drawn set contains it.
    logits : ndarray, shape (E, n)
        Corrected logits of draws of each class; -inf means that a draw has no weight. The entry of
        the label is the logit of an accidental hit.
    log_label_mass, label_logit : ndarray, shape (E,)
        Log of the label's term that is always in S, and the logit that is subtracted from log S.
    num_draws : int
        Number of draws; 1 for a set; 0 if S contains only the label and always-included classes.
    label_derivative : ndarray, shape (E,), or float
        Derivative of `log_label_mass` and `label_logit` with respect to the label's logit.
    loss_factor, gradient_factor : float
        Factors by which the loss and its gradient are multiplied.
    always_included_logits : ndarray, shape (E, n), or None
        Logits of classes that are always in S in addition to the label, -inf for other classes.
    has_constant_hits : bool
        Whether the logit of hits is a constant, which does not change with the label's logit.
    detaches_draws : bool
        Whether the logits of draws are constants in the gradient.
    set_distributions : tuple of Sets or None
        The distribution of the drawn set for each example; None for independent draws.
    probability : ndarray, shape (E,), or float
        Probability of this sum, if S is one of several sums at random.
    """

    reduction: str
    labels: IntArray
    probs: FloatArray
    logits: FloatArray
    log_label_mass: FloatArray
    label_logit: FloatArray
    num_draws: int
    label_derivative: FloatArray | float = 1.0
    loss_factor: float = 1.0
    gradient_factor: float = 1.0
    always_included_logits: FloatArray | None = None
    has_constant_hits: bool = False
    detaches_draws: bool = False
    set_distributions: tuple[Sets, ...] | None = None
    probability: FloatArray | float = 1.0

    @property
    def log_fixed_mass(self) -> FloatArray:
        """Log (E,) of the terms that are always in S: the label and always-included classes."""
        if self.always_included_logits is None:
            return self.log_label_mass
        return np.logaddexp(
            self.log_label_mass, np.logaddexp.reduce(self.always_included_logits, axis=1)
        )

    @property
    def key(self) -> tuple[object, ...]:
        """All field values as a hashable tuple, which is equal for equal sums."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(
            value.tobytes() if isinstance(value, np.ndarray) else value for value in values
        )

    def with_hit_logits(self, logits: FloatArray) -> SampledSum:
        """Return a copy in which the accidental hits of each example have the given logits (E,)."""
        changed = self.logits.copy()
        changed[np.arange(len(changed)), self.labels] = logits
        return replace(self, logits=changed)


def sum_without_draws(
    labels: IntArray,
    label_logit: FloatArray,
    log_label_mass: FloatArray,
    always_included_logits: FloatArray,
) -> SampledSum:
    """Return the sum S of a loss without random draws.

    It contains the label, and all classes with a finite entry in `always_included_logits`.
    """
    return SampledSum(
        reduction="sum",
        labels=labels,
        probs=np.broadcast_to(0.0, always_included_logits.shape),
        logits=np.broadcast_to(-np.inf, always_included_logits.shape),
        log_label_mass=log_label_mass,
        label_logit=label_logit,
        num_draws=0,
        always_included_logits=always_included_logits,
    )


def full_sum(problem: Problem, sums_all_classes: bool = False) -> SampledSum:
    """Return the sum S of the full softmax, over all classes or only those with q > 0."""
    rows = np.arange(len(problem.labels))
    others = problem.logits.copy()
    if not sums_all_classes:
        others[problem.q <= 0.0] = -np.inf
    label_logits = others[rows, problem.labels]
    others[rows, problem.labels] = -np.inf
    return sum_without_draws(problem.labels, label_logits, label_logits, others)


# the list of known estimators ---------------------------------------------------------------------

_SOFTMAX = "it estimates the full softmax loss, with a bias of O(1/m)"
# log(m q) is subtracted from the label's logit too, so that the loss is larger by log(m q_label)
_CANDIDATE = (
    "it estimates the full softmax loss plus log(m q) of the label, which is constant in training, "
    "with a bias of O(1/m)"
)
_ODDS = (
    "with many draws, it estimates the log of the odds against the label plus log(m q) of the "
    "label, which is constant in training"
)
_JACKKNIFE = "it estimates the full softmax loss, with a bias of O(1/m**2)"
_NCE = "it is the loss of noise-contrastive estimation (NCE)"
_NEGATIVE_SAMPLING = "it is the loss of negative sampling, whose limit for many draws is no softmax"
_BATCH = f"{_SOFTMAX}, where m is the number of other labels in the batch"
_MIXED = f"{_BATCH} plus the number of additional draws"
_TWO_WAY = (
    "it is a two-way loss, with one softmax over the classes of a batch and one over its contexts, "
    "and does not estimate the full softmax loss"
)
_MOVING = (
    "it is a moving average of sampled softmax, which estimates the full softmax loss with a bias "
    "of O(gamma/m)"
)
_MOVING_NEGATIVES = (
    "it is a moving average of the sum over negatives alone, without the label, as in SogCLR, "
    "which is not the softmax loss"
)
_DOUBLE_SUM = (
    "it divides by an estimate of the sum from before the draws, and its mean gradient is that of "
    "the full softmax loss times a number, which is 1 at the right estimate"
)
MEMORY_SCHEMES = ("moving_average", "moving_average_negatives", "double_sum")
_ONCE = ("negatives", "masked", "candidate", "candidate_masked")


def _estimator_of_scheme(scheme: Scheme, **others: Any) -> Estimator:
    """Return the estimator of a scheme; keyword arguments `others` replace its fields."""
    if scheme.jackknife:
        estimand = _JACKKNIFE
    elif scheme.corrects_label:
        estimand = _ODDS if scheme.hits == "masked" else _CANDIDATE
    else:
        estimand = _SOFTMAX

    draws = "independent" if scheme.independent else "repeated"
    arguments: dict[str, Any] = {
        "name": scheme.name,
        "estimand": estimand,
        "draws": "distinct" if scheme.distinct else draws,
        "corrects_draws": scheme.corrects_draws,
        "label_correction": 1.0 if scheme.corrects_label else 0.0,
        "label_weight": 1.0 if scheme.label_in_sum else 0.0,
        "hits": scheme.hits,
        "reduction": "jackknife" if scheme.jackknife else "sum",
    } | others
    draws_set = arguments["draws"] != "repeated"

    return Estimator(
        log_expected_counts=log_counts_of_set if draws_set else log_counts_of_repeated, **arguments
    )


def _estimator_without_draws(name: str, estimand: str, draws: str = "") -> Estimator:
    """Return an estimator that draws no classes, or whose draws have no closed form."""
    return Estimator(name=name, estimand=estimand, draws=draws, corrects_draws=False, hits="kept")


def _known_estimators() -> Iterator[Estimator]:
    """Yield the known estimators without mistakes, in the order in which reports prefer them."""
    estimand = "it is the full softmax loss itself, not an estimate"
    yield _estimator_without_draws("full", estimand, draws="all")
    for name, scheme in SCHEMES.items():
        # keeping hits is a mistake if draws are corrected; `negative_sampling_kept` is below
        if name != "kept":
            yield _estimator_of_scheme(scheme)

    logistic = []
    for name, base_scheme in (("nce", "candidate"), ("nce_masked", "candidate_masked")):
        logistic.append(
            _estimator_of_scheme(
                SCHEMES[base_scheme], name=name, estimand=_NCE, reduction="logistic"
            )
        )

    for end, base_scheme in (("", "negatives"), ("_masked", "masked"), ("_kept", "kept")):
        scheme = SCHEMES[base_scheme].without_correction()
        name = f"negative_sampling{end}"
        texts = {"name": name, "estimand": _NEGATIVE_SAMPLING}
        logistic.append(_estimator_of_scheme(scheme, reduction="logistic", **texts))

    yield from logistic
    for name in _ONCE:
        yield _estimator_of_scheme(SCHEMES[name], name=f"{name}_once", draws="once")

    yield _estimator_of_scheme(SCHEMES["reject"], name="distinct_reject", draws="distinct")
    for one in logistic:
        name = f"distinct_{one.name}"
        yield replace(one, name=name, draws="distinct", log_expected_counts=log_counts_of_set)

    estimand = "it estimates the full softmax loss without bias, from random draws"
    yield _estimator_without_draws("unbiased", estimand)
    for name, estimand in zip(
        MEMORY_SCHEMES, (_MOVING, _MOVING_NEGATIVES, _DOUBLE_SUM), strict=True
    ):
        yield _estimator_without_draws(name, estimand)
    yield _estimator_without_draws("in_batch", _BATCH)
    yield _estimator_without_draws("in_batch_candidate", _ODDS)
    yield _estimator_without_draws("in_batch_candidate_kept", _CANDIDATE)
    yield _estimator_without_draws("in_batch_symmetric", _TWO_WAY)
    yield _estimator_without_draws("mixed", _MIXED)
    yield _estimator_without_draws("mixed_candidate", _ODDS)


ESTIMATORS: dict[str, Estimator] = {one.name: one for one in _known_estimators()}


def estimators_with_draws(*draws: str) -> list[Estimator]:
    """Return the known estimators with one of the given kinds of `draws`, such as "distinct"."""
    return [one for one in ESTIMATORS.values() if one.draws in draws]
