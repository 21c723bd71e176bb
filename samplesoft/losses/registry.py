"""Losses by name, for settings and for the suite that tests all of them.

A new loss is a file, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from samplesoft._device.select import require_cpu
from samplesoft._validation import as_choice
from samplesoft.losses.base import Loss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.importance import ImportanceSamplingLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.nce import NCELoss
from samplesoft.losses.negative_sampling import NegativeSamplingLoss
from samplesoft.losses.sampled import SampledSoftmaxLoss

LOSSES: dict[str, Callable[..., Loss]] = {
    "full": FullSoftmaxLoss,
    "full-absolute": partial(FullSoftmaxLoss, absolute=True),
    "sampled": SampledSoftmaxLoss,
    "sampled-masked": partial(SampledSoftmaxLoss, scheme="masked"),
    "sampled-reject": partial(SampledSoftmaxLoss, scheme="reject"),
    "sampled-candidate": partial(SampledSoftmaxLoss, scheme="candidate"),
    "sampled-candidate-masked": partial(SampledSoftmaxLoss, scheme="candidate_masked"),
    "sampled-absolute": partial(SampledSoftmaxLoss, absolute=True),
    "jackknife": JackknifeLoss,
    "jackknife-masked": partial(JackknifeLoss, scheme="masked"),
    "nce": NCELoss,
    "negative-sampling": NegativeSamplingLoss,
    "negative-sampling-masked": partial(NegativeSamplingLoss, scheme="masked"),
    "importance": ImportanceSamplingLoss,
}


def make_loss(name: str, **options: Any) -> Loss:
    """Make a loss by its name in `LOSSES`.

    Parameters
    ----------
    name : str
        A key of `LOSSES`. ``"sampled"``, ``"jackknife"`` and ``"negative-sampling"`` take draws
        that exclude the label; ``"sampled-reject"`` and names that end in ``-masked``
        leave accidental hits of the label out, and so can share one set of draws among a batch;
        ``"sampled-candidate-masked"`` is TensorFlow's ``sampled_softmax_loss`` with
        ``remove_accidental_hits``, ``"sampled-candidate"`` that without, and CNTK's.
    **options
        ``tau``, ``normalize``, ``absolute``, ``reduction``, and ``scheme`` where the loss has
        several and the name says none.

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
    make = LOSSES[as_choice("name", name, LOSSES)]
    fixed = getattr(make, "keywords", {})
    for option in options:
        if option in fixed:
            raise ValueError(
                f"`{option}` must be left out for {name!r}, which says {option}={fixed[option]!r}, "
                f"got {options[option]!r}; take another name."
            )
    if getattr(make, "func", make) is not SampledSoftmaxLoss:
        require_cpu(repr(name), options.pop("device", "cpu"))
    return make(**options)
