"""Groups the paths of many contexts by the node that they visit.

If contexts are processed node by node, the rows of a leaf or cell stay in the cache for all
contexts that visit it.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import IntArray


@njit
def group_runs_by_node(nodes: IntArray, first_node: int, num_nodes: int) -> IntArray:
    """Return the runs of equal nodes in the rows of `nodes` (B, k), sorted by node.

    Row b of `nodes` has the nodes that context b visits. Each row of the result (K, 3) is a run
    (context, start, stop): the entries ``nodes[context, start:stop]`` are equal. All nodes are in
    ``range(first_node, first_node + num_nodes)``.
    """
    # a counting sort: count the runs at each node, compute offsets, write the runs
    offsets = np.zeros(num_nodes + 1, np.int64)
    for b in range(len(nodes)):
        for k in range(nodes.shape[1]):
            if k == 0 or nodes[b, k] != nodes[b, k - 1]:
                offsets[nodes[b, k] - first_node + 1] += 1

    for node in range(num_nodes):
        offsets[node + 1] += offsets[node]

    visits = np.empty((offsets[num_nodes], 3), np.int64)
    for b in range(len(nodes)):
        start = 0
        for k in range(1, nodes.shape[1] + 1):
            if k == nodes.shape[1] or nodes[b, k] != nodes[b, k - 1]:
                node = nodes[b, start] - first_node
                row = offsets[node]
                visits[row, 0] = b
                visits[row, 1] = start
                visits[row, 2] = k
                offsets[node] += 1
                start = k

    return visits
