"""Measures of a model: the loss over all classes, the best classes, and how good a ranking is."""

from samplesoft.metrics.evaluation import Evaluation, evaluate, top_k_classes
from samplesoft.metrics.ranking import ranking_scores

__all__ = ["Evaluation", "evaluate", "ranking_scores", "top_k_classes"]
