"""Layers, linear models and optimizers that are trained without a framework."""

from samplesoft.models.adaptive import AdaptiveSoftmax
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Optimizer,
    make_optimizer,
)
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.models.spherical import SphericalSoftmax

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdaptiveSoftmax",
    "HierarchicalSoftmax",
    "Linear",
    "LinearSoftmax",
    "LinearSoftmaxSettings",
    "Momentum",
    "Optimizer",
    "SoftmaxLayer",
    "SoftmaxSettings",
    "SphericalSoftmax",
    "make_optimizer",
]
