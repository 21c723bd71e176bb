"""Draws from one distribution for all contexts, and from the full softmax; read in this order.

- `alias`: alias tables, which draw from any weights in constant time.
- `static`: draws with and without replacement; ``static_cuda``: those with replacement.
- `successive`: inclusion probabilities of draws without replacement.
- `softmax_draw`: draws from the softmax, a block of classes first and a class inside it;
  ``softmax_draw_cuda``: the choice of the block, while `samplesoft.kernels.tree` draws inside.
- `visits`: the draws of a batch in the order of the leaves or cells that they go to.
"""
