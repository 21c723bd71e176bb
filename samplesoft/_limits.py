"""Ends of the range of float64 that formulas keep clear of."""

LARGEST_EXPONENT = 700.0  # exp of it is finite, of minus it not 0; what lies beyond is cut to it
