"""Recommendation of items to users from their interaction histories."""

from samplesoft.recommend.recommender import SampledSoftmaxRecommender

__all__ = ["SampledSoftmaxRecommender"]
