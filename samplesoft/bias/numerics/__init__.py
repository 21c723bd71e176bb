"""Numerical methods that all exact expectations use.

- `summation`: compensated sums, the log-softmax, and a weighted median.
- `quadrature`: the trapezoid rule in log v, and its error estimate.
"""
