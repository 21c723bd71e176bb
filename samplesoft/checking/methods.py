"""The schemes that a loss may follow: how draws are meant to become a loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
            if name != "kept"  # a mistake, unless nothing is corrected
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
