"""The kernel tree: sums of features over classes, drawn from and updated; read in this order.

- `kernel_tree`: what users call; checks, and leaves the work to an engine.
- `sums`: sums of features in all nodes, kept as a total and differences between siblings.
- `walk`: from the root to a leaf; the probability of a path, with a class excluded or not.
- `leaf`: inside a leaf, where each class has a weight of its own.
- `engine`: draws, probabilities and updates on all threads; ``engine_cuda``: on a GPU.
"""
