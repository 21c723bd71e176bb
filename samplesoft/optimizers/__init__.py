"""Optimizers, which update named parameters in place: all rows of an array, or a few."""

from samplesoft.optimizers.adagrad import Adagrad
from samplesoft.optimizers.adam import Adam
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.momentum import Momentum
from samplesoft.optimizers.registry import OPTIMIZERS, make_optimizer
from samplesoft.optimizers.sgd import SGD

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "make_optimizer"]
