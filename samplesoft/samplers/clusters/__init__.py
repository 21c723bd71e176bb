"""The cluster sampler: cells of similar classes, drawn from and updated; read in this order.

- `sampler`: the sampler, its draws, probabilities and updates.
- `partition`: how classes are divided into cells, by k-means.
- `descent`: from the top cells to a class; the probability of a path, with a class excluded or not.
"""
