"""The kernel tree: sums of features over classes, drawn from and updated; read in this order.

- `kernel_tree`: what users call; checks, and leaves the work to an engine.
- `shape`: sizes of a tree, and how classes are weighed in its leaves.
- `sums`, ``sums_cuda``: sums of features in all nodes, and their updates.
- `engine`, ``engine_cuda``: draws, probabilities and updates on a device.

The loops are in `samplesoft.kernels.tree`.
"""
