"""The sums over classes, atoms and nodes that the exact bias is made of, on the processor."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import chunks, num_threads, thread_each, thread_map
from samplesoft._validation import FloatArray
from samplesoft.kernels.bias import laplace, laplace_host, panels
from samplesoft.kernels.bias.panels import PanelClasses

_ATOM_CHUNK = 1024
_LEAST_NODES = 32
_MOMENT_CHUNK = 2048
CLASS_CHUNK = 1 << 16


def moment_chunks(num_classes: int, size: int) -> list[slice]:
    """Split classes into parts for moments of a `size`, no longer than it costs to add these up.

    Equal terms that are added one after another err in one direction, the further the more.
    """
    return chunks(num_classes, max(_MOMENT_CHUNK, size))


def node_chunks(num_nodes: int) -> list[slice]:
    """Split nodes into parts for the threads; what is known of all atoms is made for each part."""
    threads = num_threads()
    parts = 4 * threads if threads > 1 else 1
    return chunks(num_nodes, max(_LEAST_NODES, -(-num_nodes // parts)))


def class_moments(classes: PanelClasses) -> FloatArray:
    """Return the Chebyshev moments (panels, 3, DEGREE) of the weights of the classes."""
    shape = (classes.num_panels, 3, panels.DEGREE)

    def work(part: slice) -> FloatArray:
        moments = np.zeros(shape)
        room = np.empty(panels.DEGREE)
        panels.add_moments(classes, part.start, part.stop, moments, room)
        return moments

    total = np.zeros(shape)
    for moments in thread_map(work, moment_chunks(len(classes.t), total.size)):
        total += moments
    return total


def node_sums(
    x: FloatArray, weights: FloatArray, rows: FloatArray, reference: FloatArray
) -> FloatArray:
    """Return the sums (K, NUM_SUMS) over atoms at each node; see `kernels.bias.laplace`."""
    sums = np.empty((len(x), laplace.NUM_SUMS))
    order = np.argsort(rows[1], kind="stable")
    weights, rows = weights.take(order, axis=1), rows.take(order, axis=1)

    def work(part: slice) -> None:
        laplace_host.node_sums(x[part], weights, rows, reference, sums[part])

    thread_each(work, node_chunks(len(x)))
    return sums


def atom_integrals(
    x: FloatArray,
    coefficients: FloatArray,
    tilted: FloatArray,
    rows: FloatArray,
    log_reference: float,
) -> FloatArray:
    """Return the integrals (3, A) over nodes at each atom; see `kernels.bias.laplace`."""
    integrals = np.empty((3, rows.shape[1]))
    order = np.argsort(rows[1], kind="stable")

    def work(part: slice) -> None:
        atoms = rows.take(order[part], axis=1)
        out = np.empty((3, atoms.shape[1]))
        laplace_host.atom_integrals(x, coefficients, tilted, atoms, log_reference, out)
        integrals[:, order[part]] = out

    thread_each(work, chunks(len(order), _ATOM_CHUNK))
    return integrals


def class_flows(classes: PanelClasses, coefficients: FloatArray) -> tuple[FloatArray, float]:
    """Return the flow (n,) of each class and their sum, from a function on the panels."""
    flows = np.empty(len(classes.t))

    def work(part: slice) -> float:
        room = np.empty(panels.DEGREE)
        return panels.evaluate(classes, part.start, part.stop, coefficients, flows, room)

    return flows, float(sum(thread_map(work, chunks(len(flows), CLASS_CHUNK))))
