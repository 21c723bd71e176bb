"""Compiled code alone: loops over arrays, without checks and without classes.

What calls a kernel has checked its arguments and made room for its results. A kernel is a plain
function under `samplesoft._jit.njit`, which runs on one thread; callers share out the work. A file
``x_cuda.py`` holds the twin of ``x.py`` for a GPU: a thread or a warp in place of a loop, with the
same scalar functions where there are any. Kernels hold no randomness: uniforms come in as arrays,
or from a counter with a key (`samplesoft._random`), so that any number of threads, and a GPU, draw
the same classes.

The rooms, in an order to read them in:

1. `rows`, `weights`, `exponential`: inner products of rows, draws among weights, and exp and log
   several at a time; `sort_ids`: runs of equal ids.
2. `arrays`: checks and sorting of arrays on a GPU.
3. `alias`: tables that draw from any weights in constant time.
4. `tree`: draws from a kernel in logarithmic time.
5. `losses`: logits, losses and gradients of sampled and full softmax.
6. `metrics`: the best classes of each context.
7. `bias`: the sums of the exact bias, and the trials that check it.
9. `models`: gates of an LSTM, and the steps of optimizers.
"""
