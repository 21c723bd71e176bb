"""Which models a compiled block of steps can train, and why not the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._jit import is_kernel
from samplesoft.losses.base import Loss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.logistic import FullLogisticLoss, logistic_terms, merge_softplus
from samplesoft.losses.multilevel import MultilevelLoss
from samplesoft.losses.sampled import (
    SampledLoss,
    SampledSoftmaxLoss,
    Terms,
    merge_exponentials,
    softmax_terms,
)
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.samplers.base import Draw, Sampler

# The methods that a compiled step replaces: a loss or an optimizer with one of its own goes step by
# step.
_REPLACED: dict[Any, tuple[str, ...]] = {
    Loss: ("forward", "forward_batch", "backward", "check_batch"),
    Optimizer: ("step", "with_states", "next_numbers"),
}
_SAMPLED_LOSSES: tuple[type[Loss], ...] = (SampledLoss, SampledSoftmaxLoss)
# to losses over all classes, each class is a draw that is made once
FULL_LOSSES: dict[type[Loss], Terms] = {
    FullSoftmaxLoss: Terms(softmax_terms, merge=merge_exponentials, adds_exponentials=True),
    FullLogisticLoss: Terms(logistic_terms, (1.0,), merge=merge_softplus),
}


def why_step_by_step(model: LinearSoftmax, optimizer: Optimizer | None) -> str | None:
    """Return why `take_steps` cannot take the steps of a model, None where it can.

    Parameters
    ----------
    model : LinearSoftmax
        Its loss and its sampler decide.
    optimizer : Optimizer or None
        Must have a compiled kernel, and no step of its own.

    Returns
    -------
    str or None
        The reason, in words for a user.
    """
    loss, sampler = model.softmax.loss, model.softmax.sampler
    if model.settings.embedding_dim is None:
        return "a model without embeddings has class vectors as long as its inputs"
    if passes_of(loss) is None or _has_own(Loss, loss):
        return f"{type(loss).__name__} has a forward or a backward pass of its own"
    if loss.reduction != "sum":
        return f"reduction={loss.reduction!r} is not the sum of the examples' losses"
    if optimizer is None or _has_own(Optimizer, optimizer) or not is_kernel(optimizer._kernel):
        return f"{type(optimizer).__name__} has no kernel, or a step of its own"
    if not isinstance(loss, SampledLoss):
        return None
    if sampler is None or sampler.dim is not None:
        return "draws follow the contexts, which change in each step"
    if getattr(type(sampler), "observe", None) is not Sampler.observe:
        return f"{type(sampler).__name__} learns from the labels of each step"
    if not model.softmax.shared:
        return "each example has draws of its own"
    if type(loss).draw is MultilevelLoss.draw:
        return None
    if not draws_as_asked(loss):
        return f"{type(loss).__name__} has draws of its own"
    few = np.zeros((1, model.softmax.num_sampled))
    terms = loss._terms_of(Draw(few.astype(np.int64), few), model.num_classes)
    if not is_kernel(terms.kernel) or not (terms.merge is None or is_kernel(terms.merge)):
        return f"the terms of {type(loss).__name__} have no kernel of samplesoft's njit"
    return None


def passes_of(loss: Loss) -> type[Loss] | None:
    """Return the class whose forward and backward pass a loss has, if it is known here."""
    for known in (*_SAMPLED_LOSSES, *FULL_LOSSES):
        one = type(loss)._forward, type(loss)._backward
        if one == (known._forward, known._backward):
            return known
    return None


def _has_own(base: Any, thing: Any) -> bool:
    """Tell whether a loss or an optimizer has a method of its own in place of one of `base`."""
    return any(getattr(type(thing), name) is not getattr(base, name) for name in _REPLACED[base])


def draws_as_asked(loss: SampledLoss) -> bool:
    """Tell whether a loss makes as many draws as it is asked for."""
    return type(loss).draw is SampledLoss.draw
