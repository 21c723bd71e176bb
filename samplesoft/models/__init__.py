"""Layers, optimizers and schedules of models that are trained without a framework."""

from samplesoft.models.clipping import clip_by_global_norm
from samplesoft.models.direct_softmax import DirectSoftmax
from samplesoft.models.dropout import Dropout
from samplesoft.models.encoders import Embedding, SparseLinear
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.lstm import LSTM
from samplesoft.models.module import Layer
from samplesoft.models.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Optimizer,
    make_optimizer,
)
from samplesoft.models.schedules import SCHEDULES, make_schedule
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.models.softmax_settings import SoftmaxSettings

__all__ = [
    "LSTM",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "Adagrad",
    "Adam",
    "DirectSoftmax",
    "Dropout",
    "Embedding",
    "Layer",
    "Linear",
    "LinearSoftmax",
    "LinearSoftmaxSettings",
    "Momentum",
    "Optimizer",
    "SoftmaxLayer",
    "SoftmaxSettings",
    "SparseLinear",
    "clip_by_global_norm",
    "make_optimizer",
    "make_schedule",
]
