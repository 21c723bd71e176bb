"""Kernels: features."""
