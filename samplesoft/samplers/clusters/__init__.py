"""The cluster sampler: cells of similar classes, drawn from and updated; read in this order.

- `sampler`: what users call; checks, and leaves the work to the engine.
- `partition`: how classes are divided into cells, by k-means.
- `limits`: vectors so large that masses would overflow.
- `cells`: which classes cells hold, and how spread out those are.
- `engine`: draws, probabilities and updates; ``engine_cuda``: the same on a GPU.

The loops are in `samplesoft.kernels.clusters`.
"""
