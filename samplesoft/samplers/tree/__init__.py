"""The kernel tree: sums of class features in a binary tree. Read the modules in this order.

- `plain`: the same draws for one context at a time, to be read first.
- `kernel_tree`: the sampler with its draws, probabilities and updates.
- `features`: the features of classes, which are summed, and of contexts, which multiply the sums.
- `sums`: the sums of all nodes, stored as one total and the differences between siblings.
- `walk`: the descent from the root to a leaf, with or without an excluded class.
- `leaf`: the choice of a class inside a leaf, where each class has its own weight.
"""
