"""Recommendation: the best items of rows of scores."""
