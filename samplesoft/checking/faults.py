"""How draws are meant to become a loss, `METHODS`, and the usual mistakes, `FAULTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Method:
    """A scheme under its name, and what becomes of label and draws.

    ``aim`` says in a few words what the loss estimates. A `logistic` one adds up a logistic loss
    for each draw, others are the logarithm of a sum. One
    that is not `closed` has no closed form here: its draws are without replacement, or labels.
    """

    name: str
    scheme: Scheme | None
    aim: str
    logistic: bool = False
    closed: bool = True


_SOFTMAX = "the full softmax loss, with a bias of O(1/m)"
_CANDIDATE = "the full softmax loss up to the proposal's log: its mean over examples is right"
AIMS = {
    "candidate": _CANDIDATE,
    "candidate_masked": _CANDIDATE,
    "jackknife": "the full softmax loss, with a bias of O(1/m**2)",
    "jackknife_masked": "the full softmax loss, with a bias of O(1/m**2)",
}

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("full", None, "the full softmax loss, of which it is no estimate: it is the same"),
        *(
            Method(name, scheme, AIMS.get(name, _SOFTMAX))
            for name, scheme in SCHEMES.items()
            # "kept" is a mistake, unless nothing is corrected
            if name != "kept"
        ),
        Method("nce", SCHEMES["candidate"], "noise-contrastive estimation", logistic=True),
        Method(
            "nce_masked", SCHEMES["candidate_masked"], "noise-contrastive estimation", logistic=True
        ),
        Method(
            "negative_sampling",
            SCHEMES["negatives"].without_correction(),
            "negative sampling, which has no softmax as its limit",
            logistic=True,
        ),
        Method(
            "negative_sampling_masked",
            SCHEMES["masked"].without_correction(),
            "negative sampling, which has no softmax as its limit",
            logistic=True,
        ),
        Method(
            "negative_sampling_kept",
            SCHEMES["kept"].without_correction(),
            "negative sampling, which has no softmax as its limit",
            logistic=True,
        ),
    )
}
METHODS |= {
    f"{name}_distinct": replace(METHODS[name], name=f"{name}_distinct", closed=False)
    for name in ("negatives", "masked", "candidate", "candidate_masked")
}
METHODS |= {
    "unbiased": Method(
        "unbiased", None, "the full softmax loss without bias, from random draws", closed=False
    ),
    "in_batch": Method(
        "in_batch", None, f"{_SOFTMAX}, m the other labels of a batch", closed=False
    ),
    "in_batch_candidate": Method("in_batch_candidate", None, _CANDIDATE, closed=False),
    "mixed": Method(
        "mixed", None, f"{_SOFTMAX}, m the other labels of a batch and draws beside", closed=False
    ),
    "mixed_candidate": Method("mixed_candidate", None, _CANDIDATE, closed=False),
}


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
        ``"once"``: so have all but one; ``"next"``, ``"previous"``: the label of a neighbouring
        row is left out in their place.
    more_draws : int
        Draws beyond those that the correction reckons with.
    twice : bool
        The first draw is in the sum twice.
    drops_count : bool
        Draws are divided neither by m nor by the number that is kept.
    loss_share, slope_share : bool
        The loss, or the gradient in h, is divided by the size of the batch.
    """

    correction: Callable[[Counts], FloatArray] = _right
    label_times: float = 1.0
    hits: str | None = None
    more_draws: int = 0
    twice: bool = False
    drops_count: bool = False
    loss_share: bool = False
    slope_share: bool = False


@dataclass(frozen=True)
class Fault:
    """A mistake: what it is, what to do about it, the ways to make it, and where it can be made.

    One without variants has a number that `hypotheses.fitted` finds, or is one of draws without
    replacement.
    """

    words: str
    remedy: str
    variants: tuple[Variant, ...]
    applies: Callable[[Method], bool]


RIGHT = Variant()


def _draws(method: Method) -> bool:
    return method.scheme is not None


def _corrects(method: Method) -> bool:
    return method.scheme is not None and method.scheme.corrects_draws


def _corrects_label(method: Method) -> bool:
    return _corrects(method) and method.scheme is not None and method.scheme.corrects_label


def _leaves_hits_out(method: Method) -> bool:
    return method.scheme is not None and method.scheme.hits == "masked"


def _excludes(method: Method) -> bool:
    scheme = method.scheme
    return scheme is not None and scheme.excludes_label and not scheme.independent


def _counts_draws(method: Method) -> bool:
    return _corrects(method) and method.scheme is not None and not method.scheme.independent


def _divides_by_m(method: Method) -> bool:
    scheme = method.scheme
    return _counts_draws(method) and scheme is not None and not scheme.divides_by_kept


def _plain_sum(method: Method) -> bool:
    scheme = method.scheme
    if scheme is None or method.logistic:  # where it is one more draw
        return False
    return not (scheme.independent or scheme.jackknife or scheme.divides_by_kept)


FAULTS: dict[str, Fault] = {
    "log_q_added": Fault(
        "log q is added, not subtracted",
        "Subtract log(m q) from the logits of draws: what is drawn often must weigh less.",
        (
            Variant(lambda counts: -(counts.law + counts.draws)),
            Variant(lambda counts: -counts.law),
            Variant(lambda counts: -counts.law + counts.draws),
        ),
        _corrects,
    ),
    "uncorrected": Fault(
        "logits are not corrected for how they were drawn",
        "Subtract log(m q) from the logit of each draw.",
        (Variant(lambda counts: np.zeros_like(counts.law), drops_count=True),),
        _corrects,
    ),
    "log_m_left_out": Fault(
        "log m is left out of the correction",
        "Subtract log q + log m, the log of the expected number of draws, not log q alone.",
        (Variant(lambda counts: counts.law, drops_count=True),),
        _counts_draws,
    ),
    "logarithm_missed": Fault(
        "q or m q is subtracted, without its logarithm",
        "Subtract log(m q); a sampler may return the expected counts m q themselves.",
        (
            Variant(lambda counts: np.exp(counts.law + counts.draws), drops_count=True),
            Variant(lambda counts: np.exp(counts.law), drops_count=True),
        ),
        _corrects,
    ),
    "other_logarithm": Fault(
        "a logarithm to base 10 or 2 is subtracted",
        "Take the natural logarithm of m q.",
        (
            Variant(lambda counts: (counts.law + counts.draws) / np.log(10.0)),
            Variant(lambda counts: (counts.law + counts.draws) / np.log(2.0)),
        ),
        _corrects,
    ),
    "q_shifted": Fault(
        "q of other classes is subtracted, shifted by one",
        "Look at how ids and q are numbered: a class for padding or 'unknown' may be in one only.",
        (Variant(_shifted(1)), Variant(_shifted(-1))),
        _corrects,
    ),
    "q_not_conditioned": Fault(
        "the label is excluded from the draws, but q is not divided by 1 - q of the label",
        "Subtract log(m q / (1 - q_t)) where no draw can be the label.",
        (Variant(lambda counts: counts.q + counts.draws),),
        lambda method: _excludes(method) and _corrects(method),
    ),
    "hits_kept": Fault(
        "draws of the label are not left out",
        "Give draws that are the label of their example the logit -inf.",
        (Variant(hits="kept"),),
        _leaves_hits_out,
    ),
    "label_uncorrected": Fault(
        "the label's logit is not corrected as those of the draws are",
        "Subtract log(m q_t) from the label's logit too, or leave out draws of the label.",
        (Variant(label_times=0.0),),
        _corrects_label,
    ),
    "label_corrected_twice": Fault(
        "the label's logit is corrected twice",
        "Subtract log(m q_t) from the label's logit once.",
        (Variant(label_times=2.0),),
        _corrects_label,
    ),
    "one_hit_left_out": Fault(
        "of several draws of the label only one is left out",
        "Give each draw of the label the logit -inf: a map from classes to places holds one place.",
        (Variant(hits="once"),),
        lambda method: _leaves_hits_out(method) and _plain_sum(method),
    ),
    "hits_of_other_rows": Fault(
        "draws of a neighbouring example's label are left out, and the example's own are not",
        "Compare each example's draws with its own label.",
        (Variant(hits="next"), Variant(hits="previous")),
        _leaves_hits_out,
    ),
    "counted_twice": Fault(
        "one draw is in the sum twice",
        "Look for a draw that is joined to the others once more.",
        (Variant(twice=True),),
        _plain_sum,
    ),
    "m_off_by_one": Fault(
        "the number of draws and the m of the correction differ by one",
        "Take for m the number of draws that are in the sum, without the label.",
        (
            Variant(_off_by(1)),
            Variant(_off_by(-1)),
            Variant(more_draws=1),
            Variant(more_draws=-1),
        ),
        _divides_by_m,
    ),
    "divided_by_batch": Fault(
        "losses or gradients are divided by the size of the batch",
        "Return the loss of each example, and the gradient of their sum, not of their mean.",
        (
            Variant(slope_share=True),
            Variant(loss_share=True, slope_share=True),
            Variant(loss_share=True),
        ),
        lambda method: True,
    ),
    "distinct_as_repeated": Fault(
        "draws are without replacement, but are corrected by log(m q)",
        "Subtract the log of the chance that a class is in the set, which a sampler without "
        "replacement gives.",
        (),
        lambda method: not method.closed and method.scheme is not None,
    ),
    "dependent_draws": Fault(
        "draws of an example are not independent: the means are right, but single losses spread "
        "otherwise",
        "Look for draws that are used again, such as one set twice, or one draw for several "
        "places. Draws without replacement spread less.",
        (),
        lambda method: method.closed and method.scheme is not None,
    ),
    "in_batch_count": Fault(
        "the m of the correction is not the number of the other labels in the batch",
        "Take m = B - 1 for a batch of B.",
        (),
        lambda method: method.name.startswith("in_batch"),
    ),
    "corrected_apart": Fault(
        "the labels of the batch and the draws beside are each corrected by their own count",
        "Subtract log((B - 1) q + m u) from the logits of both, where m draws are from u.",
        (),
        lambda method: method.name.startswith("mixed"),
    ),
    "other_proposal": Fault(
        "draws are by another proposal than the one that was given",
        "Give `check_loss` the proposal of the loss; where only the draws are by another, correct "
        "by that one.",
        (),
        lambda method: method.closed and method.scheme is not None,
    ),
    "finite_mask": Fault(
        "draws of the label are masked by a finite number, which leaks",
        "Give draws that are the label of their example the logit -inf.",
        (),
        lambda method: _plain_sum(method) and _leaves_hits_out(method),
    ),
    "label_smoothing": Fault(
        "part of the target is spread over the draws (label smoothing)",
        "Leave label smoothing out, or take the loss for one of a smoothed target.",
        (),
        lambda method: _plain_sum(method) and not _leaves_hits_out(method),
    ),
    "smoothed_hits": Fault(
        "label smoothing averages the logits of masked draws",
        "Leave draws that are masked out of the mean that label smoothing takes.",
        (),
        lambda method: _plain_sum(method) and _leaves_hits_out(method),
    ),
}
