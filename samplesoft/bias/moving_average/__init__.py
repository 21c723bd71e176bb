"""Exact bias and moments of losses that divide by a moving average of their sums.

Section 25 of the README of `bias` derives the equations.

- `bias`: the public function; given the state it adds one class to `samplesoft.exact_bias`.
- `long_run`: the integral for a constant gamma after many visits.
- `moments`: squared bias and variance of the gradient in h.
"""
