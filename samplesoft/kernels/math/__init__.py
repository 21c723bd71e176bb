"""Kernels: math."""
