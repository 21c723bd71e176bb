"""Losses of the softmax layer, forward and backward by hand."""

from samplesoft.losses.base import Batch, Cache, Loss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.importance import ImportanceSamplingLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.nce import NCELoss
from samplesoft.losses.negative_sampling import NegativeSamplingLoss
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.sampled import SampledLoss, SampledSoftmaxLoss
from samplesoft.losses.spec import LossSpec

__all__ = [
    "LOSSES",
    "Batch",
    "Cache",
    "FullSoftmaxLoss",
    "Gradients",
    "ImportanceSamplingLoss",
    "JackknifeLoss",
    "Loss",
    "LossSpec",
    "NCELoss",
    "NegativeSamplingLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SparseRows",
    "make_loss",
]
