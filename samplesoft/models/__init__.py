"""Softmax layers and linear models, which are trained with NumPy arrays, without a framework."""

from samplesoft.models.adaptive import AdaptiveSoftmax
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.models.spherical import SphericalSoftmax

__all__ = [
    "AdaptiveSoftmax",
    "HierarchicalSoftmax",
    "Linear",
    "LinearSoftmax",
    "LinearSoftmaxSettings",
    "SoftmaxLayer",
    "SoftmaxSettings",
    "SphericalSoftmax",
]
