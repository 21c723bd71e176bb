"""Kernels: tree."""
