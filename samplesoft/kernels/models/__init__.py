"""Kernels: models."""
