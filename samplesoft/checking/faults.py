"""How draws are meant to become a loss, `METHODS`, and the usual mistakes, `FAULTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from samplesoft._cached import cached_property
from samplesoft._validation import FloatArray, IntArray
from samplesoft.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Method:
    """A scheme under its name, and what becomes of label and draws.

    ``aim`` says in a few words what the loss estimates. A `logistic` one adds up a logistic loss
    for each draw, others are the logarithm of a sum. Its `draws` are ``repeated``, ``distinct``
    (without replacement), repeated of which each class counts ``once``, or ``independent``
    inclusion; empty where they are labels, or there is no closed form.
    """

    name: str
    scheme: Scheme | None
    aim: str
    logistic: bool = False
    draws: str = "repeated"

    @cached_property
    def facts(self) -> frozenset[str]:
        """Return what holds of the method, by which a `Fault` says where it can be made at all."""
        scheme = self.scheme
        if scheme is None:
            return frozenset()
        repeated, corrects = self.draws == "repeated", scheme.corrects_draws
        plain = not (scheme.jackknife or scheme.divides_by_kept)
        facts = {
            "corrects draws": corrects,
            "corrects distinct draws": corrects and plain and self.draws == "distinct",
            "knows the number of draws": corrects and repeated,
            "divides by m": corrects and repeated and not scheme.divides_by_kept,
            "corrects the label": corrects and scheme.corrects_label,
            # no draw can be the label, so that others are likelier than q says
            "excludes the label": scheme.excludes_label and repeated,
            "draws the label": not scheme.excludes_label and repeated and plain,
            "masks hits": scheme.hits == "masked",
            "adds draws": repeated and plain,
            # of logistic losses the label is one more draw
            "is a sum": repeated and plain and not self.logistic,
            "has a label in the sum": scheme.label_in_sum and not self.logistic,
        }
        return frozenset(fact for fact, holds in facts.items() if holds)


_SOFTMAX = "the full softmax loss, with a bias of O(1/m)"
# label and draws corrected alike; the log is that of the label's expected count
_CANDIDATE = "the full softmax loss plus log(m q) of the label, a constant, with a bias of O(1/m)"
_ODDS = "the log of the odds against the label plus log(m q) of it, a constant, for many draws"
_JACKKNIFE = "the full softmax loss, with a bias of O(1/m**2)"
_NCE = "noise-contrastive estimation"
_NEGATIVE_SAMPLING = "negative sampling, which has no softmax as its limit"
_SUMS = ("negatives", "masked", "candidate", "candidate_masked")
_BATCH = f"{_SOFTMAX}, m the other labels of a batch"


def _aim(scheme: Scheme) -> str:
    if scheme.jackknife:
        return _JACKKNIFE
    if scheme.corrects_label:
        return _ODDS if scheme.hits == "masked" else _CANDIDATE
    return _SOFTMAX


def _methods() -> Iterator[Method]:
    """Yield what a loss may be meant to be; of two with the same means the first is named."""
    yield Method("full", None, "the full softmax loss, of which it is no estimate: it is the same")
    for name, scheme in SCHEMES.items():
        # "kept" is a mistake, unless nothing is corrected
        if name != "kept":
            kinds = {"distinct": scheme.distinct, "independent": scheme.independent}
            draws = next((kind for kind, holds in kinds.items() if holds), "repeated")
            yield Method(name, scheme, _aim(scheme), draws=draws)
    logistic = []
    for name, scheme_name in (("nce", "candidate"), ("nce_masked", "candidate_masked")):
        logistic.append(Method(name, SCHEMES[scheme_name], _NCE, logistic=True))
    for end, scheme_name in (("", "negatives"), ("_masked", "masked"), ("_kept", "kept")):
        scheme = SCHEMES[scheme_name].without_correction()
        name = f"negative_sampling{end}"
        logistic.append(Method(name, scheme, _NEGATIVE_SAMPLING, logistic=True))
    yield from logistic
    for name in _SUMS:
        yield Method(f"{name}_once", SCHEMES[name], _aim(SCHEMES[name]), draws="once")
    yield Method("distinct_reject", SCHEMES["reject"], _SOFTMAX, draws="distinct")
    for one in logistic:
        yield replace(one, name=f"distinct_{one.name}", draws="distinct")
    unbiased = "the full softmax loss without bias, from random draws"
    yield Method("unbiased", None, unbiased, draws="")
    yield Method("in_batch", None, _BATCH, draws="")
    yield Method("in_batch_candidate", None, _ODDS, draws="")
    yield Method("in_batch_candidate_kept", None, _CANDIDATE, draws="")
    yield Method("mixed", None, f"{_BATCH} and draws beside", draws="")
    yield Method("mixed_candidate", None, _ODDS, draws="")


METHODS: dict[str, Method] = {method.name: method for method in _methods()}


class Counts(NamedTuple):
    """What corrections are made of, as logarithms (E, n) and numbers.

    `law` is that of one draw as it is made, `q` that of the proposal, which differs where the label
    is excluded, and `inclusion` the chance that the draws hold a class; `draws` is log m, or 0
    where draws are divided by the number that is kept. `labels` (E,) are those of the examples.
    """

    law: FloatArray
    q: FloatArray
    inclusion: FloatArray
    draws: float
    labels: IntArray
    right: bool = True  # whether the right correction is that of repeated draws


# How often a class is expected, as a logarithm (E, n) and that of a number: right, or not.
Expected = Callable[[Counts], tuple[FloatArray, float]]


def _right(counts: Counts) -> tuple[FloatArray, float]:
    return (counts.law, counts.draws) if counts.right else (counts.inclusion, 0.0)


def _shifted(by: int) -> Expected:
    def expected(counts: Counts) -> tuple[FloatArray, float]:
        q = np.roll(counts.q, by, axis=1)
        # that of uniform draws is the same, and of what has q = 0 the loss would be infinite
        if np.array_equal(q, counts.q) or (np.isneginf(q) & (counts.law > -np.inf)).any():
            q = np.full_like(q, np.nan)  # cannot be made
        return q, counts.draws

    return expected


def _off_by(change: int) -> Expected:
    def expected(counts: Counts) -> tuple[FloatArray, float]:
        m = round(float(np.exp(counts.draws))) + change
        return counts.law, float(np.log(m)) if m > 0 else np.nan

    return expected


def _conditioned(counts: Counts) -> tuple[FloatArray, float]:
    own = counts.q[np.arange(len(counts.labels)), counts.labels]
    return counts.q - np.log(-np.expm1(own))[:, None], counts.draws


# What is taken off a logit, by the logarithm of how often a class is expected.
Link = Callable[[FloatArray, float], FloatArray]


def _log_count(logs: FloatArray, draws: float) -> FloatArray:
    return logs + draws


@dataclass(frozen=True)
class Variant:
    """One way to make a mistake; a field that is not given is as it should be.

    Attributes
    ----------
    expected : callable
        How often a class is expected.
    link : callable
        What is taken off the logits of draws, and of the label where a scheme corrects it.
    tempered : bool
        The correction is multiplied by `tau`, as the scores are.
    label_times : float
        How often the correction is taken off the label's logit, where the scheme corrects it.
    label_weight : float
        How often the label itself is in the sum.
    label_biases : int
        How often the bias of the label is in its logit.
    hits : str or None
        ``"kept"``: draws of the label have weight though the scheme leaves them out;
        ``"next"``, ``"previous"``, ``"first"``: the label of another row is left out in their
        place; ``"any"``: labels of other rows are left out too.
    kind : str or None
        What becomes of the draws in place of their plain sum: ``"twice"``, the first is in it
        twice; ``"one hit less"``, of several draws of the label one is left out, the others not.
    once : bool
        Each class counts once, however often it was drawn.
    more_draws : int
        Draws beyond those that the correction reckons with.
    drops_count : bool
        Draws are divided neither by m nor by the number that is kept.
    detached : bool
        The gradient is that of the label's logit alone.
    loss_share, slope_share : bool
        The loss, or the gradient in h, is divided by the size of the batch.
    """

    expected: Expected = _right
    link: Link = _log_count
    tempered: bool = False
    label_times: float = 1.0
    label_weight: float = 1.0
    label_biases: int = 1
    hits: str | None = None
    kind: str | None = None
    once: bool = False
    more_draws: int = 0
    drops_count: bool = False
    detached: bool = False
    loss_share: bool = False
    slope_share: bool = False

    def beside(self, other: Variant) -> Variant | None:
        """Return both mistakes in one; None where they are about the same thing."""
        changes = [
            {f.name: value for f in fields(Variant) if (value := getattr(v, f.name)) != f.default}
            for v in (self, other)
        ]
        return None if changes[0].keys() & changes[1] else Variant(**changes[0] | changes[1])


@dataclass(frozen=True)
class Fault:
    """A mistake: what it is, what to do about it, the ways to make it, and where it can be made.

    It can be made in methods of which all the `facts` hold. One without variants has a number that
    `hypotheses.fitted` finds, or is one of labels of the batch.
    """

    words: str
    remedy: str
    variants: tuple[Variant, ...] = ()
    facts: tuple[str, ...] = ()

    def applies(self, method: Method) -> bool:
        """Return whether it can be made."""
        return method.facts.issuperset(self.facts)


RIGHT = Variant()


# The order is that of the report where hypotheses fit equally well: what is met most often first.
FAULTS: dict[str, Fault] = {
    "log_q_added": Fault(
        "log q is added, not subtracted",
        "Subtract log(m q) from the logits of draws: what is drawn often must weigh less.",
        (
            Variant(link=lambda logs, draws: -(logs + draws)),
            Variant(link=lambda logs, draws: -logs),
            Variant(link=lambda logs, draws: -logs + draws),
        ),
        ("corrects draws",),
    ),
    "uncorrected": Fault(
        "logits are not corrected for how they were drawn",
        "Subtract log(m q) from the logit of each draw.",
        (Variant(link=lambda logs, draws: np.zeros_like(logs), drops_count=True),),
        ("corrects draws",),
    ),
    "log_m_left_out": Fault(
        "log m is left out of the correction",
        "Subtract log q + log m, the log of the expected number of draws, not log q alone.",
        (Variant(lambda counts: (counts.law, 0.0), drops_count=True),),
        ("knows the number of draws",),
    ),
    "logarithm_missed": Fault(
        "q or m q is subtracted, without its logarithm",
        "Subtract log(m q); a sampler may return the expected counts m q themselves.",
        (
            Variant(link=lambda logs, draws: np.exp(logs + draws), drops_count=True),
            Variant(link=lambda logs, draws: np.exp(logs), drops_count=True),
        ),
        ("corrects draws",),
    ),
    "other_logarithm": Fault(
        "a logarithm to base 10 or 2 is subtracted",
        "Take the natural logarithm of m q.",
        (
            Variant(link=lambda logs, draws: (logs + draws) / np.log(10.0)),
            Variant(link=lambda logs, draws: (logs + draws) / np.log(2.0)),
        ),
        ("corrects draws",),
    ),
    "q_shifted": Fault(
        "q of other classes is subtracted, shifted by one",
        "Look at how ids and q are numbered: a class for padding or 'unknown' may be in one only.",
        (Variant(_shifted(1)), Variant(_shifted(-1))),
        ("corrects draws",),
    ),
    "q_not_conditioned": Fault(
        "the label is excluded from the draws, but q is not divided by 1 - q of the label",
        "Subtract log(m q / (1 - q_t)) where no draw can be the label.",
        (Variant(lambda counts: (counts.q, counts.draws)),),
        ("excludes the label", "corrects draws"),
    ),
    "q_renormalised": Fault(
        "q is divided by 1 - q of the label, though the label is drawn like any other class",
        "Subtract log(m q), with q as it is drawn from; hits are left out after that.",
        (Variant(_conditioned),),
        ("draws the label", "corrects draws"),
    ),
    "inclusion_of_repeated": Fault(
        "draws may repeat a class, but are corrected by the chance that a set holds it",
        "Subtract log(m q) where draws may repeat; 1 - (1 - q)^m is for sets without repeats.",
        (Variant(lambda counts: (counts.inclusion, 0.0)),),
        ("divides by m",),
    ),
    "distinct_as_repeated": Fault(
        "draws are without replacement, but are corrected by log(m q)",
        "Subtract the log of the chance that a class is in the set, which a sampler without "
        "replacement gives.",
        (Variant(lambda counts: (counts.law, counts.draws)),),
        ("corrects distinct draws",),
    ),
    "temperature_after": Fault(
        "the correction is multiplied by the inverse temperature",
        "Multiply h . c by tau first, then subtract log(m q).",
        (Variant(tempered=True),),
        ("corrects draws",),
    ),
    "hits_kept": Fault(
        "draws of the label are not left out",
        "Give draws that are the label of their example the logit -inf.",
        (Variant(hits="kept"),),
        ("masks hits",),
    ),
    "label_uncorrected": Fault(
        "the label's logit is not corrected as those of the draws are",
        "Subtract log(m q_t) from the label's logit too, or leave out draws of the label.",
        (Variant(label_times=0.0),),
        ("corrects the label",),
    ),
    "label_corrected_twice": Fault(
        "the label's logit is corrected twice",
        "Subtract log(m q_t) from the label's logit once.",
        (Variant(label_times=2.0),),
        ("corrects the label",),
    ),
    "label_twice": Fault(
        "the label is in the sum twice",
        "Put the label's own logit into the sum once, beside those of the draws.",
        (Variant(label_weight=2.0),),
        ("has a label in the sum",),
    ),
    "label_left_out": Fault(
        "the label's own logit is not in the sum",
        "Put the label's own logit into the sum, beside those of the draws.",
        (Variant(label_weight=0.0),),
        ("has a label in the sum",),
    ),
    "label_bias_twice": Fault(
        "the bias of the label is in its logit twice",
        "Add the bias of a class to its logit once, before the label's is taken off.",
        (Variant(label_biases=2), Variant(label_biases=3)),
    ),
    "one_hit_left_out": Fault(
        "of several draws of the label only one is left out",
        "Give each draw of the label the logit -inf: a map from classes to places holds one place.",
        (Variant(hits="kept", kind="one hit less"),),
        ("masks hits", "is a sum"),
    ),
    "hits_of_other_rows": Fault(
        "draws of another example's label are left out, and the example's own are not",
        "Compare each example's draws with its own label.",
        tuple(Variant(hits=row) for row in ("next", "previous", "first")),
        ("masks hits",),
    ),
    "hits_of_any_row": Fault(
        "draws of any example's label are left out, not of the example's own alone",
        "Compare each example's draws with its own label: those of others are draws like any.",
        (Variant(hits="any"),),
        ("masks hits",),
    ),
    "counted_twice": Fault(
        "one draw is in the sum twice",
        "Look for a draw that is joined to the others once more.",
        (Variant(kind="twice"),),
        ("is a sum",),
    ),
    "duplicates_dropped": Fault(
        "a class that is drawn several times counts once",
        "Keep repeated draws: log(m q) is the log of how often a class is drawn.",
        (Variant(once=True),),
        ("adds draws",),
    ),
    "m_off_by_one": Fault(
        "the number of draws and the m of the correction differ by one",
        "Take for m the number of draws that are in the sum, without the label.",
        (Variant(_off_by(1)), Variant(_off_by(-1)), Variant(more_draws=1), Variant(more_draws=-1)),
        ("divides by m",),
    ),
    "detached_negatives": Fault(
        "the gradient leaves out the draws",
        "Let the gradient flow through the logits of the draws too.",
        (Variant(detached=True),),
        ("has a label in the sum",),
    ),
    "divided_by_batch": Fault(
        "losses or gradients are divided by the size of the batch",
        "Return the loss of each example, and the gradient of their sum, not of their mean.",
        (
            Variant(slope_share=True),
            Variant(loss_share=True, slope_share=True),
            Variant(loss_share=True),
        ),
    ),
    "weights_of_first": Fault(
        "gradients are multiplied by the weight of the first example, not each by its own",
        "Multiply the gradient of each example by its weight before it is added to the others.",
    ),
    "weights_ignored": Fault(
        "losses or gradients are not multiplied by the weights of their examples",
        "Multiply the gradient of each example by its weight before it is added to the others.",
    ),
    "labels_counted_once": Fault(
        "in the gradient of the class vectors a label that several examples share counts once",
        "Add up the rows of equal labels, as numpy.add.at does and `dW[labels] -= h` does not.",
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
    "other_temperature": Fault(
        "the inverse temperature is another than `tau`",
        "Give `check_loss` the `tau` of the loss, or put `tau` before h . c.",
    ),
    "finite_mask": Fault(
        "draws of the label are masked by a finite number, which leaks",
        "Give draws that are the label of their example the logit -inf.",
    ),
    "q_clipped": Fault(
        "q is clipped from below before its logarithm is taken",
        "Subtract log(m q) as it is: q of what has been drawn is above 0.",
    ),
    "epsilon_in_log": Fault(
        "a number is added to q before its logarithm is taken",
        "Subtract log(m q) as it is: q of what has been drawn is above 0.",
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
