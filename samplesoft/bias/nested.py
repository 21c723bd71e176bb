"""Integrals over 0 < y < x on panels of log x: what `quadrature.py` is to integrals over x."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray

_DEGREE = 16  # Gauss-Legendre nodes on a panel
_WIDTH = 0.75  # of a panel; an error of 10^-14 for functions that change on a scale of 1


@dataclass(frozen=True)
class NestedGrid:
    """Nodes of log x on panels next to each other."""

    x: FloatArray  # (K,) the nodes, log x
    dx: FloatArray  # (K,) weights of dx / x

    @property
    def over_x(self) -> FloatArray:
        """1/x, (K,), with what makes the integral of 1/x times a function like x**2 start at 0."""
        found: FloatArray = np.exp(np.minimum(-self.x, LARGEST_EXPONENT))
        found[0] *= 1.0 + np.exp(-_PLACES[0]) / self.dx[0]
        return found

    def primitive(self, values: FloatArray) -> FloatArray:
        """Return the integrals of `values` dy / y, both (K, d), from the start to each node."""
        panels = values.reshape(-1, _DEGREE, values.shape[1])
        whole = np.cumsum(_WHOLE @ panels, axis=0)
        found: FloatArray = _PART @ panels
        found[1:] += whole[:-1, None]
        return found.reshape(values.shape)

    def mean_before(self, values: FloatArray) -> FloatArray:
        """Return 1/x times the integrals of `values` dy, both (K,), from 0, where they are 1."""
        panels = values.reshape(-1, _DEGREE)
        found = panels @ (_PART * np.exp(_PLACES - _PLACES[:, None])).T
        whole = panels @ (_WHOLE * np.exp(_PLACES - _WIDTH))  # over x at the end of the panel
        before = 1.0  # of all up to the panel, over x at its start
        for panel, own in zip(found, whole, strict=True):
            panel += before * np.exp(-_PLACES)
            before = before * math.exp(-_WIDTH) + own
        return found.ravel()


def make_nested_grid(start: float, stop: float) -> NestedGrid:
    """Return the nodes from log x = `start` to at least `stop`."""
    count = math.ceil((stop - start) / _WIDTH)
    x = start + _WIDTH * np.arange(count)[:, None] + _PLACES
    return NestedGrid(x.ravel(), np.tile(_WHOLE, count))


def _primitives(nodes: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the integrals from -1 to each node of the polynomials that are 1 at one node."""
    values = legendre.legvander(nodes, len(nodes))
    integrals = np.empty((len(nodes), len(nodes)))
    integrals[:, 0] = 1.0 + nodes
    degrees = np.arange(1, len(nodes))
    integrals[:, 1:] = (values[:, 2:] - values[:, :-2]) / (2.0 * degrees + 1.0)
    coefficients = (np.arange(len(nodes)) + 0.5)[:, None] * (values[:, :-1].T * weights)
    found: FloatArray = integrals @ coefficients
    return found


_NODES, _WEIGHTS = legendre.leggauss(_DEGREE)
_PLACES = 0.5 * _WIDTH * (1.0 + _NODES)  # of the nodes in a panel
_WHOLE = 0.5 * _WIDTH * _WEIGHTS  # weights of the integral over the panel
_PART = 0.5 * _WIDTH * _primitives(_NODES, _WEIGHTS)  # and of those up to each node
