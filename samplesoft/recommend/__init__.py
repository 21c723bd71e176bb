"""Recommendation: items for users, from those that they have taken."""

from samplesoft.recommend.recommender import SampledSoftmaxRecommender

__all__ = ["SampledSoftmaxRecommender"]
