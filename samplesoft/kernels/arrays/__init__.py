"""Kernels: arrays."""
