"""Sampled softmax with NumPy and Numba: exact bias, bounds and Monte Carlo."""
