"""Temporary: the base moved to `samplesoft.sampler`."""

from samplesoft.sampler import NOTHING, Draw, Rows, Sampler

__all__ = ["NOTHING", "Draw", "Rows", "Sampler"]
