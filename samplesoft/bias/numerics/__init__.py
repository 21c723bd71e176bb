"""Numerical methods that every exact expectation uses.

- `summation`: compensated sums, the softmax, and a weighted median.
- `quadrature`: the trapezoid rule in log v, and its error estimate.
"""
