"""Measures: the best classes of contexts."""
