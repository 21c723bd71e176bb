"""Compiled loops: no validation, no classes, no hidden randomness."""
