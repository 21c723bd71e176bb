"""Numerical methods that every exact expectation uses.

- `summation`: sums that keep their digits, the softmax, and a weighted median.
- `quadrature`: the trapezoid rule on log v, and the estimate of its error.
"""
