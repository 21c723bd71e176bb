"""Kernels: losses."""
