"""Whether fused training supports a model, and the reason if it does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._jit import is_kernel
from samplesoft.losses.base import Loss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.log_sums import MovingAverageLoss
from samplesoft.losses.logistic import FullLogisticLoss, logistic_kernel, merge_softplus
from samplesoft.losses.multilevel import MultilevelLoss
from samplesoft.losses.sampled import (
    LossKernel,
    SampledLoss,
    SampledSoftmaxLoss,
    merge_exponentials,
    softmax_kernel,
)
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.samplers.base import Draw, Sampler

# Methods that a fused step does not call, because it does their work in compiled code. If a loss or
# an optimizer overrides one of them, the model is trained step by step.
_LOSS_METHODS = ("forward", "forward_batch", "backward", "check_batch", "with_log_sums")
_REPLACED_METHODS: dict[Any, tuple[str, ...]] = {
    Loss: _LOSS_METHODS,
    MovingAverageLoss: (*_LOSS_METHODS, "checked_log_sums", "_next_log_sums"),
    Optimizer: ("step", "parameters_with_states", "advance"),
}
_SAMPLED_LOSSES: tuple[type[Loss], ...] = (SampledLoss, SampledSoftmaxLoss, MovingAverageLoss)
# The kernels of losses over all classes. Fused training treats such a loss as a sampled loss that
# draws each class exactly once.
FULL_LOSSES: dict[type[Loss], LossKernel] = {
    FullSoftmaxLoss: LossKernel(softmax_kernel, merge=merge_exponentials, adds_exponentials=True),
    FullLogisticLoss: LossKernel(logistic_kernel, (1.0,), merge=merge_softplus),
}


def why_step_by_step(model: LinearSoftmax, optimizer: Optimizer | None) -> str | None:
    """Return the reason why `take_steps` cannot train a model, or None if it can.

    Parameters
    ----------
    model : LinearSoftmax
        The model; the reason may lie in its settings, its loss or its sampler.
    optimizer : Optimizer or None
        The optimizer; fused training needs its compiled kernel.

    Returns
    -------
    str or None
        The reason, as a clause for a message to the user.
    """
    loss = model.softmax.loss
    sampler = model.softmax.sampler
    if model.settings.embedding_dim is None:
        return "a model without embeddings has class vectors as long as its inputs"
    keeps_sums = isinstance(loss, MovingAverageLoss)
    base_loss = MovingAverageLoss if keeps_sums else Loss
    if supported_base_loss(loss) is None or _overrides_replaced_method(base_loss, loss):
        return f"{type(loss).__name__} has a forward or a backward pass of its own"
    if loss.reduction != "sum":
        return f"reduction={loss.reduction!r} is not the sum of the examples' losses"
    if (
        optimizer is None
        or _overrides_replaced_method(Optimizer, optimizer)
        or not is_kernel(optimizer._kernel)
    ):
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
    if not loss.draws_num_sampled:
        return f"{type(loss).__name__} has draws of its own"

    example_ids = np.zeros((1, model.softmax.num_sampled))
    loss_kernel = loss._kernel_for_draw(
        Draw(example_ids.astype(np.int64), example_ids), model.num_classes
    )
    merge = loss_kernel.merge
    if not is_kernel(loss_kernel.kernel) or not (merge is None or is_kernel(merge)):
        return f"the terms of {type(loss).__name__} have no kernel of samplesoft's njit"

    return None


def supported_base_loss(loss: Loss) -> type[Loss] | None:
    """Return the loss class whose forward and backward pass the given loss uses.

    Returns None if the loss has other passes, which fused training does not support.
    """
    for base in (*_SAMPLED_LOSSES, *FULL_LOSSES):
        passes = type(loss)._forward, type(loss)._backward
        if isinstance(loss, base) and passes == (base._forward, base._backward):
            return base
    return None


def _overrides_replaced_method(base: Any, instance: Any) -> bool:
    """Return whether the class of `instance` overrides a method that fused steps do not call.

    `instance` is a loss or an optimizer, and `base` its base class.
    """
    return any(
        getattr(type(instance), name) is not getattr(base, name) for name in _REPLACED_METHODS[base]
    )
