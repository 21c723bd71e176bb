"""The kernel tree: sums of features over classes, drawn from and updated; read in this order.

- `kernel_tree`: the sampler, its draws, probabilities and updates.
- `features`: what it sums up for each class, and multiplies by what it has for a context.
- `sums`: sums of features in all nodes, kept as a total and differences between siblings.
- `walk`: from the root to a leaf; the probability of a path, with a class excluded or not.
- `leaf`: inside a leaf, where each class has a weight of its own.
"""
