"""Features of the kernels that are sampled; read in this order.

- `quadratic`: all products of two entries of a row.
- ``fourier_cuda``: random Fourier and positive features, written as products are finished.
"""
