"""Item vectors to begin with: singular vectors of the graph of interactions."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from samplesoft._random import uniform_block
from samplesoft.samplers.base import Rows

_MORE, _ROUNDS = 16, 3  # vectors beyond those wanted, and products with the graph


def item_directions(graph: sparse.csr_array, dim: int, seed: int) -> Rows:
    """Return the right singular vectors (items, r) of the r <= dim greatest singular values.

    The randomized range finder of Halko, Martinsson and Tropp (2011), "Finding structure with
    randomness", algorithm 4.4: `graph` (users, items) is met in sparse products only.
    """
    wanted = min(dim, *graph.shape)
    width = min(wanted + _MORE, *graph.shape)
    back = graph.T.tocsr()
    basis = 2.0 * uniform_block(np.uint64(seed), graph.shape[1], width) - 1.0
    basis = basis.astype(np.float32)
    for _ in range(_ROUNDS):
        basis, _ = np.linalg.qr(back @ (graph @ basis))
    small = graph @ basis
    _, vectors = np.linalg.eigh(small.T @ small)  # rising
    found: Rows = basis @ vectors[:, ::-1][:, :wanted]
    return found
