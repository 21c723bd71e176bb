"""How draws are meant to become a loss, `METHODS`, and the usual mistakes, `FAULTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Method:
    """A scheme under its name, and what becomes of label and draws.

    ``aim`` says in a few words what the loss estimates. A `logistic` one adds up a logistic loss
    for each draw, others are the logarithm of a sum. One that is not `closed` has no closed form
    here: its draws are without replacement, or labels.
    """

    name: str
    scheme: Scheme | None
    aim: str
    logistic: bool = False
    closed: bool = True

    @cached_property
    def facts(self) -> frozenset[str]:
        """What holds of the method, by which a `Fault` says where it can be made at all."""
        scheme = self.scheme
        if scheme is None:
            return frozenset()
        counts = scheme.corrects_draws and not scheme.independent
        facts = {
            "corrects draws": scheme.corrects_draws,
            "knows the number of draws": counts,
            "divides by m": counts and not scheme.divides_by_kept,
            "corrects the label": scheme.corrects_draws and scheme.corrects_label,
            # no draw can be the label, so that others are likelier than q says
            "excludes the label": scheme.excludes_label and not scheme.independent,
            "masks hits": scheme.hits == "masked",
            # of logistic losses the label is one more draw
            "is a sum": not (
                self.logistic or scheme.independent or scheme.jackknife or scheme.divides_by_kept
            ),
        }
        return frozenset(fact for fact, holds in facts.items() if holds)


_SOFTMAX = "the full softmax loss, with a bias of O(1/m)"
_CANDIDATE = "the full softmax loss up to the proposal's log: its mean over examples is right"
_JACKKNIFE = "the full softmax loss, with a bias of O(1/m**2)"
_NCE = "noise-contrastive estimation"
_NEGATIVE_SAMPLING = "negative sampling, which has no softmax as its limit"
_BATCH = f"{_SOFTMAX}, m the other labels of a batch"


def _aim(scheme: Scheme) -> str:
    if scheme.jackknife:
        return _JACKKNIFE
    return _CANDIDATE if scheme.corrects_label else _SOFTMAX


def _methods() -> Iterator[Method]:
    """Yield what a loss may be meant to be; of two with the same means the first is named."""
    yield Method("full", None, "the full softmax loss, of which it is no estimate: it is the same")
    for name, scheme in SCHEMES.items():
        # "kept" is a mistake, unless nothing is corrected
        if name != "kept" and not scheme.distinct:
            yield Method(name, scheme, _aim(scheme))
    for name, scheme_name in (("nce", "candidate"), ("nce_masked", "candidate_masked")):
        yield Method(name, SCHEMES[scheme_name], _NCE, logistic=True)
    for end, scheme_name in (("", "negatives"), ("_masked", "masked"), ("_kept", "kept")):
        scheme = SCHEMES[scheme_name].without_correction()
        yield Method(f"negative_sampling{end}", scheme, _NEGATIVE_SAMPLING, logistic=True)
    for name in ("negatives", "masked", "candidate", "candidate_masked"):
        scheme = SCHEMES[name]
        yield Method(f"{name}_distinct", scheme, _aim(scheme), closed=False)
    unbiased = "the full softmax loss without bias, from random draws"
    yield Method("unbiased", None, unbiased, closed=False)
    yield Method("in_batch", None, _BATCH, closed=False)
    yield Method("in_batch_candidate", None, _CANDIDATE, closed=False)
    yield Method("mixed", None, f"{_BATCH} and draws beside", closed=False)
    yield Method("mixed_candidate", None, _CANDIDATE, closed=False)


METHODS: dict[str, Method] = {method.name: method for method in _methods()}


class Counts(NamedTuple):
    """What corrections are made of, as logarithms (E, n) and a number.

    `law` is that of one draw as it is made, `q` that of the proposal, which differs where the label
    is excluded; `draws` is log m, or 0 where draws are divided by the number that is kept.
    """

    law: FloatArray
    q: FloatArray
    draws: float


def _right(counts: Counts) -> FloatArray:
    return counts.law + counts.draws


# corrections with a mistake in them


def _shifted(by: int) -> Callable[[Counts], FloatArray]:
    return lambda counts: np.roll(counts.q, by, axis=1) + counts.draws


def _off_by(change: int) -> Callable[[Counts], FloatArray]:
    def correction(counts: Counts) -> FloatArray:
        m = round(float(np.exp(counts.draws))) + change
        return counts.law + np.log(m) if m > 0 else np.full_like(counts.law, np.nan)

    return correction


@dataclass(frozen=True)
class Variant:
    """One way to make a mistake; a field that is not given is as it should be.

    Attributes
    ----------
    correction : callable
        What is taken off the logits of draws, and of the label where a scheme corrects it.
    label_times : float
        How often the correction is taken off the label's logit, where the scheme corrects it.
    hits : str or None
        ``"kept"``: draws of the label have weight though the scheme leaves them out;
        ``"next"``, ``"previous"``: the label of a neighbouring row is left out in their place.
    kind : str or None
        What becomes of the draws in place of their plain sum: ``"twice"``, the first is in it
        twice; ``"one hit less"``, of several draws of the label one is left out, the others not.
    more_draws : int
        Draws beyond those that the correction reckons with.
    drops_count : bool
        Draws are divided neither by m nor by the number that is kept.
    loss_share, slope_share : bool
        The loss, or the gradient in h, is divided by the size of the batch.
    """

    correction: Callable[[Counts], FloatArray] = _right
    label_times: float = 1.0
    hits: str | None = None
    kind: str | None = None
    more_draws: int = 0
    drops_count: bool = False
    loss_share: bool = False
    slope_share: bool = False


@dataclass(frozen=True)
class Fault:
    """A mistake: what it is, what to do about it, the ways to make it, and where it can be made.

    It can be made in methods of which all the `facts` hold. One without variants has a number that
    `hypotheses.fitted` finds, or is one of draws without replacement or of the batch.
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
            Variant(lambda counts: -(counts.law + counts.draws)),
            Variant(lambda counts: -counts.law),
            Variant(lambda counts: -counts.law + counts.draws),
        ),
        ("corrects draws",),
    ),
    "uncorrected": Fault(
        "logits are not corrected for how they were drawn",
        "Subtract log(m q) from the logit of each draw.",
        (Variant(lambda counts: np.zeros_like(counts.law), drops_count=True),),
        ("corrects draws",),
    ),
    "log_m_left_out": Fault(
        "log m is left out of the correction",
        "Subtract log q + log m, the log of the expected number of draws, not log q alone.",
        (Variant(lambda counts: counts.law, drops_count=True),),
        ("knows the number of draws",),
    ),
    "logarithm_missed": Fault(
        "q or m q is subtracted, without its logarithm",
        "Subtract log(m q); a sampler may return the expected counts m q themselves.",
        (
            Variant(lambda counts: np.exp(counts.law + counts.draws), drops_count=True),
            Variant(lambda counts: np.exp(counts.law), drops_count=True),
        ),
        ("corrects draws",),
    ),
    "other_logarithm": Fault(
        "a logarithm to base 10 or 2 is subtracted",
        "Take the natural logarithm of m q.",
        (
            Variant(lambda counts: (counts.law + counts.draws) / np.log(10.0)),
            Variant(lambda counts: (counts.law + counts.draws) / np.log(2.0)),
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
        (Variant(lambda counts: counts.q + counts.draws),),
        ("excludes the label", "corrects draws"),
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
    "one_hit_left_out": Fault(
        "of several draws of the label only one is left out",
        "Give each draw of the label the logit -inf: a map from classes to places holds one place.",
        (Variant(hits="kept", kind="one hit less"),),
        ("masks hits", "is a sum"),
    ),
    "hits_of_other_rows": Fault(
        "draws of a neighbouring example's label are left out, and the example's own are not",
        "Compare each example's draws with its own label.",
        (Variant(hits="next"), Variant(hits="previous")),
        ("masks hits",),
    ),
    "counted_twice": Fault(
        "one draw is in the sum twice",
        "Look for a draw that is joined to the others once more.",
        (Variant(kind="twice"),),
        ("is a sum",),
    ),
    "m_off_by_one": Fault(
        "the number of draws and the m of the correction differ by one",
        "Take for m the number of draws that are in the sum, without the label.",
        (Variant(_off_by(1)), Variant(_off_by(-1)), Variant(more_draws=1), Variant(more_draws=-1)),
        ("divides by m",),
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
    "distinct_as_repeated": Fault(
        "draws are without replacement, but are corrected by log(m q)",
        "Subtract the log of the chance that a class is in the set, which a sampler without "
        "replacement gives.",
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
    "finite_mask": Fault(
        "draws of the label are masked by a finite number, which leaks",
        "Give draws that are the label of their example the logit -inf.",
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
