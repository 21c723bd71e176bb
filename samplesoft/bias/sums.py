"""The sums over classes, atoms and nodes that the exact bias is made of, on the processor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._jit import chunks, num_threads, thread_each, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.bias import laplace, panels

_ATOM_CHUNK = 256
CLASS_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class PanelClasses:
    """Classes on Chebyshev panels: what `kernels.bias.panels` needs to know of them.

    Parameters
    ----------
    log_r, drawn, contrast : ndarray, shape (n,)
        Log ratio, probability in a draw, and (r - R) / (r + R).
    log_ref, t_mean, kappa_mean : float
        Log R, and the mean ratio relative to R.
    width : float
        Of a panel.
    first : int
        Number of the first panel.
    slot : ndarray of int64, shape (panels,)
        Numbers the occupied panels.
    """

    log_r: FloatArray
    drawn: FloatArray
    contrast: FloatArray
    log_ref: float
    t_mean: float
    kappa_mean: float
    width: float
    first: int
    slot: IntArray

    @property
    def count(self) -> int:
        """Number of occupied panels."""
        return int(self.slot[-1]) + 1


class HostSums:
    """Sums on all threads."""

    def class_moments(self, classes: PanelClasses) -> FloatArray:
        """Return the Chebyshev moments (panels, 3, DEGREE) of the weights of the classes."""
        shape = (classes.count, 3, panels.DEGREE)

        def work(part: slice) -> FloatArray:
            moments = np.zeros(shape)
            panels.add_moments(
                classes.log_r[part],
                classes.drawn[part],
                classes.contrast[part],
                classes.log_ref,
                classes.t_mean,
                classes.kappa_mean,
                classes.width,
                classes.first,
                classes.slot,
                moments,
                np.empty(panels.DEGREE),
            )
            return moments

        total = np.zeros(shape)
        for moments in thread_map(work, chunks(len(classes.log_r), CLASS_CHUNK)):
            total += moments
        return total

    def node_sums(
        self, x: FloatArray, weights: FloatArray, rows: FloatArray, reference: FloatArray
    ) -> FloatArray:
        """Return the sums (K, NUM_SUMS) over atoms at each node; see `kernels.bias.laplace`."""
        sums = np.empty((len(x), laplace.NUM_SUMS))

        def work(part: slice) -> None:
            laplace.node_sums(x[part], weights, rows, reference, sums[part])

        thread_each(work, chunks(len(x), -(-len(x) // (4 * num_threads()))))
        return sums

    def atom_integrals(
        self,
        x: FloatArray,
        coefficients: FloatArray,
        tilted: FloatArray,
        rows: FloatArray,
        log_reference: float,
    ) -> FloatArray:
        """Return the integrals (3, A) over nodes at each atom; see `kernels.bias.laplace`."""
        integrals = np.empty((3, rows.shape[1]))

        def work(part: slice) -> None:
            atoms, out = rows[:, part], integrals[:, part]
            laplace.atom_integrals(x, coefficients, tilted, atoms, log_reference, out)

        thread_each(work, chunks(rows.shape[1], _ATOM_CHUNK))
        return integrals

    def class_flows(
        self, classes: PanelClasses, coefficients: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return the flow (n,) of each class and their sum, from a function on the panels."""
        flows = np.empty(len(classes.log_r))

        def work(part: slice) -> float:
            return panels.evaluate(
                classes.log_r[part],
                classes.drawn[part],
                classes.contrast[part],
                classes.log_ref,
                classes.width,
                classes.first,
                classes.slot,
                coefficients,
                flows[part],
                np.empty(panels.DEGREE),
            )

        return flows, float(sum(thread_map(work, chunks(len(flows), CLASS_CHUNK))))


HOST = HostSums()
