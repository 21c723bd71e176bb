"""The cluster sampler: cells of similar classes. Read the modules in this order.

- `plain`: the same method for one context at a time, to be read first.
- `sampler`: the sampler with its draws, probabilities and updates.
- `partition`: the division of classes into cells, by k-means.
- `descent`: the kernels of the descent from the top cells to a class.
"""
