"""Optimizers that change named parameters in place, all rows of them or a few."""

from samplesoft.models.optimizers.adagrad import Adagrad
from samplesoft.models.optimizers.adam import Adam
from samplesoft.models.optimizers.base import Optimizer
from samplesoft.models.optimizers.momentum import Momentum
from samplesoft.models.optimizers.registry import OPTIMIZERS, make_optimizer
from samplesoft.models.optimizers.sgd import SGD

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "Momentum",
    "Optimizer",
    "make_optimizer",
]
