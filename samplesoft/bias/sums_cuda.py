"""The sums that the exact bias is made of, on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import WARP_SIZE, empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import filled
from samplesoft._validation import FloatArray
from samplesoft.bias.sums import HostSums
from samplesoft.kernels.bias import laplace, panels
from samplesoft.kernels.bias import laplace_cuda as kernels
from samplesoft.kernels.bias.panels import PanelClasses

_MOMENTS = 1 << 24  # numbers in the moments of all parts
_LEAST_PART = 64  # classes


class CudaSums(HostSums):
    """The twin of `HostSums`: sums are of classes on the device, results on the processor.

    Vectors of classes are copied to the device once, however often they are summed over.
    """

    def __init__(self) -> None:
        self._copied: dict[int, tuple[FloatArray, Any]] = {}

    def class_moments(self, classes: PanelClasses) -> FloatArray:
        """Return the Chebyshev moments (panels, 3, DEGREE) of the weights of the classes."""
        size = classes.num_panels * 3 * panels.DEGREE
        num = max(1, min(_MOMENTS // size, -(-len(classes.t) // _LEAST_PART)))
        parts = filled((num, classes.num_panels, 3, panels.DEGREE), 0.0)
        launch_threads(kernels.add_class_moments, num, self._copied_to_device(classes), parts)
        total = empty(size, np.float64)
        launch_threads(kernels.sum_parts, size, parts.reshape(num, size), total)
        moments: FloatArray = total.copy_to_host().reshape(classes.num_panels, 3, panels.DEGREE)
        return moments

    def node_sums(
        self, x: FloatArray, weights: FloatArray, rows: FloatArray, reference: FloatArray
    ) -> FloatArray:
        """Return the sums (K, NUM_SUMS) over atoms at each node."""
        out = empty((len(x), laplace.NUM_SUMS), np.float64)
        parts = empty((len(x), WARP_SIZE, laplace.NUM_SUMS), np.float64)
        given = (to_device(array) for array in (x, weights, rows, reference))
        launch_warps(kernels.node_sums, len(x), *given, parts, out)
        sums: FloatArray = out.copy_to_host()
        return sums

    def atom_integrals(
        self,
        x: FloatArray,
        coefficients: FloatArray,
        tilted: FloatArray,
        rows: FloatArray,
        log_reference: float,
    ) -> FloatArray:
        """Return the integrals (3, A) over nodes at each atom."""
        out = empty((3, rows.shape[1]), np.float64)
        given = (to_device(array) for array in (x, coefficients, tilted, rows))
        launch_threads(kernels.atom_integrals, rows.shape[1], *given, log_reference, out)
        integrals: FloatArray = out.copy_to_host()
        return integrals

    def class_flows(
        self, classes: PanelClasses, coefficients: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return the flow (n,) of each class and their sum, from a function on the panels."""
        n = len(classes.t)
        flows, totals = empty(n, np.float64), empty(-(-n // kernels.EACH), np.float64)
        there = self._copied_to_device(classes), to_device(coefficients)
        launch_threads(kernels.evaluate, totals.size, *there, flows, totals)
        return flows.copy_to_host(), float(totals.copy_to_host().sum())

    def _copied_to_device(self, classes: PanelClasses) -> PanelClasses:
        names = "t", "drawn", "contrast"
        for array in (getattr(classes, name) for name in names):
            if id(array) not in self._copied:
                self._copied[id(array)] = array, to_device(array)
        copies = {name: self._copied[id(getattr(classes, name))][1] for name in names}
        return classes._replace(**copies, slot=to_device(classes.slot))
