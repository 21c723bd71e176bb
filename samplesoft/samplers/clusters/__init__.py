"""The cluster sampler: cells of similar classes, drawn from and updated; read in this order.

- `sampler`: what users call; checks, and leaves the work to the engine.
- `partition`: how classes are divided into cells, by k-means.
- `engine`: draws, probabilities and updates.

The loops are in `samplesoft.kernels.clusters`.
"""
