"""The sums of the exact bias; read in this order.

- `ratios`: ratios of a class's weight to its probability, with no digit lost.
- `laplace`: sums over classes at each node of the integral; `laplace_host`, `laplace_integrals`
  and `laplace_blocks`: in vector code.
- `panels`: the same for very many classes, through Chebyshev polynomials on panels.
- `poisson`: the sums for classes that are included independently of each other.
"""
