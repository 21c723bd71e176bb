"""Kernels: samplers."""
