"""Draws in proportion to a kernel, in time logarithmic in the classes; read in this order.

- `records`: what kernels take together: rules of the tree, draws, exclusion, rows of leaves.
- `sums`: sums of features in all nodes, kept as a total and differences between siblings.
- `walk`: from the root to a leaf; the probability of a path, with a class excluded or not.
- `leaf`: inside a leaf, where each class has a weight of its own.
- ``sums_cuda``, ``walk_cuda``, ``leaf_cuda``: the same with a warp for each node, draw and leaf.
"""
