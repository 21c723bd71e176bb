"""`Estimator`: a description of a sampled loss, from which its random sums on a problem follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.without_replacement.sets import (
    Sets,
    by_tries,
    each_once,
    first_different,
    independent,
)
from samplesoft.checking.problems import Problem
from samplesoft.schemes import SCHEMES, Scheme

BY_TRIES = "corrected by the number of tries, as in TensorFlow"
OF_ALL = "over classes that are never drawn too"


class DrawLogProbs(NamedTuple):
    """Log-probabilities (E, n) of the draws of a problem, from which corrections are computed.

    Attributes
    ----------
    one_draw : ndarray, shape (E, n)
        Of one draw as it is made: of q given "not the label" where the label is excluded.
    proposal : ndarray, shape (E, n)
        Of the proposal q.
    inclusion : ndarray, shape (E, n)
        That the draws hold a class.
    log_num : float
        Log of the number of draws m; 0 where draws are divided by the number that is kept.
    labels : ndarray of int, shape (E,)
        The labels.
    """

    log_one_draw: FloatArray
    log_proposal: FloatArray
    log_inclusion: FloatArray
    log_num_draws: float
    labels: IntArray


# Log of how often each class is expected among the draws: (E, n), and a number to be added.
ExpectedCounts = Callable[[DrawLogProbs], tuple[FloatArray, float]]
# The correction of a logit (E, n), by these two.
Correction = Callable[[FloatArray, float], FloatArray]


def log_counts_of_repeated(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return log(m q)."""
    return drawn.log_one_draw, drawn.log_num_draws


def log_counts_of_set(drawn: DrawLogProbs) -> tuple[FloatArray, float]:
    """Return the log of the probability that a set holds a class."""
    return drawn.log_inclusion, 0.0


def right_correction(log_q: FloatArray, log_num_draws: float) -> FloatArray:
    """Return the correction as it should be, eq. 5 of Rawat et al. (2019): o - log(m q)."""
    return log_q + log_num_draws


class Weighting(NamedTuple):
    """The weights that losses and gradients are multiplied by: ``own``, ``first`` or ``none``.

    `label_fraction` is the fraction of the label's part in the gradient in the class vectors.
    """

    losses: str = "own"
    in_h: str = "own"
    in_classes: str = "own"
    label_fraction: float = 1.0


OWN_WEIGHTS = Weighting()


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """The steps by which a loss is computed from its draws; a fault replaces some of the steps.

    Called with a problem, a number of draws and the size of the batch, it returns the random sums
    S of the loss ``log S - own``: see `SampledSum`.

    Attributes
    ----------
    name, aim : str
        Its name, and a description of the quantity that the loss estimates.
    draws : str
        ``"repeated"``; ``"distinct"``, without replacement; ``"once"``, repeated, of which each
        class counts once; ``"independent"`` inclusion; ``"all"`` classes, in the full softmax; and
        ``""`` where they are labels of the batch, or there is no closed form.
    more_draws : int
        Draws in excess of the m of the correction.
    expected : callable
        Log of the expected number of draws of each class.
    link : callable
        The correction, which is subtracted from the logits, as a function of that.
    corrects_draws : bool
        Whether the logits of draws are corrected.
    divides_by_number : bool
        Whether draws are divided by the number of accepted draws, if `hits` is ``"counted"``.
    correction_times_tau : bool
        Whether the correction is multiplied by tau, as the scores are.
    label_correction : float
        Multiple of the correction that is subtracted from the label's logit.
    label_weight : float
        Multiple of the label's mass in the sum.
    label_biases : int
        Multiple of the label's bias in its logit.
    label_margin, label_angle : float
        Of cosines: the label's logit is tau times its cosine less a margin, or tau times the
        cosine of an angle that is larger by this (radians).
    hits : str
        Treatment of accidental hits, draws of the label: ``"absent"``, ``"masked"``,
        ``"counted"`` or ``"kept"`` as in `samplesoft.schemes.Scheme`. Or the label of another row
        is masked in its place, ``"next"``, ``"previous"``, ``"first"``; or of ``"any"`` row.
    hit_penalty, hit_constant : float or None
        Penalty that is subtracted from masked hits, or their constant logit; None for exact masks.
    reduction : str
        ``"sum"``: the loss is log S - own. ``"jackknife"`` of that. ``"logistic"``: a sum of
        logistic losses of label and draws. ``"twice"``: the first draw is in S twice. ``"one hit
        less"``: of several hits one is left out.
    detached : bool
        Whether no gradient flows through the logits of draws.
    loss_over_batch, gradient_over_batch : bool
        Whether the loss, or the gradient in h, is divided by the size of the batch.
    weighting : Weighting
        How losses and gradients of the examples are weighted.
    by_tries, of_all : bool
        Whether draws without replacement are corrected by the number of tries that they took;
        whether the full softmax has the classes of which q is 0.
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
        """Whether it draws classes, in a way with a closed form."""
        return self.draws not in ("all", "")

    @property
    def counts_accepted(self) -> bool:
        """Whether draws are divided by the number of those that are not the label."""
        return self.hits == "counted"

    @property
    def excludes_label(self) -> bool:
        """Whether the label is excluded from the draws, so that they follow q given "not label"."""
        return self.hits == "absent"

    @property
    def corrects_repeated(self) -> bool:
        """Whether it corrects the logits of repeated draws."""
        return self.corrects_draws and self.draws == "repeated"

    @property
    def corrects_distinct(self) -> bool:
        """Whether it corrects the logits of draws without replacement, all of the same set."""
        return self.corrects_draws and self.draws == "distinct" and not self.counts_accepted

    @property
    def corrects_label(self) -> bool:
        """Whether the label's logit is corrected as those of draws are."""
        return self.corrects_draws and self.label_correction > 0.0

    @property
    def sums_repeated_draws(self) -> bool:
        """Whether repeated draws are summed, without jackknife and without division by K."""
        is_plain = self.reduction != "jackknife" and not self.counts_accepted
        return self.draws == "repeated" and is_plain

    @property
    def is_log_of_sum(self) -> bool:
        """Whether the loss is the log of a sum over repeated draws."""
        return self.sums_repeated_draws and self.reduction != "logistic"

    @property
    def masks_hits(self) -> bool:
        """Whether accidental hits are left out."""
        return self.hits == "masked"

    @property
    def has_label_in_sum(self) -> bool:
        """Whether the label has a mass of its own in S, drawn or not."""
        return self.has_draws and self.label_weight > 0.0 and self.reduction != "logistic"

    # the loss -------------------------------------------------------------------------------------

    def __call__(self, problem: Problem, num_sampled: int, batch: int) -> list[SampledSum]:
        """Return the sums S on a problem; none if undefined, or if a fault would have no effect.

        With a correction by the number of tries there is one sum for each number. For sets from
        which a drawn label is removed there are two: with and without a hit.
        """
        if not self.draws or (self.label_bias_factor > 1 and problem.biases is None):
            return []
        if (self.label_margin or self.label_angle) and not problem.has_unit_vectors:
            return []  # margins are those of cosines
        loss_factor = 1.0 / batch if self.divides_loss_by_batch else 1.0
        gradient_factor = 1.0 / batch if self.divides_gradient_by_batch else 1.0
        if self.draws == "all":
            full = full_sum(problem, self.sums_all_classes)
            label, label_derivative = self._label_logits_with_margin(problem, full.label_logit)
            full = replace(
                full,
                log_label_mass=label,
                label_logit=label + self._extra_label_bias(problem),
                label_derivative=label_derivative,
                loss_factor=loss_factor,
                gradient_factor=gradient_factor,
            )
            return [full]
        m, num_draws = num_sampled, num_sampled + self.extra_draws
        least = 2 if self.reduction == "jackknife" else 1
        if min(m, num_draws) < least or (self.multiplies_correction_by_tau and problem.tau == 1.0):
            return []
        labels, rows = problem.labels, np.arange(len(problem.labels))
        _, label_derivative = self._label_logits_with_margin(problem, problem.logits[rows, labels])
        with np.errstate(divide="ignore"):  # of classes that are never drawn
            log_q = np.log(problem.q)
        log_law, excludes = log_q, self.excludes_label and self.draws != "independent"
        if self.counts_accepted or excludes:  # given "not the label"
            log_law = log_q - np.log(-np.expm1(log_q[rows, labels]))[:, None]
            log_law[rows, labels] = -np.inf
        # the distribution of the draws: q where hits are thrown away after they were drawn
        probs = np.exp(log_law if excludes else log_q)
        # without replacement the inclusion probability knows the number that is kept
        given_label = labels if self.counts_accepted and self.draws == "distinct" else None
        divides = self.counts_accepted and given_label is None and self.divides_by_count
        reduction = "kept" if divides and self.reduction == "sum" else self.reduction
        sums = []
        for weight, sets, tries in self._set_distributions(probs, num_draws, given_label):
            inclusion = -np.expm1((m if tries is None else tries) * np.log1p(-np.exp(log_law)))
            if tries is not None:  # TensorFlow: m q where no draw was repeated
                inclusion = np.where(tries == m, m * np.exp(log_law), inclusion)
            count, present = num_draws, probs
            if sets is not None:
                count, present = 1, np.array([one.inclusion for one in sets])
                inclusion = present if self.draws == "distinct" and tries is None else inclusion
            if self.draws == "independent":
                present[rows, labels] = 0.0
            with np.errstate(divide="ignore"):
                log_inclusion = np.log(inclusion)
            # kept draws are divided by their own number
            log_num_draws = 0.0 if divides else float(np.log(m))
            drawn = DrawLogProbs(log_law, log_q, log_inclusion, log_num_draws, labels)
            own, base, logits = self.label_and_draw_logits(problem, drawn)
            # such as of an m that is one too few, and of a sum that may have nothing in it
            may_be_empty = self.draws == "independent" or bool(
                (present[logits == -np.inf] > 0.0).any()
            )
            if np.isnan(logits).any() or (np.isneginf(base).any() and may_be_empty):
                return []
            sums.append(
                SampledSum(
                    reduction=reduction,
                    labels=labels,
                    probs=present,
                    logits=logits,
                    log_label_mass=base,
                    label_logit=own,
                    num_draws=count,
                    label_derivative=label_derivative,
                    loss_factor=loss_factor,
                    gradient_factor=gradient_factor,
                    has_constant_hits=self.hit_constant is not None,
                    detaches_draws=self.detaches_draws,
                    set_distributions=sets,
                    probability=weight,
                )
            )
        return sums

    def label_and_draw_logits(
        self, problem: Problem, drawn: DrawLogProbs
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return `own` (E,), the label's logit in S (E,), and the logits of draws (E, n).

        The loss is log S - own; the logit of a hit is that at the label.
        """
        labels, rows = problem.labels, np.arange(len(problem.labels))
        x = problem.logits.copy()
        base, _ = self._label_logits_with_margin(problem, x[rows, labels])
        own = base + self._extra_label_bias(problem)
        if self.corrects_draws:
            correction = self.correction(*self.log_expected_counts(drawn))
            correction = correction * (problem.tau if self.multiplies_correction_by_tau else 1.0)
            x -= np.where(np.isinf(correction), 0.0, correction)  # of classes never drawn
            if self.label_correction:
                of_label = self.label_correction * correction[rows, labels]
                base = base - of_label
                own = own - of_label
        if self.label_weight:
            base = base + np.log(self.label_weight)
        else:  # the label has no mass except by draws of it
            base = np.full_like(own, -np.inf)
        others = {"next": np.roll(labels, -1), "previous": np.roll(labels, 1), "first": labels[0]}
        if self.hits in others:  # adjacent rows are different examples: see `Observer`
            x[rows, others[self.hits]] = -np.inf
        elif self.hits == "any":
            x[:, labels] = -np.inf
        elif self.hits != "kept":
            x[rows, labels] = self._logit_of_hits(x[rows, labels])
        return own, base, x

    def _logit_of_hits(self, unmasked: FloatArray) -> FloatArray | float:
        """Return the logit of hits that are masked, which should be -inf."""
        if self.hit_penalty is not None:
            return unmasked - self.hit_penalty
        return -np.inf if self.hit_constant is None else self.hit_constant

    def _label_logits_with_margin(
        self, problem: Problem, logits: FloatArray
    ) -> tuple[FloatArray, FloatArray | float]:
        """Return logits (E,) of the labels with a margin, and derivatives in those without."""
        if self.label_angle:
            biases = 0.0 if problem.biases is None else problem.biases[problem.labels]
            angles = np.arccos(np.clip((logits - biases) / problem.tau, -1.0, 1.0))
            derivative = np.sin(angles + self.label_angle) / np.sin(angles)
            return problem.tau * np.cos(angles + self.label_angle) + biases, derivative
        return logits - problem.tau * self.label_margin, 1.0

    def _extra_label_bias(self, problem: Problem) -> FloatArray | float:
        """Return biases of the labels (E,) beyond one for each."""
        if problem.biases is None:
            return 0.0
        more: FloatArray = (self.label_bias_factor - 1) * problem.biases[problem.labels]
        return more

    def _set_distributions(
        self, probs: FloatArray, num_draws: int, given_label: IntArray | None
    ) -> Sequence[tuple[FloatArray | float, tuple[Sets, ...] | None, FloatArray | None]]:
        """Return distributions of the drawn set, each with its weight, and the numbers of tries.

        A distribution is one for each example, or None for repeated draws by `probs` (E, n). The
        numbers are (E, 1), or None. With `given_label` (E,) there are two distributions: of sets
        without the label, and of sets that hold it.
        """
        if self.draws == "repeated":
            return [(1.0, None, None)]
        if self.draws == "distinct" and num_draws >= (probs > 0.0).sum(axis=1).min():
            return []
        keys = [row.tobytes() for row in np.ascontiguousarray(probs)]
        if self.corrects_by_tries:
            return _set_distributions_by_tries([by_tries(key, num_draws) for key in keys])
        kinds = {"once": each_once, "distinct": first_different, "independent": independent}
        whole = tuple(kinds[self.draws](key, num_draws) for key in keys)
        if given_label is None:
            return [(1.0, whole, None)]
        both: list[tuple[FloatArray, tuple[Sets, ...], None]] = []
        for held in (False, True):
            given = [one.given(int(t), held) for one, t in zip(whole, given_label, strict=True)]
            weights, sets = zip(*given, strict=True)
            both.append((np.array(weights), sets, None))
        return both


def _set_distributions_by_tries(
    found: list[tuple[tuple[int, float, Sets], ...]],
) -> list[tuple[FloatArray, tuple[Sets, ...], FloatArray]]:
    """Return the distributions of `Estimator._sets` for some numbers of tries; none if too many."""
    if not all(found):
        return []
    parts = []
    for i in range(max(map(len, found))):  # examples with fewer numbers have weights of 0
        tries, weights, sets = zip(*(one[min(i, len(one) - 1)] for one in found), strict=True)
        is_there = np.array([i < len(one) for one in found])
        parts.append((is_there * np.array(weights), tuple(sets), np.array(tries)[:, None]))
    return parts


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledSum:
    """The random sum S of each of E examples: exp(base) and exp(logits[i]) for each drawn class i.

    The loss is log S - own.

    Attributes
    ----------
    reduction : str
        That of the `Estimator`, or ``"kept"``: draws are divided by the number with weight.
    labels : ndarray of int, shape (E,)
        The labels.
    probs : ndarray, shape (E, n)
        Probabilities of one draw; where classes come in sets, that the set holds a class.
    logits : ndarray, shape (E, n)
        Corrected logits of draws; at the label that of a hit; -inf without weight.
    base, own : ndarray, shape (E,)
        Log of the label's own mass in S, and the label's logit in the loss.
    num_draws : int
        Number of draws; 1 set; 0 where S has the label and `certain` classes alone.
    label_derivative : ndarray, shape (E,), or float
        Derivative of `base` and `own` in the label's logit.
    loss_factor, gradient_factor : float
        Factors of loss and gradient.
    certain : ndarray, shape (E, n), or None
        Logits of classes that are always in S in addition to the label, -inf for others.
    hits_fixed : bool
        Whether the logit of hits is a constant, and does not follow the label's.
    detached : bool
        Whether logits of draws are constants.
    sets : tuple of Sets or None
        The distribution of the drawn set for each example; None for repeated draws.
    weight : ndarray, shape (E,), or float
        Probability of this sum, where a loss has one of several.
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
        """Log of the mass that is always in S (E,)."""
        if self.always_included_logits is None:
            return self.log_label_mass
        return np.logaddexp(
            self.log_label_mass, np.logaddexp.reduce(self.always_included_logits, axis=1)
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that equal sums share."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)

    def with_hit_logits(self, logits: FloatArray) -> SampledSum:
        """Return a copy with other logits (E,) of accidental hits."""
        changed = self.logits.copy()
        changed[np.arange(len(changed)), self.labels] = logits
        return replace(self, logits=changed)


def sum_without_draws(
    labels: IntArray, own: FloatArray, base: FloatArray, certain: FloatArray
) -> SampledSum:
    """Return an S in which all classes are always included."""
    return SampledSum(
        reduction="sum",
        labels=labels,
        probs=np.broadcast_to(0.0, certain.shape),
        logits=np.broadcast_to(-np.inf, certain.shape),
        log_label_mass=base,
        label_logit=own,
        num_draws=0,
        always_included_logits=certain,
    )


def full_sum(problem: Problem, sums_all_classes: bool = False) -> SampledSum:
    """Return S of the full softmax, over the classes with q > 0, or over all."""
    rows, others = np.arange(len(problem.labels)), problem.logits.copy()
    if not sums_all_classes:
        others[problem.q <= 0.0] = -np.inf
    own = others[rows, problem.labels]
    others[rows, problem.labels] = -np.inf
    return sum_without_draws(problem.labels, own, own, others)


# the estimators that are known --------------------------------------------------------------------

_SOFTMAX = "the full softmax loss, with a bias of O(1/m)"
# label and draws corrected alike; the log is that of the label's expected count
_CANDIDATE = "the full softmax loss plus log(m q) of the label, a constant, with a bias of O(1/m)"
_ODDS = "the log of the odds against the label plus log(m q) of it, a constant, for many draws"
_JACKKNIFE = "the full softmax loss, with a bias of O(1/m**2)"
_NCE = "noise-contrastive estimation"
_NEGATIVE_SAMPLING = "negative sampling, which has no softmax as its limit"
_BATCH = f"{_SOFTMAX}, m the other labels of a batch"
_TWO_WAY = (
    "a two-way loss, half of it over the classes of a batch and half over its contexts, which "
    "estimates no full softmax"
)
_ONCE = ("negatives", "masked", "candidate", "candidate_masked")


def _estimator_of_scheme(scheme: Scheme, **others: Any) -> Estimator:
    """Return the estimator of a scheme, with other fields where they are given."""
    if scheme.jackknife:
        estimand = _JACKKNIFE
    elif scheme.corrects_label:
        estimand = _ODDS if scheme.hits == "masked" else _CANDIDATE
    else:
        estimand = _SOFTMAX
    draws = "independent" if scheme.independent else "repeated"
    given: dict[str, Any] = {
        "name": scheme.name,
        "estimand": estimand,
        "draws": "distinct" if scheme.distinct else draws,
        "corrects_draws": scheme.corrects_draws,
        "label_correction": 1.0 if scheme.corrects_label else 0.0,
        "label_weight": 1.0 if scheme.label_in_sum else 0.0,
        "hits": scheme.hits,
        "reduction": "jackknife" if scheme.jackknife else "sum",
    } | others
    of_set = given["draws"] != "repeated"
    return Estimator(
        log_expected_counts=log_counts_of_set if of_set else log_counts_of_repeated, **given
    )


def _estimator_without_draws(name: str, estimand: str, draws: str = "") -> Estimator:
    return Estimator(name=name, estimand=estimand, draws=draws, corrects_draws=False, hits="kept")


def _known_estimators() -> Iterator[Estimator]:
    """Yield the known estimators; of two with equal means, the first one is reported."""
    estimand = "the full softmax loss, of which it is no estimate: it is the same"
    yield _estimator_without_draws("full", estimand, draws="all")
    for name, scheme in SCHEMES.items():
        # "kept" is a mistake, unless nothing is corrected
        if name != "kept":
            yield _estimator_of_scheme(scheme)
    logistic = []
    for name, of in (("nce", "candidate"), ("nce_masked", "candidate_masked")):
        logistic.append(
            _estimator_of_scheme(SCHEMES[of], name=name, estimand=_NCE, reduction="logistic")
        )
    for end, of in (("", "negatives"), ("_masked", "masked"), ("_kept", "kept")):
        scheme = SCHEMES[of].without_correction()
        name = f"negative_sampling{end}"
        words = {"name": name, "estimand": _NEGATIVE_SAMPLING}
        logistic.append(_estimator_of_scheme(scheme, reduction="logistic", **words))
    yield from logistic
    for name in _ONCE:
        yield _estimator_of_scheme(SCHEMES[name], name=f"{name}_once", draws="once")
    yield _estimator_of_scheme(SCHEMES["reject"], name="distinct_reject", draws="distinct")
    for one in logistic:
        name = f"distinct_{one.name}"
        yield replace(one, name=name, draws="distinct", log_expected_counts=log_counts_of_set)
    estimand = "the full softmax loss without bias, from random draws"
    yield _estimator_without_draws("unbiased", estimand)
    yield _estimator_without_draws("in_batch", _BATCH)
    yield _estimator_without_draws("in_batch_candidate", _ODDS)
    yield _estimator_without_draws("in_batch_candidate_kept", _CANDIDATE)
    yield _estimator_without_draws("in_batch_symmetric", _TWO_WAY)
    yield _estimator_without_draws("mixed", f"{_BATCH} and draws beside")
    yield _estimator_without_draws("mixed_candidate", _ODDS)


ESTIMATORS: dict[str, Estimator] = {one.name: one for one in _known_estimators()}


def estimators_with_draws(*draws: str) -> list[Estimator]:
    """Return the known estimators with the given kinds of draws."""
    return [one for one in ESTIMATORS.values() if one.draws in draws]
