"""The sums of the exact bias, and the trials that check it; read in this order.

- `ratios`: ratios of a class's weight to its probability, with no digit lost.
- `laplace`: sums over classes at each node of the integral; `laplace_host`, `laplace_integrals`
  and `laplace_blocks`: in vector code.
- `panels`: the same for very many classes, through Chebyshev polynomials on panels.
- `poisson`: the sums for classes that are included independently of each other.
- `trials`: sampled softmax drawn again and again; ``trials_cuda``: a thread for each trial.
"""
