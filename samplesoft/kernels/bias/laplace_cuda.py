"""Sums of the exact bias on the device, in float64: the loops of the processor, shared out.

Each lane or thread runs a loop of `laplace` or `panels` over a part of what it goes through; parts
are added in an order that depends on their number alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import (
    WARP_SIZE,
    cuda,
    for_device,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels.bias import laplace, panels

DEGREE = panels.DEGREE
EACH = 64  # classes that a thread evaluates one after another

_node_sums = for_device(laplace.node_sums)
_atom_integrals = for_device(laplace.atom_integrals, _bend=for_device(laplace._bend))
_add_moments = for_device(panels.add_moments, _polynomials=for_device(panels._polynomials))
_evaluate = for_device(panels.evaluate, _polynomials=for_device(panels._polynomials))


@kernel
def node_sums(x: Any, weights: Any, atoms: Any, reference: Any, parts: Any, out: Any) -> None:
    """Write the sums (K, NUM_SUMS) over atoms at each node, a warp for each.

    Its lanes take every so many atoms; `parts` (K, WARP_SIZE, NUM_SUMS) is room for theirs.
    """
    k, own = warp_index(), lane()
    if k >= x.shape[0]:
        return
    some = weights[:, own::WARP_SIZE], atoms[:, own::WARP_SIZE]
    _node_sums(x[k : k + 1], some[0], some[1], reference, parts[k, own : own + 1])
    warp_sync()
    for s in range(out.shape[1]):
        total = warp_sum(parts[k, own, s])
        if own == 0:
            out[k, s] = total


@kernel
def atom_integrals(
    x: Any, coefficients: Any, tilted: Any, atoms: Any, log_reference: float, out: Any
) -> None:
    """Write the integrals (3, A) over nodes at each atom, a thread for each."""
    i = thread_index()
    if i < atoms.shape[1]:
        one = atoms[:, i : i + 1]
        _atom_integrals(x, coefficients, tilted, one, log_reference, out[:, i : i + 1])


@kernel
def add_class_moments(classes: Any, parts: Any) -> None:
    """Add moments of the classes to `parts` (threads, panels, 3, DEGREE), a thread for a part."""
    thread = thread_index()
    if thread >= parts.shape[0]:
        return
    room = cuda.local.array(DEGREE, np.float64)
    n = classes.t.shape[0]
    each = -(-n // parts.shape[0])
    _add_moments(classes, thread * each, min((thread + 1) * each, n), parts[thread], room)


@kernel
def sum_parts(parts: Any, out: Any) -> None:
    """Write the sums of `parts` (T, N) over T, a thread for each."""
    i = thread_index()
    if i >= out.shape[0]:
        return
    total = 0.0
    for part in range(parts.shape[0]):
        total += parts[part, i]
    out[i] = total


@kernel
def evaluate(classes: Any, coefficients: Any, out: Any, totals: Any) -> None:
    """Write the flow (n,) of each class and the sum of each thread, which goes through `EACH`."""
    thread = thread_index()
    if thread >= totals.shape[0]:
        return
    room = cuda.local.array(DEGREE, np.float64)
    a, b = thread * EACH, min((thread + 1) * EACH, out.shape[0])
    totals[thread] = _evaluate(classes, a, b, coefficients, out, room)
