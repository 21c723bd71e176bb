"""Losses by name, for settings, the command line and the suite that tests all of them.

A new loss is a file, and a line here.
"""

from __future__ import annotations

from typing import Any

from samplesoft._device.select import require_cpu
from samplesoft._validation import as_choice
from samplesoft.losses.base import Loss
from samplesoft.losses.bilateral import BilateralSoftmaxLoss
from samplesoft.losses.br_snis import BrSnisLoss
from samplesoft.losses.coupled import CoupledLoss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.full_logistic import FullLogisticLoss
from samplesoft.losses.importance import ImportanceSamplingLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.multilevel import MultilevelLoss
from samplesoft.losses.nce import NCELoss
from samplesoft.losses.negative_sampling import NegativeSamplingLoss
from samplesoft.losses.sampled import SampledSoftmaxLoss
from samplesoft.losses.spec import LossSpec


def _softmax(**options: Any) -> LossSpec:
    return LossSpec(SampledSoftmaxLoss, cuda=True, **options)


LOSSES: dict[str, LossSpec] = {
    "full": LossSpec(FullSoftmaxLoss, classifier=True),
    "full-absolute": LossSpec(FullSoftmaxLoss, {"absolute": True}),
    "full-logistic": LossSpec(FullLogisticLoss, {"label_reduction": "ova"}, classifier=True),
    "sampled": _softmax(masked="sampled-masked", classifier=True),
    "sampled-masked": _softmax(fixed={"scheme": "masked"}, classifier=True),
    "sampled-reject": _softmax(fixed={"scheme": "reject"}),
    "sampled-candidate": _softmax(fixed={"scheme": "candidate"}),
    "sampled-candidate-masked": _softmax(fixed={"scheme": "candidate_masked"}),
    "sampled-absolute": _softmax(fixed={"absolute": True}),
    "jackknife": LossSpec(JackknifeLoss, masked="jackknife-masked", classifier=True),
    "jackknife-masked": LossSpec(JackknifeLoss, {"scheme": "masked"}, classifier=True),
    "multilevel": LossSpec(MultilevelLoss, masked="multilevel-masked", classifier=True),
    "multilevel-masked": LossSpec(MultilevelLoss, {"scheme": "masked"}, classifier=True),
    "coupled": LossSpec(CoupledLoss, masked="coupled-masked"),
    "coupled-masked": LossSpec(CoupledLoss, {"scheme": "masked"}),
    "br-snis": LossSpec(BrSnisLoss, masked="br-snis-masked"),
    "br-snis-masked": LossSpec(BrSnisLoss, {"scheme": "masked"}),
    "nce": LossSpec(NCELoss, classifier=True),
    "negative-sampling": LossSpec(
        NegativeSamplingLoss, masked="negative-sampling-masked", classifier=True
    ),
    "negative-sampling-masked": LossSpec(
        NegativeSamplingLoss, {"scheme": "masked"}, classifier=True
    ),
    "importance": LossSpec(ImportanceSamplingLoss),
    "bilateral": LossSpec(BilateralSoftmaxLoss),
}


def make_loss(name: str, **options: Any) -> Loss:
    """Make a loss by its name in `LOSSES`.

    Parameters
    ----------
    name : str
        A key of `LOSSES`. ``"sampled"``, ``"jackknife"``, ``"multilevel"``,
        ``"coupled"``, ``"br-snis"`` and ``"negative-sampling"`` take draws that exclude the label;
        ``"sampled-reject"`` and names that end in ``-masked`` leave accidental hits of the label
        out, and so can share one set of draws among a batch; ``"sampled-candidate-masked"`` is
        TensorFlow's ``sampled_softmax_loss`` with ``remove_accidental_hits``,
        ``"sampled-candidate"`` that without, and CNTK's.
    **options
        Those of `samplesoft.losses.base.Loss`, and ``scheme`` where the loss has several and the
        name says none.

    Returns
    -------
    Loss
        A new loss.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or the loss refuses an option.

    Examples
    --------
    >>> make_loss("sampled-masked", tau=2.0).scheme
    'masked'
    """
    spec = LOSSES[as_choice("name", name, LOSSES)]
    for option in options:
        if option in spec.fixed:
            raise ValueError(
                f"`{option}` must be left out for {name!r}, which says "
                f"{option}={spec.fixed[option]!r}, got {options[option]!r}; take another name."
            )
    if not spec.cuda:
        require_cpu(repr(name), options.pop("device", "cpu"))
    return spec.make(**spec.fixed, **options)
