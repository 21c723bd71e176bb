"""The cluster sampler: cells of similar classes, drawn from and updated; read in this order.

- `sampler`: what users call; checks, and leaves the work to an engine.
- `partition`: how classes are divided into cells, by k-means.
- `descent`: from the top cells to a class; the probability of a path, with a class excluded or not.
- `engine`: draws, probabilities and updates on all threads; ``engine_cuda``: on a GPU.
"""
