"""What one number, one row or one matrix product needs; read in this order.

- `dot`: the inner product of two rows; ``dot_cuda``: shared out among the lanes of a warp.
- `weights`: exponentials of a few logits, and the class that a draw meets among weights;
  ``weights_cuda``: a lane of a warp for each exponential.
- `exponential`, `logarithm`: exp and log1p written so that a loop computes several at a time.
- `sincos`: cosine and sine together, of an angle in turns.
- `unit_rows`: rows divided by their norms, and the gradient through that.
- `weighted_rows`: weighted sums of rows, as in a sparse matrix times a dense one.
- `hadamard`: products with random signs and Walsh-Hadamard matrices in O(p log p);
  ``hadamard_cuda``: in shared memory.
- `prefetch`: a hint to fetch a row that is read soon.
- ``product_cuda``: matrix products by tiles; read the loop over ``start`` first.
"""
