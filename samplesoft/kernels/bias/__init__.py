"""Kernels: bias."""
