"""The kernel tree: sums of class features in a binary tree. Read the modules in this order.

- `plain`: the same method for one context at a time, to be read first.
- `kernel_tree`: the sampler with its draws, probabilities and updates.
- `features`: the feature map, applied to class vectors and to contexts, with checked results.
- `sums`: the sums of features of all nodes, stored as one total and the differences of siblings.
- `walk`: the kernels of the descent from the root to a leaf.
- `leaf`: the kernels that draw a class inside a leaf, by the weights of its classes.
"""
